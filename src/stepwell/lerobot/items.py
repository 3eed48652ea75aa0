"""What an item of a LeRobot dataset holds: which fields are read, and a batch of them arranged as LeRobot has it.

::

    cameras whose frames are in mp4 files | other features, in the dataset's order | <key>_is_pad | task

and how torch's DataLoader gets a whole batch back: stacking 256 items of 12 keys takes 3,000 small copies::

    DataLoader  --> __getitems__([7, 3, ...]) --> ItemRows      columns [B, ...], no item is made yet
                --> default_collate(items)    --> items[0]      is an `Item`: torch looks up its type in a table
                --> collate_items             --> the columns   where the program has not touched an item meanwhile

Dtypes are LeRobot's: its items are made of Python numbers, so that every float becomes float32 and every integer int64,
whatever the files hold.

Source: ``LeRobotDataset.__getitem__`` of huggingface/lerobot 0.3.3 and 0.4.4, observed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from typing import Any, ClassVar, Literal, SupportsIndex, get_args, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, FormatError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.lerobot.depth import Depth, DepthUnit, depth_of
from stepwell.lerobot.image_transforms import ChangeImages, ImageChanges
from stepwell.lerobot.info import LANGUAGE, TEXTS
from stepwell.lerobot.meta_view import DatasetMeta
from stepwell.lerobot.tasks import episode_tasks
from stepwell.loader.memory import import_torch
from stepwell.loader.worker_memory import BatchMemory, Empty
from stepwell.schema import Feature, Schema
from stepwell.store.layout import ordinals_of_keys, step_id
from stepwell.transforms import Squeeze, ToCHW, Transform
from stepwell.transforms.base import Shape
from stepwell.windows import Field
from stepwell.windows.fields import schema_of

__all__ = [
    "DATASET_INDEX",
    "DepthPlanes",
    "EpisodeNumbers",
    "Images",
    "Item",
    "ItemFormat",
    "ItemRows",
    "Planes",
    "UnitFloats",
    "collate_items",
    "delta_steps",
    "item_format",
]

# a camera's images: floats of 0 to 1; bytes; bytes as a view of the frames, whose channels lie last in memory
Images = Literal["float32", "uint8", "uint8_view"]
Maker = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
DATASET_INDEX = "dataset_index"
# added to the key of an item's own index, where its field is a window
OWN = " of the item"
STEP_ID = "step_id"
COMPUTED = {"timestamp": "timestamp", "frame_index": "step_index", "episode_index": "episode_index"}
LEROBOT_DTYPES = {"f": "<f4", "i": "<i8", "u": "<i8"}
# 1/255 in two parts: a byte times the first is not rounded, so that the sum of both products is b/255 to the last bit
UNIT = np.array([[257 / 65536], [1 / (255 * 65536)], [0]], np.float32)


@dataclass(frozen=True, slots=True)
class UnitFloats(Transform):
    """Make float32 of 0 to 1 of bytes: exactly ``bytes / 255``, to the last bit; of others floats as they are."""

    # `ToFloat` multiplies by 1/255, which differs in the last bit
    is_pointwise = True
    is_exact = True

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, float32; see `Transform.output`."""
        return shape, np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the values as floats; see `Transform.__call__`."""
        floats = values.astype(np.float32)
        return np.divide(floats, np.float32(255), out=floats) if values.dtype == np.uint8 else floats


@dataclass(frozen=True, slots=True)
class Planes:
    """Put the channels of images [n, *window, height, width, channels] first; grey ones may have no channels."""

    images: Images
    has_channels: bool = True
    # LeRobot drops the axis of time where a video gives one frame; where images do, it keeps the axis
    is_squeezed: bool = False

    def __call__(self, values: npt.NDArray[Any], empty: Empty = np.empty) -> npt.NDArray[Any]:
        """Return the images in memory of ``empty``; of "uint8_view" a view of them."""
        values = values[:, 0] if self.is_squeezed else values
        values = values if self.has_channels else values[..., None]
        if self.images == "uint8_view":
            return np.moveaxis(values, -1, -3)
        if values.dtype != np.uint8:
            dtype = np.float32 if self.images == "float32" else values.dtype
            return np.moveaxis(values, -1, -3).astype(dtype, order="C")
        whole, crop_affine, crop_planes = _kernels()
        *front, height, width, channels = values.shape
        found = empty((*front, channels, height, width), np.float32 if self.images == "float32" else np.uint8)
        frames = np.ascontiguousarray(values).reshape(-1, height, width, channels)
        planes = found.reshape(-1, channels, 1, height * width)
        if self.images == "float32":
            crop_affine(*whole(frames), UNIT.repeat(channels, axis=1), True, planes)
        else:
            crop_planes(*whole(frames), planes)
        return found


@dataclass(frozen=True, slots=True)
class DepthPlanes:
    """Make depths of the rows of a depth map [n, *window, height, width, 1]: float32 [n, *window, 1, height, width]."""

    depth: Depth
    # None: that of what was recorded
    unit: DepthUnit | None
    has_channels: bool = True
    # see `Planes`
    is_squeezed: bool = False

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the depths in the unit."""
        values = values[:, 0] if self.is_squeezed else values
        *front, height, width = values.shape[:-1] if self.has_channels else values.shape
        return self.depth.values(values, self.unit).reshape(*front, 1, height, width)


