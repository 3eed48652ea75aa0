import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

import stepwell
from stepwell.codecs import make_codec
from stepwell.errors import CorruptSegmentError, SchemaError
from stepwell.schema import Array, Bytes, Image, Schema, Text
from stepwell.store.decode import StoredRows
from stepwell.store.episodes import EPISODE_DTYPE, EpisodeTable
from stepwell.store.statistics import (
    EpisodeSelection,
    FeatureStatistics,
    aggregate,
    column_statistics,
    has_statistics,
    load_statistics,
    merge_all,
    sample_rows,
    segment_statistics,
    stream_statistics,
    write_statistics,
)

REAL_DTYPES = ("bool", "int8", "uint8", "int16", ">i4", "int64", "uint64", "float16", "float32", ">f8", "float64")


def assert_same(found, expected, rtol=1e-12):
    for name in ("count", "num_nan", "num_inf", "min", "max"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    scale = np.abs(np.nan_to_num(expected.mean)) + np.nan_to_num(expected.std)
    for name in ("mean", "std"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=name)
        assert np.all(np.nan_to_num(np.abs(a - b)) <= rtol * scale), name


def random_column(dtype, shape, size, rng):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.normal(3, 20, (size, *shape)).astype(dtype)
    high = 2 if dtype.kind == "b" else min(np.iinfo(dtype).max, 10_000)
    return rng.integers(0, high, (size, *shape), endpoint=dtype.kind != "b").astype(dtype)


@pytest.mark.parametrize("dtype", REAL_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_statistics_of_a_column_equal_numpy_in_float64(dtype, shape):
    column = random_column(dtype, shape, 200, np.random.default_rng(0))
    found = column_statistics(column, Array(shape, dtype))
    exact = column.astype(np.float64)
    assert found.shape == shape
    np.testing.assert_array_equal(found.count, np.full(shape, 200))
    np.testing.assert_array_equal(found.min, exact.min(0))
    np.testing.assert_array_equal(found.max, exact.max(0))
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found.std, exact.std(0), rtol=1e-13)
    for name, fraction in {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}.items():
        np.testing.assert_allclose(found.quantiles[name], np.quantile(exact, fraction, axis=0), rtol=1e-12, atol=1e-12)


def test_sums_of_small_types_do_not_overflow():
    pixels = np.full((300, 200), 250, np.uint8)
    pixels[:, ::2] = 240
    found = column_statistics(pixels.reshape(-1), Array((), "uint8"))
    assert (found.mean, found.std) == (245.0, 5.0)
    halves = np.full(100_000, 60_000, np.float16)
    assert column_statistics(halves, Array((), "float16")).mean == float(halves[0])


def test_huge_tiny_and_shifted_values_keep_their_precision():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=150_000)
    for scale, shift in [(1e307, 0), (1e-300, 0), (1.0, 1e9), (1e-3, -1e6)]:
        found = column_statistics(noise * scale + shift, Array((), "float64"))
        expected = np.std((noise * scale + shift - shift) / scale, dtype=np.longdouble) * scale
        assert abs(found.std - expected) <= 1e-9 * expected
        assert abs(found.mean - (np.mean(noise, dtype=np.longdouble) * scale + shift)) <= 1e-12 * (abs(shift) + scale)


def test_a_constant_has_no_spread():
    found = column_statistics(np.full(200_000, 0.1), Array((), "float64"))
    assert (found.min, found.max, found.mean, found.std) == (0.1, 0.1, 0.1, 0.0)
    for sizes in ([7], [1, 2], [3, 3, 5], [1, 10, 100], [7, 11, 13, 17]):
        parts = [column_statistics(np.full(size, 0.1), Array((), "float64")) for size in sizes]
        merged = merge_all([found, *parts])
        assert (merged.mean, merged.std, merged.quantile(0.3)) == (0.1, 0.0, 0.1)


