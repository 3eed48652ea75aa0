"""What an item of a LeRobot dataset holds: which fields are read, and a batch of them arranged as LeRobot has it.

::

    cameras whose frames are in mp4 files | other features, in the dataset's order | <key>_is_pad | task

Dtypes are LeRobot's: its items are made of Python numbers, so that every float becomes float32 and every integer int64,
whatever the files hold.

Source: ``LeRobotDataset.__getitem__`` of huggingface/lerobot 0.3.3 and 0.4.4, observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, FormatError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.lerobot.meta_view import DatasetMeta
from stepwell.lerobot.tasks import episode_tasks
from stepwell.schema import Feature, Schema
from stepwell.store.layout import ordinals_of_keys, step_id
from stepwell.transforms import Convert, Squeeze, ToCHW, Transform
from stepwell.transforms.base import Shape
from stepwell.transforms.images import ImageLayout
from stepwell.windows import Field
from stepwell.windows.fields import schema_of

__all__ = [
    "DATASET_INDEX",
    "EpisodeNumbers",
    "Images",
    "ItemFormat",
    "Planes",
    "UnitFloats",
    "delta_steps",
    "item_format",
]

# what becomes of a camera's bytes: floats of 0 to 1; bytes, channels first; the same as a view, nothing is moved
Images = Literal["float32", "uint8", "uint8_view"]
Transforms = tuple[Callable[..., Any], ...]
DATASET_INDEX = "dataset_index"
# of the key of an item's own index, where a window of it was asked for
OWN = " of the item"
STEP_ID = "step_id"
COMPUTED = {"timestamp": "timestamp", "frame_index": "step_index", "episode_index": "episode_index"}
LEROBOT_DTYPES = {"f": "<f4", "i": "<i8", "u": "<i8"}


@dataclass(frozen=True)
class UnitFloats(Transform):
    """Make float32 of 0 to 1 of bytes: exactly ``bytes / 255``, to the last bit; of other numbers floats as they are.

    Example:
        >>> UnitFloats()(np.array([[0, 51, 255]], np.uint8), Draws(np.zeros(1, np.uint64)))
        array([[0. , 0.2, 1. ]], dtype=float32)

    Notes:
        `ToFloat` multiplies by 1/255, which differs in the last bit.
    """

    is_pointwise = True
    is_exact = True

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, float32; see `Transform.output`."""
        return shape, np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the values as floats; see `Transform.__call__`."""
        floats = values.astype(np.float32)
        return np.divide(floats, np.float32(255), out=floats) if values.dtype == np.uint8 else floats


@dataclass(frozen=True)
class Planes(Transform):
    """Put the channels of images first as a view: no byte is moved, so that they lie last in memory.

    Example:
        >>> planes = Planes()(np.zeros((8, 96, 128, 3), np.uint8), Draws(np.zeros(8, np.uint64)))
        >>> planes.shape, planes.strides[1:]
        ((8, 3, 96, 128), (1, 384, 3))
    """

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the channels first; see `Transform.output`."""
        return ToCHW().output(shape, dtype)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return a view of the images; see `Transform.__call__`."""
        has_channels = ImageLayout.of(values.shape[1:]).has_channels
        return np.moveaxis(values, -1, -3) if has_channels else values[..., None, :, :]


PLANES: dict[Images, tuple[Transform, ...]] = {
    "float32": (UnitFloats(), ToCHW()),
    "uint8": (ToCHW(),),
    "uint8_view": (Planes(),),
}


@dataclass(frozen=True, eq=False)
class EpisodeNumbers(Transform):
    """Make numbers of a store's episodes of step ids: for columns that a store of another origin lacks.

    Args:
        first: int64 [E], id of each episode's first step, ascending.
        numbers: int64 [E], of each episode.
        counts: whether the steps since the episode's first are added.
    """

    first: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    counts: bool

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return int64 of the shape of the ids."""
        at = np.searchsorted(self.first, values, side="right") - 1
        found: npt.NDArray[np.int64] = self.numbers[at]
        return found + (values - self.first[at]) if self.counts else found


