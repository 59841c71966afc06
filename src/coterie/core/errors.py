"""Errors a user can mend: one clear line that names the value, the place and the way out."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):
    """What the user gave cannot be used; the command line prints it and exits with code 2."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """A suffix that offers the valid name closest to `word`, or lists the valid ones."""
    names = sorted(valid)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; choose from {', '.join(names)}"
