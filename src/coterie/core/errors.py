"""Errors a user can mend: one clear line that names the value, the place and the way out."""

from collections.abc import Iterable
from typing import Any

from coterie.core.option_names import find_alike

MAX_VALUE_CHARS = 80  # letters of a value in a message
MAX_LIST_CHARS = 400  # letters of a list of names in a message


class BadInput(ValueError):
    """What the user gave cannot be used; the command line prints it and exits with code 2."""


class CannotWrite(BadInput):
    """A folder cannot be written: it is full, gone or protected."""


class Diverged(RuntimeError):
    """Training stopped, as most updates are not finite; the command line exits with code 3."""


class Interrupted(Exception):
    """Stopped from the keyboard; says how to go on."""


def format_value(value: Any) -> str:
    """A value as a message shows it: in one line, and cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists without end
        return f"a very large {type(value).__name__}"
    return (
        text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 20]}...{text[-10:]}"
    )


def suggest_name(option: str, valid: Iterable[str]) -> str:
    """A suffix that offers the valid name closest to `option`, or lists the valid ones."""
    names = sorted(valid)
    if close := find_alike(option[:MAX_VALUE_CHARS], names):
        return f"; did you mean '{close}'?"
    listed = ", ".join(names)
    if len(listed) > MAX_LIST_CHARS:
        listed = f"{listed[:MAX_LIST_CHARS].rpartition(', ')[0]}, ... ({len(names)} in all)"
    return f"; choose from {listed}"
