"""How written files become a dataset, or part of one: whole, or not at all.

::

    data/
      .reach.7f3a91bc.partial/     a new dataset while it is written; renamed to reach/ at the end
      reach/
        .stepwell-append/          files that are to be added, while they are written
          ready.json               they are complete: whoever finds this may move them into their places

Of an append the files are moved in an order in which no state in between says too much: what new rows need, the rows,
the episodes, and last ``meta/info.json``, which tells how many there are. Old rows stay where they are all the time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.errors import FormatError, StepwellError, StoreBusyError
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.meta_files import read_json
from stepwell.store.beneath import disk_error
from stepwell.store.layout import built_directory, replace_file

__all__ = ["finish_append", "new_dataset", "staged_append"]

STAGE = ".stepwell-append"
READY = "ready.json"
# by how a path begins; what is in none of these comes before the last
ORDER = ("videos/", "meta/tasks", "data/", "meta/episodes/", "meta/stat", INFO_PATH)
REPLACED = ("meta/tasks", "meta/stat", INFO_PATH)


@contextmanager
def new_dataset(root: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a hidden directory beside the root, which becomes the root at the end.

    Raises:
        StoreExistsError: something is at the root already.
    """
    with built_directory(root) as hidden:
        yield Path(hidden)


@contextmanager
def staged_append(root: Path) -> Iterator[Path]:
    """Yield a hidden directory in a dataset; at the end what is in it is moved into the same places of the dataset.

    What was ready of an append that was killed is moved first, and what was not is removed.

    Raises:
        StoreBusyError: another process appends.
        FormatError: an earlier append was killed, and the dataset was changed by others since.
    """
    with _locked(root):
        _finish(root)
        stage = root / STAGE
        stage.mkdir()
        try:
            yield stage
            told = {"total_episodes": _total_episodes(root)}
            replace_file(str(stage / READY), json.dumps(told).encode())
            _finish(root)
        except BaseException as error:
            if not (stage / READY).exists():
                shutil.rmtree(stage, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, StepwellError):
                raise disk_error(error, 0, str(root)) from error
            raise


def finish_append(root: str | os.PathLike[str]) -> bool:
    """Complete an append that was killed when all of its files were written, or remove what it left.

    Args:
        root: of a dataset.

    Returns:
        Whether episodes came by it.

    Raises:
        StoreBusyError: another process appends.
        FormatError: the dataset was changed by others since.
    """
    path = Path(root)
    if not (path / STAGE).exists():
        return False
    with _locked(path):
        return _finish(path)


def _finish(root: Path) -> bool:
    stage = root / STAGE
    if not stage.exists():
        return False
    is_ready = (stage / READY).exists()
    if is_ready:
        _check_unchanged(root, read_json(stage / READY))
        for name in _names(stage):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(root / name)
    shutil.rmtree(stage)
    return is_ready


def _names(stage: Path) -> list[str]:
    """Return the files that are to be moved, in the order in which they are."""
    names = [path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()]
    return sorted((name for name in names if name != READY), key=lambda name: (_turn(name), name))


def _turn(name: str) -> int:
    turns = [turn for turn, begin in enumerate(ORDER) if name.startswith(begin)]
    return turns[0] if turns else len(ORDER) - 2


def _check_unchanged(root: Path, told: dict[str, int]) -> None:
    """Refuse to move files into a dataset that others went on with."""
    stage = root / STAGE
    taken = [name for name in _names(stage) if not name.startswith(REPLACED) and (root / name).exists()]
    # moved last: where it is in its place already, the dataset tells of the new episodes
    is_told = not (stage / INFO_PATH).exists()
    if taken or (not is_told and _total_episodes(root) != told["total_episodes"]):
        raise FormatError(
            f"{root}: an append was killed, and others have written to the dataset since "
            f"({taken[0] if taken else INFO_PATH}). Remove {stage}, whose episodes are then lost, and append again."
        )


def _total_episodes(root: Path) -> int:
    return int(read_json(root / INFO_PATH)["total_episodes"])


def _locked(root: Path) -> FileLock:
    try:
        return lock_directory(root, is_waiting=False)
    except BlockingIOError:
        raise StoreBusyError(f"{root}: another process appends to it. Wait for it, or write to another root.") from None
