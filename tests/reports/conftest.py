"""One comparison of methods that note all kinds of things, for all tests of reports."""

import shutil
from pathlib import Path

import pytest

from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_experiments
from coterie.reports.report import report_data
from helpers.reports import METHODS, OWN, base


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("reports") / "all"
    compare(plan_experiments(METHODS, base(), OWN), [0, 1], place)
    return place


@pytest.fixture(scope="session")
def data(folder) -> dict:
    return report_data([folder])


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))
