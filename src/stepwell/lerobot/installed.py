"""What a dataset has after `install()`, beside LeRobot's own modules.

::

    dataset.reader    ItemReader and lerobot's DatasetReader       items are ours, other methods lerobot's, on its rows
    dataset.writer    LeRobotRecorder and lerobot's DatasetWriter  everything is ours, but paths that lerobot names
    LerobotHub        lerobot's snapshot_download and get_safe_version, and its cache, $HF_LEROBOT_HOME/hub

Names of LeRobot's are looked up when they are used: what a program replaces in its modules is obeyed.

Source: ``DatasetReader``, ``DatasetWriter`` and ``_pull_from_repo`` of lerobot 0.6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepwell.errors import StepError
from stepwell.lerobot.hub import Repository, explaining
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.item_reader import ItemReader
from stepwell.lerobot.recording import LeRobotRecorder
from stepwell.lerobot.recording_meta import RecordingMeta
from stepwell.store.layout import STORE_JSON

if TYPE_CHECKING:
    from stepwell.lerobot.dataset import LeRobotDataset
    from stepwell.windows import WindowReader

__all__ = ["LerobotHub", "reader_class", "writer_class"]


def reader_class(theirs: type[Any]) -> type[ItemReader]:
    """Return the class of ``dataset.reader`` that is LeRobot's, too."""

    class DatasetReader(ItemReader, theirs):  # type: ignore[misc]  # a class that only runs here
        episodes: Any = None
        delta_indices: Any = None

        def __init__(self, dataset: LeRobotDataset, windows: WindowReader) -> None:
            ItemReader.__init__(self, dataset, windows)
            # what LeRobot's methods look at
            self._meta, self.root, self.episodes = dataset.meta, dataset.root, dataset.episodes
            self.delta_indices = dataset.delta_indices

        @property
        def _absolute_to_relative_idx(self) -> dict[int, int] | None:
            return self._dataset.absolute_to_relative_idx

        @_absolute_to_relative_idx.setter
        def _absolute_to_relative_idx(self, value: dict[int, int] | None) -> None:
            """Do nothing: it follows from the episodes."""

    return DatasetReader


def writer_class(theirs: type[Any]) -> type[LeRobotRecorder]:
    """Return the class of ``dataset.writer`` that is LeRobot's, too."""

    class DatasetWriter(LeRobotRecorder, theirs):  # type: ignore[misc]  # a class that only runs here
        # no parquet file is open while episodes are recorded, and nothing writes files of images
        _pq_writer = image_writer = None
        # the frame that the first data file of this recording begins with; None before an episode was saved
        _current_file_start_frame: int | None = None

        def __del__(self) -> None:
            """Leave it as a kill does, where LeRobot's finalizes: what was saved `resume` has."""

        @property
        def _root(self) -> Path:
            return self.root

        @cached_property
        def _meta(self) -> RecordingMeta:
            return RecordingMeta(self, "")

        @cached_property
        def _first_file(self) -> tuple[int, int]:
            return self.first_data_file

        @property
        def episode_buffer(self) -> dict[str, int]:
            """The number of frames since the last episode ("size"), and the index of the one being recorded."""
            return {"size": self.num_unsaved_frames, "episode_index": self.num_episodes}

        @property
        def _latest_episode(self) -> dict[str, Any] | None:
            """The last episode; its file is the first one of this recording, which `finalize` may cut."""
            chunk, file = self._first_file
            place = {"data/chunk_index": chunk, "data/file_index": file}
            return None if self.latest_episode is None else {**self.latest_episode, **place}

        def save_episode(self, episode_data: None = None, parallel_encoding: bool = True) -> int:
            if episode_data is not None:
                raise StepError("episode_data is not taken. Give its frames to add_frame().")
            first, index = self.num_frames, super().save_episode()
            if self._current_file_start_frame is None:
                self._current_file_start_frame = first
            return index

        def clear_episode_buffer(self, delete_images: bool = True) -> None:
            super().clear_episode_buffer()

        # nothing waits: save_episode returns when all is stored, and frames are in no files of their own

        def flush_pending_videos(self) -> None:
            """Do nothing."""

        def cancel_pending_videos(self) -> None:
            """Do nothing."""

        def close_writer(self) -> None:
            """Do nothing."""

        def cleanup_interrupted_episode(self, episode_index: int) -> None:
            """Do nothing."""

    return DatasetWriter


