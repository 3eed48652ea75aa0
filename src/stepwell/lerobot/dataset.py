"""LeRobotDataset: the items of LeRobot's class, read by stepwell's engine, and its verbs to record.

::

    LeRobotDataset(...)            view, items                     writer is None
    .create, .resume               writer: LeRobotRecorder         no items
       finalize                    the root is opened when an item is first asked for
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

import numpy as np

from stepwell.errors import DatasetNotFoundError, FormatError, LoaderError, SchemaError, StepError, WindowError
from stepwell.lerobot.depth import DepthUnit, Quantization, check_unit
from stepwell.lerobot.frame_errors import as_lerobot_says, check_single_values
from stepwell.lerobot.hub import needed_files
from stepwell.lerobot.image_transforms import ImageChanges, changes_of
from stepwell.lerobot.info import DATA_FILES_MB, ENCODER_SETTINGS, ENCODERS, VIDEO_FILES_MB, is_depth_map
from stepwell.lerobot.item_reader import ItemReader
from stepwell.lerobot.items import Images, ItemFormat, ItemRows, delta_steps, item_format
from stepwell.lerobot.meta_view import DatasetMeta, LeRobotDatasetMetadata, lerobot_home
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.opening import chosen_by, filtered, found_source, is_fetched_by_lerobot, open_view
from stepwell.loader import Loader, WindowDataset
from stepwell.loader.memory import import_torch, to_torch
from stepwell.loader.worker_memory import Empty, batch_memory
from stepwell.references.video_in_files import KEPT, keep_frames
from stepwell.sizes import parse_bytes
from stepwell.store import Store
from stepwell.windows import View

if TYPE_CHECKING:
    from stepwell.lerobot.recording import LeRobotRecorder
    from stepwell.lerobot.recording_meta import RecordingMeta
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order, Pad

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
except ImportError:
    # only making one says so: recordings do without
    TorchDataset = object

__all__ = ["LeRobotDataset", "LoaderOptions", "Source", "TorchDataset", "item_loader"]

Source = str | os.PathLike[str] | Store | View
FRAME_CACHE = "512 MiB"
# LeRobot's names of encoders, and ours
VCODECS = ("auto", *ENCODERS, *ENCODERS.values())
# arguments that LeRobot's class has had in other versions than the newest
IGNORED = frozenset({"camera_encoder", "camera_encoder_config", "vcodec", "video_decoder_cache_size", "video_encoder"})


class LoaderOptions(TypedDict, total=False):
    """Options of `stepwell.Loader` that loaders of items hand on."""

    seed: int
    epochs: int | None
    drop_last: bool
    pad: Pad
    rank: int
    world_size: int
    threads: int | None
    prefetch: int
    pin_memory: bool | None
    page_cache: bool
    device: str | None


class LeRobotDataset(TorchDataset):  # type: ignore[misc]  # Any where torch is not looked at
    """The items of a LeRobot dataset, equal to those of LeRobot's own class, key for key and byte for byte.

    A map-style ``torch.utils.data.Dataset``. For speed use `loader`, which builds whole batches by threads. `create`
    and `resume` return one that records; its items can be read after `finalize`.

    Args:
        repo_id: name of a dataset on the hub (``owner/name``); or a directory, ``lerobot://...``, a stepwell store
            (opened, or its path), or a `stepwell.View` of one store.
        root: directory of the dataset, where ``repo_id`` only names it. Default: below ``$HF_LEROBOT_HOME`` where
            LeRobot has put it, else the hub.
        episodes: numbers of episodes; items are then counted among theirs, ``index`` stays that of the dataset.
        episode_filter: function of an episode's row in ``meta.episodes``, a dict, that says whether it is taken; of
            ``episodes`` where both are given.
        image_transforms: of each camera's tensor, float32 [3, H, W] or [T, 3, H, W], item by item; done last. Those of
            `ImageTransforms`, ours or LeRobot's, are done to whole batches of frames at once, with the same draws.
        delta_timestamps: key to seconds from the item's time. Gives the key an axis of time and adds
            ``<key>_is_pad``; beyond the episode its first or last row is repeated.
        tolerance_s: seconds that these may lie off a step, and a frame off its row.
        revision: branch, tag or commit on the hub; default: the newest version of the format.
        force_cache_sync: ask the hub, whatever lies below ``$HF_LEROBOT_HOME``.
        download_videos: whether mp4 files are fetched.
        depth_output_unit: "mm" (default) or "m": of the images of depth maps, float32 [1, H, W], and their statistics.
        video_backend: of LeRobot's class; of no meaning here, as ``batch_encoding_size``, ``rgb_encoder``,
            ``depth_encoder``, ``encoder_threads``, ``streaming_encoding`` and ``encoder_queue_maxsize``.
        return_uint8: leave cameras uint8 [3, H, W] instead of floats of 0 to 1.
        token: of the hub.
        cache_dir: of the hub's files.
        local_files_only: whether only files that are here already are used.
        ignore: names of features to leave out: cameras that are not needed, kinds that stepwell does not read.
        frame_cache: bytes of decoded frames of mp4 files that each process keeps ("512 MiB", or a number; 0: none), at
            1.5 bytes a pixel: first those that were decoded on the way to others, so that items in a random order
            decode each run of a file once, not once an item; where there is room all, for later epochs.
        fuse_image_transforms: False: call ``image_transforms``, whatever they are, for each image.
        lerobot_arguments: ``vcodec`` and others that LeRobot's class had in earlier versions; of no meaning here.

    Attributes:
        meta: `LeRobotDatasetMetadata`: features, tasks, episodes and statistics.
        writer: the `LeRobotRecorder` of a dataset that is recorded; None otherwise.
        repo_id, root, episodes, image_transforms, delta_timestamps, delta_indices, tolerance_s, revision: as in
            LeRobot's class.

    Raises:
        DatasetNotFoundError: no such dataset.
        FormatError: it is not as its format says.
        WindowError: deltas that are no steps (a ValueError), or of strings; a filter that takes no episode.
        FeatureNotFoundError: deltas of no feature (a KeyError).
        TypeError: an argument that neither class has.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> store = tiny_store(f"{tempfile.mkdtemp()}/tiny.well", lengths=(4, 6))
        >>> dataset = LeRobotDataset(store, delta_timestamps={"action": [0.0, 0.1]})
        >>> len(dataset), dataset[3]["action"].shape, dataset[3]["action_is_pad"].tolist()
        (10, torch.Size([2, 2]), [False, True])

    Notes:
        Of a store, episodes that are still being recorded are left out, and the others counted without them: make
        another dataset when there are more. Items share memory with the read that they are of, and with nothing else.
        Picklable where its transforms are; works in forked and spawned workers, each of which reads by itself. Safe to
        use from several threads. Where LeRobot has floats of 64 bits as 32, and integers of any size as 64, so has
        this.
    """

    meta: LeRobotDatasetMetadata
    # whether, as in lerobot 0.4, add_frame goes on with a dataset that was opened to be read, and a new one has items
    # before it is final; see install()
    goes_on_when_opened: ClassVar[bool] = False
    # of `reader` and `writer`; see install()
    reader_class: ClassVar[type[ItemReader]] = ItemReader
    writer_class: ClassVar[type[LeRobotRecorder] | None] = None
    _is_of_hub = False

    def __init__(  # noqa: PLR0917
        self,
        repo_id: Source,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        download_videos: bool = True,
        video_backend: str | None = None,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        *,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        ignore: Collection[str] = (),
        frame_cache: int | str = FRAME_CACHE,
        fuse_image_transforms: bool = True,
        **lerobot_arguments: Any,
    ) -> None:
        _check_known(lerobot_arguments)
        import_torch()
        hub = {
            "revision": revision,
            "token": token,
            "cache_dir": cache_dir,
            "local_files_only": local_files_only,
            "ignore": ignore,
        }
        self._begin(
            None,
            delta_timestamps,
            image_transforms,
            tolerance_s,
            is_uint8=return_uint8,
            fuses_images=fuse_image_transforms,
            depth_unit=check_unit(depth_output_unit),
        )
        self._frame_bytes = parse_bytes("frame_cache", frame_cache, least=0)
        source: str | Store | View | Metadata
        if isinstance(repo_id, Store | View):
            source = repo_id
        elif is_fetched_by_lerobot(repo_id, root, cache_dir, local_files_only=local_files_only, skips=force_cache_sync):
            meta = LeRobotDatasetMetadata(repo_id, root, revision, force_cache_sync, token=token, ignore=ignore)
            if episode_filter is not None:
                episodes = chosen_by(meta, episode_filter, episodes)
            source = self._fetched(meta, episodes, download_videos, token, asks_hub=force_cache_sync)
            revision = meta.revision
        else:
            source = found_source(repo_id, root, skip_home=force_cache_sync)
        if episode_filter is not None and not isinstance(source, Metadata):
            episodes = filtered(source, episode_filter, episodes, hub)
        view = open_view(source, episodes, tolerance_s, {**hub, "download_videos": download_videos})
        self.episodes = None if episodes is None else [operator.index(episode) for episode in episodes]
        origin = view.stores[0].metadata.get("lerobot", {})
        self.root = Path(origin["root"]) if "root" in origin else None
        self._is_of_hub = self.root is not None and origin.get("repo_id") is not None
        named = os.fspath(repo_id) if isinstance(repo_id, str | os.PathLike) else "://"
        place = self.root or view.stores[0].path
        self.repo_id = str(origin.get("repo_id") or (named if "://" not in named else place.name))
        self.revision = revision or origin.get("revision")
        self._show(view, ignore)

    def _fetched(
        self,
        meta: LeRobotDatasetMetadata,
        episodes: Sequence[int] | None,
        download_videos: bool,
        token: str | bool | None,
        *,
        asks_hub: bool,
    ) -> Metadata:
        """Return what the files of a dataset say, after LeRobot's functions have fetched those that are not here."""
        self.meta, self.repo_id, self.revision = meta, meta.repo_id, meta.revision
        self._requested_root = meta._requested_root
        wanted = meta.files_of(episodes)
        names = needed_files(wanted, videos=download_videos)
        if asks_hub or any(not (wanted.root / name).exists() for name in names):
            self._download(download_videos, None if episodes is None else names, token=token)
        return meta.files_of(episodes)

    def _download(
        self, download_videos: bool = True, names: list[str] | None = None, *, token: str | bool | None = None
    ) -> None:
        """Fetch files as LeRobot's class does, after `install()`: those of some names, or all."""
        hub = LeRobotDatasetMetadata.lerobots_hub
        assert hub is not None
        ignored = None if download_videos else "videos/"
        self.root = hub.fetch_data(self.repo_id, self.revision, self._requested_root, names, ignored, token)
        self.meta.root = self.root

    def _begin(
        self,
        writer: LeRobotRecorder | None,
        delta_timestamps: Mapping[str, Sequence[float]] | None,
        image_transforms: Callable[[Any], Any] | None,
        tolerance_s: float,
        *,
        is_uint8: bool,
        fuses_images: bool = True,
        depth_unit: DepthUnit = "mm",
    ) -> None:
        self.writer = writer
        self.episodes = None
        # the unit is of the images and statistics of depth maps
        self._fuses_images, self._depth_unit = fuses_images, depth_unit
        self.delta_timestamps, self.tolerance_s = delta_timestamps, tolerance_s
        self.delta_indices: dict[str, list[int]] | None = None
        self.image_transforms: Callable[[Any], Any] | None = None
        self._changes: ImageChanges | None = None
        self.set_image_transforms(image_transforms)
        self._is_uint8 = is_uint8
        self._frame_bytes = parse_bytes("frame_cache", FRAME_CACHE)
        self._windows: WindowDataset | None = None
        self._format: ItemFormat | None = None
        self._frame_format: ItemFormat | None = None
        # the cameras that image transforms are done to: all but depth maps
        self._changed_keys: list[str] = []
        self._reader: ItemReader | None = None
        self._saved: LeRobotDataset | None = None

    def _show(self, view: View, ignore: Collection[str] = ()) -> None:
        """Give the items of a view."""
        meta = DatasetMeta(view.stores[0], repo_id=self.repo_id, root=self.root, revision=self.revision, ignore=ignore)
        steps = delta_steps(self.delta_timestamps, meta.fps, self.tolerance_s)
        self.delta_indices = None if self.delta_timestamps is None else {key: [*each] for key, each in steps.items()}
        meta.rescale_depth_stats(self._depth_unit)
        self._format = item_format(meta, steps, "uint8" if self._is_uint8 else "float32", depth_unit=self._depth_unit)
        depths = meta.depth_keys
        self._changed_keys = [key for key in meta.camera_keys if key not in depths]
        self._frame_format = self._format.of_frames(self._changed_keys)
        self._windows = WindowDataset(view, self._format.fields)
        self.meta = meta

    def _opened(self) -> WindowDataset:
        """Return what reads the items; of a recording that is finalized, its directory is opened first."""
        if self._windows is None:
            if self.writer is not None and not self.writer.is_final:
                raise LoaderError("the dataset is being recorded, and has no items yet. Call finalize() first.")
            self._show(open_view(str(self.root), None, self.tolerance_s, {"download_videos": True}))
        assert self._windows is not None
        return self._windows

    @classmethod
    def create(  # noqa: PLR0917
        cls,
        repo_id: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        root: str | os.PathLike[str] | None = None,
        robot_type: str | None = None,
        use_videos: bool = True,
        tolerance_s: float = 1e-4,
        image_writer_processes: int = 0,
        image_writer_threads: int = 0,
        video_backend: str | None = None,
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        metadata_buffer_size: int = 10,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        encoder_threads: int | None = None,
        video_files_size_in_mb: float | None = None,
        data_files_size_in_mb: float | None = None,
        *,
        vcodec: str = "auto",
        **lerobot_arguments: Any,
    ) -> LeRobotDataset:
        """Begin a LeRobot v3.0 dataset: return one that records, by a `LeRobotRecorder` (``writer``).

        Args:
            repo_id: name on the hub, "owner/name".
            fps: frames a second.
            features: name to ``{"dtype", "shape", "names"}``, as LeRobot has them.
            root: of the dataset; default: where LeRobot puts it, ``$HF_LEROBOT_HOME/owner/name``.
            robot_type: noted only.
            use_videos: False: cameras of dtype "video" are refused.
            tolerance_s: of the items, as for the class.
            rgb_encoder: LeRobot's settings of an encoder: its ``vcodec``, ``g``, ``crf``, ``preset`` and ``pix_fmt``
                are those of the videos; default: as the recorder chooses.
            video_files_size_in_mb: size from which on an mp4 file is not added to; default 200.
            data_files_size_in_mb: likewise of a parquet file; default 100.
            depth_encoder: LeRobot's settings for depth maps: its ``depth_min``, ``depth_max``, ``shift``, ``use_log``
                and ``g``, and ``crf`` where its ``extra_options`` do not say "lossless=1".
            vcodec: "libsvtav1", "h264" or "hevc", where there is no ``rgb_encoder``.
            image_writer_processes: of LeRobot's class; of no meaning here, as ``image_writer_threads``,
                ``video_backend``, ``batch_encoding_size``, ``metadata_buffer_size``, ``streaming_encoding``,
                ``encoder_queue_maxsize``, ``encoder_threads`` and ``lerobot_arguments``.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            SchemaError: features or an encoder that there cannot be.
            FormatError: features that a LeRobot dataset cannot have.
            TypeError: an argument that neither class has.

        Notes:
            The root has ``meta/info.json`` at once, and the episodes with `finalize`. Those that were saved are safe
            before: after a crash `resume` has them.
        """
        _check_known(lerobot_arguments)
        writer = cls._writer_class().create(
            lerobot_home() / repo_id if root is None else root,
            fps=fps,
            features=_with_settings(features, rgb_encoder, depth_encoder),
            repo_id=repo_id,
            robot_type=robot_type,
            use_videos=use_videos,
            output="v3.0",
            video=_video_options(rgb_encoder, vcodec),
            depth=_depth_options(depth_encoder),
            data_files_mb=DATA_FILES_MB if data_files_size_in_mb is None else data_files_size_in_mb,
            video_files_mb=VIDEO_FILES_MB if video_files_size_in_mb is None else video_files_size_in_mb,
        )
        dataset = cls._recording(writer, repo_id, tolerance_s)
        cast("RecordingMeta", dataset.meta).write()
        return dataset

    @classmethod
    def resume(  # noqa: PLR0917
        cls,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        video_backend: str | None = None,
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        image_writer_processes: int = 0,
        image_writer_threads: int = 0,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        *,
        token: str | bool | None = None,
        unfinished: Literal["drop", "keep"] = "drop",
        **lerobot_arguments: Any,
    ) -> LeRobotDataset:
        """Go on with a dataset, whoever wrote it, or with a recording that was not finalized: return one that records.

        Args:
            repo_id: name on the hub, "owner/name".
            root: of the dataset, on this disk; where there is none yet, it is fetched from the hub, whole.
            tolerance_s: of the items, as for the class.
            revision, token: of the hub.
            unfinished: what becomes of an episode that a crash cut short: "drop" or "keep", as one more episode.
            force_cache_sync: of LeRobot's class; of no meaning here, as ``video_backend``, ``batch_encoding_size``,
                ``rgb_encoder``, ``depth_encoder``, ``encoder_threads``, ``image_writer_processes``,
                ``image_writer_threads``, ``streaming_encoding``, ``encoder_queue_maxsize`` and ``lerobot_arguments``.
                Videos get the encoder that the dataset has.

        Raises:
            ValueError: no root.
            DatasetNotFoundError: neither a recording nor a dataset is there, nor on the hub.
            FormatError: a dataset of another version.
            OSError: a dataset was to be fetched to a root where something else is.
            StoreBusyError: another process records there.
        """
        _check_known(lerobot_arguments)
        if root is None:
            raise ValueError("resume() needs root: files of the hub's cache are shared, and are not added to.")
        try:
            writer = cls._writer_class().resume(root, unfinished=unfinished)
        except DatasetNotFoundError:
            from stepwell.lerobot.hub import fetch_whole

            fetch_whole(repo_id, Path(root), revision=revision, token=token)
            writer = cls._writer_class().resume(root, unfinished=unfinished)
        return cls._recording(writer, repo_id, tolerance_s)

    @classmethod
    def _writer_class(cls) -> type[LeRobotRecorder]:
        from stepwell.lerobot.recording import LeRobotRecorder

        return cls.writer_class or LeRobotRecorder

    @classmethod
    def _recording(cls, writer: LeRobotRecorder, repo_id: str, tolerance_s: float) -> LeRobotDataset:
        from stepwell.lerobot.recording_meta import RecordingMeta

        dataset = cls.__new__(cls)
        dataset._begin(writer, None, None, tolerance_s, is_uint8=False)
        dataset.repo_id, dataset.root, dataset.revision = repo_id, writer.root, None
        dataset.meta = RecordingMeta(writer, repo_id)
        return dataset

    # recording

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Take a frame of the episode being recorded; see `LeRobotRecorder.add_frame`.

        Raises:
            LoaderError: the dataset was opened to be read (a RuntimeError); so do the other verbs of recording.
            StepError: a feature is missing, unknown, or of another dtype, shape or range (a ValueError); also a number
                where the shape is (1,), which `LeRobotRecorder` takes.
        """
        if self.writer is None and self.goes_on_when_opened:
            self._go_on()
        recorder = self._recorder("add_frame")
        check_single_values(frame, self.features)
        try:
            recorder.add_frame(frame)
        except StepError as error:
            raise as_lerobot_says(error, frame, self.features) from error

    def save_episode(self, episode_data: None = None, parallel_encoding: bool = True) -> int:
        """End the episode, wait until all of it is stored, and return its index.

        Args:
            episode_data: None: frames come by `add_frame`.
            parallel_encoding: of LeRobot's class; of no meaning here.
        """
        if episode_data is not None:
            raise StepError("episode_data is not taken. Give its frames to add_frame().")
        index = self._recorder("save_episode").save_episode()
        self._count()
        return index

    def clear_episode_buffer(self, delete_images: bool = True) -> None:
        """Take back the frames since the last `save_episode`; there are no files of images to be deleted."""
        self._recorder("clear_episode_buffer").clear_episode_buffer()

    def has_pending_frames(self) -> bool:
        """Return whether there are frames since the last `save_episode`."""
        return self.writer is not None and self.writer.num_unsaved_frames > 0

    @property
    def latest_episode(self) -> dict[str, Any] | None:
        """The last episode that was saved here, see `LeRobotRecorder.latest_episode`; None before one was."""
        return None if self.writer is None else self.writer.latest_episode

    def finalize(self) -> None:
        """End the recording: write the dataset, or what is new of it, at the root. May be called twice."""
        if self.writer is not None:
            self.writer.finalize()
            self._count()

    def start_image_writer(self, num_processes: int = 0, num_threads: int = 4) -> None:
        """Do nothing: images are encoded by threads anyway, and LeRobot's scripts ask for some."""

    def stop_image_writer(self) -> None:
        """Do nothing: `finalize` ends the threads."""

    def _go_on(self) -> None:
        """Record more episodes of the dataset that was opened."""
        from stepwell.lerobot.recording_meta import RecordingMeta

        if self.root is None or self.episodes is not None:
            raise LoaderError("add_frame() on a store, or on some episodes of a dataset. Open a dataset's directory.")
        self.writer = self._writer_class().resume(self.root)
        self.meta, self._windows, self._reader = RecordingMeta(self.writer, self.repo_id), None, None

    def _count(self) -> None:
        if self._windows is None:
            cast("RecordingMeta", self.meta).count()

    def _recorder(self, verb: str) -> LeRobotRecorder:
        if self.writer is None:
            raise LoaderError(
                f"{verb}() on a dataset that is read-only. LeRobotDataset.create() begins one to be recorded, "
                "LeRobotDataset.resume() goes on with one."
            )
        return self.writer

    def __enter__(self) -> LeRobotDataset:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.writer is not None:
            self.writer.__exit__(*error)
            self._count()

    def push_to_hub(  # noqa: PLR0917
        self,
        branch: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = "apache-2.0",
        tag_version: bool = True,
        push_videos: bool = True,
        private: bool | None = None,
        allow_patterns: Sequence[str] | str | None = None,
        upload_large_folder: bool = False,
        *,
        token: str | bool | None = None,
        **card_kwargs: Any,
    ) -> None:
        """Upload the dataset's directory to the Hugging Face hub, as ``repo_id``, with a card.

        Args:
            branch: to push to; made where there is none.
            tags: of the card, besides "LeRobot".
            license: of the card.
            tag_version: whether the commit gets the tag of the format's version, by which it is found.
            push_videos: whether ``videos/`` is uploaded.
            private: of a new repository; None: as the organisation has it.
            allow_patterns: of files to upload; None: all.
            upload_large_folder: by the function of ``huggingface_hub`` for many or large files.
            token: of the hub; None: ``HF_TOKEN`` or the stored one.
            card_kwargs: name to text of further sections of the card: ``paper``, ``homepage`` ...

        Raises:
            WindowError: a store that is no dataset's directory: `stepwell.lerobot.write_dataset` makes one.
            LoaderError: the recording is not finalized.
            MissingDependencyError: huggingface_hub is not installed.
        """
        from stepwell.lerobot.pushing import push

        self._opened()
        if self.root is None:
            raise WindowError(f"{self.repo_id} is a store. Write its dataset first: stepwell.lerobot.write_dataset().")
        push(
            self.root,
            self.repo_id,
            self.meta.info.to_dict(),
            branch=branch,
            revision=self.revision,
            tags=tags,
            license=license,
            tag_version=tag_version,
            push_videos=push_videos,
            private=private,
            allow_patterns=allow_patterns,
            upload_large_folder=upload_large_folder,
            token=token,
            **card_kwargs,
        )

    # items

    def __getstate__(self) -> dict[str, Any]:
        # files and locks of a recording stay in its process
        self._opened()
        return {**self.__dict__, "writer": None, "_reader": None}

    def __len__(self) -> int:
        return self.num_frames

    @overload
    def __getitem__(self, idx: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, idx: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, idx: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return an item, or a list of those of a slice, read at once; a negative number counts from the end."""
        if isinstance(idx, slice):
            return [dict(item) for item in self.__getitems__(range(*idx.indices(len(self))))]
        item = self._columns([operator.index(idx)])
        # rows of arrays, which take a tenth of the time of rows of tensors
        for key, column in item.items():
            item[key] = column[0] if isinstance(column, list) else column[0, ...]
        to_torch(item, torch)
        for key, value in item.items():
            if isinstance(value, np.ndarray):
                item[key] = value[()]
        if self.image_transforms is not None and self._changes is None:
            for key in self._changed_keys:
                item[key] = self.image_transforms(item[key])
        return item

    def __getitems__(self, indices: Iterable[int]) -> ItemRows:
        """Return several items, read at once: what ``DataLoader`` calls."""
        numbers = [operator.index(number) for number in indices]
        memory = batch_memory()
        columns = to_torch(self._columns(numbers, np.empty if memory is None else memory.empty), torch)
        if self.image_transforms is not None and self._changes is None:
            for key in self._changed_keys:
                columns[key] = [*columns[key].unbind(0)]
            # item by item, as LeRobot draws
            for number, key in product(range(len(numbers)), self._changed_keys):
                columns[key][number] = self.image_transforms(columns[key][number])
        return ItemRows(columns, len(numbers), memory)

    def _columns(self, numbers: list[int], empty: Empty = np.empty) -> dict[str, Any]:
        """Return the columns of items, arrays and lists."""
        if KEPT.max_bytes < self._frame_bytes:
            keep_frames(self._frame_bytes)
        saved = self._saved_so_far() if self._windows is None and self.goes_on_when_opened else None
        if saved is not None:
            return saved._columns(numbers, empty)
        windows = self._opened() if self._windows is None else self._windows
        changes = self._changes
        reader, made = windows.reader, cast("ItemFormat", self._format if changes is None else self._frame_format)
        size = reader.index.num_anchors
        if numbers and not -size <= min(numbers) <= max(numbers) < size:
            wrong = next(number for number in numbers if not -size <= number < size)
            raise IndexError(f"no anchor {wrong} among {size}. Allowed: {-size} to {size - 1}.")
        values = reader.read(np.array(numbers, np.int64) % max(size, 1))
        try:
            columns = made(values, empty)
        except FormatError as error:
            raise LoaderError(str(error)) from error
        if changes is not None:
            changes.change_columns(columns, self._changed_keys, "uint8" if self._is_uint8 else "float32", empty)
        return columns

    def _saved_so_far(self) -> LeRobotDataset | None:
        """Return the episodes of a new dataset that were saved before it is final; None of another one."""
        writer = self.writer
        if writer is None or writer.is_final or writer.saved.num_episodes != writer.num_episodes:
            return None
        if self._saved is None or self._saved.num_episodes != writer.num_episodes:
            changes = None if self._changes is None else self.image_transforms
            self._saved = LeRobotDataset(
                writer.saved,
                image_transforms=changes,
                delta_timestamps=self.delta_timestamps,
                tolerance_s=self.tolerance_s,
            )
        return self._saved

    def get_raw_item(self, idx: int) -> dict[str, Any]:
        """Return a row as the tables have it: no videos, windows, transforms of images or task."""
        self._opened()
        values = self._rows.reader.read(np.array([range(len(self))[idx]]))
        item = to_torch(self._row_format(values), torch)
        return {key: column[0] for key, column in item.items() if key != "task"}

    @cached_property
    def _row_format(self) -> ItemFormat:
        return item_format(self._meta, {}, leave_out=self.meta.video_keys, depth_unit=None)

    @cached_property
    def _rows(self) -> WindowDataset:
        return WindowDataset(self.view, self._row_format.fields)

    @cached_property
    def hf_dataset(self) -> Any:
        """The rows of the parquet files as a ``datasets.Dataset``, memory-mapped, without videos.

        Raises:
            MissingDependencyError: ``datasets`` is not installed.
            WindowError: a store that is no dataset's directory.
        """
        from stepwell.lerobot.hf_rows import read_rows

        return read_rows(self.selected_files, self.features)

    def select_columns(self, column_names: str | Sequence[str]) -> Any:
        """Return some columns of `hf_dataset`."""
        return self.hf_dataset.select_columns(column_names)

    @cached_property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """The row of the dataset (``index``) to the number of its item; None where all episodes are selected."""
        if self.episodes is None:
            return None
        rows = self._meta.episodes
        spans = [range(rows[e]["dataset_from_index"], rows[e]["dataset_to_index"]) for e in sorted(set(self.episodes))]
        return {row: number for number, row in enumerate(chain.from_iterable(spans))}

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Do other transforms of images from the next item on; None: none.

        Raises:
            TypeError: it is no function.
        """
        if image_transforms is not None and not callable(image_transforms):
            raise TypeError(f"image_transforms={image_transforms!r}. Allowed: a function of a tensor, or None.")
        self.image_transforms = image_transforms
        self._changes = changes_of(image_transforms) if self._fuses_images else None

    def clear_image_transforms(self) -> None:
        """Do no transforms of images any more."""
        self.set_image_transforms(None)

    @property
    def _meta(self) -> DatasetMeta:
        """The metadata of what is read."""
        self._opened()
        return cast(DatasetMeta, self.meta)

    @property
    def depth_output_unit(self) -> DepthUnit:
        """The unit of the images and statistics of depth maps: "mm" or "m"."""
        return self._depth_unit

    @property
    def view(self) -> View:
        """The episodes."""
        return self._opened().view

    @property
    def reader(self) -> ItemReader | None:
        """The reader of the windows, for a `stepwell.loader.BatchSampler`; None while the dataset is recorded."""
        if self.writer is not None and not self.writer.is_final:
            return None
        windows = self._opened().reader
        # a sampler looks whether it is another one
        if self._reader is None or getattr(self._reader, "windows", windows) is not windows:
            self._reader = self.reader_class(self, windows)
        return self._reader

    @reader.setter
    def reader(self, reader: Any) -> None:
        self._reader = reader

    @property
    def selected_files(self) -> Metadata:
        """What the files of the directory say, and which episodes were selected.

        Raises:
            WindowError: a store that is no dataset's directory.
        """
        files = self._meta.files
        return files if self.episodes is None else replace(files, selected=np.unique(self.episodes))

    @property
    def hub_files(self) -> Metadata | None:
        """What the files say, of a dataset that is in the cache of the hub; None of others."""
        return self.selected_files if self._is_of_hub else None

    @property
    def seed(self) -> int:
        """The seed of orders that a `stepwell.loader.BatchSampler` is given by name."""
        return self._opened().seed

    @property
    def num_frames(self) -> int:
        """The number of items; of a dataset that is recorded, of the frames that were saved."""
        return self.meta.total_frames if self._windows is None else len(self._windows)

    @property
    def num_episodes(self) -> int:
        """The number of episodes that were selected; of a dataset that is recorded, that were saved."""
        return self.meta.total_episodes if self._windows is None else self._windows.view.num_episodes

    @property
    def fps(self) -> int | float:
        """Rows a second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name to dtype, shape and names of each feature, as LeRobot writes them."""
        return self.meta.features

    @property
    def episode_data_index(self) -> dict[str, Any]:
        """The first item of each selected episode ("from") and the one after its last ("to"), int64 tensors."""
        lengths = self.view.column("length")
        stops = np.cumsum(lengths)
        return {"from": torch.from_numpy(stops - lengths), "to": torch.from_numpy(stops)}

    def item_format(
        self, images: Images = "float32", image_transforms: Callable[[Any], Any] | None = None
    ) -> ItemFormat:
        """Return what is read of each item, and how it is arranged: fields and transform for a `stepwell.Loader`.

        Args:
            images: "float32" of 0 to 1, channels first; "uint8", channels first; "uint8_view": the same as a view.
            image_transforms: as for `loader`.

        Raises:
            WindowError: image transforms that are functions of single items.
        """
        changes = self._changes if image_transforms is None else changes_of(image_transforms)
        if changes is None and (image_transforms or self.image_transforms) is not None:
            raise WindowError(
                "image_transforms that are done item by item, and a loader builds whole batches. Allowed: "
                "ImageTransforms of the types that stepwell does itself. Leave others out, and give "
                "loader(transform=...) transforms of stepwell, or do them on the batch."
            )
        steps = {key: tuple(each) for key, each in (self.delta_indices or {}).items()}
        return item_format(self._meta, steps, images, is_fused=True, changes=changes, depth_unit=self._depth_unit)

    def loader(
        self,
        batch_size: int = 64,
        *,
        order: Literal["sequential", "random", "pooled"] | Order = "random",
        images: Literal["uint8", "float32"] = "uint8",
        image_transforms: Callable[[Any], Any] | None = None,
        transform: WholeTransform = (),
        **options: Unpack[LoaderOptions],
    ) -> Loader:
        """Return a loader of batches with the keys, shapes and dtypes that a ``DataLoader`` of this would give.

        Args:
            batch_size: items a batch.
            order: as for `stepwell.Loader`; "random" by default, "pooled" where decoding costs the most.
            images: "uint8" (default): bytes, [B, 3, H, W] or [B, T, 3, H, W], channels last in memory, which torch
                calls ``channels_last``; ``images.float() / 255`` is what an item has. "float32": as an item has them.
            image_transforms: `ImageTransforms`, ours or LeRobot's; default: those of the dataset. Each camera of each
                item has its own random numbers, by seed, epoch and position: the same for any number of threads, ranks
                and items a batch. Cameras are then contiguous, channels first.
            transform: of the whole batch, one or several, see `stepwell.Loader`; sees arrays, and "task" as a list.
            options: further ones of `stepwell.Loader`: ``threads``, ``seed``, ``epochs``, ``device`` ...

        Raises:
            WindowError: ``image_transforms`` that are functions of single items.
        """
        keep_frames(self._frame_bytes)
        made = self.item_format("uint8_view" if images == "uint8" else images, image_transforms)
        return item_loader(self.view, made, batch_size, order, transform, options)

    def __repr__(self) -> str:
        return (
            f"<LeRobotDataset {self.repo_id!r}  {self.num_episodes:,} episodes  {len(self):,} items  {self.fps:g} fps  "
            f"{', '.join(self.features)}>"
        )


def item_loader(  # noqa: PLR0917
    view: View,
    made: ItemFormat,
    batch_size: int,
    order: Literal["sequential", "random", "pooled"] | Order,
    transform: WholeTransform,
    options: LoaderOptions,
) -> Loader:
    """Return a loader of a view's items."""
    several: Sequence[Callable[..., Any]] = (transform,) if callable(transform) else transform
    done: list[Callable[..., Any]] = [made, *several]
    return Loader(view, made.fields, batch_size=batch_size, order=order, to="torch", transform=done, **options)


def _video_options(encoder: Any, vcodec: str) -> dict[str, Any] | None:
    """Return the options of `stepwell.Video` that settings of an encoder of LeRobot are."""
    if vcodec not in VCODECS:
        raise SchemaError(f"Invalid vcodec {vcodec!r}. Must be one of: {', '.join(VCODECS)}.")
    if encoder is None:
        return None if vcodec == "auto" else {"encoder": ENCODERS.get(vcodec, vcodec)}
    if encoder.vcodec == "auto":
        return None
    chosen = {
        "encoder": ENCODERS.get(encoder.vcodec, encoder.vcodec),
        "gop": encoder.g,
        "crf": None if encoder.crf is None else int(encoder.crf),
        "preset": encoder.preset,
        "pixel_format": encoder.pix_fmt,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _depth_options(encoder: Any) -> dict[str, Any] | None:
    """Return the options of a recorder for depth maps that settings of an encoder of LeRobot are."""
    if encoder is None:
        return None
    chosen = {name: getattr(encoder, name) for name in Quantization.__slots__} | {"gop": encoder.g}
    if "lossless=1" not in str(encoder.extra_options):
        chosen |= {"crf": None if encoder.crf is None else int(encoder.crf), "preset": encoder.preset}
    return {name: value for name, value in chosen.items() if value is not None}


def _with_settings(
    features: Mapping[str, Mapping[str, Any]], rgb_encoder: Any, depth_encoder: Any
) -> dict[str, Mapping[str, Any]]:
    """Return features with what info.json says of LeRobot's settings of their encoders, where these are given."""
    found = dict(features)
    for name, entry in features.items():
        if not isinstance(entry, Mapping) or entry.get("dtype") != "video":
            continue
        config = depth_encoder if is_depth_map(entry) else rgb_encoder
        if config is not None:
            settings = {key: getattr(config, key.removeprefix("video."), None) for key in ENCODER_SETTINGS}
            about = {key: value for key, value in settings.items() if value is not None}
            found[name] = {**entry, "info": {**(entry.get("info") or {}), **about}}
    return found


def _check_known(lerobot_arguments: Collection[str]) -> None:
    unknown = sorted(set(lerobot_arguments) - IGNORED)
    if unknown:
        raise TypeError(f"LeRobotDataset got {', '.join(unknown)}, which neither it nor LeRobot's class has.")
