"""What timing has found on this machine, so that the next run of the same kind times nothing.

One small file per case, in the folder COTERIE_CACHE names (else coterie in the user's cache).
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from coterie.core.files import write_text

CACHE = "COTERIE_CACHE"


def cache_folder() -> Path:
    """Where findings lie."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"
    return Path(os.environ.get(CACHE) or usual) / "choices"


@cache
def hash_engine() -> str:
    """A digest of this engine's code: what it found does not hold for another one."""
    here = Path(__file__).parent
    files = sorted(path for kind in ("*.py", "*.h") for path in here.rglob(kind))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _entry_path(case: Any) -> Path:
    text = json.dumps([hash_engine(), case], sort_keys=True, default=str)
    return cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def recall(case: Any) -> dict[str, Any] | None:
    """What was found for such a case; None where nothing is, or it cannot be read."""
    try:
        found = json.loads(_entry_path(case).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def remember(case: Any, found: dict[str, Any]) -> None:
    """Keep a finding; a machine without a place for it times again."""
    place = _entry_path(case)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(found))
    except OSError:
        return
