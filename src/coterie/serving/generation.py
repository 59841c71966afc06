"""Texts that clients' own language models go on with, many clients in one forward pass.

The backbone is there once; adapters of the clients of a group are gathered, and every step runs all
rows together with their keys and values kept. A row ends by itself; others go on without it. Draws
are those of the request's seed, whoever else is in the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from coterie.core.errors import BadInput, format_value
from coterie.networks.pretrained import LANGUAGE, PretrainedNetwork

MAX_TOKENS = 4096  # that one request may ask for


class Sampling(NamedTuple):
    """How the next token is chosen."""

    max_tokens: int = 64
    temperature: float = 1.0  # 0: always the likeliest
    top_k: int = 0  # only so many of the likeliest; 0: all
    top_p: float = 1.0  # only the likeliest that have this probability together
    seed: int = 0


LIMITS: dict[str, tuple[type, float, float]] = {
    "max_tokens": (int, 1, MAX_TOKENS),
    "temperature": (float, 0, 100),
    "top_k": (int, 0, 10**6),
    "top_p": (float, 1e-6, 1),
    "seed": (int, 0, 2**63 - 1),
}


def read_sampling(words: dict[str, Any]) -> Sampling:
    """The options of a request, each of its type and range."""
    found: dict[str, Any] = {}
    for name, value in words.items():
        kind, low, high = LIMITS[name]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
            raise BadInput(f"{name} is {format_value(value)}: give {low:g} to {high:g}")
        found[name] = kind(value)
    return Sampling(**found)


class Piece(NamedTuple):
    """What one step adds to one row."""

    row: int
    token: int
    last: str = ""  # why the row ends with it: "stop" or "length"


class Tokens:
    """The tokenizer of a run, for prompts and for what is generated."""

    def __init__(self, written: str, ends: set[int]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(written)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.ends = ends

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt; one that ends a text is left out, as the text goes on."""
        ids: list[int] = self._tokenizer.encode(prompt).ids
        while ids and ids[-1] in self.ends:
            ids.pop()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(list(ids)))


@lru_cache(4)
def open_tokens(written: str, ends: frozenset[int]) -> Tokens:
    """The same, once for each tokenizer."""
    return Tokens(written, set(ends))


def ends_of(network: PretrainedNetwork) -> frozenset[int]:
    """The tokens that end a text."""
    config: Any = network.net.config
    found = getattr(config, "eos_token_id", None)
    return frozenset(found if isinstance(found, list) else [] if found is None else [found])


def check_prompt(network: PretrainedNetwork, ids: Sequence[int], how: Sampling) -> None:
    """Refuse what the network cannot go on with."""
    config: Any = network.net.config
    longest = getattr(config, "max_position_embeddings", None) or MAX_TOKENS
    if not ids:
        raise BadInput("the prompt has no token: write at least a word")
    if len(ids) + how.max_tokens > longest:
        raise BadInput(
            f"the prompt has {len(ids):,} tokens, with max_tokens = {how.max_tokens:,} more than "
            f"the {longest:,} that this network reads"
        )


def check_language(network: Any, client: str) -> PretrainedNetwork:
    """The network, if it is a language model."""
    if not isinstance(network, PretrainedNetwork) or network.kind != LANGUAGE:
        raise BadInput(f"the model of '{client}' is no language model: use /predict")
    return network


def generate(
    network: PretrainedNetwork,
    adapters: dict[str, Tensor],  # [rows, ...] what each row's client has of its own
    prompts: Sequence[Sequence[int]],
    how: Sequence[Sampling],
) -> Iterator[list[Piece]]:
    """The next token of every row that goes on, step by step."""
    draws = [np.random.default_rng(one.seed) for one in how]
    ends, live = ends_of(network), list(range(len(prompts)))
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), 1, width, dtype=torch.int64)
    gaps = torch.tensor([width - len(prompt) for prompt in prompts])
    for k, prompt in enumerate(prompts):
        ids[k, 0, width - len(prompt) :] = torch.tensor(prompt)
    kept: tuple[Tensor, ...] = ()
    counts = [0] * len(prompts)
    while live:
        logits, kept = _step(network, adapters, ids, kept, gaps)
        pieces, stay = [], []
        for place, row in enumerate(live):
            token = choose_token(logits[place], how[row], draws[row].random())
            counts[row] += 1
            last = "stop" if token in ends else "length" * (counts[row] >= how[row].max_tokens)
            pieces.append(Piece(row, token, last))
            if not last:
                stay.append(place)
        yield pieces
        live = [live[place] for place in stay]
        ids = torch.tensor([[[pieces[place].token]] for place in stay]).reshape(-1, 1, 1)
        if len(stay) < len(pieces):
            chosen = torch.tensor(stay, dtype=torch.int64)
            adapters = {name: held[chosen] for name, held in adapters.items()}
            kept, gaps = tuple(one[chosen] for one in kept), gaps[chosen]


