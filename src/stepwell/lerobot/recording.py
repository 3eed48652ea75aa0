"""Recording as LeRobot does, frame by frame, safe against a crash at any moment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

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
from stepwell.lerobot.frame_queue import FrameQueue
from stepwell.lerobot.frames import FrameReader
from stepwell.lerobot.info import INDEX_FEATURES, DatasetInfo
from stepwell.lerobot.recorded_stores import check_kept, create_recorded, extend_recorded, make_info, settle_unfinished
from stepwell.lerobot.staging import Staging
from stepwell.lerobot.tasks import add_tasks, tasks_of
from stepwell.sizes import counted, parse_bytes
from stepwell.store import Store, open
from stepwell.store.encoding import QUEUE_BYTES
from stepwell.store.layout import STORE_JSON
from stepwell.store.records import Sync

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["LeRobotRecorder"]

Output = Literal["store", "v3.0"]
Unfinished = Literal["drop", "keep"]
LOGGER = logging.getLogger("stepwell.lerobot")
PNG = {"codec": "png"}


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
        self._info = DatasetInfo.parse(store.metadata["lerobot"]["info"], f"{store.path}/{STORE_JSON}")
        self._reader = FrameReader(store.schema)
        self._indices = [name for name in store.schema if name in INDEX_FEATURES and name != "task_index"]
        self._tasks = {text: index for index, text in enumerate(tasks_of(store))}
        self._writer = store.writer(queue_bytes=queue_bytes)
        self._queue = FrameQueue(self._writer, store.schema, queue_bytes)
        self._num_episodes, self._num_frames = (0, 0) if staging is None else staging.num_exported
        self._frame_tasks: dict[str, None] = {}
        self._num_open = 0
        self._num_unfinished = 0
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
        sync: Sync = "episode",
        queue_bytes: int | str = QUEUE_BYTES,
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
            sync: when to wait for the disk: "none", "episode" (default) or "step".
            queue_bytes: pictures that may wait to be encoded; when there are so many, `add_frame` waits.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            SchemaError: features or options that a store cannot have.
            FormatError: features that a LeRobot dataset cannot have.
        """
        _check_choice("output", output, Output)
        info = make_info(features, fps, robot_type)
        if info.video_keys and not use_videos:
            raise SchemaError(
                f"use_videos=False, but {', '.join(map(repr, info.video_keys))} is of dtype 'video'. "
                "Make it 'image', or leave use_videos out."
            )
        make = partial(create_recorded, info=info, video=video or {}, image=image or PNG, sync=sync, repo_id=repo_id)
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
                to 1, or a picture of PIL. The index features are computed, and must not be given.

        Raises:
            StepError: a feature is missing, unknown, or of another dtype, shape or range; nothing was stored.
            DiskFullError: no space; nothing of this frame was stored.
            EncodeError: a camera could not be encoded, maybe of an earlier frame; what was saved is kept.
            WriterClosedError: the recording was finalized, or ended by an error.
        """
        step, task = self._reader.read(frame)
        self._check_open()
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
        self._num_episodes += 1
        self._num_frames += self._num_open
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

    def _close(self) -> None:
        self._is_final = True
        with nullcontext() if self._staging is None else closing(self._staging):
            self._queue.close()
            self._writer.close()
            if self._staging is not None:
                self._export(self._staging)

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
        """Return what an index feature holds, where the store has it: converted ones do."""
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

    # what it is

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
