"""Figures on paper."""

import pytest

from coterie.reports.draw import draw_figure
from coterie.reports.figures import Figure, Series

KINDS = {"lines", "dots", "bars", "density", "points", "heat"}


@pytest.mark.parametrize("kind", sorted(KINDS - {"heat"}))
def test_hostile_names_are_drawn_as_they_are(kind, tmp_path):
    names = ["$x_1", "<b>&", "_a", "ä" * 80]
    x = names if kind in ("dots", "bars") else [1.0, 2.0, 3.0, 4.0]
    series = tuple(
        Series(name, x, [1.0, float("nan"), 2.0, 3.0], [0.5] * 4, [4.0] * 4) for name in names
    )
    drawn = draw_figure(Figure("key", "$title_{", "note $", kind, "$x", "$y", series), names[:2])
    drawn.savefig(tmp_path / "it.png")
    assert {t.get_text().replace("\\$", "$") for t in drawn.legends[0].get_texts()} >= {
        "$x_1",
        "<b>&",
    }
