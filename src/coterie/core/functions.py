"""Functions of one's own, by a name that files can hold: `module:function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.core.errors import BadInput, format_value
from coterie.core.plugins import PLUGINS

GIVEN: dict[str, Callable[..., Any]] = {}  # those that this program was given as Python objects


def is_function_name(name: str) -> bool:
    """Whether a text names a function of one's own."""
    module, mark, function = name.partition(":")
    return bool(mark) and function.isidentifier() and all(map(str.isidentifier, module.split(".")))


def name_function(function: Any, option: str) -> str:
    """The name of a function, which is found by it as long as this program runs."""
    if isinstance(function, str):
        return function
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__name__', '')}"
    if not callable(function) or not is_function_name(name):
        raise BadInput(
            f"{option} = {format_value(function)}: give a function that was made with def, or "
            "module:function"
        )
    GIVEN[name] = function
    return name


def find_function(name: str, option: str) -> Callable[..., Any]:
    """The function of a name, of a plugin that is loaded; nothing is imported here, as the name may
    come from a file of somebody else's.
    """
    if name in GIVEN:
        return GIVEN[name]
    module, _, function = name.partition(":")
    if module not in PLUGINS:
        raise BadInput(
            f"{option} = '{name}' is code of your own, and '{module}' is not loaded: name its file "
            f"with --plugin, as in --plugin {module}.py"
        )
    found = getattr(PLUGINS[module].module, function, None)
    if found is None:
        raise BadInput(
            f"{option} = '{name}' is not found: module '{module}' has no attribute '{function}'"
        )
    if not callable(found):
        raise BadInput(f"{option} = '{name}' is a {type(found).__name__}, no function")
    GIVEN[name] = found
    return found  # type: ignore[no-any-return]
