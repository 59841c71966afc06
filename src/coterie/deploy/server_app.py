"""The run of a deployment: greets the sites, plays the run through the same code as any
experiment, ends at every site.

Everything is read from the server's folder. What the server says goes to its own output and, with
the time, to deployment.log in that folder.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.analysis.scores import find_score
from coterie.core.checkpoint import list_checkpoints, load_checkpoint
from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, write_text
from coterie.core.guard import Guard
from coterie.core.option_names import FORMER_SECTIONS
from coterie.core.version import __version__
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation
from coterie.deploy import cross_site, wire
from coterie.deploy.answers import describe_plan
from coterie.deploy.audit import AUDIT, AuditLog
from coterie.deploy.claims import describe_caps
from coterie.deploy.config_files import (
    EXPERIMENT,
    SERVER,
    DataShape,
    Privacy,
    Rules,
    ServerConfig,
    check_network,
    check_no_function,
    read_server,
    resolve_path,
)
from coterie.deploy.consent import digest_of
from coterie.deploy.flower_engine import FlowerEngine
from coterie.deploy.logs import RotatingLog, sanitize
from coterie.deploy.queue import FIRST, NotAgreed, list_waiting, locate_experiment, locate_run
from coterie.deploy.replay import JOURNAL
from coterie.deploy.roster import GREETING_SECONDS, Grid, Roster
from coterie.deploy.scales import (
    FILE,
    Scales,
    ask_scales,
    ask_sums,
    placeholder_scales,
    read_scales,
    scale_federation,
)
from coterie.deploy.secure_round import check_secure_sum, weigh_sites
from coterie.deploy.site_rows import SiteRows, read_public, server_federation, to_public
from coterie.deploy.statistics import format_statistics
from coterie.deploy.wire import Head
from coterie.engines.base import EngineSetup
from coterie.experiment.config import PYTHON, Keep, read_experiment_file
from coterie.methods.declare import UploadDeclaration, declaration_of
from coterie.methods.registry import METHODS
from coterie.results.folder import read_about, read_status
from coterie.results.guard_summary import format_privacy
from coterie.results.run import Run, load_run
from coterie.running.assembly import Assembly, assemble, open_loop, with_data
from coterie.running.execute import (
    check_same_data,
    initial_options_of,
    restore_checkpoint,
    run_rounds,
)
from coterie.running.identity import OptionChange, changes_of, check_unchanged, find_changes
from coterie.running.loop import Loop, RoundReport, stage_lengths_of
from coterie.running.privacy_budget import count_uploads
from coterie.running.progress import lock_folder

LOG_FILE = "deployment.log"
SERVER_KEY = "server"  # of run.json: the options of server.toml that the run began with
MAX_CHARACTERS = 4_000  # characters of a line
REMIND_SECONDS = 60.0  # seconds between two lines that say who is missing
LOOK_SECONDS = 1.0  # seconds between two looks for sites
SIMULATION_ONLY = {  # sections of an experiment that say what a simulation does
    "engine": "every site runs its own client",
    "dataset": "rows are the sites' own, [data] of server.toml says what they look like",
    "partition": "nothing is dealt",
    "keep": "the server keeps a checkpoint of every round, a site its own model",
}
LogLine = Callable[[str], None]


def build_logger(folder: Path, say: LogLine) -> LogLine:
    """Says a line where it is seen, and keeps it."""
    log = RotatingLog(folder / LOG_FILE)

    def say_and_keep(text: str) -> None:
        line = sanitize(text, MAX_CHARACTERS)
        say(line)
        log(line)

    return say_and_keep


class ServerPlan(NamedTuple):
    """What a server's folder describes, before anything is known of the sites' rows."""

    server: ServerConfig
    draft: Assembly  # as if every site had one row of each part
    public_rows: SiteRows | None  # as their file has them
    settings: dict[str, Any]  # of the experiment, for the sites

    @property
    def public(self) -> Public | None:
        """Rows that everyone may see."""
        return None if self.public_rows is None else to_public(self.public_rows)

    def federation(self, rows: dict[str, list[int]]) -> Federation:
        return server_federation(
            self.server.names[: len(rows["train"])], rows, self.server.data, self.public_rows
        )


def read_server_plan(folder: Path, name: str = FIRST) -> ServerPlan:
    """A server's folder and an experiment of its queue, read and checked."""
    server, path = read_server(folder), locate_experiment(folder, name)
    _check_sections(path)
    data = {"name": f"{PYTHON}federation"}
    experiment = replace(
        read_experiment_file(path), dataset=data, partition={}, keep=Keep(1, False)
    )
    public = None
    if server.data.public:
        place = resolve_path(folder, server.data.public)
        public = read_public(place, server.sites.label, server.data)
    if public and tuple(public.x.shape[1:]) != server.data.input_shape:
        raise BadInput(
            f"{server.data.public} has rows of shape {list(public.x.shape[1:])}, not "
            f"{list(server.data.input_shape)}"
        )
    ones = {part: [1] * len(server.names) for part in PARTS}
    _check_guard(experiment.guard, path)
    check_no_function(experiment.schedule.metric)
    check_network(experiment.model)
    rows = server_federation(server.names, ones, server.data, public)
    draft = assemble(experiment, scale_federation(rows, placeholder_scales(server.data)))
    if server.privacy.secure_sum:
        name, robust = draft.experiment.method, experiment.guard.robust
        check_secure_sum(
            name, _declaration_of(name), draft.setup, draft.experiment.schedule, robust
        )
    full = draft.experiment.to_dict()
    settings = {name: full[name] for name in ("method", "seed", "model", "options")} | {
        "train": draft.experiment.train.over(draft.experiment.schedule.rounds)._asdict(),
        "metric": draft.experiment.schedule.metric,
        "architecture": draft.architecture.tolist(),
        "data": {**server.data._asdict(), "public": ""},
        "public": to_public(public).checksum if public else "",
        "privacy": list(server.privacy),
    }
    program, schedule = draft.programs[0], draft.experiment.schedule
    lengths = stage_lengths_of(program, schedule)
    settings |= describe_plan(program, lengths, schedule.every, schedule.measured)
    if server.privacy.cross_site:
        for each in draft.programs:
            cross_site.check_network(draft.experiment.method, each)
        settings[cross_site.SITES] = list(server.names)
    return ServerPlan(server=server, draft=draft, public_rows=public, settings=settings)


