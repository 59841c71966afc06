"""Laws of a federation: who holds which rows, what was done to them, users' own data, and the
picture of a split.
"""

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import csv, ipc, parquet

from coterie.core.errors import BadInput
from coterie.data import own, public
from coterie.data.changes import changes_of
from coterie.data.dataset import Dataset
from coterie.data.dealing import build, read
from coterie.data.federation import checksum, class_counts, table
from coterie.data.picture import split_picture

DATA = Path(os.environ.get("COTERIE_DATA", "nowhere"))
PARTS = ("train", "validation", "test")


def coded(n=400, classes=4, side=4, channels=1, test=0):
    """Images whose first pixels spell their row number, so that a row is known again wherever it
    went.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, channels, side, side)).astype(np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
    y = rng.permutation(np.arange(n) % classes)
    return Dataset("coded", x, y, classes, np.arange(n) < n - test, None)


def number(images):
    return images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 0, 1].astype(int)


def features(n=300, users=6, classes=3):
    rng = np.random.default_rng(1)
    return Dataset(
        "features",
        rng.normal(size=(n, 5)).astype(np.float32),
        rng.integers(0, classes, n),
        classes,
        np.ones(n, bool),
        np.sort(rng.integers(0, users, n)),
    )


def rows_of(federation, client):
    return np.concatenate([getattr(federation, part)[client] for part in PARTS])


def all_rows(federation):
    return np.concatenate([rows_of(federation, i) for i in range(federation.clients)])


# --- who holds which rows ---


def test_digits_by_default_are_20_clients_of_3_classes_cut_60_20_20():
    got = build()
    assert (got.clients, got.classes, got.input_shape, got.names[-1]) == (20, 10, (1, 8, 8), "19")
    assert len(np.unique(all_rows(got))) == 1797
    for row in table(got):
        n = row.train + row.validation + row.test
        assert row.classes == 3
        assert abs(row.train - 0.6 * n) < 1
        assert abs(row.validation - 0.2 * n) <= 1
        assert abs(row.test - 0.2 * n) <= 1
    assert np.array_equal(got.sizes, [row.train for row in table(got)])
    assert got.x.dtype == torch.float32
    assert got.y.dtype == torch.int64
    assert (got.x.min(), got.x.max()) == (0, 1)


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 30),
    validation=st.sampled_from([0.0, 0.1, 0.2, 0.3]),
    test=st.sampled_from([0.1, 0.25, 0.5]),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_and_cover_the_clients_rows(clients, validation, test, seed):
    base = coded()
    got = build(base, "iid", clients, seed, validation=validation, test=test, scale="none")
    everything = all_rows(got)
    assert sorted(number(got.x.numpy())[everything]) == list(range(400))
    assert np.array_equal(got.y.numpy(), base.y[number(got.x.numpy())])
    for i in range(clients):
        n = len(rows_of(got, i))
        assert len(got.test[i]) == n - int((1 - test) * n + 1e-9)
        assert (len(got.validation[i]) > 0) == (validation > 0)


def test_a_federation_is_its_seed():
    first, again, other = (build(clients=5, seed=s) for s in (3, 3, 4))
    assert checksum(first) == checksum(again) != checksum(other)


def test_checksum_sees_every_value():
    got = build(features(), clients=None)
    x = got.x.clone()
    x[17, 3] += 1
    test = [*got.test[:-1], got.test[-1][::-1]]
    changed = [
        {"x": x},
        {"test": test},
        {"names": ["a", *got.names[1:]]},
        {"groups": got.groups + 1},
    ]
    sums = {checksum(got._replace(**change)) for change in changed}
    assert len(sums | {checksum(got)}) == 5


def test_ten_thousand_clients_share_the_loaders_own_memory():
    n = 200_000
    users = np.repeat(np.arange(10_000), 20)
    x = np.random.default_rng(0).normal(size=(n, 6)).astype(np.float32)
    x.flags.writeable = False  # as a memory-mapped file is
    got = build(Dataset("many", x, np.arange(n) % 3, 3, np.ones(n, bool), users))
    assert got.clients == 10_000
    assert np.shares_memory(got.x.numpy(), x)
    assert (got.sizes == 12).all()


def test_natural_clients_keep_their_names_and_truth():
    got = build("gaussian", clients=5)
    whole = read("gaussian", None, {}).data
    for i, name in enumerate(got.names):
        assert (whole.users[rows_of(got, i)] == int(name)).all()
        assert got.truth[i].item() == whole.truth[int(name), 0]
    assert got.classes == 0
    assert got.y.dtype == torch.float32


def test_rows_limits_the_pool_and_pool_train_leaves_the_test_part_out():
    got = build(coded(test=100), "iid", 5, rows=120, scale="none")
    assert len(all_rows(got)) == len(got.x) == 120
    trained = build(coded(test=100), "iid", 5, pool="train", scale="none")
    assert sorted(number(trained.x.numpy())) == list(range(300))


def test_shuffling_mixes_every_class_into_every_part():
    y = np.repeat([0, 1, 2], 100)
    base = features()._replace(y=y, users=np.zeros(300, int))
    got = build(base)
    assert all(len(set(y[getattr(got, part)[0]])) == 3 for part in PARTS)


def test_order_trains_on_the_first_rows():
    got = build(features(), cut="order", validation=0.1, test=0.3)
    for i in range(got.clients):
        rows = np.concatenate([got.train[i], got.validation[i], got.test[i]])
        assert np.array_equal(rows, np.sort(rows))


def test_synthetic_repeats_the_published_sizes():
    got = build("synthetic", validation=0, test=0.25)
    assert got.clients == 100
    assert (got.sizes.sum(), sum(map(len, got.test))) == (154_314, 51_481)
    assert all(np.array_equal(rows, np.sort(rows)) for rows in got.train)


def test_runs_are_cut_by_time_and_lose_the_row_at_each_cut():
    y = np.repeat([0, 1, 2, 0, 1, 2], [20, 15, 30, 20, 10, 25])
    base = Dataset(
        "recording",
        np.arange(120, dtype=np.float32)[:, None],
        y,
        3,
        np.ones(120, bool),
        np.zeros(120, int),
    )
    got = build(base, cut="runs")
    start = 0
    for length in (20, 15, 30, 20, 10, 25):
        run = np.arange(start, start + length)
        first, second = int(0.6 * length), int(0.8 * length)
        for part, rows in zip(
            PARTS, (run[:first], run[first + 1 : second], run[second + 1 :]), strict=True
        ):
            assert np.array_equal(np.intersect1d(getattr(got, part)[0], run), rows)
        start += length
    both = build(base, cut="runs", validation=0, test=0.25)
    assert len(rows_of(both, 0)) == 120 - 6


# --- what was done to the rows ---


def test_rotation_groups_are_turned_by_90_180_270_and_0():
    base = coded(side=5)
    got = build(base, "iid", 8, scale="none", rotate=4)
    assert np.bincount(got.groups).tolist() == [2, 2, 2, 2]
    for i in range(8):
        rows = rows_of(got, i)
        back = np.rot90(got.x.numpy()[rows], -[1, 2, 3, 0][got.groups[i]], (2, 3))
        assert np.array_equal(back, base.x[number(back)])
        assert np.array_equal(got.y.numpy()[rows], base.y[number(back)])


def test_permutation_groups_have_one_permutation_each():
    base = coded(classes=5)
    got = build(base, "iid", 6, scale="none", permute=3)
    seen = []
    for group in range(3):
        rows = np.concatenate([rows_of(got, i) for i in np.flatnonzero(got.groups == group)])
        pairs = set(
            zip(
                base.y[number(got.x.numpy()[rows])].tolist(),
                got.y.numpy()[rows].tolist(),
                strict=True,
            )
        )
        assert len(pairs) == 5
        assert {new for _, new in pairs} == set(range(5))
        seen.append(frozenset(pairs))
    assert len(set(seen)) == 3


def test_rotation_and_permutation_cross():
    got = build(coded(), "iid", 8, rotate=2, permute=2)
    assert np.bincount(got.groups).tolist() == [2, 2, 2, 2]
    changes = changes_of(coded(), 0, 2, 2)
    assert [c.turns for c in changes] == [2, 2, 0, 0]
    assert np.array_equal(changes[0].relabel, changes[2].relabel)


def test_permuting_two_classes_gives_both_orders():
    for seed in range(8):
        assert {tuple(c.relabel) for c in changes_of(coded(classes=2), seed, 1, 2)} == {
            (0, 1),
            (1, 0),
        }


def test_shared_test_is_there_once_a_group_under_its_permutation():
    base = coded(n=500, test=100)
    got = build(base, "iid", 8, validation=0, shared_test=30, permute=4, scale="none")
    assert len(got.x) == 500 - 30 + 4 * 30
    relabel = [change.relabel for change in changes_of(base, 0, 1, 4)]
    for i in range(8):
        shared = number(got.x.numpy()[got.test[i]])
        assert np.array_equal(shared, np.arange(400, 430))
        assert np.array_equal(got.y.numpy()[got.test[i]], relabel[got.groups[i]][base.y[shared]])
    trained = number(got.x.numpy()[np.concatenate(got.train)])
    assert not set(trained) & set(range(400, 430))


def test_scales():
    base = coded(channels=3, n=300)
    raw = base.x[number(build(base, "iid", 3, scale="none").x.numpy())].astype(np.float64)

    def scaled(kind, name="coded"):
        return build(base._replace(name=name), "iid", 3, scale=kind).x.numpy()

    assert np.allclose(scaled("unit"), raw / 255, atol=1e-6)
    assert np.allclose(scaled("half"), raw / 127.5 - 1, atol=1e-6)
    assert np.allclose(scaled("pixel"), (raw - raw.mean(0)) / (raw.std(0) + 0.001), atol=1e-4)
    channel = scaled(None)
    assert np.allclose(channel.mean((0, 2, 3)), 0, atol=1e-4)
    assert np.allclose(channel.std((0, 2, 3)), 1, atol=1e-4)
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    named = (raw / 255 - mean[:, None, None]) / deviation[:, None, None]
    assert np.allclose(scaled("channel", "cifar10"), named, atol=1e-5)


def test_features_are_scaled_only_when_asked():
    base = features()
    assert torch.equal(build(base).x, torch.from_numpy(base.x))
    got = build(base, scale="pixel").x
    assert got.mean(0).abs().max() < 1e-5
    assert (got.std(0) - 1).abs().max() < 0.01


@pytest.mark.parametrize("scale", ["pixel", "channel"])
def test_statistics_come_from_the_pool_not_from_what_lies_outside_it(scale):
    base = coded(test=100)
    bright = base._replace(
        x=np.where(base.train[:, None, None, None], base.x, 255).astype(np.uint8)
    )
    kept = [build(b, "iid", 4, pool="train", scale=scale).x for b in (base, bright)]
    assert torch.equal(*kept)


def test_channels_repeat_a_grey_image():
    got = build(coded(), "iid", 4, channels=3)
    assert got.input_shape == (3, 4, 4)
    assert torch.equal(got.x[:, 0], got.x[:, 2])


def test_class_groups_of_recipes_are_known():
    assert build(coded(n=800, classes=10), "pairs", 10).groups.tolist() == [0, 1, 2, 3, 4] * 2
    assert build(coded(), "dirichlet", 4).groups.tolist() == [0] * 4


def test_word_indices_and_their_table_pass_through():
    base = features()._replace(
        x=np.arange(900).reshape(300, 3) % 7, table=np.eye(7, dtype=np.float32)
    )
    got = build(base)
    assert got.x.dtype == torch.int64
    assert torch.equal(got.table, torch.eye(7))


# --- public data ---


def test_held_out_rows_are_nobodys_and_carry_labels_only_when_asked():
    base = coded()
    got = build(base, "iid", 4, public="held-out", public_rows=50, scale="none")
    public = number(got.public.x.numpy())
    assert len(public) == 50
    assert not set(public) & set(number(got.x.numpy()))
    assert got.public.y is None
    told = build(
        base, "iid", 4, public="held-out", public_rows=50, scale="none", labelled=True
    ).public
    assert np.array_equal(told.y.numpy(), base.y[number(told.x.numpy())])
    assert told.checksum != got.public.checksum


def test_a_cut_down_copy_serves_as_public_data(tmp_path):
    for part, rows in (("train", 30), ("test", 10)):
        (tmp_path / "cifar100").mkdir(exist_ok=True)
        (tmp_path / "cifar100" / f"{part}.bin").write_bytes(bytes(3074 * rows))
    got = build(coded(side=32, channels=3), "iid", 4, public="cifar100", folder=tmp_path)
    assert got.public.x.shape == (40, 3, 32, 32)


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (8, 3), (4, 3), (6, 1)])
def test_other_images_take_the_private_shape(side, channels):
    got = build(coded(side=side, channels=channels), "iid", 4, public="digits", public_rows=100)
    assert got.public.x.shape == (100, channels, side, side)
    assert abs(got.public.x.mean().item()) < 1e-4
    assert torch.equal(got.public.x[:, 0], got.public.x[:, -1])


def test_images_are_padded_and_cut_evenly():
    x = np.arange(1, 17, dtype=np.uint8).reshape(1, 1, 4, 4)
    assert np.array_equal(public.fit(x, (1, 6, 6))[0, 0, 1:5, 1:5], x[0, 0])
    assert public.fit(x, (1, 6, 6)).sum() == x.sum()
    assert np.array_equal(public.fit(x, (1, 4, 3))[0, 0], x[0, 0, :, :3])
    assert np.array_equal(
        public.fit(x, (1, 2, 2))[0, 0], [[4, 6], [12, 14]]
    )  # means of 2 x 2 blocks, rounded to even


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("at most 179 clients of 10 rows", {"clients": 5000}),
        ("leave no train part", {"validation": 0.5, "test": 0.5}),
        ("test = 0", {"test": 0}),
        ("validation = -0.1", {"validation": -0.1}),
        ("did you mean 'pixel'", {"scale": "pixels"}),
        ("did you mean 'train'", {"pool": "trane"}),
        ("did you mean 'runs'", {"cut": "run"}),
        ("rotate = 3", {"rotate": 3}),
        ("permute = 0", {"permute": 0}),
        ("cannot form", {"clients": 5, "rotate": 4, "permute": 2}),
        ("0 official test rows", {"shared_test": 5}),
        ("rows = 99,999", {"rows": 99_999}),
        ("needs public_rows", {"public": "held-out"}),
        ("is the private data set itself", {"public": "digits"}),
        ("is unknown", {"public": "mnizt", "public_rows": 5}),
        ("did you mean 'digits'", {"data": "digit"}),
        ("did you mean 'dirichlet'", {"split": "dirchlet"}),
        ("did you mean 'alpha'", {"split": "dirichlet", "options": {"alfa": 1}}),
        ("there is no file or folder", {"data": "nowhere/at/all.csv"}),
        ("natural clients", {"split": "user"}),
        (
            "has 4 rows, none of them in its validation part",
            {"split": "iid", "clients": 500, "validation": 0.01},
        ),
    ],
)
def test_bad_choices_are_refused_in_one_clear_line(words, options):
    with pytest.raises(BadInput) as caught:
        build(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "change", "options"),
    [
        (
            "NaN or infinity in row 7",
            {"x": np.where(np.arange(300)[:, None] == 7, np.nan, 1.0).astype(np.float32)},
            {},
        ),
        ("labels 0 to 2, but 2 classes", {"classes": 2}, {}),
        (
            "client 0 ('0') has 1 rows, none of them in its train part",
            {"users": np.arange(300)},
            {},
        ),
        ("is for images", {}, {"scale": "unit"}),
        ("is for images", {}, {"scale": "channel"}),
        ("needs square images", {}, {"rotate": 4}),
        ("channels = 3", {}, {"channels": 3}),
        ("has no training rows here", {"train": np.zeros(300, bool)}, {"pool": "train"}),
        ("cannot stand beside inputs", {}, {"public": "digits"}),
        ("needs class labels", {"classes": 0, "y": np.ones(300, np.float32)}, {"split": "classes"}),
        ("permute = 2", {"classes": 0, "y": np.ones(300, np.float32)}, {"permute": 2}),
        ("belong to a named data set", {}, {"data_options": {"alpha": 1}}),
    ],
)
def test_bad_data_are_refused_in_one_clear_line(words, change, options):
    with pytest.raises(BadInput) as caught:
        build(features()._replace(**change), **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# --- own data ---

COLUMNS = {
    "client": ["b", "a", "b", "a10", "a", "a10", "a2", "a2"],
    "age": [31, 42, 53, 64, 25, 36, 47, 58],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5],
    "label": ["sick", "well", "well", "sick", "sick", "well", "sick", "well"],
}


def check_own(got):
    assert got.clients == ["a", "a2", "a10", "b"]
    assert got.labels == ["sick", "well"]
    at = {(c, a): (d, y) for c, a, d, y in zip(*COLUMNS.values(), strict=True)}
    assert len(got.data.y) == 8
    for x, y, user in zip(got.data.x, got.data.y, got.data.users, strict=True):
        assert at[got.clients[user], x[0]] == (x[1], got.labels[y])


def write(columns, path):
    if path.suffix == ".csv":
        csv.write_csv(pa.table(columns), path)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        keys = {"clients": columns["client"]} if "client" in columns else {}
        np.savez(path, x=np.stack([columns["age"], columns["dose"]], 1), y=columns["label"], **keys)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_own_table_with_a_client_column(tmp_path, suffix):
    write(COLUMNS, tmp_path / f"sites{suffix}")
    check_own(own.read(tmp_path / f"sites{suffix}"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_own_folder_with_one_file_a_client(tmp_path, suffix):
    for name in sorted(set(COLUMNS["client"])):
        rows = [i for i, c in enumerate(COLUMNS["client"]) if c == name]
        columns = {k: [v[i] for i in rows] for k, v in COLUMNS.items() if k != "client"}
        if name == "b" and suffix != ".npz":  # the order of columns may differ from file to file
            columns = dict(reversed(columns.items()))
        write(columns, tmp_path / f"{name}{suffix}")
    check_own(own.read(tmp_path))


def test_own_arrays():
    check_own(
        own.from_arrays(
            np.stack([COLUMNS["age"], COLUMNS["dose"]], 1), COLUMNS["label"], COLUMNS["client"]
        )
    )


def test_own_hugging_face_folder_saved_to_disk(tmp_path):
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 8))):
        (tmp_path / part).mkdir()
        piece = pa.table({k: v[rows] for k, v in COLUMNS.items()})
        with (
            pa.OSFile(str(tmp_path / part / "data-00000-of-00001.arrow"), "wb") as sink,
            ipc.new_stream(sink, piece.schema) as out,
        ):
            out.write_table(piece)
    got = own.read(tmp_path)
    check_own(got)
    assert got.data.train.tolist() == [True] * 5 + [False] * 3


def test_own_hugging_face_images_with_named_classes(tmp_path):
    def encoded(pixels):
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG")
            return {"bytes": file.getvalue(), "path": None}

    pixels = np.random.default_rng(0).integers(0, 256, (12, 5, 6, 3)).astype(np.uint8)
    info = {
        "info": {"features": {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}}
    }
    data = pa.table(
        {
            "image": [encoded(p) for p in pixels],
            "label": [1, 2] * 6,
            "hospital": ["x", "y", "z"] * 4,
        }
    )
    (tmp_path / "data").mkdir()
    parquet.write_table(
        data.replace_schema_metadata({"huggingface": json.dumps(info)}),
        tmp_path / "data" / "train-0.parquet",
    )
    got = own.read(tmp_path, client="hospital")
    assert np.array_equal(got.data.x, pixels.transpose(0, 3, 1, 2))
    assert got.data.y.tolist() == [1, 2] * 6
    assert (got.data.classes, got.labels, got.clients) == (
        3,
        ["cat", "dog", "emu"],
        ["x", "y", "z"],
    )


def test_own_lists_of_numbers_are_features(tmp_path):
    lists = pa.table(
        {"pixels": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "extra": [9.5, 0.5], "label": [3, 8]}
    )
    parquet.write_table(lists, tmp_path / "one.parquet")
    got = own.read(tmp_path / "one.parquet", client="")
    assert got.data.x.tolist() == [[1, 2, 3, 4, 9.5], [5, 6, 7, 8, 0.5]]
    assert (got.data.y.tolist(), got.labels, got.data.users) == ([0, 1], ["3", "8"], None)


def test_own_images_as_arrays_put_their_channels_first():
    pixels = np.zeros((6, 9, 8, 3), np.uint8)
    assert own.from_arrays(pixels, np.zeros(6, int)).data.x.shape == (6, 3, 9, 8)
    assert own.from_arrays(pixels[..., 0], np.zeros(6, int)).data.x.shape == (6, 1, 9, 8)


def test_ids_keep_their_zeros_and_chosen_columns_are_enough(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site;note;a;b;y\n007;x;1;2;0\n7;y;3;4;1\n")
    got = own.read(path, client="site", label="y", features="b", separator=";")
    assert got.clients == ["007", "7"]
    assert got.data.x.tolist() == [[2], [4]]


def test_a_column_that_turns_fractional_late_is_still_read(tmp_path):
    path = tmp_path / "t.csv"
    rows = ["c,1,0"] * 300_000
    path.write_text("client,a,label\n" + "\n".join([*rows, "d,2.5,1"]) + "\n")
    got = own.read(path)
    assert got.data.x[-1] == 2.5
    assert got.clients == ["c", "d"]
    path.write_text("client,a,label\n" + "\n".join([*rows, "d,two,1"]) + "\n")
    with pytest.raises(BadInput, match="column 'a' is 'two' in row 300,001"):
        own.read(path)


def test_build_uses_own_data_with_all_its_clients(tmp_path):
    write({k: v * 5 for k, v in COLUMNS.items()}, tmp_path / "sites.csv")
    got = build(str(tmp_path / "sites.csv"))
    assert (got.name, got.names, got.labels) == (
        "sites.csv",
        ["a", "a2", "a10", "b"],
        ["sick", "well"],
    )
    assert got.sizes.tolist() == [6, 6, 6, 6]
    pooled = build(
        tmp_path / "sites.csv", "iid", 3, data_options={"client": "", "features": "dose,age"}
    )
    assert (pooled.clients, pooled.input_shape) == (3, (2,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("client,a,label\n", "the file has no rows"),
        ("a,label\n1,2\n", "no column 'client'"),
        (
            "client,a,lable\nx,1,2\n",
            "no column 'label'; did you mean 'lable'? (name it with label=)",
        ),
        ("client,label\nx,1\n", "no feature column"),
        ("client,a,label\nx,1,0\ny,,1\n", "column 'a' is empty in row 2"),
        ("client,a,label\nx,1,0\ny,NaN,1\n", "column 'a' is empty in row 2"),
        ("client,a,label\nx,1,0\ny,inf,1\n", "column 'a' is not finite in row 2"),
        ("client,a,label\nx,1,0\ny,two,1\n", "column 'a' is 'two' in row 2, not a number"),
        ("client,a,label\nx,2020-01-01,0\n", "column 'a' holds date32"),
        ("client,a,label\nx,1,0\n,2,1\n", "column 'client' is empty in row 2"),
        ("client,a,label\nx,1,cat\ny,2,\n", "column 'label' is empty in row 2"),
        ("client,a,label\nx,1,0.5\n", "column 'label' is 0.5 in row 1"),
        ("client,a,a,label\nx,1,1,0\n", "used twice"),
        (",client,a,label\n0,x,1,0\n", "is empty or used twice"),
        ("client,a,label\nx,1\n", "no readable .csv file"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path, text, words):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        build(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_folders_are_refused_with_their_place(tmp_path):
    with pytest.raises(BadInput, match=r"no \.csv, \.parquet"):
        own.read(tmp_path)
    (tmp_path / "a.csv").write_text("u,label\n1,0\n")
    (tmp_path / "b.csv").write_text("v,label\n1,0\n")
    with pytest.raises(BadInput, match=r"b\.csv: column 'u' is not in both this file and .*a\.csv"):
        own.read(tmp_path)
    (tmp_path / "b.csv").unlink()
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.raises(BadInput, match=r"c\.npz: a row has shape \[3\]"):
        own.read(tmp_path)
    (tmp_path / "c.npz").write_bytes(b"no zip at all")
    with pytest.raises(BadInput, match=r"c\.npz: this is no readable \.npz file"):
        own.read(tmp_path)
    (tmp_path / "c.npz").unlink()
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match="two files are called 'a'"):
        own.read(tmp_path)
    with pytest.raises(BadInput, match=r"a\.parquet: this is no readable"):
        own.read(tmp_path / "a.parquet")
    (tmp_path / "t.txt").write_text("hello")
    with pytest.raises(BadInput, match=r"files of kind '\.txt'"):
        own.read(tmp_path / "t.txt")
    with pytest.raises(BadInput, match="did you mean 'label'"):
        build(tmp_path / "a.csv", data_options={"lable": "y"})


@pytest.mark.parametrize(
    ("x", "y", "clients", "words"),
    [
        (np.zeros(3), [0, 1, 2], None, "x has shape"),
        (np.zeros((3, 2)), [0, 1], None, "y has shape"),
        (np.zeros((3, 2)), [0, 1, 2], ["a"], "clients has shape"),
        (np.array([["a"], ["b"]]), [0, 1], None, "not numbers"),
        (np.array([[1.0], [np.nan]]), [0, 1], None, "x is nan in row 2, column 0"),
        (np.zeros((2, 1)), [0.0, np.nan], None, "y is nan in row 2"),
        (np.zeros((2, 1)), np.array(["a", None]), None, "y is None in row 2"),
    ],
)
def test_bad_arrays_are_refused(x, y, clients, words):
    with pytest.raises(BadInput, match=words):
        own.from_arrays(x, y, clients)


# --- the picture ---


def test_pictures_of_few_and_many_clients(tmp_path):
    for clients in (5, 300):
        base = coded(n=6000, classes=10)
        path = split_picture(
            build(base, "dirichlet", clients, options={"alpha": 1.0, "smallest": 3}, validation=0),
            tmp_path / f"{clients}.png",
        )
        with Image.open(path) as picture:
            assert picture.width >= 700
            assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 10
    assert split_picture(build("gaussian"), tmp_path / "g.png").stat().st_size > 5000


def test_a_small_picture_writes_names_and_counts_and_is_the_same_every_time(tmp_path):
    sites = own.from_arrays(
        np.zeros((60, 2)), (["cat"] * 13 + ["dog"] * 17) * 2, ["$5 site"] * 30 + [r"$\site$ 6"] * 30
    )
    got = build(sites)
    first, again = (split_picture(got, tmp_path / f"{i}.svg").read_bytes() for i in (1, 2))
    assert first == again
    text = first.decode()
    assert all(
        f"<!-- {word} -->" in text for word in ("$5 site", r"$\site$ 6", "cat", "dog", "13", "17")
    )
    assert class_counts(got).tolist() == [[13, 17], [13, 17]]


def test_a_picture_needs_a_known_suffix_and_a_folder(tmp_path):
    got = build(features())
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        split_picture(got, tmp_path / "a.gif")
    with pytest.raises(BadInput, match="no folder"):
        split_picture(got, tmp_path / "no" / "a.png")


# --- real data, where it is at hand ---


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="$COTERIE_DATA has no mnist")
def test_real_mnist_recipes():
    pairs = build("mnist", "pairs", validation=0, test=0.25, scale="pixel")
    sizes = [len(rows_of(pairs, i)) for i in range(20)]
    assert (min(sizes), max(sizes), sum(sizes)) == (1556, 5112, 70_000)
    assert pairs.x.mean().abs() < 1e-3
    assert build("mnist", "perfedavg").sizes.tolist()[0] == int(0.6 * 5 * 196)


@pytest.mark.skipif(not (DATA / "uci-har").is_dir(), reason="$COTERIE_DATA has no uci-har")
def test_real_uci_har_leaves_no_overlap_and_no_class_out():
    got = build("uci-har")
    y = got.y.numpy()
    assert got.clients >= 21
    for i in range(got.clients):
        assert all(len(set(y[getattr(got, part)[i]])) == 6 for part in PARTS)
        trained = set(got.train[i])
        tested = set(got.test[i]) | set(got.validation[i])
        touching = [
            r
            for r in tested
            if (r - 1 in trained and y[r - 1] == y[r]) or (r + 1 in trained and y[r + 1] == y[r])
        ]
        assert not touching
