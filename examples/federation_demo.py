"""A deployment on this machine: one server and four sites as processes that meet over TLS,
each site with a key of its own.

PersFL first. Then the same sites train KT-pFL with two architectures, and one of them is killed in
the middle of a round and brought back. At the end the server's journal of who answered when is
played again by the local engine: the models are the same.

    python examples/federation_demo.py [FOLDER]
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import click

from coterie.cli.main import cli
from coterie.cli.show import show_run
from coterie.deploy.config_files import RUN, Rules, read_server, write_server
from coterie.deploy.processes import find_free_port
from coterie.deploy.rehearsal import Rehearsal, write_digits
from coterie.deploy.replay import measure_overhead, read_exchanges
from coterie.reports.report import write_report
from coterie.results.folder import name_run_folder
from coterie.results.run import load_run

NAMES = ("east", "north", "south", "west")
VICTIM = "south"
METHODS = {
    "persfl": [
        "--rounds",
        "3",
        "--eval-every",
        "3",
        "--hidden",
        "32",
        "--distil-epochs",
        "5",
        "--lambdas",
        "0.25,0.75",
    ],
    "ktpfl": [
        "--rounds",
        "4",
        "--eval-every",
        "4",
        "--model",
        "dnn,mlr",
        "--hidden",
        "32",
        "--draw",
        "100",
    ],
}


def coterie(*words: str) -> None:
    """One command, as it would be typed."""
    print("$ coterie", " ".join(words), flush=True)
    cli(list(words), standalone_mode=False)


def play(rehearsal: Rehearsal, method: str, during: Callable[[Rehearsal], None]) -> Path:
    """Host one run to its end; its folder is kept under the method's name."""
    print(f"$ coterie server {rehearsal.folder / 'server'}", flush=True)
    begin = time.monotonic()
    server = rehearsal.server()
    during(rehearsal)
    if server.wait():
        raise SystemExit(f"the server failed: see {rehearsal.folder / 'server.log'}")
    rehearsal.running.pop("server")
    wall = time.monotonic() - begin
    kept = rehearsal.folder / method
    shutil.move(rehearsal.folder / "server" / RUN, kept)
    lines = read_exchanges(kept)
    training = sum(line["training"] for line in lines)
    rounds = len({(line["stage"], line["round"]) for line in lines})
    each = sum(line["seconds"] for line in lines) / rounds
    print(
        f"{method}: {wall:.0f} s from start to end; {rounds} rounds of {each:.2f} s, "
        f"{len(lines)} exchanges, {training:.1f} s the slowest site's own work"
    )
    for what, found in zip(("an exchange", "a round"), measure_overhead(kept), strict=True):
        print(
            f"{method}: {what} takes {median(found):.2f} s beyond that work (median; "
            f"{min(found):.2f} to {max(found):.2f})"
        )
    print(
        f"{method}: played again by the local engine, parameters differ by at most "
        f"{rehearsal.difference(kept):.1e}"
    )
    return kept


def kill_and_bring_back(rehearsal: Rehearsal) -> None:
    """Kill a site while it works on a round's message, as when its machine goes dark, and start it
    again.
    """
    rehearsal.until("server", "round 1 of")  # and the next one begins at once
    rehearsal.kill(VICTIM)
    print(f"--- {VICTIM} is killed in the middle of a round", flush=True)
    time.sleep(1)
    rehearsal.site(VICTIM)
    print(f"--- {VICTIM} is started again", flush=True)


def demo(folder: Path) -> None:
    """The whole story; everything is left in `folder`."""
    begin = time.monotonic()
    rows, place = folder / "rows", folder / "federation"
    write_digits(rows, NAMES, public=folder / "public.csv")
    sites = [
        "--sites",
        ",".join(NAMES),
        "--address",
        f"localhost:{find_free_port()}",
        "--public",
        str(folder / "public.csv"),
    ]
    coterie(
        "federation",
        "init",
        str(place),
        *sites,
        "--classes",
        "10",
        "--features",
        "64",
        "--method",
        "persfl",
        *METHODS["persfl"],
    )
    server = read_server(place / "server")
    write_server(place / "server", server._replace(rules=Rules(needed=0.5, deadline=40.0)))
    with Rehearsal(
        place, rows, lambda who, line: print(f"{who:>6} | {line}", flush=True)
    ) as rehearsal:
        join(rehearsal)
        runs = [play(rehearsal, "persfl", lambda rehearsal: None)]
        write_experiment(place, "ktpfl")
        rehearsal.stop(*NAMES)
        join(rehearsal)  # a site agrees to every experiment anew
        runs.append(play(rehearsal, "ktpfl", kill_and_bring_back))
    for run in runs:
        show_run(load_run(run))
    print(f"who answered: {', '.join(str(line['answered']) for line in read_exchanges(runs[-1]))}")
    print(f"report: {write_report(runs, folder / 'report.html')}")
    print(f"all of it took {time.monotonic() - begin:.0f} s")


def join(rehearsal: Rehearsal) -> None:
    """Start every site; its operator agrees to the experiment that the server shows."""
    for name in NAMES:
        place, rows = rehearsal.folder / "sites" / name, rehearsal.files / f"{name}.csv"
        print(f"$ coterie site {place} --data {rows} --accept", flush=True)
        rehearsal.site(name)


def write_experiment(place: Path, method: str) -> None:
    """Another experiment for the same server."""
    from coterie.cli.deployment import build_experiment_file
    from coterie.cli.options import parse_arguments

    (place / "server" / "experiment.toml").write_text(
        build_experiment_file(None, method, parse_arguments(METHODS[method])[1])
    )
    print(f"--- {place / 'server' / 'experiment.toml'} now says {method}", flush=True)


if __name__ == "__main__":
    try:
        demo(
            Path(sys.argv[1])
            if len(sys.argv) > 1
            else name_run_folder(Path("runs"), "federation-demo")
        )
    except click.ClickException as problem:
        raise SystemExit(problem.format_message()) from None
