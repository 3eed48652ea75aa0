"""The reader of LeRobot datasets for conversions, and files of the hub that are there while episodes need them.

::

    episodes to read      0 1 2 3 | 4 5 6 7 | 8 9 ...        chunks, a worker each, in any order
    file-000              =========                          fetched by the first worker, while others wait
    file-001                      ===========                removed when 2, 3, 4, 5, 6 and 7 are all done

The workers of a conversion share the directory of the files; a file in it lists the episodes that are done.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.files.file_locks import FileLock, lock_file
from stepwell.formats.reader import Reader, store_schema
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import digest_of, walked
from stepwell.lerobot.episode_metadata import metadata_of
from stepwell.lerobot.hub import locate_meta, needed_files, parse_source
from stepwell.lerobot.info import INFO_PATH, FeatureInfo
from stepwell.lerobot.mapped_stores import FileRows, mapped_schema, read_files
from stepwell.lerobot.meta_files import SUBTASK_INDEX, read_subtasks
from stepwell.lerobot.samples import rates_of, samples_of_frames
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_codec import FileCodec, make_references
from stepwell.schema import Array, Feature, Schema, times_name
from stepwell.store.values import HasRows

__all__ = ["FetchedFiles", "LeRobotReader"]

Ints = npt.NDArray[np.int64]
DONE = ".done"
LOCKS = ".locks"
ADDRESS = "lerobot://"
TIMESTAMP = "timestamp"
# numbers and texts of episodes that follow in the same parquet file, which are read with the first one
READ_AHEAD_BYTES = 64 << 20
TEXT_BYTES = 64
# how much smaller rows are on the disk, about: chunks of a conversion are cut by it
RATIOS = {"raw": 1, "jpeg": 10, "video": 50}
OTHER_RATIO = 3


class FetchedFiles:
    """The files of a data set that are in a directory for as long as they are needed."""

    def __init__(self, directory: Path, users: Mapping[str, Ints], fetch: Callable[[str, Path], None]) -> None:
        self._directory, self._users, self._fetch = directory, users, fetch
        self._files_of: dict[int, list[str]] = {}
        for name, episodes in users.items():
            for episode in episodes.tolist():
                self._files_of.setdefault(episode, []).append(name)

    def plan(self, episodes: Ints) -> None:
        """Keep files for these episodes only; called before any file is fetched."""
        self._users = {
            name: wanted for name, users in self._users.items() if len(wanted := np.intersect1d(users, episodes))
        }
        (self._directory / DONE).unlink(missing_ok=True)
        if self._directory.is_dir():
            known = {self._directory / name for name in self._users}
            for path in self._directory.rglob("*"):
                if path not in known and not path.is_dir() and not _is_hidden(path.relative_to(self._directory)):
                    _remove(path)

    def need(self, name: str) -> None:
        """Fetch a file, or wait until another process has."""
        path = self._directory / name
        if path.exists():
            return
        with self._locked(name):
            if not path.exists():
                # an earlier conversion may leave a link to a file that its cache has no more
                path.unlink(missing_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(name, self._directory)

    def done(self, episodes: Ints) -> None:
        """Remove the files that no other episode needs."""
        names = {name for episode in episodes.tolist() for name in self._files_of.get(episode, ())}
        with self._locked(DONE), (self._directory / DONE).open("a+b") as file:
            file.write(np.ascontiguousarray(episodes, np.int64).tobytes())
            file.seek(0)
            finished = np.frombuffer(file.read(), np.int64)
            for name in names:
                if np.isin(self._users.get(name, finished), finished).all():
                    _remove(self._directory / name)

    def close(self) -> None:
        """Remove all files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _locked(self, name: str) -> FileLock:
        locks = self._directory / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        return lock_file(locks / name.replace("/", "+"))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _remove(path: Path) -> None:
    """Remove a file; its space is free at once, though a process may have it open."""
    try:
        # a link leads to the cache of the hub
        if not path.is_symlink():
            os.truncate(path, 0)
        path.unlink()
    except FileNotFoundError:
        pass


