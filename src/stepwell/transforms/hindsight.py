"""Hindsight: windows whose goal is replaced by one that was reached, with the reward that this goal would have given.

::

    fields = {
        "desired_goal": "desired_goal",
        "achieved_goal": Field("achieved_goal", 1),          # after the action: what the reward is for
        "her_goal": Field("achieved_goal", at="future"),     # of a step drawn at random after the anchor
        "action": "action", "reward": "reward", ...
    }
    transform = HindsightRelabel(reward=lambda achieved, goal, info: (distance(achieved, goal) < 0.05) - 1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.batch import BatchTransform, Samples, look_up

__all__ = ["HindsightRelabel"]

# (achieved [n, ..., G], goal [n, ..., G], info of key to [n, ...]) -> [n, ...]
GoalFunction = Callable[[npt.NDArray[Any], npt.NDArray[Any], Mapping[str, Any]], Any]


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
        output: key of bool [B], which windows were relabelled; None: not told.
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
        """Return samples with the key that tells what was relabelled.

        Raises:
            WindowError: keys that are not there, or goals that differ in shape or dtype.
        """
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
