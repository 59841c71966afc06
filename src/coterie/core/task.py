"""What is known of a task, all of it here: one record each, in `TASKS`.

A task says what the outputs of a network mean (its goal: the loss of a row, what is predicted, what
is counted), how many outputs there are, which label it takes, how that is scaled, what it is judged
by, what whoever knows nothing would say, and what a prediction looks like. Everything else asks the
record. A new task is a new record, and its label is read as those of its form are; a new form has
its label read in coterie.data.target and its scores in coterie.analysis.scores.

Classes have a logit each and cross-entropy; two classes may share one logit. Numbers have one
output and half the squared error, in units of the training rows' deviation; robust ones Huber's
error or the pinball loss of a quantile, in the same units. Counts have one output,
the logarithm of their rate over the training mean, and half the Poisson deviance, in units of that
mean. Ordered classes have K - 1 outputs o, which are ordered cumulative logits:
logit P(y > k) = o_0 - sum of softplus(o_j) over 0 < j <= k. Several labels have a logit each and
the mean of their binary cross-entropies. Times to an event have one output, the logarithm of the
hazard, and Cox's partial likelihood over a batch. Texts have a logit for every token of a
vocabulary at every position, and the cross-entropy of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.device import to_double
from coterie.core.options import OneOf, Range

RowFunction = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, K], targets) -> [B]
Weights = Sequence[Sequence[float]]
BLOCK = 1024  # rows that are compared with all others at once
FEW = 20  # different whole numbers that are still read as classes


class Goal(NamedTuple):
    """What a network learns: a task with what the training rows say of the label."""

    name: str
    losses: RowFunction
    counted: RowFunction  # what is averaged over rows beside the loss
    measure: str  # what that average is called
    predict: Callable[[Tensor], Tensor]  # outputs -> probabilities [B, K], or numbers [B]
    # outputs -> [B] numbers of classes, [B] numbers, or [B, labels] 0 and 1
    answer: Callable[[Tensor], Tensor]
    # what others learn from outputs at a temperature, and how far outputs are from it
    soften: Callable[[Tensor, Tensor | float], Tensor]
    distance: Callable[[Tensor, Tensor, Tensor | float], Tensor]  # (soft, outputs, T) -> [B]
    truth: Callable[[Tensor], Tensor] = lambda y: y  # targets as the data have them
    # what a row's loss is depends on the rows beside it; the target of padding is 0 then
    is_coupled: bool = False
    # targets -> [B] how much each row counts in means; None: all the same
    weigh: Callable[[Tensor], Tensor] | None = None
    summarize: Callable[[Any], Any] = lambda mean: mean  # what is measured, from a mean over rows


def class_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with the labels."""
    return torch.logsumexp(logits, -1) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _weight_losses(losses: RowFunction, weights: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    return losses(logits, y) * weights.to(y.device)[y]


def _one_logit_losses(logits: Tensor, y: Tensor) -> Tensor:
    z = logits.squeeze(-1)
    return F.softplus(z) - z * y


def squared_losses(output: Tensor, y: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * (output - y.reshape(output.shape)).square().sum(-1)


def _is_correct(logits: Tensor, y: Tensor) -> Tensor:
    return logits.argmax(-1) == y


def _is_correct_one_logit(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.squeeze(-1) > 0).to(y.dtype) == y


def _zero_scores(output: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(output[..., 0])


def _two_probabilities(logits: Tensor) -> Tensor:
    yes = torch.sigmoid(logits.squeeze(-1))
    return torch.stack([1 - yes, yes], dim=-1)


def softmax(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Class probabilities at a temperature."""
    return F.softmax(logits / temperature, dim=-1)


def divergence(target: Tensor, logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """KL(target || softmax(logits / T)) of every row."""
    log_p = F.log_softmax(logits / temperature, dim=-1)
    return (torch.xlogy(target, target) - target * log_p).sum(-1)


def _pad_logit(logits: Tensor) -> Tensor:
    """One logit z stands for (0, z)."""
    return F.pad(logits, (1, 0))


def _identity(outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return outputs


def _squared_distance(target: Tensor, outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Outputs as they are say all there is to say: a temperature changes nothing."""
    return 0.5 * (outputs - target).square().sum(-1)


def classes(weights: Sequence[float] = ()) -> Goal:
    """One logit per class; weights: of the classes in the loss."""
    losses: RowFunction = class_losses
    if weights:
        losses = partial(_weight_losses, losses, torch.tensor(weights))
    return Goal(
        name="classes",
        losses=losses,
        counted=_is_correct,
        measure="accuracy",
        predict=softmax,
        # logits tell classes apart where probabilities have become equal
        answer=lambda logits: logits.argmax(-1),
        soften=softmax,
        distance=divergence,
    )


def one_logit(weights: Sequence[float] = ()) -> Goal:
    """Two classes told apart by one logit."""
    losses: RowFunction = _one_logit_losses
    if weights:
        losses = partial(_weight_losses, losses, torch.tensor(weights))
    return Goal(
        name="binary",
        losses=losses,
        counted=_is_correct_one_logit,
        measure="accuracy",
        predict=_two_probabilities,
        answer=lambda z: _two_probabilities(z).argmax(-1),
        soften=lambda z, T: softmax(_pad_logit(z), T),
        distance=lambda target, z, T: divergence(target, _pad_logit(z), T),
    )


def squared_error() -> Goal:
    """Vectors of numbers as they are, as the means of the two-level Gaussian."""
    return Goal(
        name="squared",
        losses=squared_losses,
        counted=_zero_scores,
        measure="accuracy",  # of nothing: 0, as there are no classes
        predict=lambda outputs: outputs,
        answer=lambda outputs: outputs.reshape(len(outputs), -1).squeeze(-1),
        soften=_identity,
        distance=_squared_distance,
    )


def regression(centre: float = 0.0, spread: float = 1.0) -> Goal:
    """One number per row, learnt as (y - centre) / spread."""

    def back(z: Tensor) -> Tensor:
        return to_double(z) * spread + centre

    def predict(out: Tensor) -> Tensor:
        return back(out.squeeze(-1))

    return Goal(
        name="regression",
        losses=squared_losses,
        counted=lambda out, y: (out.squeeze(-1) - y).abs() * spread,
        measure="mae",
        predict=predict,
        answer=predict,
        soften=_identity,
        distance=_squared_distance,
        truth=back,
    )


def quantile(centre: float = 0.0, spread: float = 1.0, level: float = 0.5) -> Goal:
    """A quantile of a number, by the pinball loss of the standardised number."""

    def losses(out: Tensor, y: Tensor) -> Tensor:
        missing = y - out.squeeze(-1)
        return torch.maximum(level * missing, (level - 1) * missing)

    return regression(centre, spread)._replace(
        name=_write_name("quantile", level, 0.5),
        losses=losses,
        counted=lambda out, y: losses(out, y) * spread,
        measure=name_pinball(level),
    )


def huber(centre: float = 0.0, spread: float = 1.0, delta: float = 1.0) -> Goal:
    """A number by half the squared error up to delta, in deviations, and linear beyond."""

    def losses(out: Tensor, y: Tensor) -> Tensor:
        error = (out.squeeze(-1) - y).abs()
        return torch.where(error <= delta, 0.5 * error.square(), delta * (error - 0.5 * delta))

    return regression(centre, spread)._replace(name=_write_name("huber", delta, 1.0), losses=losses)


def name_pinball(level: float) -> str:
    """What the pinball loss of a quantile is called among scores."""
    return _write_name("pinball", level, 0.5, "_")


def _write_name(name: str, number: float, usual: float, mark: str = ":") -> str:
    return name if number == usual else f"{name}{mark}{number:g}"


def _poisson_losses(mean: float, outputs: Tensor, y: Tensor) -> Tensor:
    """Half the deviance of a Poisson rate mean * exp(output), in units of the mean."""
    log_rate, share = outputs.squeeze(-1), y / mean
    return torch.xlogy(share, share) - share * log_rate - share + log_rate.exp()


def counts(mean: float = 1.0) -> Goal:
    """Numbers 0, 1, 2, ... with a Poisson distribution; the rate is mean * exp(output)."""

    def predict(out: Tensor) -> Tensor:
        return to_double(out.squeeze(-1)).exp() * mean

    return Goal(
        name="counts",
        losses=partial(_poisson_losses, mean),
        counted=lambda out, y: (out.squeeze(-1).exp() * mean - y).abs(),
        measure="mae",
        predict=predict,
        answer=predict,
        soften=_identity,  # log-rates
        distance=_squared_distance,
        truth=to_double,
    )


def cumulative_logits(outputs: Tensor) -> Tensor:
    """[B, K - 1] logit P(y > k), falling in k, from free outputs."""
    steps = F.softplus(outputs[..., 1:]).cumsum(-1)
    return torch.cat([outputs[..., :1], outputs[..., :1] - steps], dim=-1)


def level_log_probs(outputs: Tensor) -> Tensor:
    """[B, K] log P(y = k).

    Between two cumulative logits a > b it is log(sigmoid(a) - sigmoid(b)), written so that nothing
    is lost where both are near 0 or near 1.
    """
    c = cumulative_logits(outputs)
    above, below = c[..., :-1], c[..., 1:]
    middle = F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(below - above))
    return torch.cat([F.logsigmoid(-c[..., :1]), middle, F.logsigmoid(c[..., -1:])], dim=-1)


def _level_losses(outputs: Tensor, y: Tensor) -> Tensor:
    return -level_log_probs(outputs).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _levels(outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return level_log_probs(outputs / temperature).exp()


def _level_distance(target: Tensor, outputs: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    return (torch.xlogy(target, target) - target * level_log_probs(outputs / temperature)).sum(-1)


def ordinal(weights: Sequence[float] = ()) -> Goal:
    """Ordered classes, by cumulative logits."""
    losses: RowFunction = _level_losses
    if weights:
        losses = partial(_weight_losses, losses, torch.tensor(weights))
    return Goal(
        name="ordinal",
        losses=losses,
        counted=lambda out, y: level_log_probs(out).argmax(-1) == y,
        measure="accuracy",
        predict=_levels,
        answer=lambda out: _levels(out).argmax(-1),
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


def multilabel(weights: Sequence[Sequence[float]] = ()) -> Goal:
    """Several labels, each there or not; accuracy is the share of them that is predicted right."""
    return Goal(
        name="multilabel",
        losses=partial(_label_losses, torch.tensor(weights) if weights else None),
        counted=lambda out, y: ((out > 0) == (y > 0)).to(out.dtype).mean(-1),
        measure="accuracy",
        predict=_sigmoid,
        answer=lambda logits: (logits > 0).long(),
        soften=_sigmoid,
        distance=_label_distance,
    )


def _token_weights(y: Tensor) -> Tensor:
    """How many tokens of each row are predicted: all but the first; -1 is padding."""
    return (y[..., 1:] >= 0).sum(-1).to(torch.get_default_dtype())


def _mean_over_tokens(values: Tensor, y: Tensor) -> Tensor:
    """The mean of values [B, tokens - 1] over those tokens of each row that are there."""
    held = (y[..., 1:] >= 0).to(torch.get_default_dtype())
    return (values * held).sum(-1) / held.sum(-1).clamp(min=1)


def _next_token_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of each row's tokens, each given those before it."""
    return _mean_over_tokens(class_losses(logits[..., :-1, :], y[..., 1:].clamp(min=0)), y)


def _token_distance(target: Tensor, logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """The mean over the places of each row that predict a token; outputs of padding are 0."""
    held = (logits[..., 1:, :] != 0).any(-1)
    apart = divergence(target, logits, temperature)[..., :-1]
    return (apart * held).sum(-1) / held.sum(-1).clamp(min=1)


def causal_lm() -> Goal:
    """The next token of texts, from outputs [B, tokens, vocabulary]; targets are the tokens
    themselves [B, tokens], -1 where a text is over. Every token counts the same.
    """
    return Goal(
        name="causal_lm",
        losses=_next_token_losses,
        counted=_next_token_losses,
        measure="perplexity",
        predict=lambda logits: logits.argmax(-1),  # probabilities of all tokens would fill memory
        answer=lambda logits: logits.argmax(-1),
        soften=softmax,
        distance=_token_distance,
        weigh=_token_weights,
        summarize=np.exp,
    )


def encode_times(numbers: np.ndarray) -> np.ndarray:
    """[n] times, below 0 where the event was not seen; of [n, 2] times and 1 or 0, or of these.

    A time of 0 becomes the smallest number above it, as the target 0 is padding.
    """
    seen = numbers[:, 1] > 0 if numbers.ndim == 2 else ~np.signbit(numbers)
    times = np.abs(numbers[:, 0] if numbers.ndim == 2 else numbers)
    times = np.maximum(times, np.finfo(np.float32).tiny)
    return np.asarray(np.where(seen, times, -times))


def _cox_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Of every event, log sum exp over all who are at risk then minus its own output (Breslow)."""
    risk, times = outputs.squeeze(-1), y.abs()
    at_risk = [  # a block of rows against all
        torch.where(times.unsqueeze(-2) >= some.unsqueeze(-1), risk.unsqueeze(-2), -torch.inf)
        for some in times.split(BLOCK, -1)
    ]
    sums = torch.cat([torch.logsumexp(block, -1) for block in at_risk], -1)
    return torch.where(y > 0, sums - risk, 0.0)


def count_pairs(risk: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of every event [n]: the pairs with rows that outlived it, and those of them in which it had
    the higher risk (Harrell's concordance; equal risks are half a pair).
    """
    pairs, right = [], []
    for time, own in zip(y.split(BLOCK), risk.split(BLOCK), strict=True):
        earlier = time[:, None] < y.abs()
        tied = time[:, None] == -y  # who was last seen at that very time outlived it
        both = (time[:, None] > 0) & (earlier | tied)
        order = torch.sign(own[:, None] - risk)
        pairs.append(both.sum(1))
        right.append((both * (order + 1)).sum(1) / 2)
    return torch.cat(pairs), torch.cat(right)


def _concordance_of_rows(outputs: Tensor, y: Tensor) -> Tensor:
    """[n] values whose mean is the concordance index; NaN where no two rows can be compared."""
    pairs, right = count_pairs(outputs.squeeze(-1), y)
    return right * ((y != 0).sum() / pairs.sum())


def survival() -> Goal:
    """Times to an event that not all rows have seen; the output is the logarithm of the hazard."""

    def predict(out: Tensor) -> Tensor:
        return to_double(out.squeeze(-1))

    return Goal(
        name="survival",
        losses=_cox_losses,
        counted=_concordance_of_rows,
        measure="concordance",
        predict=predict,
        answer=predict,
        soften=_identity,
        distance=_squared_distance,
        truth=to_double,
        is_coupled=True,
    )


class Seen(NamedTuple):
    """What training rows show of a label."""

    columns: int
    text: bool  # it holds no numbers
    whole: bool  # its numbers are
    different: int  # values
    table: bool  # whole numbers of a table may be a quantity; those of arrays are classes


class Refusal(NamedTuple):
    """Numbers that a label cannot hold."""

    find: Callable[[np.ndarray], np.ndarray]  # numbers -> whether each is such a one
    what: str  # goes on from "which is"
    way: str = ""  # what it must be
    other: str = "use --task regression"  # where that is not what was meant


class Trivial(NamedTuple):
    """Whoever knows nothing but a client's training targets, and says the same of every row."""

    say: Callable[[np.ndarray, int], Any]  # (training targets, classes) -> number or [K]
    text: str
    scores: tuple[str, ...] = ()  # that it is measured by; (): all


@dataclass(frozen=True)
class Form:
    """What tasks have in common whose labels are alike."""

    name: str  # under which coterie.analysis.scores has its scores
    trivial: tuple[Trivial, ...] = ()
    has_label: bool = True  # rows have one, so that an option may name the task
    has_classes: bool = False
    is_number: bool = False  # one a row
    several: bool = False  # labels a row, each there or not
    has_tokens: bool = False  # the label of a text is the text itself, token by token
    columns: tuple[int, ...] = (1,)  # how many the label may have; (): two or more
    # the label's cells [n] or [n, columns] as one number a row, where these are not the same
    encode: Callable[[np.ndarray], np.ndarray] | None = None
    refusal: Refusal | None = None
    no_text: str = ""  # why {column} cannot be a {task} where it holds text; "": it can
    # one prediction in JSON; kind: the type of the classes' names, "number" where there are none
    schema: Callable[[str], dict[str, Any]] = lambda kind: {"type": kind}


@dataclass(frozen=True)
class Task:
    """All that is known of a task."""

    name: str
    form: Form
    goal: Callable[[float, float, Weights], Goal]  # of centre, spread and weights, see `learn`
    # the same where one output tells two classes apart; None: no network of the task has that
    one_logit_goal: Callable[[float, float, Weights], Goal] | None = None
    is_one_logit: bool = False  # a goal of this name has such an output
    outputs: Callable[[int, int], int] = lambda classes, columns: classes or 1
    has_output_per_class: bool = False
    # what is measured at the end, by name, see coterie.analysis.scores; the first decides. A score
    # there that no record names is one of all tasks of its form.
    scores: tuple[str, ...] = ()
    in_files: tuple[str, ...] = ()  # those of them that a terminal has no room for
    probe: str = ""  # one from -1 to 1 that is high where a model is good; "": what decides
    # the models of scikit-learn that stand beside it
    reference: Literal["", "classifier", "regressor", "poisson"] = ""
    is_standardised: bool = False  # its number is learnt as (y - centre) / spread
    is_plain: bool = False  # data without a label column of one's own are learnt so
    least: int = 0  # classes
    most: int = 0
    instead: str = ""  # the task of a label with more or fewer; "": whatever it has is taken
    guess: Callable[[Seen], bool] = lambda seen: False  # whether such a label is read as this task
    otherwise: str = ""  # ends the line that says so where whole numbers may be something else
    refusal: Refusal | None = None  # None: that of the form
    no_text: str = ""  # "": that of the form

    @property
    def has_label(self) -> bool:
        return self.form.has_label

    @property
    def has_classes(self) -> bool:
        return self.form.has_classes

    @property
    def is_number(self) -> bool:
        return self.form.is_number

    @property
    def several(self) -> bool:
        return self.form.several

    @property
    def has_tokens(self) -> bool:
        return self.form.has_tokens

    @property
    def has_units(self) -> bool:
        """Whether mean and deviation of the training rows are part of what is learnt."""
        return self.is_number and self.form.encode is None

    @property
    def has_numbers(self) -> bool:
        """Whether cells of the label are learnt as numbers, and none is the name of a class."""
        return self.is_number or self.several

    @property
    def measure(self) -> str:
        """What decides where no measure is named."""
        return self.scores[0] if self.scores else "loss"

    def learn(
        self,
        centre: float = 0.0,
        spread: float = 1.0,
        weights: Weights = (),
        one_logit: bool = False,
    ) -> Goal:
        """What a network learns; all numbers are of training rows.

        centre, spread: what becomes 0 and 1 of a number, the first the mean of counts. weights: of
        classes in the loss, one row; of several labels, a row without and a row with each.
        one_logit: the network tells two classes apart by one output.
        """
        make = self.one_logit_goal if one_logit and self.one_logit_goal else self.goal
        return make(centre, spread, weights)

    def learn_by_name(self) -> Goal:
        """The same of a task that is named, and nothing else is said."""
        return self.learn(one_logit=self.is_one_logit)

    def scale(self, numbers: np.ndarray, centre: float, spread: float) -> np.ndarray:
        """Numbers of the label as a network learns them."""
        if self.form.encode is not None:
            numbers = self.form.encode(numbers)
        if self.is_standardised:
            numbers = (numbers - centre) / spread
        return numbers.astype(np.float32)

    def find_units(self, centre: float, spread: float) -> tuple[float, float]:
        """What 0 and 1 of these are in the label's own unit, 1 as a step."""
        return (centre, spread) if self.is_standardised else (0.0, 1.0)

    def describe_trivial(self, measure: str) -> str:
        """Whoever knows nothing, as a measure asks for; "" where there is nothing to know."""
        texts = [who.text for who in self.form.trivial if measure in who.scores]
        return (texts or [who.text for who in self.form.trivial[-1:]] or [""])[0]

    def fits(self, classes: int) -> bool:
        """Whether a label of so many classes may be learnt as this."""
        return not self.instead or self.least <= classes <= self.most

    def takes(self, columns: int) -> bool:
        """Whether the label may have so many columns."""
        return columns in self.form.columns if self.form.columns else columns > 1

    def refuse_text(self, column: str) -> str:
        """Why the column cannot be the label if it holds text; "" where it can."""
        return (self.no_text or self.form.no_text).format(column=column, task=self.name)


def _say_shares(train: np.ndarray, classes: int) -> np.ndarray:
    return np.asarray(np.bincount(train.astype(int), minlength=classes) / len(train))


def _say_token_shares(train: np.ndarray) -> np.ndarray:
    """Shares of tokens that rows [n, tokens] predict; one that they have not is once among them."""
    held = np.bincount(train[:, 1:][train[:, 1:] >= 0]) + 1
    return np.asarray(held / held.sum())


def _first(weights: Weights) -> Sequence[float]:
    return weights[0] if weights else ()


def _is_no_time(numbers: np.ndarray) -> np.ndarray:
    """Whether each number is none; alone, a time below 0 says that the event was not seen."""
    if numbers.ndim == 1:
        return np.asarray(np.isnan(numbers))
    return np.stack([~(numbers[:, 0] >= 0), ~np.isin(numbers[:, 1], (0, 1))], 1)


CLASS = Form(
    name="class",
    has_classes=True,
    trivial=(Trivial(_say_shares, "always guessing a client's most frequent class"),),
    refusal=Refusal(lambda v: v != np.floor(v), "no class", "a class is whole or text; "),
)
NUMBER = Form(
    name="number",
    is_number=True,
    trivial=tuple(
        Trivial(say, f"always guessing the {what} of a client's training rows", scores)
        for say, what, scores in (
            (lambda train, classes: np.median(train), "median", ("mae", "pinball")),
            (lambda train, classes: np.mean(train), "mean", ("rmse", "r2")),
        )
    ),
    no_text="'{column}' holds text, so it is no {task}; use --task classes",
)
LABELS = Form(
    name="labels",
    several=True,
    columns=(),
    refusal=Refusal(
        lambda v: (v != 0) & (v != 1),
        "neither 0 nor 1",
        "several labels are 0 or 1 each; ",
        "use --task survival for a time and whether its event was seen",
    ),
    trivial=(
        Trivial(
            lambda train, classes: train.mean(0),
            "always guessing how frequent a client's labels are",
        ),
    ),
    schema=lambda kind: {"type": "array", "items": {"type": "integer"}},
)
TIME = Form(
    name="time",
    is_number=True,
    columns=(1, 2),
    encode=encode_times,
    trivial=(Trivial(lambda train, classes: 0.0, "giving every row the same risk"),),
    refusal=Refusal(_is_no_time, "no time, or no 1 or 0 of an event"),
    no_text="'{column}' holds text, so it is no {task}; give times as numbers",
)
VECTOR = Form(name="vector", has_label=False)
TOKENS = Form(
    name="tokens",
    has_tokens=True,
    trivial=(
        Trivial(
            lambda train, classes: _say_token_shares(train),
            "giving every token the share that it has in a client's training rows",
        ),
    ),
    schema=lambda kind: {"type": "array", "items": {"type": "integer"}},
)

RANKED = ("auc", "average_precision", "log_loss")
OF_CLASSES = (
    *("accuracy", "f1", "precision", "recall", "balanced_accuracy", "calibration_error"),
    *RANKED,
)
OF_NUMBERS = ("mae", "rmse", "r2", "pinball")


def quantile_task(level: float = 0.5) -> Task:
    """The record of a quantile."""
    said = f"the {level:g} quantile" if level != 0.5 else "the median"
    own = Trivial(
        lambda train, classes: np.quantile(train, level),
        f"always guessing {said} of a client's training rows",
        (name_pinball(level),),
    )
    return Task(
        name=_write_name("quantile", level, 0.5),
        form=replace(NUMBER, trivial=(own, *_without_pinball(NUMBER.trivial))),
        goal=lambda centre, spread, weights: quantile(centre, spread, level),
        scores=(name_pinball(level), "mae", "rmse", "r2"),
        probe="r2",
        is_standardised=True,
    )


def _without_pinball(trivial: tuple[Trivial, ...]) -> tuple[Trivial, ...]:
    return tuple(
        who._replace(scores=tuple(s for s in who.scores if s != "pinball")) for who in trivial
    )


def huber_task(delta: float = 1.0) -> Task:
    """The record of a number that outliers move little."""
    return Task(
        name=_write_name("huber", delta, 1.0),
        form=NUMBER,
        reference="regressor",
        goal=lambda centre, spread, weights: huber(centre, spread, delta),
        scores=OF_NUMBERS,
        probe="r2",
        is_standardised=True,
    )


class Family(NamedTuple):
    """Tasks that differ in one number, as `quantile:0.9`."""

    make: Callable[[float], Task]
    limits: Range


FAMILIES = {
    "quantile": Family(quantile_task, Range(0, 1, low_open=True, high_open=True)),
    "huber": Family(huber_task, Range(0, 1e6, low_open=True)),
}


class Tasks(dict[str, Task]):
    """The records by name; one of a family with a number is made when it is asked for."""

    def __missing__(self, name: str) -> Task:
        family, _, number = name.partition(":")
        try:
            if family in FAMILIES and FAMILIES[family].limits.holds(float(number)):
                return FAMILIES[family].make(float(number))
        except ValueError:
            pass
        raise KeyError(name)


# Where no task is named, the last that guesses it is one of such a label, so the first takes all.
TASKS = Tasks(
    (task.name, task)
    for task in (
        Task(
            name="classes",
            form=CLASS,
            reference="classifier",
            goal=lambda centre, spread, weights: classes(_first(weights)),
            one_logit_goal=lambda centre, spread, weights: one_logit(_first(weights)),
            has_output_per_class=True,
            scores=OF_CLASSES,
            in_files=RANKED,
            probe="accuracy",
            is_plain=True,
            least=2,
            most=10**6,
            guess=lambda seen: True,
            otherwise="; --task regression for numbers",
        ),
        Task(
            name="binary",
            form=CLASS,
            reference="classifier",
            goal=lambda centre, spread, weights: classes(_first(weights)),
            one_logit_goal=lambda centre, spread, weights: one_logit(_first(weights)),
            is_one_logit=True,
            scores=OF_CLASSES,
            in_files=RANKED,
            probe="accuracy",
            is_plain=True,
            least=2,
            most=2,
            instead="classes",
            guess=lambda seen: seen.different == 2,
        ),
        Task(
            name="regression",
            form=NUMBER,
            reference="regressor",
            goal=lambda centre, spread, weights: regression(centre, spread),
            scores=OF_NUMBERS,
            probe="r2",
            is_standardised=True,
            guess=lambda seen: (
                not seen.text and (not seen.whole or (seen.table and seen.different > FEW))
            ),
            otherwise="; --task classes for classes",
        ),
        huber_task(),
        quantile_task(),
        Task(
            name="counts",
            form=NUMBER,
            reference="poisson",
            goal=lambda centre, spread, weights: counts(centre),
            scores=OF_NUMBERS,
            refusal=Refusal(lambda v: (v < 0) | (v != np.floor(v)), "no count"),
        ),
        Task(
            name="ordinal",
            form=CLASS,
            reference="classifier",
            goal=lambda centre, spread, weights: ordinal(_first(weights)),
            outputs=lambda classes, columns: classes - 1,
            scores=(*OF_CLASSES, "mae"),
            in_files=(*RANKED, "mae"),
            probe="accuracy",
            least=3,
            most=10**6,
            instead="binary",
            no_text="task = {task}, but '{column}' holds text, whose order is not known; write "
            "its levels as 1, 2, 3, ...",
        ),
        Task(
            name="multilabel",
            form=LABELS,
            goal=lambda centre, spread, weights: multilabel(weights),
            outputs=lambda classes, columns: columns,
            scores=("accuracy", "f1", *RANKED),
            guess=lambda seen: seen.columns > 1,
        ),
        Task(
            name="survival",
            form=TIME,
            goal=lambda centre, spread, weights: survival(),
            scores=("concordance",),
            probe="concordance",
        ),
        Task(
            name="causal_lm",
            form=TOKENS,
            goal=lambda centre, spread, weights: causal_lm(),
            scores=("perplexity", "accuracy"),
            probe="accuracy",
        ),
        Task(
            name="squared",
            form=VECTOR,
            goal=lambda centre, spread, weights: squared_error(),
            is_plain=True,
        ),
    )
)
# of a goal that is not in the registry: its outputs are taken for those of classes
UNKNOWN = replace(
    TASKS["classes"],
    name="",
    form=replace(CLASS, has_label=False, has_classes=False),
    has_output_per_class=False,
    is_plain=False,
)


def find_task(name: str) -> Task:
    """What is known of a task, or of a goal of somebody's own, by its name."""
    return TASKS[name] if is_task(name) else UNKNOWN


def is_task(name: object) -> bool:
    """Whether there is a record of this name."""
    try:
        return isinstance(name, str) and bool(TASKS[name])
    except KeyError:
        return False


def choose_task(classes: int) -> Task:
    """That of data that say no more than how many classes they have."""
    return TASKS["classes" if classes else "squared"]


def name_tasks() -> tuple[str, ...]:
    """The tasks that an option may name."""
    return tuple(name for name, task in TASKS.items() if task.has_label)


TaskName = Annotated[str, OneOf(name_tasks, is_task)]
