"""What a deployment must bear: strangers at the gate, dishonest uploads, slow and killed
sites, a killed server.

    python scripts/federation_torture.py [FOLDER] [--busy 8] [--markdown PAGE]

One TLS deployment of four sites on this machine trains Ditto while all this happens to it; at the
end the journal of who answered is played again by the local engine and must give the sites' models.
A line per trial, a table of all at the end; the exit code is the number that failed. --markdown
writes the table into docs/reliability.md, one for a quiet machine and one for --busy.
"""

import argparse
import json
import math
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torture import busy

from coterie.cli.main import cli, main
from coterie.data.federation import PARTS
from coterie.deploy import certificates as keys
from coterie.deploy.config_files import RUN, Rules, read_server, write_server
from coterie.deploy.processes import find_free_port
from coterie.deploy.rehearsal import Rehearsal, write_digits
from coterie.deploy.replay import read_exchanges

NAMES = ("north", "south", "east", "west")  # not in the order of their files
DEADLINE = 25.0
ROUNDS = 300  # the trials take some 140, on a busy machine too: both get longer alike
IMPORTS = 4.0  # seconds that four new processes take on a quiet machine of two cores
HALF_OPEN, LARGE = 491, 199_000_000  # connections that say nothing; bytes of a body without a key


def _says(**settings: object) -> Callable:
    return lambda frame: frame._replace(head=json.dumps(json.loads(frame.head) | settings))


def _error(frame):
    """The reply of a site that failed, in words that would draw on the server's terminal."""
    worked = ("token", "effort", "notes")
    head = {k: v for k, v in json.loads(frame.head).items() if k not in worked}
    return frame._replace(head=json.dumps(head | {"error": "a\nb\x1b[2J", "name": "north"}))


def _short(frame):
    """A table shorter than its tree, bytes and digest to match."""
    from coterie.deploy.wire import DTYPES, digest

    head = json.loads(frame.head)
    *kept, (kind, shape) = head["table"]
    body = frame.body[: -math.prod(shape) * DTYPES[kind].itemsize]
    head |= {"table": kept, "digest": digest(body)}
    return frame._replace(head=json.dumps(head), body=body)


def _endless(frame):
    head = json.loads(frame.head)
    head["table"][0][1] = [math.inf]
    return frame._replace(head=json.dumps(head))


def _unreferred(frame):
    """150 MB that the tree does not refer to."""
    from coterie.deploy.wire import digest

    head, body = json.loads(frame.head), frame.body + bytes(150_000_000)
    head["table"].append(["uint8", [150_000_000]])
    return frame._replace(head=json.dumps(head | {"digest": digest(body)}), body=body)


def _nested(frame):
    """A tree of 20,000 lists inside each other."""
    head = json.loads(frame.head)
    head["tree"] = "TREE"
    deep = '{"list": [' * 20_000 + '{"value": 0}' + "]}" * 20_000
    return frame._replace(head=json.dumps(head).replace('"TREE"', deep))


def _twice(frame):
    """The same word twice, first harmless, then not."""
    return frame._replace(head=frame.head[:-1] + ', "seconds": 1e999}')


def _changed(change):
    """Every array of an upload changed, its table and digest to match."""
    from coterie.deploy.wire import digest, unpack

    def spoilt(frame):
        content = unpack(frame)
        arrays = [change(t) for t in content.tensors.values()]
        body = b"".join(t.numpy().tobytes() for t in arrays)
        kinds = [kind for kind, _ in content.head["table"]]
        table = [[kind, list(t.shape)] for kind, t in zip(kinds, arrays, strict=True)]
        head = content.head | {"table": table, "digest": digest(body)}
        return frame._replace(head=json.dumps(head), body=body)

    return spoilt


HOSTILE = {  # what a site with a valid key answers, and what the server says of it
    "a table shorter than its tree": (_short, "arrays"),
    "a shape of infinity": (_endless, "side of inf"),
    "a number of 400 digits": (_says(seconds=10**400), "seconds"),
    "150 MB that nobody refers to": (_unreferred, "its reply has more than"),
    "100,000 notes": (_says(notes={f"n{k}": 1 for k in range(100_000)}), "its head has"),
    "a note of NaN under a name of its own": (_says(notes={"x": math.nan}), "note 'x'"),
    "negative effort": (_says(effort=[-1, -1]), "what its work took"),
    "an error of escapes and new lines": (_error, "a b"),
    "an upload of NaN": (_changed(lambda t: t * math.nan), "its upload has NaN"),
    "an upload of a wrong shape": (_changed(lambda t: torch.cat([t, t])), "was expected"),
    "an upload far from the others": (_changed(lambda t: 1e4 * t), "the median of the round"),
    "20,000 lists inside each other": (_nested, "recursion depth"),
    "a word twice, infinite the second time": (_twice, "worked inf seconds"),
}
HELLO = {  # what it says of itself, and what the server says of it
    "10^12 rows": (_says(rows=dict.fromkeys(PARTS, 10**12)), "1000000000000 rows to train"),
    "rows of minus one": (_says(rows=dict.fromkeys(PARTS, -1)), "-1 rows to train"),
    "the name of another site": (_says(name="north"), "has the key of 'west'"),
    "a version of 10,000 characters": (_says(version="9" * 10_000), "its version is"),
}