@pytest.mark.parametrize("scale", [1e307, 1e-300])
def test_parts_of_huge_and_tiny_values_are_merged(scale):
    noise = np.random.default_rng(0).normal(size=3000)
    feature = Array((), "float64")
    merged = merge_all([column_statistics(part * scale, feature) for part in np.split(noise, 3)])
    assert_same(merged, column_statistics(noise * scale, feature))
    np.testing.assert_allclose(merged.std, noise.std() * scale, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_nan_and_infinities_are_counted_apart(dtype):
    column = np.array([[1, np.nan], [np.inf, np.nan], [-np.inf, np.nan], [3, np.nan], [np.nan, np.nan]], dtype)
    found = column_statistics(column, Array(2, dtype))
    assert found.count.tolist() == [2, 0]
    assert found.num_nan.tolist() == [1, 5]
    assert found.num_inf.tolist() == [2, 0]
    assert (found.min[0], found.max[0], found.mean[0], found.std[0], found.quantile(0.5)[0]) == (1, 3, 2, 1, 2)
    assert np.isnan([found.min[1], found.max[1], found.mean[1], found.std[1], found.quantile(0.5)[1]]).all()


def test_images_are_counted_by_channel_and_large_steps_as_one():
    frames = np.random.default_rng(0).integers(0, 256, (5, 20, 16, 3)).astype(np.uint8)
    by_channel = column_statistics(frames, Image((20, 16, 3)))
    assert by_channel.shape == (3,)
    np.testing.assert_array_equal(by_channel.count, [5 * 20 * 16] * 3)
    np.testing.assert_allclose(by_channel.mean, frames.mean((0, 1, 2)), rtol=1e-13)
    assert column_statistics(frames[..., 0], Image((20, 16))).shape == ()
    large = column_statistics(frames, Array((20, 16, 3), "uint8"))
    assert (large.shape, large.count) == ((), frames.size)
    assert column_statistics(frames[:, :16, :, 0], Array((16, 16), "uint8")).shape == (16, 16)


def test_at_most_256_evenly_spaced_frames_are_counted_and_it_is_said():
    frames = np.repeat(np.arange(1000) % 200, 16 * 16).reshape(1000, 16, 16).astype(np.uint8)
    found = column_statistics(frames, Image((16, 16)))
    assert found.is_sampled
    assert found.count == 256 * 16 * 16
    assert found.to_json()["sampled"] is True
    rows = sample_rows(Image((16, 16)), 1000)
    assert (rows[0], rows[-1], len(np.unique(rows))) == (0, 999, 256)
    assert set(np.diff(rows)) <= {3, 4}
    assert sample_rows(Image((16, 16)), 256) is None
    assert sample_rows(Array(256), 10**9) is None
    assert len(sample_rows(Image((4000, 4000, 3)), 1000)) == 32
    assert len(sample_rows(Image((256, 256, 3), codec="jpeg"), 1000)) == 42


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
def test_bytes_of_a_stream_count_as_those_of_a_column(dtype: str):
    rows = np.random.default_rng(3).integers(0, 256, (700, 5, 3)).astype(np.uint8)
    rows = rows < 128 if dtype == "bool" else rows.view(dtype)
    streamed = stream_statistics(iter(rows), Array((5, 3), dtype))
    assert_same(streamed, column_statistics(rows, Array((5, 3), dtype)))
    np.testing.assert_allclose(streamed.mean, rows.mean(0), rtol=1e-12)
    assert streamed.min.tolist() == rows.min(0).astype(float).tolist()


def test_only_chosen_rows_are_counted():
    column = np.arange(20_000.0).reshape(-1, 2)
    mask = np.random.default_rng(0).random(10_000) < 0.3
    found = column_statistics(column, Array(2, "float64"), mask=mask)
    expected = column_statistics(column[mask], Array(2, "float64"))
    assert_same(found, expected)
    frames = np.arange(2000).reshape(1000, 2, 1).repeat(20, 2).astype(np.uint16)
    only = np.arange(1000) >= 990
    assert column_statistics(frames, Image((2, 20), "uint16"), mask=only).min == 1980


def test_blocks_do_not_change_the_result(monkeypatch):
    column = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    whole = column_statistics(column, Array(3))
    monkeypatch.setattr("stepwell.store.statistics.BLOCK_VALUES", 1000)
    monkeypatch.setattr("stepwell.store.statistics.CHUNK_VALUES", 100)
    blocked = column_statistics(column, Array(3))
    assert_same(blocked, whole)
    ranks = np.array([np.searchsorted(np.sort(column[:, i]), blocked.quantile(0.5)[i]) for i in range(3)])
    assert np.all(np.abs(ranks - 2499.5) <= 0.0093 * 5000 + 1)


def test_an_empty_column_has_no_values():
    found = column_statistics(np.empty((0, 2), np.float32), Array(2))
    assert found.count.tolist() == [0, 0]
    assert found.to_json()["mean"] == [None, None]
    assert_same(merge_all([found, found]), found)


def test_text_complex_dates_and_records_have_no_statistics():
    without = (
        Text(),
        Bytes(),
        Array((), "complex64"),
        Array((), "datetime64[ns]"),
        Array((), [("a", "f4")]),
    )
    assert not any(has_statistics(feature) for feature in without)
    assert all(has_statistics(Array((2,), dtype)) for dtype in REAL_DTYPES)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), min_size=2, max_size=6), st.sampled_from(REAL_DTYPES))
