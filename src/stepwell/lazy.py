"""Names of a package that are loaded when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["load_name"]


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
