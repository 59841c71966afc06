"""`server_optimizer`: any method that averages models moves along their mean by an optimizer.

What the method's own `receive` makes of a model is the mean that it would have taken over; the
optimizer says how far towards it, and beyond, the server's model goes. A server's state may hold
several models, each with moments of its own; what is no model stays as `receive` made it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Exchange, Facts, Method, Replies, Stage, keep_server, stages_of
from coterie.core.point import Point
from coterie.core.rng import Rng
from coterie.core.server_optimizers import Moments, ServerOptimizer


class OptimizedServer(NamedTuple):
    """A server's state, and the moments of every model in it."""

    own: Any
    moments: tuple[Moments, ...]


def _is_model(node: Any) -> bool:
    return isinstance(node, Point)


def _list_models(server: Any) -> list[Point]:
    return [n for n in pytree.tree_leaves(server, is_leaf=_is_model) if _is_model(n)]


def optimize_server(
    built: Method | tuple[Stage, ...], optimizer: ServerOptimizer, lr: float, name: str
) -> Method | tuple[Stage, ...]:
    """The method whose server moves its models by an optimizer."""

    def begin(own: Any) -> OptimizedServer:
        return OptimizedServer(own, tuple(map(optimizer.begin, _list_models(own))))

    def learn(receive: Callable[..., Any]) -> Callable[..., Any]:
        if receive is keep_server:
            return keep_server

        def move(server: OptimizedServer, replies: Replies, rng: Rng) -> OptimizedServer:
            new = receive(server.own, replies, rng)
            old, means = _list_models(server.own), _list_models(new)
            if [_form(x) for x in old] != [_form(x) for x in means]:
                raise BadInput(
                    f"the server of {name} keeps models of earlier rounds, which no optimizer "
                    "moves: leave out --server-optimizer, or the option that keeps them"
                )
            moved = [
                optimizer.move(*one, lr) for one in zip(old, means, server.moments, strict=True)
            ]
            waiting = iter(moved)
            own = pytree.tree_map(
                lambda node: next(waiting)[0] if _is_model(node) else node, new, is_leaf=_is_model
            )
            return OptimizedServer(own, tuple(moments for _, moments in moved))

        return move

    def travel(exchange: Exchange) -> Exchange:
        return exchange._replace(
            send=lambda server, i, rng: exchange.send(server.own, i, rng),
            receive=learn(exchange.receive),
        )

    def wrap(base: Method) -> Method:
        admit, notes, newcomer = base.admit, base.notes, base.newcomer
        remark = base.remark
        return base._replace(
            init=lambda rng, facts: begin(base.init(rng, facts)),
            round=tuple(map(travel, base.round)),
            personalize=base.personalize and travel(base.personalize),
            admit=admit and (lambda server: server._replace(own=admit(server.own))),
            notes=notes and (lambda server: notes(server.own)),
            remark=remark and (lambda server: remark(server.own)),
            newcomer=newcomer and newcomer._replace(round=tuple(map(travel, newcomer.round))),
        )

    def enter(stage: Stage) -> Stage:
        convert = stage.enter

        def change(server: OptimizedServer, facts: Facts) -> OptimizedServer:
            assert convert is not None
            return begin(convert(server.own, facts))

        return stage._replace(method=wrap(stage.method), enter=convert and change)

    if isinstance(built, Method):
        return wrap(built)
    return tuple(map(enter, stages_of(built)))


def _form(x: Point) -> list[tuple[str, Any]]:
    return [(k, a.shape) for k, a in x.params.items()]
