"use strict";
// The theme puts the copy button of every code block into a <nav>: a group of buttons is no place to go to.
new MutationObserver(() => {
  for (const box of document.querySelectorAll("nav.md-code__nav:not([role])")) box.setAttribute("role", "group");
}).observe(document.documentElement, { childList: true, subtree: true });
