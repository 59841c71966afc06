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
from coterie.core.files import write
from coterie.deploy import certificates as keys
from coterie.deploy.consent import digest_of
from coterie.deploy.files import KEYS, RUN, Server, host_and_port, is_loopback, read_server
from coterie.deploy.gate import Gate
from coterie.deploy.metrics import Look, Metrics, Number, of_run
from coterie.deploy.passes import Members
from coterie.deploy.processes import (
    HERE,
    HOME,
    Child,
    flwr,
    free_port,
    program,
    stoppable,
    wait_for_port,
)
from coterie.deploy.workers import Lock, new_lock, worker
from coterie.experiment.values import to_toml
from coterie.results.folder import status
from coterie.running.progress import alone, busy

NODES, DATABASE = "nodes.json", "superlink.sqlite"
LINK = "here"  # the name of our SuperLink in Flower's own configuration
LOOK = 5.0  # seconds between two looks at the keys folder
Say = Callable[[str], None]


def serve_deployment(
    folder: Path,
    insecure: bool,
    say: Say,
    metrics: tuple[str, int] | None = None,  # where health and numbers are told
) -> Path:
    """Host a deployment until its run is over; returns the run's folder. Started again, it goes on
    where it was.
    """
    folder = folder.absolute()
    server = read_server(folder)
    program("flower-superlink")
    from coterie.deploy.app import check_words, read_server_plan  # need Flower, an extra

    plan = read_server_plan(folder)
    check_words(plan, folder / RUN)
    say(f"the experiment is {digest_of(plan.words)}: sites show it before they join")
    _check_door(folder, server, insecure, say)
    home = folder / HOME
    keys.private_folder(home)
    with alone(folder), stoppable():
        port = free_port()
        _write_app(home, folder, port, insecure)
        if not (home / DATABASE).exists():
            (home / NODES).unlink(missing_ok=True)  # nobody is registered in a new one
        children: list[Child] = []
        gate: Gate | None = None
        told: Metrics | None = None
        hand: Child | None = None
        try:
            lock = new_lock(home, insecure=True)  # its certificate is the server's own
            children.append(_superlink(folder, home, port, insecure, lock))
            wait_for_port(port, children[0])
            authority = None if insecure else folder / keys.CA
            hand = worker(home, port, lock.secret, authority)
            registered = {} if insecure else _register(folder, home, server, say)
            members = _by_key(registered)
            gate = Gate(
                server.server.listen, server.port, f"{HERE}:{port}", folder, insecure, say, members
            )
            say(
                f"listening on {server.server.listen}:{server.port} for "
                f"{', '.join(_members(server))}"
            )
            if metrics:
                told = Metrics(*metrics, _look(folder, gate, children))
                say(f"health and metrics: http://{metrics[0]}:{told.port}/health and /metrics")
            _wait_for_last(folder)
            children.append(
                Child(
                    [program("flwr"), "run", str(home / "app"), LINK, "--stream"],
                    home,
                    home / "run.log",
                    _told(say),
                )
            )
            _follow(children, folder, home, members, insecure, say)
        finally:
            if told:
                told.close()
            if gate:
                gate.close()
            for child in (*reversed(children[1:]), *([hand] if hand else []), *children[:1]):
                child.stop()
    return _finished(folder, children[-1])


def _look(folder: Path, gate: Gate, children: list[Child]) -> Look:
    """What the server knows of itself at this moment."""

    def look() -> tuple[dict[str, bool], list[Number]]:
        up = {
            "superlink": children[0].ended() is None,
            "run": len(children) < 2 or children[1].ended() is None,
        }
        crowd, refused = gate.crowd, gate.refusals.count
        numbers = [
            Number("up", "gauge", "Whether all parts of the server run.", all(up.values())),
            Number("gate_connections", "gauge", "Open connections.", len(crowd.guests)),
            Number("gate_requests_total", "counter", "Requests of sites.", gate.requests),
            Number("gate_refusals_total", "counter", "Requests that were refused.", refused),
            Number("gate_dropped_total", "counter", "Connections ended by us.", crowd.dropped),
        ]
        return up, numbers + of_run(folder / RUN)

    return look


def _wait_for_last(folder: Path, seconds: float = 60.0) -> None:
    """An application whose SuperLink was killed takes a while to end; two must not write one
    run.
    """
    until = time.monotonic() + seconds
    while (folder / RUN).is_dir() and busy(folder / RUN):
        if time.monotonic() > until:
            raise BadInput(
                f"{folder / RUN} is still being written by another process: stop it, then start "
                "the server again"
            )
        time.sleep(0.5)


