"""Which reader a source gets: addresses and their parts, and the registry of readers.

::

    "data/train.beton"  ["a.tar", "b.tar"]       the reader that accepts it
    "s3://bucket/train-{000..009}.tar"           likewise
    "webdataset://data/train-{000..009}.tar?split=train"
     reader       source                     options, as text
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepwell.errors import FormatError, UntrustedFileError, did_you_mean
from stepwell.files.addresses import SCHEME, is_remote, path_of_file, plain_address
from stepwell.formats.reader import Reader
from stepwell.formats.source_paths import check_boundaries, check_regular
from stepwell.references.trusted_paths import Trust

__all__ = [
    "OPENERS",
    "Address",
    "SourceLike",
    "address_of",
    "check_address",
    "check_options",
    "find_reader",
    "made_reader",
    "open_reader",
    "parse_address",
    "reader_names",
    "reader_of",
    "readers_of",
    "register_reader",
    "scheme_of",
    "told_address",
    "told_source",
]

SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, an address, or several of them for readers that take several."""

OPENERS = {"lerobot": "stepwell.lerobot.in_place:open_in_place"}
"""The function that opens a reader's addresses in place, as they are; of a higher layer, loaded on first use."""

# options that every reader has as attributes, but those that take whole addresses
COMMON = ("dct",)
# of an option's text
MISREAD = re.compile(r"%(?=[0-9A-Fa-f]{2})|[&?]")
QUERY = re.compile(r"\?([A-Za-z_]\w*=[^?]*)\Z", re.ASCII)

