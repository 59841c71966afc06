"""The commands of a deployment: make its files, host its server, take part as a site."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import tomllib
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from coterie.cli.options import PASS_THROUGH, parse_arguments
from coterie.cli.printing import print_line
from coterie.cli.show import show_run
from coterie.core.errors import BadInput, suggest_name
from coterie.core.guard import Guard
from coterie.core.task import TASKS, name_tasks
from coterie.core.version import __version__
from coterie.data.read import user_data
from coterie.data.read.columns import BOOLEAN, NUMBER, TEXT, Column
from coterie.data.read.file_rows import UserData
from coterie.data.read.user_data import parse_list
from coterie.data.target import Label, check_label, guess_task
from coterie.deploy.audit import AUDIT, read_audit, summarize_audit
from coterie.deploy.config_files import (
    EXPERIMENT,
    KEYS,
    LARGEST_PORT,
    RUN,
    SERVER,
    SERVER_DAYS,
    SITE,
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    SiteConfig,
    Sites,
    SiteSettings,
    agree_to,
    check_name,
    check_server,
    is_loopback,
    read_server,
    split_address,
    write_server,
    write_site,
)
from coterie.deploy.table_columns import CLIENT, declare_column
from coterie.experiment.config import Experiment, change_options, read_experiment_file
from coterie.experiment.recipes import find_config
from coterie.experiment.toml import to_toml
from coterie.reports.report import write_report
from coterie.results.folder import read_about
from coterie.results.run import load_run

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
REQUEST, LARGEST_REQUEST = ".request", 10_000  # bytes
PUBLIC = "public"  # the name of the public rows in every folder
# what an experiment of a deployment says; the rows are the sites' own
SECTIONS = (
    "model",
    "train",
    "schedule",
    "options",
)


def _import_part(name: str) -> Any:
    """A module that needs the extra packages of a deployment."""
    try:
        return import_module(f"coterie.deploy.{name}")
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"a deployment needs {missing.name}: pip install 'coterie[federation]'"
        ) from None


@click.group(short_help="Make and mend the files of a deployment.")
def federation() -> None:
    """Make and mend the files of a deployment: keys, certificates, and a folder for the server
    and every site.
    """


@federation.command(
    context_settings=PASS_THROUGH, short_help="Make the folders of a server and its sites."
)
@click.argument("folder", type=FOLDER)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--OPTION VALUE]...")
@click.option("--sites", required=True, help="Names separated by commas, as in north,south,east.")
@click.option("--address", required=True, help="HOST:PORT under which sites reach the server.")
@click.option(
    "--listen",
    help="Address of the network card the server listens on; default all, or this machine only.",
)
@click.option("--method", help="Name of the method; default that of --config, or fedavg.")
@click.option("--config", help="A TOML file of an experiment, or the name of a recipe.")
@click.option("--like", type=FILE, help="A file whose columns and classes are those of every site.")
@click.option(
    "--label",
    default="label",
    show_default=True,
    help="The column that is to be predicted; several, as in a,b,c, are 0 or 1 each.",
)
@click.option("--categories", help="Columns of --like whose numbers are names, as in zip,ward.")
@click.option("--task", type=click.Choice(name_tasks()), help="What is learnt; default by --like.")
@click.option("--classes", type=int, help="How many classes there are.")
@click.option("--features", type=int, help="How many numbers a row has.")
@click.option("--shape", help="Shape of a row that is not a flat list, as in 1,28,28.")
@click.option(
    "--scale",
    type=click.Choice(["standard", "none"]),
    help="Columns by mean and deviation of all sites' training rows, or as they are; default "
    "standard with --like a table, as `coterie run` does.",
)
@click.option(
    "--public", type=FILE, help="A file of rows that everyone may see; copied to every folder."
)
@click.option(
    "--keys",
    type=click.Choice(["here", "sites"]),
    default="here",
    show_default=True,
    help="Where the sites' keys are made; at the sites: see `request` and `approve`.",
)
@click.option(
    "--days",
    default=SERVER_DAYS,
    show_default=True,
    help="Days until the server's certificate expires.",
)
def init(
    folder: Path, arguments: tuple[str, ...], sites: str, address: str, **options: Any
) -> None:
    """Make FOLDER/server and FOLDER/sites/NAME, each ready to be copied to its machine, and
    FOLDER/authority, to be kept.

    Options of an experiment (--rounds 20, --hidden 64, ...) are those of `coterie run`.
    """
    keys = _import_part("certificates")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} exists and is not empty: give another folder")
    names = tuple(check_name(name.strip()) for name in sites.split(",") if name.strip())
    host, _ = split_address(address)
    listen = options["listen"] or (host if is_loopback(host) else "0.0.0.0")
    public = f"{PUBLIC}{options['public'].suffix}" if options["public"] else ""
    server = check_server(
        ServerConfig(
            ServerAddress(address, listen),
            Sites(names, label=options["label"]),
            Rules(),
            _read_shape(options, public),
            Privacy(),
        )
    )
    if public:  # a mistake in it is seen at once
        _import_part("site_rows").read_public(options["public"], options["label"], server.data)
    experiment = build_experiment_file(
        options["config"], options["method"], parse_arguments(arguments)[1]
    )
    keys.make_authority(folder / "authority")
    keys.make_server_certificate(folder / "authority", folder / "server", [host], options["days"])
    write_server(folder / "server", server)
    (folder / "server" / EXPERIMENT).write_text(experiment, encoding="utf-8")
    if public:
        shutil.copy(options["public"], folder / "server" / public)
    if options["keys"] == "sites":
        keys.make_private_folder(folder / "server" / KEYS)
        print_line(f"made {folder}/server for {', '.join(names)}")
        print_line(
            "next: every site runs `coterie federation request NAME` and sends its request, and"
        )
        print_line(f"      `coterie federation approve {folder} NAME{REQUEST}` lets it in")
        return
    for name in names:
        _make_site(folder, server, name, options["label"])
    print_line(f"made {folder}/server and {folder}/sites/: {', '.join(names)}")
    print_line(
        f"next: copy {folder}/sites/NAME to each site and run `coterie site NAME --data its.csv` "
        "there;"
    )
    print_line(
        f"      `coterie server {folder}/server` hosts the run; keep {folder}/authority to "
        "yourself, it signs certificates"
    )


def _read_shape(options: dict[str, Any], public: str) -> DataShape:
    """What rows look like, from an example or from numbers."""
    if options["like"]:
        found = user_data.read_user_data(
            options["like"],
            client="",
            label=options["label"],
            categories=options["categories"] or "",
        )
        rows = tuple(found.data.x.shape[1:])
        flat = len(rows) == 1
        usual: Literal["standard", "none"] = "standard" if flat and found.columns else "none"
        scale = options["scale"] or usual
        columns = _table_columns(found, options["like"], scale)
        read, labels = _task_of(found, options["like"], options["task"])
        return DataShape(
            classes=len(labels) if TASKS[read].has_classes else 0,
            features=rows[0] if flat and not columns else 0,
            shape=() if flat else rows,
            table=tuple(declare_column(column) for column in columns),
            labels=labels,
            public=public,
            scale=scale,
            task=read,
        )
    if options["categories"]:
        raise BadInput(
            f"categories = {options['categories']} has no effect without --like: give an example"
        )
    task: Any = options["task"] or "classes"
    learnt = TASKS[task]
    if (learnt.has_classes and not options["classes"]) or not (
        options["features"] or options["shape"]
    ):
        raise BadInput("say what rows look like: --like example.csv, or --classes 10 --features 64")
    try:
        shape = tuple(int(side) for side in (options["shape"] or "").split(",") if side.strip())
    except ValueError:
        raise BadInput(
            f"shape = '{options['shape']}': give whole numbers separated by commas, as in 1,28,28"
        ) from None
    return DataShape(
        classes=options["classes"] or 0,
        features=options["features"] or 0,
        shape=shape,
        labels=tuple(parse_list(options["label"])) if learnt.several else (),
        public=public,
        scale=options["scale"] or "none",
        task=task,
    )


def _task_of(found: UserData, place: Path, wanted: str | None) -> tuple[Any, tuple[str, ...]]:
    """What is learnt of an example's label, reported where it was guessed, and its classes or
    labels.
    """
    label, classes = found.label or Label((), None), found.data.classes
    reading = guess_task(label, np.arange(len(found.data.y)), wanted, classes)
    if reading.said:
        print_line(f"{place}: {reading.said}")
    check_label(label, reading.task, classes, found.place, str(place))
    learnt = TASKS[reading.task]
    if learnt.has_classes:
        return reading.task, tuple(found.labels)
    return reading.task, label.columns if learnt.several else ()


def _table_columns(found: UserData, place: Path, scale: str) -> list[Column]:
    """The columns of an example that sites prepare together; [] where rows are plain numbers, as
    those of a table that is not scaled.
    """
    columns = [c for c in found.columns or [] if c.name != CLIENT]
    if any(column.kind == TEXT for column in columns):
        raise BadInput(
            f"{place}: the column '{columns[0].name}' is free text, whose words sites cannot agree "
            f"on: give columns of numbers, dates and categories, or --categories "
            f"{columns[0].name} if its texts are names"
        )
    if scale == "none" and all(column.kind in (NUMBER, BOOLEAN) for column in columns):
        return []
    print_line(f"{place}: the columns are {', '.join(declare_column(c) for c in columns)}")
    return columns


def build_experiment_file(config: str | None, method: str | None, settings: dict[str, Any]) -> str:
    """The settings of the run, as a file that its owner may change."""
    experiment = read_experiment_file(find_config(config)) if config else Experiment()
    experiment = change_options(experiment, ({"method": method} if method else {}) | settings)
    said = experiment.to_dict()
    return to_toml(
        {"method": said["method"], "seed": said["seed"]}
        | {section: said[section] for section in SECTIONS}
        | ({"guard": said["guard"]} if experiment.guard != Guard() else {})
    )


def _make_site(folder: Path, server: ServerConfig, name: str, label: str) -> None:
    """One site's folder, and its public key in the server's."""
    keys = _import_part("certificates")
    place = folder / "sites" / name
    keys.make_site_key(place, name)
    _write_site_files(folder, server, name, label)
    keys.make_private_folder(folder / "server" / KEYS)
    keys.write_new(
        folder / "server" / KEYS / f"{name}.pub", (place / keys.SITE_PUBLIC).read_bytes()
    )


@federation.command(short_help="At a site: make its key and a request to take part.")
@click.argument("name")
@click.option("--folder", type=FOLDER, help="The site's folder; default NAME.")
def request(name: str, folder: Path | None) -> None:
    """Make the key of site NAME on its own machine, and FOLDER/NAME.request for the server's side.

    The private key stays here; the request holds nothing secret.
    """
    keys = _import_part("certificates")
    place = folder or Path(check_name(name))
    keys.make_site_key(place, check_name(name))
    public = (place / keys.SITE_PUBLIC).read_text(encoding="utf-8").strip()
    settings = {"name": name, "key": public, "version": __version__}
    keys.write_new(place / f"{name}{REQUEST}", to_toml({"request": settings}).encode())
    print_line(f"made {place}/{name}{REQUEST}: send it to the server's side, which runs")
    print_line(f"      `coterie federation approve FOLDER {name}{REQUEST}` and sends files back")
    print_line(
        f"tell them by another way, such as the telephone: {keys.compute_fingerprint(public)}"
    )


@federation.command(short_help="Let a site in; at a site: agree to an experiment.")
@click.argument("folder", type=FOLDER)
@click.argument("what", metavar="FILE|DIGEST")
@click.option("--label", help="The column that is to be predicted; default as given to `init`.")
@click.option("--fingerprint", help="What the site's operator says; default: you are asked.")
def approve(folder: Path, what: str, label: str | None, fingerprint: str | None) -> None:
    """At the server: let the site of a request FILE take part; FOLDER/sites/NAME is what it needs,
    without a key. The fingerprint of its key is compared with what the site's operator says before
    it is let in.

    At a site, FOLDER being the site's: agree to one run, or one more, of the experiment DIGEST,
    which `coterie federation list FOLDER` shows; the site goes on running.
    """
    if (folder / SITE).exists():
        _agree_at_site(folder, what, label, fingerprint)
        return
    keys = _import_part("certificates")
    name, public = read_request(Path(what))
    mark = keys.compute_fingerprint(public)
    server = _load_server(folder)
    place, known = folder / "sites" / name, folder / "server" / KEYS / f"{name}.pub"
    if known.exists():
        raise BadInput(f"{name} has a key already: `coterie federation remove` it first")
    if place.exists():
        raise BadInput(f"{place} exists already and is not overwritten: move it away")
    names = server.names if name in server.names else (*server.names, name)
    removed = tuple(n for n in server.sites.removed if n != name)
    sites = server.sites._replace(names=names, removed=removed)
    changed = check_server(server._replace(sites=sites))
    _compare_fingerprint(name, mark, fingerprint)
    keys.make_private_folder(place)
    _write_site_files(folder, server, name, label or server.sites.label)
    keys.make_private_folder(known.parent)
    keys.write_new(known, f"{public}\n".encode())
    write_server(folder / "server", changed)
    print_line(f"{name} may take part with the key {mark}")
    print_line(f"next: send all files of {place} to the site, into the folder that has its key;")
    print_line(f"      where the server is elsewhere, copy {SERVER} and {KEYS}/{name}.pub there")


def _agree_at_site(folder: Path, digest: str, *others: str | None) -> None:
    if any(others):
        raise BadInput("--label and --fingerprint have no effect at a site: leave them out")
    if not re.fullmatch(r"[0-9a-f]{32}", digest):
        raise BadInput(
            f"'{digest[:80]}' is no digest of an experiment: `coterie federation list {folder}` "
            "shows those that it was offered"
        )
    agree_to(folder, digest)
    print_line(f"agreed to one run of {digest}; to withdraw, take it out of {folder / SITE}")


def _compare_fingerprint(name: str, mark: str, said: str | None) -> None:
    """Come back where the key is the site's: by what its operator said, else by asking."""
    if said is None and not sys.stdin.isatty():
        raise BadInput(
            f"the key of {name} has the fingerprint {mark}: compare it with what its operator "
            f"says, then add --fingerprint {mark}"
        )
    if said is None:
        print_line(f"the key of {name} has the fingerprint {mark}")
        if not click.confirm("Does its operator say the same?", default=False):
            raise BadInput(f"{name} is not let in: ask its operator for the request again")
    elif said.strip() != mark:
        raise BadInput(
            f"fingerprint = {said.strip()[:80]}, but the key of {name} has {mark}: it is not let "
            "in, ask its operator for the request again"
        )


