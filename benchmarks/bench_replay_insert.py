"""replay_insert: one step at a time into a table from one thread, and drawing while another process records.

Inserting: a ring of 100,000 steps of HalfCheetah (observation 17, action 6, reward; the next observation is the next
row) and a table with an item a step, so that each step that comes throws out the oldest. The table follows after each
step, or every 64 steps, as a learner that draws lets it; also where nothing is thrown out, as before a ring is full.
Beside them Stable-Baselines3's `ReplayBuffer.add`, of the same 100,000 in memory. A step of ours is checked, on disk
behind the page cache, and visible to other processes.

Drawing: batches of 256 transitions of such a ring, while another process records into it, 1,000 steps a second or as
fast as it can, beside drawing while nobody records. "Beside a writer of another store" is what two cores, the memory
and the machine beneath them take: that writer does the same work, but nothing of it reaches this table.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
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
ENDLESS = f"{EACH}, nothing thrown out"
# how many steps are followed together, and whether the store is a ring and its table is full
KINDS = {EACH: (1, True), LAZY: (64, True), ENDLESS: (1, False)}
RING, BATCH = 100_000, 256
SLOW = 1000
IDLE, BESIDE, ELSEWHERE = "nobody records", "another process records", "a writer of another store"
PACED = f"{BESIDE} {SLOW:,} steps/s"
# the same, by a table that looks at the store at most once in so many seconds
SELDOM = 0.01
RARELY, PACED_RARELY = f"{BESIDE}, followed each 10 ms", f"{PACED}, followed each 10 ms"
# records into the store argv[1], argv[2] steps a second (0: as many as it can), while the byte of the file argv[3] is 1
WRITER = """
import sys, time
import numpy as np
import stepwell
pace, is_wanted = float(sys.argv[2]), np.memmap(sys.argv[3], np.uint8, "r")
step = {"observation": np.zeros(17, np.float32), "action": np.zeros(6, np.float32), "reward": 0.0}
with stepwell.open(sys.argv[1]) as store, store.writer() as writer:
    print("ready", flush=True)
    while True:
        for _ in range(1000):
            while not is_wanted[0]:
                time.sleep(0.002)
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
        yield from skipped(NAME, RIVAL, *KINDS)
        return
    with ExitStack() as stack:
        contenders = {RIVAL: rival}
        for number, (name, (every, is_ring)) in enumerate(KINDS.items()):
            store = _recorded(settings.data / f"insert-{number}.well", transitions, is_ring=is_ring)
            stack.enter_context(removed(store))
            table = Table(store, max_size=len(transitions.reward) if is_ring else 1 << 26)
            contenders[name] = _inserted(stack.enter_context(store.writer()), table, transitions, every)
        rates = time_rounds(contenders, settings)
    for name in KINDS:
        yield compare(NAME, name, rates, ours=name, theirs=RIVAL, unit="steps/s", target=0.42)


def _recorded(path: Path, transitions: Transitions, *, is_ring: bool = True) -> stepwell.Store:
    """Return a store of them, by default a ring that they fill."""
    store = stepwell.create(path, FEATURES, capacity=len(transitions.reward) if is_ring else None)
    with store.writer() as writer:
        for start in range(0, len(transitions.reward), EPISODE):
            steps = slice(start, start + EPISODE)
            final = {"observation": transitions.next_observation[start + EPISODE - 1]}
            writer.add_episode(
                {name: getattr(transitions, name)[steps] for name in FEATURES}, final=final, truncated=True
            )  # fmt: skip
    store.refresh()
    return store


def _inserted(writer: stepwell.Writer, table: Table, transitions: Transitions, every: int) -> Work:
    """Return the work of appending one step, after which the table follows every so often."""
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
    if table.info.counts.inserts != before + 2 * EPISODE or table.size < len(transitions.reward):
        raise RuntimeError(f"2,000 steps became {table.info.counts.inserts - before} items, {table.size} in the table.")
    return insert


def _drawing(settings: Settings, transitions: Transitions) -> Iterator[Row]:
    with ExitStack() as stack:
        paths = [settings.data / name for name in ("here.well", "there.well")]
        here, elsewhere = (stack.enter_context(removed(_recorded(path, transitions))) for path in paths)
        writers = {
            PACED: stack.enter_context(_recording(here.path, SLOW)),
            BESIDE: stack.enter_context(_recording(here.path, 0)),
            ELSEWHERE: stack.enter_context(_recording(elsewhere.path, 0)),
        }
        draw, awake = _drawn(here, transitions), Awake()
        contenders = {name: awake.during(draw, writers.get(name)) for name in (IDLE, *writers)}
        rare = _drawn(here, transitions, follow_seconds=SELDOM)
        contenders |= {RARELY: awake.during(rare, writers[BESIDE]), PACED_RARELY: awake.during(rare, writers[PACED])}
        rates = time_rounds(contenders, settings)
    asked = (
        (PACED, IDLE, 0.9),
        (PACED_RARELY, IDLE, 0.9),
        (BESIDE, IDLE, 0.9),
        (RARELY, IDLE, 0.9),
        (ELSEWHERE, IDLE, None),
        (BESIDE, ELSEWHERE, 0.9),
        (RARELY, ELSEWHERE, 0.9),
    )
    for name, theirs, target in asked:
        case = f"drawing while {name}, beside {theirs}"
        yield compare(NAME, case, rates, ours=name, theirs=theirs, unit="transitions/s", target=target)


def _drawn(store: stepwell.Store, transitions: Transitions, *, follow_seconds: float = 0.0) -> Work:
    targets = transition_fields()
    table = Table(store, max_size=len(transitions.reward), follow_seconds=follow_seconds)
    batches = iter(ReplayLoader(table, targets.fields, batch_size=BATCH, transform=targets.transform))

    def draw() -> float:
        next(batches)
        return BATCH

    return draw


class Awake:
    """Of several writers, let the one record that a contender wants; they wait at a step, and hold no lock then."""

    def __init__(self) -> None:
        self._now: np.ndarray | None = None

    def during(self, work: Work, wanted: np.ndarray | None) -> Work:
        """Return a work that is done while that writer records, and no other."""

        def work_beside() -> float:
            if self._now is not wanted:
                self._let_record(wanted)
            return work()

        return work_beside

    def _let_record(self, wanted: np.ndarray | None) -> None:
        if self._now is not None:
            self._now[0] = 0
        if wanted is not None:
            wanted[0] = 1
        self._now = wanted


@contextmanager
def _recording(path: Path, pace: float) -> Iterator[np.ndarray]:
    """Lend the byte, uint8 [1], that says whether a process records into a store; 0 at first."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        is_wanted = np.memmap(file.name, np.uint8, "w+", shape=1)
        command = [sys.executable, "-c", WRITER, str(path), str(pace), file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise RuntimeError(f"the writer of {path} did not begin.")
                yield is_wanted
            finally:
                process.kill()
