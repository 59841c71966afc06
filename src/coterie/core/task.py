"""What the outputs of a network mean: the loss of a row, what is predicted, and what is counted.

Every loss of a model comes from here. Classes have a logit each and cross-entropy; two classes may
share one logit. Numbers have one output and half the squared error, in units of the training rows'
deviation. Counts have one output, the logarithm of their rate over the training mean, and half the
Poisson deviance, in units of that mean. Ordered classes have K - 1 outputs o, which are ordered
cumulative logits: logit P(y > k) = o_0 - sum of softplus(o_j) over 0 < j <= k. Several labels have
a logit each and the mean of their binary cross-entropies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.device import exact

Rows = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, K], targets) -> [B]
# the tasks of one number per row, and those that tell classes apart
NUMBERS = ("regression", "counts")
CLASSES = ("classes", "binary", "ordinal")
TASKS = ("classes", "binary", "regression", "counts", "ordinal", "multilabel")


class Task(NamedTuple):
    """A task, as a network learns it."""

    name: str
    losses: Rows
    counted: Rows  # what is averaged over rows beside the loss
    measure: str  # what that average is called
    predict: Callable[[Tensor], Tensor]  # outputs -> probabilities [B, K], or numbers [B]
    # what others learn from outputs at a temperature, and how far outputs are from it
    soften: Callable[[Tensor, Tensor | float], Tensor]
    distance: Callable[[Tensor, Tensor, Tensor | float], Tensor]  # (soft, outputs, T) -> [B]
    truth: Callable[[Tensor], Tensor] = lambda y: y  # targets as the data have them


def class_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with the labels."""
    return torch.logsumexp(logits, -1) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _weighted(losses: Rows, weights: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    return losses(logits, y) * weights.to(y.device)[y]


def _one_logit_losses(logits: Tensor, y: Tensor) -> Tensor:
    z = logits.squeeze(-1)
    return F.softplus(z) - z * y


def squared_losses(output: Tensor, y: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * (output - y.reshape(output.shape)).square().sum(-1)


def _right(logits: Tensor, y: Tensor) -> Tensor:
    return logits.argmax(-1) == y


def _right_one_logit(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.squeeze(-1) > 0).to(y.dtype) == y


def _nothing(output: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(output[..., 0])


def _two(logits: Tensor) -> Tensor:
    yes = torch.sigmoid(logits.squeeze(-1))
    return torch.stack([1 - yes, yes], dim=-1)


def softmax(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Class probabilities at a temperature."""
    return F.softmax(logits / temperature, dim=-1)


def divergence(target: Tensor, logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """KL(target || softmax(logits / T)) of every row."""
    log_p = F.log_softmax(logits / temperature, dim=-1)
    return (torch.xlogy(target, target) - target * log_p).sum(-1)


def _padded(logits: Tensor) -> Tensor:
    """One logit z stands for (0, z)."""
    return F.pad(logits, (1, 0))


def _as_it_is(outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return outputs


def _half_square(target: Tensor, outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Outputs as they are say all there is to say: a temperature changes nothing."""
    return 0.5 * (outputs - target).square().sum(-1)


def classes(weights: Sequence[float] = ()) -> Task:
    """One logit per class; weights: of the classes in the loss."""
    losses: Rows = class_losses
    if weights:
        losses = partial(_weighted, losses, torch.tensor(weights))
    return Task(
        name="classes",
        losses=losses,
        counted=_right,
        measure="accuracy",
        predict=softmax,
        soften=softmax,
        distance=divergence,
    )


def one_logit(weights: Sequence[float] = ()) -> Task:
    """Two classes told apart by one logit."""
    losses: Rows = _one_logit_losses
    if weights:
        losses = partial(_weighted, losses, torch.tensor(weights))
    return Task(
        name="binary",
        losses=losses,
        counted=_right_one_logit,
        measure="accuracy",
        predict=_two,
        soften=lambda z, T: softmax(_padded(z), T),
        distance=lambda target, z, T: divergence(target, _padded(z), T),
    )


def squared() -> Task:
    """Vectors of numbers as they are, as the means of the two-level Gaussian."""
    return Task(
        name="squared",
        losses=squared_losses,
        counted=_nothing,
        measure="accuracy",  # of nothing: 0, as there are no classes
        predict=lambda outputs: outputs,
        soften=_as_it_is,
        distance=_half_square,
    )


def regression(centre: float = 0.0, spread: float = 1.0) -> Task:
    """One number per row, learnt as (y - centre) / spread."""

    def back(z: Tensor) -> Tensor:
        return exact(z) * spread + centre

    return Task(
        name="regression",
        losses=squared_losses,
        counted=lambda out, y: (out.squeeze(-1) - y).abs() * spread,
        measure="mae",
        predict=lambda out: back(out.squeeze(-1)),
        soften=_as_it_is,
        distance=_half_square,
        truth=back,
    )


def _poisson(mean: float, outputs: Tensor, y: Tensor) -> Tensor:
    """Half the deviance of a Poisson rate mean * exp(output), in units of the mean."""
    log_rate, share = outputs.squeeze(-1), y / mean
    return torch.xlogy(share, share) - share * log_rate - share + log_rate.exp()


def counts(mean: float = 1.0) -> Task:
    """Numbers 0, 1, 2, ... with a Poisson distribution; the rate is mean * exp(output)."""
    return Task(
        name="counts",
        losses=partial(_poisson, mean),
        counted=lambda out, y: (out.squeeze(-1).exp() * mean - y).abs(),
        measure="mae",
        predict=lambda out: exact(out.squeeze(-1)).exp() * mean,
        soften=_as_it_is,  # log-rates
        distance=_half_square,
        truth=exact,
    )


def ordered(outputs: Tensor) -> Tensor:
    """[B, K - 1] logit P(y > k), falling in k, from free outputs."""
    steps = F.softplus(outputs[..., 1:]).cumsum(-1)
    return torch.cat([outputs[..., :1], outputs[..., :1] - steps], dim=-1)


def level_logs(outputs: Tensor) -> Tensor:
    """[B, K] log P(y = k).

    Between two cumulative logits a > b it is log(sigmoid(a) - sigmoid(b)), written so that nothing
    is lost where both are near 0 or near 1.
    """
    c = ordered(outputs)
    above, below = c[..., :-1], c[..., 1:]
    middle = F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(below - above))
    return torch.cat([F.logsigmoid(-c[..., :1]), middle, F.logsigmoid(c[..., -1:])], dim=-1)


def _level_losses(outputs: Tensor, y: Tensor) -> Tensor:
    return -level_logs(outputs).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _levels(outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return level_logs(outputs / temperature).exp()


def _level_distance(target: Tensor, outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return (torch.xlogy(target, target) - target * level_logs(outputs / temperature)).sum(-1)


def ordinal(weights: Sequence[float] = ()) -> Task:
    """Ordered classes, by cumulative logits."""
    losses: Rows = _level_losses
    if weights:
        losses = partial(_weighted, losses, torch.tensor(weights))
    return Task(
        name="ordinal",
        losses=losses,
        counted=lambda out, y: level_logs(out).argmax(-1) == y,
        measure="accuracy",
        predict=_levels,
        soften=_levels,
        distance=_level_distance,
    )


def _label_losses(weights: Tensor | None, logits: Tensor, y: Tensor) -> Tensor:
    rows = F.softplus(logits) - logits * y
    if weights is not None:  # [2, labels]: of a row without and of one with the label
        without, with_label = weights.to(y.device)
        rows = rows * torch.where(y > 0, with_label, without)
    return rows.mean(-1)


def _sigmoid(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return torch.sigmoid(logits / temperature)


def _label_distance(target: Tensor, logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    z = logits / temperature
    own = torch.xlogy(target, target) + torch.xlogy(1 - target, 1 - target)
    return (own + F.softplus(z) - target * z).mean(-1)


def multilabel(weights: Sequence[Sequence[float]] = ()) -> Task:
    """Several labels, each there or not; accuracy is the share of them that is told right."""
    return Task(
        name="multilabel",
        losses=partial(_label_losses, torch.tensor(weights) if weights else None),
        counted=lambda out, y: ((out > 0) == (y > 0)).to(out.dtype).mean(-1),
        measure="accuracy",
        predict=_sigmoid,
        soften=_sigmoid,
        distance=_label_distance,
    )


PLAIN = {"classes": classes, "binary": one_logit, "squared": squared}  # by name alone
