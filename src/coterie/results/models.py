"""Every client's own model on disk, and back as a plain module.

models.json has a checksum for every client. Models that are equal lie there once, in the file of
the first client that has them: one for all of FedAvg, one per cluster of IFCA.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.core.files import (
    catch_write_errors,
    check_regular_file,
    digest,
    path_exists,
    read_text,
    save_bytes,
    save_tensors,
    serialize_tensors,
    write_text,
)
from coterie.core.model import Model
from coterie.core.plugins import PLUGINS
from coterie.data.federation import Federation
from coterie.engines.base import Engine, Moment, Send
from coterie.networks import registry
from coterie.networks.assembled import AROUND, assemble
from coterie.results.added_models import AddedModel, list_clients, read_added, select_newest
from coterie.results.folder import read_about

MODELS, LIST = "models", "models.json"  # the folder, and in it {file of a client: checksum}
FROZEN = "frozen-"  # how the files of frozen parameters begin
WRITERS = 4  # files that are written at once
REMEDY = "run again, or restore it from a copy"
Build = Callable[[], nn.Module]


class Weights(NamedTuple):
    """What the file of a client's model holds."""

    about: dict[str, Any]  # network, options, shape, classes and task
    tensors: dict[str, Tensor]


def filter_plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a network that a file can hold; a table of word vectors is none."""
    return {k: v for k, v in options.items() if isinstance(v, int | float | str | bool)}


def describe_network(model: Model, federation: Federation) -> dict[str, Any]:
    """What it takes to build a network again."""
    return {
        "model": model.name,
        "options": filter_plain(model.options),
        "lacks": [k for k in model.options if k not in filter_plain(model.options)],
        "shape": model.input_shape or federation.input_shape,
        "classes": federation.classes,
        "outputs": federation.target.outputs(federation.classes),
        "task": model.task,
    }


def save_models(
    engine: Engine,
    federation: Federation,
    clients: Sequence[int],
    send: Send,
    when: Moment,
    folder: Path,
) -> None:
    """Every client's own model as a safetensors file of plain parameter names, with what it takes
    to build it again.

    Frozen parameters are the same for every client: they lie beside, once.
    """
    target = folder / MODELS
    later = {entry.file for entry in read_added(target)}  # they stay as they are
    digests = {name: one for name, one in _read_checksums(target).items() if name in later}
    sums: dict[str, str] = {}  # {file of a client: checksum}
    holders: dict[str, str] = {}  # {checksum: the file that was written}
    for a, chunk, views in engine.points(clients, send, when):
        model: Model = engine.model_of(a, "personal")
        about = describe_network(model, federation)
        point = views["personal"]
        with catch_write_errors(folder):
            target.mkdir(exist_ok=True)
        frozen = model.frozen_tensors()
        if frozen:
            path = target / f"{FROZEN}{a}.safetensors"
            about["frozen"] = path.name
            beside = serialize_tensors(
                copy_tensors(frozen), {"coterie": json.dumps({"model": model.name})}
            )
            save_bytes(beside.content, path)
            digests[path.name] = beside.checksum
        own = {n: t for n, t in model.tensors(point).items() if n not in frozen}
        files = [client_file_of(i) for i in chunk]
        # one entry, because a file with several may have them in any order and be another at
        # every run
        settings = {"coterie": json.dumps(about)}

        def save(k: int, own: Any = own, settings: Any = settings, files: Any = files) -> str:
            content, checksum = serialize_tensors(
                copy_tensors({n: t[k] for n, t in own.items()}), settings
            )
            if holders.setdefault(checksum, files[k]) == files[k]:
                save_bytes(content, target / files[k])
            return checksum

        one = all(t.stride(0) == 0 for t in own.values())  # the same memory for all of the chunk
        # what is written and summed holds up no other file
        with ThreadPoolExecutor(WRITERS) as writers:
            found = list(writers.map(save, range(1 if one else len(chunk))))
        sums |= dict(zip(files, found * len(chunk) if one else found, strict=True))
    _rename_files(target, sums, holders)
    digests |= sums
    if digests:
        write_text(target / LIST, json.dumps(dict(sorted(digests.items())), indent=1))


def _rename_files(target: Path, sums: Mapping[str, str], holders: Mapping[str, str]) -> None:
    """Give every file the name of the first client that has its model, whichever was written first,
    and remove what a process that was stopped has left of the others.
    """
    left = dict(holders)
    with catch_write_errors(target):
        for file in sorted(sums):
            holder = left.pop(sums[file], None)
            if holder is None:
                (target / file).unlink(missing_ok=True)
            elif holder != file:
                os.replace(target / holder, target / file)


def client_file_of(number: int) -> str:
    """The name of a client's file, in the folder of the models."""
    return f"client-{number:05d}.safetensors"


