"""Write docs/methods/NAME.md, a page per method, and docs/reference.md, every option there is.

    python scripts/method_pages.py

Paper and formula are the docstring of the method's file, meanings, defaults and ranges of options
what `coterie.experiment.reference` reads beside them, what travels the measured table of
docs/methods.md. How an ambiguous paper was interpreted, and what was tried, is
scripts/interpretations/NAME.md.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import formulas

from coterie.experiment.config import REGISTRIES, SECTIONS
from coterie.experiment.reference import (
    OptionEntry,
    about_named,
    describe_named,
    describe_own_data,
    describe_section,
    format_default,
)
from coterie.methods.declare import group_refusals, unused_of, when_of
from coterie.methods.listing import list_methods
from coterie.methods.needs import build_stages, needs_of
from coterie.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "methods"
TABLE = ROOT / "docs" / "methods.md"
REFERENCE = ROOT / "docs" / "reference.md"
INTERPRETATIONS = Path(__file__).parent / "interpretations"
CITED = re.compile(
    r"arXiv:(\d{4}\.\d{5})|doi:(10\.[^\s;,)]*[^\s;,).])|(https://[^\s;,)]*[^\s;,).])"
)
NEEDS = {
    "public": "public rows that server and clients share (`--public`)",
    "validation": "validation rows at each client (`--validation`)",
    "groups": "the true group of each client (a partition that has groups)",
}
TRAVELS = ("down to a client", "up from a client", "kept by a client", "kept by the server")


def plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([\\*_<>\[\]|#])", r"\\\1", text)


def prose(paragraph: str) -> str:
    """A paragraph of a docstring; its indented lines are formulas."""
    parts: list[tuple[bool, list[str]]] = []
    for line in paragraph.splitlines():
        formula = line.startswith("    ")
        if not parts or parts[-1][0] != formula:
            parts.append((formula, []))
        parts[-1][1].append(line)
    return "\n\n".join(
        formulas.display(lines) if formula else items(lines) for formula, lines in parts
    )


def items(lines: list[str]) -> str:
    """Running text, or a list where a colon or semicolon is followed by a dash; what is in
    backticks stays code, and letters with an index become formulas."""
    text = re.sub(r"(?<=:)\n- ", "\0- ", "\n".join(lines))
    text = re.sub(r"(?<=;)\n- ", "\1- ", text).replace("\n", " ")
    text = "`".join(piece if i % 2 else running(piece) for i, piece in enumerate(text.split("`")))
    return text.replace("\0", "\n\n").replace("\1", "\n")


def running(text: str) -> str:
    """Text outside of backticks."""
    pieces = re.split(r"(\$[^$]*\$)", formulas.inline(text))
    return "".join(piece if piece.startswith("$") else plain(piece) for piece in pieces)


def cited(paper: str) -> str:
    """A paper whose arXiv number, DOI or address is a link."""

    def link(found: re.Match[str]) -> str:
        number, doi, address = found.groups()
        if number:
            return f"[arXiv:{number}](https://arxiv.org/abs/{number})"
        return f"[doi:{doi}](https://doi.org/{doi})" if doi else f"[{address}]({address})"

    out, end = [], 0
    for found in CITED.finditer(paper):
        out += [items([paper[end : found.start()]]), link(found)]
        end = found.end()
    return "".join([*out, items([paper[end:]])])


def table_of(entries: list[OptionEntry]) -> list[str]:
    """A table of options; one without a meaning is refused, so that no page has a gap."""
    for entry in entries:
        if not entry.meaning:
            raise SystemExit(
                f"option '{entry.name}' has no meaning: add a comment beside its field, or a line "
                f"'{entry.name}: ...' to the docstring of its builder"
            )
    return [
        "| option | default | takes | meaning |",
        "|---|---|---|---|",
        *(
            f"| `{e.name}` | {plain(e.default) or '(empty)'} | {plain(e.takes)} | "
            f"{items([e.meaning])} |"
            for e in entries
        ),
    ]


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
        if line.startswith(f"| [{name}](")
    )
    return [cell.strip() for cell in row.strip("| ").split(" | ")][1:5]


def options(name: str) -> list[str]:
    """The table of options."""
    entries = describe_named("method", name)
    if not entries:
        return [f"{name} has no options of its own."]
    first = entries[0]
    how = f"Set one as in `coterie run {name} --{first.name} {first.default or 'VALUE'}`"
    return [*table_of(entries), "", f"{how}; in a comparison as `--{name}.{first.name}`."]


def ignored(name: str) -> list[str]:
    """The options of [train] that have no effect."""
    found = [
        f"`{option}`"
        if when is None
        else f"`{option}` (unless `{when[0]} = {format_default(when[1])}`)"
        for option, when in unused_of(METHODS[name]).items()
    ]
    lines = ["", f"Of `[train]` it does not use {', '.join(found)}."] if found else []
    for why, refused in group_refusals(METHODS[name]).items():
        lines += ["", f"It refuses {', '.join(f'`{option}`' for option in refused)}, since {why}."]
    return lines


def newcomer(name: str) -> str:
    """The rule by which a client that comes after training gets its model."""
    rule = build_stages(METHODS[name])[-1].method.newcomer
    return plain(rule.rule) if rule else "fine-tunes the model that it is sent"


def interpretations(name: str) -> list[str]:
    """How the paper was interpreted, where that takes more than the docstring's lines."""
    file = INTERPRETATIONS / f"{name}.md"
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return ["## Interpretations", "", *text.splitlines(), ""] if text else []


