"""Maps: made on first touch, bounded in number, announced when files do not fit in memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Schema, View
from stepwell.windows import WindowReader

FIELDS = {"observation": [-1, 0, 1], "image": [0, 3], "words": None, "points": [0]}
NAMES = ("observation", "image", "words", "points")


@pytest.fixture(scope="module")
def store(make_store):
    """Twelve segments of seven maps each."""
    return make_store([3, 5, 4] * 4, NAMES, per_segment=1)


def all_of(reader):
    return reader.read(np.arange(reader.index.num_anchors))


def same(a, b):
    return list(a) == list(b) and all(
        all(np.array_equal(x, y) for x, y in zip(a[key].flat, b[key].flat, strict=True))
        if a[key].dtype == object
        else np.array_equal(a[key], b[key])
        for key in a
    )


def num_maps(path: Path) -> int:
    """Maps of files under ``path`` in this process."""
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_only_segments_that_are_read_are_mapped(store):
    reader = WindowReader(View(store), FIELDS)
    before = num_maps(store.path)
    reader.read([0, 1])
    assert num_maps(store.path) == before + 7
    reader.read([2, 0])
    assert num_maps(store.path) == before + 7
    del reader
    gc.collect()
    assert num_maps(store.path) == before


@pytest.mark.parametrize("max_maps", [1, 7, 21, 50])
def test_maps_stay_bounded_and_batches_right(store, max_maps):
    expected = all_of(WindowReader(View(store), FIELDS))
    gc.collect()
    before = num_maps(store.path)
    reader = WindowReader(View(store), FIELDS, max_maps=max_maps)
    for position in np.random.default_rng(1).integers(0, reader.index.num_anchors, 60).tolist():
        batch = reader.read([position])
        assert all(
            np.array_equal(batch[key][0], expected[key][position])
            if batch[key].dtype != object
            else all(
                np.array_equal(a, b)
                for a, b in zip(batch[key][:1].flat, expected[key][position : position + 1].flat, strict=True)
            )
            for key in batch
        )
        assert num_maps(store.path) - before <= max(7, max_maps)


def test_least_recently_read_segments_are_let_go(store):
    reader = WindowReader(View(store), {"observation": None}, max_maps=4)
    starts = reader.index.anchor_starts
    for episode in (0, 1, 2, 3, 0):
        reader.read([starts[episode]])
    reader.read([starts[4]])
    assert np.flatnonzero(reader.maps.table.is_mapped).tolist() == [0, 3, 4]


def test_a_batch_may_need_more_maps_than_are_kept(store):
    assert same(all_of(WindowReader(View(store), FIELDS, max_maps=1)), all_of(WindowReader(View(store), FIELDS)))


def test_files_that_do_not_fit_in_memory_are_announced_and_read_the_same(store):
    small = WindowReader(View(store), FIELDS, memory_bytes=1000)
    assert small.maps.is_announcing
    large = WindowReader(View(store), FIELDS, memory_bytes=1 << 40)
    assert not large.maps.is_announcing
    assert same(all_of(small), all_of(large))


def test_every_byte_of_a_batch_is_announced_before_it_is_read(store, monkeypatch):
    import stepwell.kernels.spans as kernel

    announced = []
    monkeypatch.setattr(kernel, "announce", lambda addresses, sizes: announced.append((addresses.copy(), sizes.copy())))
    reader = WindowReader(View(store), {"observation": [-2, -1, 1], "image": [1]}, memory_bytes=0)
    reader.read([4])
    # anchor 1 of episode 1: rows 0 (clamped) and 2 of the observation, row 2 of the image
    table, segment = reader.maps.table, 1
    runs = [(int(a[0]) - int(table.addresses[0, segment]), int(s[0])) for a, s in announced[:2]]
    assert runs == [(0, 12), (24, 12)]
    offsets = table.arrays[segment][2]
    assert int(announced[2][0][0]) == table.addresses[3, segment] + int(offsets[2])
    assert int(announced[2][1][0]) == int(offsets[3] - offsets[2])


def test_refresh_keeps_the_maps_of_what_did_not_grow(tmp_path):
    live = stepwell.create(tmp_path / "live.well", Schema({"x": Array(2, "int64")}))
    with live.writer() as writer:
        writer.add_episode({"x": np.arange(20).reshape(10, 2)})
    live.refresh()
    with live.writer() as writer:
        writer.append(x=np.array([7, 7]))
        reader = WindowReader(View(live), {"x": None}).refresh()
        all_of(reader)
        kept = [arrays[0] for arrays in reader.maps.table.arrays]
        for t in range(5000):
            writer.append(x=np.array([t, t]))
        after = reader.refresh()
        batch = all_of(after)["x"]
        assert batch[-1].tolist() == [4999, 4999]
        assert len(batch) == 5011
        assert after.maps.table.arrays[0][0] is kept[0]
        assert after.maps.table.arrays[1][0] is not kept[1]
        assert all_of(reader)["x"][-1].tolist() == [7, 7]


def test_refresh_without_a_change_is_the_same_reader(store):
    reader = WindowReader(View(store).select([0, 2]), {"observation": None})
    assert reader.refresh() is reader


def test_a_segment_that_was_sealed_and_renamed_is_still_found(tmp_path):
    live = stepwell.create(tmp_path / "live.well", Schema({"x": Array((), "int64")}))
    with live.writer() as writer:
        writer.append(x=1)
        reader = WindowReader(View(live), {"x": None}).refresh()
        writer.append(x=2)
        writer.end_episode()
    assert all_of(reader)["x"].tolist() == [1]
    assert all_of(reader.refresh())["x"].tolist() == [1, 2]


def test_child_of_a_fork_reads_though_the_lock_was_held(store):
    reader = WindowReader(View(store), {"observation": None})
    expected = all_of(reader)["observation"]
    fresh = WindowReader(View(store), {"observation": None})
    with fresh.maps._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if np.array_equal(all_of(fresh)["observation"], expected) else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
