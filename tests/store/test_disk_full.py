"""A full disk: a clear error, and a store that still opens with everything committed."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import DiskFullError, StepwellError
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import create, open

SCHEMA = Schema({"image": Array((64, 64), "uint8"), "blob": Bytes(), "t": Array((), "int64")})


def step(t: int) -> dict[str, Any]:
    return {"image": np.full((64, 64), t % 256, np.uint8), "blob": b"%d" % t * 50, "t": t}


def check(path: Path, at_least: int) -> int:
    """Open the store, check every step that it shows, return how many there are."""
    store = open(path)
    shown = 0
    for episode in store:
        for place, t in enumerate(episode["t"]):
            assert np.array_equal(episode["image"][place], step(int(t))["image"])
            assert episode["blob"][place] == step(int(t))["blob"]
            assert int(t) == shown
            shown += 1
    assert shown >= at_least
    return shown


def open_handles() -> int:
    # those of tests before are closed when their garbage is collected, which may be now
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


class FailingCalls:
    """Lets the first ``good`` calls that take space through; then the disk is full until it is told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, good: int) -> None:
        self.left = good
        for name in ("posix_fallocate", "pwrite"):
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        return call


@pytest.mark.parametrize("good", [*range(0, 60, 3), 100, 200])
def test_the_disk_may_fill_up_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    path = tmp_path / "a.well"
    store = create(path, SCHEMA)
    committed = 0
    with monkeypatch.context() as patch:
        full = FailingCalls(patch, good)
        out = store.writer()
        try:
            for t in range(600):
                out.append(step(t))
                committed += 1
                if t % 50 == 49:
                    out.end_episode()
        except DiskFullError as error:
            assert "no space left" in str(error)
            assert error.errno == errno.ENOSPC
        handles = open_handles()
        for left in range(10):
            full.left = left
            with pytest.raises(DiskFullError):
                store.writer().append(step(0))
        assert open_handles() == handles  # a segment that could not be made leaves nothing open
        full.left = 10**9  # somebody made room: the same writer goes on
        for t in range(committed, committed + 5):
            out.append(step(t))
        out.end_episode()
        out.close()
    assert check(path, committed + 5) == committed + 5
    assert open(path).verify().is_ok


def test_a_writer_that_cannot_be_closed_for_want_of_space_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    out = create(path, SCHEMA).writer()
    for t in range(10):
        out.append(step(t))
    out.end_episode()
    with monkeypatch.context() as patch:
        from stepwell.store import layout

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(layout.os, "replace", full)
        with pytest.raises(DiskFullError, match="no space left"):
            out.close()
    assert check(path, 10) == 10
    assert open(path).segments[0].is_sealed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_real_disk_that_fills_up_gives_an_error_and_keeps_what_was_committed(small_disk: Path) -> None:
    path = small_disk / "a.well"
    out = create(path, SCHEMA).writer()
    committed = 0
    with pytest.raises(DiskFullError):
        while True:
            out.append(step(committed))
            committed += 1
            if committed % 20 == 0:
                out.end_episode()
    assert committed > 100
    try:
        out.close()
    except StepwellError:
        del out
    store = open(path, mode="r")
    assert store.num_steps == committed
    assert check(path, committed) == committed
