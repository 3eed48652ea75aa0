"""Rows that are encoded already are stored as they are."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Array
from stepwell.codecs import make_codec
from stepwell.errors import DiskFullError, StepError
from stepwell.schema import Bytes, Feature, Image, Text
from stepwell.store import EncodedRows, Store, create
from stepwell.testing import RunningCodec

RUNNING = Array((2, 3), "int32", codec="running", lag=1, final=True)
SLOW = Array((2, 3), "int32", codec="slow-running", milliseconds=0)
PNG = Image((4, 5), codec="png", final=True)


def rows_of(feature: Feature, length: int) -> np.ndarray:
    count = length * int(np.prod(feature.fixed_shape))
    return np.arange(count).reshape(length, *feature.fixed_shape).astype(feature.np_dtype)


def encoded(feature: Feature, length: int) -> EncodedRows:
    """Return the rows above as the feature's codec has them."""
    codec = make_codec(feature)
    if not isinstance(codec, RunningCodec):
        return EncodedRows(codec.encode(row) for row in rows_of(feature, length))
    encoder = codec.encoder()
    blobs = [blob for row in rows_of(feature, length) for blob in encoder.put(row)]
    return EncodedRows(blobs + encoder.end())


def stored_bytes(store: Store, name: str) -> bytes:
    return b"".join(segment.blob_map(name).tobytes() for segment in store.segments)


@pytest.mark.parametrize("feature", [PNG, RUNNING, SLOW, Text(codec="zstd"), Bytes()], ids=str)
@pytest.mark.parametrize("has_final", [False, True])
def test_encoded_rows_are_stored_as_they_are(tmp_path: Path, feature: Feature, has_final: bool) -> None:
    if has_final and not feature.final:
        pytest.skip("no final rows")
    store = create(tmp_path / "a.well", {"front": feature, "t": Array((), "int64")})
    length = 6 + has_final
    if feature.is_ragged:
        codec = make_codec(feature)
        given = EncodedRows(
            codec.encode("abcdefgh"[:t] if feature.kind == "text" else b"abcdefgh"[:t]) for t in range(6)
        )
    else:
        given = encoded(feature, length)
    with store.writer() as writer:
        writer.add_episode({"front": given, "t": np.arange(6)}, number=0)
        writer.add_episode({"front": given, "t": np.arange(6)}, number=1)
    assert stored_bytes(store, "front") == 2 * b"".join(given)
    for episode in store:
        assert (episode.length, episode.has_final) == (6, has_final)
        if not feature.is_ragged:
            assert np.array_equal(episode["front"], rows_of(feature, length))
    assert store.verify(deep=True).is_ok


def test_encoded_rows_and_values_follow_each_other_in_one_episode(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"slow": SLOW, "front": RUNNING.with_final(False)})
    rows = rows_of(SLOW, 5)
    with store.writer() as writer:
        writer.append_batch({"slow": rows, "front": rows})
        writer.append_batch({"slow": encoded(SLOW, 5), "front": rows})
        writer.append(slow=rows[0], front=rows[0])
        writer.append_batch({"slow": rows, "front": encoded(RUNNING, 5)})
        writer.end_episode()
    expected = np.concatenate([rows, rows, rows[:1], rows])
    assert np.array_equal(store[0]["slow"], expected)
    assert np.array_equal(store[0]["front"], expected)
    assert store.verify(deep=True).is_ok


class Film:
    """Something like a video file: it has rows when asked."""

    num_rows = 6

    def rows(self, feature: Feature) -> Iterator[bytes]:
        yield from encoded(feature, 6)


def test_whatever_gives_encoded_rows_is_taken(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": SLOW, "t": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"front": Film(), "t": np.arange(6)})
    store.add_column("back", PNG.with_final(False), [Film()])
    assert np.array_equal(store[0]["front"], rows_of(SLOW, 6))
    assert np.array_equal(store[0]["back"], rows_of(PNG, 6))


class Liar(Film):
    num_rows = 7


@pytest.mark.parametrize(
    ("feature", "given", "message"),
    [
        (Array((2, 3), "int32"), encoded(SLOW, 6), "'front': got encoded rows .* not encoded"),
        (PNG, encoded(SLOW, 6), "'front': the first of the encoded rows is no row of png 4x5 uint8"),
        (SLOW, EncodedRows(list(encoded(SLOW, 7))[1:]), "'front': .* begins a run"),
        (SLOW, EncodedRows([b""] * 6), "'front': .* begins a run"),
        (SLOW, encoded(SLOW, 5), "columns of different lengths"),
        (SLOW, encoded(RUNNING, 7), "columns of different lengths"),
        (SLOW, Liar(), "'front': .* has num_rows = 7 and gave 6 rows"),
    ],
)
def test_encoded_rows_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, feature: Feature, given: Any, message: str
) -> None:
    store = create(tmp_path / "a.well", {"front": feature, "t": Array((), "int64")})
    with store.writer() as writer, pytest.raises(StepError, match=message):
        writer.add_episode({"front": given, "t": np.arange(6)})
    assert len(store) == 0


