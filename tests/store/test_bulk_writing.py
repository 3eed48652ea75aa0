"""Stores that are written from columns of many episodes at a time."""

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.errors import StepError, StoreExistsError
from stepwell.store.bulk_writing import Blobs, EpisodeBlock, write_store

SCHEMA = stepwell.Schema(
    {
        "state": stepwell.Array((2, 3), "int64"),
        "done": stepwell.Array((), "bool"),
        "note": stepwell.Text(),
    }
)


def block(*lengths: int, first: int = 0) -> EpisodeBlock:
    rows = sum(lengths)
    notes = [f"row {first + i}".encode() for i in range(rows)]
    columns = {
        "state": np.arange(first * 6, (first + rows) * 6).reshape(rows, 2, 3),
        "done": np.arange(first, first + rows) % 3 == 0,
        "note": Blobs(np.frombuffer(b"".join(notes), np.uint8), np.array([len(note) for note in notes])),
    }
    return EpisodeBlock(np.array(lengths), columns, [{"length": length} for length in lengths])


def test_the_store_holds_the_rows_of_all_blocks(tmp_path: Path) -> None:
    write_store(tmp_path / "a.well", SCHEMA, [block(2, 3), block(1, first=5)], fps=10, metadata={"of": "a test"})
    store = stepwell.open(tmp_path / "a.well", mode="r")
    assert [episode.length for episode in store] == [2, 3, 1]
    assert [episode.metadata for episode in store] == [{"length": 2}, {"length": 3}, {"length": 1}]
    assert np.concatenate([episode["state"] for episode in store]).ravel().tolist() == list(range(36))
    assert np.concatenate([episode["done"] for episode in store]).tolist() == [True, False, False, True, False, False]
    assert [note for episode in store for note in episode["note"]] == [f"row {i}" for i in range(6)]
    assert (store.fps, dict(store.metadata), len(store.segments)) == (10, {"of": "a test"}, 1)


def test_the_store_is_as_a_writer_would_leave_it(tmp_path: Path) -> None:
    write_store(tmp_path / "a.well", SCHEMA, [block(2, 3)])
    store = stepwell.open(tmp_path / "a.well")
    assert store.verify(deep=True).is_ok
    assert store.statistics()["state"].mean.shape == (2, 3)
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2, 3), "int64"), "done": [True], "note": ["more"]})
    assert [episode.length for episode in stepwell.open(tmp_path / "a.well", mode="r")] == [2, 3, 1]


def test_a_segment_ends_after_the_block_that_is_beyond_its_size(tmp_path: Path) -> None:
    blocks = [block(4, first=4 * i) for i in range(5)]
    write_store(tmp_path / "a.well", SCHEMA, blocks, segment_bytes=300)
    store = stepwell.open(tmp_path / "a.well", mode="r")
    assert [segment.num_rows for segment in store.segments] == [8, 8, 4]
    assert np.concatenate([episode["state"] for episode in store]).ravel().tolist() == list(range(120))
    assert len(set(store.episodes.origin.tolist())) == 5


def test_a_store_of_no_blocks_is_empty(tmp_path: Path) -> None:
    write_store(tmp_path / "a.well", SCHEMA, [])
    assert len(stepwell.open(tmp_path / "a.well", mode="r")) == 0


def test_what_is_at_the_path_is_kept(tmp_path: Path) -> None:
    write_store(tmp_path / "a.well", SCHEMA, [block(2)])
    with pytest.raises(StoreExistsError, match=r"a\.well is there already"):
        write_store(tmp_path / "a.well", SCHEMA, [block(3)])
    assert stepwell.open(tmp_path / "a.well", mode="r").num_steps == 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("state", np.zeros((2, 2, 3), "int32")),
        ("state", np.zeros((1, 2, 3), "int64")),
        ("state", np.zeros((2, 6), "int64")),
        ("done", Blobs(np.zeros(2, np.uint8), np.ones(2, np.int64))),
        ("note", np.zeros(2, np.uint8)),
        ("note", Blobs(np.zeros(2, np.uint8), np.ones(3, np.int64))),
        ("note", Blobs(np.zeros(3, np.uint8), np.ones(2, np.int64))),
    ],
)
def test_columns_that_do_not_fit_leave_nothing(tmp_path: Path, name: str, values: object) -> None:
    good = block(2)
    wrong = EpisodeBlock(good.lengths, {**good.columns, name: values}, good.metadata)  # type: ignore[dict-item]
    with pytest.raises(StepError, match=f"feature '{name}'"):
        write_store(tmp_path / "a.well", SCHEMA, [good, wrong])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_and_missing_metadata_are_named(tmp_path: Path) -> None:
    good = block(2)
    without = {name: column for name, column in good.columns.items() if name != "done"}
    with pytest.raises(StepError, match="feature 'done': got nothing for 2 rows"):
        write_store(tmp_path / "a.well", SCHEMA, [EpisodeBlock(good.lengths, without, good.metadata)])
    with pytest.raises(StepError, match="0 metadata for 1 episodes"):
        write_store(tmp_path / "a.well", SCHEMA, [EpisodeBlock(good.lengths, good.columns, [])])


def test_an_error_of_the_source_leaves_nothing(tmp_path: Path) -> None:
    def blocks():  # type: ignore[no-untyped-def]
        yield block(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_store(tmp_path / "a.well", SCHEMA, blocks())
    assert list(tmp_path.iterdir()) == []
