"""Codecs that misbehave on purpose do so only where they are told to."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Array, Image, Text
from stepwell.testing import CodecConformance, DelayedCodec, FailingCodec, RunningCodec, SlowRunningCodec, tiny_store


class TestFailingCodec(CodecConformance):
    feature = Array((3,), "int64", codec="failing")


class TestDelayedCodec(CodecConformance):
    feature = Array((None, 2), "float32", codec="delayed", milliseconds=0)
    detects_truncation = False


class TestRunningCodec(CodecConformance):
    feature = Array((3, 2), "uint8", codec="running", lag=2)


class TestSlowRunningCodec(CodecConformance):
    feature = Array((), "int64", codec="slow-running", milliseconds=0)


def _views(blobs: list[bytes]) -> list[np.ndarray]:
    return [np.frombuffer(blob, np.uint8) for blob in blobs]


def test_running_codec_keeps_rows_back_and_begins_a_run_after_an_end() -> None:
    codec = RunningCodec(Array((), "uint8", codec="running", run=3, lag=2))
    encoder = codec.encoder()
    blobs = [encoder.put(np.uint8(t)) for t in (250, 3, 7, 9)]
    assert [len(ready) for ready in blobs] == [0, 0, 1, 1]
    rows = [blob for ready in blobs for blob in ready] + encoder.end()
    position, mask = codec.sync_mark
    assert [bool(row[position] & mask) for row in [*rows, *encoder.put(np.uint8(1)), *encoder.end()]] == [1, 0, 0, 1, 1]
    outs = [np.empty((), np.uint8), np.empty((), np.uint8)]
    codec.decode_run(_views(rows[:3]), [0, 2], outs)
    assert outs == [250, 7]


def test_running_codec_resizes_when_it_decodes() -> None:
    codec = RunningCodec(Image((4, 4), codec="running"))
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    out = np.empty((2, 2), np.uint8)
    codec.decode_run(_views([codec.encode(image)]), [0], [out], (2, 2))
    assert out.tolist() == [[0, 2], [8, 10]]


def test_slow_running_codec_sleeps_at_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    encoder = SlowRunningCodec(Array((), "uint8", codec="slow-running", milliseconds=250)).encoder()
    encoder.put(np.uint8(1))
    encoder.put(np.uint8(2))
    assert slept == [0.25, 0.25]


def test_failing_codec_fails_at_one_row_of_a_store(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "a.well", schema={"camera": Array((2, 2), "int32", codec=FailingCodec.name, at=102)})
    assert store[0]["camera"].shape == (5, 2, 2)
    with pytest.raises(DecodeError, match="told to fail at 102"):
        _ = store[1]["camera"]


def test_failing_codec_fails_at_one_step_of_a_writer(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="told to fail at 102"):
        tiny_store(tmp_path / "a.well", schema={"camera": Array(2, "int32", codec="failing", at=102, on="encode")})


def test_failing_codec_refuses_what_has_no_first_integer() -> None:
    for feature in (Array(2, codec="failing"), Text(codec="failing"), Array((None,), "int64", codec="failing")):
        with pytest.raises(SchemaError, match="integer arrays of fixed shape"):
            make_codec(feature)


def test_delayed_codec_sleeps_at_every_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    codec = DelayedCodec(Image((2, 2), codec="delayed", milliseconds=250))
    blob = np.frombuffer(codec.encode(np.eye(2, dtype=np.uint8)), np.uint8)
    codec.decode(blob)
    codec.decode_into(blob, np.empty((2, 2), np.uint8))
    assert slept == [0.25, 0.25]
