"""Statistics: LeRobot's keys and shapes, the values of the data, and of parts those of the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stepwell
from stepwell import Array, Image, View
from stepwell.errors import FeatureNotFoundError, FormatError
from stepwell.lerobot import statistics
from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.statistics import (
    StatisticsSum,
    as_lerobot,
    image_stride,
    image_summary,
    merged,
    numeric_statistics,
    numeric_summary,
    sampled_steps,
    statistics_of,
)
from stepwell.testing import tiny_lerobot, tiny_lerobot_rows

KEYS = ["min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"]
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def info(dtype, shape):
    return FeatureInfo("feature", dtype, shape, None, {})


def store_of(path, columns, lengths, schema):
    store = stepwell.create(path, schema, fps=10)
    stops = np.cumsum(lengths)
    with store.writer() as writer:
        for start, stop in zip(stops - lengths, stops, strict=True):
            writer.add_episode({name: values[start:stop] for name, values in columns.items()})
    store.refresh()
    return store


@pytest.mark.parametrize(
    ("shape", "per_element", "expected"),
    [((), False, (1,)), ((4,), False, (4,)), ((2, 3), False, (3,)), ((2, 3), True, (2, 3)), ((300,), False, (300,))],
)
def test_a_numeric_feature_has_lerobots_keys_and_shapes(shape, per_element, expected):
    found = as_lerobot(
        numeric_summary(np.ones((5, *shape), np.float32), per_element=per_element), info("float32", shape or (1,))
    )
    assert list(found) == KEYS
    assert {key: value.shape for key, value in found.items()} == dict.fromkeys(KEYS, expected) | {"count": (1,)}
    assert found["count"].tolist() == [5]


def test_the_last_axis_of_an_array_is_summarised_over_rows_and_other_axes():
    values = np.random.default_rng(0).normal(size=(40, 2, 3))
    found = as_lerobot(numeric_summary(values), info("float64", (2, 3)))
    np.testing.assert_allclose(found["mean"], values.mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found["std"], values.std((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found["q10"], np.quantile(values.reshape(-1, 3), 0.1, axis=0), rtol=1e-12)
    each = as_lerobot(numeric_summary(values, per_element=True), info("float64", (2, 3)))
    np.testing.assert_allclose(each["std"], values.std(0), rtol=1e-12)


def test_wide_features_are_summarised_element_by_element():
    values = np.random.default_rng(0).normal(size=(10, 600)).astype(np.float32)
    found = as_lerobot(numeric_summary(values), info("float32", (600,)))
    np.testing.assert_allclose(found["mean"], values.astype(np.float64).mean(0), rtol=1e-9)


def test_truth_values_and_integers_are_summarised_as_numbers():
    found = as_lerobot(numeric_summary(np.array([True, False, False, False])), info("bool", (1,)))
    assert (found["min"].item(), found["max"].item(), found["mean"].item()) == (0.0, 1.0, 0.25)
    whole = as_lerobot(numeric_summary(np.array([250, 255], np.uint8)), info("uint8", (1,)))
    assert (whole["mean"].item(), whole["std"].item()) == (252.5, 2.5)


def test_float32_columns_far_from_zero_lose_no_digits():
    values = np.float32(1e4) + np.arange(1000, dtype=np.float32) % 2
    found = as_lerobot(numeric_summary(values), info("float32", (1,)))
    assert found["std"].item() == pytest.approx(0.5, rel=1e-12)


def test_values_that_are_no_numbers_are_left_out_and_counted():
    found = as_lerobot(numeric_summary(np.array([1.0, np.nan, 3.0, np.inf])), info("float64", (1,)))
    assert (found["count"].item(), found["mean"].item(), found["max"].item()) == (4, 2.0, 3.0)


def test_the_std_of_bright_uint8_images_is_that_of_their_pixels():
    # lerobot up to 0.4.4 squares them as uint8, and gets 0
    images = np.random.default_rng(0).integers(200, 256, (6, 16, 20, 3), dtype=np.uint8)
    found = as_lerobot(image_summary(images, Image((16, 20, 3))), info("video", (16, 20, 3)))
    pixels = images / 255
    assert found["mean"].shape == (3, 1, 1)
    np.testing.assert_allclose(found["mean"].ravel(), pixels.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["std"].ravel(), pixels.std((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["q99"].ravel(), np.quantile(pixels.reshape(-1, 3), 0.99, axis=0), rtol=1e-12)
    assert found["count"].tolist() == [6]


@pytest.mark.parametrize("shape", [(16, 20), (16, 20, 1)])
def test_grey_images_have_three_equal_channels(shape):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    found = as_lerobot(image_summary(images, Image(shape)), info("image", (16, 20, 3)))
    np.testing.assert_allclose(found["mean"].ravel(), np.full(3, images.mean() / 255), rtol=1e-12)
    assert found["count"].tolist() == [3]


@pytest.mark.parametrize("per_element", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_few_rows_have_the_statistics_of_their_summary(dtype, per_element):
    rng = np.random.default_rng(0)
    for shape in ((1,), (30,), (30, 4), (7, 2, 3)):
        values = (rng.normal(size=shape) * 100).astype(dtype)
        found = numeric_statistics(values, per_element=per_element)
        summary = as_lerobot(numeric_summary(values, per_element=per_element), info(dtype, shape[1:] or (1,)))
        assert list(found) == KEYS
        for key, value in summary.items():
            assert found[key].shape == value.shape
            np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-12, err_msg=key)


def test_few_rows_of_a_large_constant_have_no_spread():
    found = numeric_statistics(np.full((1000, 1), 0.1, np.float32) + np.float32(1e6))
    assert found["std"].item() == 0.0 and found["mean"].item() == found["min"].item()


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_few_rows_with_odd_values_have_the_statistics_of_their_summary(odd):
    values = np.array([[1.0, 2.0], [odd, 4.0], [3.0, 6.0]])
    found, summary = numeric_statistics(values), as_lerobot(numeric_summary(values), info("float64", (2,)))
    for key, value in summary.items():
        assert np.array_equal(found[key], value)


@settings(max_examples=30)
@given(
    values=hnp.arrays(np.float64, st.tuples(st.integers(1, 200), st.just(2)), elements=st.floats(-1e6, 1e6, width=32)),
    data=st.data(),
)
def test_episodes_added_up_are_the_summary_of_the_whole(values, data):
    cuts = sorted(data.draw(st.lists(st.integers(1, max(1, len(values) - 1)), max_size=90)))
    total, of_rows = StatisticsSum(), StatisticsSum()
    for part in np.split(values, cuts):
        if len(part):
            total.add({"feature": numeric_summary(part)})
            of_rows.add_rows("feature", part)
    found = as_lerobot(total.result()["feature"], info("float64", (2,)))
    again = as_lerobot(of_rows.result()["feature"], info("float64", (2,)))
    assert all(np.allclose(again[key], found[key], rtol=1e-7, atol=1e-6) for key in KEYS)
    whole = as_lerobot(numeric_summary(values), info("float64", (2,)))
    for key in ("min", "max", "count"):
        assert np.array_equal(found[key], whole[key])
    np.testing.assert_allclose(found["mean"], whole["mean"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["std"], whole["std"], rtol=1e-7, atol=1e-6)
    for key, fraction in QUANTILES.items():
        np.testing.assert_allclose(found[key], np.quantile(values, fraction, axis=0), rtol=1e-9, atol=1e-9)


def test_rows_are_summarised_when_many_wait(monkeypatch):
    monkeypatch.setattr(statistics, "WAITING_VALUES", 20)
    total = StatisticsSum()
    values = np.random.default_rng(0).normal(size=(90, 2))
    for start in range(0, 90, 3):
        total.add_rows("feature", values[start : start + 3])
    found = as_lerobot(total.result()["feature"], info("float64", (2,)))
    np.testing.assert_allclose(found["q90"], np.quantile(values, 0.9, axis=0), rtol=1e-9)
    assert found["count"].tolist() == [90]


def test_quantiles_of_unlike_episodes_are_those_of_their_union():
    # the mean of the episodes' medians would be 500
    total = StatisticsSum()
    low, high = np.linspace(0, 1, 9000), np.linspace(1000, 1001, 1000)
    total.add({"feature": numeric_summary(low)})
    total.add({"feature": numeric_summary(high)})
    found = as_lerobot(total.result()["feature"], info("float64", (1,)))
    assert found["q50"].item() == pytest.approx(0.555, abs=0.02)
    assert found["q99"].item() == pytest.approx(np.quantile(np.concatenate([low, high]), 0.99), abs=0.1)


def test_statistics_of_a_view_are_those_of_its_episodes_without_final_rows(tmp_path):
    schema = {"action": Array(2), "observation": Array(3, final=True), "note": stepwell.Text()}
    store = stepwell.create(tmp_path / "a.well", schema, fps=10)
    rng = np.random.default_rng(0)
    columns = [{"action": rng.normal(size=(4, 2)), "observation": rng.normal(size=(5, 3))} for _ in range(3)]
    with store.writer() as writer:
        for each in columns:
            writer.add_episode({name: values.astype(np.float32) for name, values in each.items()} | {"note": ["x"] * 4})
    store.refresh()
    found = statistics_of(View(store).select([0, 2]))
    assert list(found) == ["action", "observation"]
    expected = np.concatenate([columns[e]["observation"][:4] for e in (0, 2)]).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found["observation"]["mean"], expected.mean(0), rtol=1e-9)
    assert found["observation"]["count"].tolist() == [8]


def test_images_are_sampled_evenly_and_the_count_says_how_many(tmp_path):
    images = np.repeat(np.arange(40, dtype=np.uint8), 16 * 16 * 3).reshape(40, 16, 16, 3)
    store = store_of(tmp_path / "a.well", {"camera": images}, [30, 10], {"camera": Image((16, 16, 3))})
    found = statistics_of(store, max_images=8)["camera"]
    assert found["count"].tolist() == [8]
    assert found["mean"].ravel()[0] * 255 == pytest.approx(19.5, abs=0.6)
    assert statistics_of(store)["camera"]["count"].tolist() == [40]


@pytest.mark.parametrize("length", [1, 2, 7, 100])
@pytest.mark.parametrize("stride", [1, 2, 3, 50])
def test_sampled_steps_are_distinct_steps_of_the_episode(length, stride):
    steps = sampled_steps(length, stride)
    assert len(steps) == -(-length // stride)
    assert (np.diff(steps) > 0).all()
    assert 0 <= steps[0] <= steps[-1] < length


def test_a_stride_looks_at_no_more_images_than_asked():
    assert [image_stride(n, 100) for n in (1, 100, 101, 250)] == [1, 1, 2, 3]


def test_a_name_that_is_not_there_is_refused(tmp_path):
    store = store_of(tmp_path / "a.well", {"action": np.zeros((2, 2), np.float32)}, [2], {"action": Array(2)})
    with pytest.raises(FeatureNotFoundError, match=r"'actoin'.*action"):
        statistics_of(store, ["actoin"])


pytest.importorskip("pyarrow")
pytest.importorskip("av")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
LENGTHS = [4, 6, 3]


def tiny(root: Path, version: str = "v3.0", **options: Any) -> Path:
    return tiny_lerobot(root, version=version, lengths=LENGTHS, cameras={"top": ("png", (8, 8))}, **options)


def rewrite_lines(root: Path, change: Any) -> None:
    path = root / "meta" / "episodes_stats.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(record) for record in change(records)))


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_statistics_of_the_whole_are_those_of_all_rows(tmp_path: Path, version: str) -> None:
    stats = Metadata.load(tiny(tmp_path / "tiny", version)).stats
    assert stats is not None
    rows = np.concatenate([tiny_lerobot_rows(e, n)["action"] for e, n in enumerate(LENGTHS)]).astype(np.float64)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(stats["action"][name], getattr(rows, name)(0), rtol=1e-12)
    assert stats["action"]["count"].tolist() == [13]
    assert (stats["top"]["mean"].shape, stats["top"]["mean"].dtype) == ((3, 1, 1), np.float64)
    assert "observation.note" not in stats


@pytest.mark.parametrize(("version", "files"), [("v2.1", 1), ("v3.0", 1), ("v3.0", 3)])
def test_statistics_of_an_episode_are_those_of_its_rows(tmp_path: Path, version: str, files: int) -> None:
    metadata = Metadata.load(tiny(tmp_path / "tiny", version, files=files))
    for episode, length in enumerate(LENGTHS):
        stats = metadata.episode_stats(episode)
        assert stats is not None
        rows = tiny_lerobot_rows(episode, length)
        np.testing.assert_allclose(stats["action"]["mean"], rows["action"].mean(0), rtol=1e-6)
        assert stats["observation.grid"]["max"].tolist() == rows["observation.grid"].max(0).tolist()
        assert stats["top"]["std"].shape == (3, 1, 1)


def test_dataset_without_statistics_has_none(tmp_path: Path) -> None:
    for version, name in (("v2.0", "stats.json"), ("v2.1", "episodes_stats.jsonl"), ("v3.0", "stats.json")):
        root = tiny(tmp_path / version, version)
        (root / "meta" / name).unlink()
        assert Metadata.load(root).stats is None
    assert Metadata.load(tmp_path / "v2.0").episode_stats(0) is None
    assert Metadata.load(tmp_path / "v2.1").episode_stats(0) is None


def test_v3_table_without_statistics_has_none(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    root = tiny(tmp_path / "tiny")
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.select([name for name in table.column_names if not name.startswith("stats/")]), path)
    assert Metadata.load(root).episode_stats(2) is None


def test_quantiles_are_not_merged() -> None:
    part = {"x": {name: [1.0] for name in ("min", "max", "mean", "std", "count", "q50")}}
    found = merged([part, part], "x")
    assert found is not None
    assert "q50" not in found["x"]


def test_feature_that_some_episodes_lack_is_merged_over_the_others() -> None:
    one, two = ({"x": {name: [value] for name in ("min", "max", "mean", "std", "count")}} for value in (1, 3))
    found = merged([{}, one, two], "x")
    assert found is not None
    assert found["x"]["count"].tolist() == [4]
    assert merged([], "x") is None


@pytest.mark.parametrize(
    "content", ["[]", '{"action": 3}', '{"action": {"mean": "x"}}', '{"action": {"mean": [[1], 2]}}']
)
def test_stats_json_that_cannot_be_is_refused(tmp_path: Path, content: str) -> None:
    root = tiny(tmp_path / "tiny")
    (root / "meta" / "stats.json").write_text(content)
    with pytest.raises(FormatError, match=r"stats\.json"):
        _ = Metadata.load(root).stats


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda records: [records[0], records[0], records[2]], "does not have each episode once"),
        (lambda records: [{"episode_index": 0}], "is not statistics"),
        (lambda records: [{"episode_index": 0, "stats": {"x": 3}}], "'x' lacks some of min"),
        (lambda records: [{"episode_index": 0, "stats": {"x": {"mean": [1.0]}}}], "'x' lacks some of min"),
        (lambda records: [of_x(mean=[1.0], std=[1.0, 2.0, 3.0]), of_x(1)], "mean of 'x' is not an array"),
        (lambda records: [of_x(count=[1, 2])], "shapes of 'x' do not fit together"),
        (lambda records: [of_x(mean="x")], "mean of 'x' is not an array of numbers"),
    ],
)
def test_lines_that_cannot_be_merged_are_refused(tmp_path: Path, change: Any, says: str) -> None:
    root = tiny(tmp_path / "tiny", "v2.1")
    rewrite_lines(root, change)
    with pytest.raises(FormatError, match=f"episodes_stats.jsonl.*{says}"):
        _ = Metadata.load(root).stats


def of_x(episode: int = 0, **values: Any) -> dict[str, Any]:
    names = ("min", "max", "mean", "std", "count")
    return {"episode_index": episode, "stats": {"x": {**{name: [1.0, 2.0] for name in names}, "count": [3], **values}}}


def test_lines_of_episodes_may_be_in_any_order(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny", "v2.1")
    before = [Metadata.load(root).episode_stats(place) for place in range(3)]
    rewrite_lines(root, lambda records: records[::-1])
    after = [Metadata.load(root).episode_stats(place) for place in range(3)]
    assert all(one and two for one, two in zip(before, after, strict=True))
    for one, two in zip(before, after, strict=True):
        assert (one or {})["action"]["mean"].tolist() == (two or {})["action"]["mean"].tolist()


@needs_data
def test_merged_statistics_of_a_real_dataset_are_those_of_its_newer_form() -> None:
    old, new = Metadata.load(SHARED / "v21_png").stats, Metadata.load(SHARED / "v30_png").stats
    assert old is not None
    assert new is not None
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(old["observation.state"][name], new["observation.state"][name], rtol=1e-4, atol=1e-5)
