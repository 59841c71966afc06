"""Whatever is given, the answer is a result or one clear line: a slice of `scripts/fuzz.py`."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers import fuzz

pytestmark = pytest.mark.xdist_group("fuzz")


def few(cases: int) -> settings:
    """The same cases at every run, unshrunk: the long form is for finding new ones."""
    return settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return fuzz.make_runs(tmp_path_factory.mktemp("fuzz"))


@few(30)
@given(fuzz.command_lines())
def test_any_command_line_is_done_or_refused_in_one_line(line):
    fuzz.try_command(line)


@few(30)
@given(fuzz.toml_texts(), st.sampled_from(["run", "compare"]))
def test_any_experiment_file_is_taken_or_refused_in_one_line(text, kind):
    fuzz.try_toml(text, kind)


@few(30)
@given(fuzz.tables())
def test_any_table_is_taken_or_refused_in_one_line(table):
    fuzz.try_table(*table, {})


@few(12)
@given(st.integers(0, 999), fuzz.damages, fuzz.values, st.floats(0, 0.99))
def test_any_damaged_folder_is_read_or_refused_in_one_line(made, number, how, value, where):
    fuzz.try_folder(made, number, how, value, where)


@few(30)
@given(fuzz.python_calls)
def test_any_python_call_is_done_or_refused_in_one_line(asked):
    fuzz.try_python(*asked)


@few(30)
@given(fuzz.arrays)
def test_any_arrays_are_taken_or_refused_in_one_line(kinds):
    fuzz.try_arrays(*kinds)
