"""Which experiments a site takes part in without asking its operator: `[policy]` of its site.toml.

A policy covers experiments over columns, a label and a cut of the rows that its operator has agreed
to once, so that a server cannot choose others, and so many runs in all, so that it cannot ask the
same rows for ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.core.errors import BadInput, suggest_name
from coterie.deploy.accountant import REPLACED
from coterie.deploy.audit import Event
from coterie.deploy.config_files import Policy, SiteConfig, combine_privacy, parse_privacy
from coterie.methods.registry import METHODS

AGREED = "agreed"  # the event
OPERATOR, POLICY = "operator", "policy"  # who agreed
Config = Mapping[str, Any]


def check_methods(policy: Policy) -> None:
    """Refuse a policy with a method that does not exist."""
    for name in policy.methods:
        if name not in METHODS:
            raise BadInput(
                f"policy.methods names '{name}', which is no method{suggest_name(name, METHODS)}"
            )


def digest_data(settings: Config) -> str:
    """A short name of the rows that an experiment is about: columns, label, cut, public rows."""
    text = json.dumps([settings.get("data"), settings.get("public")], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def count_agreements(data: str, events: Sequence[Event]) -> int:
    """How often the operator has agreed to an experiment about these rows."""
    return sum(e["event"] == AGREED and e["by"] == OPERATOR and e["data"] == data for e in events)


def list_policy_runs(events: Sequence[Event]) -> set[str]:
    """The runs that the policy has agreed to."""
    return {e["run"] for e in events if e["event"] == AGREED and e["by"] == POLICY}


def find_objection(
    site: SiteConfig, settings: Config, run: str, events: Sequence[Event], rows: Callable[[], int]
) -> str:
    """Why the policy does not cover a run of an experiment; "" where it does. rows: the training
    rows of this site, which are counted last.
    """
    policy = site.policy
    if not policy.methods:
        return "none"
    if settings.get("method") not in policy.methods:
        return f"policy.methods has {', '.join(policy.methods)}"
    if not count_agreements(digest_data(settings), events):
        return "its operator has agreed to no experiment over these columns and parts yet"
    privacy = combine_privacy(parse_privacy(settings.get("privacy", [])), site.privacy)
    if privacy.cross_site:
        return "models that leave their sites are for its operator to agree to"
    try:
        pairs = [(int(s["rounds"]), int(s["messages"])) for s in settings["stages"]]
        if any(n < 0 for pair in pairs for n in pair):  # to make up for another stage
            raise ValueError
    except (KeyError, TypeError, ValueError):
        return "the experiment does not say how many rounds it has"
    if sum(rounds for rounds, _ in pairs) > policy.rounds:
        return f"policy.rounds = {policy.rounds}"
    begun = list_policy_runs(events)
    if run not in begun and len(begun) >= policy.runs:
        return f"policy.runs = {policy.runs}, which have begun"
    uploads = sum(rounds * messages for rounds, messages in pairs)
    # as the site's own accountant counts it
    spent = epsilon_of(privacy.noise / REPLACED, uploads, site.privacy.delta)
    if policy.epsilon and spent > policy.epsilon:
        return f"policy.epsilon = {policy.epsilon:g}, and its uploads tell {spent:.3g}"
    return f"policy.rows = {policy.rows}" if rows() < policy.rows else ""
