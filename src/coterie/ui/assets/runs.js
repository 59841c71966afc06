"use strict";
// The list: refreshed, sorted, filtered; runs of a comparison are folded into it, its verdict stands below it.

const PAGE = 300; // rows drawn at once
const KEPT = "coterie-columns";
const list = {
  runs: [], chosen: new Set(), open: new Set(), key: "changed", up: false, shown: PAGE, tag: {}, write: false,
  options: {}, differ: [], columns: JSON.parse(localStorage.getItem(KEPT) || "[]"), verdicts: new Map(), asked: "", reading: false,
};
const STANDARD = ["method", "seed", "dataset.name"]; // have columns of their own

const wordOf = (run, word) => list.options[run.id]?.[word];

function valueOf(run, key) {
  if (key === "done") return run.rounds ? run.done / run.rounds : 0;
  if (key === "name") return titled(run);
  if (key === "result") return run.value ?? run.accuracy ?? -Infinity;
  const value = key.includes(".") || key === "seed" ? wordOf(run, key) : run[key];
  return value ?? (["method", "data", "status"].includes(key) ? "" : -Infinity);
}

function ordered(runs) {
  const sign = list.up ? 1 : -1;
  return [...runs].sort((a, b) => {
    const [x, y] = [valueOf(a, list.key), valueOf(b, list.key)];
    const words = typeof x === "string" || typeof y === "string";
    const order = words ? String(x).localeCompare(String(y), undefined, { numeric: true }) : x - y || 0;
    return sign * order || a.id.localeCompare(b.id);
  });
}

// What the filter asks of a run: word=value, word!=value, word>value, word<value, tag=..., or text anywhere.
function asks(text) {
  return text.match(/"[^"]*"|[^\s"]+(?:"[^"]*")?/g)?.map((part) => {
    const [, word, how, raw] = part.match(/^([\w.]+)(!=|=|>|<)(.*)$/) || [];
    const plain = (raw ?? part).replaceAll('"', "").toLowerCase();
    if (!word) return (run) => `${run.id} ${titled(run)} ${run.name} ${run.method} ${run.data} ${run.status} ${run.label.tags.join(" ")} ${run.label.note}`.toLowerCase().includes(plain);
    return (run) => {
      if (word === "tag") return run.label.tags.some((tag) => tag.toLowerCase() === plain) === (how === "=");
      const value = wordOf(run, word) ?? { method: run.method, data: run.data, status: run.status, seed: run.seed, rounds: run.rounds, result: run.value ?? run.accuracy }[word];
      if (value === undefined || value === null) return how === "!=";
      const same = String(value).toLowerCase() === plain || (plain !== "" && Number(plain) === Number(value));
      if (how === "=" || how === "!=") return same === (how === "=");
      return how === ">" ? Number(value) > Number(plain) : Number(value) < Number(plain);
    };
  }) ?? [];
}

// The rows to draw, in order: what matches the filter, and the runs of open comparisons under them.
function rows() {
  const wanted = asks(find("filter").value);
  const matches = (run) => wanted.every((fits) => fits(run));
  const inner = new Map();
  for (const run of list.runs) if (run.parent) inner.set(run.parent, [...(inner.get(run.parent) || []), run]);
  const found = [];
  for (const run of ordered(list.runs.filter((r) => !r.parent))) {
    if (run.label.archived && !find("archived").checked) continue;
    const own = inner.get(run.id) || [];
    const hits = wanted.length ? own.filter(matches) : own;
    if (!matches(run) && !hits.length) continue;
    found.push({ run, own: own.length });
    if (list.open.has(run.id) || (wanted.length && !matches(run))) found.push(...ordered(hits).map((r) => ({ run: r, inner: true })));
  }
  return found;
}

