"""Depth maps as LeRobot has them: codes of 12 bits in HEVC videos, or the recorded values in image files.

::

    recorded        uint16: millimetres; float32: metres                     "depth_unit" in info.json
    image           those values, a PNG or TIFF file in the parquet files
    video           code = round(4095 * (f(depth) - f(min)) / (f(max) - f(min)))      f(x) = log(x + shift), or x
    items           float32 [1, H, W], millimetres or metres, as ``depth_output_unit`` says

A store has a depth map's rows as they are: codes, or values. What they mean the store's ``metadata["lerobot"]["info"]``
says; uint16 images of a store of other origin are millimetres, floats metres.

Source: huggingface/lerobot 0.6.2, ``datasets/depth_utils.py`` and ``configs/video.py``, observed; the logarithm is that
of BEHAVIOR-1K's depth maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError
from stepwell.kernels.draws import Draws
from stepwell.lerobot.info import is_depth_map
from stepwell.loader.memory import import_torch
from stepwell.schema import Feature
from stepwell.transforms import Transform
from stepwell.transforms.base import Shape

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = [
    "DEPTH_UNITS",
    "MAX_CODE",
    "Depth",
    "DepthMaps",
    "DepthUnit",
    "Quantization",
    "check_unit",
    "depth_entry",
    "depth_of",
    "scaled_statistics",
    "split_options",
    "unit_of",
]

DepthUnit = Literal["mm", "m"]
DEPTH_UNITS = ("mm", "m")
MM_PER_METRE = 1000.0
MAX_CODE = 4095
MAX_MM = 65535
# whole millimetres are their own codes
MILLIMETRES = {"depth_min": 0.0, "depth_max": 4.095, "shift": 0.0, "use_log": False}
Floats = npt.NDArray[np.float32]


def unit_of(dtype: npt.DTypeLike) -> DepthUnit:
    """Return the unit that LeRobot takes depths of a dtype for: floats are metres, integers millimetres."""
    return "m" if np.dtype(dtype).kind == "f" else "mm"


def check_unit(unit: Any) -> DepthUnit:
    """Return a unit of depth, or refuse it."""
    if unit not in DEPTH_UNITS:
        raise SchemaError(f"depth_output_unit={unit!r}. Allowed: 'mm' and 'm'.")
    found: DepthUnit = unit
    return found


@dataclass(frozen=True, slots=True)
class Quantization:
    """How codes of 12 bits stand for depths, in metres; the defaults are LeRobot's.

    Args:
        depth_min: depth of code 0.
        depth_max: depth of code 4095.
        shift: is added before the logarithm.
        use_log: codes are spaced by the logarithm of the depth, closer where it is small; else evenly.

    Raises:
        SchemaError: no finite numbers, or a logarithm of what is not positive.

    Example:
        >>> codes = Quantization().codes(np.array([[500, 9999]], np.uint16))
        >>> codes.tolist(), Quantization().table("mm")[codes].tolist()
        ([[397, 4095]], [[500.0, 10000.0]])
    """

    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    def __post_init__(self) -> None:
        numbers = (self.depth_min, self.depth_max, self.shift)
        is_number = [isinstance(each, int | float) and not isinstance(each, bool) for each in numbers]
        if not all(is_number) or not all(map(math.isfinite, numbers)) or self.depth_min >= self.depth_max:
            raise SchemaError(
                f"depth of {self.depth_min!r} to {self.depth_max!r}, shift {self.shift!r}. Allowed: metres, the first "
                "less than the second."
            )
        if self.use_log and self.depth_min + self.shift <= 0:
            raise SchemaError(
                f"depth_min {self.depth_min} and shift {self.shift}: the sum has no logarithm. Allowed: more than 0."
            )

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Quantization:
        """Return that of a feature's entry in info.json."""
        info = entry.get("info") or {}
        given = {name: info.get(f"video.{name}") for name in cls.__slots__}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def info(self) -> dict[str, Any]:
        """Return what the entry's ``info`` says of it."""
        return {f"video.{name}": value for name, value in asdict(self).items()}

    def codes(self, depth: npt.NDArray[Any], unit: DepthUnit | None = None) -> npt.NDArray[np.uint16]:
        """Return the codes of depths.

        Args:
            depth: of any shape. NaN becomes 0, what lies beyond the ends their code.
            unit: of the depths; default by dtype, see `unit_of`.
        """
        unit = unit_of(depth.dtype) if unit is None else unit
        if depth.dtype == np.uint16:
            codes: npt.NDArray[np.uint16] = np.take(_all_codes(self, unit), depth)
            return codes
        return _codes(self, depth.astype(np.float32), unit)

    def table(self, unit: DepthUnit) -> Floats:
        """Return the depth of each code, float32 [4096]; of "mm" whole numbers."""
        return _table(self, unit)


def _codes(by: Quantization, depth: Floats, unit: DepthUnit) -> npt.NDArray[np.uint16]:
    # float32 in the depths' own unit, as LeRobot: codes are equal to the last one
    scale = 1.0 if unit == "m" else MM_PER_METRE
    low, high, shift = (np.float32(value * scale) for value in (by.depth_min, by.depth_max, by.shift))
    with np.errstate(all="ignore"):
        if by.use_log:
            first, last = math.log(float(low + shift)), math.log(float(high + shift))
            share = (np.log(depth + shift) - first) / (last - first)
        else:
            share = (depth - low) / (high - low)
        codes = np.rint(share * MAX_CODE).clip(0, MAX_CODE)
    found: npt.NDArray[np.uint16] = np.nan_to_num(codes, nan=0.0).astype(np.uint16)
    return found


