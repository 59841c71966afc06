"""Self-FL. Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-Aware Personalized Federated
Learning. NeurIPS 2022, Algorithms 1 and 2 (`augmented`). arXiv:2204.08069.

theta_m ~ N(theta_0, s0^2) is seen through z_m ~ N(theta_m, s_m^2); with w_m = 1 / (s0^2 + s_m^2)
and S_-m = sum_{k != m} w_k

    start      theta - w_m / S_-m (theta_m - theta)                      (10), the others' mean
    steps      (1 - h)^l = r_m,  h = c eta / s_m^2,
               r_m = S_-m / (1 / s_m^2 + S_-m)                           (8), to theta_m^FL
    aggregate  theta = sum_m w_m theta_m / sum_m w_m                     (11)
               then (1 - C) old + C new, with C the share of active clients

s_m^2 is the variance of a client's own past models (13), s0^2 that between clients (14).

Interpretations. Section 3.2 defines the empirical variance of vectors as the trace of the sum of
outer products, without a division: so is s0^2 (`spread="sum"`), while (19) divides s_m^2 by the
number of models. Sums run over the clients that were active, as in (23) of Algorithm 2. Both
together make S_-m about 1 / (variance between clients), so that l is "too large" (Section 4.2) and
is cut at l_max; with a mean over all clients ever seen (`spread="mean", others="seen"`) r is .998,
l is below 1 and Self-FL loses to FedAvg on the paper's own data. Algorithm 1 names (7) for the
start, which needs everybody's optimum: (10) is meant. c is 1 / N_m: (8) is written for the summed
loss, SGD descends the mean one. (8) gives clients of large s_m^2 more steps, though the text says
fewer: the formula is followed, `steps_rule="fraction"` takes the text. Algorithm 2 starts at (10)
too. The clip of w_m / S_-m, the guards on l and the median for clients without history are ours.
Clusters (G.4, `level`) stand in selffl_clusters.py.
"""

from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.device import to_double, to_numpy
from coterie.core.errors import BadInput
from coterie.core.method import (
    Batch,
    Exchange,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Stage,
    Train,
)
from coterie.core.model import Descent, Model, optimize
from coterie.core.options import NonNegative, NonNegativeInt, PositiveInt, Range
from coterie.core.point import Point, Vector, blend, flatten, tree_map, zeros
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods import selffl_clusters as at_clusters
from coterie.methods import selffl_steps as law_of_steps
from coterie.methods import uncertainty as law
from coterie.methods.declare import OPTIMIZER_SETTINGS, method
from coterie.methods.fedavg import FedAvgServer, fedavg
from coterie.methods.selffl_steps import EPS, StepChoice, StepRule, StepsRule, Units

Others = Literal["active", "seen"]
Level = Literal["client", "group", "variance"]
SIGMA0 = LoggedQuantity("uncertainty between clients, sigma_0^2", QuantityKind.SERVER, log=True)


class SelfFLServer(NamedTuple):
    """The global model, and what is known of every client."""

    theta: Point
    s0sq: Tensor  # s0^2; -1 while unknown
    var: Tensor  # [N] last reported s_m^2; -1 without history
    sizes: Tensor  # [N] training rows; 0 before a client's first reply
    active: Tensor  # [N] whether a client answered in the last round
    others: Tensor  # [N] S_-m; 0 while no variance is known
    rate: Tensor  # C
    clusters: Any  # Clusters of another `level` than clients; else ()


class SelfFLPayload(NamedTuple):
    theta: Point
    s0sq: Tensor
    others: Tensor  # S_-m: a client never sees another's variance


class SelfFLUpload(NamedTuple):
    theta: Point
    var: Tensor  # s_m^2; -1 without history
    optimum: Any  # the converged model of Algorithm 2; else ()


class SelfFLState(NamedTuple):
    theta: Point  # the latest personal model
    mean: Vector  # of the client's models so far
    var: Tensor  # s_m^2, their variance
    t: Tensor  # times it was active
    choice: StepChoice  # of its last round


class Carry(NamedTuple):
    way: Descent
    theta: Point  # theta_m, once its steps are over
    boost: Tensor


class Aggregation(NamedTuple):
    """How the server makes theta and s0^2 of the replies; the options are options of `selffl`."""

    train: Train
    weigh: bool
    smooth: bool
    level: Level
    clusters: int
    augmented: bool
    others: Others
    spread: law.Spread
    known_variance: float
    known_spread: float