def test_a_schema_cannot_be_inferred_from_encoded_rows(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well")
    with store.writer() as writer, pytest.raises(StepError, match="'front': a schema cannot be inferred"):
        writer.add_episode({"front": encoded(SLOW, 2), "t": [0, 1]})
    assert store.schema is None


def test_encoded_rows_are_bytes(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="row 1 is a ndarray"):
        EncodedRows([b"", np.zeros(3)])  # type: ignore[list-item]
    rows = EncodedRows([b"a", b"bc", b"d"])
    assert (len(rows), rows.num_rows, rows[1], list(rows[1:]), list(rows.rows(SLOW))) == (
        *(3, 3, b"bc"),
        [b"bc", b"d"],
        [b"a", b"bc", b"d"],
    )
    assert repr(rows) == "<EncodedRows 3 rows, 4 bytes>"


def in_memory(blobs: list[bytes]) -> EncodedRows:
    """Return rows that lie in one piece of memory, a byte of something else before each."""
    sizes = np.array([len(blob) for blob in blobs], np.int64)
    data = np.frombuffer(b"".join(b"#" + blob for blob in blobs), np.uint8)
    return EncodedRows.in_memory(data, np.cumsum(sizes + 1) - sizes, sizes)


@pytest.mark.parametrize(("count", "size"), [(3000, 5), (3000, 1500), (2, 300_000)])
def test_rows_in_memory_are_stored_as_they_are_by_few_calls(tmp_path: Path, count: int, size: int) -> None:
    blobs = [bytes([number % 251]) * (size + number % 7) for number in range(count)]
    store = create(tmp_path / "a.well", {"blob": Bytes()})
    with store.writer() as writer:
        writer.add_episode({"blob": in_memory(blobs)})
        writer.add_episode({"blob": blobs[:3]})
        writer.add_one_step_episodes({"blob": in_memory(blobs)})
    assert store[0]["blob"] == blobs
    assert store[1]["blob"] == blobs[:3]
    assert store[-1]["blob"] == blobs[-1:]
    assert stored_bytes(store, "blob") == b"".join([*blobs, *blobs[:3], *blobs])
    assert store.verify(deep=True).is_ok


def test_what_the_system_does_not_take_at_once_is_written_by_more_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = [bytes([number]) * 2000 for number in range(100)]
    whole = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, buffers, place: whole(descriptor, [b"".join(buffers)[:12345]], place)
    )
    store = create(tmp_path / "a.well", {"blob": Bytes()})
    with store.writer() as writer:
        writer.add_episode({"blob": in_memory(blobs)})
    assert store[0]["blob"] == blobs


def test_a_full_disk_leaves_rows_in_memory_unstored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int, buffers: Any, place: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    store = create(tmp_path / "a.well", {"blob": Bytes()})
    with store.writer() as writer:
        writer.add_episode({"blob": [b"first"]})
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", fill)
            with pytest.raises(DiskFullError):
                writer.add_episode({"blob": in_memory([b"x" * 5000] * 3)})
        writer.add_episode({"blob": in_memory([b"y" * 5000] * 2)})
    assert [episode["blob"] for episode in store] == [[b"first"], [b"y" * 5000] * 2]


def test_rows_in_memory_are_sent_and_cut_as_others() -> None:
    rows = in_memory([b"a", b"bc", b"def"])
    assert list(pickle.loads(pickle.dumps(rows))) == [b"a", b"bc", b"def"]
    assert (rows[1], list(rows[1:]), rows.nbytes, len(rows[3:])) == (b"bc", [b"bc", b"def"], 6, 0)


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, -1), (2, 2)])
def test_rows_beyond_their_memory_are_refused(offset: int, size: int) -> None:
    with pytest.raises(StepError, match="of 3\\. Give what lies within"):
        EncodedRows.in_memory(np.zeros(3, np.uint8), np.array([0, offset]), np.array([1, size]))