@cache
def _all_codes(by: Quantization, unit: DepthUnit) -> npt.NDArray[np.uint16]:
    return _codes(by, np.arange(MAX_MM + 1, dtype=np.float32), unit)


@cache
def _table(by: Quantization, unit: DepthUnit) -> Floats:
    # by torch: its exponential differs from numpy's in the last bit, and LeRobot's items are made by it
    torch = import_torch()
    depth = torch.arange(MAX_CODE + 1, dtype=torch.float32)
    low, high, shift = float(by.depth_min), float(by.depth_max), float(by.shift)
    if by.use_log:
        first, last = math.log(low + shift), math.log(high + shift)
        depth.mul_((last - first) / MAX_CODE).add_(first).exp_().sub_(shift)
    else:
        depth.mul_((high - low) / MAX_CODE).add_(low)
    depth.clamp_(low, high)
    if unit == "mm":
        depth.mul_(MM_PER_METRE).round_().clamp_(0, MAX_MM)
    table: Floats = depth.numpy()
    table.flags.writeable = False
    return table


@dataclass(frozen=True, slots=True)
class Depth:
    """What the rows of a depth map mean."""

    # of what was recorded; None where nothing says it
    unit: DepthUnit | None
    # of codes; None: rows are depths themselves
    quantization: Quantization | None = None

    def values(self, rows: npt.NDArray[Any], unit: DepthUnit | None = None) -> Floats:
        """Return the depths of rows, float32 of the same shape, in a unit; default: that of what was recorded."""
        if self.quantization is not None:
            return np.take(_table(self.quantization, unit or self.unit or "mm"), rows, mode="clip")
        depth = rows.astype(np.float32)
        if unit in (None, self.unit) or self.unit is None:
            return depth
        factor = np.float32(MM_PER_METRE)
        return np.multiply(depth, factor, out=depth) if unit == "mm" else np.divide(depth, factor, out=depth)


@dataclass(frozen=True, slots=True)
class DepthMaps(Transform):
    """Make depths of the rows of a depth map, float32 in a unit.

    Args:
        depth: what the rows mean.
        unit: "mm" or "m".

    Raises:
        SchemaError: another unit.

    Example::

        name = "observation.images.depth"
        fields = {"depth": Field(name, transform=DepthMaps.of(store, name, "m"))}
    """

    depth: Depth
    unit: DepthUnit = "mm"

    def __post_init__(self) -> None:
        check_unit(self.unit)

    @classmethod
    def of(cls, store: Store, name: str, unit: DepthUnit = "mm") -> DepthMaps:
        """Return that of a feature of a store, by what its metadata say of it.

        Raises:
            SchemaError: it is no depth map.
        """
        entries = (store.metadata.get("lerobot", {}).get("info") or {}).get("features", {})
        schema: Mapping[str, Feature] = store.schema or {}
        entry = entries.get(name) or (depth_entry(schema[name]) if name in schema else None)
        depth = None if entry is None else depth_of(entry)
        if depth is None:
            raise SchemaError(f"{store.path}: {name!r} is no depth map. There are: {', '.join(schema)}.")
        return cls(depth, unit)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, float32; see `Transform.output`."""
        return shape, np.dtype(np.float32)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the depths; see `Transform.__call__`."""
        return self.depth.values(values, self.unit)


def depth_of(entry: Mapping[str, Any]) -> Depth | None:
    """Return what the rows of a feature mean by its entry in info.json; None where it is no depth map."""
    if not is_depth_map(entry):
        return None
    unit = (entry.get("info") or {}).get("depth_unit")
    return Depth(unit if unit in DEPTH_UNITS else None, Quantization.of(entry) if entry["dtype"] == "video" else None)


def depth_entry(feature: Feature) -> dict[str, Any] | None:
    """Return the entry of a store's own depth map: an image of one channel, not of bytes; None of other features."""
    is_grey = feature.kind == "image" and not feature.is_ragged and feature.shape[2:] in ((), (1,))
    if not is_grey or feature.np_dtype.kind not in "uf" or feature.np_dtype == np.uint8:
        return None
    info: dict[str, Any] = {"is_depth_map": True, "depth_unit": unit_of(feature.np_dtype)}
    if feature.codec == "video":
        info |= {f"video.{name}": value for name, value in MILLIMETRES.items()}
    shape = [*feature.fixed_shape[:2], 1]
    dtype = "video" if feature.codec == "video" else "image"
    return {"dtype": dtype, "shape": shape, "names": ["height", "width", "channels"], "info": info}


def split_options(options: Mapping[str, Any] | None) -> tuple[Quantization | None, dict[str, Any]]:
    """Return the quantization that options of a recorder name, None where none does, and those of `stepwell.Video`."""
    given = dict(options or {})
    named = {name: given.pop(name) for name in Quantization.__slots__ if name in given}
    return (Quantization(**named) if named else None), given


def scaled_statistics(stats: Mapping[str, Any], entry: Mapping[str, Any], unit: DepthUnit) -> dict[str, Any]:
    """Return the statistics of a depth map in a unit; as they are where nothing says in which they are stored."""
    depth = depth_of(entry)
    if depth is None or depth.unit in (None, unit):
        return dict(stats)
    factor = MM_PER_METRE if unit == "mm" else 1 / MM_PER_METRE
    return {key: value if key == "count" else value * factor for key, value in stats.items()}