def rogue(fault: str) -> None:
    """Run `coterie` with a fault in it: messages of another schema, or every lie and every hostile
    reply there is, one after another.
    """
    from coterie.deploy import site, wire

    if fault == "schema":
        wire.SCHEMA += 1
        main()
        return
    answer = site.Site.answer
    left = [change for change, _ in (HELLO if fault == "hello" else HOSTILE).values()]

    def spoilt(self, frame):
        reply = answer(self, frame)
        kind = json.loads(frame.head).get("kind")
        if fault == "hostile" and kind == "evaluate":
            return _says(values=[["personal", "test", "accuracy", 500]])(reply)
        lies = kind == ("hello" if fault == "hello" else "train") and left
        return left.pop(0)(reply) if lies else reply

    site.Site.answer = spoilt
    main()


class Trial(NamedTuple):
    """One trial and how it went."""

    name: str
    ok: bool
    seconds: float
    said: str


class Trials:
    """Trials and their outcomes."""

    def __init__(self) -> None:
        self.all: list[Trial] = []

    def __call__(self, name: str, check: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            said, ok = check(), True
        except Exception as problem:  # the other trials go on
            said, ok = problem, False
        line = " ".join(str(said).split())
        self.all.append(Trial(name, ok, time.monotonic() - begin, line))
        print(f"{'ok  ' if ok else 'FAIL'}  {name}: {line}", flush=True)

    @property
    def failed(self) -> list[str]:
        return [trial.name for trial in self.all if not trial.ok]

    def table(self) -> str:
        """All trials as a table of Markdown."""
        rows = [
            f"| {t.name} | {'held' if t.ok else 'FAILED'} | {t.seconds:.0f} | {_plain(t.said)} |"
            for t in self.all
        ]
        head = ["| trial | outcome | seconds | what was said |", "|---|---|---|---|"]
        return "\n".join([*head, *rows]) + "\n"


def _plain(said: str) -> str:
    """Words that fit a table, with no folder of this machine."""
    return re.sub(r"/\S*/(\w)", r"FOLDER/\1", said[:200].replace("|", "/"))


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
    """West speaks another schema, then lies when it is greeted; at last all sites come."""
    for fault, settings in (("schema", {"another schema": "schema"}), ("hello", lies())):
        after = len(town.lines["server"])
        town.site("west", command=[sys.executable, __file__, "--rogue", fault])
        for name, said in settings.items():
            trial(name, lambda said=said: town.until("server", said, 180, after))
        town.stop("west")
    for name in NAMES:
        town.site(name)
    town.until("server", "round 1 of", 240)


def lies() -> dict[str, str]:
    """What the server says of each lie."""
    return {f"a hello of {name}": settings for name, (_, settings) in HELLO.items()}


def hostile(town: Rehearsal, trial: Trials) -> None:
    """West has a valid key and sends what could stop a server or bend its numbers."""
    town.stop("west")
    after = len(town.lines["server"])
    town.site("west", command=[sys.executable, __file__, "--rogue", "hostile"])
    for name, (_, settings) in HOSTILE.items():
        trial(name, lambda settings=settings: left_out(town, settings, after))
    trial("an accuracy of 500", lambda: left_out(town, "500 as the accuracy", after))
    town.stop("west")
    trial("the site is honest again", lambda: back(town, "west", lambda: town.site("west")))


def left_out(town: Rehearsal, settings: str, after: int) -> str:
    """The server leaves out west, says why in one plain line, and blames nobody else."""
    line = town.until("server", settings, 180, after)
    if ": west " not in line or not line.isprintable():
        raise AssertionError(f"the server said {line!r}")
    return line[9:]


def besieged(town: Rehearsal) -> str:
    """Half-open connections and bodies of strangers keep no site out of the next two rounds."""
    host, _, port = read_server(town.folder / "server").server.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(town.folder / "authority" / keys.CA))
    folder = town.folder / "server" / RUN
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port)), 30))

        for number in range(HALF_OPEN):
            plain = connect()
            with suppress(OSError):  # the gate may have ended it
                if number % 10 == 0:
                    secured = stack.enter_context(context.wrap_socket(plain, server_hostname=host))
                    secured.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n")
        for _ in range(4):
            with suppress(OSError):
                large = stack.enter_context(context.wrap_socket(connect(), server_hostname=host))
                head = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: "
                large.sendall(f"{head}{LARGE}\r\n\r\n".encode())
                large.sendall(bytes(2**20))
        before, until = len(read_exchanges(folder)), time.monotonic() + 240 * town.patience
        while len(read_exchanges(folder)) < before + 2:
            if time.monotonic() > until:
                raise AssertionError("no round was done meanwhile")
            time.sleep(0.5)
    answered = [line["answered"] for line in read_exchanges(folder)[before:]]
    if any(len(who) < len(NAMES) for who in answered):
        raise AssertionError(f"sites were kept out: {answered}")
    return f"all {len(NAMES)} sites answered in {len(answered)} rounds meanwhile"