def _check_door(folder: Path, server: Server, insecure: bool, say: Say) -> None:
    host = host_and_port(server.server.address)[0]
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
        if warning := keys.check_days(folder / name, way):
            say(f"warning: {warning}")
    known = keys.hosts_of(keys.load(folder / keys.CERTIFICATE))
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
        "components": {"serverapp": "coterie.deploy.app:app", "clientapp": "coterie_relay:app"},
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


def _superlink(folder: Path, home: Path, port: int, insecure: bool, lock: Lock) -> Child:
    """SuperLink, for this machine only: sites reach it through the gate."""
    files = {"ca-certfile": keys.CA, "certfile": keys.CERTIFICATE, "keyfile": keys.KEY}
    secured = [
        part for option, name in files.items() for part in (f"--ssl-{option}", str(folder / name))
    ]
    door = ["--insecure"] if insecure else [*secured, "--enable-supernode-auth"]
    place = ["--host", HERE, "--port", str(port), "--database", str(home / DATABASE)]
    command = [
        program("flower-superlink"),
        *place,
        *door,
        *lock.node_options,
        "--disable-runtime-dependency-installation",
    ]
    return Child(command, home, home / "superlink.log")


def _members(server: Server) -> list[str]:
    return [name for name in server.names if name not in server.sites.removed]


def _register(folder: Path, home: Path, server: Server, say: Say) -> dict[str, list[str]]:
    """Make SuperLink know the keys of the members, and no others; {site: [node, public key]} is
    kept in nodes.json.
    """
    path = home / NODES
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    wanted = {name: _public_key(folder, name) for name in _members(server)}
    for name in [name for name, (_, key) in known.items() if wanted.get(name) != key]:
        flwr(home, "supernode", "unregister", known.pop(name)[0], LINK)
        say(f"{name}: its old key is no longer accepted")
    new = [name for name in wanted if name not in known]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: flwr(
                    home, "supernode", "register", str(_key(folder, n)), LINK, "--name", n
                ),
                new,
            )
        )
    for name, answer in zip(new, answers, strict=True):
        if answer.get("success"):
            known[name] = [str(answer["node-id"]), wanted[name]]
    write(path, json.dumps(known, indent=1))
    for name, answer in zip(new, answers, strict=True):
        if name not in known:
            raise BadInput(
                f"the key of {name} could not be registered: {answer.get('error-message', answer)}"
            )
    return known


def _key(folder: Path, name: str) -> Path:
    return folder / KEYS / f"{name}.pub"


def _public_key(folder: Path, name: str) -> str:
    path = _key(folder, name)
    try:
        return " ".join(path.read_text().split()[:2])
    except OSError:
        raise BadInput(
            f"{path} is missing: copy {keys.SITE_PUBLIC} of site {name} there, or remove the site"
        ) from None


def _by_key(registered: dict[str, list[str]]) -> Members:
    """Sites by their public key as requests carry it."""
    return {keys.as_header(key): (name, int(node)) for name, (node, key) in registered.items()}


def _follow(
    children: list[Child], folder: Path, home: Path, members: Members, insecure: bool, say: Say
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
        if not insecure and time.monotonic() - looked > LOOK:
            looked = time.monotonic()
            try:
                _keep_up(folder, home, members, say)
                told = ""
            except BadInput as problem:  # a file half copied or mistyped must not end the run
                if told != str(problem):
                    told = str(problem)
                    say(f"the sites stay as they are: {told}")
        time.sleep(0.2)


def _keep_up(folder: Path, home: Path, members: Members, say: Say) -> None:
    """Accept the keys of the sites that server.toml names now."""
    server = read_server(folder)
    if set(_members(server)) != {name for name, _ in members.values()}:
        found = _by_key(_register(folder, home, server, say))
        members.clear()
        members.update(found)
        say(
            f"the sites are now {', '.join(_members(server))}; who is new takes part once the "
            "server is started again"
        )


def _told(say: Say) -> Callable[[str], None]:
    """The lines of a run's log that are for people."""
    noise = re.compile(
        r"^(Using SuperLink|Successfully|Starting logstream|Start `flwr|Flower App configuration)"
    )

    def hear(line: str) -> None:
        text = re.sub(r"^(INFO|DEBUG) *: *", "", line).rstrip()
        if text and not noise.match(text):
            say(text)

    return hear


def _finished(folder: Path, run: Child) -> Path:
    if status(folder / RUN) != "finished":
        raise BadInput(
            f"the run is not finished: {run.last_words()}; start the server again, it goes on "
            "from the last checkpoint"
        )
    return folder / RUN
