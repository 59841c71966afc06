"""Data sets: canonical formats are read back, damage and absence are said in one line, downloads
resume.
"""

import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import pickle
import struct
import tarfile
import threading
import tracemalloc
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.data.read.archives import FilePart, data_folder
from coterie.data.read.catalog import DATASETS, load_dataset
from coterie.data.read.downloads import Origin, fetch_file
from coterie.data.read.formats import unpickle
from coterie.data.read.sources.mnist import MNIST_FILES, make_origins, read_mnist_files
from coterie.data.read.sources.origins import collect_present, make_origin
from coterie.data.read.sources.sent140 import tokenize
from coterie.data.read.sources.uci_har import UCI_ZIP

WRAPS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


# ---- small files in the canonical formats


def idx_bytes(array):
    code = {"uint8": 8, "int32": 12}[array.dtype.name]
    head = struct.pack(f">{1 + array.ndim}I", (code << 8) + array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28), dtype=np.uint8)


def labels(n, classes=10):
    return (np.arange(n) * 7 % classes).astype(np.uint8)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def mnist_files(n=30, m=12):
    return {
        "train-images-idx3-ubyte": idx_bytes(images(n)),
        "train-labels-idx1-ubyte": idx_bytes(labels(n)),
        "t10k-images-idx3-ubyte": idx_bytes(images(m, 1)),
        "t10k-labels-idx1-ubyte": idx_bytes(labels(m)),
    }


def write_mnist(place, wrap=".gz", **sizes):
    for stem, data in mnist_files(**sizes).items():
        write(place / (stem + wrap), WRAPS[wrap](data))


def zip_bytes(content):
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in content.items():
            out.writestr(name, data)
    return box.getvalue()


def tar_bytes(content):
    box = io.BytesIO()
    with tarfile.open(fileobj=box, mode="w:gz", compresslevel=1) as out:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return box.getvalue()


def python2_pickle(pixels, key, values):
    """What Python 2 wrote for CIFAR: protocol 2, byte strings, an array of an old numpy."""

    def short(option):
        return b"U" + bytes([len(option)]) + option

    def number(n):
        return b"J" + struct.pack("<i", n)

    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R" + b"(K\x03" + short(b"|") + b"NNN"
    kind += number(-1) + number(-1) + b"K\x00tb"
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    )
    array += b"(K\x01" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86" + kind
    array += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    ints = b"](" + b"".join(number(int(v)) for v in values) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(key) + ints + b"u."


def cifar_rows(n, seed, classes):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(
        0, classes, n, dtype=np.uint8
    )


# ---- images


def test_digits_need_no_file(tmp_path):
    got = load_dataset("digits", tmp_path)
    assert got.x.shape == (1797, 1, 8, 8)
    assert got.x.dtype == np.uint8
    assert got.x.max() == 16
    assert got.y.dtype == np.int64
    assert got.train.all()
    assert got.classes == 10
    assert got.users is None


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("below", ["mnist", "mnist/raw", ""])
def test_mnist_is_read_back_from_every_wrap_and_place(tmp_path, wrap, below):
    write_mnist(tmp_path / below, wrap)
    got = load_dataset("mnist", tmp_path, whole=False)
    np.testing.assert_array_equal(got.x[:, 0], np.concatenate([images(30), images(12, 1)]))
    np.testing.assert_array_equal(got.y, np.concatenate([labels(30), labels(12)]))
    assert got.train.tolist() == [True] * 30 + [False] * 12


def test_folder_may_be_the_data_sets_own(tmp_path):
    write_mnist(tmp_path / "mnist" / "raw")
    assert len(load_dataset("mnist", tmp_path / "mnist", whole=False).x) == 42


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert len(load_dataset("mnist", whole=False).x) == 42
    monkeypatch.delenv("COTERIE_DATA")
    assert data_folder().name == "coterie"