def _step(
    network: PretrainedNetwork,
    adapters: dict[str, Tensor],
    ids: Tensor,  # [rows, 1, new tokens]
    kept: tuple[Tensor, ...],  # keys and values of each layer [rows, 1, heads, before, d]
    gaps: Tensor,  # [rows] places before a prompt begins
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits of the next token [rows, vocabulary], and keys and values with the new tokens."""

    def one(
        own: dict[str, Tensor], new: Tensor, before: tuple[Tensor, ...], gap: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _decode(network, own, new, before, gap)

    with torch.no_grad():
        if len(ids) > 1 and network.stacks:
            try:
                return vmap(one)(adapters, ids, kept, gaps)
            except RuntimeError:  # a layer that torch cannot stack
                network.stacks = False
        found = []
        for row in range(len(ids)):
            own = {name: held[row] for name, held in adapters.items()}
            found.append(one(own, ids[row], tuple(k[row] for k in kept), gaps[row]))
        logits, after = zip(*found, strict=True)
        return torch.stack(logits), tuple(map(torch.stack, zip(*after, strict=True)))


def _decode(
    network: PretrainedNetwork,
    own: dict[str, Tensor],
    new: Tensor,
    before: tuple[Tensor, ...],
    gap: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    for layer in range(len(before) // 2):
        cache.update(before[2 * layer], before[2 * layer + 1], layer)
    start = before[0].shape[-2] if before else 0
    places = torch.arange(start, start + new.shape[-1])
    inputs = {
        "input_ids": new,
        "attention_mask": (torch.arange(start + new.shape[-1]) >= gap).long()[None],
        "past_key_values": cache,
        "use_cache": True,
    }
    if _takes_positions(network.net):
        inputs["position_ids"] = (places - gap).clamp(min=0)[None]
    prefix = "net."
    tensors = {name.removeprefix(prefix): held for name, held in own.items()}
    said = functional_call(network.net, tensors, (), inputs)
    after = said.past_key_values
    layers = [(after.layers[k].keys, after.layers[k].values) for k in range(len(after.layers))]
    return said.logits[0, -1], tuple(part for pair in layers for part in pair)


def _takes_positions(net: Any) -> bool:
    """Whether a network is told where its words are; others see it from the mask."""
    return "position_ids" in inspect.signature(net.get_base_model().forward).parameters


def choose_token(logits: Tensor, how: Sampling, draw: float) -> int:
    """The next token, by a number in [0, 1) that was drawn."""
    if how.temperature == 0:
        return int(logits.argmax())
    chances, order = torch.softmax(logits.double() / how.temperature, -1).sort(descending=True)
    if how.top_k:
        chances = chances[: how.top_k]
    before = chances.cumsum(0) - chances
    chances = chances[before < how.top_p * chances.sum()]  # the likeliest is always among them
    sums = chances.cumsum(0)
    place = int(torch.searchsorted(sums, draw * float(sums[-1]), right=True))
    return int(order[min(place, len(chances) - 1)])


def generate_text(
    network: PretrainedNetwork,
    adapters: dict[str, Tensor],
    tokens: Tokens,
    prompts: Sequence[Sequence[int]],
    how: Sequence[Sampling],
    tell: Callable[[int, str, str, int], None],  # (row, new text, why it ends or "", tokens)
) -> None:
    """Generate, and tell the text of every row as it grows."""
    ids: list[list[int]] = [[] for _ in prompts]
    said = [tokens.decode(prompt) for prompt in prompts]
    for pieces in generate(network, adapters, prompts, how):
        for piece in pieces:
            if piece.last != "stop":
                ids[piece.row].append(piece.token)
            whole = tokens.decode([*prompts[piece.row], *ids[piece.row]])
            if whole.endswith("\ufffd") and not piece.last:  # half a character: the rest comes
                continue
            tell(piece.row, whole[len(said[piece.row]) :], piece.last, len(ids[piece.row]))
            said[piece.row] = whole
