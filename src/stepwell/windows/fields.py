"""A field of a batch as a value, and against a store's schema: its columns, offsets in steps, dtype and shape.

Offsets are steps counted from the anchor. Where a window leaves its episode, ``pad`` decides; an episode of 5 steps,
offsets [-1, 0, 1, 2], anchors left to right::

                  anchor 0      anchor 1      anchor 3      anchor 4
    "edge"        0|0 1 2       |0 1 2 3       2 3 4|4       3 4|4 4      the nearest step, marked in <key>_is_pad
    "zero"        .|0 1 2       |0 1 2 3       2 3 4|.       3 4|. .      zeros, marked in <key>_is_pad
    "drop"        no anchor     |0 1 2 3      no anchor     no anchor     steps 1 and 2 are the only anchors

Offsets need not be consecutive or ascending: [-8, -4, 0] strides, [0, -1] reverses, [0, 0] repeats. The window has
their shape::

    offsets                        output of a feature of shape (2,)
    None or 3                      [B, 2]
    [-1, 0]                        [B, 2, 2]
    [[-3, -2], [-2, -1], [-1, 0]]  [B, 3, 2, 2]        a sequence of 3 stacks of 2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from stepwell.alignment import METHODS
from stepwell.codecs import Decoder, codec_class
from stepwell.errors import FeatureNotFoundError, SchemaError, WindowError, did_you_mean
from stepwell.schema import MAX_RATE, Array, Feature, Schema, times_name
from stepwell.windows.rated import Clocked, clocked, merged, span_indices

__all__ = [
    "VIRTUAL_DTYPES",
    "At",
    "Field",
    "FieldSource",
    "ResolvedField",
    "as_fields",
    "parse_offsets",
    "resolve",
    "resolve_all",
    "resolve_fields",
    "schema_of",
]

Pad = Literal["edge", "zero", "drop"]
At = Literal["anchor", "future", "final", "episode"] | tuple[int, int | None]
Combine = Literal["stack", "concat"]
PADS = ("edge", "zero", "drop")
PLACES = ("anchor", "future", "final", "episode")
COMBINES = ("stack", "concat")
MAX_OFFSET = 1 << 31
Kind = Literal["raw", "encoded", "converted", "ragged", "rated", "virtual"]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a batch.

    Args:
        source: name of the feature, or of several that are combined. Without a feature of that name these are computed:
            ``step_id``, ``store_index`` (in the view), ``episode_index`` (in the store) and ``step_index`` (in the
            episode), int64; ``timestamp`` (seconds since the episode's first step, float32, needs fps); ``is_first``,
            ``is_last``, ``terminated`` and ``truncated``, bool, the last three true at the last step only.
        offsets: steps from the anchor. None (the anchor itself) or an int: no time axis. A sequence, nested or not: its
            shape is the window's.
        seconds: the same as floats, in seconds, instead of ``offsets``; needs the store's fps.
        pad: where the window leaves its episode: "edge" (default) repeats the nearest step, "zero" gives zeros, and
            both add ``<key>_is_pad``, bool [B, *window], except for the anchor itself without a time axis; "drop" has
            no sample at such an anchor.
        combine: for several sources: "stack" makes a new axis after the window's, "concat" joins the steps' arrays
            along their first axis. Dtypes must agree.
        transform: one or several, applied by the loader in order: `stepwell.Transform` objects, or callables array ->
            array on [B, *window, ...]. A callable with a parameter ``draws`` (or ``rng``) is given random numbers that
            depend on (seed, epoch, position of the window) only (``rng``: of the batch).
        decoder: applied to each row before anything else (`stepwell.codecs.Decoder`): a crop, a smaller image.
            Less may be decoded for it.
        at: where the window is placed: at the "anchor" (default), at a row drawn from the rows after it ("future"; the
            last one is its own), at the episode's last row ("final"), or at any row drawn from the "episode":
            candidates for hindsight goals. (least, most) draws from the rows that lie so many steps after the anchor
            and in the episode; most None: to its last row. All fields of a batch with the same ``at`` are placed alike.
        tolerance_seconds: how far ``seconds`` may lie from a step.
        span: (begin, end) in seconds from the anchor, instead of ``offsets``: of a feature with a rate its samples,
            round((end - begin) * rate) of them, which follow each other and of which that before the anchor's time is
            number 0; of other features the steps in it, but for one at its begin.
        rate: of a feature with a rate: so many points a second in the span, instead of the samples as they are.
        align: of a feature with a rate, what a point in time shows: "hold" (default), the last sample at or before it;
            the "nearest" one; "linear", between the two around it. Points are those of ``rate``, ``seconds``, or of
            the steps that ``offsets`` name.

    Raises:
        WindowError: arguments that contradict each other or are out of range.

    Example:
        >>> Field("observation.image", [-1, 0])
        Field('observation.image', (-1, 0))
        >>> Field(("state", "goal"), range(2), combine="concat", pad="drop").window_shape
        (2,)
        >>> Field("action", seconds=[0.0, 0.1, 0.2]).window_shape
        (3,)
        >>> Field("tactile", span=(-0.1, 0), rate=50, align="linear")
        Field('tactile', span=(-0.1, 0.0), rate=50, align='linear')

    Notes:
        An immutable value: printable, comparable, picklable when its transforms are.
    """

    source: str | tuple[str, ...]
    offsets: Any = None
    seconds: Any = None
    pad: Pad = "edge"
    combine: Combine | None = None
    transform: Callable[..., Any] | tuple[Callable[..., Any], ...] = ()
    decoder: Decoder | None = None
    at: At = "anchor"
    tolerance_seconds: float = 1e-4
    span: tuple[float, float] | None = None
    rate: float | None = None
    align: str | None = None

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        if not isinstance(self.source, str):
            set_value(self, "source", tuple(self.source))
        if not self.sources or not all(isinstance(name, str) and name for name in self.sources):
            raise WindowError(f"source {self.source!r} is neither a feature's name nor a tuple of names.")
        if sum(given is not None for given in (self.offsets, self.seconds, self.span)) > 1:
            raise WindowError("more than one of offsets, seconds and span was given. Give one of them.")
        if self.offsets is not None:
            set_value(self, "offsets", _nested(self.offsets, _as_step, "offsets"))
        if self.seconds is not None:
            set_value(self, "seconds", _nested(self.seconds, _as_seconds, "seconds"))
        if self.span is not None:
            set_value(self, "span", _as_span(self.span))
        if isinstance(self.transform, Iterable) and not callable(self.transform):
            set_value(self, "transform", tuple(self.transform))
        self._check_choices()

    def _check_choices(self) -> None:
        if self.pad not in PADS:
            raise WindowError(f"pad={self.pad!r} is not one of {', '.join(PADS)}.")
        if self.combine is not None and self.combine not in COMBINES:
            raise WindowError(f"combine={self.combine!r} is not one of {', '.join(COMBINES)}.")
        if self.combine is None and not isinstance(self.source, str):
            raise WindowError(f"several sources {self.source} need combine='stack' (a new axis) or combine='concat'.")
        if self.combine is not None and isinstance(self.source, str):
            raise WindowError(f"combine={self.combine!r} needs a tuple of sources, got {self.source!r} alone.")
        if not isinstance(self.transforms, tuple) or not all(callable(transform) for transform in self.transforms):
            raise WindowError(f"transform {self.transform!r} holds what cannot be called.")
        if self.decoder is not None and not isinstance(self.decoder, Decoder):
            raise WindowError(f"decoder {self.decoder!r} is no stepwell.codecs.Decoder. Give an instance of one.")
        if self.at not in PLACES and not _is_distance(self.at):
            raise WindowError(
                f"at={self.at!r} is not one of {', '.join(PLACES)}, nor (least, most) steps after the anchor."
            )
        if self.at != "anchor" and self.pad == "drop":
            raise WindowError(
                f"at={self.at!r} with pad='drop': only windows at the anchor can decide what an anchor is."
            )
        if self.rate is not None and (self.span is None or not 0 < _as_seconds(self.rate) < MAX_RATE):
            raise WindowError(
                f"rate={self.rate}: points a second of a span, more than 0. Give it with span=(begin, end)."
            )
        if self.align is not None and self.align not in METHODS:
            raise WindowError(f"align={self.align!r} is not one of {', '.join(METHODS)}.")
        if not self.tolerance_seconds >= 0:
            raise WindowError(f"tolerance_seconds={self.tolerance_seconds} is not 0 or more.")

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, one or several."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def transforms(self) -> tuple[Callable[..., Any], ...]:
        """The transforms, in the order they are applied."""
        return (self.transform,) if callable(self.transform) else self.transform

    @property
    def window_shape(self) -> tuple[int, ...]:
        """The shape of the offsets; () without a time axis. That of a span follows from the feature's rate."""
        if self.span is not None:
            raise WindowError(f"the length of span={self.span} follows from a rate: see the resolved field.")
        given = self.offsets if self.seconds is None else self.seconds
        return () if given is None else cast(tuple[int, ...], np.shape(given))

    def step_offsets(self, fps: float | None) -> tuple[int, ...]:
        """Return the offsets in steps, flat.

        Args:
            fps: steps a second of the store, or None.

        Raises:
            WindowError: seconds without an fps, or one that lies too far from any step.

        Example:
            >>> Field("action", seconds=[-0.1, 0.0, 0.1]).step_offsets(fps=10)
            (-1, 0, 1)
        """
        if self.span is not None:
            if not fps:
                raise WindowError("a span needs the store's fps, and it has none. Give offsets in steps.")
            return tuple(span_indices(self.span, fps))
        if self.seconds is None:
            return tuple(np.ravel(0 if self.offsets is None else self.offsets).tolist())
        if not fps:
            raise WindowError("seconds need the store's fps, and it has none. Give offsets in steps.")
        return tuple(self._step_of(value, fps) for value in np.ravel(self.seconds).tolist())

    def _step_of(self, seconds: float, fps: float) -> int:
        if abs(seconds * fps) >= MAX_OFFSET:
            raise WindowError(f"{seconds} s is {seconds * fps:.6g} steps at {fps} fps, which is beyond 31 bits.")
        steps = round(seconds * fps)
        # the last term lets a tolerance of 0 accept what only binary fractions spoil
        if abs(seconds * fps - steps) > self.tolerance_seconds * fps + 1e-9 * max(1, abs(steps)):
            raise WindowError(
                f"{seconds} s is {seconds * fps:.6g} steps at {fps} fps, more than tolerance_seconds="
                f"{self.tolerance_seconds} from step {steps}. Use {steps / fps:.6g} s, or a larger tolerance."
            )
        return steps

    def __repr__(self) -> str:
        parts = [repr(self.source)] + ([] if self.offsets is None else [repr(self.offsets)])
        for name, default in (
            ("seconds", None),
            ("pad", "edge"),
            ("combine", None),
            ("transform", ()),
            ("decoder", None),
            ("at", "anchor"),
            ("tolerance_seconds", 1e-4),
            ("span", None),
            ("rate", None),
            ("align", None),
        ):
            value = getattr(self, name)
            if value != default:
                parts.append(f"{name}={value!r}")
        return f"Field({', '.join(parts)})"


