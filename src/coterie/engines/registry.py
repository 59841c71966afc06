"""The engines that an experiment may name.

A builder takes what every engine is given and the number of threads; its other parameters, which
have defaults, are the options of `[engine]` that only this engine knows.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.engines.base import Engine
from coterie.engines.local.engine import build_local_engine
from coterie.engines.ray.engine import build_ray_engine

ENGINES: dict[str, Callable[..., Engine]] = {
    "local": build_local_engine,
    "ray": build_ray_engine,
}
