from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import stepwell
from stepwell import Field
from stepwell.replay.history import History
from stepwell.store.layout import split_id
from stepwell.windows import View, WindowReader
from stepwell.windows.reader import PlaceReader

LENGTHS = (5, 1, 7)
ENDS: tuple[dict[str, Any], ...] = ({"terminated": True}, {"truncated": True}, {})
COLUMNS = (
    "step_id", "store_index", "episode_index", "step_index", "timestamp", "is_first", "is_last", "terminated",
    "truncated",
)  # fmt: skip
OFFSETS = (-2, 0, 1, 4, 1)
ENDINGS = ("terminated", "truncated")


def _record(path: Path, fps: float) -> stepwell.Store:
    store = stepwell.create(path, fps=fps)
    with store.writer() as writer:
        for length, ends in zip(LENGTHS, ENDS, strict=True):
            writer.add_episode({"x": np.arange(length)}, **ends)
    store.refresh()
    return store


def _expected(name: str, store: int, episode: int, step: int, fps: float) -> Any:
    is_last = step == LENGTHS[episode] - 1
    row = sum(LENGTHS[:episode]) + step
    found = {
        "step_id": row, "store_index": store, "episode_index": episode, "step_index": step,
        "timestamp": np.float32(step / fps), "is_first": step == 0, "is_last": is_last,
        "terminated": is_last and episode == 0, "truncated": is_last and episode == 1,
    }  # fmt: skip
    return found[name]


def _row_of(name: str, values: np.ndarray) -> np.ndarray:
    """Return what is compared: of step ids the rows, as segments have ordinals of their own."""
    return split_id(values)[1] if name == "step_id" else values


def _windows(name: str, pad: str, fps: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of a column at every step of the stores, and which are padding."""
    values, is_pad = [], []
    for store, rate in enumerate(fps):
        for episode, length in enumerate(LENGTHS):
            for anchor in range(length):
                wanted = [anchor + offset for offset in OFFSETS]
                marks = [not 0 <= step < length for step in wanted]
                inside = [_expected(name, store, episode, min(max(step, 0), length - 1), rate) for step in wanted]
                values.append([0 if mark and pad == "zero" else v for mark, v in zip(marks, inside, strict=True)])
                is_pad.append(marks)
    return np.array(values), np.array(is_pad)


@pytest.mark.parametrize("pad", ["edge", "zero"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_view_of_two_stores_gives_windows_of_every_column(
    tmp_path: Path, name: str, pad: Literal["edge", "zero"]
) -> None:
    fps = (10.0, 25.0)
    view = View([_record(tmp_path / f"{rate}.well", rate) for rate in fps])
    reader = WindowReader(view, {"value": Field(name, OFFSETS, pad=pad)})
    batch = reader.read(np.arange(reader.index.num_anchors))
    values, is_pad = _windows(name, pad, fps)
    np.testing.assert_array_equal(_row_of(name, batch["value"]), values)
    np.testing.assert_array_equal(batch["value_is_pad"], is_pad)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_history_gives_windows_of_every_column(tmp_path: Path, name: str) -> None:
    store = _record(tmp_path / "a.well", 10.0)
    history = History(store)
    runs = history.advance().runs
    places = np.concatenate(
        [history.places(np.full(stop - row, e), np.arange(row, stop)) for e, row, stop, _ in runs], 1
    )
    batch = PlaceReader([history], {"value": Field(name, OFFSETS)}).read_places([np.ascontiguousarray(places)])
    values, is_pad = _windows(name, "edge", (10.0,))
    np.testing.assert_array_equal(_row_of(name, batch["value"]), values)
    np.testing.assert_array_equal(batch["value_is_pad"], is_pad)


def test_columns_that_are_stacked_lie_beside_each_other(tmp_path: Path) -> None:
    view = View(_record(tmp_path / "a.well", 10.0))
    fields = {"ends": Field(ENDINGS, OFFSETS, combine="stack"), **{n: Field(n, OFFSETS) for n in ENDINGS}}
    batch = WindowReader(view, fields).read(np.arange(sum(LENGTHS)))
    np.testing.assert_array_equal(batch["ends"], np.stack([batch[name] for name in ENDINGS], axis=-1))
    np.testing.assert_array_equal(batch["ends_is_pad"], batch["truncated_is_pad"])


def test_windows_at_the_final_step_hold_its_column(tmp_path: Path) -> None:
    view = View(_record(tmp_path / "a.well", 10.0))
    reader = WindowReader(
        view, {"at": Field("step_index", (-1, 0), at="final"), "last": Field("is_last", (0,), at="final")}
    )
    batch = reader.read(np.arange(sum(LENGTHS)))
    lasts = np.repeat(LENGTHS, LENGTHS) - 1
    np.testing.assert_array_equal(batch["at"], np.stack([np.maximum(lasts - 1, 0), lasts], axis=-1))
    assert batch["last"].all()
