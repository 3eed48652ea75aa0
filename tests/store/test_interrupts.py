"""A Ctrl-C at any line of a writer's call: what was written stays, the call was done or not, and the writer goes on."""

from __future__ import annotations

import dis
import errno
import functools
import gc
import itertools
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import stepwell.testing.codecs
from stepwell.errors import DiskFullError, StoreFileError, WriterClosedError
from stepwell.schema import Array
from stepwell.store import create, open, sealing
from stepwell.store.column_file import SegmentFiles
from stepwell.store.lane_writer import LaneWriter

PACKAGE = f"{Path(stepwell.testing.codecs.__file__).parents[1]}/"


@functools.cache
def places_after_calls(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that follow a call."""
    instructions = [*dis.get_instructions(code)]
    pairs = itertools.pairwise(instructions)
    return frozenset(after.offset for before, after in pairs if before.opname.startswith("CALL"))


class Interrupt:
    """Raises KeyboardInterrupt where CPython looks for signals: where a function begins, and after a call."""

    # in the calling thread, in functions of stepwell

    def __init__(self) -> None:
        self.num_places = 0

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Interrupt at the place of this number, from 0, counted from now on; -1 only counts them."""
        self.num_places = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            # what is raised there goes nowhere
            if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
                return None
            frame.f_trace_opcodes = True
            if event == "call" or (event == "opcode" and frame.f_lasti in places_after_calls(frame.f_code)):
                self.num_places += 1
                if self.num_places == number + 1:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def row_of(number: int) -> dict[str, Any]:
    """A row that says by each of its values which one it is."""
    return {
        "t": np.int64(number),
        "x": np.full(1 << 14, number % 1000, np.float32),
        "last": np.full(2, number, np.int32),
        "list": np.arange(number, number + number % 4),
        "slow": np.full((2, 3), number, np.int32),
        "late": np.full((2, 3), number, np.int32),
    }


def rows_of(schema: Any, numbers: Iterable[int]) -> dict[str, Any]:
    """Columns of rows."""
    rows = [row_of(number) for number in numbers]
    columns = {name: [row[name] for row in rows] for name in schema}
    return {name: values if name == "list" else np.stack(values) for name, values in columns.items()}


RAW = {"t": Array((), "int64"), "x": Array((1 << 14,), "float32"), "last": Array((2,), "int32", final=True)}
ENCODED = {
    "t": Array((), "int64"),
    "list": Array((None,), "int64"),
    "slow": Array((2, 3), "int32", codec="slow-running", milliseconds=0),
    "late": Array((2, 3), "int32", codec="slow-running", milliseconds=0, lag=3),
}
# rows of 64 KiB, of which there is room for 16 at first
FIRST_ROWS = 16


class Session:
    """A writer of a new store, and the rows that it took."""

    def __init__(self, path: Path, features: dict[str, Any], num_envs: int = 0, **options: Any) -> None:
        writers = options.pop("writers", None)
        self.store = create(path, features, **options)
        self.num_envs = num_envs
        self.writer: Any = self.store.vector_writer(num_envs, writers=writers) if num_envs else self.store.writer()
        self.number = 0
        self.taken: set[int] = set()

    def append(self, *, ends: bool = False) -> None:
        """Append a step, of all environments."""
        numbers = range(self.number, self.number + max(1, self.num_envs))
        # also where it is interrupted: it is not given again
        self.number = numbers.stop
        if self.num_envs:
            columns = rows_of(self.store.schema, numbers)
            final = {"last": columns["last"]} if "last" in columns else None
            self.writer.append(columns, terminated=np.array([ends] * self.num_envs), final=final)
        else:
            row = row_of(numbers[0])
            self.writer.append({name: row[name] for name in self.store.schema})
        self.taken.update(numbers)

    def append_batch(self) -> None:
        """Append 20 steps: more than there is room for at first."""
        numbers = range(self.number, self.number + 20)
        self.number = numbers.stop
        self.writer.append_batch(rows_of(self.store.schema, numbers))
        self.taken.update(numbers)

    def add_episode(self) -> None:
        """Add 20 steps as an episode."""
        numbers = range(self.number, self.number + 20)
        self.number = numbers.stop
        self.writer.add_episode(rows_of(self.store.schema, numbers), n=1)
        self.taken.update(numbers)

    def end(self) -> None:
        """End the open episode."""
        final = {"last": np.full(2, 7, np.int32)} if "last" in self.store.schema else None
        self.writer.end_episode(terminated=True, final=final, n=self.number)

    def end_again(self) -> None:
        """End the episode that is open, if any is."""
        if self.num_envs:
            self.append(ends=True)
        elif self.writer.has_open_episode:
            self.end()

    def discard(self) -> None:
        """Take back the open episode, of whose rows nothing is known then."""
        self.taken.clear()
        self.writer.discard_episodes() if self.num_envs else self.writer.discard_episode()

    def check(self) -> None:
        """Close the writer and compare all that the store has with the numbers of its rows."""
        self.writer.close()
        store = open(self.store.path)
        assert store.verify(deep=True).is_ok
        seen: list[int] = []
        for episode in store:
            numbers = episode["t"].tolist()
            assert (np.diff(numbers) > 0).all()
            if self.num_envs:
                # of one environment
                assert len({number % self.num_envs for number in numbers}) == 1
            for place, number in enumerate(numbers):
                row = row_of(number)
                for name in store.schema:
                    assert np.array_equal(episode[name][place], row[name]), (name, number)
            seen += numbers
        assert len(set(seen)) == len(seen)
        assert self.taken <= set(seen)


def appended(count: int) -> Callable[[Session], None]:
    """After steps of an open episode."""

    def prepare(session: Session) -> None:
        for _ in range(count):
            session.append()

    return prepare


def ended(count: int) -> Callable[[Session], None]:
    """After episodes of a step each: three of them a vector step, of which there is room for 64 at first."""

    def prepare(session: Session) -> None:
        for _ in range(count - 1):
            session.append(ends=True)
        session.append()

    return prepare


CALLS: dict[str, tuple[Callable[[Session], None], Callable[[Session], None]]] = {
    "first": (appended(0), Session.append),
    "append": (appended(2), Session.append),
    "grow": (appended(FIRST_ROWS), Session.append),
    "batch": (appended(1), Session.append_batch),
    "end": (appended(3), Session.end),
    "end_full": (appended(FIRST_ROWS), Session.end),
    "episode": (appended(0), Session.add_episode),
    "discard": (appended(3), Session.discard),
    "flush": (appended(3), lambda session: session.writer.flush()),
    "close": (appended(3), lambda session: session.writer.close()),
}
VECTOR_CALLS: dict[str, tuple[Callable[[Session], None], Callable[[Session], None]]] = {
    "first": (appended(0), Session.append),
    "append": (appended(2), Session.append),
    "end": (appended(3), lambda session: session.append(ends=True)),
    "ends": (ended(22), lambda session: session.append(ends=True)),
    "discard": (appended(3), Session.discard),
    "flush": (appended(3), lambda session: session.writer.flush()),
    "close": (appended(3), lambda session: session.writer.close()),
}
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"features": RAW},
    "synced": {"features": RAW, "sync": "episode"},
    "encoded": {"features": ENCODED},
    "ring": {"features": RAW, "capacity": 100},
    "vector": {"features": RAW, "num_envs": 3},
    "vector_encoded": {"features": ENCODED, "num_envs": 3},
    "vector_shared": {"features": RAW, "num_envs": 3, "writers": 2},
    "vector_ring": {"features": RAW, "num_envs": 3, "capacity": 200},
}
# of a call, spread over all of it
MOST_PLACES = 20