def find_free_file(folder: Path) -> str:
    """The name of a file that no later model has yet; one that nothing lists may be left of a
    process that was stopped.
    """
    numbers = itertools.count()
    names = (f"later-{k:05d}.safetensors" for k in numbers)
    return next(name for name in names if not (folder / MODELS / name).exists())


def add_model(folder: Path, file: str, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The file of one more model, which must be new, among those of a run."""
    target = folder / MODELS
    path = target / file
    if path.exists():
        raise BadInput(f"{path} exists already: nothing is written over it")
    known = read_checksums(folder)
    save_tensors(copy_tensors(tensors), path, {"coterie": json.dumps(about)})
    write_text(
        target / LIST, json.dumps(dict(sorted({**known, file: digest(path)}.items())), indent=1)
    )


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as their file wants them."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _read_checksums(target: Path) -> dict[str, str]:
    """{file: checksum} of the models that were written before; nothing where none were."""
    try:
        return dict(json.loads(read_text(target / LIST)))
    except (OSError, ValueError, TypeError):
        return {}


def client_number_of(folder: Path, names: Sequence[str], client: int | str) -> int:
    """The number of a client that is named or numbered."""
    if isinstance(client, str):
        if client not in names:
            raise BadInput(
                f"{folder} has no client '{client}': its clients are "
                f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}"
            )
        client = int(names.index(client))
    if not 0 <= client < len(names):
        raise BadInput(f"{folder} has no client {client}: its clients are 0 to {len(names) - 1}")
    return int(client)


def model_path_of(folder: Path, number: int, known: Mapping[str, str]) -> Path:
    """The file of a client's model: its own, else that of the first client with an equal one."""
    path = folder / MODELS / client_file_of(number)
    checksum = _checksum_of(path, known)
    if path.exists():
        return path
    equal = (path.with_name(name) for name, one in known.items() if one == checksum)
    found = next((other for other in equal if other.exists()), None)
    if found is None:
        raise BadInput(f"{path} is missing: {REMEDY}")
    return found


def read_checksums(folder: Path) -> dict[str, str]:
    """{file of a client: checksum} of the models of a run."""
    if not (folder / MODELS).exists():
        raise BadInput(
            f"{folder / MODELS} does not exist: the run is not finished, or was set to keep no "
            "models"
        )
    known = _read_checksums(folder / MODELS)
    if not known:
        raise BadInput(f"{folder / MODELS / LIST} is missing or damaged: {REMEDY}")
    return known


def _checksum_of(path: Path, known: Mapping[str, str]) -> str:
    """What the list says of a file."""
    if path.name not in known:
        raise BadInput(
            f"{path.parent / LIST} does not list {path.name}, so it is damaged: {REMEDY}"
        )
    return known[path.name]


def _check_file(path: Path, known: Mapping[str, str]) -> None:
    """Refuse a file that is not as it was written."""
    if digest(path) != _checksum_of(path, known):
        raise BadInput(f"{path} is damaged (it is not as it was written): {REMEDY}")


def find_damaged(folder: Path) -> str:
    """The first model of a run that is missing or not as it was written, and why; "" where all are
    whole.
    """
    try:
        known, target = read_checksums(folder), folder / MODELS
        for number in range(len(read_about(folder)["clients"])):
            model_path_of(folder, number, known)
        for entry in read_added(target):
            _checksum_of(target / entry.file, known)
            check_regular_file(target / entry.file)
        for name in known:
            if path_exists(target / name):  # else another file holds an equal model
                _check_file(target / name, known)
        missing = [n for n in known if n.startswith(FROZEN) and not path_exists(target / n)]
    except (BadInput, OSError) as problem:
        return str(problem).partition(f": {REMEDY}")[0]
    return f"{target / missing[0]} is missing" if missing else ""


def read_weights(path: Path, known: dict[str, str]) -> Weights:
    """A client's model as it was written, if its file is whole."""
    _check_file(path, known)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["coterie"])
        tensors = load_file(path)
        if about.get("frozen"):  # the same for every client, and there once
            beside = path.with_name(about["frozen"])
            if not beside.exists():
                raise BadInput(f"{beside} is missing: {REMEDY}")
            _check_file(beside, known)
            tensors |= load_file(beside)
        return Weights(about, tensors)
    except SafetensorError as damage:
        raise BadInput(f"{path} is damaged ({damage}): {REMEDY}") from None


