"""The ServerApp of a federation: greets the sites, plays the run through the same code as any
experiment, ends at every site.

The run's configuration names the server's folder; everything else is read from it. What the server
says goes to its own output and, with the time, to federation.log in that folder.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.core.checkpoint import checkpoints, load_checkpoint
from coterie.core.errors import BadInput
from coterie.data.federation import Federation, Public
from coterie.deploy import wire
from coterie.deploy.files import EXPERIMENT, RUN, Server, inside, read_server
from coterie.deploy.flower_engine import FlowerEngine
from coterie.deploy.replay import JOURNAL
from coterie.deploy.roll import GREETING, Roll
from coterie.deploy.rows import PARTS, hollow, read_public
from coterie.deploy.wire import Head
from coterie.engines.base import Setup
from coterie.experiment.config import PYTHON, Keep, read_experiment_file
from coterie.results.folder import read_about, status
from coterie.results.run import Run, load
from coterie.running.assemble import Assembly, assemble, open_loop, with_data
from coterie.running.execute import check_same, play_rounds, restore
from coterie.running.loop import Loop, RoundReport
from coterie.running.progress import alone

LOG = "federation.log"
LABEL = "label"  # the column of the public file that is no feature
REMIND = 60.0  # seconds between two lines that say who is missing
LOOK = 1.0  # seconds between two looks for sites
Say = Callable[[str], None]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from the start or from its checkpoint."""
    folder = Path(str(context.run_config["folder"]))
    say = teller(folder)
    try:
        play(grid, folder, say)
    except BadInput as problem:
        say(f"stopped: {problem}")
        raise


def teller(folder: Path) -> Say:
    """Says a line where it is seen, and keeps it."""

    def say(line: str) -> None:
        print(line, flush=True)
        with (folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    return say


class Plan(NamedTuple):
    """What a server's folder describes, before anything is known of the sites' rows."""

    server: Server
    draft: Assembly  # as if every site had one row of each part
    public: Public | None
    words: dict[str, Any]  # of the experiment, for the sites

    def federation(self, rows: dict[str, list[int]]) -> Federation:
        return hollow(self.server.names[: len(rows["train"])], rows, self.server.data, self.public)


def read_plan(folder: Path) -> Plan:
    """A server's folder, read and checked."""
    server = read_server(folder)
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
    draft = assemble(experiment, hollow(server.names, ones, server.data, public))
    full = draft.experiment.words()
    words = {name: full[name] for name in ("method", "seed", "model", "train", "options")} | {
        "architecture": draft.architecture.tolist(),
        "data": {**server.data._asdict(), "public": ""},
        "public": public.checksum if public else "",
        "privacy": list(server.privacy),
    }
    return Plan(server=server, draft=draft, public=public, words=words)


def play(grid: Grid, folder: Path, say: Say = print) -> Run:
    """Play the run of a server's folder to its end, from its checkpoint where there is one; sites
    may have been added since.
    """
    plan, run = read_plan(folder), folder / RUN
    roll, rows = _gather(plan, run, grid, say)
    old, found = status(run), checkpoints(run)
    first = len(load_checkpoint(found[-1])["states"]["sites"]) if found else len(plan.server.names)
    run.mkdir(exist_ok=True)
    with alone(run):
        loop = _loop(
            plan, roll, {part: numbers[:first] for part, numbers in rows.items()}, run, say
        )
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
        done = play_rounds(loop, plan.draft.experiment, run, lambda report: say(_line(report)))
    say(f"finished: the run is in {run}")
    return done


def _gather(plan: Plan, run: Path, grid: Grid, say: Say) -> tuple[Roll, dict[str, list[int]]]:
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
    reminded = time.monotonic() - REMIND
    while wanted and not wanted <= set(roll.look()):
        if time.monotonic() - reminded >= REMIND:
            reminded = time.monotonic()
            say(f"waiting for {', '.join(names[i] for i in sorted(wanted - set(roll.nodes)))}")
        time.sleep(LOOK)
    later = range(len(seen), len(names))
    return roll, {
        part: [*known[part], *(int(told[i]["rows"][part]) if i in told else 0 for i in later)]
        for part in PARTS
    }


def _newcomers(plan: Plan, loop: Loop, rows: dict[str, list[int]], say: Say) -> None:
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


def _loop(plan: Plan, roll: Roll, rows: dict[str, list[int]], run: Path, say: Say) -> Loop:
    """The server's side of the run, at its start."""
    removed = [i for i, name in enumerate(plan.server.names) if name in plan.server.sites.removed]
    federation = plan.federation(rows)
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
            say=say,
        )

    return open_loop(with_data(plan.draft, federation, asked), engine)


def _admit(plan: Plan, told: dict[int, Head], number: int, head: Head) -> None:
    """Keep what a site says of itself, if it fits what the others said."""
    rows = head.get("rows")
    if not isinstance(rows, dict) or not all(
        isinstance(rows.get(part), int) and rows[part] >= 0 for part in PARTS
    ):
        raise BadInput(f"'{plan.server.names[number]}' does not say how many rows it has")
    if not rows["train"]:
        raise BadInput(f"'{plan.server.names[number]}' has no training rows")
    for other, known in told.items():
        if other != number and known.get("columns") != head.get("columns"):
            raise BadInput(
                f"the feature columns of '{plan.server.names[number]}' are not those of "
                f"'{plan.server.names[other]}' in name and "
                "order: list them with `features` in site.toml"
            )
    told[number] = head


def _line(report: RoundReport) -> str:
    score = (
        ""
        if report.accuracy is None
        else f", accuracy {report.accuracy:.3f}, loss {report.loss:.3f}"
    )
    return (
        f"{report.stage}, round {report.round} of {report.rounds}: {report.clients} sites, "
        f"{report.seconds:.1f} s{score}"
    )
