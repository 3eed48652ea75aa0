"""Where a data set is said to be: paths, addresses of files, and addresses that name a reader.

::

    "data/train.beton"  ["a.tar", "b.tar"]       looked at: which reader takes it?
    "s3://bucket/train-{000..009}.tar"           likewise
    "webdataset://data/train-{000..009}.tar?split=train"
     reader       source                     options, as text
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from stepwell.errors import FormatError
from stepwell.files.addresses import SCHEME, path_of_file, plain_address

__all__ = ["Address", "SourceLike", "parse_address", "scheme_of", "told_address", "told_source"]

SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, an address, or several of them for readers that take several."""

# of an option's text
MISREAD = re.compile(r"%(?=[0-9A-Fa-f]{2})|[&?]")
QUERY = re.compile(r"\?([A-Za-z_]\w*=[^?]*)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """What somebody said of where a data set is.

    Args:
        source: for the reader; several paths one a line.
        reader: its name; None where it is not said.
        options: of the reader, as text; or as they were given beside the address.
    """

    source: str
    reader: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def scheme_of(text: str) -> str | None:
    """Return what an address begins with, in lower case; None for a path.

    Example:
        >>> scheme_of("Beton:///data/train.beton"), scheme_of("data/train.beton")
        ('beton', None)
    """
    found = SCHEME.match(text)
    return None if found is None else found[1].lower()


def parse_address(source: SourceLike, readers: Collection[str], whole: Collection[str] = ()) -> Address:
    r"""Return the parts of an address.

    Args:
        source: a path, an address, or a list of them.
        readers: names that addresses may begin with.
        whole: of those, the ones that take addresses as they are.

    Raises:
        FormatError: no source at all, one with a line break, options that are no ``name=value`` or come twice, or a
            ``file://`` address of another machine.

    Example:
        >>> parse_address("beton://data/train.beton?pages=4", ["beton"])
        Address(source='data/train.beton', reader='beton', options={'pages': '4'})
        >>> parse_address(["a.tar", "b.tar"], [])
        Address(source='a.tar\nb.tar', reader=None, options={})

    Notes:
        What follows the last question mark are options where they are ``name=value``, joined by ``&``, with ``%``
        before what would be misread. The query of an address within the address (``webdataset://https://...``) is
        that address's own. ``file:///data/a%20b.tar`` is the path ``/data/a b.tar``, wherever it stands.
    """
    if not isinstance(source, str | os.PathLike):
        return Address("\n".join(path_of_file(_one_line(part)) for part in source) or _none())
    text = path_of_file(_one_line(source))
    scheme = scheme_of(text)
    if scheme is None or scheme not in readers:
        return Address(text)
    if scheme in whole:
        return Address(text, scheme)
    rest = text[len(scheme) + len("://") :] or _none()
    query = None if scheme_of(rest) not in (None, "file") else QUERY.search(rest)
    place = path_of_file(rest if query is None else rest[: query.start()])
    options = {} if query is None else _options(text, query[1])
    return Address(os.path.expanduser(place), scheme, options)  # noqa: PTH111  no error without a home


def told_address(address: Address, reader: str) -> str:
    r"""Return an address as messages show it, with all options that are text or numbers.

    Args:
        address: its parts.
        reader: that was found for it.

    Example:
        >>> told_address(Address("data/arm", None, {"split": "train[:10%]", "decoders": {}}), "tfds")
        'tfds://data/arm?split=train[:10%]'
        >>> told_address(Address("a.tar\nb.tar\nc.tar"), "webdataset")
        'webdataset://a.tar and 2 more'
        >>> told_address(Address("https://me:pass@host/a.tar?token=1"), "webdataset")
        'webdataset://https://host/a.tar'
    """
    told = [
        f"{name}={MISREAD.sub(lambda found: f'%{ord(found[0]):02X}', str(value))}"
        for name, value in address.options.items()
        if isinstance(value, str | int | float)
    ]
    query = f"?{'&'.join(told)}" if told else ""
    return f"{reader}://{told_source(address.source)}{query}"


def told_source(source: str) -> str:
    r"""Return a source as messages show it, of several paths the first.

    Args:
        source: see `Address`.

    Example:
        >>> told_source("a.tar\nb.tar\nc.tar")
        'a.tar and 2 more'
    """
    first, *more = source.split("\n")
    return f"{plain_address(first)}{f' and {len(more)} more' if more else ''}"


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
    return text or _none()


def _none() -> str:
    raise FormatError("no source. Give a path, an address, or a list of them.")
