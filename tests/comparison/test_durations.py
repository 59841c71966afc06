"""Laws of the times that the list of tables tells."""

import pytest

from coterie.core.errors import BadInput
from coterie.lab.papers import durations
from coterie.lab.papers.durations import (
    Estimate,
    estimate_seed,
    estimate_table,
    measure_recipe,
    read_durations,
    write_durations,
)
from coterie.lab.papers.paper_tables import PaperColumn, PaperTable


@pytest.mark.parametrize(
    ("seconds", "least", "said"),
    [(0, False, "-"), (20, False, "1 min"), (600, False, "10 min"), (9000, True, "over 2.5 h")],
)
def test_a_time_is_told_in_minutes_or_hours(seconds, least, said):
    assert str(Estimate(seconds, least)) == said


def test_a_method_that_was_cut_off_makes_the_time_a_lower_bound():
    assert estimate_seed({"local": 60.0, "fedavg": 30.0}) == Estimate(90.0, False)
    assert estimate_seed({"local": 60.0, "fedavg": -30.0}) == Estimate(90.0, True)
    assert estimate_seed({}).least


def test_a_table_costs_all_seeds_of_its_recipes():
    column = PaperColumn(name="one", recipe="pfml-synthetic-mlr")
    table = PaperTable("t", "p", "Table", "claim", "mean", columns=(column, column))
    found = estimate_table(table, {"pfml-synthetic-mlr": {"fedavg": 100.0}})
    assert found == Estimate(300.0, False)


def test_rounds_are_measured_and_stored_beside_what_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "DURATIONS_FILE", tmp_path / "seconds.json")
    write_durations({"demo-groups": measure_recipe("demo-groups")})
    write_durations({"other": {"local": 1.0}})
    assert set(read_durations()) == {"demo-groups", "other"}
    assert read_durations()["demo-groups"]["fedavg"] > 0


def test_runs_that_choose_options_are_counted(monkeypatch):
    monkeypatch.setattr(durations, "time_rounds", lambda experiment, federation, most: 2.0)
    grids = {"fedavg": {"lr": [0.1, 0.2, 0.3]}}
    real = durations.plan_of
    monkeypatch.setattr(
        durations,
        "plan_of",
        lambda *settings, **more: real(*settings, **more)._replace(grids=grids),
    )
    found = measure_recipe("demo-groups")
    assert found["fedavg"] == 8.0
    assert found["local"] == 2.0


def test_a_method_without_machine_code_is_measured_client_by_client(monkeypatch):
    asked = []

    def played(experiment, federation, most):
        asked.append(experiment.engine["compile"])
        if asked[-1] == "yes":
            raise BadInput("a step cannot be compiled")
        return 1.0

    monkeypatch.setattr(durations, "time_rounds", played)
    assert set(measure_recipe("demo-groups").values()) == {1.0}
    assert asked[:2] == ["yes", "no"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_method_that_takes_too_long_is_cut_off(monkeypatch):
    monkeypatch.setattr(durations, "LIMIT", 1e-3)
    assert any(seconds < 0 for seconds in measure_recipe("demo-groups").values())


def test_a_round_that_takes_too_long_is_measured_on_a_few_clients(monkeypatch):
    asked = []

    def played(experiment, federation, most):
        asked.append(federation.clients)
        return 3.0 if federation.clients == durations.FEW else -1.0

    monkeypatch.setattr(durations, "time_rounds", played)
    found = measure_recipe("demo-groups")
    clients = asked[0]
    assert asked[:2] == [clients, durations.FEW]
    assert set(found.values()) == {3.0 * clients / durations.FEW}
    monkeypatch.setattr(durations, "time_rounds", lambda *settings: -1.0)
    assert set(measure_recipe("demo-groups").values()) == {
        -clients / durations.FEW
    }  # still a lower bound
