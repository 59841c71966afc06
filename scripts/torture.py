"""Kill runs at random moments, damage what they left, and see that nothing is lost or silent.

`make torture` prints one line per trial and a closing table; --markdown writes the table into
docs/reliability.md. A trial that kills a run plays it again without interruption, in the way that
was chosen (path, width, compilation, threads), and compares every model and every measured number
bit by bit. Three small commands are killed at every change that they make to files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from kill_points import RUNS, Killed, kill_everywhere, watch_changes

from coterie.cli.main import main

SMALL = (
    "--num-clients 4 --rows 240 --hidden 8 --batch-size 8 --rounds 12 --eval-every 3 --checkpoint 1"
)
FIXED = "--path vectorized --width 20 --compile no --threads 1"
PUBLIC = "--public held-out --public-rows 60"
METHODS = {
    "fedavg": "",
    "ditto": "--participation 0.5 --dropout-clients 0.2",
    "pfedme": "",
    "persfl": "--distil-epochs 2",
    "pfml": "",
    "ktpfl": f"{PUBLIC} --draw 40 --public-batch-size 20",
    "selffl": "--participation 0.5",
    "ucfl": "",
    "apfl": "",
    "fedamp": "",
    "fedfomo": "",
    "pfedhn": "",
    "scaffold": "--momentum 0.5",
    "perfedavg": "",
    "ifca": "",
    "fedrep": "",
}


class Trial(NamedTuple):
    """One fault, and what came of it."""

    fault: str
    outcome: str
    good: bool


# Commands in children of this process: torch is imported once


def _child(arguments: list[str], log: Path, before: Callable[[], Callable[[], None]]) -> None:
    """Run a command of coterie with its output in a file; `before` it gives what is done after."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    sys.argv = ["coterie", *arguments]
    after = before()
    try:
        main()
    finally:
        after()


def load_modules(folder: Path) -> None:
    """Run a small command here, so that no child has to load its modules again."""
    settings = (
        f"compare --methods local,ditto --newcomers 0.3 {SMALL} {FIXED} --rounds 1 --no-report"
    )
    sys.argv = ["coterie", *settings.split(), "--quiet", "--out", str(folder)]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()


def nothing() -> Callable[[], None]:
    """What is done before and after a command that is only run."""
    return lambda: None


Before = Callable[[], Callable[[], None]]


def begin(line: str, log: Path, before: Before = nothing) -> multiprocessing.process.BaseProcess:
    """Start a command."""
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(line.split(), log, before)
    )
    process.start()
    return process


def command(line: str, log: Path, seconds: float = 900.0, before: Before = nothing) -> int:
    """Run a command to its end; its exit code."""
    process = begin(line, log, before)
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return 124
    return int(process.exitcode or 0)


def killed(line: str, log: Path, after: float) -> bool:
    """SIGKILL a command after some seconds; False if it had ended by then."""
    process = begin(line, log)
    process.join(after)
    alive = process.is_alive()
    if alive:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return alive


# What must not change


def results(run: Path) -> tuple[dict[str, bytes], list[tuple[object, ...]]]:
    """Every model, byte by byte, and every measured number but the seconds, bit by bit."""
    table = pq.read_table(run / "metrics.parquet")
    table = table.filter(pc.field("metric") != "seconds")
    columns = [
        table[name].cast("string").to_pylist() for name in ("stage", "view", "part", "metric")
    ]
    numbers = [table["round"].to_pylist(), table["client"].to_pylist()]
    bits = table["value"].to_numpy().view(np.int64).tolist()
    models = {p.name: p.read_bytes() for p in sorted((run / "models").glob("*.safetensors"))}
    return models, list(zip(*columns, *numbers, bits, strict=True))


def runs_of(folder: Path) -> list[Path]:
    """The run folders in a folder, itself included, tuning tries left out."""
    found = [p.parent for p in folder.rglob("run.json")]
    return sorted(p for p in found if "tuning" not in p.relative_to(folder).parts)


def same_again(run: Path, log: Path) -> bool:
    """Whether the run's own words, played without interruption, give the same."""
    again = run.with_name(f"{run.name}-again")
    if command(f"run --config {run / 'config.toml'} --quiet --out {again}", log):
        return False
    return results(run) == results(again)


# Kills


def lines(chance: random.Random) -> Iterator[tuple[str, str]]:
    """(what, command line) without end: single runs, comparisons and tuning, fixed and auto."""
    names = list(METHODS)
    k = 0
    while True:
        name = names[k % len(names)]
        way = FIXED if k % 3 else "--threads 1"  # a third with `auto` settings
        label = "fixed" if k % 3 else "auto"
        if k % 10 == 7:
            settings = f"--methods fedavg,ditto --seeds 2 {SMALL} {way} --no-report --quiet"
            yield f"compare, {label}", f"compare {settings}"
        elif k % 10 == 9:
            tune = "--tune ditto.lam=0.1,1 --methods local,ditto"
            yield f"tune, {label}", f"compare {tune} {SMALL} {way} --no-report --quiet"
        else:
            own = f"{METHODS[name]} --seed {chance.randrange(100)}"
            yield f"{name}, {label}", f"run {name} {own} {SMALL} {way} --quiet"
        k += 1