def init_state(theta: Point) -> SelfFLState:
    """A client that has not been active yet."""
    none = torch.tensor(0.0)
    return SelfFLState(
        theta=theta, mean=zeros(theta), var=none, t=none, choice=law_of_steps.empty_choice()
    )


def fill_variances(var: Tensor) -> Tensor:
    """s_m^2 in double precision; the median stands for that of a client without history, and 1
    where nobody has any."""
    var = to_double(var)
    known = var[var >= 0]
    middle = known.quantile(0.5) if len(known) else var.new_ones(())
    s2 = torch.where(var < 0, middle, var)
    return s2.clamp(min=EPS * max(1.0, float(middle)))


def weigh_clients(var: Tensor, seen: Tensor, s0sq: Tensor) -> Tensor:
    """w of all that were seen, in double precision; 0 for the others."""
    w = law.weights(to_double(s0sq).clamp(min=0), fill_variances(var))
    return w * seen if (var >= 0).any() else seen.double()


def compute_precisions(server: SelfFLServer) -> Tensor:
    """w_m [N] of all clients seen; 0 for the others."""
    seen = (server.var.cpu() >= 0) | (server.sizes.cpu() > 0)
    return weigh_clients(server.var, seen, server.s0sq)


def cluster_precisions(server: SelfFLServer) -> Tensor:
    """The same [k] of all clusters that have a model."""
    clusters = server.clusters
    return weigh_clients(clusters.var, clusters.heard.cpu(), server.s0sq)


def update_sums(server: SelfFLServer, others: Others) -> SelfFLServer:
    """The server with S_-m [N] of all clients; 0 while no variance is known."""
    if (server.var < 0).all():
        return server._replace(others=torch.zeros_like(server.others))
    w = compute_precisions(server)
    if others == "active" and server.active.any():
        w = w * server.active.cpu()
    sums = torch.from_numpy(law.sum_of_others(to_numpy(w)))
    return server._replace(others=sums.to(server.others))


def admit(how: Aggregation, server: SelfFLServer) -> SelfFLServer:
    """Room for one more client."""

    def more(a: Tensor, value: float) -> Tensor:
        return torch.cat([a, torch.full_like(a[:1], value)])

    wider = server._replace(
        var=more(server.var, -1),
        sizes=more(server.sizes, 0),
        active=more(server.active, 0),
        others=more(server.others, 0),
        clusters=server.clusters and at_clusters.admit(server.clusters),
    )
    return update_sums(group_clients(how, wider), how.others)


def init_server(how: Aggregation, theta: Point, facts: Facts) -> SelfFLServer:
    """The server before its first round."""
    n = facts.clients
    server = SelfFLServer(
        theta=theta,
        s0sq=torch.tensor(how.known_spread),
        var=how.known_variance / facts.sizes if how.known_variance else -torch.ones(n),
        sizes=torch.zeros(n),
        active=torch.zeros(n),
        others=torch.zeros(n),
        rate=torch.tensor(facts.rate),
        clusters=(),
    )
    if how.level == "client":
        return update_sums(server, how.others)
    group = facts.groups.unique(return_inverse=True)[1]
    count = int(group.max()) + 1 if how.level == "group" else min(how.clusters, n)
    server = server._replace(clusters=at_clusters.unheard(group, theta, count))
    return update_sums(group_clients(how, server), how.others)


def group_clients(how: Aggregation, server: SelfFLServer) -> SelfFLServer:
    """The server with its clusters by the newest variances, where these decide."""
    if how.level != "variance":
        return server
    of = at_clusters.by_variance(fill_variances(server.var), len(server.clusters.var))
    return server._replace(clusters=server.clusters._replace(of=of.to(server.var.device)))


def update_server(how: Aggregation, server: SelfFLServer, replies: Replies) -> SelfFLServer:
    """The server after a round."""
    put, upload = (replies.ids,), replies.upload
    server = server._replace(
        var=server.var.index_put(put, upload.var),
        sizes=server.sizes.index_put(put, replies.sizes),
        active=torch.zeros_like(server.active).index_put(put, torch.ones(len(replies.ids))),
    )
    if how.known_spread < 0 and len(replies.ids) > 1:  # one has no spread: the old value stands
        models = flatten(upload.optimum if how.augmented else upload.theta)
        server = server._replace(s0sq=law.spread(models, how.spread))
    if how.level != "client":
        server = with_representatives(how, group_clients(how, server), replies)
    theta = aggregate_models(how, server, replies)
    return update_sums(server._replace(theta=theta), how.others)


