"use strict";
// One run: its state, its curves as they grow, and what the last checkpoint measured.

const id = new URLSearchParams(location.search).get("id") || "";
const page = { rows: [], after: 0, measured: "", table: { curves: [], clients: null }, run: null, log: "", told: 0 };
const PARTS = { validation: "solid", test: "dash", train: "dot", select: "dashdot" };

function showState(run, now) {
  document.title = `${titled(run)} · coterie`;
  find("name").textContent = titled(run);
  find("tags").replaceChildren(...chips(run));
  find("note").textContent = run.label.note;
  find("note").hidden = !run.label.note;
  const seed = run.seed === null ? [] : [`seed ${run.seed}`];
  find("about").textContent = [run.method, run.data, ...seed, run.path].filter(Boolean).join(" · ");
  find("status").replaceWith(Object.assign(status(run), { id: "status" }));
  const judged = run.measure === "accuracy" ? ` · ${run.part} accuracy ${percent(run.accuracy)}` : ` · ${run.part} ${result(run)}`;
  find("rounds").textContent = `${run.done} of ${run.rounds} rounds${run.accuracy === null && run.value === null ? "" : judged}`;
  find("bar").max = run.rounds || 1;
  find("bar").value = run.done;
  const running = run.status === "running";
  const elapsed = run.started ? `${span((running ? now : page.rows.at(-1)?.time ?? run.changed) - run.started)} since the first round began` : "";
  const left = running && run.pace && run.done < run.rounds ? `about ${span((run.rounds - run.done) * run.pace)} left` : "";
  find("times").textContent = [elapsed, left].filter(Boolean).join(", ");
  find("why").hidden = !run.why;
  find("line").textContent = run.why;
  find("copy").hidden = run.status !== "stopped";
  find("report").href = toReport([id]);
  find("report").hidden = !page.measured;
}

function showCurves(run) {
  const views = [...new Set(page.table.curves.map((c) => c.view))].sort((a, b) => (b === "personal") - (a === "personal"));
  const traces = (metric, of = metric) => {
    const live = known(page.rows, of);
    const own = `${run.part} · personal`;
    const found = live.length ? [line(own, live.map((r) => r.round), live.map((r) => r[of]), 0)] : [];
    const order = Object.keys(PARTS);
    const sorted = [...page.table.curves].sort((a, b) => views.indexOf(a.view) - views.indexOf(b.view) || order.indexOf(a.part) - order.indexOf(b.part));
    for (const c of sorted) {
      const name = `${c.part} · ${c.view}`;
      if (c.metric !== metric || c.values.every((v) => v === null) || (live.length && name === own)) continue;
      found.push(line(name, c.rounds, c.values, views.indexOf(c.view), PARTS[c.part]));
    }
    return found;
  };
  draw("accuracy", traces("accuracy"), { yaxis: PERCENT });
  draw("loss", traces("loss"), { yaxis: { rangemode: "tozero" } });
  find("judged-box").hidden = ["accuracy", "loss"].includes(run.measure);
  if (!find("judged-box").hidden) {
    find("judged-title").textContent = `${run.measure}, mean over clients`;
    draw("judged", traces(run.measure, "value"), { yaxis: { rangemode: "tozero" } });
  }
  const timed = known(page.rows, "seconds");
  const seconds = timed.length ? [line("seconds", timed.map((r) => r.round), timed.map((r) => r.seconds), 7)] : [];
  draw("seconds", seconds, { yaxis: { rangemode: "tozero" }, empty: "this run wrote no times" });
}

function showClients() {
  const told = page.table.clients;
  if (!told) return draw("clients", [], { empty: "after the first checkpoint" });
  const some = told.names.length < told.all ? `, the first ${told.names.length} of ${told.all}` : "";
  find("clients-title").textContent = `Clients at round ${told.round}: ${told.part} ${told.metric}, lowest first${some}`;
  const order = told.values.map((v, i) => i).filter((i) => told.values[i] !== null).sort((a, b) => told.values[a] - told.values[b]);
  const few = order.length <= 40;
  const bars = { type: "bar", x: order.map((_, k) => k), y: order.map((i) => told.values[i]), customdata: order.map((i) => told.names[i]) };
  bars.hovertemplate = "client %{customdata}: %{y}<extra></extra>";
  const ticks = few ? { tickmode: "array", tickvals: bars.x, ticktext: bars.customdata } : { showticklabels: false };
  return draw("clients", [bars], { x: "client", log: false, hover: "closest", legend: false, xaxis: ticks, yaxis: told.metric === "accuracy" ? { ...PERCENT, range: [0, 1] } : {} });
}

// What rounds have told and what the process printed, one after the other.
function showLog(said) {
  find("log-box").hidden = !said.state;
  if (!said.state) return;
  find("command").textContent = said.command;
  page.log = said.after < page.told ? said.text : page.log + said.text;
  page.told = said.after;
  const rounds = page.rows.slice(-500).map((row) => [
    `round ${row.round} of ${row.rounds}`, `${row.seconds?.toFixed(2) ?? "?"} s`, row.accuracy === null || row.accuracy === undefined ? "" : `accuracy ${percent(row.accuracy)}`,
    row.loss === null || row.loss === undefined ? "" : `loss ${row.loss.toPrecision(4)}`,
  ].filter(Boolean).join(", "));
  const ended = said.state === "running" ? [] : [`${said.state}${said.code ? ` (exit code ${said.code})` : ""}`];
  const log = find("log");
  const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  log.textContent = [...rounds, page.log.trimEnd(), ...ended].filter(Boolean).join("\n") || "starting…";
  if (end) log.scrollTop = log.scrollHeight;
}

// A comparison that was started here: its state and log, then the answer.
function showComparison({ run, now }) {
  for (const box of document.querySelectorAll(".charts, main > .bar, main > details")) box.hidden = true;
  showState(run, now);
  if (run.status !== "finished") return 1;
  find("report").hidden = false;
  location.replace(`${toReport([id])}#answer`);
  return 0;
}

async function look() {
  const said = await ask("/api/run", { id, after: page.after });
  if (said.job) showLog(await ask("/api/log", { id, after: page.told }));
  showActs(said);
  if (!said.run) {
    const name = decodeURIComponent(id);
    find("name").textContent = name;
    find("rounds").textContent = said.job === "running" ? "is being started…" : "has not begun: see the log";
    return said.job === "running" ? 1 : 5;
  }
  page.run = said.run;
  if (said.run.kind === "comparison") return showComparison(said);
  const fresh = said.rows.length || said.reset || said.measured !== page.measured || !drawn.size;
  page.rows = withNews(page.rows, said);
  page.after = said.after;
  if (said.measured !== page.measured || !page.table.config) {
    page.table = await ask("/api/measured", { id });
    page.measured = said.measured;
    find("config").textContent = page.table.config;
    showClients();
  }
  showState(said.run, said.now);
  if (fresh) showCurves(said.run);
  return said.run.status === "running" || said.job === "running" ? 1 : 5;
}

acts(id, () => page.run, (done) => {
  if (done === "resume" || done === "serve") [page.log, page.told] = ["", 0];
  if (done === "label") showState(page.run, Date.now() / 1000);
});
find("copy").addEventListener("click", async () => {
  const text = find("line");
  getSelection().selectAllChildren(text);
  if (navigator.clipboard) await navigator.clipboard.writeText(text.textContent).then(() => (find("copy").textContent = "Copied"), () => {});
});
waitsFor(find("report"));
controls();
keepLooking(look);
