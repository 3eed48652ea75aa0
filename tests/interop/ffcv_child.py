"""The real FFCV on behalf of test_ffcv.py: reads what stepwell wrote in every order and cache mode, and writes.

What answering.py lets it do is in `ANSWERS`. Values go through .npz files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ffcv.fields import (
    BytesField,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

ORDERS = ("SEQUENTIAL", "RANDOM", "QUASI_RANDOM")


def read(path: str, out: str, batch_size: int) -> dict[str, Any]:
    """Save an epoch of each order and cache mode, ``ORDER/OS_CACHE/FIELD``, by the default pipelines."""
    found = {}
    for order in ORDERS:
        for cache in (True, False):
            loader = Loader(
                path,
                batch_size=batch_size,
                num_workers=1,
                os_cache=cache,
                order=OrderOption[order],
                drop_last=False,
                seed=1,
            )
            names = list(loader.reader.handlers)
            # memory of a batch is used again
            batches = [[part.numpy().copy() for part in batch] for batch in loader]
            for place, name in enumerate(names):
                found[f"{order}/{int(cache)}/{name}"] = np.concatenate([batch[place] for batch in batches])
    np.savez(out, **found)
    return {"names": names, "modes": sorted({key.rsplit("/", 1)[0] for key in found})}


def write(path: str, out: str, workers: int) -> dict[str, Any]:
    """Write a file of every kind of field, and save what it was given."""
    rng = np.random.default_rng(0)
    samples = [
        (
            rng.integers(0, 255, (20 + i % 7, 30, 3), dtype=np.uint8),
            i - 5,
            float(rng.normal()),
            rng.integers(0, 255, 1 + i % 9, dtype=np.uint8),
            {"i": i, "text": "ä"},
            rng.normal(size=(16, 10)).astype("f4"),
            torch.from_numpy(rng.integers(-9, 9, (2, 3))),
        )
        for i in range(50)
    ]
    fields = {
        "image": RGBImageField("raw"),
        "int": IntField(),
        "float": FloatField(),
        "bytes": BytesField(),
        "json": JSONField(),
        "array": NDArrayField(np.dtype("float32"), (16, 10)),
        "tensor": TorchTensorField(torch.int64, (2, 3)),
    }
    DatasetWriter(path, fields, page_size=1 << 21, num_workers=workers).from_indexed_dataset(samples)
    columns = [np.array([None, *column], dtype=object)[1:] for column in zip(*samples, strict=True)]
    columns[-1] = np.array([tensor.numpy() for tensor in columns[-1]])
    np.savez(out, allow_pickle=True, **dict(zip(fields, columns, strict=True)))
    return {}


ANSWERS = (read, write)
