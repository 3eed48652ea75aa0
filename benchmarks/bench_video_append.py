"""video_append: recording a camera of 480 x 640 as video (H.264, a run of 2 rows) from a control loop.

At 30 Hz: how long `Writer.append` takes a step with the frame and an action, while the frames are encoded in the
background on the same cores. Each run is a process of its own that records an episode; quantiles are over its appends
but the first, which makes the segment's files. The loop sleeps until its next tick, as one that reads a camera does.

At full speed: steps a second, when the queue holds two steps only and appending waits for the encoder; the rival is the
codec's encoder by itself, in the loop's own thread, with nothing stored.

Memory: the peak of resident memory of a process that appends as fast as it can with a queue of 64 MiB, for a short and
a long episode; the limit is the queue and 300 MiB.

Every run reads back what it recorded: as many rows as were appended, and frames that are the ones given.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from children import run_child
from datasets import photo_crops, removed
from report import Row, compare, skipped, within
from timing import Settings, memcpy_gb_per_s, time_rounds

import stepwell
from stepwell.codecs import SequentialCodec, make_codec

__all__ = ["record_camera", "run"]

NAME = "video_append"
HEIGHT, WIDTH = 480, 640
RATE_HZ = 30
LIMIT_MS = 2.0
QUEUE_MIB, SPARE_MIB = 64, 300
RIVAL = "encoder alone, 1 thread"
MIN_PSNR_DB = 30.0

RECORD = """
import resource, sys
sys.path.insert(0, argument.pop("benchmarks"))
from bench_video_append import record_camera
found = record_camera(**argument)
found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(found))
"""


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of the control loop, of full speed, and of memory."""
    try:
        make_codec(_camera())
    except stepwell.MissingDependencyError:
        yield from skipped(NAME, "av", f"append at {RATE_HZ} Hz", "full speed", "memory")
        return
    memcpy = memcpy_gb_per_s(settings)
    yield from _control_loop(settings, memcpy)
    yield _full_speed(settings)
    for steps in (settings.sized(600, 20), settings.sized(3000, 40)):
        runs = [_recorded(settings, steps, None, QUEUE_MIB << 20)["peak_mib"] for _ in range(settings.sized(3, 1))]
        case, limit = f"peak memory, {steps} steps, queue {QUEUE_MIB} MiB", float(QUEUE_MIB + SPARE_MIB)
        yield within(NAME, case, "queue + 300 MiB", runs, limit, unit="MiB", target=1.0, memcpy_gb_per_s=memcpy)


def record_camera(path: str, steps: int, rate_hz: float | None, queue_bytes: int) -> dict[str, float]:
    """Record an episode of a moving camera and read it back.

    Args:
        path: of the store to make.
        steps: to append.
        rate_hz: of the control loop; None: as fast as it goes.
        queue_bytes: of the writer.

    Returns:
        Quantiles of the time of an append, in milliseconds.
    """
    frames, action = _frames(), np.zeros(7, np.float32)
    store = stepwell.create(path, {"camera": _camera(), "action": stepwell.Array(7)})
    taken = np.empty(steps)
    with store.writer(queue_bytes=queue_bytes) as writer:
        start = time.perf_counter()
        for step in range(steps):
            if rate_hz is not None:
                time.sleep(max(0.0, start + step / rate_hz - time.perf_counter()))
            frame = frames[step % len(frames)]
            begin = time.perf_counter()
            writer.append(camera=frame, action=action)
            taken[step] = time.perf_counter() - begin
        writer.end_episode()
    _check(store, frames, steps)
    p50, p99, longest = np.quantile(1000 * taken[1:], (0.5, 0.99, 1.0)).tolist()
    return {"p50": p50, "p99": p99, "max": longest}


def _control_loop(settings: Settings, memcpy: float) -> Iterator[Row]:
    steps = settings.sized(900, 10)
    runs = [_recorded(settings, steps, RATE_HZ, 256 << 20) for _ in range(settings.sized(5, 1))]
    told = {"unit": "ms", "memcpy_gb_per_s": memcpy}
    for key, rival, limit, target in (
        ("p50", "2 ms", LIMIT_MS, None),
        ("p99", "2 ms", LIMIT_MS, 1.0),
        ("max", "the loop's period", 1000 / RATE_HZ, None),
    ):
        case = f"append at {RATE_HZ} Hz, {key} of {steps} steps"
        yield within(NAME, case, rival, [found[key] for found in runs], limit, target=target, **told)


def _full_speed(settings: Settings) -> Row:
    frames = _frames()
    store = stepwell.create(settings.data / "full.well", {"camera": _camera()})
    codec = make_codec(_camera())
    assert isinstance(codec, SequentialCodec)
    encoder = codec.encoder()
    with removed(store):
        with store.writer(queue_bytes=0) as writer:
            ours, theirs = itertools.cycle(frames), itertools.cycle(frames)

            def append() -> float:
                writer.append(camera=next(ours))
                return 1

            def encode() -> float:
                encoder.put(next(theirs))
                return 1

            rates = time_rounds({"stepwell": append, RIVAL: encode}, settings)
            encoder.close()
            writer.end_episode()
        _check(store, frames, store.num_steps)
    return compare(NAME, "full speed, queue of 2 steps", rates, ours="stepwell", theirs=RIVAL, unit="steps/s")


def _recorded(settings: Settings, steps: int, rate_hz: float | None, queue_bytes: int) -> dict[str, float]:
    """Return what `record_camera` found in a process of its own."""
    path = settings.data / "camera.well"
    argument = {"path": str(path), "steps": steps, "rate_hz": rate_hz, "queue_bytes": queue_bytes}
    found: dict[str, float] = run_child(RECORD, {**argument, "benchmarks": str(Path(__file__).parent)})
    with removed(stepwell.open(path, mode="r")):
        return found


def _camera() -> stepwell.Feature:
    return stepwell.Video((HEIGHT, WIDTH, 3))


def _frames() -> np.ndarray:
    """Return 60 frames of a camera that turns to and fro, uint8 [60, height, width, 3]."""
    # in the order of memory in which cameras give pixels
    picture = np.ascontiguousarray(photo_crops(1, 900)[0])
    shifts = np.concatenate([np.arange(30), np.arange(30)[::-1]])
    return np.array([picture[4 * s : 4 * s + HEIGHT, 8 * s : 8 * s + WIDTH] for s in shifts.tolist()])


def _check(store: stepwell.Store, frames: np.ndarray, steps: int) -> None:
    """Compare the length of the episode, and its last frames, with what was given."""
    (segment,) = store.segments
    if store.num_steps != steps:
        raise AssertionError(f"{steps} steps were appended, {store.num_steps} are there.")
    first = max(0, steps - 4)
    for step, row in enumerate(segment.read_rows("camera", first, steps), first):
        error = np.mean((row.astype(np.float32) - frames[step % len(frames)]) ** 2)
        psnr = 10 * np.log10(255**2 / max(float(error), 1e-9))
        if psnr < MIN_PSNR_DB:
            raise AssertionError(f"step {step} has {psnr:.1f} dB: not the frame that was given.")
