"""Every combination of order, page cache and threads gives the bytes that a plain read of the same positions gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stepwell
import stepwell.testing.codecs  # registers "running"
from stepwell import Field, View
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.loader import Loader
from stepwell.loader.loader import _pays
from stepwell.loader.pool import BlockPool
from stepwell.order import Order, mixed, pooled, random, sequential, weighted
from stepwell.store import Store
from stepwell.transforms import (
    PadShift,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    ToCHW,
    ToFloat,
    Transform,
)
from stepwell.windows import WindowReader
from stepwell.windows.plans import HeldArray

from .conftest import loader_threads
from .counting_codec import CountingCodec

FEATURES = {
    "number": stepwell.Array((), "int64"),
    "state": stepwell.Array(3, final=True),
    "image": stepwell.Image((4, 5, 3), codec="png", final=True),
    "counted": stepwell.Array(2, "int64", codec="counting"),
    "run": stepwell.Array(4, "int16", codec="running", final=True),
    "text": stepwell.Text(),
}
FIELDS = {
    "number": "number",
    "state": Field("state", [-2, 0, 1]),
    "states": Field("state", range(3), pad="zero"),
    "image": Field("image", [0, 1], pad="zero"),
    "past": Field("image", [-3, -1]),
    "counted": Field("counted", range(4)),
    "run": Field("run", [-1, 0, 2], pad="zero"),
    "text": "text",
    "step_index": "step_index",
}
# of a pool that holds a part of the steps, and of one that holds them all
POOLS = {"part": 12_000, "all": 1 << 20}


def values_of(episode: int, length: int) -> dict[str, Any]:
    number = 1000 * episode + np.arange(length + 1)
    return {
        "number": number[:-1],
        "state": np.stack([number, -number, number % 7], axis=1).astype(np.float32),
        "image": (number[:, None] * np.arange(1, 61) % 253).astype(np.uint8).reshape(-1, 4, 5, 3),
        "counted": np.stack([number, number], axis=1)[:-1],
        "run": (number[:, None] + np.arange(4)).astype(np.int16),
        "text": [f"step {n}" for n in number[:-1]],
    }


def make_store(path: Path, lengths: tuple[int, ...], first: int = 0) -> Store:
    store = stepwell.create(path, FEATURES, segment_bytes=6_000)
    with store.writer() as writer:
        for episode, length in enumerate(lengths, first):
            writer.add_episode(values_of(episode, length), terminated=True)
    store.refresh()
    return store


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """Two stores, of which episodes were deleted."""
    folder = tmp_path_factory.mktemp("pooled")
    one = make_store(folder / "one.well", (5, 31, 1, 12, 40, 3, 2))
    two = make_store(folder / "two.well", (26, 1, 17), first=100)
    one.delete_episodes([2, 3])
    one.refresh()
    return View([one, two])


def orders(num_anchors: int, seed: int = 3) -> dict[str, Order]:
    return {
        "sequential": sequential(),
        "random": random(seed),
        "weighted": weighted(steps=np.arange(1, num_anchors + 1), seed=seed),
        "mixed": mixed([1, 2], seed=seed),
        **{f"pooled {name}": pooled(num_bytes, seed=seed, blocks=8) for name, num_bytes in POOLS.items()},
    }


def check(batches: Any, reader: WindowReader, positions: np.ndarray) -> int:
    """Compare batches with plain reads of an order's positions; return how many rows there were."""
    start = 0
    for batch in batches:
        size = len(batch["number"])
        expected = reader.read(positions[start : start + size])
        assert list(batch) == list(expected)
        for key, value in expected.items():
            np.testing.assert_array_equal(batch[key], value, err_msg=key)
        start += size
    return start


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("name", sorted(orders(1)))
def test_batches_are_those_of_a_plain_read(view: View, name: str, threads: int, page_cache: bool) -> None:
    reader = WindowReader(view, FIELDS)
    order = orders(reader.index.num_anchors)[name]
    bound = order.bind(reader.index)
    loader = Loader(view, FIELDS, batch_size=16, order=order, threads=threads, page_cache=page_cache)
    for epoch in range(2):
        positions = bound.positions(epoch, 0, bound.num_positions)
        assert check(loader, reader, positions) == bound.num_positions


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
@pytest.mark.parametrize("threads", [0, 3])
def test_any_batch_size_does(view: View, batch_size: int, threads: int) -> None:
    reader = WindowReader(view, FIELDS)
    order = pooled(POOLS["part"], seed=1, blocks=8)
    positions = order.bind(reader.index).positions(0, 0, reader.index.num_anchors)
    loader = Loader(view, FIELDS, batch_size=batch_size, order=order, threads=threads)
    assert check(loader, reader, positions) == reader.index.num_anchors


