/* The list of clients, and a page for each of them. */

const CLIENTS = DATA.clients || { names: [] };
const NAMES = (CLIENTS.names || []).map(String);
const PARTS = ["train", "validation", "select", "test"].filter((part) => (CLIENTS.rows || {})[part]);
const LEAST = 0.0005; // weights below are shown as none
const MEASURE = DATA.measure || "accuracy";
const BETTER = MEASURE === "accuracy" ? "high" : "low";

/* Accuracies come as shares and are read in percent. */
function measured(value) {
  return typeof value === "number" && MEASURE === "accuracy" ? 100 * value : value ?? null;
}

function clientLink(index) {
  return make("a", { href: `#client-${index}` }, NAMES[index] ?? String(index));
}

function clientList() {
  const box = make("div");
  const input = make("input", { type: "search", id: "find-client", placeholder: "Name or group", autocomplete: "off", spellcheck: "false" });
  const said = make("span", { class: "muted", role: "status" });
  let table = null;
  const all = () => NAMES.map((name, at) => [
    { value: name, href: `#client-${at}` }, ...(CLIENTS.groups ? [CLIENTS.groups[at]] : []), ...PARTS.map((part) => CLIENTS.rows[part][at]),
    ...columns().map((method) => measured(CLIENTS.accuracy[method][at])),
  ]);
  const columns = () => order.filter((method) => shown.has(method) && (CLIENTS.accuracy || {})[method]);
  const search = () => {
    const words = input.value.trim().toLocaleLowerCase().split(/\s+/);
    const found = all().filter((row) => words.every((word) => `${row[0].value} ${CLIENTS.groups ? row[1] : ""}`.toLocaleLowerCase().includes(word)));
    said.textContent = count(found.length, "client");
    table.show(found);
  };
  const build = () => {
    const format = MEASURE === "accuracy" ? ".1f" : ".4g";
    const unit = MEASURE === "accuracy" ? "%" : "";
    table = sortable({
      columns: [
        { name: "client" }, ...(CLIENTS.groups ? [{ name: "group" }] : []), ...PARTS.map((part) => ({ name: part, unit: "rows", format: ",.0f" })),
        ...columns().map((method) => ({ name: shortened(method, 22), unit, format })),
      ],
      rows: all(),
    }, { page: 25, caption: "Clients" });
    box.replaceChildren(table.node);
    search();
  };
  input.addEventListener("input", search);
  build();
  const label = make("label", { for: "find-client" }, "Find a client");
  return { node: make("div", { class: "card" }, make("p", { class: "row finder" }, label, input, said), box), build };
}

function clientPage(index) {
  const back = make("a", { href: "#clients", class: "button" }, "All clients");
  const step = (text, to) => (to >= 0 && to < NAMES.length ? make("a", { href: `#client-${to}`, class: "button" }, text) : null);
  const [first, second] = [accuracyFigure(index), classesFigure(index)].map((figure) => (figure ? cardOf(figure) : null));
  return [
    make("p", { class: "row" }, back, step("Previous", index - 1), step("Next", index + 1)),
    make("p", { class: "brand" }, "client"), make("h2", { tabindex: -1 }, NAMES[index]), facts(index),
    ...grid([first, accuracyTable(index), second].filter(Boolean)), peers(index), notes(index),
  ].filter(Boolean);
}

