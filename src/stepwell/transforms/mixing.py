"""Mixing windows of a batch with each other: mixup of values and labels, and CutMix.

Every window has a partner in its batch. Windows are put into the order of a number that each draws, and the partner of
one is the next, that of the last the first: no window is its own partner, and each is a partner once::

    drawn      0.7  0.1  0.9  0.4          order   1 3 0 2          partner of 0 1 2 3   =   2 3 1 0

So partners depend on which windows are in the batch, weights and boxes on each window alone; neither depends on
threads.

`Poison` and `ReplaceLabel` change chosen steps only, by their ids, for studies of poisoned data.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import BatchTransform, Samples, Shape, as_keys, look_up
from stepwell.transforms.conversion import one_hot
from stepwell.transforms.images import ImageLayout

__all__ = ["CutMix", "Mixup", "Poison", "ReplaceLabel", "SymmetricBeta", "blend", "partners"]

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
TABLE_SIZE = 1 << 14
MAX_ALPHA = 1e4
# of float32 that a part of a batch is blended in: as much as stays in a core's cache
BLEND_VALUES = 1 << 16


class _Mixing(BatchTransform):
    """The common part of mixup and CutMix: weights, partners and labels."""

    def __init__(
        self,
        keys: str | Iterable[str],
        alpha: float = 1.0,
        *,
        labels: Mapping[str, int] | None = None,
        pairs: str | Iterable[str] = (),
        weight: str | None = None,
        same: bool = False,
        key: str | None = None,
    ) -> None:
        self.keys = as_keys(keys)
        self.labels = dict(labels or {})
        self.pairs = as_keys(pairs)
        self.weight = weight or ("mix_weight" if self.pairs else None)
        self.same = same
        self.key = key
        self._beta = SymmetricBeta(alpha)

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with labels as vectors, and with the keys that are added."""
        for key in self.keys:
            look_up(samples, key, self)
        for key, num_classes in self.labels.items():
            sample = look_up(samples, key, self)
            samples[key] = None if sample is None else ((*sample[0], num_classes), np.dtype(np.float32))
        for key in self.pairs:
            samples[f"{key}_partner"] = look_up(samples, key, self)
        if self.weight is not None:
            samples[self.weight] = ((), np.dtype(np.float32))
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch mixed."""
        partner = partners(draws.uniform())
        weights = self._beta.quantile(draws.uniform())
        if self.same:
            weights = np.broadcast_to(weights[:1], weights.shape)
        weights = self._mix(batch, partner, weights, draws)
        for key, num_classes in self.labels.items():
            vectors = one_hot(look_up(batch, key, self), num_classes)
            batch[key] = blend(vectors, partner, weights)
        for key in self.pairs:
            batch[f"{key}_partner"] = look_up(batch, key, self)[partner]
        if self.weight is not None:
            batch[self.weight] = weights.astype(np.float32)
        return batch

    @abstractmethod
    def _mix(self, batch: dict[str, Any], partner: Int64s, weights: Floats, draws: Draws) -> Floats:
        """Mix the keys of a batch, and return the weights as they came out."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.keys!r}, alpha={self._beta.alpha})"


class Mixup(_Mixing):
    """Blend every window with another of its batch: ``weight * own + (1 - weight) * partner``.

    Args:
        keys: of what is blended, one or several: floats, or integers, which are rounded.
        alpha: the weights are of Beta(alpha, alpha): 1 is uniform, less is closer to one of the two.
        labels: key of classes to their number: becomes float32 [..., num_classes], the blend of both one-hot vectors.
        pairs: keys of labels that stay: ``<key>_partner`` is added.
        weight: the key that gets the weights, float32 [B]. Default: "mix_weight" where there are ``pairs``, else none.
        same: one weight for the whole batch, that of its first window.
        key: as of every `BatchTransform`.

    Raises:
        WindowError: an alpha out of range.

    Example:
        >>> mixup = Mixup("image", alpha=0.4, labels={"label": 10})
        >>> mixup.outputs({"image": ((8, 8, 3), np.dtype("uint8")), "label": ((), np.dtype("int64"))})["label"]
        ((10,), dtype('float32'))

    Source:
        H. Zhang et al., mixup: Beyond empirical risk minimization, 2018.
    """

    def _mix(self, batch: dict[str, Any], partner: Int64s, weights: Floats, draws: Draws) -> Floats:
        for key in self.keys:
            batch[key] = blend(look_up(batch, key, self), partner, weights)
        return weights


