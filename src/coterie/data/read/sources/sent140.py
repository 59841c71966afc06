"""Sentiment140: the tweets of many accounts, as rows of a table of GloVe word vectors."""

import logging
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.options import PositiveInt
from coterie.data.dataset import Dataset, Source
from coterie.data.read import archives
from coterie.data.read.downloads import Origin, fetch_file
from coterie.data.read.sources.leaf import read_leaf_users

TOKEN = re.compile(r"[\w']+|[.,!?;]")  # words with their apostrophes, and five marks
GLOVE = Origin(
    "glove.6B.zip",
    (
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip",
    ),
    "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)
log = logging.getLogger(__name__)


def sent140(
    folder: Path, length: PositiveInt = 25, dimension: PositiveInt = 300, lower: bool = True
) -> Dataset:
    """Sentiment140 by account, as LEAF prepares it: the first tokens of a tweet in GloVe's words.

    LEAF's rows are (id, date, query, account, text, part); label 1 is positive.

    length: tokens of a tweet that are used.
    dimension: length of GloVe's word vectors.
    lower: texts are lower-cased.
    """
    texts, labels, users, train = [], [], [], []
    numbers: dict[str, int] = {}
    for owned in read_leaf_users(folder, "sent140"):
        number = numbers.setdefault(owned.user, len(numbers))
        for row, label in zip(owned.x, owned.y, strict=True):
            if not isinstance(row, list) or len(row) < 5 or label not in (0, 1):
                raise BadInput(
                    f"{owned.place}: user {owned.user}: expected rows "
                    "(id, date, query, account, text) and y 0 or 1"
                )
            texts.append(tokenize(row[4], lower)[:length])
            labels.append(label)
            users.append(number)
            train.append(owned.train)
    seen = Counter(word for words in texts for word in words)
    index, table = load_glove(folder, seen, dimension)
    known = sum(seen[word] for word in index)
    log.info(
        "sent140: words are %slower-cased; GloVe knows %d of %d tokens",
        "" if lower else "not ",
        known,
        seen.total(),
    )
    return Dataset(
        name="sent140",
        x=encode_texts(texts, index, length),
        y=np.array(labels, np.int64),
        classes=2,
        train=np.array(train),
        users=np.array(users),
        table=table,
    )


def tokenize(text: str, lower: bool = True) -> list[str]:
    """Words (letters, digits, apostrophes) and the marks . , ! ? ; in their order."""
    return TOKEN.findall(text.lower() if lower else text)


def load_glove(
    folder: Path, words: Iterable[str], dimension: int
) -> tuple[dict[str, int], np.ndarray]:
    """The words that GloVe knows, numbered from 1, and their vectors; row 0 is the zero vector."""
    place, lines = read_glove_lines(folder, dimension)
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
        raise BadInput(
            f"{place} knows none of the words; "
            "expected GloVe 6B vectors (lower-case words, then numbers)"
        )
    return index, np.stack(rows)


def read_glove_lines(folder: Path, dimension: int) -> tuple[str, Iterable[bytes]]:
    """The place and the lines of GloVe 6B's file, loose in `sent140` or `glove`, or zipped."""
    stem = f"glove.6B.{dimension}d.txt"
    for name in ("sent140", "glove"):
        path = archives.find_file(folder, name, stem)
        if path:
            return str(path), archives.read_lines(path)
    path = archives.find_file(folder, "sent140", GLOVE.file) or archives.find_file(
        folder, "glove", GLOVE.file
    )
    path = path or fetch_file(GLOVE, "sent140", folder)
    return f"{path}:{stem}", archives.read_lines(path, stem)


def encode_texts(texts: list[list[str]], index: dict[str, int], length: int) -> np.ndarray:
    """[n, length] rows of the table for the first tokens of each text; 0: unknown or padding."""
    x = np.zeros((len(texts), length), np.int64)
    for row, words in enumerate(texts):
        numbers = [index.get(word, 0) for word in words[:length]]
        x[row, : len(numbers)] = numbers
    return x


SENT140 = Source(sent140, natural=True, network="lstm")
