"""Personalized federated learning: every client ends with a model of its own."""

__version__ = "0.1.0"

from .api import compare, load, load_model, methods, register, resume, run
from .errors import BadInput
from .methods import load_installed

__all__ = ["BadInput", "__version__", "compare", "load", "load_model", "methods", "register", "resume", "run"]

load_installed()