@dataclass(frozen=True, eq=False)
class EpisodeNumbers:
    """Make numbers of a store's episodes of step ids: for columns that a store of another origin lacks."""

    # int64 [E]: id of each episode's first step, ascending, and its number
    first: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    # whether the steps since the episode's first are added
    counts: bool

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return int64 of the shape of the ids."""
        at = np.searchsorted(self.first, values, side="right") - 1
        found: npt.NDArray[np.int64] = self.numbers[at]
        return found + (values - self.first[at]) if self.counts else found


@dataclass(frozen=True, eq=False)
class ItemFormat:
    """The fields that items are read by, and the transform of whole batches that arranges them; picklable."""

    # a row depends on its own values alone: small batches may be arranged together
    is_by_row: ClassVar[bool] = True
    fields: dict[str, Field]
    # of an item, in order; the text of its task follows
    keys: tuple[str, ...]
    # keys of strings, and of annotations, which are JSON
    texts: frozenset[str]
    # by task_index, of each dataset
    tasks: tuple[tuple[str, ...], ...]
    # likewise by subtask_index; of none where one has no texts
    subtasks: tuple[tuple[str, ...], ...] = ()
    # by key of a field that is not read as an item has it
    makers: dict[str, Maker] = field(default_factory=dict)
    # those of `texts` that are annotations
    languages: tuple[str, ...] = ()

    def of_frames(self, keys: Collection[str]) -> ItemFormat:
        """Return the same, with the images of some keys as views of their frames."""
        views = {
            key: replace(make, images="uint8_view") if key in keys and isinstance(make, Planes) else make
            for key, make in self.makers.items()
        }
        return replace(self, makers=views)

    def __call__(self, values: dict[str, Any], empty: Empty = np.empty) -> dict[str, Any]:
        """Return a batch in the order of an item, with its tasks; strings as lists; images in memory of ``empty``."""
        values = dict(values)
        for key, make in self.makers.items():
            values[key] = make(values[key], empty) if isinstance(make, Planes) else make(values[key])
        batch = {}
        for key in self.keys:
            batch[key] = values[key].tolist() if key in self.texts else values[key]
        for key in self.languages:
            batch[key] = list(map(json.loads, batch[key]))
        datasets = values.get(DATASET_INDEX)
        batch["task"] = (
            batch.pop("task") if "task" in self.texts else _texts(values, "task_index", self.tasks, datasets)
        )
        if self.subtasks:
            batch["subtask"] = _texts(values, "subtask_index", self.subtasks, datasets)
        if datasets is not None:
            batch[DATASET_INDEX] = datasets
        return batch


def _texts(
    values: Mapping[str, Any], name: str, tables: Sequence[tuple[str, ...]], datasets: npt.NDArray[Any] | None = None
) -> list[str]:
    """Return the texts of each item's own index, of one table or of its dataset's."""
    # the field of the index may be a window
    numbers: list[int] = values.get(f"{name}{OWN}", values[name]).tolist()
    try:
        if datasets is None:
            return list(map(tables[0].__getitem__, numbers))
        return [tables[k][i] for k, i in zip(datasets.tolist(), numbers, strict=True)]
    except IndexError:
        raise FormatError(
            f"{name} {max(numbers)}, and the dataset has {min(map(len, tables))} texts for it: its table is cut short. "
            "Write the dataset again, or select other episodes."
        ) from None


def delta_steps(
    delta_timestamps: Mapping[str, Sequence[float]] | None, fps: float, tolerance_s: float
) -> dict[str, tuple[int, ...]]:
    """Return the offsets in steps of each key."""
    steps = {}
    for key, seconds in (delta_timestamps or {}).items():
        times = [float(value) for value in seconds]
        if not times:
            raise WindowError(f"delta_timestamps of {key!r} are empty. Give at least one, or leave the key out.")
        off = [time for time in times if not abs(time * fps - float(np.rint(time * fps))) / fps <= tolerance_s]
        if off:
            raise WindowError(
                f"delta_timestamps of {key!r}: {off} are not within tolerance_s={tolerance_s} of a step at {fps:g} "
                f"fps. Use multiples of 1/{fps:g}, the nearest to the first is {np.rint(off[0] * fps) / fps:.6g}."
            )
        steps[key] = tuple(round(time * fps) for time in times)
    return steps


def item_format(
    meta: DatasetMeta,
    steps: Mapping[str, tuple[int, ...]],
    images: Images = "float32",
    *,
    is_fused: bool = False,
    changes: ImageChanges | None = None,
    leave_out: Collection[str] = (),
    depth_unit: DepthUnit | None = "mm",
) -> ItemFormat:
    """Return how items with windows of these offsets are read.

    Args:
        meta: of the dataset.
        steps: key to offsets.
        images: what those of cameras are.
        is_fused: whether floats of cameras, and images that are changed, are made by the loader's pass.
        changes: of images, by the loader's pass.
        leave_out: features.
    """
    if images not in get_args(Images):
        raise WindowError(f"images={images!r} is not one of {', '.join(map(repr, get_args(Images)))}.")
    features = {name: each for name, each in meta.features.items() if name not in leave_out}
    order = sorted(features, key=lambda name: features[name]["dtype"] != "video")
    for key in steps:
        if key not in features:
            raise FeatureNotFoundError(f"delta_timestamps of {key!r}: no such feature. There are: {', '.join(order)}.")
        if features[key]["dtype"] in TEXTS:
            raise WindowError(f"delta_timestamps of {key!r}: a window of strings is no tensor. Leave the key out.")
    schema = schema_of(meta.store)
    derived = _derived_fields(meta, schema) if set(features) - set(schema) else {}
    fields, makers = {}, {}
    for name in order:
        source, make = derived.get(name, (name, None))
        offsets = steps.get(name)
        transforms: tuple[Transform, ...] = ()
        if name not in derived:
            make = _maker(features[name], schema[name], offsets, images, depth_unit)
        if is_fused and isinstance(make, Planes):
            own = None if name in meta.depth_keys else changes
            transforms, make = _fused(make, images, own)
        fields[name] = Field(source, offsets, transform=transforms)
        if make is not None:
            makers[name] = make
    for name in sorted({"task_index", "subtask_index"} & set(steps)):
        source, make = derived.get(name, (name, None))
        fields[f"{name}{OWN}"] = Field(source)
        if make is not None:
            makers[f"{name}{OWN}"] = make
    masks = tuple(f"{key}_is_pad" for key in steps)
    texts = frozenset(name for name in order if features[name]["dtype"] in TEXTS)
    languages = tuple(name for name in order if features[name]["dtype"] == LANGUAGE)
    subtasks = () if meta.subtasks is None else (tuple(meta.subtasks.index),)
    return ItemFormat(fields, (*order, *masks), texts, (meta.task_texts,), subtasks, makers, languages)


def _fused(make: Planes, images: Images, changes: ImageChanges | None) -> tuple[tuple[Transform, ...], Planes | None]:
    """Return the transforms that a camera's field has for a maker, in memory that is used again, and the maker left."""
    squeezed = (Squeeze(0),) if make.is_squeezed else ()
    if changes is not None:
        return (*squeezed, ChangeImages(changes, "float32" if images == "float32" else "uint8")), None
    if images == "float32":
        return (*squeezed, UnitFloats(), ToCHW()), None
    return (), make