def test_a_cut_down_copy_is_refused_unless_asked_for(tmp_path):
    write_mnist(tmp_path / "mnist")
    with pytest.raises(
        BadInput, match=r"train-images-idx3-ubyte.gz: 30 rows, expected 60,000; whole=False"
    ):
        load_dataset("mnist", tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path):
    blank = {"train": 60_000, "t10k": 10_000}
    for part, n in blank.items():
        write(tmp_path / f"{part}-images-idx3-ubyte", idx_bytes(np.zeros((n, 28, 28), np.uint8)))
        write(
            tmp_path / f"{part}-labels-idx1-ubyte", idx_bytes((np.arange(n) % 10).astype(np.uint8))
        )
    assert load_dataset("fashion-mnist", tmp_path).train.sum() == 60_000
    with pytest.raises(BadInput, match="another data set; put those of mnist into"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("stem", "damage", "message"),
    [
        (
            "train-images-idx3-ubyte",
            lambda d: gzip.compress(d)[:-400],
            "train-images.*damaged.*expected a whole .gz",
        ),
        ("train-images-idx3-ubyte", lambda d: b"<html>not found</html>", "train-images.*damaged"),
        (
            "train-images-idx3-ubyte",
            lambda d: gzip.compress(d[:-100]),
            "train-images.*expected 23,536",
        ),
        (
            "t10k-labels-idx1-ubyte",
            lambda d: gzip.compress(b"\0\0\x08\x03" + d[4:]),
            "t10k-labels.*2051.*2049",
        ),
        ("t10k-labels-idx1-ubyte", lambda d: gzip.compress(b""), "t10k-labels.*magic"),
        (
            "t10k-labels-idx1-ubyte",
            lambda d: gzip.compress(idx_bytes(labels(11))),
            "11 labels for the 12 images",
        ),
        (
            "t10k-labels-idx1-ubyte",
            lambda d: gzip.compress(d[:-1] + b"\x0a"),
            "labels 0 to 10, expected 0 to 9",
        ),
    ],
)
def test_damage_is_named_with_the_file_and_what_was_expected(tmp_path, stem, damage, message):
    write_mnist(tmp_path / "mnist")
    write(tmp_path / "mnist" / f"{stem}.gz", damage(mnist_files()[stem]))
    with pytest.raises(BadInput, match=message) as error:
        load_dataset("mnist", tmp_path, whole=False)
    assert "\n" not in str(error.value)


def test_mnist_writers_are_the_training_part_with_qmnist_writers(tmp_path):
    write_mnist(tmp_path / "mnist")
    columns = np.arange(30 * 8, dtype=np.int32).reshape(30, 8) % 70_000
    columns[:, 0] = labels(30)
    columns[:, 2] = np.arange(30) // 4 + 1000
    path = write(
        tmp_path / "mnist" / "qmnist-train-labels-idx2-int.gz", gzip.compress(idx_bytes(columns))
    )
    got = load_dataset("mnist-writers", tmp_path, whole=False)
    assert got.x.shape == (30, 1, 28, 28)
    assert got.train.all()
    assert got.users.tolist() == columns[:, 2].tolist()
    columns[3, 0] += 1
    write(path, gzip.compress(idx_bytes(columns)))
    with pytest.raises(BadInput, match=r"qmnist.*does not belong to these images"):
        load_dataset("mnist-writers", tmp_path, whole=False)


def emnist_files(part, n):
    return {
        f"emnist-byclass-{part}-images-idx3-ubyte": idx_bytes(images(n)),
        f"emnist-byclass-{part}-labels-idx1-ubyte": idx_bytes(np.arange(n, dtype=np.uint8) % 62),
    }


def test_emnist_images_stand_upright_and_come_from_gzip_zip(tmp_path):
    both = emnist_files("train", 124) | emnist_files("test", 62)
    packed = zip_bytes({f"gzip/{stem}.gz": gzip.compress(data) for stem, data in both.items()})
    write(tmp_path / "emnist" / "gzip.zip", packed)
    got = load_dataset("emnist", tmp_path, whole=False)
    np.testing.assert_array_equal(got.x[5, 0], images(124)[5].T)
    np.testing.assert_array_equal(got.x[124 + 5, 0], images(62)[5].T)
    assert got.train.sum() == 124
    assert got.train[:124].all()
    assert got.classes == 62


def test_emnist_takes_the_part_that_is_there(tmp_path):
    for stem, data in emnist_files("test", 62).items():
        write(tmp_path / "emnist" / f"{stem}.xz", lzma.compress(data))
    got = load_dataset("emnist", tmp_path, whole=False)
    assert len(got.x) == 62
    assert not got.train.any()
    (tmp_path / "emnist" / "emnist-byclass-test-labels-idx1-ubyte.xz").unlink()
    with pytest.raises(BadInput, match="test part lacks emnist-byclass-test-labels-idx1-ubyte"):
        load_dataset("emnist", tmp_path, whole=False)


