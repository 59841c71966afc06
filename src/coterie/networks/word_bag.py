"""A network of word vectors, for texts."""

from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.networks.blocks import Shape, Units, format_shape

SPREAD = 0.1  # of word vectors at the start: what is learnt of a word soon outweighs it


def bag(
    input_shape: Shape, classes: int, dimensions: Units = 32, words: int | None = None
) -> nn.Module:
    """Word vectors, which are learnt, summed over a text, and one dense layer (as in fastText).

    It takes numbers of words [tokens], 0 where there is none; `words` is how many numbers there
    are.

    dimensions: length of a word vector.
    """
    if words is None or len(input_shape) != 1:
        raise BadInput(
            f"net 'bag' takes the words of texts, but the input is {format_shape(input_shape)}: "
            "name the "
            "column of texts with --text"
        )
    return Bag(words, dimensions, classes)


class Bag(nn.Module):
    """Word vectors, their sum and the head."""

    def __init__(self, words: int, dimensions: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dimensions)
        nn.init.normal_(self.embedding.weight, std=SPREAD)
        self.head = nn.Linear(dimensions, outputs)
        nn.init.normal_(self.head.weight)  # at PyTorch's, words learn 30 times as slowly
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        held = (x > 0).to(self.head.weight.dtype)
        total = (self.embedding(x) * held.unsqueeze(-1)).sum(1)
        # a long text has as large a sum as a short one, and both learn at the same rate
        logits: Tensor = self.head(total / held.sum(1, keepdim=True).clamp(min=1).sqrt())
        return logits
