"""Hooks of mkdocs: what mkdocs.yml and the pages write for short.

An entry of `nav` with a star stands for all pages of that pattern which no other entry names. A
link to a file of the repository that is no page becomes the file's name: the site holds pages only.
Formulas between dollars become MathML, which browsers draw by themselves: nothing is fetched.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTWARD = re.compile(r"(?<!!)\[([^]\n]+)\]\((\.\./[^)#\s]+)\)")
LISTED = re.compile(
    r'(<nav class="md-nav" data-md-level="\d+") aria-labelledby="__nav_([\w]+)_label"'
)
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
# $$ on lines of their own, or $...$ with an index, an exponent, a command or a prime in it
FORMULA = re.compile(
    r"^\$\$\n(?P<block>.+?)\n\$\$$|\$(?P<inline>[^$\s][^$\n]*[\\_^'][^$\n]*)\$",
    re.MULTILINE | re.DOTALL,
)
Nav = list[Any]  # texts, and tables {title: text or list}


def named(nav: Nav) -> list[str]:
    """All entries, whatever section they stand in."""
    found = []
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += named(value) if isinstance(value, list) else [value]
    return found


def expanded(nav: Nav, pages: list[str], taken: set[str]) -> Nav:
    """The navigation with every pattern replaced by its pages, in the order of their names."""
    made: Nav = []
    for entry in nav:
        if isinstance(entry, dict):
            made += [
                {title: expanded(value, pages, taken) if isinstance(value, list) else value}
                for title, value in entry.items()
            ]
        elif "*" in entry:
            made += [page for page in pages if matches(page, entry) and page not in taken]
        else:
            made.append(entry)
    return made


def matches(page: str, pattern: str) -> bool:
    """Whether a page has the pattern's name and stands in its folder."""
    return fnmatch(page, pattern) and page.count("/") == pattern.count("/")


def on_config(config: Any) -> Any:
    """Called by mkdocs before it reads the pages."""
    folder = Path(config["docs_dir"])
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    config["nav"] = expanded(config["nav"], pages, set(named(config["nav"])))
    return config


def without_outward_links(text: str, page: Path, docs: Path) -> str:
    """The text of a page with its links to files beside the documentation replaced by their names;
    a link to nowhere stays, for the strict build to find."""

    def named_file(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return link[0]
        return f"`{target.relative_to(ROOT)}`"

    return OUTWARD.sub(named_file, text)


def with_marks(text: str, formulas: list[str]) -> str:
    """The text of a page with a mark for each formula outside of code; their MathML is added to
    `formulas`, for Markdown must not touch it."""
    from latex2mathml.converter import convert  # only a build of the site needs it

    def mark(found: re.Match[str]) -> str:
        block = found["block"]
        math = convert(block or found["inline"], display="block" if block else "inline")
        formulas.append(f'<div class="formula" tabindex="0">{math}</div>' if block else math)
        return f"formula{len(formulas) - 1}mark"

    pieces = CODE.split(text)
    return "".join(piece if i % 2 else FORMULA.sub(mark, piece) for i, piece in enumerate(pieces))


def with_formulas(html: str, formulas: list[str]) -> str:
    """A page with its formulas in the place of their marks."""
    html = re.sub(r"<p>(formula\d+mark)</p>", r"\1", html)
    return re.sub(r"formula(\d+)mark", lambda found: formulas[int(found[1])], html)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    path, docs = Path(page.file.abs_src_path), Path(config["docs_dir"])
    page.meta["formulas"] = []
    text = with_marks(markdown, page.meta["formulas"])
    return without_outward_links(text, path.resolve(), docs.resolve())


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with every page as HTML, before the theme is put around it."""
    return with_formulas(html, page.meta["formulas"])


def with_names(html: str) -> str:
    """A page whose search and lists of pages have names of their own, for who hears it."""
    html = html.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search the documentation"',
    )
    return LISTED.sub(r'\1 aria-label="Pages of section \2"', html)


def on_post_page(output: str, **_: Any) -> str:
    """Called by mkdocs with every page that is about to be written."""
    return with_names(output)
