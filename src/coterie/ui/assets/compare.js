"use strict";
// Several runs in the same axes: their curves, seeds averaged; and where their configurations differ.

const asked = new URLSearchParams(location.search).getAll("run");
const runs = new Map(); // id -> { run, rows, after, status, version, table }
const LIVE = ["accuracy", "loss", "value", "seconds"];
const CHARTS = { accuracy: "accuracy", loss: "loss" };
const state = { metrics: [], read: "", run: null, verdict: "" };

function accumulated(rows) {
  let sum = 0; // null throughout where a run wrote no times
  return rows.map((row) => (row.seconds === undefined ? null : (sum += row.seconds)));
}

// Names that tell the runs apart: the method where each has another, else with the seed, else the folder.
function names(all) {
  const ways = [(r) => r.method, (r) => `${r.method}, seed ${r.seed}`, (r) => r.name, (r) => decodeURIComponent(r.id)];
  const way = ways.find((w) => new Set(all.map(w)).size === all.length) || ways.at(-1);
  return all.map((run) => run.label?.name || way(run));
}

// Runs that differ in the seed alone, together.
function groups(all) {
  const found = new Map();
  for (const one of all) {
    const key = `${one.run.parent} ${one.run.group || one.run.id}`;
    found.set(key, [...(found.get(key) || []), one]);
  }
  return [...found.values()];
}

