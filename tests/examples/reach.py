"""A task that is learnt in a few hundred steps: move a point on a line to 0, ten steps an episode."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

START, STRIDE = 1.0, 0.5


class Reach(gymnasium.Env[Any, Any]):
    """Observation: where the point is. Action: which way and how fast. Reward: minus the distance from 0."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.position = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-START, START))
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = float(np.clip(self.position + STRIDE * float(action[0]), -2.0, 2.0))
        return self.observation(), -abs(self.position), False, False, {}

    def observation(self) -> Any:
        return np.array([self.position], np.float32)


gymnasium.register("Reach-v0", Reach, max_episode_steps=10)
