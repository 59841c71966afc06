"""A comparison and a run, trained once for all tests of the pages, and a browser to see them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_experiments
from coterie.experiment.config import Experiment, change_options
from coterie.running.execute import execute
from helpers.ui import FAST, WORDS, chromium


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A comparison of two methods and a run, trained once."""
    root = tmp_path_factory.mktemp("made")
    settings = change_options(Experiment(method=""), WORDS | FAST)
    compare(plan_experiments(["fedavg", "local"], settings), [0], root / "both")
    execute(replace(settings, method="ditto"), root / "single")
    return root


@pytest.fixture
def root(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def browser():
    with chromium() as window:
        yield window
