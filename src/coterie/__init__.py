"""Personalized federated learning: every client ends with a model of its own."""

from coterie.api import compare, load, load_model, method_names, register, resume, run, serve
from coterie.core.errors import BadInput
from coterie.core.version import __version__
from coterie.methods.registry import load_installed

__all__ = [
    "BadInput",
    "__version__",
    "compare",
    "load",
    "load_model",
    "method_names",
    "register",
    "resume",
    "run",
    "serve",
]

load_installed()
