"""Words: types, names, ambiguity, TOML and back."""

import math
import tomllib
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import BadInput
from coterie.core.options import coerce
from coterie.experiment.config import (
    PYTHON,
    REGISTRIES,
    Experiment,
    change_options,
    flatten_options,
    known_options_of,
    options_of,
    read_experiment_file,
    read_toml,
)
from coterie.experiment.toml import to_toml
from coterie.methods.registry import METHODS


def refused(settings: dict, base: Experiment | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        change_options(base or Experiment(), settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Types


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, "5", 5),
        (int, 5.0, 5),
        (int, np.int64(5), 5),
        (float, "1e-5", 1e-5),
        (float, 3, 3.0),
        (float, np.float32(0.5), 0.5),
        (bool, "yes", True),
        (bool, "False", False),
        (bool, True, True),
        (str, 5, "5"),
        (str, [0.5, 1], "0.5,1"),
        (int | None, "none", None),
        (int | None, None, None),
        (int | None, "7", 7),
        (str | None, "none", "none"),  # scale = "none" is a word
        (str | None, "", None),
        (float | None, "2", 2.0),
        (tuple[str, ...], "a, b", ("a", "b")),
        (tuple[str, ...], ["a"], ("a",)),
        (Sequence[int] | None, "3,4", (3, 4)),
        (str | list[str], "a,b", ["a", "b"]),
        (Literal["yes", "no"], "yes", "yes"),
        (Literal["yes", "no"], False, "no"),
    ],
)
def test_values_become_the_type_that_is_wanted(kind, value, wanted):
    found = coerce(kind, value, "word")
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "many"),
        (int, "2.5"),
        (int, 2.5),
        (int, math.inf),
        (int, math.nan),
        (int, True),
        (int, None),
        (int, [1]),
        (float, "fast"),
        (float, math.nan),
        (float, "nan"),
        (float, "inf"),
        (float, -math.inf),
        (float, "1e400"),
        (float, 10**400),
        (int, "9" * 5000),
        (float, False),
        (float, {"a": 1}),
        (bool, "maybe"),
        (bool, 2),
        (str, True),
        (str, {"a": 1}),
        (int | None, "x"),
        (tuple[str, ...], 5),
        (tuple[int, ...], "1,x"),
        (Literal["auto", "yes"], "no"),
    ],
)
def test_values_of_another_type_are_refused_with_the_word_and_what_it_takes(kind, value):
    with pytest.raises(BadInput, match=r"^rounds (= .*|has no value): give "):
        coerce(kind, value, "rounds")


def test_a_refusal_gives_an_example():
    assert (
        refused({"rounds": "many"})
        == "rounds = 'many': give a whole number from 1 to 1,000,000, such as 50"
    )
    assert (
        refused({"rounds": True})
        == "rounds has no value: give a whole number from 1 to 1,000,000, such as 50"
    )
    assert refused({"compile": "maybe"}) == "compile = 'maybe': give auto, yes, trace or no"


# Words


def test_a_word_is_found_in_its_section_whether_or_not_the_section_is_named():
    for option in ("rounds", "schedule.rounds"):
        assert change_options(Experiment(), {option: "7"}).schedule.rounds == 7
    assert change_options(Experiment(), {"classes-each": 2}).partition == {
        "name": "classes",
        "classes_each": 2,
    }
    assert change_options(Experiment(method="ditto"), {"ditto.lam": 2}).options == {"lam": 2.0}
    assert change_options(Experiment(method="ditto"), {"lam": 2}) == change_options(
        Experiment(method="ditto"), {"options.lam": 2}
    )


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"method": "fedvag"}, "unknown method 'fedvag'; did you mean 'fedavg'?"),
        ({"dataset": "digts"}, "unknown data set 'digts'; did you mean 'digits'?"),
        ({"partition": "dirichle"}, "unknown partition 'dirichle'; did you mean 'dirichlet'?"),
        ({"model": "dnm"}, "unknown model 'dnm'; did you mean 'dnn'?"),
        ({"model": "dnn,mlx"}, "unknown model 'mlx'; did you mean 'mlr'?"),
        ({"roundz": 3}, "unknown option 'roundz'; did you mean 'rounds'?"),
        ({"modle": "dnn"}, "unknown option 'modle'; did you mean 'model'?"),
        ({"train.momentun": 3}, "unknown option 'momentun' in [train]; did you mean 'momentum'?"),
        ({"trian.rate": 3}, "unknown section 'trian' in 'trian.rate'; did you mean 'train'?"),
    ],
)
def test_unknown_names_are_refused_and_the_nearest_is_offered(settings, nearest):
    assert refused(settings) == nearest


