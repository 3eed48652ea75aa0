"""Normalising and back: elements of a step, or the channels of an image, by the statistics of a store.

::

    mode          maps to 0        maps to -1 and 1
    "mean_std"    mean             mean - std, mean + std
    "min_max"     the middle       minimum, maximum
    "quantile"    the middle       1 % and 99 % quantile; the rest lies outside
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.json_text import parse_json
from stepwell.kernels.draws import Draws
from stepwell.store.statistics import FeatureStatistics
from stepwell.transforms.base import Shape, Transform, takes_tensors

__all__ = ["Normalize", "Unnormalize"]

Mode = Literal["mean_std", "min_max", "quantile"]
MODES = ("mean_std", "min_max", "quantile")
# a spread of this part of the centre is what rounding makes of a constant
ROUNDING = 1e-12
# numpy's loops over a few channels cost more than what they do: channels are repeated until there are this many
BLOCK_VALUES = 1024


class HasStatistics(Protocol):
    """A store or a view."""

    def statistics(self, *, names: Any = None) -> Mapping[str, FeatureStatistics]:
        """Return the statistics of features by name."""


class _Scaling(Transform):
    """Centre and spread of each element, and what both directions do alike."""

    _kind: ClassVar[str]

    def __init__(self, center: npt.ArrayLike, spread: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> None:
        center, spread = np.asarray(center, np.float64), np.asarray(spread, np.float64)
        chosen = np.asarray(True if mask is None else mask, np.bool_)
        if center.shape != spread.shape or chosen.shape not in ((), center.shape):
            raise WindowError(
                f"center {center.shape}, spread {spread.shape} and mask {chosen.shape} must be of one shape: a "
                "step's, (channels,) or ()."
            )
        is_constant = ~np.isfinite(spread) | (spread <= ROUNDING * np.abs(center))
        self.center = np.where(chosen & np.isfinite(center), center, 0.0)
        self.spread = np.where(chosen & ~is_constant, spread, 1.0)

    @property
    def is_pointwise(self) -> bool:  # type: ignore[override]
        """Whether scaling depends on the place in the last axis alone: a chain then does it in the pass of a crop."""
        return self.center.ndim <= 1

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, and float32."""
        own = self.center.shape
        if shape[len(shape) - len(own) :] != own:
            raise WindowError(
                f"windows of shape {shape} do not end with {own}, the shape of the statistics. Channels come last: "
                "normalise before ToCHW."
            )
        if dtype.kind not in "biuf":
            raise WindowError(f"{dtype} cannot be normalised. Allowed: bools, integers and floats.")
        return shape, np.dtype(np.float32)

    @takes_tensors
    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[np.float32]:
        """Return the values scaled."""
        self.output(values.shape, values.dtype)
        if values.size == 0:
            return values.astype(np.float32)
        dtype = np.result_type(values.dtype, np.float32)
        block = _block(values.shape, self.center.ndim)
        copies = block // self.center.size
        center, spread = (np.tile(each.ravel().astype(dtype), copies) for each in (self.center, self.spread))
        scaled = self._scale(values.astype(dtype, order="C").reshape(-1, block), center, spread)
        return scaled.reshape(values.shape).astype(np.float32, copy=False)

    @abstractmethod
    def _scale(self, values: npt.NDArray[Any], center: npt.NDArray[Any], spread: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values scaled, in their own memory."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, to be shipped with a policy."""
        return {"transform": self._kind, "center": self.center.tolist(), "spread": self.spread.tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | str) -> Self:
        """Return what `to_json` took apart, exactly."""
        try:
            found = parse_json(record) if isinstance(record, str) else record
        except ValueError as error:
            raise WindowError(f"{str(record)[:80]!r} is no JSON of {cls.__name__}: {error}.") from error
        if found.get("transform") != cls._kind:
            raise WindowError(f"{found.get('transform')!r} is not the record of {cls.__name__}: {cls._kind!r}.")
        return cls(found["center"], found["spread"])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return np.array_equal(self.center, other.center) and np.array_equal(self.spread, other.spread)

    def __hash__(self) -> int:
        return hash((self._kind, self.center.tobytes(), self.spread.tobytes()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.center.shape}>"


class Normalize(_Scaling):
    """Scale values to about -1 .. 1: ``(values - center) / spread``, float32.

    Args:
        center: what becomes 0: of the shape of a step's last axes: (), (channels,) or the step's.
        spread: the distance from there to what becomes 1.
        mask: bool, of the same shape: the elements that are changed; the others stay. Default: all.

    Raises:
        WindowError: shapes that do not agree.

    Example:
        >>> normalize = Normalize([10.0, 5.0], [2.0, 0.0])
        >>> normalize(np.array([[8.0, 5.0], [12.0, 6.0]])).tolist()
        [[-1.0, 0.0], [1.0, 1.0]]
        >>> normalize.inverse()(normalize(np.array([8.0, 6.0]))).tolist()
        [8.0, 6.0]

    Notes:
        An element that never changes (its spread is 0, but for rounding, or unknown) is not divided: it becomes 0, and
        comes back from the inverse as it was. Immutable, picklable, and safe in any number of threads.
    """

    _kind = "normalize"

    @classmethod
    def of(
        cls,
        store: HasStatistics,
        name: str,
        *,
        mode: Mode = "mean_std",
        mask: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    ) -> Normalize:
        """Return the normalisation of a feature by its own statistics.

        Args:
            store: a store or a view: of all its steps. Take the view that is trained on.
            name: of the feature.
            mode: see the head of this module.
            mask: the elements that are normalised; default all.

        Raises:
            WindowError: no statistics of that feature, or an unknown mode.
        """
        if not hasattr(store, "statistics"):
            raise WindowError(f"statistics of {store!r}, a {type(store).__name__}. Give a store or a view: open(path).")
        found = store.statistics(names=[name])
        if name not in found:
            raise WindowError(
                f"there are no statistics of {name!r}: numbers have them, text and bytes do not, nor have no steps."
            )
        return cls.by(found[name], mode=mode, mask=mask)

    @classmethod
    def by(
        cls,
        statistics: FeatureStatistics,
        *,
        mode: Mode = "mean_std",
        mask: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    ) -> Normalize:
        """Return the normalisation by statistics: per element, or per channel of an image.

        Args:
            statistics: of a feature.
            mode: see the head of this module.
            mask: the elements that are normalised; default all.

        Raises:
            WindowError: an unknown mode.
        """
        if mode not in MODES:
            raise WindowError(f"mode={mode!r} is not one of {', '.join(MODES)}.")
        if mode == "mean_std":
            return cls(statistics.mean, statistics.std, mask)
        if mode == "min_max":
            low, high = statistics.min, statistics.max
        else:
            low, high = statistics.quantile(0.01), statistics.quantile(0.99)
        # halved first: the sum of the largest floats would overflow
        return cls(low / 2 + high / 2, high / 2 - low / 2, mask)

    def inverse(self) -> Unnormalize:
        """Return the transform that undoes this one."""
        return Unnormalize(self.center, self.spread)

    def _scale(self, values: npt.NDArray[Any], center: npt.NDArray[Any], spread: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values -= center
        values /= spread
        return values


class Unnormalize(_Scaling):
    """Undo `Normalize`: ``values * spread + center``, float32.

    Args:
        center: as of `Normalize`.
        spread: as of `Normalize`.
        mask: as of `Normalize`.

    Raises:
        WindowError: shapes that do not agree.

    Notes:
        Takes torch tensors on the CPU, too, and returns them without a gradient; elsewhere
        ``output * torch.tensor(u.spread) + torch.tensor(u.center)``. Immutable, picklable, and safe in any
        number of threads.
    """

    _kind = "unnormalize"

    def inverse(self) -> Normalize:
        """Return the transform that undoes this one."""
        return Normalize(self.center, self.spread)

    def _scale(self, values: npt.NDArray[Any], center: npt.NDArray[Any], spread: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values *= spread
        values += center
        return values


def _block(shape: Shape, num_axes: int) -> int:
    """Return the values of the last axes together: of ``num_axes``, and of more until there are many."""
    block = math.prod(shape[len(shape) - num_axes :])
    for size in reversed(shape[: len(shape) - num_axes]):
        if block >= BLOCK_VALUES:
            break
        block *= size
    return block
