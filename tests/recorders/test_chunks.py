import os
import subprocess
import sys

import pytest

from stepwell.errors import StepwellError, WorkerError
from stepwell.recorders.chunks import ITEM, WorkerPool, num_workers
from stepwell.recorders.sources import Chunk


class Numbers:
    """Answers with the chunk, who wrote it, and how many it had written before; dies at one."""

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at, self.done = dies_at, 0

    def write(self, chunk, counters):
        counters[ITEM] = chunk.start
        if chunk.start == self.dies_at:
            os._exit(7)
        self.done += 1
        return chunk.start, os.getpid(), self.done - 1


def chunk(number):
    return Chunk(number, number + 1, number)


def test_a_worker_takes_up_what_it_is_sent_in_that_order():
    with WorkerPool(Numbers(), 2, "fork") as pool:
        sent = {0: [3, 1, 2], 1: [5, 4]}
        for worker, numbers in sent.items():
            for number in numbers:
                pool.send(worker, chunk(number))
        found = {0: [], 1: []}
        while sum(map(len, found.values())) < 5:
            for worker, answer in pool.answers():
                found[worker].append(answer)
    assert {worker: [answer[0] for answer in answers] for worker, answers in found.items()} == sent
    assert [answer[2] for answer in found[0]] == [0, 1, 2]
    assert len({answer[1] for answers in found.values() for answer in answers}) == 2


def test_nobody_has_an_answer_where_nothing_was_sent():
    with WorkerPool(Numbers(), 1, "fork") as pool:
        assert pool.answers() == []


def test_a_worker_that_dies_with_several_in_hand_is_detected_and_its_item_named():
    with pytest.raises(WorkerError, match=r"died at item 2 \(exit code 7"), WorkerPool(Numbers(2), 1, "fork") as pool:
        for number in (1, 2, 3):
            pool.send(0, chunk(number))
        while True:
            pool.answers()


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