def read_request(file: Path) -> tuple[str, str]:
    """The name and the public key of a request."""
    try:
        if file.stat().st_size > LARGEST_REQUEST:
            raise ValueError
        settings = tomllib.loads(file.read_text(encoding="utf-8"))["request"]
        name, public = settings["name"], settings["key"]
        kind, body = public.split()[:2]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{file} is no request of `coterie federation request`") from None
    return check_name(str(name)), f"{kind} {body} {name}"


def _write_site_files(folder: Path, server: ServerConfig, name: str, label: str) -> None:
    """What a site needs beside its key."""
    keys = _import_part("certificates")
    place = folder / "sites" / name
    keys.write_new(place / keys.CA, (folder / "authority" / keys.CA).read_bytes())
    home = SiteSettings(name, server.server.address, label=label, public=server.data.public)
    write_site(place, SiteConfig(home, Privacy()))
    if server.data.public:
        shutil.copy(folder / "server" / server.data.public, place / server.data.public)


def _load_server(folder: Path) -> ServerConfig:
    if not (folder / "server" / SERVER).exists():
        raise BadInput(
            f"{folder} has no server/{SERVER}: give the folder that `coterie federation init` made"
        )
    return read_server(folder / "server")


@federation.command(short_help="Make a folder for one more site.")
@click.argument("folder", type=FOLDER)
@click.argument("name")
@click.option("--label", help="The column that is to be predicted; default as given to `init`.")
def add(folder: Path, name: str, label: str | None) -> None:
    """Make FOLDER/sites/NAME and let the server know its key; a removed site comes back with a new
    key.
    """
    server = _load_server(folder)
    check_name(name)
    names, removed = server.names, server.sites.removed
    if name in names and name not in removed:
        raise BadInput(f"{name} is a site of {folder} already: give another name")
    kept = tuple(n for n in removed if n != name)
    names = names if name in names else (*names, name)
    changed = check_server(server._replace(sites=server.sites._replace(names=names, removed=kept)))
    _make_site(folder, server, name, label or server.sites.label)
    write_server(folder / "server", changed)
    print_line(
        f"made {folder}/sites/{name}; where the server is elsewhere, copy {SERVER} and "
        f"{KEYS}/{name}.pub of {folder}/server there"
    )


