"""Checkpoints: every tree comes back as it was, nothing is pickled, and a damaged one is
refused.
"""

import json
import math
import os
import stat
from threading import Barrier
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coterie.core.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from coterie.core.errors import BadInput, CannotWrite
from coterie.core.files import move_into_place
from coterie.core.point import Point, Vector
from coterie.core.tree import load_tree, save_tree


class Pair(NamedTuple):
    left: object
    right: object


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a, b)
        )
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and bool((a == b).all())
        )
    if isinstance(a, Point):
        return isinstance(b, Point) and same(a.params, b.params) and same(a.buffers, b.buffers)
    if isinstance(a, Vector):
        return isinstance(b, Vector) and same(a.params, b.params) and same(a.fresh, b.fresh)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return (
            type(a) is type(b)
            and len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
        )
    return type(a) is type(b) and (a == b or (a != a and b != b))


TREES = {
    "numbers and text": (
        1,
        2.5,
        -0.0,
        1e-300,
        math.inf,
        math.nan,
        True,
        None,
        'a "quoted"\n line é',
        2**80,
    ),
    "nested": {"a": [1, (2, {"b": torch.arange(3)})], "c": ()},
    "names that join to the same": {
        "a.b": torch.tensor(1.0),
        "a": {"b": torch.tensor(2.0)},
        1: torch.tensor(3.0),
        "1": 4,
    },
    "dtypes": [
        torch.tensor([1, 2], dtype=d)
        for d in (torch.float64, torch.int64, torch.bool, torch.uint8, torch.bfloat16)
    ],
    "scalars and empty": [
        torch.tensor(3),
        torch.zeros(0, 4),
        np.array(2.5),
        np.zeros((0, 2)),
        np.arange(6).reshape(2, 3).T,
    ],
    "views": list(torch.arange(12.0).reshape(3, 4).T),
    "named tuple": Pair(torch.ones(2), Pair(None, [np.arange(3, dtype=np.int32)])),
    "points": Pair(
        Point({"w": torch.rand(2, 2)}, {"n": torch.tensor(3)}), Vector({"w": torch.rand(3)}, {})
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_every_tree_comes_back_as_it_was(name, tmp_path):
    save_tree(TREES[name], tmp_path, "state")
    assert same(load_tree(tmp_path, "state"), TREES[name])


def test_loaded_tensors_own_their_memory(tmp_path):
    save_tree([torch.ones(3), torch.ones(3)], tmp_path, "state")
    a, b = load_tree(tmp_path, "state")
    a += 1
    assert b.tolist() == [1, 1, 1]
    assert a.untyped_storage().nbytes() == a.nbytes


def test_what_cannot_be_saved_is_refused():
    with pytest.raises(BadInput, match="a set cannot be saved"):
        save_tree({1, 2}, None, "state")

    class Inner(NamedTuple):
        x: int

    with pytest.raises(BadInput, match="defined inside a function"):
        save_tree(Inner(1), None, "state")


def test_a_file_can_name_only_tuples_of_modules_that_are_loaded(tmp_path):
    for name in ("os:system", "antigravity:Pair", "builtins:eval", "coterie.core.point:Point"):
        save_file({}, tmp_path / "state.safetensors")
        tree = {"named": name, "items": [{"value": "echo"}]}
        (tmp_path / "state.json").write_text(json.dumps({"format": 1, "tree": tree}))
        with pytest.raises(BadInput, match="not loaded here"):
            load_tree(tmp_path, "state")


def write(run, number: int) -> None:
    save_checkpoint(
        run,
        number,
        {"w": torch.full((50,), float(number))},
        {"extra.txt": lambda path: path.write_text("more")},
    )


def test_a_new_checkpoint_replaces_all_but_the_one_before_and_unfinished_saves(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "checkpoint-0000002.part").mkdir()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-0000001"]
    write(tmp_path, 3)
    write(tmp_path, 5)
    names = ["checkpoint-0000003", "checkpoint-0000005"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert load_checkpoint(list_checkpoints(tmp_path)[-1])["w"][0] == 5


def test_a_save_that_fails_leaves_the_older_checkpoint(tmp_path):
    write(tmp_path, 1)

    def full(path):
        raise OSError("disk full")

    with pytest.raises(CannotWrite, match="disk full"):
        save_checkpoint(tmp_path, 2, {}, {"extra.txt": full})
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-0000001"]
    assert load_checkpoint(list_checkpoints(tmp_path)[0])["w"][0] == 1


def test_nothing_in_a_checkpoint_is_pickled(tmp_path):
    write(tmp_path, 1)
    files = sorted((tmp_path / "checkpoint-0000001").iterdir())
    assert [f.name for f in files] == ["extra.txt", "files.json", "state.json", "state.safetensors"]
    assert not any(f.read_bytes().startswith((b"\x80", b"PK")) for f in files)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "files.json", "extra.txt"])
@pytest.mark.parametrize(
    "harm", [truncate, flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_or_partial_checkpoint_is_refused_in_one_line(name, harm, tmp_path):
    write(tmp_path, 1)
    folder = list_checkpoints(tmp_path)[0]
    harm(folder / name)
    with pytest.raises(
        BadInput, match=r"(damaged|not whole).*delete .*checkpoint-0000001 to begin anew"
    ) as refused:
        load_checkpoint(folder)
    assert "\n" not in str(refused.value)


def test_another_format_is_refused(tmp_path):
    save_tree([1], tmp_path, "state")
    (tmp_path / "state.json").write_text(json.dumps({"format": 99, "tree": {"value": 1}}))
    with pytest.raises(BadInput, match="format 99"):
        load_tree(tmp_path, "state")


def test_a_missing_or_broken_tree_is_refused(tmp_path):
    with pytest.raises(BadInput, match="is missing"):
        load_tree(tmp_path, "state")
    save_tree([torch.ones(2)], tmp_path, "state")
    (tmp_path / "state.json").write_text(json.dumps({"format": 1, "tree": {"tensor": "7"}}))
    with pytest.raises(BadInput, match="damaged"):
        load_tree(tmp_path, "state")


def test_place_puts_files_and_folders(tmp_path):
    (tmp_path / "a.part").write_text("new")
    (tmp_path / "a").write_text("old")
    move_into_place(tmp_path / "a.part", tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "new"


def test_the_files_of_a_folder_reach_the_disk_together(tmp_path):
    (tmp_path / "a.part").mkdir()
    for name in "bc":
        (tmp_path / "a.part" / name).write_text(name)
    both, plain = Barrier(2, timeout=20), os.fsync

    def fsync(number):
        if stat.S_ISREG(os.fstat(number).st_mode):
            both.wait()  # for ever, were one after another
        plain(number)

    with mock.patch("os.fsync", fsync):
        move_into_place(tmp_path / "a.part", tmp_path / "a")
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"b", "c"}


def states(clients, value):
    return list(clients), Pair(torch.full((len(clients), 3), value), torch.tensor(clients) + value)


def write_states(run, number, clients, base=None):
    tree = {"states": [states(clients, float(number)), ([], None)]}
    return save_checkpoint(run, number, tree, {}, base)


def test_a_checkpoint_of_changes_is_its_base_with_the_changed_clients(tmp_path):
    base = write_states(tmp_path, 1, [0, 2, 5, 9])
    later = write_states(tmp_path, 2, [2, 3], base)
    assert (later / "base.json").exists()
    (clients, found), nobody = load_checkpoint(later)["states"]
    assert clients == [0, 2, 3, 5, 9]
    assert found.left[:, 0].tolist() == [1, 2, 2, 1, 1]
    assert found.right.tolist() == [1, 4, 5, 6, 10]
    assert nobody == ([], None)


def test_two_whole_checkpoints_are_kept_whatever_builds_on_them(tmp_path):
    write_states(tmp_path, 1, [0])
    write_states(tmp_path, 2, [0])
    base = write_states(tmp_path, 3, [0, 1])
    for number in (4, 5, 6):
        write_states(tmp_path, number, [1], base)
    kept = [int(p.name[-1]) for p in list_checkpoints(tmp_path)]
    assert kept == [2, 3, 5, 6]
    write_states(tmp_path, 7, [0, 1])
    assert [int(p.name[-1]) for p in list_checkpoints(tmp_path)] == [3, 6, 7]


@pytest.mark.parametrize("harm", ["missing", "other", "damaged"])
def test_changes_of_a_base_that_is_not_as_it_was_are_refused(harm, tmp_path):
    base = write_states(tmp_path, 1, [0, 1])
    later = write_states(tmp_path, 2, [1], base)
    if harm == "missing":
        base.rename(tmp_path / "elsewhere")
    elif harm == "other":
        (base / "files.json").write_text("{}")
    else:
        (base / "state.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match="checkpoint-0000001"):
        load_checkpoint(later)
