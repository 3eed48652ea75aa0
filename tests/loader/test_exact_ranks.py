"""Exact over real processes: 8 ranks joined by gloo, each with 0 to 4 workers, and sizes that do not divide."""

from pathlib import Path
from typing import Any

import pytest

from stepwell import random

from .exact_model import WORLDS, epoch_batches, item_store, stream_batches
from .rank_processes import run_ranks

pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.slow
SIZES = (1, 7, 10, 30, 101)
BATCH = 4
SEED = 6
NUM_ENDLESS = 5
# what a gather is given is the same by any number of workers, which is compared first
EVALUATIONS, GATHERED = ("plain", "padded", "wrapped"), (0, 1)
WORKERS = {4: (0, 1, 4), 8: (0, 4)}
CELLS = [(size, world, n) for size in SIZES for world in WORLDS for n in WORKERS.get(world, range(5))]


class Count:
    """An index of so many anchors."""

    def __init__(self, num_anchors: int) -> None:
        self.num_anchors = num_anchors


def shuffled(size: int, epoch: int) -> list[int]:
    return random(SEED).bind(Count(size)).positions(epoch, 0, size).tolist()  # type: ignore[arg-type]


def model(size: int, world: int, rank: int) -> dict[str, Any]:
    def batches(order: Any, **options: Any) -> Any:
        return epoch_batches(order, rank, world, BATCH, **options)

    epochs = [shuffled(size, epoch) for epoch in range(NUM_ENDLESS * BATCH * world // size + 2)]
    made = {
        "plain": batches(range(size)),
        "padded": batches(range(size), pad=True),
        "wrapped": batches(range(size), pad="wrap"),
        "two epochs": batches(epochs[0], pad="wrap") + batches(epochs[1], pad="wrap"),
        "endless": stream_batches(epochs, rank, world, BATCH)[:NUM_ENDLESS],
    }
    return {**made, "dropping": batches(epochs[0], drop_last=True)} if size >= world * BATCH else made


def test_every_rank_gets_what_the_model_says_by_workers_and_by_threads_and_a_gather_each_item_once(
    tmp_path: Path,
) -> None:
    # one test: ranks are started once, also where the suite's tests are shared out
    stores = {size: item_store(tmp_path / f"{size}.well", size, 3) for size in SIZES}
    served = run_ranks(
        8, "exact_ranks:serve", tmp_path / "run", {size: str(each.path) for size, each in stores.items()}
    )
    for size, world, workers in CELLS:
        check_cell(served, size, world, workers)


def check_cell(served: list[Any], size: int, world: int, workers: int) -> None:
    items = list(range(size))
    whole = items, {"item": items, "text": [str(n) for n in items], "array": [2 * n for n in items]}
    for rank in range(world):
        for name, wanted in model(size, world, rank).items():
            cell = size, world, workers, name
            assert served[rank][*cell, "workers"] == wanted, (rank, cell)
            assert served[rank][*cell, "threads"] == wanted, (rank, cell)
            if name in EVALUATIONS and workers in GATHERED:
                assert served[rank][*cell, "gathered"] == whole, (rank, cell)
