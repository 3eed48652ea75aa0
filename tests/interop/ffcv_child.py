"""The real FFCV on behalf of test_ffcv.py: reads what stepwell wrote in every order and cache mode, and writes.

What answering.py lets it do is in `ANSWERS`. Values go through .npz files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ffcv import transforms
from ffcv.fields import (
    BytesField,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from ffcv.fields.decoders import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.state import State
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


def apply(out: str, given: str, transform: str, options: dict[str, Any], seed: int, compiled: bool) -> dict[str, Any]:
    """Save what a transform makes of a batch, by numpy's generator or numba's with a seed.

    Arrays of the options are in the file of what is given, which has the values and the samples' numbers as well.
    """
    found = np.load(given)
    named = {key: found[value[1:]] if str(value).startswith("@") else value for key, value in options.items()}
    if "type" in named:
        named["type"] = np.dtype(named["type"]).type
    operation = getattr(transforms, transform)(**named)
    values, indices = found["values"], found["indices"]
    _, query = operation.declare_state_and_memory(State(True, torch.device("cpu"), values.shape[1:], values.dtype))
    memory = None if query is None else np.zeros((len(values), *query.shape), query.dtype)
    Compiler.set_enabled(compiled)
    code = operation.generate_code()
    arguments = (values, memory, indices) if getattr(code, "with_indices", False) else (values, memory)
    np.random.seed(seed)
    made = Compiler.compile(code)(*arguments)
    Compiler.set_enabled(True)
    np.savez(out, made=made)
    return {}


def decode(out: str, path: str, size: list[int], seed: int, ratio: float | None) -> dict[str, Any]:
    """Save the images of a file in order, by the decoder of random parts or that of the middle, run as Python."""
    decoder = RandomResizedCropRGBImageDecoder(size) if ratio is None else CenterCropRGBImageDecoder(size, ratio)
    Compiler.set_enabled(False)
    loader = Loader(path, batch_size=8, num_workers=1, drop_last=False, pipelines={"image": [decoder], "label": None})
    np.random.seed(seed)
    images = np.concatenate([batch[0].copy() for batch in loader])
    Compiler.set_enabled(True)
    np.savez(out, images=images)
    return {}


def orders(out: str, path: str, order: str, seed: int) -> dict[str, Any]:
    """Save the samples' numbers of three epochs."""
    loader = Loader(path, batch_size=8, order=OrderOption[order], seed=seed)
    np.savez(out, orders=[loader.traversal_order.sample_order(epoch) for epoch in range(3)])
    return {}


ANSWERS = (apply, decode, orders, read, write)
