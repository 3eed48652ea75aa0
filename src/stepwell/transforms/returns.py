"""Returns over windows of rewards, with the ends of episodes as they were: n steps, and the sum that is still to come.

A window of rewards ``Field("reward", range(n))`` ends early where its episode does. ``terminated`` means that nothing
comes after; at any other end (``truncated``, or the window is full) the value of the next observation stands for what
does::

    n = 4                 rewards         return                   length  discount
    in the middle         1 2 3 4         1 + 2g + 3g² + 4g³       4       g⁴
    terminated at step 2  1 2 | (2 2)     1 + 2g                   2       0
    truncated at step 2   1 2 | (2 2)     1 + 2g                   2       g²
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import BatchTransform, Samples, look_up

__all__ = ["DiscountedSum", "HindsightRelabel", "NStepReturn"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# (achieved [n, ..., G], goal [n, ..., G], info of key to [n, ...]) -> [n, ...]
GoalFunction = Callable[[npt.NDArray[Any], npt.NDArray[Any], Mapping[str, Any]], Any]


class _Rewards(BatchTransform):
    """A window of rewards and how it ends."""

    def __init__(
        self, reward: str, terminated: str | None, truncated: str | None, gamma: float, output: str | None
    ) -> None:
        if not 0 <= gamma <= 1:
            raise WindowError(f"gamma={gamma} is not between 0 and 1.")
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.gamma = gamma
        self.output = output or reward

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with the result."""
        reward = look_up(samples, self.reward, self)
        if reward is not None and len(reward[0]) != 1:
            raise WindowError(f"{self.reward!r} has shape {reward[0]}. Use Field({self.reward!r}, range(n)).")
        for key in filter(None, (self.terminated, self.truncated)):
            found = look_up(samples, key, self)
            if reward is not None and found is not None and found[0] != reward[0]:
                raise WindowError(f"{key!r} {found[0]} and {self.reward!r} {reward[0]} must have the same offsets.")
        return samples

    def _ends(self, batch: Mapping[str, Any]) -> tuple[Floats, Bools, Bools, Bools]:
        """Return rewards [B, n], which steps count, after which the episode has ended, and where it has terminated."""
        rewards = np.asarray(look_up(batch, self.reward, self), np.float64)
        is_pad = batch.get(f"{self.reward}_is_pad")
        counts = np.ones(rewards.shape, np.bool_) if is_pad is None else ~is_pad
        nothing = np.zeros(rewards.shape, np.bool_)
        terminated = counts & (nothing if self.terminated is None else look_up(batch, self.terminated, self))
        truncated = counts & (nothing if self.truncated is None else look_up(batch, self.truncated, self))
        return rewards, counts, terminated | truncated, terminated

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reward!r}, gamma={self.gamma})"


