"""FedMD. Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation. NeurIPS 2019
workshop on federated learning (arXiv:1910.03581), Algorithm 1.

Clients of any architecture come near to the mean of everyone's outputs on public rows:
- match "logits" (the original): mean absolute error from the mean logits;
- match "soft" (the baseline of KT-pFL's Table 1): KL(mean_m s_m || s_n), s_n = softmax(z_n / T):
KT-pFL with c = 1/N for ever, times T^2 as there; of numbers and counts, half the squared distance
of outputs.

Rounds have KT-pFL's order (private training, prediction, distillation): the original's sequence,
whose pre-training on private data is the first round's private training, or `pretrain` epochs of
it.
"""

from typing import Literal

from coterie.core.method import Method, Stage, Train, keep_server
from coterie.core.model import Model, masked_mean
from coterie.core.options import NonNegative, NonNegativeInt, Positive, PositiveInt
from coterie.core.point import mean
from coterie.methods.declare import SEVERAL_OPTIMIZERS, SupportedTasks, method
from coterie.methods.distillation import (
    Match,
    PublicOptions,
    ServerRules,
    build_distillation_method,
    match_soft,
)


@method(
    when="networks differ, clients are rather alike",
    without=("weighting",),
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
    tasks=SupportedTasks(lambda task: task.has_label, "compares predictions"),
)
def fedmd(
    model: Model,
    train: Train,
    match: Literal["soft", "logits"] = "soft",
    draw: PositiveInt = 300,
    public_batch_size: PositiveInt = 256,
    distil_epochs: PositiveInt = 5,
    distil_lr: NonNegative = 0.0,
    temperature: Positive = 3.0,
    lam: NonNegative = 1.0,
    T2_scale: bool = True,
    pretrain: NonNegativeInt = 0,
) -> Method | tuple[Stage, ...]:
    """Every client is taught by the equal mean of the active clients' outputs on public rows.

    match: what comes near the mean: "soft" by KL of softened predictions, "logits" by mean absolute
        error.
    draw: public rows used in a round.
    public_batch_size: public rows per step.
    distil_epochs: passes over the round's public rows.
    distil_lr: learning rate of distillation; 0: that of private training.
    lam: weight of distillation.
    temperature: T of match = soft, which softens the predictions.
    T2_scale: multiply the loss of match = soft by T^2.
    pretrain: epochs on private data before the first round.
    """
    near = match_soft(model, temperature, lam, T2_scale)
    if match == "logits":
        near = Match(
            name="mae",
            say=lambda logits: logits,
            gap=lambda target, logits, batch: masked_mean((logits - target).abs().mean(-1), batch),
            weight=lam,
        )
    answers = ServerRules(
        mix=lambda facts: (),
        hear=lambda server, replies: server._replace(
            ids=replies.ids, said=mean(replies.upload, replies.equal)
        ),
        teach=lambda server, i: server.said,
        learn=keep_server,
    )
    public = PublicOptions(draw, public_batch_size, distil_epochs, distil_lr)
    method = build_distillation_method(model, train, near, public, answers)
    return _add_pretraining(method, train, pretrain) if pretrain else method


def _add_pretraining(method: Method, train: Train, epochs: int) -> tuple[Stage, ...]:
    """The method after private training of all clients."""
    trip = method.round[0]
    private = trip.passes[0]
    alone = trip._replace(
        passes=(private._replace(plan=train.plan(epochs=epochs, steps=0)),),
        finish=lambda c, state, seed: (state._replace(w=c.go.w, before=c.go.w), ()),
        receive=keep_server,
    )
    return Stage("pretrain", method._replace(round=(alone,)), rounds=1, everyone=True), Stage(
        "train", method
    )
