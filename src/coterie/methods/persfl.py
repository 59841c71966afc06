"""PersFL. Divi: Unifying Distillation with Personalization in Federated Learning. Thesis, Purdue
University, 2021, Algorithm 1. arXiv:2105.15191.

Stage 1 is FedAvg; client k keeps as its teacher O_k the global model of lowest loss on its
validation part (4.1):
    O_k = argmin over G_1 .. G_E of CE_validation(G_e)
Stage 2 is local: for every (lambda, T) of a grid a student A starts at O_k and descends on (4.2,
Algorithm 1 line 18)
    (1 - lambda) CE(y, A) + lambda T^2 KL(softmax(O_k / T) || softmax(A / T))

Interpretations: the stored loss is replaced only when it is beaten (lines 5-7 overwrite it first)
and the earliest minimum wins; a client validates the models it receives, never the random G_0.
Teacher first in KL, as in the algorithm; (4.2) has the student first ("kl_st"). PersFL-GD (6.1) has
soft cross-entropy for KL, which differs by the teacher's entropy, a constant: the two have one
gradient, and what may tell the published ones apart is KL's mean over classes too ("elementwise").
The means of Table 6.5 are made of the grid lambda in {0, .25, .5, .75, 1}, T in {1, 5, 25}, which
the recipes have; the default is a coarser one whose students train longer, for the same work. A
student's checkpoint after each epoch, and (lambda_k, T_k), are chosen by validation accuracy, then
validation loss, then the earlier epoch, the smaller lambda, the smaller T.
"""

from typing import Annotated, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Stage, Train
from coterie.core.model import Model, masked_mean
from coterie.core.options import NonNegative, Positive, Range, Share
from coterie.methods.declare import SEVERAL_OPTIMIZERS, SupportedTasks, method, variant
from coterie.methods.students import PersFLState, distil_teacher, grid_of, init_state
from coterie.methods.teacher import Teacher, find_teacher

SOFT = {  # one value per row, of the log-probabilities t of the teacher and s of the student
    "kl_ts": lambda t, s: (t.exp() * (t - s)).sum(-1),
    "kl_st": lambda t, s: (s.exp() * (s - t)).sum(-1),
    "ce": lambda t, s: -(t.exp() * s).sum(-1),
}


class Reading(NamedTuple):
    """Other interpretations of the thesis than the one described above, and its ablation."""

    soft: Literal["kl_ts", "kl_st", "ce"] = "kl_ts"
    """KL with the teacher first (the algorithm) or the student (4.2), or cross-entropy (6.1)."""
    reduction: Literal["batchmean", "elementwise"] = "batchmean"
    """The mean over rows, or ("elementwise") over classes too."""
    teacher: Literal["best", "last"] = "best"
    """The model of lowest validation loss, or the final one (Table 6.4)."""

    def scale(self, classes: int) -> float:
        """The factor of the soft loss."""
        return 1 / classes if self.reduction == "elementwise" else 1.0


@method(
    when="clients differ, and distilling after training is affordable",
    only={"server_optimizer": ("keep_models", False)},
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
    uploads="mean",
    tasks=SupportedTasks(
        lambda task: task.has_output_per_class,
        "distils over classes and chooses students by accuracy",
    ),
)
def persfl(
    model: Model,
    train: Train,
    distil_epochs: Annotated[int, Range(1, 10_000)] = 50,
    distil_lr: NonNegative = 0.0,
    lambdas: tuple[Share, ...] = (0.0, 0.5, 1.0),
    temperatures: tuple[Positive, ...] = (5.0,),
    soft: Literal["kl_ts", "kl_st", "ce"] = "kl_ts",
    reduction: Literal["batchmean", "elementwise"] = "batchmean",
    teacher: Literal["best", "last"] = "best",
    keep_models: bool = False,
) -> tuple[Stage, ...]:
    """FedAvg, then self-distillation from each client's best global model.

    distil_epochs: epochs of each student in stage 2.
    distil_lr: learning rate of distillation; 0: that of training.
    lambdas: shares of distillation in the loss that are tried; 1 keeps the teacher.
    temperatures: temperatures that are tried.
    soft: the distillation loss: "kl_ts" has the teacher first, "kl_st" the student first, "ce" is
        soft cross-entropy.
    reduction: "batchmean" is the mean over rows, "elementwise" over rows and classes.
    teacher: "best" distils from the global model of lowest validation loss, "last" from the final
        one (Table 6.4).
    keep_models: the server keeps every G_e and sends them all in stage 2, so that a newcomer can
        find its teacher (7.1).
    """
    for option, values in (("lambdas", lambdas), ("temperatures", temperatures)):
        if not values:
            raise BadInput(f"persfl.{option} is empty: give at least one number, such as 0.5")
    grid = grid_of(sorted(set(lambdas)), sorted(set(temperatures)))
    reading = Reading(soft, reduction, teacher)
    last = reading.teacher == "last"

    def loss(target: Tensor, logits: Tensor, lam: Tensor, T: Tensor, batch: Batch) -> Tensor:
        rows = SOFT[reading.soft](F.log_softmax(target / T, -1), F.log_softmax(logits / T, -1))
        hard = (1 - lam) * model.data_loss(logits, batch)
        return hard + lam * T**2 * reading.scale(logits.shape[-1]) * masked_mean(rows, batch)

    first = find_teacher(model, train, last, keep_models)
    tuned = train._replace(lr=distil_lr or train.lr)
    second = distil_teacher(model, tuned, distil_epochs, grid, loss, first, last)

    def enter(state: Teacher) -> PersFLState:
        return init_state(state, grid)

    return (
        Stage("train", first),
        Stage("distil", second, rounds=1, everyone=True, enter_state=enter),
    )


persfl_gd = variant(
    persfl,
    "persfl_gd",
    "PersFL-GD (6.1): PersFL with soft cross-entropy in the place of KL.",
    when="as persfl, with soft cross-entropy in the place of KL",
    soft="ce",
)
