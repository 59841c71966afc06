"use strict";
// One run: its state, its curves as they grow, and what the last checkpoint measured.

const id = new URLSearchParams(location.search).get("id") || "";
const page = { rows: [], after: 0, measured: "", table: { curves: [], clients: null } };
const PARTS = { validation: "solid", test: "dash", train: "dot" };

function showState(run, now) {
  document.title = `${run.name} · coterie`;
  find("name").textContent = run.name;
  const seed = run.seed === null ? [] : [`seed ${run.seed}`];
  find("about").textContent = [run.method, run.data, ...seed, run.path].filter(Boolean).join(" · ");
  find("status").replaceWith(Object.assign(status(run), { id: "status" }));
  const accuracy = run.accuracy === null ? "" : ` · ${run.part} accuracy ${percent(run.accuracy)}`;
  find("rounds").textContent = `${run.done} of ${run.rounds} rounds${accuracy}`;
  find("bar").max = run.rounds || 1;
  find("bar").value = run.done;
  const running = run.status === "running";
  const elapsed = run.started ? `${span((running ? now : page.rows.at(-1)?.time ?? run.changed) - run.started)} since the first round began` : "";
  const left = running && run.pace && run.done < run.rounds ? `about ${span((run.rounds - run.done) * run.pace)} left` : "";
  find("times").textContent = [elapsed, left].filter(Boolean).join(", ");
  find("why").hidden = !run.why;
  find("line").textContent = run.why;
  find("copy").hidden = run.status !== "stopped";
  find("report").href = `/report?${new URLSearchParams({ run: id })}`;
  find("report").hidden = !page.measured;
}

function showCurves(run) {
  const views = [...new Set(page.table.curves.map((c) => c.view))].sort((a, b) => (b === "personal") - (a === "personal"));
  const traces = (metric) => {
    const live = known(page.rows, metric);
    const own = `${run.part} · personal`;
    const found = live.length ? [line(own, live.map((r) => r.round), live.map((r) => r[metric]), COLOURS[0])] : [];
    for (const c of page.table.curves) {
      const name = `${c.part} · ${c.view}`;
      if (c.metric !== metric || c.values.every((v) => v === null) || (live.length && name === own)) continue;
      found.push(line(name, c.rounds, c.values, COLOURS[views.indexOf(c.view) % COLOURS.length], PARTS[c.part]));
    }
    return found;
  };
  draw("accuracy", traces("accuracy"), { yaxis: PERCENT });
  draw("loss", traces("loss"), { yaxis: { rangemode: "tozero" } });
  const timed = known(page.rows, "seconds");
  const seconds = timed.length ? [line("seconds", timed.map((r) => r.round), timed.map((r) => r.seconds), COLOURS[4])] : [];
  draw("seconds", seconds, { yaxis: { rangemode: "tozero" }, empty: "this run wrote no times" });
}

function showClients() {
  const told = page.table.clients;
  if (!told) return draw("clients", [], { empty: "after the first checkpoint" });
  const some = told.names.length < told.all ? `, the first ${told.names.length} of ${told.all}` : "";
  find("clients-title").textContent = `Clients at round ${told.round}: ${told.part} ${told.metric}, lowest first${some}`;
  const order = told.values.map((v, i) => i).filter((i) => told.values[i] !== null).sort((a, b) => told.values[a] - told.values[b]);
  const few = order.length <= 40;
  const bars = { type: "bar", x: order.map((_, k) => k), y: order.map((i) => told.values[i]), customdata: order.map((i) => told.names[i]), marker: { color: COLOURS[0] } };
  bars.hovertemplate = "client %{customdata}: %{y}<extra></extra>";
  const ticks = few ? { tickmode: "array", tickvals: bars.x, ticktext: bars.customdata } : { showticklabels: false };
  return draw("clients", [bars], { x: "client", hover: "closest", legend: false, xaxis: ticks, yaxis: told.metric === "accuracy" ? { ...PERCENT, range: [0, 1] } : {} });
}

async function look() {
  const said = await ask("/api/run", { id, after: page.after });
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
  return said.run.status === "running" ? 1 : 5;
}

find("copy").addEventListener("click", async () => {
  const text = find("line");
  getSelection().selectAllChildren(text);
  if (navigator.clipboard) await navigator.clipboard.writeText(text.textContent).then(() => (find("copy").textContent = "Copied"), () => {});
});
keepLooking(look);