def test_a_word_of_something_not_chosen_tells_whose_it_is():
    line = refused({"alpha": 0.3})
    assert line.startswith(
        "unknown option 'alpha' for dataset digits, partition classes, model dnn, method fedavg: "
        "it belongs to "
    )
    assert "dataset synthetic, partition dirichlet" in line
    assert "method ditto" in refused({"lam": 0.3})
    assert "`coterie compare`" in refused({"seeds": [1]})
    assert (
        refused({"ditto.lam": 1}) == "'ditto.lam' is for method 'ditto', but the method is 'fedavg'"
    )


def test_a_word_with_two_meanings_is_refused_and_both_are_offered():
    both = change_options(Experiment(method="fml"), {"partition": "dirichlet"})
    assert (
        refused({"alpha": 0.3}, both)
        == "'alpha' may mean partition.alpha or fml.alpha: write one of these"
    )
    assert change_options(both, {"partition.alpha": 0.3}).partition["alpha"] == 0.3
    assert change_options(both, {"fml.alpha": 0.3}).options == {"alpha": 0.3}
    assert (
        refused({"name": "x"})
        == "'name' may mean dataset.name or partition.name or model.name or engine.name: write one "
        "of these"
    )


def test_names_come_first_whatever_the_order_of_the_words():
    settings = {"alpha": 0.3, "lam": 2, "partition": "dirichlet", "method": "ditto"}
    made = change_options(Experiment(), settings)
    assert made.partition == {"name": "dirichlet", "alpha": 0.3}
    assert (made.method, made.options) == ("ditto", {"lam": 2.0})


def test_another_name_leaves_the_options_of_the_one_before():
    first = change_options(
        Experiment(),
        {
            "method": "ditto",
            "lam": 2,
            "partition": "dirichlet",
            "alpha": 0.3,
            "model": "dnn",
            "hidden": 8,
        },
    )
    other = change_options(first, {"method": "pfedme", "partition": "iid", "model": "mlr"})
    assert (other.options, other.partition, other.model) == ({}, {"name": "iid"}, {"name": "mlr"})
    assert (
        change_options(first, {"method": "ditto", "partition": "dirichlet", "model": "dnn"})
        == first
    )
    drawn = change_options(
        Experiment(),
        {"dataset": "synthetic", "dataset.alpha": 1, "num_clients": 9, "validation": 0.1},
    )
    assert change_options(drawn, {"dataset": "digits"}).dataset == {
        "name": "digits",
        "num_clients": 9,
        "validation": 0.1,
    }


def test_a_new_word_of_the_engine_or_another_name_undoes_what_was_chosen():
    run = change_options(
        Experiment(), {"engine.chosen": "vectorized:20:no", "path": "auto", "width": 0}
    )
    assert run.engine["chosen"] == "vectorized:20:no"  # in one file the order does not matter
    for settings in (
        {"path": "sequential"},
        {"engine": "ray"},
        {"engine": "ray", "actors": 2},
        {"method": "ditto"},
        {"model": "mlr"},
        {"dataset": "synthetic"},
    ):
        assert "chosen" not in change_options(run, settings).engine
    assert (
        change_options(run, {"rounds": 3, "method": "fedavg"}).engine["chosen"]
        == "vectorized:20:no"
    )


def test_the_engine_is_named_by_its_own_word_and_survives_toml():
    for settings in (
        {"engine": "ray"},
        {"engine.name": "ray"},
        flatten_options({"engine": {"name": "ray"}}),
    ):
        assert change_options(Experiment(), settings).engine == {"name": "ray"}
    made = change_options(
        Experiment(), {"engine": "ray", "actors": "3", "ray-address": "head:6379", "width": 4}
    )
    assert made.engine == {"name": "ray", "actors": 3, "ray_address": "head:6379", "width": 4}
    assert change_options(made, {"engine": "local"}).engine == {"name": "local", "width": 4}
    assert (
        change_options(Experiment(), flatten_options(tomllib.loads(to_toml(made.to_dict()))))
        == made
    )
    assert refused({"engine": "rya"}) == "unknown engine 'rya'; did you mean 'ray'?"
    assert refused({"engin": "ray"}) == "unknown option 'engin'; did you mean 'engine'?"


