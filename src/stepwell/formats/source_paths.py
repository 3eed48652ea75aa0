r"""The files of a data set: those that a text names, those in a directory, and what may lie there.

::

    "train-{000000..000146}.tar"    "{a,b}/x.tar"      as shells and webdataset write it
    "data/*.tar"   "s3://bucket/*.tar"                 sorted; of HTTP there are no lists
    "data"                                             files of the wanted endings in it, and below
    "a.tar::b.tar"   "a.tar\nb.tar"                    one after the other

A data set is regular files beneath the directory that its user names::

    folders://pics            every entry below pics/             a link may lead to what is below, too
    webdataset://set/*.tar    what fits, and links from set/      a file that is named in full is what its user wants
    .../snapshots/REVISION    as a directory                      links of the hub's cache lead to .../blobs
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

from stepwell.errors import DatasetNotFoundError, FormatError, LeftOutWarning
from stepwell.files.addresses import is_remote, path_of_file, plain_address
from stepwell.files.local_files import check_status
from stepwell.references.remote_files import remote_states
from stepwell.references.remote_sources import list_addresses, source_of
from stepwell.references.trusted_paths import Trust, check_reach, reach_of

__all__ = [
    "MAGIC",
    "Entry",
    "check_boundaries",
    "check_regular",
    "digest_of",
    "entries_of",
    "expand_braces",
    "named_texts",
    "names_files",
    "natural",
    "skipped_numbers",
    "source_files",
    "walked",
    "warn_of_gaps",
]

Entry = tuple[str, int, int | str]
"""Path, bytes, and mtime in nanoseconds, of files of other machines the version."""

MAX_FILES = 1_000_000
RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
SEPARATOR = re.compile(r"\n|::")
MAGIC = re.compile(r"[*?\[]")
# train-000012.tar, train-00012-of-00100.tar.gz, train-00012-of-00100-0123456789abcdef.parquet
NUMBERED = re.compile(r"(.*?)(\d+)((?:-of-\d+)?)(?:-[0-9a-f]+)?((?:\.[A-Za-z]\w*)+)")
OF = re.compile(r"-of-(\d+)")
# a text that is too long, or of a place without access: its reader says what is wrong
NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
SNAPSHOTS, BLOBS = "snapshots", "blobs"


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

    Example:
        >>> source_files("train-{000..002}.tar", (".tar",))
        ['train-000.tar', 'train-001.tar', 'train-002.tar']
    """
    texts = [source] if isinstance(source, str) else list(source)
    found: list[str] = []
    for text in texts:
        for part in filter(None, SEPARATOR.split(text)):
            found += _files_of(part, endings) if len(found) <= MAX_FILES else ()
    if not found or len(found) > MAX_FILES:
        raise FormatError(f"{source!r} names {'no' if not found else f'more than {MAX_FILES:,}'} files.")
    return found


def named_texts(source: str | Sequence[str]) -> Iterator[str]:
    """Yield the local paths, patterns and directories that a source names, braces expanded."""
    for text in [source] if isinstance(source, str) else source:
        for part in map(path_of_file, filter(None, SEPARATOR.split(text))):
            if not is_remote(part):
                yield from expand_braces(part)


def names_files(source: str, endings: Sequence[str]) -> bool:
    """Whether a text may name files of these endings: by its own ending, or what lies in the directory; cheap."""
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
    """Yield what a text with braces stands for; braces without a comma or a range stay as they are."""
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


def _files_of(part: str, endings: Sequence[str]) -> Sequence[str]:
    """Return the files that a part of a source names, `MAX_FILES` and one more at most of each pattern."""
    part = path_of_file(part) if "://" in part else part
    is_address = "://" in part and is_remote(part)
    if is_address or part.startswith("pipe:"):
        source_of(part)
    # a file may be called as a pattern is
    elif os.path.isfile(part):  # noqa: PTH113  Path raises where braces make a text that is too long for a path
        return [part]
    found: list[str] = []
    for text in islice(expand_braces(part), MAX_FILES + 1) if "{" in part else (part,):
        if not is_address and os.path.isdir(text):  # noqa: PTH112  as above
            found += _below(text, endings)
        elif MAGIC.search(_plain(text) if is_address else text):
            found += _fitting(text)
        else:
            found.append(text)
    return found


def _fitting(pattern: str) -> list[str]:
    found = list_addresses(pattern) if is_remote(pattern) else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not found:
        raise DatasetNotFoundError(
            f"no files fit {plain_address(pattern)}. Look at its directory, and at how the files are called."
        )
    return found


def _below(folder: str, endings: Sequence[str]) -> list[str]:
    allowed = tuple(endings)
    found = [
        os.path.join(place, name)  # noqa: PTH118  a source of 10^5 files
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(allowed) and not name.startswith(".")
    ]
    found.sort()
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


