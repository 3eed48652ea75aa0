"""Recording as LeRobot does, frame by frame, safe against a crash at any moment.

::

    add_frame ── FrameReader ── FrameQueue.put ── copy ──> threads: Codec.encode ──┐
                                     ^                                             v
                                     └── room <── Writer.append_batch <── frames in order, as many as are ready

Source: ``add_frame`` of lerobot 0.4.4 and 0.6.2 takes arrays of exactly a feature's dtype and shape, tensors, images
channels first or last, uint8 or floats of 0 to 1, and PIL's; depth maps of uint16 or float32. Here grey images of a
camera with colours, too.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, codec_class, make_codec
from stepwell.errors import (
    DiskFullError,
    FormatError,
    ReadOnlyError,
    SchemaError,
    StepError,
    StepwellError,
    StoreExistsError,
    WriterClosedError,
)
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import schema_of
from stepwell.lerobot.appending import first_files, is_per_element, summaries_before
from stepwell.lerobot.depth import Depth, depth_of, split_options, unit_of
from stepwell.lerobot.info import DATA_FILES_MB, INDEX_FEATURES, VIDEO_FILES_MB, DatasetInfo, FeatureInfo
from stepwell.lerobot.language import NO_LANGUAGE
from stepwell.lerobot.staging import (
    Staging,
    check_kept,
    create_recorded,
    extend_recorded,
    make_info,
    recorded_info,
    settle_unfinished,
)
from stepwell.lerobot.tasks import add_tasks, change_info, tasks_of
from stepwell.process import available_cpus
from stepwell.schema import Feature, Schema, Text
from stepwell.sizes import counted, parse_bytes
from stepwell.store import EncodedRows, Store, Writer, open
from stepwell.store.encoding import QUEUE_BYTES
from stepwell.store.layout import STORE_JSON
from stepwell.store.records import Sync
from stepwell.store.values import acceptor
from stepwell.windows import View

if TYPE_CHECKING:
    from types import TracebackType

    from stepwell.lerobot.statistics import Statistics

__all__ = ["FrameQueue", "FrameReader", "LeRobotRecorder"]

Output = Literal["store", "v3.0"]
Unfinished = Literal["drop", "keep"]
LOGGER = logging.getLogger("stepwell.lerobot")
PNG = {"codec": "png"}
MAX_THREADS = 8
MIN_SLOTS = 2
# a batch is stored at once, and only then may its slots be used again
MAX_BATCH = 16
Step = Mapping[str, Any]
Accept = Callable[[Any], Any]
Pixels = npt.NDArray[np.uint8]


class LeRobotRecorder:
    """Record episodes with LeRobot's verbs, into a store or out as a LeRobot v3.0 dataset.

    Made by `create` and `resume`.

    ::

        add_frame ─check─> Writer ──> store (root, or hidden beside it) ──finalize, output="v3.0"──> root
                             └─ video: a queue, encoded in the background

    Example:
        >>> import tempfile
        >>> features = {"observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}
        >>> root = f"{tempfile.mkdtemp()}/reach.well"
        >>> with LeRobotRecorder.create(root, fps=30, features=features) as recorder:
        ...     for t in range(3):
        ...         recorder.add_frame({"observation.state": [0.1 * t, 0.0], "task": "reach"})
        ...     recorder.save_episode()
        0
        >>> with LeRobotRecorder.resume(root) as recorder:
        ...     recorder.num_episodes, recorder.num_frames, recorder.tasks
        (1, 3, ['reach'])

    Notes:
        One thread at a time. Frames are copied: their arrays may be used again. What `save_episode` has returned from
        survives a kill at any moment, and with ``sync="episode"``, the default, a loss of power; so do the frames of
        the episode being recorded, up to those that wait to be encoded: `resume` drops or keeps them. Leaving a
        ``with`` block by an exception is such a crash, except that what was saved is finalized.
    """

    def __init__(self, store: Store, *, staging: Staging | None, queue_bytes: int) -> None:
        assert store.schema is not None
        self._store = store
        self._staging = staging
        self._info = recorded_info(store)
        self._reader = FrameReader(store.schema, self._info.features)
        self._unknown_units = [
            name
            for name, each in self._info.features.items()
            if each.is_depth and (each.raw.get("info") or {}).get("depth_unit") is None
        ]
        self._indices = [name for name in store.schema if name in INDEX_FEATURES and name != "task_index"]
        self._tasks = {text: index for index, text in enumerate(tasks_of(store))}
        self._writer = store.writer(queue_bytes=queue_bytes)
        self._queue = FrameQueue(self._writer, store.schema, queue_bytes)
        self._num_episodes, self._num_frames = (0, 0) if staging is None else staging.num_exported
        self._frame_tasks: dict[str, None] = {}
        self._num_open = 0
        self._num_unfinished = 0
        # what `save_episode` has saved last, by LeRobot's names of the columns of episodes; None before
        self.latest_episode: dict[str, Any] | None = None
        self._is_final = False
        self._pid = os.getpid()

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        *,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        repo_id: str | None = None,
        robot_type: str | None = None,
        use_videos: bool = True,
        output: Output = "store",
        video: Mapping[str, Any] | None = None,
        image: Mapping[str, Any] | None = None,
        depth: Mapping[str, Any] | None = None,
        sync: Sync = "episode",
        queue_bytes: int | str = QUEUE_BYTES,
        data_files_mb: float = DATA_FILES_MB,
        video_files_mb: float = VIDEO_FILES_MB,
    ) -> LeRobotRecorder:
        """Begin a recording.

        Args:
            root: of the store, or of the LeRobot dataset; nothing may be there.
            fps: frames a second.
            features: name to ``{"dtype", "shape", "names"}``, as LeRobot has them. Cameras are of dtype "video" or
                "image"; the index features may be given, and are ignored.
            repo_id: name on the hub, "owner/name"; noted only.
            robot_type: noted only.
            use_videos: False: cameras of dtype "video" are refused.
            output: "store" (default): ``root`` is the store. "v3.0": `finalize` makes or extends a LeRobot dataset;
                until then episodes are in a hidden store beside ``root``.
            video: options of `Video` for cameras of dtype "video", default H.264 with gop 2; e.g. ``{"encoder":
                "av1"}`` or ``{"gop": 10}``.
            image: options of `Image` for cameras of dtype "image", default ``{"codec": "png"}``; e.g. ``{"codec":
                "jpeg", "quality": 90}``, which takes far less of a control loop's time.
            depth: of depth maps of dtype "video": ``depth_min``, ``depth_max``, ``shift`` and ``use_log``, see
                `stepwell.lerobot.depth.Quantization`, and ``gop``, ``crf`` and ``preset`` of `Video`; default
                LeRobot's: 0.01 to 10 m, spaced by the logarithm, without loss.
            sync: when to wait for the disk: "none", "episode" (default) or "step".
            queue_bytes: of images that may wait to be encoded; when there are so many, `add_frame` waits.
            data_files_mb: of the dataset: size from which on a parquet file is not added to.
            video_files_mb: likewise of an mp4 file.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            SchemaError: features or options that a store cannot have.
            FormatError: features that a LeRobot dataset cannot have.
        """
        _check_choice("output", output, Output)
        settings = {"data_files_size_in_mb": data_files_mb, "video_files_size_in_mb": video_files_mb}
        info = make_info(features, fps, robot_type, use_videos=use_videos, settings=settings, depth=depth)
        make = partial(
            create_recorded,
            info=info,
            video=video or {},
            image=image or PNG,
            depth=split_options(depth)[1],
            sync=sync,
            repo_id=repo_id,
        )
        _check_writable(Path(local_path(root)).absolute())
        queue = parse_bytes("queue_bytes", queue_bytes, least=0)
        if output == "store":
            if Path(root, STORE_JSON).exists():
                raise StoreExistsError(
                    f"{root} is a store already. Go on with LeRobotRecorder.resume(), or choose another root."
                )
            return cls(make(Path(root)), staging=None, queue_bytes=queue)
        staging = Staging.begin(root, make)
        return cls(open(staging.path), staging=staging, queue_bytes=queue)

    @classmethod
    def resume(
        cls,
        root: str | os.PathLike[str],
        *,
        unfinished: Unfinished = "drop",
        video: Mapping[str, Any] | None = None,
        image: Mapping[str, Any] | None = None,
        queue_bytes: int | str = QUEUE_BYTES,
    ) -> LeRobotRecorder:
        """Go on with a recording, after `finalize` or a crash, or with a v3.0 dataset that lerobot wrote.

        Args:
            root: as given to `create`, or of a LeRobot v3.0 dataset on this disk.
            unfinished: what becomes of an episode that a crash cut short: "drop" (default) or "keep", as one more
                episode. `num_unfinished_frames` tells how many frames it has.
            video: options of `Video`, where a dataset is extended; see `create`. Encoder and pixel format are those
                that its info.json tells of. A recording that is gone on with keeps its own.
            image: options of `Image`, likewise.
            queue_bytes: see `create`.

        Raises:
            DatasetNotFoundError: neither a recording nor a dataset is there.
            FormatError: a store that is no recording, or a dataset of another version.
            SchemaError: options of cameras that are not the recording's, or an encoder that is not the dataset's.
            StoreBusyError: another process records a dataset there.
        """
        _check_choice("unfinished", unfinished, Unfinished)
        queue = parse_bytes("queue_bytes", queue_bytes, least=0)
        is_store = Path(root, STORE_JSON).exists()
        _check_writable(Path(root).absolute() if is_store else Path(root).absolute().parent)
        if is_store:
            store, staging = _open_recorded(root), None
        else:
            staging = Staging.resume(root, partial(extend_recorded, video=video, image=image or PNG))
            store = open(staging.path)
        try:
            check_kept(store, video=video, image=image)
        except SchemaError:
            store.close()
            if staging is not None:
                staging.close()
            raise
        recorder = cls(store, staging=staging, queue_bytes=queue)
        recorder._settle(unfinished)
        return recorder

    def _settle(self, unfinished: Unfinished) -> None:
        found = settle_unfinished(self._store, self._writer, keep=unfinished == "keep")
        self._num_unfinished = found
        if found:
            what = "dropped" if unfinished == "drop" else "kept as an episode"
            LOGGER.warning("%s: %d frames of an episode that was not saved are %s", self.root, found, what)
        self._store.refresh()
        table = self._store.episodes
        table = table.take(~table.is_open)
        self._num_episodes += len(table)
        self._num_frames += int(table.length.sum())

    # recording

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Take a frame of the episode being recorded.

        Args:
            frame: name to value of every feature, and "task", a text. Numbers: an array or tensor of the feature's
                dtype and shape, or Python numbers. Cameras: uint8 [H, W, C], the quickest; also [C, H, W], floats of 0
                to 1, or an image of PIL; depth maps: [H, W, 1], [1, H, W] or [H, W], integers for millimetres or
                floats for metres. The index features are computed, and must not be given; columns of language are
                left out, or dropped: annotations come after a recording.

        Raises:
            StepError: a feature is missing, unknown, or of another dtype, shape or range; nothing was stored.
            DiskFullError: no space; nothing of this frame was stored.
            EncodeError: a camera could not be encoded, maybe of an earlier frame; what was saved is kept.
            WriterClosedError: the recording was finalized, or ended by an error.
        """
        step, task = self._reader.read(frame)
        self._check_open()
        if self._unknown_units:
            self._note_units(frame)
        step["task_index"] = self._task_index(task)
        for name in self._indices:
            step[name] = self._index_value(name)
        with self._writing():
            self._queue.put(step)
        self._frame_tasks[task] = None
        self._num_open += 1

    def save_episode(self) -> int:
        """End the episode and wait until all of it is stored.

        Returns:
            Its index.

        Raises:
            StepError: there are no frames since the last episode.
            EncodeError: see `add_frame`; of this episode, what was encoded is kept as unfinished.
        """
        self._check_open()
        if not self._num_open:
            raise StepError("there are no frames to save. Call add_frame first.")
        with self._writing():
            self._queue.wait()
            self._writer.end_episode(tasks=list(self._frame_tasks))
        stop = self._num_frames + self._num_open
        self.latest_episode = {
            "episode_index": self._num_episodes,
            "length": self._num_open,
            "tasks": list(self._frame_tasks),
            "dataset_from_index": self._num_frames,
            "dataset_to_index": stop,
        }
        self._num_episodes, self._num_frames = self._num_episodes + 1, stop
        self._forget_frames()
        return self._num_episodes - 1

    def clear_episode_buffer(self) -> None:
        """Take back the frames since the last `save_episode`."""
        self._check_open()
        self._queue.drop()
        with self._writing():
            self._writer.discard_episode()
        self._forget_frames()

    def finalize(self) -> None:
        """End the recording; with ``output="v3.0"`` write what is new to the dataset. May be called twice.

        Frames since the last `save_episode` are taken back, as LeRobot does.

        Raises:
            DiskFullError: no space. Nothing that was saved is lost; with "v3.0" `resume` and finalize again.
        """
        if not self._is_final and self._pid == os.getpid():
            # a recording that an error ended has left them as a crash does
            with suppress(WriterClosedError):
                self.clear_episode_buffer()
            self._close()

    def start_image_writer(self, num_processes: int = 0, num_threads: int = 4) -> None:
        """Do nothing: images are encoded by threads anyway, and LeRobot's scripts ask for some."""

    def stop_image_writer(self) -> None:
        """Do nothing: `finalize` ends the threads."""

    def _close(self) -> None:
        self._is_final = True
        with nullcontext() if self._staging is None else closing(self._staging):
            self._queue.close()
            self._writer.close()
            if self._staging is not None:
                self._export(self._staging)

    def change_info(self, changes: Mapping[str, Any]) -> None:
        """Change the info.json that the dataset will have, sizes of files or features; survives a kill."""
        self._check_open()
        change_info(self._store, changes)
        self._info = DatasetInfo.parse({**self._info.raw, **changes}, f"{self._store.path}/{STORE_JSON}")

    def _export(self, staging: Staging) -> None:
        try:
            staging.export(self._store)
        except DiskFullError as error:
            full = DiskFullError(
                f"no space left to write {self.root}. What was saved waits in {staging.path}: make room, then "
                f"LeRobotRecorder.resume({str(self.root)!r}).finalize()."
            )
            full.errno = error.errno
            raise full from error

    @property
    def first_data_file(self) -> tuple[int, int]:
        """Chunk and file of the first parquet file that the dataset gets of this recording."""
        before = None if self._staging is None else self._staging.dataset
        return (0, 0) if before is None else first_files(before).data

    @property
    def saved(self) -> View:
        """The episodes that were saved in the store that is recorded into, without those that the dataset has."""
        self._store.refresh()
        table = self._store.episodes
        return View(self._store, np.flatnonzero(~table.interrupted & ~table.is_open))

    def statistics(self) -> Statistics | None:
        """Return the statistics of all episodes that were saved, but for the index features; None without any."""
        from stepwell.lerobot.statistics import StatisticsSum, as_lerobot, is_summed, summaries_of

        saved = self.saved
        before = None if self._staging is None else self._staging.dataset
        per_element = before is not None and is_per_element(before)
        total = StatisticsSum(per_element=per_element)
        named = self._info.features
        features = {
            name: each for name, each in schema_of(saved).items() if name not in INDEX_FEATURES and is_summed(each)
        }
        if before is not None:
            known = summaries_before(before, per_element=per_element)
            total.add({name: part for name, part in known.items() if name in features})
        total.add(summaries_of(saved, features, per_element=per_element) if saved.num_episodes else {})
        return {name: as_lerobot(part, named[name]) for name, part in total.result().items()} or None

    def _note_units(self, frame: Mapping[str, Any]) -> None:
        """Note the unit of depth maps by the dtype of the first frame, as LeRobot does."""
        features = dict(self._info.raw["features"])
        for name in self._unknown_units:
            unit = unit_of(np.asarray(frame[name]).dtype)
            features[name] = {**features[name], "info": {**features[name]["info"], "depth_unit": unit}}
        self._unknown_units = []
        self.change_info({"features": features})

    def _forget_frames(self) -> None:
        self._frame_tasks.clear()
        self._num_open = 0

    def _task_index(self, task: str) -> int:
        index = self._tasks.get(task)
        if index is None:
            self._tasks = {text: place for place, text in enumerate(add_tasks(self._store, [task]))}
            index = self._tasks[task]
        return index

    def _index_value(self, name: str) -> Any:
        """Return the value of an index feature, where the store has it: converted ones do."""
        if name == "timestamp":
            return np.float32(self._num_open / self._info.fps)
        before = {"frame_index": 0, "index": self._num_frames}
        return before[name] + self._num_open if name in before else self._num_episodes

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except WriterClosedError as error:
            raise WriterClosedError(
                "an error ended the recording before; what was saved is kept. Go on with "
                f"LeRobotRecorder.resume({str(self.root)!r})."
            ) from error

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise WriterClosedError(
                f"this recorder belongs to process {self._pid}, this is {os.getpid()}. Record in the first."
            )
        if self._is_final:
            raise WriterClosedError(
                f"the recording is finalized. Go on with LeRobotRecorder.resume({str(self.root)!r})."
            )

    # properties

    @property
    def root(self) -> Path:
        """Where the store, or the dataset, is."""
        return self._store.path if self._staging is None else self._staging.root

    @property
    def info(self) -> DatasetInfo:
        """What the dataset says of itself: version, features, cameras, fps, robot type."""
        return self._info

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """LeRobot's features by name, the index features included."""
        return {name: {**feature.raw, "shape": feature.shape} for name, feature in self._info.features.items()}

    @property
    def fps(self) -> float:
        """Frames a second."""
        return self._info.fps

    @property
    def tasks(self) -> list[str]:
        """Texts of the tasks by ``task_index``."""
        return list(self._tasks)

    @property
    def num_episodes(self) -> int:
        """Episodes that were saved, those of earlier recordings included."""
        return self._num_episodes

    @property
    def num_frames(self) -> int:
        """Frames of the episodes that were saved."""
        return self._num_frames

    @property
    def num_unsaved_frames(self) -> int:
        """Frames since the last `save_episode`."""
        return self._num_open

    @property
    def is_final(self) -> bool:
        """Whether the recording was finalized, or ended by an error."""
        return self._is_final

    @property
    def num_unfinished_frames(self) -> int:
        """Frames that `resume` found of an episode that was never saved."""
        return self._num_unfinished

    def __enter__(self) -> LeRobotRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finalize()
        elif not self._is_final and self._pid == os.getpid():
            self._close()

    def __repr__(self) -> str:
        state = "finalized" if self._is_final else f"{counted(self._num_open, 'frame')} unsaved"
        there = f"{counted(self._num_episodes, 'episode')}, {counted(self._num_frames, 'frame')}"
        return f"<LeRobotRecorder {self.root}  {there}  {state}>"


def _open_recorded(root: str | os.PathLike[str]) -> Store:
    store = open(root)
    if store.schema is None or "info" not in store.metadata.get("lerobot", {}) or "task_index" not in store.schema:
        raise FormatError(
            f"{root} is a store that was not recorded with LeRobot's features. Record into it by store.writer()."
        )
    return store


def _check_choice(name: str, value: str, allowed: Any) -> None:
    choices = get_args(allowed)
    if value not in choices:
        raise StepwellError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")


def _check_writable(path: Path) -> None:
    while not path.exists():
        path = path.parent
    if not os.access(path, os.W_OK | os.X_OK):
        raise ReadOnlyError(f"{path} cannot be written to. Choose another root, or ask for its permission.")


class FrameQueue:
    """Store steps in order, images of PNG and JPEG encoded by threads; the writer itself encodes video so."""

    # an error of the threads is raised by all calls until `drop`; steps put meanwhile are lost: no episode has a gap

    def __init__(self, writer: Writer, schema: Schema, queue_bytes: int) -> None:
        self._writer, self._schema = writer, schema
        self._codecs = {name: make_codec(feature) for name, feature in schema.items() if _is_slow(feature)}
        step_bytes = sum(feature.row_bytes for feature in schema.values() if not feature.is_ragged)
        self._slots = threading.Semaphore(max(MIN_SLOTS, queue_bytes // max(1, step_bytes)))
        self._waiting: deque[tuple[Step, dict[str, Future[bytes]]]] = deque()
        self._error: BaseException | None = None
        # threads begin with the first frame
        num_threads = min(MAX_THREADS, available_cpus(), max(1, 2 * len(self._codecs)))
        self._encoders = ThreadPoolExecutor(num_threads, thread_name_prefix="stepwell-encode")
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="stepwell-store")

    def put(self, step: Step) -> None:
        """Take a step that the schema allows; waits while the queue is full."""
        if not self._codecs:
            self._writer.append(step)
            return
        self._check()
        self._slots.acquire()
        kept = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in step.items()}
        rows = {
            name: self._encoders.submit(self._encode, codec, kept.pop(name)) for name, codec in self._codecs.items()
        }
        self._waiting.append((kept, rows))
        self._storing.submit(self._store_ready)

    def wait(self) -> None:
        """Wait until every step is stored."""
        self._wait()
        self._check()

    def drop(self) -> None:
        """Let go of the steps that are not stored yet, and of an error: their episode is to be discarded."""
        self._error = self._error or StepError("the steps that waited were dropped.")
        self._wait()
        self._error = None

    def close(self) -> None:
        """Store the steps that wait and end the threads."""
        self._wait()
        self._storing.shutdown()
        self._encoders.shutdown()

    def _encode(self, codec: Codec, value: Any) -> bytes:
        # after an error nothing is stored
        return b"" if self._error is not None else codec.encode(value)

    def _wait(self) -> None:
        if self._codecs:
            self._storing.submit(lambda: None).result()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _store_ready(self) -> None:
        """Store the steps at the head of the queue that are encoded; at least one, and none if another call did."""
        batch: list[tuple[Step, dict[str, Future[bytes]]]] = []
        while self._waiting and len(batch) < MAX_BATCH and (not batch or _is_ready(self._waiting[0][1])):
            step, rows = self._waiting.popleft()
            batch.append((step, rows))
            # for the first one only: the others are ready
            wait(rows.values())
        try:
            if batch and self._error is None:
                self._writer.append_batch(self._columns(batch))
        except BaseException as error:
            self._error = error
        finally:
            self._slots.release(len(batch))

    def _columns(self, batch: Sequence[tuple[Step, Mapping[str, Future[bytes]]]]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, feature in self._schema.items():
            if name in self._codecs:
                columns[name] = EncodedRows(rows[name].result() for _, rows in batch)
            else:
                values = [step[name] for step, _ in batch]
                columns[name] = values if feature.is_ragged else np.array(values, feature.np_dtype)
        return columns


def _is_ready(rows: Mapping[str, Future[bytes]]) -> bool:
    return all(future.done() for future in rows.values())


def _is_slow(feature: Feature) -> bool:
    return feature.kind == "image" and not feature.is_raw and not codec_class(feature).is_sequential


class FrameReader:
    """Turn frames into the values of a step; an error names the feature. Values may be those of the frame."""

    def __init__(self, schema: Schema, infos: Mapping[str, FeatureInfo] = MappingProxyType({})) -> None:
        self._accept = {
            name: _accept_of(name, feature, infos.get(name))
            for name, feature in schema.items()
            if name not in INDEX_FEATURES
        }
        self._languages = frozenset(name for name, info in infos.items() if info.is_language)
        self._accept_task = acceptor("task", Text())
        self._names = frozenset((*self._accept, "task"))

    def read(self, frame: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the values of a step by name, and the text of its task."""
        if not isinstance(frame, Mapping):
            raise StepError(f'got a {type(frame).__name__}. Give a dict of every feature, and "task".')
        if self._languages:
            frame = self._with_languages(frame)
        if frame.keys() != self._names:
            raise self._names_error(frame)
        task: str = self._accept_task(frame["task"])
        return {name: accept(frame[name]) for name, accept in self._accept.items()}, task

    def _with_languages(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Return a frame with no annotation in every column of language."""
        given = [name for name in sorted(self._languages) if frame.get(name) is not None]
        if given:
            LOGGER.warning("%s: annotations come after a recording; what is given is dropped", ", ".join(given))
        return {**frame, **dict.fromkeys(self._languages, NO_LANGUAGE)}

    def _names_error(self, frame: Mapping[str, Any]) -> StepError:
        known = (*self._accept, "task")
        missing = [name for name in known if name not in frame]
        computed = [name for name in frame if name in INDEX_FEATURES]
        unknown = [name for name in frame if name not in (*known, *INDEX_FEATURES)]
        found = ((missing, "missing"), (unknown, "no feature of the dataset"), (computed, "computed: leave it out"))
        reasons = "; ".join(f"{', '.join(map(repr, names))} {reason}" for names, reason in found if names)
        return StepError(f"the frame does not fit: {reasons}. It needs: {', '.join(known)}.")


def _accept_of(name: str, feature: Feature, info: FeatureInfo | None) -> Accept:
    accept = acceptor(name, feature)
    depth = depth_of(info.raw) if info is not None and info.is_camera else None
    if depth is not None:
        return lambda value: _depths(name, feature, depth, value)
    if feature.kind == "image":
        return lambda value: _pixels(name, feature.fixed_shape, accept, value)
    if feature.shape == () and feature.kind == "array":
        return lambda value: accept(value[0] if _is_single(value) else value)
    return accept


def _is_single(value: Any) -> bool:
    """Return whether a value has LeRobot's shape (1,)."""
    return len(value) == 1 if isinstance(value, (list, tuple)) else getattr(value, "shape", None) == (1,)


def _pixels(name: str, shape: tuple[int, ...], accept: Accept, value: Any) -> Pixels:
    """Return an image as uint8 [height, width, channels]."""
    if not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
        # raises the error
        return cast(Pixels, accept(value))
    try:
        found: npt.NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return cast(Pixels, accept(value))
    if found.shape in ((*shape[:-1], 1), (1, *shape[:-1])) and shape[2:] == (3,):
        # an export writes a grey camera in colours, and a resumed recording has the features of the dataset
        found = np.broadcast_to(found.reshape(*shape[:-1], 1), shape)
    elif found.shape != shape and found.shape == (shape[-1], *shape[:-1]):
        # four times as fast as a copy of the transposed array
        found = np.stack(tuple(found), axis=-1)
    if found.shape == shape and found.dtype.kind == "f":
        found = _bytes_of_units(name, found)
    return cast(Pixels, accept(found))


def _depths(name: str, feature: Feature, depth: Depth, value: Any) -> npt.NDArray[Any]:
    """Return a depth map as it is stored: codes, or what was recorded, [height, width, 1]."""
    found = np.asarray(value)
    height, width = feature.fixed_shape[:2]
    is_number = found.dtype.kind in "iuf"
    if not is_number or found.shape not in ((height, width, 1), (1, height, width), (height, width)):
        raise StepError(
            f"feature {name!r}: got {found.dtype.name} {found.shape}. Give integers (millimetres) or floats (metres), "
            f"[{height}, {width}, 1]."
        )
    found = found.reshape(feature.fixed_shape)
    if depth.quantization is not None:
        return depth.quantization.codes(found)
    stored: npt.NDArray[Any] = found.astype(feature.np_dtype)
    if feature.np_dtype == np.uint16 and not np.array_equal(stored, found):
        raise StepError(
            f"feature {name!r}: got values of {found.min():g} to {found.max():g}, and its depths are whole "
            "millimetres, 0 to 65535, by depth_unit in its info."
        )
    return stored


def _bytes_of_units(name: str, pixels: npt.NDArray[np.floating[Any]]) -> Pixels:
    """Return pixels of 0 to 1 as the nearest bytes; LeRobot takes the next lower ones."""
    low, high = pixels.min(initial=1), pixels.max(initial=0)
    # refuses NaN, too
    if not (low >= 0 and high <= 1):
        raise StepError(
            f"feature {name!r}: got floats of {low:g} to {high:g}. Give floats of 0 to 1, or uint8 of 0 to 255."
        )
    scaled = pixels * pixels.dtype.type(255)
    scaled += pixels.dtype.type(0.5)
    rounded: Pixels = scaled.astype(np.uint8)
    return rounded
