"""LeRobotDataset: the items of LeRobot's class, read by stepwell's engine."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from stepwell.errors import DatasetNotFoundError, FormatError, LoaderError, WindowError
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.items import Images, ItemFormat, ItemRows, delta_steps, item_format
from stepwell.lerobot.meta_view import DatasetMeta
from stepwell.loader import Loader, WindowDataset
from stepwell.loader.memory import import_torch, to_torch
from stepwell.store import Store
from stepwell.store.layout import STORE_JSON
from stepwell.windows import View

if TYPE_CHECKING:
    from stepwell.lerobot.recording import LeRobotRecorder
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order, Pad
    from stepwell.windows import WindowReader

__all__ = ["LeRobotDataset", "LoaderOptions", "Source", "item_loader"]

Source = str | os.PathLike[str] | Store | View
# arguments of LeRobot's class, of one version or another: they choose its decoder, or are about recording
IGNORED = frozenset(
    {
        "batch_encoding_size",
        "camera_encoder",
        "camera_encoder_config",
        "depth_encoder",
        "depth_output_unit",
        "encoder_queue_maxsize",
        "encoder_threads",
        "force_cache_sync",
        "image_writer_processes",
        "image_writer_threads",
        "metadata_buffer_size",
        "rgb_encoder",
        "streaming_encoding",
        "tolerance_s",
        "vcodec",
        "video_backend",
        "video_decoder_cache_size",
        "video_encoder",
    }
)


# of encoders as LeRobot names them; "auto" is the recorder's own choice
ENCODERS = {"libsvtav1": "av1", "libx264": "h264", "libx265": "hevc"}


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


class LeRobotDataset:
    """The items of a LeRobot dataset, equal to those of LeRobot's own class, key for key and byte for byte.

    A map-style dataset for torch's ``DataLoader``. For speed use `loader`, which builds whole batches by threads.

    Args:
        repo_id: name of a dataset on the hub (``owner/name``); or a directory, ``lerobot://...``, a stepwell store
            (opened, or its path), or a `stepwell.View` of one store.
        root: directory of the dataset, where ``repo_id`` only names it. Default: below ``$HF_LEROBOT_HOME`` where
            LeRobot has put it, else the hub.
        episodes: numbers of episodes; items are then counted among theirs, ``index`` stays that of the dataset.
        image_transforms: of each camera's tensor, float32 [3, H, W] or [T, 3, H, W], item by item; done last.
        delta_timestamps: key to seconds from the item's time. Gives the key an axis of time and adds
            ``<key>_is_pad``; beyond the episode its first or last row is repeated.
        tolerance_s: seconds that these may lie off a step, and a frame off its row.
        revision: branch, tag or commit on the hub; default: the newest version of the format.
        download_videos: whether mp4 files are fetched.
        return_uint8: leave cameras uint8 [3, H, W] instead of floats of 0 to 1.
        token: of the hub.
        cache_dir: of the hub's files.
        local_files_only: whether only files that are here already are used.
        ignore: names of features to leave out: cameras that are not needed, kinds that stepwell does not read.
        lerobot_arguments: ``video_backend``, ``vcodec`` and others of LeRobot's class that have no meaning here.

    Attributes:
        view: the episodes, a `stepwell.View`.
        meta: `DatasetMeta`: features, tasks, episodes and statistics, by LeRobot's names.
        repo_id, root, episodes, image_transforms, delta_timestamps, delta_indices, tolerance_s, revision: as in
            LeRobot's class.

    Raises:
        DatasetNotFoundError: no such dataset.
        FormatError: it is not as its format says.
        WindowError: deltas that are no steps (a ValueError), or of strings.
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

    def __init__(
        self,
        repo_id: Source,
        root: str | os.PathLike[str] | None = None,
        *,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        download_videos: bool = True,
        return_uint8: bool = False,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        ignore: Collection[str] = (),
        **lerobot_arguments: Any,
    ) -> None:
        _check_known(lerobot_arguments)
        hub = {
            "revision": revision,
            "token": token,
            "cache_dir": cache_dir,
            "local_files_only": local_files_only,
            "download_videos": download_videos,
            "ignore": ignore,
        }
        self.view = _open_view(repo_id, root, episodes, tolerance_s, hub)
        store = self.view.stores[0]
        origin = store.metadata.get("lerobot", {})
        self.root = Path(origin["root"]) if "root" in origin else None
        named = os.fspath(repo_id) if isinstance(repo_id, str | os.PathLike) else "://"
        self.repo_id = str(origin.get("repo_id") or (named if "://" not in named else (self.root or store.path).name))
        self.revision = revision or origin.get("revision")
        self.meta = DatasetMeta(store, repo_id=self.repo_id, root=self.root, revision=self.revision, ignore=ignore)
        self.episodes = None if episodes is None else [operator.index(episode) for episode in episodes]
        self.image_transforms, self.delta_timestamps = image_transforms, delta_timestamps
        self.tolerance_s = tolerance_s
        steps = delta_steps(delta_timestamps, self.fps, tolerance_s)
        self.delta_indices = None if delta_timestamps is None else {key: list(each) for key, each in steps.items()}
        self._format = item_format(self.meta, steps, "uint8" if return_uint8 else "float32")
        self._windows = WindowDataset(self.view, self._format.fields)
        import_torch()

    @classmethod
    def create(
        cls,
        repo_id: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        root: str | os.PathLike[str] | None = None,
        *,
        robot_type: str | None = None,
        use_videos: bool = True,
        vcodec: str = "auto",
        **lerobot_arguments: Any,
    ) -> LeRobotRecorder:
        """Begin a LeRobot v3.0 dataset: ``LeRobotRecorder.create`` with the arguments that LeRobot's ``create`` takes.

        Args:
            repo_id: name on the hub, "owner/name".
            fps: frames a second.
            features: name to ``{"dtype", "shape", "names"}``, as LeRobot has them.
            root: of the dataset; default: where LeRobot puts it, ``$HF_LEROBOT_HOME/owner/name``.
            robot_type: noted only.
            use_videos: False: cameras of dtype "video" are refused.
            vcodec: "libsvtav1", "h264" or "hevc"; default: as the recorder chooses.
            lerobot_arguments: ``image_writer_threads``, ``batch_encoding_size`` and others of LeRobot's, which have no
                meaning here.

        Raises:
            StoreExistsError: something is at the root, or an earlier recording was not finalized.
            SchemaError: features or an encoder that there cannot be.
            FormatError: features that a LeRobot dataset cannot have.
            TypeError: an argument that neither class has.
        """
        from stepwell.lerobot.recording import LeRobotRecorder

        _check_known(lerobot_arguments)
        return LeRobotRecorder.create(
            _lerobot_home() / repo_id if root is None else root,
            fps=fps,
            features=features,
            repo_id=repo_id,
            robot_type=robot_type,
            use_videos=use_videos,
            output="v3.0",
            video=None if vcodec == "auto" else {"encoder": ENCODERS.get(vcodec, vcodec)},
        )

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Return an item; a negative number counts from the end."""
        item = self._columns([operator.index(idx)])
        # rows of arrays, which take a tenth of the time of rows of tensors
        for key, column in item.items():
            item[key] = column[0] if isinstance(column, list) else column[0, ...]
        to_torch(item, import_torch())
        for key, value in item.items():
            if isinstance(value, np.ndarray):
                item[key] = value[()]
        if self.image_transforms is not None:
            for key in self.meta.camera_keys:
                item[key] = self.image_transforms(item[key])
        return item

    def __getitems__(self, indices: Iterable[int]) -> ItemRows:
        """Return several items, read at once: what ``DataLoader`` calls."""
        numbers = [operator.index(number) for number in indices]
        columns = to_torch(self._columns(numbers), import_torch())
        if self.image_transforms is not None:
            for key in self.meta.camera_keys:
                columns[key] = [self.image_transforms(images) for images in columns[key].unbind(0)]
        return ItemRows(columns, len(numbers))

    def _columns(self, numbers: list[int]) -> dict[str, Any]:
        """Return the columns of items, arrays and lists."""
        reader = self._windows.reader
        size = reader.index.num_anchors
        if numbers and not -size <= min(numbers) <= max(numbers) < size:
            wrong = next(number for number in numbers if not -size <= number < size)
            raise IndexError(f"no anchor {wrong} among {size}. Allowed: {-size} to {size - 1}.")
        values = reader.read(np.array(numbers, np.int64) % max(size, 1))
        try:
            return self._format(values)
        except FormatError as error:
            raise LoaderError(str(error)) from error

    @property
    def reader(self) -> WindowReader:
        """The reader of the windows, for a `stepwell.loader.BatchSampler`."""
        return self._windows.reader

    @property
    def seed(self) -> int:
        """The seed of orders that a `stepwell.loader.BatchSampler` is given by name."""
        return self._windows.seed

    @property
    def num_frames(self) -> int:
        """The number of items."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """The number of episodes that were selected."""
        return self.view.num_episodes

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
        torch = import_torch()
        return {"from": torch.from_numpy(stops - lengths), "to": torch.from_numpy(stops)}

    def item_format(self, images: Images = "float32") -> ItemFormat:
        """Return what is read of each item, and how it is arranged: fields and transform for a `stepwell.Loader`.

        Args:
            images: "float32" of 0 to 1, channels first; "uint8", channels first; "uint8_view": the same as a view.
        """
        steps = {key: tuple(each) for key, each in (self.delta_indices or {}).items()}
        return item_format(self.meta, steps, images, is_fused=True)

    def loader(
        self,
        batch_size: int = 64,
        *,
        order: Literal["sequential", "random", "pooled"] | Order = "random",
        images: Literal["uint8", "float32"] = "uint8",
        transform: WholeTransform = (),
        **options: Unpack[LoaderOptions],
    ) -> Loader:
        """Return a loader of batches with the keys, shapes and dtypes that a ``DataLoader`` of this would give.

        Args:
            batch_size: items a batch.
            order: as for `stepwell.Loader`; "random" by default, "pooled" where decoding costs the most.
            images: "uint8" (default): bytes, [B, 3, H, W] or [B, T, 3, H, W], channels last in memory, which torch
                calls ``channels_last``; ``images.float() / 255`` is what an item has. "float32": as an item has them.
            transform: of the whole batch, one or several, see `stepwell.Loader`; sees arrays, and "task" as a list.
            options: further ones of `stepwell.Loader`: ``threads``, ``seed``, ``epochs``, ``device`` ...

        Raises:
            WindowError: ``image_transforms``, which are functions of single items.
        """
        if self.image_transforms is not None:
            raise WindowError(
                "image_transforms are done item by item, and a loader builds whole batches. Leave them out, and give "
                "loader(transform=...) transforms of stepwell, or do them on the batch."
            )
        made = self.item_format("uint8_view" if images == "uint8" else images)
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


def _open_view(
    source: Source,
    root: str | os.PathLike[str] | None,
    episodes: Sequence[int] | None,
    tolerance: float,
    hub: Mapping[str, Any],
) -> View:
    """Return the selected episodes of a dataset, or of a store."""
    if isinstance(source, (Store, View)):
        return _selected(source, episodes)
    where = os.fspath(source) if root is None else os.fspath(root)
    if root is None and "://" not in where and not Path(where).exists():
        where = str(_downloaded(where) or where)
    if Path(where, STORE_JSON).exists():
        from stepwell.store import open as open_store

        return _selected(open_store(where, mode="r"), episodes)
    if root is not None and not Path(where, INFO_PATH).exists():
        raise DatasetNotFoundError(
            f"no LeRobot dataset in {where}: there is no {INFO_PATH}. A directory is never looked for on the hub; "
            f"leave root out to fetch {os.fspath(source)!r} from there."
        )
    return View(_open_in_place(where, episodes, tolerance, hub))


def _open_in_place(where: str, episodes: Sequence[int] | None, tolerance: float, hub: Mapping[str, Any]) -> Store:
    from stepwell.lerobot.in_place import open_in_place

    chosen = None if episodes is None else sorted(set(episodes))
    if not hub["download_videos"] and not Path(where).is_dir():
        from stepwell.lerobot.hub import locate

        return open_in_place(locate(where, episodes=chosen, **hub), tolerance=tolerance)
    options = {name: value for name, value in hub.items() if name != "download_videos"}
    return open_in_place(where, episodes=chosen, tolerance=tolerance, **options)


def _selected(source: Store | View, episodes: Sequence[int] | None) -> View:
    """Return some episodes of a store; default all that are not being recorded."""
    view = source if isinstance(source, View) else View(source)
    if len(view.stores) != 1:
        raise WindowError(f"a view of {len(view.stores)} stores. Use MultiLeRobotDataset with a dataset of each.")
    is_open = view.column("is_open")
    # the number of their items would depend on the windows
    view = view.select(~is_open) if is_open.any() else view
    return view if episodes is None else view.select(sorted(set(episodes)))


def _downloaded(repo_id: str) -> Path | None:
    """Return LeRobot's own directory of a dataset of the hub, if there is one."""
    found = _lerobot_home() / repo_id
    return found if (found / INFO_PATH).exists() else None


def _lerobot_home() -> Path:
    hugging_face = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_LEROBOT_HOME") or Path(hugging_face) / "lerobot").expanduser()


def _check_known(lerobot_arguments: Collection[str]) -> None:
    unknown = sorted(set(lerobot_arguments) - IGNORED)
    if unknown:
        raise TypeError(f"LeRobotDataset got {', '.join(unknown)}, which neither it nor LeRobot's class has.")
