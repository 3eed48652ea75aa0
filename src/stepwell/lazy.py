"""Names of a package that are loaded when they are first asked for, and names that moved (PEP 562)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["load_name", "moved"]


def load_name(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Return a name of a package from its module, and keep it in the package; what its ``__getattr__`` does.

    Args:
        package: ``__name__`` of it.
        homes: name to the module that has it.
        name: that was asked for.

    Raises:
        AttributeError: the package has no such name.

    Example:
        >>> load_name("stepwell.lazy", {"EX_OK": "os"}, "EX_OK")
        0
        >>> load_name("stepwell.lazy", {}, "sqrt2")
        Traceback (most recent call last):
        AttributeError: module 'stepwell.lazy' has no attribute 'sqrt2'
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def moved(module: str, home: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names are in another one by now; each use warns.

    Args:
        module: ``__name__`` of the old one.
        home: the module that has the names.
    """

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        warnings.warn(f"{module}.{name} is now {home}.{name}. Import it from there.", DeprecationWarning, stacklevel=2)
        return value

    return find
