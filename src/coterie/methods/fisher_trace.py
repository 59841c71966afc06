"""How much a client's rows pull at its model, by the trace of the empirical Fisher matrix, and
bodies that are averaged by it.
"""

import torch
from torch import Tensor

from coterie.core.method import Batch, Replies
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.core.rng import Rng
from coterie.methods.fedper import SharedLayers


def square_gradient(model: Model, w: Point, batch: Batch) -> Tensor:
    """The squared length of the gradient of a batch's mean loss, as the model is used."""
    grad = model.sum_gradient(w, batch) * (1 / batch.mask.sum().clamp(min=1))
    return grad.squared()


def average_by_trace(server: SharedLayers, replies: Replies, rng: Rng) -> SharedLayers:
    """Bodies averaged with weights F_i / sum_k F_k; equal ones where all F_i are 0."""
    body, trace = replies.upload
    trace = trace.clamp(min=torch.finfo(trace.dtype).tiny)
    return server._replace(base=replies.average(body, trace / trace.sum()))
