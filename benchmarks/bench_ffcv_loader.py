"""ffcv_loader: FFCV's own pipelines by stepwell.ffcv, beside the real FFCV: one script, whose imports differ.

CIFAR's (32 x 32 raw: flip, shift, cutout, float16) in batches of 512, and ImageNet's (512 x 384, JPEG and raw: random
resized crop to 224, flip, normalised to float16, channels last) in batches of 64, random order, two threads each. A
turn is an epoch, FFCV compiles in one before. "first batch" is a process of its own, from the making of the loader on,
imports not counted: FFCV compiles there, stepwell loads what `stepwell warm` compiled. FFCV lives in an interpreter
that the environment variable STEPWELL_FFCV_PYTHON names: `make test-interop-ffcv-ready` makes one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench_beton import FFCV, ffcv
from datasets import photo_crops
from ffcv_pipelines import BATCHES, THREADS, make_loader
from report import Row, compare, skipped, within
from timing import Settings, time_rounds

from stepwell.ffcv.fields import IntField, RGBImageField
from stepwell.ffcv.writer import DatasetWriter

__all__ = ["run"]

NAME = "ffcv_loader"
# by case: pipeline, how images are written, images
CASES = {
    "CIFAR, raw 32x32": ("cifar", "raw", 20_000),
    "ImageNet, JPEG 512x384": ("imagenet", "jpg", 640),
    "ImageNet, raw 512x384": ("imagenet", "raw", 640),
}
PACKAGE = "stepwell.ffcv"
STARTS = 3
START_PART = 0.25


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for the epochs of each case, and for its first batch."""
    os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
    for case, (pipeline, mode, number) in CASES.items():
        path = settings.data / "images.beton"
        _write(path, pipeline, mode, settings.sized(number, 2 * BATCHES[pipeline]))
        yield from _measure(settings, path, case, pipeline)
        path.unlink()


def _measure(settings: Settings, path: Path, case: str, pipeline: str) -> Iterator[Row]:
    with ffcv() as rival:
        if rival is None:
            yield from skipped(NAME, "ffcv", case, f"{case}: first batch")
            return
        ours = make_loader(PACKAGE, str(path), pipeline)
        rival.ask("open_pipeline", path=str(path), pipeline=pipeline)
        contenders = {
            "loader": lambda: sum(len(images) for images, _ in ours),
            "ffcv": lambda: rival.ask("epochs", count=1)["count"],
        }
        rates = time_rounds(contenders, settings, before=lambda: None)
        yield compare(NAME, case, rates, ours="loader", theirs="ffcv", unit="samples/s", target=1.0)
    number = 1 if settings.is_quick else STARTS
    seconds = [
        [_first_batch(python, package, path, pipeline) for _ in range(number)]
        for python, package in ((sys.executable, PACKAGE), (os.environ[FFCV], "ffcv"))
    ]
    row = {"unit": "s", "target": 1 / START_PART}
    yield within(NAME, f"{case}: first batch", "ffcv", seconds[0], seconds[1], **row)


def _write(path: Path, pipeline: str, mode: str, number: int) -> None:
    images = photo_crops(number, 32) if pipeline == "cifar" else photo_crops(number, 512)[:, :384]
    samples = [(image, i) for i, image in enumerate(images)]
    writer = DatasetWriter(str(path), {"image": RGBImageField(mode), "label": IntField()})
    writer.from_indexed_dataset(samples)


def _first_batch(python: str, package: str, path: Path, pipeline: str) -> float:
    """Return the seconds to the first batch in a new process."""
    script = Path(__file__).with_name("ffcv_pipelines.py")
    command = [python, str(script), package, str(path), pipeline]
    environment = {**os.environ, "NUMBA_NUM_THREADS": str(THREADS)}
    made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return float(made.stdout)