function facts(index) {
  const rows = PARTS.map((part) => [`${part} rows`, formatted(CLIENTS.rows[part][index], ",.0f")]);
  const held = CLIENTS.counts ? (CLIENTS.counts[index] || []).filter((number) => number > 0).length : null;
  const all = [...rows, ...(held === null ? [] : [["classes", String(held)]]), ...(CLIENTS.groups ? [["group", formatted(CLIENTS.groups[index])]] : [])];
  return make("dl", { class: "facts" }, all.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function methodsOf(index) {
  return METHODS.filter((method) => typeof ((CLIENTS.accuracy || {})[method] || [])[index] === "number");
}

function accuracyFigure(index) {
  const methods = methodsOf(index);
  if (!methods.length) return null;
  const rows = MEASURE === "accuracy" ? (CLIENTS.rows.test || [])[index] || 0 : 0;
  const ends = methods.map((method) => (rows ? wilson(CLIENTS.accuracy[method][index], rows) : [null, null]));
  const open = rows ? ` The interval (95 %, Wilson) is what ${formatted(rows, ",.0f")} test rows leave open.` : "";
  return {
    key: `client-${index}-${MEASURE}`, title: `${MEASURE[0].toUpperCase()}${MEASURE.slice(1)} under each method`, kind: "bars",
    note: "This client's own model under each method; the line across a bar is the mean of all clients." + open, x: "", y: MEASURE === "accuracy" ? "accuracy, %" : MEASURE,
    series: [{ name: "this client", x: methods, y: methods.map((method) => measured(CLIENTS.accuracy[method][index])), marks: methods.map((method) => measured(mean(CLIENTS.accuracy[method]))),
      ...(rows ? { low: ends.map(([low]) => measured(low)), high: ends.map(([, high]) => measured(high)) } : {}) }],
  };
}

/* The 95 % interval of a share that was seen on so many rows. */
function wilson(share, rows) {
  const z = 1.959964, middle = share + (z * z) / (2 * rows), wide = z * Math.sqrt((share * (1 - share)) / rows + (z * z) / (4 * rows * rows));
  const scale = 1 + (z * z) / rows;
  return [(middle - wide) / scale, (middle + wide) / scale];
}

function classesFigure(index) {
  const counts = (CLIENTS.counts || [])[index];
  if (!counts || !CLIENTS.labels) return null;
  return {
    key: `client-${index}-classes`, title: "Rows of each class", kind: "bars", note: "How many rows of each class this client holds.",
    x: "class", y: "rows", series: [{ name: "rows", x: CLIENTS.labels.map(String), y: counts }],
  };
}

function accuracyTable(index) {
  const methods = methodsOf(index);
  if (!methods.length) return null;
  const [format, unit] = MEASURE === "accuracy" ? [".2f", "%"] : [".4g", ""];
  const rows = methods.map((method) => {
    const [own, all] = [measured(CLIENTS.accuracy[method][index]), measured(mean(CLIENTS.accuracy[method]))];
    return [method, own, all, own - all];
  });
  const columns = [
    { name: "method" }, { name: "this client", unit, format, better: BETTER }, { name: "mean of all clients", unit, format },
    { name: "difference", unit: unit && "points", format: "+" + format },
  ];
  return make("div", { class: "card" }, make("h3", {}, "Against the mean of all clients"), sortable({ columns, rows }, { caption: "Against the mean" }).node);
}

function peers(index) {
  const lists = METHODS.map((method) => [method, ((CLIENTS.learned_from || {})[method] || [])[index] || []]).filter(([, list]) => list.length);
  if (!lists.length) return null;
  const cards = lists.map(([method, all]) => {
    const list = all.filter(([, weight]) => Math.abs(weight) >= LEAST);
    if (!list.length) return make("div", { class: "card" }, make("h4", {}, named(method)), make("p", { class: "note" }, `From nobody else: no other client weighs ${LEAST} or more.`));
    const top = Math.max(...list.map(([, weight]) => Math.abs(weight))) || 1;
    const items = list.map(([peer, weight]) => make("li", {}, peer === index ? make("span", {}, `${NAMES[peer]} (itself)`) : clientLink(peer),
      make("span", { class: "bar" }, make("span", { style: `width:${(100 * Math.abs(weight)) / top}%` })), make("span", { class: "number" }, formatted(weight, ".3f"))));
    return make("div", { class: "card" }, make("h4", {}, named(method)), make("ol", { class: "peers" }, items));
  });
  return make("section", {}, make("h3", {}, "Whom it learned from"),
    make("p", { class: "note" }, "The ten clients with the largest weight in this client's model, after the last round."), make("div", { class: "lists" }, cards));
}

function notes(index) {
  const found = METHODS.map((method) => [method, ((CLIENTS.notes || {})[method] || []).filter(([, values]) => (values[index] ?? null) !== null)]);
  const rows = found.filter(([, list]) => list.length);
  if (!rows.length) return null;
  const cards = rows.map(([method, list]) => make("div", { class: "card" }, make("h4", {}, named(method)),
    make("dl", { class: "pairs" }, list.map(([name, values]) => [make("dt", {}, name), make("dd", {}, formatted(values[index]))]).flat())));
  return make("section", {}, make("h3", {}, "What the methods noted"), make("div", { class: "lists" }, cards));
}
