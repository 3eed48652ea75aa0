"""An environment whose observation says who, which episode and which step it is, and what is stored of it."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

# (length, terminated, truncated) of each environment's episodes, in turn
SCHEDULES = (
    ((3, True, False), (1, False, True), (5, True, True), (1, True, False), (2, False, True)),
    ((3, False, True), (4, True, False), (1, True, True), (2, True, False)),
    ((1, True, False), (1, False, True), (7, True, False)),
)


class CountingEnv(gymnasium.Env):
    """Observation (environment, episode, step), always written into the same array, as careless environments do."""

    observation_space = spaces.Box(-1, 1000, (3,), np.int32)
    action_space = spaces.Box(-1000, 1000, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, number: int = 0, *, render_mode: str | None = None, reuse: bool = True) -> None:
        self.number = number
        self.episode = -1
        self.t = 0
        self.render_mode = render_mode
        self._reuse = reuse
        self._observation = np.zeros(3, np.int32)

    def _observe(self) -> np.ndarray:
        self._observation[:] = self.number, self.episode, self.t
        return self._observation if self._reuse else self._observation.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        length, terminated, truncated = SCHEDULES[self.number][self.episode % len(SCHEDULES[self.number])]
        is_last = self.t == length
        reward = float(100 * self.episode + self.t + action[0])
        info = {"is_success": is_last and terminated, "depth": {"t": self.t}}
        return self._observe(), reward, is_last and terminated, is_last and truncated, info

    def render(self):
        return np.full((16, 16, 3), self.episode * 16 + self.t, np.uint8)


def action_of(number: int, episode: int, t: int) -> np.ndarray:
    return np.array([number + 0.25 * t, episode], np.float32)


def stored(store) -> list[dict]:
    """Every stored episode as plain values, ordered by environment and episode."""
    store.refresh()
    found = [
        {
            "observation": np.asarray(episode["observation"]).tolist(),
            "action": np.asarray(episode["action"]).tolist(),
            "reward": np.asarray(episode["reward"]).tolist(),
            "length": episode.length,
            "terminated": bool(episode.terminated),
            "truncated": bool(episode.truncated),
            "metadata": episode.metadata,
        }
        for episode in store
    ]
    return sorted(found, key=lambda episode: episode["observation"][0])


def expected(number: int, episode: int, **metadata) -> dict:
    """What a whole episode of a `CountingEnv` must be stored as."""
    length, terminated, truncated = SCHEDULES[number][episode % len(SCHEDULES[number])]
    actions = [action_of(number, episode, t) for t in range(length)]
    return {
        "observation": [[number, episode, t] for t in range(length + 1)],
        "action": [action.tolist() for action in actions],
        "reward": [float(np.float32(100 * episode + t + 1 + actions[t][0])) for t in range(length)],
        "length": length,
        "terminated": terminated,
        "truncated": truncated,
        "metadata": metadata,
    }


def cut(episode: dict, length: int, **metadata) -> dict:
    """Return what is stored of an episode that was left after `length` steps."""
    return {
        "observation": episode["observation"][: length + 1],
        "action": episode["action"][:length],
        "reward": episode["reward"][:length],
        "length": length,
        "terminated": False,
        "truncated": False,
        "metadata": metadata,
    }


def run_episode(env, number: int, episode: int, *, max_steps: int = 100, **reset) -> None:
    env.reset(**reset)
    for t in range(max_steps):
        *_, terminated, truncated, _ = env.step(action_of(number, episode, t))
        if terminated or truncated:
            break
