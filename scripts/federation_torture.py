"""What a real federation must bear: strangers at the gate, dishonest uploads, slow and killed
sites, a killed server.

    python scripts/federation_torture.py [FOLDER]

One TLS federation of four sites on this machine trains Ditto while all this happens to it; at the
end the journal of who answered is played again by the local engine and must give the sites' models.
A line a trial; the exit code is the number that failed.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from coterie.cli.main import cli, main
from coterie.deploy import certificates as keys
from coterie.deploy.files import RUN, Rules, read_server, write_server
from coterie.deploy.processes import free_port
from coterie.deploy.rehearsal import Rehearsal, write_digits
from coterie.deploy.replay import journal

NAMES = ("east", "north", "south", "west")
DEADLINE = 25.0
ROUNDS = 30


def rogue(fault: str) -> None:
    """Run `coterie` with one fault in it: uploads of NaN or of a wrong shape, or messages of
    another schema.
    """
    from coterie.deploy import site, wire

    honest = site.protect
    spoilt = {"nan": lambda t: t * float("nan"), "shape": lambda t: torch.cat([t, t])}
    if fault == "schema":
        wire.SCHEMA += 1
    else:
        site.protect = lambda *given: pytree.tree_map(spoilt[fault], honest(*given))
    main()


class Trials:
    """Trials and their outcomes."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, name: str, check: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            said = check()
            print(f"ok    {name} ({time.monotonic() - begin:.0f} s): {said}", flush=True)
        except Exception as problem:  # the other trials go on
            self.failed.append(name)
            print(f"FAIL  {name}: {problem}", flush=True)


def refused(town: Rehearsal, name: str, mine: str, theirs: str, *options: str) -> str:
    """A site that must end with exit code 2 and one clear line, and be told of by the server."""
    after = len(town.lines["server"])
    code = town.site(name, *options).wait()
    town.running.pop(name)
    line = next((line for line in town.lines[name] if line.startswith("coterie:")), "")
    if code != 2 or mine not in line:
        raise AssertionError(f"exit code {code}, said {town.lines[name][-3:]}")
    if theirs:
        town.until("server", theirs, 20, after)
    return line


def strangers(town: Rehearsal, trial: Trials) -> None:
    """Before the run: who has no business here is kept out."""
    place = town.folder / "sites" / "west"
    own = {name: (place / name).read_bytes() for name in (keys.CA, keys.SITE_KEY)}
    with tempfile.TemporaryDirectory() as other:
        keys.make_site_key(Path(other), "west")
        keys.make_authority(Path(other) / "authority")
        (place / keys.SITE_KEY).write_bytes((Path(other) / keys.SITE_KEY).read_bytes())
        trial(
            "a wrong key",
            lambda: refused(
                town, "west", "does not know this site's key", "has a key that no site"
            ),
        )
        (place / keys.SITE_KEY).write_bytes(own[keys.SITE_KEY])
        (place / keys.CA).write_bytes((Path(other) / "authority" / keys.CA).read_bytes())
        trial(
            "another authority",
            lambda: refused(
                town, "west", "certificate is not accepted", "does not trust this server"
            ),
        )
    (place / keys.CA).unlink()
    trial("no certificate", lambda: refused(town, "west", f"{keys.CA} is missing", ""))
    (place / keys.CA).write_bytes(own[keys.CA])
    trial("plaintext", lambda: refused(town, "west", "leave --insecure out", "", "--insecure"))


def dishonest(town: Rehearsal, trial: Trials) -> None:
    """West speaks another schema, then sends what cannot be used, then mends its ways."""
    command = [sys.executable, __file__, "--rogue"]

    def bad(fault: str, theirs: str, mine: str) -> str:
        after = len(town.lines["server"])
        town.site("west", command=[*command, fault])
        said = town.until("server", theirs, 120, after)
        if mine:
            town.until("west", mine, 30)
        town.stop("west")
        return said

    trial("another schema", lambda: bad("schema", "schema", "schema"))
    for name in NAMES[:3]:
        town.site(name)
    town.site("west")
    town.until("server", "round 1 of", 240)
    town.stop("west")
    trial("a NaN upload", lambda: bad("nan", "west is left out: its upload has NaN", ""))
    trial("a wrongly shaped upload", lambda: bad("shape", "west is left out: its upload has", ""))
    trial("the site mends its ways", lambda: back(town, "west", lambda: town.site("west")))