def skipped_numbers(names: Iterable[str]) -> list[str]:
    """Return the names of files that a numbered sequence lacks, such as ``a-001.tar``; fewer than those that it has."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if parts := NUMBERED.fullmatch(name):
            found.setdefault((parts[1], parts[3] + parts[4]), []).append(parts[2])
    lost: list[str] = []
    for (begin, end), digits in sorted(found.items()):
        numbers, width, total = set(map(int, digits)), min(map(len, digits)), OF.match(end)
        first, stop = (0, int(total[1])) if total else (min(numbers), max(numbers) + 1)
        # dates and hashes are numbers, too, of which most are not there
        if 0 < stop - first - len(numbers) <= len(numbers):
            lost += [f"{begin}{number:0{width}}{end}" for number in range(first, stop) if number not in numbers]
    return lost


def warn_of_gaps(folder: str, names: Sequence[str], way_out: str) -> None:
    """Warn of files that are not there by their numbers."""
    lost = skipped_numbers(names)
    if lost:
        more = f" and {len(lost) - 1} more are" if len(lost) > 1 else " is"
        warnings.warn(
            f"{folder}: {lost[0]}{more} not there, where {len(names)} files are numbered. If they should be, fetch "
            f"them; else {way_out}, or ignore the warning.",
            LeftOutWarning,
            stacklevel=4,
        )


def digest_of(entries: Iterable[Entry], *more: bytes) -> str:
    """Return a digest of files, in any order, and of more that counts, as 32 hexadecimal digits."""
    text = repr(sorted(entries, key=itemgetter(0)))
    found = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    for part in more:
        found.update(hashlib.blake2b(part).digest())
    return found.hexdigest()


def walked(folder: str | os.PathLike[str]) -> list[tuple[str, int, int]]:
    """Return the files of a directory and of those below it."""
    found, pending = [], [os.fspath(folder)]
    while pending:
        try:
            scanned = os.scandir(pending.pop())
        except OSError:
            # as os.walk
            continue
        with scanned:
            for entry in scanned:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file():
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
    return found


def entries_of(paths: Sequence[str]) -> list[Entry]:
    """Return path, bytes and version of files."""
    has_addresses = "://" in "\n".join(paths)
    remote = [path for path in paths if is_remote(path)] if has_addresses else []
    states = dict(zip(remote, remote_states(remote), strict=True)) if remote else {}
    found: list[Entry] = []
    for path in paths:
        if path in states:
            found.append((path, states[path].num_bytes or -1, states[path].version))
            continue
        try:
            status = os.stat(path)  # noqa: PTH116  many files
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(f"{path} is not there. Give the path or address of a data set.") from None
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or error
            raise DatasetNotFoundError(f"{path} cannot be looked at: {told}. May you read it?") from error
        found.append((os.path.abspath(path), status.st_size, status.st_mtime_ns))  # noqa: PTH100
    return found


def check_boundaries(source: str, trust: Trust = None) -> None:
    """Refuse a data set with links that lead out of its directory, or with what is no file."""
    for part in SEPARATOR.split(source):
        path = path_of_file(part) if "://" in part else part
        if not path or "://" in path:
            continue
        # a file may be called as a pattern is
        is_there = os.path.lexists(path)
        for text in (path,) if is_there else islice(expand_braces(path), MAX_FILES):
            if os.path.isdir(text):  # noqa: PTH112  Path raises where braces make a text that is too long for a path
                _check_directory(text, trust)
            elif MAGIC.search(text) and not os.path.lexists(text):
                _check_fitting(text, trust)
            else:
                check_regular(text)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is no regular file, and return where there is nothing, or a text that is no path."""
    try:
        check_status(os.stat(path), path)  # noqa: PTH116  its OSError is the one that says why
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        if error.errno in NO_PATH:
            return
        raise FormatError(f"{os.fspath(path)}: {error.strerror}.") from error


def _check_directory(root: str, trust: Trust) -> None:
    base = os.path.realpath(root)
    pending, links = [base], []
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except PermissionError:
            # nor can a reader look at it; what it says of that is its own
            continue
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    links.append(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    check_regular(entry.path)
    if links:
        _check_links(links, base, trust)


def _check_fitting(pattern: str, trust: Trust) -> None:
    base = os.path.realpath(MAGIC.split(pattern)[0].rpartition("/")[0] or ".")
    _check_links(glob.iglob(pattern, recursive=True), base, trust)  # noqa: PTH207


def _check_links(paths: Iterable[str], base: str, trust: Trust) -> None:
    """Refuse links that lead neither below a directory, nor to what is trusted, and those to no regular file."""
    folder = Path(base)
    is_snapshot = folder.parent.name == SNAPSHOTS and len(folder.parents) > 1
    # of a snapshot in the hub's cache they lead to its blobs
    own = (base, f"{folder.parents[1]}/{BLOBS}") if is_snapshot else (base,)
    reach = reach_of(trust)
    within = None if reach is None else (*own, *reach)
    for path in paths:
        # of one that leads to nothing its reader tells
        if os.path.exists(path):  # noqa: PTH110  a data set may have many
            check_reach(path, within, of="links of this data set")
            if not os.path.isdir(path):  # noqa: PTH112
                check_regular(path)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key by which numbers in names count as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part]
