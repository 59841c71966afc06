"""The files of a deployment: server.toml for the server, site.toml for every site, read and checked
before anything starts.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

from coterie.core.errors import BadInput, suggest_name
from coterie.core.functions import is_function_name
from coterie.core.options import coerce
from coterie.core.task import TASKS, Task, TaskName
from coterie.data.read.columns import Column
from coterie.deploy.table_columns import parse_declared
from coterie.experiment.toml import to_toml
from coterie.networks.registry import NETS, parse_spec

SERVER, EXPERIMENT, SITE, RUN = "server.toml", "experiment.toml", "site.toml", "run"
KEYS = "keys"  # the folder of a server with the public keys of its sites
SERVER_DAYS = 365  # that a server's certificate is good for
NAME_PATTERN = (
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"  # of a site: it names a folder, a key and a line of a log
)
LARGEST_PORT = 65535
FEWEST_SUMMED = 3  # uploads of a secure sum
Table = TypeVar("Table", bound=tuple[Any, ...])
Config = dict[str, Any]


class ServerAddress(NamedTuple):
    """The `[server]` table: where sites dial, and where the server listens."""

    address: str = "localhost:8443"
    listen: str = "0.0.0.0"
    port: int = 0  # 0: the port of the address


class Sites(NamedTuple):
    """The `[sites]` table: a site's number is its position, so names are only ever added at the
    end.
    """

    names: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # named once, never asked again; the number stays theirs
    label: str = "label"  # what `add` and `approve` write into the site.toml of a new site


class Rules(NamedTuple):
    """The `[rules]` table: when an exchange with the sites counts."""

    needed: float = 0.5  # share of the asked sites that must answer
    deadline: float = 600.0  # seconds for one exchange
    tries: int = 10  # times a too small exchange is repeated before the run stops, its state kept
    # an upload whose change is longer than so many times the round's median is left out; 0: never
    outlier: float = 10.0
    quorum: float = 1.0  # share of the sites that must be there for a run to start
    patience: float = 600.0  # seconds to wait for all of them before it starts with the quorum
    # a site counts for at most so many times the median of the sites' rows; 0: for all it claims
    claims: float = 10.0


class DataShape(NamedTuple):
    """The `[data]` table of a server: what the rows of every site look like, and how each site
    deals its own.
    """

    classes: int = 2  # 0 where numbers or several labels are learnt
    features: int = 0  # numbers a row, or `shape` where a row is no flat list
    shape: tuple[int, ...] = ()
    # how the files write class 0, 1, ...; none: as 0, 1, ...; of task multilabel: their columns
    labels: tuple[str, ...] = ()
    public: str = ""  # file of rows that everyone may see, relative to the folder
    validation: float = 0.2
    test: float = 0.2
    seed: int = 0
    # "standard": columns by mean and deviation of all sites' training rows; "none": as they are
    scale: Literal["none", "standard"] = "none"
    # what is learnt of the label: as in `coterie run`
    task: TaskName = "classes"
    # the columns of a table, each with its kind, as in "age: number"; their cells may be texts,
    # dates or missing, and the sites agree on what they become
    table: tuple[str, ...] = ()

    @property
    def learnt(self) -> Task:
        """What is known of the task."""
        return TASKS[self.task]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of several labels, which are the same at every site; () of one label."""
        return tuple(self.labels) if self.learnt.several else ()

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """Those of a table; () where rows are plain numbers."""
        return tuple(parse_declared(text) for text in self.table)

    @property
    def sums(self) -> int:
        """Columns whose mean and deviation the sites tell before the first round."""
        scaled = self.features if self.scale == "standard" else 0
        return (len(self.table) or scaled) + self.learnt.has_units

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row as it is read."""
        return self.shape or (len(self.table) or self.features,)


class Privacy(NamedTuple):
    """The `[privacy]` table: what is done to an upload before it leaves its site."""

    clip: float = (
        0.0  # largest Euclidean norm of what an upload tells beyond what was received; 0: any
    )
    noise: float = 0.0  # deviation of the Gaussian noise added to it, in units of clip; 0: none
    delta: float = 1e-5  # for which the epsilon of the whole run is counted
    # whether accuracy, loss and what a method logs leave the site; None: unless there is noise,
    # which does not cover them
    measures: bool | None = None
    # whether uploads are masked, so that the server learns their weighted sum only; experimental
    secure_sum: bool = False
    # whether every site's own model is measured at all other sites when the run ends
    cross_site: bool = False

    @property
    def sends_measures(self) -> bool:
        """Whether they leave."""
        return not self.noise if self.measures is None else self.measures


class Limits(NamedTuple):
    """The `[limits]` table of a site: what leaves it at most, whoever asks."""

    rows: int = 10  # fewest rows of which a score, a sum or what a method logs leaves the site
    # most digits of them, and no more of a score than its rows can tell; 0: all
    digits: int = 3
    # what its noised uploads may tell over all runs, see accountant; 0: as much as is agreed to
    epsilon: float = 0.0


class Policy(NamedTuple):
    """The `[policy]` table of a site: experiments that it takes part in without asking its
    operator, over columns that the operator has agreed to once.
    """

    methods: tuple[str, ...] = ()  # of such experiments; none: the operator is asked each time
    rounds: int = 100  # of a run, at most
    rows: int = 50  # training rows of this site, at least
    epsilon: float = 0.0  # what the noised uploads of a run may tell; 0: without noise too
    runs: int = 10  # that begin in this way, in all


class ServerConfig(NamedTuple):
    """A server.toml."""

    server: ServerAddress
    sites: Sites
    rules: Rules
    data: DataShape
    privacy: Privacy

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self.server.port or split_address(self.server.address)[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Every site by its number."""
        return self.sites.names


