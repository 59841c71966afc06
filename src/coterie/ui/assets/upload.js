"use strict";
// A table of one's own: sent as it is, looked at as `coterie data` does, and named as the data set of the form.

const table = { name: "", path: "", client: "", label: "" };

// What the form sends of it beside its path.
function tableWords() {
  if (!table.path || find("dataset").value !== table.path) return [];
  return [["dataset.client", table.client], ["dataset.label", table.label]];
}

function grid(heads, rows) {
  const made = element("table");
  made.appendChild(element("thead")).appendChild(element("tr")).append(...heads.map((text) => element("th", text)));
  made.appendChild(element("tbody")).append(...rows.map((cells) => {
    const line = element("tr");
    line.append(...cells.map((text) => element("td", text)));
    return line;
  }));
  const box = element("div", "", "scroll");
  box.tabIndex = 0;
  box.appendChild(made);
  return box;
}

function columnMenu(id, columns, value) {
  find(id).replaceChildren(...["", ...columns].map((name) => Object.assign(element("option", name || "choose a column"), { value: name })));
  find(id).value = columns.includes(value) ? value : "";
  find(`${id}-box`).hidden = false;
}

function showTable(said) {
  columnMenu("client", said.columns, said.client ?? table.client);
  columnMenu("label", said.columns, said.label ?? table.label);
  [table.path, table.client, table.label] = [said.path, find("client").value, find("label").value];
  if (said.problem) return find("preview").replaceChildren(element("p", said.problem, "trouble"));
  const told = [`${said.rows.toLocaleString()} rows of ${said.all_clients.toLocaleString()} clients, ${said.inputs} inputs of the model`, ...said.remarks];
  const wrong = said.wrong.length ? said.wrong.map((line) => element("p", `Look at: ${line}`, "why")) : [element("p", "Nothing looks wrong.", "quiet")];
  const columns = grid(["column", "kind", "missing", "holds", "becomes"], said.described.map((c) => [c.name, c.kind, c.missing ? percent(c.missing) : "", c.holds, c.becomes]));
  const clients = grid(["client", "rows"], said.clients.map((c) => [c.name, String(c.rows)]));
  const more = element("details");
  more.append(element("summary", "Clients"), clients);
  return find("preview").replaceChildren(...told.map((line) => element("p", line)), ...wrong, columns, more);
}

// Looks at the table again, with the columns that are chosen; then the form follows.
async function lookAtTable(done) {
  try {
    showTable(await ask("/api/preview", { name: table.name, client: table.client, label: table.label }));
    find("dataset").value = table.path;
  } catch (problem) {
    find("preview").replaceChildren(element("p", problem.message, "trouble"));
  }
  await done();
}

function tableChanged(done) {
  find("upload").addEventListener("change", async () => {
    const [file] = find("upload").files;
    if (!file) return;
    find("preview").replaceChildren(element("p", "Reading the table…", "loading"));
    const headers = { "Content-Type": "application/octet-stream" };
    try {
      const said = await answered(await fetch(`/api/upload?${new URLSearchParams({ name: file.name })}`, { method: "POST", headers, body: file }));
      Object.assign(table, { name: said.name, client: "", label: "" });
    } catch (problem) {
      find("preview").replaceChildren(element("p", problem.message, "trouble"));
      return;
    }
    await lookAtTable(done);
  });
  for (const id of ["client", "label"]) {
    find(id).addEventListener("change", () => {
      table[id] = find(id).value;
      lookAtTable(done);
    });
  }
}
