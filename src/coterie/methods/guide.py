"""What each method needs beyond training rows, and when it is the one to try."""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """When a method fits, in a few words; `needs` as in `Method.needs`."""

    when: str
    needs: tuple[str, ...] = ()


NEEDS = {
    "validation": "validation rows",
    "public": "public rows",
    "groups": "known groups",
}

GUIDE: dict[str, Advice] = {
    "local": Advice("always, as the baseline: what clients reach alone, without traffic"),
    "fedavg": Advice("always, as the other baseline: one model for all, best for alike clients"),
    "finetune": Advice("first, as the plainest personalization: FedAvg, then own epochs"),
    "fedprox": Advice("one model for all, where FedAvg is unstable on unlike clients"),
    "ditto": Advice("clients differ somewhat, and fairness or attacks matter"),
    "pfedme": Advice("clients differ somewhat, and extra gradient steps are cheap"),
    "persfl": Advice(
        "clients differ, and distilling after training is affordable", ("validation",)
    ),
    "persfl-gd": Advice("as persfl, with soft cross-entropy in the place of KL", ("validation",)),
    "ktpfl": Advice("networks differ, or weights may not leave; few clients", ("public",)),
    "ktpfl-h": Advice("as ktpfl over weights, for one network"),
    "sim-pfl": Advice("as ktpfl with fixed weights by similarity", ("public",)),
    "topk-pfl": Advice("as ktpfl with the k most similar clients", ("public",)),
    "fedmd": Advice("networks differ, clients are rather alike", ("public",)),
    "selffl": Advice("clients differ in how much they differ; steps adapt to it"),
    "pfml": Advice("clients differ, and a model of their own learns beside the common one"),
    "fml": Advice("as pfml, where own and common networks may differ"),
    "ucfl": Advice("clients differ by degrees, and the server may store a model per client"),
    "cfl": Advice("clients form groups that nobody knows, and rounds are many"),
    "oracle": Advice("to see what knowing the groups would give", ("groups",)),
    "ifca": Advice("clients form a known number of groups that contradict each other"),
    "perfedavg": Advice("new clients shall adapt in a step or two"),
    "apfl": Advice("each client shall weigh its own and the common model"),
    "fedamp": Advice("few clients, some of which resemble each other"),
    "heurfedamp": Advice("as fedamp, for large networks"),
    "fedfomo": Advice("clients differ strongly, and downloads are cheap", ("validation",)),
    "pfedhn": Advice("many small clients; the server may train a large network"),
    "feddf": Advice("networks differ, one model per network is enough", ("public",)),
    "pfeddf": Advice("as feddf, then own epochs", ("public",)),
    "fedala": Advice("clients differ, and the last layers shall adapt to each"),
    "fedper": Advice("classes differ between clients: the last layers stay at home"),
    "fedrep": Advice("as fedper, with more own steps on the last layers"),
    "lgfedavg": Advice("inputs differ between clients: the first layers stay at home"),
    "fedbn": Advice("inputs differ in look or scale, and the network has batch norm"),
    "scaffold": Advice("one model for all, many own steps on unlike clients"),
}
