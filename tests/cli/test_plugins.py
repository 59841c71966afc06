"""Code of one's own on the command line: a method, a network, data, and a folder that is read
without them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

METHOD = '''
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.point import blend
from coterie.methods.fedavg import fedavg


def halfway(model: Model, train: Train, share: float = 0.5) -> Method:
    """FedAvg whose clients keep a part of their own last model.

    share: how much of it.
    """
    base = fedavg(model, train)
    trip = base.round[0]._replace(finish=lambda c, own, w: (c.w, c.w))
    return base._replace(
        join=lambda w, rng: w, round=(trip,), personal=lambda own, w: blend(w, own, share)
    )
'''
NETWORK = """
from torch import nn


class Net(nn.Module):
    def __init__(self, input_shape, classes, hidden=6):
        super().__init__()
        size = input_shape[0] if len(input_shape) == 1 else 64
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))
"""
DATA = """
import numpy as np
from coterie.data.dataset import Dataset


def two_clouds(rows: int = 120) -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    x = rng.normal(size=(rows, 3)).astype(np.float32) + 3 * y[:, None].astype(np.float32)
    users = np.arange(rows) % 4
    return Dataset("clouds", x, y.astype(np.int64), 2, np.ones(rows, bool), users)


def absolute(outputs, y):
    return (outputs.softmax(1)[:, 1] - y).abs()


def sure(truth, said):
    return said.max(1).mean()
"""
FAST = ("--model", "mlr", "--num-clients", "4", "--rows", "200", "--threads", "1", "--quiet")
FAST += ("--path", "vectorized", "--width", "4", "--compile", "no", "--checkpoint", "1")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "my.py").write_text(METHOD)
    (tmp_path / "nets.py").write_text(NETWORK)
    (tmp_path / "mine.py").write_text(DATA)
    return tmp_path


def fresh(place, *settings, code="from coterie.cli.main import main; main()"):
    """A command in a process of its own, which knows nothing but what it is told; -P as of the
    installed command, which finds nothing in the working folder.
    """
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *settings],
        cwd=place,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "error::RuntimeWarning"},
    )


def stop_after(place, rounds, *settings):
    """A command that is killed once so many rounds are written."""
    code = f"""
        import os
        from coterie.running.progress import Progress
        add = Progress.add
        def stop(self, report):
            add(self, report)
            if report.round == {rounds} + 1 and "halfway" in str(self.path):
                os._exit(9)
        Progress.add = stop
        from coterie.cli.main import main; main()
        """
    return fresh(place, *settings, code=dedent(code))


def test_a_method_of_a_file_is_compared_resumed_reported_and_read_without_it(place):
    settings = ("compare", "digits", "--methods", "fedavg,halfway", "--plugin", "my.py", *FAST)
    settings += ("--halfway.share", "0.3", "--rounds", "3")
    whole = fresh(place, *settings, "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    assert "halfway" in (place / "whole" / "report.html").read_text(encoding="utf-8")

    assert stop_after(place, 2, *settings, "--out", "cut").returncode == 9
    without = fresh(place, "resume", "cut")
    assert without.returncode == 2
    assert without.stderr.strip() == (
        "coterie: cut needs the method 'halfway' of the plugin my.py: give it with --plugin my.py"
    )
    went_on = fresh(place, "resume", "cut", "--plugin", "my.py")
    assert went_on.returncode == 0, went_on.stderr
    (place / "my.py").unlink()

    report = fresh(place, "report", "cut", "--out", "again.html")
    assert (report.returncode, report.stderr) == (0, "")
    assert "halfway" in (place / "again.html").read_text(encoding="utf-8")
    shown = fresh(place, "resume", "cut", "--wide")
    assert shown.returncode == 0, shown.stderr
    assert "halfway" in shown.stdout
    code = """
        import coterie
        from coterie.results.metric_table import values_of
        both = [coterie.load(name) for name in ("whole", "cut")]
        assert "halfway" not in coterie.method_names()
        run = both[1].runs["halfway"][0]
        assert run.experiment.options == {"share": 0.3}, run.experiment.options
        assert run.about["plugins"][0]["name"] == "my"
        a, b = (c.client_values("halfway").tolist() for c in both)
        assert a == b, (a, b)
        print(len(run.model(0).module.state_dict()), coterie.report(both[1]))
        """
    read = fresh(place, code=dedent(code))
    assert read.returncode == 0, read.stderr
    assert read.stdout.strip() == "2 cut/report.html"


def test_changed_code_is_refused_and_a_branch_is_the_way_out(place):
    settings = ("run", "halfway", "--dataset", "digits", "--plugin", "my.py", *FAST)
    assert stop_after(place, 2, *settings, "--rounds", "4", "--out", "run-halfway").returncode == 9
    (place / "my.py").write_text(METHOD.replace("blend(w, own, share)", "blend(own, w, share)"))
    again = fresh(place, "resume", "run-halfway", "--plugin", "my.py")
    assert again.returncode == 2
    assert "plugin 'my' has changed since run-halfway began (checksum " in again.stderr
    assert "--allow-change" in again.stderr
    branch = fresh(place, "resume", "run-halfway", "--plugin", "my.py", "--allow-change")
    assert branch.returncode == 0, branch.stderr
    kept = json.loads((place / "run-halfway-branch" / "run.json").read_text())
    assert list(kept["branched"]["changed"]) == ["plugin.my"]
    (place / "my.py").write_text(METHOD)
    assert fresh(place, "resume", "run-halfway", "--plugin", "my.py").returncode == 0


def test_networks_data_losses_and_metrics_are_module_and_name(place):
    settings = ("run", "fedavg", "--dataset", "mine:two_clouds", "--model", "nets:Net:hidden=5")
    settings += (
        "--loss",
        "mine:absolute",
        "--metric",
        "mine:sure",
        "--rounds",
        "2",
        "--threads",
        "1",
    )
    done = fresh(place, *settings, "--dataset.rows", "160", "--quiet", "--out", "run")
    assert done.returncode == 0, done.stderr
    kept = json.loads((place / "run" / "run.json").read_text())
    assert [one["file"] for one in kept["plugins"]] == ["mine.py", "nets.py"]
    assert sum(sum(counts) for counts in kept["rows"].values()) == 160
    assert kept["models"][0]["parameters"] == 3 * 5 + 5 + 5 * 2 + 2
    lines = "a,b,c\n" + "0,0,0\n3,3,3\n"
    (place / "new.csv").write_text(lines)
    code = """
        import numpy as np, coterie
        run = coterie.load("run")
        assert run.client_values().mean() > 0.5
        try:
            coterie.load("run", client=0)
        except coterie.BadInput as problem:
            print(problem)
        coterie.use_plugin("nets.py")
        print(type(coterie.load("run", client=0).module).__name__)
        """
    read = fresh(place, code=dedent(code))
    assert read.returncode == 0, read.stderr
    first, second = read.stdout.splitlines()
    assert "--plugin nets.py" in first
    assert second == "Net"


def test_a_folder_never_brings_code_by_itself(place):
    """A run's files name a module that lies in the working folder: it is not loaded."""
    settings = ("run", "fedavg", "--dataset", "digits", "--rounds", "2", "--metric", "mine:sure")
    done = stop_after(place, 0, *settings, *FAST, "--out", "run-halfway")
    assert done.returncode == 9, done.stderr
    (place / "mine.py").write_text("open('ran', 'w').close()\n" + DATA)
    for command in (("resume", "run-halfway"), ("report", "run-halfway")):
        said = fresh(place, *command)
        assert not (place / "ran").exists()
    assert fresh(place, "resume", "run-halfway").stderr.strip() == (
        "coterie: run-halfway needs the function 'mine:sure' of the plugin mine.py: give it with "
        "--plugin mine.py"
    )
    config = place / "run-halfway" / "config.toml"
    config.write_text('plugin = "mine.py"\n' + config.read_text())
    said = fresh(place, "run", "--config", str(config), "--out", "b")
    assert "which is not taken from the folder of a run" in said.stderr
    assert not (place / "ran").exists()