@dataclass(frozen=True, eq=False)
class ItemFormat:
    """How the items of a dataset are read and arranged: the transform of whole batches that a loader or dataset runs.

    Args:
        fields: key to field; what is read.
        keys: of an item, in order; ``task`` follows, the text of ``task_index`` or of a feature of that name.
        texts: those of them that are strings.
        tasks: by ``task_index``, of each dataset; a field ``dataset_index`` says which, where there are several.
        subtasks: by ``subtask_index``, of datasets that have them.

    Notes:
        An immutable value: picklable, for any number of threads.
    """

    # what a row becomes depends on nothing else: small batches may be arranged together
    is_by_row: ClassVar[bool] = True
    fields: dict[str, Field]
    keys: tuple[str, ...]
    texts: frozenset[str]
    tasks: tuple[tuple[str, ...], ...]
    subtasks: tuple[str, ...] | None = None

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a batch in the order of an item, with its tasks; strings as lists.

        Raises:
            FormatError: a task_index that no task has.
        """
        batch = {key: values[key].tolist() if key in self.texts else values[key] for key in self.keys}
        batch["task"] = batch.pop("task") if "task" in self.texts else self._tasks_of(values)
        if self.subtasks is not None:
            batch["subtask"] = _looked_up("subtask_index", [self.subtasks], _own(values, "subtask_index"))
        if DATASET_INDEX in self.fields:
            batch[DATASET_INDEX] = values[DATASET_INDEX]
        return batch

    def _tasks_of(self, values: dict[str, Any]) -> list[str]:
        datasets = values[DATASET_INDEX].tolist() if DATASET_INDEX in self.fields else None
        return _looked_up("task_index", self.tasks, _own(values, "task_index"), datasets)


def _own(values: dict[str, Any], name: str) -> list[int]:
    """Return an index of each item's own row, where a window of it was asked for, too."""
    found: list[int] = values.get(f"{name}{OWN}", values[name]).tolist()
    return found


def _looked_up(
    name: str, tables: Sequence[tuple[str, ...]], numbers: list[int], datasets: list[int] | None = None
) -> list[str]:
    """Return texts by number, of one table or of each dataset's own."""
    try:
        return [tables[k][i] for k, i in zip(datasets or [0] * len(numbers), numbers, strict=True)]
    except IndexError:
        raise FormatError(
            f"{name} {max(numbers)}, and the dataset has {min(map(len, tables))} texts for it: its table is cut short. "
            "Write the dataset again, or select other episodes."
        ) from None


def delta_steps(
    delta_timestamps: Mapping[str, Sequence[float]] | None, fps: float, tolerance_s: float
) -> dict[str, tuple[int, ...]]:
    """Return the offsets in steps of each key.

    Args:
        delta_timestamps: key to seconds from the item's own time.
        fps: of the dataset.
        tolerance_s: seconds that each may lie off a step.

    Raises:
        WindowError: none for a key, or one that lies off (a ValueError, as LeRobot raises).

    Example:
        >>> delta_steps({"action": [0.0, 0.1, 0.2]}, 10, 1e-4)
        {'action': (0, 1, 2)}
    """
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


