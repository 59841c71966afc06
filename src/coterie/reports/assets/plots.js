/* A card for each figure; it is drawn when it comes near the window, and again when the theme or the choice of methods changes. */

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, scrollZoom: false };
const plots = new Map(); // place of a drawing -> its card
const waiting = [];
let pumping = false;
let looked = false; // the browser has said what is near the window

function theme() {
  return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/* The drawing library takes a second to start on a slow machine: the words and tables of the page do not wait for it. */
function needPlotly() {
  if (!window.Plotly) document.head.append(make("script", {}, document.getElementById("plotly").textContent));
}

function cardOf(figure) {
  const place = make("div", { class: "plot", role: "img", "aria-label": `${figure.title}. ${figure.note || ""}` });
  place.style.height = `${heightOf(figure)}px`;
  const card = { figure, place, hidden: new Set(), frame: figure.heat ? figure.heat.frames.length - 1 : 0, drawn: false, legend: make("ul", { class: "legend" }) };
  const save = (format) =>
    make("button", {
      type: "button", class: "button small", "aria-label": `Download ${figure.title} as ${format.toUpperCase()}`, onclick: () => download(card, format),
    }, format.toUpperCase());
  plots.set(place, card);
  near.observe(place);
  fillLegend(card);
  return make("figure", { class: wide(figure) ? "card wide" : "card", id: `figure-${figure.key}` },
    make("figcaption", {}, make("div", { class: "head" }, make("h3", {}, figure.title), make("span", { class: "row" }, save("png"), save("svg"))),
      figure.note ? make("p", { class: "note" }, figure.note) : null),
    card.legend, place, figure.heat && figure.heat.frames.length > 1 ? slider(card) : null);
}

function heightOf(figure, view = scene(figure, new Set(), 1000)) {
  if (figure.kind === "heat") return Math.max(280, Math.min(560, 120 + 24 * figure.heat.rows.length));
  if (figure.kind === "forest") return Math.max(200, 90 + 34 * view.names.length);
  return view.lying ? Math.max(320, 90 + 20 * view.names.length) : 320;
}

function wide(figure) {
  if (figure.kind === "heat") return figure.heat.columns.length > 32;
  if (figure.kind === "forest") return true;
  const names = new Set((figure.series || []).flatMap((one) => one.x.filter((x) => typeof x === "string")));
  return (figure.kind === "dots" && names.size > 12) || (figure.kind === "bars" && names.size * figure.series.length > 40);
}

/* Two cards a row; where one would stand alone, the first takes a row. */
function grid(cards) {
  const narrow = cards.filter((card) => !card.classList.contains("wide"));
  if (narrow.length % 2) narrow[0].classList.add("wide");
  return cards.length ? [make("div", { class: "figures" }, cards)] : [];
}

function slider(card) {
  const { frames } = card.figure.heat;
  const said = make("output", {}, frames[card.frame][0]);
  const input = make("input", {
    type: "range", min: 0, max: frames.length - 1, step: 1, value: card.frame, "aria-label": `${card.figure.title}: choose the round`,
    "aria-valuetext": frames[card.frame][0],
  });
  input.addEventListener("input", () => {
    card.frame = Number(input.value);
    said.textContent = frames[card.frame][0];
    input.setAttribute("aria-valuetext", frames[card.frame][0]);
    if (card.drawn) draw(card);
  });
  return make("div", { class: "slider" }, input, said);
}

/* A click hides a series in this figure; which methods are in the figures at all is chosen for all of them at once. */
function fillLegend(card) {
  const { figure } = card;
  const all = figure.kind === "heat" ? [] : (figure.series || []).map((one) => one.name);
  const ticks = (figure.series || []).length === 1 && figure.series[0].x.every((x) => slots.has(String(x)));
  const names = all.filter((name) => methodOf(name) === null || shown.has(methodOf(name)));
  card.legend.hidden = all.length < 2 || ticks;
  card.legend.replaceChildren(...names.map((name) => {
    const button = make("button", { type: "button", "aria-pressed": String(!card.hidden.has(name)), title: "Show or hide in this figure" }, named(name));
    button.addEventListener("click", () => {
      if (!card.hidden.delete(name)) card.hidden.add(name);
      button.setAttribute("aria-pressed", String(!card.hidden.has(name)));
      if (card.drawn) draw(card);
    });
    return make("li", {}, button);
  }));
}

function draw(card, width = null) {
  needPlotly();
  const { figure, place } = card;
  const mode = theme();
  const across = width || place.clientWidth;
  const view = scene(figure, card.hidden, across);
  const height = heightOf(figure, view);
  place.style.height = `${height}px`;
  const layout = layoutOf(figure, view, mode, [across, height]);
  if (width) Object.assign(layout, { width, height, autosize: false });
  card.drawn = true;
  near.unobserve(place);
  return Plotly.react(place, tracesOf(figure, view, mode, card.frame), layout, CONFIG).then(() => { place.dataset.drawn = "yes"; });
}

function visible(card) {
  return card.place.isConnected && card.place.offsetParent !== null;
}

/* One drawing a task, so that the page answers meanwhile. */
function pump() {
  const card = waiting.shift();
  pumping = card !== undefined;
  if (card && !card.drawn && visible(card)) draw(card).then(() => setTimeout(pump));
  else if (card) pump();
  else if (looked && !document.body.dataset.ready) {
    document.body.dataset.ready = "yes";
    setTimeout(needPlotly, 700); // before the reader scrolls to the first figure
  }
}

const near = new IntersectionObserver((entries) => {
  looked = true;
  const seen = entries.filter((entry) => entry.isIntersecting && plots.has(entry.target));
  waiting.push(...seen.map((entry) => plots.get(entry.target)));
  if (!pumping) pump();
}, { rootMargin: "250px 0px" });

function drawAll() {
  return Promise.all([...plots.values()].filter((card) => !card.drawn && visible(card)).map((card) => draw(card)));
}

function redraw() {
  return Promise.all([...plots.values()].filter((card) => card.drawn && visible(card)).map((card) => draw(card)));
}

function rechoose() {
  plots.forEach(fillLegend);
  redraw();
}

/* Forgets the drawings of a page that goes. */
function drop(root) {
  for (const [place, card] of plots) {
    if (!root.contains(place)) continue;
    near.unobserve(place);
    if (card.drawn) Plotly.purge(place);
    plots.delete(place);
  }
}

/* A picture for a paper: light, with title and legend, whatever the page looks like. */
function download(card, format) {
  needPlotly();
  const { figure } = card;
  const view = scene(figure, card.hidden, 1000);
  const size = { width: 1000, height: Math.max(560, heightOf(figure) + 120), scale: 2 };
  const layout = layoutOf(figure, view, "light", [size.width, size.height]);
  Object.assign(layout, {
    paper_bgcolor: "#ffffff", showlegend: figure.kind !== "heat" && view.series.length > 1, legend: { orientation: "h", y: -0.2, yanchor: "top" },
    title: { text: safe(figure.title), x: 0.02, xanchor: "left", font: { size: 16 } }, margin: { l: 60, r: 24, t: 56, b: 60 },
  });
  return Plotly.downloadImage({ data: tracesOf(figure, view, "light", card.frame), layout }, { format, filename: figure.key, ...size });
}

/* Paper is light and narrow: draw for it, and back. */
window.addEventListener("beforeprint", () => {
  document.documentElement.dataset.before = document.documentElement.dataset.theme || "";
  document.documentElement.dataset.theme = "light";
  repaintNames();
  for (const card of plots.values()) if (visible(card)) draw(card, 660);
});
window.addEventListener("afterprint", () => {
  const before = document.documentElement.dataset.before;
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  repaintNames();
  redraw();
});
