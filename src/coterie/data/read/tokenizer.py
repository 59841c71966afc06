"""Free texts as numbers of words, by the `tokenizers` library, fitted on training rows.

A text is put into lower case and cut at blanks and punctuation. A word that training rows have at
least twice has a number; 0 fills a short text up, and 1 stands for every other word, so that it is
trained too and no word of one single row is kept.

The tokenizer of a pretrained network is taken as it is in its folder; -1 fills a short text up, as
any number may be a token there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl

from coterie.core.base_models import find_base
from coterie.core.errors import BadInput
from coterie.core.options import Range

PAD, UNKNOWN = "[pad]", "[unknown]"
MIN_COUNT = 2  # how often training rows have a word that is kept
MIN_WORDS = 4  # so many words per cell, on average, are a text rather than a name
MIN_DISTINCT = 0.5  # a column of texts has so many different cells
ID_LIKE = 0.95  # a column with so many different cells per row looks like an id
SAMPLED_ROWS = 1000  # rows that tell whether a column may hold texts

Vocabulary = Annotated[int, Range(10, 1_000_000)]
Tokens = Annotated[int, Range(1, 4096)]


class TokenizerOptions(NamedTuple):
    """How texts become numbers."""

    vocabulary: Vocabulary = 5000  # at most so many words have a number
    tokens: Tokens = 64  # of a text: longer ones are cut, shorter ones filled up
    folder: str = ""  # of a pretrained network, whose tokenizer is taken; "": one is fitted


DEFAULT_OPTIONS = TokenizerOptions()


class FittedTokenizer(NamedTuple):
    """What the training rows said about a text column."""

    json: str  # as the library writes it
    words: int  # how many numbers there are


def _load_library() -> Any:
    """The library, where it is installed."""
    # it warns whenever a process that used its threads is forked
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError:
        raise BadInput(
            "a column of texts needs one more package: pip install 'coterie[text]' "
            "(or say --categories COLUMN if its texts are names)"
        ) from None
    return tokenizers


def fit_tokenizer(texts: Iterable[str], how: TokenizerOptions, name: str) -> FittedTokenizer:
    """A tokenizer of the words in these texts, which are those of training rows."""
    library = _load_library()
    made = library.Tokenizer(library.models.WordLevel(unk_token=UNKNOWN))
    made.normalizer = library.normalizers.Sequence(
        [library.normalizers.NFKC(), library.normalizers.Lowercase()]
    )
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()  # punctuation too
    trainer = library.trainers.WordLevelTrainer(
        vocab_size=how.vocabulary,
        min_frequency=MIN_COUNT,
        show_progress=False,
        special_tokens=[PAD, UNKNOWN],
    )
    made.train_from_iterator(texts, trainer)
    words = made.get_vocab_size()
    if words <= 2:
        raise BadInput(
            f"column '{name}': no word is twice in the training rows, so there is nothing to "
            "learn; name another column with --text"
        )
    made.enable_truncation(how.tokens)
    made.enable_padding(length=how.tokens, pad_id=0, pad_token=PAD)
    return FittedTokenizer(made.to_str(), words)


def load_folder_tokenizer(how: TokenizerOptions) -> FittedTokenizer:
    """The tokenizer of a pretrained network, whatever the training rows say."""
    library, folder = _load_library(), find_base(how.folder)
    if not (folder / "tokenizer.json").is_file():
        raise BadInput(f"{folder} has no tokenizer.json: save the network's tokenizer there")
    try:
        made = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as problem:  # the library raises Exception itself
        raise BadInput(f"{folder / 'tokenizer.json'} cannot be read: {problem}") from None
    made.no_padding()
    made.enable_truncation(how.tokens)
    return FittedTokenizer(made.to_str(), made.get_vocab_size())


@lru_cache(4)
def _load_tokenizer(written: str) -> Any:
    return _load_library().Tokenizer.from_str(written)


def tokenize(written: str, texts: Sequence[str]) -> np.ndarray:
    """[texts, tokens] int64, by a tokenizer as the library wrote it."""
    tokenizer = _load_tokenizer(written)
    found = [one.ids for one in tokenizer.encode_batch(list(texts))]
    if tokenizer.padding is not None:
        return np.array(found, np.int64)
    filled = np.full((len(found), tokenizer.truncation["max_length"]), -1, np.int64)
    for row, ids in zip(filled, found, strict=True):
        row[: len(ids)] = ids
    return filled


def guess_text(frame: pl.DataFrame) -> str:
    """The column of texts, if no other column is of use; else nothing."""
    texts = [series for series in frame.iter_columns() if is_text(series)]
    if len(texts) != 1:
        return ""
    others = [s for s in frame.iter_columns() if s.name != texts[0].name]
    return "" if any(_is_useful(series) for series in others) else texts[0].name


def is_text(series: pl.Series) -> bool:
    """Whether cells are sentences, most of them different, rather than names."""
    if series.dtype != pl.String:
        return False
    cells = series.head(SAMPLED_ROWS).drop_nulls()
    counts = cells.str.count_matches(r"\S*\p{L}\S*")  # words have letters
    if cells.is_empty() or float(counts.sum()) < MIN_WORDS * cells.len():
        return False
    return cells.n_unique() >= MIN_DISTINCT * cells.len()


def _is_useful(series: pl.Series) -> bool:
    """Whether a column may tell anything: it is neither constant nor an id."""
    filled = series.drop_nulls()
    if filled.dtype.is_nested():
        return True
    different = filled.n_unique()
    if different < 2:
        return False
    names = series.dtype.is_integer() or series.dtype == pl.String
    return not (names and different >= ID_LIKE * filled.len())
