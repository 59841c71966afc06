"""The papers' numbers and the recipes that are to reproduce them: every reference holds, and so do
the papers' own laws.
"""

import re

import pytest

from coterie.comparison.plan import plan_of, read_plan
from coterie.core.errors import BadInput
from coterie.experiment.build import check_experiment
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config, list_recipes
from coterie.experiment.smaller import ratios_of, say_ratios
from coterie.lab.papers.paper_tables import (
    PAPER_METRICS,
    PaperTable,
    can_run,
    read_paper,
    read_papers,
)

OWN = {"digits-classes", "digits-dirichlet"}  # recipes of no paper, beside the demos
TABLES = read_papers()
PAPER_RECIPES = sorted(r for r in set(list_recipes()) - OWN if not r.startswith("demo"))


def values(table: str, column: str) -> dict[str, float | None]:
    """{label: value} of one column."""
    return {row.label: row.value for c, row in TABLES[table].rows() if c.name == column}


def settings(recipe: str) -> dict:
    """The experiments of a recipe by method."""
    return read_plan(find_config(recipe)).experiments


# References


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_a_plan_whose_words_have_a_meaning(name):
    experiments, seeds, *_ = read_plan(find_config(name))
    assert seeds
    for experiment in experiments.values():
        check_experiment(experiment)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_the_options_that_a_recipe_keeps_for_methods_it_does_not_compare_are_good_too(name):
    options = read_toml(find_config(name))
    named = list(
        dict.fromkeys([*options["methods"], *options.get("options", {}), *options.get("tune", {})])
    )
    assert list(plan_of(options, methods=named).experiments) == named


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_the_head_of_a_recipe_tells_the_paper_and_what_is_ours(name):
    head = "\n".join(
        line for line in find_config(name).read_text().splitlines() if line.startswith("#")
    )
    assert re.match(r"# (PersFL|PFML|KT-pFL|Self-FL|UCFL|FLamby|PFLlib)(, |'s)", head)
    assert "Stated:" in head
    assert "Ours:" in head


def test_every_recipe_of_a_paper_reproduces_some_table():
    named = {
        recipe
        for table in TABLES.values()
        for c in table.columns
        for recipe in (c.recipe, c.cheaper)
    }
    unreported = {
        "persfl-cifar10-ds4",
        "persfl-mnist-ds4",
    }  # the thesis has this split, but no result on it
    assert set(PAPER_RECIPES) - named == unreported


def test_every_column_that_can_be_run_can_get_a_verdict():
    for table in filter(can_run, TABLES.values()):
        for column in table.columns:
            numbers = any(row.value is not None for row in column.rows)
            assert numbers or column.above or column.claims or table.script, (table.id, column.name)


def test_all_five_papers_are_there_with_every_table_of_results():
    count = {
        paper: sum(t.paper == paper for t in TABLES.values())
        for paper in ("PersFL", "PFML", "KT-pFL", "Self-FL", "UCFL")
    }
    flamby = {t.id for t in TABLES.values() if t.paper == "FLamby"}
    assert flamby == {"flamby-heart", "flamby-tcga"}
    others = flamby | {"pfllib-fmnist"}
    assert sum(count.values()) + len(others) == len(TABLES)
    assert all(n >= 5 for n in count.values())
    assert {t.id for t in TABLES.values()} >= {f"pfml-{k}" for k in range(1, 7)} | {
        f"ktpfl-{k}" for k in range(1, 7)
    }
    assert {t.id for t in TABLES.values()} >= {f"persfl-6.{k}" for k in range(2, 9)} | {
        "selffl-1",
        "ucfl-1",
    }


def test_spreads_are_explained_where_there_are_any():
    for table in TABLES.values():
        spreads = [row.spread is not None for _, row in table.rows() if row.value is not None]
        assert any(spreads) == bool(table.spread), table.id
        assert ("users" in table.spread) == (table.spread_over == "users"), table.id
        assert ("repeats" in table.spread) == (table.spread_over == "runs"), table.id