def test_femnist_letters_merge_the_cases_of_a_to_j(tmp_path):
    for stem, data in emnist_files("test", 62).items():
        write(tmp_path / "emnist" / f"{stem}.gz", gzip.compress(data))
    got = load_dataset("femnist-letters", tmp_path, whole=False)
    assert got.y.tolist() == [*range(10), *range(10)]
    assert got.classes == 62
    np.testing.assert_array_equal(got.x[0, 0], images(62)[10].T)  # A
    np.testing.assert_array_equal(got.x[19, 0], images(62)[45].T)  # j
    assert load_dataset("femnist-letters", tmp_path, whole=False, outputs=10).classes == 10
    with pytest.raises(BadInput, match="outputs = 9: 'femnist-letters' has ten letters; give 10"):
        load_dataset("femnist-letters", tmp_path, whole=False, outputs=9)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
@pytest.mark.parametrize("form", ["binary", "python", "loose", "loose python"])
def test_cifar_is_read_back_from_both_versions(tmp_path, name, classes, form):
    stems = (
        [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        if classes == 10
        else ["train", "test"]
    )
    number, key = name.removeprefix("cifar"), b"labels" if classes == 10 else b"fine_labels"
    rows = {stem: cifar_rows(8, seed, classes) for seed, stem in enumerate(stems)}
    head = (lambda y: y[:, None]) if classes == 10 else (lambda y: np.stack([y // 5, y], 1))
    binary = {f"{stem}.bin": np.hstack([head(y), x]).tobytes() for stem, (x, y) in rows.items()}
    python = {stem: python2_pickle(x, key, y) for stem, (x, y) in rows.items()}
    content = python if "python" in form else binary
    if "loose" in form:
        for stem, data in content.items():
            write(tmp_path / name / f"cifar-{number}-x" / stem, data)
    else:
        packed = tar_bytes({f"cifar-{number}-x/{stem}": data for stem, data in content.items()})
        write(tmp_path / name / f"cifar-{number}-{form}.tar.gz", packed)
    got = load_dataset(name, tmp_path, whole=False)
    np.testing.assert_array_equal(
        got.x.reshape(-1, 3072), np.concatenate([x for x, _ in rows.values()])
    )
    np.testing.assert_array_equal(got.y, np.concatenate([y for _, y in rows.values()]))
    assert got.x.shape[1:] == (3, 32, 32)
    assert (~got.train).sum() == 8
    assert got.classes == classes


def test_pickles_of_todays_python_are_read_too():
    x, y = cifar_rows(4, 0, 10)
    for protocol in (2, 4):
        got = unpickle(FilePart(pickle.dumps({"data": x, "labels": y.tolist()}, protocol), "p"))
        np.testing.assert_array_equal(got["data"], x)


def test_a_pickle_that_holds_code_is_refused_and_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    for stem in ("train", "test"):
        write(tmp_path / "cifar100" / stem, pickle.dumps({"data": Evil(), "fine_labels": [1]}, 2))
    with pytest.raises(BadInput, match=r"cifar100/train: not a pickle of plain arrays .*mkdir"):
        load_dataset("cifar100", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_cifar_batches_of_a_wrong_size_are_refused(tmp_path):
    for stem in ("train", "test"):
        write(tmp_path / "cifar100" / f"{stem}.bin", bytes(3074 * 4 - 1))
    with pytest.raises(
        BadInput, match=r"train.bin: 12,295 bytes, expected 50,000 rows of 3,074 bytes"
    ):
        load_dataset("cifar100", tmp_path, whole=False)


def test_archives_cut_short_are_named(tmp_path):
    noise = np.random.default_rng(0).bytes(3074 * 40)
    packed = tar_bytes({"c/train.bin": noise, "c/test.bin": noise})
    write(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", packed[: len(packed) // 2])
    with pytest.raises(
        BadInput, match=r"cifar-100-binary.tar.gz is damaged.*expected a whole archive"
    ):
        load_dataset("cifar100", tmp_path, whole=False)
    boxed = zip_bytes(
        {f"gzip/{stem}.gz": gzip.compress(data) for stem, data in emnist_files("test", 62).items()}
    )
    path = write(tmp_path / "emnist" / "gzip.zip", boxed[:-50])
    with pytest.raises(BadInput, match=r"gzip.zip is damaged"):
        load_dataset("emnist", tmp_path, whole=False)
    flipped = bytearray(boxed)
    flipped[1000] ^= 255
    write(path, bytes(flipped))
    with pytest.raises(BadInput, match=r"gzip.zip is damaged"):
        load_dataset("emnist", tmp_path, whole=False)


# ---- people, accounts and writers


def har_files(part, people, windows=6):
    n = len(people) * windows
    x = np.random.default_rng(len(part)).uniform(-1, 1, (n, 561)).astype(np.float32)
    lines = "\r\n".join(" ".join(f"{value: .7e}" for value in row) for row in x) + "\r\n"
    y, who = np.arange(n) % 6 + 1, np.repeat(people, windows)
    content = {
        f"UCI HAR Dataset/{part}/X_{part}.txt": lines.encode(),
        f"UCI HAR Dataset/{part}/y_{part}.txt": "\n".join(map(str, y)).encode(),
        f"UCI HAR Dataset/{part}/subject_{part}.txt": "\n".join(map(str, who)).encode(),
    }
    return content, x


def test_har_comes_from_ucis_zip_in_a_zip_in_time_order(tmp_path):
    train, x = har_files("train", [1, 3])
    test, z = har_files("test", [2])
    inner = zip_bytes(train | test)
    write(
        tmp_path / "uci-har" / UCI_ZIP.file,
        zip_bytes({"UCI HAR Dataset.zip": inner, "names": b"-"}),
    )
    got = load_dataset("uci-har", tmp_path, whole=False)
    np.testing.assert_allclose(got.x, np.concatenate([x, z]), atol=1e-6)
    assert got.users.tolist() == [1] * 6 + [3] * 6 + [2] * 6
    assert got.y.tolist() == [*range(6)] * 3
    assert got.train.sum() == 12
    write(tmp_path / "old" / "uci-har" / "UCI HAR Dataset.zip", inner)
    np.testing.assert_array_equal(load_dataset("uci-har", tmp_path / "old", whole=False).x, got.x)


def test_har_takes_the_part_that_is_there_and_refuses_damage(tmp_path):
    content, _ = har_files("train", [1, 3])
    for name, data in content.items():
        write(tmp_path / "uci-har" / name, data)
    got = load_dataset("uci-har", tmp_path, whole=False)
    assert len(got.x) == 12
    assert got.train.all()
    path = tmp_path / "uci-har" / "UCI HAR Dataset" / "train" / "X_train.txt"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 99])
    with pytest.raises(BadInput, match=r"X_train.txt: expected 561 numbers per line"):
        load_dataset("uci-har", tmp_path, whole=False)
    path.write_bytes(b"\r\n".join(whole.splitlines()[:-1]))
    with pytest.raises(
        BadInput, match=r"y_train.txt: 12 lines for the 11 windows of .*X_train.txt"
    ):
        load_dataset("uci-har", tmp_path, whole=False)


def leaf_json(users):
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    return json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}).encode()


def tweet(settings, account="a"):
    return ["1467810369", "Mon Apr 06", "NO_QUERY", account, settings, "training"]


def write_sent140(folder):
    write(
        folder / "sent140" / "data" / "all_data" / "all_data.json",
        leaf_json(
            {
                "bob": ([tweet("Hello, don't  worry!"), tweet("")], [1, 0]),
                "amy": ([tweet(" ".join(["hello"] * 30)), tweet("qqq zzz hello")], [0, 1]),
            }
        ),
    )


GLOVE = "hello 1 2 3\nunused 9 9 9\ndon't .5 -.5 0\n! 4 5 6\n, 7 8 9\n"


def test_sent140_rows_are_the_first_tokens_in_glove(tmp_path, caplog):
    write_sent140(tmp_path)
    write(tmp_path / "sent140" / "glove.6B.3d.txt", GLOVE.encode())
    with caplog.at_level(logging.INFO, "coterie"):
        got = load_dataset("sent140", tmp_path, dimension=3)
    assert "words are lower-cased; GloVe knows 30 of 33 tokens" in caplog.text
    assert got.x.shape == (4, 25)
    assert got.x.dtype == np.int64
    assert got.users.tolist() == [0, 0, 1, 1]
    assert got.y.tolist() == [1, 0, 0, 1]
    assert got.classes == 2
    assert got.train.all()
    vectors = got.table[got.x]
    np.testing.assert_array_equal(
        vectors[0, :6], [[1, 2, 3], [7, 8, 9], [0.5, -0.5, 0], [0] * 3, [4, 5, 6], [0] * 3]
    )
    np.testing.assert_array_equal(vectors[2], np.tile([1, 2, 3], (25, 1)))
    np.testing.assert_array_equal(vectors[3, :4], [[0] * 3, [0] * 3, [1, 2, 3], [0] * 3])
    assert len(got.table) == 5  # 'unused' takes no memory
    assert not vectors[1].any()
    assert not load_dataset("sent140", tmp_path, dimension=3, lower=False).x[
        0, 0
    ]  # 'Hello' is unknown as it stands


def test_glove_is_read_from_its_zip_and_a_damaged_line_is_named(tmp_path):
    write_sent140(tmp_path)
    path = write(tmp_path / "sent140" / "glove.6B.zip", zip_bytes({"glove.6B.3d.txt": GLOVE}))
    assert len(load_dataset("sent140", tmp_path, dimension=3).table) == 5
    with pytest.raises(
        BadInput, match=r"glove.6B.zip holds no glove.6B.300d.txt; it holds glove.6B.3d.txt"
    ):
        load_dataset("sent140", tmp_path)
    write(path, zip_bytes({"glove.6B.3d.txt": GLOVE.replace("4 5 6", "4 5")}))
    with pytest.raises(BadInput, match=r"glove.6B.3d.txt, line 4: expected a word and 3 numbers"):
        load_dataset("sent140", tmp_path, dimension=3)


def test_tokens_are_words_with_apostrophes_and_five_marks():
    assert tokenize("I'm SO-happy @you; (really)?!") == [
        "i'm",
        "so",
        "happy",
        "you",
        ";",
        "really",
        "?",
        "!",
    ]


def test_leaf_femnist_keeps_writers_and_parts(tmp_path):
    pixels = images(6).reshape(6, 784)
    rows = (pixels / 255).tolist()
    users = {"f0": (rows[:2], [0, 61]), "f1": (rows[2:4], [5, 6])}
    write(tmp_path / "leaf" / "all_data" / "all_data_0.json", leaf_json(users))
    write(tmp_path / "leaf" / "all_data" / "all_data_1.json", leaf_json({"f2": (rows[4:], [1, 2])}))
    got = load_dataset("leaf", tmp_path)
    np.testing.assert_array_equal(got.x.reshape(6, 784), pixels)
    assert got.users.tolist() == [0, 0, 1, 1, 2, 2]
    assert got.y.tolist() == [0, 61, 5, 6, 1, 2]
    assert got.train.all()
    assert got.classes == 62
    write(tmp_path / "leaf" / "train" / "a.json", leaf_json(users))
    write(tmp_path / "leaf" / "test" / "a.json", leaf_json({"f1": (rows[4:], [1, 2])}))
    parts = load_dataset("leaf", tmp_path)
    assert parts.train.tolist() == [True] * 4 + [False] * 2
    assert parts.users.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"users": ["a"], "user_', "a.json is damaged"),
        (b'{"users": ["a"], "user_data": {}}', "a.json is damaged or not of LEAF's format"),
        (leaf_json({"a": ([[0.0] * 784], [1, 2])}), "user a has 1 x but 2 y"),
        (leaf_json({"a": ([[0.0] * 783], [1])}), "user a: expected rows of 784 pixels"),
        (leaf_json({"a": ([[7.0] * 784], [1])}), "pixels 7 to 7, expected 0 to 1"),
        (leaf_json({"a": ([[0.0] * 784], [62])}), "labels 62 to 62, expected 0 to 61"),
    ],
)
def test_damaged_leaf_files_are_named(tmp_path, data, message):
    write(tmp_path / "leaf" / "a.json", data)
    with pytest.raises(BadInput, match=message):
        load_dataset("leaf", tmp_path)


