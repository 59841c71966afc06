"""Several experiments over the same sites: what was submitted, in order, and how far each is.

The experiment that `init` wrote comes first: experiment.toml, with its run in `run`. Others are
queue/NUMBER-NAME.toml, with their runs in runs/NUMBER-NAME; all share server.toml. The server plays
one after another, and passes over one that a site has not agreed to until it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.deploy.answers import RUN as BEGUN
from coterie.deploy.audit import AUDIT, read_audit
from coterie.deploy.config_files import EXPERIMENT, RUN, check_name, read_site
from coterie.deploy.consent import OFFERED
from coterie.deploy.policy import AGREED
from coterie.results.folder import read_status

QUEUE, RUNS = "queue", "runs"
FIRST = ""  # the name of the experiment that `init` wrote
AGAIN_SECONDS = 10.0  # before sites are asked again whether they agree
OVER = ("finished", "diverged")
LogLine = Callable[[str], None]


class NotAgreed(Exception):
    """A site is there and takes no part in an experiment."""


def locate_experiment(folder: Path, name: str) -> Path:
    """The file of an experiment."""
    return folder / QUEUE / f"{name}.toml" if name else folder / EXPERIMENT


def locate_run(folder: Path, name: str) -> Path:
    """The folder of its run."""
    return folder / RUNS / name if name else folder / RUN


def list_queue(folder: Path) -> list[str]:
    """The names of all experiments, in order."""
    return [FIRST, *sorted(path.stem for path in (folder / QUEUE).glob("*.toml"))]


def list_waiting(folder: Path) -> list[str]:
    """Those that are not over."""
    return [n for n in list_queue(folder) if read_status(locate_run(folder, n)) not in OVER]


def find_current_run(folder: Path) -> Path:
    """The run that is played now, else the last one."""
    begun = [n for n in list_queue(folder) if read_status(locate_run(folder, n))]
    open_ones = [n for n in begun if n in list_waiting(folder)]
    return locate_run(folder, (open_ones or begun or [FIRST])[-1])


def submit(folder: Path, name: str, text: str, check: Callable[[Path, str], object]) -> str:
    """Put an experiment at the end of the queue if it can be read as one; its name there."""
    check_name(name)
    known = list_queue(folder)[1:]
    if taken := [one for one in known if one.partition("-")[2] == name]:
        raise BadInput(f"{folder / QUEUE} has {taken[0]} already: give another name")
    numbers = [int(one.partition("-")[0]) for one in known if one.partition("-")[0].isdecimal()]
    full = f"{max(numbers, default=0) + 1:03}-{name}"
    path = locate_experiment(folder, full)
    path.parent.mkdir(exist_ok=True)
    write_text(path, text)
    try:
        check(folder, full)
    except BaseException:
        path.unlink()
        raise
    return full


def play_queue(
    folder: Path,
    play: Callable[[str], object],  # an experiment of the queue; NotAgreed where a site refuses
    done: Callable[[Path], None],  # hears of every run that is over
    say: LogLine,
    stay: bool = False,  # wait for more when all are over
) -> None:
    """Play what is not over, and what is submitted meanwhile."""
    waiting = list_waiting(folder) or ([] if stay else [FIRST])  # whose models are given again
    while waiting or stay:
        before = len(waiting)
        for name in waiting:
            note = _locate_note(folder, name)
            try:
                play(name)
            except NotAgreed as refused:
                if not note.exists() or note.read_text(encoding="utf-8") != str(refused):
                    write_text(note, str(refused))
                    say(f"{name or EXPERIMENT} waits: {refused}")
                continue
            note.unlink(missing_ok=True)
            done(locate_run(folder, name))
        waiting = list_waiting(folder)
        if len(waiting) >= before:
            time.sleep(AGAIN_SECONDS)


def _locate_note(folder: Path, name: str) -> Path:
    """The file that says why an experiment waits."""
    path = locate_experiment(folder, name)
    return path.with_name(f"{path.stem}.waits")


# For a person


def describe_queue(folder: Path, digest: Callable[[str], str]) -> list[str]:
    """A line for each experiment of a server."""
    lines = []
    for name in list_queue(folder):
        status = read_status(locate_run(folder, name)) or "waiting"
        lines.append(f"{name or EXPERIMENT}: {status}, {digest(name)}")
        if (note := _locate_note(folder, name)).exists():
            lines.append(f"  {note.read_text(encoding='utf-8')}")
    return lines


def describe_offers(folder: Path) -> list[str]:
    """The same for a site: what it was offered, what was agreed to and by whom, what it says."""
    events, site = read_audit(folder / AUDIT), read_site(folder)
    found = dict.fromkeys(
        [e["experiment"] for e in events if e["event"] in (OFFERED, AGREED)] + site.site.agreed
    )
    lines = []
    for experiment in found:
        mine = [e for e in events if e.get("experiment") == experiment]
        runs = len({e["run"] for e in mine if e["event"] == BEGUN})
        by = [e["by"] for e in mine if e["event"] == AGREED]
        times = max(site.site.agreed.count(experiment), len(by))
        who = f"agreed to by {' and '.join(dict.fromkeys(by)) or 'operator'}"
        state = f"{who}, {runs} of {times} runs begun" if times else "waits for you"
        lines.append(f"{experiment}: {state}")
        lines += [f"  {e['words']}" for e in mine if e["event"] == OFFERED]
    return lines
