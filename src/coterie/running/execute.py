"""A run on disk: train, checkpoint, resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from coterie.core.checkpoint import (
    FoundCheckpoint,
    find_newest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from coterie.core.device import device_of, to_default_device, use_device
from coterie.core.errors import BadInput
from coterie.core.files import (
    catch_write_errors,
    check_new_folder,
    check_regular_file,
    digest,
    save_tensors,
)
from coterie.core.method import Tree
from coterie.data.federation import checksum_of
from coterie.engines.settings import ExecutionSettings, text_of
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.experiment.own_code import changed_plugins, check_code, plugins_of
from coterie.results.about import CHECKSUMS, OPTIONS, options_of
from coterie.results.data_files import ROWS as ROW_PARTS
from coterie.results.data_files import checksums_of, write_inputs
from coterie.results.data_files import find_damaged as find_damaged_file
from coterie.results.false_accepts import SCORES, save_scores
from coterie.results.folder import (
    CONFIG,
    METRICS,
    SPLIT,
    describe_networks,
    find_unused,
    read_about,
    read_experiment,
    read_status,
    write_about,
    write_config,
    write_split,
)
from coterie.results.metric_table import MARK, ROWS, Table
from coterie.results.models import find_damaged as find_damaged_model
from coterie.results.models import save_models
from coterie.results.run import Run, load_run
from coterie.results.trackers import check_trackers
from coterie.running.assembly import Assembly, assemble, load_federation, open_loop
from coterie.running.divergence import RunDiverged, measure_majority, measure_trivial
from coterie.running.identity import (
    Identity,
    OptionChange,
    changes_of,
    check_branch,
    check_unchanged,
    identity_of,
    planned_identity_of,
)
from coterie.running.loop import Loop, Position, RoundReport, message_report_of, print_messages
from coterie.running.newcomer_metrics import measure_newcomers
from coterie.running.progress import FILE as PROGRESS
from coterie.running.progress import Progress, lock_folder
from coterie.running.tracking import Tracking

LARGE = 2**24  # bytes of a checkpoint that is not written whole every time
MAX_LOGGED = 2**26  # bytes of server logged quantities a run may write
LOGGED_FOLDER = "notes"  # their folder
PLUGINS = "plugins"  # of run.json: the user's own code that a run is made with
TABLES = (METRICS, SPLIT, ROW_PARTS, SCORES)  # files whose checksums a finished run has
BRANCHED = "branched"  # of run.json: the run, the round and the options where a branch begins


Watch = Callable[[RoundReport], None]


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch = print_messages,
    data: Given = None,
    models: Networks = None,
) -> Run:
    """Run an experiment in a new folder; bad input is refused before the folder exists."""
    check_unused(folder)
    device_of(experiment.engine.get("device", "cpu"))  # one that is not here is reported at once
    check_trackers(experiment.keep.track)
    with threads_of(experiment):
        assembly = assemble(experiment, load_federation(experiment, data), models)
        _check_refit(assembly)
        return execute_assembly(assembly, folder, watch)


def _check_refit(assembly: Assembly) -> None:
    """Refuse to train on validation rows where the only method of a run chooses on them; in a
    comparison the other methods do.
    """
    method, stages = assembly.experiment.method, assembly.programs[0]
    if assembly.experiment.dataset.get("refit") and any(
        "validation" in s.method.needs for s in stages
    ):
        raise BadInput(
            f"refit = true has no effect on {method}, which chooses on validation rows: leave it "
            "out"
        )


def execute_assembly(assembly: Assembly, folder: Path, watch: Watch = print_messages) -> Run:
    """Play a run that is put together, in a new folder."""
    check_unused(folder)
    with threads_of(assembly.experiment):
        loop = open_loop(assembly)
        loop.engine.begin()
        with catch_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder), use_device(loop.engine.device):
            return run_rounds(loop, assembly.experiment, folder, watch)


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds anything, or that cannot be made."""
    check_new_folder(folder)
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
    folder: Path,
    watch: Watch = print_messages,
    data: Given = None,
    models: Networks = None,
    allow_change: bool = False,
) -> Run:
    """Go on where the last checkpoint stands, in the very same way: path, width, compilation and
    threads as written down.

    Options that shape the result are those that the run began with; allow_change: other ones make a
    branch in a new folder, from the same checkpoint.
    """
    experiment, state = read_experiment(folder), read_status(folder)
    if state == "finished" and not allow_change:
        began = options_of(read_about(folder))
        if began:
            check_unchanged(changes_of(experiment, began), folder, CONFIG)
        damage = find_damage(folder)
        if not damage:
            return load_run(folder)
        _check_restorable(folder, damage)
        watch(message_report_of(f"{damage}: it is restored from a checkpoint"))
        restored = _go_on(folder, experiment, state, watch, data, models, allow_change)
        left = find_damage(folder)
        if left:
            raise BadInput(f"{left}, and no checkpoint holds it: restore it from a copy")
        return restored
    return _go_on(folder, experiment, state, watch, data, models, allow_change)


