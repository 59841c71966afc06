"""The ServerApp of a deployment: greets the sites, plays the run through the same code as any
experiment, ends at every site.

The run's configuration names the server's folder; everything else is read from it. What the server
says goes to its own output and, with the time, to deployment.log in that folder.
"""

from __future__ import annotations

import json
import math
import secrets
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.analysis.privacy import epsilon_of
from coterie.analysis.scores import named
from coterie.core.checkpoint import checkpoints, load_checkpoint
from coterie.core.errors import BadInput, Diverged
from coterie.core.files import write, writing
from coterie.core.guard import Guard
from coterie.data.federation import PARTS, Federation, Public
from coterie.deploy import wire
from coterie.deploy.files import (
    EXPERIMENT,
    RUN,
    SERVER,
    Privacy,
    Server,
    Shape,
    inside,
    read_server,
)
from coterie.deploy.flower_engine import FlowerEngine
from coterie.deploy.lines import Log, plain
from coterie.deploy.replay import JOURNAL
from coterie.deploy.roll import GREETING, Roll
from coterie.deploy.rows import hollow, read_public
from coterie.deploy.scales import FILE, Scales, ask_scales, read_scales, scaled
from coterie.deploy.wire import Head
from coterie.engines.base import Setup
from coterie.experiment.config import PYTHON, Keep, read_experiment_file
from coterie.results.folder import read_about, status
from coterie.results.promises import privacy_line
from coterie.results.run import Run, load
from coterie.running.assemble import Assembly, assemble, open_loop, with_data
from coterie.running.budget import heard_exchanges
from coterie.running.execute import check_same, play_rounds, restore, words_of
from coterie.running.loop import Loop, RoundReport
from coterie.running.progress import alone
from coterie.running.shape import Change, changes, changes_of, check_unchanged

LOG = "deployment.log"
KEPT = "server"  # of run.json: the words of server.toml that the run began with
LONGEST = 4_000  # characters of a line
LABEL = "label"  # the column of the public file that is not a feature
REMIND = 60.0  # seconds between two lines that say who is missing
LOOK = 1.0  # seconds between two looks for sites
NO_EFFECT = {  # sections of an experiment that say what a simulation does
    "engine": "every site runs its own client",
    "data": "rows are the sites' own, [data] of server.toml says what they look like",
    "split": "nothing is dealt",
    "keep": "the server keeps a checkpoint of every round, a site its own model",
}
Say = Callable[[str], None]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from the start or from its checkpoint."""
    folder = Path(str(context.run_config["folder"]))
    say = teller(folder)
    try:
        play(grid, folder, say)
    except (BadInput, Diverged) as problem:
        say(f"stopped: {problem}")
        raise


def teller(folder: Path) -> Say:
    """Says a line where it is seen, and keeps it."""

    log = Log(folder / LOG)

    def say(text: str) -> None:
        line = plain(text, LONGEST)
        print(line, flush=True)
        log(line)

    return say


class ServerPlan(NamedTuple):
    """What a server's folder describes, before anything is known of the sites' rows."""

    server: Server
    draft: Assembly  # as if every site had one row of each part
    public: Public | None
    words: dict[str, Any]  # of the experiment, for the sites

    def federation(self, rows: dict[str, list[int]]) -> Federation:
        return hollow(self.server.names[: len(rows["train"])], rows, self.server.data, self.public)


def read_server_plan(folder: Path) -> ServerPlan:
    """A server's folder, read and checked."""
    server = read_server(folder)
    _check_sections(folder / EXPERIMENT)
    data = {"name": f"{PYTHON}federation"}
    experiment = replace(
        read_experiment_file(folder / EXPERIMENT), data=data, split={}, keep=Keep(1, False)
    )
    public = read_public(inside(folder, server.data.public), LABEL) if server.data.public else None
    if public and tuple(public.x.shape[1:]) != server.data.input_shape:
        raise BadInput(
            f"{server.data.public} has rows of shape {list(public.x.shape[1:])}, not "
            f"{list(server.data.input_shape)}"
        )
    ones = {part: [1] * len(server.names) for part in PARTS}
    _check_guard(experiment.guard, folder / EXPERIMENT)
    draft = assemble(experiment, hollow(server.names, ones, server.data, public))
    full = draft.experiment.words()
    words = {name: full[name] for name in ("method", "seed", "model", "train", "options")} | {
        "metric": draft.experiment.schedule.metric,
        "architecture": draft.architecture.tolist(),
        "data": {**server.data._asdict(), "public": ""},
        "public": public.checksum if public else "",
        "privacy": list(server.privacy),
    }
    return ServerPlan(server=server, draft=draft, public=public, words=words)


