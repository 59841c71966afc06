"use strict";
// A form made from the options as they are declared; the server refuses a bad word with the terminal's own line.

const NAMES = ["method", "data", "split", "model"];
const typed = new Map(); // word -> value, kept while the names change

function option(value, text) {
  const made = element("option", text);
  made.value = value;
  return made;
}

function field(one) {
  const label = element("label", one.label);
  label.title = one.word;
  const made = label.appendChild(element(one.choices.length ? "select" : "input"));
  if (one.choices.length) made.append(option("", one.default ? `${one.default} (default)` : "default"), ...one.choices.filter((c) => c !== one.default).map((c) => option(c, c)));
  else made.placeholder = one.default || "as usual";
  made.name = one.word;
  made.value = typed.get(one.word) ?? "";
  made.addEventListener("input", () => {
    typed.set(one.word, made.value);
    command();
  });
  label.append(element("small", one.takes));
  return label;
}

function words() {
  const given = NAMES.map((name) => [name, find(name).value]);
  const fields = [...find("groups").querySelectorAll("[name]")].map((input) => [input.name, input.value]);
  return Object.fromEntries([...given, ...fields].filter(([, value]) => value.trim()));
}

function command() {
  const { method, ...rest } = words();
  const quote = (text) => (/^[\w.,:=\/@+-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  find("command").textContent = ["coterie run", method, ...Object.entries(rest).map(([word, value]) => `--${word} ${quote(value)}`)].join(" ");
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
    menu("split", said, true);
    menu("model", said, true);
    find("datasets").replaceChildren(...said.choices.data.map((name) => option(name, name)));
    const { when, does, needs, paper } = said.about;
    find("method-told").replaceChildren(...[when && `Use it when: ${when}.`, does, needs.length && `It needs ${needs.join(" and ")} rows.`, paper].filter(Boolean).map((text) => element("p", text)));
    find("groups").replaceChildren(...said.groups.filter((group) => group.words.length).map((group) => {
      const last = group.title === "More words";
      const box = element(last ? "details" : "fieldset");
      box.appendChild(element(last ? "summary" : "legend", group.title));
      box.appendChild(element("div", "", "fields")).append(...group.words.map(field));
      if (last) box.open = group.words.some((one) => typed.get(one.word));
      return box;
    }));
    refused("");
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
    const { id } = await send("/api/start", { words: words() });
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
for (const name of ["data", "split", "model"]) {
  find(name).addEventListener("change", () => {
    if (name === "data") for (const other of ["split", "model"]) find(other).value = "";
    fill();
  });
}
keepLooking(async () => {
  await fill();
  return 0;
});
