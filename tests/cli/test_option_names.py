"""Options have the names that the field uses; names of before still work, and a newcomer's guess
is answered by the option that was meant.
"""

import pytest

import coterie
from coterie.analysis.scores import scores_of
from coterie.cli.main import COMMANDS, cli
from coterie.core.errors import BadInput, suggest_name
from coterie.core.optimizers import OPTIMIZERS
from coterie.core.option_names import (
    FORMER_NAMES,
    FORMER_SECTIONS,
    METHOD_SYNONYMS,
    NAME_HERE,
    VALUES,
    find_alike,
    rename_former,
)
from coterie.core.schedules import SCHEDULES
from coterie.core.server_optimizers import SERVER_OPTIMIZERS
from coterie.core.task import TASKS
from coterie.data.partition.registry import PARTITIONERS
from coterie.data.read.catalog import DATASETS
from coterie.experiment.config import (
    Experiment,
    change_options,
    flatten_options,
    known_options_of,
    options_of,
    read_experiment_file,
)
from coterie.methods.declare import check_options
from coterie.methods.persfl import persfl
from coterie.methods.registry import METHODS
from coterie.networks.registry import NETS
from coterie.running.identity import changes_of, identity_of

WORKS = [
    ("--lr 0.1", "train", {"lr": 0.1}),
    ("--batch-size 32", "train", {"batch_size": 32}),
    ("--num-clients 10", "dataset", {"num_clients": 10}),
    ("--partition dirichlet --alpha 0.1", "partition", {"name": "dirichlet", "alpha": 0.1}),
    ("--dataset cifar10", "dataset", {"name": "cifar10"}),
    ("--local-epochs 5", "train", {"local_epochs": 5}),
    ("--epochs 5", "train", {"local_epochs": 5}),
    ("--weight-decay 1e-4", "train", {"weight_decay": 1e-4}),
    ("--rounds 5", "schedule", {"rounds": 5}),
    ("--device cuda", "engine", {"device": "cuda"}),
    ("--optimizer adam", "train", {"optimizer": "adam"}),
    ("--momentum 0.9", "train", {"momentum": 0.9}),
    ("--lr-schedule cosine", "train", {"lr_schedule": "cosine"}),
]
HINTS = [
    ("--learning-rate", "lr"),
    ("--local-learning-rate", "lr"),
    ("--global-rounds", "rounds"),
    ("--num-rounds", "rounds"),
    ("--join-ratio", "participation"),
    ("--fraction-fit", "participation"),
    ("--local-bs", "batch_size"),
    ("--nclients", "num_clients"),
    ("--l2", "weight_decay"),
    ("--eval-gap", "eval_every"),
    ("--random-state", "seed"),
    ("--partitioner", "partition"),
    ("--non-iid", "partition"),
    ("--n-clients", "num_clients"),
    ("--frac", "participation"),
    ("--clients-per-round", "participation"),
    ("--jr", "participation"),
    ("--scheduler", "lr_schedule"),
    ("--lr-decay", "lr_schedule"),
    ("--optim", "optimizer"),
    ("--betas", "optimizer"),
    ("--grad-clip", "clip_norm"),
    ("--val-split", "validation"),
    ("--test-size", "test"),
    ("--normalize", "scale"),
    ("--workers", "threads"),
    ("--wandb", "track"),
    ("--gpu", "device"),
    ("--minibatch", "batch_size"),
    ("--output", "out"),
    ("--save", "out"),
    ("--verbose", "quiet"),
    ("--target", "label"),
]
VALUE_HINTS = [
    ("--model cnn", "smallcnn"), ("--model mlp", "dnn"), ("--model resnet18", "kt-resnet18"),
    ("--model lenet", "lenet5"), ("--model logreg", "mlr"), ("--method FedAvg", "fedavg"),
    ("--method Per-FedAvg", "perfedavg"), ("--method standalone", "local"),
    ("--dataset MNIST", "mnist"), ("--dataset CIFAR-10", "cifar10"),
    ("--dataset FashionMNIST", "fashion-mnist"), ("--dataset fmnist", "fashion-mnist"),
    ("--partition noniid", "classes"), ("--partition pat", "classes"),
    ("--partition dir", "dirichlet"), ("--partition shards", "classes"),
    ("--optimizer SGD", "sgd"), ("--optimizer AdamW", "adamw"),
    ("--server-optimizer fedadam", "adam"), ("--scale own", "client"), ("--metric acc", "accuracy"),
    ("--lr-schedule CosineAnnealingLR", "cosine"),
]  # fmt: skip
WAYS = [  # what is typed, and the end of the answer
    ("run fedavg -lr 0.1", "write --lr, with two hyphens"),
    ("run fedavg -lbs 10", "write --batch-size, with two hyphens"),
    ("run fedavg -jr 0.5", "write --participation, with two hyphens"),
    ("run fedavg --method ditto", "name one of them"),
    ("run ditto --mu 0.1", "unknown option 'mu' of method ditto; here it is 'lam'"),
    ("run fedavg --alpha 0.5", ": add --partition dirichlet"),
    ("compare --methods fedavg ditto", "by commas, as in --methods fedavg,ditto"),
    ("compare fedavg ditto", "by commas, as in --methods fedavg,ditto"),
    ("compare digits --dataset mnist", "name one of them"),
    ("compare --method ditto", "methods = [...] in the file"),
    ("train fedavg", "did you mean 'run'?"),
    ("run fedavg --rounds 0", "give a whole number from 1 to 1,000,000, such as 50"),
]


