"""Pooled orders that read a segment to its end before the next is begun."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Loader
from stepwell.order import BoundPooled, Partition, pooled
from stepwell.windows import Blocks
from stepwell.windows.plans import PIECE_ANCHOR, PIECE_COLUMNS, PIECE_SEGMENT

LENGTHS = ((5, 7), (3,), (20,), (4, 4, 4), (9, 1))
ORDER = {"bytes": 4096, "blocks": 8}


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    made = stepwell.create(tmp_path / "a.well", {"x": Array(16)})
    for lengths in LENGTHS:
        with made.writer() as writer:
            for length in lengths:
                writer.add_episode({"x": np.zeros((length, 16), "f4")})
    return made


def loader_of(store: stepwell.Store, shards: bool = True, **options: object) -> Loader:
    fields = {"x": Field("x", range(2)), "episode": "episode_index", "step": "step_index"}
    return Loader(store, fields, batch_size=4, order=pooled(**ORDER, shards=shards), threads=0, **options)  # type: ignore[arg-type]


def visited(loader: Loader) -> list[tuple[int, int]]:
    return [place for batch in loader for place in zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)]


def test_every_step_is_visited_once_and_epochs_differ(store: stepwell.Store) -> None:
    loader = loader_of(store)
    wanted = [(episode.index, step) for episode in store for step in range(episode.length)]
    first, second = visited(loader), visited(loader)
    assert sorted(first) == sorted(second) == wanted and first != second
    assert visited(loader_of(store)) == first


def bound_of(store: stepwell.Store) -> BoundPooled:
    """Return the order over 57 steps in blocks that the test cuts itself: two pieces may share one at first."""
    table = store.episodes
    edges = np.concatenate([[0], np.cumsum(table.length)])
    pieces = np.zeros((len(table.length), PIECE_COLUMNS), np.int64)
    pieces[:, PIECE_ANCHOR], pieces[:, PIECE_SEGMENT] = edges[:-1], table.segment
    blocks = Blocks(edges[[0, 1, 3, 4, 6, 8, 9]], pieces, np.array([0, 1, 3, 4, 6, 8, 9]), 100).within_segments()
    return BoundPooled(blocks, 4, 0, Partition(int(edges[-1])), blocks.segments)


def test_blocks_of_a_segment_enter_one_after_the_other(store: stepwell.Store) -> None:
    bound = bound_of(store)
    blocks = bound.blocks
    for epoch in range(4):
        entered = blocks.segments[bound.entering(epoch, 0, len(blocks))].tolist()
        turns = [segment for place, segment in enumerate(entered) if place == 0 or entered[place - 1] != segment]
        assert sorted(turns) == list(range(len(LENGTHS)))
        pieces = [blocks.pieces[blocks.pieces_of(block), PIECE_SEGMENT] for block in range(len(blocks))]
        assert all(len(set(found.tolist())) == 1 for found in pieces), "no block reaches beyond a segment"


def test_ranks_together_visit_every_step_once(store: stepwell.Store) -> None:
    parts = [visited(loader_of(store, rank=rank, world_size=3)) for rank in range(3)]
    everything = [place for part in parts for place in part]
    assert set(everything) == {(episode.index, step) for episode in store for step in range(episode.length)}


def test_it_differs_from_the_same_order_without_and_is_a_value(store: stepwell.Store) -> None:
    assert visited(loader_of(store)) != visited(loader_of(store, shards=False))
    order = pooled(**ORDER, shards=True)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(order)) == order != pooled(**ORDER)  # type: ignore[arg-type]
    bound = bound_of(store)
    assert bound.digest.endswith("by shards")
    assert np.array_equal(pickle.loads(pickle.dumps(bound)).positions(1, 0, 57), bound.positions(1, 0, 57))
