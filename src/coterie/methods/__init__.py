"""One file a method; this registry is all that the rest of the package knows of them."""

import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from .apfl import apfl
from .cfl import cfl
from .ditto import ditto
from .fedala import fedala
from .fedamp import fedamp, heurfedamp
from .fedavg import fedavg
from .fedbn import fedbn
from .feddf import feddf, pfeddf
from .fedfomo import fedfomo
from .fedmd import fedmd
from .fedper import fedper
from .fedprox import fedprox
from .fedrep import fedrep
from .finetune import finetune
from .fml import fml
from .ifca import ifca
from .ktpfl import ktpfl, ktpfl_h, sim_pfl, topk_pfl
from .lgfedavg import lgfedavg
from .local import local
from .oracle import oracle
from .perfedavg import perfedavg
from .persfl import persfl, persfl_gd
from .pfedhn import pfedhn
from .pfedme import pfedme
from .pfml import pfml
from .scaffold import scaffold
from .selffl import selffl
from .ucfl import ucfl

METHODS: dict[str, Callable[..., Any]] = {
    "local": local,
    "fedavg": fedavg,
    "finetune": finetune,
    "fedprox": fedprox,
    "ditto": ditto,
    "pfedme": pfedme,
    "persfl": persfl,
    "persfl-gd": persfl_gd,
    "ktpfl": ktpfl,
    "ktpfl-h": ktpfl_h,
    "sim-pfl": sim_pfl,
    "topk-pfl": topk_pfl,
    "fedmd": fedmd,
    "selffl": selffl,
    "pfml": pfml,
    "fml": fml,
    "ucfl": ucfl,
    "cfl": cfl,
    "oracle": oracle,
    "ifca": ifca,
    "perfedavg": perfedavg,
    "apfl": apfl,
    "fedamp": fedamp,
    "heurfedamp": heurfedamp,
    "fedfomo": fedfomo,
    "pfedhn": pfedhn,
    "feddf": feddf,
    "pfeddf": pfeddf,
    "fedala": fedala,
    "fedper": fedper,
    "fedrep": fedrep,
    "lgfedavg": lgfedavg,
    "fedbn": fedbn,
    "scaffold": scaffold,
}


def load_installed() -> None:
    """Methods of other packages, by their entry points in the group "coterie.methods": known wherever coterie is imported."""
    for point in entry_points(group="coterie.methods"):
        try:
            METHODS.setdefault(point.name, point.load())
        except Exception as problem:  # whatever somebody else's module raises must not take coterie down with it
            warnings.warn(f"the method '{point.name}' ({point.value}) cannot be loaded: {problem}", stacklevel=2)