def test_absent_leaf_files_are_asked_for(tmp_path):
    with pytest.raises(BadInput, match=r"no LEAF file.*preprocess.sh.*COTERIE_DATA or --data-dir"):
        load_dataset("sent140", tmp_path)


# ---- drawn data


def test_synthetic_legacy_is_the_published_draw(tmp_path):
    got = load_dataset("synthetic", tmp_path)
    sizes = np.bincount(got.users)
    assert (len(got.x), sizes.min(), int(np.median(sizes)), sizes.max()) == (
        205_795,
        250,
        577,
        25_810,
    )
    train = (sizes * 0.75).astype(int)
    assert (train.sum(), (sizes - train).sum()) == (154_314, 51_481)
    # from a separate program that follows the published generator
    assert np.bincount(got.y).tolist() == [
        20440,
        15477,
        13612,
        7703,
        17542,
        21572,
        9409,
        48331,
        32221,
        19488,
    ]
    np.testing.assert_allclose(got.x[0, :3], [-0.17788088, 2.0232306, -0.4071902], rtol=1e-6)
    np.testing.assert_allclose(got.x[-1, -3:], [1.7058524, 0.70326144, -0.5759154], rtol=1e-6)
    assert got.x.dtype == np.float32
    assert got.y.dtype == np.int64
    assert got.train.all()


