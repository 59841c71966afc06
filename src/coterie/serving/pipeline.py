"""A network with the preparation of its rows inside, as one torch module for files of others.

Cells of a table are numbers [rows, columns] in double precision: a number as it is, a truth value
as 0 or 1, a date as its seconds since 1970, a text as its place in the list of its column's
categories (any other place: another text), and NaN where the cell is missing. Rows that are texts
come as numbers of words, which the tokenizer beside the file makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.core.model import first_output
from coterie.data.prepare.preparation import DAY, FittedColumn, Preparation
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, NUMBER
from coterie.results.personal_models import PersonalModel


def build_pipeline(model: PersonalModel, way: str) -> nn.Module:
    """The module of a model from cells or raw arrays to probabilities (or numbers)."""
    intake, kept = model.intake, model.intake.preparation
    if kept is not None and kept.text:
        return Pipeline(nn.Identity(), model)  # tokenizer.json beside the file makes the inputs
    if intake.is_table and kept is not None:
        hashed = [c.name for c in kept.columns if c.buckets]
        if hashed:
            raise BadInput(
                f"column '{hashed[0]}' has too many texts for {way}: it was hashed; train with a "
                "larger --one-hot, or without the column"
            )
        return Pipeline(TablePreparation(kept, model.client), model)
    return Pipeline(ArrayPreparation(kept, model.client), model)


def example_of(model: PersonalModel) -> Tensor:
    """Rows that show the types and shapes of what the module takes."""
    intake = model.intake
    if intake.preparation is not None and intake.preparation.text:
        return torch.ones(3, *intake.shape, dtype=torch.int64)
    if intake.is_table:
        return torch.zeros(3, len(intake.names), dtype=torch.float64)
    return torch.zeros(3, *intake.row_shape)


class Pipeline(nn.Module):
    """Preparation, network, and what its outputs mean."""

    def __init__(self, prepare: nn.Module, model: PersonalModel) -> None:
        super().__init__()
        self.prepare, self.network, self.predict = prepare, model.module, model.task.learnt.predict
        self.eval()

    def forward(self, rows: Tensor) -> Tensor:
        return self.predict(first_output(self.network(self.prepare(rows))))


class ArrayPreparation(nn.Module):
    """Arrays of numbers, scaled as in training."""

    centre: Tensor | None
    spread: Tensor | None

    def __init__(self, kept: Preparation | None, client: str) -> None:
        super().__init__()
        self.channels = kept.channels if kept else None
        self.exact = bool(kept and kept.columns)  # computed in double precision
        centre, spread = _read_affine(kept, client)
        self.register_buffer("centre", centre)
        self.register_buffer("spread", spread)

    def forward(self, x: Tensor) -> Tensor:
        if self.centre is not None and self.spread is not None:
            x = x.double() if self.exact else x
            # a spread of infinity stands for a column that is constant and becomes 0
            x = ((x - self.centre) / self.spread).float()
        return x.repeat_interleave(self.channels, 1) if self.channels else x


def _read_affine(kept: Preparation | None, client: str) -> tuple[Any, Any]:
    """Centre and spread of an array, or nothing where it is taken as it is."""
    if kept is None:
        return None, None
    if kept.columns:
        centres, spreads = _read_scales(kept, client)
        spreads = np.where(spreads > 0, spreads, np.inf)
        return (
            torch.from_numpy(centres.reshape(kept.shape)),
            torch.from_numpy(spreads.reshape(kept.shape)),
        )
    if kept.affine is None:
        return None, None
    centre, spread = (torch.from_numpy(np.asarray(a, np.float32)) for a in kept.affine)
    return centre, spread


def _read_scales(kept: Preparation, client: str) -> tuple[np.ndarray, np.ndarray]:
    """Centre and spread of every column, the client's own where each has its own."""
    centre = np.array([c.centre for c in kept.columns])
    spread = np.array([c.spread for c in kept.columns])
    own = kept.clients.get(client, (centre, spread))
    plain = np.array([c.kind == BOOLEAN for c in kept.columns])
    return np.where(plain, 0.0, own[0]), np.where(plain, 1.0, own[1])