def test_every_option_that_may_be_none_is_none_by_default():
    """TOML has no None: what is left out must mean it."""
    for kind, registry in REGISTRIES.items():
        for name in registry:
            for option, (hint, default) in options_of(kind, name).items():
                assert type(None) not in get_args(hint) or default is None, (
                    f"{kind} {name} {option}"
                )


@pytest.mark.parametrize("method", METHODS)
def test_every_default_is_a_value_of_its_own_type(method):
    known = known_options_of(Experiment(method=method))
    for section, settings in known.items():
        for option, (kind, default) in settings.items():
            assert coerce(kind, default, option) == default, f"{section}.{option}"


# TOML


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(
            st.text(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.lists(st.text()),
            st.lists(st.floats(allow_nan=False)),
        ),
    )
)
def test_every_value_survives_toml(table):
    assert tomllib.loads(to_toml({"section": table}))["section"] == table


def test_awkward_values_survive_toml():
    settings = {
        "a": 'quote " backslash \\ newline \n tab \t null \x00 delete \x7f é 😀',
        "b": 1e-05,
        "c": math.inf,
        "d": -math.inf,
        "e": True,
        "f": ["x", "y"],
        "g": 2**70,
        "train.lr": 0.1,
        "": "empty key",
    }
    assert tomllib.loads(to_toml(settings | {"h": None, "t": ("x",)})) == settings | {"t": ["x"]}


def test_words_survive_toml_for_every_kind_of_experiment(tmp_path):
    for settings in (
        {},
        {
            "method": "persfl",
            "lambdas": "0,0.5",
            "lr": 1e-5,
            "parts": "test",
            "dropout_clients": 0.1,
            "models": "no",
            "compile": "yes",
        },
        {
            "dataset": "synthetic",
            "num_clients": 7,
            "dataset.alpha": 0.25,
            "partition": "user",
            "seed": 3,
            "dataset.seed": 5,
        },
        {"data": "gaussian", "sizes": "3,4,5", "s0sq": 0.5},
        {
            "data": 'own "data"\\x\n.csv',
            "client": "",
            "features": "a,b",
            "scale": "none",
            "rows": "none",
        },
        {"dataset": PYTHON + "tiny", "model": PYTHON + "Net"},
        {
            "partition": "dirichlet",
            "alpha": 1e-300,
            "rule": "round",
            "model": "dnn,mlr",
            "hidden": 5,
        },
        {"engine.chosen": "vectorized:20:no sequential:1:no", "threads": 2, "eval_every": 3},
    ):
        made = change_options(Experiment(), settings)
        path = tmp_path / "config.toml"
        path.write_text(to_toml(made.to_dict()), encoding="utf-8")
        again = read_experiment_file(path)
        without_none = {k: v for k, v in made.dataset.items() if v is not None}
        assert (again.dataset, again.partition, again.model) == (
            without_none,
            made.partition,
            made.model,
        )
        assert to_toml(again.to_dict()) == to_toml(made.to_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "is no TOML file"),
        ("[schedule\nrounds = 3", "is no TOML file"),
        ("rounds = 3\nrounds = 4", "is no TOML file"),
        ("[schedul]\nrounds = 3", "unknown section 'schedul'; did you mean 'schedule'?"),
        ("[empty]", "unknown section 'empty'"),
        ("[schedule]\nround = 3", "unknown option 'round' in [schedule]; did you mean 'rounds'?"),
        ("[schedule]\nrounds = true", "rounds has no value: give a whole number"),
        ("[schedule.rounds]\nx = 3", "schedule.rounds = {'x': 3}: give a whole number"),
        ('methods = ["local"]', "describes a comparison: use `coterie compare --config"),
    ],
)
def test_bad_files_are_refused_with_their_name(text, message, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_experiment_file(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(BadInput, match="is a folder, and a file is expected there"):
        read_toml(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"rounds = \xff")
    with pytest.raises(BadInput, match="is no text in UTF-8"):
        read_toml(tmp_path / "bytes.toml")


def test_nested_tables_are_dotted_words():
    assert flatten_options({"seed": 1, "train": {"lr": 0.1}, "ditto": {"lam": 2}}) == {
        "seed": 1,
        "train.lr": 0.1,
        "ditto.lam": 2,
    }