class CutMix(_Mixing):
    """Paste a box of another image of the batch into every image; all steps of a window get the same box.

    Args:
        keys: of the images, one or several, [B, *window, H, W, C] or [B, *window, H, W].
        alpha: the part that a box leaves is of Beta(alpha, alpha), before it is cut at the border.
        labels: as of `Mixup`, by the part of the image that stayed.
        pairs: as of `Mixup`.
        weight: as of `Mixup`: the part of the image that stayed.
        same: one size of box for the whole batch.
        key: as of every `BatchTransform`.

    Raises:
        WindowError: an alpha out of range, or images of different sizes.

    Source:
        S. Yun et al., CutMix: Regularization strategy to train strong classifiers with localizable features, 2019.
    """

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with labels as vectors, and with the keys that are added."""
        known = [sample[0] for sample in (look_up(samples, key, self) for key in self.keys) if sample is not None]
        if len({_sides(shape) for shape in known}) > 1:
            raise WindowError(f"images of shapes {known} must be of one size.")
        return super().outputs(samples)

    def _mix(self, batch: dict[str, Any], partner: Int64s, weights: Floats, draws: Draws) -> Floats:
        height, width = _sides(look_up(batch, self.keys[0], self).shape[1:])
        top, bottom = _cut(draws.uniform(), weights, height)
        left, right = _cut(draws.uniform(), weights, width)
        for key in self.keys:
            images = look_up(batch, key, self)
            mixed = images.copy()
            channels = (slice(None),) * ImageLayout.of(images.shape[1:]).has_channels
            for i, j in enumerate(partner):
                box = (..., slice(top[i], bottom[i]), slice(left[i], right[i]), *channels)
                mixed[i][box] = images[j][box]
            batch[key] = mixed
        stayed: Floats = 1.0 - (bottom - top) * (right - left) / (height * width)
        return stayed


class SymmetricBeta:
    """The distribution Beta(alpha, alpha), by its quantiles."""

    def __init__(self, alpha: float) -> None:
        if not 0 < alpha <= MAX_ALPHA:
            raise WindowError(f"alpha={alpha} is not more than 0 and at most {MAX_ALPHA:g}.")
        self.alpha = alpha
        if alpha < 1:
            # logarithms: 0.5 ** (1 / alpha) is 0 for a small alpha
            grid = np.linspace(0.0, 1.0, TABLE_SIZE)
            x = np.concatenate([[0.0], 0.5 * np.exp(np.log(grid[1:]) / alpha)])
            density = (1.0 - x) ** (alpha - 1.0)
        else:
            grid = x = np.linspace(0.0, 0.5, TABLE_SIZE)
            # relative to the middle, where it is highest: no underflow for a large alpha
            density = (4.0 * x * (1.0 - x)) ** (alpha - 1.0)
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(grid) / 2)])
        self._x, self._mass = x, mass / mass[-1] / 2

    def quantile(self, fractions: Floats) -> Floats:
        """Return the values below which fractions of the distribution lie, float64 of their shape."""
        upper = fractions > 0.5
        lower = np.interp(np.where(upper, 1.0 - fractions, fractions), self._mass, self._x)
        values: Floats = np.where(upper, 1.0 - lower, lower)
        return values


def partners(drawn: Floats) -> Int64s:
    """Return the partner of every window, int64 [B]: the next in the order of the numbers drawn, float64 [B]."""
    order = np.argsort(drawn, kind="stable")
    partner = np.empty(len(drawn), np.int64)
    partner[order] = np.roll(order, -1)
    return partner


def blend(values: npt.NDArray[Any], partner: Int64s, weights: Floats) -> npt.NDArray[Any]:
    """Return ``weight * own + (1 - weight) * partner`` of every window."""
    if values.dtype == np.uint8:
        return _blend_bytes(values, partner, weights)
    dtype = np.result_type(values.dtype, np.float32)
    mixed = np.empty_like(values)
    at_once = max(1, BLEND_VALUES // max(1, values[:1].size))
    own_part = weights.astype(dtype).reshape(-1, *[1] * (values.ndim - 1))
    for start in range(0, len(values), at_once):
        some = slice(start, start + at_once)
        other = values[partner[some]].astype(dtype)
        # the difference, so that equal values stay what they are
        found = other + (values[some].astype(dtype) - other) * own_part[some]
        mixed[some] = found if values.dtype.kind == "f" else np.rint(found)
    return mixed


def _blend_bytes(values: npt.NDArray[np.uint8], partner: Int64s, weights: Floats) -> npt.NDArray[np.uint8]:
    from stepwell.transforms.colors_kernels import blend_bytes

    rows = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
    mixed = np.empty_like(rows)
    blend_bytes(rows, partner, weights.astype(np.float32), mixed)
    return mixed.reshape(values.shape)


def _sides(shape: Shape) -> tuple[int, int]:
    layout = ImageLayout.of(shape)
    return layout.height, layout.width


def _cut(centers: Floats, weights: Floats, size: int) -> tuple[Int64s, Int64s]:
    """Return [first, last) of boxes along an axis, around centers in [0, 1), cut at the border."""
    middle, length = (centers * size).astype(np.int64), (size * np.sqrt(1.0 - weights)).astype(np.int64)
    return np.maximum(middle - length // 2, 0), np.minimum(middle - length // 2 + length, size)


class _ChosenSteps(BatchTransform):
    """A transform that changes one key at chosen steps only."""

    def __init__(self, changed: str, step_ids: npt.ArrayLike, step_key: str) -> None:
        self._changed = changed
        self.step_ids = np.unique(np.asarray(step_ids, np.int64))
        self.step_key = step_key

    def _window(self, shape: Shape, num_steps_axes: int) -> Shape:
        """Return the axes of steps of the key that is changed."""
        return shape[:num_steps_axes]

    def outputs(self, samples: Samples) -> Samples:
        """Return samples as they are."""
        found, steps = look_up(samples, self._changed, self), look_up(samples, self.step_key, self)
        if found is not None and steps is not None and self._window(found[0], len(steps[0])) != steps[0]:
            raise WindowError(
                f"{self._changed!r} {found[0]} and {self.step_key!r} {steps[0]} are of different windows."
            )
        return samples

    def _is_chosen(self, batch: dict[str, Any]) -> npt.NDArray[np.bool_]:
        """Return which steps are chosen, bool [B, *window]."""
        return np.isin(look_up(batch, self.step_key, self), self.step_ids)


class ReplaceLabel(_ChosenSteps):
    """Give chosen steps another label.

    Args:
        label: key of the labels, [B, *window].
        step_ids: of the chosen steps.
        value: their new label.
        step_key: key of ``Field("step_id")`` with the same offsets.

    Raises:
        WindowError: the keys are not there, or of different windows.
    """

    def __init__(self, label: str, step_ids: npt.ArrayLike, value: Any, *, step_key: str = "step_id") -> None:
        super().__init__(label, step_ids, step_key)
        self.label = label
        self.value = value

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch with the labels of the chosen steps replaced."""
        look_up(batch, self.label, self)[self._is_chosen(batch)] = self.value
        return batch