def with_representatives(how: Aggregation, server: SelfFLServer, replies: Replies) -> SelfFLServer:
    """The server with the newest models of the clusters whose clients have answered."""
    ids = replies.ids
    weights = compute_precisions(server)[ids.cpu()] if how.weigh else how.train.weights(replies)
    known = (server.var >= 0).any()
    var = fill_variances(server.var)[ids.cpu()] if known else -torch.ones(len(ids))
    clusters = at_clusters.update(
        server.clusters,
        ids,
        replies.upload.theta,
        var.to(server.var),
        weights.to(server.var),
        replies.average,
    )
    return server._replace(clusters=clusters)


def aggregate_models(how: Aggregation, server: SelfFLServer, replies: Replies) -> Point:
    """theta of the models of clients, smoothed by the activity rate, or of all clusters (11)."""
    clusters, models = server.clusters, replies.upload.theta
    if clusters:
        models = at_clusters.representatives(clusters)
        w = cluster_precisions(server)[clusters.heard.cpu()]
        sizes = at_clusters.rows_of(clusters, server.sizes)
    else:
        w, sizes = compute_precisions(server)[replies.ids.cpu()], server.sizes[replies.ids]
    weights = w / w.sum() if how.weigh else how.train.weights(replies._replace(sizes=sizes))
    theta: Point = replies.average(models, weights)
    if how.smooth and not clusters and server.rate < 1:
        return blend(server.theta, theta, server.rate)
    return theta


def log_server(server: SelfFLServer) -> dict[str, Tensor]:
    """What the server writes down after a round."""
    found = {"sigma0": server.s0sq}
    return found | {"cluster": server.clusters.of} if server.clusters else found


def build_exchange(model: Model, rule: StepRule, how: Aggregation, converge_steps: int) -> Exchange:
    """A round: the client's start (10) and steps (8), its variance (13), the server's sums."""
    begin, plain_step = optimize(model, rule.train)

    def prepare(state: SelfFLState, sent: SelfFLPayload, rows: Tensor) -> SelfFLState:
        spread = float(sent.s0sq), float(sent.others)
        choice = law_of_steps.choose_steps(
            rule, float(state.var), float(state.t), *spread, int(rows)
        )
        return state._replace(choice=choice)

    def start(state: SelfFLState, sent: SelfFLPayload) -> Carry:
        theta = sent.theta - state.choice.pull * (state.theta - sent.theta)
        return Carry(begin(theta), theta, state.choice.boost)

    def step(c: Carry, batch: Batch) -> Carry:
        if not rule.known_variance:
            return c._replace(way=plain_step(c.way, batch))
        summed = optimize(
            model, rule.train, lambda out, batch: c.boost * model.data_loss(out, batch)
        )[1]
        return c._replace(way=summed(c.way, batch))

    def finish(
        c: Carry, state: SelfFLState, sent: SelfFLPayload
    ) -> tuple[SelfFLState, SelfFLUpload]:
        theta = c.theta if how.augmented else c.way.w
        t = state.t + 1
        centre, var = law.update_moments(t, state.mean, state.var, c.way.w.as_vector())
        variance = state.choice.s2 if rule.known_variance else torch.where(t < 2, -1.0, var)
        new = SelfFLState(theta=theta, mean=centre, var=var, t=t, choice=state.choice)
        return new, SelfFLUpload(theta, variance, c.way.w if how.augmented else ())

    passes: tuple[Pass, ...] = (Pass(step, rule.train.plan(adaptive=True)),)
    if how.augmented:
        further = Pass(step, rule.train.plan(steps=converge_steps))
        passes = (*passes, Pass(lambda c, _: c._replace(theta=c.way.w)), further)
    return Exchange(
        send=lambda server, i, rng: SelfFLPayload(server.theta, server.s0sq, server.others[i]),
        prepare=prepare,
        steps=lambda state, sent, rows: state.choice.steps,
        start=start,
        passes=passes,
        finish=finish,
        receive=lambda server, replies, rng: update_server(how, server, replies),
    )


