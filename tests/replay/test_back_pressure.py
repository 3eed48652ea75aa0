"""Tables that hold the writers of their ring, in other processes: limits, kills, forks, learners that go."""

import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.errors import RateLimitError, ReadOnlyError, TableError
from stepwell.replay.limiters import Limiter, MinSize, Queue, SampleToInsertRatio
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import Pattern
from stepwell.replay.tables import Table
from stepwell.store import back_pressure

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
SCHEMA = {"x": Array(final=True), "n": Array((), "int64")}
# of a test that does not hang: nothing waits so long
PATIENCE = 60.0
DIED = 9


class Child:
    """A fork that runs a function until it is killed or waited for."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(PATIENCE))
                run(*arguments)
                status = 0
            except KeyboardInterrupt:
                status = 2
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def is_running(self) -> bool:
        """Whether it runs; one that ended must have done all that it was to do."""
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            assert status == 0
            self.pid = 0 if pid else self.pid
        return bool(self.pid)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def act(path: Path, steps: int, length: int = 7, ends: bool = True) -> None:
    with stepwell.open(path).writer() as writer:
        for n in range(steps):
            writer.append(x=n, n=n)
            if ends and n % length == length - 1:
                writer.end_episode(terminated=True, final={"x": n + 1})


def act_as_vector(path: Path, steps: int, num_envs: int = 3) -> None:
    with stepwell.open(path).vector_writer(num_envs) as writer:
        for n in range(steps // num_envs):
            x = np.full(num_envs, n, np.float32)
            done = np.full(num_envs, n % 5 == 4)
            writer.append({"x": x, "n": x.astype(np.int64)}, terminated=done, final={"x": x})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=1_000)
    return tmp_path / "ring.well"


@pytest.mark.parametrize(
    ("limiter", "pattern"),
    [
        (SampleToInsertRatio(2.0, 10, 20.0), Pattern()),
        (SampleToInsertRatio(1.0, 4, 8.0), Pattern(ahead=3)),
        (Queue(8), Pattern(length=3, every=3)),
        (Queue(4), Pattern(length=2, ahead=0, at="end")),
        (MinSize(5), Pattern()),
    ],
    ids=str,
)
@pytest.mark.parametrize("actor", [act, act_as_vector])
def test_writers_of_other_processes_wait_and_nothing_is_evicted_while_it_waits(
    path: Path, limiter: Limiter, pattern: Pattern, actor: Callable[..., None]
) -> None:
    options = {"max_times_sampled": 1, "sampler": "fifo"} if limiter.name.startswith("Queue") else {}
    table = Table(stepwell.open(path), limiter=limiter, pattern=pattern, back_pressure="wait", **options)
    actors = [Child(actor, path, 900) for _ in range(2)]
    # of each writer one call beyond the limit, what waits for later steps, and an item for each open episode
    slack = 2 * 3 * (1 + pattern.reach + 1)
    while any(actor.is_running() for actor in actors):
        with suppress(RateLimitError):
            table.sample(1, timeout=0.005)
        assert table.info.num_pending <= slack
    table.follow()
    counts = table.info.counts
    assert table.info.num_missed == 0 and counts.inserts > 100
    assert counts.samples > 0 or limiter.max_diff == np.inf
    table.close()


def test_a_writer_stops_at_the_limit_and_draws_let_it_go_on(path: Path) -> None:
    table = Table(stepwell.open(path), limiter=SampleToInsertRatio(1.0, 5, (-3.0, 9.0)), back_pressure="wait")
    child = Child(act, path, 100, 7, False)
    for drawn in range(0, 40, 4):
        until(lambda: table.follow() >= 0 and not table.can_insert(1))
        time.sleep(0.01)
        table.follow()
        # one item for each step but the newest, which waits for the step after it
        assert table.info.counts.inserts == 9 + drawn and table.info.num_pending <= 1
        table.sample(4, timeout=PATIENCE)
    table.close()
    assert child.wait() == 0
    assert table.follow() >= 0 and table.info.counts.inserts + table.info.num_pending == 100


@pytest.mark.parametrize("how", ["close", "collect", "kill", "exit", "fork"])
def test_a_learner_that_goes_lets_writers_go_on(path: Path, how: str) -> None:
    def learn(gate: int) -> None:
        table = Table(stepwell.open(path), limiter=Queue(2), back_pressure="wait")
        # its child, if it has one, lives on, and holds nobody
        child = Child(time.sleep, PATIENCE).pid if how == "fork" else 0
        os.write(gate, child.to_bytes(4, "little"))
        if how == "close":
            until(lambda: table.follow() >= 0 and table.info.counts.inserts >= 2)
            table.close()
            table.close()
        elif how == "collect":
            until(lambda: table.follow() >= 0 and table.info.counts.inserts >= 2)
            del table
        elif how == "exit":
            return
        time.sleep(PATIENCE)

    read, write = os.pipe()
    learner = Child(learn, write)
    child = int.from_bytes(os.read(read, 4), "little")
    actors = [Child(act, path, 300) for _ in range(3)]
    if how in ("kill", "fork"):
        learner.kill()
    for actor in actors:
        assert actor.wait() == 0
    if how in ("close", "collect"):
        learner.kill()
    if child:
        os.kill(child, signal.SIGKILL)
    store = stepwell.open(path)
    assert store.num_steps == 900
    os.close(read)
    os.close(write)


def test_writers_that_are_killed_at_any_moment_harm_nobody(path: Path) -> None:
    rng = random.Random(1)
    table = Table(stepwell.open(path), limiter=SampleToInsertRatio(1.0, 5, 10.0), back_pressure="wait")
    for _ in range(12):
        actors = [Child(act, path, 10**6) for _ in range(2)]
        for _ in range(rng.randrange(20)):
            with suppress(RateLimitError):
                table.sample(1, timeout=0.002)
        for actor in actors:
            actor.kill()
    last = Child(act, path, 50)
    table.sample(40, timeout=PATIENCE)
    table.close()
    assert last.wait() == 0
    table.follow()
    assert table.info.num_missed == 0 and stepwell.open(path).verify(deep=True).is_ok


def test_learners_that_are_killed_at_any_moment_hold_nobody(path: Path) -> None:
    def learn() -> None:
        table = Table(stepwell.open(path), limiter=SampleToInsertRatio(1.0, 5, 10.0), back_pressure="wait")
        while True:
            table.sample(1)

    rng = random.Random(2)
    actors = [Child(act, path, 600), Child(act_as_vector, path, 600)]
    for _ in range(8):
        learners = [Child(learn) for _ in range(2)]
        time.sleep(rng.random() * 0.05)
        for learner in learners:
            learner.kill()
    assert [actor.wait() for actor in actors] == [0, 0]


def die_at(number: int) -> None:
    """End this process at the so-manieth line of `stepwell.store.back_pressure` that it runs."""
    left = number

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                os._exit(DIED)
        return trace

    def enter(frame: Any, *_: Any) -> Any:
        return trace if frame.f_code.co_filename == back_pressure.__file__ else None

    sys.settrace(enter)


def test_a_learner_that_dies_at_any_line_holds_nobody(path: Path) -> None:
    def learn(line: int) -> None:
        die_at(line)
        table = Table(stepwell.open(path), limiter=Queue(2), back_pressure="refuse")
        table.sample(2, timeout=PATIENCE)
        table.close()

    with stepwell.open(path).writer() as writer:
        for n in range(4):
            writer.append(x=n, n=n)
        # loads what the children would load again
        Table.queue(stepwell.open(path), max_size=2).sample(2)
        line = 1
        while (status := Child(learn, line).wait()) == DIED:
            # whatever the table has said so far
            for n in range(4):
                writer.append(x=n, n=n)
            line += 1
        assert status == 0 and line > 40
        table = Table.queue(stepwell.open(path), max_size=2, back_pressure="refuse")
        with pytest.raises(RateLimitError):
            for n in range(4):
                writer.append(x=n, n=n)
        table.close()


def test_a_writer_that_dies_at_any_line_leaves_the_limits_as_they_are(path: Path) -> None:
    def write(line: int) -> None:
        writer = stepwell.open(path).writer()
        die_at(line)
        with pytest.raises(RateLimitError):
            while True:
                writer.append(x=0, n=0)
        writer.close()

    # 4 of an insert's samples are owed; the rest is room
    table = Table(stepwell.open(path), limiter=SampleToInsertRatio(1.0, 1, (-2.0, 3.0)), back_pressure="refuse")
    line = 1
    while (status := Child(write, line).wait()) == DIED:
        with suppress(RateLimitError):
            table.sample(1, timeout=0)
        assert table.info.num_pending <= 2
        line += 2
    assert status == 0 and line > 20
    for _ in range(5):
        assert Child(write, 0).wait() == 0
        table.follow()
        assert not table.can_insert(1) and table.info.num_pending <= 1
        table.sample(2, timeout=PATIENCE)
    table.close()


def test_of_two_learners_the_slower_one_holds_the_writers(path: Path) -> None:
    fast, slow = (
        Table(stepwell.open(path), name, limiter=SampleToInsertRatio(1.0, 5, 5.0), back_pressure="wait")
        for name in ("fast", "slow")
    )
    actor = Child(act, path, 100)
    for _ in range(100):
        with suppress(RateLimitError):
            fast.sample(1, timeout=0.002)
        slow.follow()
        assert slow.info.num_pending <= 2
    assert fast.info.counts.inserts <= 13
    slow.close()
    with suppress(RateLimitError):
        while True:
            fast.sample(1, timeout=0.2)
    fast.close()
    assert actor.wait() == 0


def test_a_writer_of_another_process_is_refused_and_says_by_which_table(path: Path) -> None:
    def try_to_write() -> None:
        with pytest.raises(RateLimitError, match=r"Queue\(2\) of table 'mine', in process .* Nothing was written"):
            act(path, 100)

    table = Table.queue(stepwell.open(path), "mine", max_size=2, back_pressure="refuse")
    assert Child(try_to_write).wait() == 0
    table.follow()
    assert 0 < table.size <= 3 and table.info.num_pending <= 1


def test_steps_that_are_dropped_are_counted_and_leave_no_window_over_a_gap(path: Path) -> None:
    table = Table.queue(stepwell.open(path), max_size=5, pattern=Pattern(length=2, ends="drop"), back_pressure="drop")
    actors = [Child(act, path, 400) for _ in range(2)]
    until(lambda: table.follow() >= 0 and table.info.num_dropped > 0)
    while any(actor.is_running() for actor in actors):
        with suppress(RateLimitError):
            table.sample(2, timeout=0.001)
    store = stepwell.open(path)
    assert table.info.num_dropped == 800 - store.num_steps > 0
    assert f"{table.info.num_dropped} steps dropped by writers" in str(table.info)
    for episode in store:
        numbers = episode["n"]
        assert (np.diff(numbers) == 1).all()
        if episode.has_final:
            assert episode.read_rows("x", episode.length, episode.length + 1)[0] == numbers[-1] + 1


def test_ctrl_c_ends_a_wait_and_closing_does_not_wait(path: Path) -> None:
    table = Table(stepwell.open(path), limiter=Queue(2), back_pressure="wait")
    actor = Child(act, path, 100)
    until(lambda: table.follow() >= 0 and not table.can_insert(1))
    time.sleep(0.02)
    os.kill(actor.pid, signal.SIGINT)
    assert actor.wait() == 2
    store = stepwell.open(path)
    assert not any(episode.is_open for episode in store) and store[-1].interrupted


def test_a_child_of_a_learner_holds_nobody_and_changes_nothing(path: Path) -> None:
    table = Table(stepwell.open(path), limiter=Queue(3), back_pressure="wait")

    def draw() -> None:
        for _ in range(3):
            table.follow()
            with suppress(RateLimitError):
                table.sample(1, timeout=0)
        table.close()

    actor = Child(act, path, 100)
    until(lambda: table.follow() >= 0 and not table.can_insert(1))
    assert Child(draw).wait() == 0
    time.sleep(0.02)
    table.follow()
    assert table.info.counts.inserts == 3 and table.info.num_pending <= 1
    actor.kill()


def test_a_writer_in_a_thread_waits_for_a_learner_in_another(path: Path) -> None:
    store = stepwell.open(path)
    table = Table(store, limiter=SampleToInsertRatio(1.0, 5, 5.0), back_pressure="wait")
    actor = threading.Thread(target=act, args=(path, 300))
    actor.start()
    drawn = 0
    while actor.is_alive():
        with suppress(RateLimitError):
            table.sample(1, timeout=0.01)
            drawn += 1
        table.follow()
        assert table.info.num_pending <= 2
    assert drawn >= 285


def test_one_thread_that_writes_and_draws_is_refused_and_not_left_to_wait(path: Path) -> None:
    store = stepwell.open(path)
    table = Table(store, limiter=SampleToInsertRatio(1.0, 2, (-3.0, 4.0)), back_pressure="wait")
    with store.writer() as writer:
        for n in range(3):
            writer.append(x=n, n=n)
        table.sample(1)
        with pytest.raises(RateLimitError, match="wait for itself"):
            for n in range(9):
                writer.append(x=n, n=n)
        table.sample(3)
        writer.append(x=0, n=0)


def test_a_thread_that_is_alone_does_not_wait_for_the_first_draw_either(path: Path) -> None:
    def act_and_learn() -> None:
        store = stepwell.open(path)
        table = Table(store, limiter=Queue(3), back_pressure="wait")
        with pytest.raises(RateLimitError, match="wait for itself"):
            act(path, 100)
        assert table.follow() >= 0 and table.size == 3

    # a fork has no other thread
    assert Child(act_and_learn).wait() == 0


@pytest.mark.parametrize("num_envs", [0, 3])
def test_recorders_of_other_processes_wait_as_writers_do(tmp_path: Path, num_envs: int) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from stepwell.recorders import EpisodeRecorder, VectorRecorder, schema_of

    env = gymnasium.make("CartPole-v1")
    store = stepwell.create(tmp_path / "cart.well", schema_of(env), capacity=1_000)

    def play() -> None:
        target = stepwell.open(store.path)
        if num_envs:
            envs = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")
            recorder: Any = VectorRecorder(envs, target)
        else:
            recorder = EpisodeRecorder(env, target)
        with recorder:
            recorder.reset(seed=0)
            for _ in range(120):
                *_, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
                if not num_envs and (terminated or truncated):
                    recorder.reset()

    table = Table(store, limiter=SampleToInsertRatio(1.0, 5, 10.0), back_pressure="wait")
    actor = Child(play)
    while actor.is_running():
        with suppress(RateLimitError):
            table.sample(1, timeout=0.005)
        assert table.info.num_pending <= 2 * max(num_envs, 1)
    table.follow()
    assert table.info.counts.samples > 100 and table.info.num_missed == 0
    table.close()


def test_a_table_that_goes_on_from_a_state_holds_writers_as_before(path: Path, tmp_path: Path) -> None:
    store = stepwell.open(path)
    table = Table(store, limiter=SampleToInsertRatio(1.0, 2, (-3.0, 4.0)), back_pressure="refuse")
    with store.writer() as writer:
        with pytest.raises(RateLimitError):
            for n in range(100):
                writer.append(x=n, n=n)
                table.follow()
        table.save_state(tmp_path / "state.npz")
        table.close()
        again = Table.resume(store, tmp_path / "state.npz")
        assert again.settings == table.settings
        with pytest.raises(RateLimitError):
            writer.append(x=0, n=0)
        again.sample(2)
        writer.append(x=0, n=0)
        again.close()


@pytest.mark.parametrize("follow_seconds", [0.0, 100.0])
def test_batches_of_a_loader_let_writers_go_on(path: Path, follow_seconds: float) -> None:
    store = stepwell.open(path)
    limiter = SampleToInsertRatio(4.0, 8, 40.0)
    table = Table(store, limiter=limiter, back_pressure="refuse", follow_seconds=follow_seconds)
    loader = ReplayLoader(table, {"n": "n"}, batch_size=16)
    with store.writer() as writer:
        num_written = 0
        for drawn in range(20):
            with suppress(RateLimitError):
                while True:
                    writer.append(x=num_written, n=num_written)
                    num_written += 1
            # 18 steps make 17 items; a batch of 16 pays for 4
            assert num_written == 18 + 4 * drawn + (drawn > 0)
            assert (next(loader)["n"] < num_written).all()
    assert table.draws_in_one


def test_what_cannot_hold_writers_says_so(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="'wait', 'drop', 'refuse', and None"):
        Table(stepwell.open(path), back_pressure="block")  # type: ignore[arg-type]
    with pytest.raises(TableError, match="create_item waits itself"):
        Table(stepwell.open(path), limiter=Queue(3), pattern=None, back_pressure="wait")
    with pytest.raises(TableError, match="is no ring"):
        Table(stepwell.create(tmp_path / "a.well", SCHEMA), limiter=Queue(3), back_pressure="wait")
    with pytest.raises(ReadOnlyError, match="hold its writers"):
        Table(stepwell.open(path, mode="r"), limiter=Queue(3), back_pressure="wait")
    # a limiter that refuses nothing needs no page
    Table(stepwell.open(path), limiter=MinSize(3), back_pressure="wait")
    assert not (path / "limits").exists()