_REGISTRY: dict[str, type[Reader]] = {}
# readers that come with stepwell are imported when a source is looked at, by name: they stand above this layer
_BUILT_IN = {
    "beton": "stepwell.beton.reader",
    "d4rl": "stepwell.readers.d4rl",
    "decision-transformer": "stepwell.readers.trajectories",
    "dqn-replay": "stepwell.readers.dqn_replay",
    "dreamer": "stepwell.readers.dreamer",
    "folders": "stepwell.readers.folders",
    "hdf5": "stepwell.readers.hdf5_episodes",
    "huggingface": "stepwell.readers.huggingface",
    "lerobot": "stepwell.lerobot.reader",
    "mcap": "stepwell.bags.mcap_files",
    "minari": "stepwell.readers.minari",
    "robomimic": "stepwell.readers.robomimic",
    "rlds": "stepwell.tfds.reader",
    "rosbag": "stepwell.bags.ros_bags",
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

    Example:
        >>> find_reader("lerobot://owner/name").__name__
        'LeRobotReader'
    """
    return reader_of(address_of(source, name))


def reader_of(address: Address) -> type[Reader]:
    """Return the reader of an address: the one that it names, else the one that accepts the source."""
    if address.reader is not None:
        return _REGISTRY.get(address.reader) or _reader(address.reader)
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
    """Return all readers that accept a source; those of last resort only where no other does."""
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
    """Return whether a reader accepts a source; no reader accepts one that cannot be looked at."""
    try:
        return reader.accepts(source)
    except UntrustedFileError:
        # a link that leads out of a data set is an error, and not passed over
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
    """Return the parts of an address, with the reader's name and options that are given beside it."""
    address = parse_address(source, {*_BUILT_IN, *_REGISTRY}, OPENERS)
    if name is None and not options:
        return address
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
    address = address_of(source, name, options)
    kind = reader_of(address)
    check_address(kind, address)
    check_boundaries(address.source, trust)
    return made_reader(kind, address, trust)


def made_reader(kind: type[Reader], address: Address, trust: Trust = None) -> Reader:
    """Return a reader of a source whose options were checked; one of pickles is told of ``trust=True``."""
    own = _own_options(kind)
    if trust is True and "trust" in own:
        address = replace(address, options={"trust": True, **address.options})
    common = {name: value for name, value in address.options.items() if name in COMMON and name not in own}
    reader = kind(address.source, **{name: value for name, value in address.options.items() if name not in common})
    for name, value in common.items():
        setattr(reader, name, value)
    reader.given_options = address.options
    return reader


def check_address(kind: type[Reader], address: Address) -> None:
    """Refuse options that a reader does not have, and its own where the server of another machine would get them."""
    names = check_options(kind, address.options)
    # what takes whole addresses reads their queries itself
    is_asked = kind.name not in OPENERS and "://" in address.source
    for part in address.source.split("\n") if is_asked else ():
        for name, value in parse_qsl(urlsplit(part).query) if is_remote(part) else ():
            if name in names:
                raise FormatError(
                    f"{plain_address(part)}: what follows its '?' is the server's, not the reader's. Give options "
                    f"beside the address: stepwell.open(address, {name}={value!r}), or --with {name}={value}."
                )


def check_options(
    kind: type[Reader], options: Mapping[str, Any], opener: Callable[..., Any] | None = None
) -> tuple[str, ...]:
    """Refuse options that a reader, or what opens its data sets in place, does not have; return those that it has."""
    own = _own_options(kind if opener is None else opener)
    names = own if kind.name in OPENERS else tuple(dict.fromkeys([*own, *COMMON]))
    unknown = sorted(options.keys() - names)
    if unknown:
        raise FormatError(
            f"the reader {kind.name!r} has no option {', '.join(map(repr, unknown))}."
            f"{did_you_mean(unknown[0], names)} It has: {', '.join(names) or 'none'}."
        )
    return names


@functools.cache
def _own_options(kind: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments after the source."""
    given = inspect.signature(kind).parameters.values()
    return tuple(parameter.name for parameter in given if parameter.kind != parameter.VAR_KEYWORD)[1:]


def _reader(name: str) -> type[Reader]:
    if name not in _REGISTRY and name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    if name not in _REGISTRY:
        raise FormatError(
            f"no reader {name!r}.{did_you_mean(name, reader_names())} There are: {', '.join(reader_names())}. If it is "
            "your own, import the module that calls register_reader first; on the command line, --import MODULE."
        )
    return _REGISTRY[name]


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an address."""

    # for the reader; several paths one a line
    source: str
    # its name; None where the address has none
    reader: str | None = None
    # of the reader: texts of the address, and values that were given beside it
    options: Mapping[str, Any] = field(default_factory=dict)


def scheme_of(text: str) -> str | None:
    """Return what an address begins with, in lower case; None for a path."""
    found = SCHEME.match(text)
    return None if found is None else found[1].lower()


def parse_address(source: SourceLike, readers: Collection[str], whole: Collection[str] = ()) -> Address:
    """Return the parts of an address that begins with the name of a reader; those in ``whole`` take all of it."""
    # What follows the last question mark are options where they are name=value, joined by &, with % before what would
    # be misread. The query of an address within the address (webdataset://https://...) is that address's own.
    if not isinstance(source, str | os.PathLike):
        return Address("\n".join(_one_line(part) for part in source) or _none())
    text = _one_line(source)
    found = SCHEME.match(text)
    scheme = None if found is None else found[1].lower()
    if found is None or scheme not in readers:
        return Address(text)
    if scheme in whole:
        return Address(text, scheme)
    rest = text[found.end() :] or _none()
    inner = SCHEME.match(rest)
    is_local = inner is None or inner[1].lower() == "file"
    query = QUERY.search(rest) if is_local else None
    place = rest if query is None else rest[: query.start()]
    if inner is not None:
        place = path_of_file(place)
    options = {} if query is None else _options(text, query[1])
    return Address(os.path.expanduser(place), scheme, options)  # noqa: PTH111  no error without a home


def told_address(address: Address, reader: str) -> str:
    """Return an address as messages show it: without secrets, with all options that are text or numbers."""
    if not address.options:
        return f"{reader}://{told_source(address.source)}"
    told = [
        f"{name}={MISREAD.sub(lambda found: f'%{ord(found[0]):02X}', str(value))}"
        for name, value in address.options.items()
        if isinstance(value, str | int | float)
    ]
    query = f"?{'&'.join(told)}" if told else ""
    return f"{reader}://{told_source(address.source)}{query}"


def told_source(source: str) -> str:
    """Return a source as messages show it, of several paths the first."""
    first, *more = source.split("\n")
    shown = plain_address(first) if "://" in first else first
    return f"{shown}{f' and {len(more)} more' if more else ''}"


def _options(text: str, query: str) -> dict[str, str]:
    try:
        # a plus is one: splits are joined by it
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise FormatError(f"options {query!r} of {text}: {error}. Allowed: name=value, joined by &.") from error
    options = dict(pairs)
    if len(options) < len(pairs):
        raise FormatError(f"options {query!r} of {text}: a name comes twice. Give each option once.")
    return options


def _one_line(source: str | os.PathLike[str]) -> str:
    text = os.fspath(source)
    if "\n" in text:
        raise FormatError(f"{text!r} has a line break. Give several paths as a list.")
    return (path_of_file(text) if "://" in text else text) or _none()


def _none() -> str:
    raise FormatError("no source. Give a path, an address, or a list of them.")
