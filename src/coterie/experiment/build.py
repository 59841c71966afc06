"""From options to what an experiment is made of: checked values, data, networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.core.base_models import digest_base
from coterie.core.device import AUTO, device_of
from coterie.core.errors import BadInput, format_value
from coterie.core.files import expand_home, path_exists
from coterie.core.freezing import freeze_builder
from coterie.core.functions import find_function
from coterie.core.guard import check_guard as check_guard
from coterie.core.memory import check_memory
from coterie.core.method import Batch
from coterie.core.model import Model, first_output
from coterie.core.options import Seed, check_table, coerce
from coterie.core.task import TASKS, is_task
from coterie.data.arrays import BLOCK
from coterie.data.client_rows import ClientRows
from coterie.data.dataset import Dataset
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.newcomers import keep_out, select_newcomers
from coterie.data.pipeline import build_federation as build_data
from coterie.data.pipeline import read_data as read_data
from coterie.data.read.catalog import DATASETS, source_of
from coterie.data.read.file_rows import UserData
from coterie.data.read.index_files import is_index_file
from coterie.data.read.user_data import read_user_data as read_own
from coterie.data.target import task_of
from coterie.experiment.config import (
    PYTHON,
    SUPPLIED,
    Experiment,
    check_train,
    data_options_of,
    default_model_of,
    default_partition_name,
    known_options_of,
    options_of,
    parse_networks,
)
from coterie.networks import registry

Given = Federation | UserData | Dataset | None  # data at hand; None: the options say which
# networks of one's own, assigned to clients in turn
Networks = Sequence[Model | Callable[[], torch.nn.Module]] | None


def check_experiment(experiment: Experiment) -> None:
    """Refuse values that mean nothing, before any data are read."""
    for table in (experiment.train, experiment.schedule, experiment.keep, experiment.guard):
        check_table(table)
    coerce(Seed, experiment.seed, "seed", 0)
    for section, known in known_options_of(experiment).items():
        settings = getattr(experiment, section)
        for option, value in settings.items() if isinstance(settings, dict) else ():
            if value is not None and option in known:
                coerce(known[option][0], value, option, known[option][1])
    train, parts = experiment.train, experiment.schedule.parts
    if not train.local_epochs and not train.local_steps:
        raise BadInput("local_epochs = 0: give at least 1, or a number of --local-steps")
    if not parts or len(set(parts)) < len(parts):
        raise BadInput(
            f"parts = {','.join(parts)}: give train, validation, test or some of them, each once"
        )
    check_train(experiment)
    check_guard(experiment.guard)
    device = experiment.engine.get("device", "cpu")
    if experiment.engine.get("compile") == "yes" and device != "cpu":
        raise BadInput(
            f"compile = yes makes machine code of the processor, but device = '{device}': use "
            "compile = auto, trace or no"
        )
    folder = experiment.dataset.get("data_dir")
    if folder and path_exists(expand_home(folder)) and not expand_home(folder).is_dir():
        raise BadInput(
            f"data_dir = '{folder}': this is a file, give the folder that holds the data sets"
        )


def data_settings_of(experiment: Experiment) -> dict[str, Any]:
    """The options of `[dataset]`, those that follow from the network too."""
    settings = dict(experiment.dataset)
    if "tokenizer" not in data_options_of(str(settings["name"])):
        return settings
    return fill_text_settings(settings, str(experiment.model.get("name", "")))


def fill_text_settings(settings: dict[str, Any], networks: str) -> dict[str, Any]:
    """Options of a table whose texts are read by the tokenizer of the network's folder where no
    other is named; a language model's label is the text itself.
    """
    if not settings.get("text"):
        return settings
    specs = map(registry.parse_spec, parse_networks(networks))
    bases = [str(own["base"]) for _, own in specs if "base" in own]
    found = {"tokenizer": bases[0]} if bases and not settings.get("tokenizer") else {}
    if (
        is_task(settings.get("task"))
        and TASKS[settings["task"]].has_tokens
        and "label" not in settings
    ):
        found["label"] = settings["text"]
    return settings | found


def anchor_paths(experiment: Experiment) -> Experiment:
    """The experiment with whole paths, so that it means the same in another folder."""
    data = dict(experiment.dataset)
    if data["name"] not in DATASETS and not data["name"].startswith(PYTHON):
        data["name"] = str(expand_home(data["name"]).absolute())
    if data.get("data_dir"):
        data["data_dir"] = str(expand_home(data["data_dir"]).absolute())
    if data.get("tokenizer"):
        data["tokenizer"] = _anchor_path(data["tokenizer"])
    split = dict(experiment.partition)
    if is_index_file(split.get("name")):
        split["name"] = _anchor_path(split["name"])  # else of the data's folder
    model = dict(experiment.model)
    for spec in parse_networks(str(model.get("name", ""))):
        base = registry.parse_spec(spec)[1].get("base")
        if base:
            whole = spec.replace(str(base), _anchor_path(str(base)), 1)
            model["name"] = model["name"].replace(spec, whole)
    return replace(experiment, dataset=data, partition=split, model=model)


def _anchor_path(name: str) -> str:
    """The whole path of what is there; else a name on the hub or in the folder of data sets."""
    path = expand_home(name)
    return str(path.absolute()) if path_exists(path) else name


def read_shared_data(experiment: Experiment) -> UserData | None:
    """The data of an experiment before they are partitioned, which are those of every seed; None
    where each seed has rows of its own, or makes them when they are asked for.
    """
    name, source = str(experiment.dataset["name"]), source_of(experiment.dataset["name"])
    if name.startswith(PYTHON) or source.drawn or source.lazily:
        return None
    known = data_options_of(name)
    options = {
        k: v for k, v in data_settings_of(experiment).items() if k in known and v is not None
    }
    return read_data(name, experiment.dataset.get("data_dir") or None, options)


def federation_of(
    experiment: Experiment, given: Given = None, earlier: Federation | None = None
) -> Federation:
    """The data of an experiment; what another seed has `earlier` made of the same given data is
    taken where it is the same.
    """
    if isinstance(given, Federation):
        return _keep_out_newcomers(given, experiment)
    settings, split = data_settings_of(experiment), dict(experiment.partition)
    name, folder, seed = (
        settings.pop("name"),
        settings.pop("data_dir", "") or None,
        settings.pop("seed", None),
    )
    seed = experiment.seed if seed is None else seed
    if given is None and name.startswith(PYTHON):
        raise BadInput(
            f"the data '{name}' were given as Python objects: give them again from Python, as data="
        )
    own = data_options_of(name)
    extra = {k: v for k, v in settings.items() if k in own and v is not None}
    extra = extra if given is None else {}  # data at hand were read with them already
    if source_of(name).drawn:
        extra["seed"] = seed
    common = {k: v for k, v in settings.items() if k == "num_clients" or k not in own}
    kind = split.pop("name", "") or None
    data = name if given is None else given
    return build_data(
        data,
        partition=kind,
        seed=seed,
        folder=folder,
        options=split,
        data_options=extra,
        earlier=earlier,
        **common,
    )


def _keep_out_newcomers(given: Federation, experiment: Experiment) -> Federation:
    """A federation that was partitioned already, with the newcomers that the options ask for."""
    wanted = float(experiment.dataset.get("newcomers") or 0)
    if given.newcomers is not None or not wanted:
        return given
    seed = experiment.dataset.get("seed")
    numbers = select_newcomers(
        wanted, given.clients, experiment.seed if seed is None else int(seed)
    )
    return keep_out(given, numbers)


def user_data_of(experiment: Experiment) -> UserData | None:
    """The file or folder of one's own of an experiment, not partitioned yet; else nothing."""
    name = str(experiment.dataset["name"])
    if name in DATASETS or name.startswith(PYTHON):
        return None
    known = data_options_of(name)
    return read_own(name, **{k: v for k, v in data_settings_of(experiment).items() if k in known})


