"""Hostile input of every kind, and the judge of what comes of it.

A case succeeds or is refused in one line with nothing left behind; all else is a failure. Training
itself is left out where a case may ask for a million rounds: the run is put together, and counts as
accepted when its first round would begin.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet

import coterie
from coterie.cli import main as cli
from coterie.comparison import execute as comparisons
from coterie.core.errors import BadInput
from coterie.data.read.user_data import from_arrays
from coterie.experiment.config import Experiment, change_options, known_options_of
from coterie.methods.registry import METHODS
from coterie.reports.gather import gather_evidence
from coterie.reports.tracking import runs_of
from coterie.running import execute as experiments
from coterie.ui.app import build_app
from helpers.runs import stop_at, write_csv

with warnings.catch_warnings():  # it would rather have a newer package than httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

SECONDS = 60  # that a case may take on a busy machine
TINY = {
    "rounds": 1,
    "batch_size": 8,
    "path": "sequential",
    "width": 2,
    "compile": "no",
    "threads": 1,
    "checkpoint": 1,
}
DIGITS = TINY | {"num_clients": 2, "rows": 60, "hidden": 4}


class Accepted(Exception):
    """A run that was put together: its first round would begin now."""


class Failed(AssertionError):
    """A case ended otherwise than in success or one clear line."""


def _accept(*_: Any, **__: Any) -> Any:
    raise Accepted


@contextlib.contextmanager
def no_training() -> Iterator[None]:
    """Runs are put together and not played."""
    with (
        mock.patch.object(experiments, "execute_assembly", _accept),
        mock.patch.object(experiments, "run_rounds", _accept),
        mock.patch.object(comparisons, "execute_assembly", _accept),
    ):
        yield


@contextlib.contextmanager
def in_folder() -> Iterator[Path]:
    """An empty folder to work in, gone afterwards."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


@contextlib.contextmanager
def in_time(case: Any) -> Iterator[None]:
    """A case that hangs is a failure too."""

    def late(*_: Any) -> None:
        raise Failed(f"no answer in {SECONDS} seconds: {case!r}")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def listing(folder: Path) -> dict[str, int]:
    """What lies in a folder."""
    return {str(p.relative_to(folder)): p.lstat().st_size for p in folder.rglob("*")}


