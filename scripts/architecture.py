"""Write the generated part of docs/architecture.md: the rooms, their modules, who imports whom.

    python scripts/architecture.py

Rooms are the packages and modules right below `coterie`. A sentence about a room is its own
docstring; an arrow is an import that grimp finds in the code, drawn unless a longer way of arrows
says it already.
"""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"

Edges = dict[str, set[str]]  # room -> rooms that it imports


def imports() -> Edges:
    """The rooms, lowest first, and the rooms that each imports."""
    graph = grimp.build_graph("coterie", cache_dir=None)
    rooms = sorted(graph.find_children("coterie"))
    found = {
        room.removeprefix("coterie."): {
            other.removeprefix("coterie.")
            for other in rooms
            if other != room
            and graph.direct_import_exists(importer=room, imported=other, as_packages=True)
        }
        for room in rooms
    }
    return dict(sorted(found.items(), key=lambda item: (height(item[0], found), item[0])))


def height(room: str, edges: Edges) -> int:
    """The length of the longest way down from a room."""
    return 1 + max((height(below, edges) for below in edges[room]), default=0)


def reach(room: str, edges: Edges) -> set[str]:
    """All rooms that a room knows, directly or not."""
    return edges[room] | {far for below in edges[room] for far in reach(below, edges)}


def drawn(edges: Edges) -> list[tuple[str, str]]:
    """The arrows that no longer way makes superfluous."""
    return [
        (room, below)
        for room, all_below in edges.items()
        for below in sorted(all_below)
        if not any(below in reach(other, edges) for other in all_below - {below})
    ]


def sentence(room: str) -> str:
    """What a room says of itself: the first paragraph of its docstring."""
    place = ROOT / "src" / "coterie" / room
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def inside(room: str) -> list[str]:
    """The modules and packages of a room."""
    place = ROOT / "src" / "coterie" / room
    if not place.is_dir():
        return []
    packages = [f"{p.name}/" for p in place.iterdir() if (p / "__init__.py").exists()]
    return sorted([*packages, *(p.stem for p in place.glob("*.py") if p.stem != "__init__")])


def generated() -> str:
    """The rooms from the top down as a table, then the picture."""
    edges = imports()
    rows = [
        f"| `{room}` | {sentence(room)} | {', '.join(inside(room))} |" for room in reversed(edges)
    ]
    arrows = [f"  {room} --> {below}" for room, below in reversed(drawn(edges))]
    picture = ["```mermaid", "flowchart TD", *arrows, "```"]
    return "\n".join(["| room | what it is for | modules |", "|---|---|---|", *rows, "", *picture])


def page(text: str) -> str:
    """The page with its generated part made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{generated()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is current")
