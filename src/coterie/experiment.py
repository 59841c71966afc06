"""From words to a run on disk: build, check, train, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from .build import Given, Networks, anchored, check_federation, check_words, federation_of, models_of, resolved
from .checkpoint import checkpoints, load_checkpoint, save_checkpoint
from .config import PYTHON, Experiment
from .data.federation import Federation, checksum
from .engines.local import LocalEngine, Settings
from .engines.ray import RayEngine
from .errors import BadInput
from .folder import (
    METRICS,
    Run,
    facts,
    load,
    load_model,
    networks,
    read_experiment,
    run_folder,
    save_models,
    save_scores,
    status,
    write_config,
    write_facts,
    write_split,
)
from .method import stages
from .methods import METHODS
from .metrics import Table
from .progress import Progress, alone
from .run import Loop, Position, Report, check

__all__ = [
    "Run",
    "checkpoint",
    "execute",
    "federation_of",
    "load",
    "load_model",
    "models_of",
    "read_experiment",
    "restore",
    "resume",
    "run_folder",
    "save_models",
    "start",
    "status",
]

NOTES = 2**26  # bytes of server notes a run may write
Watch = Callable[[Report], None]


def start(experiment: Experiment, data: Given = None, models: Networks = None) -> tuple[Loop, Experiment]:
    """Everything built and checked, nothing run; the experiment with every default filled in."""
    check_words(experiment)
    experiment = anchored(experiment)
    federation = federation_of(experiment, data)
    if isinstance(data, Federation) and experiment.data["name"].startswith(PYTHON):
        check_federation(data)
    if not any(len(rows) for part in experiment.schedule.parts for rows in getattr(federation, part)):
        raise BadInput(f"parts = {','.join(experiment.schedule.parts)}, but no client has such rows: nothing could be measured")
    nets = models_of(experiment, federation, models)
    programs = [stages(METHODS[experiment.method](model, experiment.train, **experiment.options)) for model in nets]
    check(programs[0], federation, nets, experiment.schedule, experiment.method)
    architecture = np.arange(federation.clients) % len(nets)
    given = (federation, nets, programs, architecture, experiment.seed, _settings(experiment, len(nets)))
    wanted = experiment.engine
    if wanted.name == "ray":
        torch.set_num_threads(wanted.threads or 1)  # the server's sums are the same when the run is resumed
        engine: LocalEngine = RayEngine(*given, address=wanted.ray_address, actors=wanted.actors, threads=wanted.threads)
    else:
        engine = LocalEngine(*given)
        engine.free_threads = not wanted.threads
    return Loop(engine, federation, experiment.schedule, experiment.seed), resolved(experiment, federation, nets)


def _settings(experiment: Experiment, architectures: int) -> list[Settings]:
    """How each architecture runs: as was chosen once, else as is given, what is open being chosen in the first round."""
    given = experiment.engine
    chosen = [text.split(":") for text in given.chosen.split()]
    if not chosen or len(chosen) != architectures:
        return [Settings(given.path, given.width, given.compile)] * architectures
    try:
        return [Settings(path, int(width), compiled) for path, width, compiled in chosen]
    except ValueError:
        raise BadInput(f"chosen = '{given.chosen}': leave it out, it is written by a run") from None


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch = lambda report: None,
    data: Given = None,
    models: Networks = None,
) -> Run:
    """Run an experiment in a new folder; bad input is refused before the folder exists."""
    check_unused(folder)
    with _threads(experiment.engine.threads):
        loop, experiment = start(experiment, data, models)
        loop.engine.begin()
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            return play_rounds(loop, experiment, folder, watch)


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: give another --out")
    if folder.exists() and any(folder.iterdir()):
        way = f", or `coterie resume {folder}` to go on with what is there" if any(folder.glob("*.toml")) else ""
        raise BadInput(f"{folder} exists and is not empty: give another --out{way}")


def resume(folder: Path, watch: Watch = lambda report: None, data: Given = None, models: Networks = None) -> Run:
    """Go on where the last checkpoint stands, in the very same way: path, width, compilation and threads as written down."""
    experiment = read_experiment(folder)
    if status(folder) == "finished":
        return load(folder)
    with alone(folder), _threads(experiment.engine.threads):
        loop, experiment = start(experiment, data, models)
        if status(folder):  # else it was stopped before a word of it was written
            check_same(loop, folder)
        found = checkpoints(folder)
        if found:
            restore(loop, found[-1])
        loop.engine.begin()
        return play_rounds(loop, experiment, folder, watch)


def check_same(loop: Loop, folder: Path) -> None:
    known = facts(folder)
    if known["data"] != checksum(loop.federation):
        raise BadInput(f"the data have changed since {folder} was started (another checksum): restore them, or start a new run")
    if known["models"] != networks(loop):
        raise BadInput(
            f"{folder} was started with {known['models']}, not {networks(loop)}: give the same network, or start a new run"
        )


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(wanted if 0 < wanted <= 1024 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def play_rounds(loop: Loop, experiment: Experiment, folder: Path, watch: Watch) -> Run:
    """Train to the end, writing down what is needed to go on or to run again."""
    write_config(folder, experiment)
    write_facts(folder, loop, "running")
    write_split(folder, loop.federation)
    progress = Progress(folder, loop.done)
    every = experiment.keep.checkpoint

    def after(loop: Loop, report: Report) -> None:
        progress.add(report)
        if not experiment.engine.chosen and loop.done == 1:
            write_config(folder, _with_choice(experiment, loop))
        _write_notes(folder, loop, report.rounds)
        if every and loop.done % every == 0 and loop.done < report.rounds:
            checkpoint(loop, folder)
        watch(report)

    loop.go(after)
    experiment = _with_choice(experiment, loop)
    if experiment.keep.models:
        save_models(loop, folder)
    save_scores(loop, folder)
    loop.engine.finish(loop.everyone, loop.payload(), loop.when())
    write_config(folder, experiment)
    loop.table.write(folder / METRICS)
    if every:
        checkpoint(loop, folder)
    return Run(folder, experiment, loop.table.whole(), write_facts(folder, loop, "finished"))


def _with_choice(experiment: Experiment, loop: Loop) -> Experiment:
    chosen = " ".join(f"{s.path}:{s.width}:{s.compile}" for s in loop.engine.settings)
    threads = loop.engine.threads if isinstance(loop.engine, RayEngine) else torch.get_num_threads()
    return replace(experiment, engine=experiment.engine._replace(chosen=chosen, threads=threads))


def _write_notes(folder: Path, loop: Loop, rounds: int) -> None:
    """What the server notes down: every round where all notes fit in NOTES bytes, else as often as they do."""
    notes: dict[str, Any] = {k: torch.as_tensor(v).contiguous().clone() for k, v in loop.server_notes().items()}
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
        "settings": [tuple(s) for s in loop.engine.settings],
    }
    save_checkpoint(folder, loop.done, tree, {METRICS: loop.table.write})


def restore(loop: Loop, folder: Path) -> None:
    """Put a run where a checkpoint says."""
    tree = load_checkpoint(folder)
    loop.position = Position(tree["stage"], tree["round"], tree["server"])
    loop.engine.settings = [Settings(*s) for s in tree["settings"]]
    loop.engine.restore(tree["states"], tree["stage"])
    loop.table = Table.read(folder / METRICS)
