r"""The files that a text names: braces, globs, directories, lists and addresses.

::

    "train-{000000..000146}.tar"    "{a,b}/x.tar"      as shells and webdataset write it
    "data/*.tar"   "s3://bucket/*.tar"                 sorted; of HTTP there are no lists
    "data"                                             files of the wanted endings in it, and below
    "a.tar::b.tar"   "a.tar\nb.tar"                    one after the other
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from urllib.parse import urlsplit

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import is_remote, path_of_file, plain_address
from stepwell.references.remote_sources import list_addresses, source_of

__all__ = ["MAGIC", "expand_braces", "named_texts", "names_files", "source_files"]

MAX_FILES = 1_000_000
RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
SEPARATOR = re.compile(r"\n|::")
MAGIC = re.compile(r"[*?\[]")


def source_files(source: str | Sequence[str], endings: Sequence[str]) -> list[str]:
    """Return the files that a source names.

    Args:
        source: a text as drawn above, or a sequence of such.
        endings: of the files that are taken of a directory, such as ``(".tar",)``.

    Returns:
        Paths and addresses, in the order they are named; those of a pattern or a directory sorted.

    Raises:
        DatasetNotFoundError: a pattern that fits nothing, or a directory without such files. Whether a file that is
            named is there is not looked at.
        FormatError: a range that is none, ``pipe:``, or a pattern where no lists are.

    Example:
        >>> source_files("s3://b/train-{08..10}.tar::more/{a,b}.tar", [".tar"])
        ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 'more/a.tar', 'more/b.tar']
    """
    texts = [source] if isinstance(source, str) else list(source)
    parts = [part for text in texts for part in SEPARATOR.split(text) if part]
    found = list(islice((file for part in parts for file in _files_of(part, endings)), MAX_FILES + 1))
    if not found or len(found) > MAX_FILES:
        raise FormatError(f"{source!r} names {'no' if not found else f'more than {MAX_FILES:,}'} files.")
    return found


def named_texts(source: str | Sequence[str]) -> Iterator[str]:
    """Yield the paths, patterns and directories of this machine that a source names, braces expanded.

    Example:
        >>> list(named_texts("data::more/{a,b}-*.tar::https://host/x.tar"))
        ['data', 'more/a-*.tar', 'more/b-*.tar']
    """
    for text in [source] if isinstance(source, str) else source:
        for part in map(path_of_file, filter(None, SEPARATOR.split(text))):
            if not is_remote(part):
                yield from expand_braces(part)


def names_files(source: str, endings: Sequence[str]) -> bool:
    """Whether a text may name files of these endings: by its own ending, or what lies in the directory; cheap.

    Example:
        >>> names_files("https://host/train-{0..9}.tar?token=1", [".tar"]), names_files("https://host/", [".tar"])
        (True, False)
    """
    try:
        part = path_of_file(SEPARATOR.split(source)[0])
        if _plain(part).rstrip("}").endswith(tuple(endings)):
            return True
        if is_remote(part):
            return False
        with os.scandir(part) as entries:
            return any(entry.name.endswith(tuple(endings)) for entry in entries)
    except (OSError, ValueError):
        return False


def expand_braces(text: str) -> Iterator[str]:
    """Yield what a text with braces stands for; braces without a comma or a range stay as they are.

    Raises:
        FormatError: a range whose step is 0.

    Example:
        >>> list(expand_braces("{a,b{1..2}}-{08..10..2}.{tar}"))
        ['a-08.{tar}', 'a-10.{tar}', 'b1-08.{tar}', 'b1-10.{tar}', 'b2-08.{tar}', 'b2-10.{tar}']
    """
    start = text.find("{")
    stop = _closing(text, start) if start >= 0 else -1
    if stop < 0:
        # one that is not closed is a character as any other
        yield from (text,) if start < 0 else (text[: start + 1] + rest for rest in expand_braces(text[start + 1 :]))
        return
    inner = text[start + 1 : stop]
    choices = _choices(inner)
    for choice in [f"{{{inner}}}"] if choices is None else choices:
        for rest in expand_braces(text[stop + 1 :]):
            yield f"{text[:start]}{choice}{rest}"


def _files_of(part: str, endings: Sequence[str]) -> Iterator[str]:
    part = path_of_file(part)
    if is_remote(part) or part.startswith("pipe:"):
        source_of(part)
    # a file may be called as a pattern is
    elif os.path.isfile(part):  # noqa: PTH113  Path raises where braces make a text that is too long for a path
        yield part
        return
    for text in expand_braces(part):
        if not is_remote(text) and os.path.isdir(text):  # noqa: PTH112  as above
            yield from _below(text, endings)
        elif MAGIC.search(_plain(text)):
            yield from _fitting(text)
        else:
            yield text


def _fitting(pattern: str) -> list[str]:
    found = list_addresses(pattern) if is_remote(pattern) else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not found:
        raise DatasetNotFoundError(
            f"no files fit {plain_address(pattern)}. Look at its directory, and at how the files are called."
        )
    return found


def _below(folder: str, endings: Sequence[str]) -> list[str]:
    found = sorted(
        os.path.join(place, name)  # noqa: PTH118  a source of 10^5 files
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(tuple(endings)) and not name.startswith(".")
    )
    if not found:
        raise DatasetNotFoundError(f"no files of {' or '.join(endings)} in {folder}, nor below.")
    return found


def _plain(address: str) -> str:
    """Return an address without what is asked of a server: a ``?`` is no pattern there."""
    is_web = address.lower().startswith(("http://", "https://"))
    return address[: len(address) - len(urlsplit(address).query) - 1] if is_web and "?" in address else address


def _closing(text: str, start: int) -> int:
    """Return where the brace that opens at `start` is closed, -1 where it is not."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return -1


def _choices(inner: str) -> Iterator[str] | None:
    """Return what stands between braces, one by one; None where it is no choice."""
    found = RANGE.fullmatch(inner)
    if found is not None and found[1].isalpha() == found[2].isalpha():
        return _range(found[1], found[2], int(found[3] or 1), inner)
    depth, cuts = 0, [-1]
    for place, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            cuts.append(place)
    if len(cuts) == 1:
        return None
    ends = [*cuts[1:], len(inner)]
    return (choice for a, b in zip(cuts, ends, strict=True) for choice in expand_braces(inner[a + 1 : b]))


def _range(first: str, last: str, step: int, inner: str) -> Iterator[str]:
    if step == 0:
        raise FormatError(f"the range {{{inner}}} has a step of 0. Give 1 or more.")
    is_letters = first.isalpha()
    low, high = (ord(first), ord(last)) if is_letters else (int(first), int(last))
    numbers = range(low, high + 1, abs(step)) if low <= high else range(low, high - 1, -abs(step))
    is_padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-")[0] == "0" for text in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return (chr(number) if is_letters else f"{number:0{width}d}" for number in numbers)
