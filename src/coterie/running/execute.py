"""A run on disk: train, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from coterie.core.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from coterie.core.errors import BadInput
from coterie.data.federation import checksum
from coterie.engines.settings import Settings, text_of
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.results.false_accepts import save_scores
from coterie.results.folder import (
    METRICS,
    networks,
    read_about,
    read_experiment,
    status,
    write_about,
    write_config,
    write_split,
)
from coterie.results.models import save_models
from coterie.results.run import Run, load
from coterie.results.table import Table
from coterie.running.assemble import Assembly, assemble, gather, open_loop
from coterie.running.loop import Loop, Position, RoundReport
from coterie.running.progress import Progress, alone

NOTES = 2**26  # bytes of server notes a run may write


Watch = Callable[[RoundReport], None]


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch = lambda report: None,
    data: Given = None,
    models: Networks = None,
) -> Run:
    """Run an experiment in a new folder; bad input is refused before the folder exists."""
    check_unused(folder)
    with threads_of(experiment):
        return execute_assembly(
            assemble(experiment, gather(experiment, data), models), folder, watch
        )


def execute_assembly(assembly: Assembly, folder: Path, watch: Watch = lambda report: None) -> Run:
    """Play a run that is put together, in a new folder."""
    check_unused(folder)
    with threads_of(assembly.experiment):
        loop = open_loop(assembly)
        loop.engine.begin()
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            return play_rounds(loop, assembly.experiment, folder, watch)


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: give another --out")
    if folder.exists() and any(folder.iterdir()):
        way = (
            f", or `coterie resume {folder}` to go on with what is there"
            if any(folder.glob("*.toml"))
            else ""
        )
        raise BadInput(f"{folder} exists and is not empty: give another --out{way}")


def resume(
    folder: Path, watch: Watch = lambda report: None, data: Given = None, models: Networks = None
) -> Run:
    """Go on where the last checkpoint stands, in the very same way: path, width, compilation and
    threads as written down.
    """
    experiment = read_experiment(folder)
    if status(folder) == "finished":
        return load(folder)
    with alone(folder), threads_of(experiment):
        assembly = assemble(experiment, gather(experiment, data), models)
        loop = open_loop(assembly)
        if status(folder):  # else it was stopped before a word of it was written
            check_same(loop, folder)
        found = checkpoints(folder)
        if found:
            restore(loop, found[-1])
        loop.engine.begin()
        return play_rounds(loop, assembly.experiment, folder, watch)


def check_same(loop: Loop, folder: Path) -> None:
    known = read_about(folder)
    if known["data"] != checksum(loop.federation):
        raise BadInput(
            f"the data have changed since {folder} was started (another checksum): restore them, "
            "or start a new run"
        )
    if known["models"] != networks(loop.engine.models):
        raise BadInput(
            f"{folder} was started with {known['models']}, not {networks(loop.engine.models)}: "
            "give the same network, or start a new run"
        )


@contextmanager
def threads_of(experiment: Experiment) -> Iterator[None]:
    """The threads that an experiment asks for, and then as many as before."""
    before, wanted = torch.get_num_threads(), experiment.engine.get("threads", 0)
    torch.set_num_threads(wanted if 0 < wanted <= 1024 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def play_rounds(loop: Loop, experiment: Experiment, folder: Path, watch: Watch) -> Run:
    """Train to the end, writing down what is needed to go on or to run again."""
    write_config(folder, experiment)
    _write_about(folder, loop, "running")
    write_split(folder, loop.federation)
    progress = Progress(folder, loop.done)
    every = experiment.keep.checkpoint

    def after(loop: Loop, report: RoundReport) -> None:
        progress.add(report)
        if not experiment.engine.get("chosen") and loop.done == 1:
            write_config(folder, _with_choice(experiment, loop))
        _write_notes(folder, loop, report.rounds)
        if every and loop.done % every == 0 and loop.done < report.rounds:
            checkpoint(loop, folder)
        watch(report)

    loop.go(after)
    experiment = _with_choice(experiment, loop)
    if experiment.keep.models:
        save_models(loop.engine, loop.federation, *loop.ask(), folder)
    if loop.federation.classes == 2 and "test" in loop.schedule.parts:
        save_scores(loop.engine, *loop.ask(), folder)
    loop.engine.finish(*loop.ask())
    write_config(folder, experiment)
    loop.table.write(folder / METRICS)
    if every:
        checkpoint(loop, folder)
    return Run(folder, experiment, loop.table.whole(), _write_about(folder, loop, "finished"))


def _write_about(folder: Path, loop: Loop, status: str) -> dict[str, Any]:
    models, architecture = loop.engine.models, loop.engine.architecture
    return write_about(folder, loop.federation, models, architecture, loop.describes, status)


def _with_choice(experiment: Experiment, loop: Loop) -> Experiment:
    """The experiment with what was chosen for it, so that it runs again in the very same way."""
    chosen = {"threads": torch.get_num_threads(), "chosen": text_of(loop.engine.settings)}
    return replace(experiment, engine=experiment.engine | chosen)


def _write_notes(folder: Path, loop: Loop, rounds: int) -> None:
    """What the server notes down: every round where all notes fit in NOTES bytes, else as often as
    they do.
    """
    notes: dict[str, Any] = {k: v.contiguous().clone() for k, v in loop.server_notes().items()}
    size = sum(v.nbytes for v in notes.values())
    if notes and loop.done % max(1, -(-size * rounds // NOTES)) == 0:
        (folder / "notes").mkdir(exist_ok=True)
        save_file(notes, folder / "notes" / f"round-{loop.done:05d}.safetensors")


def checkpoint(loop: Loop, folder: Path) -> None:
    """All that a run is at this moment; `coterie resume` goes on from it."""
    stage, round, server = loop.position
    tree = {
        "stage": stage,
        "round": round,
        "server": server,
        "states": loop.engine.dump(),
        "settings": [s.text() for s in loop.engine.settings],
    }
    save_checkpoint(folder, loop.done, tree, {METRICS: loop.table.write})


def restore(loop: Loop, folder: Path) -> None:
    """Put a run where a checkpoint says."""
    tree = load_checkpoint(folder)
    loop.position = Position(tree["stage"], tree["round"], tree["server"])
    try:
        loop.engine.use([Settings.read(str(text)) for text in tree["settings"]])
    except ValueError:
        raise BadInput(
            f"the checkpoint {folder} is of another version of coterie: delete it to begin anew"
        ) from None
    loop.engine.restore(tree["states"], tree["stage"])
    loop.table = Table.read(folder / METRICS)
