"""Everything crossed with everything, against plain lists.

Codecs, rings, deletion, compaction, concatenation, checkpoints, added columns and several writers, in random histories;
read by every order, pool size, padding, offsets, number of threads and ranks, with and without the page cache, and
resumed. By default a few dozen histories run, the same ones each time. More, from any number on::

    STEPWELL_MODEL_SEEDS=1000:5000 pytest tests/model -x
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from .histories import failure, history, operations, shortest
from .readings import read

NUM_OPERATIONS = 40
FIRST, LAST = map(int, os.environ.get("STEPWELL_MODEL_SEEDS", "0:24").split(":"))
# an item of pytest's, so that its workers share the histories
PER_ITEM = 3


def check(seed: int) -> None:
    history = operations(seed, NUM_OPERATIONS)
    found = failure(history)
    if found is None:
        return
    print(f"seed {seed}: {history}")
    short = shortest(history)
    error, notes = failure(short) or found
    print(f"seed {seed}: {short}", *notes[-4:], sep="\n")
    raise error


@pytest.mark.parametrize("first", range(FIRST, LAST, PER_ITEM))
def test_every_history_reads_as_plain_lists_do(first: int) -> None:
    for seed in range(first, min(first + PER_ITEM, LAST)):
        check(seed)


RECORDING = [("make", 3), ("start", 1), ("start", 2), *((kind, n) for n in range(5) for kind in ("append", "end"))]


def _forget_a_step(episode: Any) -> None:
    del episode.keys[0]
    episode.length -= 1


def _change_a_step(episode: Any) -> None:
    episode.keys[1] = 10**6


def _end_otherwise(episode: Any) -> None:
    episode.flags = (True, True, True)


@pytest.mark.parametrize("change", [_forget_a_step, _change_a_step, _end_otherwise])
def test_the_model_finds_what_is_wrong(change: Any) -> None:
    with history() as running:
        running.run(
            [("make", 3), ("start", 1), ("start", 2), *[(kind, n) for n in range(5) for kind in ("append", "end")]]
        )
        recorded = next(each for each in running.recorded if any(len(e.keys) > 2 for e in each.plain.episodes))
        running.look(recorded)
        change(next(episode for episode in recorded.plain.episodes if len(episode.keys) > 2))
        with pytest.raises(AssertionError):
            running.look(recorded)


def test_reading_finds_a_wrong_window() -> None:
    with history() as running:
        running.run(
            [("make", 3), ("start", 1), ("start", 2), *[(kind, n) for n in range(5) for kind in ("append", "end")]]
        )
        recorded = next(each for each in running.recorded if any(len(e.keys) > 2 for e in each.plain.episodes))
        shown = running.look(recorded)
        for piece in shown:
            piece.episode.keys.reverse()
        with pytest.raises(AssertionError):
            for seed in range(3):
                read(Random(seed), [(recorded.reader, shown)], ["key"], [])
