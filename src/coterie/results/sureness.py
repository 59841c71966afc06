"""How sure the models of a run are, as `coterie explain` has fitted it on held rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import BadInput
from coterie.core.files import digest_text, read_text, write_text
from coterie.results.about import CHECKSUM

SURENESS = "sureness.json"


class Sureness(NamedTuple):
    """A client's temperature and conformal quantile, and what they reach on its test rows."""

    client: str
    version: int  # of the model that it is of
    confidence: float  # of sets and intervals
    temperature: float | None  # of its probabilities; None: it predicts numbers
    quantile: float  # a set has the classes of 1 - p up to it, an interval reaches so far both ways
    rows: int  # the client's own held rows
    is_own: bool  # the quantile is of these, else of all clients'
    covered: int  # test rows whose label is in the set or interval
    tested: int  # test rows
    size: float | None  # the mean number of classes in a set; None: intervals


def write_sureness(folder: Path, found: Sequence[Sureness]) -> None:
    """Into the run's folder, with a checksum, as it decides predictions."""
    entries = [one._asdict() for one in found]
    whole = {CHECKSUM: digest_text(json.dumps(entries)), "clients": entries}
    write_text(folder / SURENESS, json.dumps(whole, indent=1))


@lru_cache(8)
def _read_all(path: Path, changed: int) -> dict[tuple[str, int], Sureness]:
    """{(client, version): what is known}; changed: when the file was, so that it is read anew."""
    whole = json.loads(read_text(path))
    if whole[CHECKSUM] != digest_text(json.dumps(whole["clients"])):
        raise ValueError
    return {(s.client, s.version): s for s in (Sureness(**one) for one in whole["clients"])}


def find_sureness(folder: Path, client: str, version: int) -> Sureness | None:
    """What is known of one version of a client's model; None where nothing is."""
    path = folder / SURENESS
    try:
        return _read_all(path.absolute(), path.stat().st_mtime_ns).get((client, version))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise BadInput(
            f"{path} is damaged (it is not as it was written): `coterie explain {folder}` writes "
            "it anew"
        ) from None


def read_sureness(folder: Path, client: str, version: int) -> Sureness:
    """The same, refused where nothing is known."""
    found = find_sureness(folder, client, version)
    if found is not None:
        return found
    if not (folder / SURENESS).exists():
        raise BadInput(
            f"{folder} does not say how sure its models are: `coterie explain {folder}` first"
        )
    raise BadInput(
        f"{folder / SURENESS} says nothing of version {version} of '{client}': it was calibrated "
        "before, or came after training"
    )
