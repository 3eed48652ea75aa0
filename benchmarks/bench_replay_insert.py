"""replay_insert: one step at a time into a table from one thread, and drawing while another process records.

Inserting: a ring of 100,000 steps of HalfCheetah (observation 17, action 6, reward; the next observation is the next
row) and a table with an item a step, so that each step that comes throws out the oldest. The table follows after each
step, or every 64 steps, as a learner's draw lets it. Beside them Stable-Baselines3's `ReplayBuffer.add`, of the same
100,000 in memory. A step of ours is checked, on disk behind the page cache, and visible to other processes.

Drawing: batches of 256 transitions of such a ring, while another process records into it, 1,000 steps a second or as
fast as it can, beside drawing while nobody records. "Beside a writer of another store" is what two cores, the memory
and the machine beneath them take: that writer does the same work, but nothing of it reaches this table.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from datasets import removed
from report import Row, compare, skipped
from rivals import sb3_adding
from timing import Settings, Work, time_rounds
from transitions import EPISODE, FEATURES, Transitions, make_transitions

import stepwell
from stepwell.replay import ReplayLoader, Table, transition_fields

__all__ = ["run"]

NAME = "replay_insert"
RIVAL = "stable_baselines3 ReplayBuffer"
EACH, LAZY = "followed after each step", "followed every 64 steps"
EVERY = {EACH: 1, LAZY: 64}
RING, BATCH = 100_000, 256
SLOW = 1000
IDLE, BESIDE, ELSEWHERE = "nobody records", "another process records", "a writer of another store"
PACED = f"{BESIDE} {SLOW:,} steps/s"
# records into the store of argv[1], argv[2] steps a second (0: as many as it can)
WRITER = """
import sys, time
import numpy as np
import stepwell
pace = float(sys.argv[2])
step = {"observation": np.zeros(17, np.float32), "action": np.zeros(6, np.float32), "reward": 0.0}
with stepwell.open(sys.argv[1]) as store, store.writer() as writer:
    print("ready", flush=True)
    while True:
        for _ in range(1000):
            writer.append(step)
            if pace:
                time.sleep(1 / pace)
        writer.end_episode(truncated=True, final={"observation": step["observation"]})
"""


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of inserting, then those of drawing."""
    transitions = make_transitions(EPISODE * settings.sized(RING // EPISODE, 5))
    yield from _inserting(settings, transitions)
    yield from _drawing(settings, transitions)


def _inserting(settings: Settings, transitions: Transitions) -> Iterator[Row]:
    try:
        steps = {name: column[:EPISODE] for name, column in transitions.columns().items()}
        rival = sb3_adding({**steps, "done": steps["terminated"]}, len(transitions.reward))
    except ImportError:
        yield from skipped(NAME, RIVAL, *EVERY)
        return
    with ExitStack() as stack:
        contenders = {RIVAL: rival}
        for name, every in EVERY.items():
            store = stack.enter_context(removed(_ring(settings.data / f"insert-{every}.well", transitions)))
            contenders[name] = _inserted(stack.enter_context(store.writer()), store, transitions, every)
        rates = time_rounds(contenders, settings)
    for name in EVERY:
        yield compare(NAME, name, rates, ours=name, theirs=RIVAL, unit="steps/s", target=0.42)


def _ring(path: Path, transitions: Transitions) -> stepwell.Store:
    """Return a ring that is full."""
    store = stepwell.create(path, FEATURES, capacity=len(transitions.reward))
    with store.writer() as writer:
        for start in range(0, len(transitions.reward), EPISODE):
            steps = slice(start, start + EPISODE)
            final = {"observation": transitions.next_observation[start + EPISODE - 1]}
            writer.add_episode(
                {name: getattr(transitions, name)[steps] for name in FEATURES}, final=final, truncated=True
            )  # fmt: skip
    store.refresh()
    return store


def _inserted(writer: stepwell.Writer, store: stepwell.Store, transitions: Transitions, every: int) -> Work:
    """Return the work of appending one step, after which the table follows every so often."""
    table = Table(store, max_size=len(transitions.reward))
    table.follow()
    columns = [getattr(transitions, name)[:EPISODE] for name in FEATURES]
    # as an environment returns them: new arrays, numbers of Python
    made = [
        dict(zip(FEATURES, (o.copy(), a.copy(), float(r)), strict=True)) for o, a, r in zip(*columns, strict=True)
    ]  # fmt: skip
    final = {"observation": transitions.next_observation[EPISODE - 1]}
    append, follow, end_episode, counts = writer.append, table.follow, writer.end_episode, itertools.count(1)
    steps = itertools.cycle(made)

    def insert() -> float:
        append(next(steps))
        number = next(counts)
        if number % EPISODE == 0:
            end_episode(truncated=True, final=final)
        if number % every == 0:
            follow()
        return 1

    before = table.info.counts.inserts
    for _ in range(2 * EPISODE):
        insert()
    follow()
    if table.info.counts.inserts != before + 2 * EPISODE or table.size != len(transitions.reward):
        raise RuntimeError(f"2,000 steps became {table.info.counts.inserts - before} items, {table.size} in the table.")
    return insert


def _drawing(settings: Settings, transitions: Transitions) -> Iterator[Row]:
    with ExitStack() as stack:
        paths = [settings.data / name for name in ("here.well", "there.well")]
        here, elsewhere = (stack.enter_context(removed(_ring(path, transitions))) for path in paths)
        writers = {
            PACED: stack.enter_context(_recording(here.path, SLOW)),
            BESIDE: stack.enter_context(_recording(here.path, 0)),
            ELSEWHERE: stack.enter_context(_recording(elsewhere.path, 0)),
        }
        draw, awake = _drawn(here, transitions), Awake()
        contenders = {name: awake.during(draw, writers.get(name)) for name in (IDLE, *writers)}
        rates = time_rounds(contenders, settings)
    asked = ((PACED, IDLE, 0.9), (BESIDE, IDLE, 0.9), (ELSEWHERE, IDLE, None), (BESIDE, ELSEWHERE, 0.9))
    for name, theirs, target in asked:
        case = f"drawing while {name}, beside {theirs}"
        yield compare(NAME, case, rates, ours=name, theirs=theirs, unit="transitions/s", target=target)


def _drawn(store: stepwell.Store, transitions: Transitions) -> Work:
    targets = transition_fields()
    table = Table(store, max_size=len(transitions.reward))
    batches = iter(ReplayLoader(table, targets.fields, batch_size=BATCH, transform=targets.transform))

    def draw() -> float:
        next(batches)
        return BATCH

    return draw


class Awake:
    """Of several processes that were stopped, let the one run that a contender wants."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def during(self, work: Work, pid: int | None) -> Work:
        """Return a work that is done while that process runs, and no other."""

        def work_beside() -> float:
            if self._pid != pid:
                self._let_run(pid)
            return work()

        return work_beside

    def _let_run(self, pid: int | None) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGSTOP)
        if pid is not None:
            os.kill(pid, signal.SIGCONT)
        self._pid = pid


@contextmanager
def _recording(path: Path, pace: float) -> Iterator[int]:
    """Lend the pid of a process that records into a store, and is stopped at first."""
    command = [sys.executable, "-c", WRITER, str(path), str(pace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the writer of {path} did not begin.")
            os.kill(process.pid, signal.SIGSTOP)
            yield process.pid
        finally:
            process.kill()
