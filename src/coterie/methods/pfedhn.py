"""pFedHN. Shamsian, Navon, Fetaya, Chechik: Personalized Federated Learning using Hypernetworks.
ICML 2021, Algorithm 1. arXiv:2103.04628.

    min_{phi, v} sum_i f_i(h(v_i; phi))

The server keeps a hyper-network phi and an embedding v_i of each client, and sends it the model
theta_i = h(v_i; phi). The client descends to theta~_i and answers Delta_i = theta_i - theta~_i,
which stands for the gradient: (phi, v_i) take a step along the vector-Jacobian product (d theta_i /
d (phi, v_i))^T Delta_i. Interpretation: where several clients answer, one step for all of them at
the phi that was sent, phi by the mean of their products, each v_i by its own. h is an MLP with a
linear head for each tensor of the model; buffers (BatchNorm) are averaged beside it.
"""

from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vjp
from torch.nn.functional import linear, relu

from coterie.core.device import CPU, to_default_device
from coterie.core.method import (
    Exchange,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Train,
    return_nothing,
)
from coterie.core.model import Model, optimize
from coterie.core.options import BelowOne, NonNegative, Positive, Range
from coterie.core.point import Leaves, Point, Vector, mean, pick, tree_map, zeros
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng, torch_stream
from coterie.methods.declare import method


class PFedHNServer(NamedTuple):
    phi: Point  # the hyper-network
    v: Tensor  # [N, e], embeddings
    phi_speed: Vector  # momentum
    v_speed: Tensor  # [N, e]
    buffers: Leaves  # of the clients' models


class PFedHNUpload(NamedTuple):
    delta: Vector
    buffers: Leaves


def build_hypernetwork(
    shapes: dict[str, tuple[int, ...]],
    inputs: int,
    hidden: int,
    layers: int,
    rng: np.random.Generator,
) -> Point:
    """A random hyper-network: each dense layer uniform within 1 / sqrt(its inputs), PyTorch's
    way."""
    generator = torch_stream(rng)
    sizes = {f"dense{k}": (hidden, inputs if k == 0 else hidden) for k in range(layers + 1)}
    sizes |= {f"head.{name}": (int(np.prod(shape)), hidden) for name, shape in shapes.items()}
    params: Leaves = {}
    for name, (outputs, fan_in) in sizes.items():
        for part, size in (("weight", (outputs, fan_in)), ("bias", (outputs,))):
            drawn = torch.rand(size, generator=generator, device=CPU)
            params[f"{name}.{part}"] = (2 * drawn - 1) / fan_in**0.5
    return to_default_device(Point(params))


def generate(phi: Leaves, v: Tensor, shapes: dict[str, tuple[int, ...]]) -> Leaves:
    """theta = h(v; phi) for embeddings [m, e]: every tensor of the model with m in front."""
    layers = sum(name.startswith("dense") for name in phi) // 2
    h = v
    for k in range(layers):
        h = linear(relu(h) if k else h, phi[f"dense{k}.weight"], phi[f"dense{k}.bias"])
    return {
        name: linear(h, phi[f"head.{name}.weight"], phi[f"head.{name}.bias"]).reshape(-1, *shape)
        for name, shape in shapes.items()
    }


def pull_back(
    phi: Point, v: Tensor, delta: Leaves, weights: Tensor, shapes: dict[str, tuple[int, ...]]
) -> tuple[Vector, Tensor]:
    """sum_i weights_i (d theta_i / d phi)^T Delta_i, and (d theta_i / d v_i)^T Delta_i [m, e]."""
    back = vjp(lambda p, e: generate(p, e, shapes), phi.params, v)[1]
    d_phi, d_v = back(tree_map(lambda a: a * weights.reshape(-1, *(1,) * (a.dim() - 1)), delta))
    return Vector(d_phi), d_v / weights[:, None]


