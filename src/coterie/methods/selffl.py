"""Self-FL. Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-Aware Personalized Federated Learning. NeurIPS 2022,
Algorithms 1 and 2 (`augmented`).

theta_m ~ N(theta_0, s0^2) is seen through z_m ~ N(theta_m, s_m^2); with w_m = 1 / (s0^2 + s_m^2) and S_-m = sum_{k != m} w_k

    start      theta - w_m / S_-m (theta_m - theta)                                    (10), the others' mean
    steps      (1 - h)^l = r_m,  h = c eta / s_m^2,  r_m = S_-m / (1 / s_m^2 + S_-m)    (8), where theta_m^FL lies on the way
    aggregate  theta = sum_m w_m theta_m / sum_m w_m                                   (11), then (1 - C) old + C new

with s_m^2 the variance of a client's own past models (13), s0^2 that between clients (14), both summed over coordinates, C the
share of clients active in a round. Readings: Algorithm 1 names (7) for the start, which needs everybody's optimum: (10) is meant.
c is 1 / N_m by default: (8) is written for the summed loss, SGD descends the mean one. (8) gives clients of large s_m^2 more
steps, though the text says fewer: the formula is followed, `steps_rule="fraction"` takes the text. S_-m runs over all clients
ever seen, as in the theory. Algorithm 2 starts at (10) too. The clip of w_m / S_-m, the guards on l and the median for clients
without history are ours.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput, nearest
from coterie.core.method import Exchange, Method, Pass, Stage, Train
from coterie.core.model import Descent, Model, sgd
from coterie.core.point import Point, Vector, blend, flat, mean, pick, tree, zeros
from coterie.methods import uncertainty as law
from coterie.methods.fedavg import Global, fedavg

EPS = 1e-12  # a variance is never smaller
NONE, HISTORY, CURVED, SETTLED, FLOOR, CAP = range(6)  # the guard that chose l
CHOICES = {
    "units": ("per_sample", "plain", "per_batch"),
    "steps_rule": ("formula", "fraction"),
    "fl_weight": law.FL_WEIGHTS,
}


class Server(NamedTuple):
    """The global model, and what is known of every client."""

    theta: Point
    s0sq: Tensor  # s0^2; -1 while unknown
    var: Tensor  # [N] last reported s_m^2; -1 without history
    sizes: Tensor  # [N] training rows; 0 before a client's first reply
    others: Tensor  # [N] S_-m; 0 while no variance is known
    rate: Tensor  # C
    newest: Any  # Upload of every client [N, ...] for `cluster`; else ()


class Payload(NamedTuple):
    theta: Point
    s0sq: Tensor
    others: Tensor  # S_-m: a client never sees another's variance


class Upload(NamedTuple):
    theta: Point
    var: Tensor  # s_m^2; -1 without history
    optimum: Any  # the converged model of Algorithm 2; else ()


class Choice(NamedTuple):
    """How a client works in one round."""

    s2: Tensor  # the s_m^2 it was made with
    pull: Tensor  # w_m / S_-m
    r: Tensor
    h: Tensor
    raw: Tensor  # l before rounding and guards
    steps: Tensor  # l
    guard: Tensor
    boost: Tensor  # factor of the mean-loss gradient


class State(NamedTuple):
    theta: Point  # the latest personal model
    mean: Vector  # of the client's models so far
    var: Tensor  # s_m^2, their variance
    t: Tensor  # times it was active
    choice: Choice  # of its last round


class Carry(NamedTuple):
    way: Descent
    theta: Point  # theta_m, once its steps are over
    boost: Tensor


def fresh(theta: Point) -> State:
    """A client that has not been active yet."""
    none = torch.tensor(0.0)
    choice = Choice(*(none,) * 5, torch.tensor(0), torch.tensor(HISTORY), none)
    return State(theta, zeros(theta), none, none, choice)


def precisions(server: Server) -> Tensor:
    """w_m [N] of all clients seen, the median variance standing for one without history; 0 for the others."""
    known = server.var[server.var >= 0].double()
    middle = known.quantile(0.5) if len(known) else torch.tensor(1.0)
    s2 = torch.where(server.var < 0, middle, server.var.double()).clamp(min=EPS * max(1.0, float(middle)))
    seen = (server.var >= 0) | (server.sizes > 0)
    return law.weights(server.s0sq.double().clamp(min=0), s2) * seen if len(known) else seen.double()


def sums(server: Server) -> Tensor:
    """S_-m [N] over all clients seen; 0 while no variance is known."""
    if (server.var < 0).all():
        return torch.zeros_like(server.others)
    return torch.from_numpy(law.without(precisions(server).numpy())).to(server.others.dtype)


def admit(server: Server) -> Server:
    """Room for one more client."""

    def more(a: Tensor, value: float) -> Tensor:
        return torch.cat([a, torch.full_like(a[:1], value)])

    newest = tree(lambda a: torch.cat([a, a[:1]]), server.newest)
    wider = server._replace(var=more(server.var, -1), sizes=more(server.sizes, 0), others=more(server.others, 0), newest=newest)
    return wider._replace(others=sums(wider))


def selffl(
    model: Model,
    train: Train,
    l_max: int = 40,
    l_base: int = 20,
    units: str = "per_sample",
    steps_rule: str = "formula",
    fl_weight: str = "paper",
    start_rule: bool = True,
    adapt_steps: bool = True,
    weigh: bool = True,
    warm: int = 0,
    smooth: bool = True,
    augmented: bool = False,
    converge_steps: int = 100,
    cluster: bool = False,
    known_variance: float = 0.0,
    known_spread: float = -1.0,
) -> Method | tuple[Stage, ...]:
    """Start value, local steps and aggregation weights from the uncertainty within and between clients.

    l_max, l_base: most steps a round; steps without history (0: the epochs or steps of [train]).
    units: the c of (8): "per_sample" 1/N_m, "per_batch" B/N_m, "plain" 1.
    steps_rule: "formula" (8), or "fraction": l_max (1 - r).
    fl_weight: "paper" aims at theta_m^FL, "exact" at the Bayes estimate: r with 1 / (s0^2 + 1 / S_-m) for S_-m.
    start_rule, adapt_steps, weigh: the three components; one that is off is FedAvg's.
    warm: rounds of FedAvg before. smooth: the activity rate's smoothing on the server.
    augmented: Algorithm 2, variances from models trained `converge_steps` further; both models are uploaded.
    cluster: the server keeps everybody's newest model and aggregates them all, without smoothing.
    known_variance: the variance of one observation, if known: s_m^2 is it over N_m, and the summed likelihood is descended.
    known_spread: s0^2, if known (not negative).
    """
    chosen = {"units": units, "steps_rule": steps_rule, "fl_weight": fl_weight}
    for name, valid in CHOICES.items():
        if chosen[name] not in valid:
            raise BadInput(f"selffl: {name} = '{chosen[name]}' is unknown{nearest(chosen[name], valid)}")
    for name, value, least in (
        ("l_max", l_max, 1),
        ("l_base", l_base, 0),
        ("warm", warm, 0),
        ("converge_steps", converge_steps, 1),
    ):
        if value < least:
            raise BadInput(
                f"selffl: {name} = {value}, but it counts {'rounds' if name == 'warm' else 'steps'}: give {least} or more"
            )
    if known_variance < 0:
        raise BadInput(f"selffl: known_variance = {known_variance:g}, but a variance is positive: give 0 to have it estimated")

    if known_variance and warm:
        raise BadInput(f"selffl: warm = {warm} descends the mean loss, known_variance the summed one: give only one of them")

    begin, plain_step = sgd(model, train)

    # Client

    def prepare(state: State, sent: Payload, rows: Tensor) -> State:
        n = int(rows)
        s2 = max(known_variance / n if known_variance else float(state.var), EPS)
        s0sq, rest = float(sent.s0sq), float(sent.others)
        base = l_base or train.steps or train.epochs * -(-n // (train.batch or 1024))
        boost = n / known_variance if known_variance else 1.0
        unknown = (state.t < 2 and not known_variance) or s0sq < 0 or rest <= 0
        if unknown or not math.isfinite(s2 + s0sq + rest):  # a plain step of FedAvg
            return state._replace(choice=Choice(*map(torch.tensor, (s2, 0.0, 0.0, 0.0, 0.0, base, HISTORY, boost))))
        pull = min(law.weights(s0sq, s2) / rest, 1.0) if start_rule else 0.0
        r = law.share(s2, law.trust(s0sq, rest, fl_weight))
        c = 1.0 if units == "plain" or known_variance else (1 if units == "per_sample" else min(train.batch or n, n)) / n
        h = max(c * train.rate / s2, EPS)
        raw, steps, guard = count(r, h, base)
        if not adapt_steps:
            steps, guard = base, NONE
        return state._replace(choice=Choice(*map(torch.tensor, (s2, pull, r, h, raw, steps, guard, boost))))

    def count(r: float, h: float, base: int) -> tuple[float, int, int]:
        """l before and after rounding and guards, and the guard that fired."""
        if steps_rule == "formula" and h >= 1 - 1e-6:  # one step would overshoot: (8) has no solution
            return 0.0, min(base, l_max), CURVED
        if steps_rule == "formula" and r >= 1 - 1e-12:  # nothing to personalize
            return 0.0, 1, SETTLED
        raw = float(law.steps(r, h)) if steps_rule == "formula" else l_max * (1 - r)
        steps = min(max(round(raw), 1), l_max)
        return raw, steps, CAP if steps < round(raw) else FLOOR if steps > round(raw) else NONE

    def start(state: State, sent: Payload) -> Carry:
        theta = sent.theta - state.choice.pull * (state.theta - sent.theta)  # (10)
        return Carry(begin(theta), theta, state.choice.boost)

    def step(c: Carry, batch) -> Carry:
        if not known_variance:
            return c._replace(way=plain_step(c.way, batch))
        likelihood = sgd(model, train, lambda logits, batch: c.boost * model.data_loss(logits, batch))[1]
        return c._replace(way=likelihood(c.way, batch))

    def finish(c: Carry, state: State, sent: Payload) -> tuple[State, Upload]:
        theta = c.theta if augmented else c.way.w
        t = state.t + 1
        centre, var = law.online(t, state.mean, state.var, c.way.w.as_vector())
        told = state.choice.s2 if known_variance else torch.where(t < 2, -1.0, var)
        return State(theta, centre, var, t, state.choice), Upload(theta, told, c.way.w if augmented else ())

    # Server

    def init(rng, facts) -> Server:
        return enter(Global(model.init(rng)), facts)

    def enter(before: Global, facts) -> Server:
        n, theta = facts.clients, before.w
        var = known_variance / facts.sizes if known_variance else -torch.ones(n)
        upload = Upload(theta, torch.tensor(0.0), theta if augmented else ())
        newest = tree(lambda a: a.expand(n, *a.shape).clone(), upload) if cluster else ()
        server = Server(theta, torch.tensor(known_spread), var, torch.zeros(n), torch.zeros(n), torch.tensor(facts.rate), newest)
        return server._replace(others=sums(server))

    def receive(server: Server, replies, rng) -> Server:
        put = (replies.ids,)
        var, sizes = server.var.index_put(put, replies.upload.var), server.sizes.index_put(put, replies.sizes)
        ids, upload, newest = replies.ids, replies.upload, server.newest
        if cluster:
            newest = tree(lambda all_, new: all_.index_put(put, new), newest, upload)
            ids = sizes.nonzero().squeeze(1)
            upload = pick(newest, ids)
        server = server._replace(var=var, sizes=sizes, newest=newest)
        if known_spread < 0 and len(ids) > 1:  # one model has no spread: the old value stands
            server = server._replace(s0sq=law.spread(flat(upload.optimum if augmented else upload.theta)))
        w = precisions(server)[ids]
        share = w / w.sum() if weigh else train.weights(replies._replace(ids=ids, sizes=sizes[ids]))
        theta = mean(upload.theta, share)
        if smooth and not cluster and server.rate < 1:
            theta = blend(server.theta, theta, server.rate)
        return server._replace(theta=theta, others=sums(server))

    def client_notes(state: State) -> dict[str, Tensor]:
        c, missing = state.choice, torch.tensor(math.nan)
        ruled = c.guard != HISTORY
        return {
            "sigma2": c.s2 if known_variance else torch.where(state.t < 2, missing, state.var),
            "steps_taken": c.steps,
            "raw_steps": torch.where(ruled & (c.guard != CURVED) & (c.guard != SETTLED), c.raw, missing),
            "r": torch.where(ruled, c.r, missing),
            "h": torch.where(ruled, c.h, missing),
            "capped": ruled & (c.steps >= l_max) & adapt_steps,
            "guard": c.guard,
        }

    train_passes: tuple[Pass, ...] = (Pass(step, train.plan(adaptive=True)),)
    if augmented:
        further = Pass(step, train.plan(steps=converge_steps))
        train_passes = (*train_passes, Pass(lambda c, _: c._replace(theta=c.way.w)), further)
    method = Method(
        init=init,
        join=lambda sent, rng: fresh(sent.theta),
        round=(
            Exchange(
                send=lambda server, i, rng: Payload(server.theta, server.s0sq, server.others[i]),
                prepare=prepare,
                steps=lambda state, sent, rows: state.choice.steps,
                start=start,
                passes=train_passes,
                finish=finish,
                receive=receive,
            ),
        ),
        personal=lambda state, sent: tree(lambda own, its: torch.where(state.t > 0, own, its), state.theta, sent.theta),
        views={"global": lambda state, sent: sent.theta},
        admit=admit,
        notes=lambda server: {"sigma0": server.s0sq},
        client_notes=client_notes,
    )
    if not warm:
        return method
    # a client's state waits through the warm start untouched, so t_m is 0 when Self-FL begins
    before = fedavg(model, train._replace(steps=l_base or train.steps))._replace(join=lambda w, rng: fresh(w))
    return (Stage("warm", before, rounds=warm), Stage("train", method, enter=enter))