def find_damage(folder: Path) -> str:
    """What of a finished run is missing or not as it was written; "" where all is whole."""
    try:
        Table.read(check_regular_file(folder / METRICS))
    except FileNotFoundError:
        return f"{folder / METRICS} is missing"
    except BadInput as problem:
        return str(problem)
    found = find_damaged_file(folder, read_about(folder).get(CHECKSUMS, {}))
    keeps = read_experiment(folder).keep.models
    return found or (find_damaged_model(folder) if keeps else "")


def _check_restorable(folder: Path, damage: str) -> None:
    if not list_checkpoints(folder):
        raise BadInput(
            f"{damage}, and there is no checkpoint to restore it from: run again, or restore it "
            "from a copy"
        )


def _go_on(
    folder: Path,
    experiment: Experiment,
    state: str,
    watch: Watch,
    data: Given,
    models: Networks,
    allow_change: bool,
) -> Run:
    """The run from its newest checkpoint to its end."""
    recorded = _read_known(folder).get(PLUGINS, [])
    check_code(experiment, recorded, folder)
    check_trackers(experiment.keep.track)
    with lock_folder(folder), threads_of(experiment):
        assembly = assemble(experiment, load_federation(experiment, data), models)
        loop = open_loop(assembly)
        if state:  # else it was stopped before a word of it was written
            check_same_data(loop, folder)
        found = find_newest_checkpoint(folder)
        changed = changes_of(assembly.experiment, _read_initial_options(folder, found))
        changed |= check_plugins(recorded, experiment, folder, allow_change)
        if allow_change:
            check_branch(changed, CONFIG)
        else:
            check_unchanged(changed, folder, CONFIG)
        if found:
            _report_line(found.said, watch, loop)
            restore_tree(loop, found.tree, found.folder)
            check_position(loop, found.folder)
        loop.engine.begin()
        with use_device(loop.engine.device):
            if allow_change:
                return _run_branch(loop, assembly.experiment, folder, watch, changed)
            more = {k: v for k, v in _read_known(folder).items() if k == BRANCHED}
            return run_rounds(loop, assembly.experiment, folder, watch, more)


def extend(
    folder: Path, experiment: Experiment, into: Path, watch: Watch = print_messages
) -> Run | None:
    """A finished run with more rounds, in a folder of its own; the one it comes from stays as it
    is. None where it kept no checkpoint of its end, or where its rounds shape it: it has several
    stages, or a rate that falls to the end.
    """
    found = find_newest_checkpoint(folder) if read_status(folder) == "finished" else None
    if not found or experiment.train.lr_schedule.startswith("cosine"):
        return None
    before = read_experiment(folder)
    old, new = (planned_identity_of(one) for one in (before, experiment))
    if any(
        old[option] != new[option] for option in (old.keys() & new.keys()) - {"schedule.rounds"}
    ):
        return None
    longer = replace(before, schedule=experiment.schedule)
    with threads_of(longer):
        assembly = assemble(longer, load_federation(longer))
        loop = open_loop(assembly)
        check_same_data(loop, folder)
        if len(loop.lengths) > 1:
            return None
        changed = changes_of(assembly.experiment, _read_initial_options(folder, found))
        restore_tree(loop, found.tree, found.folder)
        check_position(loop, found.folder)
        loop.engine.begin()
        with use_device(loop.engine.device):
            return _run_branch(loop, assembly.experiment, folder, watch, changed, into)


