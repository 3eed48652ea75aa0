"""The simulator that the demo records: PushT, or a MuJoCo task with a rendered camera where PushT is not installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.cli.pusht import ScriptedPusher
from stepwell.errors import MissingDependencyError
from stepwell.schema import Array, Feature

__all__ = ["Simulator", "make_simulator"]

# info of the last step -> next action
Policy = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Simulator:
    """An environment, who plays it, and what the demo needs to know about it.

    Args:
        make_policy: from a seed to what plays one episode.
        infos: keys of ``info`` to store at every step.
        episode_infos: keys of the last step's ``info`` to keep with the episode.
        camera: the feature with its images.
        state: the feature with the position that actions move.
        canvas_size: width of the world when actions are positions in it, in the actions' unit; None when they are not.
    """

    name: str
    env: Any
    make_policy: Callable[[int], Policy]
    infos: Mapping[str, Feature]
    episode_infos: tuple[str, ...]
    camera: str
    state: str
    fps: float
    canvas_size: float | None


def make_simulator() -> Simulator:
    """Return PushT with its scripted pusher, else MuJoCo's hopper on a swinging gait.

    Raises:
        MissingDependencyError: neither is installed.
    """
    # a machine without a screen or sound card must be able to draw
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
    except ImportError:
        raise MissingDependencyError.of("gymnasium", "demo") from None
    try:
        import gym_pusht  # noqa: F401 - importing it registers the environment
    except ImportError:
        return _make_hopper(gymnasium)
    return _make_pusht(gymnasium)


def _make_pusht(gymnasium: Any) -> Simulator:
    return Simulator(
        name="PushT",
        env=gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels_agent_pos"),
        make_policy=lambda seed: ScriptedPusher(seed).act,
        infos={"block_pose": Array(3, "float64", names=("x", "y", "angle")), "coverage": Array((), "float64")},
        episode_infos=("is_success", "coverage"),
        camera="observation.pixels",
        state="observation.agent_pos",
        fps=10,
        canvas_size=512.0,
    )


def _make_hopper(gymnasium: Any) -> Simulator:
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        env = gymnasium.make("Hopper-v5", render_mode="rgb_array", width=96, height=96, max_episode_steps=300)
    except ImportError:
        raise MissingDependencyError.of("neither gym-pusht nor mujoco", "demo") from None
    env = gymnasium.wrappers.AddRenderObservation(env, render_only=False, render_key="pixels", obs_key="state")
    return Simulator(
        name="Hopper",
        env=env,
        make_policy=_make_gait,
        infos={},
        episode_infos=("x_position",),
        camera="observation.pixels",
        state="observation.state",
        fps=125,
        canvas_size=None,
    )


def _make_gait(seed: int) -> Policy:
    """Return a swing of the hopper's three joints with its own rhythm, so that it falls at its own time."""
    rng = np.random.default_rng(seed)
    phase, rhythm, strength = rng.uniform(0, 6.28, 3), rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.6)
    beats = iter(range(10**9))

    def act(info: dict[str, Any]) -> Any:
        return (strength * np.sin(phase + rhythm * next(beats)) + rng.normal(0, 0.05, 3)).clip(-1, 1).astype(np.float32)

    return act
