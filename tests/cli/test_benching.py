"""The measurement of a stream."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.cli.benching import StreamReport, advice, batch_bytes, stream
from stepwell.cli.main import main
from stepwell.progress import NoBar


def test_first_batch_is_kept_out_of_the_rate() -> None:
    batches = [
        {"x": np.zeros((10, 4), np.float32)},
        {"x": np.zeros((10, 4), np.float32)},
        {"x": np.zeros((3, 4), np.float32)},
    ]
    report = stream(batches, NoBar())
    assert (report.num_windows, report.num_bytes) == (13, 13 * 16)


def test_a_stream_without_end_stops_when_the_time_is_up() -> None:
    batch = {"x": np.zeros((10, 4), np.float32)}

    def forever():
        while True:
            yield batch

    assert stream(forever(), NoBar(), max_seconds=0.01).num_windows > 0


def test_an_empty_stream_has_rate_zero() -> None:
    assert stream([], NoBar()).windows_per_second == 0


def test_ragged_values_are_counted_by_what_they_hold() -> None:
    ragged = np.empty(3, object)
    ragged[:] = ["ab", b"abc", np.zeros(2)]
    assert batch_bytes({"t": ragged, "x": np.zeros(3, np.int64)}) == 2 + 3 + 16 + 24


def test_report_divides_by_memcpy() -> None:
    report = StreamReport(100, 4_000_000_000, 2.0, 0.1, 8.0)
    assert (report.windows_per_second, report.gb_per_s, report.memcpy_ratio) == (50, 2, 0.25)
    assert str(report) == "50 windows/s   2.00 GB/s   0.25 of memcpy (8.0 GB/s)"


@pytest.mark.parametrize("order", ["random", "sequential", "pooled"])
def test_bench_streams_in_every_order_past_the_page_cache_too(
    order: str, toy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(toy_path), "--order", order, "--no-page-cache", "--seconds", "0.01", "--batch-size", "2"]
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["order"], record["page_cache"]) == (order, False)
    assert record["windows"] > 0


FAST, SLOW = StreamReport(10, 8_000_000_000, 1.0, 0.1, 8.0), StreamReport(10, 10_000, 1.0, 0.1, 8.0)
FILM = {"gop": 10, "encoder": "h264"}


@pytest.mark.parametrize(
    ("offsets", "order", "threads", "report", "hints"),
    [
        ({"film": [0]}, "random", None, SLOW, ["film is video: a window decodes from the keyframe before it."]),
        ({"image": [-1, 0]}, "random", None, SLOW, ["image is jpeg: each step is decoded 2 times an epoch."]),
        ({"image": [0]}, "random", None, SLOW, []),
        ({"image": [-1, 0], "film": [0]}, "pooled", None, SLOW, []),
        ({"image": [-1, 0]}, "sequential", 0, SLOW, ["image: decoded by the thread that takes the batches."]),
        ({"state": [0]}, "random", 0, SLOW, ["windows are small, and their number is the cost"]),
        ({"state": [0]}, "random", None, FAST, ["windows come about as fast as memory is copied"]),
    ],
)
def test_advice_names_what_takes_the_time(
    offsets: dict[str, Sequence[int]], order: str, threads: int | None, report: StreamReport, hints: list[str]
) -> None:
    pytest.importorskip("av")
    pytest.importorskip("simplejpeg")
    schema = {
        "film": stepwell.Video((32, 48, 3), **FILM),
        "image": stepwell.Image((32, 48, 3), codec="jpeg"),
        "state": stepwell.Array(2),
    }
    found = advice(stepwell.create(":memory:", schema), offsets, order, threads, report)
    assert len(found) == len(hints)
    assert all(line.startswith(hint) for line, hint in zip(found, hints, strict=True))


def test_bench_prints_its_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": stepwell.Image((16, 16, 3), codec="png")})
    with store.writer() as writer:
        writer.add_episode({"image": np.zeros((30, 16, 16, 3), np.uint8)})
    words = ["bench", str(tmp_path / "a.well"), "--seconds", "0.01", "--batch-size", "2"]
    assert main(words) == 0
    assert "image is png: each step is decoded 2 times an epoch. Try --order pooled" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["advice"]) >= 1
