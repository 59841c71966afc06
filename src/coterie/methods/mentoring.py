"""How FedKD's mentor and mentee learn from each other, and what their server keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad

from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Descent, masked_mean
from coterie.core.point import Leaves, Point, Vector
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.split import Split
from coterie.core.task import find_task
from coterie.methods.low_rank import truncate

LEAST = 0.1  # of the sum of losses by which the terms between mentor and mentee are divided
NOTES = {
    "sent": LoggedQuantity(
        "numbers in the factors of an update",
        QuantityKind.COURSE,
        "%",
        "The share of its update's numbers that a client would send as factors of low rank.",
    )
}
# (mentor, mentee, W, batch) -> their gradients
MentorGradients = Callable[[Point, Point, Point, Batch], tuple[Vector, Vector, Vector]]


class KDServer(NamedTuple):
    """The mentee, T, and the rounds that were."""

    w: Point
    energy: Tensor
    round: Tensor


class KDPayload(NamedTuple):
    """What goes down."""

    w: Point
    energy: Tensor


class KDState(NamedTuple):
    """What stays on a client."""

    mentor: Point
    link: Point  # W
    sent: Tensor  # numbers in the factors of its last update, as a share of all


class KDCarry(NamedTuple):
    """A client at work."""

    mentor: Descent
    mentee: Descent
    link: Descent


def build_mentor_gradients(
    mentor: Split, mentee: Split, distil: float, features: float
) -> MentorGradients:
    """Gradients of L_t by the mentor, of L_s by the mentee, and of their features' distance by W,
    from one forward pass of each."""
    goal = mentee.model.goal
    if distil and not find_task(goal.name).has_label:
        raise BadInput(
            "fedkd compares class probabilities or single numbers, and this task has no classes: "
            "use a method without it"
        )

    def run(cut: Split, params: Leaves, w: Point, batch: Batch) -> tuple[Tensor, Tensor, Leaves]:
        h, fresh = cut.body.forward(Point(params, w.buffers), batch)
        return h, cut.head(params, h, batch), fresh

    def apart(mine: Tensor, other: Tensor, batch: Batch) -> Tensor:
        return masked_mean(goal.distance(goal.soften(other.detach(), 1.0), mine, 1.0), batch)

    def gradients(t: Point, s: Point, link: Point, batch: Batch) -> tuple[Vector, Vector, Vector]:
        def total(t_params: Leaves, s_params: Leaves, own: Leaves) -> tuple[Tensor, Any]:
            h_t, z_t, fresh_t = run(mentor, t_params, t, batch)
            h_s, z_s, fresh_s = run(mentee, s_params, s, batch)
            losses = mentor.model.data_loss(z_t, batch) + mentee.model.data_loss(z_s, batch)
            between = features * masked_mean((h_t - h_s @ own["W"].T).square().mean(-1), batch)
            if distil:
                between = between + distil * (apart(z_t, z_s, batch) + apart(z_s, z_t, batch))
            value = losses + between / losses.detach().clamp(min=LEAST)
            return value, ((fresh_t, fresh_s), value.detach())

        of_all = grad(total, argnums=(0, 1, 2), has_aux=True)
        found, (fresh, value) = of_all(t.params, s.params, link.params)
        of_t, of_s = ({k: b.detach() for k, b in buffers.items()} for buffers in fresh)
        vectors = Vector(found[0], of_t), Vector(found[1], of_s), Vector(found[2])
        g_t, g_s, g_link = (mentee.model.limit(vector, value) for vector in vectors)
        return g_t, g_s, g_link

    return gradients


def compress_update(start: Point, end: Point, energy: Tensor) -> tuple[Point, Tensor]:
    """The end of a way of low rank from `start` to `end`, and the share of numbers in its factors;
    running statistics are those of `end`."""
    update, share = truncate(end - start, energy)
    return Point((start + update).params, end.buffers), share


def close_round(c: KDCarry, sent: KDPayload) -> tuple[KDState, Point]:
    """What a client keeps after its round, and what it sends."""
    upload, share = compress_update(sent.w, c.mentee.w, sent.energy)
    return KDState(c.mentor.w, c.link.w, share), upload