def kill_trial(what: str, line: str, folder: Path, chance: random.Random) -> Trial:
    """Kill a command one to three times, resume it each time, and compare with no interruption."""
    log, place = folder / "log.txt", folder / "run"
    times, hits = chance.choice((1, 1, 2, 3)), 0
    share = 1.0
    while not hits:  # a command that had ended before its kill is tried again, and killed earlier
        shutil.rmtree(place, ignore_errors=True)
        whole = share * _duration(line, folder)
        for k in range(times):
            moment = whole * chance.uniform(0.02, 0.95) / (k + 1)
            hits += killed(_go_on(line, place), log, moment)
        share /= 2
    code = command(_go_on(line, place), log)
    if code:
        return Trial(f"killed: {what}", f"resume ended with {code}: {_last(log)}", False)
    same = all(same_again(run, log) for run in runs_of(place))
    count = "once" if hits == 1 else f"{hits} times"
    return Trial(f"killed {count}: {what}", "identical" if same else "differs", same)


def _go_on(line: str, place: Path) -> str:
    """The command that begins a run, or goes on with it where it wrote down its words."""
    if (place / _plan(line)).exists():
        return f"resume {place} --quiet"
    shutil.rmtree(place, ignore_errors=True)
    return f"{line} --out {place}"


def _plan(line: str) -> str:
    return "comparison.toml" if line.startswith("compare") else "config.toml"


_times: dict[str, float] = {}


def _duration(line: str, folder: Path) -> float:
    """Seconds that a command of this kind takes; measured once per method or kind."""
    key = " ".join(line.split()[:3])
    if key not in _times:
        start = time.monotonic()
        command(f"{line} --out {folder / 'timed'}", folder / "timed.txt")
        _times[key] = time.monotonic() - start
        shutil.rmtree(folder / "timed", ignore_errors=True)
    return _times[key]


def everywhere_trials(folder: Path, chance: random.Random) -> Iterator[Trial]:
    """Three small commands killed at every change that they make to files."""

    def run_command(line: str, place: Path, tally: Path, last: int) -> int:
        log = place.with_suffix(".txt")
        return command(line, log, before=lambda: watch_changes(place, last, tally))

    def same(one: Path, two: Path) -> bool:
        names = [run.relative_to(two) for run in runs_of(two)]
        if [run.relative_to(one) for run in runs_of(one)] != names:
            return False
        return all(results(one / name) == results(two / name) for name in names)

    for what, line in RUNS.items():
        place = _new(folder, f"everywhere-{what.replace(' ', '-')}")
        found = Killed(0, 0, ["not tried"])
        for found in kill_everywhere(line, place, run_command, _go_on, same, chance):
            if found.failures:
                break
        killed_ = f"{what}: killed {found.hits:,} times, at each of {found.points} changes to files"
        good = not found.failures
        yield Trial(killed_, "identical" if good else "; ".join(found.failures), good)


# Damage


def _stopped(folder: Path) -> Path:
    """A run that was killed after some checkpoints."""
    place = folder / "run"
    process = begin(f"run ditto {SMALL} --rounds 60 {FIXED} --quiet --out {place}", folder / "l")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        whole = [p for p in place.glob("checkpoint-*") if not p.name.endswith(".part")]
        if len(whole) >= 2 or (whole and max(p.name for p in whole) > "checkpoint-0000003"):
            break
        time.sleep(0.02)
    process.kill()
    process.join()
    return place


def _newest(place: Path) -> Path:
    return max(p for p in place.glob("checkpoint-*") if not p.name.endswith(".part"))


def _expect(code: int, settings: tuple[str, ...], log: Path, wanted: int = 2) -> tuple[str, bool]:
    text = log.read_text(errors="replace")
    plain = "Traceback" not in text
    good = code == wanted and plain and all(w in text for w in settings)
    return f"exit {code}: {_last(log)}", good


