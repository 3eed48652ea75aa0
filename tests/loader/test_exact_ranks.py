"""Exact over real processes: 8 ranks joined by gloo, each with 0 to 4 workers, and sizes that do not divide."""

import itertools
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
CELLS = list(itertools.product(SIZES, WORLDS, range(5)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    root = tmp_path_factory.mktemp("ranks")
    stores = {size: item_store(root / f"{size}.well", size, 3) for size in SIZES}
    return run_ranks(8, "exact_ranks:serve", root / "run", {size: str(store.path) for size, store in stores.items()})


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


@pytest.mark.parametrize(("size", "world", "workers"), CELLS)
def test_every_rank_gets_what_the_model_says_by_workers_and_by_threads(
    served: list[Any], size: int, world: int, workers: int
) -> None:
    for rank in range(world):
        for name, wanted in model(size, world, rank).items():
            assert served[rank][size, world, workers, name, "workers"] == wanted
            assert served[rank][size, world, workers, name, "threads"] == wanted


@pytest.mark.parametrize(("size", "world", "workers"), CELLS)
def test_a_gather_gives_every_rank_each_item_once_in_order(
    served: list[Any], size: int, world: int, workers: int
) -> None:
    items = list(range(size))
    wanted = items, {"item": items, "text": [str(n) for n in items], "array": [2 * n for n in items]}
    for rank, name in itertools.product(range(world), ("plain", "padded", "wrapped")):
        assert served[rank][size, world, workers, name, "gathered"] == wanted
