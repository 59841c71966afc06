"""Every client's own model on disk, and back as a plain module."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.core.files import digest, save_listed, save_tensors, write, writing
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.base import Engine, Moment, Send
from coterie.networks import nets
from coterie.results.folder import read_about
from coterie.results.later import Later, all_names, newest, read_later

MODELS, LIST = "models", "models.json"  # the folder, and in it {file: checksum}
WRITERS = 4  # files that are written at once
WAY_OUT = "run again, or restore it from a copy"
Build = Callable[[], nn.Module]


class Weights(NamedTuple):
    """What the file of a client's model holds."""

    about: dict[str, Any]  # network, options, shape, classes, task and client
    tensors: dict[str, Tensor]


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a network that a file can hold; a table of word vectors is none."""
    return {k: v for k, v in options.items() if isinstance(v, int | float | str | bool)}


def network_words(model: Model, federation: Federation) -> dict[str, Any]:
    """What it takes to build a network again."""
    return {
        "model": model.name,
        "options": plain_options(model.options),
        "lacks": [k for k in model.options if k not in plain_options(model.options)],
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
    digests: dict[str, str] = _listed(target)
    for a, chunk, views in engine.points(clients, send, when):
        model: Model = engine.model_of(a, "personal")
        about = network_words(model, federation)
        point = views["personal"]
        with writing(folder):
            target.mkdir(exist_ok=True)
        frozen = model.frozen_tensors()
        if frozen:
            path = target / f"frozen-{a}.safetensors"
            about["frozen"] = path.name
            words = {"coterie": json.dumps({"model": model.name})}
            digests[path.name] = save_listed(apart(frozen), path, words)
        own = {n: t for n, t in model.tensors(point).items() if n not in frozen}

        def save(k: int, own: Any = own, about: Any = about, chunk: Any = chunk) -> tuple[str, str]:
            tensors = apart({n: t[k] for n, t in own.items()})
            # one entry, because a file with several may have them in any order and be another at
            # every run
            words = json.dumps(about | {"client": federation.names[chunk[k]]})
            path = target / f"client-{chunk[k]:05d}.safetensors"
            return path.name, save_listed(tensors, path, {"coterie": words})

        # what is written and summed holds up no other file
        with ThreadPoolExecutor(WRITERS) as writers:
            digests.update(writers.map(save, range(len(chunk))))
    if digests:
        write(target / LIST, json.dumps(dict(sorted(digests.items())), indent=1))


def free_file(folder: Path) -> str:
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
    known = listed(folder)
    save_tensors(apart(tensors), path, {"coterie": json.dumps(about)})
    write(target / LIST, json.dumps(dict(sorted({**known, file: digest(path)}.items())), indent=1))


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as their file wants them."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _listed(target: Path) -> dict[str, str]:
    """{file: checksum} of the models that were written before; nothing where none were."""
    try:
        return dict(json.loads((target / LIST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def client_number(folder: Path, names: Sequence[str], client: int | str) -> int:
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


def model_path(folder: Path, number: int) -> Path:
    """The file of a client's model, if there is one."""
    path = folder / MODELS / f"client-{number:05d}.safetensors"
    if not path.exists():
        raise BadInput(
            f"{path} does not exist: the run is not finished, or was told to keep no models"
        )
    return path


def listed(folder: Path) -> dict[str, str]:
    """{file: checksum} of the models of a run."""
    known = _listed(folder / MODELS)
    if not known:
        raise BadInput(f"{folder / MODELS / LIST} is missing or damaged: {WAY_OUT}")
    return known


def _check(path: Path, known: dict[str, str]) -> None:
    """Refuse a file that is not as it was written."""
    if path.name not in known:
        raise BadInput(
            f"{path.parent / LIST} does not list {path.name}, so it is damaged: {WAY_OUT}"
        )
    if digest(path) != known[path.name]:
        raise BadInput(f"{path} is damaged (it is not as it was written): {WAY_OUT}")


def read_weights(path: Path, known: dict[str, str]) -> Weights:
    """A client's model as it was written, if its file is whole."""
    _check(path, known)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["coterie"])
        tensors = load_file(path)
        if about.get("frozen"):  # the same for every client, and there once
            beside = path.with_name(about["frozen"])
            if not beside.exists():
                raise BadInput(f"{beside} is missing: {WAY_OUT}")
            _check(beside, known)
            tensors |= load_file(beside)
        return Weights(about, tensors)
    except SafetensorError as damage:
        raise BadInput(f"{path} is damaged ({damage}): {WAY_OUT}") from None


def filled(path: Path, weights: Weights, build: Build | None = None) -> nn.Module:
    """A plain module with a client's weights; `build` makes one that is not coterie's own."""
    module = (build or builder(weights.about))()
    try:
        module.load_state_dict(weights.tensors)
    except RuntimeError as mismatch:
        raise BadInput(f"{path} does not fit the network that `build` makes: {mismatch}") from None
    return module.eval()


def load_model(folder: Path, client: int | str, build: Build | None = None) -> nn.Module:
    """A client's own model as a plain `nn.Module`; `build` makes the module where it is not one of
    coterie's networks.
    """
    trained, came = read_about(folder)["clients"], read_later(folder / MODELS)
    names = all_names(trained, came)
    path = newest_path(folder, names, newest(came), client_number(folder, names, client))
    return filled(path, read_weights(path, listed(folder)), build)


def newest_path(
    folder: Path, names: Sequence[str], later: Mapping[str, Later], number: int
) -> Path:
    """The file of a client's newest model."""
    entry = later.get(names[number])
    if entry is None:
        return model_path(folder, number)
    path = folder / MODELS / entry.file
    if not path.exists():
        raise BadInput(f"{path} is missing: {WAY_OUT}")
    return path


def builder(about: dict[str, Any]) -> Build:
    """What builds the network that a model's file speaks of."""
    name, lacks = about["model"], ", ".join(about["lacks"])
    if name not in nets.NETS or lacks:
        why = f"its {lacks} is not in the file" if lacks else "it is a network of your own"
        raise BadInput(
            f"'{name}' cannot be built from the file alone, because {why}: pass the function that "
            "makes it as build="
        )
    return lambda: nets.build(
        name,
        tuple(about["shape"]),
        about.get("outputs") or about["classes"] or 1,
        **about["options"],
    )