function row({ run, own, inner }) {
  const made = element("tr", "", inner ? "inner" : "");
  const cells = {};
  for (const name of ["choose", "name", "status", "rounds", "result", "method", "data", ...list.columns.map((w) => `own ${w}`), "when"]) {
    cells[name] = made.appendChild(element("td", "", name.split(" ")[0]));
  }
  const box = cells.choose.appendChild(element("input"));
  box.type = "checkbox";
  box.checked = list.chosen.has(run.id);
  box.disabled = run.status === "damaged";
  box.setAttribute("aria-label", `Choose ${titled(run)}`);
  box.addEventListener("change", () => {
    list.chosen[box.checked ? "add" : "delete"](run.id);
    buttons();
  });
  if (own) {
    const opened = list.open.has(run.id);
    const toggle = cells.name.appendChild(button(opened ? "▾" : "▸", () => {
      list.open[opened ? "delete" : "add"](run.id);
      show();
    }, `Runs of ${titled(run)}`));
    toggle.className = "open";
    toggle.setAttribute("aria-expanded", opened);
  }
  const link = cells.name.appendChild(element("a", titled(run)));
  link.href = run.kind === "run" ? `/run?${new URLSearchParams({ id: run.id })}` : `/compare?${new URLSearchParams({ run: run.id })}`;
  cells.name.append(...chips(run));
  if (list.write) {
    const edit = cells.name.appendChild(button("✎", () => editLabel(run, (label) => {
      run.label = label;
      show();
    }), `Edit ${titled(run)}`));
    edit.className = "edit";
  }
  if (run.label.name || run.title) cells.name.appendChild(element("span", run.name, "why"));
  if (run.label.archived) cells.name.appendChild(element("span", "archived", "why"));
  if (run.why) cells.name.appendChild(element("span", run.why, "why"));
  if (run.label.note) cells.name.appendChild(element("span", run.label.note, "note"));
  cells.method.textContent = run.method + (run.seed === null ? "" : `, seed ${run.seed}`);
  cells.data.textContent = run.data;
  cells.status.appendChild(status(run));
  cells.rounds.append(bar(run), run.kind === "run" ? `${run.done} / ${run.rounds}` : `${run.planned} × ${run.per_run}`);
  const told = run.kind === "comparison" && run.status === "finished" ? list.verdicts.get(`${run.id} ${run.changed}`) : null;
  cells.result.textContent = run.kind === "run" ? result(run) : told?.tiles[0]?.value ?? "";
  for (const word of list.columns) cells[`own ${word}`].textContent = wordOf(run, word) ?? "";
  cells.when.textContent = when(run.changed);
  for (const name of ["result", "when"]) cells[name].classList.add("number");
  const waits = run.kind === "comparison" && run.status === "finished" && !told;
  if (!waits && !told?.verdict) return [made];
  const below = element("tr", "", "verdict");
  below.appendChild(element("td"));
  const place = below.appendChild(element("td"));
  place.colSpan = made.children.length - 1;
  if (waits) place.appendChild(element("span", "Reading the verdict…", "loading"));
  else place.append(...verdict(run, told));
  made.classList.add("told");
  return [made, below];
}

// The headline, its figures, and where to go from here.
function verdict(run, told) {
  const figures = told.tiles.map((tile) => {
    const made = element("span", `${tile.label} `, "figure");
    made.appendChild(element("strong", tile.value));
    if (tile.note) made.append(` ${tile.note}`);
    return made;
  });
  const link = (text, href) => Object.assign(element("a", text), { href });
  const ways = [link("Report", toReport([run.id])), ...(told.use ? [link("Run to use", `/run?${new URLSearchParams({ id: told.use })}`)] : [])];
  const head = element("span", told.headline);
  head.title = told.verdict;
  return [head, ...figures, ...ways];
}

function buttons() {
  for (const name of ["together", "report", "archive", "clear"]) find(name).disabled = !list.chosen.size;
  const put = [...list.chosen].every((id) => list.runs.find((run) => run.id === id)?.label.archived);
  find("archive").textContent = list.chosen.size && put ? "Bring back" : "Archive";
}

function heads() {
  const line = document.querySelector("#runs thead tr");
  for (const old of line.querySelectorAll("th.own")) old.remove();
  for (const word of list.columns) {
    const head = element("th", "", "own");
    const sort = head.appendChild(button(word, () => sortBy(word)));
    sort.dataset.key = word;
    line.lastElementChild.before(head);
  }
  for (const head of line.querySelectorAll("button")) {
    const sorted = head.dataset.key === list.key ? (list.up ? "ascending" : "descending") : "none";
    head.parentElement.setAttribute("aria-sort", sorted);
  }
}

function show() {
  const all = rows();
  const body = document.querySelector("#runs tbody");
  const held = document.activeElement?.getAttribute?.("aria-label"); // the keyboard stays where it was
  body.replaceChildren(...all.slice(0, list.shown).flatMap(row));
  if (held) [...body.querySelectorAll("[aria-label]")].find((e) => e.getAttribute("aria-label") === held)?.focus();
  heads();
  find("more").hidden = all.length <= list.shown;
  const empty = list.runs.length ? "nothing matches the filter" : "no runs yet: `coterie run ditto` makes one, and it appears here";
  find("note").textContent = all.length ? "" : empty;
  buttons();
}

function sortBy(key) {
  list.up = list.key === key ? !list.up : ["name", "method", "data", "status"].includes(key) || key.includes(".");
  list.key = key;
  show();
}

// The options that differ among the runs, as columns to choose and as a filter.
async function readWords() {
  const ids = list.runs.map((run) => run.id).join(" ");
  if (ids === list.asked) return;
  const said = await ask("/api/options");
  [list.options, list.differ, list.asked] = [said.options, said.differ, ids];
  const own = list.differ.filter((word) => !STANDARD.includes(word));
  find("columns").querySelector("div").replaceChildren(...(own.length ? own : [""]).map((word) => {
    if (!word) return element("p", "Runs with other options than the rest give columns.", "quiet");
    const label = element("label", "", "row");
    const box = label.appendChild(element("input"));
    box.type = "checkbox";
    box.checked = list.columns.includes(word);
    box.addEventListener("change", () => {
      list.columns = own.filter((w) => (w === word ? box.checked : list.columns.includes(w)));
      localStorage.setItem(KEPT, JSON.stringify(list.columns));
      show();
    });
    label.append(` ${word}`);
    return label;
  }));
  list.columns = list.columns.filter((word) => own.includes(word));
  const kept = find("which").value;
  find("which").replaceChildren(option("", "any option"), ...list.differ.map((word) => option(word, word)));
  find("which").value = list.differ.includes(kept) ? kept : "";
  show();
}

