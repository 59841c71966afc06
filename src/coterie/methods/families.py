"""Methods that share an idea, in the order in which lists show them."""

from __future__ import annotations

OTHERS = "others"  # methods of other packages

FAMILIES: dict[str, tuple[str, ...]] = {
    "alone": ("local",),
    "global": (
        "fedavg",
        "fedprox",
        "scaffold",
        "fednova",
        "feddyn",
        "moon",
        "fedavgm",
        "fedadagrad",
        "fedadam",
        "fedyogi",
        "feddf",
    ),
    "fine-tuned": ("finetune", "pfeddf"),
    "regularized": ("pfedme", "ditto", "selffl", "feddbe"),
    "split networks": (
        "fedper",
        "lgfedavg",
        "fedrep",
        "fedbn",
        "fedbabu",
        "fedrod",
        "fedpac",
        "fedcp",
        "gpfl",
        "fedas",
    ),
    "mixtures and neighbours": (
        "apfl",
        "fedfomo",
        "fedamp",
        "heurfedamp",
        "fedem",
        "apple",
        "knnper",
        "fedala",
        "ucfl",
    ),
    "clusters": ("cfl", "ifca", "oracle"),
    "knowledge transfer": (
        "fedmd",
        "fml",
        "persfl",
        "persfl-gd",
        "ktpfl",
        "ktpfl-h",
        "sim-pfl",
        "topk-pfl",
        "pfml",
        "fedproto",
        "fedkd",
        "fedtgp",
    ),
    "meta": ("perfedavg", "pfedhn"),
}


def family_of(name: str) -> str:
    """The family of a method."""
    return next((family for family, names in FAMILIES.items() if name in names), OTHERS)
