"""HetLoRA: adapters whose rank differs by client. Cho, Liu, Xu, Fahrezi, Joshi: Heterogeneous LoRA
for Federated Fine-tuning of On-Device Foundation Models. EMNLP 2024. arXiv:2401.06432.

The server keeps an adapter of the largest rank. A client gets its first r_k rows of A and columns
of B (truncation); what comes back is padded with zeros, and averaged with the weights
    ||B_k A_k||_F / sum_j ||B_j A_j||_F,
the norm over all layers. The paper's self-pruning of ranks is left out. Since scales must be alike,
lora_alpha / lora_r is the same for all.

Run it: coterie run hetlora --plugin examples/hetlora.py --dataset ... --text text --task causal_lm
    --model hf:FOLDER:lora_r=2:lora_alpha=4,hf:FOLDER:lora_r=8:lora_alpha=16
Clients get the networks in turn.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Facts, Method, Replies, Train
from coterie.core.model import Model
from coterie.core.point import Point, mean
from coterie.core.rng import Rng
from coterie.methods.fedavg import fedavg

SIDES = {"lora_A": 0, "lora_B": 1}  # the dimension of each matrix that the rank is


class HetLoraServer(NamedTuple):
    w: Point  # of the largest rank
    ranks: Tensor  # [architectures]
    architecture: Tensor  # [N]


def side_of(name: str) -> int | None:
    """The dimension of a leaf that is its rank; None: it has none."""
    return next((side for part, side in SIDES.items() if f".{part}." in name), None)


def truncate(w: Point, rank: int) -> Point:
    """The first `rank` rows of A and columns of B."""
    sides = {name: side_of(name) for name in w.params}
    cut = {
        name: leaf if (side := sides[name]) is None else leaf.narrow(side, 0, rank)
        for name, leaf in w.params.items()
    }
    return Point(cut, w.buffers)


def pad(uploads: Point, rank: int) -> Point:
    """Stacked adapters [m, ...] with zeros up to a rank."""

    def grow(name: str, leaf: Tensor) -> Tensor:
        side = side_of(name)
        if side is None:
            return leaf
        after = [0, 0] * (leaf.dim() - 2 - side)  # F.pad counts from the last dimension
        return F.pad(leaf, [*after, 0, rank - leaf.shape[side + 1]])

    return Point({name: grow(name, leaf) for name, leaf in uploads.params.items()}, uploads.buffers)


def norms_of(uploads: Point) -> Tensor:
    """[m] ||B A||_F of each, over all layers: tr(B'B AA') of every pair, without the product."""
    squares = []
    for name, a in uploads.params.items():
        if ".lora_A." in name:
            a, b = a.flatten(2), uploads.params[name.replace(".lora_A.", ".lora_B.")]
            b = b.flatten(2)
            inner = torch.einsum("mor,mos->mrs", b, b) * torch.einsum("mri,msi->mrs", a, a)
            squares.append(inner.sum((1, 2)))
    return torch.stack(squares).sum(0).clamp(min=0).sqrt()


def hetlora(model: Model, train: Train) -> Method:
    """One adapter for all, of which each client has as many ranks as its network."""
    base = fedavg(model, train)

    def init(rng: Rng, facts: Facts) -> HetLoraServer:
        ranks = [int(one.options.get("lora_r", 0)) for one in facts.models]
        if min(ranks) < 1 or any(".lora_A." not in "".join(m.shapes) for m in facts.models):
            raise BadInput("hetlora needs adapters that train: use --model hf:FOLDER:lora_r=4,...")
        scales = {
            float(one.options["lora_alpha"]) / r for one, r in zip(facts.models, ranks, strict=True)
        }
        if len(scales) > 1:
            raise BadInput(
                f"hetlora averages adapters of one scale, but lora_alpha / lora_r is "
                f"{', '.join(f'{s:g}' for s in sorted(scales))}: give a lora_alpha with each lora_r"
            )
        largest = facts.models[ranks.index(max(ranks))]
        return HetLoraServer(largest.init(rng), torch.tensor(ranks), facts.architecture)

    def send(server: HetLoraServer, i: int, rng: Rng) -> Point:
        return truncate(server.w, int(server.ranks[server.architecture[i]]))

    def receive(server: HetLoraServer, replies: Replies, rng: Rng) -> HetLoraServer:
        most = int(server.ranks.max())
        groups = [pad(group.upload, most) for group in replies.groups]
        every = torch.utils._pytree.tree_map(lambda *leaves: torch.cat(leaves), *groups)
        norms = norms_of(every)
        total = norms.sum()
        weights = norms / total if total > 0 else torch.full_like(norms, 1 / len(norms))
        return server._replace(w=mean(every, weights))

    trip = base.round[0]._replace(send=send, receive=receive)
    return base._replace(init=init, round=(trip,), mixed=True)
