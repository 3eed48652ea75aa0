"""The real FFCV on behalf of bench_beton and bench_ffcv_loader: run by an interpreter that has it.

Reads a JSON object a line, {"do": NAME, ...}, and answers each with one: the names are the functions below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields.decoders import NDArrayDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption

DECODERS = {"image": SimpleRGBImageDecoder, "array": NDArrayDecoder}
OPEN: dict[str, Loader] = {}


def open(path: str, field: str, order: str, batch_size: int, workers: int) -> dict[str, Any]:
    """Open a file; of its fields one is read, as FFCV's documentation has it."""
    pipelines = {name: [DECODERS[name]()] if name == field else None for name in (field, "label")}
    OPEN["loader"] = Loader(
        path,
        batch_size=batch_size,
        num_workers=workers,
        order=OrderOption[order],
        os_cache=True,
        drop_last=False,
        seed=0,
        pipelines=pipelines,
    )
    return {}


def open_pipeline(path: str, pipeline: str) -> dict[str, Any]:
    """Open a file by one of FFCV's own pipelines."""
    # behind all else: a module of this folder may be called like one that FFCV imports
    sys.path.append(str(Path(__file__).parent))
    from ffcv_pipelines import make_loader

    OPEN["loader"] = make_loader("ffcv", path, pipeline)
    return {}


def first(path: str) -> dict[str, Any]:
    """Save the first batch of an epoch as .npy."""
    batches = iter(OPEN["loader"])
    np.save(path, next(batches)[0].copy())
    # an epoch that is broken off leaves a thread behind
    for _ in batches:
        pass
    return {}


def epochs(count: int) -> dict[str, Any]:
    """Read epochs, and say how many samples they had."""
    return {"count": sum(len(batch[0]) for _ in range(count) for batch in OPEN["loader"])}


def main() -> None:
    """Answer until the input ends."""
    answers = sys.stdout
    # what libraries print is no answer
    sys.stdout = sys.stderr
    known = {function.__name__: function for function in (open, open_pipeline, first, epochs)}
    for line in sys.stdin:
        asked = json.loads(line)
        answer = known[asked.pop("do")](**asked)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
