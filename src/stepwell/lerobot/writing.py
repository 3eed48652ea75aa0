"""Writing a store as a LeRobot dataset, which the real ``lerobot`` opens.

::

    view ──> SourceEpisode ──> tasks, places        one after the other
                 │
                 ├── Preparation.prepare ──┐
                 ├── Preparation.prepare ──┤        threads: read, encode, summarise
                 └── Preparation.prepare ──┤
                                           v
             DatasetFiles.add, StatisticsSum.add    in order; then meta/, then a rename
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import EpisodeNotFoundError, SchemaError, StepwellError
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import SourceEpisode, as_view, episodes_of, schema_of
from stepwell.lerobot.appending import (
    cameras_of,
    first_files,
    fitted_columns,
    images_stride,
    is_per_element,
    load_extended,
    staged_append,
    summaries_before,
)
from stepwell.lerobot.camera_writing import encoding_of, image_files, video_packets
from stepwell.lerobot.dataset_files import DatasetFiles, EpisodePlace, PreparedEpisode, appended_info, with_settings
from stepwell.lerobot.depth import Depth, depth_of
from stepwell.lerobot.episode_metadata import FurtherColumns
from stepwell.lerobot.info import (
    DATA_FILES_MB,
    DEFAULT_CHUNKS_SIZE,
    FORMAT_ENTRIES,
    INDEX_INFOS,
    INFO_PATH,
    MAX_FPS,
    MIN_FPS,
    VIDEO_FILES_MB,
    FeatureInfo,
)
from stepwell.lerobot.meta_files import SUBTASK_INDEX, import_pyarrow, read_subtasks
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.samples import FramedSamples, check_clock, check_rates, names_with_times, with_rates
from stepwell.lerobot.schema_mapping import Cameras, Column, index_names, map_schema
from stepwell.lerobot.statistics import (
    Statistics,
    StatisticsSum,
    as_lerobot,
    depth_summary,
    image_stride,
    image_summary,
    numeric_statistics,
    sampled_steps,
)
from stepwell.lerobot.tasks import StepTasks, TaskList, subtasks_of
from stepwell.progress import make_bar
from stepwell.recorders.chunks import num_workers
from stepwell.schema import Feature, Schema
from stepwell.store import Store
from stepwell.store.layout import built_directory
from stepwell.store.statistics import FeatureStatistics
from stepwell.windows import View

__all__ = ["write_dataset"]

WRITTEN_VERSIONS = ("v3.0", "v2.1")
MAX_WORKERS = 8
# times of a store that lie further off the grid are replaced
TOLERANCE_SECONDS = 1e-4


def write_dataset(
    source: Store | View | str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    version: Literal["v3.0", "v2.1"] = "v3.0",
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    task: str | None = None,
    robot_type: str | None = None,
    cameras: Cameras | Mapping[str, Cameras] = "auto",
    video: Mapping[str, Any] | None = None,
    fps: float | None = None,
    append: bool = False,
    data_files_mb: float = DATA_FILES_MB,
    video_files_mb: float = VIDEO_FILES_MB,
    workers: int | None = None,
    progress: bool | None = None,
    repo_id: str | None = None,
    chunks_size: int = DEFAULT_CHUNKS_SIZE,
) -> Metadata:
    """Write episodes as a LeRobot dataset, which ``lerobot`` opens with the same values.

    PNG and JPEG files and packets of video go out as they are where the format allows, everything else is encoded.
    Metadata of episodes become further columns of the table of episodes, and come back when the dataset is read. A
    final observation is not written: LeRobot has no place for it. Episodes without a step are left out. A feature with
    a rate becomes the samples that came since the frame before, [K, *shape] a frame, with their times in NAME_time,
    [K]; K is the most of any frame, and where there are fewer the times are -1.

    Args:
        source: a store, some of its episodes (`stepwell.View`), or a store's path. Of several stores with the same
            features.
        root: directory of the dataset; it appears whole, or not at all.
        version: of the format: "v3.0", or "v2.1" for lerobot 0.3.
        features: names to write; default all. The index columns (``timestamp``, ``index``, ...) are computed; a
            store's own ``timestamp`` is kept where it is within 0.1 ms of frame_index / fps.
        rename: names in the store to names in the dataset, e.g. ``{"camera": "observation.images.front"}``.
        task: text of every step's task. Default: what the store says: a text feature ``task``, a column
            ``task_index`` with a list in the store's metadata, or metadata ``task`` of the episodes.
        robot_type: default: that of the dataset that the store was made of, if it was.
        cameras: "image" (in the parquet files) or "video" (mp4), for all or by name in the dataset; "auto" (default):
            PNG, JPEG and images with sides that are odd or below 16 as images, others as video.
        video: options of `stepwell.Video` for what is encoded; default ``{"encoder": "av1", "gop": 2, "crf": 30,
            "preset": "12"}``, as lerobot has them.
        fps: rows a second; default the store's.
        append: add to the dataset at ``root``, of v3.0 and by whomever written, as new files; if there is none, make
            it. Cameras are then stored as they are there.
        data_files_mb: size from which on a parquet file of v3.0 is not added to.
        video_files_mb: likewise of an mp4 file.
        workers: threads that encode, an episode each; default one a processor, at most 8. The files are the same for
            every number.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.
        repo_id: what the result says of itself; nothing is sent anywhere.
        chunks_size: files a directory; an append goes on with that of the dataset.

    Returns:
        The metadata of the dataset, read back.

    Raises:
        SchemaError: a feature that LeRobot has no form for, or, of an append, other features or another rate; the
            message says what to do.
        StepError: a step without a task.
        EpisodeNotFoundError: there is no episode to write.
        StoreExistsError: something is at ``root``.
        StoreBusyError: an episode is still being recorded, or another process appends.
        FormatError: ``root`` is no dataset that can be appended to.
        MissingDependencyError: pyarrow, or for video PyAV, is not installed.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/tiny.well")
        >>> dataset = write_dataset(store, f"{folder}/tiny", cameras="image", features=["observation.image", "action"],
        ...                         task="count")
        >>> len(dataset.episodes), dataset.info.total_frames, dataset.tasks
        (3, 16, ('count',))

    Notes:
        Memory: an episode of each worker and one more, its images encoded, a batch of them decoded. Killed at any
        moment, it leaves nothing at a new root, and of an append the old episodes as they were; what was complete by
        then comes with the next append. Statistics look at 16,384 images of a camera at most, and at all numbers.
    """
    local_path(root)
    if version not in WRITTEN_VERSIONS:
        raise StepwellError(f"version={version!r}. Allowed: {', '.join(map(repr, WRITTEN_VERSIONS))}.")
    if append and version != "v3.0":
        raise StepwellError("append=True with version='v2.1'. Only v3.0 can be appended to.")
    import_pyarrow()
    view = as_view(source)
    info = _dataset_info(view)
    check_clock(schema_of(view), fps, view.stores[0].fps)
    features, rename = names_with_times(schema_of(view), features, rename)
    writing = _Writing(
        schema=schema_of(view),
        origin=info,
        features=features,
        rename=rename,
        video=video,
        fps=_checked_rate(view, fps),
        steps=StepTasks(index_names(schema_of(view), rename), task),
        sizes_mb=_checked_sizes(data_files_mb, video_files_mb),
        chunks_size=_checked_chunks(chunks_size),
        workers=_worker_count(workers),
        progress=progress,
        episodes=list(episodes_of(view)),
        subtasks=subtasks_of(view.stores[0]),
    )
    if not writing.episodes:
        raise EpisodeNotFoundError("there is no episode to write. LeRobot has no datasets without any.")
    path = Path(root).absolute()
    if append and (path / INFO_PATH).exists():
        writing.append(path)
    else:
        writing.make(path, version == "v3.0", cameras, info.get("robot_type") if robot_type is None else robot_type)
    return Metadata.load(path, repo_id=repo_id)


@dataclass(frozen=True, slots=True, eq=False)
class _Writing:
    """One call of `write_dataset`."""

    schema: Schema
    # info.json of the dataset that the store was made of
    origin: Mapping[str, Any]
    features: Collection[str] | None
    rename: Mapping[str, str] | None
    video: Mapping[str, Any] | None
    fps: float
    steps: StepTasks
    sizes_mb: tuple[float, float]
    chunks_size: int
    workers: int
    progress: bool | None
    episodes: Sequence[SourceEpisode]
    # texts by subtask_index
    subtasks: list[str] | None

    def make(self, root: Path, is_v3: bool, cameras: Any, robot_type: str | None) -> None:
        """Write a new dataset."""
        samples = FramedSamples(self.schema, self.episodes, {})
        columns = self._columns(cameras, samples.schema)
        newer = [column.name for column in columns if column.info.is_depth or column.info.is_language]
        if newer and not is_v3:
            raise SchemaError(
                f"version='v2.1' has no depth maps and no columns of language: {', '.join(newer)}. Write v3.0, or "
                "leave them out: features=[...]."
            )
        preparation = self._preparation(columns, samples, image_stride(self._num_steps), per_element=not is_v3)
        tasks, total = TaskList(self.steps.listed(self.episodes[0])), StatisticsSum(per_element=not is_v3)
        further = FurtherColumns([episode.metadata for episode in self.episodes])
        with built_directory(root) as hidden:
            sizes_mb = self.sizes_mb if is_v3 else None
            files = DatasetFiles(
                Path(hidden),
                preparation.infos,
                self.fps,
                sizes_mb,
                chunks_size=self.chunks_size,
                further=further.fields,
            )
            self._write(preparation, files, tasks, total, further, first_episode=0, first_row=0)
            info = files.new_info(self._counts(tasks), robot_type, self._further_entries())
            files.write_meta(info, tasks.texts, total, self.subtasks)

    def _further_entries(self) -> dict[str, Any]:
        """Return the entries of the dataset that the store was made of which the format does not know, and splits."""
        found = {name: value for name, value in self.origin.items() if name not in FORMAT_ENTRIES}
        numbers = [episode.metadata.get("lerobot_episode") for episode in self.episodes]
        # splits name episodes by number
        if "splits" in self.origin and numbers == list(range(self.origin.get("total_episodes", -1))):
            found["splits"] = self.origin["splits"]
        return found

    def append(self, root: Path) -> None:
        """Add to a dataset of v3.0."""
        with staged_append(root) as target:
            before = load_extended(root, self.fps)
            info = before.info
            named = {(self.rename or {}).get(name, name) for name in self.features or self.schema}
            cameras = {name: choice for name, choice in cameras_of(info).items() if name in named}
            samples = FramedSamples(self.schema, self.episodes, self._room_in(info.features))
            columns = fitted_columns(self._columns(cameras, samples.schema), before)
            check_rates(info.features, {each.name: each.info for each in columns}, "what is to be appended")
            subtasks = self._subtasks_beside(before, columns)
            per_element = is_per_element(before)
            summaries = summaries_before(before, per_element=per_element)
            stride = images_stride(before, summaries) or image_stride(self._num_steps)
            preparation = self._preparation(columns, samples, stride, per_element=per_element)
            first = first_files(before)
            further = FurtherColumns([episode.metadata for episode in self.episodes], first.episode_schema)
            files = DatasetFiles(target, preparation.infos, self.fps, self.sizes_mb, first, info.chunks_size)
            tasks, total = TaskList(before.tasks), StatisticsSum(per_element=per_element)
            total.add(summaries)
            self._write(
                preparation,
                files,
                tasks,
                total,
                further,
                first_episode=info.total_episodes,
                first_row=info.total_frames,
            )
            # of a dataset that was empty, facts of the videos are known only now
            raw = info.raw if info.total_episodes else {**info.raw, "features": with_settings(files.entries(), info)}
            files.write_meta(appended_info(raw, self._counts(tasks, before)), tasks.texts, total, subtasks)

    def _subtasks_beside(self, before: Metadata, columns: Sequence[Column]) -> list[str] | None:
        """Return the subtasks that are written beside a dataset's own: none where it has the same."""
        mine, theirs = self.subtasks, read_subtasks(before.root)
        is_used = any(column.name == SUBTASK_INDEX for column in columns)
        if is_used and mine is not None and theirs is not None and mine != theirs:
            raise SchemaError(
                f"{before.root} has {len(theirs)} subtasks, what is to be appended {len(mine)} others: subtask_index "
                "would name other texts. Leave the feature out, or write another dataset."
            )
        return mine if theirs is None else None

    @property
    def _num_steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    def _columns(self, cameras: Any, schema: Schema) -> tuple[Column, ...]:
        features = self.origin.get("features", {})
        columns = map_schema(schema, features=self.features, rename=self.rename, cameras=cameras, origin=features)
        return with_rates(columns, self.schema)

    def _room_in(self, features: Mapping[str, FeatureInfo]) -> dict[str, int]:
        """Return how many samples a frame of a dataset has room for."""
        named = {name: features.get((self.rename or {}).get(name, name)) for name in self.schema.rated}
        return {name: info.shape[0] for name, info in named.items() if info is not None}

    def _preparation(
        self, columns: Sequence[Column], samples: FramedSamples, stride: int, *, per_element: bool
    ) -> Preparation:
        return Preparation(
            columns=columns,
            samples=samples,
            encodings={column.name: encoding_of(column, self.video) for column in columns if column.info.is_video},
            fps=self.fps,
            timestamp=index_names(self.schema, self.rename).get("timestamp"),
            stride=stride,
            per_element=per_element,
        )

    def _write(
        self,
        preparation: Preparation,
        files: DatasetFiles,
        tasks: TaskList,
        total: StatisticsSum,
        further: FurtherColumns,
        *,
        first_episode: int,
        first_row: int,
    ) -> None:
        """Write all episodes and complete their files."""

        def placed() -> Iterator[tuple[SourceEpisode, EpisodePlace]]:
            row = first_row
            for index, episode in enumerate(self.episodes, first_episode):
                numbers, texts = self.steps.of(episode, tasks)
                yield episode, EpisodePlace(index, row, numbers, texts, further.row(episode.metadata))
                row += episode.length

        try:
            with make_bar(self._num_steps, "steps", wanted=self.progress) as bar:
                for prepared in _prepared(preparation, placed(), self.workers):
                    files.add(prepared)
                    prepared.add_to(total, preparation.infos)
                    bar.update(prepared.length)
        finally:
            files.close()

    def _counts(self, tasks: TaskList, before: Metadata | None = None) -> dict[str, int]:
        episodes, frames = (before.info.total_episodes, before.info.total_frames) if before else (0, 0)
        return {
            "episodes": episodes + len(self.episodes),
            "frames": frames + self._num_steps,
            "tasks": len(tasks.texts),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """Make episodes ready to be written; any number of threads may."""

    columns: Sequence[Column]
    samples: FramedSamples
    # of cameras that are written as video
    encodings: Mapping[str, Feature]
    fps: float
    # feature of the store with its own times
    timestamp: str | None
    # about every how many-th image statistics look at
    stride: int
    per_element: bool

    @property
    def infos(self) -> list[FeatureInfo]:
        """All features of the dataset, in order."""
        return [*(column.info for column in self.columns), *INDEX_INFOS.values()]

    def prepare(self, episode: SourceEpisode, place: EpisodePlace) -> PreparedEpisode:
        """Read and encode an episode."""
        columns: dict[str, Any] = {}
        videos = {}
        for column in self.columns:
            if column.info.is_video:
                videos[column.name] = video_packets(episode, column, self.encodings[column.name])
            elif column.info.is_image:
                columns[column.name] = image_files(episode, column)
            else:
                columns[column.name] = self.samples.read(episode, column.source)
        columns |= self._index_columns(episode, place)
        images = self._images(episode)
        return PreparedEpisode(place, episode.length, columns, videos, self._statistics(columns, images), images)

    def _index_columns(self, episode: SourceEpisode, place: EpisodePlace) -> dict[str, npt.NDArray[Any]]:
        numbers = np.arange(episode.length, dtype=np.int64)
        return {
            "timestamp": self._timestamps(episode, numbers),
            "frame_index": numbers,
            "episode_index": np.full(episode.length, place.index, np.int64),
            "index": place.first_row + numbers,
            "task_index": place.task_index,
        }

    def _timestamps(self, episode: SourceEpisode, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the store's own times where they lie on the grid, since they may be rounded otherwise."""
        grid = numbers / self.fps
        if self.timestamp is not None:
            own = np.asarray(episode.read(self.timestamp), np.float64).reshape(-1)
            if (np.abs(own - grid) <= TOLERANCE_SECONDS).all():
                return own.astype(np.float32)
        return grid.astype(np.float32)

    def _images(self, episode: SourceEpisode) -> dict[str, FeatureStatistics]:
        steps = sampled_steps(episode.length, self.stride)
        return {
            column.name: _summary(column, episode.images(column.source, column.feature, steps))
            for column in self.columns
            if column.info.is_camera
        }

    def _statistics(self, columns: Mapping[str, Any], images: Mapping[str, FeatureStatistics]) -> Statistics:
        return {
            info.name: as_lerobot(images[info.name], info)
            if info.is_camera
            else numeric_statistics(columns[info.name], per_element=self.per_element)
            for info in self.infos
            if not info.is_text
        }


def _summary(column: Column, images: Iterator[npt.NDArray[Any]]) -> FeatureStatistics:
    if column.depth is None:
        return image_summary(images, column.feature)
    target = depth_of(column.info.raw)
    unit = None if target is None else target.unit
    # in the dataset's unit, where the store's is another
    own = (column.depth.values(image, unit) for image in images)
    return depth_summary(own, Depth(unit))


def _prepared(
    preparation: Preparation, placed: Iterator[tuple[SourceEpisode, EpisodePlace]], workers: int
) -> Iterator[PreparedEpisode]:
    """Yield episodes in order, some of them being prepared ahead by threads."""
    if workers <= 1:
        for episode, place in placed:
            yield preparation.prepare(episode, place)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="stepwell-write")
    waiting: deque[Future[PreparedEpisode]] = deque()
    try:
        for episode, place in placed:
            waiting.append(pool.submit(preparation.prepare, episode, place))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _dataset_info(view: View) -> dict[str, Any]:
    """Return the info.json of the dataset that the first store of a view was made of; else nothing."""
    return dict(view.stores[0].metadata.get("lerobot", {}).get("info") or {})


def _checked_rate(view: View, fps: float | None) -> float:
    rates = {store.fps for store in view.stores} if fps is None else {fps}
    rate = rates.pop()
    if rates or rate is None or not MIN_FPS <= rate <= MAX_FPS:
        found = "stores of different rates" if rates else f"fps={rate}"
        allowed = f"rows a second, {MIN_FPS:g} to {MAX_FPS:.0f}"
        raise SchemaError(f"{found}: LeRobot has one rate for all features. Give fps=, {allowed}.")
    return float(rate)


def _checked_sizes(data_files_mb: float, video_files_mb: float) -> tuple[float, float]:
    for name, size in (("data_files_mb", data_files_mb), ("video_files_mb", video_files_mb)):
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            raise StepwellError(f"{name}={size!r}. Allowed: a number of megabytes, more than 0.")
    return data_files_mb, video_files_mb


def _checked_chunks(chunks_size: int) -> int:
    if not isinstance(chunks_size, int) or chunks_size < 1:
        raise StepwellError(f"chunks_size={chunks_size!r}. Allowed: a number of files, at least 1.")
    return chunks_size


def _worker_count(workers: int | None) -> int:
    found = num_workers(workers)
    return min(MAX_WORKERS, found) if workers is None else found