def _maker(
    info: Mapping[str, Any],
    feature: Feature,
    offsets: tuple[int, ...] | None,
    images: Images,
    depth_unit: DepthUnit | None,
) -> Maker | None:
    """Return the function from rows of a feature to LeRobot's values; None where these are the same."""
    if info["dtype"] in ("image", "video"):
        is_squeezed = info["dtype"] == "video" and offsets is not None and len(offsets) == 1
        has_channels = len(feature.fixed_shape) == 3
        depth = depth_of(info)
        if depth is not None and feature.np_dtype != np.uint8:
            return DepthPlanes(depth, depth_unit, has_channels, is_squeezed)
        return Planes(images, has_channels, is_squeezed)
    if feature.is_ragged:
        return None
    dtype = LEROBOT_DTYPES.get(feature.np_dtype.kind, feature.dtype)
    return None if feature.np_dtype == dtype else partial(np.ndarray.astype, dtype=dtype)


def _derived_fields(meta: DatasetMeta, schema: Schema) -> dict[str, tuple[str, Maker | None]]:
    """Return source and maker of the index features that the store does not hold."""
    if STEP_ID in schema:
        raise WindowError(
            f"{meta.store.path} has a feature {STEP_ID!r}, which hides the ids of steps that LeRobot's index features "
            "are made of. Write a copy under another name."
        )
    found: dict[str, tuple[str, Maker | None]] = {name: (source, None) for name, source in COMPUTED.items()}
    found |= {name: (STEP_ID, make) for name, make in _numbers_of_episodes(meta, schema).items()}
    return {name: source for name, source in found.items() if name not in schema}


