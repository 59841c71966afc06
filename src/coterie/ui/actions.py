"""What may be changed from a page: labels of runs, and runs that are started, stopped and resumed.

No result is touched: labels lie beside the runs, and training is a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput, format_value
from coterie.core.files import catch_write_errors
from coterie.experiment.recipes import data_name_of
from coterie.results.folder import name_run_folder
from coterie.ui.form import parse_comparison, parse_form
from coterie.ui.jobs import Jobs
from coterie.ui.labels import Label, Labels
from coterie.ui.runs import Entry, Library, id_of
from coterie.ui.uploads import keep_upload


class Actions:
    """The folder, what is said of its runs, and what was started in it."""

    def __init__(self, library: Library, labels: Labels, jobs: Jobs):
        self.library, self.labels, self.jobs = library, labels, jobs

    def changes(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """{last word of the address: what it does}."""
        return {
            "label": self.label,
            "start": self.start,
            "serve": self.serve,
            "stop": self.stop,
            "resume": self.resume,
        }

    def read_labels(self) -> tuple[dict[str, Label], str]:
        """(labels, "") or ({}, why they cannot be read): the list is shown all the same."""
        try:
            return self.labels.read(), ""
        except BadInput as damage:
            return {}, str(damage)

    def label(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Name, tag, note or put away one run or comparison."""
        entry, _ = self._find_entry(sent), self._check_root()
        settings = {option: value for option, value in sent.items() if option != "id"}
        return {"label": self.labels.change(entry.id, settings)._asdict()}

    def start(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run, or a comparison of several methods, with the options of the form, in a
        folder of its own.
        """
        methods = sent.get("methods")
        if methods:
            experiment, settings = parse_comparison(sent.get("options"), methods)
            command, what = ["compare", *settings], "compare"
        else:
            experiment, settings = parse_form(sent.get("options"))
            command, what = ["run", *settings], experiment.method
        root = self._check_root()
        with catch_write_errors(root):
            root.mkdir(parents=True, exist_ok=True)

        def taken(folder: Path) -> bool:
            return folder.exists() or self.jobs.find(id_of(root, folder)) is not None

        folder = name_run_folder(root, f"{what}-{data_name_of(experiment)}", taken)
        name = id_of(root, folder)
        self.jobs.start(name, folder, [*command, "--out", str(folder)])
        return {"id": name}

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Keep a table that a page brings."""
        return {"name": keep_upload(self._check_root(), name, content).name}

    def serve(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Serve the models of a finished run on this machine, until it is stopped."""
        entry = self._find_entry(sent)
        if entry.kind != "run" or entry.status != "finished":
            raise BadInput(f"{entry.path.name}: only the models of a finished run are served")
        self.jobs.start(entry.id, entry.path, ["serve", str(entry.path), "--port", "0"])
        return {"id": entry.id}

    def stop(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Stop a run that was started here; it can be resumed."""
        name = _run_id(sent)
        self.jobs.stop(name)
        return {"id": name}

    def resume(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with a run or comparison that was stopped."""
        entry = self._find_entry(sent)
        job = self.jobs.find(entry.id)
        ended = job is not None and job.state != "running" and entry.status == "running"
        if entry.status != "stopped" and not ended:
            raise BadInput(f"{entry.path.name} is {entry.status}: only what was stopped goes on")
        self.jobs.start(entry.id, entry.path, ["resume", str(entry.path)])
        return {"id": entry.id}

    def _find_entry(self, sent: Mapping[str, Any]) -> Entry:
        return self.library.find([_run_id(sent)])[0]

    def _check_root(self) -> Path:
        """The folder of runs; refused where it is a run itself, as nothing is put into those."""
        if "." in self.library.entries():
            raise BadInput(
                f"{self.library.root.name} is a run itself, and nothing is put into it: open "
                "coterie ui on the folder around it"
            )
        return self.library.root


def _run_id(sent: Mapping[str, Any]) -> str:
    name = sent.get("id")
    if not isinstance(name, str):
        raise BadInput(f"id = {format_value(name)}: give the name of a run, as the list has it")
    return name