def test_merged_statistics_are_those_of_the_whole(seed, sizes, dtype):
    rng = np.random.default_rng(seed)
    parts = [random_column(dtype, (2,), size, rng) for size in sizes]
    if np.dtype(dtype).kind == "f":
        for part in parts:
            part[rng.random(part.shape) < 0.1] = np.nan
            part[rng.random(part.shape) < 0.1] = np.inf
    feature = Array(2, dtype)
    whole = column_statistics(np.concatenate(parts), feature)
    pieces = [column_statistics(part, feature) for part in parts]
    left = pieces[0]
    for piece in pieces[1:]:
        left = merge_all([left, piece])
    right = pieces[-1]
    for piece in pieces[-2::-1]:
        right = merge_all([piece, right])
    for found in (left, right, merge_all(pieces)):
        assert_same(found, whole)
        # at most 240 values: exact
        for name, value in whole.quantiles.items():
            np.testing.assert_allclose(found.quantiles[name], value, rtol=1e-12, atol=1e-12)


def test_many_parts_are_merged_a_few_at_a_time():
    column = np.random.default_rng(0).normal(size=(3000, 1))
    parts = (column_statistics(part, Array(1, "float64")) for part in np.split(column, 300))
    assert_same(merge_all(parts), column_statistics(column, Array(1, "float64")))
    with pytest.raises(ValueError, match="no statistics"):
        merge_all([])


def test_statistics_of_different_shapes_are_not_merged():
    with pytest.raises(SchemaError, match=r"\(2,\)"):
        merge_all([FeatureStatistics.empty((2,)), FeatureStatistics.empty(())])


def test_statistics_survive_pickle_arrays_and_json():
    column = np.random.default_rng(0).normal(size=(1000, 2, 2))
    column[0, 0, 0] = np.nan
    found = column_statistics(column, Array((2, 2), "float64"))
    for copy in (pickle.loads(pickle.dumps(found)), FeatureStatistics.from_arrays(found.to_arrays())):
        assert_same(copy, found, rtol=0)
        np.testing.assert_array_equal(copy.quantile(0.37), found.quantile(0.37))
        assert copy.is_sampled == found.is_sampled
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["count"] == [[999, 1000], [1000, 1000]]
    assert np.array(record["q10"]).shape == (2, 2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.quantile(1.5)


def test_decoded_steps_may_come_in_a_reused_buffer():
    frames = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3)).astype(np.uint8)
    buffer = np.empty_like(frames[0])

    def decode():
        for frame in frames:
            buffer[:] = frame
            yield buffer

    assert_same(stream_statistics(decode(), Image((16, 16, 3))), column_statistics(frames, Image((16, 16, 3))))


@dataclass
class FakeSegment:
    """What statistics need of a Segment, with the columns in memory."""

    path: Path
    episodes: np.ndarray
    columns: dict
    is_sealed: bool = True

    @property
    def num_rows(self):
        return int(self.episodes["rows"].sum())

    def raw_map(self, name):
        return np.ascontiguousarray(self.columns[name]).reshape(-1).view(np.uint8)

    def stored_rows(self, name):
        offsets = np.cumsum([0, *map(len, self.columns[name])]).astype(np.uint64)
        blobs = np.frombuffer(b"".join(self.columns[name]), np.uint8)
        return StoredRows(name, make_codec(SCHEMA[name]), offsets, blobs, self.num_rows)