def test_fedprox_sizes_are_a_fifth(tmp_path):
    small = load_dataset("synthetic", tmp_path, sizes="fedprox", num_clients=30)
    large = load_dataset("synthetic", tmp_path, sizes="pfedme", num_clients=30)
    assert (np.bincount(small.users) * 5 == np.bincount(large.users)).all()


def test_synthetic_streams_do_not_depend_on_the_other_clients(tmp_path):
    options = {"sizes": "fedprox", "draws": "streams", "seed": 3}
    few, many = (
        load_dataset("synthetic", tmp_path, num_clients=4, **options),
        load_dataset("synthetic", tmp_path, num_clients=9, **options),
    )
    np.testing.assert_array_equal(few.x, many.x[many.users < 4])
    np.testing.assert_array_equal(few.y, many.y[many.users < 4])
    assert not np.array_equal(
        few.x[:50],
        load_dataset("synthetic", tmp_path, num_clients=4, **options | {"seed": 4}).x[:50],
    )


def test_synthetic_streams_follow_the_law(tmp_path):
    got = load_dataset("synthetic", tmp_path, num_clients=200, draws="streams", alpha=0.0, beta=0.0)
    sizes = np.bincount(got.users)
    assert 45 < np.median(sizes / 5 - 50) < 68  # e^4 = 54.6
    big = got.x[got.users == sizes.argmax()]
    np.testing.assert_allclose(big.var(0), np.arange(1, 61) ** -1.2, rtol=0.1)
    means = np.stack([got.x[got.users == i].mean(0) for i in range(200)])
    assert abs(means.mean()) < 0.03
    assert 0.95 < means.std() < 1.05