def check_federation(federation: Federation) -> None:
    """Refuse a federation made by hand that no engine could run."""
    parts = [ClientRows.of(part_of(federation, part)) for part in PARTS]
    per_client: dict[str, Any] = {
        "validation": federation.validation,
        "select": part_of(federation, "select"),
        "test": federation.test,
        "groups": federation.groups,
        "names": federation.names,
    }
    for option, column in per_client.items():
        if len(column) != federation.clients:
            raise BadInput(
                f"the federation has {federation.clients} clients in train, but {len(column)} in "
                f"{option}"
            )
    if not federation.sizes.all():
        client = int(federation.sizes.argmin())
        raise BadInput(
            f"client {client} ('{federation.names[client]}') of the federation has no training rows"
        )
    every = np.concatenate([part.concatenate() for part in parts])
    n, y = len(federation.x), federation.y
    if len(y) != n or every.min() < 0 or every.max() >= n:
        raise BadInput(
            f"the federation has {n:,} inputs, {len(y):,} labels and rows {every.min():,} to "
            f"{every.max():,}: give 0 to {n - 1:,}"
        )
    blocks = federation.x.split(BLOCK) if federation.x.is_floating_point() else ()
    # a sum that is finite has told, in a quarter of the time
    if not all(bool(rows.sum().isfinite() or rows.isfinite().all()) for rows in blocks):
        raise BadInput(
            "the federation has NaN or infinity among its inputs: fill or remove those rows"
        )
    if federation.classes and (y.min() < 0 or y.max() >= federation.classes):
        last = federation.classes - 1
        raise BadInput(
            f"the federation has labels {int(y.min())} to {int(y.max())}, but "
            f"{federation.classes} classes: give 0 to {last}"
        )


