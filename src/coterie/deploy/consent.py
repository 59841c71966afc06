"""What a site agrees to run: the experiment is shown before the site joins, and pinned by digest.

The settings of an experiment come with every message: its method and options, how many rounds and
messages a round there are, what is measured and when, what is done to uploads. A site works for the
experiments whose digests stand in its site.toml, each for one run, and for those that its policy
covers; others are refused until its operator agrees to them. The file is read anew for every
message, so an agreement counts at once, and no more when it is taken out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.deploy.answers import RUN
from coterie.deploy.audit import AuditLog
from coterie.deploy.config_files import Privacy, SiteConfig, agree_to, read_site
from coterie.deploy.disclosure import Refusal, Unfit
from coterie.deploy.logs import sanitize
from coterie.deploy.policy import (
    AGREED,
    OPERATOR,
    POLICY,
    check_methods,
    digest_data,
    find_objection,
    list_policy_runs,
)

SECTIONS = (
    *("method", "options", "model", "train", "seed", "stages", "evaluate", "parts"),
    *("data", "public", "privacy"),
)
OFFERED = "offered"  # the event of an experiment that nobody has agreed to
MAX_OFFERS, MAX_CHARACTERS = 100, 20_000  # that are written down, and of what each says
MAX_SHOWN = 1_000_000  # characters of an experiment: it is shown whole, or refused
Config = Mapping[str, Any]
LogLine = Callable[[str], None]
Ask = Callable[[str], bool]  # whether the operator agrees


def digest_of(settings: Config) -> str:
    """A short name of all that an experiment says; the number of sites is not part of it."""
    kept = {name: settings[name] for name in sorted(settings) if name != "architecture"}
    text = json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def summarize_experiment(settings: Config) -> list[str]:
    """The experiment as lines for a person, with nothing left out."""
    if isinstance(given := settings.get("privacy"), list) and len(given) <= len(Privacy._fields):
        settings = {**settings, "privacy": dict(zip(Privacy._fields, given, strict=False))}
    names = [name for name in SECTIONS if name in settings]
    names += sorted(set(settings) - {*SECTIONS, "architecture"})
    lines = [f"{name}: {json.dumps(settings[name])}" for name in names]
    if (size := sum(map(len, lines))) > MAX_SHOWN:
        raise Refusal(f"the experiment has {size:,} characters, which nobody can look at")
    return [sanitize(line, MAX_SHOWN) for line in lines]


class Consent:
    """Whether this site takes part in a run of an experiment."""

    def __init__(self, folder: Path, say: LogLine, accept: bool = False, ask: Ask | None = None):
        self._folder, self._log, self._accept, self._ask = folder, say, accept, ask
        self._declined: set[str] = set()  # that the operator was asked about, and is not again
        check_methods(read_site(folder).policy)

    def __call__(
        self, settings: Config, run: str, log: AuditLog, rows: Callable[[], int] = lambda: 0
    ) -> None:
        """Come back where this run of the experiment is agreed to; raises BadInput where not. run:
        "" before there is one; rows: how many training rows this site has.
        """
        found, site = digest_of(settings), read_site(self._folder)
        if self._is_agreed(found, site, settings, run, log):
            return
        why = find_objection(site, settings, run, log.events, rows)
        if not why:
            if run and run not in list_policy_runs(log.events):
                self._note(POLICY, found, settings, log, run=run)
            return
        shown = summarize_experiment(settings)
        ask = None if found in self._declined else self._ask
        if self._accept or ask is not None:
            for line in (f"the server's experiment is {found}:", *shown):
                self._log(line)
        if not (self._accept or (ask is not None and ask(found))):
            self._declined.add(found)
            self._note_offer(found, shown, log)
            raise self._refuse(found, site, shown, why)
        self._accept = False  # to this one, not to whatever comes next
        agree_to(self._folder, found)
        self._note(OPERATOR, found, settings, log)

    def _is_agreed(
        self, found: str, site: SiteConfig, settings: Config, run: str, log: AuditLog
    ) -> bool:
        """Whether the operator agreed to this run, or to one that has not begun yet."""
        mine = [e for e in log.events if e.get("experiment") == found]
        begun = {e["run"] for e in mine if e["event"] == RUN} - list_policy_runs(mine)
        times = site.site.agreed.count(found)
        if not times or (run and run not in begun and len(begun) >= times):
            return False
        if sum(e["event"] == AGREED and e["by"] == OPERATOR for e in mine) < times:
            self._note(OPERATOR, found, settings, log)
        return True

    def _note(self, by: str, found: str, settings: Config, log: AuditLog, **more: str) -> None:
        log.add(AGREED, experiment=found, by=by, data=digest_data(settings), **more)
        whose = "this site's policy" if by == POLICY else "the operator"
        self._log(f"{whose} agreed to the experiment {found} ({settings.get('method')})")

    def _note_offer(self, found: str, shown: Sequence[str], log: AuditLog) -> None:
        """Write an experiment down, once, for `coterie federation list`."""
        offers = [e["experiment"] for e in log.events if e["event"] == OFFERED]
        if found not in offers and len(offers) < MAX_OFFERS:
            words = "; ".join(shown)
            if len(words) > MAX_CHARACTERS:
                more = f"{len(words) - MAX_CHARACTERS:,} more characters"
                words = f"{words[:MAX_CHARACTERS]}... ({more}: start the site in a terminal)"
            log.add(OFFERED, experiment=found, words=words)

    def _refuse(self, found: str, site: SiteConfig, shown: Sequence[str], why: str) -> Unfit:
        agreed = site.site.agreed
        was = f"it agreed to {', '.join(agreed[-3:])}" if agreed else "it has agreed to none yet"
        if found in agreed:
            was = "it agreed to one run of it, which was begun"
        line = (
            f"this site's operator has not agreed to the experiment {found} ({was}; policy: {why}"
            f"): look at it there, then `coterie federation approve {site.site.name} {found}`, or "
            "start the site with --accept"
        )
        return Unfit(f"{line}. It is {'; '.join(shown)}", line)
