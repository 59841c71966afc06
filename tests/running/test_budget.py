"""What a run promises is what it does."""

import math

import pytest
import torch

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.results.guard_summary import format_guard
from coterie.running.assembly import assemble, open_loop
from coterie.running.execute import execute_assembly
from helpers.federations import assert_same, personal, tiny

CLIENT = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "weighting": "equal"}
EXAMPLE = {"dp": "example", "dp_clip": 0.5, "dp_noise": 2.0}


def assembled(federation=None, **settings):
    engine = {"path": "vectorized", "width": 8, "compile": "no"}
    given = {
        "method": "fedavg",
        "dataset": "digits",
        "rounds": 3,
        "batch_size": 4,
        **engine,
        **settings,
    }
    return assemble(change_options(Experiment(), given), federation or tiny(8))


def test_the_mean_of_private_uploads_moves_by_a_clipped_sum_and_noise_of_the_promised_size():
    """One round: what the server learns beyond the clipped mean is noise * clip / clients."""
    moved = {}
    for noise in (1e-9, 2.0):
        loop = open_loop(assembled(**CLIENT | {"rounds": 1, "dp_noise": noise}))
        before = loop.position.server.w
        loop.go()
        after = loop.position.server.w
        moved[noise] = torch.cat([(after - before).params[k].flatten() for k in after.params])
    assert moved[1e-9].norm() <= 0.5 * (1 + 1e-6)
    drawn = (moved[2.0] - moved[1e-9]) / (2.0 * 0.5 / 8)
    assert drawn.norm() == pytest.approx(math.sqrt(len(drawn)), rel=0.1)


def test_a_round_asks_each_client_with_the_same_chance_where_it_is_counted_so():
    loop = open_loop(assembled(tiny(30), **CLIENT, rounds=60, participation=0.5, dp_delta=1e-3))
    counts = [len(loop._select_clients(loop.program[0], r)[1]) for r in range(60)]
    assert len(set(counts)) > 5
    assert sum(counts) / 60 == pytest.approx(15, abs=1.5)
    plain = open_loop(assembled(tiny(30), rounds=60, participation=0.5))
    assert {len(plain._select_clients(plain.program[0], r)[1]) for r in range(60)} == {15}


def test_every_exchange_of_a_client_and_every_epoch_of_a_row_is_counted():
    assert assembled(**CLIENT, rounds=7).budget.releases == 7
    assert assembled(**EXAMPLE, rounds=7, local_epochs=3).budget.releases == 21
    assert assembled(**EXAMPLE, rounds=7, method="ditto").budget.releases == 14  # two gradients
    # client 7 has 26 rows, seven batches of four: ten steps go twice to a row; client 0 has five
    # rows, two batches: five times
    assert assembled(**EXAMPLE, rounds=1, local_steps=10).budget.releases == 5
    fewer = assembled(**EXAMPLE, rounds=7, participation=0.5).budget.releases
    assert 4 <= fewer <= 7


def test_an_epsilon_that_is_asked_for_is_kept():
    settings = {"dp_noise": 0.0, "dp_epsilon": 3.0}
    for unit in (CLIENT, EXAMPLE):
        budget = assembled(**unit | settings).budget
        assert 2.9 < budget.epsilon <= 3.0
        assert epsilon_of(budget.noise, budget.releases, 1e-5) == pytest.approx(budget.epsilon)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (CLIENT | {"method": "ucfl"}, "looks at uploads one by one"),
        (CLIENT | {"method": "fedamp", "weighting": "size"}, "not averaged models"),
        (CLIENT | {"method": "local", "weighting": "size"}, "uploads nothing"),
        (CLIENT | {"weighting": "size"}, "add --weighting equal"),
        (CLIENT | {"participation": 0.3}, "asks nobody"),
        (EXAMPLE | {"method": "ifca"}, "use their rows in another way too"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(settings, said):
    with pytest.raises(BadInput, match=said):
        assembled(**settings)


def test_a_run_writes_its_promise_and_goes_on_with_the_same_noise(tmp_path):
    for number, unit in enumerate((CLIENT, EXAMPLE)):
        assembly = assembled(**unit, rounds=2)
        done = execute_assembly(assembly, tmp_path / str(number))
        assert done.about["privacy"]["epsilon"] == pytest.approx(epsilon_of(2.0, 2, 1e-5))
        assert "epsilon = " in format_guard(done)[0]
        one, two = open_loop(assembly), open_loop(assembly)
        one.go()
        two.go(until=1)
        two.go()
        assert_same(personal(one), personal(two), 0)


def test_private_gradients_are_alike_on_both_paths():
    stacked = open_loop(assembled(**EXAMPLE, method="ditto"))
    alone = open_loop(assembled(**EXAMPLE, method="ditto", path="sequential", width=1))
    stacked.go()
    alone.go()
    assert_same(personal(stacked), personal(alone), 2e-3)
