"""The server of a deployment: SuperLink behind the gate, the keys it accepts, and the run, watched
until it is over.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.deploy import certificates as keys
from coterie.deploy.authentication import Members
from coterie.deploy.config_files import (
    KEYS,
    RUN,
    ServerConfig,
    is_loopback,
    read_server,
    split_address,
)
from coterie.deploy.consent import digest_of
from coterie.deploy.gate import Gate
from coterie.deploy.metrics import HealthCheck, Metric, MetricsServer, collect_run_metrics
from coterie.deploy.processes import (
    HERE,
    HOME,
    Child,
    find_free_port,
    find_program,
    run_flwr,
    stoppable,
    wait_for_port,
)
from coterie.deploy.workers import WorkerAuth, create_worker_auth, start_worker
from coterie.experiment.toml import to_toml
from coterie.results.folder import read_status
from coterie.running.progress import is_busy, lock_folder

NODES, DATABASE = "nodes.json", "superlink.sqlite"
LINK = "here"  # the name of our SuperLink in Flower's own configuration
LOOK_SECONDS = 5.0  # seconds between two looks at the keys folder
LogLine = Callable[[str], None]


def serve_deployment(
    folder: Path,
    insecure: bool,
    say: LogLine,
    metrics: tuple[str, int] | None = None,  # where health and numbers are told
) -> Path:
    """Host a deployment until its run is over; returns the run's folder. Started again, it goes on
    where it was.
    """
    folder = folder.absolute()
    server = read_server(folder)
    find_program("flower-superlink")
    from coterie.deploy.server_app import (  # need Flower, an extra
        check_unchanged_options,
        read_server_plan,
    )

    plan = read_server_plan(folder)
    check_unchanged_options(plan, folder / RUN)
    say(f"the experiment is {digest_of(plan.words)}: sites show it before they join")
    _check_access(folder, server, insecure, say)
    home = folder / HOME
    keys.make_private_folder(home)
    with lock_folder(folder), stoppable():
        port = find_free_port()
        _write_app(home, folder, port, insecure)
        if not (home / DATABASE).exists():
            (home / NODES).unlink(missing_ok=True)  # nobody is registered in a new one
        children: list[Child] = []
        gate: Gate | None = None
        told: MetricsServer | None = None
        hand: Child | None = None
        try:
            lock = create_worker_auth(home, insecure=True)  # its certificate is the server's own
            children.append(_start_superlink(folder, home, port, insecure, lock))
            wait_for_port(port, children[0])
            authority = None if insecure else folder / keys.CA
            hand = start_worker(home, port, lock.secret, authority)
            registered = {} if insecure else _register(folder, home, server, say)
            members = _index_by_key(registered)
            gate = Gate(
                server.server.listen, server.port, f"{HERE}:{port}", folder, insecure, say, members
            )
            say(
                f"listening on {server.server.listen}:{server.port} for "
                f"{', '.join(_active_sites(server))}"
            )
            if metrics:
                told = MetricsServer(*metrics, _build_health_check(folder, gate, children))
                say(f"health and metrics: http://{metrics[0]}:{told.port}/health and /metrics")
            _wait_for_previous(folder)
            children.append(
                Child(
                    [find_program("flwr"), "run", str(home / "app"), LINK, "--stream"],
                    home,
                    home / "run.log",
                    _filter_log(say),
                )
            )
            _wait_for_run(children, folder, home, members, insecure, say)
        finally:
            if told:
                told.close()
            if gate:
                gate.close()
            for child in (*reversed(children[1:]), *([hand] if hand else []), *children[:1]):
                child.stop()
    return _check_finished(folder, children[-1])


def _build_health_check(folder: Path, gate: Gate, children: list[Child]) -> HealthCheck:
    """What the server knows of itself at this moment."""

    def look() -> tuple[dict[str, bool], list[Metric]]:
        up = {
            "superlink": children[0].ended() is None,
            "run": len(children) < 2 or children[1].ended() is None,
        }
        crowd, refused = gate.crowd, gate.refusals.count
        numbers = [
            Metric("up", "gauge", "Whether all parts of the server run.", all(up.values())),
            Metric("gate_connections", "gauge", "Open connections.", len(crowd.guests)),
            Metric("gate_requests_total", "counter", "Requests of sites.", gate.requests),
            Metric("gate_refusals_total", "counter", "Requests that were refused.", refused),
            Metric("gate_dropped_total", "counter", "Connections ended by us.", crowd.dropped),
        ]
        return up, numbers + collect_run_metrics(folder / RUN)

    return look


def _wait_for_previous(folder: Path, seconds: float = 60.0) -> None:
    """An application whose SuperLink was killed takes a while to end; two must not write one
    run.
    """
    until = time.monotonic() + seconds
    while (folder / RUN).is_dir() and is_busy(folder / RUN):
        if time.monotonic() > until:
            raise BadInput(
                f"{folder / RUN} is still being written by another process: stop it, then start "
                "the server again"
            )
        time.sleep(0.5)


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


def _write_app(home: Path, folder: Path, port: int, insecure: bool) -> None:
    """What Flower needs to find our SuperLink and to start our two applications, which are
    installed with coterie.
    """
    link = {"address": f"{HERE}:{port}"} | (
        {"insecure": True} if insecure else {"root-certificates": str(folder / keys.CA)}
    )
    (home / "config.toml").write_text(
        to_toml({"superlink": {"default": LINK, LINK: link}}), encoding="utf-8"
    )
    app = {
        "publisher": "coterie",
        "components": {
            "serverapp": "coterie.deploy.server_app:app",
            "clientapp": "coterie_relay:app",
        },
        "config": {"folder": str(folder)},
    }
    project = {
        "name": "coterie-deployment",
        "version": "1.0.0",
        "description": "coterie",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    (home / "app").mkdir(exist_ok=True)
    text = to_toml({"project": project, "tool": {"flwr": {"app": app}}})
    (home / "app" / "pyproject.toml").write_text(text, encoding="utf-8")


def _start_superlink(
    folder: Path, home: Path, port: int, insecure: bool, lock: WorkerAuth
) -> Child:
    """SuperLink, for this machine only: sites reach it through the gate."""
    files = {"ca-certfile": keys.CA, "certfile": keys.CERTIFICATE, "keyfile": keys.KEY}
    secured = [
        part for option, name in files.items() for part in (f"--ssl-{option}", str(folder / name))
    ]
    door = ["--insecure"] if insecure else [*secured, "--enable-supernode-auth"]
    place = ["--host", HERE, "--port", str(port), "--database", str(home / DATABASE)]
    command = [
        find_program("flower-superlink"),
        *place,
        *door,
        *lock.node_options,
        "--disable-runtime-dependency-installation",
    ]
    return Child(command, home, home / "superlink.log")


def _active_sites(server: ServerConfig) -> list[str]:
    return [name for name in server.names if name not in server.sites.removed]


def _register(folder: Path, home: Path, server: ServerConfig, say: LogLine) -> dict[str, list[str]]:
    """Make SuperLink know the keys of the members, and no others; {site: [node, public key]} is
    kept in nodes.json.
    """
    path = home / NODES
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    wanted = {name: _read_public_key(folder, name) for name in _active_sites(server)}
    for name in [name for name, (_, key) in known.items() if wanted.get(name) != key]:
        run_flwr(home, "supernode", "unregister", known.pop(name)[0], LINK)
        say(f"{name}: its old key is no longer accepted")
    new = [name for name in wanted if name not in known]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: run_flwr(
                    home, "supernode", "register", str(_key_path(folder, n)), LINK, "--name", n
                ),
                new,
            )
        )
    for name, answer in zip(new, answers, strict=True):
        if answer.get("success"):
            known[name] = [str(answer["node-id"]), wanted[name]]
    write_text(path, json.dumps(known, indent=1))
    for name, answer in zip(new, answers, strict=True):
        if name not in known:
            raise BadInput(
                f"the key of {name} could not be registered: {answer.get('error-message', answer)}"
            )
    return known


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


def _index_by_key(registered: dict[str, list[str]]) -> Members:
    """Sites by their public key as requests carry it."""
    return {keys.encode_header(key): (name, int(node)) for name, (node, key) in registered.items()}


def _wait_for_run(
    children: list[Child], folder: Path, home: Path, members: Members, insecure: bool, say: LogLine
) -> None:
    """Wait for the end of the run; sites that are added or removed meanwhile are let in or shut
    out.
    """
    link, run = children
    looked, told = time.monotonic(), ""
    while run.ended() is None:
        if link.ended() is not None:
            raise BadInput(
                f"SuperLink ended: {link.last_words()}; start the server again, it goes on from "
                "the last checkpoint"
            )
        if not insecure and time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            try:
                _update_sites(folder, home, members, say)
                told = ""
            except BadInput as problem:  # a file half copied or mistyped must not end the run
                if told != str(problem):
                    told = str(problem)
                    say(f"the sites stay as they are: {told}")
        time.sleep(0.2)


def _update_sites(folder: Path, home: Path, members: Members, say: LogLine) -> None:
    """Accept the keys of the sites that server.toml names now."""
    server = read_server(folder)
    if set(_active_sites(server)) != {name for name, _ in members.values()}:
        found = _index_by_key(_register(folder, home, server, say))
        members.clear()
        members.update(found)
        say(
            f"the sites are now {', '.join(_active_sites(server))}; who is new takes part once the "
            "server is started again"
        )


def _filter_log(say: LogLine) -> Callable[[str], None]:
    """The lines of a run's log that are for people."""
    noise = re.compile(
        r"^(Using SuperLink|Successfully|Starting logstream|Start `flwr|Flower App configuration)"
    )

    def hear(line: str) -> None:
        text = re.sub(r"^(INFO|DEBUG) *: *", "", line).rstrip()
        if text and not noise.match(text):
            say(text)

    return hear


def _check_finished(folder: Path, run: Child) -> Path:
    if read_status(folder / RUN) != "finished":
        raise BadInput(
            f"the run is not finished: {run.last_words()}; start the server again, it goes on "
            "from the last checkpoint"
        )
    return folder / RUN
