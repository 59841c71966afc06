"""What GPFL's clients share beside the body: an embedding of each class and a valve on features."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.method import Batch
from coterie.core.model import Descent, cross_entropy, masked_mean
from coterie.core.point import Leaves, Point, split
from coterie.core.rng import Rng
from coterie.core.split import Split
from coterie.methods.declare import SupportedTasks
from coterie.methods.prototypes import count_classes, mark_classes
from coterie.networks.assembled import assemble_model

BY_EMBEDDING = SupportedTasks(lambda task: task.has_classes, "learns an embedding of each class")
SHORTEST = 1e-16  # added to a squared length, so that its root has a gradient at 0
EMBEDDING = "embedding"


class GPServer(NamedTuple):
    """The server's state, and what travels down."""

    body: Point
    common: Point  # the embeddings [K, d] and the valve
    seed: Tensor  # of the start of heads


class GPState(NamedTuple):
    """What a client keeps."""

    head: Point
    shares: Tensor  # [K], of classes among its training rows


class GPCarry(NamedTuple):
    """A client at work."""

    go: Descent  # the body with the client's head
    common: Descent
    sent: Point  # the received embeddings and valve
    rows: Tensor  # [K]

    @property
    def shares(self) -> Tensor:
        """Of classes among the rows that were counted."""
        return self.rows / self.rows.sum().clamp(min=1)


class ValveSplit:
    """A network cut before its head, where the valve stands."""

    def __init__(self, cut: Split) -> None:
        self.cut, self.classes = cut, count_classes(cut.model)
        self.whole = assemble_model(cut.model, f"valve:part={cut.part}:width={cut.width}")

    def start_server(self, rng: Rng) -> GPServer:
        """The common start."""
        seed = int(rng.integers(2**63))
        body = split(self.cut.model.start(seed), self.cut.inside)[1]
        return GPServer(body, self.start_common(rng), torch.tensor(seed))

    def start_client(self, sent: GPServer) -> GPState:
        """A client at its first contact, which has not counted its classes yet."""
        head = split(self.cut.model.start(int(sent.seed)), self.cut.inside)[0]
        return GPState(head, torch.full((self.classes,), 1 / self.classes))

    def close_round(self, c: GPCarry) -> tuple[GPState, tuple[Point, Point]]:
        """What a client keeps after its round, and what it sends."""
        head, body = split(c.go.w, self.cut.inside)
        return GPState(head, c.shares), (body, c.common.w)

    def start_common(self, rng: Rng) -> Point:
        """Embeddings and a valve at random."""
        start, found = self.cut.name("valve."), self.whole.init(rng).params
        drawn = rng.standard_normal((self.classes, self.cut.width)).astype(np.float32)
        embedding = torch.as_tensor(drawn).to(torch.get_default_dtype())
        valve = {k.removeprefix(start): a for k, a in found.items() if k.startswith(start)}
        return Point({EMBEDDING: embedding} | valve)

    def put_together(self, own: GPState, sent: GPServer) -> Point:
        """The network that a client uses: the received body and valve with its own head."""
        part, valve = self.cut.part, dict(sent.common.params)
        context = mix_embeddings(own.shares, valve.pop(EMBEDDING))
        params = {f"{part}.head{k.removeprefix(part)}": a for k, a in own.head.params.items()}
        params |= {f"{part}.valve.{k}": a for k, a in valve.items()} | sent.body.params
        buffers = sent.body.buffers | {self.cut.name("context"): context}
        return Point({k: params[k] for k in self.whole.shapes}, buffers)


def mix_embeddings(shares: Tensor, embedding: Tensor) -> Tensor:
    """p_i [d], the classes' embeddings by a client's shares of classes."""
    return (shares.unsqueeze(-1) * embedding).sum(0)


def compare_angles(z: Tensor, embedding: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of the cosines of features with the classes' embeddings."""
    lengths = [(a.square().sum(-1, keepdim=True) + SHORTEST).sqrt() for a in (z, embedding)]
    return cross_entropy((z / lengths[0]) @ (embedding / lengths[1]).T, batch)


def measure_gap(z: Tensor, sent: Leaves, batch: Batch) -> Tensor:
    """The mean distance of features from the received embedding of their row's class."""
    own = mark_classes(batch, len(sent[EMBEDDING])) @ sent[EMBEDDING]
    return masked_mean(((z - own).square().sum(-1) + SHORTEST).sqrt(), batch)
