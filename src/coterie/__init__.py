"""Personalized federated learning: every client ends with a model of its own."""

import os
from importlib import import_module
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.version import __version__

__all__ = [
    "BadInput",
    "__version__",
    "compare",
    "explain",
    "load",
    "load_model",
    "method_names",
    "personalize",
    "register",
    "report",
    "resume",
    "run",
    "serve",
    "update",
    "use_plugin",
]

# Read when torch is loaded: its threads that have no work wait awake for milliseconds, on the cores
# where others compute. A tenth of one is enough from one operation to the next.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    """The functions of `coterie.api`, loaded when one is asked for: tensors take seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(import_module("coterie.api"), name)