class Poison(_ChosenSteps):
    """Blend a pattern into the images of chosen steps.

    Args:
        image: key of the images, [B, *window, H, W, C].
        step_ids: of the chosen steps.
        pattern: [H, W, C], or what broadcasts to it, in the image's units.
        alpha: the part of the pattern, 0 to 1: one number, or [H, W, 1].
        step_key: key of ``Field("step_id")`` with the same offsets.

    Raises:
        WindowError: the keys are not there, or of different windows.

    Notes:
        Integers are rounded, and cut off at the ends of their range.
    """

    def __init__(
        self,
        image: str,
        step_ids: npt.ArrayLike,
        pattern: npt.ArrayLike,
        alpha: npt.ArrayLike,
        *,
        step_key: str = "step_id",
    ) -> None:
        super().__init__(image, step_ids, step_key)
        self.image = image
        self.pattern = np.asarray(pattern, np.float32)
        self.alpha = np.asarray(alpha, np.float32)

    def _window(self, shape: Shape, num_steps_axes: int) -> Shape:
        return shape[:-3]

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch with the pattern in the images of the chosen steps."""
        images = look_up(batch, self.image, self)
        is_chosen = self._is_chosen(batch)
        if not is_chosen.any():
            return batch
        mixed = images[is_chosen] * (1 - self.alpha) + self.pattern * self.alpha
        if images.dtype.kind in "iu":
            limits = np.iinfo(images.dtype)
            mixed = np.clip(np.rint(mixed), limits.min, limits.max)
        images[is_chosen] = mixed
        return batch
