/* Builds the page, follows the address (#client-7 is a client's page), and starts. */

const SECTIONS = [
  ["answer", "The answer"], ["methods", "Methods"], ["accuracy", "Accuracy"], ["fairness", "Fairness"], ["cost", "Cost"], ["statistics", "Statistics"], ["tuning", "Tuning"],
  ["collaboration", "Who learns from whom"], ["inside", "Inside the methods"], ["data", "Data split"], ["more", "More"],
  ["clients", "Clients"], ["configuration", "Configuration and versions"],
];
const TABLES = [[/^tuning-/, "tuning"], [/fair|worst/, "fairness"], [/cost|byte|time/, "cost"], [/statist|rank|value|differ/, "statistics"], [/gain|round|quality|score|view/, "accuracy"]];
const report = document.getElementById("report");
const client = document.getElementById("client");
let list = null;
let left = null; // where the reader was when a client's page opened: {hash, y}

function sectionOf(table, first) {
  if (first) return "methods";
  const found = TABLES.find(([words]) => words.test(table.key));
  return table.section || (found ? found[1] : "methods");
}

function build() {
  const tables = DATA.tables || [];
  const figures = DATA.figures || [];
  const known = new Set(SECTIONS.map(([key]) => key));
  const contents = make("ul");
  for (const [key, title] of SECTIONS) {
    const mine = figures.filter((figure) => (known.has(figure.section) ? figure.section : "more") === key);
    const parts = [
      ...(key === "answer" ? answer() : []), ...(key === "clients" ? clientSection() : []), ...(key === "configuration" ? configuration() : []),
      ...grid(mine.map(cardOf)), ...tableCards(tables.filter((table, at) => sectionOf(table, at === 0) === key)),
    ];
    if (!parts.length) continue;
    report.append(make("section", { id: key, "aria-label": title }, make("h2", {}, title), parts));
    contents.append(make("li", {}, make("a", { href: `#${key}` }, title)));
  }
  document.getElementById("contents").append(contents);
}

/* The first sentence leads, in larger type; its figures stand below it as tiles. */
function answer() {
  const [head = "", ...rest] = DATA.answer || [];
  const summary = DATA.summary || { headline: head, tiles: [], details: [] };
  const [, lead, more] = /^(.+?[.!?])\s+(\p{Lu}.*|\d.*)$/su.exec(summary.headline) || [null, summary.headline, ""];
  const paragraph = (text, kind) => make("p", { class: kind || null }, text.replace(/(\d) (?=%|MB|points)/g, "$1\u00a0"));
  const paragraphs = [
    ...(lead ? [paragraph(lead, "lead")] : []), ...tiles(summary.tiles),
    ...[more, summary.details.join(" "), ...rest].filter(Boolean).map((text) => paragraph(text)),
  ];
  const warnings = (DATA.warnings || []).map((text) => make("li", {}, text));
  const box = warnings.length ? make("div", { class: "warnings", role: "note" }, make("strong", {}, "Left out or incomplete"), make("ul", {}, warnings)) : null;
  return [...(paragraphs.length ? [make("div", { class: "answer" }, paragraphs)] : []), ...(box ? [box] : [])];
}

/* What it is, its value, and what belongs to it; a list for who hears the page. */
function tiles(found) {
  if (!found.length) return [];
  const one = (tile) => make("div", { class: "tile" }, make("dt", {}, tile.label), make("dd", {}, make("strong", {}, tile.value), make("span", {}, tile.note)));
  return [make("dl", { class: "tiles" }, found.map(one))];
}

function tableCards(tables) {
  return tables.length ? [make("div", { class: "figures" }, tables.map(tableCard))] : [];
}

function tableCard(table) {
  const wide = table.columns.length > 7 || table === DATA.tables[0];
  const save = (kind, text) =>
    make("button", { type: "button", class: "button small", "aria-label": `Download ${table.title} as ${kind}`, onclick: () => keep(text(table), `${table.key}.${kind === "CSV" ? "csv" : "tex"}`) }, kind);
  return make("div", { class: wide ? "card wide" : "card", id: `table-${table.key}` },
    make("div", { class: "head" }, make("h3", {}, table.title), make("span", { class: "row" }, save("CSV", asCsv), save("LaTeX", asLatex))),
    table.note ? make("p", { class: "note" }, table.note) : null, sortable(table, { caption: table.title, use: table === DATA.tables[0] ? DATA.use : null }).node);
}