@method(
    when="clients differ in how much they differ; steps adapt to it",
    refuses=dict.fromkeys(
        (*OPTIMIZER_SETTINGS, "lr_schedule"), "its number of steps counts plain ones of one rate"
    ),
    only={
        "local_steps": ("l_base", 0),
        "local_epochs": ("l_base", 0),
        "weighting": ("weigh", False),
    },
    uploads="models",
    former={"cluster": False},
)
def selffl(
    model: Model,
    train: Train,
    l_max: PositiveInt = 40,
    l_base: NonNegativeInt = 20,
    units: Units = "per_sample",
    steps_rule: StepsRule = "formula",
    fl_weight: law.FlWeight = "paper",
    others: Others = "active",
    spread: law.Spread = "sum",
    start_rule: bool = True,
    adapt_steps: bool = True,
    weigh: bool = True,
    warm: NonNegativeInt = 0,
    smooth: bool = True,
    augmented: bool = False,
    converge_steps: PositiveInt = 100,
    level: Level = "client",
    clusters: PositiveInt = 5,
    known_variance: NonNegative = 0.0,
    known_spread: Annotated[float, Range(-1, 1e6)] = -1.0,
) -> Method | tuple[Stage, ...]:
    """Start value, local steps and aggregation weights from the uncertainty within and between
    clients.

    l_max: most steps in a round.
    l_base: steps of a client without history; 0: those of [train].
    units: the c of (8): "per_sample" 1/N_m, "per_batch" B/N_m, "plain" 1.
    steps_rule: "formula" (8), or "fraction": l_max (1 - r).
    fl_weight: "paper" aims at theta_m^FL, "exact" at the Bayes estimate: r with 1 / (s0^2 + 1 /
        S_-m) for S_-m.
    others: the clients that S_-m sums over: "active" in the last round, or all "seen" so far.
    spread: s0^2 as the "sum" or the "mean" of squared distances between clients' models.
    start_rule: a client starts at the others' mean (10); no: at the global model, as in FedAvg.
    adapt_steps: the number of steps follows the uncertainty (8); no: as in FedAvg.
    weigh: uploads are weighted by their certainty (11); no: as in FedAvg.
    warm: rounds of FedAvg before.
    smooth: the server keeps a share 1 - C of its old model, C being the share of active clients.
    augmented: Algorithm 2: variances from models trained `converge_steps` further; both models are
        uploaded.
    converge_steps: further steps of Algorithm 2, with augmented.
    level: what the server aggregates: the models of active "client"s, or, without smoothing, the
        newest model of every cluster of clients, by true "group" or by similar "variance" s_m^2.
    clusters: number of clusters, with level = variance.
    known_variance: the variance of one observation, if known: s_m^2 is it over N_m, S_-m sums over
        all clients, and the summed likelihood is descended.
    known_spread: s0^2, if known; negative: unknown.
    """
    if known_variance and warm:
        raise BadInput(
            f"selffl: warm = {warm} descends the mean loss, known_variance the summed one: "
            "give only one of them"
        )
    rule = StepRule(
        train=train,
        l_max=l_max,
        l_base=l_base,
        units=units,
        steps_rule=steps_rule,
        fl_weight=fl_weight,
        start_rule=start_rule,
        adapt_steps=adapt_steps,
        known_variance=known_variance,
    )
    how = Aggregation(
        train=train,
        weigh=weigh,
        smooth=smooth,
        level=level,
        clusters=clusters,
        augmented=augmented,
        # with known variances the sums are over everybody
        others="seen" if known_variance else others,
        spread=spread,
        known_variance=known_variance,
        known_spread=known_spread,
    )
    clustered = {} if level == "client" else {"cluster": at_clusters.NOTE}
    own = Method(
        init=lambda rng, facts: init_server(how, model.init(rng), facts),
        join=lambda sent, rng: init_state(sent.theta),
        round=(build_exchange(model, rule, how, converge_steps),),
        personal=lambda state, sent: tree_map(
            lambda mine, its: torch.where(state.t > 0, mine, its), state.theta, sent.theta
        ),
        views={"global": lambda state, sent: sent.theta},
        admit=lambda server: admit(how, server),
        newcomer=Newcomer("starts at theta and takes Self-FL's steps"),
        notes=log_server,
        client_notes=lambda state: law_of_steps.logged_choice(
            state.choice, state.var, state.t, rule
        ),
        describes={"sigma0": SIGMA0, **clustered, **law_of_steps.QUANTITIES},
        needs=frozenset({"groups"} if level == "group" else ()),
    )
    if not warm:
        return own

    def enter(before: FedAvgServer, facts: Facts) -> SelfFLServer:
        return init_server(how, before.w, facts)

    # a client's state waits through the warm start untouched, so t_m is 0 when Self-FL begins
    steps = train._replace(local_steps=l_base or train.local_steps)
    before = fedavg(model, steps)._replace(join=lambda w, rng: init_state(w))
    return (Stage("warm", before, rounds=warm), Stage("train", own, enter=enter))
