import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from stepwell.errors import StepwellError, WorkerError
from stepwell.recorders.chunks import ITEM, num_workers, run_chunks


@dataclass(frozen=True)
class Chunk:
    start: int
    stop: int
    home: int | None = None


class Numbers:
    """Answers with the chunk's item and the worker; dies at one item, fails at another."""

    noun = "number"

    def __init__(self, dies_at: int = -1, fails_at: int = -1) -> None:
        self.dies_at, self.fails_at, self.kept = dies_at, fails_at, {}

    def write(self, chunk, counters):
        counters[ITEM] = chunk.start
        if chunk.start == self.dies_at:
            os._exit(7)
        if chunk.start == self.fails_at:
            raise ValueError("odd")
        # later ones are done first
        time.sleep(0.02 if chunk.start % 3 == 0 else 0)
        self.kept[chunk.start] = len(self.kept)
        return chunk.start, os.getpid()

    def put(self, chunk, place, counters):
        order = self.kept.pop(chunk.start)
        return chunk.start, place, os.getpid(), order


def chunks(number, home=lambda number: None):
    return [Chunk(start, start + 1, home(start)) for start in range(number)]


def run(job, every, workers=2, **options):
    return run_chunks(job, every, workers=workers, total=None, unit="numbers", start_method="fork", **options)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [list, iter])
def test_answers_are_in_the_order_of_the_chunks(workers, kind):
    found = run(Numbers(), kind(chunks(10)), workers)
    assert [number for number, _ in found] == list(range(10))
    assert len({worker for _, worker in found}) == max(1, workers)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_places_are_given_in_order_and_arrive_where_a_chunk_is_kept(workers):
    asked = []

    def place(answer):
        asked.append(answer)
        return 100 + answer[0]

    found = run(Numbers(), chunks(20), workers, place=place)
    assert [answer[0] for answer in asked] == list(range(20))
    assert [(number, at) for number, at, *_ in found] == [(number, 100 + number) for number in range(20)]
    assert [answer[2] for answer in found] == [answer[1] for answer in asked]


def test_no_worker_keeps_more_than_three_chunks_that_wait_for_their_places():
    sent = Counter()

    def every():
        for chunk in chunks(20):
            sent["read"] += 1
            yield chunk

    def place(answer):
        # two workers with three chunks each, and one that is read ahead
        assert sent["read"] - answer[0] <= 7
        return 0

    run(Numbers(), every(), place=place)


def test_chunks_of_one_home_are_written_by_one_worker_in_their_order():
    found = run(Numbers(), chunks(12, lambda number: number % 4), place=lambda answer: 0)
    homes = {number % 4: worker for number, _, worker, _ in found}
    assert all(worker == homes[number % 4] for number, _, worker, _ in found)
    assert len(set(homes.values())) == 2


@pytest.mark.parametrize("options", [{}, {"place": lambda answer: 0}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_names_the_item_and_carries_the_trace(workers, options):
    with pytest.raises(WorkerError, match=r"number 4 could not be written: ValueError: odd\n\nTraceback"):
        run(Numbers(fails_at=4), chunks(10), workers, **options)


@pytest.mark.parametrize("options", [{}, {"place": lambda answer: 0}])
def test_a_worker_that_dies_is_detected_and_its_item_named(options):
    with pytest.raises(WorkerError, match=r"died at item 2 \(exit code 7"):
        run(Numbers(dies_at=2), chunks(10), **options)


def test_no_chunks_give_no_answers():
    assert run(Numbers(), []) == run(Numbers(), iter([])) == []


UNGUARDED = """
import sys
import numpy as np
import stepwell

samples = [{"state": np.zeros(400, np.float32)} for _ in range(500)]
stepwell.write_samples(sys.argv[1], samples, workers=2)
"""


def test_a_script_without_a_guard_is_told_so_and_not_left_waiting(tmp_path):
    # workers die of their start, and what they are to do is more than a pipe holds
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), str(tmp_path / "a.well")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 1
    assert "a worker died before it began (exit code 1)" in found.stderr
    assert 'if __name__ == "__main__":' in found.stderr


def test_a_number_of_workers_is_checked():
    assert num_workers(None) >= 1 and num_workers(0) == 0
    with pytest.raises(StepwellError, match="workers=-1"):
        num_workers(-1)
