"""What notebooks show of batches and loaders, and the figure of a batch.

A batch knows no schema. Of its arrays those are drawn as images whose last axes can only be: uint8 with sides of at
least 8, floats with sides of at least 16, and 1, 3 or 4 channels, last or (as torch has them) first. The mask
``<key>_is_pad`` says which axes are the window's, and which of its steps are padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.display.html import Strip, block, lines, strips, table
from stepwell.errors import FeatureNotFoundError
from stepwell.loader.settings import LoaderSettings
from stepwell.schema import flatten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.loader.batch import Batch
    from stepwell.loader.loader import Loader

__all__ = ["batch_html", "loader_html", "show_batch"]

MASK = "_is_pad"
CHANNELS = (1, 3, 4)
# the least sides of an image, by the kind of its numbers: small float arrays are points and matrices
LEAST_SIDES = {"u": 8, "f": 16}
NUM_SHOWN, MAX_KEYS = 4, 24
# thumbnails of a batch, over all its cameras
NUM_THUMBNAILS = 16
# steps of a window that one strip of a figure shows
MAX_STRIP = 8


@dataclass(frozen=True)
class Value:
    """The first rows of one key of a batch.

    Attributes:
        key: with dots where the batch is nested.
        array: [n, *window, *step]; object arrays of texts.
        num_window: how many axes are the window's.
        is_pad: bool [n, *window]; None where there is no mask.
        is_image: whether a step is an image.
    """

    key: str
    array: npt.NDArray[Any]
    num_window: int
    is_pad: npt.NDArray[np.bool_] | None
    is_image: bool

    def steps(self, row: int) -> npt.NDArray[Any]:
        """Return the steps of one window, one after the other: [T, *step]."""
        shape = self.array.shape[1 : 1 + self.num_window]
        found: npt.NDArray[Any] = self.array[row : row + 1].reshape(
            math.prod(shape), *self.array.shape[1 + self.num_window :]
        )
        return found

    def frames(self, row: int) -> npt.NDArray[Any]:
        """Return the images of one window, channels last."""
        steps = self.steps(row)
        return steps if steps.shape[-1] in CHANNELS else np.moveaxis(steps, 1, -1)

    def pads(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which steps of one window are padding: bool [T]."""
        num = math.prod(self.array.shape[1 : 1 + self.num_window])
        return np.zeros(num, np.bool_) if self.is_pad is None else self.is_pad[row].reshape(num)


