"""``stepwell.open``: a store by its path, or a data set of another system by its address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.errors import StepwellError, StoreNotFoundError, did_you_mean
from stepwell.files.addresses import SCHEME, path_of_file, plain_address
from stepwell.references.trusted_paths import Trust
from stepwell.store.layout import SEGMENTS, STORE_JSON
from stepwell.store.opening import open as open_store

if TYPE_CHECKING:
    from stepwell.store.commit import Recover
    from stepwell.store.store import Mode, Store

__all__ = ["is_store", "open", "point_to_reader", "recognised"]

FILE = "file:"


def open(
    path: str | os.PathLike[str],
    *,
    mode: Mode = "a",
    trust: Trust = None,
    recover: Recover = "dead",
    **options: Any,
) -> Store:
    """Open a store, or a data set of another system in place.

    Args:
        path: of the store's directory; or an address: the name of a reader, ``://``, what it takes, and options if
            there are any, such as ``"beton://data/train.beton"``, ``"webdataset://data/train-{000..009}.tar?split=a"``,
            see `stepwell.formats.open_in_place`; ``"lerobot:///data/pusht"`` of a directory, ``"lerobot://owner/name"``
            of a dataset on the Hugging Face hub, see `stepwell.lerobot.open_in_place`.
        mode: "a" (default): for reading and writing, and what dead writers left is recovered first. "r": touches
            nothing. What an address names is read in place, and never written.
        trust: what may be read beyond the directory that is named. A store that an address made in the cache refers to
            the data set's files. Of any other store references are followed only where this says so, and of a data set
            links that lead out of its directory: a directory or an address, several of them, or True for every file of
            yours. Directories of the environment variable ``STEPWELL_TRUST`` count, too. See docs/security.md.
        recover: what is done about segments that other processes have left, for mode "a". "dead" (default): what dead
            writers left is sealed. "silent": also what writers of other machines left on a file system of the network,
            if they gave no sign of life for a minute. "none": nothing is. See docs/recording.md.
        options: of an address: those of what opens it. A path has none.

    Returns:
        The store; of an address one that refers to the data set's files, read-only.

    Raises:
        StoreNotFoundError: no store there, or an address that nothing opens.
        StepwellError: no path at all, such as a list of them, or options for a path.
        StoreVersionError: of a newer format.
        CorruptSegmentError: damaged; the message names the file.
        FormatError: a data set that is not as its format says.
        UntrustedFileError: a data set with links that lead out of it; references raise it when they are read.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/arm.well", {"action": stepwell.Array(7)}, fps=30)
        >>> stepwell.open(store.path, mode="r").fps
        30.0
    """
    if not isinstance(path, str | os.PathLike):
        raise StepwellError(
            f"a {type(path).__name__} is no path. Give one path or address. Several files are one address with a "
            'pattern or braces, such as "webdataset://data/train-{000..009}.tar"; several stores go into a View.'
        )
    text = os.fspath(path)
    if SCHEME.match(text):
        if text[:5].lower() != FILE:
            return _open_address(text, options, trust)
        text = path_of_file(text)
    if options:
        raise StepwellError(
            f"option {', '.join(map(repr, options))} for {text}. A store has none; an address such as "
            '"lerobot://owner/name" has.'
        )
    try:
        return open_store(text, mode=mode, trust=trust, recover=recover)
    except (StoreNotFoundError, NotADirectoryError) as error:
        point_to_reader(text, error)
        raise


def _open_address(text: str, options: dict[str, Any], trust: Trust) -> Store:
    from stepwell.formats.cache import open_address
    from stepwell.formats.registry import address_of, reader_names

    cache, progress = options.pop("cache", None), options.pop("progress", None)
    address = address_of(text, options.pop("reader", None), options)
    if address.reader is None:
        scheme = text.partition("://")[0].lower()
        raise StoreNotFoundError(
            f"no data set at {plain_address(text)}: there is no {scheme}://.{did_you_mean(scheme, reader_names())} "
            f"Allowed: the path of a store, {', '.join(f'{name}://' for name in reader_names())}. For one of your own, "
            "import the module that registers its reader."
        )
    return open_address(address, cache=cache, progress=progress, trust=trust)


def recognised(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the address of what lies at a path, where it is no store and looks like a data set of one system."""
    names = [] if SCHEME.match(os.fspath(path)) or is_store(path) else _reader_names(os.fspath(path))
    return _address(names[0], os.fspath(path)) if len(names) == 1 else path


def is_store(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a store at a path, be it damaged."""
    return any(os.path.exists(f"{os.fspath(path)}/{part}") for part in (STORE_JSON, SEGMENTS))  # noqa: PTH110


def _reader_names(path: str) -> list[str]:
    from stepwell.formats.registry import readers_of

    return [reader.name for reader in readers_of(path)] if os.path.lexists(path) else []


def point_to_reader(path: str, error: Exception) -> None:
    """Raise what says how to open a data set of another system; return where it is none."""
    names = _reader_names(path)
    if names:
        told = " or ".join(f'"{_address(name, path)}"' for name in names)
        raise StoreNotFoundError(
            f"no store at {path}: it looks like a data set of {' or '.join(names)}. To read it in place, give its "
            f"address, {told}; or make a store of it with stepwell convert."
        ) from error


def _address(scheme: str, path: str) -> str:
    """Return the address of a directory; of a relative one with a dot, which tells it from a name on the hub."""
    return f"{scheme}://{path if Path(path).is_absolute() or path.startswith('.') else f'./{path}'}"
