"""`coterie serve`: the clients' own models over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.plugin_option import PLUGIN
from coterie.serving.hosting import serve as serve_models
from coterie.serving.service import ServiceLimits

DEFAULTS = ServiceLimits()


@click.command(short_help="Serve the clients' own models over HTTP.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8766,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any free one.",
)
@click.option(
    "--tokens",
    type=click.Path(path_type=Path),
    help="File of the tokens; default RUN/tokens.json, made where it is not there.",
)
@click.option("--no-tokens", is_flag=True, help="Whoever reaches it may ask; this machine only.")
@click.option(
    "--watch",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    help="Look so often whether RUN is a newer one, and take over; 0 does not look.",
)
@click.option(
    "--models",
    default=DEFAULTS.models,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Models in memory; others are read when they are asked for.",
)
@click.option(
    "--most-rows",
    default=DEFAULTS.rows,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Rows of one request.",
)
@click.option(
    "--most-bytes",
    default=DEFAULTS.bytes,
    show_default=True,
    type=click.IntRange(1, 2**31),
    help="Bytes of one request.",
)
@click.option(
    "--patience",
    default=DEFAULTS.seconds,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    help="For a body to come, and for an answer.",
)
@click.option(
    "--waiting",
    default=DEFAULTS.waiting,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Requests that may wait; more are asked to try again.",
)
@PLUGIN
def serve(
    run: Path,
    host: str,
    port: int,
    tokens: Path | None,
    no_tokens: bool,
    watch: float,
    models: int,
    most_rows: int,
    most_bytes: int,
    patience: float,
    waiting: int,
) -> None:
    """Answer POST /clients/CLIENT/predict with what CLIENT's own model of RUN says.

    Rows come as JSON, CSV or Arrow; a client's token opens that client's model only. /openapi.json
    says what is taken and given, /health and /metrics how the service is. POST /reload with the
    admin's token, or SIGHUP, serves a newer run without dropping a request.
    """
    limits = ServiceLimits(
        bytes=most_bytes, rows=most_rows, seconds=patience, waiting=waiting, models=models
    )
    serve_models(run, host, port, tokens, no_tokens, watch=watch, limits=limits, say=click.echo)
