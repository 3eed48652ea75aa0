"""Columns of language: those that lerobot 0.6.2 wrote, and those of ours."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("zstandard")

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import stepwell
from stepwell.lerobot import LeRobotDataset, LeRobotRecorder, audit, open_in_place, write_dataset
from stepwell.lerobot.language import (
    EVENT_ONLY_STYLES,
    LANGUAGE_COLUMNS,
    PERSISTENT_STYLES,
    column_for_style,
    is_view_dependent_style,
    language_feature_info,
    language_rows,
    validate_camera_field,
)
from stepwell.schema import Array, Text

from .head_sets import check_items, head_items, head_set
from .make_head_sets import LENGTHS, annotations

PLACES = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]


def test_items_are_those_of_lerobot_in_place_converted_and_written_again(tmp_path: Path) -> None:
    root = head_set("language", tmp_path)
    expected = head_items(root)
    check_items(root, expected)
    stepwell.convert(f"lerobot://{root}", tmp_path / "a.well", workers=0, progress=False)
    check_items(tmp_path / "a.well", expected)
    write_dataset(tmp_path / "a.well", tmp_path / "again", progress=False)
    check_items(tmp_path / "again", expected)
    meta = LeRobotDataset(tmp_path / "again").meta
    assert meta.has_language_columns
    assert {name: meta.features[name] for name in LANGUAGE_COLUMNS} == language_feature_info()
    theirs, mine = (pq.read_schema(next(each.glob("data/*/*.parquet"))) for each in (root, tmp_path / "again"))
    assert [mine.field(name).type for name in LANGUAGE_COLUMNS] == [
        theirs.field(name).type for name in LANGUAGE_COLUMNS
    ]


def test_a_store_has_the_lists_as_text(tmp_path: Path) -> None:
    store = open_in_place(head_set("language", tmp_path))
    rows = store[0]["language_events"]
    assert [json.loads(row) for row in rows] == [annotations(0, step)["language_events"] for step in range(LENGTHS[0])]


def test_batches_have_them_as_lists(tmp_path: Path) -> None:
    dataset = LeRobotDataset(head_set("language", tmp_path))
    expected = [annotations(*place)["language_events"] for place in PLACES]
    count = len(PLACES)
    assert next(iter(torch.utils.data.DataLoader(dataset, batch_size=count)))["language_events"] == expected
    assert next(iter(dataset.loader(count, order="sequential")))["language_events"] == expected
    items = dataset.__getitems__(range(count))
    items[1]["action"] += 1
    assert torch.utils.data.default_collate(items)["language_events"] == expected


def test_windows_of_them_are_refused(tmp_path: Path) -> None:
    root = head_set("language", tmp_path)
    with pytest.raises(stepwell.WindowError, match="language_events"):
        LeRobotDataset(root, delta_timestamps={"language_events": [0.0]})


def test_the_audit_finds_nothing_in_them(tmp_path: Path) -> None:
    root = head_set("language", tmp_path)
    # the quantiles that lerobot stores are the mean of the episodes'
    assert {finding.code for finding in audit(root).findings} <= {"statistics-quantiles"}
    write_dataset(open_in_place(root), tmp_path / "again", progress=False)
    assert not audit(tmp_path / "again", deep=True).findings


def test_a_column_that_is_no_list_is_a_finding_and_refused(tmp_path: Path) -> None:
    root = head_set("language", tmp_path)
    path = next(root.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    place = table.column_names.index("language_events")
    pq.write_table(table.set_column(place, "language_events", pa.array(["x"] * table.num_rows)), path)
    assert "column-type" in {finding.code for finding in audit(root).findings}
    with pytest.raises(stepwell.FormatError, match=r"language_events.*lists of structs"):
        LeRobotDataset(root)


def test_annotations_that_info_json_is_silent_about_are_refused_unless_they_are_left_out(tmp_path: Path) -> None:
    root = head_set("language", tmp_path)
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    assert "language_events" not in LeRobotDataset(root, ignore=LANGUAGE_COLUMNS)[0]
    del info["features"]["language_events"]
    path.write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"language_events.*language_feature_info"):
        LeRobotDataset(root)


def test_tables_of_pandas_are_read_alike(tmp_path: Path) -> None:
    """Without what no annotation has, times as doubles, and tool calls as structs."""
    root = head_set("language", tmp_path)
    path = next(root.glob("data/*/*.parquet"))
    table = pq.read_table(path).drop_columns(list(LANGUAGE_COLUMNS))
    for name in LANGUAGE_COLUMNS:
        table = table.append_column(name, pa.array([annotations(*place)[name] for place in PLACES]))
    pq.write_table(table, path)
    check_items(root, head_items(root))


def test_rows_that_are_alike_are_held_once() -> None:
    row = [{"role": "user", "content": "x", "style": "plan", "timestamp": 0.1}]
    found = language_rows(pa.chunked_array([[row, row, None, row, []], [row, None, None]]), "here")
    assert len(found.texts) == 3
    assert found.numbers.tolist() == [0, 0, 1, 0, 2, 0, 1, 1]
    assert found.strings(slice(2, 4)) == ["null", found.texts[0]]
    assert json.loads(found.texts[0])[0]["timestamp"] == float(np.float32(0.1))


def test_a_recording_has_none_and_drops_what_is_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}, **language_feature_info()}
    caplog.set_level(logging.WARNING)
    with LeRobotRecorder.create(tmp_path / "set", fps=10, features=features, output="v3.0") as recorder:
        recorder.add_frame({"action": np.zeros(2, np.float32), "task": "x"})
        recorder.add_frame({"action": np.zeros(2, np.float32), "task": "x", "language_events": None})
        assert not caplog.records
        recorder.add_frame({"action": np.zeros(2, np.float32), "task": "x", "language_events": [{"role": "user"}]})
        assert "language_events" in caplog.text
        recorder.save_episode()
    for item in LeRobotDataset(tmp_path / "set")[0:3]:
        assert [item[name] for name in LANGUAGE_COLUMNS] == [None, None]


def store_of(path: Path, text: str) -> stepwell.Store:
    """Return a store of one step whose column of language is a text."""
    store = stepwell.create(path, {"action": Array(2), "language_events": Text()}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"action": np.zeros((1, 2), np.float32), "language_events": [text]}, task="x")
    return stepwell.open(path)


def test_a_store_of_other_origin_is_written_by_the_name_of_the_feature(tmp_path: Path) -> None:
    call = {"function": {"name": "say", "arguments": {"text": "ja"}}}
    row = {"role": "user", "content": "what?", "tool_calls": [call]}
    write_dataset(store_of(tmp_path / "a.well", json.dumps([row])), tmp_path / "set", progress=False)
    assert LeRobotDataset(tmp_path / "set")[0]["language_events"] == [{**row, "style": None, "camera": None}]


@pytest.mark.parametrize("text", ["hello", '{"role": "user"}', '["x"]', '[{"mood": "good"}]', '[{"role": 3}]'])
def test_text_that_is_no_list_of_annotations_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(stepwell.SchemaError, match="language_events"):
        write_dataset(store_of(tmp_path / "a.well", text), tmp_path / "set", progress=False)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("style", [*sorted(PERSISTENT_STYLES | EVENT_ONLY_STYLES), None])
def test_a_style_has_its_column_and_names_a_camera_or_none(style: Any) -> None:
    assert column_for_style(style) == LANGUAGE_COLUMNS[style not in PERSISTENT_STYLES]
    camera = "observation.images.top" if is_view_dependent_style(style) else None
    validate_camera_field(style, camera)
    with pytest.raises(ValueError, match="camera"):
        validate_camera_field(style, None if camera else "observation.images.top")


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown language style"):
        column_for_style("mood")
