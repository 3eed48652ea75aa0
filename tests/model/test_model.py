"""Everything crossed with everything, against plain lists.

Codecs, rings, deletion, compaction, concatenation, checkpoints, added columns and several writers, in random histories;
read by every order, pool size, padding, offsets, number of threads and ranks, with and without the page cache, and
resumed. By default a few dozen histories run, the same ones each time. More, from any number on::

    STEPWELL_MODEL_SEEDS=1000:5000 pytest tests/model -x
"""

from __future__ import annotations

import os

import pytest

from .histories import failure, operations, shortest

NUM_OPERATIONS = 40
NUM_ITEMS, PER_ITEM = 8, 4


def check(seed: int) -> None:
    history = operations(seed, NUM_OPERATIONS)
    found = failure(history)
    if found is None:
        return
    short = shortest(history)
    error, notes = failure(short) or found
    print(f"seed {seed}: {short}", *notes[-4:], sep="\n")
    raise error


@pytest.mark.parametrize("item", range(NUM_ITEMS))
def test_every_history_reads_as_plain_lists_do(item: int) -> None:
    for seed in range(item * PER_ITEM, (item + 1) * PER_ITEM):
        check(seed)


@pytest.mark.skipif("STEPWELL_MODEL_SEEDS" not in os.environ, reason="STEPWELL_MODEL_SEEDS=FIRST:LAST chooses more")
@pytest.mark.timeout(0)
def test_many_histories_read_as_plain_lists_do() -> None:
    first, last = map(int, os.environ["STEPWELL_MODEL_SEEDS"].split(":"))
    for seed in range(first, last):
        check(seed)
