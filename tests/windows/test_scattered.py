"""Batches over more files than may be mapped: the same bytes, the same errors, no map and no descriptor more."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Field, LoaderError, View, WindowError
from stepwell.windows import WindowReader
from stepwell.windows import maps as windows_maps

LENGTHS = (1, 6, 2, 9, 4, 3, 3, 7, 5, 2, 8, 4)


@pytest.fixture(scope="module")
def stores(make_store):
    finals = [i % 3 == 0 for i in range(len(LENGTHS))]
    return [make_store(LENGTHS, finals=finals, per_segment=1), make_store(LENGTHS[:5], per_segment=2, first=50)]


FIELDS = st.dictionaries(
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
@given(fields=FIELDS, several=st.booleans(), max_maps=st.integers(1, 12), seed=st.integers(0, 99))
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
