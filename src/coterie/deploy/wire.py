"""Messages between a server and its sites: a head of texts and numbers, and a body of arrays, in a
checked form without pickle.

A message is a `Frame`: the version of this form, a head (JSON) and a body (the bytes of all arrays,
one after another, as they lie in memory). The head's `tree` is the skeleton of what is sent (see
checkpoint.encode), its `table` the kind and shape of every array. Nothing that a message names is
ever imported or run.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.tree import decode, encode
from coterie.deploy.frames import LARGEST_BODY, LARGEST_HEAD, Frame
from coterie.engines.local.states import to_tensors as as_tensors

SCHEMA = 2  # raised when a side with the older form could not understand the newer
LARGEST_DIMENSIONS = 32
LARGEST_SIDE = 2**62
LOST = "lost"  # code of a site's error: the state that the server names is not there
DIVERGED = "diverged"  # the same: what the site made of the message is not finite
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
DTYPE_NAMES = {kind: name for name, kind in DTYPES.items()}
Head = dict[str, Any]


class Content(NamedTuple):
    """A message that was read: its head, and the arrays of its tree, numbered."""

    head: Head
    tensors: dict[str, Tensor]

    def tree(self) -> Tree:
        """What was sent; only named tuples of modules that are loaded already are made."""
        try:
            return decode(self.head["tree"], self.tensors)
        except BadInput:
            raise
        except Exception as problem:  # whatever a damaged skeleton makes its reader raise
            raise BadInput(
                f"the message's tree cannot be read ({problem or type(problem).__name__})"
            ) from None


def pack(head: Head, tree: Tree = ()) -> Frame:
    """A message."""
    found: dict[str, Tensor] = {}
    skeleton = encode(as_tensors(tree), found)
    for tensor in found.values():
        if tensor.dtype not in DTYPE_NAMES:
            raise BadInput(
                f"an array of {tensor.dtype} cannot be sent: use one of {', '.join(DTYPES)}"
            )
    body = b"".join(_to_bytes(t) for t in found.values())
    table = [[DTYPE_NAMES[t.dtype], list(t.shape)] for t in found.values()]
    text = json.dumps({**head, "tree": skeleton, "table": table, "digest": digest(body)})
    if len(text) > LARGEST_HEAD or len(body) > LARGEST_BODY:
        raise BadInput(
            f"a message of {len(text) + len(body):,} bytes is too large to send: use a smaller "
            "network"
        )
    return Frame(SCHEMA, text, body)


def unpack(frame: Frame) -> Content:
    """The content of a message, if its version, its form and all sizes are right."""
    if frame.schema != SCHEMA:
        raise BadInput(
            f"the message has schema {frame.schema}, this version of coterie reads schema "
            f"{SCHEMA}: "
            "install the same version of coterie at the server and at every site"
        )
    try:
        head = json.loads(frame.head)
        table = [
            (DTYPES[kind], tuple(_check_side(side) for side in shape))
            for kind, shape in head["table"]
        ]
        whole = isinstance(head["tree"], dict) and isinstance(head["digest"], str)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise BadInput(
            f"the message is damaged ({type(problem).__name__}: {str(problem)[:200]})"
        ) from None
    if not whole or any(
        len(shape) > LARGEST_DIMENSIONS or min(shape, default=0) < 0 for _, shape in table
    ):
        raise BadInput("the message is damaged (its tree or its shapes make no sense)")
    sizes = [math.prod(shape) * kind.itemsize for kind, shape in table]
    if sum(sizes) != len(frame.body):
        raise BadInput(
            f"the message is damaged (its arrays need {sum(sizes):,} bytes, it has "
            f"{len(frame.body):,})"
        )
    if digest(frame.body) != head["digest"]:
        raise BadInput("the message is damaged (its bytes are not as they were sent)")
    found, start = {}, 0
    for number, ((kind, shape), size) in enumerate(zip(table, sizes, strict=True)):
        found[str(number)] = _to_tensor(frame.body[start : start + size], kind, shape)
        start += size
    return Content(head, found)


def decode_like(content: Content, like: Tree) -> Tree:
    """What was sent, if it is just as `like` in structure, kinds and shapes, and every number is
    finite.
    """
    wanted: dict[str, Tensor] = {}
    skeleton = encode(as_tensors(like), wanted)
    if json.loads(json.dumps(skeleton)) != content.head["tree"]:
        raise BadInput(
            f"its upload has another structure than the method's ({len(content.tensors)} arrays, "
            f"{len(wanted)} expected)"
        )
    if content.tensors.keys() != wanted.keys():
        raise BadInput(f"its upload has {len(content.tensors)} arrays, {len(wanted)} expected")
    for number, name in array_names(skeleton):
        got, want = content.tensors[number], wanted[number]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise BadInput(
                f"its upload has {_describe_tensor(got)} in {name}, but "
                f"{_describe_tensor(want)} was expected: use "
                "the same networks and version"
            )
        if got.is_floating_point() and not bool(torch.isfinite(got).all()):
            what = "NaN" if bool(torch.isnan(got).any()) else "infinity"
            raise BadInput(
                f"its upload has {what} in {name}: lower the rate of training, or look at the "
                "site's data"
            )
    return decode(skeleton, content.tensors)


def check_like(tree: Tree, like: Tree) -> None:
    """Refuse a tree that is not as another in structure, kinds and shapes."""
    decode_like(unpack(pack({}, tree)), like)


def array_names(skeleton: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(number, name) of every array of a tree, as in ("0", "layers.0.weight")."""
    (kind, body), *_ = skeleton.items()
    if kind in ("tensor", "array"):
        yield body, path or "its only array"
    elif kind in ("point", "vector"):
        for part in body:
            yield from array_names(part, path)
    elif kind == "dict":
        for key, value in body:
            yield from array_names(value, f"{path}.{key}" if path else str(key))
    elif kind != "value":
        for place, value in enumerate(skeleton["items"] if kind == "named" else body):
            yield from array_names(value, f"{path}.{place}" if path else str(place))


def digest(body: bytes) -> str:
    """A checksum of a message's arrays."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _check_side(side: Any) -> int:
    if not isinstance(side, int) or isinstance(side, bool) or abs(side) > LARGEST_SIDE:
        raise ValueError(f"an array cannot have a side of {str(side)[:40]}")
    return side


def _describe_tensor(tensor: Tensor) -> str:
    return f"{DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}"


def _to_bytes(tensor: Tensor) -> bytes:
    array = tensor.numpy()
    return np.ascontiguousarray(array if sys.byteorder == "little" else array.byteswap()).tobytes()


def _to_tensor(data: bytes, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    array = np.frombuffer(data, np.dtype(DTYPE_NAMES[kind]).newbyteorder("<")).reshape(shape)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
