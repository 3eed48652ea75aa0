"""What each rank does in test_exact_ranks.py; runs in the processes of rank_processes.py."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed
from torch.utils.data import DataLoader

import stepwell
from stepwell.errors import LoaderError
from stepwell.loader import Batch, BatchSampler, Loader, WindowDataset, gather_valid
from stepwell.loader.torch_data import BatchIndices

from .exact_model import WORLDS, found_batches

BATCH = 4
SEED = 6
NUM_ENDLESS = 5
# of how many ranks fewer numbers of workers are tried, the least and the most among them
WORKERS = {4: (0, 1, 4), 8: (0, 4)}
# what a gather is given is the same by any number of workers, which another test says
GATHERED = (0, 1)
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
    stores = {size: stepwell.open(path, mode="r") for size, path in paths.items()}
    datasets = Several({size: WindowDataset(store, seed=SEED) for size, store in stores.items()})
    served: Served = {}
    cells = [(few, workers) for few in WORLDS if rank < few for workers in WORKERS.get(few, range(5))]
    for few, workers in cells:
        cell: Any = {"batch_size": BATCH, "rank": rank, "world_size": few}
        for size, name, found in by_workers(datasets, workers, cell):
            served[size, few, workers, name, "workers"] = found_batches(found)
            if name in EVALUATIONS and workers in GATHERED:
                served[size, few, workers, name, "gathered"] = gathered(found, size, groups[few])
        for size, name, settings in chosen_settings(stores, few):
            batches = Loader(stores[size], seed=SEED, threads=workers, **cell, **settings)
            count = NUM_ENDLESS if name == "endless" else None
            served[size, few, workers, name, "threads"] = found_batches(itertools.islice(batches, count))
    return served


class Several:
    """Several datasets as one, so that workers are started once for all of them."""

    def __init__(self, datasets: dict[int, WindowDataset]) -> None:
        self.datasets = datasets

    def __getitems__(self, asked: tuple[int, BatchIndices]) -> Any:
        size, indices = asked
        return self.datasets[size].__getitems__(indices)


def chosen_settings(sizes: Iterable[int], world: int) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (size, name, settings) for those of which an epoch has batches."""
    for size, (name, settings) in itertools.product(sizes, {**EVALUATIONS, **TRAININGS}.items()):
        if name != "dropping" or size >= world * BATCH:
            yield size, name, settings


def by_workers(datasets: Several, workers: int, cell: Any) -> Iterator[tuple[int, str, list[Batch]]]:
    """Yield what worker processes make of all datasets and settings, one after the other."""
    counts = []
    asked: list[tuple[int, BatchIndices]] = []
    for size, name, settings in chosen_settings(datasets.datasets, cell["world_size"]):
        sampler = BatchSampler(datasets.datasets[size], **cell, **settings)
        counts.append((size, name, NUM_ENDLESS if name == "endless" else len(sampler)))
        asked += [(size, indices) for indices in itertools.islice(sampler, counts[-1][2])]
    batches: Any = DataLoader(
        datasets,  # type: ignore[arg-type]
        batch_sampler=asked,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=WindowDataset.collate,
    )
    made = iter(batches)
    for size, name, count in counts:
        yield size, name, list(itertools.islice(made, count))
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


def die(rank: int, world: int, root: str) -> str:
    """Return the error of a rank whose neighbour has died."""
    (Path(root) / f"{rank} has joined").touch()
    if rank == 1:
        # one that dies while others still join is an error of torch's, not of a gather
        while len(list(Path(root).glob("* has joined"))) < world:
            time.sleep(0.02)
        os._exit(3)
    try:
        gather_valid(Batch({}, anchors=np.array([rank])), timeout_seconds=60)
    except LoaderError as error:
        return str(error)
    return "nothing"
