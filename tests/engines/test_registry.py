"""An engine is one builder and one line: its options are words, and runs use it."""

import pytest

from coterie.core.errors import BadInput
from coterie.engines.local.engine import LocalEngine
from coterie.engines.registry import ENGINES
from coterie.experiment.config import Experiment, change_options
from coterie.results.folder import read_experiment
from coterie.running.execute import execute
from helpers.runs import experiment, results


@pytest.fixture
def built(monkeypatch):
    """What an engine of one's own, called "mine", was built with."""
    found = []

    def mine(setup, threads, *, speed: int = 3):
        found.append((threads, speed))
        return LocalEngine(setup)

    monkeypatch.setitem(ENGINES, "mine", mine)
    return found


def test_a_registered_engine_plays_runs_with_its_own_words(built, tmp_path):
    execute(experiment(engine="mine", speed="4"), tmp_path / "mine")
    assert built == [(1, 4)]
    written = read_experiment(tmp_path / "mine").engine
    assert (written["name"], written["speed"]) == ("mine", 4)
    execute(experiment(), tmp_path / "local")
    assert results(tmp_path / "mine") == results(tmp_path / "local")


def test_a_default_of_an_engine_is_written_down(built, tmp_path):
    assert (
        execute(experiment(engine="mine", rounds=1), tmp_path / "run").experiment.engine["speed"]
        == 3
    )


def test_words_of_an_engine_that_is_not_named_are_refused(built):
    with pytest.raises(
        BadInput,
        match=r"^unknown option 'speed' for engine local: it belongs to engine mine, add --engine "
        r"mine$",
    ):
        change_options(Experiment(), {"speed": 4})
