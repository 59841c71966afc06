"""A site of a deployment: the service that holds its rows and models, and a SuperNode kept running
beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.deploy import certificates as keys
from coterie.deploy.config_files import (
    SITE,
    SiteConfig,
    is_loopback,
    read_site,
    resolve_path,
    split_address,
    write_site,
)
from coterie.deploy.consent import Ask, Consent
from coterie.deploy.processes import (
    HERE,
    HOME,
    LONGEST_SOCKET,
    Child,
    Stopped,
    find_free_port,
    find_program,
    stoppable,
)
from coterie.deploy.workers import create_worker_auth, start_worker
from coterie.running.progress import lock_folder

MAX_PAUSE = 30.0  # seconds before a SuperNode that ended is started again
REFUSALS = (  # what SuperNode says when trying again is of no use, and what it means
    (
        r"clock skew: the site's clock is ([\d,]+ s (?:behind|ahead of))",
        "the clocks differ, this site's is {0} the server's: set both by NTP",
    ),
    (
        r"certificate verify failed: certificate (is not yet valid|has expired)",
        "the server's certificate {0}, by this site's clock: set the clock by NTP, or ask for a "
        "new certificate",
    ),
    (
        r"certificate verify failed: ([^(\n]*)",
        "the server's certificate is not accepted ({0}): compare ca.crt and the address",
    ),
    (
        r"SSL/TLS handshake error|SSL: ",
        "the server does not speak TLS as it must: it was started with --insecure, or is another "
        "program",
    ),
    (
        r"\[code: (2\d\d\d)\]|Invalid SuperNode authentication|401",
        "the server does not know this site's key: ask it to add the site",
    ),
    (
        r"Exit Code: (302|303|304|60\d)",
        "SuperNode cannot use its key or certificate (exit code {0})",
    ),
)
LogLine = Callable[[str], None]


def serve_site(
    folder: Path,
    data: Path | None,
    insecure: bool,
    say: LogLine,
    accept: bool = False,  # agree to the experiment that the server shows first
    ask: Ask | None = None,  # the operator, where there is one
) -> None:
    """Take part with the rows of this folder until stopped; refused by the server, say why."""
    folder = folder.absolute()
    site = read_site(folder)
    if data:
        site = site._replace(site=site.site._replace(data=str(data.absolute())))
        write_site(folder, site)
    if not site.site.data:
        raise BadInput(f"{folder / SITE} names no data: give --data my.csv")
    if not resolve_path(folder, site.site.data).exists():
        raise BadInput(
            f"there is no file or folder {resolve_path(folder, site.site.data)}: give --data my.csv"
        )
    host = split_address(site.site.server)[0]
    if insecure and not is_loopback(host):
        raise BadInput(
            f"--insecure with {host}: plaintext is for this machine only; use localhost, or leave "
            "--insecure out"
        )
    if not insecure:
        keys.check_private(folder / keys.SITE_KEY)
        if warning := keys.check_expiry(folder / keys.CA, "ask the server for a new one"):
            say(f"warning: {warning}")
    find_program("flower-supernode")
    from coterie.deploy.site import serve_folder  # needs Flower, which is an extra

    home = folder / HOME
    keys.make_private_folder(home)
    keys.make_private_folder(resolve_path(folder, site.site.state))
    with lock_folder(folder), stoppable(), _Socket(home) as meeting:
        node = _Node(folder, site, meeting, insecure, say)
        try:
            node.start()
            serve_folder(folder, meeting, say, agree=Consent(folder, say, accept, ask))
        except Stopped:
            if node.refusal:
                raise BadInput(
                    f"{site.site.name} was refused by {site.site.server}: {node.refusal}"
                ) from None
            say("stopped")
        finally:
            node.stop()


class _Socket:
    """Where a site's parts meet: a path short enough for a Unix socket, in a folder that only its
    owner may enter.
    """

    def __init__(self, home: Path) -> None:
        plain = re.fullmatch(r"[\w./ -]+", str(home)) and len(
            os.fsencode(home)
        ) < LONGEST_SOCKET - len("/site.sock")
        self.folder, self.borrowed = (
            (home, False) if plain else (Path(tempfile.mkdtemp(prefix="coterie-")), True)
        )

    def __enter__(self) -> Path:
        path = self.folder / "site.sock"
        path.unlink(missing_ok=True)
        return path

    def __exit__(self, *problem: object) -> None:
        if self.borrowed:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            (self.folder / "site.sock").unlink(missing_ok=True)


class _Node(threading.Thread):
    """Keeps a SuperNode running; where the server refuses it for good, says why and stops the
    site.
    """

    def __init__(
        self, folder: Path, site: SiteConfig, meeting: Path, insecure: bool, say: LogLine
    ) -> None:
        super().__init__(name="supernode", daemon=True)
        self.folder, self.site, self.meeting, self.insecure, self.say = (
            folder,
            site,
            meeting,
            insecure,
            say,
        )
        self.refusal = self.told = ""
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self._keep_running()
        except Exception as problem:  # a site whose SuperNode nobody starts must not wait for ever
            self._refuse(f"SuperNode cannot be started ({problem})")

    def _keep_running(self) -> None:
        pause = 1.0
        while not self.meeting.exists() and not self.over.is_set():  # the service is there first
            time.sleep(0.05)
        self._wait_for_server()
        while not self.over.is_set():
            heard: list[str] = []
            started = time.monotonic()
            children = self._launch(heard)
            while all(c.ended() is None for c in children) and not self.over.is_set():
                time.sleep(0.1)
            for child in reversed(children):
                child.stop()
            if self.over.is_set():
                return
            if why := explain_refusal("\n".join(heard)):
                self._refuse(why)
                return
            pause = 1.0 if time.monotonic() - started > 60 else min(2 * pause, MAX_PAUSE)
            self.say(f"the server went away; trying again in {pause:g} s")
            self.over.wait(pause)

    def _refuse(self, why: str) -> None:
        """Stop the site for good."""
        self.refusal = why
        self.over.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def _wait_for_server(self) -> None:
        """Come back when the server is there, sooner than SuperNode would find out; plaintext to a
        TLS server is refused.
        """
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not self.over.is_set():
            try:
                with socket.create_connection(split_address(self.site.site.server), 5) as plain:
                    if self.insecure:  # SuperNode would go on speaking plaintext for ever
                        context.wrap_socket(plain).close()
                        self._refuse("it speaks TLS: leave --insecure out")
                    return
            except ssl.SSLError:
                return
            except OSError:
                self._log_once(
                    f"{self.site.site.server} does not answer; trying again until it does"
                )
                self.over.wait(1.0)

    def _launch(self, heard: list[str]) -> list[Child]:
        """SuperNode, and the one process that may take its tasks."""
        home, port = self.folder / HOME, find_free_port()
        lock = create_worker_auth(home, self.insecure)
        files = [
            "--root-certificates",
            str(self.folder / keys.CA),
            "--auth-supernode-private-key",
            str(self.folder / keys.SITE_KEY),
        ]
        command = [
            find_program("flower-supernode"),
            "--superlink",
            self.site.site.server,
            "--host",
            HERE,
            "--port",
            str(port),
            *lock.node_options,
            *lock.port_options,
        ]
        command += [
            "--node-config",
            f'socket="{self.meeting}"',
            *(["--insecure"] if self.insecure else files),
        ]

        def hear(line: str) -> None:
            heard.append(line)
            del heard[:-50]
            if "SuperNode ID:" in line or "Connection successful" in line:
                self._log_once(f"connected to {self.site.site.server}")
            elif "Connection attempt failed" in line:
                self._log_once(
                    f"{self.site.site.server} does not answer; trying again until it does"
                )

        node = Child(command, home, home / "supernode.log", hear)
        authority = lock.certificates / keys.CA if lock.certificates else None
        return [node, start_worker(home, port, lock.secret, authority, heard.append)]

    def _log_once(self, line: str) -> None:
        """Say a line, but not twice in a row."""
        if line != self.told and not self.over.is_set():
            self.told = line
            self.say(line)

    def stop(self) -> None:
        """End the SuperNode."""
        self.over.set()
        if self.is_alive():
            self.join(15)


def explain_refusal(words: str) -> str:
    """Why a SuperNode was refused for good, from what it said; "" where it may try again."""
    for pattern, meaning in REFUSALS:
        if found := re.search(pattern, words):
            return meaning.format(*((group or "").strip() for group in found.groups()))
    return ""
