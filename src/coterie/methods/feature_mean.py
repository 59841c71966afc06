"""The common mean of features that FedDBE's clients hold to, and what they keep and carry."""

from typing import NamedTuple

from torch import Tensor

from coterie.core.method import Replies, Train
from coterie.core.model import Descent
from coterie.core.point import Point


class DBEServer(NamedTuple):
    """The server's state, and what travels down: w, and m [d]."""

    w: Point
    mean: Tensor


class DBECarry(NamedTuple):
    """A client at work."""

    go: Descent
    bias: Descent  # b_i
    running: Tensor  # m_i
    mean: Tensor  # m


def hear_means(server: DBEServer, replies: Replies, train: Train) -> DBEServer:
    """The server with m, the mean of the clients' m_i."""
    return server._replace(mean=replies.average(replies.upload, train.weights(replies)))
