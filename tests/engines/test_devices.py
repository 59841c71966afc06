"""All that a run makes lives on its device, shown on a second device that torch knows apart from
the processor: `helpers.second_device`.

One process plays everything, because torch wants to know a device before its first gradient.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.methods.registry import METHODS
from helpers.elsewhere import RUNS, STRAYS, TASKS
from helpers.second_device import build

pytestmark = [pytest.mark.xdist_group("second device"), pytest.mark.thorough]
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    """{case: what went wrong on the second device}."""
    folder = tmp_path_factory.mktemp("second")
    library, found = build(folder), folder / "found.json"
    paths = [str(TESTS), str(TESTS.parent / "src")]
    subprocess.run(
        [sys.executable, "-m", "helpers.elsewhere", str(library), str(found)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        timeout=1800,
    )
    return json.loads(found.read_text())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_makes_the_same_models_on_another_device(name, problems):
    assert problems[f"play {name}"] == ""


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_checkpoint_goes_on_elsewhere(name, problems):
    assert problems[f"carry {name}"] == ""


@pytest.mark.parametrize("path", ["sequential", "traced"])
def test_every_path_runs_on_another_device(path, problems):
    found = {case: said for case, said in problems.items() if case.startswith(path)}
    assert found
    assert not any(found.values()), found


@pytest.mark.parametrize("name", [*RUNS, *TASKS])
def test_a_whole_run_leaves_the_same_files(name, problems):
    assert problems[f"run {name}"] == ""


def test_a_stopped_run_is_resumed_on_another_device(problems):
    assert problems["resume"] == ""


def test_auto_is_the_accelerator_that_torch_sees(problems):
    assert problems["auto"] == ""


def test_clients_in_threads_of_their_own_are_on_the_device_too(problems):
    assert problems["threads"] == ""


def test_machine_code_of_the_processor_is_refused_elsewhere_and_never_chosen(problems):
    assert problems["compile yes"] == (
        "BadInput: compile = yes makes machine code of the processor, but device = 'second': use "
        "compile = auto, trace or no"
    )
    assert problems["compile auto"].startswith("vectorized:")
    assert not problems["compile auto"].endswith("yes")


def test_what_was_chosen_on_the_processor_runs_elsewhere(problems):
    assert problems["machine code"] == ""


SAID = {
    "a tensor of the processor": "Expected all tensors to be on the same device",
    "an array": "Expected all tensors to be on the same device",
    "a sight of its values": "can't convert second:0 device type tensor to numpy",
    "a draw": "second:0 draws no random numbers",
    "double precision": "second:0 has no double precision",
    "an index of the processor": "expected all tensors on second:0",
}


@pytest.mark.parametrize("stray", sorted(STRAYS))
def test_what_strays_from_the_device_is_seen(stray, problems):
    assert SAID[stray] in problems[f"stray {stray}"]
