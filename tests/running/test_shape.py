"""A run goes on with the words it began with, or branches off where it is told to."""

import inspect
import json
import shutil
from pathlib import Path

import pytest

import coterie
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options, read_experiment_file
from coterie.methods.registry import METHODS
from coterie.results.folder import read_status
from coterie.results.run import load_run
from coterie.running.execute import execute, resume
from coterie.running.identity import OptionChange, changes_of, defaults_of, identity_of
from helpers.runs import Stopped, experiment, results, settings_written, stop_at


def stopped(folder: Path, at: int = 2, **settings) -> Path:
    with pytest.raises(Stopped):
        execute(experiment(**{"method": "ditto", "rounds": 6} | settings), folder, stop_at(at))
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "config.toml"
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


CHANGES = [
    (
        "lr = 0.1\n",
        "lr = 0.2\n",
        r"train\.lr was 0\.1 when this run began, config\.toml says 0\.2",
    ),
    ("momentum = 0.0\n", "momentum = 0.5\n", r"train\.momentum was 0\.0 .* says 0\.5"),
    ("lam = 1.0\n", "lam = 2.0\n", r"options\.lam was 1\.0 .* says 2\.0"),
    ("rounds = 6\n", "rounds = 5\n", r"schedule\.rounds was 6 .* says 5"),
    ('path = "vectorized"', 'path = "sequential"', r"engine\.path was 'vectorized'"),
    ("vectorized:20:no", "sequential:1:no", r"engine\.chosen was 'vectorized:20:no'"),
    ('precision = "float32"', 'precision = "bfloat16"', r"engine\.precision was 'float32'"),
    ("batch_size = 8\n", "batch_size = 9\n", r"train\.batch_size was 8 .* says 9"),
    ("lr = 0.1\n", "", r"train\.lr"),
]


@pytest.mark.parametrize(("old", "new", "says"), CHANGES[:-1])
def test_a_changed_word_is_refused_by_name_with_both_values(old, new, says, tmp_path):
    folder = stopped(tmp_path / "run")
    edit(folder, old, new)
    before = contents(folder)
    with pytest.raises(BadInput, match=says):
        resume(folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("old", "new"), [("checkpoint = 1\n", "checkpoint = 2\n"), ("threads = 1\n", "threads = 2\n")]
)
def test_a_word_that_shapes_no_result_may_change(old, new, tmp_path):
    folder = stopped(tmp_path / "run")
    edit(folder, old, new)
    assert resume(folder).about["status"] == "finished"


def test_a_word_left_out_of_the_file_is_its_default_and_no_change(tmp_path):
    folder = stopped(tmp_path / "run")
    edit(folder, "lr = 0.1\n", "")
    assert resume(folder).about["status"] == "finished"


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_words_are_held_with_and_without_a_checkpoint(checkpoint, tmp_path):
    folder = stopped(tmp_path / "run", checkpoint=checkpoint)
    assert bool(list_checkpoints(folder)) == bool(checkpoint)
    edit(folder, "lr = 0.1\n", "lr = 0.2\n")
    with pytest.raises(BadInput, match=r"train\.lr was 0\.1"):
        resume(folder)


def test_a_finished_run_with_other_words_is_refused_too(tmp_path):
    execute(experiment(), tmp_path / "run")
    edit(tmp_path / "run", "lr = 0.1\n", "lr = 0.2\n")
    with pytest.raises(BadInput, match=r"train\.lr was 0\.1"):
        resume(tmp_path / "run")


def test_a_branch_has_its_own_folder_and_leaves_the_original_alone(tmp_path):
    folder = stopped(tmp_path / "run")
    edit(folder, "lr = 0.1\n", "lr = 0.2\n")
    before, seen, said = contents(folder), [], []

    def watch(report):
        said.extend(report.said)
        if report.stage:
            seen.append(report.round)

    branch = resume(folder, watch, allow_change=True)
    assert contents(folder) == before
    assert branch.folder == tmp_path / "run-branch"
    assert seen == [3, 4, 5, 6]
    assert said == [f"{branch.folder} branches off {folder} after round 2"]
    origin = json.loads((branch.folder / "run.json").read_text())["branched"]
    assert origin == {
        "from": str(folder),
        "round": 2,
        "changed": {"train.lr": [0.1, 0.2]},
    }
    assert read_experiment_file(branch.folder / "config.toml").train.lr == 0.2
    assert branch.table["round"].to_numpy().min() == 1  # the rounds before are its past too
    edit(folder, "lr = 0.2\n", "lr = 0.1\n")
    execute(experiment(method="ditto", rounds=6), tmp_path / "whole")
    resume(folder)
    assert results(folder) == results(tmp_path / "whole")
    assert results(branch.folder) != results(tmp_path / "whole")


def test_a_branch_resumes_exactly_and_remembers_where_it_came_from(tmp_path):
    folder = stopped(tmp_path / "run")
    edit(folder, "lr = 0.1\n", "lr = 0.2\n")
    whole = resume(folder, allow_change=True)
    with pytest.raises(Stopped):
        resume(folder, stop_at(4), allow_change=True)
    cut = coterie.resume(tmp_path / "run-branch-2")
    assert results(cut.folder) == results(whole.folder)
    assert cut.about["branched"]["round"] == 2


