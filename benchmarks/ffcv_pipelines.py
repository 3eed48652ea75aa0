"""FFCV's two pipelines of its examples, by the package that is named: FFCV itself, or stepwell by FFCV's names.

Run as a script, it prints the seconds from the loader's making to its first batch, imports not counted.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

import numpy as np

__all__ = ["BATCHES", "make_loader"]

# of images a batch
BATCHES = {"cifar": 512, "imagenet": 64}
THREADS = 2
GREY = (125, 122, 113)


def make_loader(package: str, path: str, pipeline: str) -> Any:
    """Return the loader of a file: the same text with either package."""
    loaders, transforms = import_module(f"{package}.loader"), import_module(f"{package}.transforms")
    decoders = import_module(f"{package}.fields.decoders")
    if pipeline == "cifar":
        images = [
            decoders.SimpleRGBImageDecoder(),
            transforms.RandomHorizontalFlip(),
            transforms.RandomTranslate(padding=2, fill=GREY),
            transforms.Cutout(4, GREY),
            transforms.ToTensor(),
            transforms.ToTorchImage(),
            transforms.Convert(import_module("torch").float16),
        ]
    else:
        mean, std = np.array([0.485, 0.456, 0.406]) * 255, np.array([0.229, 0.224, 0.225]) * 255
        images = [
            decoders.RandomResizedCropRGBImageDecoder((224, 224)),
            transforms.RandomHorizontalFlip(),
            transforms.NormalizeImage(mean, std, np.float16),
            transforms.ToTensor(),
            transforms.ToTorchImage(),
        ]
    labels = [decoders.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()]
    return loaders.Loader(
        path,
        batch_size=BATCHES[pipeline],
        num_workers=THREADS,
        order=loaders.OrderOption.RANDOM,
        seed=0,
        pipelines={"image": images, "label": labels},
    )


def main(package: str, path: str, pipeline: str) -> None:
    """Print the seconds to the first batch."""
    for name in ("loader", "transforms", "fields.decoders"):
        import_module(f"{package}.{name}")
    start = time.perf_counter()
    batches = iter(make_loader(package, path, pipeline))
    next(batches)
    print(time.perf_counter() - start, flush=True)
    # FFCV's thread is not to be killed in the midst of a batch
    for _ in batches:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