@register_reader
class LeRobotReader(Reader):
    """A LeRobot dataset: a directory, or a repository of the Hugging Face hub.

    Its episodes have the columns of the dataset in their order, the five indices among them; images as PNG or JPEG
    files and videos as packets, both as they are. Metadata: ``lerobot_episode``, the episode's number, ``tasks``, and
    what further columns of the table of episodes say.
    """

    name: ClassVar[str] = "lerobot"

    def __init__(
        self,
        source: str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | None = None,
        local_files_only: bool = False,
        ignore: Collection[str] = (),
        tolerance: float = 1e-4,
    ) -> None:
        super().__init__(source)
        self._dataset, self._snapshot = locate_meta(
            source,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            ignore=ignore,
        )
        selected, self._tolerance = self._dataset.selected.tolist(), tolerance
        self._metadata = dict(zip(selected, metadata_of(self._dataset, selected), strict=True))
        self._fetched: FetchedFiles | None = None
        self._fetched_into: Path | None = None
        self._held: FileRows | None = None
        self._cameras: dict[str, FileCodec] = {}
        info = self._dataset.info
        self.fps = info.fps
        described: dict[str, Any] = {
            "info": info.raw,
            "tasks": list(self._dataset.tasks),
            "repo_id": self._dataset.repo_id,
            "revision": self._dataset.revision,
        }
        if SUBTASK_INDEX in info.features and (subtasks := read_subtasks(self._dataset.root)) is not None:
            described["subtasks"] = subtasks
        self.metadata = {"lerobot": described}

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an address of LeRobot, or a directory with a dataset; see `Reader.accepts`."""
        return source.startswith(ADDRESS) or Path(source, INFO_PATH).is_file()

    @classmethod
    def place_of(cls, source: str) -> str:
        """Return its directory, or its name on the hub, whatever the revision; see `Reader.place_of`."""
        found = parse_source(source)
        return found.repo_id or os.path.abspath(found.path or source)  # noqa: PTH100

    @property
    def schema(self) -> Schema:  # type: ignore[override]  # it reads the first image
        """The features of the dataset; the first image decides whether a camera is PNG or JPEG."""
        cameras = self._codecs()
        features, rates = self._dataset.info.features, rates_of(self._dataset.info.features)
        found = {name: cameras[name].embedded() if name in cameras else info.feature for name, info in features.items()}
        for name, rate in rates.items():
            found[name] = Array(features[name].shape[1:], features[name].dtype, rate=rate)
            del found[times_name(name)]
        return store_schema(found, str(self._dataset.root / INFO_PATH))

    def __len__(self) -> int:
        return len(self._dataset.selected)

    def __getitem__(self, index: int) -> EpisodeData:
        place = int(self._dataset.selected[index])
        self._fetch(self._names(index))
        rows, number = self._rows_of(place)
        values = rows.episode(number)
        columns: dict[str, Any] = {}
        for name, info in self._dataset.info.features.items():
            if info.is_camera:
                columns[name] = self._images(info, place, int(rows.first_rows[number]), np.asarray(values[TIMESTAMP]))
            else:
                columns[name] = values[name]
        for name in rates_of(self._dataset.info.features):
            times = np.asarray(columns.pop(times_name(name)), np.float64)
            columns[name] = samples_of_frames(name, np.asarray(columns[name]), times)
        return EpisodeData(columns, metadata=self._metadata[place])

    @property
    def identity(self) -> str:
        """The dataset's name and commit, or its directory and a digest of ``meta/``; see `Reader.identity`."""
        found = self._dataset
        chosen = (
            f"{len(found.selected)} episodes {zlib.crc32(found.selected.tobytes()):08x}, tolerance {self._tolerance}"
        )
        if self._snapshot is not None:
            return f"lerobot {found.repo_id}@{self._snapshot.commit}, {chosen}"
        # not of the other files: a conversion goes on after a damaged one was mended
        return f"lerobot {found.root} {digest_of(walked(found.root / 'meta'))}, {chosen}"

    def episode_bytes(self, schema: Schema) -> int:
        """Return about how many bytes an episode takes in a store; see `Reader.episode_bytes`."""
        found = self._dataset
        length = float(found.episodes.length[found.selected].mean()) if len(found.selected) else 0.0
        return int(length * sum(map(_row_bytes, schema.values())))

    def label(self, index: int) -> str:
        """Return the episode's number in the dataset; see `Reader.label`."""
        return f"episode {self._dataset.episodes.index[self._dataset.selected[index]]} of {self.source}"

    def prepare(self, episodes: Ints) -> None:
        """Keep fetched files for these episodes only; see `Reader.prepare`."""
        files = self._scratch_files()
        if files is not None:
            files.plan(episodes)

    def forget(self, episodes: Ints) -> None:
        """Remove fetched files that no other episode needs; see `Reader.forget`."""
        files = self._scratch_files()
        if files is not None:
            files.done(episodes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_cameras": {}}

    def _scratch_files(self) -> FetchedFiles | None:
        """Return the files that are fetched for a while; None of a directory, and where they go to the hub's cache."""
        if self._snapshot is not None and self.scratch != self._fetched_into:
            self._fetched_into, self._held, self._cameras = self.scratch, None, {}
            self._dataset = replace(self._dataset, root=self.scratch or self._snapshot.root)
            self._fetched = None
            if self.scratch is not None:
                self._fetched = FetchedFiles(self.scratch, self._users(), self._snapshot.fetch_into)
        return self._fetched

    def _users(self) -> dict[str, Ints]:
        """Return by file which episodes it holds."""
        users: dict[str, list[int]] = {}
        for index in range(len(self)):
            for name in self._names(index):
                users.setdefault(name, []).append(index)
        return {name: np.array(indices, np.int64) for name, indices in users.items()}

    def _names(self, index: int, *, videos: bool = True) -> list[str]:
        """Return the names of the files that hold an episode."""
        if self._snapshot is None:
            return []
        return needed_files(replace(self._dataset, selected=self._dataset.selected[index : index + 1]), videos=videos)

    def _fetch(self, names: Iterable[str]) -> None:
        files = self._scratch_files()
        if files is not None:
            for name in names:
                files.need(name)
        elif self._snapshot is not None:
            self._snapshot.fetch(names, progress=False)

    def _codecs(self) -> Mapping[str, FileCodec]:
        """Return the codec of each camera, which reads its images in place."""
        if not self._cameras:
            if self._dataset.info.image_keys:
                # the first image decides the format
                first = int(np.argmax(self._dataset.episodes.length[self._dataset.selected] > 0))
                self._fetch(self._names(first, videos=False))
            for name, feature in mapped_schema(self._dataset, self._tolerance).items():
                if self._dataset.info.features[name].is_camera:
                    codec = make_codec(feature)
                    assert isinstance(codec, FileCodec)
                    self._cameras[name] = codec
        return self._cameras

    def _rows_of(self, place: int) -> tuple[FileRows, int]:
        """Return numbers and texts of some episodes of a file, and which of them is the one at ``place``."""
        if self._held is None or place not in self._held.places:
            features = self._dataset.info.features
            names = [name for name, info in features.items() if not info.is_camera]
            images = self._dataset.info.image_keys
            self._held = next(read_files(self._dataset, self._neighbours(place), names, present=images))
        return self._held, int(np.flatnonzero(self._held.places == place)[0])

    def _neighbours(self, place: int) -> Ints:
        """Return an episode and the chosen ones after it in the same parquet file, as many as may be held."""
        records = self._dataset.episodes
        after = self._dataset.selected[self._dataset.selected >= place]
        is_same = (records.data_chunk[after] == records.data_chunk[place]) & (
            records.data_file[after] == records.data_file[place]
        )
        after = after[: len(after) if is_same.all() else int(np.argmin(is_same))]
        sizes = np.cumsum(records.length[after]) * sum(
            _row_bytes(info.feature) for info in self._dataset.info.features.values() if not info.is_camera
        )
        return after[: max(1, int(np.searchsorted(sizes, READ_AHEAD_BYTES)))]

    def _images(self, info: FeatureInfo, place: int, first_row: int, seconds: npt.NDArray[Any]) -> HasRows:
        """Return the rows of a camera in an episode."""
        records = self._dataset.episodes
        if info.is_video:
            span = records.videos[info.name]
            # as LeRobot asks its decoder: the row's float32 seconds and the start, added as float64
            at = float(span.start[place]) + np.asarray(seconds, np.float64)
            rows = make_references(span.chunk[place], span.file[place], at)
        else:
            at = first_row + np.arange(len(seconds), dtype=np.float64)
            rows = make_references(records.data_chunk[place], records.data_file[place], at)
        return self._codecs()[info.name].embed([np.frombuffer(row, np.uint8) for row in rows])


def _row_bytes(feature: Feature) -> int:
    """Return about how many bytes a row takes in a store."""
    return TEXT_BYTES if feature.is_ragged else feature.row_bytes // RATIOS.get(feature.codec, OTHER_RATIO)
