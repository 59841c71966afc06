"""Who may take a site's or a server's tasks on its own machine: one process that knows a secret.

Flower's SuperNode and SuperLink hand tasks to whoever asks on a port of 127.0.0.1, which every user
of the machine can reach. With a secret in a file of their owner they hand them to its holder only;
with a certificate of their own, no other program can stand in their place.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coterie.deploy import certificates as keys
from coterie.deploy.processes import HERE, Child

SECRET, CERTIFICATE_FOLDER = "superexec.secret", "own"
DAYS = 3000  # of a certificate that is made anew at every start


class WorkerAuth(NamedTuple):
    """What keeps others of the same machine out."""

    secret: Path
    certificates: Path | None  # folder of the certificate of the port; None: plaintext

    @property
    def node_options(self) -> list[str]:
        """What SuperNode or SuperLink is told."""
        return ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]

    @property
    def port_options(self) -> list[str]:
        """How SuperNode secures its own port."""
        place = self.certificates
        if place is None:
            return []
        names = {"certfile": keys.CERTIFICATE, "keyfile": keys.KEY, "ca-certfile": keys.CA}
        return [
            part for word, name in names.items() for part in (f"--ssl-{word}", str(place / name))
        ]


def create_worker_auth(home: Path, insecure: bool) -> WorkerAuth:
    """A new secret, and a new certificate for 127.0.0.1 whose authority is forgotten at once."""
    (home / SECRET).unlink(missing_ok=True)
    keys.write_new(home / SECRET, secrets.token_bytes(32), private=True)
    if insecure:
        return WorkerAuth(home / SECRET, None)
    place = home / CERTIFICATE_FOLDER
    shutil.rmtree(place, ignore_errors=True)
    keys.make_authority(place / "authority")
    keys.make_server_certificate(place / "authority", place, [HERE], DAYS)
    shutil.rmtree(place / "authority")
    return WorkerAuth(home / SECRET, place)


def start_worker(
    home: Path,
    port: int,
    secret: Path,
    authority: Path | None,  # the certificate that the port's must be signed by; None: plaintext
    hear: Callable[[str], None] = lambda line: None,
) -> Child:
    """The process that takes tasks and starts their programs."""
    door = ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    command = [sys.executable, "-m", "coterie_relay.tasks", *door]
    command += ["--runtime-api-address", f"{HERE}:{port}"]
    command += ["--superexec-auth-secret-file", str(secret)]
    return Child(command, home, home / "superexec.log", hear)
