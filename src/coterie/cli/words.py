"""The command line: thin commands over the same words as Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.comparison.plan import first_seeds
from coterie.core.errors import BadInput, shown
from coterie.methods.registry import METHODS

FREE = {"ignore_unknown_options": True}


def words_of(arguments: Sequence[str], lone: str = "") -> tuple[str | None, dict[str, Any]]:
    """`--word value`, `--word=value` and `--word` alone (yes) as words, and the one argument that
    may stand alone.
    """
    words: dict[str, Any] = {}
    found: str | None = None
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") and lone and found is None:
            found = word
            continue
        if not word.startswith("--") or len(word) < 3:
            raise BadInput(
                f"'{word}' stands alone: write {lone + ' once, and ' if lone else ''}options as "
                "--name value"
            )
        name, equals, value = word[2:].partition("=")
        words[name] = (
            value if equals else rest.pop(0) if rest and not rest[0].startswith("--") else True
        )
    return found, words


def own_of(words: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Words for all methods, and those that METHOD.WORD gives to one, {method: {word: value}}."""
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for word, value in words.items():
        section, _, name = word.partition(".")
        if name and section.partition("@")[0] in METHODS:
            own.setdefault(section, {})[name] = value
        else:
            common[word] = value
    return common, own


def seeds_of(text: str) -> list[int]:
    """`3` as three seeds from 0, `3,5,8` as these."""
    try:
        numbers = [int(n) for n in text.split(",")]
    except ValueError:
        raise BadInput(f"seeds = {shown(text)}: give how many, or a list such as 3,5,8") from None
    return numbers if len(numbers) > 1 else list(first_seeds(numbers[0]))
