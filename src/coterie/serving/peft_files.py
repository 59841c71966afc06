"""One client's adapter in the format of peft, which transformers, vLLM and others load beside a
base model; or merged into the base model.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.base_models import find_base
from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.networks.pretrained import ADAPTER, LANGUAGE, PERSONAL, PretrainedNetwork
from coterie.results.personal_models import PersonalModel
from coterie.serving.model_files import CARD

BOTH = "both"  # two adapters in one, whose rank is the sum of theirs
TASK_TYPES = {LANGUAGE: "CAUSAL_LM", "text": "SEQ_CLS"}  # of peft, by the kind of a network
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt")


def write_peft(model: PersonalModel, folder: Path) -> None:
    """adapter_config.json and adapter_model.safetensors."""
    net, kind, base = _open_network(model)
    name = _join_adapters(net)
    config = net.peft_config[name]
    config.task_type, config.base_model_name_or_path = TASK_TYPES.get(kind), base
    inner = folder / "adapter"
    net.save_pretrained(inner, selected_adapters=[name], save_embedding_layers=False)
    for file in (inner if name == ADAPTER else inner / name).glob("adapter_*"):
        shutil.move(file, folder / file.name)
    shutil.rmtree(inner)
    write_text(folder / CARD, json.dumps(model.card, indent=1))


def write_merged(model: PersonalModel, folder: Path) -> None:
    """The base model with the client's adapter inside, as a folder of transformers."""
    net, _, base = _open_network(model)
    whole: Any = copy.deepcopy(net).merge_and_unload()  # merging writes over the base's weights
    whole.save_pretrained(folder)
    for pattern in TOKENIZER_FILES:
        for file in find_base(base).glob(pattern):
            shutil.copy(file, folder / file.name)
    write_text(folder / CARD, json.dumps(model.card, indent=1))


def choose_writer(merge: bool) -> Callable[[PersonalModel, Path], None]:
    """What writes a client's adapter, alone or merged."""
    return write_merged if merge else write_peft


def _open_network(model: PersonalModel) -> tuple[Any, str, str]:
    """The network of peft inside a model, its kind, and its base model."""
    module, options = model.module, model.card["network"]["options"]
    if not isinstance(module, PretrainedNetwork) or not options.get("lora_r"):
        raise BadInput(
            f"the model of '{model.client}' has no adapter: --to peft is for runs of --model "
            "hf:FOLDER with lora_r above 0; use --to safetensors"
        )
    return module.net, module.kind, str(options["base"])


def _join_adapters(net: Any) -> str:
    """The name of the only adapter, or of one that does what two do together."""
    if PERSONAL not in net.peft_config:
        return ADAPTER
    names = [ADAPTER, PERSONAL]
    net.base_model.add_weighted_adapter(names, [1.0, 1.0], BOTH, combination_type="cat")
    return BOTH
