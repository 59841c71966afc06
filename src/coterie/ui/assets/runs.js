"use strict";
// The list: refreshed, sorted, filtered; runs of a comparison are folded into it.

const PAGE = 300; // rows drawn at once
const list = { runs: [], chosen: new Set(), open: new Set(), key: "changed", up: false, shown: PAGE, tag: {} };

function valueOf(run, key) {
  if (key === "done") return run.rounds ? run.done / run.rounds : 0;
  return run[key] ?? (typeof run[key] === "string" ? "" : -Infinity);
}

function ordered(runs) {
  const sign = list.up ? 1 : -1;
  return [...runs].sort((a, b) => {
    const [x, y] = [valueOf(a, list.key), valueOf(b, list.key)];
    const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y || 0;
    return sign * order || a.id.localeCompare(b.id);
  });
}

// The rows to draw, in order: what matches the filter, and the runs of open comparisons under them.
function rows() {
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (run) => words.every((w) => `${run.id} ${run.name} ${run.method} ${run.data} ${run.status}`.toLowerCase().includes(w));
  const inner = new Map();
  for (const run of list.runs) if (run.parent) inner.set(run.parent, [...(inner.get(run.parent) || []), run]);
  const found = [];
  for (const run of ordered(list.runs.filter((r) => !r.parent))) {
    const own = inner.get(run.id) || [];
    const hits = words.length ? own.filter(matches) : own;
    if (!matches(run) && !hits.length) continue;
    found.push({ run, own: own.length });
    if (list.open.has(run.id) || (words.length && !matches(run))) found.push(...ordered(hits).map((r) => ({ run: r, inner: true })));
  }
  return found;
}

function row({ run, own, inner }) {
  const made = element("tr", "", inner ? "inner" : "");
  const cells = {};
  for (const name of ["choose", "name", "status", "rounds", "accuracy", "method", "data", "when"]) {
    cells[name] = made.appendChild(element("td", "", name));
  }
  const box = cells.choose.appendChild(element("input"));
  box.type = "checkbox";
  box.checked = list.chosen.has(run.id);
  box.disabled = run.status === "damaged";
  box.setAttribute("aria-label", `Choose ${run.name}`);
  box.addEventListener("change", () => {
    list.chosen[box.checked ? "add" : "delete"](run.id);
    buttons();
  });
  if (own) {
    const opened = list.open.has(run.id);
    const toggle = cells.name.appendChild(element("button", opened ? "▾" : "▸", "open"));
    toggle.type = "button";
    toggle.setAttribute("aria-expanded", opened);
    toggle.setAttribute("aria-label", `Runs of ${run.name}`);
    toggle.addEventListener("click", () => {
      list.open[opened ? "delete" : "add"](run.id);
      show();
    });
  }
  const link = cells.name.appendChild(element("a", run.name));
  link.href = run.kind === "run" ? `/run?${new URLSearchParams({ id: run.id })}` : `/compare?${new URLSearchParams({ run: run.id })}`;
  if (run.why) cells.name.appendChild(element("span", run.why, "why"));
  cells.method.textContent = run.method + (run.seed === null ? "" : `, seed ${run.seed}`);
  cells.data.textContent = run.data;
  cells.status.appendChild(status(run));
  cells.rounds.append(bar(run), `${run.done} / ${run.rounds}`);
  cells.accuracy.textContent = percent(run.accuracy);
  cells.when.textContent = when(run.changed);
  for (const name of ["accuracy", "when"]) cells[name].classList.add("number");
  return made;
}

function buttons() {
  for (const name of ["together", "report", "clear"]) find(name).disabled = !list.chosen.size;
}

function show() {
  const all = rows();
  const body = document.querySelector("#runs tbody");
  const held = document.activeElement?.getAttribute?.("aria-label"); // the keyboard stays where it was
  body.replaceChildren(...all.slice(0, list.shown).map(row));
  if (held) [...body.querySelectorAll("[aria-label]")].find((e) => e.getAttribute("aria-label") === held)?.focus();
  for (const head of document.querySelectorAll("#runs th button")) {
    const sorted = head.dataset.key === list.key ? (list.up ? "ascending" : "descending") : "none";
    head.parentElement.setAttribute("aria-sort", sorted);
  }
  find("more").hidden = all.length <= list.shown;
  const empty = list.runs.length ? "nothing matches the filter" : "no runs yet: `coterie run ditto` makes one, and it appears here";
  find("note").textContent = all.length ? "" : empty;
  buttons();
}

async function look() {
  const said = await ask("/api/runs", [], list.tag);
  if (said) {
    list.runs = said.runs;
    const ids = new Set(said.runs.map((run) => run.id));
    list.chosen = new Set([...list.chosen].filter((id) => ids.has(id)));
    find("folder").textContent = said.folder;
    show();
  }
  return list.runs.some((run) => ["running", "unread"].includes(run.status)) ? 1.5 : 4;
}

const words = () => new URLSearchParams([...list.chosen].map((id) => ["run", id]));
find("together").addEventListener("click", () => location.assign(`/compare?${words()}`));
find("report").addEventListener("click", () => location.assign(`/report?${words()}`));
find("clear").addEventListener("click", () => {
  list.chosen.clear();
  show();
});
find("more").addEventListener("click", () => {
  list.shown += PAGE;
  show();
});
find("filter").addEventListener("input", show);
for (const head of document.querySelectorAll("#runs th button")) {
  head.addEventListener("click", () => {
    const key = head.dataset.key;
    list.up = list.key === key ? !list.up : ["name", "method", "data", "status"].includes(key);
    list.key = key;
    show();
  });
}
window.addEventListener("pageshow", () => list.runs.length && show());
keepLooking(look);
