"""The boundaries of a data set: regular files beneath the directory that its user names, and nothing that they link to.

::

    folders://pics            every entry below pics/             a link may lead to what is below, too
    webdataset://set/*.tar    what fits, and links from set/      a file that is named in full is what its user wants
    .../snapshots/REVISION    as a directory                      links of the hub's cache lead to .../blobs
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from stepwell.errors import FormatError
from stepwell.files.addresses import is_remote, path_of_file
from stepwell.files.local_files import check_status
from stepwell.formats.source_files import MAGIC, MAX_FILES, SEPARATOR, expand_braces
from stepwell.references.trusted_paths import Trust, check_reach, reach_of

__all__ = ["check_boundaries", "check_regular"]

# a text that is too long, or of a place where nobody may look: what to say of it is its reader's
NO_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
SNAPSHOTS, BLOBS = "snapshots", "blobs"


def check_boundaries(source: str, trust: Trust = None) -> None:
    """Refuse a data set with links that lead out of its directory, or with what is no file.

    Args:
        source: what a reader takes: paths, patterns and addresses, of which those of other machines are not looked at.
        trust: directories that links may lead to, too, see `stepwell.open`.

    Raises:
        UntrustedFileError: a link that leads out.
        FormatError: a FIFO, a socket or a device: to read it may never end.

    Notes:
        Directories are listed once; no file is opened, and no link followed into a directory.
    """
    reach = reach_of(trust)
    for part in SEPARATOR.split(source):
        path = part if is_remote(part) else path_of_file(part)
        if "://" in path or not path:
            continue
        # a file may be called as a pattern is
        for text in (path,) if os.path.lexists(path) else islice(expand_braces(path), MAX_FILES):
            if os.path.isdir(text):  # noqa: PTH112  Path raises where braces make a text that is too long for a path
                _check_directory(text, reach)
            elif MAGIC.search(text) and not os.path.lexists(text):
                _check_fitting(text, reach)
            else:
                check_regular(text)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is no regular file, and return where there is nothing, or a text that is no path.

    Raises:
        FormatError: a directory, FIFO, socket or device.
    """
    try:
        check_status(os.stat(path), path)  # noqa: PTH116  its OSError is the one that says why
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        if error.errno in NO_PATH:
            return
        raise FormatError(f"{os.fspath(path)}: {error.strerror}.") from error


def _check_directory(root: str, reach: Sequence[str] | None) -> None:
    base = os.path.realpath(root)
    within = None if reach is None else (base, *_blobs_of(base), *reach)
    pending = [base]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except PermissionError:
            # nor can a reader look at it; what it says of that is its own
            continue
        with entries:
            for entry in entries:
                if entry.is_symlink():
                    _check_link(entry.path, within)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    check_regular(entry.path)


def _check_link(path: str, within: tuple[str, ...] | None) -> None:
    # of one that leads to nothing its reader tells
    if os.path.exists(path):  # noqa: PTH110  a data set may have many
        check_reach(path, within, of="links of this data set")
        if not os.path.isdir(path):  # noqa: PTH112
            check_regular(path)


def _check_fitting(pattern: str, reach: Sequence[str] | None) -> None:
    base = os.path.realpath(MAGIC.split(pattern)[0].rpartition("/")[0] or ".")
    within = None if reach is None else (base, *_blobs_of(base), *reach)
    for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
        _check_link(path, within)


def _blobs_of(base: str) -> tuple[str, ...]:
    """Return where links of a snapshot in the hub's cache lead to."""
    folder = Path(base)
    return (f"{folder.parents[1]}/{BLOBS}",) if folder.parent.name == SNAPSHOTS and len(folder.parents) > 1 else ()
