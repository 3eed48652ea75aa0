"""LeRobot datasets: read in place, converted, written, recorded and audited; see docs/lerobot.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.lerobot.auditing import audit
    from stepwell.lerobot.dataset import LeRobotDataset
    from stepwell.lerobot.dataset_tools import (
        add_features,
        aggregate_datasets,
        convert_image_to_video_dataset,
        delete_episodes,
        merge_datasets,
        modify_features,
        modify_tasks,
        recompute_stats,
        reencode_dataset,
        remove_feature,
        split_dataset,
    )
    from stepwell.lerobot.hub import locate
    from stepwell.lerobot.image_transforms import ImageTransformConfig, ImageTransforms, ImageTransformsConfig
    from stepwell.lerobot.in_place import open_in_place
    from stepwell.lerobot.installing import install
    from stepwell.lerobot.meta_view import LeRobotDatasetMetadata
    from stepwell.lerobot.metadata import Metadata
    from stepwell.lerobot.multiple import MultiLeRobotDataset
    from stepwell.lerobot.recording import LeRobotRecorder
    from stepwell.lerobot.sampling import EpisodeAwareSampler, compute_sampler_state
    from stepwell.lerobot.statistics import statistics_of
    from stepwell.lerobot.streaming import StreamingLeRobotDataset
    from stepwell.lerobot.writing import write_dataset

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "EpisodeAwareSampler": "stepwell.lerobot.sampling",
    "ImageTransformConfig": "stepwell.lerobot.image_transforms",
    "ImageTransforms": "stepwell.lerobot.image_transforms",
    "ImageTransformsConfig": "stepwell.lerobot.image_transforms",
    "LeRobotDataset": "stepwell.lerobot.dataset",
    "LeRobotDatasetMetadata": "stepwell.lerobot.meta_view",
    "LeRobotRecorder": "stepwell.lerobot.recording",
    "Metadata": "stepwell.lerobot.metadata",
    "MultiLeRobotDataset": "stepwell.lerobot.multiple",
    "StreamingLeRobotDataset": "stepwell.lerobot.streaming",
    "add_features": "stepwell.lerobot.dataset_tools",
    "aggregate_datasets": "stepwell.lerobot.dataset_tools",
    "audit": "stepwell.lerobot.auditing",
    "compute_sampler_state": "stepwell.lerobot.sampling",
    "convert_image_to_video_dataset": "stepwell.lerobot.dataset_tools",
    "delete_episodes": "stepwell.lerobot.dataset_tools",
    "install": "stepwell.lerobot.installing",
    "locate": "stepwell.lerobot.hub",
    "merge_datasets": "stepwell.lerobot.dataset_tools",
    "modify_features": "stepwell.lerobot.dataset_tools",
    "modify_tasks": "stepwell.lerobot.dataset_tools",
    "open_in_place": "stepwell.lerobot.in_place",
    "recompute_stats": "stepwell.lerobot.dataset_tools",
    "reencode_dataset": "stepwell.lerobot.dataset_tools",
    "remove_feature": "stepwell.lerobot.dataset_tools",
    "split_dataset": "stepwell.lerobot.dataset_tools",
    "statistics_of": "stepwell.lerobot.statistics",
    "write_dataset": "stepwell.lerobot.writing",
}

__all__: list[str] = [
    "EpisodeAwareSampler",
    "ImageTransformConfig",
    "ImageTransforms",
    "ImageTransformsConfig",
    "LeRobotDataset",
    "LeRobotDatasetMetadata",
    "LeRobotRecorder",
    "Metadata",
    "MultiLeRobotDataset",
    "StreamingLeRobotDataset",
    "add_features",
    "aggregate_datasets",
    "audit",
    "compute_sampler_state",
    "convert_image_to_video_dataset",
    "delete_episodes",
    "install",
    "locate",
    "merge_datasets",
    "modify_features",
    "modify_tasks",
    "open_in_place",
    "recompute_stats",
    "reencode_dataset",
    "remove_feature",
    "split_dataset",
    "statistics_of",
    "write_dataset",
]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
