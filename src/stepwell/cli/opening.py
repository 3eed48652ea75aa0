"""The store that a verb reads: of a path, or of an address with the options of ``--with``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.formats.opening import open
from stepwell.formats.options import flag_of, names_of
from stepwell.formats.registry import check_options, find_reader
from stepwell.store import Store

__all__ = ["given_options", "open_given"]


def open_given(arguments: argparse.Namespace) -> Store:
    """Return the store at the path or address of a verb, open for reading.

    Args:
        arguments: with ``path``, and ``settings``, the pairs of ``--with``.

    Raises:
        FormatError: options for a path, one that the reader does not have, or one that comes twice.
        StoreNotFoundError: no store there.
    """
    options = given_options(arguments.settings)
    if not options:
        return open(arguments.path, mode="r")
    first = f"--with {next(iter(options))}=..."
    if isinstance(arguments.path, Path):
        raise FormatError(
            f"{first} is of data sets that are named by an address, and {arguments.path} is a path. Give "
            "FORMAT://PATH; of a store, leave it out."
        )
    kind = find_reader(arguments.path)
    check_options(kind, options)
    if kind.name == "lerobot":
        options = {name: _LEROBOT[name](text) if name in _LEROBOT else text for name, text in options.items()}
    return open(arguments.path, mode="r", **options)


def given_options(settings: Iterable[tuple[str, str]], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of ``--with``, as text, with those of flags.

    Args:
        settings: names and values.
        others: what flags say already.

    Raises:
        FormatError: an option comes twice.

    Example:
        >>> given_options([("split", "val")], {"ignore": ["reward"]})
        {'ignore': ['reward'], 'split': 'val'}
    """
    options = dict(others or {})
    for name, text in settings:
        if name in options:
            raise FormatError(f"--with {name}={text}: {name} is given twice. Give it once.")
        options[name] = text
    return options


def _tolerance(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FormatError(f"--with tolerance={text}: no number. Give seconds, e.g. tolerance=0.001.") from None


# what opens LeRobot's datasets in place takes values, as other readers take texts
_LEROBOT: dict[str, Callable[[str], Any]] = {
    "ignore": names_of,
    "local_files_only": lambda text: flag_of("local_files_only", text),
    "tolerance": _tolerance,
}
