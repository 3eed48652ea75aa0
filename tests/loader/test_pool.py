"""Slots are given out and taken back without a thread, so that each rule is one test."""

import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.loader import pool as pool_module
from stepwell.loader.pool import BlockPool
from stepwell.windows.blocks import Blocks
from stepwell.windows.maps import MapTable

ANCHORS, PIECES = 6, 2


def blocks_of(number: int) -> Blocks:
    """Return blocks of six anchors in two pieces each."""
    pieces = np.zeros((PIECES * number, 7), np.int64)
    pieces[:, 0] = np.arange(PIECES * number) * (ANCHORS // PIECES)
    return Blocks(np.arange(number + 1) * ANCHORS, pieces, np.arange(number + 1) * PIECES, 128)


class Rows:
    """Loads a piece by writing its first anchor into memory; what is loaded is written down."""

    columns = ()

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.broken: set[int] = set()

    def new_table(self, num_pieces: int) -> MapTable:
        return MapTable(1, num_pieces)

    def num_bytes(self, pieces: np.ndarray) -> np.ndarray:
        return np.full(len(pieces), 64)

    def load(self, piece: np.ndarray, memory: np.ndarray) -> np.ndarray:
        anchor = int(piece[0])
        if anchor // ANCHORS in self.broken:
            raise ValueError(f"anchor {anchor}")
        self.loaded.append(anchor)
        memory.view(np.int64)[0] = anchor
        return np.array([memory.ctypes.data, 0])


def make(num_blocks: int, num_slots: int) -> tuple[BlockPool, Rows]:
    rows = Rows()
    return BlockPool(blocks_of(num_blocks), rows, num_slots), rows


def run(tasks: Any) -> None:
    for task in tasks:
        task()


def visit(pool: BlockPool, needed: list[int], upcoming: tuple[int, ...] = ()) -> None:
    run(pool.take(needed, upcoming, is_forced=True))
    check(pool, needed)
    pool.give_back(needed)


def check(pool: BlockPool, needed: list[int]) -> None:
    """Read the anchors of held blocks from where the pool says they are."""
    anchors = np.concatenate([np.arange(block * ANCHORS, (block + 1) * ANCHORS) for block in needed])
    held = pool.held(needed, anchors).wait()
    firsts = [_int_at(address) for address in held.table.addresses[0, held.columns].tolist()]
    assert firsts == (anchors // 3 * 3).tolist()


def _int_at(address: int) -> int:
    import ctypes

    return ctypes.c_int64.from_address(address).value


def test_a_block_is_loaded_once_for_all_who_need_it() -> None:
    pool, rows = make(4, 3)
    first, second = pool.take([0, 1], (), is_forced=False), pool.take([1, 2], (), is_forced=False)
    assert (len(first), len(second)) == (2, 1)
    run(first + second)
    check(pool, [0, 1, 2])
    assert rows.loaded == [0, 3, 6, 9, 12, 15]


def test_who_finds_no_room_is_refused_and_nothing_has_changed() -> None:
    pool, _ = make(5, 3)
    run(pool.take([0, 1], (), is_forced=False))
    assert pool.take([1, 2, 3], (), is_forced=False) is None
    assert pool.num_held == 2
    pool.give_back([0, 1])
    run(pool.take([1, 2, 3], (), is_forced=False))
    check(pool, [1, 2, 3])


def test_the_oldest_job_may_exceed_the_bound_until_it_is_done() -> None:
    pool, rows = make(8, 2)
    visit(pool, [0])
    run(pool.take([1, 2, 3, 4, 5], (5, 3), is_forced=True))
    assert (pool.num_held, pool.num_bytes) == (5, 5 * pool.slot_bytes)
    check(pool, [1, 2, 3, 4, 5])
    pool.give_back([1, 2, 3, 4, 5])
    assert pool.num_bytes == 2 * pool.slot_bytes
    del rows.loaded[:]
    visit(pool, [3, 5])
    assert rows.loaded == []


def test_a_block_that_is_not_needed_leaves_before_one_that_is_and_the_last_needed_first() -> None:
    pool, rows = make(9, 4)
    for block in range(4):
        visit(pool, [block], (0, 2, 1))
    visit(pool, [4], (0, 2, 1))
    visit(pool, [5], (0, 2, 1, 4))
    visit(pool, [6], (0, 2, 1))
    del rows.loaded[:]
    visit(pool, [0, 1, 2])
    assert rows.loaded == []
    visit(pool, [7], (1, 0))
    visit(pool, [8], (1, 0))
    del rows.loaded[:]
    visit(pool, [0, 1])
    assert rows.loaded == []


def test_without_knowledge_the_least_recently_read_leaves() -> None:
    pool, rows = make(5, 3)
    for block in (0, 1, 2, 0, 3):
        visit(pool, [block])
    del rows.loaded[:]
    visit(pool, [0, 2, 3])
    assert rows.loaded == []


def test_loading_ahead_takes_no_block_that_is_needed_and_no_more_than_the_limit() -> None:
    pool, _ = make(9, 4)
    run(pool.take([0, 1], (1, 0, 2, 3, 4), is_forced=False))
    ahead = pool.take_ahead(1)
    assert len(ahead) == 1
    assert pool.take_ahead(1) == []
    run(ahead)
    run(pool.take_ahead(9))
    assert pool.num_held == 4
    assert pool.take_ahead(9) == []
    pool.give_back([0, 1])
    pool.take([2], (2, 3, 4, 5), is_forced=False)
    run(pool.take_ahead(9))
    check(pool, [2, 3, 4, 5])


def test_a_slot_that_is_being_loaded_goes_to_nobody_else() -> None:
    pool, _ = make(5, 2)
    pool.take([0], (1,), is_forced=False)
    (ahead,) = pool.take_ahead(3)
    assert pool.take([2], (), is_forced=False) is None
    ahead()
    assert pool.take([2], (), is_forced=False) is not None


def test_an_error_is_for_all_who_wait_and_is_forgotten_when_the_pool_is_settled() -> None:
    pool, rows = make(5, 2)
    rows.broken = {1}
    run(pool.take([0, 1], (), is_forced=False))
    check(pool, [0])
    for _ in range(2):
        with pytest.raises(ValueError, match="anchor 6"):
            pool.held([0, 1], np.array([0, 7])).wait()
    pool.settle()
    rows.broken = set()
    del rows.loaded[:]
    visit(pool, [0, 1])
    assert rows.loaded == [6, 9]


def test_what_nobody_loaded_is_forgotten_when_the_pool_is_settled() -> None:
    pool, rows = make(5, 2)
    pool.take([0, 1, 2], (), is_forced=True)
    pool.settle()
    assert pool.num_held == 0
    visit(pool, [0, 1])
    assert rows.loaded == [0, 3, 6, 9]


def test_a_pool_that_ctrl_c_tore_anywhere_is_whole_again_when_it_is_settled() -> None:
    lines = 0
    while True:
        lines += 1
        pool, _ = make(6, 3)
        visit(pool, [0, 1])
        is_over = not interrupted_after(lines, lambda pool=pool: change_hands(pool))
        pool.settle()
        for needed in ([4, 5], [0, 1, 2], [3, 0], [5, 1, 2, 4]):
            visit(pool, needed)
        assert pool.num_bytes <= 3 * pool.slot_bytes
        if is_over:
            break
    assert lines > 50


def change_hands(pool: BlockPool) -> None:
    run(pool.take([2, 3, 4, 0], (5, 1), is_forced=True))
    pool.give_back([0, 2, 3, 4])
    run(pool.take_ahead(2))


def interrupted_after(lines: int, call: Any) -> bool:
    """Call, with Ctrl-C before a line of the pool's; return whether it came to that."""
    left = lines

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        # a traced line may fall between the end of a `with` and the release of its lock: signals never do
        if frame.f_code.co_filename != pool_module.__file__ or frame.f_code.co_name == "fill":
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


def test_a_reader_waits_for_the_thread_that_loads_its_block() -> None:
    pool, _ = make(2, 2)
    (task,) = pool.take([1], (), is_forced=False)
    held = pool.held([1], np.array([7]))
    found = []
    thread = threading.Thread(target=lambda: found.append(held.wait()))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    task()
    thread.join(5)
    assert len(found) == 1


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=6), max_size=25), st.integers(1, 6), st.data())
def test_whatever_is_needed_when_is_there_and_memory_is_bounded(asked, num_slots: int, data) -> None:
    pool, _ = make(12, num_slots)
    under_way: list[list[int]] = []
    for needed in map(sorted, asked):
        upcoming = tuple(data.draw(st.permutations(range(12)))[:4])
        while (tasks := pool.take(needed, upcoming, is_forced=not under_way)) is None:
            pool.give_back(under_way.pop(0))
        run(tasks + pool.take_ahead(2))
        under_way.append(needed)
        for each in under_way:
            check(pool, each)
        assert pool.num_bytes <= pool.slot_bytes * max(num_slots, len(set().union(*under_way)))
    for each in under_way:
        pool.give_back(each)
    assert pool.num_bytes <= pool.slot_bytes * num_slots
