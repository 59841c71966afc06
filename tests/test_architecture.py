"""docs/architecture.md says what the code is."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = {p.stem for p in (ROOT / "src" / "coterie").iterdir()}
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE)))


def test_the_generated_part_is_current():
    """After a change of packages, modules or imports: make docs."""
    made = runpy.run_path(str(ROOT / "scripts" / "architecture.py"))
    assert made["page"](PAGE) == PAGE
    assert made["PICTURE"].read_text(encoding="utf-8") == made["svg"](made["imports"]())


def test_every_arrow_points_down_and_none_is_said_twice():
    made = runpy.run_path(str(ROOT / "scripts" / "architecture.py"))
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert made["drawn"](edges) == [("a", "b"), ("b", "c")]
    assert [made["height"](room, edges) for room in "abc"] == [3, 2, 1]


@pytest.mark.parametrize("name", [n for n in NAMED if n.split(".")[0] in ROOMS])
def test_what_the_page_names_is_there(name):
    parts = f"coterie.{name}".split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} is nowhere")


def test_the_glossary_names_classes_that_are_there():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", source, re.M))
    named = set(re.findall(r"`([A-Z][a-z]\w+)`", text))
    assert len(named) > 20
    assert named <= classes
