"""What an option means, said once: in a comment beside the field of a table, or in a line
`name: meaning` of a builder's docstring, whose further lines are indented.

Help, form and reference page all read it from here.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable
from functools import cache
from typing import Any

LINE = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n    .*)*)", re.MULTILINE)
Builder = Callable[..., Any]


@cache
def meanings_of(source: Builder | type) -> dict[str, str]:
    """{option: meaning} of a builder, or of a table (a NamedTuple)."""
    if isinstance(source, type):
        return _read_comments(source)
    # a builder made from another one, as a variant, says only what is new
    inherited: dict[str, str] = getattr(source, "meanings", {})
    return inherited | _read_lines(inspect.getdoc(source) or "", set(_parameters_of(source)))


def about(source: Builder) -> str:
    """A builder's docstring without the lines about its options."""
    return drop_meanings(inspect.getdoc(source) or "", _parameters_of(source))


def drop_meanings(text: str, options: Any) -> str:
    """A docstring without the lines about these options."""
    kept = LINE.sub(lambda m: "" if set(m[1].split(", ")) <= set(options) else m[0], text)
    return re.sub(r"\n{3,}", "\n\n", kept).strip()


def _parameters_of(source: Builder) -> list[str]:
    return list(inspect.signature(source).parameters)


def _read_lines(text: str, options: set[str]) -> dict[str, str]:
    return {
        option: " ".join(match[2].split()).removesuffix(".")
        for match in LINE.finditer(text)
        for option in match[1].split(", ")
        if option in options
    }


def _read_comments(table: type) -> dict[str, str]:
    """The comment behind each field, else the lines of comment just above it."""
    source = textwrap.dedent(inspect.getsource(table))
    comments = {
        token.start[0]: (token.string.removeprefix("#").strip(), token.line.lstrip()[0] == "#")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field in body.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        behind = [
            comments[line][0]
            for line in range(field.lineno, (field.end_lineno or field.lineno) + 1)
            if line in comments
        ]
        above: list[str] = []
        line = field.lineno - 1
        while not behind and line in comments and comments[line][1]:
            above.insert(0, comments[line][0])
            line -= 1
        if text := " ".join(behind or above):
            found[field.target.id] = text
    return found