def models_of(
    experiment: Experiment, federation: Federation, given: Networks = None
) -> list[Model]:
    """The networks of an experiment, in its precision; several names, separated by commas, are
    assigned to clients in turn.
    """
    models = _build_networks(experiment, federation, given)
    for model in models if federation.target.loss else ():
        _check_loss(model, federation)
    if experiment.engine.get("precision", "float32") == "float32":
        return models
    return [_to_bfloat16(model, federation) for model in models]


def _check_loss(model: Model, federation: Federation) -> None:
    """Refuse a loss of one's own that does not say one number per row."""
    name, y = federation.target.loss, federation.y[:2]
    find_function(name, "loss")
    try:
        found = model.goal.losses(torch.zeros(len(y), model.outputs), y)
    except Exception as problem:  # whatever a function of the user's raises
        raise BadInput(
            f"loss = '{name}' raises {type(problem).__name__} ({problem}) with outputs "
            f"{[len(y), model.outputs]} and labels {list(y.shape)}"
        ) from problem
    if not isinstance(found, torch.Tensor) or found.shape != y.shape[:1]:
        given = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise BadInput(
            f"loss = '{name}' gives {given} for {len(y)} rows: give a tensor of one loss per row"
        )


def _to_bfloat16(model: Model, federation: Federation) -> Model:
    """The network with training passes in bfloat16, once it has been seen to make a difference."""
    lower = model.in_precision(torch.bfloat16)
    rows = federation.x[:2]
    rows = rows.to(torch.get_default_dtype()) if rows.is_floating_point() else rows
    place = torch.arange(len(rows))
    batch = Batch(rows, federation.y[:2], torch.ones(len(rows)), place, torch.tensor(0))
    with torch.no_grad():
        point = model.start(0)
        same = torch.equal(model.forward(point, batch)[0], lower.forward(point, batch)[0])
    if same:
        raise BadInput(
            f"precision = bfloat16 changes nothing in {model.name}, which multiplies no matrices "
            "of 32-bit numbers: leave it out"
        )
    return lower


def _build_networks(
    experiment: Experiment, federation: Federation, given: Networks = None
) -> list[Model]:
    settings = dict(experiment.model)
    name, freeze = settings.pop("name", ""), settings.pop("freeze", "")
    if given:
        return [_wrap_user_model(make, federation, freeze) for make in given]
    if name.startswith(PYTHON):
        raise BadInput(
            f"the network '{name}' was given as a Python object: give it again from Python, as "
            "model="
        )
    if not name:
        name, options = default_model_of(federation.name, federation.words > 0)
        settings = options | settings
    shape, outputs = federation.input_shape, federation.target.outputs(federation.classes)
    models = []
    for net, own in map(registry.parse_spec, name.split(",")):
        known = options_of("model", net)
        options = {k: d for k, (_, d) in known.items() if d is not None} | {
            k: v for k, v in (settings | own).items() if k in known
        }
        entry = registry.NETS[net]
        if entry.wants_table and federation.table is not None:
            options["table"] = federation.table
        _check_text_network(net, federation)
        if entry.wants_words and federation.words:
            options["words"] = federation.words
        if entry.wants_base:
            options |= {"task": federation.target.task, "digest": digest_base(options["base"])}
        binary = entry.one_logit and federation.classes == 2
        make: Callable[[], torch.nn.Module] = partial(
            registry.build_network, net, shape, outputs, **options
        )
        check_size(make, net, experiment)
        make = freeze_builder(make, freeze, net) if freeze else make
        model = Model(make, task_of(federation.target, binary), net, shape, options)
        model.check(shape, federation.x.dtype)
        models.append(model)
    return models


def _check_text_network(net: str, federation: Federation) -> None:
    """Refuse a network of numbers for texts, and the other way round."""
    takes = [name for name, entry in registry.NETS.items() if entry.wants_words]
    if federation.words and net not in takes:
        raise BadInput(
            f"net '{net}' takes numbers, but '{federation.name}' has texts: use {', '.join(takes)}"
        )
    if net in takes and not federation.words and not registry.NETS[net].wants_images:
        raise BadInput(
            f"net '{net}' reads texts, but '{federation.name}' has none: name their column with "
            "--text, or leave the network out"
        )