def _numbers_of_episodes(meta: DatasetMeta, schema: Schema) -> dict[str, EpisodeNumbers]:
    """Return the makers of index features from ids of steps."""
    segments, everything = meta.store.listing
    places = np.flatnonzero(~everything.is_open)
    table = everything.take(places)
    ordinals = ordinals_of_keys(segments.keys)
    first = step_id(ordinals[table.segment], table.start)
    order = np.argsort(first, kind="stable")
    starts = np.cumsum(table.length) - table.length
    found = {"index": EpisodeNumbers(first[order], starts[order], counts=True)}
    if len(places) < len(everything):
        # the store counts also episodes that are being recorded
        found["episode_index"] = EpisodeNumbers(first[order], order, counts=False)
    if "step_index" in schema:
        # the computed one is hidden by it
        found["frame_index"] = EpisodeNumbers(first[order], np.zeros_like(order), counts=True)
    if "task_index" not in schema:
        numbers = {text: number for number, text in reversed(list(enumerate(meta.task_texts)))}
        # a text that the store's list lacks gets a number beyond its end, which `_texts` refuses
        every = episode_tasks(meta.store)
        texts = [every[place] for place in places.tolist()]
        tasks = np.array([numbers.get(each[0], len(numbers)) if each else 0 for each in texts], np.int64)
        found["task_index"] = EpisodeNumbers(first[order], tasks[order], counts=False)
    return found