@federation.command(short_help="Shut a site out.")
@click.argument("folder", type=FOLDER)
@click.argument("name")
def remove(folder: Path, name: str) -> None:
    """Let the server accept the key of NAME no longer; its number stays its own."""
    server = _load_server(folder)
    if name not in server.names or name in server.sites.removed:
        raise BadInput(
            f"{folder} has no site "
            f"'{name}'{suggest_name(name, set(server.names) - set(server.sites.removed))}"
        )
    write_server(
        folder / "server",
        server._replace(sites=server.sites._replace(removed=(*server.sites.removed, name))),
    )
    (folder / "server" / KEYS / f"{name}.pub").unlink(missing_ok=True)
    place = folder / "sites" / name
    if place.exists():
        place.rename(place.with_name(f"{name}.removed-{time.strftime('%Y%m%d-%H%M%S')}"))
    print_line(
        f"removed {name}; where the server is elsewhere, copy {SERVER} there and delete "
        f"{KEYS}/{name}.pub"
    )


@federation.command(short_help="Play a finished run again and compare the sites' models.")
@click.argument("folder", type=FOLDER)
@click.option(
    "--data", type=FOLDER, required=True, help="A folder with NAME.csv, or another table, per site."
)
@click.option(
    "--run",
    "name",
    default=RUN,
    show_default=True,
    help="Which run of FOLDER/server, as in runs/001-night.",
)
def replay(folder: Path, data: Path, name: str) -> None:
    """Play the run of FOLDER/server again with the local engine, from the journal of who answered
    when and from copies of all sites' rows; compare FOLDER/sites/NAME/model.safetensors.

    For a trial with rows that may be in one place: it proves that sites and a simulation agree.
    """
    _load_server(folder)
    run = folder / "server" / name
    exchanges = len(_import_part("replay").read_exchanges(run))
    sites = len(read_about(run)["clients"])
    rehearsal = _import_part("rehearsal").Rehearsal(folder, data)
    away = [p for p in rehearsal.models(sites).values() if not p.exists()]
    if away:
        raise BadInput(f"{away[0]} is missing: copy it from its site, or let the run end first")
    largest = rehearsal.difference(run)
    print_line(
        f"{exchanges} exchanges played again: parameters of {sites} sites differ by at most "
        f"{largest}"
    )


