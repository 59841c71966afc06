"""`keep_optimizer`: a client's optimizer goes on in a round where its last one ended.

What the optimizers of a carry hold at the end of an exchange is kept beside the client's state, and
put in the place of the fresh ones that the next `start` makes.
"""

from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Exchange, Method, Stage, Tree, stages_of
from coterie.core.model import Descent
from coterie.core.optimizers import OptimizerState
from coterie.core.rng import Rng


class KeptState(NamedTuple):
    """A client's state, and that of each of its optimizers."""

    own: Tree
    optimizers: tuple[OptimizerState, ...]


def _is_descent(node: Any) -> bool:
    return isinstance(node, Descent)


def _collect(carry: Tree) -> tuple[OptimizerState, ...]:
    """The states of all optimizers of a carry."""
    nodes = pytree.tree_leaves(carry, is_leaf=_is_descent)
    return tuple(node.u for node in nodes if _is_descent(node))


def _put_back(carry: Tree, kept: tuple[OptimizerState, ...]) -> Tree:
    """The carry with other states of its optimizers."""
    waiting = iter(kept)
    return pytree.tree_map(
        lambda node: node._replace(u=next(waiting)) if _is_descent(node) else node,
        carry,
        is_leaf=_is_descent,
    )


def keep_optimizers(built: Method | tuple[Stage, ...], name: str) -> Method:
    """The method whose clients keep their optimizers from round to round."""
    stages = stages_of(built)
    base = stages[0].method
    if len(stages) > 1 or len(base.round) > 1:
        raise BadInput(
            f"{name} trains in more than one exchange, and none knows the optimizer of another: "
            "leave out --keep-optimizer"
        )
    first = base.round[0].start

    def join(payload: Tree, rng: Rng) -> KeptState:
        own = pytree.tree_map(torch.as_tensor, base.join(payload, rng))
        kept = _collect(first(own, payload))
        if not pytree.tree_leaves(kept):
            raise BadInput(
                f"keep_optimizer = yes, but the optimizer of {name} keeps nothing from step to "
                "step: leave out --keep-optimizer, or use momentum or another optimizer"
            )
        return KeptState(own, kept)

    notes = base.client_notes
    newcomer = base.newcomer
    return base._replace(
        join=join,
        round=(_wrap(base.round[0], keep=True),),
        personal=lambda state, payload: base.personal(state.own, payload),
        personalize=base.personalize and _wrap(base.personalize, keep=False),
        views={k: _on_own(view) for k, view in base.views.items()},
        client_notes=notes and (lambda state: notes(state.own)),
        newcomer=newcomer
        and newcomer._replace(round=tuple(_wrap(e, e.start is first) for e in newcomer.round)),
    )


def _on_own(view: Any) -> Any:
    return lambda state, payload: view(state.own, payload)


def _wrap(exchange: Exchange, keep: bool) -> Exchange:
    """The exchange on kept states; its optimizers are fresh unless they are to `keep`."""
    steps, prepare = exchange.steps, exchange.prepare

    def start(state: KeptState, payload: Tree) -> Tree:
        carry = exchange.start(state.own, payload)
        return _put_back(carry, state.optimizers) if keep else carry

    def finish(carry: Tree, state: KeptState, payload: Tree) -> tuple[KeptState, Tree]:
        own, upload = exchange.finish(carry, state.own, payload)
        return KeptState(own, _collect(carry) if keep else state.optimizers), upload

    return exchange._replace(
        start=start,
        finish=finish,
        steps=steps and (lambda state, payload, rows: steps(state.own, payload, rows)),
        prepare=prepare
        and (lambda state, payload, rows: state._replace(own=prepare(state.own, payload, rows))),
    )