def test_synthetic_streams_make_no_copy_of_the_rows(tmp_path):
    tracemalloc.start()
    got = load_dataset("synthetic", tmp_path, num_clients=400, sizes="fedprox", draws="streams")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.35 * got.x.nbytes


def test_gaussian_tells_the_truth(tmp_path):
    one, two = (
        load_dataset("gaussian", tmp_path, case=1),
        load_dataset("gaussian", tmp_path, case=2),
    )
    for got, largest in ((one, 20), (two, 200)):
        sizes = np.bincount(got.users)
        assert len(sizes) == 20
        assert sizes.min() >= 10
        assert sizes.max() <= largest
        assert got.x.shape == (len(got.y), 1)
        assert got.x.dtype == got.y.dtype == np.float32
        assert got.classes == 0
        np.testing.assert_array_equal(got.x[:, 0], got.y)
        assert got.truth.shape == (20, 1)
    assert one.truth.std() < 0.06 < 0.5 < two.truth.std()
    assert abs(one.truth.mean() - 1.6) < 0.03
    exact = load_dataset(
        "gaussian", tmp_path, num_clients=3, s0sq=0.0, theta0=5.0, sizes=[4000, 4000, 1]
    )
    assert np.bincount(exact.users).tolist() == [4000, 4000, 1]
    assert (exact.truth == 5).all()
    assert abs(exact.y.mean() - 5) < 0.02
    assert abs(exact.y.var() - 0.1) < 0.01


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnst", {}, "data set 'mnst' is unknown; did you mean 'mnist'"),
        ("synthetic", {"client": 3}, "no option 'client'"),
        ("digits", {"seed": 3}, "'digits' has no option 'seed'; it has none"),
        ("synthetic", {"num_clients": 0}, "num_clients = 0"),
        ("synthetic", {"sizes": "pfedmee"}, "sizes = 'pfedmee' is unknown; did you mean 'pfedme'"),
        ("synthetic", {"draws": "legcy"}, "draws = 'legcy' is unknown; did you mean 'legacy'"),
        ("gaussian", {"case": 3}, "case = 3"),
        ("gaussian", {"sizes": [1, 2]}, "20 clients need 20 sizes"),
    ],
)
def test_bad_names_and_options_are_refused(tmp_path, name, options, message):
    with pytest.raises(BadInput, match=message):
        load_dataset(name, tmp_path, **options)


