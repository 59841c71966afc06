"""The last known models of all clients, for servers that mix those of absent clients too."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.point import Point, mean, pick, tree_map


class LastModels(NamedTuple):
    """What every client sent last."""

    models: Point  # [N, ...]; a client never heard of stands at the mean of the others
    heard: Tensor  # [N]

    def remember(self, ids: Tensor, models: Point) -> LastModels:
        """The same after a round in which the clients `ids` sent models."""
        heard = self.heard.index_fill(0, ids, True)
        all_models = tree_map(lambda old, new: old.index_copy(0, ids, new), self.models, models)
        count = int(heard.sum())
        middle = mean(pick(all_models, heard), torch.full((count,), 1 / count))

        def fill(a: Tensor, m: Tensor) -> Tensor:
            return torch.where(heard.reshape(-1, *(1,) * m.dim()), a, m)

        return LastModels(tree_map(fill, all_models, middle), heard)

    def admit(self) -> LastModels:
        """The same with one more client, which was never heard of."""
        n = len(self.heard)
        middle = mean(self.models, torch.full((n,), 1 / n))
        wider = tree_map(lambda a, m: torch.cat([a, m[None]]), self.models, middle)
        return LastModels(wider, torch.cat([self.heard, torch.tensor([False])]))


def start_models(w: Point, clients: int) -> LastModels:
    """Nobody was heard of, and all have the same model."""
    models = tree_map(lambda a: a.expand(clients, *a.shape).clone(), w)
    return LastModels(models, torch.zeros(clients, dtype=torch.bool))
