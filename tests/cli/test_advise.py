"""`coterie advise`: it names the arena's best methods that the data allow, and says so."""

import numpy as np
import pytest

from coterie.lab.arena.guide import read_guide

WORDS = ("--client", "clinic", "--label", "ill")


def _table(path, clients=5, rows=40, constant=False):
    """A table of one's own: two features and a label."""
    rng = np.random.default_rng(0)
    lines = ["clinic,a,b,ill"]
    for k in range(clients * rows):
        a, b = (1.0, 1.0) if constant else rng.normal(size=2)
        ill = rng.random() < 0.5 if constant else a + b > 0
        lines.append(f"c{k % clients},{a:.3f},{b:.3f},{'yes' if ill else 'no'}")
    path.write_text("\n".join(lines))


@pytest.fixture
def advise(coterie, tmp_path):
    """Advice on a table; gives (exit code, output in one line, errors)."""

    def advise(*words, **table):
        _table(tmp_path / "my.csv", **table)
        code, out, errors = coterie("advise", "my.csv", *WORDS, *words)
        return code, " ".join(out.split()), errors

    return advise


def _behind(method):
    return f"{read_guide().known.mean_behind(method):.1f}"


def test_a_method_is_named_with_its_own_figures_and_with_what_the_advice_goes_by(advise):
    code, out, _ = advise()
    assert code == 0
    assert f"│ 1. │ fedrep │ {_behind('fedrep')} │ 13 │ 9.4 │" in out
    assert f"│ beside │ local │ {_behind('local')} │" in out
    assert "These are the arena's best methods that your data allow, whatever the data" in out
    assert "no rule that looks at them does better by more than chance" in out
    assert "each of the arena's 13 federations left out once" in out
    assert "2.5 points behind the best" not in out  # which is what another method reached
    assert f"Not pfeddf, {_behind('pfeddf')} points behind there: pfeddf needs a public" in out


def test_the_way_out_for_a_method_that_cannot_run_works_at_once(advise):
    _, out, _ = advise()
    (_, _, rest) = out.partition("pfeddf needs a public data set: give ")
    way = rest.split(" These")[0].split()
    assert way == ["--public", "held-out", "--public-rows", "40", "--pfeddf.draw", "40"]
    code, out, _ = advise(*way)
    assert code == 0
    assert f"│ 1. │ pfeddf │ {_behind('pfeddf')} │ 13 │ 3.2 │" in out
    assert "Not pfeddf" not in out


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"clients": 1}, "There is one client: nobody can help it"),
        ({"constant": True}, "All training rows have the same inputs"),
        (
            {"rows": 1000},
            "Outside of what the arena has, so that it says less here: training rows "
            "per client (log10 of the median) = 2.78 (there 1.40 to 2.50)",
        ),
    ],
    ids=str,
)
def test_data_of_which_the_arena_says_little_are_told_so(advise, table, says):
    code, out, _ = advise(**table)
    assert code == 0
    assert says in out


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        (2, (), "which takes 4 rows with validation = 0.2 and test = 0.2; give each client more"),
        (3, (), "which takes 4 rows with validation = 0.2 and test = 0.2; use validation = 0"),
        (2, ("--validation", "0"), "takes 3 rows with validation = 0 and test = 0.2; give each"),
    ],
)
def test_too_few_rows_are_told_the_least_number_and_only_ways_that_work(advise, rows, words, says):
    code, _, errors = advise(*words, rows=rows)
    assert code == 2
    assert says in errors


def test_three_rows_are_enough_without_validation(advise):
    assert advise("--validation", "0", rows=3)[0] == 0


def test_the_help_says_what_the_output_says(coterie):
    out = " ".join(coterie("advise", "--help")[1].split())
    assert "Name the arena's best methods that DATA (digits) allow" in out
    assert "for information" in out
    assert "by more than chance" in out
