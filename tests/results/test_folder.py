"""The folders of runs: one for each, whoever asks at the same time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.results import folder as folders
from coterie.results.folder import make_run_folder
from helpers.runs import IMAGES

MANY = 8


@pytest.fixture
def one_second(tmp_path, monkeypatch):
    """All happens in one second, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "time", SimpleNamespace(strftime=lambda form: "20260101-120000"))
    return tmp_path


def test_runs_of_one_name_and_second_get_a_folder_each(one_second):
    together = Barrier(MANY)

    def begin(number: int) -> Path:
        together.wait()
        with make_run_folder(None, "ditto-digits") as folder:
            (folder / "config.toml").write_text(f"{number}")
            together.wait()
            return folder

    with ThreadPoolExecutor(MANY) as pool:
        found = list(pool.map(begin, range(MANY)))
    name = "20260101-120000-ditto-digits"
    assert sorted(path.name for path in found) == [name, *(f"{name}-{k}" for k in range(2, 9))]
    assert [path.read_text() for path in (p / "config.toml" for p in found)] == list("01234567")


def test_a_folder_in_which_nothing_was_written_is_gone(one_second):
    with pytest.raises(BadInput, match="rounds"):
        coterie.run("local", dataset="digits", rounds=0)
    with make_run_folder(None, "a/..\\b") as folder:
        assert folder.is_dir()
        assert folder.parent == Path("runs")
    assert list(one_second.iterdir()) == []


def test_a_folder_of_ones_own_is_neither_made_nor_removed(one_second):
    (one_second / "mine").mkdir()
    for name in ("mine", "other"):
        with make_run_folder(Path(name), "x") as folder:
            assert folder == Path(name)
    assert [path.name for path in one_second.iterdir()] == ["mine"]


def test_two_runs_in_one_second_both_finish(one_second):
    first, second = (coterie.run("local", **IMAGES | {"rounds": 1}) for _ in range(2))
    assert second.folder.name == f"{first.folder.name}-2"
