"use strict";
// Several runs in the same axes.

const asked = new URLSearchParams(location.search).getAll("run");
const runs = new Map(); // id -> { run, rows, after }

function accumulated(rows) {
  let sum = 0; // null throughout where a run wrote no times
  return rows.map((row) => (row.seconds === undefined ? null : (sum += row.seconds)));
}

// Names that tell the runs apart: the method where each has another, else with the seed, else the folder.
function names(all) {
  const ways = [(r) => r.method, (r) => `${r.method}, seed ${r.seed}`, (r) => r.name, (r) => decodeURIComponent(r.id)];
  const way = ways.find((w) => new Set(all.map(w)).size === all.length) || ways.at(-1);
  return all.map(way);
}

function show() {
  const all = [...runs.values()];
  const called = names(all.map((one) => one.run));
  const across = find("across").value;
  const methods = [...new Set(all.map((one) => one.run.method))];
  const looks = all.map(({ run }, k) => {
    const before = all.slice(0, k).filter((other) => other.run.method === run.method).length; // a colour a method, a dash a seed
    return [COLOURS[methods.indexOf(run.method) % COLOURS.length], DASHES[before % DASHES.length]];
  });
  for (const metric of ["accuracy", "loss"]) {
    const traces = [];
    all.forEach((one, k) => {
      const seconds = accumulated(one.rows);
      const points = one.rows.map((row, i) => [across === "round" ? row.round : seconds[i], row[metric]]).filter((p) => p.every((v) => v !== null && v !== undefined));
      if (points.length) traces.push(line(called[k], points.map((p) => p[0]), points.map((p) => p[1]), ...looks[k]));
    });
    draw(metric, traces, { x: across === "round" ? "round" : "training seconds", legend: true, hover: "closest", yaxis: metric === "accuracy" ? PERCENT : { rangemode: "tozero" } });
  }
  const parts = [...new Set(all.map((one) => one.run.part))].filter(Boolean);
  find("about").textContent = `${all.length} runs, measured on ${parts.join(" or ")} data`;
  document.querySelector("#chosen tbody").replaceChildren(...all.map((one, k) => {
    const made = element("tr");
    const cells = ["name", "method", "", "", "number", "number", "number"].map((c) => made.appendChild(element("td", "", c)));
    const link = cells[0].appendChild(element("a", called[k]));
    link.href = `/run?${new URLSearchParams({ id: one.run.id })}`;
    cells[1].textContent = one.run.method;
    cells[2].appendChild(status(one.run));
    cells[3].append(bar(one.run), `${one.run.done} / ${one.run.rounds}`);
    cells[4].textContent = percent(one.run.accuracy);
    const best = known(one.rows, "accuracy").map((row) => row.accuracy);
    cells[5].textContent = best.length ? percent(best.reduce((a, b) => Math.max(a, b))) : "";
    cells[6].textContent = accumulated(one.rows).at(-1)?.toFixed(1) ?? "";
    return made;
  }));
}

async function look() {
  const chosen = await ask("/api/chosen", asked.map((name) => ["run", name]));
  let fresh = !drawn.size;
  for (const run of chosen) {
    const one = runs.get(run.id) || { rows: [], after: 0, status: "" };
    if (one.status !== "finished") {
      const said = await ask("/api/run", { id: run.id, after: one.after });
      fresh ||= said.rows.length || said.reset || said.run.status !== one.status;
      runs.set(run.id, { run: said.run, rows: withNews(one.rows, said), after: said.after, status: said.run.status });
    }
  }
  find("report").href = `/report?${new URLSearchParams(asked.map((name) => ["run", name]))}`;
  if (fresh) show();
  return [...runs.values()].every((one) => one.status === "finished") ? 5 : 1;
}

find("across").addEventListener("change", show);
keepLooking(look);
