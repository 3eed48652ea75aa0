"""Maps: made on first touch, bounded in number, announced when files do not fit in memory."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Field, LoaderError, Schema, View, WindowError
from stepwell.windows import WindowReader
from stepwell.windows import maps as windows_maps

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


LENGTHS = (1, 6, 2, 9, 4, 3, 3, 7, 5, 2, 8, 4)


@pytest.fixture(scope="module")
def stores(make_store):
    finals = [i % 3 == 0 for i in range(len(LENGTHS))]
    return [make_store(LENGTHS, finals=finals, per_segment=1), make_store(LENGTHS[:5], per_segment=2, first=50)]


FIELDS_SCATTERED = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(
        Field,
        st.sampled_from(["observation", "action", "reward"]),
        st.one_of(st.integers(-3, 3), st.lists(st.integers(-5, 5), min_size=1, max_size=4, unique=True)),
        pad=st.sampled_from(["edge", "zero", "drop"]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=FIELDS_SCATTERED, several=st.booleans(), max_maps=st.integers(1, 12), seed=st.integers(0, 99))
def test_batches_are_the_same_however_few_files_may_be_mapped(stores, fields, several, max_maps, seed):
    view = View(stores if several else stores[0])
    try:
        plain = WindowReader(view, fields)
    except WindowError:
        return
    few = WindowReader(view, fields, max_maps=max_maps)
    random = np.random.default_rng(seed)
    for size in (1, 7, 40):
        positions = random.integers(plain.index.num_anchors, size=size)
        expected, found = plain.read(positions), few.read(positions)
        assert expected.keys() == found.keys()
        for key in expected:
            np.testing.assert_array_equal(found[key], expected[key])


def segments_of(tmp_path: Path, count: int) -> stepwell.Store:
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array((), "int64"), "y": stepwell.Array(3)})
    for number in range(count):
        with store.writer() as writer:
            writer.add_episode({"x": np.arange(4) + 10 * number, "y": np.full((4, 3), number, np.float32)})
    return stepwell.open(store.path, mode="r")


def test_scattered_rows_are_read_without_a_map_and_descriptors_are_closed(tmp_path):
    store = segments_of(tmp_path, 12)
    reader = WindowReader(View(store), {"x": [0, 1], "y": None}, max_maps=8)
    before = len(list(Path("/proc/self/fd").iterdir()))
    batch = reader.read(np.arange(12) * 4 + 3)
    assert batch["x"].tolist() == [[10 * n + 3] * 2 for n in range(12)]
    assert batch["x_is_pad"].tolist() == [[False, True]] * 12
    assert batch["y"][:, 0].tolist() == list(range(12))
    assert reader.maps.table.num_mapped == 0
    # a segment that is visited often is mapped
    assert reader.read([8, 9, 10, 11])["x"][:, 0].tolist() == [20, 21, 22, 23]
    assert reader.maps.table.num_mapped == 1
    assert reader.read([11, 40, 44])["x"][:, 0].tolist() == [23, 100, 110]
    assert reader.maps.table.num_mapped == 1
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


@pytest.mark.parametrize("damage", ["gone", "missing", "cut", "empty"])
@pytest.mark.parametrize("is_known", [False, True])
def test_what_cannot_be_read_is_the_error_that_a_map_would_be(tmp_path, damage, is_known):
    store = segments_of(tmp_path, 6)
    scattered = WindowReader(View(store), {"x": [0, 1]}, max_maps=2)
    if is_known:
        scattered.read(np.arange(6) * 4)
    mapped = WindowReader(View(store), {"x": [0, 1]})
    directory = store.segments[3].path
    file = directory / "x.npy"
    if damage == "gone":
        shutil.rmtree(directory)
    elif damage in ("cut", "empty"):
        file.write_bytes(file.read_bytes()[: -24 if damage == "cut" else 0])
    else:
        file.unlink()
    errors = []
    for reader in (scattered, mapped):
        with pytest.raises(LoaderError) as caught:
            reader.read([1, 14, 22])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert scattered.read([1, 10, 22])["x"][:, 0].tolist() == [1, 22, 52]


@pytest.mark.parametrize(
    ("told", "expected"), [("65530\n", 21843), ("1048576\n", 349525), ("100", 20_000), ("?", 20_000)]
)
def test_a_third_of_the_maps_that_the_system_allows_are_for_a_reader(monkeypatch, told, expected):
    monkeypatch.setattr(windows_maps.Path, "read_text", lambda path: told)
    assert windows_maps._max_maps() == expected