def test_more_rounds_in_a_branch_are_those_of_a_longer_run(tmp_path):
    execute(experiment(method="ditto", rounds=4), tmp_path / "short")
    execute(experiment(method="ditto", rounds=6), tmp_path / "long")
    edit(tmp_path / "short", "rounds = 4\n", "rounds = 6\n")
    longer = coterie.resume(tmp_path / "short", allow_change=True)
    models = [results(folder)[0] for folder in (longer.folder, tmp_path / "long")]
    assert models[0] == models[1]
    assert read_status(tmp_path / "short") == "finished"


def test_a_checkpoint_past_the_rounds_is_refused_and_never_trains(tmp_path):
    folder = stopped(tmp_path / "run", at=5)
    edit(folder, "rounds = 6\n", "rounds = 3\n")
    with pytest.raises(BadInput, match=r"schedule\.rounds was 6 .* says 3"):
        resume(folder)
    with pytest.raises(BadInput, match=r"stands after round 5, but rounds = 3: give at least 5"):
        resume(folder, allow_change=True)
    assert not (tmp_path / "run-branch").exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", "has the options that the run began with"),
        ('path = "vectorized"', 'path = "sequential"', "only .train., .schedule. and"),
    ],
)
def test_a_branch_without_a_change_or_of_a_word_that_cannot_change_is_refused(
    old, new, says, tmp_path
):
    folder = stopped(tmp_path / "run")
    if old:
        edit(folder, old, new)
    with pytest.raises(BadInput, match=says):
        resume(folder, allow_change=True)


def test_every_word_that_shapes_a_result_is_in_the_shape():
    shape = identity_of(experiment(method="ditto"))
    assert {"method", "seed", "train.lr", "schedule.rounds", "dataset.name", "engine.path"} <= set(
        shape
    )
    assert not [w for w in shape if w.startswith("keep") or w in ("engine.threads", "engine.name")]


# Runs that are older than a word

YOUNG = [  # (word, its line, another value, its default in words)
    ("options.lam", "lam = 1.0\n", "lam = 2.0\n", "1.0"),
    ("train.momentum", "momentum = 0.0\n", "momentum = 0.5\n", "0.0"),
    ("schedule.dropout_clients", "dropout_clients = 0.0\n", "dropout_clients = 0.5\n", "0.0"),
    ("engine.precision", 'precision = "float32"\n', 'precision = "bfloat16"\n', "'float32'"),
    ("guard.robust", 'robust = "none"\n', 'robust = "median"\n', "'none'"),
    # another value of these makes other data or another network, which is told first
    ("dataset.newcomers", "newcomers = 0.0\n", "", ""),
    ("model.norm", "norm = false\n", "", ""),
]


def older(folder: Path, option: str, line: str, checkpoint: int = 1) -> Path:
    """A stopped run of a version that did not have a word."""
    with settings_written(lacks=(option,)):
        stopped(folder, checkpoint=checkpoint)
    edit(folder, line, "")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    execute(experiment(method="ditto", rounds=6), folder)
    return results(folder)


@pytest.mark.parametrize("checkpoint", [0, 1])
@pytest.mark.parametrize(("option", "line"), [young[:2] for young in YOUNG])
def test_a_run_that_is_older_than_a_word_goes_on_with_its_default(
    option, line, checkpoint, whole, tmp_path
):
    folder = older(tmp_path / "run", option, line, checkpoint)
    resume(folder)
    assert results(folder) == whole
    assert (
        option in json.loads((folder / "run.json").read_text())["options"]
    )  # from now on it is held
    assert resume(folder).about["status"] == "finished"


@pytest.mark.parametrize(("option", "line", "other", "usual"), YOUNG[:-2])
def test_a_younger_word_with_another_value_than_its_default_is_refused(
    option, line, other, usual, tmp_path
):
    with settings_written(lacks=(option,)):
        folder = stopped(tmp_path / "run", checkpoint=0)
    edit(folder, line, other)
    with pytest.raises(BadInput) as refusal:
        resume(folder)
    says = f"{option} was its default {usual} when this run began, config.toml says "
    assert says in str(refusal.value)


def test_a_finished_run_is_held_to_the_defaults_of_younger_words_too(tmp_path):
    with settings_written(lacks=("options.lam",)):
        folder = execute(experiment(method="ditto"), tmp_path / "run").folder
    assert resume(folder).about["status"] == "finished"
    edit(folder, "lam = 1.0\n", "lam = 2.0\n")
    with pytest.raises(BadInput, match=r"options\.lam was its default 1\.0 .* says 2\.0"):
        resume(folder)


