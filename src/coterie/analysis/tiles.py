"""The answer as a headline and a few figures, for a page, a terminal and a list."""

from __future__ import annotations

from math import isnan
from typing import NamedTuple

from coterie.analysis.answer import MORE_WORK, Answer, Claim, count_clients, format_details

SMALL = 1e5  # bytes below which a megabyte says nothing


class Tile(NamedTuple):
    """One figure: what it is, its value, and what belongs to it."""

    label: str
    value: str
    note: str = ""


class Summary(NamedTuple):
    """An answer at a glance."""

    headline: str
    tiles: list[Tile]
    details: list[str]  # sentences that no tile holds


def summarize_answer(answer: Answer) -> Summary:
    """The first sentence of the answer, its figures, and what they leave out."""
    headline, _, rest = str(answer).partition(". ")
    whole = headline if headline.endswith(".") else f"{headline}."
    tiles = _build_tiles(answer)
    return Summary(whole, tiles, format_details(answer) if tiles else [rest] if rest else [])


def _build_tiles(answer: Answer) -> list[Tile]:
    """None where no method is named: then the sentence is all there is."""
    if answer.use is None:
        return []
    tiles = [Tile(answer.measure.label, answer.measure.write(answer.value), f"of {answer.use}")]
    if answer.claim:
        tiles.append(_gain_tile(answer, answer.claim, f"gain over {answer.claim.other}"))
        tiles.append(_clients_tile(answer.claim))
    if answer.closest:
        near = answer.closest
        tiles.append(_gain_tile(answer, near, f"closest: {near.method}"))
    tiles.append(_traffic_tile(answer))
    return tiles


def _gain_tile(answer: Answer, claim: Claim, label: str) -> Tile:
    value, _, interval = answer.measure.gap(claim.difference).partition(" [")
    seeds = f", {claim.difference.n} seeds" if claim.difference.population == "seeds" else ""
    one = f"one {claim.difference.population[:-1]}: no interval"
    shown = f"95 %{seeds}: [{interval}" if interval else one
    return Tile(label, value, shown)


def _clients_tile(claim: Claim) -> Tile:
    same = claim.of - claim.better - claim.worse
    note = f"of {count_clients(claim)}" + (f", {same:,} the same" if same else "")
    return Tile("clients", f"{claim.better:,} better, {claim.worse:,} worse", note)


def _traffic_tile(answer: Answer) -> Tile:
    of = answer.closest.method if answer.closest else answer.use
    work = answer.work
    more = "" if isnan(work) or work <= MORE_WORK else f", {work:.1f} x the gradients"
    return Tile("traffic", _format_bytes(answer.traffic), f"of {of}{more}")


def _format_bytes(count: float) -> str:
    if count < SMALL:
        return f"{count / 1e3:,.0f} kB" if count else "none"
    return f"{count / 1e6:,.1f} MB"
