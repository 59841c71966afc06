"""Networks of the transformers library from a folder: the backbone frozen, and in memory once
however many networks are made of it; adapters of peft, and a new head, train.

The extra packages are imported when such a network is asked for.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.base_models import digest_base, find_base
from coterie.core.errors import BadInput
from coterie.core.options import Range
from coterie.core.task import find_task
from coterie.networks.blocks import Shape, format_shape

LANGUAGE = "language"  # the kind of a network whose outputs are next tokens
ADAPTER, PERSONAL = "default", "personal"  # what peft calls the first adapter, and the second
Rank = Annotated[int, Range(0, 4096)]
PER_TOKEN, PER_PAIR = "per token", "per pair"  # how attention is told what is padding


class Base(NamedTuple):
    """A pretrained network, as it was loaded."""

    module: nn.Module
    heads: list[str]  # layers on top of the backbone
    fresh: bool  # whether the folder has no weights of them


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the libraries' remarks about heads that are not trained yet and the like."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _open_config(folder: Path, outputs: int, kind: str) -> Any:
    """The config, with eager attention, which can be stacked over clients, and without dropout
    inside attention, which is drawn outside of modules."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    for key, value in config.to_dict().items():
        if re.search(r"att.*drop|drop.*att|attn.*drop", key) and isinstance(value, float):
            setattr(config, key, 0.0)
    if kind != LANGUAGE:
        config.num_labels = outputs
    words = getattr(config, "vocab_size", None)
    if words:
        known = (config.pad_token_id, getattr(config, "eos_token_id", None), 0)
        config.pad_token_id = next(k for k in known if isinstance(k, int) and 0 <= k < words)
    return config


@lru_cache(4)
def _load_base(folder: str, checksum: str, kind: str, outputs: int) -> Base:
    """A pretrained network, every parameter frozen; checksum: of its files, as they are now."""
    import transformers

    maker = {
        LANGUAGE: transformers.AutoModelForCausalLM,
        "text": transformers.AutoModelForSequenceClassification,
        "image": transformers.AutoModelForImageClassification,
    }[kind]
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), _quietly():
            config = _open_config(Path(folder), outputs, kind)
            torch.manual_seed(0)
            module, info = maker.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (ValueError, OSError, RuntimeError) as problem:
        why = " ".join(str(problem).split())[:200]
        raise BadInput(f"{folder} cannot be read as a network for {kind}: {why}") from None
    module.requires_grad_(False).eval()
    _stop_hidden_dropout(module)
    _replace_activations(module)
    prefix = module.base_model_prefix
    heads = [
        name
        for name, part in module.named_children()
        if name != prefix and next(part.parameters(), None) is not None
    ]
    changed = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
    if kind == LANGUAGE:
        _check_causal(module, folder)
    return Base(module, heads, any(key.partition(".")[0] in heads for key in changed))


