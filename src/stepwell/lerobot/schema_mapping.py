"""The features of a LeRobot dataset that those of a store become.

::

    feature of the store                      in the dataset
    number, array of fixed shape              the same dtype; a scalar has shape [1]
    text                                      string; named "task": the task of the step, no column; language of those
                                              that are named language_persistent and language_events
    video, or a reference into mp4 files      video
    png, jpeg, or a reference into parquet    image, the bytes as they are
    any other image                           video; image where chosen, or where its sides are odd or below 16
    depth map: uint16 or floats, grey         image; video of codes where chosen, or where the rows are such codes
    timestamp, frame_index, ...               made new
    bytes, arrays of varying size             refused, by name
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepwell.codecs import make_codec
from stepwell.codecs.video_decoding import coded_size
from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.lerobot.depth import Depth, Quantization, depth_entry, depth_of
from stepwell.lerobot.info import CAMERAS, INDEX_FEATURES, LANGUAGE, MAX_RANK, FeatureInfo, is_depth_map
from stepwell.lerobot.language import LANGUAGE_COLUMNS
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Schema

__all__ = ["TASK", "Cameras", "Column", "column_of", "index_names", "map_schema", "stored_feature"]

Cameras = Literal["auto", "image", "video"]
CHOICES = ("auto", "image", "video")
TASK = "task"
NUMBER_KINDS = "biuf"
NUMBER_BYTES = 8
# of an entry in info.json; the last is looked at by itself
ENTRY_NAMES = ("dtype", "shape", "names", "info")
HEIGHT_WIDTH_CHANNELS = ["height", "width", "channels"]


@dataclass(frozen=True, slots=True)
class Column:
    """One feature that is written."""

    source: str
    feature: Feature
    info: FeatureInfo
    # what the store's rows mean, of a depth map
    depth: Depth | None = None

    @property
    def name(self) -> str:
        """Its name in the dataset."""
        return self.info.name


def map_schema(
    schema: Schema,
    *,
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cameras: Cameras | Mapping[str, Cameras] = "auto",
    origin: Mapping[str, Any] | None = None,
) -> tuple[Column, ...]:
    """Return the columns of a dataset, but for its five index columns."""
    renamed = dict(rename or {})
    unknown = [name for name in (*(features or ()), *renamed) if name not in schema]
    if unknown:
        raise FeatureNotFoundError(f"no feature {', '.join(map(repr, unknown))}. There are: {', '.join(schema)}.")
    names = {name: renamed.get(name, name) for name in schema if features is None or name in features}
    _check_names(names)
    columns = [
        column_of(source, name, schema[source], _choice(cameras, name), (origin or {}).get(source))
        for source, name in names.items()
        if name not in INDEX_FEATURES and not (name == TASK and schema[source].kind == "text")
    ]
    if isinstance(cameras, Mapping):
        _check_cameras(cameras, columns)
    return tuple(columns)


def column_of(source: str, name: str, feature: Feature, choice: Cameras = "auto", origin: Any = None) -> Column:
    """Return the column of one feature."""
    depth = _depth_entry(feature, origin)
    if depth is not None:
        return _depth_column(source, name, feature, choice, depth)
    dtype: str
    shape: tuple[int, ...]
    if feature.kind == "text":
        dtype, shape = LANGUAGE if name in LANGUAGE_COLUMNS else "string", (1,)
    elif feature.kind == "image":
        dtype, shape = _camera(source, feature, choice)
    else:
        dtype, shape = _numbers(source, feature)
    entry: dict[str, Any] = {"dtype": dtype, "shape": list(shape), "names": _names(feature, dtype, shape, origin)}
    entry |= _further_entry(feature, dtype, origin)
    return Column(source, feature, FeatureInfo(name, dtype, shape, entry["names"], entry))


def _is_of_video(name: str) -> bool:
    """Whether an entry of a camera's info says how its frames are encoded."""
    return name.startswith("video.") or name == "has_audio"


def _further_entry(feature: Feature, dtype: str, origin: Any) -> dict[str, Any]:
    """Return what info.json says more of the feature that it came from, as far as it stays so."""
    if not isinstance(origin, Mapping):
        return {}
    found = {name: value for name, value in origin.items() if name not in ENTRY_NAMES}
    about = origin.get("info")
    if isinstance(about, Mapping):
        is_kept = dtype == "video" and stored_feature(feature).codec == "video"
        is_camera = dtype in CAMERAS
        # of how frames are encoded where packets stay; rates are those of the store's features
        kept = {
            name: value
            for name, value in about.items()
            if (is_kept or not _is_of_video(name)) and (is_camera or name != "rate")
        }
        found |= {"info": kept} if kept else {}
    return found