def as_fields(fields: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Field]:
    """Return fields as `Field` objects.

    Args:
        fields: key to Field, name of a feature, or offsets of the feature named like the key; None: every feature at
            the anchor.
        names: of the store's features.

    Raises:
        WindowError: no fields, or a key that is the mask of another.

    Example:
        >>> as_fields({"action": range(2), "obs": "observation"}, ["observation", "action"])
        {'action': Field('action', (0, 1)), 'obs': Field('observation')}
    """
    if fields is None:
        return {name: Field(name) for name in names}
    if not isinstance(fields, Mapping) or not fields:
        raise WindowError(
            f"fields {fields!r} are not a mapping of at least one key. Give {{'action': range(16), ...}}."
        )
    found = {str(key): _as_field(str(key), value) for key, value in fields.items()}
    for key in found:
        if f"{key}_is_pad" in found:
            raise WindowError(f"key '{key}_is_pad' is the mask of key {key!r}. Choose another name.")
    return found


def parse_offsets(text: str) -> tuple[str, Sequence[int]]:
    """Return a feature and its offsets in steps, of ``action=0:16`` or ``image=-1,0``; none where none are given.

    Raises:
        WindowError: the text is neither.
    """
    name, _, offsets = text.partition("=")
    try:
        if ":" in offsets:
            return name, range(*(int(part) for part in offsets.split(":")))
        return name, tuple(int(part) for part in offsets.split(",") if offsets)
    except (ValueError, TypeError):
        raise WindowError(f"{text!r} is not NAME=OFFSETS, e.g. action=0:16 or image=-1,0") from None