def test_what_is_claimed_of_the_course_is_judged_over_it():
    course = {t.id for t in TABLES.values() for c in t.columns if c.over == "course"}
    assert course >= {f"ktpfl-figure-{k}" for k in (2, 3, 4, 9, 10, 11, 12)}
    assert course >= {f"pfml-figure-{k}" for k in (2, 3, 4)} | {"selffl-figure-10"}
    said = {t.id for t in TABLES.values() if "course of training" in t.claim}
    assert said <= course


def test_ktpfls_figures_are_of_models_before_distillation():
    for name in ("1", "3", "4", "5", "6", *(f"figure-{k}" for k in (2, 3, 9, 10, 11, 12))):
        for column in TABLES[f"ktpfl-{name}"].columns:
            assert (column.view, column.beside) == ("before_distillation", "personal")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ktpfl-cifar10-n1-narrow", "networks 1/8 as wide"),
        ("ktpfl-emnist-n1-narrow", "5 of 20 local epochs"),
        ("ktpfl-emnist-n1-narrow", "465 of 3,000 rows of a client"),
        ("selffl-femnist", "35 % of the rows of a client"),
    ],
)
def test_recipes_say_in_what_they_are_smaller_than_their_papers(name, said):
    options = read_toml(find_config(name))
    assert said in say_ratios(ratios_of(options["smaller"]))
    narrow = [name for name in list_recipes() if name.endswith("-narrow")]
    assert all("smaller" in read_toml(find_config(name)) for name in narrow)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"widht": 0.5}, "no option 'widht'; did you mean 'width'"),
        ({"width": 2}, "give a share below 1"),
        ({"rows": [20, 5]}, "give a share below 1, or ours and the paper's"),
        (0.5, "give a table"),
    ],
)
def test_a_table_smaller_that_says_nothing_is_refused(table, says):
    options = read_toml(find_config("demo"))
    with pytest.raises(BadInput, match=says):
        plan_of({**options, "smaller": table})