def load_weights(path: Path, weights: Weights, build: Build | None = None) -> nn.Module:
    """A plain module with a client's weights; `build` makes one that is not coterie's own."""
    module = make_module(weights.about, build)
    try:
        missing, odd = module.load_state_dict(weights.tensors, strict=False)
        if odd or set(missing) - getattr(module, "base_names", frozenset()):
            raise RuntimeError(f"it lacks {missing} and has {odd}")
    except RuntimeError as mismatch:
        raise BadInput(f"{path} does not fit the network that `build` makes: {mismatch}") from None
    return module.eval()


def load_model(folder: Path, client: int | str, build: Build | None = None) -> nn.Module:
    """A client's own model as a plain `nn.Module`; `build` makes the module where it is not one of
    coterie's networks.
    """
    trained, came = read_about(folder)["clients"], read_added(folder / MODELS)
    names = list_clients(trained, came)
    number, known = client_number_of(folder, names, client), read_checksums(folder)
    path = newest_path_of(folder, names, select_newest(came), number, known)
    return load_weights(path, read_weights(path, known), build)


def newest_path_of(
    folder: Path,
    names: Sequence[str],
    later: Mapping[str, AddedModel],
    number: int,
    known: Mapping[str, str],  # the run's list of models
) -> Path:
    """The file of a client's newest model."""
    entry = later.get(names[number])
    if entry is None:
        return model_path_of(folder, number, known)
    path = folder / MODELS / entry.file
    if not path.exists():
        raise BadInput(f"{path} is missing: {REMEDY}")
    return path


def make_module(about: Mapping[str, Any], build: Build | None = None) -> nn.Module:
    """The module that a model's file speaks of, with what its method put around the network."""
    net = (build or builder_of(dict(about)))()
    return assemble(net, about["options"].get(AROUND, ""))


def builder_of(about: dict[str, Any]) -> Build:
    """What builds the network that a model's file speaks of."""
    name, lacks = about["model"], ", ".join(about["lacks"])
    module, _, own = name.partition(":")
    if own and module in PLUGINS and name not in registry.NETS:
        registry.add_own_network(name)
    if name not in registry.NETS or lacks:
        why = f"its {lacks} is not in the file" if lacks else "it is a network of your own"
        way = f"give its file with --plugin, as in --plugin {module}.py, or " if own else ""
        raise BadInput(
            f"'{name}' cannot be built from the file alone, because {why}: {way}pass the function "
            "that makes it as build="
        )
    return lambda: registry.build_network(
        name,
        tuple(about["shape"]),
        about.get("outputs") or about["classes"] or 1,
        **{k: v for k, v in about["options"].items() if k != AROUND},
    )