def episode_records(lengths, finals, discarded=()):
    records = np.zeros(len(lengths), EPISODE_DTYPE)
    records["length"] = lengths
    records["rows"] = np.add(lengths, finals)
    records["start"] = np.cumsum(records["rows"]) - records["rows"]
    records["discarded"][list(discarded)] = True
    return records


SCHEMA = Schema(
    {
        "observation": Array(2, "float64", final=True),
        "action": Array((), "float32"),
        "depth": Array((3, 4), "uint16", codec="zstd"),
        "points": Array((None, 3), "float32"),
        "task": Text(),
    }
)


def make_segment(path, seed, lengths, finals, discarded=()):
    path.mkdir()
    rng = np.random.default_rng(seed)
    episodes = episode_records(lengths, finals, discarded)
    rows = int(episodes["rows"].sum())
    values = {
        "observation": rng.normal(size=(rows, 2)),
        "action": rng.normal(size=rows).astype(np.float32),
        "depth": rng.integers(0, 9000, (rows, 3, 4)).astype(np.uint16),
        "points": [rng.normal(size=(rng.integers(0, 5), 3)).astype(np.float32) for _ in range(rows)],
    }
    final = np.zeros(rows, bool)
    final[(episodes["start"] + episodes["length"])[np.array(finals, bool)]] = True
    values["action"][final] = 1e9
    encoded = {name: make_codec(SCHEMA[name]).encode for name in ("depth", "points")}
    columns = {"observation": values["observation"], "action": values["action"]}
    for name, encode in encoded.items():
        columns[name] = [b"" if final[row] else encode(values[name][row]) for row in range(rows)]
    return FakeSegment(path, episodes, columns), values, final


def rows_of(episodes, key):
    return np.concatenate([np.arange(e["start"], e["start"] + e[key]) for e in episodes])


def test_final_rows_count_only_for_features_that_have_them(tmp_path):
    segment, values, final = make_segment(tmp_path / "a", 0, [5, 3, 4], [1, 0, 1])
    found = segment_statistics(segment, SCHEMA)
    assert list(found) == ["observation", "action", "depth", "points"]
    assert_same(found["observation"], column_statistics(values["observation"], SCHEMA["observation"]))
    assert_same(found["action"], column_statistics(values["action"][~final], SCHEMA["action"]))
    assert found["action"].max < 1e9
    assert_same(found["depth"], column_statistics(values["depth"][~final], Array((3, 4), "uint16")))
    points = np.concatenate([rows for row, rows in enumerate(values["points"]) if not final[row]])
    assert_same(found["points"], column_statistics(points, Array(3)))


def test_discarded_episodes_are_not_counted(tmp_path):
    segment, values, _ = make_segment(tmp_path / "a", 0, [5, 3, 4], [1, 0, 1], discarded=[1])
    kept = np.r_[0:6, 9:14]
    found = segment_statistics(segment, SCHEMA, ["observation"])
    assert_same(found["observation"], column_statistics(values["observation"][kept], SCHEMA["observation"]))


def table_of(segments, keep):
    parts = [segment.episodes[list(indices)] for segment, indices in zip(segments, keep, strict=True)]
    records = np.concatenate(parts)
    names = ("start", "length", "rows", "origin", "time_ns", "terminated", "truncated", "interrupted")
    columns = {name: records[name] for name in names}
    segment = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    rest = {
        "is_open": np.zeros(len(records), bool),
        "skipped": np.zeros(len(records), np.int64),
        "goes_on": np.zeros(len(records), bool),
        "record": np.concatenate([np.array(k, np.int64) for k in keep]),
    }
    return EpisodeTable(segment=segment, **columns, **rest, read_metadata=lambda segment, record: {})