def in_arena(name: str) -> list[str]:
    """How a method did in the arena, where it was there."""
    found = next(one for one in list_methods() if one.name == name).describe_arena()
    return [f"**In the [arena](../arena.md):** {plain(found)}.", ""] if found else []


def page(name: str) -> str:
    """The page of one method."""
    module = inspect.getmodule(METHODS[name])
    paper, *body = (inspect.getdoc(module) or "").split("\n\n")
    file = f"{module.__name__.replace('.', '/')}.py" if module else ""
    lines = [
        f"# {name}",
        "",
        "\n\n".join(map(prose, about_named("method", name).split("\n\n"))),
        "",
        f"**Use it when:** {plain(when_of(METHODS[name]))}.",
        "",
        *in_arena(name),
        "**Paper:** " + cited(" ".join(paper.split())),
        "",
        *(["## Objective", "", *"\n\n".join(map(prose, body)).splitlines(), ""] if body else []),
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
        f"A client that comes after training {newcomer(name)} "
        "([newcomers](../methods.md#newcomers)).",
        "",
        *interpretations(name),
        f"Source: `src/{file}`",
    ]
    return "\n".join(lines) + "\n"


KINDS = {
    "dataset": ("Data sets", "`--dataset NAME`; files are found in `--data-dir`, else downloaded."),
    "partition": ("Partitions", "`--partition NAME`: how rows are partitioned over clients."),
    "model": ("Networks", "`--model NAME`, or several for clients of different architectures."),
    "engine": ("Engines", "`--engine NAME`: where clients run."),
    "method": ("Methods", "`coterie run NAME`; formulas, needs and traffic are on their pages."),
}


def named(kind: str, name: str) -> list[str]:
    """A data set, partition, network, engine or method with its own options."""
    entries = describe_named(kind, name)
    link = f" ([page](methods/{name}.md))" if kind == "method" else ""
    text = "\n\n".join(map(prose, about_named(kind, name).split("\n\n")))
    return [f"### {name}", "", f"{text}{link}", "", *(table_of(entries) if entries else []), ""]


def reference() -> str:
    """The page of every option."""
    lines = [
        "# Reference",
        "",
        "Every option with its meaning, range and default, written by `make docs` from the code; "
        "`coterie run --help` and `coterie methods NAME` print the same text. An option `rounds` "
        "of section `[schedule]` is `--rounds 100` on the command line, `rounds = 100` below "
        "`[schedule]` in TOML, and `rounds=100` in Python. Where two sections have an option of "
        "that name, write `--SECTION.OPTION`. `--seed` (default 0) seeds the whole run.",
        "",
        "## Sections of an experiment",
        "",
    ]
    for section in SECTIONS:
        if entries := describe_section(section):
            lines += [f"### [{section}]", "", *table_of(entries), ""]
    for kind, (title, how) in KINDS.items():
        lines += [f"## {title}", "", how, ""]
        for name in REGISTRIES[kind]:
            lines += named(kind, name)
        if kind == "dataset":
            text = "A table, a folder with one file per client, or arrays: `--dataset my.csv`."
            lines += ["### Files of your own", "", text, "", *table_of(describe_own_data()), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in set(FOLDER.glob("*.md")) - {FOLDER / f"{name}.md" for name in METHODS}:
        old.unlink()
    for name in METHODS:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
    REFERENCE.write_text(reference(), encoding="utf-8")
    print(f"docs/methods: {len(METHODS)} pages are current, and docs/reference.md")