// [[x, y], ...] of one run.
function points(one, metric, across) {
  const seconds = accumulated(one.rows);
  const spent = new Map(one.rows.map((row, i) => [row.round, seconds[i]]));
  const place = (round) => (across === "round" ? round : spent.get(round) ?? null);
  const curve = one.table?.curves.find((c) => `${c.metric} · ${c.part} · ${c.view}` === metric);
  const pairs = curve ? curve.rounds.map((r, i) => [r, curve.values[i]]) : one.rows.map((row) => [row.round, row[metric]]);
  return pairs.filter(([, y]) => y !== null && y !== undefined).map(([round, y]) => [round, place(round), y]).filter((p) => p[1] !== null);
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// The mean of several runs at the rounds that all have measured, and how far seeds lie apart.
function together(found) {
  const maps = found.map((curve) => new Map(curve.map(([round, x, y]) => [round, [x, y]])));
  const rounds = [...maps[0].keys()].filter((round) => maps.every((m) => m.has(round)));
  const at = (k) => rounds.map((round) => maps.map((m) => m.get(round)[k]));
  const ys = at(1);
  return { x: at(0).map(mean), y: ys.map(mean), band: { low: ys.map((v) => Math.min(...v)), high: ys.map((v) => Math.max(...v)) } };
}

function series(all, metric, across, averaged) {
  const made = [];
  const families = groups(all);
  const firsts = families.map((each) => each[0].run);
  const called = averaged ? namesOfGroups(firsts, families) : [];
  const each = names(all.map((one) => one.run));
  const methods = [...new Set(firsts.map((run) => run.method))];
  families.forEach((family, g) => {
    // a colour per method; where a method comes in several groups, one per group
    const k = methods.length === families.length || !averaged ? methods.indexOf(family[0].run.method) : g;
    const found = family.map((one) => points(one, metric, across));
    if (averaged && family.length > 1 && found.every((f) => f.length)) {
      const { x, y, band } = together(found);
      if (x.length) made.push(line(called[g], x, y, k, DASHES[Math.floor(k / 8) % 5], band));
    } else {
      family.forEach((one, i) => {
        if (!found[i].length) return;
        const name = averaged ? called[g] : each[all.indexOf(one)];
        made.push(line(name, found[i].map((p) => p[1]), found[i].map((p) => p[2]), k, DASHES[(averaged ? Math.floor(k / 8) : i) % 5]));
      });
    }
  });
  return made;
}

function namesOfGroups(firsts, families) {
  const plain = (run, size) => (size > 1 ? run.name.replace(/-seed\d+$/, "") : run.name);
  const ways = [(r) => r.method, (r, n) => plain(r, n), (r) => decodeURIComponent(r.id)];
  const way = ways.find((w) => new Set(firsts.map((r, i) => w(r, families[i].length))).size === firsts.length) || ways.at(-1);
  return firsts.map((run, i) => run.label?.name || way(run, families[i].length) + (families[i].length > 1 ? ` (${families[i].length} seeds)` : ""));
}

function show() {
  const all = [...runs.values()];
  const across = find("across").value;
  const several = groups(all).some((family) => family.length > 1);
  const averaged = several && find("seeds").value === "mean";
  find("seeds-box").hidden = !several;
  find("band-told").hidden = !averaged;
  for (const chart of Object.keys(CHARTS)) {
    const metric = find(`metric-${chart}`).value || CHARTS[chart];
    const x = across === "round" ? "round" : "training seconds";
    draw(chart, series(all, metric, across, averaged), { x, legend: true, hover: "closest", yaxis: axisOf(metric), key: `${metric} ${across}` });
  }
  const parts = [...new Set(all.map((one) => one.run.part))].filter(Boolean);
  find("about").textContent = `${all.length} runs, measured on ${parts.join(" or ")} data`;
  const called = names(all.map((one) => one.run));
  document.querySelector("#chosen tbody").replaceChildren(...all.map((one, k) => {
    const made = element("tr");
    const cells = ["name", "method", "", "", "number", "number", "number"].map((c) => made.appendChild(element("td", "", c)));
    const link = cells[0].appendChild(element("a", called[k]));
    link.href = `/run?${new URLSearchParams({ id: one.run.id })}`;
    cells[1].textContent = one.run.method + (one.run.seed === null ? "" : `, seed ${one.run.seed}`);
    cells[2].appendChild(status(one.run));
    cells[3].append(bar(one.run), `${one.run.done} / ${one.run.rounds}`);
    cells[4].textContent = result(one.run);
    const best = known(one.rows, "accuracy").map((row) => row.accuracy);
    cells[5].textContent = best.length ? percent(best.reduce((a, b) => Math.max(a, b))) : "";
    cells[6].textContent = accumulated(one.rows).at(-1)?.toFixed(1) ?? "";
    return made;
  }));
}

// What can be drawn: what rounds tell as they go, and every part and view that checkpoints have measured.
async function readMetrics() {
  const first = [...runs.values()].find((one) => one.version && !one.table);
  if (first) first.table = await ask("/api/measured", { id: first.run.id });
  const measured = [...new Set([...runs.values()].flatMap((one) => (one.table?.curves || []).map((c) => `${c.metric} · ${c.part} · ${c.view}`)))];
  const judged = [...runs.values()].find((one) => one.run.measure !== "accuracy")?.run.measure;
  const live = LIVE.filter((m) => m !== "value" || judged);
  if (measured.length + live.length === state.metrics.length) return;
  state.metrics = [...live, ...measured];
  const called = { accuracy: "Accuracy, mean over clients", loss: "Loss, mean over clients", value: `${judged}, mean over clients`, seconds: "Seconds per round" };
  for (const chart of Object.keys(CHARTS)) {
    const menu = find(`metric-${chart}`);
    const kept = menu.value || (judged && chart === "accuracy" ? "value" : CHARTS[chart]);
    menu.replaceChildren(...state.metrics.map((metric) => Object.assign(element("option", called[metric] || metric), { value: metric })));
    menu.value = kept;
  }
}

// A metric of checkpoints is asked of every run when it is first chosen.
async function chooseMetric() {
  const wanted = Object.keys(CHARTS).map((chart) => find(`metric-${chart}`).value).some((metric) => metric.includes("·"));
  if (wanted) {
    for (const chart of Object.keys(CHARTS)) find(chart).setAttribute("aria-busy", "true");
    for (const one of runs.values()) if (one.version && !one.table) one.table = await ask("/api/measured", { id: one.run.id });
  }
  show();
}

const written = (value) => (value === undefined ? "—" : value === true ? "yes" : value === false ? "no" : String(value));

async function readDiff() {
  const said = await ask("/api/options", asked.map((name) => ["run", name]));
  const all = [...runs.values()].map((one) => one.run).filter((run) => said.options[run.id]);
  const called = names(all);
  const top = element("tr");
  top.append(element("th", "Word"), ...called.map((name) => element("th", name)));
  document.querySelector("#diff thead").replaceChildren(top);
  document.querySelector("#diff tbody").replaceChildren(...said.differ.map((word) => {
    const made = element("tr");
    const head = made.appendChild(element("th", word));
    head.scope = "row";
    made.append(...all.map((run) => element("td", written(said.options[run.id][word]))));
    return made;
  }));
  const count = new Set(Object.values(said.options).flatMap((w) => Object.keys(w))).size;
  find("same").textContent = said.differ.length ? `${count - said.differ.length} other options are the same in all of them.` : `All ${count} options are the same.`;
  find("diff").hidden = !said.differ.length;
}

// A comparison by itself: its state, its verdict, and what may be done with it.
async function showComparison() {
  const said = await ask("/api/run", { id: asked[0] });
  const run = said.run;
  if (run?.kind !== "comparison") return;
  state.run = run;
  find("state").hidden = false;
  find("title").textContent = titled(run);
  document.title = `${titled(run)} · coterie`;
  find("status").replaceWith(Object.assign(status(run), { id: "status" }));
  find("why").textContent = run.why;
  find("tags").replaceChildren(...chips(run));
  find("note").textContent = run.label.note;
  find("note").hidden = !run.label.note;
  showActs(said);
  find("log").hidden = !said.job;
  if (said.job) find("log").textContent = (await ask("/api/log", { id: asked[0] })).text || "starting…";
  const key = run.status === "finished" ? String(run.changed) : "";
  find("verdict").hidden = !key;
  if (!key || key === state.verdict) return;
  state.verdict = key;
  find("verdict").textContent = "Reading the verdict…";
  find("verdict").textContent = (await ask("/api/verdict", { id: asked[0] })).verdict;
}

async function look() {
  const chosen = await ask("/api/chosen", asked.map((name) => ["run", name]));
  let fresh = !drawn.size;
  for (const run of chosen) {
    const one = runs.get(run.id) || { rows: [], after: 0, status: "" };
    if (one.status !== "finished") {
      const said = await ask("/api/run", { id: run.id, after: one.after });
      fresh ||= said.rows.length || said.reset || said.run.status !== one.status;
      const table = said.measured === one.version ? one.table : undefined;
      runs.set(run.id, { run: said.run, rows: withNews(one.rows, said), after: said.after, status: said.run.status, version: said.measured, table });
    }
  }
  find("report").href = toReport(asked);
  await readMetrics();
  if (fresh) await chooseMetric();
  const ids = [...runs.keys()].join(" ");
  if (ids !== state.read) {
    state.read = ids;
    await readDiff();
  }
  if (asked.length === 1) await showComparison();
  return [...runs.values()].every((one) => one.status === "finished") ? 5 : 1;
}

for (const name of ["across", "seeds"]) find(name).addEventListener("change", show);
for (const chart of Object.keys(CHARTS)) find(`metric-${chart}`).addEventListener("change", chooseMetric);
acts(asked[0], () => state.run, showComparison);
waitsFor(find("report"));
controls();
keepLooking(look);
