"use strict";
// The theme puts the copy button of every code block into a <nav>; each has a name of its own.
let named = 0;
new MutationObserver(() => {
  for (const box of document.querySelectorAll("nav.md-code__nav:not([aria-label])")) box.setAttribute("aria-label", `Code ${++named}`);
}).observe(document.documentElement, { childList: true, subtree: true });
