"""LeRobot datasets: read in place, converted, written, recorded and audited; see docs/lerobot.md."""

from __future__ import annotations

from typing import Any

from stepwell.lazy import load_name

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "EpisodeAwareSampler": "stepwell.lerobot.sampling",
    "LeRobotDataset": "stepwell.lerobot.dataset",
    "LeRobotDatasetMetadata": "stepwell.lerobot.meta_view",
    "Metadata": "stepwell.lerobot.metadata",
    "MultiLeRobotDataset": "stepwell.lerobot.multiple",
    "StreamingLeRobotDataset": "stepwell.lerobot.streaming",
    "audit": "stepwell.lerobot.auditing",
    "compute_sampler_state": "stepwell.lerobot.sampling",
    "LeRobotRecorder": "stepwell.lerobot.recording",
    "install": "stepwell.lerobot.installing",
    "locate": "stepwell.lerobot.hub",
    "open_in_place": "stepwell.lerobot.in_place",
    "statistics_of": "stepwell.lerobot.statistics",
    "write_dataset": "stepwell.lerobot.writing",
}

__all__: list[str] = [
    "EpisodeAwareSampler",
    "LeRobotDataset",
    "LeRobotDatasetMetadata",
    "LeRobotRecorder",
    "Metadata",
    "MultiLeRobotDataset",
    "StreamingLeRobotDataset",
    "audit",
    "compute_sampler_state",
    "install",
    "locate",
    "open_in_place",
    "statistics_of",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