@pytest.mark.parametrize(
    ("kind", "call"),
    [(kind, call) for kind, options in KINDS.items() for call in (VECTOR_CALLS if "num_envs" in options else CALLS)],
)
# a file that is opened by a call of `open` has no `with` around it yet
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_a_writer_goes_on_after_a_ctrl_c_at_any_place(tmp_path: Path, kind: str, call: str) -> None:
    interrupt = Interrupt()

    def run(number: int) -> bool:
        """Interrupt a call; return whether it was."""
        session = Session(tmp_path / "a.well", **KINDS[kind])
        prepare, do = (VECTOR_CALLS if session.num_envs else CALLS)[call]
        prepare(session)
        is_interrupted = False
        try:
            with interrupt.at(number):
                do(session)
        except KeyboardInterrupt:
            is_interrupted = True
        if call != "close":
            for _ in range(2):
                session.append()
            session.end_again()
            session.append()
        session.check()
        shutil.rmtree(session.store.path)
        return is_interrupted

    # what the first one loads is no part of the others
    assert not run(-1)
    assert not run(-1)
    numbers = range(0, interrupt.num_places, 1 + interrupt.num_places // MOST_PLACES)
    # where threads take part, some have fewer places
    assert sum(map(run, numbers)) > len(numbers) // 2


@contextmanager
def interrupted_while_it_waits() -> Iterator[None]:
    """Send a signal to a call that waits for what comes later, as Ctrl-C does; it raises KeyboardInterrupt."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("num_envs", [0, 3])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_close_that_is_interrupted_waits_for_the_seal_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_envs: int, *, is_full: bool
) -> None:
    may_go, seal = threading.Event(), sealing.seal_segment

    def waiting(*args: Any, **options: Any) -> None:
        assert may_go.wait(60)
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        seal(*args, **options)

    monkeypatch.setattr(sealing, "seal_segment", waiting)
    capacity = {"capacity": 200} if num_envs else {}
    session = Session(tmp_path / "a.well", RAW, num_envs, **capacity)
    appended(3)(session)
    with interrupted_while_it_waits():
        session.writer.close()
    with pytest.raises(WriterClosedError, match="the writer is closed"):
        session.append()
    timer = threading.Timer(0.2, may_go.set)
    timer.start()
    if is_full:
        with pytest.raises(DiskFullError):
            session.writer.close()
        monkeypatch.undo()
    session.check()
    timer.join()


def test_a_writer_that_is_dropped_while_its_seal_is_on_its_way_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go, seal = threading.Event(), sealing.seal_segment

    def waiting(*args: Any, **options: Any) -> None:
        assert may_go.wait(60)
        seal(*args, **options)

    monkeypatch.setattr(sealing, "seal_segment", waiting)
    session = Session(tmp_path / "a.well", RAW, 3, capacity=200)
    appended(3)(session)
    # as where a Ctrl-C comes when its segments are on their way
    session.writer._interrupt(session.writer._open_segments())
    (done,) = session.writer._seals._sealing
    session.writer = None
    gc.collect()
    may_go.set()
    done.wait()
    session.writer = session.store.writer()
    session.check()


def test_a_segment_that_is_still_mapped_is_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, populate = threading.Event(), LaneWriter.populate

    def waiting(segment: LaneWriter) -> None:
        assert may_go.wait(60)
        populate(segment)

    monkeypatch.setattr(LaneWriter, "populate", waiting)
    session = Session(tmp_path / "a.well", RAW, 3, capacity=200)
    session.append()
    segment = session.writer._segment
    # the last row of an environment is for the final values
    while segment.num_calls < segment.lanes[1] - 1:
        session.append()
    with interrupted_while_it_waits():
        session.append()
    timer = threading.Timer(0.2, may_go.set)
    timer.start()
    for _ in range(3):
        session.append()
    timer.join()
    # a ring lets go of old steps
    session.taken = {number for number in session.taken if number > session.number - 9}
    session.check()


def test_an_episode_in_memory_that_the_disk_did_not_take_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path / "a.well", RAW, 3, writers=2, sync="episode")
    session.append()
    sync, errors = SegmentFiles.sync, [OSError(errno.EIO, "Input/output error")]

    def failing(files: SegmentFiles) -> None:
        if errors:
            raise errors.pop()
        sync(files)

    monkeypatch.setattr(SegmentFiles, "sync", failing)
    with pytest.raises(StoreFileError):
        session.append(ends=True)
    session.check()
