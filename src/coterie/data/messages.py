"""What a user should know about the data although it stops nothing: one line each."""

import logging
import warnings

LOGGER = logging.getLogger("coterie.data")  # what is as it should be: quiet unless asked for


class DataWarning(UserWarning):
    """Something that was done with the data, or left out of them; the command line prints it."""


def warn(line: str) -> None:
    """Say it once; Python shows it as a warning, the command line as a line of its own."""
    warnings.warn(line, DataWarning, stacklevel=2)


def log(line: str) -> None:
    """Say what was read as what; the command line prints it, Python logs it."""
    LOGGER.info(line)
