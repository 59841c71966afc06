"""An LSTM written from its cell, so that it runs under vmap."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.errors import BadInput
from coterie.networks.blocks import Depth, Shape, Units, format_shape, suggest_network


def lstm(
    input_shape: Shape,
    classes: int,
    hidden: Units = 256,
    layers: Depth = 2,
    table: Tensor | None = None,
) -> nn.Module:
    """A stacked LSTM, read at its last step (Self-FL's Sent140).

    It takes floats [B, steps, features], or token indices [B, steps] where a frozen `table`
    [words, features] is given. Its output is one logit for two classes, else one per class.

    hidden: units of each layer.
    layers: number of layers.
    """
    if table is not None and not (isinstance(table, Tensor) and table.ndim == 2):
        what = format_shape(table.shape) if isinstance(table, Tensor) else repr(table)
        raise BadInput(
            f"table = {what} for net 'lstm': give a tensor [words, features], one row per word"
        )
    wanted = "[steps, features]" if table is None else "token indices [steps] for its table"
    if len(input_shape) != (2 if table is None else 1):
        hint = (
            "give its table of word vectors, or " if table is None and len(input_shape) == 1 else ""
        )
        way_out = hint + suggest_network(input_shape)
        raise BadInput(
            f"net 'lstm' takes {wanted}, but the input is {format_shape(input_shape)}: {way_out}"
        )
    features = input_shape[1] if table is None else table.shape[1]
    return Lstm(features, hidden, layers, 1 if classes <= 2 else classes, table)


class LstmLayer(nn.Module):
    """An LSTM layer with ONE bias per gate; nn.LSTM has two, and does not run under vmap."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        bound = hidden**-0.5  # nn.LSTM's default
        self.of_input = nn.Parameter(torch.empty(4 * hidden, features).uniform_(-bound, bound))
        self.of_state = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """[B, steps, features] -> [B, steps, hidden]."""
        drive = F.linear(
            x, self.of_input, self.bias
        )  # every step's input at once: one large product
        h = c = drive.new_zeros(drive.shape[0], drive.shape[2] // 4)
        states = []
        for now in drive.unbind(1):
            enter, keep, new, show = (now + F.linear(h, self.of_state)).chunk(
                4, -1
            )  # gates i, f, g, o
            c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = show.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)


class Lstm(nn.Module):
    """Cells on top of each other, read at the last step."""

    def __init__(
        self, features: int, hidden: int, layers: int, outputs: int, table: Tensor | None
    ) -> None:
        super().__init__()
        self.cells = nn.Sequential(
            *(LstmLayer(hidden if layer else features, hidden) for layer in range(layers))
        )
        self.head = nn.Linear(hidden, outputs)
        # a plain attribute: a parameter or buffer would be stacked, once for every client
        self.table = None if table is None else table.detach()

    def forward(self, x: Tensor) -> Tensor:
        if self.table is not None:
            x = F.embedding(x.long(), self.table).to(self.head.weight.dtype)
        logits: Tensor = self.head(self.cells(x)[:, -1])
        return logits