# ---- downloads, from a real server on this machine


class Server(ThreadingHTTPServer):
    """Serves `content`, with ranges unless told otherwise; the first `breaks` replies stop
    half-way.
    """

    daemon_threads = True

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.breaks, self.ranged, self.asked = content, 0, True, []
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path.lstrip("/")
        wanted = self.headers.get("Range")
        server.asked.append((name, wanted))
        data = server.content.get(name, b"")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranged else 0
        body = data[start:]
        self.send_response((206 if start else 200) if body else (416 if data else 404))
        if start and not body:
            self.send_header("Content-Range", f"bytes */{len(data)}")
        elif start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    data = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
    running = Server({"big.bin": data})
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def home(server, check=None):
    digest = check or hashlib.sha256(server.content["big.bin"]).hexdigest()
    return Origin("big.bin", (server.url + "big.bin",), f"sha256:{digest}")


def test_a_download_arrives_whole(tmp_path, server):
    path = fetch_file(home(server), "big", tmp_path)
    assert path == tmp_path / "big" / "big.bin"
    assert path.read_bytes() == server.content["big.bin"]
    assert os.listdir(path.parent) == ["big.bin"]


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path, server):
    server.breaks = 2
    path = fetch_file(home(server), "big", tmp_path)
    assert path.read_bytes() == server.content["big.bin"]
    assert server.asked == [
        ("big.bin", None),
        ("big.bin", "bytes=150000-"),
        ("big.bin", "bytes=225000-"),
    ]


def test_a_partial_file_of_an_earlier_run_is_completed(tmp_path, server):
    write(tmp_path / "big" / "big.bin.part", server.content["big.bin"][:299_990])
    path = fetch_file(home(server), "big", tmp_path)
    assert path.read_bytes() == server.content["big.bin"]
    assert os.listdir(path.parent) == ["big.bin"]
    assert server.asked == [("big.bin", "bytes=299990-")]


@pytest.mark.parametrize(("size", "ranged"), [(300_000, True), (300_001, True), (1000, False)])
def test_a_partial_file_that_cannot_be_completed_starts_anew(tmp_path, server, size, ranged):
    server.ranged = ranged
    write(tmp_path / "big" / "big.bin.part", (server.content["big.bin"] + b"x")[:size])
    assert fetch_file(home(server), "big", tmp_path).read_bytes() == server.content["big.bin"]


def test_a_wrong_checksum_is_refused_and_nothing_is_left(tmp_path, server):
    with pytest.raises(BadInput, match=r"big.bin \(sha256 0000.*sent another file") as error:
        fetch_file(home(server, "0" * 64), "big", tmp_path)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path / "big") == []


def test_a_transfer_that_brings_nothing_more_ends_and_keeps_its_part(tmp_path, server):
    server.breaks, server.ranged = 10, False
    with pytest.raises(BadInput, match=r"broke off: run again to go on from big.bin.part"):
        fetch_file(home(server), "big", tmp_path)
    assert os.listdir(tmp_path / "big") == ["big.bin.part"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, server):
    write(tmp_path / "big", b"a file, not a folder")
    with pytest.raises(BadInput, match=f"{tmp_path / 'big'} cannot be written: .*"):
        fetch_file(home(server), "big", tmp_path)


def test_the_next_mirror_is_tried(tmp_path, server):
    one = home(server)
    two = one._replace(urls=(server.url + "absent.bin", *one.urls))
    assert fetch_file(two, "big", tmp_path).exists()
    with pytest.raises(BadInput, match="404"):
        fetch_file(one._replace(urls=(server.url + "absent.bin",)), "other", tmp_path)


def test_absent_files_of_a_data_set_are_downloaded_once(tmp_path, server):
    packed = {f"{stem}.gz": gzip.compress(data) for stem, data in mnist_files().items()}
    server.content |= packed
    checks = {
        file.removesuffix(".gz"): hashlib.md5(data).hexdigest() for file, data in packed.items()
    }
    homes = make_origins(checks, server.url)
    write(tmp_path / "train-labels-idx1-ubyte.gz", packed["train-labels-idx1-ubyte.gz"])
    for _ in range(2):
        got = read_mnist_files("mnist", tmp_path, homes, whole=False, balanced=False)
        assert len(got.x) == 42
        assert len(server.asked) == 3
    both = emnist_files("train", 62) | emnist_files("test", 62)
    server.content["gzip.zip"] = zip_bytes(
        {f"gzip/{stem}.gz": gzip.compress(data) for stem, data in both.items()}
    )
    digest = hashlib.md5(server.content["gzip.zip"]).hexdigest()
    parts = {"all": list(both)}
    for _ in range(2):
        assert (
            len(
                collect_present(
                    tmp_path, "emnist", parts, make_origin("gzip.zip", digest, server.url)
                )["all"]
            )
            == 4
        )
    assert len(server.asked) == 4