def check_plugins(
    recorded: Sequence[Mapping[str, str]],
    experiment: Experiment,
    folder: Path,
    allow_change: bool = False,
) -> dict[str, OptionChange]:
    """Refuse to go on with other code than a run began with; in a branch it is a change."""
    found = changed_plugins(recorded, experiment)
    if found and not allow_change:
        name, (before, after) = next(iter(found.items()))
        raise BadInput(
            f"plugin '{name}' has changed since {folder} began (checksum {before[:8]} then, "
            f"{after[:8]} now): restore it or start anew; `coterie resume {folder} --allow-change` "
            "branches off a run into a new folder"
        )
    return {f"plugin.{name}": OptionChange(*pair, default=False) for name, pair in found.items()}


def _read_known(folder: Path) -> dict[str, Any]:
    return read_about(folder) if read_status(folder) else {}


def _read_initial_options(folder: Path, found: FoundCheckpoint | None) -> dict[str, Any]:
    """The options that a run began with; where nothing was written yet, those that stand there."""
    return initial_options_of(folder, found.tree if found else None)


def initial_options_of(folder: Path, tree: Tree | None) -> dict[str, Any]:
    """The options that a run began with: those of its checkpoint, else those of its folder."""
    began = options_of(tree) if tree else {}
    return began or options_of(_read_known(folder)) or identity_of(read_experiment(folder))


def _report_line(line: str, watch: Watch, loop: Loop) -> None:
    """Tell whoever watches something between two rounds."""
    if line:
        watch(message_report_of(line, loop.done, sum(loop.lengths)))


def check_position(loop: Loop, folder: Path) -> None:
    """Refuse a checkpoint that lies past the rounds that the run has now."""
    stage, number = loop.position.stage, loop.position.round
    if number > loop.lengths[stage]:
        raise BadInput(
            f"{folder} stands after round {loop.done}, but rounds = {loop.schedule.rounds}: "
            f"give at least {number}"
        )


def _run_branch(
    loop: Loop,
    experiment: Experiment,
    folder: Path,
    watch: Watch,
    changed: Mapping[str, OptionChange],
    into: Path | None = None,
) -> Run:
    """The run with other options from here on, in a folder of its own; the one it comes from
    stays as it is.
    """
    new = into or find_unused(folder.with_name(f"{folder.name}-branch"))
    origin = {
        "from": str(folder.resolve()),
        "round": loop.done,
        "changed": {option: [one.before, one.after] for option, one in changed.items()},
    }
    with catch_write_errors(new):
        new.mkdir(parents=True)
        for name in (PROGRESS, LOGGED_FOLDER):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, new / name)
            elif (folder / name).exists():
                shutil.copyfile(folder / name, new / name)
        for path in (new / LOGGED_FOLDER).glob("round-*.safetensors"):
            if int(path.stem.removeprefix("round-")) > loop.done:
                path.unlink()
    with lock_folder(new):
        if loop.done:
            write_checkpoint(loop, new, _identity_of(experiment, loop))
        _report_line(f"{new} branches off {folder} after round {loop.done}", watch, loop)
        return run_rounds(loop, experiment, new, watch, {BRANCHED: origin})


