"use strict";
// What the pages share. Names of runs are others' text: they enter the page as text only, never as HTML.

const find = (id) => document.getElementById(id);

function element(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, act, label = "") {
  const made = element("button", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function trouble(line) {
  find("trouble").textContent = line;
  find("trouble").hidden = !line;
}

async function answered(response) {
  if (!response.headers.get("Content-Type")?.startsWith("application/json")) throw new Error((await response.text()).trim());
  const said = await response.json();
  if (!response.ok) throw new Error(said.problem);
  return said;
}

// The answer to a question, null where it is the one given before (tag: where to keep that).
async function ask(path, words = [], tag = {}) {
  const headers = tag.last ? { "If-None-Match": tag.last } : {};
  const response = await fetch(`${path}?${new URLSearchParams(words)}`, { headers });
  if (response.status === 304) return null;
  const said = await answered(response);
  tag.last = response.headers.get("ETag");
  return said;
}

// A change, and what came of it.
async function send(path, words) {
  const headers = { "Content-Type": "application/json" };
  return answered(await fetch(path, { method: "POST", headers, body: JSON.stringify(words) }));
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
      document.querySelector("main").removeAttribute("aria-busy");
      for (const mark of document.querySelectorAll(".loading.once")) mark.remove();
    } else pause = 1;
    if (!pause) return;
    await new Promise((wake) => setTimeout(wake, 1000 * pause));
  }
}

const percent = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);

// What a run is judged by, as the list shows it.
const result = (run) => (run.measure === "accuracy" || run.value === null ? percent(run.accuracy) : `${run.measure} ${Number(run.value.toPrecision(4))}`);

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

// A cell of a CSV file; text that a spreadsheet would take for a formula is marked as text.
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && !isFinite(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name, rows) {
  const text = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Opens a report, which takes a moment to make.
function toReport(ids) {
  return `/report?${new URLSearchParams(ids.map((id) => ["run", id]))}`;
}
function waitsFor(link) {
  const before = link.textContent;
  link.addEventListener("click", () => {
    link.textContent = "Making the report…";
    link.setAttribute("aria-busy", "true");
  });
  window.addEventListener("pageshow", () => {
    link.textContent = before;
    link.removeAttribute("aria-busy");
  });
}
