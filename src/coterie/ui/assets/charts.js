"use strict";
// Curves, drawn by Plotly in the colours of the page.

const COLOURS = ["#2f7fb8", "#d9822b", "#3a9d6a", "#b04a8f", "#8a6fd1", "#c2493d", "#6f8f1f", "#1fa3a3", "#a07a4a", "#7a7f87"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const drawn = new Map(); // chart -> how to draw it again

function draw(id, traces, options = {}) {
  drawn.set(id, () => draw(id, traces, options));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  const layout = {
    margin: { l: 45, r: 12, t: 12, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    uirevision: "kept", // a zoom outlives new points
    hovermode: options.hover || "x unified",
    showlegend: options.legend ?? traces.length > 1,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    bargap: 0.15,
    xaxis: { ...axis, visible: traces.length > 0, title: { text: options.x || "round", standoff: 8 }, ...options.xaxis },
    yaxis: { ...axis, visible: traces.length > 0, ...options.yaxis },
    annotations: traces.length ? [] : [{ text: options.empty || "nothing measured yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }],
  };
  return Plotly.react(id, traces, layout, { responsive: true, displaylogo: false });
}

const PERCENT = { tickformat: ".0%", hoverformat: ".2%" };

function line(name, x, y, colour, dash = "solid") {
  const mode = y.length > 40 ? "lines" : "lines+markers";
  return { type: "scatter", mode, name, x, y, line: { color: colour, dash, width: 2 }, marker: { size: 5 }, connectgaps: true };
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

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.values()].forEach((again) => again()));
