"""Batches, value for value: whatever reads them, by however many threads and ranks."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Field, Loader, Order, Store, View, WindowDataset, mixed, pooled, random, sequential, weighted

from .expectations import check, digest, load
from .recordings import FEATURES, LENGTHS, make, record

# two episodes in most segments; two stores, so that places of both are in one batch
SEGMENT_BYTES = 8000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    stores = []
    for number in range(2):
        store = make(tmp_path_factory.mktemp("frozen") / "a.well", FEATURES, segment_bytes=SEGMENT_BYTES)
        record(store, first=10 * number, lengths=(*LENGTHS, 9, 4))
        store.delete_episodes([3])
        stores.append(store)
    return stores


OFFSETS: dict[str, Any] = {
    "none": None,
    "now": 0,
    "past": [-2, -1, 0],
    "future": range(4),
    "around": [-3, 0, 2],
    "stacks": [[-2, -1], [-1, 0]],
    "far": [-20, 20],
}
PADS = ("edge", "zero", "drop")


def described(batch: Any) -> list[Any]:
    """Return key, dtype, shape and digest of each value, and what a batch says of itself."""
    values = [f"{key} {value.dtype} {value.shape} {digest(value)}" for key, value in sorted(batch.items())]
    valid = None if batch.valid is None else np.asarray(batch.valid).tolist()
    return [*values, f"epoch {batch.epoch} index {batch.index} valid {valid}", batch.anchors.tolist()]


def digest_of(batches: Any) -> str:
    return digest([described(batch) for batch in batches])


@pytest.mark.parametrize("pad", PADS)
def test_windows_of_every_feature(stores: list[Store], pad: Any) -> None:
    found = {}
    for how, offsets in OFFSETS.items():
        if how == "far" and pad == "drop":
            continue
        fields = {name: Field(name, offsets, pad=pad) for name in FEATURES}
        (batch,) = Loader(View(stores), fields, batch_size=1000)
        for key, value in batch.items():
            found[f"{how} {key}"] = f"{value.dtype} {value.shape} {digest(value)}"
    check(f"batches-windows-{pad}", found)


def test_computed_columns_and_windows_placed_elsewhere(stores: list[Store]) -> None:
    fields = {
        **{name: Field(name, [-1, 0, 5]) for name in ("step_index", "is_first", "is_last", "terminated", "truncated")},
        "goal": Field("state", at="final"),
        "goals": Field("delta", [-1, 0], at="final"),
        "stacked": Field(("delta", "image"), [0, 1], combine="stack"),
        "joined": Field(("delta", "image"), [0, 1], combine="concat"),
        "seconds": Field("state", seconds=[-0.2, 0, 0.1]),
        "key": Field("key"),
    }
    batches = list(Loader(View(stores), fields, batch_size=7))
    found = {str(batch.index): described(batch) for batch in batches}
    check("batches-computed", found)


FIELDS = {
    "key": Field("key"),
    "state": Field("state", [-1, 0]),
    "text": Field("text"),
    "points": Field("points", [0, 1], pad="drop"),
    "delta": Field("delta", [-2, 0, 1], pad="zero"),
    "png": Field("png", [0, 3]),
    "half": Field("half", range(3)),
    "next": Field("zpoints", 1),
}
ORDERS: dict[str, Order] = {
    "sequential": sequential(),
    "random": random(3),
    "pooled": pooled("1 MiB", seed=3),
    "pooled-small": pooled(40_000, seed=4, blocks=4),
    "pooled-shards": pooled("1 MiB", seed=3, shards=True),
    "weighted": weighted(steps="key", seed=5),
    "weighted-episodes": weighted(episodes=range(1, 11), per="episode", seed=5, drop_last_steps=1),
    "mixed": mixed([0.3, 0.7], seed=6),
    "mixed-orders": mixed([1, 2], order=[weighted(episodes=range(1, 6), seed=1), random(2)], seed=6),
}
# a batch of each is the same however it is built
BUILT: tuple[dict[str, Any], ...] = (
    {"threads": 0},
    {"threads": 2, "prefetch": 3},
    {"threads": 1, "page_cache": False},
)


SHARED: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two epochs": {"epochs": 2},
    "drop_last": {"drop_last": True},
    "padded": {"pad": True, "world_size": 2},
    "wrapped": {"pad": "wrap", "world_size": 3},
    "three ranks": {"world_size": 3},
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_batches_of_every_order(stores: list[Store], order: str) -> None:
    found: dict[str, Any] = {}
    for name, shared in SHARED.items():
        for rank in range(shared.get("world_size", 1)):
            settings = {"batch_size": 5, "seed": 7, "order": ORDERS[order], "rank": rank, **shared}
            ways = {digest_of(Loader(View(stores), FIELDS, **settings, **built)) for built in BUILT}
            assert len(ways) == 1, f"{order}, {name}, rank {rank}: threads or page_cache make a difference"
            found[f"{name}, rank {rank}"] = ways.pop()
    check(f"batches-{order}", found)


def test_random_numbers_of_transforms(stores: list[Store]) -> None:
    def jitter(batch: Any, draws: Any) -> Any:
        batch["state"] = batch["state"] + draws.normal(batch["state"].shape[1:])
        batch["uniform"] = draws.uniform((2,))
        return batch

    settings: dict[str, Any] = {"batch_size": 6, "seed": 11, "epochs": 2, "transform": jitter}
    loaders = {
        f"{order} threads={threads}": Loader(View(stores), FIELDS, order=order, threads=threads, **settings)
        for order in ("random", "pooled")
        for threads in (0, 2)
    }
    check("batches-draws", {name: digest_of(loader) for name, loader in loaders.items()})


def test_map_style_reads(stores: list[Store]) -> None:
    dataset = WindowDataset(View(stores), FIELDS, seed=3)
    found = {
        str(anchor): {key: digest(np.asarray(value)) for key, value in sorted(dataset[anchor].items())}
        for anchor in (0, 7, len(dataset) - 1)
    }
    many = dataset.collate(dataset.__getitems__([5, 1, 5]))
    found["many"] = {key: digest(np.asarray(value)) for key, value in many.items()}
    check("batches-dataset", found)


# states name a store by its uuid: those of a store that was written once

GOLDEN = Path(__file__).parents[1] / "golden" / "v1.well"
GOLDEN_FIELDS = {"state": Field("observation.state", [-1, 0]), "image": "observation.image", "text": "language"}
GOLDEN_ORDERS: dict[str, Order] = {
    "sequential": sequential(),
    "random": random(3),
    "pooled": pooled("1 MiB", seed=3),
    "pooled-small": pooled(60_000, seed=4, blocks=4),
    "weighted": weighted(episodes=[1, 2, 3], seed=5),
    "mixed": mixed([1], seed=6),
}


@pytest.fixture
def golden(tmp_path: Path) -> Store:
    shutil.copytree(GOLDEN, tmp_path / "golden.well")
    return stepwell.open(tmp_path / "golden.well", mode="r")


@pytest.mark.parametrize("order", sorted(GOLDEN_ORDERS))
@pytest.mark.parametrize("epochs", [2, None], ids=["two epochs", "endless"])
def test_saved_states_go_on_as_they_did(golden: Store, order: str, epochs: int | None) -> None:
    name = f"states-{order}-{epochs}"
    frozen = load(name)
    found: dict[str, Any] = {}
    for taken in (0, 1, 4, 8):
        settings: dict[str, Any] = {"batch_size": 3, "seed": 7, "order": GOLDEN_ORDERS[order], "epochs": epochs}
        loader, again = (Loader(golden, GOLDEN_FIELDS, **settings, threads=threads) for threads in (0, 2))
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
        batches.close()
        again.load_state_dict(frozen.get(str(taken), {}).get("state", state))
        rest = iter(again)
        found[str(taken)] = {"state": state, "rest": digest_of(itertools.islice(rest, 6))}
        rest.close()
    check(name, found)


def test_splits_and_selections(golden: Store) -> None:
    view = View(golden)
    found: dict[str, Any] = {}
    for version, seed in itertools.product((1, 2), range(4)):
        parts = view.split(0.6, 0.4, seed=seed, version=version)
        found[f"version {version}, seed {seed}"] = [part.column("origin").tolist() for part in parts]
    found["indices"] = view.select([2, 0]).column("origin").tolist()
    found["where"] = view.select(where=lambda episode: episode["length"] > 4).column("origin").tolist()
    found["slice"] = view.select(slice(2, None, -1)).column("origin").tolist()
    check("splits", found)


def test_the_stores_are_what_they_were(stores: list[Store]) -> None:
    assert [store.num_episodes for store in stores] == [5, 5]
    assert all(len(store.segments) > 1 for store in stores)
    assert stepwell.open(stores[0].path, mode="r").verify(deep=True).findings == ()