class Item(dict[str, Any]):
    """One item, a plain dict of views of a read; torch's ``default_collate`` finds `collate_items` by its type."""

    __slots__ = ()


class ItemRows(list[Item]):
    """The items of one read: tensors [B, ...] or lists of B by key, and a list that is filled when it is asked for.

    A ``collate_fn`` may do with it whatever it does with a list; `collate_items` looks at the columns alone.
    """

    __slots__ = ("_first", "_is_filled", "_size", "columns", "memory")

    def __init__(self, columns: dict[str, Any], size: int, memory: BatchMemory | None = None) -> None:
        super().__init__()
        _register()
        self.columns, self.memory = columns, memory
        self._size, self._is_filled = size, False
        self._first: tuple[Item, Item] | None = None

    def __len__(self) -> int:
        return super().__len__() if self._is_filled else self._size

    @overload
    def __getitem__(self, i: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, i: slice) -> list[Item]: ...
    def __getitem__(self, i: SupportsIndex | slice) -> Item | list[Item]:
        if not self._is_filled and i == 0 and self._size:
            if self._first is None:
                item = Item({key: column[0] for key, column in self.columns.items()})
                self._first = item, Item(item)
            return self._first[0]
        self._fill()
        return super().__getitem__(i)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, ([*self],)

    @property
    def is_untouched(self) -> bool:
        """Return whether no item but the first was made, and its values were not replaced."""
        if self._is_filled or self._first is None:
            return not self._is_filled
        item, made = self._first
        return len(item) == len(made) and all(item.get(key) is value for key, value in made.items())

    def _fill(self) -> None:
        if not self._is_filled:
            columns = [c.unbind(0) if hasattr(c, "unbind") else c for c in self.columns.values()]
            rows = [Item(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]
            if self._first is not None:
                rows[0] = self._first[0]
            super().extend(rows)
            self._is_filled = True


def _of_filled(name: str) -> Callable[..., Any]:
    """Return a list's method that fills it first."""
    method = getattr(list, name)

    @wraps(method)
    def filling(rows: ItemRows, *arguments: Any, **options: Any) -> Any:
        rows._fill()
        return method(rows, *arguments, **options)

    return filling


OPERATORS = (
    *("__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__gt__", "__iadd__", "__imul__", "__iter__"),
    *("__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "__setitem__"),
)
VERBS = ("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort")
# all that look at the list's own memory
for _name in (*OPERATORS, *VERBS):
    setattr(ItemRows, _name, _of_filled(_name))


def collate_items(batch: Sequence[Mapping[str, Any]], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Return items as ``default_collate`` would: the batch that they are views of, where they are all of it."""
    from torch.utils.data._utils.collate import collate

    if not isinstance(batch, ItemRows) or not batch.is_untouched:
        columns = {key: [item[key] for item in batch] for key in batch[0]}
    else:
        columns = batch.columns
    collated = {
        # lists of annotations are of any length
        key: collate(column, collate_fn_map=collate_fn_map)
        if isinstance(column, list) and not isinstance(column[0], list | None)
        else column
        for key, column in columns.items()
    }
    memory = batch.memory if isinstance(batch, ItemRows) else None
    return collated if memory is None else memory.batch(collated)


@cache
def _kernels() -> Any:
    """Return the kernels; an import statement for each camera would take as long as a small image."""
    from stepwell.transforms.cropping_kernels import crop_affine, crop_planes, whole

    return whole, crop_affine, crop_planes


@cache
def _register() -> None:
    """Enter items into the table of torch's default_collate; a spawned worker has a table of its own."""
    import_torch()
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map.setdefault(Item, collate_items)
