"""The report as one HTML file with everything inside: data, drawing library, script and style.

The file opens from disk without a network: its content policy lets nothing be fetched, and no
script run but the two it holds.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from importlib import resources
from typing import Any

# one script, in this order
SCRIPTS = (
    "helpers.js",
    "methods.js",
    "tables.js",
    "traces.js",
    "plots.js",
    "clients.js",
    "report.js",
)
PLOTLY = "plotly-cartesian.min.js"  # plotly.js-cartesian-dist-min 4.1.1, MIT
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def render(data: dict[str, Any]) -> str:
    """The whole page of a report's data."""
    plotly, script = (
        read_plotly(),
        "(() => {\n" + "\n".join(read_asset(name) for name in SCRIPTS) + "\n})();",
    )
    parts = {
        "title": html.escape(_replace_surrogates(str(data.get("title") or "Report"))),
        "hashes": " ".join(hash_script(text) for text in (plotly, script)),
        "style": read_asset("report.css"),
        "data": embed(data),
        "plotly": plotly,
        "script": script,
    }
    # one pass: what is put in is not searched for marks again, whatever a client is called
    return PLACEHOLDER.sub(lambda mark: parts[mark[1]], read_asset("report.html"))


def embed(data: Any) -> str:
    """JSON in which no text can end or open anything in the page; NaN and infinities are null."""
    text = _replace_surrogates(
        json.dumps(
            _null_nonfinite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _replace_surrogates(text: str) -> str:
    """The text without lone surrogates (of an undecodable file name), which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _null_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _null_nonfinite(item) for key, item in value.items()}
    return [_null_nonfinite(item) for item in value] if isinstance(value, (list, tuple)) else value


def hash_script(script: str) -> str:
    """The script's name in a content policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def read_asset(name: str) -> str:
    """The text of a file of the page."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def read_plotly() -> str:
    """The drawing library's script: Plotly's bundle of lines, bars and heat maps, a third of the
    whole library.
    """
    return read_asset(PLOTLY)