@federation.command(short_help="What the sites' columns hold, before any training.")
@click.argument("folder", type=FOLDER)
@click.option("--insecure", is_flag=True, help="Plaintext, without keys: on this machine only.")
def stats(folder: Path, insecure: bool) -> None:
    """Ask the sites of FOLDER, that of a server, what their columns hold, and show it for all of
    them together: cells, missing ones, mean, deviation, quartiles, categories.

    The sites' operators agree to the experiment first; nothing is trained. A site tells nothing of
    fewer rows than [limits] rows of its site.toml.
    """
    place = _find_server(folder)
    try:
        lines = _import_part("server").serve_statistics(place, insecure, _print_log_line)
    except _import_part("processes").Stopped as stop:
        _import_part("processes").end_by_signal(stop.number)
    for line in lines:
        print_line(line)


def _find_server(folder: Path) -> Path:
    """The folder of a server, from itself or from that of `init`."""
    return folder / "server" if (folder / "server" / SERVER).exists() else folder


@federation.command(
    context_settings=PASS_THROUGH, short_help="Put one more experiment into a server's queue."
)
@click.argument("folder", type=FOLDER)
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--OPTION VALUE]...")
@click.option("--method", help="Name of the method; default that of --config, or fedavg.")
@click.option("--config", help="A TOML file of an experiment, or the name of a recipe.")
def submit(
    folder: Path, name: str, arguments: tuple[str, ...], method: str | None, config: str | None
) -> None:
    """Put the experiment NAME into the queue of FOLDER, that of a server, for its sites to agree
    to; options are those of `coterie run` that are not about data.

    A server that runs plays it when those before it are over; its run is FOLDER/runs/NUMBER-NAME.
    """
    place = _find_server(folder)
    text = build_experiment_file(config, method, parse_arguments(arguments)[1])
    plan = _import_part("server_app").read_server_plan
    full = _import_part("queue").submit(place, name, text, plan)
    digest = _import_part("consent").digest_of(plan(place, full).settings)
    print_line(f"submitted {full}, the experiment {digest}")