def back(town: Rehearsal, name: str, bring: Callable[[], object]) -> str:
    """A site that is brought back is among those who answer, soon."""
    folder, number = town.folder / "server" / RUN, NAMES.index(name)
    before = len(read_exchanges(folder))
    bring()
    until = time.monotonic() + 180 * town.patience
    while time.monotonic() < until:
        for line in read_exchanges(folder)[before:]:
            if number in line["answered"]:
                return f"answers again in round {line['round'] + 1}"
        time.sleep(0.5)
    raise AssertionError(
        f"{name} is not among those who answered: "
        f"{[line['answered'] for line in read_exchanges(folder)]}"
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
    town.until("server", "round ", 120, len(town.lines["server"]))  # the next begins at once
    town.kill("south")
    time.sleep(3)
    said = back(town, "south", lambda: town.site("south"))
    if any(
        NAMES.index("south") in line["anew"]
        for line in read_exchanges(town.folder / "server" / RUN)
    ):
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


def pace() -> float:
    """How many times longer than on a quiet machine the processes of one exchange take here."""
    begin = time.monotonic()
    some = [subprocess.Popen([sys.executable, "-c", "import flwr.app"]) for _ in range(4)]
    for process in some:
        process.wait()
    return max(1.0, (time.monotonic() - begin) / IMPORTS)


def put(page: Path, table: str, beside: int, load: float) -> None:
    """Write the table between its marks in a page; that of a busy machine has its own."""
    name = "federation torture, busy" if beside else "federation torture"
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text(encoding="utf-8") if page.exists() else "# Reliability\n"
    if begin not in text:
        text += f"\n{begin}\n{end}\n"
    before, rest = text.split(begin)
    command = "make federation-torture"
    if beside:
        command = f"python scripts/federation_torture.py --busy {beside} --markdown {page}"
    when = f"{time.strftime('%Y-%m-%d')}; {os.cpu_count()} cores, load average {load:.0f}"
    said = f"`{command}` ({when}):\n\n{table}"
    page.write_text(f"{before}{begin}\n{said}{end}{rest.split(end)[1]}", encoding="utf-8")


def torture(folder: Path, rounds: int, patience: float) -> Trials:
    """All trials."""
    write_digits(folder / "rows", NAMES, rows=80)
    place = folder / "federation"
    settings = [
        "--method",
        "ditto",
        "--model",
        "mlr",
        "--rounds",
        str(rounds),
        "--eval-every",
        "8",
    ]
    sites = [
        "--sites",
        ",".join(NAMES),
        "--address",
        f"localhost:{find_free_port()}",
        "--classes",
        "10",
        "--features",
        "64",
    ]
    cli(["federation", "init", str(place), *sites, *settings], standalone_mode=False)
    server = read_server(place / "server")
    rules = Rules(needed=0.5, deadline=DEADLINE * patience)
    write_server(place / "server", server._replace(rules=rules))
    trial = Trials()
    with Rehearsal(place, folder / "rows", patience=patience) as town:
        town.server()
        town.until("server", "listening on")
        strangers(town, trial)
        dishonest(town, trial)
        hostile(town, trial)
        trial("half-open connections and large bodies", lambda: besieged(town))
        trial("a slow site", lambda: slow(town))
        trial("a killed site", lambda: killed(town))
        trial("a killed server", lambda: server_killed(town))
        trial("the end", lambda: same(town))
    print(trial.table())
    print(f"{len(trial.failed)} trials failed" + "".join(f"; {name}" for name in trial.failed))
    return trial


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="What a real federation must bear.")
    parser.add_argument("folder", type=Path, nargs="?", help="default: a new temporary folder")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="long enough for all trials")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside the trials")
    parser.add_argument("--markdown", type=Path, help="page whose table is written anew")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rogue"]:
        fault = sys.argv[2]
        sys.argv[1:3] = []
        rogue(fault)
    else:
        given = arguments()
        place = given.folder or Path(tempfile.mkdtemp(prefix="coterie-torture-"))
        with busy(given.busy):
            patience = pace()
            print(f"waiting {patience:.1f} times as long as on a quiet machine", flush=True)
            trials = torture(place, given.rounds, patience)
            load = os.getloadavg()[2]
        if given.markdown:
            put(given.markdown, trials.table(), given.busy, load)
        sys.exit(len(trials.failed))