class NStepReturn(_Rewards):
    """Make n-step returns of windows of rewards, and say where and how much to bootstrap.

    Args:
        reward: key of the rewards, float [B, n], offsets 0 to n - 1; its mask ``<reward>_is_pad`` is used where there
            is one.
        terminated: key of bool [B, n] with the same offsets; None: no episode terminates.
        truncated: key of bool [B, n] with the same offsets; None: where ``<reward>_is_pad`` says that no step follows.
        gamma: the discount of one step, 0 to 1.
        output: key of the returns, float32 [B]; default: instead of the rewards.
        discount: key of float32 [B], the factor of the bootstrap value: ``gamma ** length``, 0 after a
            terminated step.
        length: key of int64 [B], the steps that were counted: the observation to bootstrap from is the anchor's plus
            that many.

    Raises:
        WindowError: a gamma out of range, or windows that do not fit.

    Example:
        With the observation after n steps, which a window with ``pad="edge"`` takes from the episode's final row where
        the episode ends earlier: just the one at ``length`` steps, when the store has final observations::

            fields = {
                "observation": "observation",
                "next_observation": Field("observation", 3),
                "action": "action",
                "reward": Field("reward", range(3)),
                "terminated": Field("terminated", range(3)),
            }
            loader = Loader(store, fields, transform=NStepReturn("reward", gamma=0.99))
            target = batch["reward"] + batch["discount"] * value(batch["next_observation"])

    Notes:
        A store without final observations (see `stepwell.Feature`) has none after the last step of a truncated
        episode: the window then repeats the last observation.

    Source:
        R. Sutton and A. Barto, Reinforcement Learning: An Introduction, 2018, chapter 7; F. Pardo et al., Time limits
        in reinforcement learning, 2018, for what truncation does to the value.
    """

    def __init__(
        self,
        reward: str = "reward",
        *,
        terminated: str | None = "terminated",
        truncated: str | None = None,
        gamma: float = 0.99,
        output: str | None = None,
        discount: str = "discount",
        length: str = "length",
    ) -> None:
        super().__init__(reward, terminated, truncated, gamma, output)
        self.discount = discount
        self.length = length

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with return, discount and length."""
        samples = super().outputs(samples)
        samples[self.output] = samples[self.discount] = ((), np.dtype(np.float32))
        samples[self.length] = ((), np.dtype(np.int64))
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws | None = None) -> dict[str, Any]:
        """Return the batch with return, discount and length."""
        rewards, counts, has_ended, terminated = self._ends(batch)
        # a step counts when it and all before it are there, and none before it was the last
        ended_before = np.cumsum(has_ended, axis=1) - has_ended > 0
        counts = np.logical_and.accumulate(counts & ~ended_before, axis=1)
        powers = self.gamma ** np.arange(rewards.shape[1])
        length = counts.sum(axis=1)
        # not a product with the mask: values that do not count may be NaN
        batch[self.output] = np.where(counts, rewards * powers, 0.0).sum(axis=1).astype(np.float32)
        is_terminal = (terminated & counts).any(axis=1)
        batch[self.discount] = np.where(is_terminal, 0.0, self.gamma**length).astype(np.float32)
        batch[self.length] = length.astype(np.int64)
        return batch


class DiscountedSum(_Rewards):
    """Sum up the rewards that follow within the window, discounted, at each of its steps: the reward-to-go.

    Args:
        reward: key of the rewards, float [B, T]; its mask ``<reward>_is_pad`` is used where there is one.
        terminated: key of bool [B, T] with the same offsets: nothing is counted across such a step. Default: none.
        truncated: the same.
        gamma: the discount of one step, 0 to 1.
        output: key of the sums, float32 [B, T], 0 at padded steps; default: instead of the rewards.

    Raises:
        WindowError: a gamma out of range, or windows that do not fit.

    Example:
        >>> batch = {"reward": np.array([[1.0, 2.0, 4.0]]), "reward_is_pad": np.array([[False, False, True]])}
        >>> DiscountedSum("reward", gamma=0.5, output="to_go")(batch)["to_go"].tolist()
        [[2.0, 2.0, 0.0]]

    Notes:
        Steps beyond the window are not in the sum: for the return of whole episodes the window must reach their
        ends. See M. Janner et al., Offline reinforcement learning as one big sequence modeling problem, 2021, and
        L. Chen et al., Decision transformer, 2021, for what it is used for.
    """

    def __init__(
        self,
        reward: str = "reward",
        *,
        terminated: str | None = None,
        truncated: str | None = None,
        gamma: float = 1.0,
        output: str | None = None,
    ) -> None:
        super().__init__(reward, terminated, truncated, gamma, output)

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with the sums."""
        samples = super().outputs(samples)
        reward = samples[self.reward]
        samples[self.output] = None if reward is None else (reward[0], np.dtype(np.float32))
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws | None = None) -> dict[str, Any]:
        """Return the batch with the sums."""
        rewards, counts, has_ended, _ = self._ends(batch)
        rewards = np.where(counts, rewards, 0.0)
        sums = np.empty(rewards.shape)
        rest = np.zeros(len(rewards))
        for step in range(rewards.shape[1] - 1, -1, -1):
            rest = rewards[:, step] + self.gamma * np.where(has_ended[:, step] | ~counts[:, step], 0.0, rest)
            sums[:, step] = rest
        batch[self.output] = sums.astype(np.float32)
        return batch