def item_format(meta: DatasetMeta, steps: Mapping[str, tuple[int, ...]], images: Images = "float32") -> ItemFormat:
    """Return how the items of a dataset are read.

    Args:
        meta: of the dataset, and the store it is read from.
        steps: offsets by key, see `delta_steps`.
        images: what becomes of cameras.

    Raises:
        FeatureNotFoundError: offsets of no feature.
        WindowError: offsets of strings, or no such choice of images.
    """
    if images not in PLANES:
        raise WindowError(f"images={images!r} is not one of {', '.join(map(repr, PLANES))}.")
    features = meta.features
    order = sorted(features, key=lambda name: features[name]["dtype"] != "video")
    for key in steps:
        if key not in features:
            raise FeatureNotFoundError(f"delta_timestamps of {key!r}: no such feature. There are: {', '.join(order)}.")
        if features[key]["dtype"] == "string":
            raise WindowError(f"delta_timestamps of {key!r}: a window of strings is no tensor. Leave the key out.")
    schema = schema_of(meta.store)
    derived = _derived_fields(meta, schema) if set(features) - set(schema) else {}
    fields = {}
    for name in order:
        source, made = derived.get(name, (name, ()))
        offsets = steps.get(name)
        fields[name] = Field(
            source, offsets, transform=(*made, *_transforms(features[name], schema.get(name), offsets, images))
        )
    for name in sorted({"task_index", "subtask_index"} & set(steps)):
        source, made = derived.get(name, (name, ()))
        fields[f"{name}{OWN}"] = Field(source, transform=made)
    masks = tuple(f"{key}_is_pad" for key in steps)
    texts = frozenset(name for name in order if features[name]["dtype"] == "string")
    subtasks = None if meta.subtasks is None else tuple(meta.subtasks.index)
    return ItemFormat(fields, (*order, *masks), texts, (meta.task_texts,), subtasks)


def _transforms(
    info: Mapping[str, Any], feature: Feature | None, offsets: tuple[int, ...] | None, images: Images
) -> Transforms:
    """Return what makes of a field what LeRobot has; of one that is computed there is no feature."""
    if info["dtype"] in ("image", "video"):
        # LeRobot takes away the axis of time where a video gives one frame, and where pictures do it leaves it
        squeezed: Transforms = (Squeeze(0),) if info["dtype"] == "video" and offsets and len(offsets) == 1 else ()
        return (*squeezed, *PLANES[images])
    if feature is None or feature.is_ragged:
        return ()
    wanted = LEROBOT_DTYPES.get(feature.np_dtype.kind, feature.dtype)
    return () if feature.np_dtype == wanted else (Convert(wanted),)


def _derived_fields(meta: DatasetMeta, schema: Schema) -> dict[str, tuple[str, Transforms]]:
    """Return source and transforms of the index features that the store does not hold.

    Raises:
        WindowError: a feature of the store has the name of the ids that they are made of.
    """
    if STEP_ID in schema:
        raise WindowError(
            f"{meta.store.path} has a feature {STEP_ID!r}, which hides the ids of steps that LeRobot's index features "
            "are made of. Write a copy under another name."
        )
    found: dict[str, tuple[str, Transforms]] = {name: (source, ()) for name, source in COMPUTED.items()}
    found |= {name: (STEP_ID, (made,)) for name, made in _numbers_of_episodes(meta, schema).items()}
    return {name: source for name, source in found.items() if name not in schema}


def _numbers_of_episodes(meta: DatasetMeta, schema: Schema) -> dict[str, EpisodeNumbers]:
    """Return what makes index features of the ids of steps."""
    segments, everything = meta.store.listing
    places = np.flatnonzero(~everything.is_open)
    table = everything.take(places)
    ordinals = ordinals_of_keys(segments.keys)
    first = step_id(ordinals[table.segment], table.start)
    order = np.argsort(first, kind="stable")
    starts = np.cumsum(table.length) - table.length
    found = {"index": EpisodeNumbers(first[order], starts[order], counts=True)}
    if len(places) < len(everything):
        # the store counts those, too, that are being recorded
        found["episode_index"] = EpisodeNumbers(first[order], order, counts=False)
    if "step_index" in schema:
        # the computed one is hidden by it
        found["frame_index"] = EpisodeNumbers(first[order], np.zeros_like(order), counts=True)
    if "task_index" not in schema:
        numbers = {text: number for number, text in reversed(list(enumerate(meta.task_texts)))}
        # one that the store's list lacks is beyond its end, and refused when it is looked up
        every = episode_tasks(meta.store)
        texts = [every[place] for place in places.tolist()]
        tasks = np.array([numbers.get(each[0], len(numbers)) if each else 0 for each in texts], np.int64)
        found["task_index"] = EpisodeNumbers(first[order], tasks[order], counts=False)
    return found
