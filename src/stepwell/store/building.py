"""A directory that is built out of sight and appears whole: it is there with all that belongs to it, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.errors import StepwellError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.store.beneath import FULL, disk_error, system_errors
from stepwell.store.layout import SEGMENTS, new_tag, sync_directory, sync_tree

__all__ = ["built_directory", "built_store"]

SUFFIX = ".partial"


@contextmanager
def built_store(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden directory next to ``path`` with an empty ``segments`` in it; at the end it is renamed to ``path``.

    See `built_directory`.
    """
    with built_directory(path) as partial:
        with system_errors(partial, is_writing=True):
            os.mkdir(f"{partial}/{SEGMENTS}")
        yield partial


@contextmanager
def built_directory(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a hidden directory next to ``path``; at the end it is renamed to ``path``, with all of it on the disk.

    What a killed process left of an earlier try is removed. Where ``path`` is a link, it is what the link leads to.

    Raises:
        StoreExistsError: something is at the path already.
        FormatError: the path is an address, such as ``s3://...``.
    """
    target = Path(local_path(path)).absolute()
    if target.is_symlink():
        target = target.resolve()
    _check_free(target)
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(target)
    except OSError as error:
        raise disk_error(error, 0, str(target)) from error
    partial = target.with_name(f".{target.name}.{new_tag()}{new_tag()}{SUFFIX}")
    try:
        with _locked_directory(partial):
            yield str(partial)
            sync_tree(str(partial))
            _check_free(target)
            os.rename(partial, target)
            for parent in (target, *made):
                sync_directory(str(parent.parent))
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in FULL and not isinstance(error, StepwellError):
            raise disk_error(error, 0, str(target)) from error
        raise


def _locked_directory(path: Path) -> FileLock:
    """Make a directory and hold its lock, which tells that its builder lives."""
    try:
        path.mkdir()
        return lock_directory(path)
    except OSError as error:
        raise disk_error(error, 0, str(path)) from error


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")


def _remove_left(target: Path) -> None:
    for entry in list(target.parent.iterdir()):
        if not (entry.name.startswith(f".{target.name}.") and entry.name.endswith(SUFFIX)):
            continue
        with suppress(FileNotFoundError, BlockingIOError), lock_directory(entry, is_waiting=False):
            shutil.rmtree(entry, ignore_errors=True)
