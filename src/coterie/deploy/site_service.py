"""A site of a deployment: one process that holds its rows and models, and asks the server for
messages.

It listens nowhere, and starts no other process. Whatever comes is a message to this process, which
answers those of the experiment that its operator agreed to.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx

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
from coterie.deploy.fleet_client import BadAnswer, FleetClient, Work
from coterie.deploy.logs import LogLimiter
from coterie.deploy.processes import Stopped, stoppable
from coterie.deploy.site import open_site
from coterie.running.progress import lock_folder

RETRY_SECONDS = 1.0  # seconds before a server that does not answer is asked again
REFUSALS = (  # what is said when trying again is of no use, and what it means
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
        r"\[code: (2\d\d\d)\]",
        "the server does not know this site's key: ask it to add the site",
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
    keys.make_private_folder(resolve_path(folder, site.site.state))
    with lock_folder(folder), stoppable():
        try:
            mine = open_site(folder, say, Consent(folder, say, accept, ask))
            say(f"site '{mine.name}' is ready")
            _answer_messages(folder, site, mine.answer, insecure, say)
        except Stopped:
            say("stopped")
            raise


def _answer_messages(
    folder: Path, site: SiteConfig, work: Work, insecure: bool, say: LogLine
) -> None:
    """Answer the server's messages for ever; BadInput where it refuses this site for good."""
    address = site.site.server
    line = _LogOnce(say)
    refusals = LogLimiter(say)
    client = FleetClient(folder, address, insecure)
    try:
        while True:
            try:
                if insecure:
                    _check_plaintext(address)
                client.arrive()
                line(f"connected to {address}")
                while True:
                    client.exchange(work, refusals)
            except (httpx.HTTPError, OSError) as problem:
                if why := explain_refusal(_describe(problem)):
                    raise BadInput(f"{site.site.name} was refused by {address}: {why}") from None
                if _is_unknown(problem):
                    continue  # the server was started again
                line(f"{address} does not answer; trying again until it does")
                time.sleep(RETRY_SECONDS)
            except BadAnswer as problem:
                line(f"{address} is no server as it must be: {problem}; trying again until it is")
                time.sleep(RETRY_SECONDS)
    finally:
        client.leave()


class _LogOnce:
    """Says a line, but not twice in a row."""

    def __init__(self, say: LogLine) -> None:
        self._log, self._last = say, ""

    def __call__(self, line: str) -> None:
        if line != self._last:
            self._last = line
            self._log(line)


def _check_plaintext(address: str) -> None:
    """Refuse to speak plaintext to a server that speaks TLS, which would never answer it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(split_address(address), 5) as plain:
        try:
            context.wrap_socket(plain).close()
        except OSError:  # of TLS too
            return
    raise BadInput(f"{address} speaks TLS: leave --insecure out")


def _is_unknown(problem: Exception) -> bool:
    """Whether the server is there and has not heard that this site is."""
    return isinstance(problem, httpx.HTTPStatusError) and problem.response.status_code == 409


def _describe(problem: Exception) -> str:
    """What went wrong with a request, as explain_refusal reads it."""
    if isinstance(problem, httpx.HTTPStatusError) and problem.response.status_code in (400, 401):
        try:
            detail = problem.response.json()
            return f"[code: {detail['code']}] {detail['detail']}"
        except (ValueError, KeyError, TypeError):
            return ""
    return str(problem)


def explain_refusal(settings: str) -> str:
    """Why a site was refused for good, from what the server or TLS said; "" where it may try
    again.
    """
    for pattern, meaning in REFUSALS:
        if found := re.search(pattern, settings):
            return meaning.format(*((group or "").strip() for group in found.groups()))
    return ""
