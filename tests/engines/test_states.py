import errno
import os

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput, CannotWrite
from coterie.core.point import Point
from coterie.engines.local import states as module
from coterie.engines.local.states import StateStore


def stacked(clients, value):
    n = len(clients)
    return Point(
        {"w": torch.full((n, 3, 2), float(value)) + torch.arange(n)[:, None, None]},
        {"seen": torch.tensor(clients) + value, "flag": torch.tensor(clients) % 2 == 0},
    )


def filled(rounds=40, clients=300):
    store, rng = StateStore(), np.random.default_rng(0)
    for k in range(rounds):
        chosen = rng.choice(clients, 20, replace=False).tolist()
        store.scatter(chosen, stacked(chosen, k))
    return store


def test_states_in_files_are_those_in_memory(monkeypatch):
    wanted = filled()
    monkeypatch.setattr(module, "MEMORY_FRACTION", 10**18)
    found = filled()
    assert set(found.files) == {0, 1, 2}
    assert not wanted.files
    clients, states = found.everything()
    assert clients == wanted.everything()[0]
    other = wanted.everything()[1]
    assert torch.equal(states.params["w"], other.params["w"])
    assert torch.equal(states.buffers["seen"], other.buffers["seen"])
    assert torch.equal(states.buffers["flag"], other.buffers["flag"])


def test_states_move_to_files_when_they_have_grown(monkeypatch):
    monkeypatch.setattr(module, "read_memory_limit", lambda: 4 * 3000)
    found = filled()
    assert found.files
    monkeypatch.setattr(module, "read_memory_limit", lambda: 2**40)
    wanted = filled()
    assert torch.equal(found.everything()[1].params["w"], wanted.everything()[1].params["w"])


def test_a_full_disk_names_the_way_out(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "MEMORY_FRACTION", 10**18)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CannotWrite, match=r"No space left on device.*set TMPDIR to a larger disk"):
        filled(rounds=1)


def test_states_that_no_checkpoint_can_hold_name_the_way_out(monkeypatch):
    store = filled()
    monkeypatch.setattr("coterie.core.memory.read_memory_limit", lambda: 1000)
    with pytest.raises(BadInput, match="use --checkpoint 0"):
        store.everything()


def test_changes_are_counted_from_when_states_were_written():
    store = filled()
    store.changed = set()
    store.scatter([7, 3], stacked([7, 3], 99))
    clients, states = store.changes()
    assert clients == [3, 7]
    assert states.buffers["seen"].tolist() == [102, 106]
    store.changed = set()
    assert store.changes() == ([], None)


def test_states_that_are_lent_or_taken_over_are_never_written_over():
    store, everyone = StateStore(), [2, 0, 1]
    store.scatter(everyone, stacked(everyone, 1), own=True)
    lent = store.lend(everyone)
    given = stacked(everyone, 5)
    store.scatter(everyone, given, own=True)
    taken = store.lend(everyone)
    assert taken.params["w"] is given.params["w"]  # without a copy
    store.scatter([0], stacked([0], 9))
    wanted = stacked(everyone, 5)
    assert torch.equal(lent.params["w"], stacked(everyone, 1).params["w"])
    assert torch.equal(given.params["w"], wanted.params["w"])
    wanted.params["w"][1] = stacked([0], 9).params["w"][0]
    assert torch.equal(store.gather(everyone).params["w"], wanted.params["w"])


@pytest.mark.parametrize("clients", [[2, 0], [0, 1, 2], [2, 0, 1, 3]])
def test_only_all_clients_in_order_are_stored_without_a_copy(clients):
    store = StateStore()
    store.scatter([2, 0, 1], stacked([2, 0, 1], 1))
    given = stacked(clients, 5)
    store.scatter(clients, given, own=True)
    given.params["w"].zero_()
    assert torch.equal(store.gather(clients).params["w"], stacked(clients, 5).params["w"])


def test_what_others_may_write_into_is_copied():
    store = StateStore()
    store.scatter([2, 0], stacked([2, 0], 1))
    given = stacked([2, 0], 5)
    store.scatter([2, 0], given)
    given.params["w"].zero_()
    assert torch.equal(store.gather([2, 0]).params["w"], stacked([2, 0], 5).params["w"])
