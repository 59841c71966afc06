"""Trees on disk without pickle: a JSON skeleton beside a safetensors file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors
from coterie.core.method import Tree
from coterie.core.point import Point, Vector

FORMAT = 1  # of the files below; raised when an older reader could not understand them


def encode(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The skeleton of a tree; its tensors go into `tensors`, numbered."""
    if isinstance(tree, Tensor | np.ndarray):
        number = str(len(tensors))
        values = (
            tree.detach().cpu()
            if isinstance(tree, Tensor)
            else torch.from_numpy(np.array(tree, order="C"))
        )
        tensors[number] = values.contiguous().clone()
        return {"tensor" if isinstance(tree, Tensor) else "array": number}
    if isinstance(tree, Point | Vector):
        extra = tree.buffers if isinstance(tree, Point) else tree.fresh
        kind = "point" if isinstance(tree, Point) else "vector"
        return {kind: [encode(tree.params, tensors), encode(extra, tensors)]}
    if isinstance(tree, dict):
        return {"dict": [[k, encode(v, tensors)] for k, v in tree.items()]}
    if isinstance(tree, tuple | list):
        items = [encode(v, tensors) for v in tree]
        if hasattr(tree, "_fields"):
            return {"named": _class_name(type(tree)), "items": items}
        return {"list" if isinstance(tree, list) else "tuple": items}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise BadInput(
        f"a {type(tree).__name__} cannot be saved: states are made of tensors, numbers, text, "
        "tuples, lists, dicts"
    )


def decode(skeleton: Any, tensors: dict[str, Tensor]) -> Tree:
    """The tree of a skeleton."""
    (kind, body), *_ = skeleton.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "array":
        return tensors[body].numpy()
    if kind in ("point", "vector"):
        params, extra = (decode(part, tensors) for part in body)
        return Point(params, extra) if kind == "point" else Vector(params, extra)
    if kind == "dict":
        return {k: decode(v, tensors) for k, v in body}
    if kind == "value":
        return body
    items = (
        [decode(v, tensors) for v in skeleton["items"]]
        if kind == "named"
        else [decode(v, tensors) for v in body]
    )
    if kind == "named":
        return _find_class(body)(*items)
    return items if kind == "list" else tuple(items)


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in name:
        raise BadInput(
            f"{kind.__qualname__} is defined inside a function and cannot be loaded again: move "
            "it to its module"
        )
    return name


def _find_class(name: str) -> Any:
    """A named tuple of a module that is already loaded: a file can never cause an import."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise BadInput(
            f"the file speaks of {name}, which is not loaded here: import the method that wrote "
            "it first, or go on with the version that wrote it"
        )
    return found


def save_tree(tree: Tree, folder: Path, name: str) -> None:
    """Write `name.json` and `name.safetensors` into a folder."""
    tensors: dict[str, Tensor] = {}
    skeleton = encode(tree, tensors)
    text = json.dumps({"format": FORMAT, "tree": skeleton})
    with catch_write_errors(folder):
        save_file(tensors, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def load_tree(folder: Path, name: str) -> Tree:
    """Read what `save_tree` wrote; tensors are cloned, so that they lie where fresh ones would."""
    try:
        written = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if written["format"] != FORMAT:
            raise BadInput(
                f"{folder / name}.json has format {written['format']}, this version of coterie "
                f"reads {FORMAT}"
            )
        tensors = {k: t.clone() for k, t in load_file(folder / f"{name}.safetensors").items()}
        return decode(written["tree"], tensors)
    except BadInput:
        raise
    except FileNotFoundError as missing:
        raise BadInput(f"{missing.filename or folder} is missing") from None
    except Exception as damage:  # whatever a damaged file makes its reader raise
        raise BadInput(
            f"{folder / name}.json or .safetensors is damaged ({damage or type(damage).__name__})"
        ) from None
