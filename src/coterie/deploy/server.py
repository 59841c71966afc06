"""The server of a deployment: one process with the gate, the mailbox behind it, and the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from coterie.core.errors import BadInput, Diverged
from coterie.deploy import certificates as keys
from coterie.deploy.authentication import Members
from coterie.deploy.config_files import (
    KEYS,
    ServerConfig,
    is_loopback,
    read_server,
    split_address,
)
from coterie.deploy.consent import digest_of
from coterie.deploy.gate import Gate
from coterie.deploy.mailbox import Mailbox
from coterie.deploy.metrics import HealthCheck, Metric, MetricsServer, collect_run_metrics
from coterie.deploy.processes import stoppable
from coterie.deploy.queue import FIRST, find_current_run, list_waiting, locate_run, play_queue
from coterie.deploy.server_app import (
    ask_statistics,
    build_logger,
    check_unchanged_options,
    play,
    read_server_plan,
)
from coterie.running.progress import lock_folder

FIRST_NODE = 100  # Flower's number of the first site
LOOK_SECONDS = 5.0  # seconds between two looks at the keys folder
LogLine = Callable[[str], None]


def serve_deployment(
    folder: Path,
    insecure: bool,
    say: LogLine,
    metrics: tuple[str, int] | None = None,  # where health and numbers are told
    done: Callable[[Path], None] = lambda run: None,  # hears of every run that is over
    stay: bool = False,  # wait for more experiments
) -> None:
    """Host a deployment until all its experiments are over. Started again, it goes on where it
    was.
    """
    folder = folder.absolute()

    def work(mailbox: Mailbox, place: Path, log: LogLine) -> None:
        def play_one(name: str) -> None:
            play(mailbox, place, log, name)

        play_queue(place, play_one, done, log, stay)

    _host(folder, insecure, say, work, metrics)


def serve_statistics(folder: Path, insecure: bool, say: LogLine) -> list[str]:
    """Host a deployment until its sites have told of their columns; lines that say what."""
    lines = list[str]()

    def work(mailbox: Mailbox, place: Path, log: LogLine) -> None:
        lines.extend(ask_statistics(mailbox, place, log))

    _host(folder.absolute(), insecure, say, work)
    return lines


def _host(
    folder: Path,
    insecure: bool,
    say: LogLine,
    work: Callable[[Mailbox, Path, LogLine], object],  # what is done with the sites
    metrics: tuple[str, int] | None = None,
) -> None:
    """Let the sites of a folder in until the work with them is done."""
    server = read_server(folder)
    for name in list_waiting(folder) or [FIRST]:
        plan = read_server_plan(folder, name)
        check_unchanged_options(plan, locate_run(folder, name))
        what = f"experiment {name}" if name else "experiment"
        say(f"the {what} is {digest_of(plan.settings)}: sites show it before they join")
    _check_access(folder, server, insecure, say)
    log = build_logger(folder, say)
    with lock_folder(folder), stoppable(), ExitStack() as stack:
        mailbox, members = Mailbox(), {} if insecure else read_members(folder, server)
        listen = server.server.listen
        gate = Gate(listen, server.port, mailbox, folder, insecure, say, members)
        stack.callback(gate.close)
        say(f"listening on {listen}:{server.port} for {', '.join(_active_sites(server))}")
        if metrics:
            page = MetricsServer(*metrics, _build_health_check(folder, gate))
            stack.callback(page.close)
            say(f"health and metrics: http://{metrics[0]}:{page.port}/health and /metrics")
        if not insecure:
            watch = _KeyWatch(folder, members, say)
            watch.start()
            stack.callback(watch.close)
        try:
            work(mailbox, folder, log)
        except (BadInput, Diverged) as problem:
            log(f"stopped: {problem}")
            raise


def _build_health_check(folder: Path, gate: Gate) -> HealthCheck:
    """What the server knows of itself at this moment."""

    def look() -> tuple[dict[str, bool], list[Metric]]:
        up = {"gate": gate.is_open()}
        crowd, refused = gate.crowd, gate.refusals.count
        numbers = [
            Metric("up", "gauge", "Whether all parts of the server run.", all(up.values())),
            Metric("gate_connections", "gauge", "Open connections.", len(crowd.guests)),
            Metric("gate_requests_total", "counter", "Requests of sites.", gate.requests),
            Metric("gate_refusals_total", "counter", "Requests that were refused.", refused),
            Metric("gate_dropped_total", "counter", "Connections ended by us.", crowd.dropped),
        ]
        return up, numbers + collect_run_metrics(find_current_run(folder))

    return look


def _check_access(folder: Path, server: ServerConfig, insecure: bool, say: LogLine) -> None:
    host = split_address(server.server.address)[0]
    if insecure:
        for where in (host, server.server.listen):
            if not is_loopback(where):
                raise BadInput(
                    f"--insecure with {where}: plaintext is for this machine only; use localhost, "
                    "or leave --insecure out"
                )
        return
    keys.check_private(folder / keys.KEY)
    way = "make a new one with `coterie federation renew` and copy it here"
    for name in (keys.CA, keys.CERTIFICATE):
        if warning := keys.check_expiry(folder / name, way):
            say(f"warning: {warning}")
    known = keys.hosts_of(keys.load_certificate(folder / keys.CERTIFICATE))
    if host not in known:
        raise BadInput(
            f"{folder / keys.CERTIFICATE} is for {', '.join(known)}, not for {host}: `coterie "
            "federation renew --address`"
        )


def _active_sites(server: ServerConfig) -> list[str]:
    return [name for name in server.names if name not in server.sites.removed]


def _key_path(folder: Path, name: str) -> Path:
    return folder / KEYS / f"{name}.pub"


def _read_public_key(folder: Path, name: str) -> str:
    path = _key_path(folder, name)
    try:
        return " ".join(path.read_text().split()[:2])
    except OSError:
        raise BadInput(
            f"{path} is missing: copy {keys.SITE_PUBLIC} of site {name} there, or remove the site"
        ) from None


def read_members(folder: Path, server: ServerConfig) -> Members:
    """The sites of a deployment by their public keys, as requests carry them."""
    found: Members = {}
    for number, name in enumerate(server.names):
        if name in server.sites.removed:
            continue
        key = keys.encode_header(_read_public_key(folder, name))
        if key in found:
            raise BadInput(
                f"{found[key][0]} and {name} have the same key in {folder / KEYS}: give every site "
                "its own"
            )
        found[key] = (name, FIRST_NODE + number)
    return found


class _KeyWatch(threading.Thread):
    """Lets in the sites that are added to server.toml while a run goes on, and shuts out those
    that are removed.
    """

    def __init__(self, folder: Path, members: Members, say: LogLine) -> None:
        super().__init__(name="keys", daemon=True)
        self._folder, self._members, self._log = folder, members, say
        self._over = threading.Event()

    def run(self) -> None:
        last = ""
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._look()
                last = ""
            except BadInput as problem:  # a file half copied or mistyped must not end the run
                if last != str(problem):
                    last = str(problem)
                    self._log(f"the sites stay as they are: {last}")

    def _look(self) -> None:
        server = read_server(self._folder)
        found = read_members(self._folder, server)
        if found == self._members:
            return
        for key in set(self._members) - set(found):
            self._log(f"{self._members.pop(key)[0]}: its old key is no longer accepted")
        self._members.update(found)
        self._log(
            f"the sites are now {', '.join(_active_sites(server))}; who is new takes part from the "
            "round after it is there"
        )

    def close(self) -> None:
        """Look no more."""
        self._over.set()