def check_size(make: Callable[[], torch.nn.Module], name: str, experiment: Experiment) -> None:
    """Refuse a network that does not fit into memory as often as a chunk of clients holds it."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # shapes only: no memory is used
        parameters = list(make().parameters())
    size = sum(p.numel() for p in parameters if p.requires_grad)
    frozen = sum(p.numel() for p in parameters) - size
    engine = experiment.engine
    chunk = 1 if engine.get("path") == "sequential" else max(1, engine.get("width", 0))
    # what is frozen once; as it begins and as it is measured, then every client's own and its
    # gradient
    check_memory(
        4 * frozen + 4 * size * (2 + 2 * chunk),
        f"the {size:,} parameters of {name} for {chunk:,} client{'s' * (chunk > 1)} per chunk",
        "choose a smaller network" + (" or a smaller --width" if chunk > 1 else ""),
    )


def network_name_of(make: Callable[[], torch.nn.Module]) -> str:
    """What a user's network is called."""
    name = str(getattr(make, "__name__", "model"))
    return "model" if name == "<lambda>" else name


def _wrap_user_model(
    make: Model | Callable[[], torch.nn.Module], federation: Federation, freeze: str = ""
) -> Model:
    """A user's network, once it has been seen to take these rows and to tell these classes
    apart.
    """
    build, name = (
        (make.build, make.name) if isinstance(make, Model) else (make, network_name_of(make))
    )
    if freeze and isinstance(make, Model):
        raise BadInput(
            f"freeze = '{freeze}' for {name}, which is a Model already: give the function that "
            "makes the network, or set requires_grad=False in it"
        )
    build = freeze_builder(build, freeze, name) if freeze else build
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            rows = federation.x[:2]
            rows = rows.to(torch.get_default_dtype()) if rows.is_floating_point() else rows
            made: object = build()
            if not isinstance(made, torch.nn.Module):
                raise BadInput(
                    f"{name} gives {format_value(made)}: give a function that makes a "
                    "torch.nn.Module"
                )
            out = first_output(made.eval()(rows))
    except (RuntimeError, IndexError, ValueError) as error:
        raise BadInput(
            f"{name} cannot take rows of shape {list(federation.input_shape)}: {error}"
        ) from error
    wanted: int = federation.target.outputs(federation.classes)
    if not TASKS[federation.target.task].has_label:
        wanted = federation.y[0].numel()
    outputs = out.shape[1] if out.ndim == 2 else 0
    binary = outputs == 1 and federation.classes == 2
    if outputs < wanted and not binary:
        what = f"{federation.classes} classes" if federation.classes else f"{wanted} targets"
        raise BadInput(
            f"{name} gives outputs of shape {list(out.shape[1:])} a row, but the data have "
            f"{what}: give [{wanted}]"
        )
    own = federation.target.loss
    if (
        isinstance(make, Model)
        and not own
        and (make.task == federation.target.task or _has_plain_target(federation))
    ):
        return make
    model = Model(build, task_of(federation.target, binary), name, federation.input_shape)
    model.check(federation.input_shape, federation.x.dtype)
    return model


def _has_plain_target(federation: Federation) -> bool:
    """Whether a model that says no task of its own may be taken as it is."""
    target = federation.target
    return TASKS[target.task].is_plain and not target.weights


def fill_defaults(
    experiment: Experiment, federation: Federation, models: list[Model]
) -> Experiment:
    """The experiment with every default written out, so that a later version's defaults do not
    change it.
    """
    split, model = dict(experiment.partition), dict(experiment.model)
    if federation.preparation and federation.preparation.target:
        task = federation.preparation.target.task
        experiment = replace(experiment, dataset=experiment.dataset | {"task": task})
    if not split.get("name"):
        split["name"] = default_partition_name(experiment.dataset)
    if not model.get("name"):
        model = (
            {"name": ",".join(m.name for m in models)}
            | {k: v for m in models for k, v in m.options.items() if k not in SUPPLIED}
            | model
        )
    engine = dict(experiment.engine)
    if engine.get("device") == AUTO:
        engine["device"] = str(device_of(AUTO))
    experiment = replace(experiment, partition=split, model=model, engine=engine)
    came = len(federation.newcomers.names) if federation.newcomers else 0
    known = {
        section: {k: default for k, (_, default) in settings.items()}
        for section, settings in known_options_of(experiment).items()
    }
    if not model.get("freeze"):
        known["model"].pop("freeze")  # as if there were no such option
    return replace(
        experiment,
        dataset=known["dataset"] | experiment.dataset | {"num_clients": federation.clients + came},
        partition=known["partition"] | split,
        model=known["model"] | model,
        options=known["options"] | experiment.options,
        engine=known["engine"] | experiment.engine,
    )