def set_options(*arguments):
    from coterie.cli.options import parse_arguments

    return change_options(Experiment(), parse_arguments(arguments)[1])


def refuse(*typed):
    """What a command that cannot work is answered."""
    from click.testing import CliRunner

    problem = CliRunner().invoke(cli, typed).exception
    assert isinstance(problem, BadInput), problem
    return str(problem)


@pytest.mark.parametrize(("guess", "section", "values"), WORKS)
def test_a_newcomers_guess_works(guess, section, values):
    assert values.items() <= set_options(*guess.split()).to_dict()[section].items()


def test_seed_and_method_are_options_too():
    made = set_options("--seed", "3", "--method", "ditto")
    assert (made.seed, made.method) == (3, "ditto")


@pytest.mark.parametrize(("guess", "name"), HINTS)
def test_what_other_libraries_call_an_option_is_answered_by_its_name_here(guess, name):
    with pytest.raises(BadInput, match=f"here it is '{name}'"):
        set_options(guess, "1")


@pytest.mark.parametrize(("guess", "name"), VALUE_HINTS)
def test_what_others_call_a_choice_is_answered_by_its_name_here(guess, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = () if "--method" in guess else ("fedavg",)
    assert f"did you mean '{name}'" in refuse("run", *method, *guess.split())


@pytest.mark.parametrize(("typed", "way"), WAYS)
def test_a_guess_that_cannot_work_is_answered_by_the_way(typed, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refuse(*typed.split()).endswith(way)
    assert not list(tmp_path.iterdir())  # nothing began


def test_every_choice_of_others_leads_to_one_that_there_is():
    known = {
        *METHODS, *NETS, *PARTITIONERS, *DATASETS, *OPTIMIZERS, *SERVER_OPTIMIZERS, *SCHEDULES,
        *TASKS, *COMMANDS, *{score.name for task in TASKS for score in scores_of(task)}, "client",
    }  # fmt: skip
    assert set(VALUES) <= known


def test_every_synonym_leads_to_an_option_that_there_is():
    known = {
        name for names in known_options_of(Experiment(method="ditto")).values() for name in names
    }
    elsewhere = {"method", "seed", "dataset", "partition", "model", "alpha", "mu", "out"}
    elsewhere |= {"label", "client", "missing_values", "drop_missing_labels", "decimal", "quiet"}
    assert set(NAME_HERE.values()) <= known | elsewhere
    assert not set(NAME_HERE) & known
    for method, names in METHOD_SYNONYMS.items():
        assert set(names.values()) <= options_of("method", method).keys()
        assert not set(names) & (known | options_of("method", method).keys())


def test_ten_guesses_of_a_newcomer_are_one_run(coterie, tmp_path):
    """The tenth, --algorithm, is answered by a hint; `digits` stands for cifar10."""
    typed = (
        "run ditto --dataset digits --lr 0.1 --batch-size 32 --optimizer adam --num-clients 10 "
        "--partition dirichlet --alpha 0.1 --local-epochs 5 --weight-decay 1e-4 --rounds 5"
    )
    code, said, _ = coterie(*typed.split(), "--hidden", "8", "--out", str(tmp_path / "run"))
    assert code == 0
    assert f"run: {tmp_path / 'run'}" in said


@pytest.mark.parametrize(
    ("command", "way"), [("run", "--method, or the name alone"), ("compare", "--methods")]
)
def test_algorithm_is_answered_by_method(command, way):
    assert refuse(command, "--algorithm", "ditto").endswith(f"here it is {way}")


# Names of before


OLD = [
    (f"{section}.{old}", f"{section}.{new}")
    for section, names in FORMER_NAMES.items()
    if section != "options"
    for old, new in names.items()
]


@pytest.mark.parametrize(("old", "new"), OLD)
def test_a_name_of_before_means_the_same(old, new):
    for a, b in ((old, new), (old.partition(".")[2], new.partition(".")[2])):
        value = 0.5 if "sample" in a or "drop" in a else 2 if "rate" not in a else 0.2
        value = 0.2 if "decay" in a else value
        assert change_options(Experiment(), {a: value}) == change_options(Experiment(), {b: value})


def test_a_file_of_before_is_read(tmp_path):
    old = '[data]\nname = "digits"\nclients = 7\n[split]\nname = "dirichlet"\nalpha = 0.2\n'
    old += "[train]\nrate = 0.3\nbatch = 8\nepochs = 2\n[schedule]\nsample = 0.5\nevaluate = 4\n"
    new = '[dataset]\nname = "digits"\nnum_clients = 7\n[partition]\nname = "dirichlet"\n'
    new += "alpha = 0.2\n[train]\nlr = 0.3\nbatch_size = 8\nlocal_epochs = 2\n"
    new += "[schedule]\nparticipation = 0.5\neval_every = 4\n"
    for name, text in (("old", old), ("new", new)):
        (tmp_path / f"{name}.toml").write_text(text)
    read = [read_experiment_file(tmp_path / f"{name}.toml") for name in ("old", "new")]
    assert read[0] == read[1]
    assert read[0].dataset["num_clients"] == 7


def test_python_takes_names_of_before(tmp_path):
    settings = {"rounds": 1, "rows": 200, "hidden": 4, "threads": 1}
    old = coterie.run("local", data="digits", clients=4, rate=0.2, out=tmp_path / "a", **settings)
    new = coterie.run(
        "local", dataset="digits", num_clients=4, lr=0.2, out=tmp_path / "b", **settings
    )
    assert old.experiment == new.experiment


def test_options_of_methods_have_names_of_before_too():
    assert check_options("persfl", persfl, {"distil_rate": 0.1}) == {"distil_lr": 0.1}
    settings = flatten_options({"options": {"distil_rate": 0.1}})
    assert change_options(Experiment("persfl"), settings).options == {"distil_lr": 0.1}


def test_both_names_of_one_option_are_refused():
    with pytest.raises(BadInput, match="lr and rate are the same option"):
        change_options(Experiment(), {"lr": 0.1, "rate": 0.2})


def test_an_option_of_ones_own_keeps_its_name():
    assert rename_former("options.rate_c", {"options.rate_c"}) == "options.rate_c"
    assert all(rename_former(new) == new for new in FORMER_SECTIONS.values())


def test_a_run_that_began_under_names_of_before_has_not_changed():
    now = change_options(Experiment("ktpfl"), {"lr": 0.3, "num_clients": 7, "lr_c": 0.2})
    before = {f"{s}.{new}": f"{s}.{old}" for s, n in FORMER_NAMES.items() for old, new in n.items()}
    sections = {new: old for old, new in FORMER_SECTIONS.items()}

    def old_name(option):
        section, dot, name = before.get(option, option).rpartition(".")
        return f"{sections.get(section, section)}{dot}{name}"

    began = {old_name(option): value for option, value in identity_of(now).items()}
    assert {"train.rate", "data.clients", "options.rate_c"} <= set(began)
    assert changes_of(now, began) == {}
    began["train.rate"] = 0.4
    assert list(changes_of(now, began)) == ["train.lr"]


# Hints


GOOD = [
    ("fedvag", "fedavg"), ("dito", "ditto"), ("rouns", "rounds"), ("momentun", "momentum"),
    ("weight_deacy", "weight_decay"), ("dirichet", "dirichlet"), ("ifac", "ifca"),
    ("momen", "momentum"), ("num_client", "num_clients"), ("local_epoch", "local_epochs"),
    ("alfa", "alpha"),
]  # fmt: skip
BAD = [
    ("fedbabu", "fedbn"), ("fedrod", "fedprox"), ("fedproto", "fedprox"), ("fedgen", "fedper"),
    ("fedadam", "fedamp"), ("fednova", "fedavg"), ("partition", "precision"),
    ("optimizer", "hostile"), ("scheduler", "rounds"), ("amsgrad", "newcomers"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "name"), GOOD)
def test_a_slip_of_the_keyboard_is_answered_by_the_name(option, name):
    assert find_alike(option, [name, "zzz"]) == name


@pytest.mark.parametrize(("option", "name"), BAD)
def test_what_only_looks_alike_is_no_hint(option, name):
    assert find_alike(option, [name]) is None


def test_a_method_that_is_not_here_is_not_answered_by_another():
    assert "did you mean" not in suggest_name("fedbabu", METHODS.keys() - {"fedbabu"})
