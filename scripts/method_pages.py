"""Write docs/methods/NAME.md, a page per method, from its file and its declared options.

    python scripts/method_pages.py

Paper and formula are the docstring of the method's file, defaults and ranges its declaration, what
travels the measured table of docs/methods.md. Sentences that the code does not hold are in
scripts/method_words.toml.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

from coterie.core.options import declared_options, describe_type
from coterie.methods.declare import unused_of, when_of
from coterie.methods.needs import build_stages, needs_of
from coterie.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "methods"
TABLE = ROOT / "docs" / "methods.md"
WORDS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "method_words.toml").read_text(encoding="utf-8")
)
NEEDS = {
    "public": "public rows that server and clients share (`--public`)",
    "validation": "validation rows at each client (`--validation`)",
    "groups": "the true group of each client (data that were dealt in groups)",
}
TRAVELS = ("down to a client", "up from a client", "kept by a client", "kept by the server")


def plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([\\*_<>\[\]|#])", r"\\\1", text)


def shown(value: Any) -> str:
    """A default as it is written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def prose(paragraph: str) -> str:
    """A paragraph of a docstring; its indented lines, which are formulas, as they stand."""
    parts: list[tuple[bool, list[str]]] = []
    for line in paragraph.splitlines():
        formula = line.startswith("    ")
        if not parts or parts[-1][0] != formula:
            parts.append((formula, []))
        parts[-1][1].append(line)
    return "\n\n".join(
        "\n".join(["```text", inspect.cleandoc("\n" + "\n".join(lines)), "```"])
        if formula
        else items(lines)
        for formula, lines in parts
    )


def items(lines: list[str]) -> str:
    """Running text, or a list where a colon or semicolon is followed by a dash; words in backticks
    stay code."""
    text = re.sub(r"(?<=:)\n- ", "\0- ", "\n".join(lines))
    text = re.sub(r"(?<=;)\n- ", "\1- ", text).replace("\n", " ")
    text = "`".join(piece if i % 2 else plain(piece) for i, piece in enumerate(text.split("`")))
    return text.replace("\0", "\n\n").replace("\1", "\n")


def said(name: str) -> dict[str, str]:
    """{option: what the builder's docstring says of it}, from sentences such as "clip: ..."."""
    text = " ".join((inspect.getdoc(METHODS[name]) or "").split())
    known = "|".join(map(re.escape, declared_options(METHODS[name])))
    if not known:
        return {}
    pieces = re.split(rf"(?:(?<=^)|(?<=\. ))((?:{known})(?:, (?:{known}))*): ", text)
    heads, bodies = pieces[1::2], pieces[2::2]
    return {
        option: body.strip().removesuffix(".")
        for head, body in zip(heads, bodies, strict=True)
        for option in head.split(", ")
    }


def meaning(name: str, option: str) -> str:
    """One line about an option; an option without one is refused, so that no page has a gap."""
    options = WORDS["options"]
    own = options.get(name, {}).get(option)
    common = options.get(option) if isinstance(options.get(option), str) else None
    if text := own or said(name).get(option) or common:
        return text if text in (own, common) else items([text])
    raise SystemExit(f"{name}.{option} has no meaning: add a line to scripts/method_words.toml")


def needs(name: str) -> list[str]:
    """What a method asks for beyond training rows, from the method as it is built."""
    program = build_stages(METHODS[name])
    found = [NEEDS[need] for need in needs_of(METHODS[name])]
    if name == "fedbn":
        found.append("a network with BatchNorm (`--norm yes`)")
    mixed = all(stage.method.mixed for stage in program)
    return [*found, "clients may have different networks" if mixed else "one network for all"]


def travels(name: str) -> list[str]:
    """The four measured sizes in docs/methods.md."""
    row = next(
        line
        for line in TABLE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {name} |")
    )
    return [cell.strip() for cell in row.strip("| ").split(" | ")][2:6]


def options(name: str) -> list[str]:
    """The table of options."""
    known = declared_options(METHODS[name])
    if not known:
        return [f"{name} has no options of its own."]
    rows = [
        f"| `{option}` | {shown(default) or '(empty)'} | {describe_type(kind)} | "
        f"{meaning(name, option)} |"
        for option, (kind, default) in known.items()
    ]
    word, (_, default) = next(iter(known.items()))
    how = f"Set one as in `coterie run {name} --{word} {shown(default) or 'VALUE'}`"
    return [
        "| option | default | takes | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
        f"{how}; in a comparison as `--{name}.{word}`.",
    ]


def ignored(name: str) -> list[str]:
    """The words of [train] that have no effect."""
    words = [
        f"`{word}`" if when is None else f"`{word}` (unless `{when[0]} = {shown(when[1])}`)"
        for word, when in unused_of(METHODS[name]).items()
    ]
    return ["", f"Of `[train]` it does not use {', '.join(words)}."] if words else []


def page(name: str) -> str:
    """The page of one method."""
    module = inspect.getmodule(METHODS[name])
    paper, *body = (inspect.getdoc(module) or "").split("\n\n")
    file = f"{module.__name__.replace('.', '/')}.py" if module else ""
    builder = inspect.getdoc(METHODS[name]) or ""
    lines = [
        f"# {name}",
        "",
        prose(builder.split("\n\n")[0]),
        "",
        f"**Use it when:** {plain(when_of(METHODS[name]))}.",
        "",
        "## Objective",
        "",
        *("\n\n".join(map(prose, body)).splitlines() or [prose(paper)]),
        "",
        "## Options",
        "",
        *options(name),
        *ignored(name),
        "",
        "## Needs",
        "",
        *(f"- {need}" for need in needs(name)),
        "",
        "## What travels and what is kept",
        "",
        "In floats of four bytes; `d` is the size of the network, `N` the number of clients "
        "([how it is measured](../methods.md)).",
        "",
        "| " + " | ".join(TRAVELS) + " |",
        "|---|---|---|---|",
        "| " + " | ".join(travels(name)) + " |",
        "",
        "## Paper and file",
        "",
        prose(paper),
        "",
        f"`src/{file}`",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in set(FOLDER.glob("*.md")) - {FOLDER / f"{name}.md" for name in METHODS}:
        old.unlink()
    for name in METHODS:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
    print(f"docs/methods: {len(METHODS)} pages are current")