GOOD = """id = "mine"
paper = "PFML"
place = "Table 1"
claim = "It is so."
metric = "weighted"

[[columns]]
name = "MNIST"
recipe = "pfml-mnist-mlr"
rows = [{ label = "PFML", method = "pfml", value = 1.0 }]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            'method = "pfml"',
            'method = "pfmll"',
            "'pfmll' of column 'MNIST' is not in the recipe pfml-mnist-mlr; did you mean",
        ),
        (
            'method = "pfml"',
            'method = "pfml", also = ["ditto"]',
            "'ditto' of column 'MNIST' is not in the recipe",
        ),
        (
            'recipe = "pfml-mnist-mlr"',
            'recipe = "pfml-mnist-mlp"',
            "no recipe of that name; did you mean 'pfml-mnist-mlr'",
        ),
        ('recipe = "pfml-mnist-mlr"', 'recipe = ""', "has no recipe: say why in a note"),
        ("rows = [", 'above = [["fedavg", "pfedme@5"]]\nrows = [', "'pfedme@5' of column 'MNIST'"),
        (
            "rows = [",
            'cheaper = "ucfl-s1"\nrows = [',
            "'pfml' of column 'MNIST' is not in the recipe ucfl-s1",
        ),
        (
            'metric = "weighted"',
            'metric = "wieghted"',
            "unknown metric 'wieghted'; did you mean 'weighted'",
        ),
        ("value = 1.0", "valeu = 1.0", "unknown option 'valeu' of a row; did you mean 'value'"),
        ("value = 1.0", 'value = "high"', "value = 'high': give a number"),
        ('claim = "It is so."\n', "", "a table has no claim"),
        ('id = "mine"', 'id = "yours"', "id = 'yours': name it 'mine'"),
        ("rows = [", 'above = [["pfml"]]\nrows = [', "give pairs of methods"),
    ],
)
def test_a_file_that_refers_to_nothing_is_refused_in_one_line(tmp_path, old, new, says):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert isinstance(read_paper(path), PaperTable)
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(BadInput) as caught:
        read_paper(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# Numbers


@pytest.mark.parametrize(
    ("table", "column", "label", "value"),
    [
        ("pfml-1", "MNIST, MLR", "FedAvg", 91.87),
        ("pfml-1", "Synthetic, MLR", "PFML-PM", 90.74),
        ("pfml-1", "Synthetic, DNN", "pFedMe-GM", 83.13),
        ("pfml-2", "CIFAR-10, |U| = 5", "PFML-GM", 49.24),
        ("pfml-4", "MNIST, DNN, |U| = 5", "K 1, GM", 96.77),
        ("pfml-6", "Synthetic, DNN, |U| = 5", "beta 3, GM", 85.36),
        ("persfl-6.2", "CIFAR-10 DS-1", "PersFL", 81.9),
        ("persfl-6.3", "MNIST DS-3", "Per-FedAvg", 97.3),
        ("persfl-6.4", "CIFAR-10 DS-2", "PersFL, FedAvg as teacher", 58.0),
        ("persfl-6.8", "MPI, CIFAR-10 DS-3", "FedPer", 30.43),
        ("ktpfl-1", "EMNIST, Non-IID_1", "KT-pFL", 84.65),
        ("ktpfl-1", "CIFAR-10, Non-IID_2", "FedMD", 35.56),
        ("ktpfl-2", "Fashion-MNIST, 100 clients", "pFedHN", 89.14),
        ("ktpfl-6", "CIFAR-10", "10 rows", 39.08),
        ("selffl-1", "worst tenth", "Self-FL", 37.01),
        ("selffl-40-steps", "FEMNIST, 40 steps", "pFedMe", 68.87),
        ("selffl-2a", "device C", "FedAvg-w", 12.80),
        ("ucfl-1", "S1, EMNIST label shift", "UCFL, k = 20", 73.2),
        ("ucfl-1", "S3, CIFAR-10 concept shift", "FedAvg", 19.6),
    ],
)
def test_numbers_are_the_papers(table, column, label, value):
    assert values(table, column)[label] == value


def test_accuracies_are_percentages_and_metrics_are_explained():
    for table in TABLES.values():
        for column, row in table.rows():
            assert column.metric in PAPER_METRICS
            if row.value is not None and table.unit == "%":
                assert 0 <= row.value <= 100


def test_persfl_gains_are_accuracies_beyond_fedavgs():
    for split in (1, 2, 3):
        accuracy, gain = (
            values("persfl-6.2", f"CIFAR-10 DS-{split}"),
            values("persfl-6.8", f"API, CIFAR-10 DS-{split}"),
        )
        for method in ("PersFL", "FedPer", "pFedMe", "Per-FedAvg"):
            assert gain[method] == pytest.approx(accuracy[method] - accuracy["FedAvg"], abs=0.11)


def test_a_figure_that_two_tables_print_is_one():
    for data, table in (("CIFAR-10", "persfl-6.2"), ("MNIST", "persfl-6.3")):
        for split in (1, 2, 3):
            column = f"{data} DS-{split}"
            assert values("persfl-6.6", column)["PersFL"] == values(table, column)["PersFL"]
            assert (
                values("persfl-6.4", column)["PersFL, optimal teacher"]
                == values(table, column)["PersFL"]
            )
    assert (
        values("pfml-3", "MLR")["lambda 20, PM"]
        == values("pfml-5", "Synthetic, MLR, |U| = 5")["lambda 20, PM"]
    )
    assert (
        values("pfml-3", "DNN")["lambda 30, GM"]
        == values("pfml-6", "Synthetic, DNN, |U| = 5")["beta 2, GM"]
    )


# Recipes


def test_persfl_recipes_take_the_rounds_of_table_6_7():
    for column, row in TABLES["persfl-6.7"].rows():
        assert settings(column.recipe)[row.method].schedule.rounds == row.value, (
            column.name,
            row.label,
        )


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (f"ktpfl-{data}-n{case}{narrow}", 1000 if data + narrow == "emnist-narrow" else 3000)
        for data in ("emnist", "fashion", "cifar10")
        for case in (1, 2)
        for narrow in ("", "-narrow")
    ],
)
def test_every_method_of_ktpfl_table_1_draws_as_many_public_rows(name, rows):
    drawn = {m: e.options["draw"] for m, e in settings(name).items() if m != "local"}
    assert set(drawn.values()) == {rows}
    assert len(drawn) == 7


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("ktpfl-")])
def test_knowledge_is_transferred_in_ktpfls_recipes_as_its_tables_tell_methods_apart(name):
    for method, experiment in settings(name).items():
        plain, _, reading = method.partition("@")
        told = reading not in ("published", "step")
        if plain in ("fedmd", "sim-pfl", "topk-pfl", "ktpfl"):
            assert experiment.options.get("T2_scale", False) is told
        if plain == "ktpfl":
            assert experiment.options.get("literal_eq7", False) is told
        if plain == "ktpfl-h":
            assert experiment.options["mu"] == (1 if told else 0.02)


SOFT = {"temperature", "T2_scale", "distil_epochs"}
CHOSEN = {  # options whose defaults are not the papers' (docs/defaults.md)
    "ucfl": {"batches"},
    "ktpfl": SOFT | {"lr_c"},
    "fedmd": SOFT,
    "sim-pfl": SOFT,
    "topk-pfl": SOFT,
    "ktpfl-h": {"mu", "lr_c"},
    "persfl": {"distil_epochs", "lambdas", "temperatures"},
    "persfl-gd": {"distil_epochs", "lambdas", "temperatures"},
    "pfml": {"lam", "anchor"},
}


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_a_papers_recipe_states_what_our_defaults_have_otherwise(name):
    for label, experiment in settings(name).items():
        assert CHOSEN.get(experiment.method, set()) <= set(experiment.options), label


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-narrow")])
def test_a_narrow_recipe_compares_the_same_methods_on_the_same_data(name):
    narrow, full = settings(name), settings(name.removesuffix("-narrow"))
    assert list(narrow) == list(full)
    for method, experiment in narrow.items():
        assert experiment.dataset == full[method].dataset
        mine, its = experiment.options, full[method].options
        assert mine == ({**its, "draw": mine["draw"]} if "draw" in its else its)
        if experiment.model["name"] == "kt-lenet":  # the networks of its tables are not stated
            continue
        assert experiment.model["width"] < 1
        networks = re.sub(r":width=[\d.]+", "", experiment.model["name"])
        assert experiment.model | {"name": networks} == {
            **full[method].model,
            "width": experiment.model["width"],
        }


def test_every_ktpfl_recipe_on_letters_has_ten_outputs_and_cifar10_has_its_own_rho():
    for name in PAPER_RECIPES:
        for method, experiment in settings(name).items() if name.startswith("ktpfl-") else ():
            assert experiment.dataset.get("outputs") == (
                10 if experiment.dataset["name"] == "femnist-letters" else None
            )
            if method in ("ktpfl", "ktpfl-h") and "sweep" not in name and "public" not in name:
                assert experiment.options["rho"] == (0.7 if "cifar10" in name else 0.6)


@pytest.mark.parametrize(
    "name", [name for name in list_recipes() if name.startswith(("selffl", "ucfl"))]
)
def test_a_recipe_that_tunes_has_validation_rows(name):
    options = read_toml(find_config(name))
    assert not options.get("tune") or options["dataset"]["validation"] > 0
    if name.startswith("ucfl"):
        assert all(
            options["tune"][m] == {"batches": [2.0, 2.5, 5.0, 10.0]}
            for m in options["methods"]
            if m.startswith("ucfl")
        )


def test_pfml_logistic_regression_has_its_l2_term():
    for name in (
        name for name in list_recipes() if name.startswith("pfml-") and "mixed" not in name
    ):
        for method, experiment in settings(name).items():
            weight = (
                experiment.options.get("mu", 0)
                if experiment.method == "pfedme"
                else experiment.train.weight_decay
            )
            assert weight == (0.001 if experiment.model["name"] == "mlr" else 0), (name, method)
