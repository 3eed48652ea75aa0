"""Draws with replacement, in proportion to weights of episodes and of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError
from stepwell.order.keys import derive_key
from stepwell.order.order import AnchorIndex, BoundOrder, Order, check_count, check_range, check_seed

__all__ = ["Weighted", "Weights", "weighted"]

Weights: TypeAlias = Sequence[float] | npt.NDArray[Any]
Per = Literal["step", "episode"]
_Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(Order):
    """Anchors drawn with replacement, in proportion to weights; see `weighted`."""

    episodes: _Floats | None = None
    steps: str | _Floats | None = None
    per: Per = "step"
    seed: int = 0
    num_samples: int | None = None
    drop_last_steps: int = 0

    def __post_init__(self) -> None:
        if self.per not in get_args(Per):
            raise OrderError(f'per={self.per!r}. Allowed are "step" and "episode".')
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "num_samples", check_count("num_samples", self.num_samples))
        object.__setattr__(self, "drop_last_steps", check_count("drop_last_steps", self.drop_last_steps) or 0)
        if self.episodes is not None:
            object.__setattr__(self, "episodes", check_weights("episodes", self.episodes))
        if self.steps is not None and not isinstance(self.steps, str):
            object.__setattr__(self, "steps", check_weights("steps", self.steps))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weighted):
            return NotImplemented
        pairs = ((self.episodes, other.episodes), (self.steps, other.steps))
        return self._scalars == other._scalars and all(_same(a, b) for a, b in pairs)

    @property
    def _scalars(self) -> tuple[Per, int, int | None, int]:
        return self.per, self.seed, self.num_samples, self.drop_last_steps

    __hash__ = None  # type: ignore[assignment]  # as an array has none

    def __repr__(self) -> str:
        episodes, steps = (
            f"float64{list(w.shape)}" if isinstance(w, np.ndarray) else repr(w) for w in (self.episodes, self.steps)
        )
        dropped = f", drop_last_steps={self.drop_last_steps}" if self.drop_last_steps else ""
        return (
            f"Weighted(episodes={episodes}, steps={steps}, per={self.per!r}, seed={self.seed}, "
            f"num_samples={self.num_samples}{dropped})"
        )

    def bind(self, index: AnchorIndex) -> BoundOrder:
        """Return the order over the anchors of an index.

        Raises:
            OrderError: as `weighted` says.
            FeatureNotFoundError: ``steps`` names a feature that the store does not have.
        """
        num_samples = int(index.num_anchors if self.num_samples is None else self.num_samples)
        if index.num_anchors == 0:
            if num_samples:
                raise OrderError(
                    f"num_samples={num_samples} of a view without anchors. Select episodes that have some."
                )
            return _BoundWeighted(index.anchor_starts, index.anchor_starts[1:], np.zeros(0), None, self.seed, 0)
        starts = index.anchor_starts
        # where an episode's anchors that may be drawn end
        ends = np.maximum(starts[1:] - self.drop_last_steps, starts[:-1])
        steps = _step_weights(self.steps, index)
        if steps is not None and self.drop_last_steps:
            steps = _without_ends(steps, starts, ends)
        inner = (ends - starts[:-1]).astype(np.float64) if steps is None else _sum_by_episode(steps, starts)
        masses = _episode_masses(self.episodes, inner, per_episode=self.per == "episode")
        cumulative_steps = None if steps is None else _cumulate_within(steps, inner, index.anchor_starts)
        return _BoundWeighted(starts, ends, np.cumsum(masses), cumulative_steps, self.seed, num_samples)


@dataclass(frozen=True, eq=False)
class _BoundWeighted(BoundOrder):
    anchor_starts: npt.NDArray[np.int64]
    anchor_ends: npt.NDArray[np.int64]
    cumulative_episodes: _Floats
    cumulative_steps: _Floats | None
    seed: int
    num_samples: int

    @property
    def num_positions(self) -> int:
        return self.num_samples

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        from stepwell.kernels.permutation import uniforms

        check_range(self, epoch, start, count)
        if count == 0:
            return np.zeros(0, np.int64)
        places = np.arange(start, start + count, dtype=np.int64)
        episodes = _draw(self.cumulative_episodes, uniforms(places, derive_key(self.seed, epoch, "weighted episodes")))
        return self._draw_within(episodes, uniforms(places, derive_key(self.seed, epoch, "weighted steps")))

    def _draw_within(self, episodes: npt.NDArray[np.int64], uniform: _Floats) -> npt.NDArray[np.int64]:
        begin, end = self.anchor_starts[episodes], self.anchor_ends[episodes]
        if self.cumulative_steps is None:
            return np.minimum(begin + (uniform * (end - begin)).astype(np.int64), end - 1)
        before = np.where(begin > 0, self.cumulative_steps[begin - 1], 0.0)
        targets = before + uniform * (self.cumulative_steps[end - 1] - before)
        return _search(self.cumulative_steps, targets, self.cumulative_steps[end - 1])


def weighted(
    *,
    episodes: Weights | None = None,
    steps: str | Weights | None = None,
    per: Per = "step",
    seed: int = 0,
    num_samples: int | None = None,
    drop_last_steps: int = 0,
) -> Weighted:
    """Return the order that draws anchors with replacement, in proportion to weights.

    With two episodes of 2 and 6 anchors, and ``episodes=[3, 1]``::

        per="step"       each anchor has its episode's weight       3 3 | 1 1 1 1 1 1      episodes drawn 6 : 6
        per="episode"    each episode has its weight, whatever it   3/2 3/2 | 1/6 ...      episodes drawn 3 : 1
                         holds, shared by its anchors

    Where there are ``steps`` too, they multiply: with "step" an anchor's weight is its episode's times its own, with
    "episode" an episode's weight is shared by its anchors in proportion to theirs. `weighted(per="episode")` alone
    draws all episodes alike, `weighted()` all anchors alike.

    Args:
        episodes: float [E], one weight for each episode of the view; all 1 when left out.
        steps: the name of a scalar feature that holds the weight of every step, or float [num_anchors]; all 1 when left
            out. Takes 8 bytes of memory for each anchor; ``episodes`` alone takes 8 for each episode.
        per: what an episode's weight is the weight of.
        seed: an int, 0 or more.
        num_samples: draws an epoch; as many as there are anchors when left out.
        drop_last_steps: anchors at the end of every episode that are never drawn: where windows of future actions are
            mostly padding. Before weights are shared: with "episode" an episode keeps its weight.

    Raises:
        OrderError: a weight is negative, infinite or NaN, all are 0, or there are not as many as episodes or anchors.

    Example:
        >>> weighted(episodes=[3, 1], per="episode", seed=1)
        Weighted(episodes=float64[2], steps=None, per='episode', seed=1, num_samples=None)

    Notes:
        An episode without anchors (all its windows dropped), or whose steps all weigh 0, is never drawn; the others
        share its mass.
    """
    # converted by the dataclass
    return Weighted(episodes, steps, per, seed, num_samples, drop_last_steps)  # type: ignore[arg-type]


def check_weights(name: str, weights: Any) -> _Floats:
    """Return weights as a read-only float64 copy.

    Raises:
        OrderError: they are not one-dimensional numbers, one is negative, infinite or NaN, or none is above 0.
    """
    try:
        array = np.array(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise OrderError(f"{name} of type {type(weights).__name__}. Allowed are numbers, one weight each.") from error
    if array.ndim != 1:
        raise OrderError(f"{name} of shape {array.shape}. Allowed is one dimension, one weight each.")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise OrderError(f"{name}[{bad[0]}] is {array[bad[0]]}. Allowed are finite weights of 0 and more.")
    if len(array) and not array.any():
        raise OrderError(f"{name} are all 0. At least one must be above 0.")
    array.flags.writeable = False
    return array


def _step_weights(steps: str | _Floats | None, index: AnchorIndex) -> _Floats | None:
    if steps is None:
        return None
    weights = (
        check_weights(f"weights in feature {steps!r}", index.read_steps(steps)) if isinstance(steps, str) else steps
    )
    if len(weights) != index.num_anchors:
        raise OrderError(f"{len(weights)} weights of steps for {index.num_anchors} anchors. One is needed for each.")
    # scaled, so that weights near the end of what a float can hold do not overflow when summed
    scaled: _Floats = weights / weights.max()
    return scaled


def _without_ends(steps: _Floats, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> _Floats:
    is_kept = np.arange(len(steps)) < np.repeat(ends, np.diff(starts))
    kept: _Floats = np.where(is_kept, steps, 0.0)
    return kept


def _sum_by_episode(steps: _Floats, starts: npt.NDArray[np.int64]) -> _Floats:
    counts = np.diff(starts)
    sums = np.zeros(len(counts))
    # reduceat knows no empty group, but skipping them leaves the others' ends where they are
    sums[counts > 0] = np.add.reduceat(steps, starts[:-1][counts > 0])
    return sums


def _episode_masses(episodes: _Floats | None, inner: _Floats, *, per_episode: bool) -> _Floats:
    if episodes is not None and len(episodes) != len(inner):
        raise OrderError(f"{len(episodes)} weights of episodes for {len(inner)} episodes. One is needed for each.")
    weights = np.ones(len(inner)) if episodes is None else episodes / episodes.max()
    masses: _Floats = np.where(inner > 0, weights, 0.0) if per_episode else weights * inner
    if not masses.any():
        raise OrderError(
            "no anchor can be drawn: each episode of positive weight has no anchors, or only steps of weight 0."
        )
    return masses


def _cumulate_within(steps: _Floats, inner: _Floats, starts: npt.NDArray[np.int64]) -> _Floats:
    # each episode sums to 1, so that one of small weights keeps its digits behind many of large ones
    divisors = np.repeat(np.where(inner > 0, inner, 1.0), np.diff(starts))
    cumulative: _Floats = np.cumsum(steps / divisors)
    return cumulative


def _draw(cumulative: _Floats, uniform: _Floats) -> npt.NDArray[np.int64]:
    return _search(cumulative, uniform * cumulative[-1], cumulative[-1])


def _search(cumulative: _Floats, targets: _Floats, totals: Any) -> npt.NDArray[np.int64]:
    # rounding may lift a target to its total, which lies behind the last weight: the number just below is inside it.
    # side="right" steps over weights of 0, which add nothing to the sum.
    inside = np.minimum(targets, np.nextafter(totals, 0.0))
    found: npt.NDArray[np.int64] = np.searchsorted(cumulative, inside, side="right").astype(np.int64, copy=False)
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)
