"""A federation: one store of rows, and a checksum of all of it."""

import numpy as np
import torch

from coterie.data.dataset import Dataset
from coterie.data.federation import COUNTS_SCHEMA, cache_digest, checksum_of, count_labels
from coterie.data.newcomers import digest_partition
from coterie.data.pipeline import build_federation, read_data
from helpers.datasets import features, rows_of
from helpers.federations import tiny

PARTS = ("train", "validation", "test")


def test_a_federation_is_its_seed():
    first, again, other = (build_federation(num_clients=5, seed=s) for s in (3, 3, 4))
    assert checksum_of(first) == checksum_of(again) != checksum_of(other)


def test_checksum_sees_every_value():
    got = build_federation(features(), num_clients=None)
    x = got.x.clone()
    x[17, 3] += 1
    test = [*got.test[:-1], got.test[-1][::-1]]
    changed = [
        {"x": x},
        {"test": test},
        {"names": ["a", *got.names[1:]]},
        {"groups": got.groups + 1},
    ]
    sums = {checksum_of(got._replace(**change)) for change in changed}
    assert len(sums | {checksum_of(got)}) == 5


def test_a_partition_is_the_same_whichever_rows_of_its_clients_are_tested():
    first, other = (build_federation(features(), num_clients=None, seed=s) for s in (0, 1))
    assert checksum_of(first) != checksum_of(other)
    assert digest_partition(first) == digest_partition(other)
    late = build_federation(features(), num_clients=None, seed=1, newcomers=1)
    assert digest_partition(late) == digest_partition(first)  # newcomers have their rows too
    moved = first._replace(train=[first.train[1], first.train[0], *first.train[2:]])
    fewer = build_federation(features(), num_clients=None, rows=len(first.y) - 9)
    drawn = build_federation(num_clients=5, seed=0), build_federation(num_clients=5, seed=1)
    found = [digest_partition(one) for one in (first, moved, fewer, *drawn)]
    assert len(set(found)) == 5
    assert digest_partition(first._replace(rows=None)) == ""
    twice = first._replace(validation=first.test)  # rows in two parts are held once
    assert digest_partition(twice) == digest_partition(first._replace(validation=first.train))


def test_inputs_that_are_read_once_give_the_same_checksum():
    got = build_federation(num_clients=5)
    wanted = checksum_of(got)
    kept = cache_digest(got._replace(x=got.x.clone()))
    assert checksum_of(kept) == checksum_of(kept) == wanted
    other = kept._replace(y=got.y + 1)
    assert checksum_of(other) == checksum_of(got._replace(y=got.y + 1)) != wanted
    kept.x[0] += 1  # which nobody may do: it is not seen
    assert checksum_of(kept) == wanted


def test_inputs_that_others_may_change_are_read_every_time():
    got = build_federation(num_clients=5)
    wanted = checksum_of(got)
    got.x[0] += 1
    assert checksum_of(got) != wanted


def test_ten_thousand_clients_share_the_loaders_own_memory():
    n = 200_000
    users = np.repeat(np.arange(10_000), 20)
    x = np.random.default_rng(0).normal(size=(n, 6)).astype(np.float32)
    x.flags.writeable = False  # as a memory-mapped file is
    got = build_federation(
        Dataset("many", x, np.arange(n) % 3, 3, np.ones(n, bool), users), scale="none"
    )
    assert got.clients == 10_000
    assert np.shares_memory(got.x.numpy(), x)
    assert (got.sizes == 12).all()


def test_natural_clients_keep_their_names_and_truth():
    got = build_federation("gaussian", num_clients=5)
    whole = read_data("gaussian", None, {}).data
    for i, name in enumerate(got.names):
        assert (whole.users[rows_of(got, i)] == int(name)).all()
        assert got.truth[i].item() == whole.truth[int(name), 0]
    assert got.classes == 0
    assert got.y.dtype == torch.float32


def test_label_counts_are_the_rows_of_every_class_a_client_holds():
    federation = tiny(clients=3)
    found = count_labels(federation)
    assert found.schema == COUNTS_SCHEMA
    expected = {}
    for part in ("train", "validation", "test"):
        for client, rows in enumerate(getattr(federation, part)):
            for row in rows:
                key = (client, part, int(federation.y[row]))
                expected[key] = expected.get(key, 0) + 1
    assert {(r["client"], r["part"], r["label"]): r["rows"] for r in found.to_pylist()} == expected
    assert found.num_rows == len(expected)  # none twice, and none of no rows


def test_label_counts_of_parts_without_rows_and_of_no_classes_are_empty():
    federation = tiny(validation=0)
    assert set(count_labels(federation)["part"].to_pylist()) == {"train", "test"}
    assert count_labels(federation._replace(classes=0, y=federation.y.float())).num_rows == 0


def test_a_notebook_shows_every_client_with_its_rows_and_no_more_than_fit(monkeypatch):
    federation = tiny(clients=3)
    shown = federation._repr_html_()
    assert f"{federation.sizes.sum():,} training rows" in shown
    assert shown.count("<tr>") == 1 + 3
    monkeypatch.setattr("coterie.data.federation.SHOWN", 2)
    shown = federation._repr_html_()
    assert shown.count("<tr>") == 1 + 2
    assert "the first 2 shown" in shown
