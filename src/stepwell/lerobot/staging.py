"""Where episodes are until they are part of a LeRobot dataset: a hidden store beside its root.

::

    data/
      reach/                 the dataset; readable at every moment, or not there yet
      .reach.recording/      the store that is recorded into, locked by who records
        export.json          while an export is going on: which episodes, and what the dataset had before
      .reach.recorded/       on its way out

An export counts from the moment when the dataset's info.json tells of its episodes. Who finds an ``export.json`` sees
by that whether it happened: no episode comes twice, and none is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import DatasetNotFoundError, FormatError, StoreBusyError, StoreExistsError
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.publishing import finish_append
from stepwell.lerobot.recorded_stores import create_recorded
from stepwell.store import Store, open
from stepwell.store.layout import STORE_JSON, replace_file
from stepwell.windows import View

__all__ = ["Staging"]

EXPORT_JSON = "export.json"


class Staging:
    """The hidden store of a dataset that is being recorded. Made by `begin` and `resume`.

    Args:
        root: of the dataset.

    Notes:
        Holds the lock of the hidden directory until it is collected, `export` has emptied it, or the process dies.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root.with_name(f".{root.name}.recording")
        self._gone = root.with_name(f".{root.name}.recorded")
        shutil.rmtree(self._gone, ignore_errors=True)
        self._unlock = weakref.finalize(self, os.close, _lock_directory(self.path))
        self._finish_append()

    @classmethod
    def begin(cls, root: str | os.PathLike[str]) -> Staging:
        """Return the place for a new dataset.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            StoreBusyError: another process records there.
        """
        path = Path(root).absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreExistsError(
                f"{path} is there already. Go on with LeRobotRecorder.resume(), or choose another root."
            )
        staging = cls(path)
        if (staging.path / STORE_JSON).exists():
            raise StoreExistsError(
                f"an earlier recording of {path} was not finalized. Go on with LeRobotRecorder.resume(), or remove "
                f"{staging.path}."
            )
        return staging

    @classmethod
    def resume(cls, root: str | os.PathLike[str], *, video: Mapping[str, Any], image: Mapping[str, Any]) -> Staging:
        """Return the place of a dataset that is recorded already, with a store in it.

        Args:
            root: of the dataset; it may not be there yet, if its first recording was not finalized.
            video: options of `Video`, where the store must be made.
            image: options of `Image`, likewise.

        Raises:
            DatasetNotFoundError: neither a dataset nor a recording.
            FormatError: the dataset is not of v3.0.
            StoreBusyError: another process records there.
        """
        path = Path(root).absolute()
        hidden = path.with_name(f".{path.name}.recording")
        if not (path / INFO_PATH).exists() and not (hidden / STORE_JSON).exists():
            raise DatasetNotFoundError(
                f"{path} is neither a recording nor a LeRobot dataset. Begin one with LeRobotRecorder.create()."
            )
        staging = cls(path)
        if (hidden / STORE_JSON).exists():
            staging._settle()
        if not (hidden / STORE_JSON).exists():
            dataset = staging._dataset()
            assert dataset is not None
            if not dataset.info.is_v3:
                raise FormatError(
                    f"{path} is a LeRobot dataset of {dataset.info.version}. Only v3.0 can be extended: write it anew "
                    "first, with stepwell.lerobot.write_dataset()."
                )
            create_recorded(hidden, dataset.info, video=video, image=image, sync="episode", tasks=dataset.tasks)
        return staging

    @property
    def num_exported(self) -> tuple[int, int]:
        """Episodes and frames of the dataset."""
        dataset = self._dataset()
        return (0, 0) if dataset is None else (len(dataset.episodes), int(dataset.episodes.length.sum()))

    def export(self, store: Store) -> None:
        """Append the store's episodes to the dataset and let go of them; the lock is given up.

        Episodes that were not saved stay where they are, for `resume`.

        Args:
            store: the one at `path`; nobody records into it any more.
        """
        from stepwell.lerobot.writing import write_dataset

        store.refresh()
        table = store.episodes
        saved = np.flatnonzero(~table.interrupted & ~table.is_open)
        if len(saved):
            self._finish_append()
            before, _ = self.num_exported
            told = {"before": before, "lengths": table.length[saved].tolist(), "origins": table.origin[saved].tolist()}
            replace_file(f"{self.path}/{EXPORT_JSON}", json.dumps(told).encode())
            lerobot = store.metadata["lerobot"]
            write_dataset(
                View(store, saved),
                self.root,
                append=(self.root / INFO_PATH).exists(),
                robot_type=lerobot["info"]["robot_type"],
                repo_id=lerobot["repo_id"],
            )
            self._settle()
        elif not len(store) and (self.root / INFO_PATH).exists():
            self._remove()
        self._unlock()

    def _settle(self) -> None:
        """Take out what an export has brought into the dataset, whoever made it."""
        try:
            told = json.loads((self.path / EXPORT_JSON).read_bytes())
        except FileNotFoundError:
            return
        dataset = self._dataset()
        lengths = [] if dataset is None else dataset.episodes.length[told["before"] :].tolist()
        if lengths[: len(told["lengths"])] == told["lengths"]:
            with open(self.path) as store:
                store.delete_episodes(np.isin(store.episodes.origin, told["origins"]))
                is_empty = not len(store)
            if is_empty:
                self._remove()
                return
        (self.path / EXPORT_JSON).unlink()

    def _remove(self) -> None:
        self.path.rename(self._gone)
        shutil.rmtree(self._gone, ignore_errors=True)

    def _finish_append(self) -> None:
        """Let an append that was killed be done or not: what the dataset has must not change by itself later."""
        if (self.root / INFO_PATH).exists():
            finish_append(self.root)

    def _dataset(self) -> Metadata | None:
        return Metadata.load(self.root) if (self.root / INFO_PATH).exists() else None


def _lock_directory(path: Path) -> int:
    """Make a directory if there is none and take its lock; returns the descriptor that holds it."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # who had the lock before may have taken the directory away
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise StoreBusyError(
                f"{path} is being recorded into by another process. Finalize it there, or choose another root."
            ) from None
        os.close(descriptor)
