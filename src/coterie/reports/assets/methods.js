/* One look a method, the same in every figure, and the choice of methods that all figures show. */

const FEW = 8; // methods shown at first, and colours: beyond, the dash, the symbol and the hatching tell them apart
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#009e73", "#c2559a", "#b58900", "#4aa8df", "#4d4d4d", "#7b52ab"],
  dark: ["#4aa3e0", "#ff8a4c", "#2fc49a", "#f09ccb", "#e8c547", "#a5dbff", "#d5d5d5", "#b898e8"],
};
const DASHES = ["solid", "dash", "dot", "dashdot"];
const STROKES = { solid: "", dash: "5 3", dot: "1.5 2.5", dashdot: "6 2 1.5 2" };
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star"];
const SHAPES = [
  "M0-3.6A3.6 3.6 0 1 1 0 3.6A3.6 3.6 0 1 1 0-3.6Z", "M-3.3-3.3H3.3V3.3H-3.3Z", "M0-4.6L4.6 0L0 4.6L-4.6 0Z",
  "M0-4.4L4.2 3.2H-4.2Z", "M-1.4-4.2H1.4V-1.4H4.2V1.4H1.4V4.2H-1.4V1.4H-4.2V-1.4H-1.4Z",
  "M-4.2-2.4L-2.4-4.2L0-1.8L2.4-4.2L4.2-2.4L1.8 0L4.2 2.4L2.4 4.2L0 1.8L-2.4 4.2L-4.2 2.4L-1.8 0Z", "M0 4.4L4.2-3.2H-4.2Z",
  "M0-5L1.3-1.7L4.8-1.5L2-.7L3 3.9L0 2L-3 3.9L-2-.7L-4.8-1.5L-1.3-1.7Z",
]; // as Plotly draws the symbols above
const HATCHES = ["", "/", ".", "x"];

const METHODS = DATA.methods || [];
const shown = new Set(firstMethods());
const order = METHODS.length > FEW ? [...shown, ...METHODS.filter((name) => !shown.has(name))] : METHODS;
const slots = new Map(order.map((name, place) => [name, place])); // those seen first never share a colour
const others = new Map(); // names of series that are no methods

/* Those the answer speaks of, then the two baselines, then the order of the data. */
function firstMethods() {
  if (METHODS.length <= FEW) return METHODS;
  const answer = (DATA.answer || []).join(" ");
  const letter = /[\p{L}\p{N}_@-]/u;
  const place = (name) => {
    for (let at = answer.indexOf(name); at >= 0; at = answer.indexOf(name, at + 1)) {
      if (!letter.test(answer[at - 1] || " ") && !letter.test(answer[at + name.length] || " ")) return at;
    }
    return -1;
  };
  const named = METHODS.filter((name) => place(name) >= 0).sort((a, b) => place(a) - place(b));
  const known = ["fedavg", "local"].filter((name) => METHODS.includes(name));
  return [...new Set([...named.slice(0, FEW - known.length), ...known, ...named, ...METHODS])].slice(0, FEW);
}

/* The method that a series belongs to: "fedavg" and "fedavg (global)" are FedAvg's; null for a series of no method. */
function methodOf(name) {
  if (slots.has(name)) return name;
  const fitting = METHODS.filter((method) => name.startsWith(method) && " ,:(".includes(name[method.length]));
  return fitting.sort((a, b) => b.length - a.length)[0] || null;
}

function styleOf(name, theme) {
  const method = methodOf(name);
  if (method === null && !others.has(name)) others.set(name, others.size);
  const slot = method === null ? others.get(name) : slots.get(method);
  const lap = Math.floor(slot / FEW);
  const variant = method !== null && method !== name ? 2 : 0; // another model of the same method: its colour, another line
  return {
    colour: PALETTE[theme][slot % FEW],
    dash: DASHES[(lap + variant) % DASHES.length],
    symbol: (slot + lap) % SYMBOLS.length,
    hatch: HATCHES[(lap + variant) % HATCHES.length],
    open: variant > 0,
  };
}

function swatch(name) {
  const style = styleOf(name, theme());
  const line = { x1: -13, x2: 13, y1: 0, y2: 0, stroke: style.colour, "stroke-width": 2.4, "stroke-dasharray": STROKES[style.dash] };
  const mark = { d: SHAPES[style.symbol], fill: style.open ? "none" : style.colour, stroke: style.colour };
  return vector("svg", { viewBox: "-14 -6 28 12", width: 28, height: 12, class: "swatch", "aria-hidden": "true" },
    vector("line", line), vector("path", mark));
}

/* A name with its mark; the mark is drawn anew when the theme changes. */
function named(name, text = name) {
  return make("span", { class: "named", "data-method": name, title: text }, swatch(name), make("span", {}, text));
}

function repaintNames() {
  for (const node of document.querySelectorAll("[data-method]")) node.firstChild.replaceWith(swatch(node.dataset.method));
}

function buildChooser(changed) {
  const box = document.getElementById("chooser");
  if (METHODS.length < 2) return;
  const boxes = new Map();
  const total = make("span", { class: "muted" });
  const update = () => {
    for (const [name, input] of boxes) input.checked = shown.has(name);
    total.textContent = `${shown.size} of ${METHODS.length}`;
  };
  const choose = (names) => {
    shown.clear();
    names.forEach((name) => shown.add(name));
    update();
    changed();
  };
  const button = (text, names) => make("button", { type: "button", class: "button small", onclick: () => choose(names()) }, text);
  const list = make("ul", { class: "choices" });
  for (const name of order) {
    const input = make("input", { type: "checkbox", value: name });
    input.addEventListener("change", () => choose(order.filter((other) => (other === name ? input.checked : shown.has(other)))));
    boxes.set(name, input);
    list.append(make("li", {}, make("label", {}, input, named(name))));
  }
  const first = [...shown];
  const buttons = [button("All", () => order), button("None", () => [])];
  if (METHODS.length > FEW) buttons.splice(1, 0, button("First " + FEW, () => first));
  box.append(make("summary", {}, "Methods in the figures ", total), make("p", { class: "row" }, buttons), list);
  box.hidden = false;
  box.open = window.innerWidth > 1000;
  update();
}