def damage_trials(folder: Path) -> Iterator[Trial]:
    """Damaged checkpoints, changed words, bad rates, full disks."""
    kinds: dict[str, Callable[[Path], object]] = {
        "newest checkpoint cut short": lambda c: os.truncate(c / "state.safetensors", 100),
        "newest checkpoint without its list of files": lambda c: (c / "files.json").unlink(),
        "newest checkpoint's list of files empty": lambda c: (c / "files.json").write_text("{}"),
        "a bit of the newest checkpoint flipped": _flip,
    }
    for k, (fault, damage) in enumerate(kinds.items()):
        place = _stopped(_new(folder, f"damage{k}"))
        damage(_newest(place))
        log = place.parent / "log.txt"
        code = command(f"resume {place} --quiet", log)
        text = log.read_text(errors="replace")
        good = code == 0 and "Traceback" not in text and "checkpoint" in text
        same = good and same_again(place, log)
        yield Trial(fault, f"goes on from the one before, identical: {same}", bool(same))
    place = _stopped(_new(folder, "words"))
    config = place / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    log = place.parent / "log.txt"
    said, good = _expect(command(f"resume {place} --quiet", log), ("lr", "0.1", "0.2"), log)
    yield Trial("rate changed in the config of a stopped run", said, good)
    log = _new(folder, "rate") / "log.txt"
    line = f"run ditto {SMALL} {FIXED} --lr 1e20 --quiet --out {log.parent / 'run'}"
    said, good = _expect(command(line, log), ("round",), log, wanted=3)
    yield Trial("a rate of 1e20", said, good)
    log = _new(folder, "diverges") / "log.txt"
    line = f"compare --methods local,fedavg,ditto --ditto.lr 1e20 {SMALL} {FIXED} --no-report"
    code = command(f"{line} --quiet --out {log.parent / 'run'}", log)
    text = log.read_text(errors="replace")
    good = code == 3 and "Traceback" not in text and "diverged" in text
    yield Trial(
        "one of three methods diverges", "named, and does not win" if good else text[-200:], good
    )
    yield from disk_trials(folder)


def disk_trials(folder: Path) -> Iterator[Trial]:
    """A disk that fills up, where this process may mount one."""
    disk = _new(folder, "disk")
    if os.system(f"mount -t tmpfs -o size=300k tmpfs {disk} 2>/dev/null"):
        yield Trial("a full disk", "not tried: no right to mount one", True)
        return
    try:
        log = folder / "disk.txt"
        code = command(f"run ditto {SMALL} {FIXED} --hidden 64 --quiet --out {disk / 'run'}", log)
        said, good = _expect(code, (str(disk),), log)
        yield Trial("a full disk", said, good)
    finally:
        os.system(f"umount {disk}")


def _flip(checkpoint: Path) -> None:
    path = checkpoint / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _new(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    return place


def _last(log: Path) -> str:
    lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()]
    return lines[-1][:300] if lines else "(nothing)"


# All of it


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that do nothing but use the machine."""

    def spin() -> None:
        while True:
            pass

    some = [
        multiprocessing.get_context("fork").Process(target=spin, daemon=True)
        for _ in range(processes)
    ]
    for process in some:
        process.start()
    try:
        yield
    finally:
        for process in some:
            process.kill()


def markdown(trials: list[Trial], kills: int, beside: int) -> str:
    rows = "\n".join(f"| {t.fault} | {_plain(t.outcome)} |" for t in trials)
    option = f", with {beside} busy processes beside it" if beside else ""
    return (
        f"`make torture` ({time.strftime('%Y-%m-%d')}, {kills} killed commands{option}):\n\n"
        f"| fault | outcome |\n|---|---|\n{rows}\n"
    )


def _plain(text: str) -> str:
    """An outcome that fits a table, with no folder of this machine."""
    return re.sub(r"/\S*/(run|log)\b", r"FOLDER/\1", text.replace("|", "/"))


def put(path: Path, text: str) -> None:
    """Write the table between its marks in a page."""
    begin_, end = "<!-- torture -->", "<!-- end of torture -->"
    page = path.read_text() if path.exists() else f"# Reliability\n\n{begin_}\n{end}\n"
    before, rest = page.split(begin_)
    path.write_text(f"{before}{begin_}\n{text}{end}{rest.split(end)[1]}")


def run_all() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside the trials")
    parser.add_argument("--markdown", type=Path, help="page whose table is written anew")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as place, busy(asked.busy):
        folder = Path(place)
        load_modules(folder / "first")
        for k, (what, line) in zip(range(asked.kills), lines(chance), strict=False):
            trials.append(kill_trial(what, line, _new(folder, f"kill{k}"), chance))
            _tell(trials[-1])
            shutil.rmtree(folder / f"kill{k}", ignore_errors=True)
        for trial in (*everywhere_trials(folder, chance), *damage_trials(folder)):
            trials.append(trial)
            _tell(trial)
    kills = trials[: asked.kills]
    resumed = sum("ended with" not in t.outcome for t in kills)
    same = sum(t.good for t in kills)
    print(f"killed {len(kills)}, resumed {resumed}, identical {same}")
    bad = [t for t in trials if not t.good]
    print(f"{len(trials)} trials, {len(bad)} failed")
    if asked.markdown:
        put(asked.markdown, markdown(trials, asked.kills, asked.busy))
    return 1 if bad else 0


def _tell(trial: Trial) -> None:
    print(f"{'ok  ' if trial.good else 'FAIL'} {trial.fault}: {trial.outcome}", flush=True)


if __name__ == "__main__":
    sys.exit(run_all())
