"""pool_video: an epoch of windows of 2 frames of video in a pooled order, beside PyAV by hand and LeRobotDataset.

One mp4 of a panning camera with sensor noise, 96 x 96 and 224 x 224, h264 with a keyframe every 30 frames and av1 with
one every 2, in episodes of 480. A store takes its packets as they are. The pool holds a fifth of the decoded frames,
512 MiB at most.

"PyAV" is one decoder that stays open and is asked window by window, in random order: one thread, as ours is then.
"lerobot" is LeRobotDataset in a DataLoader of two workers (batches of 64, shuffled, torchcodec), in an interpreter of
its own, on the very same mp4; ours has two threads then, and makes uint8 of height x width x channels where LeRobot
makes float32 of channels first, so that case has its own conversion in ours, too. Name the interpreter:
``STEPWELL_LEROBOT_PYTHON=/path/to/python``.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from datasets import removed
from report import Row, compare, skipped
from timing import Settings, memcpy_gb_per_s, time_rounds
from videos import FPS, OpenDecoder, pan_frames, write_mp4

import stepwell
from stepwell.order import pooled
from stepwell.transforms import ToCHW, ToFloat

__all__ = ["run"]

NAME = "pool_video"
BATCH = 64
EPISODE = 480
NUM_FRAMES = {96: 24_000, 224: 9_600}
TOY_FRAMES = 96
ENCODINGS = {"h264": (30, 6.0), "av1": (2, 2.0)}
LEROBOT_TARGET = 8.0
MOST_BYTES, LEAST_BYTES = 512 << 20, 64 << 20
# windows that the open decoder makes in one turn
HAND_WINDOWS = 32
LEROBOT = "STEPWELL_LEROBOT_PYTHON"


def run(settings: Settings) -> Iterator[Row]:
    """Yield two rows for each size and encoding."""
    for size, num_frames in NUM_FRAMES.items():
        for kind, (gop, target) in ENCODINGS.items():
            case = f"2 steps of {size}x{size}, {kind} GOP {gop}"
            path = settings.data / f"{kind}-{size}.mp4"
            count = settings.sized(num_frames, TOY_FRAMES)
            write_mp4(path, pan_frames(count, size), size, kind, gop)
            with removed(_import(path, settings.data / "pool-video.well", count)) as store:
                yield _beside_pyav(store, path, settings, case, target)
                yield _beside_lerobot(store, path, settings, case)
            path.unlink()


def _import(path: Path, target: Path, num_frames: int) -> stepwell.Store:
    """Return a store of episodes whose packets are those of the file."""
    store = stepwell.create(target, {"image": stepwell.VideoFile(path).feature}, fps=FPS)
    with store.writer() as writer:
        for first in range(0, num_frames, EPISODE):
            episode = stepwell.VideoFile(path, start=first / FPS, stop=(first + EPISODE) / FPS)
            writer.add_episode({"image": episode})
    store.refresh()
    return store


def _beside_pyav(store: stepwell.Store, path: Path, settings: Settings, case: str, target: float) -> Row:
    decoder = OpenDecoder(path)
    size = store.schema["image"].fixed_shape[0]  # type: ignore[index]
    out = np.empty((2, size, size, 3), np.uint8)
    order = np.random.default_rng(0).permutation(store.num_steps)
    turns = iter(np.tile(order, 1000).tolist())
    _check(store, decoder, order[:20], out)

    def by_hand() -> float:
        for _ in range(HAND_WINDOWS):
            step = next(turns)
            # the first step of an episode is seen twice
            decoder.window(step - (step % EPISODE > 0), step, out)
        return HAND_WINDOWS

    contenders = {"pooled": lambda: float(sum(len(batch["image"]) for batch in _loader(store, 0))), "PyAV": by_hand}
    rates = time_rounds(contenders, settings)
    decoder.close()
    return compare(NAME, f"{case}, 1 thread", rates, ours="pooled", theirs="PyAV", unit="windows/s", target=target)


def _beside_lerobot(store: stepwell.Store, path: Path, settings: Settings, case: str) -> Row:
    case = f"{case}, float32 CHW, 2 threads"
    python = os.environ.get(LEROBOT)
    if python is None:
        (row,) = skipped(NAME, "lerobot", case)
        return row
    script = Path(__file__).with_name("lerobot_windows.py")
    # -P: a module of this folder has the name of one that lerobot imports
    command = [python, "-P", str(script), str(path), str(settings.data / "lerobot"), str(EPISODE), str(store.num_steps)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    theirs = json.loads(printed.splitlines()[-1])
    transform = (ToFloat(), ToCHW())
    item = _loader(store, 0, transform).reader.read([theirs["index"]])["image"]
    np.testing.assert_allclose(np.moveaxis(item[0], -1, -3).mean(axis=(0, 2, 3)) / 255, theirs["means"], atol=0.01)
    rates = []
    for _ in range(3):
        loader, begun = _loader(store, 2, transform), time.perf_counter()
        rates.append(sum(len(batch["image"]) for batch in loader) / (time.perf_counter() - begun))
    ratios = np.array(rates) / theirs["rate"]
    return Row(
        bench=NAME,
        case=case,
        rival="lerobot",
        ratio=float(np.median(ratios)),
        spread=float(np.ptp(ratios)),
        ours=float(np.median(rates)),
        theirs=theirs["rate"],
        unit="windows/s",
        memcpy_gb_per_s=memcpy_gb_per_s(settings),
        target=LEROBOT_TARGET,
    )


def _loader(store: stepwell.Store, threads: int, transform: tuple[stepwell.Transform, ...] = ()) -> stepwell.Loader:
    decoded = store.num_steps * store.schema["image"].row_bytes  # type: ignore[index]
    order = pooled(min(MOST_BYTES, max(LEAST_BYTES, decoded // 5)))
    fields = {"image": stepwell.Field("image", [-1, 0], transform=transform)}
    return stepwell.Loader(store, fields, batch_size=BATCH, order=order, threads=threads)


def _check(store: stepwell.Store, decoder: OpenDecoder, steps: np.ndarray, out: np.ndarray) -> None:
    """Compare windows with those of the open decoder, pixel by pixel."""
    windows = _loader(store, 0).reader.read(steps)["image"]
    for step, window in zip(steps.tolist(), windows, strict=True):
        first = step - (step % EPISODE > 0)
        decoder.window(first, step, out)
        np.testing.assert_array_equal(window, out[[0, step - first]])
