"""Code of one's own: a Python file or module that the user names, and what it defines.

Nothing here is ever taken from a run's folder or from the network: `load_plugin` is the only place
that imports such code, and only what the local user has named comes to it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from coterie.core.errors import BadInput, format_value


class Plugin(NamedTuple):
    """A module of the user's that is loaded."""

    name: str  # of the module: "my" of my.py
    file: str  # "" where it has none
    digest: str  # checksum of the file
    module: ModuleType

    def facts(self) -> dict[str, str]:
        """What a run writes down of it: by its name it is found again, by nothing else."""
        return {"name": self.name, "file": Path(self.file).name, "digest": self.digest}


PLUGINS: dict[str, Plugin] = {}  # those that this process has loaded, by the names of their modules


def load_plugin(text: str | Path) -> Plugin:
    """The plugin of a file (`my.py`) or of a module that is installed or lies in the working
    folder (`my`, `package.module`); loaded once.
    """
    if not isinstance(text, str | Path) or not str(text).strip():
        raise BadInput(f"plugin = {format_value(text)}: give a Python file, such as my.py")
    path = Path(str(text)).expanduser()
    is_file = path.suffix == ".py" or len(path.parts) > 1
    name = re.sub(r"\W", "_", path.stem) if is_file else str(text)
    if is_file and not path.is_file():
        raise BadInput(f"plugin '{text}': there is no such file")
    known = PLUGINS.get(name)
    if known and (not is_file or _is_same_file(known.file, path)):
        _check_unchanged(known)
        return known
    module = _load_file(name, path.resolve()) if is_file else _load_module(name)
    file = getattr(module, "__file__", None) or ""
    found = Plugin(name, file, _checksum_of(file), module)
    PLUGINS[name] = found
    return found


def forget_plugin(name: str) -> None:
    """Let a plugin go that turned out to be of no use."""
    PLUGINS.pop(name, None)
    sys.modules.pop(name, None)


def _check_unchanged(known: Plugin) -> None:
    if _checksum_of(known.file) != known.digest:
        raise BadInput(
            f"plugin '{known.name}': {known.file} has changed since this program loaded it: start "
            "a new process"
        )


def _checksum_of(file: str) -> str:
    from coterie.core.files import digest  # it brings tensors, which lists of methods do without

    return digest(Path(file)) if file else ""


def _is_same_file(file: str, path: Path) -> bool:
    return bool(file) and Path(file).resolve() == path.resolve()


def _load_file(name: str, path: Path) -> ModuleType:
    """A file as the module of its name, which no other module may have."""
    taken = sys.modules.get(name)
    origin = getattr(taken, "__file__", None) if taken else _origin_of(name)
    if (taken or origin) and not _is_same_file(origin or "", path):
        raise BadInput(
            f"plugin '{path.name}': there is another module '{name}' ({origin or 'built in'}): "
            "rename the file"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _refuse_broken(path.name, name), _search_also(path.parent):
        spec.loader.exec_module(module)
    return module


def _origin_of(name: str) -> str | None:
    """Where a module that is not loaded would come from; None where there is none."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin or "a folder"


def _load_module(name: str) -> ModuleType:
    if not all(map(str.isidentifier, name.split("."))):
        raise BadInput(f"plugin = {format_value(name)}: give a Python file, such as my.py")
    with _refuse_broken(name, name), _search_also(Path(os.getcwd())):
        return importlib.import_module(name)


@contextmanager
def _search_also(folder: Path) -> Iterator[None]:
    """Modules beside a plugin are found while it is loaded."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _refuse_broken(label: str, name: str) -> Iterator[None]:
    """One line for whatever code of the user's raises when it is loaded."""
    try:
        yield
    except (Exception, SystemExit) as problem:
        sys.modules.pop(name, None)
        where = traceback.extract_tb(problem.__traceback__)[-1]
        place = "" if isinstance(problem, ImportError) else f" in line {where.lineno}"
        raise BadInput(
            f"plugin '{label}' cannot be loaded: {type(problem).__name__}{place}: {problem}"
        ) from problem


def facts_of(value: Any) -> dict[str, str] | None:
    """What a run writes down of the plugin that a function or class is defined in; None: it is of
    no plugin.
    """
    found = PLUGINS.get(getattr(value, "__module__", None) or "")
    return found.facts() if found else None