def _check_guard(guard: Guard, path: Path) -> None:
    """Refuse a guard that is for simulations; robust averages are for real sites too."""
    if guard.attack != "none":
        raise BadInput(f"{path}: attack = {guard.attack} is for simulations: remove it")
    if guard.dp != "none":
        raise BadInput(
            f"{path}: dp = {guard.dp} draws noise from the run's seed, which every site knows: "
            "remove it, and give clip and noise in [privacy] of server.toml"
        )


def _check_sections(path: Path) -> None:
    """Refuse words that a run of real sites has no use for."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # told better by whoever reads the experiment
    for section in NO_EFFECT:
        if section in found:
            raise BadInput(
                f"{path}: [{section}] has no effect on real sites ({NO_EFFECT[section]}): remove it"
            )


def play(grid: Grid, folder: Path, say: Say = print) -> Run:
    """Play the run of a server's folder to its end, from its checkpoint where there is one; sites
    may have been added since.
    """
    plan, run = read_server_plan(folder), folder / RUN
    check_words(plan, run)
    roll, rows = _gather(plan, run, grid, say)
    old, found = status(run), checkpoints(run)
    first = len(load_checkpoint(found[-1])["states"]["sites"]) if found else len(plan.server.names)
    run.mkdir(exist_ok=True)
    with alone(run):
        scales = _scales(plan, roll, rows["train"], run, say)
        known = {part: numbers[:first] for part, numbers in rows.items()}
        loop = _loop(plan, roll, known, run, say, scales)
        if old and first == len(read_about(run)["clients"]):
            check_same(loop, run)
        if found:
            restore(loop, found[-1])
            say(f"going on after round {loop.done} of {sum(loop.lengths)}")
        if first < len(plan.server.names):
            _newcomers(plan, loop, rows, say)
        if old == "finished":
            loop.engine.finish(loop.everyone, loop.payload(), loop.when())
            return load(run)
        told = {KEPT: server_words(plan.server)} | promise_of(plan.server.privacy, loop)
        done = play_rounds(
            loop, plan.draft.experiment, run, lambda report: _tell(report, say), told
        )
        if "privacy" in told:
            say(privacy_line(told["privacy"]))
    say(f"finished: the run is in {run}")
    return done


def server_words(server: Server) -> dict[str, Any]:
    """The words of server.toml that shape a result, by their full names."""
    tables = {"data": server.data._asdict(), "privacy": server.privacy._asdict()}
    return {
        f"{section}.{word}": list(value) if isinstance(value, tuple) else value
        for section, table in tables.items()
        for word, value in table.items()
    }


def check_words(plan: ServerPlan, run: Path) -> None:
    """Refuse to go on with other words than the run began with, as `coterie resume` does."""
    if not status(run):
        return
    found = checkpoints(run)
    way = f"move {run} away, and the next start begins a new run"
    began = words_of(run, load_checkpoint(found[-1]) if found else None)
    changed = _of_experiment(changes_of(plan.draft.experiment, began))
    check_unchanged(changed, run, EXPERIMENT, way)
    known = read_about(run).get(KEPT)
    if known:
        defaults = server_words(plan.server._replace(data=Shape(), privacy=Privacy()))
        changed = changes(known, server_words(plan.server), defaults)
        check_unchanged(changed, run, SERVER, way)


def _of_experiment(words: Mapping[str, Change]) -> dict[str, Change]:
    """Changes of what stands in a server's experiment.toml; sites may be added on the way."""
    return {w: v for w, v in words.items() if w.partition(".")[0] not in NO_EFFECT}


