"""What a user may write for a LeRobot dataset, and what it means.

::

    a directory                    "data/pusht", Path(...), "lerobot:///data/pusht", "lerobot://./pusht", "lerobot://~/pusht"
    a repository of the hub        "owner/name", "lerobot://owner/name", "lerobot://owner/name@v2.1"
    some episodes of either        "lerobot://owner/name?episodes=0:10,15"
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import path_of_file
from stepwell.formats.registry import parse_address

__all__ = ["Source", "parse_episodes", "parse_source"]

READER, EPISODES = "lerobot", "episodes"
SCHEME = f"{READER}://"
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
EPISODE = re.compile(r"\d{1,12}", re.ASCII)
SLICE = re.compile(r"(-?\d{1,12})?:(-?\d{1,12})?", re.ASCII)
ALLOWED = (
    'Allowed: a directory, "owner/name" of the hub, or lerobot:// and an absolute path, ./ and a relative one, '
    "or owner/name@revision, each with ?episodes=0:10,15 if you like."
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a dataset is said to be."""

    kind: Literal["directory", "hub"]  # "directory" or "hub"
    path: Path | None = None  # the directory; None for the hub
    repo_id: str | None = None  # owner and name on the hub; None for a directory
    revision: str | None = None  # tag, branch or commit on the hub; None for the default one
    episodes: tuple[int | slice, ...] | None = None  # numbers and slices; None for all


def parse_source(source: str | os.PathLike[str]) -> Source:
    """Return what an address means.

    Args:
        source: a path, ``"owner/name"``, or an address that begins with ``lerobot://``. Without it, and without ``./``
            in front, ``"a/b"`` is a directory where there is one, and a repository of the hub otherwise. In an address
            ``%3F`` stands for a question mark in a name, ``%25`` for a per cent sign.

    Returns:
        The source. A directory is never looked for on the hub.

    Raises:
        DatasetNotFoundError: it is neither a directory that is there nor a repository's name.
        FormatError: an address with parts that there are not.

    Example:
        >>> parse_source("lerobot://lerobot/pusht@v3.0?episodes=0:10,15")
        Source(kind='hub', path=None, repo_id='lerobot/pusht', revision='v3.0', episodes=(slice(0, 10, None), 15))
    """
    text = path_of_file(os.fspath(source))
    if text.startswith(SCHEME):
        return _parse_address(text)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return Source("directory", path=path)
    if isinstance(source, str) and REPO_ID.fullmatch(text):
        return Source("hub", repo_id=text)
    raise DatasetNotFoundError(f"no directory {text!r}. {ALLOWED}")


def _parse_address(text: str) -> Source:
    if text == SCHEME:
        raise DatasetNotFoundError(f"{text!r} names no dataset. {ALLOWED}")
    address = parse_address(text, (READER,))
    others = address.options.keys() - {EPISODES}
    if others:
        raise FormatError(f"{text!r} has the part {min(others)!r}. {ALLOWED}")
    episodes = parse_episodes(address.options[EPISODES]) if address.options else None
    place, is_file = address.source, text[len(SCHEME) :].lower().startswith("file:")
    if is_file or place.startswith(("/", "./", "../")) or place in (".", ".."):
        return Source("directory", path=Path(place if is_file else unquote(place)), episodes=episodes)
    repo_id, has_revision, revision = place.partition("@")
    if not REPO_ID.fullmatch(repo_id) or (has_revision and not revision):
        raise DatasetNotFoundError(f"{text!r} names no dataset. {ALLOWED}")
    return Source("hub", repo_id=repo_id, revision=unquote(revision) or None, episodes=episodes)


def parse_episodes(text: str) -> tuple[int | slice, ...]:
    """Return the numbers and slices that a list such as ``"0:10,15,-5:"`` says.

    Raises:
        FormatError: a part that is neither; a negative number alone, too.

    Example:
        >>> parse_episodes("3,8:")
        (3, slice(8, None, None))
    """
    entries: list[int | slice] = []
    for part in text.split(","):
        bounds = SLICE.fullmatch(part.strip())
        if bounds:
            entries.append(slice(*(None if bound is None else int(bound) for bound in bounds.groups())))
        elif EPISODE.fullmatch(part.strip()):
            entries.append(int(part))
        else:
            raise FormatError(
                f"episodes {text!r} has the part {part!r}. "
                "Allowed: numbers and ranges, e.g. 0:10,15,-5: (the last is -1:)"
            )
    return tuple(entries)
