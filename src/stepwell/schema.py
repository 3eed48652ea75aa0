"""Features and schemas: the values of a step of a store, and how they are stored.

How a feature lies on disk follows from two questions::

    every step the same number of bytes?   codec "raw"?      on disk
    yes                                    yes               NAME.npy              one row a step, np.load() opens it
    yes                                    no                NAME.npy + NAME.bin   uint64 offsets + encoded rows
    no  (text, bytes, first dim varies,    yes or no         NAME.npy + NAME.bin   uint64 offsets + the bytes
         images of any size)

A feature with a rate of its own is of the last line: a row holds the samples that came since the step before (encoded
ones each behind its size, see `stepwell.codecs.sampled`), and a feature NAME_time their times.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Never, cast

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, SchemaError, did_you_mean

__all__ = [
    "Array",
    "Bytes",
    "Feature",
    "Image",
    "Schema",
    "Text",
    "Video",
    "flatten",
    "infer_columns",
    "infer_feature",
    "infer_schema",
    "is_feature_name",
    "note_codec_module",
    "times_name",
]

Kind = Literal["array", "image", "text", "bytes"]
KINDS: tuple[Kind, ...] = ("array", "image", "text", "bytes")
IMAGE_CHANNELS = (1, 3, 4)
DEFAULT_DTYPES = {"array": "<f4", "image": "|u1"}
VIDEO_DEFAULTS = (("encoder", "h264"), ("gop", 2))
VIDEO_OPTIONS = ("encoder", "gop", "crf", "preset", "pixel_format", "names", "final")
# a list of files would fill the screen
MAX_QUOTED = 200
# more than any machine has memory for; sizes below it are exact in every count of bytes
MAX_STEP_BYTES = 1 << 40
# samples a second
MAX_RATE = 1e9
TIMES = "_time"
# modules in which users registered codecs, by the codec's name: stores name them to readers on other machines
_CODEC_MODULES: dict[str, str] = {}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
MAX_NAME_BYTES = 200
RESERVED = frozenset({"episodes", "deleted", "segment", "store", "progress", "statistics"})
FINAL_NAMES = ("observation", "obs")
IMAGE_MIN_SIDE = 16


@dataclass(frozen=True, slots=True)
class Feature:
    """One column: kind, dtype, shape, codec.

    Made by `Array`, `Image`, `Video`, `Text` and `Bytes`, seldom by hand.

    Args:
        kind: "array", "image", "text" or "bytes".
        dtype: numpy's name of the element type with byte order (``"<f4"``); ``"|u1"`` for text and bytes.
        shape: shape of one step, () for a scalar; a first ``None`` means that it varies from step to step.
            (None,) for text and bytes; (None, None) and (None, None, channels) for images of any size.
        codec: name of a registered codec; "raw" stores the bytes as they are.
        options: the codec's options as sorted (name, value) pairs.
        names: names of the elements along the last axis, e.g. ("x", "y"); metadata only.
        final: whether the feature also has a value in the final row of an episode, the one after the last step
            (an observation has, an action has not).
        codec_module: the module that registered the codec in the process that wrote the feature; None: stepwell's own,
            or not known. Kept with the feature, and not compared.
        reach: directories and addresses beneath which references into other files may lead; None: anywhere, as of
            features made by code. References of a file lead nowhere until its reader allows more. Neither kept nor
            compared.
        rate: samples a second of a feature with a clock of its own; None: it has one value a step. Its shape is
            (None, *shape of a sample): a step holds the samples that came since the step before.

    Example:
        >>> feature = Array(2, names=["x", "y"])
        >>> feature.kind, feature.dtype, feature.shape, feature.codec, feature.row_bytes
        ('array', '<f4', (2,), 'raw', 8)

    Notes:
        An immutable value: safe to share between threads and processes, hashable, picklable.
    """

    kind: Kind
    dtype: str
    shape: tuple[int | None, ...] = ()
    codec: str = "raw"
    options: tuple[tuple[str, Any], ...] = ()
    names: tuple[str, ...] | None = None
    final: bool = False
    codec_module: str | None = field(default=None, compare=False, repr=False)
    reach: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SchemaError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}.")
        _check_dtype(self.dtype)
        if self.rate is not None:
            _check_rate(self)
        _check_shape(self.kind, self.shape if self.rate is None else self.sample_shape)
        _check_size(self.shape, self.np_dtype.itemsize)
        if self.kind in ("text", "bytes") and (self.dtype, self.shape) != ("|u1", (None,)):
            raise SchemaError(f"{self.kind} of dtype {self.dtype} and shape {self.shape}. Allowed: '|u1' and (None,).")
        if self.names is not None and (not self.shape or len(self.names) != self.shape[-1]):
            raise SchemaError(
                f"{len(self.names)} names for shape {self.shape}. Allowed: one for each element of the last axis."
            )
        for name, value in self.options:
            if name == "rate":
                raise SchemaError(
                    f"a rate of {self.kind} features. Allowed: Array(..., rate=...), Image(..., rate=...)."
                )
            if not isinstance(value, str | int | float | bool | None):
                raise SchemaError(
                    f"option {name!r} is a {type(value).__name__}. Allowed: a number, a string, a bool or None."
                )

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """The element type as a numpy dtype."""
        return _np_dtype(self.dtype)

    @property
    def is_ragged(self) -> bool:
        """Whether a step's size varies: text, bytes, arrays whose first dimension is None, images of any size."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def is_image_of_any_size(self) -> bool:
        """Whether a step is an image whose height and width vary."""
        return self.kind == "image" and self.is_ragged and self.rate is None

    @property
    def is_rgb_image(self) -> bool:
        """Whether a step is an image of three channels of uint8, of fixed size or any."""
        return self.kind == "image" and self.rate is None and self.shape[2:] == (3,) and self.np_dtype == np.uint8

    @property
    def is_raw(self) -> bool:
        """Whether the column is one plain ``.npy`` file, a row a step."""
        return self.codec == "raw" and not self.is_ragged

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of one step; raises SchemaError when it varies."""
        if self.is_ragged:
            raise SchemaError(f"shape {self.shape} varies from step to step and has no fixed size.")
        return cast(tuple[int, ...], self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded step; raises SchemaError when it varies."""
        return int(np.prod(self.fixed_shape, dtype=np.int64)) * self.np_dtype.itemsize

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample of a feature with a rate."""
        return cast(tuple[int, ...], self.shape[1:])

    @property
    def sample(self) -> Feature:
        """The feature of which a step is one sample of this one; of features without a rate itself."""
        return self if self.rate is None else replace(self, shape=self.sample_shape, rate=None)

    def option(self, name: str, default: Any) -> Any:
        """Return one of the codec's options."""
        return dict(self.options).get(name, default)

    def to_json(self) -> dict[str, Any]:
        """Return the feature as JSON types."""
        record: dict[str, Any] = {
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "codec": self.codec,
        }
        module = _CODEC_MODULES.get(self.codec, self.codec_module)
        if module is not None:
            record["codec_module"] = module
        if self.options:
            record["options"] = dict(self.options)
        if self.names is not None:
            record["names"] = list(self.names)
        if self.final:
            record["final"] = True
        if self.rate is not None:
            record["rate"] = self.rate
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Feature:
        """Return the feature that `to_json` wrote; raises SchemaError when it is not one."""
        try:
            return cls(
                kind=record["kind"],
                dtype=record["dtype"],
                shape=_ints(record["shape"]),
                codec=record["codec"],
                options=_sorted_options(record.get("options", {})),
                names=_names(record.get("names")),
                final=bool(record.get("final", False)),
                codec_module=_module_name(record.get("codec_module")),
                reach=(),
                rate=record.get("rate"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"not the record of a feature ({error!r}): {record!r}.") from error

    def with_final(self, final: bool = True) -> Feature:
        """Return the same feature with `final` set."""
        return replace(self, final=final)

    def __repr__(self) -> str:
        """Return the feature as one writes it: ``Image((96, 96, 3), codec="jpeg", quality=90)``; long texts are cut."""
        is_video = self.kind == "image" and self.codec == "video"
        options = self.options
        parts = [] if self.kind in ("text", "bytes") else _shape_and_dtype(self)
        if is_video:
            options = tuple(option for option in options if option not in VIDEO_DEFAULTS)
        elif self.codec != "raw":
            parts.append(f'codec="{self.codec}"')
        parts += [f"{name}={_quoted(value, MAX_QUOTED)}" for name, value in options]
        if self.names is not None:
            parts.append(f"names={self.names!r}")
        if self.final:
            parts.append("final=True")
        if self.rate is not None:
            parts.append(f"rate={self.rate:g}")
        return f"{'Video' if is_video else self.kind.capitalize()}({', '.join(parts)})"

    def __str__(self) -> str:
        shape = self.shape if self.rate is None else self.sample_shape
        size = "x".join("?" if n is None else str(n) for n in shape) or "scalar"
        clock = "" if self.rate is None else f" at {self.rate:g} Hz"
        return f"{self.codec} {size} {self.np_dtype.name if self.kind in ('array', 'image') else self.kind}{clock}"


def note_codec_module(codec: str, module: str) -> None:
    """Let the records of features with a codec name the module that registered it."""
    # a script that is run has no name that another process could import
    if module != "__main__":
        _CODEC_MODULES[codec] = module


def Array(
    shape: int | Sequence[int | None] = (),
    dtype: npt.DTypeLike = "float32",
    *,
    codec: str = "raw",
    names: Sequence[str] | None = None,
    final: bool = False,
    rate: float | None = None,
    **options: Any,
) -> Feature:
    """Describe an array feature: any fixed-size numpy dtype, any shape, scalars too.

    Args:
        shape: of one step; () is a scalar, an int n is (n,). A first ``None`` varies from step to step.
        dtype: of the elements, default float32.
        codec: "raw" (default), "zstd", "lz4" or "delta" (lossless), or one that was registered.
        names: of the elements along the last axis.
        final: see `Feature`.
        rate: samples a second, of a feature with a clock of its own (a tactile sensor beside a camera, audio), stored
            by ``writer.append_at``; shape and dtype are those of a sample, which the codec encodes by itself (not
            "delta", nor video). Its samples' times are a feature NAME_time, which is added to the schema. Default: a
            value a step.
        options: of the codec, e.g. ``level=3``.

    Returns:
        The feature.

    Raises:
        SchemaError: a shape or dtype that cannot be stored.

    Example:
        >>> Array(7, "float32", names=["x", "y", "z", "rx", "ry", "rz", "gripper"]).row_bytes
        28
        >>> str(Array((None, 3)))
        'raw ?x3 float32'
        >>> Array(3, "float32", rate=150)
        Array(3, rate=150)
    """
    sizes = _step_shape(shape, rate)
    return Feature("array", _descr(dtype), sizes, codec, _sorted_options(options), _names(names), final, rate=rate)


def Image(
    shape: Sequence[int | None],
    dtype: npt.DTypeLike = "uint8",
    *,
    codec: str = "raw",
    names: Sequence[str] | None = None,
    final: bool = False,
    rate: float | None = None,
    **options: Any,
) -> Feature:
    """Describe an image feature: height x width x channels, or height x width.

    Args:
        shape: (height, width, channels) with 1, 3 (RGB) or 4 channels, or (height, width) for grey and depth. None for
            both sides: each image has a size of its own.
        dtype: uint8 (default); uint16, float16 and float32 for depth.
        codec: "raw" (default); "jpeg" (uint8, lossy; options ``quality`` 1-100, default 95, ``subsampling``
            "444", "422", "420" (default), "440", "411" or "gray", and ``tile``, a width by which random crops are
            decoded faster); "png" (uint8 and uint16, lossless; option ``level`` 0-9); any dtype without loss: "zstd"
            and "lz4" (option ``level``), and "delta" (options ``every``, ``compression``, ``level``), the smallest
            where little moves, as on the screens of simulators and games.
        names: of the channels.
        final: see `Feature`.
        rate: images a second, of a camera with a clock of its own; see `Array`. Its images have one shape.
        options: of the codec.

    Returns:
        The feature.

    Raises:
        SchemaError: not an image shape.

    Example:
        >>> str(Image((96, 96, 3), codec="jpeg", quality=90))
        'jpeg 96x96x3 uint8'
        >>> str(Image((None, None, 3), codec="jpeg"))
        'jpeg ?x?x3 uint8'
        >>> str(Image((96, 96, 3), codec="jpeg", rate=60))
        'jpeg 96x96x3 uint8 at 60 Hz'
    """
    sizes = _step_shape(shape, rate)
    return Feature("image", _descr(dtype), sizes, codec, _sorted_options(options), _names(names), final, rate=rate)


def Video(
    shape: Sequence[int],
    dtype: npt.DTypeLike = "uint8",
    *,
    encoder: str | None = None,
    gop: int = 2,
    crf: int | None = None,
    preset: str | int | None = None,
    pixel_format: str | None = None,
    names: Sequence[str] | None = None,
    final: bool = False,
    **options: Never,
) -> Feature:
    """Describe an image feature that is stored as video: uint8, lossy, small; uint16 of 12 bits without loss.

    Args:
        shape: (height, width, 3) of RGB, (height, width) or (height, width, 1) of grey; any sides up to 8192.
        dtype: "uint8", or "uint16" of one channel: values of 0 to 4095, such as the codes of depth maps.
        encoder: "h264" (default: fast to decode), "hevc" or "av1" (smaller); of uint16 "hevc". Rows imported from a
            file keep theirs.
        gop: steps from one that needs no other to the next; a step costs the decoding of those before it in its gop.
            Default 2, best for windows at random; 10 to 60 is smaller, and as fast with ``pooled`` and in sequence.
        crf: quality, 0 (best) to 51, of "av1" to 63; default 23, 26 and 30 of h264, hevc and av1, of uint16 lossless.
        preset: how hard the encoder tries: "ultrafast" to "placebo", of "av1" 0 (slowest) to 13; default "veryfast",
            "ultrafast" and 10.
        pixel_format: "yuv420p" (default), of h264 and hevc also "yuv444p"; grey has one of its own.
        names: of the channels.
        final: see `Feature`.
        options: no others.

    Returns:
        The feature. It needs PyAV: ``pip install -e ".[video]"``.

    Raises:
        SchemaError: not an image shape, or an unknown option.

    Example:
        >>> str(Video((480, 640, 3), encoder="av1", gop=10))
        'video 480x640x3 uint8'
    """
    if "rate" in options:
        raise SchemaError(
            f"a video of rate={options['rate']}: frames of a video need those before them, and samples are stored one "
            'by one. Allowed: Image(shape, codec="jpeg", rate=...); or Video at the store\'s fps, as the main clock.'
        )
    if options:
        raise SchemaError(f"Video has no option {', '.join(map(repr, options))}. Allowed: {', '.join(VIDEO_OPTIONS)}.")
    preset = None if preset is None else str(preset)
    described = _descr(dtype)
    if encoder is None:
        encoder = "h264" if described == "|u1" else "hevc"
    given = {"encoder": encoder, "gop": gop, "crf": crf, "preset": preset, "pixel_format": pixel_format}
    chosen = {name: value for name, value in given.items() if value is not None}
    return Feature("image", described, _ints(shape), "video", _sorted_options(chosen), _names(names), final)


def Text(*, codec: str = "raw", final: bool = False, **options: Any) -> Feature:
    """Describe a feature of UTF-8 strings of any length; codec "raw" (default) or "zstd"."""
    return Feature("text", "|u1", (None,), codec, _sorted_options(options), None, final)


def Bytes(*, codec: str = "raw", final: bool = False, **options: Any) -> Feature:
    """Describe a feature of byte strings of any length; codec "raw" (default) or "zstd"."""
    return Feature("bytes", "|u1", (None,), codec, _sorted_options(options), None, final)


def _shape_and_dtype(feature: Feature) -> list[str]:
    """Return what a call of `Array` or `Image` begins with."""
    shape = feature.shape if feature.rate is None else feature.sample_shape
    is_short = feature.kind == "array" and len(shape) == 1 and shape[0] is not None
    has_own_dtype = feature.dtype != DEFAULT_DTYPES[feature.kind]
    parts = []
    if shape or has_own_dtype:
        parts.append(str(shape[0]) if is_short else repr(shape))
    if has_own_dtype:
        found = feature.np_dtype
        is_named = found.kind in "biufc" and found.isnative
        parts.append(feature.dtype if found.names is not None else _quoted(found.name if is_named else feature.dtype))
    return parts


def _quoted(value: Any, most: int | None = None) -> str:
    """Return a value as code, strings as the formatter has them, of longer ones the first characters."""
    if not isinstance(value, str):
        return repr(value)
    return json.dumps(value if most is None or len(value) <= most else f"{value[:most]}...")


def _descr(dtype: npt.DTypeLike) -> str:
    """Return numpy's own description of a dtype, as a string; structured dtypes as the literal of their list."""
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise SchemaError(f"dtype {dtype!r} is not a numpy dtype.") from error
    if found.subdtype is not None:
        raise SchemaError(f"dtype {found} is an array itself. Give its element's dtype, and its sizes in the shape.")
    if found.hasobject:
        raise SchemaError(f"dtype {found} has no fixed size. Use a fixed-size dtype, Text() or Bytes().")
    descr = str(np.lib.format.dtype_to_descr(found))
    if _np_dtype(descr) != found:
        raise SchemaError(
            f"dtype {found} has no name in a .npy file. Store its bits as an integer of {found.itemsize} bytes."
        )
    return descr


def _np_dtype(descr: str) -> np.dtype[Any]:
    parsed: Any = ast.literal_eval(descr) if descr.startswith("[") else descr
    return np.dtype(np.lib.format.descr_to_dtype(parsed))


def _check_dtype(descr: str) -> None:
    try:
        found = _np_dtype(descr)
    except (TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise SchemaError(f"dtype {descr!r} is not a numpy dtype.") from error
    if found.hasobject or found.itemsize == 0:
        raise SchemaError(f"dtype {found} has no fixed size. Use a fixed-size dtype, Text() or Bytes().")


def _check_size(shape: tuple[int | None, ...], item_bytes: int) -> None:
    num_bytes = math.prod(max(size, 1) for size in shape if size is not None) * item_bytes
    if num_bytes > MAX_STEP_BYTES:
        raise SchemaError(f"shape {shape}: a step of {num_bytes} bytes. Allowed: at most {MAX_STEP_BYTES}.")


def _check_shape(kind: Kind, shape: tuple[int | None, ...]) -> None:
    if kind == "image":
        _check_image_shape(shape)
        return
    for axis, size in enumerate(shape):
        if (size is None and axis > 0) or (size is not None and size < 0):
            raise SchemaError(f"shape {shape}: only the first dimension may be None, others are sizes of 0 or more.")
    if shape and shape[0] is None and 0 in shape:
        raise SchemaError(f"shape {shape}: entries of no bytes cannot be counted. Allowed: inner sizes of 1 or more.")


def _check_image_shape(shape: tuple[int | None, ...]) -> None:
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in IMAGE_CHANNELS)
    has_sides = is_image and (shape[:2] == (None, None) or all(size is not None and size > 0 for size in shape[:2]))
    if not has_sides:
        is_first = len(shape) == 3 and shape[0] in IMAGE_CHANNELS
        told = f" Channels come last: {(*shape[1:], shape[0])}." if is_first else ""
        raise SchemaError(
            f"shape {shape} is not an image. Allowed: (height, width) or (height, width, 1 | 3 | 4); None for both "
            f"sides where each image has a size of its own.{told}"
        )


def _check_rate(feature: Feature) -> None:
    rate = feature.rate
    is_number = isinstance(rate, int | float | np.integer | np.floating) and not isinstance(rate, bool)
    if not is_number or not 0 < float(cast(float, rate)) < MAX_RATE:
        raise SchemaError(f"rate {rate!r}. Allowed: samples a second, more than 0 and less than {MAX_RATE:g}.")
    object.__setattr__(feature, "rate", float(cast(float, rate)))
    if feature.kind not in ("array", "image") or not feature.is_ragged or feature.final:
        what = f"a feature of kind {feature.kind!r}{', final' * feature.final}"
        raise SchemaError(f"rate {rate}: {what}. Allowed: Array(..., rate=...), Image(..., rate=...), without final.")
    if None in feature.shape[1:]:
        raise SchemaError(
            f"shape {feature.shape[1:]} with a rate: samples are of one shape. Give it, e.g. "
            f"{tuple(size for size in feature.shape[1:] if size is not None)}."
        )


def _step_shape(shape: int | Iterable[int | None], rate: float | None) -> tuple[int | None, ...]:
    """Return the shape of a step: with a rate, of any number of samples."""
    sizes = _ints(shape)
    return sizes if rate is None else (None, *sizes)


def times_name(name: str) -> str:
    """Return the name of the feature that holds the times of the samples of a feature with a rate."""
    return f"{name}{TIMES}"


def _with_times(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return features with the times of those that have a rate, each behind its own where it is not among them."""
    found: dict[str, Feature] = {}
    for name, feature in features.items():
        found[name] = feature
        if isinstance(feature, Feature) and feature.rate is not None:
            times = times_name(name)
            if features.get(times, TIMES_FEATURE) != TIMES_FEATURE:
                raise SchemaError(f"feature {times!r} is kept for the times of {name!r}, which has a rate. Rename it.")
            if times not in features:
                found[times] = TIMES_FEATURE
    return found


def _ints(shape: int | Iterable[int | None]) -> tuple[int | None, ...]:
    try:
        if not isinstance(shape, Iterable):
            return (operator.index(shape),)
        return tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError as error:
        raise SchemaError(f"shape {shape!r} is not a tuple of sizes.") from error


def _module_name(module: Any) -> str | None:
    """Return a module's name as a record has it; None for anything else."""
    is_name = isinstance(module, str) and all(part.isidentifier() for part in module.split("."))
    return module if is_name else None


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(str(name) for name in names)


def _sorted_options(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return options in one order and as JSON has them, so that equal features are equal and can be written."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    return tuple(sorted(plain.items()))


# seconds since the first step of the episode
TIMES_FEATURE = Feature("array", "<f8", (None,))


class Schema(Mapping[str, Feature]):
    """The features of a store, by name, in the order they were given.

    Args:
        features: name to `Feature`. A name is letters, digits, ``_ . -``, and is also the name of its file;
            dots nest it (``observation.image`` is ``batch["observation"]["image"]`` with nested keys). A feature with a
            rate is followed by that of its samples' times, NAME_time.

    Raises:
        SchemaError: no features, a name that cannot be a file's, or two names that differ only in upper and lower case.

    Example:
        >>> schema = Schema({"action": Array(2), "observation.image": Image((96, 96, 3), codec="jpeg")})
        >>> list(schema)
        ['action', 'observation.image']

    Notes:
        Immutable and picklable; equal when the features and their order are equal.
    """

    __slots__ = ("_features", "_is_raw", "_reaching")

    def __init__(self, features: Mapping[str, Feature]) -> None:
        if not isinstance(features, Mapping):
            raise SchemaError(f"a schema of a {type(features).__name__}. Give a mapping of names to features.")
        if not features:
            raise SchemaError("a schema needs at least one feature.")
        features = _with_times(features)
        seen: dict[str, str] = {}
        for name, feature in features.items():
            _check_name(name)
            if not isinstance(feature, Feature):
                raise SchemaError(
                    f"feature {name!r} is a {type(feature).__name__}. Use Array, Image, Video, Text or Bytes."
                )
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(
                    f"features {other!r} and {name!r} differ only in case, and would share a file on some disks."
                )
        self._features = dict(features)
        self._is_raw: bool | None = None
        # made when they are needed: the same features with another reach
        self._reaching: dict[tuple[str, ...] | None, Schema] = {}

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._features[name]
        except KeyError:
            told = did_you_mean(str(name), self._features)
            raise FeatureNotFoundError(f"no feature {name!r}.{told} There are: {', '.join(self._features)}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self._features.items()))

    def __repr__(self) -> str:
        return f"<Schema {', '.join(f'{name}: {feature}' for name, feature in self.items())}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self._features,)

    @property
    def final_names(self) -> tuple[str, ...]:
        """Names of the features that have a value in an episode's final row."""
        return tuple(name for name, feature in self.items() if feature.final)

    @property
    def is_raw(self) -> bool:
        """Whether every feature is; see `Feature.is_raw`."""
        if self._is_raw is None:
            self._is_raw = all(feature.is_raw for feature in self._features.values())
        return self._is_raw

    @property
    def rated(self) -> dict[str, str]:
        """Names of the features with a rate, to those of their samples' times."""
        return {name: times_name(name) for name, feature in self.items() if feature.rate is not None}

    def rated_of(self, name: str) -> str | None:
        """Return the feature with a rate that a feature is, or of whose samples it holds the times; None of others."""
        if name in self and self[name].rate is not None:
            return name
        owner = name.removesuffix(TIMES)
        return owner if owner != name and owner in self and self[owner].rate is not None else None

    def reaching(self, reach: tuple[str, ...] | None) -> Schema:
        """Return the same features with references that lead beneath ``reach``; see `Feature`."""
        if reach not in self._reaching:
            features = {name: replace(feature, reach=reach) for name, feature in self._features.items()}
            self._reaching[reach] = Schema(features)
        return self._reaching[reach]

    def with_feature(self, name: str, feature: Feature) -> Schema:
        """Return this schema with one more feature at the end."""
        if name in self:
            raise SchemaError(f"there is a feature {name!r} already.")
        return Schema({**self._features, name: feature})

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON types."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_json` wrote."""
        if not isinstance(record, Mapping):
            raise SchemaError(f"not the record of a schema: {record!r}.")
        return cls({name: Feature.from_json(feature) for name, feature in record.items()})


def infer_feature(value: Any) -> Feature:
    """Return the feature that one value suggests."""
    # Strings become `Text`, bytes become `Bytes`; uint8 arrays of height x width x (1, 3 or 4) with sides of 16 and
    # more become raw `Image`; everything else the `Array` of its dtype and shape. Python floats become float64, ints
    # int64.
    if isinstance(value, str):
        return Text()
    if isinstance(value, bytes | bytearray | memoryview):
        return Bytes()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SchemaError(
            f"a {type(value).__name__} of uneven lengths is no array. Give the schema yourself."
        ) from error
    if array.dtype.hasobject:
        raise SchemaError(
            f"a {type(value).__name__} has no fixed-size dtype. Give an array, a number, a string or bytes."
        )
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
        raise SchemaError(
            f"a {type(value).__name__} of strings: the longest of the first step would bound all others. "
            'Give the schema yourself, e.g. Array(3, "U20"), or one Text() for each.'
        )
    if (
        array.dtype == np.uint8
        and array.ndim == 3
        and array.shape[2] in (1, 3, 4)
        and min(array.shape[:2]) >= IMAGE_MIN_SIDE
    ):
        return Image(array.shape)
    return Array(array.shape, array.dtype)


def infer_schema(step: Mapping[str, Any], *, final: Iterable[str] | None = None) -> Schema:
    """Return the schema that a first step suggests.

    Args:
        step: name to value of one step; nested mappings become dotted names.
        final: names of the features that also have a value in an episode's final row. Default: those named
            ``observation`` or ``obs``, or whose dotted name begins so.

    Raises:
        SchemaError: a value or a name that cannot be stored; the message names it.
    """
    pairs = list(flatten(step))
    flat = dict(pairs)
    if len(flat) < len(pairs):
        twice = sorted({name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1})
        raise SchemaError(f"the step has {', '.join(twice)} twice, nested and with dots in its name.")
    finals = {name for name in flat if name.split(".")[0] in FINAL_NAMES} if final is None else set(final)
    unknown = finals - set(flat)
    if unknown:
        raise SchemaError(f"final names {sorted(unknown)}, which the step does not have. It has: {', '.join(flat)}.")
    features = {}
    for name, value in flat.items():
        try:
            features[name] = infer_feature(value).with_final(name in finals)
        except SchemaError as error:
            raise SchemaError(f"feature {name!r}: {error}") from error
    return Schema(features)


def infer_columns(columns: Mapping[str, Any], *, final: Iterable[str] | None = None) -> Schema:
    """Return the schema that the whole columns of an episode suggest."""
    # Lists of arrays of different lengths become ragged features, lists of images of different sizes ``Image((None,
    # None, channels))``.
    schema = infer_schema({name: values[0] for name, values in columns.items()}, final=final)
    return Schema({name: _varying(feature, columns[name]) for name, feature in schema.items()})


def _varying(feature: Feature, values: Any) -> Feature:
    """Return a feature that takes a list of arrays whose shapes differ."""
    if not isinstance(values, list | tuple) or not all(isinstance(v, np.ndarray) and v.ndim for v in values):
        return feature
    if feature.kind == "image":
        is_alike = len({value.shape for value in values}) == 1
        return feature if is_alike else Image((None, None, feature.shape[2]), final=feature.final)
    if len({len(value) for value in values}) == 1:
        return feature
    return Array((None, *values[0].shape[1:]), feature.dtype, final=feature.final)


def flatten(step: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of a possibly nested step."""
    for name, value in step.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def is_feature_name(name: object) -> bool:
    """Whether this is the name of a feature: other text may be a path that leads out of a store."""
    try:
        _check_name(name)
    except SchemaError:
        return False
    return True


def _check_name(name: object) -> None:
    if (
        not isinstance(name, str)
        or not NAME.fullmatch(name)
        or name.endswith(".")
        or ".." in name
        or len(name) > MAX_NAME_BYTES
    ):
        raise SchemaError(
            f"feature name {name!r} cannot be a file's name. Allowed: letters, digits, '_', '.' and '-', "
            f"at most {MAX_NAME_BYTES}, not beginning with '.' or '-', no '..', not ending with '.'."
        )
    if name in RESERVED:
        raise SchemaError(f"feature name {name!r} is the name of one of the store's own files. Choose another.")
