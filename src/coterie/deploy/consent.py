"""What a site agrees to run: the experiment is shown before the site joins, and pinned by digest.

The words of an experiment come with every message. A site works only for the experiment whose
digest stands in its site.toml; another one is refused until its operator agrees to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.deploy.config_files import read_site, write_site
from coterie.deploy.logs import sanitize

SECTIONS = ("method", "options", "model", "train", "seed", "data", "public", "privacy")
Config = Mapping[str, Any]
LogLine = Callable[[str], None]
Ask = Callable[[str], bool]  # whether the operator agrees


def digest_of(words: Config) -> str:
    """A short name of all that an experiment says; the number of sites is not part of it."""
    kept = {name: words[name] for name in sorted(words) if name != "architecture"}
    text = json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def summarize_experiment(words: Config) -> list[str]:
    """The experiment as lines for a person."""
    shown = [f"{name}: {sanitize(json.dumps(words[name]))}" for name in SECTIONS if name in words]
    others = sorted(set(words) - {*SECTIONS, "architecture"})
    return shown + [f"{sanitize(name, 40)}: {sanitize(json.dumps(words[name]))}" for name in others]


class Consent:
    """The experiment that a site has agreed to, kept in its site.toml."""

    def __init__(self, folder: Path, say: LogLine, accept: bool = False, ask: Ask | None = None):
        self._folder, self._log, self._accept, self._ask = folder, say, accept, ask
        self._agreed = read_site(folder).site.experiment

    def __call__(self, words: Config) -> None:
        """Come back where this experiment is agreed to; raises BadInput where it is not."""
        found = digest_of(words)
        if found == self._agreed:
            return
        for line in (f"the server's experiment is {found}:", *summarize_experiment(words)):
            self._log(line)
        agreed = self._accept or (self._ask is not None and self._ask(found))
        if not agreed:
            was = f"it agreed to {self._agreed}" if self._agreed else "it has agreed to none yet"
            raise BadInput(
                f"this site's operator has not agreed to the experiment {found} ({was}): look at "
                "it there, then start the site with --accept"
            )
        self._accept = False  # to this one, not to whatever comes next
        self._agreed = found
        site = read_site(self._folder)
        write_site(self._folder, site._replace(site=site.site._replace(experiment=found)))
        self._log(f"agreed to the experiment {found}")
