"""ray: chunks by actors of Ray beside processes of our own, and windows through Ray Data beside a loader.

- ray_import: a WebDataset of 20,000 JPEG samples becomes a store, by two workers. Both begin their workers anew in each
  turn, and write the same bytes.
- ray_data: windows of four images and their labels, through ``stepwell.ray.read(unit="window")``, read by one task and
  taken out of Ray's object store here; and by the `Loader` that the task has, in this process.

Ray starts once, before the first turn, and listens on the loopback.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import photo_crops
from report import Row, compare, skipped
from timing import Settings, Work, time_rounds

import stepwell
from stepwell.webdataset import write_webdataset

__all__ = ["run"]

NAME = "ray"
WORKERS, SIDE, BATCH = 2, 96, 64
OBJECT_STORE_BYTES = 500 << 20
IMPORT, DATA = "ray_import: 20,000 JPEG samples, 2 workers", "ray_data: windows of 4 images"


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    # read when Ray is imported
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        for case in (IMPORT, DATA):
            yield from skipped(NAME, "ray", case)
        return
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    try:
        store = _images(settings)
        yield _import_row(settings, store)
        yield _data_row(settings, store)
    finally:
        ray.shutdown()


def _images(settings: Settings) -> stepwell.Store:
    """Return a store of episodes of 100 steps: an image and a label."""
    count, steps = settings.sized(200, 4), settings.sized(100, 8)
    crops = np.stack(photo_crops(settings.sized(200, 4), SIDE))
    schema = {"image": stepwell.Image((SIDE, SIDE, 3), codec="jpeg"), "label": stepwell.Array((), "int64")}
    with stepwell.create(settings.data / "images.well", schema) as store, store.writer() as writer:
        for number in range(count):
            chosen = (np.arange(steps) + 7 * number) % len(crops)
            writer.add_episode({"image": crops[chosen], "label": chosen})
    return stepwell.open(settings.data / "images.well", mode="r")


def _import_row(settings: Settings, store: stepwell.Store) -> Row:
    from stepwell.ray import RayExecutor

    shards, target = settings.data / "shards", settings.data / "imported.well"
    write_webdataset(store, shards, shard_samples=settings.sized(2500, 4), workers=1, progress=False)
    executor = RayExecutor(WORKERS)
    contenders: dict[str, Work] = {
        "ray": partial(_convert, shards, target, store.num_steps, executor=executor),
        "processes": partial(_convert, shards, target, store.num_steps, workers=WORKERS),
    }
    rates = time_rounds(contenders, settings, partial(shutil.rmtree, target, ignore_errors=True))
    return compare(NAME, IMPORT, rates, ours="ray", theirs="processes", unit="samples/s", target=0.9)


def _convert(shards: Path, target: Path, num_samples: int, **options: Any) -> float:
    stepwell.convert(f"webdataset://{shards}", target, progress=False, **options)
    return num_samples


def _data_row(settings: Settings, store: stepwell.Store) -> Row:
    contenders: dict[str, Work] = {"ray": partial(_by_ray, store), "loader": partial(_by_loader, store)}
    rates = time_rounds(contenders, settings, lambda: None)
    return compare(NAME, DATA, rates, ours="ray", theirs="loader", unit="windows/s", target=0.5)


FIELDS = {"image": range(4), "label": "label"}


def _by_ray(store: stepwell.Store) -> float:
    from stepwell.ray import read

    windows = read(store, "window", fields=FIELDS, order="random", batch_size=BATCH, override_num_blocks=1)
    return float(sum(len(batch["label"]) for batch in windows.iter_batches(batch_size=None)))


def _by_loader(store: stepwell.Store) -> float:
    loader = stepwell.Loader(store, FIELDS, order="random", batch_size=BATCH, threads=1)
    return float(sum(len(batch["label"]) for batch in loader))
