"""`coterie advise`: it names the arena's best methods that the data allow, and says so."""

import numpy as np
import pytest

from coterie.lab.arena.guide import SUGGESTED, read_guide
from coterie.lab.arena.guide_section import find_public_methods
from coterie.lab.arena.rules import BASELINES, SINGLE, rank_methods
from coterie.lab.commands import advise as command_file

WORDS = ("--client", "clinic", "--label", "ill")


def _table(path, clients=5, rows=40):
    """A table of one's own: two features and a label."""
    rng = np.random.default_rng(0)
    lines = ["clinic,a,b,ill"]
    for k in range(clients * rows):
        a, b = rng.normal(size=2)
        ill = a + b > 0
        lines.append(f"c{k % clients},{a:.3f},{b:.3f},{'yes' if ill else 'no'}")
    path.write_text("\n".join(lines))


@pytest.fixture
def advise(coterie, tmp_path):
    """Advice on a table; gives (exit code, output in one line, errors)."""

    def advise(*settings):
        _table(tmp_path / "my.csv")
        code, out, errors = coterie("advise", "my.csv", *WORDS, *settings)
        return code, " ".join(out.split()), errors

    return advise


def _behind(method):
    return f"{read_guide().known.mean_behind(method):.1f}"


@pytest.fixture
def public_first(monkeypatch):
    """As if a method that needs public rows were the arena's best."""
    guide = read_guide()
    points = guide.known.points.copy()
    points[:, guide.known.methods.index("ktpfl")] = (
        points.max(initial=0, where=points == points) + 1
    )
    better = guide._replace(known=guide.known._replace(points=points))
    monkeypatch.setattr(command_file, "read_guide", lambda: better)


def test_one_sentence_and_a_command_that_runs_what_the_data_allow(advise):
    guide = read_guide()
    code, out, _ = advise()
    assert code == 0
    assert f"each of the arena's {len(guide.known.federations)} federations left out once" in out
    able = set(guide.known.methods) - find_public_methods()
    first = rank_methods(SINGLE, guide.known.only(able))[:SUGGESTED]
    bars = [bar for bar in BASELINES if bar not in first]
    command = f"coterie compare --methods {','.join([*bars, *first])} --dataset my.csv"
    assert f"{command} {' '.join(WORDS)}" in out
    assert f"{first[0]} {_behind(first[0])} and {guide.gradients[first[0]]:.1f}" in out


def test_the_command_is_taken_as_it_stands(advise, coterie):
    _, out, _ = advise()
    line = out.partition("  coterie ")[2] or out.partition(" coterie ")[2]
    settings = line.split(" In the arena")[0].split()
    code, _, errors = coterie(*settings, "--rounds", "1", "--quiet")
    assert code == 0, errors


def test_the_way_out_for_a_method_that_cannot_run_works_at_once(advise, public_first):
    _, out, _ = advise()
    (_, _, rest) = out.partition("Not ktpfl: ktpfl needs a public data set: give ")
    way = rest.split()[:6]
    assert way == ["--public", "held-out", "--public-rows", "40", "--ktpfl.draw", "40"]
    code, out, _ = advise(*way)
    assert code == 0
    assert "--methods local,fedavg,ktpfl," in out
    assert "Not ktpfl" not in out


def test_the_help_says_what_the_output_says(coterie):
    out = " ".join(coterie("advise", "--help")[1].split())
    assert "Name the arena's best methods that DATA (digits) allow" in out
    assert "what they look like says little or nothing of who wins" in out
