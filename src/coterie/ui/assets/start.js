"use strict";
// A form made from the options as they are declared; the server refuses a bad option with the terminal's own line.

const NAMES = ["method", "dataset", "partition", "model"];
const typed = new Map(); // option -> value, kept while the names change

function option(value, text) {
  const made = element("option", text);
  made.value = value;
  return made;
}

function field(one) {
  const box = element("div");
  const label = box.appendChild(element("label", one.label));
  const made = label.appendChild(element(one.choices.length ? "select" : "input"));
  if (one.choices.length) made.append(option("", one.default ? `${one.default} (default)` : "default"), ...one.choices.filter((c) => c !== one.default).map((c) => option(c, c)));
  else made.placeholder = one.default || "as usual";
  made.name = one.option;
  made.value = typed.get(one.option) ?? "";
  made.addEventListener("input", () => {
    typed.set(one.option, made.value);
    command();
  });
  const told = box.appendChild(element("div"));
  told.id = `told-${one.option}`;
  made.setAttribute("aria-describedby", told.id);
  if (one.meaning) told.append(element("small", one.meaning));
  told.append(element("small", one.takes, "takes"));
  label.title = one.option;
  return box;
}

const compares = () => find("what").value === "compare";
const chosen = () => [...find("methods").querySelectorAll("input:checked")].map((box) => box.value);

function filledIn() {
  const given = NAMES.filter((name) => !compares() || name !== "method").map((name) => [name, find(name).value]);
  const fields = [...find("groups").querySelectorAll("[name]")].map((input) => [input.name, input.value]);
  const own = compares() ? fields.filter(([name]) => !name.startsWith("options.")) : fields;
  return Object.fromEntries([...given, ...tableWords(), ...own].filter(([, value]) => value.trim()));
}

// The methods as boxes: a few to begin with.
function methodBoxes(said) {
  const kept = find("methods").children.length ? chosen() : said.usual;
  find("methods").replaceChildren(...said.choices.method.map((name) => {
    const label = element("label", "", "row");
    const box = label.appendChild(element("input"));
    [box.type, box.value, box.checked] = ["checkbox", name, kept.includes(name)];
    box.addEventListener("change", command);
    label.append(` ${name}`);
    return label;
  }));
}

function switchKind() {
  find("method-box").hidden = find("method-told").hidden = compares();
  find("methods-box").hidden = !compares();
  for (const box of find("groups").querySelectorAll("[data-own]")) box.hidden = compares();
  command();
}

function command() {
  const { method, ...rest } = filledIn();
  const quote = (text) => (/^[\w.,:=\/@+-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  find("command").textContent = [compares() ? `coterie compare --methods ${chosen().join(",")}` : "coterie run", ...(method ? [method] : []), ...Object.entries(rest).map(([word, value]) => `--${word} ${quote(value)}`)].join(" ");
}

function menu(name, said, usual) {
  const kept = said.given[name] ?? "";
  const first = usual ? [option("", `${said.chosen[name] || "the usual one"} (usual)`)] : [];
  find(name).replaceChildren(...first, ...said.choices[name].map((one) => option(one, one)));
  find(name).value = usual ? kept : said.chosen[name];
}

async function fill() {
  try {
    const said = await ask("/api/form", NAMES.map((name) => [name, find(name).value]));
    menu("method", said, false);
    methodBoxes(said);
    menu("partition", said, true);
    menu("model", said, true);
    find("datasets").replaceChildren(...said.choices.dataset.map((name) => option(name, name)));
    const { when, does, needs, paper } = said.about;
    find("method-told").replaceChildren(...[when && `Use it when: ${when}.`, does, needs.length && `It needs ${needs.join(" and ")} rows.`, paper].filter(Boolean).map((text) => element("p", text)));
    find("groups").replaceChildren(...said.groups.filter((group) => group.options.length).map((group) => {
      const last = group.title === "More options";
      const box = element(last ? "details" : "fieldset");
      box.appendChild(element(last ? "summary" : "legend", group.title));
      box.appendChild(element("div", "", "fields")).append(...group.options.map(field));
      if (group.title.startsWith("Options of")) box.dataset.own = "";
      if (last) box.open = group.options.some((one) => typed.get(one.option));
      return box;
    }));
    refused("");
    switchKind();
  } catch (problem) {
    refused(problem.message);
  }
  command();
}

function refused(line) {
  find("refused").textContent = line;
  find("refused").hidden = !line;
}

find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  find("go").disabled = true;
  find("go").textContent = "Starting…";
  try {
    const { id } = await send("/api/start", { options: filledIn(), methods: compares() ? chosen() : null });
    location.assign(`/run?${new URLSearchParams({ id })}`);
  } catch (problem) {
    refused(problem.message);
    find("go").disabled = false;
    find("go").textContent = "Start";
  }
});
window.addEventListener("pageshow", () => {
  find("go").disabled = false;
  find("go").textContent = "Start";
});
find("method").addEventListener("change", fill);
find("what").addEventListener("change", switchKind);
tableChanged(fill);
for (const name of ["dataset", "partition", "model"]) {
  find(name).addEventListener("change", () => {
    if (name === "dataset") for (const other of ["partition", "model"]) find(other).value = "";
    fill();
  });
}
keepLooking(async () => {
  await fill();
  return 0;
});
