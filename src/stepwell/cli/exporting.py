"""``stepwell export``: a store as a LeRobot dataset."""

from __future__ import annotations

import argparse
import json
from typing import Any

from stepwell.cli.converting import check_episodes
from stepwell.formats.opening import open
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.writing import write_dataset
from stepwell.store.counting import counted
from stepwell.windows import View

__all__ = ["run_export"]


def run_export(arguments: argparse.Namespace) -> int:
    """Write a store as a LeRobot dataset and print what is in it."""
    with open(arguments.source, mode="r") as store:
        view = View(store)
        if arguments.episodes is not None:
            check_episodes(len(store), str(store.path), arguments.episodes)
            view = view.select(arguments.episodes)
        dataset = write_dataset(
            view,
            arguments.target,
            version=arguments.format_version,
            features=arguments.feature or None,
            rename=dict(arguments.rename),
            task=arguments.task,
            cameras=arguments.cameras,
            fps=arguments.fps,
            append=arguments.append,
            workers=arguments.workers,
        )
    record = _record(dataset)
    print(json.dumps(record, indent=2) if arguments.json else _table(record))
    return 0


def _record(dataset: Metadata) -> dict[str, Any]:
    info = dataset.info
    return {
        "path": str(dataset.root),
        "version": info.version,
        "fps": info.fps,
        "num_episodes": info.total_episodes,
        "num_steps": info.total_frames,
        "tasks": list(dataset.tasks),
        "features": {
            name: {"dtype": feature.dtype, "shape": list(feature.shape)}
            for name, feature in info.features.items()
            if not feature.is_index
        },
    }


def _table(record: dict[str, Any]) -> str:
    name = record["path"].rsplit("/", 1)[-1]
    lines = [
        f"{name}: LeRobot {record['version']}  {counted(record['num_episodes'], 'episode')}  "
        f"{counted(record['num_steps'], 'step')}  {record['fps']:g} fps  {counted(len(record['tasks']), 'task')}"
    ]
    width = max(map(len, record["features"]), default=0)
    for feature, told in record["features"].items():
        lines.append(f"  {feature:{width}}  {told['dtype']:7}  {'x'.join(map(str, told['shape']))}")
    return "\n".join(lines)
