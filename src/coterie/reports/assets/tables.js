/* Tables that sort by a click or a key on a column's name, mark the best value, and come in pages where they are long. */

function sortable(table, options = {}) {
  const { page = Infinity, caption = null, use = null } = options;
  const columns = table.columns;
  const best = columns.map((column, at) => bestOf(table.rows.map((row) => row[at]), column.better));
  const state = { rows: table.rows, column: -1, down: false, page: 0 };
  const body = make("tbody");
  const heads = columns.map((column, at) => head(column, at));
  const pager = make("p", { class: "row pager", hidden: true });
  const title = caption ? make("caption", { class: "unseen" }, caption) : null;
  const grid = make("table", {}, title, make("thead", {}, make("tr", {}, heads)), body);
  const box = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ? `Table: ${caption}` : "Table" }, grid);

  function head(column, at) {
    const unit = column.unit ? make("span", { class: "unit" }, column.unit) : null;
    const button = make("button", { type: "button", onclick: () => sort(at) }, make("span", { class: "label" }, column.name), " ", unit);
    return make("th", { scope: "col", class: numeric(at) ? "number" : null, "aria-sort": "none" }, button);
  }
  function numeric(at) {
    return table.rows.some((row) => typeof bare(row[at]) === "number");
  }
  function sort(at) {
    const downFirst = numeric(at) && columns[at].better !== "low";
    state.down = state.column === at ? !state.down : downFirst;
    state.column = at;
    state.page = 0;
    fill();
  }
  function sorted() {
    if (state.column < 0) return state.rows;
    const sign = state.down ? -1 : 1;
    return [...state.rows].sort((a, b) => compare(bare(a[state.column]), bare(b[state.column]), sign));
  }
  function fill() {
    heads.forEach((node, at) => {
      node.setAttribute("aria-sort", at !== state.column ? "none" : state.down ? "descending" : "ascending");
    });
    const rows = sorted();
    const pages = Math.max(1, Math.ceil(rows.length / page));
    state.page = Math.min(state.page, pages - 1);
    const from = page === Infinity ? 0 : state.page * page;
    body.replaceChildren(...rows.slice(from, from + page).map(line));
    if (!rows.length) body.append(make("tr", {}, make("td", { colspan: columns.length, class: "muted" }, "Nothing found")));
    pager.hidden = pages < 2;
    const turn = (text, by) =>
      make("button", {
        type: "button", class: "button small", disabled: state.page + by < 0 || state.page + by >= pages,
        onclick: () => { state.page += by; fill(); },
      }, text);
    const last = Math.min(from + page, rows.length);
    pager.replaceChildren(turn("Previous", -1), make("span", {}, `${from + 1} to ${last} of ${rows.length.toLocaleString("en-US")}`), turn("Next", 1));
  }
  function line(row) {
    const chosen = use !== null && row[0] === use;
    return make("tr", { class: chosen ? "use" : null }, row.map((cell, at) => {
      const value = bare(cell);
      const top = typeof value === "number" && best[at] !== null && value === best[at];
      const kinds = [typeof value === "number" || numeric(at) ? "number" : "", top ? "best" : ""].join(" ").trim();
      const mark = top ? make("span", { class: "unseen" }, " (best)") : null;
      return make(at === 0 ? "th" : "td", { class: kinds || null, scope: at === 0 ? "row" : null }, content(cell, columns[at]), mark,
        chosen && at === 0 ? make("span", { class: "tag" }, "use") : null);
    }));
  }
  fill();
  const show = (rows) => { state.rows = rows; state.page = 0; fill(); };
  return { node: make("div", { class: "table" }, box, pager), show };
}

/* A table as a file: all digits in CSV, what is seen in LaTeX. */
function titles(table) {
  return table.columns.map((column) => (column.unit ? `${column.name} (${column.unit})` : column.name));
}

function asCsv(table) {
  const cell = (value) => (value === null || value === undefined ? "" : /[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return [titles(table), ...table.rows.map((row) => row.map(bare))].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function asLatex(table) {
  const text = (value) => String(value).replace(/[\\&%_#${}~^]/g, (sign) => ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" })[sign] || `\\${sign}`)
    .replaceAll("\u2212", "$-$").replaceAll("\u00b2", "$^2$").replaceAll("\u2013", "--");
  const lines = [titles(table), ...table.rows.map((row) => row.map((cell, at) => formatted(bare(cell), table.columns[at].format)))].map((row) => `${row.map(text).join(" & ")} \\\\`);
  const sides = table.columns.map((_, at) => (table.rows.some((row) => typeof bare(row[at]) === "number") ? "r" : "l")).join("");
  return [`% ${table.title}`, `\\begin{tabular}{${sides}}`, "\\hline", `${lines[0]} \\hline`, ...lines.slice(1), "\\hline", "\\end{tabular}", ""].join("\n");
}

function keep(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/* A cell is a number, a text, nothing, or {value, href, text} for a link. */
function bare(cell) {
  return cell !== null && typeof cell === "object" ? cell.value : cell;
}

function content(cell, column) {
  if (cell !== null && typeof cell === "object") return make("a", { href: cell.href }, formatted(cell.text ?? cell.value, column.format));
  if (typeof cell === "string" && slots.has(cell)) return named(cell);
  return formatted(cell, column.format);
}

/* The best of a column, unless all are equal and none stands out. */
function bestOf(cells, better) {
  const numbers = cells.map(bare).filter((value) => typeof value === "number");
  if (!better || numbers.length < 2 || numbers.every((value) => value === numbers[0])) return null;
  return numbers.reduce((a, b) => (better === "low" ? Math.min(a, b) : Math.max(a, b)));
}

/* Numbers by size, texts as people count ("client 2" before "client 10"), nothing always last. */
function compare(a, b, sign) {
  const empty = (value) => value === null || value === undefined || value === "";
  if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}
