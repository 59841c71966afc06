"""The rows of a run as they come: a file that only grows, and marks that say how much of it counts.

A piece is the rows since the last one, an Arrow stream behind its length in bytes. A mark names a
place between two pieces, with a checksum over all that lies before. So a checkpoint costs the same
however long the run has been going on, and what was written after it is overwritten by the run that
goes on from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file, read_text

LENGTH = struct.Struct(">Q")  # of a piece, before it
MAX_BYTES = 2**62  # no file has so many bytes
REMEDY = "restore it from a copy, or delete the checkpoint to begin anew"


class Mark(NamedTuple):
    """A place in a file of rows."""

    rows: int = 0
    bytes: int = 0
    chain: str = ""  # checksum of the piece before, made over its rows and the chain before it


def append_rows(path: Path, rows: pa.Table, mark: Mark) -> Mark:
    """Put rows behind a mark, in place of what lies there; they are on disk when this returns."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(rows)
    piece = sink.getvalue().to_pybytes()
    with check_regular_file(path).open("r+b") if path.exists() else path.open("w+b") as file:
        if file.seek(0, os.SEEK_END) < mark.bytes:
            raise BadInput(f"{path} is shorter than it was written: {REMEDY}")
        file.truncate(mark.bytes)
        file.seek(mark.bytes)
        file.write(LENGTH.pack(len(piece)) + piece)
        file.flush()
        os.fsync(file.fileno())
        end = file.tell()
    return Mark(mark.rows + len(rows), end, _chain_checksum(mark.chain, piece))


def read_pieces(path: Path, mark: Mark) -> Iterator[pa.Table]:
    """The rows before a mark, piece by piece, as long as they are just as they were written."""
    chain = ""
    with _open_file(path) as file:
        while file.tell() < mark.bytes:
            head = file.read(LENGTH.size)
            length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else mark.bytes
            piece = file.read(min(length, mark.bytes - file.tell()))
            chain = _chain_checksum(chain, piece)
            if len(piece) < length or (file.tell() == mark.bytes and chain != mark.chain):
                raise BadInput(f"{path} is damaged (its rows are not those written): {REMEDY}")
            try:
                yield pa.ipc.open_stream(piece).read_all()
            except (pa.ArrowException, OSError) as problem:
                why = str(problem).splitlines()[0]
                raise BadInput(f"{path} is damaged ({why}): {REMEDY}") from None


def check_rows(path: Path, mark: Mark) -> None:
    """Refuse a file whose rows before a mark are not those that were written."""
    for _ in read_pieces(path, mark) if mark.bytes else ():
        pass


def write_mark(path: Path, mark: Mark) -> None:
    path.write_text(json.dumps(mark._asdict()), encoding="utf-8")


def read_mark(path: Path) -> Mark:
    """A mark from its file."""
    try:
        mark = Mark(**json.loads(read_text(path)))
        if not all(type(a) is type(b) for a, b in zip(mark, Mark(), strict=True)):
            raise TypeError
        if not (0 <= mark.rows < MAX_BYTES and 0 <= mark.bytes < MAX_BYTES):
            raise ValueError
        return mark
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    except BadInput:
        raise
    except (ValueError, TypeError, RecursionError):
        raise BadInput(f"{path} cannot be read: it is damaged, or of another version") from None


def _open_file(path: Path) -> BinaryIO:
    if path.is_symlink():
        raise BadInput(f"{path} is a link: rows are read from the run's own folder only")
    try:
        return check_regular_file(path).open("rb")  # to open a pipe would wait for ever
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}: {REMEDY}") from None


def _chain_checksum(before: str, piece: bytes) -> str:
    return hashlib.blake2b(before.encode() + piece, digest_size=16).hexdigest()
