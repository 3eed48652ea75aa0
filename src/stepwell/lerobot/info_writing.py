"""What ``meta/info.json`` of a written dataset says."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.lerobot.dataset_files import CHUNKS_SIZE
from stepwell.lerobot.info import DATA_PATHS, VIDEO_PATHS, FeatureInfo

__all__ = ["Counts", "appended_info", "new_info"]

Counts = Mapping[str, int]
"""Of "episodes", "frames" and "tasks"."""


def new_info(
    infos: Sequence[FeatureInfo],
    fps: float,
    counts: Counts,
    video_facts: Mapping[str, Mapping[str, Any]],
    *,
    robot_type: str | None,
    sizes_mb: tuple[float, float] | None,
) -> dict[str, Any]:
    """Return what a new dataset says of itself.

    Args:
        infos: of all features.
        fps: rows a second.
        counts: of all that is in it.
        video_facts: of cameras, see `dataset_files.DatasetFiles.video_facts`.
        robot_type: of the robot.
        sizes_mb: limits of parquet and mp4 files of v3.0; None for v2.1.
    """
    rate = int(fps) if float(fps).is_integer() else fps
    has_videos = any(info.is_video for info in infos)
    is_v3 = sizes_mb is not None
    cameras = sum(info.is_video for info in infos)
    told: dict[str, Any] = {"codebase_version": "v3.0" if is_v3 else "v2.1", "robot_type": robot_type}
    told |= {f"total_{name}": counts[name] for name in ("episodes", "frames", "tasks")}
    if sizes_mb is None:
        chunks = math.ceil(counts["episodes"] / CHUNKS_SIZE)
        told |= {"total_videos": cameras * counts["episodes"], "total_chunks": chunks}
    told["chunks_size"] = CHUNKS_SIZE
    if sizes_mb is not None:
        told |= dict(zip(("data_files_size_in_mb", "video_files_size_in_mb"), sizes_mb, strict=True))
    return told | {
        "fps": rate,
        "splits": {"train": f"0:{counts['episodes']}"},
        "data_path": DATA_PATHS[is_v3],
        "video_path": VIDEO_PATHS[is_v3] if has_videos else None,
        "features": {info.name: _entry(info, rate, video_facts.get(info.name)) for info in infos},
    }


def appended_info(raw: Mapping[str, Any], counts: Counts) -> dict[str, Any]:
    """Return what a dataset says of itself when episodes came; ``counts`` is of all that is in it then."""
    told = copy.deepcopy(dict(raw))
    told |= {f"total_{name}": counts[name] for name in ("episodes", "frames", "tasks")}
    told["splits"] = {**told.get("splits", {}), "train": f"0:{counts['episodes']}"}
    return told


def _entry(info: FeatureInfo, rate: float, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a feature; of a video with what its stream is."""
    entry: dict[str, Any] = {"dtype": info.dtype, "shape": list(info.shape), "names": info.names}
    if facts:
        entry["info"] = {
            "video.height": facts["height"],
            "video.width": facts["width"],
            "video.codec": facts["codec"],
            "video.pix_fmt": facts["pix_fmt"],
            "video.is_depth_map": False,
            "video.fps": rate,
            "video.channels": info.shape[2],
            "has_audio": False,
        }
    return entry