def index_names(schema: Schema, rename: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the features of a store that hold index columns and tasks: LeRobot's name to the store's."""
    renamed = dict(rename or {})
    named = {renamed.get(source, source): source for source in schema}
    is_scalar = {
        name: schema[source].kind == "array" and schema[source].shape in ((), (1,)) for name, source in named.items()
    }
    found = {name: named[name] for name in INDEX_FEATURES if is_scalar.get(name)}
    is_text = TASK in named and schema[named[TASK]].kind == "text"
    return found | ({TASK: named[TASK]} if is_text else {})


def stored_feature(feature: Feature) -> Feature:
    """Return the feature that has the same rows as bytes of its own: itself, unless its rows are references."""
    codec = make_codec(feature)
    return codec.embedded() if isinstance(codec, FileCodec) else feature


def _check_names(names: Mapping[str, str]) -> None:
    for source, name in names.items():
        if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
            raise SchemaError(
                f"feature {source!r} as {name!r}: LeRobot takes '/' for the end of a directory's name. Allowed: any "
                "name without '/', e.g. with '.' for it."
            )
    taken = list(names.values())
    twice = [f"{source!r} as {name!r}" for source, name in names.items() if taken.count(name) > 1]
    if twice:
        raise SchemaError(f"features of one name: {', '.join(twice)}. Rename one of them, or leave it out.")


def _choice(cameras: Cameras | Mapping[str, Cameras], name: str) -> Cameras:
    choice = cameras.get(name, "auto") if isinstance(cameras, Mapping) else cameras
    if choice not in CHOICES:
        raise SchemaError(f"cameras={cameras!r}. Allowed: {', '.join(map(repr, CHOICES))}, or one of them by name.")
    return choice


def _check_cameras(cameras: Mapping[str, Cameras], columns: list[Column]) -> None:
    known = [column.name for column in columns if column.info.is_camera]
    unknown = [name for name in cameras if name not in known]
    if unknown:
        raise FeatureNotFoundError(
            f"cameras={dict(cameras)!r}: no camera {', '.join(map(repr, unknown))}. There are: {', '.join(known)}."
        )


def _numbers(name: str, feature: Feature) -> tuple[str, tuple[int, ...]]:
    if feature.kind == "bytes" or feature.is_ragged:
        kind = "bytes" if feature.kind == "bytes" else f"an array of varying size, {feature.shape}"
        raise _refused(name, f"is {kind}: LeRobot has only features of fixed shape, and text")
    dtype, shape = feature.np_dtype, feature.fixed_shape
    if dtype.kind not in NUMBER_KINDS or dtype.itemsize > NUMBER_BYTES:
        raise _refused(name, f"has dtype {dtype}: LeRobot has bools, integers and floats of at most 64 bits")
    if name == TASK:
        raise _refused(name, "is no text, and LeRobot's items have the task's text under this name", can_rename=True)
    if len(shape) > MAX_RANK or 0 in shape:
        raise _refused(name, f"has shape {shape}: LeRobot has 1 to {MAX_RANK} axes, none of them empty")
    return dtype.newbyteorder("=").name, shape or (1,)


def _camera(name: str, feature: Feature, choice: Cameras) -> tuple[str, tuple[int, ...]]:
    if feature.is_ragged:
        raise _refused(name, f"has images of any size, {feature.shape}: a camera of LeRobot has one size")
    height, width, *channels = feature.fixed_shape
    if feature.np_dtype != np.uint8 or channels not in ([], [1], [3]):
        raise _refused(
            name,
            f"is an image of {feature.np_dtype.name} {feature.shape}: LeRobot's cameras are uint8, grey or RGB, or "
            "depth maps of one channel",
        )
    fits = coded_size(height, width) == (height, width)
    if choice == "auto":
        codec = stored_feature(feature).codec
        choice = "image" if codec in ("png", "jpeg") or not fits else "video"
    elif choice == "video":
        _check_fits_video(name, height, width)
    return choice, (height, width, 3)


def _depth_entry(feature: Feature, origin: Any) -> Mapping[str, Any] | None:
    """Return the entry in info.json that says what the rows of a depth map mean; None of other features."""
    own = depth_entry(feature)
    is_known = own is not None and isinstance(origin, Mapping) and is_depth_map(origin)
    return origin if is_known else own


def _depth_column(source: str, name: str, feature: Feature, choice: Cameras, entry: Mapping[str, Any]) -> Column:
    depth = depth_of(entry)
    assert depth is not None
    height, width = feature.fixed_shape[:2]
    if choice == "auto":
        choice = "image" if depth.quantization is None else "video"
    if choice == "video":
        _check_fits_video(name, height, width)
    about = dict(entry.get("info") or {})
    if choice != "video" or depth.quantization is None or stored_feature(feature).codec != "video":
        # it is encoded anew, if it is video at all
        about = {key: value for key, value in about.items() if not _is_of_video(key)}
    about |= {"is_depth_map": True, "depth_unit": depth.unit or "mm"}
    if choice == "video":
        about |= (depth.quantization or Quantization()).info()
    shape = (height, width, 1)
    others = {key: value for key, value in entry.items() if key not in ENTRY_NAMES}
    made = {**others, "dtype": choice, "shape": list(shape), "names": list(HEIGHT_WIDTH_CHANNELS), "info": about}
    return Column(source, feature, FeatureInfo(name, choice, shape, made["names"], made), depth)


def _check_fits_video(name: str, height: int, width: int) -> None:
    if coded_size(height, width) != (height, width):
        raise SchemaError(
            f"camera {name!r} is {height}x{width}: a video has even sides of 16 and more. Write it as images: "
            f'cameras={{{name!r}: "image"}}.'
        )


def _refused(name: str, why: str, *, can_rename: bool = False) -> SchemaError:
    other = f", or rename it: rename={{{name!r}: ...}}" if can_rename else ""
    return SchemaError(
        f"feature {name!r} {why}. Leave it out: features=[...], with the names of those to be written{other}."
    )


def _names(feature: Feature, dtype: str, shape: tuple[int, ...], origin: Any) -> Any:
    """Return names of elements: those of the dataset that the feature came from, else the feature's own."""
    if dtype in ("image", "video"):
        return list(HEIGHT_WIDTH_CHANNELS)
    if isinstance(origin, Mapping) and origin.get("dtype") == dtype and origin.get("shape") == list(shape):
        return origin.get("names")
    return None if feature.names is None else list(feature.names)