def _declaration_of(method: str) -> UploadDeclaration:
    return declaration_of(METHODS[method])


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
    """Refuse options that a run of real sites has no use for."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # told better by whoever reads the experiment
    for section in found:
        if why := SIMULATION_ONLY.get(FORMER_SECTIONS.get(section, section)):
            raise BadInput(f"{path}: [{section}] has no effect on real sites ({why}): remove it")


class SitesAdded(Exception):
    """Sites were added to a run under way, and are there."""


def play(grid: Grid, folder: Path, say: LogLine = print, name: str = FIRST) -> Run:
    """Play the run of an experiment to its end, from its checkpoint where there is one; sites may
    have been added since, and may be while it goes on. NotAgreed where a site refuses it and others
    wait.
    """
    while True:
        try:
            return _play(grid, folder, say, name)
        except SitesAdded:  # as after a restart: from the checkpoint, with room for them
            continue


def _look_for_newcomers(plan: ServerPlan, folder: Path, grid: Grid, report: RoundReport) -> None:
    """After a round that is not the last, raise SitesAdded where all new sites are there."""
    try:
        sites = read_server(folder).sites
    except BadInput:  # half copied: it is read again after the next round
        return
    known = plan.server.names
    if plan.server.privacy.cross_site:  # the sites agreed to those that are named
        return
    new = [name for name in sites.names[len(known) :] if name not in sites.removed]
    if report.round == report.rounds or not new or sites.names[: len(known)] != known:
        return
    if set(new) <= {str(node.name) for node in grid.get_nodes()}:
        raise SitesAdded


def _play(grid: Grid, folder: Path, say: LogLine, name: str) -> Run:
    plan, run = read_server_plan(folder, name), locate_run(folder, name)
    check_unchanged_options(plan, run)
    audit = AuditLog(folder / AUDIT)
    roll, rows = _gather_sites(plan, run, grid, say, audit, lambda: len(list_waiting(folder)) > 1)
    for line in describe_caps(plan.server.names, np.array(rows["train"]), plan.server.rules.claims):
        say(line)
    old, found = read_status(run), list_checkpoints(run)
    first = len(load_checkpoint(found[-1])["states"]["sites"]) if found else len(plan.server.names)
    run.mkdir(parents=True, exist_ok=True)
    with lock_folder(run):
        scales = _agree_scales(plan, roll, rows["train"], run, say)
        known = {part: numbers[:first] for part, numbers in rows.items()}
        loop = _build_loop(plan, roll, known, run, say, scales, audit)
        if old and first == len(read_about(run)["clients"]):
            check_same_data(loop, run)
        if found:
            restore_checkpoint(loop, found[-1])
            say(f"going on after round {loop.done} of {sum(loop.lengths)}")
        if first < len(plan.server.names) and plan.server.privacy.cross_site:
            raise BadInput(
                f"{plan.server.names[first]} was added to a run with privacy.cross_site, whose "
                "sites have agreed to those that are named: remove it until the run is over"
            )
        if first < len(plan.server.names):
            _admit_newcomers(plan, loop, rows, say)
        if old == "finished":
            loop.engine.finish(loop.everyone, loop.payload(), loop.when())
            _cross_sites(plan, loop, run, say)
            return load_run(run)
        about = {SERVER_KEY: server_options(plan.server)} | promise_of(plan.server.privacy, loop)

        def watch(report: RoundReport) -> None:
            _log_round(report, say)
            _look_for_newcomers(plan, folder, grid, report)

        done = run_rounds(loop, plan.draft.experiment, run, watch, about)
        _cross_sites(plan, loop, run, say)
        audit.add("finished", privacy=about.get("privacy"))
        if "privacy" in about:
            say(format_privacy(about["privacy"]))
    say(f"finished: the run is in {run}")
    return done


def _cross_sites(plan: ServerPlan, loop: Loop, run: Path, say: LogLine) -> None:
    """Measure every site's own model at all sites, once, where they agreed to it."""
    path, engine = run / cross_site.FILE, loop.engine
    if not plan.server.privacy.cross_site or path.exists():
        return
    assert isinstance(engine, FlowerEngine)
    scores = engine.cross_sites(loop.everyone, loop.payload(), loop.when())
    with catch_write_errors(run):
        cross_site.write_scores(path, scores)
    say(cross_site.describe_scores(scores, engine.models[0].goal.measure))