@method(when="many small clients; the server may train a large network")
def pfedhn(
    model: Model,
    train: Train,
    hyper_hidden: Annotated[int, Range(1, 100_000)] = 100,
    hyper_layers: Annotated[int, Range(0, 1_000)] = 3,
    embedding: Annotated[int, Range(0, 100_000)] = 0,
    hyper_lr: Positive = 0.1,
    server_momentum: BelowOne = 0.9,
    server_weight_decay: NonNegative = 1e-3,
    clip: Positive = 50.0,
) -> Method:
    """A hyper-network on the server makes every client's model.

    hyper_hidden: width of the hyper-network's hidden layers.
    hyper_layers: number of its hidden layers.
    embedding: length of v_i; 0: 1 + N/4.
    hyper_lr: learning rate of the server's steps.
    server_momentum: momentum of the server's steps.
    server_weight_decay: weight decay of the server's steps.
    clip: the longest gradient of a step.
    """
    begin, step = optimize(model, train)
    shapes = model.shapes

    def init(rng: Rng, facts: Facts) -> PFedHNServer:
        length = embedding or int(1 + facts.clients / 4)
        phi = build_hypernetwork(shapes, length, hyper_hidden, hyper_layers, rng)
        v = to_default_device(
            torch.randn(facts.clients, length, generator=torch_stream(rng), device=CPU)
        )
        return PFedHNServer(phi, v, zeros(phi), torch.zeros_like(v), model.init(rng).buffers)

    def send(server: PFedHNServer, i: int, rng: Rng) -> Point:
        return Point(
            pick(generate(server.phi.params, server.v[i : i + 1], shapes), 0), server.buffers
        )

    def receive(server: PFedHNServer, replies: Replies, rng: Rng) -> PFedHNServer:
        ids, weights = replies.ids, train.weights(replies)
        v = server.v[ids]
        d_phi, d_v = pull_back(server.phi, v, replies.upload.delta.params, weights, shapes)
        length = (d_phi.squared() + d_v.square().sum()).sqrt()
        scale = (clip / length.clamp(min=clip)).to(v.dtype)
        phi_speed = server_momentum * server.phi_speed + (
            scale * d_phi + server_weight_decay * server.phi.as_vector()
        )
        v_speed = server_momentum * server.v_speed[ids] + (scale * d_v + server_weight_decay * v)
        return PFedHNServer(
            phi=server.phi - hyper_lr * phi_speed,
            v=server.v.index_copy(0, ids, v - hyper_lr * v_speed),
            phi_speed=phi_speed,
            v_speed=server.v_speed.index_copy(0, ids, v_speed),
            buffers=mean(replies.upload.buffers, weights),
        )

    def fit_embedding(server: PFedHNServer, replies: Replies, rng: Rng) -> PFedHNServer:
        """A newcomer's own step: v_i moves, the hyper-network rests."""
        ids = replies.ids
        v, weights = server.v[ids], torch.ones(len(ids))
        _, d_v = pull_back(server.phi, v, replies.upload.delta.params, weights, shapes)
        scale = clip / d_v.norm(dim=1, keepdim=True).clamp(min=clip)
        v_speed = server_momentum * server.v_speed[ids] + (scale * d_v + server_weight_decay * v)
        return server._replace(
            v=server.v.index_copy(0, ids, v - hyper_lr * v_speed),
            v_speed=server.v_speed.index_copy(0, ids, v_speed),
        )

    def admit(server: PFedHNServer) -> PFedHNServer:
        middle = server.v.mean(0, keepdim=True)  # a newcomer starts amid the others
        return server._replace(
            v=torch.cat([server.v, middle]), v_speed=torch.cat([server.v_speed, 0 * middle])
        )

    trip = Exchange(
        send=send,
        start=lambda state, theta: begin(theta),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, state, theta: (state, PFedHNUpload(theta - c.w, c.w.buffers)),
        receive=receive,
    )
    return Method(
        init=init,
        join=return_nothing,
        round=(trip,),
        newcomer=Newcomer(
            "fits its embedding, the hyper-network held",
            rounds="all",
            round=(trip._replace(receive=fit_embedding),),
        ),
        personal=lambda state, theta: theta,
        admit=admit,
        notes=lambda server: {"v": server.v},
        describes={"v": LoggedQuantity("embeddings v of the clients", QuantityKind.VECTORS)},
    )