def _as_field(key: str, value: Any) -> Field:
    if isinstance(value, Field):
        return value
    try:
        return Field(value) if isinstance(value, str) else Field(key, value)
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from error


def _is_distance(at: Any) -> bool:
    """Return whether it is (least, most) steps, most None where nothing bounds them."""
    if not (isinstance(at, tuple) and len(at) == 2):
        return False
    least, most = at[0], at[0] if at[1] is None else at[1]
    are_whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in (least, most))
    return are_whole and 0 <= least <= most < MAX_OFFSET


def _as_step(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise WindowError(f"offset {value!r} is not a whole number of steps. Use seconds=... for times.")
    if abs(int(value)) >= MAX_OFFSET:
        raise WindowError(f"offset {value!r} is beyond 31 bits.")
    return int(value)


def _as_seconds(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise WindowError(f"{value!r} is not a time in seconds.")
    if not np.isfinite(value):
        raise WindowError(f"{value!r} is not a finite time in seconds.")
    return float(value)


def _as_span(value: Any) -> tuple[float, float]:
    try:
        begin, end = value
    except (TypeError, ValueError):
        raise WindowError(f"span {value!r} is not (begin, end) in seconds from the anchor, e.g. (-0.1, 0.0).") from None
    span = _as_seconds(begin), _as_seconds(end)
    if span[0] >= span[1]:
        raise WindowError(f"span={span} ends before it begins. Give (begin, end), e.g. (-0.1, 0.0).")
    return span


def _nested(value: Any, convert: Callable[[Any], Any], name: str) -> Any:
    """Return a number or nested sequences of numbers as a number or nested tuples, all of one length at each level."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, range)):
        return convert(value)
    items = tuple(_nested(item, convert, name) for item in value)
    if not items:
        raise WindowError(f"{name} are empty. Give at least one, or None for the anchor itself.")
    if len({np.shape(item) for item in items}) != 1:
        raise WindowError(f"{name} {value!r} are not of one shape.")
    return items


# what every store has without storing it
VIRTUAL_DTYPES: dict[str, np.dtype[Any]] = {
    "step_id": np.dtype(np.int64),
    "store_index": np.dtype(np.int64),
    "episode_index": np.dtype(np.int64),
    "step_index": np.dtype(np.int64),
    "timestamp": np.dtype(np.float32),
    "is_first": np.dtype(np.bool_),
    "is_last": np.dtype(np.bool_),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
}
# of one sample of a feature with a rate
TIME_FEATURE = Array((), "float64")


@dataclass(frozen=True, slots=True)
class FieldSource:
    """One column that a field reads."""

    name: str  # of the feature, or of the virtual source
    # "raw" rows, "encoded" rows of a fixed decoded shape, rows "converted" by a decoder (of fixed shape or images of
    # any size), "ragged" ones, "rated" samples with a clock of their own, or "virtual"
    kind: Kind
    dtype: np.dtype[Any]  # of an element that comes out
    shape: tuple[int | None, ...]  # of one step that comes out; (None, ...) when ragged
    is_final: bool  # whether windows may reach an episode's final row
    feature: Feature | None  # as the (first) schema has it; None for a virtual source
    is_sequential: bool = False  # whether rows must be decoded from a sync row on, in any store
    decoder: Decoder | None = None  # of the field
    is_of_one_shape: bool = True  # whether all rows, in all stores, have one shape before the decoder
    rate: float | None = None  # of "rated" samples, a second
    times: str | None = None  # of "rated" samples, the column of their times

    @property
    def is_drawn(self) -> bool:
        """Whether its decoder makes something else of a row for each window."""
        return self.decoder is not None and self.decoder.is_random

    @property
    def is_holdable(self) -> bool:
        """Whether rows can be held of which every window takes what it shows."""
        return self.kind not in {"ragged", "rated"} and (self.is_of_one_shape or not self.is_drawn)

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded step; 0 when it varies."""
        return 0 if self.kind == "ragged" else math.prod(int(n or 0) for n in self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedField:
    """A field whose every number is known.

    Args:
        key: of the batch.
        field: as it was given.
        sources: its columns, in the field's order.
        offsets: int64 [K], steps from the anchor, the window flattened.
        step_shape: of one step of the output; (None, ...) when ragged.
        dtype: of the output; object when ragged.
        clock: of features with a rate, which samples are shown.

    Attributes:
        window_shape: shape of the offsets, () without a time axis.
        pad: the padding rule: "edge", "zero" or "drop".
        is_ragged: whether the output is an object array: a text, bytes or array of its own size in each cell.
        has_mask: whether the batch has ``<key>_is_pad``.
        keys: of the batch: its own, and its mask's.
        is_step: whether it is the anchor's step alone, which no padding concerns.
        is_computed: whether it is one computed column, around the anchor.
    """

    key: str
    field: Field
    sources: tuple[FieldSource, ...]
    offsets: npt.NDArray[np.int64]
    step_shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    clock: Clocked | None = None
    # read for every batch
    window_shape: tuple[int, ...] = dataclass_field(init=False)
    pad: str = dataclass_field(init=False)
    is_ragged: bool = dataclass_field(init=False)
    has_mask: bool = dataclass_field(init=False)
    keys: tuple[str, ...] = dataclass_field(init=False)
    is_step: bool = dataclass_field(init=False)
    is_computed: bool = dataclass_field(init=False)

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        is_span = self.field.span is not None
        set_value(self, "window_shape", (len(self.offsets),) if is_span else self.field.window_shape)
        set_value(self, "pad", self.field.pad)
        set_value(self, "is_ragged", self.sources[0].kind == "ragged")
        is_step = self.window_shape == () and int(self.offsets[0]) == 0 and self.clock is None
        is_computed = len(self.sources) == 1 and self.sources[0].kind == "virtual"
        # a sensor may be silent in mid-episode
        set_value(self, "has_mask", (self.pad != "drop" or self.clock is not None) and not is_step)
        set_value(self, "is_step", is_step and self.field.at == "anchor")
        set_value(self, "is_computed", is_computed and self.field.at == "anchor")
        set_value(self, "keys", (self.key, self.mask_key) if self.has_mask else (self.key,))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: window, then step; a ragged field's cells are objects."""
        return self.window_shape if self.is_ragged else self.window_shape + tuple(int(n or 0) for n in self.step_shape)

    @property
    def min_offset(self) -> int:
        """The earliest step of the window."""
        return int(self.offsets.min()) if self.clock is None else self.clock.reach[0]

    @property
    def max_offset(self) -> int:
        """The latest step of the window."""
        return int(self.offsets.max()) if self.clock is None else self.clock.reach[1]

    @property
    def is_held(self) -> bool:
        """Whether a pool may hold its rows: they lie around the anchor, and have one size."""
        return all(source.is_holdable for source in self.sources) and self.field.at == "anchor"

    @property
    def is_encoded(self) -> bool:
        """Whether a row must be decoded."""
        return any(source.kind in {"encoded", "converted", "ragged", "rated"} for source in self.sources)

    @property
    def mask_key(self) -> str:
        """The mask's key."""
        return f"{self.key}_is_pad"

    @property
    def num_bytes(self) -> int:
        """Decoded bytes of one sample, the mask not counted; 0 when ragged."""
        return len(self.offsets) * sum(source.row_bytes for source in self.sources)


def resolve(field: Field, key: str, schema: Schema, fps: float | None) -> ResolvedField:
    """Return a field as one store has it.

    Args:
        field: the field.
        key: of the batch, named in errors.
        schema: of the store.
        fps: of the store, or None.

    Raises:
        WindowError: sources that cannot be combined, seconds that are no steps, a virtual source without its fps.
        FeatureNotFoundError: no such feature and no such virtual source.
    """
    try:
        sources = tuple(_source(name, schema, fps, field) for name in field.sources)
        clock = _clock(field, sources, fps)
        offsets = np.array(field.step_offsets(fps), dtype=np.int64) if clock is None else clock.offsets
        step_shape = _step_shape(field, sources)
    except FeatureNotFoundError as error:
        raise FeatureNotFoundError(f"field {key!r}: {error}") from None
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from None
    dtype = np.dtype(object) if sources[0].kind == "ragged" else sources[0].dtype
    return ResolvedField(key, field, sources, offsets, step_shape, dtype, clock)


def _clock(field: Field, sources: Sequence[FieldSource], fps: float | None) -> Clocked | None:
    """Return which samples a field of features with a rate shows; None of others."""
    rates = {source.rate for source in sources}
    if rates == {None}:
        if field.rate is not None or field.align is not None:
            raise WindowError(
                f"rate and align are for features with a rate, and {field.source!r} has a value a step. "
                "Give offsets, seconds or span alone."
            )
        return None
    if len(rates) > 1:
        raise WindowError(f"features of different rates {field.sources} cannot be combined. Use a field for each.")
    (rate,) = rates
    assert rate is not None
    return clocked(field, rate, fps)


def resolve_all(field: Field, key: str, stores: Sequence[tuple[Schema, float | None]]) -> ResolvedField:
    """Return a field as several stores have it together: codecs may differ, dtypes, shapes and offsets may not."""
    each = [resolve(field, key, schema, fps) for schema, fps in stores]
    first = each[0]
    for other in each[1:]:
        if (first.clock is None) != (other.clock is None):
            raise WindowError(f"field {key!r}: it has a rate in some of the stores only, and a value a step in others.")
        if first.clock is None and not np.array_equal(first.offsets, other.offsets):
            raise WindowError(f"field {key!r}: its seconds are different steps in the stores, whose fps differ.")
        for a, b in zip(first.sources, other.sources, strict=True):
            if (a.dtype, a.shape, a.is_final, a.feature is None) != (b.dtype, b.shape, b.is_final, b.feature is None):
                raise WindowError(
                    f"field {key!r}: the stores do not agree on {a.name!r}: {_describe(a)} here, {_describe(b)} there."
                    f"{_advice(a)}"
                )
    sources = tuple(_merged([one.sources[i] for one in each]) for i in range(len(first.sources)))
    clocks = [one.clock for one in each if one.clock is not None]
    try:
        clock = merged(clocks, [one.sources[0].rate for one in each]) if len(clocks) > 1 else first.clock
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from None
    offsets = first.offsets if clock is None else clock.offsets
    return ResolvedField(key, field, sources, offsets, first.step_shape, first.dtype, clock)


def resolve_fields(fields: Mapping[str, Any] | None, stores: Sequence[Any]) -> dict[str, ResolvedField]:
    """Return fields as several stores have them together, by key."""
    known = [(schema_of(store), store.fps) for store in stores]
    return {key: resolve_all(field, key, known) for key, field in as_fields(fields, list(known[0][0])).items()}


def schema_of(store: Any) -> Schema:
    """Return the schema of a store that is to be read.

    Raises:
        WindowError: it has none yet.
    """
    if store.schema is None:
        raise WindowError(
            f"{store.path} has no features yet: they are known with its first step. Write one first, or name them: "
            "create(path, schema)."
        )
    schema: Schema = store.schema
    return schema


def _source(name: str, schema: Schema, fps: float | None, field: Field) -> FieldSource:
    decoder = field.decoder
    rated = schema.rated_of(name)
    if rated is not None:
        return _rated(name, rated, schema, field)
    if name in schema:
        feature = schema[name]
        if decoder is not None:
            return _converted(name, feature, decoder)
        kind: Kind = "ragged" if feature.is_ragged else "raw" if feature.is_raw else "encoded"
        is_sequential = kind == "encoded" and codec_class(feature).is_sequential
        return FieldSource(name, kind, feature.np_dtype, feature.shape, feature.final, feature, is_sequential)
    if name not in VIRTUAL_DTYPES:
        raise FeatureNotFoundError(
            f"no feature {name!r}.{did_you_mean(name, [*schema, *VIRTUAL_DTYPES])} There are: {', '.join(schema)}; and "
            f"computed ones: {', '.join(VIRTUAL_DTYPES)}."
        )
    if decoder is not None:
        raise WindowError(f"{name!r} is computed, not stored: there is nothing to decode. Leave out the decoder.")
    if name == "timestamp" and not fps:
        raise WindowError("'timestamp' needs the store's fps, and it has none. Use 'step_index'.")
    return FieldSource(name, "virtual", VIRTUAL_DTYPES[name], (), False, None)


def _rated(name: str, rated: str, schema: Schema, field: Field) -> FieldSource:
    feature, decoder = schema[name].sample if name == rated else TIME_FEATURE, field.decoder
    shape, dtype = (feature.fixed_shape, feature.np_dtype) if decoder is None else _output(name, feature, decoder)
    if field.align == "linear":
        if dtype.kind not in "iuf":
            raise WindowError(
                f"align='linear' of {name!r}, which is {dtype}. Allowed: numbers; else 'nearest' or 'hold'."
            )
        dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    rate, times = schema[rated].rate, times_name(rated)
    return FieldSource(name, "rated", dtype, shape, False, feature, decoder=decoder, rate=rate, times=times)


def _converted(name: str, feature: Feature, decoder: Decoder) -> FieldSource:
    if feature.is_ragged and not feature.is_image_of_any_size:
        raise WindowError(f"{name!r} varies in size from step to step: a decoder needs a fixed shape, or images.")
    shape, dtype = _output(name, feature, decoder)
    is_sequential = not feature.is_raw and codec_class(feature).is_sequential
    return FieldSource(
        name,
        "converted",
        dtype,
        shape,
        feature.final,
        feature,
        is_sequential,
        decoder,
        is_of_one_shape=not feature.is_ragged,
    )


def _output(name: str, feature: Feature, decoder: Decoder) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of what a decoder makes of a step."""
    try:
        shape, dtype = decoder.output(feature)
    except SchemaError as error:
        raise WindowError(
            f"decoder {decoder!r} of {name!r}: {error} Its output() must return the one shape that comes out."
        ) from error
    return tuple(shape), np.dtype(dtype)


def _merged(sources: Sequence[FieldSource]) -> FieldSource:
    """Return the source that needs the most work: where one store has to decode, the batch path decodes."""
    found = next((source for source in sources if source.kind == "encoded"), sources[0])
    shapes = {source.feature.shape for source in sources if source.feature is not None}
    return replace(
        found,
        is_sequential=any(source.is_sequential for source in sources),
        is_of_one_shape=found.is_of_one_shape and len(shapes) <= 1,
    )


def _step_shape(field: Field, sources: tuple[FieldSource, ...]) -> tuple[int | None, ...]:
    first = sources[0]
    if field.combine is None:
        return first.shape
    for source in sources:
        if source.kind == "ragged":
            raise WindowError(f"{source.name!r} varies in size from step to step and cannot be combined with others.")
        if source.dtype != first.dtype:
            raise WindowError(
                f"{first.name!r} is {first.dtype} and {source.name!r} is {source.dtype}: dtypes must agree."
            )
    if field.combine == "stack":
        if any(source.shape != first.shape for source in sources):
            raise WindowError(
                f"shapes {[source.shape for source in sources]} must agree to be stacked. Use combine='concat'."
            )
        return (len(sources), *first.shape)
    if any(source.shape == () or source.shape[1:] != first.shape[1:] for source in sources):
        raise WindowError(
            f"shapes {[source.shape for source in sources]} cannot be joined along their first axis: "
            "scalars have none (stack them), and the other axes must agree."
        )
    return (sum(int(source.shape[0] or 0) for source in sources), *first.shape[1:])


def _advice(source: FieldSource) -> str:
    """Return how images of several sizes are read together."""
    is_plain = source.feature is not None and source.feature.kind == "image" and source.decoder is None
    return f" Images of several sizes become alike by Field({source.name!r}, decoder=Resize(...))." if is_plain else ""


def _describe(source: FieldSource) -> str:
    final = ", with a final row" if source.is_final else ""
    return f"{source.dtype} {source.shape}{final}" if source.feature is not None else "computed"
