"""The form: every word it offers is one that `coterie run` takes, and a bad one is the terminal's
own line.
"""

import pytest
from click.testing import CliRunner

from coterie.cli.train import run
from coterie.core.errors import BadInput
from coterie.core.options import describe_type
from coterie.experiment.config import Experiment, change_options, options_of
from coterie.methods.registry import METHODS
from coterie.ui.form import build_form, parse_comparison, parse_form
from helpers.ui import client, writer


def options_in(said: dict) -> dict[str, dict]:
    return {one["option"]: one for group in said["groups"] for one in group["options"]}


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_options_are_in_the_form_with_what_they_take(method):
    said = options_in(build_form({"method": method}))
    own = {w.removeprefix("options."): one for w, one in said.items() if w.startswith("options.")}
    known = options_of("method", method)
    assert set(own) == set(known)
    for option, (kind, _) in known.items():
        assert own[option]["takes"] == describe_type(kind)


def test_every_word_of_the_form_can_be_sent_with_its_default():
    for names in ({"method": "ditto"}, {"method": "ktpfl", "dataset": "mnist", "model": "lenet5"}):
        said = build_form(names)
        given = {w: one["default"] for w, one in options_in(said).items()}
        experiment, arguments = parse_form(names | given)
        assert experiment.method == arguments[0] == names["method"]
        assert all(option.startswith("--") and "=" in option for option in arguments[1:])
        assert experiment == change_options(
            Experiment(), names | {w: v for w, v in given.items() if v}
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "dito"},
        {"method": "ditto", "schedule.rounds": "0"},
        {"method": "ditto", "train.lr": "-1"},
        {"method": "ditto", "options.lam": "many"},
        {"method": "ditto", "mu": "1"},
        {"method": "ditto", "dataset": "digit"},
        {"method": "local", "train.weighting": "equal"},
        {"method": "ditto", "config": "demo"},
        {"method": "ditto", "out": "elsewhere"},
    ],
)
def test_a_bad_word_is_the_line_that_the_terminal_prints(root, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(root.iterdir())
    said = writer(root).post("/api/start", json={"options": settings})
    assert said.status_code == 422
    assert set(root.iterdir()) == before
    if {"config", "out"} & set(settings):  # options of the command, not words of a run
        assert "unknown option" in said.json()["problem"]
        return
    method, *rest = (f"--{option}={value}" for option, value in settings.items())
    with pytest.raises(BadInput) as terminal:
        CliRunner().invoke(run, [method.removeprefix("--method="), *rest], catch_exceptions=False)
    assert said.json()["problem"] == " ".join(str(terminal.value).split())


@pytest.mark.parametrize("sent", [None, [], "ditto", {"method": 3}, {"method": "a\0"}, {}])
def test_what_is_no_table_of_words_is_refused(root, sent):
    assert writer(root).post("/api/start", json={"options": sent}).status_code == 422


def test_a_bad_name_in_the_form_is_one_line(root):
    said = client(root).get("/api/form", params={"method": "dito"})
    assert said.status_code == 422
    assert "did you mean 'ditto'" in said.json()["problem"]


def test_a_comparison_is_the_command_that_a_terminal_takes():
    sent = {"schedule.rounds": "4", "seed": "3"}
    experiment, settings = parse_comparison(sent, ["local", "fedavg"])
    assert experiment.method == "local"
    assert settings == ["--methods", "local,fedavg", "--schedule.rounds=4", "--seeds=3,"]


@pytest.mark.parametrize(
    ("sent", "methods", "says"),
    [
        ({}, ["local"], "two methods or more"),
        ({}, "local,fedavg", "give a list of names"),
        ({}, ["local", "fedvag"], "did you mean 'fedavg'"),
        ({"options.lam": "1"}, ["local", "ditto"], "options of one method"),
        ({"schedule.rounds": "0"}, ["local", "ditto"], "schedule.rounds = 0"),
        ([], ["local", "ditto"], "give at most"),
    ],
)
def test_a_bad_comparison_is_one_line(sent, methods, says):
    with pytest.raises(BadInput, match=says):
        parse_comparison(sent, methods)