/* A table that does not fit half a row takes a whole one; where one would stand alone, it does too. */
function widen() {
  for (const box of document.querySelectorAll("#report .figures")) {
    const narrow = [...box.querySelectorAll(":scope > .card:not(.wide)")].filter((card) => card.querySelector(".scroll"));
    const fitting = narrow.filter((card) => {
      const scroll = card.querySelector(".scroll");
      if (scroll.scrollWidth > scroll.clientWidth) card.classList.add("wide");
      return !card.classList.contains("wide");
    });
    if (fitting.length % 2) fitting.at(-1).classList.add("wide");
  }
}

function clientSection() {
  if (!NAMES.length) return [];
  list = clientList();
  return [list.node];
}

function configuration() {
  const runs = (DATA.runs || []).map((run) => {
    const summary = make("summary", {}, slots.has(run.method) ? named(run.method, run.name) : run.name,
      make("span", { class: "muted" }, [run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`, run.status].filter(Boolean).join(", ")));
    const box = make("details", { class: "run" }, summary);
    if (run.own) summary.append(make("span", { class: "own" }, run.own));
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...runDetails(run)); });
    return box;
  });
  if (!runs.length) return [];
  const common = runs.length > 1 && DATA.common
    ? [make("details", { class: "run" }, make("summary", {}, "The words that all runs share"), make("pre", { tabindex: 0 }, make("code", {}, DATA.common)))] : [];
  return [make("div", { class: "card" }, common, runs)];
}

function runDetails(run) {
  const versions = Object.entries(run.versions || {}).map(([name, version]) => `${name} ${version}`).join(", ");
  const facts = [["folder", run.folder], ["date", run.date], ["versions", versions]].filter(([, value]) => value);
  return [
    make("dl", { class: "pairs" }, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    make("p", { class: "note" }, "To run it again, from a copy of this folder's configuration:"),
    make("pre", {}, make("code", {}, "coterie run --config config.toml")),
    make("p", { class: "note" }, "config.toml"), make("pre", { tabindex: 0 }, make("code", {}, run.config || "")),
  ];
}

/* #client-7 shows that client; every other address shows the report, at its place. */
function follow(event) {
  const found = /^#client-(\d+)$/.exec(location.hash);
  const index = found ? Number(found[1]) : -1;
  const before = event ? new URL(event.oldURL).hash : "";
  if (index >= 0 && index < NAMES.length) {
    if (!report.hidden) left = { hash: before, y: window.scrollY };
    drop(client);
    report.hidden = true;
    client.hidden = false;
    client.replaceChildren(...clientPage(index));
    document.title = `${NAMES[index]} - ${DATA.title}`;
    window.scrollTo(0, 0);
    if (event) client.querySelector("h2").focus({ preventScroll: true });
    return;
  }
  if (report.hidden) {
    drop(client);
    client.replaceChildren();
    client.hidden = true;
    report.hidden = false;
    document.title = DATA.title;
    redraw(); // the window or the theme may have changed meanwhile
    const target = document.getElementById(location.hash.slice(1));
    if (left && (left.hash === location.hash || !target)) window.scrollTo(0, left.y);
    else if (target) target.scrollIntoView();
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  paint();
  redraw();
}

function paint() {
  const button = document.getElementById("theme");
  button.textContent = theme() === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${button.textContent.toLowerCase()} theme`);
  repaintNames();
}

/* The section being read is marked in the contents. */
function watchContents() {
  const links = new Map([...document.querySelectorAll("#contents a")].map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach((link, key) => (key === entry.target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("#report > section").forEach((section) => watcher.observe(section));
}

function start() {
  const made = DATA.made || {};
  const words = [made.coterie ? `coterie ${made.coterie}` : "", made.date || "", NAMES.length ? count(NAMES.length, "client") : "", count(METHODS.length, "method")];
  document.getElementById("setup").append((DATA.setup || []).join(" \u00b7 "));
  document.getElementById("made").append(words.filter(Boolean).join(" \u00b7 "), ...(made.command ? [make("code", {}, made.command)] : []));
  buildChooser(() => { rechoose(); if (list) list.build(); });
  build();
  widen();
  paint();
  watchContents();
  document.getElementById("theme").addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); redraw(); });
  window.addEventListener("hashchange", follow);
  follow(null);
  if (report.hidden === false && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  if (!plots.size) document.body.dataset.ready = "yes";
  window.coterie = { drawAll };
}

start();
