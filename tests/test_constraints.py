"""constraints.txt names everything that set-up installs."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def walk(name: str, extras: tuple[str, ...], seen: set) -> None:
    """All distributions that one needs here, itself included."""
    if (plain(name), extras) in seen:
        return
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:  # not installed here, so of no concern
        return
    seen.add((plain(name), extras))
    for text in requires:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in (*extras, "")):
            walk(one.name, tuple(sorted(one.extras)), seen)


def test_constraints_name_everything_that_dev_installs():
    try:
        distribution("coterie")
    except PackageNotFoundError:
        pytest.skip("coterie is not installed")
    seen: set = set()
    walk("coterie", ("dev",), seen)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    named = {plain(line.partition("==")[0]) for line in lines if "==" in line}
    assert sorted({name for name, _ in seen} - named - {"coterie"}) == []
    assert lines[1:] == sorted(lines[1:], key=str.lower)


def test_the_oldest_and_newest_torch_of_the_metadata_are_tested():
    (torch,) = re.findall(
        r'"(torch[^"]*)"', (ROOT / "pyproject.toml").read_text().split("dev = ")[0]
    )
    oldest = torch.removeprefix("torch>=").partition(",")[0]
    jobs = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f'["torch=={oldest}.*", "{torch}"]' in jobs
