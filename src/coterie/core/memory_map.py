"""Tensors that lie in a file: what does not fit into memory is written out by the system."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CannotWrite
from coterie.core.memory import format_gigabytes


def open_scratch_file(owner: object) -> BinaryIO:
    """A file without a name, which goes when its owner does and nobody reads it any more."""
    file: Any = tempfile.TemporaryFile(prefix="coterie-", buffering=0)  # noqa: SIM115
    weakref.finalize(owner, file.close)
    return cast(BinaryIO, file)


def map_tensor(file: Any, like: Tensor, rows: int) -> Tensor:
    """The first bytes of a file as so many rows like those of a tensor; a file that is too short
    grows, and keeps what it has.
    """
    shape = (rows, *like.shape[1:])
    size = max(1, torch.Size(shape).numel() * like.element_size())
    try:
        if hasattr(os, "posix_fallocate"):  # a full disk is found here, not when it is written to
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        array = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
    except OSError as problem:
        raise CannotWrite(
            f"the states of {rows:,} clients need {format_gigabytes(size)} GB of "
            f"{tempfile.gettempdir()} ({problem.strerror}): make room there, or set TMPDIR to a "
            "larger disk"
        ) from None
    used = torch.from_numpy(array)[: torch.Size(shape).numel() * like.element_size()]
    return used.view(like.dtype).reshape(shape)
