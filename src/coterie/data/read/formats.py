"""File formats that data sets come in: LeCun's idx, and pickles of plain arrays."""

import io
import pickle
from typing import Any

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.read.archives import FilePart


def parse_idx(part: FilePart, dims: int, code: int = 8) -> np.ndarray:
    """An array in LeCun's idx format; code 8 is unsigned bytes, 12 big-endian 32-bit integers."""
    kind = np.dtype({8: "u1", 12: ">i4"}[code])
    magic, head = (code << 8) + dims, 4 + 4 * dims
    got = int.from_bytes(part.data[:4], "big")
    if got != magic or len(part.data) < head:
        raise BadInput(
            f"{part.place}: magic number {got}, but an idx file of this kind starts with {magic}"
        )
    shape = tuple(int(n) for n in np.frombuffer(part.data, ">u4", dims, offset=4))
    size = head + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(part.data) != size:
        raise BadInput(
            f"{part.place}: {len(part.data):,} bytes, "
            f"but its header announces {shape}: expected {size:,}"
        )
    return np.frombuffer(part.data, kind, offset=head).reshape(shape)


def unpickle(part: FilePart) -> dict[str, Any]:
    """The dict in a pickle of plain values and arrays; keys that Python 2 wrote become text."""
    try:
        value = ArraysOnly(io.BytesIO(part.data), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else str(key): item
            for key, item in value.items()
        }
    except Exception as error:  # a damaged pickle can raise anything
        raise BadInput(f"{part.place}: not a pickle of plain arrays ({error})") from error


class ArraysOnly(pickle.Unpickler):
    """Reads pickled dicts, lists, text, numbers and arrays; refuses all else, above all code."""

    allowed = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
