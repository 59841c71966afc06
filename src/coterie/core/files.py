"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def place(temporary: Path, final: Path) -> None:
    """Put a finished file or folder where it belongs, whole or not at all."""
    for path in (*sorted(temporary.glob("*")), temporary):  # what a folder holds first
        sync(path)
    os.replace(temporary, final)


def sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def digest(path: Path) -> str:
    """A checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    place(temporary, path)