def server_options(server: ServerConfig) -> dict[str, Any]:
    """The options of server.toml that shape a result, by their full names."""
    tables = {
        "data": server.data._asdict(),
        "privacy": server.privacy._asdict(),
        "rules": {"claims": server.rules.claims},
    }
    return {
        f"{section}.{option}": list(value) if isinstance(value, tuple) else value
        for section, table in tables.items()
        for option, value in table.items()
    }


def check_unchanged_options(plan: ServerPlan, run: Path) -> None:
    """Refuse to go on with other options than the run began with, as `coterie resume` does."""
    if not read_status(run):
        return
    found = list_checkpoints(run)
    way = f"move {run} away, and the next start begins a new run"
    began = initial_options_of(run, load_checkpoint(found[-1]) if found else None)
    changed = _experiment_changes(changes_of(plan.draft.experiment, began))
    check_unchanged(changed, run, EXPERIMENT, way)
    known = read_about(run).get(SERVER_KEY)
    if known:
        usual = plan.server._replace(data=DataShape(), privacy=Privacy(), rules=Rules(claims=0.0))
        defaults = server_options(usual)  # a run of before this rule believed all claims
        changed = find_changes(known, server_options(plan.server), defaults)
        check_unchanged(changed, run, SERVER, way)


def _experiment_changes(settings: Mapping[str, OptionChange]) -> dict[str, OptionChange]:
    """Changes of what stands in a server's experiment.toml; sites may be added on the way."""
    return {w: v for w, v in settings.items() if w.partition(".")[0] not in SIMULATION_ONLY}


def promise_of(privacy: Privacy, loop: Loop) -> dict[str, Any]:
    """What noise on every upload promises a site that answers in all rounds, for run.json."""
    if not privacy.noise:
        return {}
    heard = zip(loop.program, loop.lengths, strict=True)
    releases = sum(rounds * count_uploads(stage) for stage, rounds in heard)
    return {
        "privacy": {
            "unit": "site",
            "epsilon": epsilon_of(privacy.noise, releases, privacy.delta),
            # against any other upload, whose distance may be 2 clip
            "replaced": epsilon_of(privacy.noise / 2, releases, privacy.delta),
            "delta": privacy.delta,
            "clip": privacy.clip,
            "noise": privacy.noise,
            "releases": releases,
            "share": 1.0,
            "sampling": "everyone",
            "covers": "the real numbers of uploads",
        }
    }


def _log_round(report: RoundReport, say: LogLine) -> None:
    for line in (_format_round(report), *report.said):
        say(line)


