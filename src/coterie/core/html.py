"""Small pieces of HTML for notebooks: escaped text, a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def format_paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def format_html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> str:
    """A table of plain cells under a caption; numbers stand on the right."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _format_cell(value: Any) -> str:
    right = not isinstance(value, str) or value[:1].isdigit() or value[:1] in "+-"
    return f'<td style="text-align:{"right" if right else "left"}">{escape(str(value))}</td>'
