"""The registry of readers: which format a source is, found by looking."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from stepwell.errors import FormatError
from stepwell.formats.reader import Reader

__all__ = ["find_reader", "reader_names", "register_reader"]

_REGISTRY: dict[str, type[Reader]] = {}
# readers that come with stepwell are imported when a source is looked at, by name: they stand above this layer
_BUILT_IN = {"lerobot": "stepwell.lerobot.reader"}


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


def find_reader(source: str | os.PathLike[str], name: str | None = None) -> type[Reader]:
    """Return the reader of a source.

    Args:
        source: a path, or what a reader takes, such as ``"lerobot://owner/name"``.
        name: of the reader; None: the one that accepts the source.

    Raises:
        FormatError: no reader accepts it, several do, or there is none of that name.
    """
    if name is not None:
        return _reader(name)
    text = os.fspath(source)
    found = [reader for reader in map(_reader, reader_names()) if reader.accepts(text)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(reader.name for reader in found)
        raise FormatError(
            f"{text} looks like several formats: {names}. Say which: reader=..., or --from on the command line."
        )
    what = "is not there" if "://" not in text and not Path(text).exists() else "looks like none of them"
    raise FormatError(
        f"no reader for {text}: it {what}. There are readers for: {', '.join(reader_names())}. Say which by reader=... "
        "(--from on the command line); for one of your own, import the module that registers it (--import MODULE)."
    )


def _reader(name: str) -> type[Reader]:
    if name not in _REGISTRY and name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    if name not in _REGISTRY:
        raise FormatError(
            f"no reader {name!r}. There are: {', '.join(reader_names())}. If it is your own, import the module that "
            "calls register_reader first; on the command line, --import MODULE."
        )
    return _REGISTRY[name]