def back(town: Rehearsal, name: str, bring: Callable[[], object]) -> str:
    """A site that is brought back is among those who answer, soon."""
    folder, number = town.folder / "server" / RUN, NAMES.index(name)
    before = len(journal(folder))
    bring()
    until = time.monotonic() + 180
    while time.monotonic() < until:
        for line in journal(folder)[before:]:
            if number in line["answered"]:
                return f"answers again in round {line['round'] + 1}"
        time.sleep(0.5)
    raise AssertionError(
        f"{name} is not among those who answered: {[line['answered'] for line in journal(folder)]}"
    )


def slow(town: Rehearsal) -> str:
    """A site that stands still past the deadline is left out, and taken back."""
    after = len(town.lines["server"])
    os.kill(town.running["north"].pid, signal.SIGSTOP)
    try:
        left = town.until("server", ": north ", 6 * DEADLINE, after)
    finally:
        os.kill(town.running["north"].pid, signal.SIGCONT)
    return f"{left[9:100]}...; {back(town, 'north', lambda: None)}"


def killed(town: Rehearsal) -> str:
    """A site that is killed in the middle of a round comes back with its state."""
    log = town.folder / "sites" / "south" / "flower" / "supernode.log"
    before = log.read_text().count("Receiving: train message")
    while log.read_text().count("Receiving: train message") == before:
        time.sleep(0.05)
    town.kill("south")
    time.sleep(3)
    said = back(town, "south", lambda: town.site("south"))
    if any(2 in line["anew"] for line in journal(town.folder / "server" / RUN)):
        raise AssertionError("it had lost its state")
    return said


def server_killed(town: Rehearsal) -> str:
    """A server that is killed goes on from its checkpoint, and the sites follow."""
    town.kill("server")
    time.sleep(3)
    town.server()
    return town.until("server", "going on after round", 240)[9:]


def same(town: Rehearsal) -> str:
    """The run ends, and the local engine makes the same models of its journal."""
    if town.running["server"].wait():
        raise AssertionError(town.lines["server"][-3:])
    difference = town.difference(town.folder / "server" / RUN)
    if difference > 1e-5:
        raise AssertionError(f"the models differ by {difference:.1e}")
    return f"the models differ by at most {difference:.1e}"


def torture(folder: Path) -> int:
    """All trials; the number that failed."""
    write_digits(folder / "rows", NAMES, rows=80)
    place = folder / "federation"
    words = [
        "--method",
        "ditto",
        "--model",
        "mlr",
        "--rounds",
        str(ROUNDS),
        "--evaluate",
        str(ROUNDS),
    ]
    sites = [
        "--sites",
        ",".join(NAMES),
        "--address",
        f"localhost:{free_port()}",
        "--classes",
        "10",
        "--features",
        "64",
    ]
    cli(["federation", "init", str(place), *sites, *words], standalone_mode=False)
    server = read_server(place / "server")
    write_server(place / "server", server._replace(rules=Rules(needed=0.5, deadline=DEADLINE)))
    trial = Trials()
    with Rehearsal(place, folder / "rows") as town:
        town.server()
        town.until("server", "listening on")
        strangers(town, trial)
        dishonest(town, trial)
        trial("a slow site", lambda: slow(town))
        trial("a killed site", lambda: killed(town))
        trial("a killed server", lambda: server_killed(town))
        trial("the end", lambda: same(town))
    print(f"{len(trial.failed)} trials failed" + "".join(f"; {name}" for name in trial.failed))
    return len(trial.failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rogue"]:
        fault = sys.argv[2]
        sys.argv[1:3] = []
        rogue(fault)
    else:
        sys.exit(
            torture(
                Path(sys.argv[1])
                if len(sys.argv) > 1
                else Path(tempfile.mkdtemp(prefix="coterie-torture-"))
            )
        )
