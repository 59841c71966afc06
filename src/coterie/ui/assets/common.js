"use strict";
// What the pages share. Names of runs are others' text: they enter the page as text only, never as HTML.

const find = (id) => document.getElementById(id);

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function trouble(line) {
  find("trouble").textContent = line;
  find("trouble").hidden = !line;
}

// The answer to a question, null where it is the one given before (tag: where to keep that).
async function ask(path, words = [], tag = {}) {
  const headers = tag.last ? { "If-None-Match": tag.last } : {};
  const response = await fetch(`${path}?${new URLSearchParams(words)}`, { headers });
  if (response.status === 304) return null;
  if (!response.headers.get("Content-Type")?.startsWith("application/json")) throw new Error((await response.text()).trim());
  const said = await response.json();
  if (!response.ok) throw new Error(said.problem);
  tag.last = response.headers.get("ETag");
  return said;
}

// Calls look again and again while the page is seen; look answers with the seconds until the next time, 0 to end.
async function keepLooking(look) {
  for (;;) {
    let pause = 3;
    if (!document.hidden) {
      try {
        pause = await look();
        trouble("");
      } catch (problem) {
        const gone = problem instanceof TypeError;
        trouble(gone ? "coterie ui does not answer: is it still running?" : problem.message);
      }
    } else pause = 1;
    if (!pause) return;
    await new Promise((wake) => setTimeout(wake, 1000 * pause));
  }
}

const percent = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);

const when = (seconds) => (seconds ? new Date(1000 * seconds).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "");

function span(seconds) {
  if (seconds === null || !isFinite(seconds)) return "";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const [h, m] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60)];
  return h ? `${h} h ${m} min` : `${m} min ${s % 60} s`;
}

function status(run) {
  return element("span", run.status, `status ${run.status}`);
}

function bar(run) {
  const made = element("progress");
  made.max = run.rounds || 1;
  made.value = run.done;
  made.setAttribute("aria-label", "Rounds done");
  return made;
}
