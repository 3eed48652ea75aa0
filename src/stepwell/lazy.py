"""Names of a package that are loaded when they are first asked for, and names that moved (PEP 562)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["load_name", "moved"]


def load_name(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a name of a package from its module, and keep it in the package; what its ``__getattr__`` does."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def moved(module: str, home: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names are in another one by now; each use warns."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        warnings.warn(f"{module}.{name} is now {home}.{name}. Import it from there.", DeprecationWarning, stacklevel=2)
        return value

    return find
