"""``stepwell.open``: a store by its path, or a data set of another system by its address."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.errors import StepwellError, StoreNotFoundError
from stepwell.store.opening import open as open_store

if TYPE_CHECKING:
    from stepwell.store.store import Mode, Store

__all__ = ["open"]

SCHEME = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)
# what opens the addresses of a scheme; loaded on use, and of a higher layer
OPENERS = {"lerobot": "stepwell.lerobot.in_place:open_in_place"}
# a file that tells a directory of another system, and what the system is called
SIGNS = {"lerobot": ("meta/info.json", "LeRobot")}


def open(path: str | os.PathLike[str], *, mode: Mode = "a", **options: Any) -> Store:
    """Open a store, or a data set of another system in place.

    Args:
        path: of the store's directory; or an address: ``"lerobot:///data/pusht"`` of a directory,
            ``"lerobot://owner/name"`` of a dataset on the Hugging Face hub, see `stepwell.lerobot.open_in_place`.
        mode: "a" (default): for reading and writing, and what dead writers left is recovered first. "r": touches
            nothing. What an address names is read in place, and never written.
        options: of an address: those of what opens it. A path has none.

    Returns:
        The store; of an address one that refers to the data set's files, read-only.

    Raises:
        StoreNotFoundError: no store there, or an address that nothing opens.
        StoreVersionError: of a newer format.
        CorruptSegmentError: damaged; the message names the file.
        FormatError: a data set that is not as its format says.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/arm.well", {"action": stepwell.Array(7)}, fps=30)
        >>> stepwell.open(store.path, mode="r").fps
        30.0
    """
    text = os.fspath(path)
    scheme = SCHEME.match(text)
    if scheme is not None:
        return _open_address(text, scheme[1].lower(), options)
    if options:
        raise StepwellError(
            f"option {', '.join(map(repr, options))} for {text}. A store has none; an address such as "
            '"lerobot://owner/name" has.'
        )
    try:
        return open_store(path, mode=mode)
    except StoreNotFoundError as error:
        for name, (sign, system) in SIGNS.items():
            if Path(text, sign).is_file():
                raise StoreNotFoundError(
                    f"no store at {text}: it is a {system} dataset. To read it in place, give its address, "
                    f'"{_address(name, text)}"; or make a store of it with stepwell convert.'
                ) from error
        raise


def _open_address(address: str, scheme: str, options: dict[str, Any]) -> Store:
    if scheme not in OPENERS:
        raise StoreNotFoundError(
            f"no data set at {address}: there is no {scheme}://. Allowed: the path of a store, "
            f"{', '.join(f'{name}://' for name in OPENERS)}."
        )
    module, _, name = OPENERS[scheme].partition(":")
    store: Store = getattr(import_module(module), name)(address, **options)
    return store


def _address(scheme: str, path: str) -> str:
    """Return the address of a directory; of a relative one with a dot, which tells it from a name on the hub.

    Example:
        >>> _address("lerobot", "/data/pusht"), _address("lerobot", "pusht")
        ('lerobot:///data/pusht', 'lerobot://./pusht')
    """
    return f"{scheme}://{path if Path(path).is_absolute() or path.startswith('.') else f'./{path}'}"
