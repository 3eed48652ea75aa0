"""Ray: data by stepwell where Ray computes and places; each name is loaded when it is first used. See docs/ray.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.ray.data import WellDatasink, read
    from stepwell.ray.executor import RayExecutor
    from stepwell.ray.replay import Replay, start_replay
    from stepwell.ray.rllib import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
    from stepwell.ray.train import prepare_loader, restore_state, save_state

_HOMES = {
    "EpisodeReplayBuffer": "stepwell.ray.rllib",
    "PrioritizedEpisodeReplayBuffer": "stepwell.ray.rllib",
    "RayExecutor": "stepwell.ray.executor",
    "Replay": "stepwell.ray.replay",
    "WellDatasink": "stepwell.ray.data",
    "read": "stepwell.ray.data",
    "start_replay": "stepwell.ray.replay",
    "prepare_loader": "stepwell.ray.train",
    "restore_state": "stepwell.ray.train",
    "save_state": "stepwell.ray.train",
}
__all__ = [
    "EpisodeReplayBuffer",
    "PrioritizedEpisodeReplayBuffer",
    "RayExecutor",
    "Replay",
    "WellDatasink",
    "prepare_loader",
    "read",
    "restore_state",
    "save_state",
    "start_replay",
]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
