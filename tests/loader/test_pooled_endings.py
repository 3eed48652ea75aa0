"""A pooled loader fails, stops, forks and moves as any other, and its memory stays within its bytes."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Field
from stepwell.errors import LoaderError
from stepwell.loader import Loader
from stepwell.loader.pool import BlockPool
from stepwell.order import pooled
from stepwell.store import Store
from stepwell.testing import tiny_store
from stepwell.windows.blocks import RowLoader

from .conftest import loader_threads
from .test_loader_processes import in_child

LENGTHS = (30, 12, 41, 7, 60)
FIELDS = {"number": Field("number", range(2)), "episode_index": "episode_index"}


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store whose rows take a millisecond each to decode."""
    features = {"number": stepwell.Array(2, "int64", codec="delayed", milliseconds=1)}
    return tiny_store(tmp_path_factory.mktemp("endings") / "slow.well", LENGTHS, schema=features)


def make(store: Store, **changes) -> Loader:
    order = pooled(2_000, seed=4, blocks=6)
    return Loader(store, FIELDS, **{"batch_size": 8, "threads": 2, "order": order, **changes})


def numbers_of(loader: Loader) -> list[int]:
    return [n for batch in loader for n in batch["number"][:, 0, 0].tolist()]


def failing_store(path: Path, number: int) -> Store:
    features = {"number": stepwell.Array((), "int64", codec="failing", at=number)}
    return tiny_store(path, LENGTHS, schema=features)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_row_that_cannot_be_decoded_is_named_at_the_first_batch_that_needs_its_block(
    tmp_path: Path, threads: int
) -> None:
    store = failing_store(tmp_path / "failing.well", 217)
    order = pooled(1_000, seed=1, blocks=6)
    loader = Loader(store, {"number": "number"}, batch_size=4, order=order, threads=threads)
    bound = order.bind(loader.reader.index)
    anchors = bound.positions(0, 0, bound.num_positions)
    # anchors are numbered by step: 30 + 12 of the first episodes, then step 17
    is_hit = bound.blocks.block_of(anchors) == bound.blocks.block_of(np.array([42 + 17]))[0]
    batches = iter(loader)
    for _ in range(int(np.argmax(is_hit)) // 4):
        next(batches)
    with pytest.raises(LoaderError, match=r"failing\.well: episode 2, step 17\b.*told to fail at 217"):
        next(batches)
    assert list(batches) == []
    assert not loader_threads()


def test_after_an_error_the_next_loop_decodes_again(tmp_path: Path) -> None:
    from stepwell.testing import FailingCodec

    store = failing_store(tmp_path / "failing.well", 3)
    order = pooled(1 << 20, seed=1, blocks=6)
    loader = Loader(store, {"number": "number"}, batch_size=4, order=order, threads=2)
    with pytest.raises(LoaderError):
        next(iter(loader))
    with FailingCodec.disarmed():
        seen = [n for batch in loader for n in batch["number"].tolist()]
    assert len(set(seen)) == sum(LENGTHS)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_no_thread_is_left_by_an_iterator_that_is_dropped(delayed: Store, taken: int) -> None:
    loader = make(delayed, epochs=None)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    del iterator
    assert not loader_threads()
    cycle: list = [iter(loader)]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    gc.collect()
    assert not loader_threads()


def test_a_loop_after_one_that_was_left_is_whole(delayed: Store) -> None:
    loader = make(delayed)
    expected = sorted(numbers_of(make(delayed, threads=0)))
    for taken in (0, 1, 3):
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        batches.close()
        assert sorted(numbers_of(loader)) == expected


@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_while_waiting_for_a_block_ends_the_iteration(delayed: Store, threads: int) -> None:
    loader = make(delayed, threads=threads, epochs=None)
    iterator = iter(loader)
    next(iterator)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            next(iterator)
    timer.join()
    assert list(itertools.islice(iterator, 1)) == []
    assert not loader_threads()
    assert len(numbers_of(make(delayed))) == sum(LENGTHS)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_loader_works_on_both_sides_of_a_fork(delayed: Store, threads: int) -> None:
    loader = make(delayed, threads=threads)
    expected = numbers_of(make(delayed))
    iterator = iter(loader)
    first = next(iterator)["number"][:, 0, 0].tolist()
    assert in_child(lambda: next(iterator)).startswith("LoaderError: this iterator is of process")
    assert in_child(lambda: numbers_of(make(delayed, threads=threads))) == str(expected)
    assert in_child(lambda: len(numbers_of(loader))) == str(len(expected))
    assert first + [n for batch in iterator for n in batch["number"][:, 0, 0].tolist()] == expected


def test_a_pickled_loader_goes_on_where_the_loader_was(delayed: Store) -> None:
    loader = make(delayed)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    assert [b["number"].tolist() for b in copy] == [b["number"].tolist() for b in iterator]


def test_a_slow_consumer_and_a_fast_one_see_the_same(delayed: Store) -> None:
    def slowly(loader: Loader):
        for batch in loader:
            time.sleep(0.004)
            yield batch["number"].tolist()

    expected = [batch["number"].tolist() for batch in make(delayed, threads=0)]
    assert list(slowly(make(delayed, threads=3, prefetch=4))) == expected
    assert [batch["number"].tolist() for batch in make(delayed, threads=5, prefetch=1)] == expected


@pytest.mark.parametrize("batch_size", [1, 8])
def test_all_threads_load_blocks_even_where_batches_are_small(
    delayed: Store, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, inside, most = RowLoader.load, [], []

    def watched(self: RowLoader, piece: np.ndarray, memory: np.ndarray) -> np.ndarray:
        inside.append(piece)
        most.append(len(inside))
        try:
            return load(self, piece, memory)
        finally:
            inside.pop()

    monkeypatch.setattr(RowLoader, "load", watched)
    loader = make(delayed, threads=3, batch_size=batch_size, order=pooled(700, seed=4, blocks=6))
    bound = loader.order.bind(loader.reader.index)
    assert len(bound.blocks) > 3 * bound.num_slots
    batches = iter(loader)
    next(batches)
    # the first pool is there; further blocks come one a round
    del most[:]
    for _ in batches:
        pass
    assert max(most) >= 2


@pytest.mark.parametrize("batch_size", [1, 2])
def test_small_batches_that_are_handed_over_together_need_no_more_than_the_pool_has(
    delayed: Store, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, held = BlockPool.take, []

    def watched(self: BlockPool, *arguments: Any, **named: Any) -> Any:
        tasks = take(self, *arguments, **named)
        held.append(self.num_held)
        return tasks

    monkeypatch.setattr(BlockPool, "take", watched)
    loader = make(delayed, threads=1, batch_size=batch_size, order=pooled(700, seed=4, blocks=6))
    assert len(numbers_of(loader)) == loader.num_positions
    assert max(held) <= loader.order.bind(loader.reader.index).num_slots


def test_the_interpreter_exits_while_blocks_are_loaded(delayed: Store) -> None:
    script = f"""
        import stepwell, stepwell.testing.codecs
        from stepwell.loader import Loader
        from stepwell.order import pooled
        store = stepwell.open({str(delayed.path)!r}, mode="r")
        loader = Loader(store, {{"number": "number"}}, order=pooled(2000, blocks=6), threads=3, epochs=None)
        it = iter(loader)
        cycle = [it]; cycle.append(cycle)
        print(len(next(it)["number"]), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "64\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("page_cache", [True, False])
def test_peak_memory_is_that_of_the_pool_whatever_the_stores_size(tmp_path: Path, page_cache: bool) -> None:
    row, steps, pool_bytes = 40_000, 1200, 8 << 20
    features = {"image": stepwell.Array(row, "uint8", codec="zstd"), "plain": stepwell.Array(row, "uint8")}
    store = stepwell.create(tmp_path / "large.well", features)
    with store.writer() as writer:
        for start in range(0, steps, 100):
            values = np.repeat(np.arange(start, start + 100).astype(np.uint8)[:, None], row, axis=1)
            writer.add_episode({"image": values, "plain": values})
    # cached files are the system's, and count only where the loader goes past its cache
    counted = "RssAnon:" if page_cache else "VmRSS:"
    script = f"""
        import stepwell
        from pathlib import Path
        from stepwell.loader import Loader
        from stepwell.order import pooled
        def own():
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line.split()[1] for line in lines if line.startswith({counted!r})))
        store = stepwell.open({str(store.path)!r}, mode="r")
        fields = {{"image": range(2), "plain": range(2)}}
        def epoch(view, count):
            loader = Loader(view, fields, batch_size=8, order=pooled({pool_bytes}, blocks=8), threads=2,
                            page_cache={page_cache})
            most = seen = 0
            for batch in loader:
                seen += len(batch["image"])
                most = max(most, own())
            assert seen == count
            return most
        epoch(stepwell.View(store).select([0]), 100)
        before = own()
        print(epoch(stepwell.View(store), {steps}) - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    # the batches under way, each of 8 windows of two steps of both features, and what the allocator keeps
    assert int(done.stdout) < pool_bytes + 8 * (8 * 4 * row) + (6 << 20) < steps * row