class HindsightRelabel(BatchTransform):
    """Replace goals by goals that were reached, and compute the rewards again.

    Args:
        goal: key of the goals, [B, *window, G]; all steps of a window get the same new goal.
        candidate: key of what is put there, [B, G]: ``Field("achieved_goal", at="future")``, or "final" or "episode".
        achieved: key of the goals that each step reached, [B, *window, G]: after its action.
        probability: the part of the windows that is relabelled. 0.8 is the paper's four of five.
        reward: function of (achieved, goal, info) to rewards [n, *window], called with the n windows that were
            relabelled; ``info`` is all of their batch by key. None: rewards stay.
        reward_key: key of the rewards; keeps its dtype.
        success: function like ``reward`` to bools, which are put into ``terminated_key``. None: those stay.
        terminated_key: key of bools, used with ``success`` only.
        output: key of bool [B], which windows were relabelled; None: no such key.
        key: as of every `BatchTransform`.

    Raises:
        WindowError: a probability out of range, or keys that do not fit.

    Notes:
        Whether a window is relabelled depends on (seed, epoch, position) alone, as does its candidate. The functions
        are called by the loader's threads, several at a time, and not where no window of a batch was drawn. Everything
        else that knows of the goal (an observation that it is part of, say) is for a transform after this one.

    Source:
        M. Andrychowicz et al., Hindsight experience replay, 2017.
    """

    def __init__(
        self,
        goal: str = "desired_goal",
        candidate: str = "her_goal",
        *,
        achieved: str = "achieved_goal",
        probability: float = 0.8,
        reward: GoalFunction | None = None,
        reward_key: str = "reward",
        success: GoalFunction | None = None,
        terminated_key: str = "terminated",
        output: str | None = None,
        key: str | None = None,
    ) -> None:
        if not 0 <= probability <= 1:
            raise WindowError(f"probability={probability} is not between 0 and 1.")
        self.goal = goal
        self.candidate = candidate
        self.achieved = achieved
        self.probability = probability
        self.output = output
        self.key = key
        computed = ((reward_key, reward), (terminated_key, success))
        for name, function in (("reward", reward), ("success", success)):
            if function is not None and not callable(function):
                raise WindowError(
                    f"{name}={function!r} is a {type(function).__name__}. Give a function (achieved, goal, info) -> "
                    f"values; the key is {name if name == 'reward' else 'terminated'}_key."
                )
        self._computed = [(name, function) for name, function in computed if function is not None]

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with the key of relabelled windows."""
        goal, candidate = look_up(samples, self.goal, self), look_up(samples, self.candidate, self)
        if goal is not None and candidate is not None:
            size = len(candidate[0])
            if goal[0][len(goal[0]) - size :] != candidate[0] or goal[1] != candidate[1]:
                raise WindowError(
                    f"{self.goal!r} is {goal[1]} {goal[0]}, and {self.candidate!r} {candidate[1]} {candidate[0]}. "
                    "The candidate is one goal of the same shape and dtype, without a window."
                )
        for key, _ in self._computed:
            look_up(samples, key, self)
            look_up(samples, self.achieved, self)
        if self.output is not None:
            samples[self.output] = ((), np.dtype(np.bool_))
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch relabelled."""
        chosen = draws.uniform() < self.probability
        if self.output is not None:
            batch[self.output] = chosen
        rows = np.flatnonzero(chosen)
        if len(rows) == 0:
            return batch
        goals, candidates = look_up(batch, self.goal, self), look_up(batch, self.candidate, self)[rows]
        num_steps_axes = goals.ndim - candidates.ndim
        goals[rows] = candidates.reshape(len(rows), *[1] * num_steps_axes, *candidates.shape[1:])
        if self._computed:
            info = {key: values[rows] for key, values in batch.items()}
            for key, function in self._computed:
                found = function(look_up(info, self.achieved, self), info[self.goal], info)
                look_up(batch, key, self)[rows] = self._checked(key, found, info[key])
        return batch

    def _checked(self, key: str, found: Any, before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values = np.asarray(found)
        if values.shape != before.shape:
            raise WindowError(
                f"the function for {key!r} returned shape {values.shape}, and {before.shape} is needed: one value a "
                "step of each of the windows."
            )
        return values.astype(before.dtype)

    def __repr__(self) -> str:
        return f"HindsightRelabel({self.goal!r}, {self.candidate!r}, probability={self.probability})"
