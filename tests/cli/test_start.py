"""What the command line loads before it works."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from coterie.cli.main import COMMANDS

HEAVY = ("torch", "numpy", "polars", "matplotlib", "plotly", "sklearn")
CODE = """
import sys
from coterie.cli.main import main
sys.argv = ["coterie", *{words!r}]
main()
print("loaded:", *(name for name in {heavy!r} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "settings", [["--help"], ["--version"], ["methods"], ["methods", "--help"]]
)
def test_help_and_lists_load_no_tensors(settings):
    code = CODE.format(words=settings, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


def test_importing_the_package_loads_no_tensors_and_gives_all_its_names():
    code = (
        "import sys, coterie; print('torch' in sys.modules); "
        "print(all(getattr(coterie, name) for name in coterie.__all__)); "
        "print(hasattr(coterie, 'absent'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("given", "waits"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_without_work_leave_their_core_soon_unless_the_user_says_otherwise(given, waits):
    code = "import coterie, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain | given
    )
    assert done.stdout.strip() == waits


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_page_says_of_a_command_what_the_command_says(name):
    command = getattr(import_module(COMMANDS[name].module), name)
    assert (command.name, command.short_help) == (name, COMMANDS[name].help)