def test_without_a_network_the_line_says_what_where_and_how(tmp_path, monkeypatch):
    for scheme in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(BadInput) as error:
        load_dataset("mnist", tmp_path)
    line = str(error.value)
    home = MNIST_FILES["train-images-idx3-ubyte"]
    needed = (
        "train-images-idx3-ubyte.gz",
        home.check[4:],
        str(tmp_path / "mnist"),
        home.urls[0],
        "COTERIE_DATA",
        "--data-dir",
    )
    assert all(option in line for option in needed)
    assert "\n" not in line
    write(tmp_path / "cifar100" / "train.bin", bytes(3074))
    with pytest.raises(
        BadInput, match=r"cifar100: no test.bin; cifar-100-binary.tar.gz \(md5 03b5"
    ):
        load_dataset("cifar100", tmp_path)
    for name in ("fashion-mnist", "emnist", "cifar10", "uci-har"):
        with pytest.raises(BadInput, match=f"{name}: .*no connection to"):
            load_dataset(name, tmp_path)


# ---- the real files, where $COTERIE_DATA holds them


def real(*names):
    folder = Path(os.environ.get("COTERIE_DATA") or "/nonexistent")
    absent = [name for name in names if not list((folder / name).glob("*"))]
    return pytest.mark.skipif(
        bool(absent), reason=f"needs real data: no {', '.join(absent)} folder in $COTERIE_DATA"
    )


@real("mnist")
def test_real_mnist_and_its_writers():
    got = load_dataset("mnist")
    assert got.x.shape == (70_000, 1, 28, 28)
    assert got.train.sum() == 60_000
    pixels = got.x[got.train] / np.float32(255)
    assert abs(pixels.mean(dtype=np.float64) - 0.13066) < 1e-5
    assert abs(pixels.std(dtype=np.float64) - 0.30811) < 1e-5
    writers = load_dataset("mnist-writers")
    _, counts = np.unique(writers.users, return_counts=True)
    assert (len(counts), counts.min(), counts.max(), counts.sum()) == (539, 19, 131, 60_000)
    np.testing.assert_array_equal(writers.x[:100], got.x[:100])


@real("fashion-mnist")
def test_real_fashion_mnist():
    got = load_dataset("fashion-mnist")
    assert abs(got.x[got.train].mean() / 255 - 0.28604) < 1e-5


@real("emnist")
def test_real_emnist_letters():
    got = load_dataset("femnist-letters")
    mean = got.x[~got.train & (got.y == 8)].mean(0)[
        0
    ]  # the mean of the letter i is an upright stroke
    assert mean[4:24, 12:16].mean() > 1.5 * mean[12:16, 4:24].mean()
    assert np.bincount(got.y[~got.train]).tolist() == [
        2706,
        1501,
        2171,
        2462,
        4943,
        1840,
        1036,
        2000,
        2475,
        943,
    ]


@real("uci-har")
def test_real_har():
    got = load_dataset("uci-har")
    assert got.train.sum() == 7_352
    assert len(np.unique(got.users[got.train])) == 21
    assert abs(got.x).max() <= 1
    assert np.bincount(got.y[got.train]).tolist() == [
        1226,
        1073,
        986,
        1286,
        1374,
        1407,
    ]
    assert (np.diff(got.users[got.train]) != 0).sum() == 20  # every person's windows lie together


@real("cifar10")
def test_real_cifar10():
    got = load_dataset("cifar10")
    means = got.x[got.train].mean((0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
    assert (np.bincount(got.y[got.train]) == 5_000).all()
    assert (np.bincount(got.y[~got.train]) == 1_000).all()


def test_every_registered_loader_is_tested_above():
    source = Path(__file__).read_text() + Path(__file__).with_name("test_flamby.py").read_text()
    assert all(f'"{name}"' in source for name in DATASETS)