def promise_of(privacy: Privacy, loop: Loop) -> dict[str, Any]:
    """What noise on every upload promises a site that answers in all rounds, for run.json."""
    if not privacy.noise:
        return {}
    heard = zip(loop.program, loop.lengths, strict=True)
    releases = sum(rounds * heard_exchanges(stage) for stage, rounds in heard)
    return {
        "privacy": {
            "unit": "site",
            "epsilon": epsilon_of(privacy.noise, releases, privacy.delta),
            "delta": privacy.delta,
            "clip": privacy.clip,
            "noise": privacy.noise,
            "releases": releases,
            "share": 1.0,
            "sampling": "everyone",
            "covers": "the real numbers of uploads",
        }
    }


def _tell(report: RoundReport, say: Say) -> None:
    for line in (_line(report), *report.said):
        say(line)


def _gather(plan: ServerPlan, run: Path, grid: Grid, say: Say) -> tuple[Roll, dict[str, list[int]]]:
    """Who is there, and how many rows every site has: as the run's folder says, else as the site
    itself does.
    """
    names, removed = plan.server.names, plan.server.sites.removed
    known: dict[str, list[int]] = (
        read_about(run)["rows"] if status(run) else {part: [] for part in PARTS}
    )
    seen = read_about(run)["clients"] if status(run) else []
    if list(names[: len(seen)]) != seen:
        raise BadInput(
            f"the sites of {run} are {', '.join(seen)}: in sites.names they come first, in this "
            "order; new ones after them"
        )
    told: dict[int, Head] = {}
    hello = wire.pack({"kind": "hello", "words": plan.words})
    greeting = min(GREETING, plan.server.rules.deadline)
    roll = Roll(
        grid, names, lambda: hello, lambda i, head: _admit(plan, told, i, head), say, greeting
    )
    wanted = {i for i, name in enumerate(names) if name not in removed and i >= len(seen)}
    _wait_for(plan, roll, told, wanted, say)
    later = range(len(seen), len(names))
    return roll, {
        part: [*known[part], *(int(told[i]["rows"][part]) if i in told else 0 for i in later)]
        for part in PARTS
    }


def _wait_for(
    plan: ServerPlan, roll: Roll, told: dict[int, Head], wanted: set[int], say: Say
) -> None:
    """Come back when the wanted sites are there; a quorum is enough once patience is over."""
    begin = time.monotonic()
    reminded, rules, names = begin - REMIND, plan.server.rules, plan.server.names
    while wanted:
        roll.look()
        _turn_away(plan, roll, told, say)
        there = wanted & set(roll.nodes) & set(told)
        sides = _sides(plan, told)
        agree = len(sides) <= 1
        if there == wanted and agree:
            return
        missing = ", ".join(names[i] for i in sorted(wanted - there))
        enough = len(there) >= max(1, math.ceil(rules.quorum * len(wanted) - 1e-9))
        if enough and agree and time.monotonic() - begin >= rules.patience:
            say(
                f"starting with {len(there)} of {len(wanted)} sites after {rules.patience:g} s; "
                f"left out of this run: {missing}"
            )
            return
        if time.monotonic() - reminded >= REMIND:
            reminded = time.monotonic()
            say(f"waiting for {missing}" if agree else _undecided(sides))
        time.sleep(LOOK)


def _newcomers(plan: ServerPlan, loop: Loop, rows: dict[str, list[int]], say: Say) -> None:
    """Sites that were added to a run under way: the server makes room for them, and they begin at
    what it sends.
    """
    assert isinstance(loop.engine, FlowerEngine)
    came = plan.server.names[loop.federation.clients :]
    loop.admit(plan.federation(rows))
    loop.engine.note(
        came=list(came), stage=loop.when().stage, round=loop.position.round, exchange=-1
    )
    say(f"new in this run: {', '.join(came)}")


