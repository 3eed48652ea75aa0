import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import SchemaError, StepError, WorkerError
from stepwell.recorders import EpisodeData, write_episodes
from stepwell.recorders.sources import SourceItems, chunk_length, cut, num_column_bytes, take_chunks
from stepwell.schema import Array
from stepwell.store import EncodedRows, create
from stepwell.testing import SlowRunningCodec

CAMERA = Array((2,), "int16", codec="slow-running", milliseconds=0, lag=2)


@given(st.integers(0, 50), st.integers(1, 12))
def test_chunks_cover_every_item_once_and_in_order(num_items, length):
    chunks = list(take_chunks(iter(range(num_items)), length))
    assert [item for _, items in chunks for item in items] == list(range(num_items))
    assert all(start == items[0] and len(items) <= length for start, items in chunks)
    assert len(chunks) == -(-num_items // length)


@given(st.integers(1, 60), st.integers(1, 12), st.none() | st.lists(st.integers(0, 60), max_size=8).map(sorted))
def test_cuts_cover_every_item_once_and_none_goes_over_an_edge(num_items, length, edges):
    spans = cut(num_items, length, edges)
    assert [item for start, stop in spans for item in range(start, stop)] == list(range(num_items))
    assert all(0 < stop - start <= length for start, stop in spans)
    assert not any(start < edge < stop for start, stop in spans for edge in edges or ())


def test_a_shard_that_is_too_large_is_cut_evenly_and_small_ones_are_not_joined():
    assert cut(13, 4, [0, 9, 10, 11]) == [(0, 3), (3, 6), (6, 9), (9, 10), (10, 11), (11, 13)]
    assert chunk_length(1000, 100, 1000) == 10 and chunk_length(1000, 1, 10**6) == 16
    assert chunk_length(1000, 100, 1000, has_edges=True) == 10 and chunk_length(1000, 1, 10**6, has_edges=True) == 10**6


@given(st.one_of(st.none(), st.integers(1, 10**9)), st.integers(0, 1 << 40), st.integers(1, 1 << 30))
def test_a_chunk_has_an_item_and_no_more_bytes_than_a_segment(num_items, item_bytes, segment_bytes):
    length = chunk_length(num_items, item_bytes, segment_bytes)
    assert length >= 1
    assert length == 1 or length * item_bytes <= segment_bytes


def test_bytes_are_counted_as_given():
    columns = {
        "image": np.zeros((3, 4), np.uint8),
        "text": ["ab", "cde"],
        "nested": {"points": [np.zeros(2, np.float32)]},
    }
    assert num_column_bytes(columns) == 12 + 5 + 8


@pytest.mark.parametrize("length", [0, 1])
def test_the_longer_columns_of_the_first_episode_are_final(length):
    item = EpisodeData({"pose": np.zeros((3 + length, 2)), "observation": np.zeros((3, 2)), "action": np.zeros((3, 2))})
    schema = SourceItems(are_samples=False).infer_schema(item)
    assert schema.final_names == (("pose",) if length else ("observation",))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"action": 3.0}, "'action' is a float, not a column"),
        ({"action": []}, "no steps"),
        ([1, 2], "got a list"),
        ({"camera": EncodedRows([b"1"]), "action": [0]}, "'camera': no schema can be inferred from encoded rows"),
    ],
)
def test_an_item_that_is_no_episode_is_refused(item, message):
    with pytest.raises(StepError, match=message):
        SourceItems(are_samples=False).infer_schema(item)


def test_metadata_are_not_called_as_what_ends_an_episode(tmp_path):
    source = [EpisodeData({"t": np.arange(3)}, metadata={"final": 1})]
    with pytest.raises(WorkerError, match=r"item 0 .*metadata called 'final', which says how an episode ends"):
        write_episodes(tmp_path / "a.well", source, workers=0, progress=False)


def test_a_value_without_a_dtype_is_refused_by_name():
    with pytest.raises(SchemaError, match="hook"):
        SourceItems(are_samples=False).infer_schema({"hook": [object()]})


def rows_of(number):
    """Return the rows of an episode as an encoder has them."""
    encoder = SlowRunningCodec(CAMERA).encoder()
    blobs = [blob for t in range(5 + number) for blob in encoder.put(np.array([number, t], np.int16))]
    return EncodedRows(blobs + encoder.end())


@pytest.mark.parametrize("workers", [1, 2])
def test_encoded_rows_and_values_of_sequential_codecs_are_written_by_any_number_of_workers(tmp_path, workers):
    store = create(tmp_path / "a.well", {"camera": CAMERA, "t": Array((), "int64")})
    values = [np.array([[number, t] for t in range(5 + number)], np.int16) for number in range(8)]
    source = [{"camera": rows_of(n) if n % 2 else values[n], "t": np.arange(5 + n)} for n in range(8)]
    write_episodes(store, source, workers=workers, progress=False, start_method="fork")
    store.refresh()
    for episode, expected in zip(store, values, strict=True):
        assert np.array_equal(episode["camera"], expected)
    assert store.verify(deep=True).is_ok
