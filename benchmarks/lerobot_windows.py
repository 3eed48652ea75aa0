"""Windows of 2 frames through LeRobotDataset: run by an interpreter that has lerobot, by bench_pool_video.py.

Makes a dataset of tiny pictures, puts a given mp4 in the place of its own, and prints {"rate", "index", "means"}.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

NAME, FPS, TINY = "observation.image", 30, 64
SECONDS, BATCH, WORKERS = 12.0, 64, 2


def make(path: Path, root: Path, episode: int, num_steps: int) -> None:
    """Record a dataset, and give it another video with as many frames."""
    shutil.rmtree(root, ignore_errors=True)
    features = {NAME: {"dtype": "video", "shape": (TINY, TINY, 3), "names": ["height", "width", "channels"]}}
    dataset = LeRobotDataset.create("bench/windows", fps=FPS, features=features, root=root, use_videos=True)
    picture = np.zeros((TINY, TINY, 3), np.uint8)
    for _ in range(num_steps // episode):
        for _ in range(episode):
            dataset.add_frame({NAME: picture, "task": "none"})
        dataset.save_episode()
    dataset.finalize()
    (video,) = root.rglob("*.mp4")
    shutil.copyfile(path, video)


def rate(dataset: LeRobotDataset, workers: int) -> float:
    """Return windows a second, from the second batch on."""
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
    batches = iter(loader)
    next(batches)
    begun, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch[NAME])
        if time.perf_counter() - begun > SECONDS:
            break
    return count / (time.perf_counter() - begun)


def main() -> None:
    """Measure."""
    path, root, episode, num_steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    make(path, root, episode, num_steps)
    dataset = LeRobotDataset(
        "bench/windows", root=root, delta_timestamps={NAME: [-1 / FPS, 0.0]}, video_backend="torchcodec"
    )
    # workers first: a decoder that is open in the parent shares its place in the file with theirs
    best = max(rate(dataset, workers) for workers in (WORKERS, 0))
    index = num_steps // 2 + 7
    means = dataset[index][NAME].mean(dim=(0, 2, 3)).tolist()
    shutil.rmtree(root)
    print(json.dumps({"rate": best, "index": index, "means": means}))


main()
