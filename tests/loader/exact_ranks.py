"""What each rank does in test_exact_ranks.py; runs in the processes of rank_processes.py."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed
from torch.utils.data import DataLoader

import stepwell
from stepwell.errors import LoaderError
from stepwell.loader import Batch, BatchSampler, Loader, WindowDataset, gather_valid

from .exact_model import WORLDS, found_batches

BATCH = 4
SEED = 6
NUM_ENDLESS = 5
EVALUATIONS: dict[str, dict[str, Any]] = {"plain": {}, "padded": {"pad": True}, "wrapped": {"pad": "wrap"}}
TRAININGS: dict[str, dict[str, Any]] = {
    "two epochs": {"order": "random", "pad": "wrap", "epochs": 2},
    "dropping": {"order": "random", "drop_last": True},
    "endless": {"order": "random", "epochs": None},
}
Served = dict[tuple[int, int, int, str, str], Any]
warnings.filterwarnings("ignore", "This DataLoader will create")


def prepare_serve(paths: dict[int, str]) -> None:
    """Load and compile what all ranks use."""
    for path in paths.values():
        list(Loader(stepwell.open(path, mode="r"), order="random", threads=0))


def serve(rank: int, world: int, paths: dict[int, str]) -> Served:
    """Return what this rank gets of every cell that it takes part in: by (size, world, workers, settings, kind)."""
    groups = {few: distributed.new_group(list(range(few))) for few in WORLDS}
    served: Served = {}
    for size, path in paths.items():
        store = stepwell.open(path, mode="r")
        dataset = WindowDataset(store, seed=SEED, to="torch")
        for few, workers in itertools.product(WORLDS, range(5)):
            if rank >= few:
                continue
            cell: Any = {"batch_size": BATCH, "rank": rank, "world_size": few}
            for name, found in by_workers(dataset, workers, cell):
                served[size, few, workers, name, "workers"] = found_batches(found)
                if name in EVALUATIONS:
                    served[size, few, workers, name, "gathered"] = gathered(found, size, groups[few])
            for name, settings in settings_for(size, few).items():
                batches = Loader(store, seed=SEED, threads=workers, **cell, **settings)
                count = NUM_ENDLESS if name == "endless" else None
                served[size, few, workers, name, "threads"] = found_batches(itertools.islice(batches, count))
    return served


def settings_for(size: int, world: int) -> dict[str, dict[str, Any]]:
    """Return the settings of which an epoch has batches."""
    kept = {**EVALUATIONS, **TRAININGS}
    return kept if size >= world * BATCH else {name: each for name, each in kept.items() if name != "dropping"}


def by_workers(dataset: WindowDataset, workers: int, cell: Any) -> Iterator[tuple[str, list[Batch]]]:
    """Yield what worker processes make of all settings, one after the other: they are started once for all."""
    chosen = settings_for(len(dataset), cell["world_size"])
    samplers = {name: BatchSampler(dataset, **cell, **settings) for name, settings in chosen.items()}
    counts = {name: NUM_ENDLESS if name == "endless" else len(sampler) for name, sampler in samplers.items()}
    chain = [each for name, sampler in samplers.items() for each in itertools.islice(sampler, counts[name])]
    made = iter(DataLoader(dataset, batch_sampler=chain, num_workers=workers, collate_fn=dataset.collate))
    for name, count in counts.items():
        yield name, list(itertools.islice(made, count))
    assert next(made, None) is None


def gathered(batches: list[Batch], expected: int, group: Any) -> Any:
    """Return what all ranks know after a gather of all kinds of values."""
    rows = (
        batch.with_values({"item": batch["item"], "text": [str(n) for n in batch.anchors], "array": batch.anchors * 2})
        for batch in batches
    )
    whole = gather_valid(rows, expected=expected, group=group)
    assert whole is not None
    return whole.anchors.tolist(), {key: np.asarray(value).tolist() for key, value in whole.items()}


def gather_in_many_ways(rank: int, world: int) -> dict[str, Any]:
    """Return what gathers of odd things give, and the errors of wrong ones."""
    import torch

    own = np.arange(rank, 7, world)
    batch = Batch({}, 2, 0, anchors=own)
    empty = [] if rank == world - 1 else [Batch({"x": [float(rank)]}, anchors=np.array([rank]))]
    half = torch.arange(len(own) * 2).reshape(-1, 2).to(torch.bfloat16) + rank
    found: dict[str, Any] = {}
    some = gather_valid(batch.with_values({"half": half, "flag": half[:, 0] > 2}), expected=7)
    assert some is not None
    found["tensors"] = [(str(each.dtype), each.float().tolist()) for each in some.values()]
    found["epoch"] = some.epoch
    one = gather_valid(batch.with_values({"x": own.astype("f4")}), to=1)
    found["to one"] = None if one is None else one["x"].tolist()
    few = gather_valid(empty)
    assert few is not None
    found["without rows"] = (few.anchors.tolist(), dict(few))
    wrong = {
        "missing": lambda: gather_valid(batch.with_values({}), expected=9),
        "beyond": lambda: gather_valid(batch.with_values({}), expected=6),
        "twice": lambda: gather_valid(Batch({}, anchors=np.arange(3))),
        "kinds": lambda: gather_valid(batch.with_values({"x": own.astype("f4" if rank else "f8")})),
        "keys": lambda: gather_valid(batch.with_values({"x" if rank else "y": own})),
        "raised": lambda: gather_valid(failing(batch, rank == 1)),
        "unpicklable": lambda: gather_valid(batch.with_values({"x": [lambda: 0 for _ in own]} if rank == 1 else {})),
        "to": lambda: gather_valid(batch, to=world),
    }
    for name, call in wrong.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def failing(batch: Batch, is_bad: bool) -> Iterator[Batch]:
    """Yield a batch, and then raise on one rank."""
    yield batch
    if is_bad:
        raise ZeroDivisionError("the model of this rank")


def wait_for_one_that_sleeps(rank: int, world: int, root: str) -> str:
    """Return the error of a rank whose neighbour does not come in time."""
    told = Path(root) / "told"
    if rank == 1:
        while not told.exists():
            time.sleep(0.02)
        return ""
    try:
        gather_valid(Batch({}, anchors=np.array([rank])), timeout_seconds=0.5)
    except LoaderError as error:
        return str(error)
    finally:
        told.touch()
    return "nothing"


def die(rank: int, world: int) -> str:
    """Return the error of a rank whose neighbour has died."""
    if rank == 1:
        os._exit(3)
    try:
        gather_valid(Batch({}, anchors=np.array([rank])), timeout_seconds=60)
    except LoaderError as error:
        return str(error)
    return "nothing"
