"""A field: what one key of a batch holds, as feature(s), offsets around the anchor, padding and transforms.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from stepwell.codecs import Decoder
from stepwell.errors import WindowError

__all__ = ["Field", "as_fields"]

Pad = Literal["edge", "zero", "drop"]
At = Literal["anchor", "future", "final", "episode"]
Combine = Literal["stack", "concat"]
PADS = ("edge", "zero", "drop")
PLACES = ("anchor", "future", "final", "episode")
COMBINES = ("stack", "concat")
MAX_OFFSET = 1 << 31


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
        pad: "edge" (default), "zero" or "drop", see the head of this module. "edge" and "zero" add ``<key>_is_pad``,
            bool [B, *window], except for the anchor itself without a time axis.
        combine: for several sources: "stack" makes a new axis after the window's, "concat" joins the steps' arrays
            along their first axis. Dtypes must agree.
        transform: one or several, applied by the loader in order: `stepwell.Transform` objects, or callables array ->
            array on [B, *window, ...]. A callable with a parameter ``draws`` (or ``rng``) is given random numbers that
            depend on (seed, epoch, position of the window) only (``rng``: of the batch).
        decoder: what is made of each row before anything else (`stepwell.codecs.Decoder`): a crop, a smaller image.
            Less may be decoded for it.
        at: where the window is placed: at the "anchor" (default), at a row drawn from the rows after it ("future"; the
            last one is its own), at the episode's last row ("final"), or at any row drawn from the "episode":
            candidates for hindsight goals. All fields of a batch with the same ``at`` are placed alike.
        tolerance_seconds: how far ``seconds`` may lie from a step.

    Raises:
        WindowError: arguments that contradict each other or are out of range.

    Example:
        >>> Field("observation.image", [-1, 0])
        Field('observation.image', (-1, 0))
        >>> Field(("state", "goal"), range(2), combine="concat", pad="drop").window_shape
        (2,)
        >>> Field("action", seconds=[0.0, 0.1, 0.2]).window_shape
        (3,)

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

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        if not isinstance(self.source, str):
            set_value(self, "source", tuple(self.source))
        if not self.sources or not all(isinstance(name, str) and name for name in self.sources):
            raise WindowError(f"source {self.source!r} is neither a feature's name nor a tuple of names.")
        if self.offsets is not None and self.seconds is not None:
            raise WindowError("offsets and seconds were both given. Give one of them.")
        if self.offsets is not None:
            set_value(self, "offsets", _nested(self.offsets, _as_step, "offsets"))
        if self.seconds is not None:
            set_value(self, "seconds", _nested(self.seconds, _as_seconds, "seconds"))
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
        if self.at not in PLACES:
            raise WindowError(f"at={self.at!r} is not one of {', '.join(PLACES)}.")
        if self.at != "anchor" and self.pad == "drop":
            raise WindowError(
                f"at={self.at!r} with pad='drop': only windows at the anchor can decide what an anchor is."
            )
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
        """The shape of the offsets; () without a time axis."""
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


def _as_field(key: str, value: Any) -> Field:
    if isinstance(value, Field):
        return value
    try:
        return Field(value) if isinstance(value, str) else Field(key, value)
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from error


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
