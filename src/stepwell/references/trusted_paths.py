"""Where references of a store may lead: to what its user trusts it with, and nowhere else.

::

    a feature that code made               anywhere            reach None
    a feature described by a file         nowhere             reach ()
    of a store in the cache                anywhere            it was made there by `stepwell.open` of an address
    of another store, opened with trust    beneath its roots   reach ("/data/set", "https://host/set")

A path counts as what it resolves to: neither ``..`` nor a link leads out of a root.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from stepwell.errors import UntrustedFileError
from stepwell.files.addresses import plain_address

__all__ = ["Trust", "check_reach", "is_beneath", "is_reached", "reach_of", "trusted_roots"]

Trust = bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
"""Files that a user allows: True (all), directories and addresses; None: those of ``STEPWELL_TRUST`` alone."""

VARIABLE = "STEPWELL_TRUST"


def trusted_roots() -> tuple[str, ...]:
    """Return the directories of ``STEPWELL_TRUST``, separated as those of ``PATH``, resolved."""
    return tuple(os.path.realpath(root) for root in os.environ.get(VARIABLE, "").split(os.pathsep) if root)


def reach_of(trust: Trust) -> tuple[str, ...] | None:
    """Return where files may lie."""
    if trust is True:
        return None
    if trust is None or trust is False:
        return trusted_roots() if VARIABLE in os.environ else ()
    given = [trust] if isinstance(trust, str | os.PathLike) else list(trust)
    texts = [os.fspath(root) for root in given]
    return (*(text if "://" in text else os.path.realpath(text) for text in texts), *trusted_roots())


def check_reach(path: str, reach: Sequence[str] | None, *, of: str = "references of this store") -> None:
    """Refuse a file beyond where references may lead."""
    if is_reached(path, reach):
        return
    is_address = "://" in path
    place = (path if is_address else os.path.realpath(path)).rpartition("/")[0]
    raise UntrustedFileError(
        f"{plain_address(path)}: {of} lead to this file, which was not read. If you know where they come from, and "
        f"want it to be read, open with trust={plain_address(place)!r}, or a directory above it"
        f"{'' if is_address else f'; by the command, say --trust DIR, or set {VARIABLE} to it'}. trust=True allows "
        "every file of yours."
    )


def is_reached(path: str, reach: Sequence[str] | None) -> bool:
    """Return whether references may lead to a file, or to an address."""
    return reach is None or any(is_beneath(path, root) for root in reach)


def is_beneath(path: str, root: str) -> bool:
    """Return whether a path, as it resolves, is a directory or lies in it; an address at an address."""
    prefix = f"{root.rstrip('/')}/"
    if "://" in path or "://" in root:
        return path.startswith(prefix) and ".." not in path.replace("%2e", ".").replace("%2E", ".").split("/")
    return f"{os.path.realpath(path)}/".startswith(prefix)
