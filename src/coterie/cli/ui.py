"""`coterie ui`: a small web server over a folder of runs."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from coterie.core.errors import BadInput
from coterie.core.sockets import listen


@click.command(short_help="Watch runs live in the browser.")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any but this machine's own needs a token.",
)
@click.option(
    "--port",
    default=8765,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any free one.",
)
@click.option("--open", "browse", is_flag=True, help="Open the browser.")
@click.option(
    "--token",
    envvar="COTERIE_UI_TOKEN",
    show_envvar=True,
    help="Asked of every visitor; without it one is made up, which on this machine only changes "
    "need.",
)
def ui(folder: Path | None, host: str, port: int, browse: bool, token: str | None) -> None:
    """Show the runs and comparisons in FOLDER (runs) in the browser, while they train and after.

    Whoever opens the address that is printed, with its token, may also start, stop and resume runs,
    and name, tag and archive them. It serves this machine only unless --host says otherwise, and
    asks nothing of the network.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise BadInput(
            "coterie ui needs starlette and uvicorn: pip install 'coterie[ui]'"
        ) from None
    from coterie.ui.access import is_loopback
    from coterie.ui.app import build_app
    from coterie.ui.jobs import Jobs

    if folder and not folder.is_dir():
        raise BadInput(
            f"there is no folder {folder}: give the one that holds your runs, as in `coterie ui "
            "runs`"
        )
    if token is not None and len(token) < 8:
        raise BadInput(
            f"--token of {len(token)} characters is soon guessed: give at least 8, or none and "
            "one is made up"
        )
    root = folder or Path("runs")  # it may come with the first run
    near = is_loopback(host)
    open_to_read = near and not token
    token = token or secrets.token_urlsafe(24)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    jobs = Jobs(root)
    app = build_app(root, host, token, f"coterie-{port}", open_to_read, jobs)
    address = f"{_build_url(host, port)}?token={quote(token, safe='')}"
    click.echo(f"runs of {root}: {address}")
    if not near:
        click.echo(
            "what is sent is not encrypted: beyond a network you trust, go through ssh or a TLS "
            "proxy"
        )
    click.echo("Ctrl-C stops it, and the runs that were started from its pages")
    if browse:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    # no access log: it would show tokens
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        click.echo("stopped")
    finally:
        jobs.close()


def _build_url(host: str, port: int) -> str:
    name = host.strip("[]")
    if name in ("0.0.0.0", "::", ""):  # everywhere: the name that others know this machine by
        name = socket.gethostname()
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
