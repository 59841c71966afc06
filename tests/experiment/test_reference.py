"""Every option has a meaning, and help, lists and pages say the same one."""

import inspect

import pytest
from click.testing import CliRunner

from coterie.cli.main import cli
from coterie.core.meanings import about, meanings_of
from coterie.experiment.config import REGISTRIES, SECTIONS, Experiment, change_options
from coterie.experiment.reference import (
    WRITTEN,
    about_named,
    describe_experiment,
    describe_named,
    describe_own_data,
    describe_section,
)

NAMED = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]


def printed(*arguments: str) -> str:
    found = CliRunner().invoke(cli, list(arguments))
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_of_a_section_has_a_meaning(section):
    assert [e.name for e in describe_section(section) if not e.meaning] == []


def test_every_option_of_a_name_has_a_meaning_and_every_name_is_described():
    gaps = [(*one, e.name) for one in NAMED for e in describe_named(*one) if not e.meaning]
    assert gaps == []
    assert [one for one in NAMED if not about_named(*one)] == []
    assert [e.name for e in describe_own_data() if not e.meaning] == []


def test_a_docstring_speaks_of_no_option_that_is_gone():
    for kind, name in NAMED:
        text = about_named(kind, name)
        assert not [line for line in text.splitlines() if line.startswith("    ")], (kind, name)


def test_help_prints_every_option_with_its_meaning_range_and_default():
    text = printed("run", "--help")
    for section in SECTIONS:
        for entry in describe_section(section):
            assert str(entry) in text, (section, entry.name)


def test_names_beside_help_bring_their_options():
    text = printed("run", "selffl", "--dataset", "synthetic", "--partition", "dirichlet", "--help")
    for kind, name in (("method", "selffl"), ("dataset", "synthetic"), ("partition", "dirichlet")):
        for entry in describe_named(kind, name):
            assert str(entry) in text
    own = printed("compare", "my.csv", "--help")
    assert all(str(entry) in own for entry in describe_own_data())
    assert "--rounds" in printed("run", "nosuch", "--help")


def test_a_methods_list_prints_the_same_meanings():
    text = printed("methods", "ditto")
    (entry,) = describe_named("method", "ditto")
    assert entry.meaning in text


def test_an_option_has_the_meaning_of_the_name_that_is_chosen():
    many = change_options(Experiment(), {"partition": "ktpfl-2"})
    some = change_options(Experiment(), {"partition": "classes"})
    said = [
        next(e.meaning for e in describe_experiment(one)["partition"] if e.name == "each")
        for one in (many, some)
    ]
    assert said[0] != said[1]
    shown = {e.name for entries in describe_experiment(many).values() for e in entries}
    assert not shown & set(WRITTEN)


def test_a_line_belongs_to_its_option_and_a_variant_inherits():
    def build(alpha: int = 1, beta: int = 2) -> None:
        """What it does.

        Note: this is no option.

        alpha, beta: first and
            second.
        """

    assert meanings_of(build) == {"alpha": "first and second", "beta": "first and second"}
    assert about(build) == "What it does.\n\nNote: this is no option."
    assert "lambdas" in meanings_of(REGISTRIES["method"]["persfl-gd"])
    assert "lambdas" not in (inspect.getdoc(REGISTRIES["method"]["persfl-gd"]) or "")