def test_a_selection_merges_whole_segments_and_reads_the_others(tmp_path):
    made = [make_segment(tmp_path / str(i), i, [5, 3, 4], [1, 0, 1]) for i in range(3)]
    segments = [segment for segment, _, _ in made]
    for segment in segments:
        write_statistics(segment.path, segment_statistics(segment, SCHEMA))
    segments[1].columns = {}  # whole and sealed: must not be read
    keep = [[0, 2], [0, 1, 2], [1]]
    found = aggregate([EpisodeSelection(SCHEMA, segments, table_of(segments, keep).take(np.array([5, 0, 3, 4, 1, 2])))])
    for name, key in [("observation", "rows"), ("action", "length"), ("depth", "length")]:
        chosen = [
            values[name][rows_of(segment.episodes[k], key)] for (segment, values, _), k in zip(made, keep, strict=True)
        ]
        assert_same(
            found[name], column_statistics(np.concatenate(chosen), Array(SCHEMA[name].shape, SCHEMA[name].dtype))
        )
    assert found["observation"].count.tolist() == [11 + 14 + 3] * 2


def test_what_a_killed_sealing_left_in_an_open_segment_is_not_believed(tmp_path):
    segment, values, _ = make_segment(tmp_path / "a", 0, [5, 3], [1, 0])
    write_statistics(segment.path, segment_statistics(segment, SCHEMA, episodes=segment.episodes[:1]))
    segment.is_sealed = False
    found = aggregate([EpisodeSelection(SCHEMA, [segment], table_of([segment], [[0, 1]]))], ["observation"])
    assert_same(found["observation"], column_statistics(values["observation"], SCHEMA["observation"]))


def test_a_feature_without_stored_statistics_is_computed(tmp_path):
    segment, values, _ = make_segment(tmp_path / "a", 0, [5, 3], [1, 0])
    write_statistics(segment.path, segment_statistics(segment, SCHEMA, ["action"]))
    found = aggregate(
        [EpisodeSelection(SCHEMA, [segment], table_of([segment], [[0, 1]]))], ["observation", "action", "task"]
    )
    assert sorted(found) == ["action", "observation"]
    assert_same(found["observation"], column_statistics(values["observation"], SCHEMA["observation"]))
    nothing = aggregate([EpisodeSelection(SCHEMA, [segment], table_of([segment], [[]]))])
    assert {name: int(each.count.sum()) for name, each in nothing.items()} == dict.fromkeys(nothing, 0)
    assert {"action", "observation"} <= set(nothing)


def test_statistics_files_are_read_back_and_have_the_same_bytes_each_time(tmp_path):
    segment, _, _ = make_segment(tmp_path / "a", 0, [50, 30], [1, 0])
    found = segment_statistics(segment, SCHEMA)
    write_statistics(tmp_path, found)
    before = (tmp_path / "statistics.npz").read_bytes()
    loaded = load_statistics(tmp_path)
    assert list(loaded) == list(found)
    for name, statistics in found.items():
        assert_same(loaded[name], statistics, rtol=0)
    assert list(load_statistics(tmp_path, ["action", "nothing"])) == ["action"]
    write_statistics(tmp_path, loaded)
    assert (tmp_path / "statistics.npz").read_bytes() == before
    assert json.loads(json.dumps(found["action"].to_json(), allow_nan=False))["count"] == 80
    assert load_statistics(tmp_path / "a") == {}


def test_a_damaged_statistics_file_is_refused_by_name(tmp_path):
    segment, _, _ = make_segment(tmp_path / "a", 0, [50, 30], [1, 0])
    write_statistics(tmp_path, segment_statistics(segment, SCHEMA))
    good = (tmp_path / "statistics.npz").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(good)
        damaged[rng.integers(len(good))] ^= 1 << int(rng.integers(8))
        (tmp_path / "statistics.npz").write_bytes(damaged)
        try:
            load_statistics(tmp_path)
        except CorruptSegmentError as error:
            refused += "statistics.npz" in str(error)
    assert refused > 30
    (tmp_path / "statistics.npz").write_bytes(good[:-50])
    with pytest.raises(CorruptSegmentError, match=r"statistics\.npz"):
        load_statistics(tmp_path)