class SiteSettings(NamedTuple):
    """The `[site]` table: who this site is, whom it serves, where its rows are; paths are relative
    to the folder.
    """

    name: str = ""
    server: str = "localhost:8443"
    data: str = ""
    label: str = "label"
    features: str = ""  # columns separated by commas; none: all but the label
    public: str = ""
    state: str = "state"  # folder of the site's own state and model
    # digests of the experiments that this site's operator has agreed to, separated by commas; each
    # is good for one run
    experiment: str = ""

    @property
    def agreed(self) -> list[str]:
        """The same as a list."""
        return [digest.strip() for digest in self.experiment.split(",") if digest.strip()]


class SiteConfig(NamedTuple):
    """A site.toml; its `[privacy]` is what the site insists on, whatever the server asks."""

    site: SiteSettings
    privacy: Privacy
    limits: Limits = Limits()
    policy: Policy = Policy()


def agree_to(folder: Path, experiment: str) -> None:
    """Let a site take part in one run, or one more, of an experiment."""
    site = read_site(folder)
    agreed = ",".join([*site.site.agreed, experiment])
    write_site(folder, site._replace(site=site.site._replace(experiment=agreed)))


def combine_privacy(asked: Privacy, own: Privacy) -> Privacy:
    """What a site does to its uploads: at least what the server asks, and at least what it insists
    on itself.
    """
    clips = [clip for clip in (asked.clip, own.clip) if clip > 0]
    both = asked.sends_measures and own.sends_measures
    return Privacy(
        clip=min(clips, default=0.0),
        noise=max(asked.noise, own.noise),
        measures=None if asked.measures is own.measures is None else both,
        secure_sum=asked.secure_sum or own.secure_sum,
        cross_site=asked.cross_site,
    )


def parse_privacy(given: Any) -> Privacy:
    """The privacy that a message asks for."""
    if not isinstance(given, list) or len(given) > len(Privacy._fields):
        raise BadInput("privacy is no list of its options")
    settings = dict(zip(Privacy._fields, given, strict=False))
    privacy: Privacy = read_table(Privacy, settings, "privacy")
    _check_privacy(privacy)
    return privacy


