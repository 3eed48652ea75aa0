"""What every rank is to get, with plain lists: the model that the tests of exactness compare with; and their stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import stepwell
from stepwell.store import Store

SIZES = (0, 1, 2, 7, 10, 30, 101)
WORLDS = (1, 2, 3, 4, 8)
BATCHES = (1, 4, 7)
FILES = (1, 3, 9)
WORKERS = (0, 1, 2, 3, 5)
Batches = list[tuple[list[int], list[bool]]]


def epoch_batches(
    order: Sequence[int], rank: int, world: int, batch: int, pad: Any = False, drop_last: bool = False
) -> Batches:
    """Return rows and validity of one rank's batches of an epoch that visits items in an order."""
    made = []
    for begin in range(0, len(order), world * batch):
        held = list(order[begin : begin + world * batch])
        if drop_last and len(held) < world * batch:
            break
        parts = [part.tolist() for part in np.array_split(np.array(held, int), world)]
        own = parts[rank]
        missing = batch - len(own)
        before = sum(batch - len(part) for part in parts[:rank])
        if pad == "wrap":
            filled = own + [order[(before + i) % len(order)] for i in range(missing)]
        elif pad:
            filled = own + [(own or list(order))[-1]] * missing
        else:
            filled = own
        if filled:
            made.append((filled, [True] * len(own) + [False] * (len(filled) - len(own))))
    return made


def stream_batches(epochs: Sequence[Sequence[int]], rank: int, world: int, batch: int) -> Batches:
    """Return one rank's full batches of epochs that run into each other."""
    items = [item for epoch in epochs for item in epoch]
    begins = range(rank * batch, len(items) - batch + 1, world * batch)
    return [(items[begin : begin + batch], [True] * batch) for begin in begins]


def found_batches(batches: Any) -> Batches:
    """Return rows and validity of a loader's batches; a row's value says which item it is, as its anchor does."""
    made = []
    for batch in batches:
        rows = batch.anchors.tolist()
        assert np.asarray(batch["item"]).tolist() == rows
        made.append((rows, [True] * len(rows) if batch.valid is None else np.asarray(batch.valid).tolist()))
    return made


def item_store(path: Path, size: int, files: int) -> Store:
    """Return a store of so many one-step episodes, each with its number, in so many segments as far as it has items."""
    store = stepwell.create(path, {"item": stepwell.Array((), "int64")})
    for part in np.array_split(np.arange(size), files):
        if len(part):
            with store.writer() as writer:
                for item in part:
                    writer.add_episode({"item": [item]})
    store.refresh()
    return store


def cells() -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (size, world, batch, files, workers): all of the first three, and every pair of values of any two."""
    for (a, size), (b, world), (c, batch) in product(*map(enumerate, (SIZES, WORLDS, BATCHES))):
        yield size, world, batch, FILES[(a + b + c) % 3], WORKERS[(a + 2 * b + c) % 5]
