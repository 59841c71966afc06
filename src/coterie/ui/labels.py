"""What people say of runs: a name, tags, a note, and whether it is put away.

It is kept in one file beside the runs, never inside them: results stay as they were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from coterie.core.errors import BadInput, format_value
from coterie.core.files import read_text, write_text

FILE = "ui-labels.json"
MAX_CHARACTERS = {"name": 120, "note": 4000}  # characters
MAX_TAG_CHARACTERS, MAX_TAGS = 40, 20  # characters per tag, tags per run


class Label(NamedTuple):
    """What is said of one run or comparison."""

    name: str = ""  # instead of the folder's
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


class Labels:
    """The labels of a folder of runs, by the ids of the list; many may ask at once."""

    def __init__(self, root: Path):
        self.path, self._lock = root / FILE, Lock()

    def read(self) -> dict[str, Label]:
        """All labels; none where nobody has said anything."""
        if self.path.is_symlink():
            raise BadInput(f"{FILE} is a link: coterie ui reads only what lies in the folder")
        try:
            found = json.loads(read_text(self.path))
            return {str(name): parse_label(settings) for name, settings in found.items()}
        except FileNotFoundError:
            return {}
        except BadInput as damage:
            raise _damaged_error(str(damage)) from None
        except (ValueError, TypeError, AttributeError, RecursionError, OSError) as damage:
            raise _damaged_error(" ".join(str(damage).split())[:200]) from None

    def change(self, name: str, settings: Mapping[str, Any]) -> Label:
        """Another label of one run: the fields that are given, and those of before."""
        with self._lock:  # what another server has written meanwhile is read first
            known = self.read()
            label = parse_label(known.get(name, Label())._asdict() | dict(settings))
            kept = {k: v for k, v in (known | {name: label}).items() if v != Label()}
            text = json.dumps({k: v._asdict() for k, v in sorted(kept.items())}, indent=1)
            write_text(self.path, text + "\n")
        return label


def parse_label(settings: Mapping[str, Any]) -> Label:
    """A label from the fields that a page sent or a file holds."""
    unknown = [option for option in settings if option not in Label._fields]
    if unknown:
        raise BadInput(f"a label has no field {format_value(unknown[0])}")
    for option, most in MAX_CHARACTERS.items():
        value = settings.get(option, "")
        if not isinstance(value, str) or len(value) > most:
            raise BadInput(
                f"{option} = {format_value(value)}: give text of at most {most:,} characters"
            )
    tags = settings.get("tags", [])
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise BadInput(f"tags = {format_value(tags)}: give a list of texts")
    found = tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags if tag.strip()))
    if len(found) > MAX_TAGS or any(len(tag) > MAX_TAG_CHARACTERS for tag in found):
        raise BadInput(
            f"tags: give at most {MAX_TAGS}, each of at most {MAX_TAG_CHARACTERS} characters"
        )
    if not isinstance(settings.get("archived", False), bool):
        raise BadInput(f"archived = {format_value(settings['archived'])}: give true or false")
    return Label(
        name=" ".join(_replace_surrogates(settings.get("name", "")).split()),
        tags=tuple(map(_replace_surrogates, found)),
        note=_replace_surrogates(settings.get("note", "")).strip(),
        archived=settings.get("archived", False),
    )


def _replace_surrogates(text: str) -> str:
    """The text without lone surrogates, which no file in UTF-8 holds."""
    return text.encode("utf-8", "replace").decode()


def _damaged_error(why: str) -> BadInput:
    return BadInput(f"{FILE} is damaged ({why}): mend it, or move it away to begin anew")