def read_server(folder: Path) -> ServerConfig:
    """The server.toml of a folder, checked."""
    place = folder / SERVER
    server = _read(
        place,
        ServerConfig,
        f"give the folder that `coterie federation init` made, such as {folder / 'server'}",
    )
    try:
        return check_server(server)
    except BadInput as problem:
        raise BadInput(f"{place}: {problem}") from None


def check_server(server: ServerConfig) -> ServerConfig:
    """The same server, if every value of it can be used."""
    split_address(server.server.address)
    _check_range("server.port", server.server.port, 0, LARGEST_PORT)
    if not server.server.listen:
        raise BadInput('server.listen = "": give the address of a network card, or 0.0.0.0 for all')
    if not server.names:
        raise BadInput("sites.names is empty: name at least one site, such as north")
    for name in server.names:
        check_name(name)
    twice = [
        name for name, times in Counter(name.lower() for name in server.names).items() if times > 1
    ]
    if twice:
        raise BadInput(f"sites.names has '{twice[0]}' twice: give every site a name of its own")
    unknown = [name for name in server.sites.removed if name not in server.names]
    if unknown:
        raise BadInput(
            f"sites.removed names '{unknown[0]}', which is no "
            f"site{suggest_name(unknown[0], server.names)}"
        )
    if len(set(server.sites.removed)) == len(server.names):
        raise BadInput("every site is removed: add one with `coterie federation add`")
    _check_range("rules.needed", server.rules.needed, 0, 1)
    _check_range("rules.deadline", server.rules.deadline, 1, 7 * 86400)
    _check_range("rules.tries", server.rules.tries, 1, 10**6)
    if server.rules.outlier:
        _check_range("rules.outlier", server.rules.outlier, 1, 1e12)
    if server.rules.claims:
        _check_range("rules.claims", server.rules.claims, 1, 1e12)
    _check_range("rules.quorum", server.rules.quorum, 0, 1)
    _check_range("rules.patience", server.rules.patience, 0, 30 * 86400)
    check_shape(server.data)
    _check_privacy(server.privacy)
    if server.privacy.secure_sum:
        _check_secure_sum(server)
    if server.privacy.cross_site:
        _check_cross_site(server)
    if server.data.scale != "none" and server.privacy.noise:
        raise BadInput(
            f"data.scale = {server.data.scale} sends means and deviations of columns, which "
            'privacy.noise does not cover: write scale = "none"'
        )
    if server.data.table and server.privacy.noise:
        raise BadInput(
            "data.table needs medians and categories of the sites' columns, which privacy.noise "
            "does not cover: write numbers into every site's file, and features = how many there "
            "are instead of table"
        )
    if server.data.learnt.has_units and server.privacy.noise:
        raise BadInput(
            f"data.task = {server.data.task} sends mean and deviation of the label, which "
            "privacy.noise does not cover: leave noise out, or learn classes"
        )
    return server


def check_no_function(metric: str) -> None:
    """Refuse a function by name: a server must not choose what is imported and called at a site."""
    if is_function_name(metric):
        raise BadInput(
            f"metric = '{metric}' is a function of one's own, which real sites do not call: name "
            "a measure of the task"
        )


def check_network(model: Mapping[str, Any]) -> None:
    """Refuse a network that is read from a folder, or fetched: a server must not choose which."""
    for spec in str(model.get("name", "")).split(","):
        net = NETS.get(parse_spec(spec)[0])
        if net is not None and net.wants_base:
            raise BadInput(
                f"model = '{spec[:80]}' is read from a folder or fetched, and what a site reads is "
                "not for a server to choose: choose another network"
            )


