"""PFML. Yang, Tian, Zhang: Regularized Mutual Learning for Personalized Federated Learning. ACML
2021, Algorithm 1. PMLR 157, https://proceedings.mlr.press/v157/yang21c.html.

A client trains its copy w_i of the global model w^t beside an auxiliary model m_i, its own, that
never travels:
    L(w_i) = f_i(w_i) + KL(p_m || p_w),  L(m_i) = f_i(m_i) + KL(p_w || p_m)  (4), (5)
the peer's probabilities constant (of numbers and counts, KL is half the squared distance of
outputs), and on each batch takes `inner` steps towards theta and
what, and one step of its own:
    theta = argmin L(m) + lam/2 |m - m_prev|^2,  m_i -= rate (grad L(m_i) + lam (m_i - theta))  (6)
    what  = argmin L(w) + lam/2 |w - w^t|^2,     w_i -= rate (grad L(w_i) + lam (w_i - what))   (9)
The server takes w^t + beta (mean w_i - w^t)  (11). Momentum is that of the outer steps; the inner
ones are plain descent. Interpretations: m_i stays on the client and m_prev is m_i as the last local
round left it (Algorithm 1 sets both to w^t in every round, which makes m_i and w_i the same for
ever); at first contact both are w^t, or random where m_i is another network. The gradient of the
proximal term in (6) is lam (m
- m_prev): (8) prints the other sign. The text regularizes m_i towards "the auxiliary model obtained
in the last round" and w_i towards w^t, which Algorithm 1 sets before its batches, and so does the
default; with `anchor = "step"`, nearest to the paper's tables, both are regularized towards what
the last batch left, as in pFedMe, which makes lam a gain in speed. How KL is reduced the paper does
not say: the default is the mean over rows and classes, as its tables suggest.
"""

from typing import Literal, NamedTuple

from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import NonNegative, Positive, PositiveInt
from coterie.core.point import Point, Vector
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.fml import LossWeights, Reduction, build_mutual_gradients, build_private_model


class Carry(NamedTuple):
    """The local and the auxiliary model on their way down, and what regularizes each."""

    w: Descent
    m: Descent
    w_t: Point
    m_prev: Point


@method(
    when="clients differ, and a model of their own learns beside the common one",
    only={"server_optimizer": ("beta", 1.0)},
    uploads="mean",
)
def pfml(
    model: Model,
    train: Train,
    lam: NonNegative = 2.0,
    inner: PositiveInt = 3,
    inner_lr: NonNegative = 0.0,
    beta: Positive = 1.0,
    kl: Reduction = "elementwise",
    kl_weight: NonNegative = 1.0,
    aux_init: Literal["persist", "start", "reset"] = "persist",
    anchor: Literal["round", "step"] = "round",
    auxiliary: str = "",
) -> Method:
    """Regularized mutual learning of a shared and a personal model.

    lam: weight of the proximal terms, for the default learning rate of 0.1; at another one keep
        their product (the paper has 15 to 30 at 0.01).
    inner: inner steps per batch.
    inner_lr: learning rate of the inner steps; 0: that of training.
    beta: the server's step towards the mean of the uploads; the paper has 2.
    kl: "elementwise" is the mean over rows and classes, "batchmean" over rows, as KL is defined.
    kl_weight: weight of mutual learning; 0 turns it off.
    aux_init: "persist" keeps m_i from round to round; "start" starts m_i at w^t and regularizes it
        towards its own past; "reset" is Algorithm 1 to the letter.
    anchor: what models are regularized towards: "round", as they were before the round, or "step",
        before each step, as the paper's Table 5 suggests.
    auxiliary: another network for the personal model, such as "dnn:hidden=20"; empty: the same
        network.
    """
    inner_lr = inner_lr or train.lr
    if auxiliary and aux_init != "persist":
        raise BadInput(
            f"pfml.aux_init = '{aux_init}', but '{auxiliary}' cannot start at the shared model: "
            "use aux_init = persist"
        )
    if anchor == "step" and aux_init == "reset":
        raise BadInput(
            "pfml.aux_init = 'reset' says what m_i is regularized towards, and so does "
            "pfml.anchor = 'step': use aux_init = start"
        )
    _check_contraction(lam, inner, inner_lr or train.lr, train.lr, anchor)
    own = build_private_model(model, auxiliary)
    gradients = build_mutual_gradients(
        model, own, LossWeights(1.0, kl_weight), LossWeights(1.0, kl_weight), kl
    )

    def nearer(x: Point, gradient: Vector, anchor: Point, rate: float | Tensor) -> Point:
        """One inner step: down L, and towards the anchor."""
        pull = lam * (x - anchor)
        if train.weight_decay:
            pull = pull + train.weight_decay * x.as_vector()
        return x - rate * (gradient + pull)

    def step(c: Carry, batch: Batch) -> Carry:
        what, theta = c.w.w, c.m.w
        w_t, m_prev = (what, theta) if anchor == "step" else (c.w_t, c.m_prev)
        # of the outer step, and of the first inner one: both are at (w_i, m_i)
        first, rate = gradients(what, theta, batch), inner_lr or train.rate_at(batch)
        for k in range(inner):
            gradient_w, gradient_m = gradients(what, theta, batch) if k else first
            what, theta = (
                nearer(what, gradient_w, w_t, rate),
                nearer(theta, gradient_m, m_prev, rate),
            )
        w = descend(c.w, first[0] + lam * (c.w.w - what), train, batch)
        m = descend(c.m, first[1] + lam * (c.m.w - theta), train, batch)
        return c._replace(w=w, m=m)

    def start(m: Point, w: Point) -> Carry:
        return Carry(
            w=begin(w, train),
            m=begin(m if aux_init == "persist" else w, train),
            w_t=w,
            m_prev=w if aux_init == "reset" else m,
        )

    base = fedavg(model, train, beta)
    trip = base.round[0]._replace(
        start=start,
        passes=(Pass(step, train.plan()),),
        finish=lambda c, m, w: (c.m.w, c.w.w),
    )
    return base._replace(
        join=lambda w, rng: w if own is model else own.init(rng),
        round=(trip,),
        personal=lambda m, w: m,
        views={"global": lambda m, w: w},
        model_of={"personal": own},
        newcomer=Newcomer("trains its m beside the received w"),
    )


def _check_contraction(lam: float, inner: int, inner_lr: float, lr: float, anchor: str) -> None:
    """Refuse rates at which the proximal terms alone, without any loss, throw a model ever farther
    from its anchor."""
    left = 1 - inner_lr * lam  # of x - anchor after an inner step
    # share of it that the outer step takes back
    moved = lr * lam * (1 - left**inner) if anchor == "round" else 0.0
    if left < -1 or moved > 2:
        raise BadInput(
            f"lam = {lam:g} with lr = {lr:g} and inner_lr = {inner_lr:g} makes pfml's "
            "proximal steps diverge: "
            "lr * lam is 0.15 to 0.3 in the paper, so lower lam to "
            f"{0.2 / max(lr, inner_lr):.2g} or the learning rate"
        )
