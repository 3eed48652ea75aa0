"""The store's table: numbers, text, HTML and JSON from one source."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.sizes import human_bytes
from stepwell.store.info import make_table, sparkline


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    schema = stepwell.Schema(
        {
            "observation.depth": stepwell.Image((32, 48), "uint16", codec="png"),
            "action": stepwell.Array(2),
            "reward": stepwell.Array((), "float64"),
            "task": stepwell.Text(),
        }
    )
    store = stepwell.create(tmp_path / "toy.well", schema, fps=10)
    with store.writer() as writer:
        for length in (3, 5, 5, 9):
            writer.add_episode(
                {
                    "observation.depth": np.zeros((length, 32, 48), np.uint16),
                    "action": np.zeros((length, 2), np.float32),
                    "reward": np.zeros(length),
                    "task": ["push"] * length,
                }
            )
    store.refresh()
    return store


def test_table_counts_episodes_steps_and_lengths(store: stepwell.Store) -> None:
    table = make_table(store)
    assert (table.num_episodes, table.num_steps, table.fps, table.lengths) == (4, 22, 10, (3, 5.0, 9))
    assert sum(table.length_counts) == 4


def test_sizes_are_those_of_the_files(store: stepwell.Store) -> None:
    rows = {row.name: row for row in make_table(store).features}
    for name, row in rows.items():
        assert row.stored_bytes == sum(path.stat().st_size for path in store.path.rglob(f"{name}.*"))
    assert rows["action"].raw_bytes == 22 * 8
    assert rows["observation.depth"].raw_bytes == 22 * 32 * 48 * 2


def test_only_encoded_features_have_a_ratio(store: stepwell.Store) -> None:
    ratios = {row.name: row.ratio for row in make_table(store).features}
    assert ratios["action"] is None
    assert ratios["task"] is None
    assert ratios["observation.depth"] is not None
    assert ratios["observation.depth"] > 10


def test_text_has_a_line_a_feature_and_the_lengths(store: stepwell.Store) -> None:
    lines = str(make_table(store)).splitlines()
    assert lines[0].startswith("<Store toy.well  4 episodes  22 steps  10 fps  ")
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["observation.depth", "png", "32x48"],
        ["action", "raw", "(2,)"],
        ["reward", "raw", "()"],
        ["task", "raw", "any"],
    ]
    assert "episode lengths" in lines[5]
    assert "min 3  median 5  max 9   ▅█▁▅" in lines[5]


def test_html_escapes_names_and_shows_every_feature(store: stepwell.Store) -> None:
    html = make_table(store)._repr_html_()
    assert "&lt;Store toy.well" in html
    assert html.count("<tr ") == 5


def test_json_round_trips_and_agrees_with_the_table(store: stepwell.Store) -> None:
    table = make_table(store)
    record = json.loads(json.dumps(table.to_json()))
    assert record["lengths"] == {"min": 3, "median": 5.0, "max": 9}
    assert record["stored_bytes"] == table.stored_bytes
    assert [feature["name"] for feature in record["features"]] == list(store.schema or ())


def test_a_live_segment_counts_what_is_committed_not_what_is_reserved(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "live.well", stepwell.Schema({"a": stepwell.Array(4), "t": stepwell.Text()}))
    with store.writer() as writer:
        for _ in range(10):
            writer.append(a=np.zeros(4, np.float32), t="abc")
        writer.flush()
        store.refresh()
        rows = {row.name: row.stored_bytes for row in make_table(store).features}
    assert rows == {"a": 160, "t": 8 * 11 + 30}


def test_an_empty_store_prints(tmp_path: Path) -> None:
    table = make_table(stepwell.create(tmp_path / "empty.well"))
    assert "0 episodes  0 steps  0 B" in str(table)
    assert "no episodes" in str(table)
    assert json.dumps(table.to_json())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (99_960, "100 kB"),
        (999_600, "1.00 MB"),
        (7_300_000_000, "7.30 GB"),
    ],
)
def test_sizes_have_three_digits(size: int, text: str) -> None:
    assert human_bytes(size) == text


def test_sparkline_keeps_its_lowest_bar_for_zero() -> None:
    assert sparkline([0, 1, 1000]) == "▁▂█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
