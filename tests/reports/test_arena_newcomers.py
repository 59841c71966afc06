"""Laws of what the arena says of newcomers: its numbers are those of the stored runs."""

import numpy as np
import pyarrow as pa
import pytest

from coterie.lab.arena.newcomer_section import render_newcomer_section, summarize_newcomers
from coterie.lab.arena.results import RUNS, ArenaResults

WAYS = ("rule", "finetune", "local")


def _run(federation, method, rule=None, finetune=(), local=(), does="trains", measure="accuracy"):
    """A run of three clients, with newcomers where they got something by the rule."""
    came = dict(zip(WAYS, map(list, (rule or (), finetune, local)), strict=True))
    return {
        "federation": federation,
        "method": method,
        "seed": 0,
        "drop": 0.0,
        "measure": measure,
        "values": [0.5, 0.6, 0.7],
        "rows": [5, 5, 5],
        "bytes": 1,
        "gradients": 1,
        "seconds": 1.0,
        "words": "{}",
        "epoch": 0,
        "newcomers": 0.25 if rule else 0.0,
        "newcomer_does": does if rule else "",
        **{f"newcomers_{way}": came[way] for way in WAYS},
    }


def _diverged(federation, method):
    return _run(federation, method, [0.0]) | {
        "measure": "",
        "values": [],
        "newcomer_does": "",
        **{f"newcomers_{way}": [] for way in WAYS},
    }


def _results(*rows):
    return ArenaResults(pa.Table.from_pylist(list(rows), RUNS), {})


STORED = (
    _run("north", "ditto", [0.9, 0.7], [0.8, 0.8], [0.4, 0.6]),
    _run("north", "fedper", [0.5, 0.9], [0.9, 0.9], [0.5, 0.6]),
    _run("north", "fedavg", [1.0, 1.0], [1.0, 1.0], [0.0, 0.0], does=""),
    _run("south", "ditto", [0.2], [0.1], [0.3]),
    _run("south", "fedper", [0.6], [0.4], [0.3]),
)


def test_points_behind_are_those_of_the_best_rule_of_each_federation():
    found = summarize_newcomers(_results(*STORED))
    assert found.methods == ("fedper", "ditto")
    assert found.behind == pytest.approx([(10 + 0) / 2, (0 + 40) / 2], abs=1e-4)
    assert (found.federations, found.newcomers) == (2, 3)
    assert found.counted.tolist() == [2, 2]


def test_gains_are_newcomer_by_newcomer_and_federations_count_alike():
    found = summarize_newcomers(_results(*STORED))
    assert found.alone == pytest.approx([(15 + 30) / 2, (30 - 10) / 2], abs=1e-4)
    assert found.tuned == pytest.approx([(-20 + 20) / 2, (0 + 10) / 2], abs=1e-4)


def test_a_newcomer_that_has_no_number_is_left_out_of_all_ways():
    rows = [_run("north", "ditto", [np.nan, 0.7], [np.nan, 0.5], [np.nan, 0.4])]
    found = summarize_newcomers(_results(*rows))
    assert found.alone == pytest.approx([30], abs=1e-4)
    assert found.tuned == pytest.approx([20], abs=1e-4)


def test_a_share_of_variance_below_minus_one_counts_as_minus_one():
    found = summarize_newcomers(
        _results(_run("north", "ditto", [0.5], [0.4], [-30.0], measure="r2"))
    )
    assert found.alone == pytest.approx([150], abs=1e-4)


def test_who_has_no_rule_or_did_not_get_so_far_is_left_out_and_said():
    ordinary = [_run("north", name) for name in ("ditto", "fedper", "fedavg", "ucfl")]
    late = [row for row in STORED if row["federation"] == "north" and row["method"] != "fedper"]
    result = _results(*ordinary, *late, _diverged("north", "fedper"), *STORED[3:])
    found = summarize_newcomers(result)
    assert found.ruleless == ("fedavg",)
    assert found.missing == {"fedper": ("north",), "ucfl": ("north",)}
    assert found.counted.tolist() == [1, 2]
    text = render_newcomer_section(found, 0.25)
    assert "Left out: fedavg (no rule of its own" in text
    assert "fedper, ucfl on north (no finished run there)" in text
    assert "\n| fedavg |" not in text


def test_the_section_says_how_many_newcomers_and_what_the_numbers_are():
    found = summarize_newcomers(_results(*STORED))
    text = render_newcomer_section(found, 0.2)
    assert text.startswith("## Newcomers\n\n20% of the clients are kept out of training")
    assert "3 newcomers of 2 federations" in text
    assert "Of 2 rules, 2 do better than training alone on average, and 1 better" in text
    assert "| fedper | 5.0 | 42.5 | +22.5 | +0.0 | 2 |" in text
    assert "| ditto | 20.0 | 40.0 | +10.0 | +5.0 | 2 |" in text
    assert "another number in every row" in text
    assert render_newcomer_section(found, 4).startswith("## Newcomers\n\n4 clients per federation")


def test_the_gain_of_local_over_itself_tells_how_far_chance_goes():
    alone = _run("north", "local", [0.5, 0.6], [0.9, 0.9], [0.6, 0.6])
    assert "gain over it, -5.0, is chance" in render_newcomer_section(
        summarize_newcomers(_results(alone)), 0.2
    )
    assert "chance" not in render_newcomer_section(summarize_newcomers(_results(*STORED)), 0.2)


def test_nothing_is_said_without_runs_with_newcomers():
    assert summarize_newcomers(_results(_run("north", "ditto"), _run("north", "fedavg"))) is None