def _gather_sites(
    plan: ServerPlan,
    run: Path | None,  # that may have begun; None: nobody is known yet
    grid: Grid,
    say: LogLine,
    audit: AuditLog,
    others: Callable[[], bool] = lambda: False,  # whether other experiments wait
) -> tuple[Roster, dict[str, list[int]]]:
    """Who is there, and how many rows every site has: as the run's folder says, else as the site
    itself does.
    """
    names, removed = plan.server.names, plan.server.sites.removed
    begun = read_about(run) if run is not None and read_status(run) else {}
    known: dict[str, list[int]] = begun.get("rows", {part: [] for part in PARTS})
    seen = begun.get("clients", [])
    if list(names[: len(seen)]) != seen:
        raise BadInput(
            f"the sites of {run} are {', '.join(seen)}: in sites.names they come first, in this "
            "order; new ones after them"
        )
    heads: dict[int, Head] = {}
    hello = wire.pack({"kind": "hello", "version": __version__, "words": plan.settings})
    greeting = min(GREETING_SECONDS, plan.server.rules.deadline)

    came: list[Head] = []  # while it is not known whether there will be a run
    note: Callable[[Head], object] = came.append

    def admit(number: int, head: Head) -> None:
        _admit(plan, heads, number, head)
        version = head.get("version", "")
        note({"site": names[number], "rows": head["rows"], "version": version})

    roll = Roster(grid, names, lambda: hello, admit, say, greeting)
    wanted = {i for i, name in enumerate(names) if name not in removed and i >= len(seen)}
    _wait_for(plan, roll, heads, wanted, say, others)
    audit.add("experiment", experiment=digest_of(plan.settings), sites=list(names))
    note = partial(_note_arrival, audit)
    for facts in came:
        note(facts)
    later = range(len(seen), len(names))
    return roll, {
        part: [*known[part], *(int(heads[i]["rows"][part]) if i in heads else 0 for i in later)]
        for part in PARTS
    }


def _note_arrival(audit: AuditLog, facts: Head) -> None:
    audit.add("joined", **facts)


def _wait_for(
    plan: ServerPlan,
    roll: Roster,
    heads: dict[int, Head],
    wanted: set[int],
    say: LogLine,
    others: Callable[[], bool],
) -> None:
    """Come back when the wanted sites are there; a quorum is enough once patience is over.
    NotAgreed where one of them refuses and other experiments wait.
    """
    begin = time.monotonic()
    reminded, rules, names = begin - REMIND_SECONDS, plan.server.rules, plan.server.names
    while wanted:
        roll.look()
        _turn_away(plan, roll, heads, say)
        there = wanted & set(roll.nodes) & set(heads)
        sides = _group_by_columns(plan, heads)
        agree = len(sides) <= 1
        if there == wanted and agree:
            return
        if (refusals := roll.list_refusals()) and others():
            raise NotAgreed("; ".join(refusals))
        missing = ", ".join(names[i] for i in sorted(wanted - there))
        enough = len(there) >= max(1, math.ceil(rules.quorum * len(wanted) - 1e-9))
        if enough and agree and time.monotonic() - begin >= rules.patience:
            say(
                f"starting with {len(there)} of {len(wanted)} sites after {rules.patience:g} s; "
                f"left out of this run: {missing}"
            )
            return
        if time.monotonic() - reminded >= REMIND_SECONDS:
            reminded = time.monotonic()
            say(f"waiting for {missing}" if agree else _describe_tie(sides))
        time.sleep(LOOK_SECONDS)


def _admit_newcomers(
    plan: ServerPlan, loop: Loop, rows: dict[str, list[int]], say: LogLine
) -> None:
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


def _agree_scales(
    plan: ServerPlan, roll: Roster, rows: Sequence[int], run: Path, say: LogLine
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
        plan.settings,
        asked,
        data.sums,
        plan.server.rules.deadline,
        say,
        target=data.learnt.has_units,
        outlier=plan.server.rules.outlier,
        claims=plan.server.rules.claims,
        table=data.table_columns,
        standard=data.scale == "standard",
    )
    with catch_write_errors(run):
        write_text(run / FILE, json.dumps(made))
    for line in _describe_scales(data, made):
        say(f"{line} ({FILE})")
    return made


def _describe_scales(data: DataShape, made: Scales) -> list[str]:
    """What the sites agreed on."""
    columns = bool(made.centre) and data.scale == "standard"
    what = [*(["columns"] if columns else []), *(["the label"] if made.target else [])]
    lines = []
    if what:
        lines.append(
            f"{' and '.join(what)} are scaled by mean and deviation of all sites' training rows"
        )
    if made.columns:
        named = sum(len(column.categories) for column in made.columns)
        gaps = sum(column.indicator for column in made.columns)
        lines.append(
            f"the sites agreed on {len(made.columns)} columns: {named} categories with enough "
            f"rows, missing cells in {gaps}"
        )
    return lines