def command(folder: Path, *arguments: str) -> str:
    """ "accepted", "done" or "refused", whatever the command; else a failure."""
    before, out, errors = listing(folder), io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with (
            in_time(arguments),
            no_training(),
            mock.patch.object(sys, "argv", ["coterie", *arguments]),
            mock.patch.dict(os.environ, {"COTERIE_DATA": str(folder / "no-data")}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            cli.main()
    except Accepted:
        return "accepted"
    except SystemExit as end:
        code = end.code or 0
    except Failed:
        raise
    except BaseException as problem:
        raise Failed(f"coterie {arguments!r}: {type(problem).__name__}: {problem}") from problem
    if code == 0:
        return "done"
    lines = errors.getvalue().splitlines()
    if code not in (2, 3) or not lines or not lines[-1].startswith("coterie: "):
        raise Failed(f"coterie {arguments!r}: exit {code}, {lines[-3:]}")
    if code == 2 and listing(folder) != before:
        left = sorted(set(listing(folder)) - set(before))
        raise Failed(f"coterie {arguments!r} left {left} behind")
    return "refused"


def call(what: str, function: Callable[[], Any]) -> str:
    """The same of a call in Python."""
    folder = Path.cwd()
    before = listing(folder)
    try:
        with in_time(what), no_training(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
    except Accepted:
        return "accepted"
    except BadInput as refusal:
        if "\n" in str(refusal):
            raise Failed(f"{what}: more than one line: {refusal}") from None
        if listing(folder) != before:
            raise Failed(f"{what} left {set(listing(folder)) - set(before)} behind") from None
        return "refused"
    except Failed:
        raise
    except BaseException as problem:
        raise Failed(f"{what}: {type(problem).__name__}: {problem}") from problem
    return "done"


# Command lines

HOSTILE = (
    *("", "0", "-1", "1", "2", "3", "0.5", "1.5", "-0.0", "nan", "inf", "-inf", "1e400", "1e-400"),
    *("2147483648", "4294967295", "4294967296", "1000000", "1000001", str(10**30), "9" * 5000),
    *("x" * 300, "x" * 5000, "é", "\udcff", "[]", "{}", "true", "no", "none", "1,2", "a,b", ","),
    *("/dev/null", "/", "..", "~nobody/x", "a/b", "own.csv", "\n", "%s", "@", "fedavg@x", "1_000"),
    *("a" * 300 + ".csv", "/" + "a/" * 2000, "\t1", "0x10", "1e3", "٣", "--", "-", "=", "auto"),
)
DATA = ("own.csv", "digits", "gaussian", "synthetic")
settings_of_all = sorted(
    {
        option.replace("_", "-")
        for data in DATA
        for split in ("iid", "classes", "dirichlet", "perfedavg", "ktpfl-1", "femnist", "user")
        for model in ("mlr", "dnn", "lstm")
        for names in known_options_of(
            change_options(Experiment(), {"dataset": data, "partition": split, "model": model})
        ).values()
        for option in names
    }
    - {"data-dir", "public", "name"}
)
hostile = st.sampled_from(HOSTILE) | st.text(max_size=8).filter(lambda t: "\0" not in t)
option = st.sampled_from(settings_of_all) | st.sampled_from(
    ["seed", "dataset.seed", "options.lam", "train.lr", "model", "split", "out", "config", "method"]
)
pairs = st.lists(st.tuples(option, hostile), max_size=2)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A small good command with some words replaced by bad ones."""
    kind = draw(st.sampled_from(["run", "run", "run", "compare", "data", "methods", "odd"]))
    if kind == "methods":
        return ["methods", draw(hostile)]
    if kind == "odd":
        commands = ["run", "compare", "resume", "report", "export", "data", "x"]
        return [draw(st.sampled_from(commands)), *draw(st.lists(hostile, max_size=3))]
    method = draw(st.sampled_from(sorted(METHODS)))
    data = draw(st.sampled_from(DATA[:1] * 4 + DATA))
    given = {"dataset": data, **(DIGITS if data == "digits" else TINY)} | dict(draw(pairs))
    settings = [f"--{k}={v}" for k, v in given.items()]
    if kind == "data":
        keep = (
            "dataset",
            "num_clients",
            "rows",
            "partition",
            "scale",
            "seed",
            "validation",
            "test",
            "alpha",
        )
        settings = [f"--{k}={v}" for k, v in given.items() if k in keep]
        return ["data", *settings, "--picture=absent/a.png"]
    if kind == "run":
        own = sorted(change_options(Experiment(method=method), {}).options) or ["lam"]
        options = [f"--{method}.{draw(st.sampled_from(own))}={draw(hostile)}"]
        return ["run", method, *settings, *(options if draw(st.booleans()) else [])]
    seeds = draw(st.sampled_from(["1", "2", "3,5"]) | hostile)
    if seeds.isdecimal() and len(seeds) < 9 and 3 < int(seeds) <= 10_000:
        seeds = "3"  # good, and long
    methods = draw(st.sampled_from([f"local,{method}", f"{method}@b", ",,"]) | hostile)
    return ["compare", f"--methods={methods}", f"--seeds={seeds}", "--no-report", *settings]


def try_command(line: list[str]) -> str:
    """A command line in a folder with a small table."""
    with in_folder() as folder:
        write_csv(folder / "own.csv")
        return command(folder, *line)


# TOML

scalars = st.sampled_from(
    [
        *(
            "0",
            "1",
            "-1",
            "1.5",
            "nan",
            "inf",
            "-inf",
            "true",
            '""',
            '"x"',
            "1979-05-27",
            "07:32:00",
        ),
        *(
            "1979-05-27T07:32:00Z",
            "9223372036854775808",
            str(10**30),
            "[]",
            "[1, 2]",
            "{}",
            "{a = 1}",
        ),
        *('["fedavg"]', '["local", 3]', '"fedavg"', '"own.csv"', "[" * 40 + "]" * 40, "1e400"),
        *("[" * 5000 + "]" * 5000, '"\\u0000"', "'" + "x" * 300 + "'", "[[[1]]]", "0xff", "''"),
    ]
)
keys = st.sampled_from(
    [
        *("method", "methods", "seed", "seeds", "data", "split", "model", "train", "schedule"),
        *("options", "tune", "engine", "keep", "name", "rounds", "lr", "rate", "lam", "chosen"),
        *(
            "num_clients",
            "hidden",
            "parts",
            "drop",
            "participation",
            "checkpoint",
            '"a b"',
            "fedavg",
            "ditto",
        ),
    ]
)
heads = st.sampled_from(
    [
        *("data", "split", "model", "train", "schedule", "options", "engine", "keep", "x", "tune"),
        *("options.ditto", "tune.ditto", "options.ditto.lam", "train.lr", "[dataset]", "methods"),
    ]
)


@st.composite
def toml_texts(draw: st.DrawFn) -> bytes:
    """Files from almost good to not at all."""
    shape = draw(st.integers(0, 9))
    if shape == 0:
        return draw(st.binary(max_size=40))
    lines = [f"{draw(keys)} = {draw(scalars)}" for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 3))):
        lines.append(f"[{draw(heads)}]")
        lines += [f"{draw(keys)} = {draw(scalars)}" for _ in range(draw(st.integers(0, 2)))]
    text = "\n".join(lines)
    return text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16"])))


def try_toml(text: bytes, kind: str) -> str:
    """An experiment file."""
    with in_folder() as folder:
        write_csv(folder / "own.csv")
        (folder / "x.toml").write_bytes(text)
        settings = ["--dataset=own.csv", "--rounds=1"]
        extra = ["--methods=local,ditto", "--no-report"] if kind == "compare" else []
        return command(folder, kind, "--config=x.toml", *settings, *extra)


# Tables

cells = st.sampled_from(
    [
        *(
            "0",
            "1",
            "-1",
            "1.5",
            "nan",
            "inf",
            "",
            " ",
            "x",
            "é",
            '"a,b"',
            '"',
            "1e400",
            "007",
            "-0",
        ),
        *("9223372036854775808", "2024-01-01", "true", "\t", "x" * 200, "NULL", "1;2", "\\N"),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """A small CSV or Parquet file, whole or damaged."""
    names = draw(
        st.lists(
            st.sampled_from(["client", "label", "a", "b", "é", "", "a"]), min_size=1, max_size=5
        )
        | st.just(["client", "a", "b", "label"])
    )
    count = draw(st.integers(0, 12))
    rows = [
        [f"c{i % 2}" if n == "client" else str(i % 2) if n == "label" else str(i) for n in names]
        for i in range(count * 2)
    ]
    for _ in range(draw(st.integers(0, 3)) if rows else 0):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        row[draw(st.integers(0, len(row) - 1))] = draw(cells)
    if draw(st.booleans()):
        columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
        sink = io.BytesIO()
        parquet.write_table(pa.table(columns, names=names), sink)
        name, data = "t.parquet", sink.getvalue()
    else:
        text = "\n".join(",".join(row) for row in [names, *rows]) + "\n"
        coding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
        name, data = "t.csv", text.encode(coding, "replace")
    match draw(st.integers(0, 5)):
        case 0:
            data = data[: draw(st.integers(0, len(data)))]
        case 1:
            data = draw(st.binary(max_size=60)) + data
    return name, data


def try_table(name: str, data: bytes, settings: dict[str, Any]) -> str:
    """A run on a table of one's own."""
    with in_folder() as folder:
        (folder / name).write_bytes(data)
        options = [f"--{k}={v}" for k, v in settings.items()]
        return command(folder, "run", "fedavg", f"--dataset={name}", "--rounds=1", *options)


# Folders of runs


def make_runs(root: Path) -> Path:
    """A finished run, a stopped one and a comparison, trained for real."""
    settings = DIGITS | {"eval_every": 1}
    coterie.run("fedavg", out=root / "finished", **settings)
    with contextlib.suppress(Exception):
        coterie.run("ditto", out=root / "stopped", watch=stop_at(2), **settings | {"rounds": 3})
    coterie.compare(["local"], seeds=1, out=root / "compared", **settings)
    return root


TEXTS = (".json", ".toml", ".jsonl")
values = st.sampled_from(
    [None, True, -1, 0, 1.5, 10**30, 10**400, "", "x", [], {}, [1], {"a": 1}, "NaN", "1979-05-27"]
)
damages = st.sampled_from(
    [
        *("empty", "cut", "bytes", "gone", "folder", "pipe", "socket", "link", "deep", "value"),
        *("value", "value", "nan"),
    ]
)


def damage(path: Path, how: str, value: Any, where: float) -> None:
    """Hurt one file of a run."""
    data = path.read_bytes()
    at = int(where * len(data))
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(data[:at])
    elif how == "bytes":
        path.write_bytes(data[:at] + b"\xff\xfe\x00\n" + data[at + 4 :])
    elif how == "deep":
        path.write_bytes(b"[" * 100_000 if path.suffix != ".toml" else b"a = " + b"[" * 100_000)
    elif how == "nan":
        path.write_bytes(data.replace(b"0", b"nan").replace(b"1", b"Infinity"))
    elif how == "value" and path.suffix in TEXTS:
        path.write_bytes(_with_value(path, data, value, where))
    elif how in ("gone", "folder", "pipe", "socket", "link"):
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        elif how == "link":
            path.symlink_to("/dev/zero")
        elif how == "socket":
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
                os.chdir(path.parent)  # a socket's path may have a hundred letters
                made.bind(path.name)


def _with_value(path: Path, data: bytes, value: Any, where: float) -> bytes:
    """The file with one of its words replaced."""
    lines = data.decode().splitlines()
    if path.suffix == ".json":
        known = json.loads(data)
        key = list(known)[int(where * len(known))]
        return json.dumps(known | {key: value}).encode()
    rows = [i for i, line in enumerate(lines) if " = " in line or path.suffix == ".jsonl"]
    row = rows[int(where * len(rows))]
    if path.suffix == ".jsonl":
        known = json.loads(lines[row])
        known[list(known)[int(where * len(known))]] = value
        lines[row] = json.dumps(known)
    else:
        option = lines[row].partition(" = ")[0]
        lines[row] = f"{option} = {json.dumps(value)}"
    return "\n".join(lines).encode() + b"\n"


ROUTES = ("/api/run?id={}", "/api/measured?id={}", "/api/chosen?run={}", "/run?id={}")


def try_folder(made: Path, number: int, how: str, value: Any, where: float) -> str:
    """Every reader of a run whose folder was hurt."""
    with in_folder() as folder:
        root = folder / "runs"
        shutil.copytree(made, root)
        files = sorted(p for p in root.rglob("*") if p.is_file())
        path = files[number % len(files)]
        what = f"{path.relative_to(root)} {how} {value!r} {where}"
        damage(path, how, value, where)
        os.chdir(folder)
        top = root / path.relative_to(root).parts[0]
        with in_time(what):
            ask(root)
            for reader in (coterie.load, gather_one, runs_of, resume):
                readable(what, reader, top)
        return "done"


def gather_one(folder: Path) -> Any:
    return gather_evidence([folder])


def resume(folder: Path) -> Any:
    with no_training():
        return coterie.resume(folder)


def readable(what: str, reader: Callable[[Path], Any], folder: Path) -> None:
    """A reader reads, or refuses in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(folder)
    except (BadInput, Accepted):
        pass
    except OSError as problem:  # the command line says it in one line
        if not problem.strerror:
            raise Failed(f"{what}: {reader.__name__}: {problem}") from problem
    except Failed:
        raise
    except BaseException as problem:
        name = type(problem).__name__
        raise Failed(f"{what}: {reader.__name__}: {name}: {problem}") from problem


def ask(root: Path, query: str = "") -> None:
    """Every page of `coterie ui` over a folder of runs answers, and never with 500."""
    client = TestClient(build_app(root), base_url="http://127.0.0.1:8765")
    answer = client.get("/api/runs")
    if answer.status_code != 200:
        raise Failed(f"/api/runs: {answer.status_code} {answer.text[:300]}")
    for run in answer.json()["runs"]:
        for route in ROUTES:
            found = client.get(route.format(run["id"]) + query)
            if found.status_code >= 500:
                raise Failed(f"{route} of {run['id']}: {found.status_code} {found.text[:300]}")


# Python

OBJECTS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "3": lambda: 3,
    "-1": lambda: -1,
    "True": lambda: True,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "text": lambda: "x",
    "zero byte": lambda: "a\0b",
    "long": lambda: "x" * 3000,
    "bytes": lambda: b"x",
    "list": list,
    "numbers": lambda: [1, 2],
    "texts": lambda: ["local"],
    "dict": dict,
    "nested": lambda: {"ditto": {"lam": 1}},
    "nested wrong": lambda: {"ditto": 5},
    "generator": lambda: (n for n in (0, 1)),
    "names": lambda: (n for n in ("local", "ditto")),
    "object": object,
    "array": lambda: np.zeros(3),
    "int64": lambda: np.int64(2),
    "float32": lambda: np.float32(0.5),
    "function": lambda: print,
    "class": lambda: dict,
    "set": lambda: {1, 2},
    "lambda": lambda: lambda: None,
}
ARGUMENTS = (
    *("method", "config", "out", "watch", "data", "model", "rounds", "rate", "seed", "clients"),
    *("split", "parts", "train", "schedule", "hidden", "keep", "engine", "lam", "x" * 300),
)
PLURAL = ("methods", "seeds", "config", "out", "options", "tune", "watch", "data", "model", "rate")
python_calls = st.tuples(
    st.sampled_from(["run", "run", "compare", "resume", "load", "load_model", "register"]),
    st.lists(
        st.tuples(st.sampled_from(ARGUMENTS + PLURAL), st.sampled_from(sorted(OBJECTS))),
        min_size=1,
        max_size=2,
    ),
)


def try_python(kind: str, given: list[tuple[str, str]]) -> str:
    """A call with arguments of any kind."""
    with in_folder() as folder:
        own = {"dataset": str(write_csv(folder / "own.csv")), **TINY}
        made = {option: OBJECTS[name]() for option, name in given}
        what = f"{kind}({', '.join(f'{w}={n}' for w, n in given)})"
        if kind == "run":
            settings = {"method": "ditto", **own, **made}
            settings.pop("methods", None), settings.pop("seeds", None)
            return call(what, lambda: coterie.run(settings.pop("method"), **settings))
        if kind == "compare":
            settings = {"methods": ["local", "ditto"], "seeds": 1, **own, **made}
            settings.pop("method", None)
            return call(what, lambda: coterie.compare(settings.pop("methods"), **settings))
        value = next(iter(made.values()))
        calls: dict[str, Callable[[], Any]] = {
            "resume": lambda: coterie.resume(value),
            "load": lambda: coterie.load(value),
            "load_model": lambda: coterie.load_model(folder, value),
            "register": lambda: unregistered(value),
        }
        return call(what, calls[kind])


def unregistered(value: Any) -> None:
    """Register what may be no method, and forget it again."""
    before = dict(METHODS)
    try:
        coterie.register(value)
    finally:
        METHODS.clear()
        METHODS.update(before)


# Arrays

ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "plain": lambda a: a,
    "backwards": lambda a: a[::-1],
    "every second": lambda a: np.repeat(a, 2, 0)[::2],
    "Fortran": np.asfortranarray,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "objects": lambda a: a.astype(object),
    "list": lambda a: a.tolist(),
    "generator": lambda a: (row for row in a),
    "text": lambda a: a.astype(str),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "float16": lambda a: a.astype(np.float16),
    "complex": lambda a: a.astype(complex),
    "bool": lambda a: a > 0,
    "uint64": lambda a: (a > 0).astype(np.uint64) + np.uint64(2**63),
    "huge": lambda a: a * 0 + 1e300,
    "int": lambda a: a.astype(np.int32),
    "none": lambda a: None,
    "short": lambda a: a[:-1],
    "scalar": lambda a: 3,
    "ragged": lambda a: [[1], [2, 3]] * (len(a) // 2),
    "masked": lambda a: np.ma.masked_less(a, 0),
    "empty": lambda a: a[:0],
    "bytes": lambda a: a.astype("S4"),
    "dates": lambda a: a.astype("int64").astype("datetime64[D]"),
}
arrays = st.tuples(*(st.sampled_from(sorted(ARRAYS)) for _ in range(3)))


def try_arrays(x: str, y: str, clients: str) -> str:
    """A run on arrays as people have them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3))
    with in_folder():
        return call(
            f"from_arrays(x {x}, y {y}, clients {clients})",
            lambda: coterie.run(
                "fedavg",
                dataset=from_arrays(
                    ARRAYS[x](rows),
                    ARRAYS[y]((rows[:, 0] > 0).astype(float)),
                    ARRAYS[clients](np.arange(40.0) % 2),
                ),
                **TINY,
            ),
        )
