"""The card of a model: what it is, what it takes and how good it is, as Markdown and as a page."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from coterie.results.guard_summary import format_privacy
from coterie.results.personal_models import Card

MAX_COLUMNS = 60  # columns listed on a card
OWN_PART_NOTE = (
    "What this client trained for itself and never sent is made of its rows without noise."
)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td{border-top:1px solid #ccc;padding:.2rem .8rem .2rem 0;"
    "vertical-align:top;overflow-wrap:anywhere}"
)


class Section(NamedTuple):
    """One part of a card."""

    title: str
    rows: list[tuple[str, str]]


def build_sections(card: Card) -> list[Section]:
    """What a card says, part by part."""
    network, rows = card["network"], card["rows"]
    kind = f"{card['task']}: {', '.join(card['classes'])}" if card["classes"] else card["task"]
    options = ", ".join(f"{k} = {v}" for k, v in card["options"].items()) or "none"
    made = [
        ("answers", kind),
        ("network", f"{network['model']}, {network['parameters']:,} parameters"),
        *_base_rows(network),
        ("method", card["method"]),
        ("its options", options),
        ("rows", ", ".join(f"{rows[part]:,} {part}" for part in ("train", "validation", "test"))),
        ("seed", str(card["seed"])),
        ("data", card["data"]),
        ("version", _format_version(card)),
        ("date", card["date"]),
        *_privacy_rows(card),
        ("versions", ", ".join(f"{k} {v}" for k, v in card["versions"].items())),
    ]
    return [
        Section("What it is", made),
        Section("How good it is for this client", _metric_rows(card)),
        Section("What it takes", _input_rows(card)),
    ]


def _base_rows(network: Card) -> list[tuple[str, str]]:
    """The pretrained network that the model is made of, if it is one of those."""
    options = network.get("options") or {}
    if "base" not in options:
        return []
    return [("base model", f"{options['base']}, sha256 {options['digest']}")]


def _format_version(card: Card) -> str:
    """Which version of the client's model this is, and how it was made."""
    history = card.get("history") or [{"how": "trained in the run"}]
    return f"{card.get('version', 1)}: {history[-1]['how']}"


def _privacy_rows(card: Card) -> list[tuple[str, str]]:
    """What was promised of those who took part, and what of this model it does not cover."""
    facts = card.get("privacy")
    if not facts:
        return []
    own = "" if facts["unit"] == "example" else f" {OWN_PART_NOTE}"
    return [("privacy", format_privacy(facts) + own)]


def _metric_rows(card: Card) -> list[tuple[str, str]]:
    """The client's own values, with what they are worth."""
    found = []
    for one in card["measured"]:
        text = f"{one['value']:.4g} on {one['rows']:,} rows"
        if "low" in one:
            text += f" (95 % interval {one['low']:.3g} to {one['high']:.3g})"
        found.append((f"{one['part']} {one['metric']}", text))
    return found or [("nothing", "was measured")]


def _input_rows(card: Card) -> list[tuple[str, str]]:
    """The columns, or the shape of an array."""
    kept = card["preparation"]
    if not kept or not kept["columns"] or kept["shape"]:
        scale = f", scaled by '{kept['scale']}'" if kept else " as they are"
        return [("rows", f"arrays of shape {card['network']['shape']}{scale}")]
    described = [(c["name"], _describe_column(c)) for c in kept["columns"][:MAX_COLUMNS]]
    more = len(kept["columns"]) - MAX_COLUMNS
    gaps = ", ".join(kept.get("missing_values", ()))
    return [
        *described,
        *([("...", f"and {more:,} more columns")] if more > 0 else []),
        *([("count as missing", gaps)] if gaps else []),
    ]


def _describe_column(column: Card) -> str:
    """What one column holds."""
    text = str(column["kind"])
    if column["categories"]:
        text += f": {', '.join(column['categories'])}, else (other)"
    elif column.get("tokenizer"):
        text += f": its first {column['tokens']:,} words, of {column['vocabulary']:,} known ones"
    elif column["buckets"]:
        text += f", hashed into {column['buckets']} columns"
    elif column["form"]:
        text += f" written {column['form']}"
    return text + (", may be missing" if column["indicator"] else "")


def render_markdown(card: Card) -> str:
    """A card as Markdown."""
    lines = [f"# Model of {_escape_markdown(card['client'])}", ""]
    for section in build_sections(card):
        lines += [f"## {section.title}", "", "| | |", "|---|---|"]
        lines += [
            f"| {_escape_markdown(name)} | {_escape_markdown(text)} |"
            for name, text in section.rows
        ]
        lines.append("")
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Text that breaks no table and brings no markup of its own."""
    text = escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in "\\|`*_[]" else c for c in text)


def render_page(card: Card) -> str:
    """A card as one small page that loads nothing."""
    title = f"Model of {escape(card['client'])}"
    parts = [f"<h1>{title}</h1>"]
    for section in build_sections(card):
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>"
            for name, text in section.rows
        )
        parts.append(f"<h2>{section.title}</h2><table>{rows}</table>")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'
