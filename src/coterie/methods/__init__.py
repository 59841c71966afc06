"""One file a method; this registry is all that the rest of the package knows of them."""

from collections.abc import Callable
from typing import Any

from .cfl import cfl
from .ditto import ditto
from .fedavg import fedavg
from .fedmd import fedmd
from .fedprox import fedprox
from .finetune import finetune
from .fml import fml
from .ifca import ifca
from .ktpfl import ktpfl, ktpfl_h, sim_pfl, topk_pfl
from .local import local
from .oracle import oracle
from .persfl import persfl, persfl_gd
from .pfedme import pfedme
from .pfml import pfml
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
}