@federation.command("list", short_help="The experiments of a server, or those offered to a site.")
@click.argument("folder", type=FOLDER)
def show_queue(folder: Path) -> None:
    """Show the experiments of FOLDER: of a server what is waiting, running and finished, and who
    has not agreed; of a site what it was offered, and what was agreed to by its operator or policy.
    """
    queue = _import_part("queue")
    if (folder / SITE).exists():
        lines = queue.describe_offers(folder) or ["no experiment was offered to this site yet"]
    else:
        place, plan = _find_server(folder), _import_part("server_app").read_server_plan
        digest_of = _import_part("consent").digest_of

        def describe(name: str) -> str:
            settings = plan(place, name).settings
            rounds = sum(stage["rounds"] for stage in settings["stages"])
            return f"{settings['method']}, {rounds} rounds, {digest_of(settings)}"

        lines = queue.describe_queue(place, describe)
    for line in lines:
        print_line(line)


@federation.command(short_help="Verify the audit logs of a server or sites.")
@click.argument("folder", type=FOLDER)
@click.option("--expect", help="A hash that was printed before: its line must still be there.")
def audit(folder: Path, expect: str | None) -> None:
    """Verify the audit logs in FOLDER (of a server, of a site, or of both): that no line was
    changed, taken out or put in; say what left.

    Lines cut off the end are seen with --expect and a hash that was printed before.
    """
    places = [folder, folder / "server", *sorted((folder / "sites").glob("*"))]
    found = [place / AUDIT for place in places if (place / AUDIT).exists()]
    if not found:
        raise BadInput(f"{folder} has no {AUDIT}: give the folder of a server or a site")
    known = set()
    for path in found:
        events = read_audit(path)
        known |= {event["hash"] for event in events}
        print_line(f"{path}: {summarize_audit(events)}")
    if expect and expect not in known:
        raise BadInput(f"no line has the hash {expect[:80]}: lines at the end are missing")