def check_same_data(loop: Loop, folder: Path) -> None:
    known = read_about(folder)
    if known["data"] != checksum_of(loop.federation):
        raise BadInput(
            f"the data have changed since {folder} was started (another checksum): restore them, "
            "or start a new run"
        )
    if known["models"] != describe_networks(loop.engine.models):
        raise BadInput(
            f"{folder} was started with {known['models']}, not "
            f"{describe_networks(loop.engine.models)}: "
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


def run_rounds(
    loop: Loop,
    experiment: Experiment,
    folder: Path,
    watch: Watch,
    more: Mapping[str, Any] | None = None,  # for run.json
) -> Run:
    """Train to the end, writing down what is needed to go on or to run again."""
    tracking = Tracking(experiment, folder, lambda line: _report_line(line, watch, loop))
    status = "stopped"
    try:
        done = _play(loop, experiment, folder, watch, more, tracking)
        status = "finished"
    except RunDiverged:
        status = "diverged"
        raise
    finally:
        tracking.finish(loop, status)
    return done


def _play(
    loop: Loop,
    experiment: Experiment,
    folder: Path,
    watch: Watch,
    more: Mapping[str, Any] | None,
    tracking: Tracking,
) -> Run:
    facts = {
        **(more or {}),
        **({PLUGINS: used} if (used := plugins_of(experiment)) else {}),
        "guess": measure_majority(loop.federation),
        "trivial": measure_trivial(loop.federation),
        **loop.gate.facts(),
        CHECKSUMS: checksums_of(loop.federation),
        "device": str(loop.engine.device),
    }
    write_config(folder, experiment)
    tracking.begin(loop, _write_about(folder, loop, "running", experiment, facts))
    write_split(folder, loop.federation)
    write_inputs(folder, loop.federation)
    loop.table.keep(folder / ROWS)
    progress = Progress(folder, loop.done)
    every, keeper = experiment.keep.checkpoint, CheckpointWriter(folder)

    def after(loop: Loop, report: RoundReport) -> None:
        with catch_write_errors(folder):
            progress.add(report)
            if not experiment.engine.get("chosen") and loop.done == 1:
                write_config(folder, _with_choice(experiment, loop))
            _write_logged(folder, loop, report.rounds)
            if every and loop.done % every == 0 and loop.done < report.rounds:
                keeper.save(loop, _identity_of(experiment, loop))
        tracking.note(loop)
        watch(report)

    try:
        loop.go(after)
    except RunDiverged as stop:
        facts["diverged"] = stop.failure.facts()
        _write_about(folder, loop, "diverged", experiment, facts)
        raise RunDiverged(stop.failure, _suggest_resume(folder)) from None
    experiment = _with_choice(experiment, loop)
    with catch_write_errors(folder):
        if every:  # all that follows is computed again where it is cut short
            write_checkpoint(loop, folder, identity_of(experiment))
    came = measure_newcomers(loop, lambda line: _report_line(line, watch, loop))
    if came:
        facts["newcomers"] = came
    with catch_write_errors(folder):
        if experiment.keep.models:
            save_models(loop.engine, loop.federation, *loop.ask(), folder)
        if loop.federation.classes == 2 and "test" in loop.schedule.parts:
            save_scores(loop.engine, *loop.ask(), folder)
        loop.engine.finish(*loop.ask())
        write_config(folder, experiment)
        loop.table.write(folder / METRICS)
        table = loop.table.whole()
        facts[CHECKSUMS] = checksums_of(loop.federation) | {
            name: digest(folder / name) for name in TABLES if (folder / name).exists()
        }
        about = _write_about(folder, loop, "finished", experiment, facts)
        if not every:  # no checkpoint speaks of them
            (folder / ROWS).unlink(missing_ok=True)
    return Run(folder, experiment, table, about)


def _suggest_resume(folder: Path) -> str:
    """How a run that diverged may go on from its last good checkpoint."""
    found = list_checkpoints(folder)
    kept = int(found[-1].name.removeprefix("checkpoint-")) if found else 0
    where = f"goes on after round {kept}" if kept else "begins anew"
    return (
        f"`coterie resume {folder} --allow-change` {where}, in a new folder, once its {CONFIG} is "
        "changed"
    )


def _write_about(
    folder: Path, loop: Loop, status: str, experiment: Experiment, facts: Mapping[str, Any]
) -> dict[str, Any]:
    models, architecture = loop.engine.models, loop.engine.architecture
    more = {OPTIONS: identity_of(experiment), **facts}
    return write_about(folder, loop.federation, models, architecture, loop.describes, status, more)


def _identity_of(experiment: Experiment, loop: Loop) -> Identity:
    return identity_of(_with_choice(experiment, loop))


def _with_choice(experiment: Experiment, loop: Loop) -> Experiment:
    """The experiment with what was chosen for it, so that it runs again in the very same way."""
    chosen = {"threads": torch.get_num_threads(), "chosen": text_of(loop.engine.settings)}
    return replace(experiment, engine=experiment.engine | chosen)


def _write_logged(folder: Path, loop: Loop, rounds: int) -> None:
    """What the server logs: every round where all of it fit in NOTES bytes, else as often as
    they do.
    """
    notes: dict[str, Any] = {k: v.contiguous().clone() for k, v in loop.server_notes().items()}
    size = sum(v.nbytes for v in notes.values())
    if notes and loop.done % max(1, -(-size * rounds // MAX_LOGGED)) == 0:
        (folder / LOGGED_FOLDER).mkdir(exist_ok=True)
        save_tensors(notes, folder / LOGGED_FOLDER / f"round-{loop.done:05d}.safetensors")


def write_checkpoint(
    loop: Loop,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    changes: Tree | None = None,  # of clients' states since `base`
    base: Path | None = None,
) -> Path:
    """All that a run is at this moment; `coterie resume` goes on from it with the same options."""
    stage, round, server = loop.position
    tree = {
        "stage": stage,
        "round": round,
        "server": server,
        "states": loop.engine.dump() if base is None else changes,
        "settings": [s.text() for s in loop.engine.settings],
        OPTIONS: dict(settings or {}),
    }
    return save_checkpoint(folder, loop.done, tree, {MARK: loop.table.write_mark}, base)


class CheckpointWriter:
    """The checkpoints of a run on its way: where the clients' states are large, one is whole, and
    the next hold what changed since, until they have cost as much as a whole one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.base: Path | None = None
        self.room = 0  # bytes that changes may still cost

    def save(self, loop: Loop, settings: Mapping[str, Any]) -> None:
        """One more checkpoint."""
        changes = loop.engine.dump_changes() if self.base else None
        if changes is not None and _count_bytes(changes) <= self.room:
            self.room -= _count_bytes(changes)
            write_checkpoint(loop, self.folder, settings, changes, self.base)
            return
        final = write_checkpoint(loop, self.folder, settings)
        size = sum(path.stat().st_size for path in final.iterdir())
        if size >= LARGE:
            loop.engine.mark_written()
            self.base, self.room = final, size
        else:
            self.base = None


def _count_bytes(tree: Tree) -> int:
    return sum(t.nbytes for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor))


def restore_checkpoint(loop: Loop, folder: Path) -> None:
    """Put a run where a checkpoint says."""
    restore_tree(loop, load_checkpoint(folder), folder)


def restore_tree(loop: Loop, tree: Tree, folder: Path) -> None:
    """Put a run where the tree of a checkpoint says; `folder` has its table."""
    with use_device(loop.engine.device):
        loop.position = Position(tree["stage"], tree["round"], to_default_device(tree["server"]))
    try:
        loop.engine.use([ExecutionSettings.read(str(text)) for text in tree["settings"]])
    except ValueError:
        raise BadInput(
            f"the checkpoint {folder} is of another version of coterie: delete it to begin anew"
        ) from None
    with use_device(loop.engine.device):
        loop.engine.restore(tree["states"], tree["stage"])
    loop.table = Table.read(folder / MARK)
