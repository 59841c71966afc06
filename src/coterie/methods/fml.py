"""FML. Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning.
arXiv:2006.16765, 2020, Algorithm 1.

A private model p stays on its client and learns beside the shared "meme" model g, each from the
labels and from the other:
    L(p) = alpha f_i(p) + (1 - alpha) KL(p_g || p_p),
    L(g) = beta f_i(g) + (1 - beta) KL(p_p || p_g)
the other's probabilities held constant; g travels and is averaged. Of numbers and counts, KL is
half the squared distance of outputs.
Interpretation: p starts at the first g it sees; at random where it is another network.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.func import grad

from coterie.core import options
from coterie.core.errors import BadInput
from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Descent, Model, begin, descend, masked_mean
from coterie.core.point import Point, Vector
from coterie.core.task import find_task
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.networks.registry import build_network, parse_spec

Reduction = Literal["batchmean", "elementwise"]
MutualGradients = Callable[[Point, Point, Batch], tuple[Vector, Vector]]


class Carry(NamedTuple):
    """The copy of the shared model and the private one, both on their way down."""

    g: Descent
    p: Descent


class LossWeights(NamedTuple):
    """What a model's loss is made of."""

    labels: float
    peer: float


@method(when="as pfml, where own and common networks may differ", uploads="mean")
def fml(
    model: Model,
    train: Train,
    alpha: options.Share = 0.5,
    beta: options.Share = 0.5,
    kl: Reduction = "batchmean",
    auxiliary: str = "",
) -> Method:
    """Mutual learning of a private and a shared model.

    alpha: the labels' share in the private model's loss.
    beta: the labels' share in the shared model's loss.
    kl: "batchmean" is the mean over rows, "elementwise" over rows and classes.
    auxiliary: another network for the private model, such as "mlr" or "dnn:hidden=20"; empty: the
        same network.
    """
    private = build_private_model(model, auxiliary)
    gradients = build_mutual_gradients(
        model, private, LossWeights(beta, 1 - beta), LossWeights(alpha, 1 - alpha), kl
    )

    def step(c: Carry, batch: Batch) -> Carry:
        gradient_g, gradient_p = gradients(c.g.w, c.p.w, batch)
        return Carry(descend(c.g, gradient_g, train, batch), descend(c.p, gradient_p, train, batch))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda p, g: Carry(begin(g, train), begin(p, train)),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, p, g: (c.p.w, c.g.w),
    )
    return base._replace(
        join=lambda g, rng: g if private is model else private.init(rng),
        round=(trip,),
        personal=lambda p, g: p,
        views={"global": lambda p, g: g},
        model_of={"personal": private},
        newcomer=Newcomer("trains its private model beside the received one"),
    )


def build_mutual_gradients(
    shared: Model,
    own: Model,
    of_shared: LossWeights,
    of_own: LossWeights,
    kl: Reduction = "batchmean",
) -> MutualGradients:
    """Gradients of `labels f_i + peer KL(p_peer || p)` for two models at once, from one forward
    pass of each."""
    goal = shared.goal
    if not find_task(goal.name).has_label and (of_shared.peer or of_own.peer):
        raise BadInput(
            "mutual learning compares class probabilities or single numbers, and this task has "
            "no classes: use a method without it"
        )

    def loss(model: Model, share: LossWeights, mine: Tensor, other: Tensor, batch: Batch) -> Tensor:
        value = share.labels * model.data_loss(mine, batch)
        if not share.peer:
            return value
        target = goal.soften(other.detach(), 1.0)
        apart = masked_mean(goal.distance(target, mine, 1.0), batch)
        return value + share.peer * (apart / target.shape[-1] if kl == "elementwise" else apart)

    def gradients(w: Point, m: Point, batch: Batch) -> tuple[Vector, Vector]:
        def total(w_params: dict[str, Tensor], m_params: dict[str, Tensor]) -> tuple[Tensor, Any]:
            z_w, fresh_w = shared.forward(Point(w_params, w.buffers), batch)
            z_m, fresh_m = own.forward(Point(m_params, m.buffers), batch)
            of_w = loss(shared, of_shared, z_w, z_m, batch)
            of_m = loss(own, of_own, z_m, z_w, batch)
            return of_w + of_m, ((fresh_w, fresh_m), (of_w.detach(), of_m.detach()))

        gradients, (fresh, values) = grad(total, argnums=(0, 1), has_aux=True)(w.params, m.params)
        fresh_w, fresh_m = ({k: b.detach() for k, b in buffers.items()} for buffers in fresh)
        return (
            shared.limit(Vector(gradients[0], fresh_w), values[0]),
            own.limit(Vector(gradients[1], fresh_m), values[1]),
        )

    return gradients


def build_private_model(model: Model, spec: str) -> Model:
    """The network that stays on the client: a net and its options, as in "dnn:hidden=20", or the
    shared one for ""."""
    if not spec:
        return model
    shape = model.input_shape
    if shape is None:
        why = "the shared model does not say its input_shape"
        raise BadInput(f"auxiliary = '{spec}', but {why}: leave auxiliary empty")
    name, options = parse_spec(spec)
    own = Model(
        lambda: build_network(name, shape, model.outputs, **options),
        model.goal,
        name,
        shape,
        options,
    ).with_bound(model.bounded)
    if own.outputs != model.outputs:
        raise BadInput(
            f"auxiliary = '{spec}' has {own.outputs} outputs, the shared model {model.outputs}: "
            "use dnn or mlr"
        )
    return own
