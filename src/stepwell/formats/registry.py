"""The registry of readers: which format a source is, found by looking."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepwell.errors import FormatError, UntrustedFileError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.formats.addresses import Address, SourceLike, parse_address, told_source
from stepwell.formats.boundaries import check_boundaries, check_regular
from stepwell.formats.reader import Reader
from stepwell.references.trusted_paths import Trust

__all__ = [
    "OPENERS",
    "address_of",
    "check_address",
    "check_options",
    "find_reader",
    "made_reader",
    "open_reader",
    "reader_names",
    "readers_of",
    "register_reader",
]

OPENERS = {"lerobot": "stepwell.lerobot.in_place:open_in_place"}
"""What opens addresses of a reader in place in a way of its own, as it takes them; loaded on use, of a higher layer."""

COMMON = ("dct",)
# options that every reader has, as attributes

_REGISTRY: dict[str, type[Reader]] = {}
# readers that come with stepwell are imported when a source is looked at, by name: they stand above this layer
_BUILT_IN = {
    "beton": "stepwell.beton.reader",
    "d4rl": "stepwell.readers.d4rl",
    "folders": "stepwell.readers.folders",
    "huggingface": "stepwell.readers.huggingface",
    "lerobot": "stepwell.lerobot.reader",
    "minari": "stepwell.readers.minari",
    "robomimic": "stepwell.readers.robomimic",
    "rlds": "stepwell.tfds.reader",
    "tfds": "stepwell.tfds.reader",
    "webdataset": "stepwell.webdataset.reader",
    "webdataset-episodes": "stepwell.webdataset.episodes_reader",
    "zarr": "stepwell.readers.zarr_replay",
}


def register_reader(reader: type[Reader]) -> type[Reader]:
    """Make a reader known under its ``name``; may be used as a class decorator.

    Put the reader into a module that can be imported, not into the script that is run: workers have to. The command
    line is told of it by ``--import MODULE``.

    Raises:
        FormatError: another reader has the name, or this one has none.
    """
    if not isinstance(getattr(reader, "name", None), str):
        raise FormatError(f'{reader.__qualname__} has no name. Say what --from asks for: name = "...", in the class.')
    home = _BUILT_IN.get(reader.name, reader.__module__)
    known = _REGISTRY.get(reader.name)
    is_other = known is not None and (known.__module__, known.__qualname__) != (reader.__module__, reader.__qualname__)
    if is_other or reader.__module__ != home:
        raise FormatError(f"reader name {reader.name!r} is taken by {home if known is None else known.__module__}.")
    _REGISTRY[reader.name] = reader
    return reader


def reader_names() -> tuple[str, ...]:
    """Return the names of all readers.

    Example:
        >>> "lerobot" in reader_names()
        True
    """
    return tuple(sorted({*_BUILT_IN, *_REGISTRY}))


def find_reader(source: SourceLike, name: str | None = None) -> type[Reader]:
    """Return the reader of a source.

    Args:
        source: a path, an address that names its reader, such as ``"lerobot://owner/name"``, or what a reader takes; a
            list of them.
        name: of the reader; None: that of the address, else the one that accepts the source.

    Raises:
        FormatError: no reader accepts it, several do, or there is none of that name.
    """
    address = address_of(source, name)
    if address.reader is not None:
        return _reader(address.reader)
    text = address.source
    found = readers_of(text)
    if len(found) == 1:
        return found[0]
    told = told_source(text)
    if found:
        names = ", ".join(reader.name for reader in found)
        raise FormatError(
            f"{told} looks like several formats: {names}. Say which: reader=..., or --from on the command line."
        )
    raise FormatError(
        f"no reader for {told}: it {_fault_of(text)}.{_advice_on(text)} There are readers for: "
        f"{', '.join(reader_names())}. Say which by reader=... (--from on the command line); for one of your own, "
        "import the module that registers it (--import MODULE)."
    )


def readers_of(source: str) -> list[type[Reader]]:
    """Return all readers that accept a source; those of last resort only where no other does.

    Raises:
        FormatError: it is neither a file nor a directory.
    """
    _check_is_file_or_directory(source)
    found = [reader for reader in map(_reader, reader_names()) if _is_accepted(reader, source)]
    return [reader for reader in found if not reader.is_last_resort] or found


def _check_is_file_or_directory(source: str) -> None:
    """Refuse what a look at would never come back from, such as a FIFO."""
    try:
        is_directory = os.path.isdir(source)  # noqa: PTH112  a text may be too long for a path
    except ValueError:
        return
    if not is_directory and "://" not in source and "\n" not in source:
        check_regular(source)


def _is_accepted(reader: type[Reader], source: str) -> bool:
    """Return whether a reader accepts a source; what nobody can look at is of none that looks."""
    try:
        return reader.accepts(source)
    except UntrustedFileError:
        # what leads out of a data set is told, and not passed over
        raise
    except (OSError, ValueError):
        # of a text that is too long for a path, such as many paths, or of a folder of others'
        return False
    except RuntimeError:
        # of "~" without a home; all else is the reader's own
        if not source.startswith("~"):
            raise
        return False


def _advice_on(source: str) -> str:
    """Return what readers say of a source that they nearly accept."""
    found = []
    for reader in map(_reader, reader_names()):
        with suppress(OSError, ValueError, RuntimeError):
            found.append(reader.advice(source))
    return "".join(f" {advice}" for advice in found if advice)


def _fault_of(source: str) -> str:
    """Return why no reader accepts a source, or the first of several."""
    first = source.partition("\n")[0]
    try:
        if "://" not in first:
            os.stat(first)  # noqa: PTH116  it has an error that says more than exists()
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except (OSError, ValueError) as error:
        return f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
    return "looks like none of them"


def address_of(source: SourceLike, name: str | None = None, options: Mapping[str, Any] | None = None) -> Address:
    """Return the parts of an address, with what is said beside it.

    Args:
        source: see `find_reader`.
        name: of the reader.
        options: of the reader.

    Raises:
        FormatError: the address names another reader, or an option that is given beside it, too.
    """
    address = parse_address(source, reader_names(), OPENERS)
    if name is not None and address.reader not in {None, name}:
        raise FormatError(f"{source} is an address of {address.reader!r}, not of {name!r}. Name one of them.")
    twice = [option for option in options or () if option in address.options]
    if twice:
        raise FormatError(f"option {twice[0]!r} is given in the address {source} and beside it. Give it once.")
    return Address(address.source, name or address.reader, {**address.options, **(options or {})})


def open_reader(
    source: SourceLike, name: str | None = None, options: Mapping[str, Any] | None = None, *, trust: Trust = None
) -> Reader:
    """Return the reader of a source.

    Args:
        source: see `find_reader`.
        name: of the reader; default: that of the address, else found by looking.
        options: of the reader.
        trust: directories that links of the data set may lead to, beyond its own; True: anywhere. See `stepwell.open`.

    Raises:
        FormatError: no reader for it, or an option that its reader does not have.
        UntrustedFileError: a link that leads out of the data set's directory.
    """
    address, kind = address_of(source, name, options), find_reader(source, name)
    check_address(kind, address)
    check_boundaries(address.source, trust)
    return made_reader(kind, address)


def made_reader(kind: type[Reader], address: Address) -> Reader:
    """Return a reader of a source whose options were checked."""
    own = inspect.signature(kind).parameters
    common = {name: value for name, value in address.options.items() if name in COMMON and name not in own}
    reader = kind(address.source, **{name: value for name, value in address.options.items() if name not in common})
    for name, value in common.items():
        setattr(reader, name, value)
    return reader


def check_address(kind: type[Reader], address: Address) -> None:
    """Refuse options that a reader does not have, and its own where the server of another machine would get them.

    Args:
        kind: of reader.
        address: source and options.

    Raises:
        FormatError: naming them, and where they belong.
    """
    check_options(kind, address.options)
    if kind.name in OPENERS:
        # it reads the queries of its addresses itself
        return
    names = _option_names(kind)
    for part in address.source.split("\n"):
        asked = parse_qsl(urlsplit(part).query) if is_remote(part) else []
        for name, value in asked:
            if name in names:
                raise FormatError(
                    f"{plain_address(part)}: what follows its '?' is the server's, not the reader's. Give options "
                    f"beside the address: stepwell.open(address, {name}={value!r}), or --with {name}={value}."
                )


def check_options(kind: type[Reader], options: Mapping[str, Any]) -> None:
    """Refuse options that a reader does not have.

    Raises:
        FormatError: naming them, and those that it has.
    """
    names = _option_names(kind)
    unknown = [option for option in options if option not in names]
    if unknown:
        raise FormatError(
            f"the reader {kind.name!r} has no option {', '.join(map(repr, unknown))}. "
            f"It has: {', '.join(names) or 'none'}."
        )


def _option_names(kind: type[Reader]) -> list[str]:
    """Return the names of a reader's options: its arguments after the source."""
    given = inspect.signature(kind).parameters.values()
    own = [parameter.name for parameter in given if parameter.kind != parameter.VAR_KEYWORD][1:]
    return list(dict.fromkeys([*own, *(() if kind.name in OPENERS else COMMON)]))


def _reader(name: str) -> type[Reader]:
    if name not in _REGISTRY and name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    if name not in _REGISTRY:
        raise FormatError(
            f"no reader {name!r}. There are: {', '.join(reader_names())}. If it is your own, import the module that "
            "calls register_reader first; on the command line, --import MODULE."
        )
    return _REGISTRY[name]
