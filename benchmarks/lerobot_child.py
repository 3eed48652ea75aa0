"""LeRobotDataset on behalf of the bench_lerobot benchmarks: run by an interpreter that has lerobot.

Reads a JSON object a line, {"do": NAME, ...}, and answers each with one: the names are the functions below.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

REPO = "bench/lerobot"
NAMES = ["height", "width", "channels"]
OPEN: dict[str, LeRobotDataset] = {}


def make(root: str, columns: str, cameras: dict[str, str], episode: int, fps: int) -> dict[str, Any]:
    """Record a dataset of the columns in a .npz file, [n, ...] each, in episodes of equal length.

    ``cameras`` says which of them are images, and how they are kept: "image" (PNG) or "video".
    """
    shutil.rmtree(root, ignore_errors=True)
    with np.load(columns) as file:
        arrays = {name: file[name] for name in file.files}
    features = {
        name: {"dtype": cameras[name], "shape": values.shape[1:], "names": NAMES}
        if name in cameras
        else {"dtype": str(values.dtype), "shape": values.shape[1:], "names": None}
        for name, values in arrays.items()
    }
    dataset = LeRobotDataset.create(REPO, fps=fps, features=features, root=root, use_videos=True, vcodec="h264")
    number = len(next(iter(arrays.values())))
    for row in range(number):
        dataset.add_frame({**{name: values[row] for name, values in arrays.items()}, "task": "none"})
        if (row + 1) % episode == 0 or row + 1 == number:
            dataset.save_episode()
    dataset.finalize()
    return {"files": [str(path) for path in sorted(Path(root).rglob("*.mp4"))]}


def open(
    root: str, deltas: dict[str, list[float]] | None = None, image_transforms: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Open a dataset; say how long that took, and the memory of this process before and after."""
    before = _rss()
    options: dict[str, Any] = {"delta_timestamps": deltas, "video_backend": "torchcodec"}
    if image_transforms is not None:
        from lerobot.datasets.transforms import ImageTransforms, ImageTransformsConfig

        options["image_transforms"] = ImageTransforms(ImageTransformsConfig(**image_transforms))
    start = time.perf_counter()
    dataset = LeRobotDataset(REPO, root=root, **options)
    seconds = time.perf_counter() - start
    OPEN["dataset"] = dataset
    return {"seconds": seconds, "length": len(dataset), "before": before, "after": _rss(), "most": _most()}


def first_batch(root: str, deltas: dict[str, list[float]], batch_size: int) -> dict[str, Any]:
    """Open a dataset, and read its first batch in a random order."""
    open(root, deltas)
    batch = next(iter(DataLoader(OPEN["dataset"], batch_size, shuffle=True)))
    return {"length": len(batch["index"])}


def items(indexes: list[int], path: str) -> dict[str, Any]:
    """Save the arrays of some items in a .npz file, ``INDEX/KEY`` each."""
    found: dict[str, np.ndarray] = {}
    for index in indexes:
        item = OPEN["dataset"][index]
        found |= {f"{index}/{key}": np.asarray(value) for key, value in item.items() if isinstance(value, torch.Tensor)}
    np.savez(path, **found)
    return {"keys": list(OPEN["dataset"][indexes[0]])}


def rate(batch_size: int, workers: int, seconds: float) -> dict[str, Any]:
    """Return items a second of a shuffling DataLoader, from its second batch on."""
    # spawned: a forked worker shares a decoder that is open here, and its place in the file, with the others
    context = "spawn" if workers else None
    loader = DataLoader(OPEN["dataset"], batch_size, shuffle=True, num_workers=workers, multiprocessing_context=context)
    batches = iter(loader)
    next(batches)
    count, start = 0, time.perf_counter()
    for batch in batches:
        count += len(batch["index"])
        if time.perf_counter() - start > seconds:
            break
    return {"rate": count / (time.perf_counter() - start)}


def _rss() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def _most() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Answer until the input ends."""
    answers = sys.stdout
    # what libraries print is no answer
    sys.stdout = sys.stderr
    known = {function.__name__: function for function in (make, open, first_batch, items, rate)}
    for line in sys.stdin:
        asked = json.loads(line)
        answer = known[asked.pop("do")](**asked)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
