"""Trees on disk without pickle: a JSON skeleton beside a safetensors file, put in place atomically."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .errors import BadInput
from .method import Tree
from .point import Point, Vector

FORMAT = 1  # of the files below; raised when an older reader could not understand them
WHOLE = "files.json"  # {file: checksum}, written last


def encode(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The skeleton of a tree; its tensors go into `tensors`, numbered."""
    if isinstance(tree, Tensor | np.ndarray):
        number = str(len(tensors))
        values = tree.detach() if isinstance(tree, Tensor) else torch.from_numpy(np.array(tree, order="C"))
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
    raise BadInput(f"a {type(tree).__name__} cannot be saved: states are made of tensors, numbers, text, tuples, lists, dicts")


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
    items = [decode(v, tensors) for v in skeleton["items"]] if kind == "named" else [decode(v, tensors) for v in body]
    if kind == "named":
        return _class(body)(*items)
    return items if kind == "list" else tuple(items)


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in name:
        raise BadInput(f"{kind.__qualname__} is defined inside a function and cannot be loaded again: move it to its module")
    return name


def _class(name: str) -> Any:
    """A named tuple of a module that is already loaded: a file can never cause an import."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise BadInput(f"the file speaks of {name}, which is not loaded here: import the method that wrote it first")
    return found


def save_tree(tree: Tree, folder: Path, name: str) -> None:
    """Write `name.json` and `name.safetensors` into a folder."""
    tensors: dict[str, Tensor] = {}
    skeleton = encode(tree, tensors)
    save_file(tensors, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps({"format": FORMAT, "tree": skeleton}), encoding="utf-8")


def load_tree(folder: Path, name: str) -> Tree:
    """Read what `save_tree` wrote; tensors are cloned, so that they lie where fresh ones would."""
    try:
        written = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if written["format"] != FORMAT:
            raise BadInput(f"{folder / name}.json has format {written['format']}, this version of coterie reads {FORMAT}")
        tensors = {k: t.clone() for k, t in load_file(folder / f"{name}.safetensors").items()}
        return decode(written["tree"], tensors)
    except BadInput:
        raise
    except FileNotFoundError as missing:
        raise BadInput(f"{missing.filename or folder} is missing") from None
    except Exception as damage:  # whatever a damaged file makes its reader raise
        raise BadInput(f"{folder / name}.json or .safetensors is damaged ({damage or type(damage).__name__})") from None


def place(temporary: Path, final: Path) -> None:
    """Put a finished file or folder where it belongs, whole or not at all."""
    for path in (*sorted(temporary.glob("*")), temporary):  # what a folder holds first
        _sync(path)
    os.replace(temporary, final)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first; what an interrupted save left behind (.part) is none."""
    return sorted(p for p in run.glob("checkpoint-*") if p.is_dir() and not p.name.endswith(".part"))


def save_checkpoint(run: Path, number: int, tree: Tree, extra: dict[str, Callable[[Path], None]]) -> None:
    """A new checkpoint, then the older ones go; `extra` maps file names to functions that write them."""
    final = run / f"checkpoint-{number:07d}"
    temporary = run / f"checkpoint-{number:07d}.part"
    if not final.exists():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_tree(tree, temporary, "state")
        for name, write in extra.items():
            write(temporary / name)
        digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
        (temporary / WHOLE).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        place(temporary, final)
        _sync(run)  # the new one is there for good before the old ones go
    for old in [*checkpoints(run), *run.glob("checkpoint-*.part")]:
        if old != final:
            shutil.rmtree(old)


def load_checkpoint(folder: Path) -> Tree:
    """The tree of a checkpoint, if every file is just as it was written."""
    way_out = f"restore it from a copy, or delete {folder} to begin anew"
    try:
        for name, written in json.loads((folder / WHOLE).read_text(encoding="utf-8")).items():
            if digest(folder / name) != written:
                raise BadInput(f"the checkpoint {folder} is damaged ({name} is not as it was written): {way_out}")
    except (OSError, ValueError, AttributeError) as problem:
        if isinstance(problem, BadInput):
            raise
        what = f"{Path(problem.filename).name} is missing" if isinstance(problem, FileNotFoundError) else f"{WHOLE} is damaged"
        raise BadInput(f"the checkpoint {folder} is not whole ({what}): {way_out}") from None
    return load_tree(folder, "state")


def digest(path: Path) -> str:
    """A checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
