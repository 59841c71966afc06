"""How much memory this machine has, and the refusal of what cannot fit into it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from coterie.core.errors import BadInput

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
UNKNOWN = 2**43  # where the system does not tell: more than any machine for one run has


@cache
def read_memory_limit() -> int:
    """Bytes of memory that this process may have: the machine's, or its container's share."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        found = UNKNOWN
    for place in CGROUP_LIMITS:
        try:
            found = min(found, int(Path(place).read_text()))
        except (OSError, ValueError):  # no container, or one without a limit ("max")
            continue
    return found if found > 0 else UNKNOWN


def check_memory(needed: int, what: str, way: str) -> None:
    """Refuse what needs more bytes than this machine has."""
    if needed > read_memory_limit():
        raise BadInput(
            f"{what} need {format_gigabytes(needed)} GB of memory, and this machine has "
            f"{format_gigabytes(read_memory_limit())} GB: {way}"
        )


def format_gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f}"