def read_site(folder: Path) -> SiteConfig:
    """The site.toml of a folder, checked."""
    place = folder / SITE
    site = _read(
        place,
        SiteConfig,
        "give the folder that `coterie federation init` made, such as "
        f"{folder / 'sites' / 'north'}",
    )
    try:
        check_name(site.site.name)
        split_address(site.site.server)
        if not site.site.label:
            raise BadInput('site.label = "": name the column that is to be predicted')
        if not site.site.state:
            raise BadInput('site.state = "": name a folder for what this site keeps, such as state')
        _check_privacy(site.privacy)
        if site.privacy.cross_site:
            raise BadInput("privacy.cross_site has no effect at a site: write it into server.toml")
        _check_limits(site.limits, site.privacy)
        _check_policy(site.policy)
    except BadInput as problem:
        raise BadInput(f"{place}: {problem}") from None
    return site


def write_server(folder: Path, server: ServerConfig) -> None:
    """A server.toml, whole or not at all."""
    _write(
        folder / SERVER,
        {name: table._asdict() for name, table in check_server(server)._asdict().items()},
    )


def write_site(folder: Path, site: SiteConfig) -> None:
    """A site.toml, whole or not at all."""
    _write(folder / SITE, {name: table._asdict() for name, table in site._asdict().items()})


def resolve_path(folder: Path, name: str) -> Path:
    """The path that a file of this folder means."""
    return (folder / Path(name).expanduser()).absolute()


