"use strict";
// What people say of runs and do with them: a dialog for name, tags and note; stop and resume.

const titled = (run) => run.label?.name || run.title || run.name;

function chips(run) {
  return (run.label?.tags || []).map((tag) => element("span", tag, "tag"));
}

function editLabel(run, saved) {
  const dialog = element("dialog");
  const form = dialog.appendChild(element("form"));
  form.method = "dialog";
  form.appendChild(element("h2", `About ${run.name}`)).id = "about-run";
  dialog.setAttribute("aria-labelledby", "about-run");
  const field = (kind, text, value, most) => {
    const label = form.appendChild(element("label", text));
    const made = label.appendChild(element(kind));
    made.value = value;
    made.maxLength = most;
    return made;
  };
  const name = field("input", "Name, instead of the folder's", run.label.name, 120);
  const tags = field("input", "Tags, separated by commas", run.label.tags.join(", "), 900);
  const note = field("textarea", "Note", run.label.note, 4000);
  const keep = form.appendChild(element("label", "", "row"));
  const archived = keep.appendChild(element("input"));
  archived.type = "checkbox";
  archived.checked = run.label.archived;
  keep.append(" Archived: the list leaves it out");
  const problem = form.appendChild(element("p", "", "trouble"));
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const bar = form.appendChild(element("div", "", "bar"));
  const ok = bar.appendChild(element("button", "Save"));
  bar.appendChild(button("Cancel", () => dialog.close()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    ok.disabled = true;
    try {
      const words = { id: run.id, name: name.value, tags: tags.value.split(","), note: note.value, archived: archived.checked };
      saved((await send("/api/label", words)).label);
      dialog.close();
    } catch (refused) {
      problem.textContent = refused.message;
      problem.hidden = false;
      ok.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  name.focus();
}

// Buttons of a page about one run or comparison: what may be done with it now, and doing it.
let lastJob = "";
function showActs({ may_write, job, run }) {
  const running = job === "running";
  find("stop").hidden = !(may_write && running);
  find("resume").hidden = !(may_write && !running && (run?.status === "stopped" || (run?.status === "running" && job)));
  find("edit").hidden = !(may_write && run);
  if (find("serve")) find("serve").hidden = !(may_write && run?.kind === "run" && run.status === "finished" && !running);
  if (job !== lastJob) for (const name of ["stop", "resume", "serve"].filter(find)) find(name).disabled = false;
  lastJob = job;
}

function acts(id, run, done) {
  for (const name of ["stop", "resume", "serve"].filter(find)) {
    find(name).addEventListener("click", async () => {
      find(name).disabled = true;
      try {
        await send(`/api/${name}`, { id });
        done(name);
      } catch (problem) {
        trouble(problem.message);
        find(name).disabled = false;
      }
    });
  }
  find("edit").addEventListener("click", () => editLabel(run(), (label) => {
    run().label = label;
    done("label");
  }));
}