@dataclass(frozen=True, slots=True)
class LerobotHub:
    """The hub as LeRobot's modules reach it."""

    # lerobot.datasets.dataset_metadata and .lerobot_dataset
    meta: ModuleType
    data: ModuleType

    @property
    def home(self) -> Path:
        """``$HF_LEROBOT_HOME``."""
        return Path(self.meta.HF_LEROBOT_HOME)

    @property
    def has_buckets(self) -> bool:
        """Return whether this version of LeRobot reads buckets."""
        return hasattr(self.meta, "sync_bucket")

    def directory_of(self, repo_id: str, root: Path | None, repo_type: str = "dataset") -> Path:
        """Return where a dataset is looked for, and a bucket fetched to."""
        if root is not None:
            return root
        bucket = f"buckets--{repo_id.replace('/', '--')}"
        return Path(self.meta.HF_LEROBOT_HUB_CACHE, bucket) if repo_type == "bucket" else self.home / repo_id

    def has_here(self, repo_id: str, root: Path | None) -> bool:
        """Return whether nothing is to be fetched to open a dataset."""
        where = self.directory_of(repo_id, root)
        if root is None and self.is_mirror(where):
            return False
        is_dataset = (where / INFO_PATH).exists() and any(where.glob("data/*/*.parquet"))
        return is_dataset or (where / STORE_JSON).exists()

    def is_mirror(self, root: Path) -> bool:
        """Return whether a directory is a copy of some revision that an earlier LeRobot has fetched."""
        return bool(self.meta.has_legacy_hub_download_metadata(root))

    def fetch_meta(
        self, repo_id: str, revision: str | None, root: Path | None, token: str | bool | None, **patterns: Any
    ) -> tuple[Path, str]:
        """Return the directory that ``meta/`` was fetched to, and the revision."""
        wanted = revision or str(self.meta.CODEBASE_VERSION)
        if self.meta.is_valid_version(wanted):
            try:
                wanted = self.meta.get_safe_version(repo_id, wanted, **_given(token))
            except Exception:
                cache = self.meta.HF_LEROBOT_HUB_CACHE
                found = Repository(repo_id, revision, token, cache).open()
                return found.root, found.revision
        return self._fetch(self.meta, repo_id, wanted, root, token, patterns), wanted

    def fetch_data(  # noqa: PLR0917
        self,
        repo_id: str,
        revision: str | None,
        root: Path | None,
        names: Sequence[str] | None,
        ignored: str | None,
        token: str | bool | None,
    ) -> Path:
        """Return the directory that files were fetched to: those of some names, or all."""
        patterns = {"allow_patterns": names, "ignore_patterns": ignored}
        return self._fetch(self.data, repo_id, revision, root, token, patterns)

    def fetch_bucket(self, repo_id: str, folder: str, root: Path, token: str | bool | None) -> None:
        """Make a folder below a directory what it is in a bucket."""
        target = root / folder
        target.mkdir(parents=True, exist_ok=True)
        lock = self.meta.WeakFileLock(root.parent / f".{root.name}.lock")
        with explaining(f"{repo_id}, a bucket,"), lock:
            address = f"hf://buckets/{repo_id}/{folder}"
            self.meta.sync_bucket(address, str(target), delete=True, quiet=True, token=token)

    def _fetch(  # noqa: PLR0917
        self,
        module: ModuleType,
        repo_id: str,
        revision: str | None,
        root: Path | None,
        token: str | bool | None,
        patterns: dict[str, Any],
    ) -> Path:
        place = {"cache_dir": module.HF_LEROBOT_HUB_CACHE} if root is None else {"local_dir": root}
        with explaining(f"{repo_id}@{revision}"):
            found = module.snapshot_download(
                repo_id, repo_type="dataset", revision=revision, **place, **patterns, **_given(token)
            )
        return Path(found) if root is None else root


def _given(token: str | bool | None) -> dict[str, str | bool]:
    return {} if token is None else {"token": token}
