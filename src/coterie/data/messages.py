"""What a user should know about the data although it stops nothing: one line each."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("coterie.data")  # what is as it should be: quiet unless asked for


class DataWarning(UserWarning):
    """Something that was done with the data, or left out of them; the command line prints it."""


def warn(line: str) -> None:
    """Say it once; Python shows it as a warning, the command line as a line of its own."""
    warnings.warn(line, DataWarning, stacklevel=2)


@contextmanager
def silence() -> Iterator[None]:
    """Where data are read again, of which all was said before."""
    before, LOGGER.disabled = LOGGER.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            yield
    finally:
        LOGGER.disabled = before


def log(line: str) -> None:
    """Say what was read as what; the command line prints it, Python logs it."""
    LOGGER.info(line)