@settings(max_examples=8, deadline=None)
@given(
    num_bytes=st.integers(2_500, 30_000),
    blocks=st.integers(4, 40),
    batch_size=st.integers(1, 80),
    threads=st.integers(0, 6),
    prefetch=st.integers(1, 4),
    world_size=st.integers(1, 3),
    ends=st.sampled_from([{}, {"pad": True}, {"drop_last": True}]),
)
def test_no_pool_is_too_small_for_any_batches_nor_gives_it_other_bytes(
    view: View, num_bytes: int, blocks: int, batch_size: int, threads: int, prefetch: int, world_size: int, ends: dict
) -> None:
    fields = {"number": "number", "counted": Field("counted", range(-1, 2)), "image": Field("image", [0, 2])}
    reader = WindowReader(view, fields)
    # an epoch without a batch is refused
    assume("drop_last" not in ends or batch_size * world_size <= reader.index.num_anchors)
    positions = {int(number): i for i, number in enumerate(reader.read(np.arange(reader.index.num_anchors))["number"])}
    for rank in range(world_size):
        loader = Loader(
            view,
            fields,
            batch_size=batch_size,
            order=pooled(num_bytes, blocks=blocks),
            threads=threads,
            prefetch=prefetch,
            rank=rank,
            world_size=world_size,
            epochs=2,
            **ends,
        )
        for batch in loader:
            expected = reader.read(np.array([positions[number] for number in batch["number"].tolist()]))
            for key, value in expected.items():
                np.testing.assert_array_equal(batch[key], value, err_msg=key)
        assert not loader_threads()


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("threads", [0, 2])
def test_windows_of_shared_overlapping_rows_are_right_where_the_pool_is_tiny(
    view: View, threads: int, page_cache: bool
) -> None:
    fields = {"number": "number", "counted": Field("counted", range(-4, 5)), "image": Field("image", [0])}
    reader = WindowReader(view, fields)
    order = pooled(4_000, seed=1, blocks=5)
    bound = order.bind(reader.index)
    assert bound.num_slots < len(bound.blocks)
    loader = Loader(view, fields, batch_size=9, order=order, threads=threads, page_cache=page_cache)
    for epoch in range(3):
        assert check(loader, reader, bound.positions(epoch, 0, bound.num_positions)) == bound.num_positions


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("epochs", [2, None])
def test_all_ranks_together_see_each_anchor_once_an_epoch(view: View, world_size: int, epochs: int | None) -> None:
    fields = {"number": "number", "counted": Field("counted", range(2))}
    order = pooled(POOLS["part"] // 6, seed=2, blocks=8)
    seen: list[int] = []
    for rank in range(world_size):
        loader = Loader(
            view, fields, batch_size=4, order=order, rank=rank, world_size=world_size, epochs=epochs, threads=2
        )
        num_rows = 2 * loader.num_positions
        batches = iter(loader)
        for batch in itertools.islice(batches, None if epochs else num_rows // (4 * world_size)):
            np.testing.assert_array_equal(batch["number"], batch["counted"][:, 0, 0])
            seen += batch["number"].tolist()
        batches.close()
    counts = np.unique(seen, return_counts=True)[1]
    assert len(counts) == loader.num_positions
    assert counts.sum() >= 2 * loader.num_positions - (0 if epochs else 4 * world_size)
    assert set(counts.tolist()) <= ({2} if epochs else {1, 2, 3})


@pytest.mark.parametrize("epochs", [2, None])
@pytest.mark.parametrize("taken", [0, 1, 6, 13, 14])
def test_a_state_resumes_at_the_exact_next_batch(view: View, taken: int, epochs: int | None) -> None:
    fields = {"number": "number", "counted": Field("counted", range(2))}

    def make(threads: int) -> Loader:
        order = pooled(POOLS["part"] // 6, seed=2, blocks=8)
        return Loader(view, fields, batch_size=10, order=order, epochs=epochs, threads=threads)

    expected = [batch["number"].tolist() for batch in itertools.islice(make(0), 20)]
    loader = make(3)
    batches = iter(loader)
    head = [next(batches)["number"].tolist() for _ in range(taken)]
    resumed = make(1)
    resumed.load_state_dict(loader.state_dict())
    rest = [batch["number"].tolist() for batch in itertools.islice(resumed, 20 - taken)]
    batches.close()
    assert head + rest == expected


@pytest.mark.parametrize("taken", [1, 3, 5])
def test_ranks_resume_in_mid_epoch_at_the_exact_next_batch(view: View, taken: int) -> None:
    fields = {"number": "number", "counted": Field("counted", range(2))}
    for rank in range(3):

        def make(threads: int, rank: int = rank) -> Loader:
            order = pooled(POOLS["part"] // 6, seed=2, blocks=8)
            return Loader(view, fields, batch_size=5, order=order, threads=threads, rank=rank, world_size=3, epochs=2)

        expected = [batch["number"].tolist() for batch in make(0)]
        loader = make(2)
        with iter(loader) as batches:
            head = [next(batches)["number"].tolist() for _ in range(taken)]
            resumed = make(5)
            resumed.load_state_dict(loader.state_dict())
        assert head + [batch["number"].tolist() for batch in resumed] == expected


@pytest.mark.parametrize("page_cache", [True, False])
def test_what_is_drawn_for_a_window_depends_neither_on_threads_nor_on_the_pool(view: View, page_cache: bool) -> None:
    fields = {
        "number": "number",
        "crop": Field("image", range(2), decoder=RandomCrop((2, 3))),
        "goal": Field("number", at="future"),
        "noisy": Field("number", transform=lambda values, draws: values + draws.uniform()),
    }

    def run(threads: int, num_bytes: int, batch_size: int = 8) -> dict[int, list]:
        loader = Loader(
            view,
            fields,
            batch_size=batch_size,
            order=pooled(num_bytes, blocks=8),
            threads=threads,
            page_cache=page_cache,
        )
        return {
            int(number): [batch[key][i].tolist() for key in ("crop", "goal", "noisy")]
            for batch in loader
            for i, number in enumerate(batch["number"])
        }

    expected = run(0, 3_000)
    assert run(5, 3_000) == expected
    assert run(2, 3_000, batch_size=13) == expected
    assert any(goal != number for number, (_, goal, _) in expected.items())


# what is done first is done of held rows where they lie, but where floats are made of them
CHAINS = {
    "floats": [ToFloat()],
    "crop": [RandomCrop((2, 5), key="crop")],
    "shift": [PadShift(1, key="shift"), RandomFlip(key="flip"), ToFloat(), ToCHW()],
    "resized": [RandomResizedCrop((3, 8), key="box"), ToFloat()],
    "signed": [Resize((3, 8), interpolation="lanczos"), ToCHW()],
    "as floats": [Resize((3, 8), interpolation="tf_bicubic"), ToFloat()],
}


@pytest.mark.parametrize(
    ("field", "num_bytes", "page_cache", "is_held"),
    [
        (Field("image", range(2)), 20_000, True, True),
        ("image", 20_000, False, True),
        # of the whole store, what one epoch decoded the next one needs
        ("image", 1 << 20, True, True),
        ("image", 4_000, True, False),
        (Field("image", [3]), 4_000, True, False),
        ("number", 4_000, True, False),
    ],
)
def test_rows_are_held_where_that_saves_anything(
    view: View, field: Any, num_bytes: int, page_cache: bool, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[BlockPool] = []
    monkeypatch.setattr("stepwell.loader.loader.BlockPool", lambda *each: pools.append(BlockPool(*each)) or pools[-1])
    fields = {"number": "number", "shown": field}
    order = pooled(num_bytes, blocks=8)
    loader = Loader(view, fields, batch_size=16, order=order, threads=2, page_cache=page_cache)
    reader = WindowReader(view, fields)
    positions = order.bind(reader.index).positions(0, 0, reader.index.num_anchors)
    assert check(loader, reader, positions) == reader.index.num_anchors
    assert bool(pools) == is_held


def test_rows_are_held_where_there_are_more_files_than_maps(tmp_path: Path) -> None:
    feature = stepwell.Array((100,), "uint8", codec="zstd")
    store = stepwell.create(tmp_path / "a.well", {"value": feature}, segment_bytes=500)
    with store.writer() as writer:
        for number in range(60):
            writer.add_episode({"value": np.full((10, 100), number, np.uint8)})
    store.refresh()
    order = pooled(20_000, blocks=8)
    for max_maps, is_held in ((1000, False), (40, True)):
        reader = WindowReader(View(store), {"value": "value"}, max_maps=max_maps)
        bound = order.bind(reader.index)
        assert len(bound.blocks) > 2 * bound.num_slots
        assert _pays(bound, reader, 1) == is_held


class Same(Transform):
    """Nothing, of an array."""

    def __call__(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        return values


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Store:
    features = {
        "image": stepwell.Image((6, 7, 3), codec="png", final=True),
        "grey": stepwell.Image((6, 7), codec="zstd"),
        "stack": stepwell.Array((2, 6, 7, 3), "uint8", codec="zstd"),
    }
    store = stepwell.create(tmp_path_factory.mktemp("pictures") / "a.well", features, segment_bytes=6_000)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for length in (5, 31, 1, 12, 40):
            rows = {
                name: rng.integers(0, 256, (length + feature.final, *feature.shape), np.uint8)
                for name, feature in features.items()
            }
            writer.add_episode(rows)
    store.refresh()
    return store


def test_rows_that_are_left_where_they_are_are_no_array() -> None:
    rows = HeldArray(np.zeros((2, 3), np.int64), (4, 5, 3))
    assert (rows.shape, rows.strides) == ((2, 3, 4, 5, 3), np.empty((2, 3, 4, 5, 3), np.uint8).strides)
    with pytest.raises(WindowError, match="were taken for an array"):
        np.ascontiguousarray(rows, np.float32)


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("chain", CHAINS)
def test_rows_that_transforms_take_where_they_lie_make_what_copies_make(
    pictures: Store, chain: str, page_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[HeldArray] = []
    parts = HeldArray.parts
    monkeypatch.setattr(HeldArray, "parts", lambda rows, shape: left.append(rows) or parts(rows, shape))

    def fields(first: list[Any]) -> dict[str, Any]:
        transforms = [*first, *CHAINS[chain]]
        return {
            "step_index": "step_index",
            "image": Field("image", [-2, 0, 1], transform=transforms),
            "zeros": Field("image", [-3, 1], pad="zero", transform=transforms),
            "now": Field("image", transform=transforms),
            "grey": Field("grey", range(2), transform=transforms),
            "stack": Field("stack", [0, 2], transform=transforms),
            "as it is": Field("image", range(2)),
            "future": Field("image", at="future", transform=transforms),
        }

    def run(first: list[Any], num_bytes: int, threads: int) -> list[dict[str, Any]]:
        order = pooled(num_bytes, blocks=8)
        return list(Loader(pictures, fields(first), batch_size=8, order=order, threads=threads, page_cache=page_cache))

    expected = {num_bytes: run([Same()], num_bytes, 0) for num_bytes in (20_000, 1 << 20)}
    assert not left
    for num_bytes, threads in ((20_000, 0), (20_000, 3), (1 << 20, 2)):
        batches = run([], num_bytes, threads)
        for batch, wanted in zip(batches, expected[num_bytes], strict=True):
            assert list(batch) == list(wanted)
            for key, value in wanted.items():
                np.testing.assert_array_equal(batch[key], value, err_msg=key)
    assert bool(left) == (chain != "as floats")


@pytest.mark.parametrize(
    "first", [ToFloat(scale=1), RandomFlip(p=1), RandomFlip(p=1, vertical=True), ToCHW()], ids=repr
)
@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        # of several rows together one image, by the rule of the last axes
        ((20, 10), range(3)),
        ((128,), range(4)),
        ((16, 3), [-2, 0]),
        ((8, 8, 5), range(2)),
        # smaller than an address
        ((2, 2), [0, 1]),
        ((4,), range(4)),
        ((2, 3), 0),
        ((2, 4), 0),
    ],
)
def test_rows_that_hold_no_image_of_their_own_are_transformed_like_copies(
    shape: tuple[int, ...], offsets: Any, first: Transform, tmp_path: Path
) -> None:
    feature = stepwell.Array(shape, "uint8", codec="zstd")
    store = stepwell.create(tmp_path / "a.well", {"value": feature}, segment_bytes=6_000)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for length in (5, 31, 1, 12):
            writer.add_episode({"value": rng.integers(0, 256, (length, *shape), np.uint8)})
    store.refresh()

    def run(transforms: list[Any]) -> list[dict[str, Any]]:
        fields = {"value": Field("value", offsets, transform=transforms)}
        return list(Loader(store, fields, batch_size=8, order=pooled(1 << 20), threads=0))

    for batch, wanted in zip(run([first]), run([Same(), first]), strict=True):
        np.testing.assert_array_equal(batch["value"], wanted["value"])


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_live_store_is_read_as_far_as_it_was_when_it_was_opened(tmp_path: Path, page_cache: bool) -> None:
    store = stepwell.create(tmp_path / "live.well", FEATURES)
    fields = {"number": "number", "image": Field("image", [-1, 0]), "state": Field("state", [0, 1])}
    with store.writer() as writer:
        writer.add_episode(values_of(0, 20), terminated=True)
        for episode in (1, 2):
            values = values_of(episode, 30)
            for step in range(25):
                writer.append({name: value[step] for name, value in values.items()})
            store.refresh()
            order = pooled(3_000, blocks=6)
            loader = Loader(store, fields, batch_size=7, order=order, threads=2, page_cache=page_cache)
            reader = WindowReader(View(store), fields)
            positions = order.bind(reader.index).positions(0, 0, reader.index.num_anchors)
            assert check(loader, reader, positions) == len(positions) >= 20 + 24 * episode
            writer.end_episode(truncated=True)


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_an_epoch_decodes_each_row_once_and_those_at_a_blocks_end_for_both(view: View, threads: int) -> None:
    fields = {"number": "number", "counted": Field("counted", range(4))}
    order = pooled(2_400, blocks=8)
    reader = WindowReader(view, fields)
    bound = order.bind(reader.index)
    assert bound.num_slots < len(bound.blocks)
    loader = Loader(view, fields, batch_size=8, order=order, threads=threads)
    CountingCodec.counts.clear()
    for batch in loader:
        del batch
    counts = dict(CountingCodec.counts)
    CountingCodec.counts.clear()
    for piece in bound.blocks.pieces:
        reader.row_loader.load(piece, np.zeros(int(reader.row_loader.num_bytes(piece[None])[0]), np.uint8))
    assert counts == dict(CountingCodec.counts)
    # a block takes along at most the three rows that its last windows reach
    num_steps = int(view.column("length").sum())
    assert len(counts) == num_steps
    assert sum(counts.values()) <= num_steps + 3 * len(bound.blocks)
    assert max(counts.values()) <= 2


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_what_fits_the_pool_is_decoded_once_for_all_epochs(view: View, threads: int) -> None:
    fields = {"number": "number", "counted": Field("counted", range(1))}
    loader = Loader(view, fields, batch_size=8, order=pooled(1 << 16, blocks=8), threads=threads, epochs=2)
    CountingCodec.counts.clear()
    for _ in range(3):
        for batch in loader:
            del batch
    assert sorted(CountingCodec.counts.values()) == [1] * int(view.column("length").sum())


def test_a_loop_that_was_left_leaves_what_was_decoded(view: View) -> None:
    fields = {"number": "number", "counted": Field("counted", range(1))}
    loader = Loader(view, fields, batch_size=8, order=pooled(1 << 16, blocks=8), threads=2)
    CountingCodec.counts.clear()
    for _ in range(3):
        next(iter(loader))
    for batch in loader:
        del batch
    assert sorted(CountingCodec.counts.values()) == [1] * int(view.column("length").sum())


def test_two_iterations_at_a_time_do_not_disturb_each_other(view: View) -> None:
    fields = {"number": "number", "counted": Field("counted", range(3))}
    loader = Loader(view, fields, batch_size=8, order=pooled(1_600, blocks=8), threads=2)
    reader = WindowReader(view, fields)
    bound = loader.order.bind(reader.index)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    for epoch, batches in enumerate(zip(*pairs, strict=True)):
        assert check(batches, reader, bound.positions(0, 0, bound.num_positions)) == bound.num_positions, epoch