def ask_statistics(grid: Grid, folder: Path, say: LogLine) -> list[str]:
    """What the sites tell of their columns, as lines for a person; nothing is trained."""
    plan = read_server_plan(folder)
    data, rules = plan.server.data, plan.server.rules
    if not data.sums:
        raise BadInput(
            f"{folder / SERVER}: the sites tell nothing of their columns here: name them in "
            '[data] table (as `coterie federation init --like` does), or write scale = "standard"'
        )
    audit = AuditLog(folder / AUDIT)
    roll, rows = _gather_sites(plan, None, grid, say, audit)
    gone = plan.server.sites.removed
    asked = [0 if plan.server.names[i] in gone else n for i, n in enumerate(rows["train"])]
    table = data.table_columns
    sums = ask_sums(
        roll, plan.settings, asked, data.sums, rules.deadline, say, table, rules.outlier
    )
    audit.add("statistics", sites=[plan.server.names[i] for i in sorted(sums)])
    label = plan.server.sites.label if data.learnt.has_units else ""
    return format_statistics(table, {plan.server.names[i]: sums[i] for i in sorted(sums)}, label)


def _build_loop(
    plan: ServerPlan,
    roll: Roster,
    rows: dict[str, list[int]],
    run: Path,
    say: LogLine,
    scales: Scales | None = None,
    audit: AuditLog | None = None,
) -> Loop:
    """The server's side of the run, at its start."""
    federation = scale_federation(plan.federation(rows), scales)
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

    experiment = plan.draft.experiment
    weigh = partial(weigh_sites, _declaration_of(experiment.method), experiment.train)

    def engine(setup: EngineSetup) -> FlowerEngine:
        return FlowerEngine(
            setup,
            roll=roll,
            run=secrets.token_hex(8),
            config=plan.settings,
            rules=plan.server.rules,
            removed=removed,
            journal=run / JOURNAL,
            scales=scales,
            say=say,
            audit=audit,
            secure=weigh if plan.server.privacy.secure_sum else None,
        )

    draft = plan.draft
    # a network learns the number as it is scaled, and has as many inputs as was agreed on
    if scales and (scales.target or scales.columns):
        dealt = draft.architecture[: federation.clients].tolist()
        draft = assemble(draft.experiment, federation, architecture=dealt, clients=asked)
    return open_loop(with_data(draft, federation, asked), engine)


def _admit(plan: ServerPlan, heads: dict[int, Head], number: int, head: Head) -> None:
    """Keep what a site says of itself, if it fits what most of the others said."""
    name = plan.server.names[number]
    if not head["rows"]["train"]:
        raise BadInput(f"'{name}' has no training rows")
    heads[number] = head
    if number in _find_minority(heads):
        del heads[number]
        other = next(i for i in heads if heads[i].get("columns") != head.get("columns"))
        raise BadInput(_describe_mismatch(plan, number, other))


def _find_minority(heads: dict[int, Head]) -> set[int]:
    """The sites whose columns are those of fewer sites than another's."""
    times = Counter(head.get("columns") for head in heads.values())
    most = max(times.values(), default=0)
    return {i for i, head in heads.items() if times[head.get("columns")] < most}


def _describe_mismatch(plan: ServerPlan, number: int, other: int) -> str:
    return (
        f"the feature columns of '{plan.server.names[number]}' are not those of "
        f"'{plan.server.names[other]}' in name and order: list them with `features` in site.toml"
    )


def _turn_away(plan: ServerPlan, roll: Roster, heads: dict[int, Head], say: LogLine) -> None:
    """Who came first decides nothing: sites with other columns than most of them go."""
    out = _find_minority(heads)
    for i in sorted(out):
        other = next(k for k in heads if k not in out)
        say(f"a site was refused: {_describe_mismatch(plan, i, other)}")
        roll.nodes.pop(i, None)
    for i in out:
        heads.pop(i)


def _group_by_columns(plan: ServerPlan, heads: dict[int, Head]) -> list[str]:
    """The sites of the same columns, named together."""
    names: dict[str, list[str]] = {}
    for i in sorted(heads):
        names.setdefault(str(heads[i].get("columns")), []).append(plan.server.names[i])
    return [", ".join(side) for side in names.values()]


def _describe_tie(sides: Sequence[str]) -> str:
    return (
        f"the feature columns of these sites differ in name or order, and no side has most of "
        f"them ({'; '.join(sides)}): list the columns with `features` in site.toml"
    )


def _format_round(report: RoundReport) -> str:
    score = (
        ""
        if report.value is None
        else f", {find_score(report.measure).label} {report.value:.3f}, loss {report.loss:.3f}"
    )
    return (
        f"{report.stage}, round {report.round} of {report.rounds}: {report.clients} sites, "
        f"{report.seconds:.1f} s{score}"
    )