def _stop_hidden_dropout(module: nn.Module) -> None:
    """Switch off the dropout that layers draw by functions, which would not be reproducible; that
    of modules stays."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)


def _replace_activations(module: nn.Module) -> None:
    """Bloom's activation by torch's own: the same formula, which torch.func can differentiate."""
    from transformers.models.bloom.modeling_bloom import BloomMLP

    for part in module.modules():
        if isinstance(part, BloomMLP):
            part.gelu_impl = nn.GELU("tanh")  # type: ignore[assignment]


def _check_causal(module: nn.Module, folder: str) -> None:
    """Refuse a network whose outputs know the words to come."""
    with torch.device("cpu"), torch.no_grad():
        ids = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0]])
        mask = torch.ones_like(ids)
        first, second = module(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :3]
    if not torch.allclose(first, second, atol=1e-5):
        raise BadInput(
            f"{folder} is no causal language model: what it says of a word depends on those that "
            "follow; use --task classes, or a model such as GPT-2"
        )


def hf(
    input_shape: Shape,
    classes: int,
    base: str = "",
    lora_r: Rank = 8,
    lora_alpha: Annotated[float, Range(0, 1e6, low_open=True)] = 16.0,
    lora_dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.0,
    target_modules: str = "",
    adapters: Annotated[int, Range(1, 2)] = 1,
    task: str | None = None,
    words: int | None = None,
    digest: str | None = None,
) -> nn.Module:
    """A network of the transformers library, frozen, with LoRA adapters by peft.

    It is written hf:FOLDER, with the folder of its config, weights and tokenizer. Rows are numbers
    of tokens, -1 where a text is over, or images. Of classes the layers above the backbone train
    too.

    base: folder of the pretrained network, or its name on the hub; written after hf:.
    lora_r: rank of an adapter; 0: none, and the head alone trains.
    lora_alpha: an adapter's output is scaled by lora_alpha / lora_r.
    lora_dropout: dropout before an adapter.
    target_modules: layers with adapters, separated by "+"; empty: peft's choice for the
        architecture, else all dense layers.
    adapters: 2: beside the adapter one more, called "personal", for methods that keep it at home.
    """
    if not base:
        raise BadInput("net 'hf' is a folder of transformers: write --model hf:FOLDER")
    folder, now = find_base(base), digest_base(base)
    if digest and digest != now:
        raise BadInput(
            f"{folder} is not the network that was trained on (checksum {now[:12]}, it was "
            f"{digest[:12]}): restore its files"
        )
    kind = "image" if len(input_shape) == 3 else "text"
    kind = LANGUAGE if find_task(task or "").has_tokens else kind
    found = _load_base(str(folder), now, kind, 0 if kind == LANGUAGE else classes)
    _check_inputs(found.module, kind, input_shape, words)
    mask = "" if kind == "image" else _choose_mask(found.module, folder, kind, input_shape[0])
    shared = {id(p): p for p in found.module.parameters()}
    module = copy.deepcopy(found.module, dict(shared))
    heads = [] if kind == LANGUAGE else found.heads
    if lora_r:
        module = _add_adapters(
            module, heads, lora_r, lora_alpha, lora_dropout, target_modules, adapters
        )
    elif kind == LANGUAGE or lora_dropout or target_modules or adapters > 1:
        raise BadInput("lora_r = 0 leaves no adapter: only the head of a classifier trains then")
    trained = _free_heads(module, heads, bool(lora_r))
    for part in trained if found.fresh else ():
        for layer in part.modules():
            found.module._init_weights(layer)  # type: ignore[operator]  # from torch's generator
    wrapped = PretrainedNetwork(module, kind, mask)
    named = wrapped.named_parameters(remove_duplicate=False)
    wrapped.base_names = frozenset(name for name, p in named if id(p) in shared)
    return wrapped


def _add_adapters(
    module: nn.Module,
    heads: list[str],
    lora_r: int,
    lora_alpha: float,
    lora_dropout: float,
    target_modules: str,
    adapters: int,
) -> nn.Module:
    """The network with adapters inside."""
    from peft import LoraConfig, PeftModel
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    targets = [name for name in target_modules.replace(",", "+").split("+") if name]
    known = getattr(module.config, "model_type", "") in USUAL
    config = LoraConfig(
        r=lora_r,
        lora_alpha=int(lora_alpha) if lora_alpha == int(lora_alpha) else lora_alpha,  # type: ignore[arg-type]
        lora_dropout=lora_dropout,
        target_modules=targets or (None if known else "all-linear"),
        exclude_modules=heads or None,
        modules_to_save=heads or None,
    )
    try:
        with torch.device("cpu"), _quietly():
            made: Any = PeftModel(module, config, ADAPTER)
            if adapters > 1:
                more = copy.copy(config)
                more.modules_to_save = None
                made.add_adapter(PERSONAL, more)
                made.base_model.set_adapter([ADAPTER, PERSONAL])
    except ValueError as problem:
        why = " ".join(str(problem).split())[:160]
        layers = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        raise BadInput(
            f"target_modules = '{target_modules}': {why}; layers are called, for instance, "
            f"{', '.join(dict.fromkeys(n.rpartition('.')[2] for n in layers)) or 'c_attn'}"
        ) from None
    adapted: nn.Module = made
    return adapted


def _free_heads(module: nn.Module, heads: list[str], wrapped: bool) -> list[nn.Module]:
    """The layers on top, with parameters of their own that train."""
    if wrapped:
        from peft.utils import ModulesToSaveWrapper

        kept = [m for m in module.modules() if isinstance(m, ModulesToSaveWrapper)]
        parts = [m.modules_to_save[ADAPTER] for m in kept]
    else:
        for name in heads:
            setattr(module, name, copy.deepcopy(module.get_submodule(name)))
        parts = [module.get_submodule(name) for name in heads]
    for part in parts:
        part.requires_grad_(True)
    return parts


def _check_inputs(module: nn.Module, kind: str, shape: Shape, words: int | None) -> None:
    """Refuse rows that the network cannot read."""
    config: Any = module.config
    if kind == "image":
        channels = getattr(config, "num_channels", shape[0])
        if channels != shape[0]:
            raise BadInput(
                f"net 'hf' takes images of {channels} channels, but the input is "
                f"{format_shape(shape)}: give --channels {channels}"
            )
        return
    if len(shape) != 1:
        raise BadInput(f"net 'hf' takes texts or images, but the input is {format_shape(shape)}")
    longest = getattr(config, "max_position_embeddings", None) or shape[0]
    if shape[0] > longest:
        raise BadInput(
            f"tokens = {shape[0]}, but this network reads at most {longest}: lower --tokens"
        )
    if words and words > module.get_input_embeddings().num_embeddings:  # type: ignore[operator]
        raise BadInput(
            f"texts have {words:,} different tokens, more than the network knows: use the "
            "tokenizer of its folder (--tokenizer)"
        )


class PretrainedNetwork(nn.Module):
    """A network of transformers that takes rows alone: numbers of tokens, -1 where a text is over,
    or images, which are brought to its size."""

    base_names: frozenset[str] = frozenset()  # parameters that the folder holds
    stacks = True  # whether texts of many clients are generated in one pass, as far as is known

    def __init__(self, net: nn.Module, kind: str, mask: str = "") -> None:
        super().__init__()
        self.net, self.kind, self.mask = net, kind, mask
        config: Any = net.config
        self.pad = getattr(config, "pad_token_id", None) or 0
        size = getattr(config, "image_size", None) if kind == "image" else None
        self.size = (size, size) if isinstance(size, int) else size

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor
        if self.kind == "image":
            if self.size is not None and tuple(x.shape[-2:]) != tuple(self.size):
                x = F.interpolate(x, size=tuple(self.size), mode="bilinear")
            logits = self.net(pixel_values=x).logits
            return logits
        x = x.long()
        real = x >= 0
        logits = _read_texts(self.net, torch.where(real, x, self.pad), real, self.mask)
        return logits * real.unsqueeze(-1).to(logits.dtype) if self.kind == LANGUAGE else logits


def _read_texts(net: Any, ids: Tensor, real: Tensor, mask: str) -> Tensor:
    hidden = real.long() if mask == PER_TOKEN else build_mask(real)
    cache = {"use_cache": False} if _is_decoder(net.config) else {}
    logits: Tensor = net(input_ids=ids, attention_mask=hidden, **cache).logits
    return logits


def _is_decoder(config: Any) -> bool:
    """Whether words see only those before them, so that padding at the end changes nothing."""
    from transformers.models.auto import modeling_auto as known

    causal = config.model_type in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    both = config.model_type in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return bool(getattr(config, "is_decoder", False)) or (causal and not both)


def build_mask(real: Tensor) -> Tensor:
    """What is added to attention [B, 1, tokens, tokens]: nothing, and the lowest number where a
    token must not look, which is at padding. A place that could look nowhere looks at itself.
    """
    places = torch.arange(real.shape[-1], device=real.device)
    seen = real[:, None, :] | (places[:, None] == places)
    lowest = torch.finfo(torch.get_default_dtype()).min
    added = torch.where(seen, 0.0, lowest).to(torch.get_default_dtype())
    return added[:, None]


class Trial(NamedTuple):
    """Two texts, the second shorter and padded."""

    ids: Tensor  # [2, tokens]
    real: Tensor  # [2, tokens]
    sizes: tuple[int, int]


def _write_trial(net: Any, length: int) -> Trial:
    """Texts short enough to be read at once, long enough to leave a window of attention."""
    config = net.config
    windows = [
        value
        for key, value in config.to_dict().items()
        if re.search("window|local_attention", key) and isinstance(value, int) and value > 1
    ]
    window = min(windows, default=2 * length)
    length = min(length, window + 4 if length > window // 2 else 12)
    marks = (config.pad_token_id, getattr(config, "eos_token_id", None))
    known = min(net.get_input_embeddings().num_embeddings, 99)
    words = [k for k in range(known) if k not in marks] or [0]
    row = torch.tensor([words[k % len(words)] for k in range(length)])
    sizes = (length, length - length // 2)
    real = torch.arange(length) < torch.tensor(sizes)[:, None]
    return Trial(torch.where(real, row, config.pad_token_id), real, sizes)


@lru_cache(16)
def _choose_mask(net: nn.Module, folder: Path, kind: str, length: int) -> str:
    """The mask with which a padded batch gives what each of its texts gives alone.

    Networks differ: some take the mask of transformers alone, and make of it windows or distances;
    of others that mask cannot be stacked over clients. No attribute says which.
    """
    whys = []
    both = (PER_PAIR, PER_TOKEN)
    with torch.device("cpu"), torch.no_grad():
        trial = _write_trial(net, length)
        for mask in both[::-1] if _is_decoder(net.config) else both:
            try:
                apart = _measure_padding(net, trial, kind, mask)
            except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as problem:
                whys.append(" ".join(str(problem).split())[:120])
                continue
            if apart < 2e-4:
                return mask
            whys.append("padding changes what it says of a text")
    raise BadInput(f"{folder} cannot be used as a network for {kind}: {whys[0]}")


def _measure_padding(net: Any, trial: Trial, kind: str, mask: str) -> float:
    """How far the outputs of padded texts are from those of each alone, relative to the largest."""
    together = _read_texts(net, trial.ids, trial.real, mask)
    alone = [
        net(input_ids=ids[None, :size]).logits[0]
        for ids, size in zip(trial.ids, trial.sizes, strict=True)
    ]
    kept = [
        out[: len(one)] if kind == LANGUAGE else out
        for out, one in zip(together, alone, strict=True)
    ]
    apart = max((a - b).abs().max() for a, b in zip(kept, alone, strict=True))
    return float(apart / max(out.abs().max() for out in alone).clamp(min=1e-30))