class TablePreparation(nn.Module):
    """The cells of a table, prepared as in training; columns of a kind are worked on together."""

    fill: Tensor
    unit: Tensor
    centre: Tensor
    spread: Tensor
    date_fill: Tensor
    order: Tensor

    def __init__(self, kept: Preparation, client: str) -> None:
        super().__init__()
        columns, (centre, spread) = kept.columns, _read_scales(kept, client)
        spread = np.where(spread > 0, spread, np.inf)
        self.scaled = [k for k, c in enumerate(columns) if c.kind in (NUMBER, BOOLEAN, DATE)]
        self.dates = [k for k, c in enumerate(columns) if c.kind == DATE]
        self.clocks = [k for k in self.dates if columns[k].hours]
        self.texts = [(k, columns[k]) for k, c in enumerate(columns) if c.kind == CATEGORY]
        self.gaps = [k for k, c in enumerate(columns) if c.indicator]
        unit = np.array([DAY if c.kind == DATE else 1.0 for c in columns])
        for name, values in (("fill", [c.fill for c in columns]), ("unit", unit)):
            self.register_buffer(name, torch.tensor(np.asarray(values)[self.scaled]))
        self.register_buffer("centre", torch.tensor(centre[self.scaled]))
        self.register_buffer("spread", torch.tensor(spread[self.scaled]))
        fills = [columns[k].fill for k in self.dates]  # seconds, which single precision rounds
        self.register_buffer("date_fill", torch.tensor(fills, dtype=torch.float64))
        for k, column in self.texts:
            places = torch.arange(len(column.categories), dtype=torch.float64)
            self.register_buffer(f"places_{k}", places)
        self.register_buffer("order", torch.tensor(self._order(columns)))

    def _order(self, columns: tuple[FittedColumn, ...]) -> list[int]:
        """Where each input of the model lies in what `forward` puts side by side."""
        made = [(k, 0) for k in self.scaled]
        made += [(k, place) for place in (1, 2) for k in self.dates]
        made += [(k, place) for place in (3, 4) for k in self.clocks]
        made += [(k, j) for k, c in self.texts for j in range(len(c.categories) + 1)]
        made += [(k, len(columns[k].outputs) - 1) for k in self.gaps]
        at = {key: place for place, key in enumerate(made)}
        return [at[k, j] for k, column in enumerate(columns) for j in range(len(column.outputs))]

    def forward(self, cells: Tensor) -> Tensor:
        gone = torch.isnan(cells)
        parts: list[Tensor] = []
        if self.scaled:
            values = torch.where(gone[:, self.scaled], self.fill, cells[:, self.scaled])
            parts.append(((values / self.unit - self.centre) / self.spread).float())
        if self.dates:
            moments = torch.where(gone[:, self.dates], self.date_fill, cells[:, self.dates])
            days = torch.floor(moments / DAY)
            parts += _sine_and_cosine(
                _remainder(days + 3, 7) / 7
            )  # 1970 began on a Thursday; Monday is 0
            if self.clocks:
                clocks = [self.dates.index(k) for k in self.clocks]
                parts += _sine_and_cosine(_remainder(moments[:, clocks], DAY) / DAY)
        for k, column in self.texts:
            parts.append(self._text(cells[:, k : k + 1], gone[:, k : k + 1], k, column))
        if self.gaps:
            parts.append(gone[:, self.gaps].float())
        return torch.cat(parts, 1).index_select(1, self.order)

    def _text(self, code: Tensor, gone: Tensor, k: int, column: FittedColumn) -> Tensor:
        """One column per category and one for all others, among them what is missing where
        training never missed any.
        """
        held = (code == self.get_buffer(f"places_{k}")).float()
        other = 1 - held.sum(1, keepdim=True)
        other = torch.where(gone, 0.0, other) if column.indicator else other
        return torch.cat([held, other], 1)


def _remainder(values: Tensor, by: float) -> Tensor:
    """What is left of a division, as files of others know no other word for it."""
    return values - torch.floor(values / by) * by


def _sine_and_cosine(share: Tensor) -> list[Tensor]:
    """Sine and cosine of shares of a turn."""
    turn = (2 * torch.pi * share).float()
    return [torch.sin(turn), torch.cos(turn)]