function option(value, text) {
  const made = element("option", text);
  made.value = value;
  return made;
}

function choices() {
  const word = find("which").value;
  const values = [...new Set(Object.values(list.options).map((words) => words[word]).filter((v) => v !== undefined))];
  values.sort((a, b) => String(a).localeCompare(String(b), undefined, { numeric: true }));
  find("value").replaceChildren(option("", "any value"), ...values.map((v) => option(String(v), String(v))));
  find("value").disabled = !word;
}

function where() {
  const [word, value] = [find("which").value, find("value").value];
  const rest = find("filter").value.replace(new RegExp(`(^|\\s)${word.replaceAll(".", "\\.")}=("[^"]*"|\\S*)`), "").trim();
  const quoted = /\s/.test(value) ? `"${value}"` : value;
  find("filter").value = `${rest}${value ? `${rest ? " " : ""}${word}=${quoted}` : ""}`;
  show();
}

// One verdict after another, the newest comparison first; the list does not wait for them.
async function readVerdicts() {
  if (list.reading) return;
  list.reading = true;
  try {
    for (const { run } of rows()) {
      const key = `${run.id} ${run.changed}`;
      if (run.kind !== "comparison" || run.status !== "finished" || list.verdicts.has(key)) continue;
      const said = await ask("/api/verdict", { id: run.id }).catch((problem) => {
        const line = `No verdict: ${problem.message}`;
        return { verdict: line, headline: line, tiles: [], use: "" };
      });
      list.verdicts.set(key, said);
      show();
    }
  } finally {
    list.reading = false;
  }
}

async function look() {
  const said = await ask("/api/runs", [], list.tag);
  if (said) {
    list.runs = said.runs;
    list.write = said.may_write;
    const ids = new Set(said.runs.map((run) => run.id));
    list.chosen = new Set([...list.chosen].filter((id) => ids.has(id)));
    find("folder").textContent = said.folder;
    for (const name of ["start", "archive"]) find(name).hidden = !said.may_write;
    find("readonly").hidden = said.may_write;
    find("readonly").textContent = said.trouble || find("readonly").textContent;
    if (said.trouble) find("readonly").hidden = false;
    show();
    await readWords();
  }
  readVerdicts();
  return list.runs.some((run) => ["running", "unread"].includes(run.status)) ? 1.5 : 4;
}

async function archive() {
  const put = find("archive").textContent === "Archive";
  try {
    for (const id of list.chosen) {
      const run = list.runs.find((one) => one.id === id);
      run.label = (await send("/api/label", { id, archived: put })).label;
    }
    list.chosen.clear();
  } catch (problem) {
    trouble(problem.message);
  }
  show();
}

function csv() {
  const heads = ["name", "id", "status", "rounds done", "rounds", "measure", "result", "method", "seed", "data", ...list.columns, "tags", "note", "changed", "verdict"];
  const lines = rows().map(({ run }) => [
    titled(run), run.id, run.status, run.done, run.rounds, run.kind === "run" ? run.measure : "", run.value ?? run.accuracy ?? "", run.method, run.seed ?? "", run.data,
    ...list.columns.map((word) => wordOf(run, word) ?? ""), run.label.tags.join(" "), run.label.note, run.changed ? new Date(1000 * run.changed).toISOString() : "",
    list.verdicts.get(`${run.id} ${run.changed}`)?.verdict ?? "",
  ]);
  download("runs.csv", [heads, ...lines]);
}

find("together").addEventListener("click", () => location.assign(`/compare?${new URLSearchParams([...list.chosen].map((id) => ["run", id]))}`));
waitsFor(find("report"));
find("report").addEventListener("click", () => location.assign(toReport([...list.chosen])));
find("archive").addEventListener("click", archive);
find("clear").addEventListener("click", () => {
  list.chosen.clear();
  show();
});
find("more").addEventListener("click", () => {
  list.shown += PAGE;
  show();
});
find("csv").addEventListener("click", csv);
find("filter").addEventListener("input", show);
find("archived").addEventListener("change", show);
find("which").addEventListener("change", () => {
  choices();
  show();
});
find("value").addEventListener("change", where);
for (const head of document.querySelectorAll("#runs th button")) head.addEventListener("click", () => sortBy(head.dataset.key));
window.addEventListener("pageshow", () => list.runs.length && show());
keepLooking(look);