def test_a_branch_of_a_younger_word_is_told_from_its_default(tmp_path):
    with settings_written(lacks=("options.lam",)):
        folder = stopped(tmp_path / "run")
    with pytest.raises(BadInput, match="has the options that the run began with"):
        resume(folder, allow_change=True)
    edit(folder, "lam = 1.0\n", "lam = 2.0\n")
    branch = resume(folder, allow_change=True)
    assert branch.about["branched"]["changed"] == {"options.lam": [1.0, 2.0]}


def test_a_word_that_is_gone_is_refused_by_name(tmp_path):
    with settings_written(more={"options.gone": 3}):
        folder = stopped(tmp_path / "run")
    with pytest.raises(BadInput, match=r"options\.gone was 3 .* config\.toml says not set"):
        resume(folder)
    edit(folder, "lam = 1.0\n", "lam = 1.0\ngone = 3\n")
    with pytest.raises(BadInput, match=r"unknown option 'gone' in \[options\]"):
        resume(folder)


def test_every_section_has_its_defaults_where_a_run_lacks_a_word():
    now = experiment(method="ditto", **{"newcomers": 0.3, "model.norm": True, "few-shot": "2"})
    began = identity_of(now)
    for option in ("dataset.newcomers", "model.norm", "schedule.few_shot"):
        del began[option]
    assert changes_of(now, began) == {
        "dataset.newcomers": OptionChange(0.0, 0.3, default=True),
        "model.norm": OptionChange(False, True, default=True),
        "schedule.few_shot": OptionChange("", 2, default=True),
    }


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_of_options_are_those_of_the_methods_builder(method):
    known = defaults_of(change_options(Experiment(), {"method": method}))
    given = {p.name: p.default for p in inspect.signature(METHODS[method]).parameters.values()}
    declared = {k: d for k, d in given.items() if d is not inspect.Parameter.empty}
    options = {w.partition(".")[2] for w in known if w.startswith("options.")}
    assert options == set(declared)
    for option, default in declared.items():
        if not isinstance(default, tuple | list):
            assert known[f"options.{option}"] == default


# Two checkpoints


def harm(folder: Path) -> None:
    (folder / "state.safetensors").write_bytes(b"x")


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    folder, said = stopped(tmp_path / "run", at=4), []
    harm(list_checkpoints(folder)[-1])
    seen = []

    def watch(report):
        said.extend(report.said)
        if report.stage:
            seen.append(report.round)

    resume(folder, watch)
    assert "checkpoint-0000004 is damaged" in said[0]
    assert "going on from checkpoint-0000003 instead" in said[0]
    assert seen == [4, 5, 6]
    execute(experiment(method="ditto", rounds=6), tmp_path / "whole")
    assert results(folder) == results(tmp_path / "whole")
    assert [p.name for p in list_checkpoints(folder)] == [
        "checkpoint-0000005",
        "checkpoint-0000006",
    ]


def test_a_damaged_checkpoint_is_written_anew_when_its_round_comes_again(tmp_path):
    folder = stopped(tmp_path / "run", at=4)
    harm(list_checkpoints(folder)[-1])
    with pytest.raises(Stopped):
        resume(folder, lambda r: stop_at(4)(r) if r.stage else None)
    seen = []
    resume(folder, lambda r: seen.append((r.round, r.said)))
    assert seen[0] == (5, ())


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_options_that_an_earlier_version_stored_as_words_are_held_to(
    checkpoint, whole, tmp_path, monkeypatch
):
    with monkeypatch.context() as earlier:
        earlier.setattr("coterie.running.execute.OPTIONS", "words")
        stopped(tmp_path / "run", checkpoint=checkpoint)
    assert "options" not in json.loads((tmp_path / "run" / "run.json").read_text())
    edit(tmp_path / "run", "lam = 1.0\n", "lam = 2.0\n")
    with pytest.raises(BadInput, match=r"options\.lam was 1\.0 .* says 2\.0"):
        resume(tmp_path / "run")
    edit(tmp_path / "run", "lam = 2.0\n", "lam = 1.0\n")
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == whole


def test_a_model_that_was_changed_or_is_not_listed_is_damaged(tmp_path):
    run = execute(experiment(method="ditto", rounds=1), tmp_path / "run")
    path = run.folder / "models" / "client-00001.safetensors"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[-1] ^= 1  # a weight, still a valid file
    path.write_bytes(bytes(bad))
    with pytest.raises(BadInput, match=r"client-00001\.safetensors is damaged"):
        run.model(1)
    path.write_bytes(good)
    run.model(1)
    listing = run.folder / "models" / "models.json"
    for text in ("{}", "[", '{"client-00000.safetensors": "x"}'):
        listing.write_text(text)
        with pytest.raises(BadInput, match=r"models\.json (is missing or damaged|does not list)"):
            run.model(1)


def test_a_stopped_run_is_read_from_its_older_checkpoint_where_the_newest_is_damaged(tmp_path):
    folder = stopped(tmp_path / "run", at=4)
    shutil.copytree(folder, tmp_path / "copy")
    (list_checkpoints(folder)[-1] / "metrics.json").write_bytes(b"x")
    assert load_run(folder).table["round"].to_numpy().max() == 3
    assert load_run(tmp_path / "copy").table["round"].to_numpy().max() == 4
