"""Every number has its range, and what no machine can hold is refused before any work."""

import os
import types
import warnings
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np
import pytest
import torch

import coterie
from coterie.core import memory
from coterie.core.errors import BadInput
from coterie.core.files import check_new_folder, check_regular_file, read_text
from coterie.core.options import OneOf, Range, coerce
from coterie.data.messages import DataWarning
from coterie.data.read.sources.synthetic import allocate_rows
from coterie.data.read.table_files import open_table
from coterie.data.read.user_data import from_arrays
from coterie.experiment.build import check_experiment
from coterie.experiment.config import (
    REGISTRIES,
    Experiment,
    change_options,
    known_options_of,
    options_of,
)
from helpers.runs import FAST, write_csv


def unbounded(kind: Any) -> bool:
    """Whether a type lets some number through without a limit."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return not any(isinstance(limit, Range | OneOf) for limit in inner[1:])
    if origin in (Union, types.UnionType, tuple, list) or (inner and origin is not None):
        return any(unbounded(part) for part in inner if isinstance(part, type) or get_args(part))
    return kind in (int, float)


def test_every_number_declares_its_range():
    known = {
        f"{section}.{option}": kind
        for section, settings in known_options_of(Experiment()).items()
        for option, (kind, _) in settings.items()
    }
    for registry in ("dataset", "partition", "model", "engine", "method"):
        for name in REGISTRIES[registry]:
            settings = options_of(registry, name).items()
            known |= {f"{registry} {name}.{option}": kind for option, (kind, _) in settings}
    assert len(known) > 150
    assert [option for option, kind in known.items() if unbounded(kind)] == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 2147483648),
        ("hidden", 4294967296),
        ("rounds", 10**30),
        pytest.param("rounds", 10**5000, id="thousands of digits"),
        ("local_epochs", "1e400"),
        ("batch_size", 10**12),
        ("eval_every", 10**9),
        ("checkpoint", 10**9),
        ("width", 10**9),
        ("participation", float("inf")),
        ("seed", 2**32),
        ("seed", True),
        ("dataset.seed", -1),
        ("clients", 10**9),
        ("channels", 1000),
        ("validation", float("nan")),
        ("classes-each", 10**9),
        ("parts", "test,nothing"),
    ],
)
def test_a_number_out_of_range_is_one_short_line(option, value):
    with pytest.raises(BadInput) as caught:
        change_options(Experiment(), {option: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "give" in str(caught.value)


def test_words_given_in_python_are_checked_as_those_of_text():
    made = Experiment()
    for bad in (
        made.train._replace(local_steps=2**31),
        made.train._replace(lr=float("inf")),
        made.schedule._replace(rounds=10**30),
        made.schedule._replace(parts=("test", "test")),
        made.keep._replace(checkpoint=-1),
    ):
        section = type(bad).__name__.lower()
        with pytest.raises(BadInput):
            check_experiment(Experiment(**{section: bad}))
    with pytest.raises(BadInput):
        check_experiment(Experiment(engine={"name": "local", "width": -1}))


def test_a_network_that_fits_into_no_memory_is_refused_with_the_number(tmp_path, monkeypatch):
    settings = {"dataset": "digits", "num_clients": 2, "out": tmp_path / "run", "rounds": 1}
    monkeypatch.setattr(memory, "read_memory_limit", lambda: 2**30)
    with pytest.raises(BadInput, match=r"75,000,010 parameters of dnn for 1 client .* 1\.0 GB"):
        coterie.run("fedavg", hidden=1_000_000, **settings)
    line = r"75,010 parameters of dnn for 9,000 clients per chunk need 5\.0 GB .* smaller --width"
    with pytest.raises(BadInput, match=line):
        coterie.run("fedavg", hidden=1_000, width=9_000, **settings)
    assert not (tmp_path / "run").exists()


def test_drawn_data_that_fit_into_no_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "read_memory_limit", lambda: 2**20)
    with pytest.raises(BadInput, match=r"10,000 rows of 2 synthetic clients need .* --num-clients"):
        allocate_rows(np.array([5_000, 5_000]))


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "x" * 300 + "/run", "a\0b"])
def test_a_folder_that_no_system_can_make_is_refused_before_any_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput):
        coterie.run("fedavg", out=name, num_clients=2, rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_long_names_are_refused_or_shortened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="at most 60"):
        coterie.compare(["local@" + "x" * 300], seeds=1)
    with pytest.raises(BadInput, match="at most 60"):
        coterie.register(lambda model, train: None, "x" * 300)
    x = np.random.default_rng(0).normal(size=(40, 3))
    data = from_arrays(x, x[:, 0] > 0, np.arange(40) % 2, name="x" * 300)
    run = coterie.run("local", dataset=data, rounds=1, **FAST)
    assert len(run.folder.name) < 120


@pytest.mark.parametrize(
    "seeds", [4294967296, -1, 0, True, 1.5, [2**32], [-1], [0, 0], "x", object()]
)
def test_seeds_out_of_range_are_refused(seeds):
    with pytest.raises(BadInput, match=r"^seeds"):
        coterie.compare(["local"], seeds=seeds)


# Files


def test_only_plain_files_of_some_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a pipe, and a file is expected there"):
        check_regular_file(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a folder"):
        check_regular_file(tmp_path)
    with pytest.raises(BadInput, match="is a device"):
        check_regular_file(Path("/dev/null"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**30)  # no byte of it is on disk
    with pytest.raises(BadInput, match=r"has 1,073,741,824 bytes"):
        read_text(tmp_path / "large")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfrounds = 1")
    assert read_text(tmp_path / "marked") == "rounds = 1"
    check_new_folder(tmp_path / "new")


def test_a_range_shows_its_ends():
    with pytest.raises(BadInput, match=r"^x = 7: give a whole number from 1 to 3$"):
        coerce(Annotated[int, Range(1, 3)], 7, "x")


# What people have


@pytest.mark.parametrize("kind", ["backwards", "Fortran", "read-only", "float64 everywhere"])
def test_arrays_of_any_layout_give_the_same_run(kind, tmp_path):
    rng = np.random.default_rng(0)
    x, clients = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    y = (x[:, 0] > 0).astype(np.int64)
    plain_run = coterie.run(
        "fedavg", dataset=from_arrays(x, y, clients), out=tmp_path / "plain", rounds=1, **FAST
    )
    given, before = x, torch.get_default_dtype()
    if kind == "backwards":
        given = np.ascontiguousarray(x[::-1])[::-1]
    elif kind == "Fortran":
        given = np.asfortranarray(x)
    elif kind == "read-only":
        given = np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)
    try:
        if kind == "float64 everywhere":
            torch.set_default_dtype(torch.float64)
        run = coterie.run(
            "fedavg", dataset=from_arrays(given, y, clients), out=tmp_path / "run", rounds=1, **FAST
        )
    finally:
        torch.set_default_dtype(before)
    assert run.about["data"] == plain_run.about["data"]
    assert run.summary().mean == pytest.approx(plain_run.summary().mean, abs=0.2)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: coterie.run("fedavg", watch=3), "^watch = 3: give a function"),
        (lambda: coterie.run(3), "^method = 3"),
        (lambda: coterie.run("fedavg", config=3), "^config = 3"),
        (lambda: coterie.run("fedavg", out=3), "^out = 3"),
        (lambda: coterie.run("fedavg", model=3), "^unknown model '3'"),
        (lambda: coterie.run("fedavg", model=[]), "^model is an empty list"),
        (lambda: coterie.compare(5), "^methods = 5"),
        (lambda: coterie.compare(["local"], options=5), "^options = 5"),
        (lambda: coterie.compare(["local"], tune={"local": 5}), "^tune = "),
        (lambda: coterie.compare([3]), "^methods = 3"),
        (lambda: coterie.load(None), "^folder = None"),
        (lambda: coterie.resume(3), "^folder = 3"),
        (lambda: coterie.load_model("x", 1.5), "^client = 1.5"),
        (lambda: coterie.register(3), "^builder = 3"),
        (lambda: from_arrays([[1], [2, 3]], [0, 1]), "^x is no array"),
        (lambda: from_arrays([[1], [2]], np.array([2**63, 0], np.uint64)), "in row 1; write so"),
    ],
)
def test_arguments_of_another_kind_are_one_line(call, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=line):
        call()
    assert list(tmp_path.iterdir()) == []


def test_one_name_and_generators_serve_as_lists(tmp_path):
    path = str(write_csv(tmp_path / "own.csv"))
    one = coterie.compare("local", seeds=1, dataset=path, out=tmp_path / "a", rounds=1, **FAST)
    two = coterie.compare(
        (name for name in ("local",)),
        seeds=(seed for seed in (np.int64(0),)),
        dataset=path,
        out=tmp_path / "b",
        rounds=1,
        **FAST,
    )
    assert list(one.runs) == list(two.runs) == ["local"]


@pytest.mark.parametrize("coding", ["utf-16", "utf-8-sig"])
def test_tables_of_spreadsheets_are_read(coding, tmp_path):
    path = write_csv(tmp_path / "own.csv")
    wanted = coterie.run("local", dataset=path, out=tmp_path / "a", rounds=1, **FAST).about["data"]
    path.write_bytes(path.read_text().encode(coding))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the encoding is told
        found = coterie.run("local", dataset=path, out=tmp_path / "b", rounds=1, **FAST)
    assert found.about["data"] == wanted


@pytest.mark.parametrize("text", ["client,é,label\nx,1,0\n", "client,a,label\né,1,0\n"])
def test_tables_of_old_windows_programs_are_read_and_told(text, tmp_path):
    (tmp_path / "own.csv").write_bytes(text.encode("cp1252"))
    opened = open_table(tmp_path / "own.csv", [], "")
    assert opened.remarks == ["text is cp1252"]
    assert "é" in opened.frame.write_csv()
