"""The measurement of a stream."""

import json
from pathlib import Path

import numpy as np
import pytest

from stepwell.cli.benching import StreamReport, batch_bytes, stream
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