@federation.command(short_help="Make a new server certificate.")
@click.argument("folder", type=FOLDER)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    help="Host, or HOST:PORT, of the server; default those it had.",
)
@click.option("--days", default=SERVER_DAYS, show_default=True, help="Days until it expires.")
def renew(folder: Path, addresses: tuple[str, ...], days: int) -> None:
    """Make a new certificate for FOLDER/server from FOLDER/authority; sites need nothing new."""
    keys = _import_part("certificates")
    _load_server(folder)
    hosts = [split_address(a if ":" in a else f"{a}:1")[0] for a in addresses]
    hosts = keys.renew_server_certificate(folder / "authority", folder / "server", hosts, days)
    print_line(
        f"{folder}/server/{keys.CERTIFICATE} is good for {days} days, for {', '.join(hosts)}; "
        "start the server again to use it"
    )


@click.command(short_help="Host a deployment's run.")
@click.argument("folder", type=FOLDER)
@click.option("--insecure", is_flag=True, help="Plaintext, without keys: on this machine only.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, LARGEST_PORT),
    help="Serve /health and /metrics (Prometheus) on this port; 0: any free one.",
)
@click.option(
    "--metrics-listen",
    default="127.0.0.1",
    show_default=True,
    help="Address for --metrics-port; plaintext, without keys.",
)
@click.option("--log-json", is_flag=True, help="Every line as a JSON object.")
@click.option("--stay", is_flag=True, help="Wait for more experiments when all are over.")
def server(
    folder: Path,
    insecure: bool,
    metrics_port: int | None,
    metrics_listen: str,
    log_json: bool,
    stay: bool,
) -> None:
    """Host the run of FOLDER until it is over: FOLDER/run is then a run folder like any other. What
    was submitted follows, in FOLDER/runs.

    Started again after it was stopped or killed, it goes on from the last checkpoint.
    """
    try:
        where = None if metrics_port is None else (metrics_listen, metrics_port)
        line = _print_json_line if log_json else _print_log_line
        _import_part("server").serve_deployment(folder, insecure, line, where, _show_done, stay)
    except _import_part("processes").Stopped as stop:
        how = f"`coterie server {folder}` goes on from the last checkpoint"
        click.echo(f"coterie: stopped; {how}", err=True)
        _import_part("processes").end_by_signal(stop.number)


