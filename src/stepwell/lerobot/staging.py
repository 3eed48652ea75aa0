"""Where episodes are until they are part of a LeRobot dataset: a hidden store beside its root.

::

    data/
      reach/                 the dataset; readable at every moment, or not there yet
      .reach.recording/      the store that is recorded into, locked by who records
        export.json          while an export is going on: which episodes, and what the dataset had before
      .reach.recorded/       on its way out

An export counts from the moment when the dataset's info.json tells of its episodes. Who finds an ``export.json`` looks
whether they are there, by their lengths and numbers: no episode comes twice, and none is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import DatasetNotFoundError, FormatError, StoreBusyError, StoreExistsError
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.formats.source_episodes import schema_of
from stepwell.lerobot.appending import check_complete, finish_append, fitted_columns
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.meta_files import read_json
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.parquet_writing import import_pyarrow
from stepwell.lerobot.schema_mapping import Cameras, map_schema
from stepwell.lerobot.tables import read_columns
from stepwell.lerobot.writing import write_dataset
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
        Holds the lock of the hidden directory until `close`, until it is collected, or the process dies.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = _hidden(root)
        self._gone = root.with_name(f".{root.name}.recorded")
        shutil.rmtree(self._gone, ignore_errors=True)
        self._lock()

    @classmethod
    def begin(cls, root: str | os.PathLike[str], make: Callable[[Path], Store]) -> Staging:
        """Return the place for a new dataset, with a store in it.

        Args:
            root: of the dataset.
            make: makes the store at a path.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            StoreBusyError: another process records there.
            SchemaError: the store has features that cannot be exported.
            MissingDependencyError: pyarrow is not installed, which the export needs.
        """
        import_pyarrow()
        path = Path(root).absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreExistsError(
                f"{path} is there already. Go on with LeRobotRecorder.resume(), or choose another root."
            )
        staging = cls(path)
        with staging._unlocked_on_error():
            if staging._has_store and len(open(staging.path)):
                raise StoreExistsError(
                    f"an earlier recording of {path} was not finalized. Go on with LeRobotRecorder.resume(), or remove "
                    f"{staging.path}."
                )
            staging._remove()
            staging._make(make)
        return staging

    @classmethod
    def resume(cls, root: str | os.PathLike[str], make: Callable[[Path, Metadata], Store]) -> Staging:
        """Return the place of a dataset that is recorded already, with a store in it.

        Args:
            root: of the dataset; it may not be there yet, if its first recording was not finalized.
            make: makes the store at a path, where there is none, for a dataset.

        Raises:
            DatasetNotFoundError: neither a dataset nor a recording.
            FormatError: the dataset is not of v3.0.
            StoreBusyError: another process records there.
            SchemaError: the dataset has features that cannot be recorded.
        """
        path = Path(root).absolute()
        if not (path / INFO_PATH).exists() and not (_hidden(path) / STORE_JSON).exists():
            raise DatasetNotFoundError(
                f"{path} is neither a recording nor a LeRobot dataset. Begin one with LeRobotRecorder.create()."
            )
        staging = cls(path)
        with staging._unlocked_on_error():
            staging._settle()
            if not staging._has_store:
                dataset = Metadata.load(path)
                staging._remove()
                if not dataset.info.is_v3:
                    raise FormatError(
                        f"{path} is a LeRobot dataset of {dataset.info.version}. Only v3.0 can be extended: write it "
                        "anew first, with stepwell.lerobot.write_dataset()."
                    )
                staging._make(lambda place: make(place, dataset))
        return staging

    def close(self) -> None:
        """Give up the lock."""
        self._unlock()

    @property
    def num_exported(self) -> tuple[int, int]:
        """Episodes and frames of the dataset."""
        dataset = self._dataset()
        return (0, 0) if dataset is None else (len(dataset.episodes), int(dataset.episodes.length.sum()))

    def export(self, store: Store) -> None:
        """Append the store's episodes to the dataset and let go of them.

        Episodes that were not saved stay where they are, for `resume`.

        Args:
            store: the one at `path`; nobody records into it any more.

        Raises:
            DiskFullError: no space; the dataset is as it was, and the episodes are where they were.
        """
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
                cameras=_cameras(store),
                robot_type=lerobot["info"]["robot_type"],
                repo_id=lerobot["repo_id"],
            )
            if store.record.sync != "none":
                # the recording is on the disk, the dataset that takes its place may not be
                os.sync()
            self._let_go(told)
        elif not len(store) and (self.root / INFO_PATH).exists():
            self._remove()

    def _make(self, make: Callable[[Path], Store]) -> None:
        self._lock()
        try:
            # what cannot be exported is refused before anything is recorded
            self._check(make(self.path))
        except BaseException:
            self._remove()
            raise

    def _check(self, store: Store) -> None:
        told = store.metadata["lerobot"]["info"]["features"]
        columns = map_schema(schema_of(store), cameras=_cameras(store), told=told)
        dataset = self._dataset()
        if dataset is not None:
            fitted_columns(columns, dataset)
            check_complete(dataset)

    def _settle(self) -> None:
        """Find out whether an export that was killed happened, and let go of its episodes if it did."""
        self._finish_append()
        if not (self.path / EXPORT_JSON).exists():
            return
        told = read_json(self.path / EXPORT_JSON)
        if self._is_exported(told):
            self._let_go(told)
        else:
            (self.path / EXPORT_JSON).unlink()

    def _is_exported(self, told: dict[str, Any]) -> bool:
        dataset = self._dataset()
        first, lengths = told["before"], told["lengths"]
        if dataset is None or dataset.episodes.length[first : first + len(lengths)].tolist() != lengths:
            return False
        # of the same lengths are also those that somebody else recorded meanwhile
        with open(self.path) as store:
            places = {origin: first + i for i, origin in enumerate(told["origins"])}
            mine = [(places[e], i) for i, e in enumerate(store.episodes.origin.tolist()) if e in places]
            names = [name for name, feature in schema_of(store).items() if feature.is_raw and name != "task_index"]
            theirs = dict(read_columns(dataset, [place for place, _ in mine], names))
            return all(
                np.array_equal(theirs[place][name], store[i][name], equal_nan=True)
                for place, i in mine
                for name in names
            )

    def _let_go(self, told: dict[str, Any]) -> None:
        """Remove episodes that are in the dataset, and the directory with the last of them."""
        with open(self.path) as store:
            store.delete_episodes(np.isin(store.episodes.origin, told["origins"]))
            is_empty = not len(store)
        if is_empty:
            self._remove()
        else:
            (self.path / EXPORT_JSON).unlink()

    def _remove(self) -> None:
        """Take the hidden directory away, and its lock with it."""
        if self._unlock.alive:
            self.path.rename(self._gone)
            shutil.rmtree(self._gone, ignore_errors=True)
            self._unlock()

    def _lock(self) -> None:
        self._unlock = weakref.finalize(self, _locked_directory(self.path).release)

    @contextmanager
    def _unlocked_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def _has_store(self) -> bool:
        return (self.path / STORE_JSON).exists()

    def _finish_append(self) -> None:
        """Let an append that was killed be done or not: what the dataset has must not change by itself later."""
        if (self.root / INFO_PATH).exists():
            finish_append(self.root)

    def _dataset(self) -> Metadata | None:
        return Metadata.load(self.root) if (self.root / INFO_PATH).exists() else None


def _hidden(root: Path) -> Path:
    return root.with_name(f".{root.name}.recording")


def _cameras(store: Store) -> dict[str, Cameras]:
    features = store.metadata["lerobot"]["info"]["features"]
    return {
        name: "video" if entry["dtype"] == "video" else "image"
        for name, entry in features.items()
        if entry["dtype"] in ("video", "image")
    }


def _locked_directory(path: Path) -> FileLock:
    """Make a directory if there is none and take its lock."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = lock_directory(path, is_waiting=False)
        except BlockingIOError:
            raise StoreBusyError(
                f"{path} is being recorded into by another process. Finalize it there, or choose another root."
            ) from None
        # who had the lock before may have taken the directory away
        if path.exists() and os.path.samestat(os.fstat(lock.descriptor), path.stat()):
            return lock
        lock.release()