def check_name(name: str) -> str:
    """A site's name, if it can stand in a folder, a key and a log."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise BadInput(f"site name '{name}': use letters, digits, - and _, as in north-1")
    return name


def split_address(address: str) -> tuple[str, int]:
    """The two parts of host:port or [v6]:port."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good_host = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host) or _is_ip(host)
    if not (
        colon and good_host and port.isascii() and port.isdigit() and 0 < int(port) <= LARGEST_PORT
    ):
        raise BadInput(f"address = '{address}': give host:port, as in fl.example.org:8443")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host stays on this machine."""
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_range(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadInput(f"{option} = {value:g}: give a number from {low:g} to {high:g}")


def check_shape(data: DataShape) -> None:
    _check_task(data)
    given = [bool(data.features), bool(data.shape), bool(data.table)]
    if sum(given) != 1 or data.features < 0 or any(side < 1 for side in data.shape):
        raise BadInput(
            "data.features, data.shape or data.table must say what a row is: give one, as features "
            '= 64, shape = [1, 28, 28] or table = ["age: number", "sex: category"]'
        )
    names = Counter(column.name for column in data.table_columns)
    if twice := [name for name, times in names.items() if times > 1]:
        raise BadInput(f"data.table has the column '{twice[0]}' twice: name each once")
    if data.scale != "none" and data.shape:
        raise BadInput(
            f"data.scale = {data.scale} is for rows that are flat lists, not for shape = "
            f'{list(data.shape)}: write scale = "none"'
        )
    _check_range("data.validation", data.validation, 0, 1)
    _check_range("data.test", data.test, 0, 1)
    if data.validation + data.test >= 1:
        raise BadInput(
            f"data.validation + data.test = {data.validation + data.test:g}: leave a share of the "
            "rows for training"
        )


def _check_task(data: DataShape) -> None:
    """Refuse classes and labels that the task does not have."""
    learnt = data.learnt
    if data.classes > learnt.most == 0:
        raise BadInput(
            f"data.classes = {data.classes}, but task = {data.task} has none: write classes = 0"
        )
    _check_range("data.classes", data.classes, learnt.least, learnt.most)
    different = len(set(data.labels))
    if learnt.is_number and data.labels:
        raise BadInput(f"data.labels names {different} classes, but task = {data.task} has none")
    if learnt.several and (different < 2 or different < len(data.labels)):
        raise BadInput(f"data.labels must name the columns of task = {data.task}, each once")
    if data.classes and data.labels and (len(data.labels), different) != (data.classes,) * 2:
        raise BadInput(
            f"data.labels names {different} classes, but classes = {data.classes}: "
            "name each once, or none"
        )


def _check_privacy(privacy: Privacy) -> None:
    _check_range("privacy.clip", privacy.clip, 0, 1e12)
    _check_range("privacy.noise", privacy.noise, 0, 1e12)
    if not 0 < privacy.delta < 1:
        raise BadInput(f"privacy.delta = {privacy.delta:g}: give a number above 0 and below 1")
    if privacy.noise and not privacy.clip:
        raise BadInput(
            f"privacy.noise = {privacy.noise:g} without privacy.clip: noise is measured in units "
            "of clip, give both"
        )


def _check_secure_sum(server: ServerConfig) -> None:
    """Refuse what needs single uploads, and sums of so few that they tell of one."""
    there = len(server.names) - len(server.sites.removed)
    if there < FEWEST_SUMMED:
        raise BadInput(
            f"privacy.secure_sum = true with {there} sites: a sum of fewer than {FEWEST_SUMMED} "
            "uploads tells too much of each, add sites or leave it out"
        )
    if server.rules.outlier:
        raise BadInput(
            f"rules.outlier = {server.rules.outlier:g} compares uploads, which privacy.secure_sum "
            "hides: write outlier = 0, or leave secure_sum out"
        )


def _check_cross_site(server: ServerConfig) -> None:
    """Refuse to let models out where uploads are noised or masked."""
    for option in ("noise", "secure_sum"):
        if value := getattr(server.privacy, option):
            raise BadInput(
                "privacy.cross_site = true lets the sites' own models out, which "
                f"privacy.{option} = {str(value).lower()} does not cover: leave one of them out"
            )
    if len(server.names) - len(server.sites.removed) < 2:
        raise BadInput("privacy.cross_site = true with one site: there is no other to measure at")


def _check_limits(limits: Limits, privacy: Privacy) -> None:
    _check_range("limits.rows", limits.rows, 1, 10**9)
    _check_range("limits.digits", limits.digits, 0, 17)
    _check_range("limits.epsilon", limits.epsilon, 0, 1e6)
    if limits.epsilon and privacy.measures:
        raise BadInput(
            f"limits.epsilon = {limits.epsilon:g} with privacy.measures = true: noise does not "
            "cover scores, leave one out"
        )


def _check_policy(policy: Policy) -> None:
    for option in ("rounds", "rows", "runs"):
        _check_range(f"policy.{option}", getattr(policy, option), 1, 10**9)
    _check_range("policy.epsilon", policy.epsilon, 0, 1e6)


def _read(place: Path, kind: type[Table], way: str) -> Table:
    """A file of tables as a NamedTuple of NamedTuples; what is left out has its default."""
    try:
        settings = tomllib.loads(place.read_bytes().decode())
    except FileNotFoundError:
        raise BadInput(f"{place.parent} has no {place.name}: {way}") from None
    except OSError as problem:
        raise BadInput(f"{place} cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadInput(f"{place} is no TOML file: {problem}") from None
    tables = get_type_hints(kind)
    for section in settings:
        if section not in tables or not isinstance(settings[section], dict):
            raise BadInput(f"{place}: unknown section '{section}'{suggest_name(section, tables)}")
    try:
        return kind(*(read_table(tables[s], settings.get(s, {}), s) for s in tables))
    except BadInput as problem:
        raise BadInput(f"{place}: {problem}") from None


def read_table(kind: Any, settings: Config, section: str) -> Any:
    hints, defaults = get_type_hints(kind), kind._field_defaults
    for option in settings:
        if option not in defaults:
            raise BadInput(
                f"unknown option '{option}' in [{section}]{suggest_name(option, defaults)}"
            )
    return kind(
        **{k: coerce(hints[k], v, f"{section}.{k}", defaults[k]) for k, v in settings.items()}
    )


def _write(place: Path, settings: Config) -> None:
    temporary = place.with_name(place.name + ".part")
    temporary.write_text(to_toml(settings), encoding="utf-8")
    os.replace(temporary, place)
