"""Good headers stay good where threads get in each other's way."""

import errno
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import CorruptSegmentError
from stepwell.schema import Array
from stepwell.store import beneath, create
from stepwell.store.beneath import MAX_TRIES, read_again, read_past_cache
from stepwell.store.statistics import load_statistics


def stumbling(times: int) -> object:
    left = [times]

    def read() -> str:
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return "read"

    return read


@pytest.mark.parametrize("times", [0, 1, MAX_TRIES - 1])
def test_a_reader_that_stumbles_is_asked_again(times):
    assert read_again(stumbling(times)) == "read"


def test_one_that_stumbles_every_time_is_given_up():
    with pytest.raises(SystemError, match="recursion depth"):
        read_again(stumbling(MAX_TRIES))


def test_statistics_are_not_called_damaged_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "a.well", {"x": Array(2)})
    with store.writer() as writer:
        writer.add_episode({"x": np.ones((4, 2), np.float32)})
    store.refresh()
    folder = store.segments[0].path
    load, stumbles = np.load, iter([True, True, False])

    def stumbling_load(*arguments, **options):
        if next(stumbles, False):
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", stumbling_load)
    assert load_statistics(folder, iter(["x"]))["x"].mean.tolist() == [1, 1]
    monkeypatch.setattr(np, "load", lambda *_, **__: stumbling(MAX_TRIES + 1)())
    with pytest.raises(CorruptSegmentError, match="damaged"):
        load_statistics(folder)


SIZE = 3 * beneath.BUFFER_BYTES + 4096 + 77


@pytest.fixture(scope="module")
def content() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory, content: np.ndarray) -> Any:
    path: Path = tmp_path_factory.mktemp("direct") / "file"
    path.write_bytes(content.tobytes())
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def read(descriptor: int, start: int, num_bytes: int, **how: Any) -> np.ndarray:
    out = np.full(num_bytes, 7, np.uint8)
    return out[: read_past_cache(descriptor, start, out, **how)]


@settings(deadline=None, max_examples=40)
@given(start=st.integers(0, SIZE + 10), num_bytes=st.integers(0, SIZE), is_direct=st.booleans())
def test_any_span_is_the_files_and_ends_where_the_file_does(
    descriptor: int, content: np.ndarray, start: int, num_bytes: int, is_direct: bool
) -> None:
    found = read(descriptor, start, num_bytes, is_direct=is_direct)
    np.testing.assert_array_equal(found, content[start : start + num_bytes])


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, SIZE - 77, SIZE - 1, SIZE])
@pytest.mark.parametrize("num_bytes", [1, 4095, 4097, beneath.BUFFER_BYTES + 1])
def test_edges_of_blocks_and_of_the_buffer_are_no_edges(
    descriptor: int, content: np.ndarray, start: int, num_bytes: int
) -> None:
    np.testing.assert_array_equal(read(descriptor, start, num_bytes), content[start : start + num_bytes])


def refusing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let reads by O_DIRECT fail."""

    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(beneath, "_set_direct", lambda *_: True)
    monkeypatch.setattr(beneath, "_read_direct", fail)


def test_where_direct_reads_are_refused_the_cache_is_used(
    monkeypatch: pytest.MonkeyPatch, descriptor: int, content: np.ndarray
) -> None:
    read(descriptor, 0, 10, is_direct=False)
    refusing(monkeypatch, errno.EINVAL)
    np.testing.assert_array_equal(read(descriptor, 5, 9_000), content[5:9_005])


def test_an_error_of_the_disk_is_no_reason_to_try_otherwise(monkeypatch: pytest.MonkeyPatch, descriptor: int) -> None:
    refusing(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        read(descriptor, 0, 10)


def test_a_read_that_gets_less_than_it_asked_for_goes_on(
    monkeypatch: pytest.MonkeyPatch, descriptor: int, content: np.ndarray
) -> None:
    whole = os.preadv

    def part(which: int, buffers: Any, offset: int) -> int:
        return whole(which, [memoryview(buffers[0])[: max(4096, len(buffers[0]) // 3 & -4096)]], offset)

    monkeypatch.setattr(os, "preadv", part)
    for is_direct in (True, False):
        found = read(descriptor, 100, 2_000_000, is_direct=is_direct)
        np.testing.assert_array_equal(found, content[100:2_000_100])


def test_threads_do_not_share_a_buffer(tmp_path: Path, content: np.ndarray) -> None:
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    start_together = threading.Barrier(4)

    def check(number: int) -> None:
        opened = os.open(path, os.O_RDONLY)
        start_together.wait()
        try:
            for start in range(number, SIZE, 300_007):
                np.testing.assert_array_equal(read(opened, start, 250_000), content[start : start + 250_000])
        finally:
            os.close(opened)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(4)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_buffer_of_its_own(descriptor: int, content: np.ndarray) -> None:
    read(descriptor, 0, 4096)
    before = beneath._BUFFER.bytes[:4096].copy()
    child = os.fork()
    if child == 0:
        beneath._BUFFER.bytes[:4096] += 1
        os._exit(0)
    os.waitpid(child, 0)
    np.testing.assert_array_equal(beneath._BUFFER.bytes[:4096], before)


@pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT")
def test_what_a_writer_has_not_flushed_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    with path.open("wb", buffering=0) as file:
        for number in range(5):
            file.write(bytes([number]) * 5_000)
            opened = os.open(path, os.O_RDONLY)
            try:
                assert read(opened, 5_000 * number, 6_000).tolist() == [number] * 5_000
            finally:
                os.close(opened)
