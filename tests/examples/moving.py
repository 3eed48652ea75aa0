"""Screens on which a bar moves; which way, one screen does not tell, and the right action names it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE, STRIDE, WIDTH = 84, 12, 14


class Moving(gymnasium.Env[Any, Any]):
    """Observation: uint8 [84, 84]. Action: 0 for left, 1 for right. Reward: 1 for the way that it came, else -1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.column, self.way = 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.column = int(self.np_random.integers(SIDE))
        self.turn()
        return self.screen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 if int(action) == (self.way > 0) else -1.0
        if self.np_random.random() < 0.3:
            self.turn()
        self.column = (self.column + self.way * STRIDE) % SIDE
        return self.screen(), reward, False, False, {}

    def turn(self) -> None:
        self.way = 1 if self.np_random.random() < 0.5 else -1

    def screen(self) -> Any:
        pixels = np.zeros((SIDE, SIDE), np.uint8)
        pixels[:, (self.column + np.arange(WIDTH)) % SIDE] = 255
        return pixels


gymnasium.register("Moving-v0", Moving, max_episode_steps=20)
