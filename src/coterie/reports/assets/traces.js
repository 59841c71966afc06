/* From a figure of the report to what Plotly draws. */

const LOOKS = {
  light: { ink: "#1c2430", muted: "#5b6675", grid: "#e4e8ee", zero: "#aab4c0", paper: "#ffffff", empty: "#e3e6ea",
    low: ["#f2f6fb", "#c9dcef", "#7fb2d9", "#2f7ab8", "#08306b"], both: ["#08519c", "#6baed6", "#f6f6f6", "#f0a35e", "#a04000"] },
  dark: { ink: "#e6eaf0", muted: "#9aa6b5", grid: "#2b3440", zero: "#5d6a7a", paper: "#171c23", empty: "#39424e",
    low: ["#16222f", "#1d4568", "#2f7ab8", "#7fb9e6", "#e3f1ff"], both: ["#9ecae1", "#3182bd", "#20262e", "#d9772b", "#ffc999"] },
};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const NAMED = 40; // categories of an axis that are written out
const CELLS = 120; // cells of a heat map that carry their number

/* Plotly reads some markup in its texts: a client called "<b>" is to be called so. */
function safe(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function spread(colours) {
  return colours.map((colour, at) => [at / (colours.length - 1), colour]);
}

function faint(colour, alpha) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${alpha})`;
}

/* What of a figure is on show: its series, its categories (null on an axis of numbers), and whether the bars lie down. */
function scene(figure, hidden, width) {
  const chosen = (name) => methodOf(name) === null || shown.has(methodOf(name));
  let series = (figure.series || []).filter((one) => chosen(one.name) && !hidden.has(one.name));
  if (!(figure.series || []).some((one) => one.x.some((x) => typeof x === "string"))) return { series, names: null, share: 1, lying: false };
  let names = [...new Set(figure.series.flatMap((one) => one.x.map(String)))];
  if (names.every((name) => slots.has(name))) {
    names = names.filter((name) => shown.has(name) && !hidden.has(name));
    series = series.map((one) => kept(one, names)).filter((one) => one.x.length);
  }
  const seats = new Map();
  for (const one of series) for (const x of new Set(one.x)) seats.set(String(x), (seats.get(String(x)) || 0) + 1);
  const share = Math.max(1, ...seats.values());
  const longest = Math.max(0, ...names.map((name) => name.length));
  const lying = figure.kind === "forest" || figure.kind === "bars" && share === 1 && names.length > 4 && names.length * Math.min(longest + 2, 20) * 7 > width - 90;
  return { series, names, share, lying };
}

function kept(one, names) {
  const at = one.x.map((_, place) => place).filter((place) => names.includes(String(one.x[place])));
  const pick = (values) => (values && values.length ? at.map((place) => values[place]) : []);
  return { ...one, x: pick(one.x), y: pick(one.y), low: pick(one.low), high: pick(one.high), text: pick(one.text), marks: pick(one.marks) };
}

/* Whether the dots of a category stand side by side. */
function beside(figure, view) {
  return (figure.kind === "dots" || figure.kind === "forest") && view.names && view.share > 1 && view.names.length <= NAMED;
}

function tracesOf(figure, view, mode, frame) {
  if (figure.kind === "heat") return [heatTrace(figure, mode, frame)];
  const seats = new Map((view.names || []).map((name, place) => [name, place]));
  const traces = view.series.map((one, place) => {
    const style = styleOf(one.name, mode);
    const step = beside(figure, view) ? ((place - (view.series.length - 1) / 2) * 0.72) / view.series.length : 0;
    const x = view.names ? one.x.map((name) => seats.get(String(name)) + step) : one.x;
    const trace = { ...MAKERS[figure.kind](one, style, view, mode), name: safe(one.name), x, y: one.y, ...hover(figure, one, view) };
    if (figure.kind !== "lines" && figure.kind !== "density") trace.error_y = errors(one, style, figure.kind);
    if (!view.lying) return trace;
    const { error_y, ...rest } = trace;
    return { ...rest, x: trace.y, y: trace.x, orientation: "h", error_x: error_y };
  });
  const bands = view.series.flatMap((one) => (figure.kind === "lines" ? bandOf(one, mode) : []));
  return [...bands, ...traces, ...view.series.flatMap((one, place) => crossings(one, traces[place], view, mode))];
}

/* Values to compare with, as lines across the bars. */
function crossings(one, bars, view, mode) {
  if (!(one.marks || []).length) return [];
  const symbol = view.lying ? "line-ns" : "line-ew";
  const along = view.lying ? { x: one.marks, y: bars.y } : { x: bars.x, y: one.marks };
  const line = (width, color) => ({
    type: "scatter", mode: "markers", marker: { symbol, size: (view.lying ? 16 : 30) + width, line: { width, color } }, showlegend: false, ...along,
  });
  const said = { hovertemplate: `mean %{${view.lying ? "x" : "y"}:.4~g}<extra></extra>` };
  return [{ ...line(6, LOOKS[mode].paper), hoverinfo: "skip" }, { ...line(2.5, LOOKS[mode].ink), ...said }]; // its rim parts it from a dark bar
}

const MAKERS = {
  lines: (one, style) => ({
    type: "scatter", mode: one.x.length > 25 ? "lines" : "lines+markers",
    line: { color: style.colour, dash: style.dash, width: 2 }, marker: marker(style, 7),
  }),
  density: (one, style) => ({
    type: "scatter", mode: "lines", fill: "tozeroy", fillcolor: faint(style.colour, 0.1),
    line: { color: style.colour, dash: style.dash, width: 2 },
  }),
  dots: (one, style, view) => {
    const many = (view.names || one.x).length;
    return { type: "scatter", mode: "markers", marker: { ...marker(style, many > NAMED ? 5 : 8), opacity: many > 200 ? 0.6 : 0.9 } };
  },
  forest: (one, style) => ({ type: "scatter", mode: "markers", marker: marker(style, 9) }),
  points: (one, style) => {
    const many = one.x.length;
    return { type: "scatter", mode: "markers", marker: { ...marker(style, many > 200 ? 5 : many > NAMED ? 7 : 10), opacity: many > 200 ? 0.5 : 0.9 } };
  },
  bars: (one, style, view, mode) => {
    const own = view.names && !methodOf(one.name) && one.x.every((name) => slots.has(String(name))); // a bar for each method
    const styles = own ? one.x.map((name) => styleOf(String(name), mode)) : [style];
    const each = (pick) => (own ? styles.map(pick) : pick(style));
    const pattern = { shape: each((s) => s.hatch), fillmode: "replace", fgcolor: each((s) => s.colour), size: 6, solidity: 0.45 };
    return { type: "bar", marker: { color: each((s) => s.colour), pattern, line: { width: each((s) => (s.hatch ? 1 : 0)), color: each((s) => s.colour) } } };
  },
};

function marker(style, size) {
  return { color: style.colour, size, symbol: SYMBOLS[style.symbol] + (style.open ? "-open" : ""), line: { width: style.open ? 1.6 : 0 } };
}

function hover(figure, one, view) {
  if (one.text && one.text.length) return { text: one.text.map(safe), hovertemplate: "%{text}", textposition: "none" };
  if (!view.names) return { hovertemplate: figure.kind === "points" ? "%{x:.4~g}, %{y:.4~g}" : "%{y:.4~g}" };
  return { text: one.x.map((name, at) => `${safe(name)}: ${formatted(one.y[at], ".4g")}`), hovertemplate: "%{text}", textposition: "none" };
}

function errors(one, style, kind) {
  if (!(one.low || []).length || !(one.high || []).length) return undefined;
  const away = (ends, sign) => one.y.map((y, at) => (y === null || ends[at] === null ? 0 : Math.max(0, sign * (ends[at] - y))));
  const color = kind === "bars" ? LOOKS[theme()].muted : style.colour;
  return { type: "data", symmetric: false, array: away(one.high, 1), arrayminus: away(one.low, -1), color, thickness: 1.2, width: 3 };
}

function bandOf(one, mode) {
  if (!(one.low || []).length || !(one.high || []).length) return [];
  const at = one.x.map((_, place) => place).filter((place) => one.low[place] !== null && one.high[place] !== null);
  if (at.length < 2) return [];
  const back = [...at].reverse();
  return [{
    type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { width: 0 }, fill: "toself",
    fillcolor: faint(styleOf(one.name, mode).colour, 0.12),
    x: [...at, ...back].map((place) => one.x[place]),
    y: [...at.map((place) => one.high[place]), ...back.map((place) => one.low[place])],
  }];
}

function heatTrace(figure, mode, frame) {
  const { rows, columns, frames, diverging } = figure.heat;
  const values = frames.flatMap((one) => one[1].flat()).filter((value) => typeof value === "number");
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const bottom = values.reduce((a, b) => Math.min(a, b), Infinity);
  const widest = Math.max(Math.abs(top), Math.abs(bottom)) || 1;
  const range = !values.length ? [0, 1] : diverging ? [-widest, widest] : [bottom, top > bottom ? top : bottom + 1];
  const z = frames[frame][1];
  const words = z.map((line, row) => line.map((value, column) => `${safe(rows[row])}, ${safe(columns[column])}: ${formatted(value, ".4g")}`));
  const trace = {
    type: "heatmap", z, zmin: range[0], zmax: range[1], colorscale: spread(diverging ? LOOKS[mode].both : LOOKS[mode].low),
    hovertext: words, hovertemplate: "%{hovertext}<extra></extra>", xgap: columns.length > 40 ? 0 : 1, ygap: rows.length > 40 ? 0 : 1,
    colorbar: { thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: LOOKS[mode].muted }, len: 1 },
  };
  const text = z.map((line) => line.map((value) => (value === null ? "" : formatted(value, ".3g"))));
  const room = rows.length * columns.length <= CELLS && columns.length <= 12 && text.flat().every((word) => word.length <= 6);
  return room ? { ...trace, text, texttemplate: "%{text}" } : trace;
}

function layoutOf(figure, view, mode, [width, height]) {
  const look = LOOKS[mode];
  const axis = (title, length, more) => ({
    title: { text: broken(title, (length - 90) / 6.5), font: { size: 12, color: look.muted }, standoff: 10 }, tickfont: { size: 11, color: look.muted },
    gridcolor: look.grid, linecolor: look.zero, zerolinecolor: look.zero, zeroline: false, automargin: true, ...more,
  });
  const layout = {
    font: { family: FONT, size: 12, color: look.ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    margin: { l: 48, r: 14, t: 10, b: 42 }, bargap: 0.28, bargroupgap: 0.06, barmode: view.share > 1 ? "group" : "overlay", dragmode: "zoom",
    hovermode: figure.kind === "lines" && !view.names ? "x unified" : "closest", hoverdistance: 30,
    hoverlabel: { bgcolor: look.paper, bordercolor: look.zero, font: { family: FONT, size: 12, color: look.ink }, namelength: 40 },
  };
  if (figure.kind === "heat") {
    const { rows, columns } = figure.heat;
    layout.plot_bgcolor = look.empty;
    layout.xaxis = axis(figure.x, width, { ...written(columns, width / 34), showgrid: false, range: [-0.5, columns.length - 0.5], constrain: "domain" });
    layout.yaxis = axis(figure.y, height, { ...written(rows, height / 16), showgrid: false, range: [rows.length - 0.5, -0.5] });
    return layout;
  }
  const zero = figure.kind === "bars" || figure.kind === "density";
  let first = axis(figure.x, width, { showgrid: figure.kind === "points", zeroline: figure.kind === "density", showline: true, ticks: "outside", ticklen: 4, tickcolor: look.zero });
  let second = axis(figure.y, height, { zeroline: zero || figure.kind === "forest", rangemode: zero ? "tozero" : "normal" });
  if (view.names) {
    const ends = { range: [-0.6, view.names.length - 0.4], autorange: false };
    first = { ...first, ...(view.names.length > NAMED ? { tickmode: "array", tickvals: [], ticks: "" } : written(view.names, NAMED)), ...ends, showgrid: false };
  }
  if (beside(figure, view)) {
    const line = { type: "line", layer: "below", line: { color: look.grid, width: 1 } };
    const at = (place) => (view.lying ? { xref: "paper", x0: 0, x1: 1, y0: place, y1: place } : { yref: "paper", y0: 0, y1: 1, x0: place, x1: place });
    layout.shapes = view.names.slice(1).map((_, place) => ({ ...line, ...at(place + 0.5) }));
  }
  if (figure.kind === "points") layout.shapes = diagonal(view, look);
  if (view.lying) {
    first = { ...first, range: [view.names.length - 0.4, -0.6] };
    [first, second] = [second, first];
  }
  if (!view.series.length) layout.annotations = [{ text: "No method is chosen", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { color: look.muted } }];
  return { ...layout, xaxis: first, yaxis: second };
}

/* Where both axes have the same value, as far as there are points. */
function diagonal(view, look) {
  const numbers = view.series.flatMap((one) => [...one.x, ...one.y]).filter((value) => typeof value === "number");
  if (!numbers.length) return [];
  const [bottom, top] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
  return [{ type: "line", layer: "below", x0: bottom, y0: bottom, x1: top, y1: top, line: { color: look.zero, width: 1, dash: "dot" } }];
}

/* A title in lines of at most so many letters. */
function broken(text, most) {
  const lines = [""];
  for (const word of String(text).split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length > most && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map(safe).join("<br>");
}

/* Ticks with names, thinned where many, cut where long; among many, "group 3 (16 clients)" is group 3. */
function written(names, most) {
  const every = Math.ceil(names.length / Math.min(NAMED, most));
  const at = names.map((_, place) => place).filter((place) => place % every === 0);
  const tick = (name) => (names.length > 12 ? shortened(name.replace(/ \([^()]*\)$/, ""), 14) : shortened(name, 20));
  const room = names.length <= 6 ? (name) => broken(shortened(name, 45), 18) : (name) => safe(tick(name));
  return { tickmode: "array", tickvals: at, ticktext: at.map((place) => room(names[place])) };
}