def test_a_stores_statistics_equal_those_of_its_episodes(tmp_path):
    rng = np.random.default_rng(0)
    schema = {"observation": Array(2, "float64", final=True), "camera": Image((16, 16, 3), codec="png"), "task": Text()}
    store = stepwell.create(tmp_path / "s.well", schema)
    with store.writer() as writer:
        for length in (6, 3, 9):
            for _ in range(length):
                camera = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                writer.append(observation=rng.normal(size=2), camera=camera, task="push")
            writer.end_episode(final={"observation": rng.normal(size=2)})
    store.refresh()
    for chosen in (None, [0, 2], [1]):
        episodes = [store[i] for i in (range(3) if chosen is None else chosen)]
        found = store.statistics(chosen)
        assert sorted(found) == ["camera", "observation"]
        for name in found:
            column = np.concatenate([np.asarray(episode[name]) for episode in episodes])
            raw = Array(2, "float64") if name == "observation" else Image((16, 16, 3))
            assert_same(found[name], column_statistics(column, raw))
    manifest = json.loads((store.segments[0].path / "segment.json").read_text())
    assert manifest["statistics"]["observation"]["mean"] == store.statistics()["observation"].mean.tolist()
    with store.writer() as writer:
        writer.append(observation=np.zeros(2), camera=np.zeros((16, 16, 3), np.uint8), task="")
        store.refresh()
        assert store.statistics()["observation"].count.tolist() == [22, 22]


NUMBERS = [f"{order}{kind}" for order in "<>" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")]


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(["bool", "int8", "uint8", *NUMBERS]), num_parts=st.integers(1, 4))
def test_extremes_are_exact_in_every_dtype_however_they_are_merged(data, dtype, num_parts):
    dtype = np.dtype(dtype)
    elements = numbers.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    if dtype.kind in "iu":
        elements = elements | st.sampled_from([np.iinfo(dtype).min, np.iinfo(dtype).max - 1, np.iinfo(dtype).max])
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=num_parts, max_size=num_parts))
    parts = [data.draw(numbers.arrays(dtype, (size, 2), elements=elements)) for size in sizes]
    whole = np.concatenate(parts)
    feature = Array(2, dtype.str)
    found = merge_all([FeatureStatistics.from_arrays(column_statistics(part, feature).to_arrays()) for part in parts])
    assert found.count.tolist() == [len(whole)] * 2
    if not len(whole):
        assert np.isnan(found.min).all()
        return
    assert found.min.tolist() == whole.min(0).tolist()
    assert found.max.tolist() == whole.max(0).tolist()
    record = json.loads(json.dumps(found.to_json()))
    assert record["max"] == whole.max(0).tolist()
    if dtype.kind in "iu" and dtype.itemsize == 8:
        assert all(type(value) is int for value in record["min"] + record["max"])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("codec", ["raw", "zstd", "delta"])
def test_features_without_elements_have_statistics_of_nothing(tmp_path, shape, codec):
    store = stepwell.create(tmp_path / "a.well", {"x": Array(shape, codec=codec), "t": Array(())}, segment_bytes=1)
    for _ in range(2):
        with store.writer() as writer:
            writer.add_episode({"x": np.zeros((4, *shape), np.float32), "t": np.arange(4, dtype=np.float32)})
    found = store.statistics()["x"]
    assert found.shape == found.min.shape == found.quantile(0.5).shape == shape
    assert found.to_json()["max"] == np.zeros(shape).tolist()
    assert store.statistics(episodes=[1])["x"].shape == shape
    assert not store.verify(deep=True).findings


def test_a_store_without_episodes_has_statistics_of_nothing(tmp_path):
    schema = {"x": Array(3, "int64"), "image": Image((4, 4, 3)), "note": Text()}
    store = stepwell.create(tmp_path / "a.well", schema)
    for found in (store.statistics(), stepwell.View(store).statistics()):
        assert {name: (each.shape, each.count.sum()) for name, each in found.items()} == {
            "x": ((3,), 0),
            "image": ((3,), 0),
        }
        assert np.isnan(found["x"].min).all()
    assert list(store.statistics(names=["x"])) == ["x"]
    with store.writer() as writer:
        writer.add_episode(
            {"x": np.full((2, 3), 2**62 + 1), "image": np.zeros((2, 4, 4, 3), np.uint8), "note": ["", ""]}
        )
    assert store.statistics(episodes=[])["x"].count.tolist() == [0, 0, 0]
    assert store.statistics()["x"].max.tolist() == [2**62 + 1] * 3
    # and out of the file of a sealed segment
    assert stepwell.open(store.path, mode="r").statistics()["x"].max.tolist() == [2**62 + 1] * 3