def _scales(
    plan: ServerPlan, roll: Roll, rows: Sequence[int], run: Path, say: Say
) -> Scales | None:
    """The scale of the columns: what the run began with, else what the sites agree on now."""
    known, data = read_scales(run), plan.server.data
    if not data.sums or known is not None:
        return known
    asked = [
        0 if plan.server.names[i] in plan.server.sites.removed else n for i, n in enumerate(rows)
    ]
    made = ask_scales(
        roll,
        plan.words,
        asked,
        data.sums,
        plan.server.rules.deadline,
        say,
        target=data.learnt.is_number,
        outlier=plan.server.rules.outlier,
    )
    with writing(run):
        write(run / FILE, json.dumps(made))
    what = [
        *(["columns"] if made.centre else []),
        *(["the label"] if made.target else []),
    ]
    say(
        f"{' and '.join(what)} are scaled by mean and deviation of all sites' training rows "
        f"({FILE})"
    )
    return made


def _loop(
    plan: ServerPlan,
    roll: Roll,
    rows: dict[str, list[int]],
    run: Path,
    say: Say,
    scales: Scales | None = None,
) -> Loop:
    """The server's side of the run, at its start."""
    federation = scaled(plan.federation(rows), scales)
    # who was not there when the run began has no rows in it
    gone = {i for i, number in enumerate(rows["train"]) if not number}
    removed = [
        i
        for i, name in enumerate(plan.server.names)
        if name in plan.server.sites.removed or i in gone
    ]
    asked = [
        i for i in range(federation.clients) if i not in removed
    ]  # nobody misses the others' rows

    def engine(setup: Setup) -> FlowerEngine:
        return FlowerEngine(
            setup,
            roll=roll,
            run=secrets.token_hex(8),
            words=plan.words,
            rules=plan.server.rules,
            removed=removed,
            journal=run / JOURNAL,
            scales=scales,
            say=say,
        )

    draft = plan.draft
    if scales and scales.target:  # a network learns the number as it is scaled
        dealt = draft.architecture[: federation.clients].tolist()
        draft = assemble(draft.experiment, federation, architecture=dealt, clients=asked)
    return open_loop(with_data(draft, federation, asked), engine)


def _admit(plan: ServerPlan, told: dict[int, Head], number: int, head: Head) -> None:
    """Keep what a site says of itself, if it fits what most of the others said."""
    name = plan.server.names[number]
    if not head["rows"]["train"]:
        raise BadInput(f"'{name}' has no training rows")
    told[number] = head
    if number in _minority(told):
        del told[number]
        other = next(i for i in told if told[i].get("columns") != head.get("columns"))
        raise BadInput(_other_columns(plan, number, other))


def _minority(told: dict[int, Head]) -> set[int]:
    """The sites whose columns are those of fewer sites than another's."""
    times = Counter(head.get("columns") for head in told.values())
    most = max(times.values(), default=0)
    return {i for i, head in told.items() if times[head.get("columns")] < most}


def _other_columns(plan: ServerPlan, number: int, other: int) -> str:
    return (
        f"the feature columns of '{plan.server.names[number]}' are not those of "
        f"'{plan.server.names[other]}' in name and order: list them with `features` in site.toml"
    )


def _turn_away(plan: ServerPlan, roll: Roll, told: dict[int, Head], say: Say) -> None:
    """Who came first decides nothing: sites with other columns than most of them go."""
    out = _minority(told)
    for i in sorted(out):
        other = next(k for k in told if k not in out)
        say(f"a site was refused: {_other_columns(plan, i, other)}")
        roll.nodes.pop(i, None)
    for i in out:
        told.pop(i)


def _sides(plan: ServerPlan, told: dict[int, Head]) -> list[str]:
    """The sites of the same columns, named together."""
    names: dict[str, list[str]] = {}
    for i in sorted(told):
        names.setdefault(str(told[i].get("columns")), []).append(plan.server.names[i])
    return [", ".join(side) for side in names.values()]


def _undecided(sides: Sequence[str]) -> str:
    return (
        f"the feature columns of these sites differ in name or order, and no side has most of "
        f"them ({'; '.join(sides)}): list the columns with `features` in site.toml"
    )


def _line(report: RoundReport) -> str:
    score = (
        ""
        if report.value is None
        else f", {named(report.measure).label} {report.value:.3f}, loss {report.loss:.3f}"
    )
    return (
        f"{report.stage}, round {report.round} of {report.rounds}: {report.clients} sites, "
        f"{report.seconds:.1f} s{score}"
    )
