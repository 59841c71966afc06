"""Text federations: LEAF's JSON files, the tweets of Sentiment140, and GloVe word vectors."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.data import archives as files

TOKEN = re.compile(r"[\w']+|[.,!?;]")  # words with their apostrophes, and five marks
GLOVE = files.Origin(
    "glove.6B.zip",
    ("https://nlp.stanford.edu/data/glove.6B.zip", "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip"),
    "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)
log = logging.getLogger(__name__)


class Owned(NamedTuple):
    """What one user of a LEAF file owns."""

    user: str
    train: bool
    x: list[Any]
    y: list[Any]
    place: Path


def leaf_files(folder: Path, name: str) -> dict[Path, bool]:
    """LEAF's JSON files (file -> is it training data): train/ and test/, else all_data/, else loose."""

    def found(place: Path) -> list[Path]:
        return sorted(path for wrap in ("", *files.WRAPS) for path in place.glob(f"*.json{wrap}"))

    for place in (folder / name, folder / name / "data", folder):
        train, test = found(place / "train"), found(place / "test")
        if train and test:
            return dict.fromkeys(train, True) | dict.fromkeys(test, False)
        every = found(place / "all_data") or found(place)
        if every:
            return dict.fromkeys(every, True)
    raise BadInput(
        f"{name}: no LEAF file (all_data/*.json, or train/*.json and test/*.json) in {folder / name} "
        f"or {folder}: make them with preprocess.sh of https://github.com/TalwalkarLab/leaf "
        "and put its data folder there, or set COTERIE_DATA or --data-dir to the folder that holds them"
    )


def leaf_users(folder: Path, name: str) -> Iterator[Owned]:
    """The users of LEAF's JSON files, file by file."""
    for path, train in leaf_files(folder, name).items():
        try:
            content = json.loads(files.read(path).data)
            users = [(user, content["user_data"][user]) for user in content["users"]]
            owned = [Owned(user, train, data["x"], data["y"], path) for user, data in users]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(
                f"{path} is damaged or not of LEAF's format ({error!r}); expected users, and user_data with x and y"
            ) from error
        for one in owned:
            if len(one.x) != len(one.y):
                raise BadInput(f"{path}: user {one.user} has {len(one.x)} x but {len(one.y)} y; expected as many")
        yield from owned


def tokens(text: str, lower: bool = True) -> list[str]:
    """Words (letters, digits, apostrophes) and the marks . , ! ? ; in their order."""
    return TOKEN.findall(text.lower() if lower else text)


def glove_lines(folder: Path, dimension: int) -> tuple[str, Iterable[bytes]]:
    """The place and the lines of GloVe 6B's text file, loose in `sent140` or `glove`, or in its zip."""
    stem = f"glove.6B.{dimension}d.txt"
    for name in ("sent140", "glove"):
        path = files.find(folder, name, stem)
        if path:
            return str(path), files.lines(path)
    path = files.find(folder, "sent140", GLOVE.file) or files.find(folder, "glove", GLOVE.file)
    path = path or files.fetch(GLOVE, "sent140", folder)
    return f"{path}:{stem}", files.lines(path, stem)


def glove(folder: Path, words: Iterable[str], dimension: int) -> tuple[dict[str, int], np.ndarray]:
    """Those of the words that GloVe knows, numbered from 1, and their vectors; row 0 is the zero vector."""
    place, lines = glove_lines(folder, dimension)
    left = set(words)
    index: dict[str, int] = {}
    rows = [np.zeros(dimension, np.float32)]
    for count, line in enumerate(lines, 1):
        word, _, numbers = line.rstrip().partition(b" ")
        key = word.decode("utf-8", "replace")
        if key not in left:
            continue
        try:
            vector = np.array(numbers.split(), dtype="S").astype(np.float32)
        except ValueError:
            vector = np.empty(0, np.float32)
        if len(vector) != dimension:
            raise BadInput(f"{place}, line {count}: expected a word and {dimension} numbers")
        left.discard(key)
        index[key] = len(rows)
        rows.append(vector)
    if not index:
        raise BadInput(f"{place} knows none of the words; expected GloVe 6B vectors (lower-case words, then numbers)")
    return index, np.stack(rows)


def indices(texts: list[list[str]], index: dict[str, int], length: int) -> np.ndarray:
    """[n, length] row numbers of the table for the first tokens of each text; 0 is unknown and padding."""
    x = np.zeros((len(texts), length), np.int64)
    for row, words in enumerate(texts):
        numbers = [index.get(word, 0) for word in words[:length]]
        x[row, : len(numbers)] = numbers
    return x


class Tweets(NamedTuple):
    """Sentiment140 grouped by account."""

    x: np.ndarray  # [n, length] int64, rows of the table
    y: np.ndarray  # [n] int64, 1 for positive
    users: np.ndarray  # [n] int64
    train: np.ndarray  # [n] bool
    table: np.ndarray  # [words + 1, dimension] float32, row 0 zeros


def sent140(folder: Path, length: int, dimension: int, lower: bool) -> Tweets:
    """LEAF's Sent140 rows (id, date, query, account, text, part) as indices into the GloVe words they use."""
    texts, labels, users, train = [], [], [], []
    numbers: dict[str, int] = {}
    for owned in leaf_users(folder, "sent140"):
        number = numbers.setdefault(owned.user, len(numbers))
        for row, label in zip(owned.x, owned.y, strict=True):
            if not isinstance(row, list) or len(row) < 5 or label not in (0, 1):
                raise BadInput(f"{owned.place}: user {owned.user}: expected rows (id, date, query, account, text) and y 0 or 1")
            texts.append(tokens(row[4], lower)[:length])
            labels.append(label)
            users.append(number)
            train.append(owned.train)
    seen = Counter(word for words in texts for word in words)
    index, table = glove(folder, seen, dimension)
    known = sum(seen[word] for word in index)
    log.info(
        "sent140: words are %slower-cased; GloVe knows %d of %d tokens",
        "" if lower else "not ",
        known,
        seen.total(),
    )
    return Tweets(indices(texts, index, length), np.array(labels, np.int64), np.array(users), np.array(train), table)
