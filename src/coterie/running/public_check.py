"""Public rows that a method needs: whether they are there, and how to get them for these data."""

from __future__ import annotations

from coterie.core.errors import BadInput
from coterie.core.method import Method
from coterie.data.federation import Federation
from coterie.data.prepare.public import HELD_OUT
from coterie.data.read.catalog import DATASETS, PUBLIC_IMAGES

DEFAULT_ROWS = 300  # public rows where a method does not say how many it draws
SHARE = 3  # of so many rows one may be held out
LEAST = 2  # rows of a draw, one of them to stop by


def check_public(name: str, method: Method, federation: Federation) -> None:
    """Refuse a method whose public rows are not there, or fewer than it draws in a round."""
    draw, public = _draw_of(method), federation.public
    if public is None:
        if "public" in method.needs:
            raise BadInput(
                f"{name} needs a public data set: give {_suggest_options(name, draw, federation)}"
            )
        return
    there = len(public.x)
    if draw <= there:
        return
    ways = [f"--{name}.draw {there}"] if there >= LEAST else []
    if public.name in DATASETS or (public.name == HELD_OUT and draw <= _count_spare(federation)):
        ways.append(f"--public-rows {draw}")
    way = " or ".join(ways) or "more public rows"
    raise BadInput(
        f"{name} draws {draw} public rows per round, '{public.name}' has {there}: give {way}"
    )


def _draw_of(method: Method) -> int:
    """The most public rows that it draws in a round; 0: it takes all there are."""
    exchanges = [*method.round, *([method.personalize] if method.personalize else [])]
    plans = [work.plan for exchange in exchanges for work in exchange.passes]
    return max((plan.draw for plan in plans if plan), default=0)


def _count_spare(federation: Federation) -> int:
    """How many rows may be held out of these data."""
    public = federation.public
    out = len(public.x) if public is not None and public.name == HELD_OUT else 0
    return (int(federation.sizes.sum()) + out) // SHARE


def _suggest_options(name: str, draw: int, federation: Federation) -> str:
    """The options that bring public rows to these data."""
    rows = max(LEAST, min(draw or DEFAULT_ROWS, _count_spare(federation)))
    way = f"--public {HELD_OUT} --public-rows {rows}"
    if rows < draw:
        way += f" --{name}.draw {rows}"
    others = [other for other in PUBLIC_IMAGES if not federation.name.startswith(other)]
    if len(federation.input_shape) == 3:
        way += f", or --public {', '.join(others[:-1])} or {others[-1]}"
    return way