def batch_html(batch: Batch) -> str:
    """Return a batch as HTML: keys, dtypes, shapes, padding, numbers and frames of the first windows."""
    found = dict(flatten(batch))
    shown = list(_values(batch, NUM_SHOWN))
    numbers = {value.key: value for value in shown}
    rows = [
        (key, _dtype(value), _shape(value), _padding(found, key), _numbers(numbers.get(key)))
        for key, value in found.items()
        if not (key.endswith(MASK) and key.removesuffix(MASK) in found)
    ]
    images = [value for value in shown if value.is_image]
    num_frames = max(1, NUM_THUMBNAILS // (NUM_SHOWN * max(1, len(images))))
    films = [_strip(value, num_frames) for value in images]
    return block(
        repr(batch).partition("\n")[0].strip("<>"),
        table(rows, ("key", "dtype", "shape", "padding", "first window"), "key"),
        strips(films),
    )


def loader_html(loader: Loader) -> str:
    """Return a loader as HTML: its fields, and what is set."""
    fields = loader.reader.fields
    rows = [
        (key, ", ".join(found.field.sources), _offsets(found.field), found.field.pad, _transforms(found.field))
        for key, found in fields.items()
    ]
    default, settings = LoaderSettings(), loader.settings
    values = {
        each.name: (getattr(settings, each.name), getattr(default, each.name)) for each in dataclass_fields(settings)
    }
    changed = {name: value for name, (value, usual) in values.items() if value != usual}
    state = {"view": loader.view, "epoch": loader.epoch, "batch_size": settings.batch_size, **changed}
    return block(
        repr(loader),
        table(rows, ("key", "feature", "offsets", "pad", "transforms"), "field"),
        table([(name, str(value)) for name, value in state.items()], noun="setting"),
    )


def show_batch(batch: Batch, keys: Iterable[str] | None, num_rows: int) -> Figure:
    """Return the figure of `Batch.show`."""
    from stepwell.display.figures import Film, curves, film, new_figure, note

    shown = list(_values(batch, max(1, num_rows), None if keys is None else list(keys)))
    left = f"   (and {len(shown) - MAX_KEYS} more keys: name them)" if len(shown) > MAX_KEYS else ""
    shown = shown[:MAX_KEYS]
    columns = max((len(value.array) for value in shown), default=1)
    heights = [1.2 if value.is_image else 1.6 for value in shown] or [1.0]
    figure = new_figure(3.2 * max(columns, 2), sum(heights) + 0.8)
    figure.suptitle(f"{repr(batch).partition(chr(10))[0].strip('<>')}{left}", fontsize=10, x=0.01, ha="left")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for line, value in zip(grid, shown, strict=False):
        for row, axes in enumerate(line):
            if value.is_image:
                places = _spread(len(value.pads(row)), MAX_STRIP)
                film(
                    axes,
                    Film([value.frames(row)[p] for p in places], _places(places), value.pads(row)[places].tolist()),
                )
            elif value.array.dtype.kind == "O":
                note(axes, str(value.steps(row)[0])[:200])
            elif value.num_window or value.array.ndim == 1:
                curves(axes, np.arange(len(value.pads(row))), value.steps(row), is_pad=value.pads(row))
                axes.set_xlabel("step of the window", fontsize=7)
            else:
                # one step: its elements beside each other
                curves(axes, np.arange(value.array[row].size), value.array[row].reshape(-1))
                axes.set_xlabel("element", fontsize=7)
            axes.set_title(value.key if row == 0 else "", fontsize=9, loc="left", parse_math=False)
    for row, axes in enumerate(grid[0]):
        axes.set_title(_row_title(batch, row), fontsize=8, loc="right")
    return figure


def _values(batch: Batch, num_rows: int, keys: Sequence[str] | None = None) -> Iterator[Value]:
    """Yield the keys that can be drawn, images first; refuse a key that is not there."""
    found = dict(flatten(batch))
    for key in keys or ():
        if key not in found:
            raise FeatureNotFoundError(f"no key {key!r} in this batch. There are: {', '.join(found)}.")
    drawn = []
    for key, value in found.items():
        if (keys is None and key.endswith(MASK) and key.removesuffix(MASK) in found) or key not in (
            found if keys is None else keys
        ):
            continue
        array = _as_array(value, num_rows)
        if array is None:
            continue
        mask = _as_array(found.get(f"{key}{MASK}"), num_rows)
        is_image, num_step_axes = _is_image(array, mask), 3
        if mask is not None:
            num_window = mask.ndim - 1
        elif is_image:
            num_window = array.ndim - 1 - num_step_axes
        else:
            # without a mask an array of three axes and more is taken for a window
            num_window = min(1, max(0, array.ndim - 2))
        drawn.append(Value(key, array, num_window, mask, is_image))
    yield from sorted(drawn, key=lambda value: not value.is_image)


def _as_array(value: Any, num_rows: int) -> npt.NDArray[Any] | None:
    """Return the first rows as a numpy array, from a tensor on any device; None of what is none, or cannot be drawn."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")) or len(value.shape) == 0:
        return None
    rows = value[:num_rows]
    if hasattr(rows, "detach"):
        rows = rows.detach().cpu()
        # numpy has no bfloat16
        rows = rows.float() if "bfloat16" in str(rows.dtype) else rows
    array = np.asarray(rows)
    return array if array.dtype.kind in "biufO" and len(array) else None


def _is_image(array: npt.NDArray[Any], mask: npt.NDArray[Any] | None) -> bool:
    least = LEAST_SIDES.get(array.dtype.kind)
    num_step_axes = array.ndim - (1 if mask is None else mask.ndim)
    if least is None or num_step_axes < 3 or (mask is not None and num_step_axes != 3):
        return False
    if array.dtype.kind == "u" and array.dtype.itemsize > 2:
        return False
    height, width, channels = array.shape[-3:]
    if channels in CHANNELS:
        return bool(min(height, width) >= least)
    return bool(height in CHANNELS and min(width, channels) >= least)


def _strip(value: Value, num_frames: int) -> Strip:
    """Return frames of the first windows, the first and the last of each among them."""
    frames = []
    for row in range(len(value.array)):
        pads = value.pads(row)
        for place in _spread(len(pads), num_frames):
            caption = f"row {row}" + (f", {place}" if len(pads) > 1 else "") + (" pad" if pads[place] else "")
            frames.append((partial(_frame, value, row, place), caption))
    return Strip(value.key, frames)


def _frame(value: Value, row: int, place: int) -> npt.NDArray[Any]:
    frame: npt.NDArray[Any] = value.frames(row)[place]
    return frame


def _numbers(value: Value | None) -> str:
    if value is None or value.is_image:
        return ""
    if value.array.dtype.kind == "O":
        return str(value.steps(0)[0])
    rows = value.steps(0) if value.num_window else value.array[0].reshape(-1)
    return lines(rows) if len(rows) > 1 else f"{rows.reshape(-1)[0]:.6g}" if rows.size == 1 else lines(rows.reshape(-1))


def _padding(found: Mapping[str, Any], key: str) -> str:
    mask = found.get(f"{key}{MASK}")
    return "" if mask is None else f"{float(mask.sum()) / max(math.prod(mask.shape), 1):.0%} of steps"


def _row_title(batch: Batch, row: int) -> str:
    anchor = "" if batch.anchors is None else f", anchor {int(batch.anchors[row])}"
    is_repeat = batch.valid is not None and not bool(batch.valid[row])
    return f"row {row}{anchor}{' (repeated to fill the batch)' if is_repeat else ''}"


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else type(value).__name__


def _shape(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"[{', '.join(map(str, value.shape))}]"
    return f"[{len(value)}]" if hasattr(value, "__len__") else ""


def _offsets(field: Any) -> str:
    if field.seconds is not None:
        return f"{field.seconds} s"
    return "the anchor" if field.offsets is None else str(field.offsets)


def _transforms(field: Any) -> str:
    return ", ".join(getattr(each, "__name__", None) or type(each).__name__ for each in field.transforms)


def _spread(length: int, count: int) -> list[int]:
    return [int(place) for place in np.unique(np.linspace(0, max(length - 1, 0), count).round())]


def _places(places: Sequence[int]) -> list[str]:
    return [str(place) for place in places]