def test_a_file_of_options_names_plugins(place):
    (place / "mine.toml").write_text(
        'plugin = ["my.py"]\nmethods = ["halfway", "local"]\n[dataset]\nnum_clients = 3\n'
        "rows = 150\n[schedule]\nrounds = 1\n[options.halfway]\nshare = 0.2\n"
    )
    done = fresh(place, "compare", "--config", "mine.toml", "--threads", "1", "--out", "c")
    assert done.returncode == 0, done.stderr
    assert "halfway" in done.stdout
    said = fresh(place, "methods", "halfway", "--plugin", "my.py")
    assert "how much of it" in said.stdout
    assert "halfway" in fresh(place, "methods", "--plugin", "my.py").stdout


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("x = 1 / 0", "ZeroDivisionError in line 1"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def fedavg(model, train):\n    return 1", "defines a method 'fedavg'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_line(place, text, line):
    (place / "bad.py").write_text(text)
    said = fresh(place, "run", "local", "--plugin", "bad.py")
    assert said.returncode == 2
    assert line in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_a_plugin_hides_no_other_module(place):
    (place / "statistics.py").write_text(METHOD)
    said = fresh(place, "run", "halfway", "--plugin", "statistics.py")
    assert "there is another module 'statistics'" in said.stderr
    said = fresh(place, "run", "halfway", "--plugin", "none.py")
    assert "there is no such file" in said.stderr


def test_pages_start_no_code(place):
    from coterie.core.errors import BadInput
    from coterie.ui.form import parse_form

    for option, value in (("metric", "mine:sure"), ("dataset.loss", "os:abort"), ("model", "os:x")):
        with pytest.raises(BadInput, match="which no page starts"):
            parse_form({"method": "local", option: value})
    with pytest.raises(BadInput, match="unknown option 'plugin'"):
        parse_form({"method": "local", "plugin": str(Path(place) / "my.py")})
