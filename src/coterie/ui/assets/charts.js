"use strict";
// Curves, drawn by Plotly in the colours of the page.

const PALETTE = {
  light: ["#0072b2", "#d55e00", "#009e73", "#c2559a", "#b58900", "#4aa8df", "#4d4d4d", "#7b52ab"],
  dark: ["#4aa3e0", "#ff8a4c", "#2fc49a", "#f09ccb", "#e8c547", "#a5dbff", "#d5d5d5", "#b898e8"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const colourOf = (k) => PALETTE[dark.matches ? "dark" : "light"][k % 8];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const drawn = new Map(); // chart -> how to draw it again
const whole = new Set(); // charts that show every point, however far off
const off = new Map(); // chart -> names of series that are switched off
const shown = new Map(); // chart -> its series as they were before smoothing, for CSV

function draw(id, series, options = {}) {
  drawn.set(id, () => draw(id, series, options));
  shown.set(id, { series, x: options.x || "round" });
  const look = views(id);
  const named = options.legend ?? series.length > 1;
  const hidden = off.get(id) || new Set();
  const traces = series.filter((one) => !hidden.has(one.name)).flatMap((one) => tracesOf(one, look));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  const log = look.log && options.log !== false;
  const far = log || options.log === false ? null : farOff(traces);
  const range = far && !whole.has(id) ? { range: far.range } : {};
  const few = !options.xaxis && !/seconds/.test(options.x || "") && Math.max(0, ...series.flatMap((one) => one.x)) <= 12;
  const layout = {
    margin: { l: 45, r: 12, t: 12, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    uirevision: `kept ${log} ${whole.has(id)} ${options.key || ""}`, // a zoom outlives new points
    hovermode: options.hover || "x unified",
    showlegend: false, // its own would press the chart together on a phone
    bargap: 0.15,
    xaxis: { ...axis, visible: traces.length > 0, title: { text: options.x || "round", standoff: 8 }, ...(few ? { dtick: 1 } : {}), ...options.xaxis },
    yaxis: { ...axis, visible: traces.length > 0, ...options.yaxis, ...range, ...(log ? { type: "log" } : {}) },
    annotations: traces.length ? [] : [{ text: options.empty || "nothing measured yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }],
  };
  sign(id, far);
  legend(id, named ? series : [], hidden);
  find(id).removeAttribute("aria-busy");
  return Plotly.react(id, traces, layout, { responsive: true, displaylogo: false });
}

const PERCENT = { tickformat: ".0%", hoverformat: ".2%" };
const axisOf = (metric) => (metric.startsWith("accuracy") ? PERCENT : { rangemode: "tozero" });

function line(name, x, y, k, dash = "solid", band = null) {
  return { name, x, y, k, dash, band };
}

// How a page's controls want its curves: smoothed by so much, on a log scale.
const views = () => ({ smooth: Number(find("smooth")?.value ?? 0), log: find("log-scale")?.checked ?? false });

function tracesOf(one, { smooth }) {
  if (one.type) return [{ ...one, marker: { color: colourOf(0) } }];
  const colour = colourOf(one.k);
  const mode = one.y.length > 40 ? "lines" : "lines+markers";
  const base = { type: "scatter", x: one.x, connectgaps: true, legendgroup: one.name };
  const curve = { ...base, mode, name: one.name, y: smoothed(one.y, smooth), line: { color: colour, dash: one.dash, width: 2 }, marker: { size: 5 } };
  if (!one.band) return [curve];
  const edge = { ...base, mode: "lines", showlegend: false, hoverinfo: "skip", line: { width: 0, color: colour } };
  return [{ ...edge, y: smoothed(one.band.low, smooth) }, { ...edge, y: smoothed(one.band.high, smooth), fill: "tonexty", fillcolor: `${colour}2e` }, curve];
}

// A running mean that forgets: 0 is the curve itself, 0.9 averages about ten points.
function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, count] = [0, 0];
  return values.map((v) => {
    if (v === null) return null;
    sum = weight * sum + (1 - weight) * v;
    count = weight * count + (1 - weight);
    return sum / count;
  });
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.round(q * (sorted.length - 1)))];

// Where a few points lie so far off that they would press the rest into a line: the range of the rest, and who is outside.
function farOff(traces) {
  const values = traces.flatMap((t) => t.y).filter((v) => typeof v === "number");
  if (values.length < 5) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const [q1, q3] = [quantile(sorted, 0.25), quantile(sorted, 0.75)];
  const fence = 3 * (q3 - q1) || Math.abs(q3) || 1;
  const rest = sorted.filter((v) => v >= q1 - fence && v <= q3 + fence);
  const few = sorted.length - rest.length <= Math.max(traces.length, 0.05 * sorted.length);
  const [low, high, all] = [rest[0], rest.at(-1), sorted.at(-1) - sorted[0]];
  if (rest.length === sorted.length || !few || high - low > 0.2 * all) return null;
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  return { range: [low - room, high + room], count: sorted.length - rest.length, most: Math.abs(sorted.at(-1)) > Math.abs(sorted[0]) ? sorted.at(-1) : sorted[0] };
}

// What a chart leaves out is said under it, with a way to see all.
function sign(id, far) {
  const chart = find(id);
  let place = chart.parentElement.querySelector(".sign");
  if (!far) return place?.remove();
  if (!place) chart.after((place = element("p", "", "sign")));
  const points = far.count === 1 ? "1 point is" : `${far.count} points are`;
  const again = button(whole.has(id) ? "Leave far points out" : "Show every point", () => {
    whole[whole.has(id) ? "delete" : "add"](id);
    drawn.get(id)();
  });
  place.replaceChildren(whole.has(id) ? "Every point is shown. " : `${points} far off (${Number(far.most.toPrecision(3))}) and left out of the range. `, again);
}

// Every series with its line, above the chart; a click leaves it out.
const STROKES = { solid: "", dash: "5 3", dot: "1.5 2.5", dashdot: "6 2 1.5 2", longdash: "8 3" };
function legend(id, series, hidden) {
  const chart = find(id);
  let place = chart.parentElement.querySelector(".legend");
  if (!series.length) return place?.remove();
  if (!place) chart.before((place = element("div", "", "legend")));
  const held = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(...series.map((one) => {
    const made = button(one.name, () => {
      hidden[hidden.has(one.name) ? "delete" : "add"](one.name);
      off.set(id, hidden);
      drawn.get(id)();
    });
    made.setAttribute("aria-pressed", !hidden.has(one.name));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [key, value] of Object.entries({ width: 26, height: 8, viewBox: "0 0 26 8", "aria-hidden": "true" })) svg.setAttribute(key, value);
    for (const [key, value] of Object.entries({ d: "M0 4H26", stroke: colourOf(one.k), "stroke-width": 2.5, "stroke-dasharray": STROKES[one.dash] })) stroke.setAttribute(key, value);
    svg.append(stroke);
    made.prepend(svg);
    return made;
  }));
  if (held >= 0) place.children[held]?.focus();
}

// A button under every chart's title that gives its numbers.
function csvButtons() {
  for (const chart of document.querySelectorAll(".chart")) {
    const title = chart.parentElement.querySelector("figcaption");
    title.append(button("CSV", () => chartCsv(chart.id), `The chart ${chart.id} as CSV`));
  }
}
function chartCsv(id) {
  const { series, x } = shown.get(id) || { series: [], x: "round" };
  const band = series.some((one) => one.band);
  const rows = [["series", x, "value", ...(band ? ["lowest seed", "highest seed"] : [])]];
  for (const one of series) {
    one.y.forEach((y, i) => rows.push([one.name ?? one.customdata?.[i] ?? "", one.x[i], y, ...(band ? [one.band?.low[i] ?? "", one.band?.high[i] ?? ""] : [])]));
  }
  download(`${id}.csv`, rows);
}

const redraw = () => [...drawn.values()].forEach((again) => again());

function controls() {
  const smooth = find("smooth");
  const tell = () => (find("smooth-told").textContent = Number(smooth.value) ? smooth.value : "none");
  smooth.addEventListener("input", () => { tell(); redraw(); });
  find("log-scale").addEventListener("change", redraw);
  tell();
  csvButtons();
}

// Rows after news; a round that is told again (after a resume) takes the place of itself and all that followed.
function withNews(rows, news) {
  let kept = news.reset ? [] : rows;
  for (const row of news.rows) {
    while (kept.length && kept[kept.length - 1].round >= row.round) kept.pop();
    kept.push(row);
  }
  return kept;
}

const known = (rows, key) => rows.filter((row) => row[key] !== null && row[key] !== undefined);

dark.addEventListener("change", redraw);
