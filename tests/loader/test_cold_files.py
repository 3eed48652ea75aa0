"""A store larger than memory streams through a small one: no row stays in the page cache, nor with the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Loader
from stepwell.files.local_files import map_file
from stepwell.order import pooled
from stepwell.store import beneath

PAGE_BYTES = 4096
ROW_BYTES = 12_000
NUM_STEPS = 1_500
POOL_BYTES = 6 << 20
FEATURES = {
    "plain": stepwell.Array(ROW_BYTES, "uint8"),
    "packed": stepwell.Array(ROW_BYTES, "uint8", codec="zstd"),
    "number": stepwell.Array((), "int64"),
}
FIELDS = {"plain": [-1, 0], "packed": [0, 1], "number": 0}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="page cache as Linux tells of it")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    store = stepwell.create(tmp_path_factory.mktemp("cold") / "cold.well", FEATURES, segment_bytes=10 << 20)
    noise = np.random.default_rng(0).integers(0, 256, (100, ROW_BYTES)).astype(np.uint8)
    with store.writer() as writer:
        for start in range(0, NUM_STEPS, 100):
            writer.add_episode(
                {"plain": noise + np.uint8(start % 251), "packed": noise, "number": np.arange(start, start + 100)}
            )
    store.refresh()
    return store


def row_files(store: stepwell.Store, suffixes: tuple[str, ...] = (".npy", ".bin")) -> list[Path]:
    names = set(FEATURES)
    return [p for s in store.segments for p in s.path.iterdir() if p.suffix in suffixes and p.stem in names]


def forget(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(path: Path) -> int:
    file = map_file(str(path), path.stat().st_size)
    pages = np.zeros(-(-file.size // PAGE_BYTES), np.uint8)
    libc = ctypes.CDLL(None)
    arguments = (ctypes.c_void_p(file.ctypes.data), ctypes.c_size_t(file.size), ctypes.c_void_p(pages.ctypes.data))
    assert libc.mincore(*arguments) == 0
    return int((pages & 1).sum())


@pytest.mark.parametrize("order", ["sequential", pooled(POOL_BYTES, seed=1)], ids=["sequential", "pooled"])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("is_direct", [True, False])
def test_an_epoch_leaves_no_rows_in_the_page_cache(
    monkeypatch: pytest.MonkeyPatch, store: stepwell.Store, order: Any, threads: int, is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(beneath, "_set_direct", lambda *_: False)
    files = row_files(store)
    # maps of an earlier loader keep pages
    forget(files)
    if sum(map(cached_pages, files)) > 0:
        pytest.skip("the file system of the tests keeps its files in memory")
    loader = Loader(store, FIELDS, batch_size=16, order=order, threads=threads, page_cache=False)
    assert sum(len(batch["number"]) for batch in loader) == NUM_STEPS
    num_cached = sum(map(cached_pages, files)) * PAGE_BYTES
    # headers and offsets of rows; without O_DIRECT also some pages that two spans share
    assert num_cached < 2 * NUM_STEPS * ROW_BYTES // (50 if is_direct else 8)
    del loader
    assert sum(len(batch["number"]) for batch in Loader(store, FIELDS, batch_size=16)) == NUM_STEPS
    assert sum(map(cached_pages, files)) * PAGE_BYTES > NUM_STEPS * ROW_BYTES


def test_a_block_is_read_by_one_span_a_column(monkeypatch: pytest.MonkeyPatch, store: stepwell.Store) -> None:
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    whole = beneath.read_past_cache

    def noted(descriptor: int, start: int, out: Any, **how: Any) -> int:
        spans[Path(f"/proc/self/fd/{descriptor}").readlink().name].append((start, out.nbytes))
        return whole(descriptor, start, out, **how)

    monkeypatch.setattr("stepwell.store.segments.read_past_cache", noted)
    order = pooled(POOL_BYTES, seed=1)
    loader = Loader(store, FIELDS, batch_size=16, order=order, threads=2, page_cache=False)
    for batch in loader:
        del batch
    num_pieces = len(order.bind(loader.reader.index).blocks.pieces)
    num_loads = len(spans["plain.npy"])
    assert {name: len(found) for name, found in spans.items()} == dict.fromkeys(
        ("plain.npy", "packed.bin", "number.npy"), num_loads
    )
    # where threads wait long for a processor, a block that had to go may be loaded again
    assert num_pieces <= num_loads <= 1.1 * num_pieces
    # each row about once: a block carries a step of each neighbour
    num_bytes = sum(size for _, size in spans["plain.npy"])
    assert NUM_STEPS * ROW_BYTES <= num_bytes <= 1.1 * (NUM_STEPS + 2 * num_pieces) * ROW_BYTES


def test_memory_is_flat_over_epochs_of_a_store_many_times_the_pool(store: stepwell.Store) -> None:
    script = f"""
        import resource
        from pathlib import Path
        import stepwell
        from stepwell.order import pooled
        def status(name):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))
        store = stepwell.open({str(store.path)!r}, mode="r")
        loader = stepwell.Loader(
            store, {FIELDS!r}, batch_size=16, order=pooled({POOL_BYTES}), threads=2, page_cache=False
        )
        found = []
        for epoch in range(4):
            assert sum(len(batch["number"]) for batch in loader) == {NUM_STEPS}
            found.append(status("VmRSS:"))
            if epoch == 0:
                # the stacks of two threads, 8 MiB each, and a quarter of what an epoch loads
                limit = status("VmData:") + (16 << 20) + {NUM_STEPS * 2 * ROW_BYTES // 4}
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        print(max(found[1:]) - found[0])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3 << 20 < NUM_STEPS * ROW_BYTES // 4
