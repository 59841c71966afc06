"""One file per method; this registry is all that the rest of the package knows of them."""

import re
import warnings
from importlib.metadata import entry_points

from coterie.core.errors import BadInput, format_value
from coterie.methods.apfl import apfl
from coterie.methods.apple import apple
from coterie.methods.cfl import cfl
from coterie.methods.declare import Builder, declaration_of, method
from coterie.methods.ditto import ditto
from coterie.methods.fedala import fedala
from coterie.methods.fedamp import fedamp, heurfedamp
from coterie.methods.fedas import fedas
from coterie.methods.fedavg import fedavg
from coterie.methods.fedavgm import fedavgm
from coterie.methods.fedbabu import fedbabu
from coterie.methods.fedbn import fedbn
from coterie.methods.fedcp import fedcp
from coterie.methods.feddbe import feddbe
from coterie.methods.feddf import feddf, pfeddf
from coterie.methods.feddyn import feddyn
from coterie.methods.fedem import fedem
from coterie.methods.fedfomo import fedfomo
from coterie.methods.fedkd import fedkd
from coterie.methods.fedmd import fedmd
from coterie.methods.fednova import fednova
from coterie.methods.fedopt import fedadagrad, fedadam, fedyogi
from coterie.methods.fedpac import fedpac
from coterie.methods.fedper import fedper
from coterie.methods.fedproto import fedproto
from coterie.methods.fedprox import fedprox
from coterie.methods.fedrep import fedrep
from coterie.methods.fedrod import fedrod
from coterie.methods.fedtgp import fedtgp
from coterie.methods.finetune import finetune
from coterie.methods.fml import fml
from coterie.methods.gpfl import gpfl
from coterie.methods.ifca import ifca
from coterie.methods.knnper import knnper
from coterie.methods.ktpfl import ktpfl, sim_pfl, topk_pfl
from coterie.methods.ktpfl_h import ktpfl_h
from coterie.methods.lgfedavg import lgfedavg
from coterie.methods.local import local
from coterie.methods.moon import moon
from coterie.methods.oracle import oracle
from coterie.methods.perfedavg import perfedavg
from coterie.methods.persfl import persfl, persfl_gd
from coterie.methods.pfedhn import pfedhn
from coterie.methods.pfedme import pfedme
from coterie.methods.pfml import pfml
from coterie.methods.scaffold import scaffold
from coterie.methods.selffl import selffl
from coterie.methods.ucfl import ucfl

METHODS: dict[str, Builder] = {
    "local": local,
    "fedavg": fedavg,
    "finetune": finetune,
    "fedprox": fedprox,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
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
    "fedkd": fedkd,
    "ucfl": ucfl,
    "cfl": cfl,
    "oracle": oracle,
    "ifca": ifca,
    "perfedavg": perfedavg,
    "apfl": apfl,
    "apple": apple,
    "fedem": fedem,
    "knnper": knnper,
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
    "fedbabu": fedbabu,
    "fedrod": fedrod,
    "fedcp": fedcp,
    "gpfl": gpfl,
    "feddbe": feddbe,
    "fedpac": fedpac,
    "fedas": fedas,
    "fedproto": fedproto,
    "fedtgp": fedtgp,
    "fedbn": fedbn,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "moon": moon,
    "fednova": fednova,
}


def add_method(name: str, builder: Builder) -> None:
    """Make a method known by its name; its options are checked as those of every other."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", name):
        raise BadInput(
            f"a method named {format_value(name)}: write letters, digits, '.', '_' or '-', at "
            "most 60"
        )
    METHODS[name] = method(name=name, **declaration_of(builder)._asdict())(builder)


def load_installed() -> None:
    """Methods of other packages, found by their entry points in the group "coterie.methods"."""
    for point in entry_points(group="coterie.methods"):
        if point.name in METHODS:
            continue
        try:
            add_method(point.name, point.load())
        except Exception as problem:  # somebody else's module must not take coterie down with it
            warnings.warn(
                f"the method '{point.name}' ({point.value}) cannot be loaded: {problem}",
                stacklevel=2,
            )


load_installed()
