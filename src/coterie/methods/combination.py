"""What FedPAC's clients tell of their features, and what its server makes of it: which shares of
other clients' heads serve a client best.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.device import to_double
from coterie.core.method import Batch, Pass, Replies, Train
from coterie.core.model import Descent, begin
from coterie.core.point import Point, mean, merge, split, tree_map
from coterie.core.split import Split
from coterie.methods.prototypes import (
    EVERY_ROW,
    ClassSums,
    Prototypes,
    average_prototypes,
    no_sums,
)

LEAST = 1e-3  # a smaller share is dropped


class FeatureMoments(NamedTuple):
    """What a client knows of its features z."""

    sums: ClassSums
    squares: Tensor  # sum of |z|^2

    def add(self, z: Tensor, batch: Batch) -> "FeatureMoments":
        """With the rows of one more batch."""
        more = (z.square().sum(-1) * batch.mask).sum()
        return FeatureMoments(self.sums.add(z, batch), self.squares + more)

    @property
    def h(self) -> Tensor:
        """[C, d], the mean features of each class times its share of the rows."""
        return self.sums.features / self.sums.rows.sum().clamp(min=1)

    @property
    def v(self) -> Tensor:
        """The variance of the mean of its features."""
        rows = self.sums.rows.sum().clamp(min=1)
        return (self.squares / rows - self.h.square().sum()) / rows


class PACServer(NamedTuple):
    """The server's state; a payload has the one head of its client."""

    body: Point
    head: Point  # [N, ...]
    shared: Prototypes


class PACUpload(NamedTuple):
    """What a client sends."""

    body: Point
    head: Point
    own: ClassSums  # C_ij and n_ij
    h: Tensor
    v: Tensor


class PACCarry(NamedTuple):
    """The network; what is known of features under the received body, and under the new one."""

    go: Descent
    shared: Prototypes
    before: FeatureMoments
    after: ClassSums


def open_round(cut: Split, train: Train, sent: PACServer) -> PACCarry:
    """A client before its round."""
    w, none = merge(sent.head, sent.body, cut.model.shapes), no_sums(cut)
    return PACCarry(begin(w, train), sent.shared, FeatureMoments(none, torch.zeros(())), none)


def look_before(cut: Split) -> Pass:
    """A look at the features of all rows under the received body."""
    return Pass(
        lambda c, batch: c._replace(before=c.before.add(cut.features(c.go.w, batch), batch)),
        EVERY_ROW,
    )


def look_after(cut: Split) -> Pass:
    """A look at the features of all rows under the trained body."""
    return Pass(
        lambda c, batch: c._replace(after=c.after.add(cut.features(c.go.w, batch), batch)),
        EVERY_ROW,
    )


def close_round(cut: Split, c: PACCarry) -> PACUpload:
    """What a client sends after its round."""
    own, body = split(c.go.w, cut.inside)
    means = ClassSums(c.after.means, c.after.rows)
    return PACUpload(body, own, means, c.before.h, c.before.v)


def keep_heads(server: PACServer, replies: Replies, heads: Point | None = None) -> PACServer:
    """The server with new heads of the clients that answered: those they sent, unless given."""
    new = replies.upload.head if heads is None else heads
    return server._replace(
        head=tree_map(lambda old, one: old.index_copy(0, replies.ids, one), server.head, new)
    )


def combine(server: PACServer, replies: Replies, train: Train) -> PACServer:
    """Bodies and class means averaged, heads combined for each of the clients that answered."""
    sent: PACUpload = replies.upload
    heads = mean(sent.head, choose_shares(sent.h, sent.v))
    return keep_heads(server, replies, heads)._replace(
        body=replies.average(sent.body, train.weights(replies)),
        shared=average_prototypes(server.shared, sent.own.features, sent.own.rows),
    )


def admit_newcomer(server: PACServer) -> PACServer:
    """Room for one more head, which starts amid the others."""
    wider = tree_map(lambda all: torch.cat([all, all.mean(0, keepdim=True)]), server.head)
    return server._replace(head=wider)


def choose_shares(h: Tensor, v: Tensor) -> Tensor:
    """Row i [m, m] of shares a >= 0 with sum 1 that minimizes
    sum_k a_k^2 v_k + |sum_k a_k (h_i - h_k)|^2, for h [m, C, d] and v [m].
    """
    flat = to_double(h.flatten(1))
    gram, spread = (flat @ flat.T).numpy(), to_double(v).clamp(min=0).numpy()
    rows = []
    for i in range(len(flat)):
        # (h_i - h_j)(h_i - h_k)
        bias = gram[i, i] - gram[i] - gram[i][:, None] + gram
        share = minimize_on_simplex(np.diag(spread) + bias)
        share[share < LEAST] = 0
        rows.append(share / share.sum())
    return torch.from_numpy(np.stack(rows)).to(h.dtype).to(h.device)


def minimize_on_simplex(matrix: np.ndarray) -> np.ndarray:
    """The shares a that minimize a M a, for a matrix M without negative eigenvalues.

    Least squares over a >= 0 of a M a + (sum a - 1)^2 has them as its direction: of a = s u with
    sum u = 1 the best s leaves u M u / (1 + u M u), which falls as u M u falls.
    """
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(matrix / max(np.trace(matrix), 1e-300))
    root = np.sqrt(values.clip(0))[:, None] * vectors.T
    count = len(matrix)
    found, _ = nnls(np.vstack([root, np.ones(count)]), np.append(np.zeros(count), 1.0))
    shares: np.ndarray = found / found.sum()
    return shares
