"""What addresses of files say: how messages show one, the path that a ``file://`` address is; where caches lie."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from stepwell.errors import FormatError, did_you_mean

__all__ = ["SCHEME", "cache_directory", "is_remote", "local_path", "nothing_at", "path_of_file", "plain_address"]

SCHEME = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)
# a path object has taken a slash away
OBJECT_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]+):/", re.IGNORECASE)
QUERY = re.compile(r"[?#]")
FILE = "file://"
THIS_MACHINE = ("", "localhost")
# names beside a path that is not there, of which one may have been meant
MAX_NEIGHBOURS = 10_000


def plain_address(path: str | os.PathLike[str]) -> str:
    """Return a path or an address as messages show it: without query and password, which may be secrets."""
    text = os.fspath(path)
    scheme = SCHEME.match(text)
    if scheme is None:
        return text
    rest = text[scheme.end() :]
    if SCHEME.match(rest) or rest.startswith("/"):
        # the path of a file on this machine may have a question mark
        return scheme[0] + plain_address(rest)
    machine, slash, place = QUERY.split(rest, maxsplit=1)[0].partition("/")
    return f"{scheme[0]}{machine.rpartition('@')[2]}{slash}{place}"


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path to write to; an address is refused, for which a directory would be made here."""
    text = os.fspath(path)
    scheme = (SCHEME if isinstance(path, str) else OBJECT_SCHEME).match(text)
    if scheme is None or (not isinstance(path, str) and Path(f"{scheme[1]}:").is_dir()):
        return text
    raise FormatError(
        f"{plain_address(text)} is an address, and stepwell writes to local paths. Write to a directory of this "
        f"machine, and copy the whole of it to {scheme[1]}:// when that is done; a path of this machine has no scheme."
    )


def path_of_file(text: str) -> str:
    """Return the path that a ``file://`` address is; anything else as it is."""
    if text[: len(FILE)].lower() != FILE:
        return text
    machine, slash, place = text[len(FILE) :].partition("/")
    if machine.lower() not in THIS_MACHINE or not slash:
        raise FormatError(f"{text}: file://{machine} is no file of this machine. Write file:/// and the whole path.")
    return unquote(slash + place)


def cache_directory() -> Path:
    """Return where caches lie: ``$STEPWELL_CACHE``, ``$XDG_CACHE_HOME/stepwell`` or ``~/.cache/stepwell``."""
    if os.environ.get("STEPWELL_CACHE"):
        return Path(os.environ["STEPWELL_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  no error without a home
    return Path(home, "stepwell")


def nothing_at(path: str | os.PathLike[str]) -> str:
    """Return what to say of a path where nothing is, with what is called nearly so beside it."""
    place, names = Path(path), list[str]()
    with suppress(OSError):
        names = [each.name for each in islice(place.absolute().parent.iterdir(), MAX_NEIGHBOURS)]
    return f"there is nothing of this name.{did_you_mean(place.name, names)}"


def is_remote(path: str) -> bool:
    """Whether a path is an address of another machine's file."""
    scheme = SCHEME.match(path)
    return scheme is not None and scheme[1].lower() != "file"