def _show_done(run: Path) -> None:
    """What a run came to, when it is over."""
    show_run(load_run(run))
    print_line(f"report: {write_report([run])}")


@click.command(short_help="Take part in a deployment with the data of this site.")
@click.argument("folder", type=FOLDER)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    help="The rows of this site; remembered in site.toml.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Agree to the experiment that the server shows first; its digest goes to site.toml.",
)
@click.option("--insecure", is_flag=True, help="Plaintext, without keys: on this machine only.")
@click.option("--log-json", is_flag=True, help="Every line as a JSON object.")
def site(folder: Path, data: Path | None, accept: bool, insecure: bool, log_json: bool) -> None:
    """Take part with the rows of this site until stopped; what is learned here stays in
    FOLDER/state.

    The experiment is shown before the site joins, and asked about; another one than was agreed to
    is refused.
    """
    ask = _confirm_experiment if sys.stdin.isatty() else None
    line = _print_json_line if log_json else _print_log_line
    try:
        _import_part("site_service").serve_site(folder, data, insecure, line, accept, ask)
    except _import_part("processes").Stopped as stop:
        _import_part("processes").end_by_signal(stop.number)


def _confirm_experiment(digest: str) -> bool:
    return click.confirm(f"Take part in the experiment {digest}?", default=False)


def _print_json_line(text: str) -> None:
    """The same for programs that collect logs."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    level = "warning" if text.startswith(("warning", "refused", "stopped")) else "info"
    click.echo(json.dumps({"time": when, "level": level, "message": text}))


def _print_log_line(text: str) -> None:
    """A line of a log that is read as it comes."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")
