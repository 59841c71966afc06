"""Write the generated part of docs/architecture.md, and its picture: packages, their modules, who
imports whom.

    python scripts/architecture.py

Packages are the packages and modules right below `coterie`. A sentence about a package is its own
docstring; an arrow is an import that grimp finds in the code, drawn unless a longer way of arrows
says it already.
"""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "pictures" / "packages.svg"
WIDE, HIGH, GAP, STEP = 104, 32, 24, 68  # a box, the space beside it, from one row to the next
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"

Edges = dict[str, set[str]]  # package -> packages that it imports


def imports() -> Edges:
    """The packages, lowest first, and the packages that each imports."""
    graph = grimp.build_graph("coterie", cache_dir=None)
    packages = sorted(graph.find_children("coterie"))
    found = {
        package.removeprefix("coterie."): {
            other.removeprefix("coterie.")
            for other in packages
            if other != package
            and graph.direct_import_exists(importer=package, imported=other, as_packages=True)
        }
        for package in packages
    }
    return dict(sorted(found.items(), key=lambda item: (height(item[0], found), item[0])))


def height(package: str, edges: Edges) -> int:
    """The length of the longest way down from a package."""
    return 1 + max((height(below, edges) for below in edges[package]), default=0)


def reach(package: str, edges: Edges) -> set[str]:
    """All packages that a package knows, directly or not."""
    return edges[package] | {far for below in edges[package] for far in reach(below, edges)}


def drawn(edges: Edges) -> list[tuple[str, str]]:
    """The arrows that no longer way makes superfluous."""
    return [
        (package, below)
        for package, all_below in edges.items()
        for below in sorted(all_below)
        if not any(below in reach(other, edges) for other in all_below - {below})
    ]


def sentence(package: str) -> str:
    """What a package says of itself: the first paragraph of its docstring."""
    place = ROOT / "src" / "coterie" / package
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def inside(package: str) -> list[str]:
    """The modules and packages of a package."""
    place = ROOT / "src" / "coterie" / package
    if not place.is_dir():
        return []
    packages = [f"{p.name}/" for p in place.iterdir() if (p / "__init__.py").exists()]
    return sorted([*packages, *(p.stem for p in place.glob("*.py") if p.stem != "__init__")])


def generated() -> str:
    """The packages from the top down as a table, then the picture."""
    edges = imports()
    rows = [
        f"| `{package}` | {sentence(package)} | {', '.join(inside(package))} |"
        for package in reversed(edges)
    ]
    picture = "![The packages as boxes, an arrow for every import](pictures/packages.svg)"
    return "\n".join(
        ["| package | what it is for | modules |", "|---|---|---|", *rows, "", picture]
    )


def places(edges: Edges) -> dict[str, tuple[int, int]]:
    """The top left corner of each package's box: a row for each height, the highest on top."""
    rows: dict[int, list[str]] = {}
    for package in edges:
        rows.setdefault(height(package, edges), []).append(package)
    widest = max(map(len, rows.values()))
    found = {}
    for level, packages in rows.items():
        left = (widest - len(packages)) * (WIDE + GAP) // 2
        for i, package in enumerate(sorted(packages)):
            found[package] = (GAP + left + i * (WIDE + GAP), GAP + (max(rows) - level) * STEP)
    return found


def arrow(start: tuple[int, int], end: tuple[int, int], right: int) -> str:
    """From the foot of one box to the head of another; a way over several rows goes round them."""
    (x1, y1), (x2, y2) = start, end
    if y2 - y1 > STEP:
        y1, y2 = y1 + HIGH // 2, y2 + HIGH // 2
        way = f"M{x1 + WIDE} {y1}C{right} {y1} {right} {y2} {x2 + WIDE + 1} {y2}"
    else:
        way = f"M{x1 + WIDE // 2} {y1 + HIGH}L{x2 + WIDE // 2} {y2 - 1}"
    return f'<path d="{way}" fill="none" stroke="#888" stroke-width="1.5" marker-end="url(#tip)"/>'


def svg(edges: Edges) -> str:
    """The picture: boxes and arrows that can be read on a light and on a dark page."""
    at = places(edges)
    right = max(x for x, _ in at.values()) + WIDE + GAP
    bottom = max(y for _, y in at.values()) + HIGH + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {bottom}" '
        f'width="{right}" height="{bottom}" font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>',
    ]
    lines += [arrow(at[package], at[below], right) for package, below in drawn(edges)]
    for package, (x, y) in at.items():
        lines.append(
            f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6" fill="#e8eaf6" '
            'stroke="#3f51b5"/>'
            f'<text x="{x + WIDE // 2}" y="{y + 21}" text-anchor="middle" fill="#1a237e">'
            f"{package}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


def page(text: str) -> str:
    """The page with its generated part made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{generated()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(svg(imports()), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is current")
