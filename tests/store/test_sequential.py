"""Columns whose rows need rows before them: written, read, cut by kills, copied and checked by whole runs."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell.testing.codecs  # noqa: F401 - registers the codecs
from stepwell.errors import DiskFullError, EncodeError, WriterClosedError
from stepwell.schema import Array, Feature
from stepwell.store import Store, concatenate, create, open
from stepwell.store.column_file import EncodedColumn
from stepwell.store.encoding import BackgroundRows

SHAPE = (2, 3)
KINDS: dict[str, Feature] = {
    "plain": Array(SHAPE, "int32", codec="running"),
    "late": Array(SHAPE, "int32", codec="running", lag=3),
    "slow": Array(SHAPE, "int32", codec="slow-running", milliseconds=0),
    "slow and late": Array(SHAPE, "int32", codec="slow-running", milliseconds=1, lag=3),
    "delta": Array(SHAPE, "int32", codec="delta", every=5),
}
QUICK = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def values(number: int, length: int) -> np.ndarray:
    """Return the rows of an episode; no two rows of any episodes are equal."""
    return (10_000 * number + np.arange(length * 6).reshape(length, *SHAPE)).astype(np.int32)


def make(path: Path, *kinds: str, final: bool = False, **options: Any) -> Store:
    """Return a new store with a column of each kind, and a raw one."""
    features = {kind.replace(" ", "_"): KINDS[kind].with_final(final) for kind in kinds}
    return create(path, {**features, "t": Array((), "int64")}, **options)


def step(store: Store, number: int, t: int) -> dict[str, Any]:
    names = [name for name in store.schema or () if name != "t"]
    return {**{name: values(number, t + 1)[t] for name in names}, "t": t}


def record(store: Store, writer: Any, number: int, length: int, *, discard: bool = False) -> None:
    """Record an episode step by step, with a final row if the features have one and the number is odd."""
    for t in range(length):
        writer.append(step(store, number, t))
    if discard:
        writer.discard_episode()
        return
    finals = (store.schema or {}).final_names if number % 2 else ()
    row = values(number, length + 1)[length]
    writer.end_episode(final=dict.fromkeys(finals, row) if finals else None, number=number)


def assert_episodes(store: Store, numbers: list[tuple[int, int]]) -> None:
    """Assert that the store shows episodes of these numbers and lengths, and that every value is right."""
    assert [(episode.metadata.get("number", -1), episode.length) for episode in store] == numbers
    for (number, length), episode in zip(numbers, store, strict=True):
        for name in episode:
            rows = length + (episode.has_final and name != "t")
            expected = np.arange(length) if name == "t" else values(number, rows)
            assert np.array_equal(episode[name], expected), (number, name)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_read_as_they_were_appended(tmp_path: Path, kind: str, final: bool) -> None:
    store = make(tmp_path / "a.well", kind, final=final)
    lengths = [(1, 1), (2, 9), (3, 4), (4, 5), (5, 13)]
    with store.writer() as writer:
        for number, length in lengths:
            record(store, writer, number, length)
    assert_episodes(store, lengths)
    assert [episode.has_final for episode in store] == [final and number % 2 == 1 for number, _ in lengths]
    assert store.verify(deep=True).is_ok


@QUICK
@given(
    kinds=st.sets(st.sampled_from(list(KINDS)), min_size=1),
    episodes=st.lists(st.tuples(st.integers(1, 14), st.sampled_from(["steps", "batches", "whole", "discarded"]))),
    segment_bytes=st.sampled_from([1, 600, 1 << 28]),
    queue_bytes=st.sampled_from([0, 1000]),
    final=st.booleans(),
)
def test_what_is_recorded_in_any_way_is_read_back(
    tmp_path: Path, kinds: set[str], episodes: list[Any], segment_bytes: int, queue_bytes: int, final: bool
) -> None:
    store = make(tmp_path / os.urandom(8).hex(), *sorted(kinds), final=final, segment_bytes=segment_bytes)
    names = [name for name in store.schema or () if name != "t"]
    with store.writer(queue_bytes=queue_bytes) as writer:
        for number, (length, way) in enumerate(episodes):
            if way == "whole":
                rows = values(number, length + (final and number % 2))
                writer.add_episode({**dict.fromkeys(names, rows), "t": np.arange(length)}, number=number)
            elif way == "batches":
                for part in np.array_split(np.arange(length), 3):
                    writer.append_batch({**dict.fromkeys(names, values(number, length)[part]), "t": part})
                record_end = values(number, length + 1)[length]
                finals = dict.fromkeys(names, record_end) if final and number % 2 else None
                writer.end_episode(final=finals, number=number)
            else:
                record(store, writer, number, length, discard=way == "discarded")
    assert_episodes(store, [(number, length) for number, (length, way) in enumerate(episodes) if way != "discarded"])
    assert store.verify(deep=True).is_ok
    if episodes:
        store.compact()
        assert store.verify(deep=True).is_ok


def test_every_episode_begins_a_run_and_final_rows_without_a_value_are_empty(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": KINDS["late"], "state": Array((), "int8", final=True)})
    with store.writer() as writer:
        for number in range(3):
            writer.add_episode({"front": values(number, 6), "state": np.arange(7, dtype=np.int8)})
    (segment,) = store.segments
    offsets, blobs = segment.offsets_map("front").astype(int), segment.blob_map("front")
    marks = ["-" if a == b else "x" if blobs[a] & 1 else "." for a, b in itertools.pairwise(offsets)]
    assert "".join(marks) == "x...x.-" * 3


def test_a_step_is_committed_when_every_column_has_it(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", "plain", "late")
    reader = open(store.path, mode="r")
    with store.writer() as writer:
        for t in range(6):
            writer.append(step(store, 0, t))
            reader.refresh()
            assert reader.num_steps == max(0, t + 1 - 3)
            if reader.num_steps:
                assert np.array_equal(reader[0]["late"], values(0, reader.num_steps))
        writer.flush()
        assert reader.refresh()
        assert reader.num_steps == 6
        assert np.array_equal(reader[0]["late"], values(0, 6))
        writer.append(step(store, 0, 6))
        writer.end_episode(number=0)
    assert_episodes(store, [(0, 7)])


def test_a_reader_never_takes_a_final_row_for_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "a.well", "plain", final=True)
    reader = open(store.path, mode="r")
    seen = []
    write = EncodedColumn.write

    def watched(self: EncodedColumn, row: int, blob: bytes) -> None:
        write(self, row, blob)
        reader.refresh()
        seen.append(reader.num_steps)

    monkeypatch.setattr(EncodedColumn, "write", watched)
    with store.writer() as writer:
        record(store, writer, 1, 3)
    assert seen == [0, 1, 2, 3]


def test_steps_that_wait_in_the_queue_are_stored_before_close_returns(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", "slow and late")
    with store.writer() as writer:
        record(store, writer, 0, 40)
        for t in range(30):
            writer.append(step(store, 1, t))
    assert [(episode.length, episode.interrupted) for episode in store] == [(40, False), (30, True)]
    assert np.array_equal(store[1]["slow_and_late"], values(1, 30))


@pytest.mark.parametrize("sync", ["none", "episode", "step"])
def test_every_sync_stores_the_same_values(tmp_path: Path, sync: Any) -> None:
    store = make(tmp_path / "a.well", *KINDS, sync=sync)
    reader = open(store.path, mode="r")
    with store.writer() as writer:
        for t in range(5):
            writer.append(step(store, 0, t))
            if sync == "step":
                reader.refresh()
                assert reader.num_steps == t + 1
        writer.end_episode(number=0)
    assert_episodes(store, [(0, 5)])


def test_an_interrupted_end_can_be_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "a.well", "plain", "slow and late", final=True)

    def interrupted(self: BackgroundRows) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    row = values(1, 8)[7]
    finals = {"plain": row, "slow_and_late": row}
    with store.writer() as writer:
        for t in range(7):
            writer.append(step(store, 1, t))
        monkeypatch.setattr(BackgroundRows, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.end_episode(final=finals, number=1)
        writer.end_episode(final=finals, number=1)
        for t in range(3):
            writer.append(step(store, 2, t))
        monkeypatch.setattr(BackgroundRows, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.end_episode(final=finals, number=2)
        # as if it went on: what was to be the final row is taken back
        for t in range(3, 6):
            writer.append(step(store, 2, t))
        writer.end_episode(number=2)
    assert [episode.has_final for episode in store] == [True, False]
    assert_episodes(store, [(1, 7), (2, 6)])
    assert store.verify(deep=True).is_ok


def interrupted_at_return(call: Callable[[], Any], number: int) -> bool:
    """Call it, and be interrupted when the function number so and so that it calls returns; False: all was over before.

    That is where a signal's handler may raise: right after what was called has done its work.
    """
    count = itertools.count()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if event == "return" and next(count) == number:
            sys.settrace(None)
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
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_append_that_was_interrupted_anywhere_can_be_made_up_for(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", "slow", "plain", "late")
    with store.writer() as writer:
        writer.append(step(store, 0, 0))
        number = 0
        # every step is new, so that a row of two steps would show
        while interrupted_at_return(partial(writer.append, step(store, 0, number + 1)), number):
            number += 1
            writer.end_episode()
            writer.append(step(store, 0, 1000 + number))
        writer.end_episode()
    assert number > 10
    for episode in store:
        for name in ("slow", "plain", "late"):
            assert np.array_equal(episode[name], values(0, 3000)[episode["t"]]), (episode, name)
    assert store.verify(deep=True).is_ok


@pytest.mark.parametrize("ends", [False, True])
def test_a_step_that_takes_the_place_of_one_that_failed_is_not_committed_before_it_is_stored(
    tmp_path: Path, ends: bool
) -> None:
    slow = Array(SHAPE, "int32", codec="slow-running", milliseconds=40)
    quick = Array(SHAPE, "int32", codec="running", at=int(values(0, 2)[1, 0, 0]))
    store = create(tmp_path / "a.well", {"slow": slow, "quick": quick})
    rows = values(0, 3)
    with store.writer() as writer:
        writer.append(slow=rows[0], quick=rows[0])
        with pytest.raises(EncodeError):
            writer.append(slow=rows[1], quick=rows[1])
        if ends:
            writer.end_episode()
        # the slow column has stored its row of the step that failed
        time.sleep(0.15)
        writer.append(slow=rows[2], quick=rows[2])
        reader = open(store.path, mode="r")
        assert [len(episode["slow"]) for episode in reader] in ([1], [2], [1, 1])
        for name in ("slow", "quick"):
            found = np.concatenate([episode[name] for episode in reader])
            assert np.array_equal(found, rows[[0, 2]][: len(found)]), name


def test_append_does_not_wait_for_a_slow_codec_until_the_queue_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create(tmp_path / "a.well", {"front": Array(SHAPE, "int32", codec="slow-running", milliseconds=1)})
    allowed, asleep = [0], []

    def sleep(seconds: float) -> None:
        asleep.append(seconds)
        while len(asleep) > allowed[0]:
            pass_time(0.001)

    pass_time = time.sleep
    writer = store.writer(queue_bytes=5 * 24)
    monkeypatch.setattr("stepwell.testing.codecs.time.sleep", sleep)
    for t in range(5):
        writer.append(front=values(0, t + 1)[t])
    assert open(store.path, mode="r").num_steps == 0
    allowed[0] = 10**9
    with writer:
        for t in range(5, 20):
            writer.append(front=values(0, t + 1)[t])
        writer.end_episode(number=0)
    assert_episodes(store, [(0, 20)])


def test_the_queue_has_values_of_its_own(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": KINDS["slow and late"]})
    image = np.empty(SHAPE, np.int32)
    with store.writer() as writer:
        for t in range(10):
            image[...] = values(0, 10)[t]
            writer.append(front=image)
        writer.end_episode(number=0)
    assert_episodes(store, [(0, 10)])


def test_an_error_in_the_background_surfaces_names_the_feature_and_loses_nothing_committed(tmp_path: Path) -> None:
    bad = Array(SHAPE, "int32", codec="slow-running", milliseconds=0, at=int(values(1, 6)[5, 0, 0]))
    store = create(tmp_path / "a.well", {"front": bad, "t": Array((), "int64")})
    writer = store.writer()
    record(store, writer, 0, 7)
    with pytest.raises(EncodeError, match=r"feature 'front': row 12 .* told to fail"):
        for t in range(100_000):
            writer.append(step(store, 1, t % 20))
    with pytest.raises(WriterClosedError):
        writer.append(step(store, 1, 0))
    writer.close()
    store.refresh()
    assert [(episode.length, episode.interrupted) for episode in store] == [(7, False), (5, True)]
    assert np.array_equal(store[1]["front"], values(1, 5))
    assert store[1]["t"].tolist() == list(range(5))
    with store.writer() as another:
        record(store, another, 2, 3)
    assert np.array_equal(store[2]["front"], values(2, 3))
    assert store.verify(deep=True).is_ok


@pytest.mark.parametrize("call", ["end_episode", "flush", "close", "discard_episode"])
def test_an_error_in_the_background_surfaces_at_whatever_is_called_next(tmp_path: Path, call: str) -> None:
    bad = Array(SHAPE, "int32", codec="slow-running", milliseconds=5, at=int(values(0, 4)[3, 0, 0]))
    store = create(tmp_path / "a.well", {"front": bad})
    writer = store.writer()
    for row in values(0, 4):
        writer.append(front=row)
    with pytest.raises(EncodeError, match="'front'"):
        getattr(writer, call)()
    writer.close()
    store = open(store.path)
    assert [(episode.length, episode.interrupted) for episode in store] == [(3, True)]
    assert np.array_equal(store[0]["front"], values(0, 3))
    assert store.verify(deep=True).is_ok


@pytest.mark.parametrize("lag", [0, 2])
def test_a_step_that_cannot_be_encoded_at_once_is_not_stored_and_the_writer_goes_on(tmp_path: Path, lag: int) -> None:
    bad = Array(SHAPE, "int32", codec="running", lag=lag, at=-5)
    store = create(tmp_path / "a.well", {"first": KINDS["late"], "front": bad, "t": Array((), "int64")})
    with store.writer() as writer:
        for t in range(6):
            if t in (0, 3):
                with pytest.raises(EncodeError, match="'front'"):
                    writer.append({**step(store, 0, t), "front": np.full(SHAPE, -5, np.int32)})
            writer.append(step(store, 0, t))
        writer.end_episode(number=0)
        with pytest.raises(EncodeError):
            rows = values(1, 3)
            writer.add_episode({"first": rows, "front": np.where(rows == rows[2], -5, rows), "t": np.arange(3)})
        record(store, writer, 2, 5)
    assert_episodes(store, [(0, 6), (2, 5)])
    assert store.verify(deep=True).is_ok


def test_a_full_disk_in_the_background_is_told_and_what_was_committed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path / "a.well", "slow")
    writer = store.writer()
    record(store, writer, 0, 4)
    pwrite = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if len(data) == 25:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError, match=r"slow\.bin"):
        record(store, writer, 1, 50)
    monkeypatch.undo()
    writer.close()
    assert_episodes(open(store.path), [(0, 4)])


RECORDER = """
import sys
import numpy as np
import stepwell.testing.codecs
from stepwell.store import open
store = open(sys.argv[1])
writer = store.writer(queue_bytes=2400)
shape = store.schema["t"].shape
names = [name for name in store.schema if name != "t"]
for number in range(10**6):
    for t in range(30):
        rows = (10_000 * number + np.arange(6 * t, 6 * t + 6)).reshape(2, 3).astype(np.int32)
        writer.append({**dict.fromkeys(names, rows), "t": t})
        print("x", flush=True)
    writer.end_episode(number=number)
"""


@pytest.mark.parametrize("kill", range(3))
def test_a_kill_loses_only_what_was_not_committed(tmp_path: Path, kill: int) -> None:
    store = make(tmp_path / "a.well", *KINDS, segment_bytes=6000)
    child = warm_children.Popen([sys.executable, "-c", RECORDER, str(store.path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(75 + 17 * kill):
        assert child.stdout.readline() == "x\n"
    reader = open(store.path, mode="r")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    recovered = open(store.path)
    assert all(segment.is_sealed for segment in recovered.segments)
    assert recovered.num_steps >= reader.num_steps > 0
    for number, episode in enumerate(recovered):
        assert episode.interrupted == (episode.length < 30)
        for name in KINDS:
            assert np.array_equal(episode[name.replace(" ", "_")], values(number, episode.length)), (number, name)
    assert recovered.verify(deep=True).is_ok
    # a cut episode is copied like any other
    recovered.delete_episodes([0])
    recovered.compact()
    whole = concatenate(tmp_path / "b.well", [recovered, recovered])
    assert len(whole) == 2 * len(recovered) > 0
    assert whole.verify(deep=True).is_ok
    cut = recovered[len(recovered) - 1]
    assert np.array_equal(whole[len(whole) - 1]["late"], cut["late"])


def test_a_forked_child_gives_up_and_its_parent_goes_on(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", "slow and late")
    writer = store.writer()
    for t in range(10):
        writer.append(step(store, 0, t))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.append(step(store, 0, 10))
        except WriterClosedError:
            writer.close()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with writer:
        writer.append(step(store, 0, 10))
        writer.end_episode(number=0)
    assert_episodes(store, [(0, 11)])


@pytest.mark.parametrize("end", ["", "del writer", "raise SystemExit(0)"])
def test_a_process_that_forgets_to_close_ends_and_keeps_what_it_appended(tmp_path: Path, end: str) -> None:
    store = make(tmp_path / "a.well", "slow and late")
    code = (
        "import sys, numpy as np, stepwell.testing.codecs\nfrom stepwell.store import open\n"
        "writer = open(sys.argv[1]).writer()\n"
        "rows = np.arange(240, dtype='int32').reshape(40, 2, 3)\n"
        "for t in range(40): writer.append(slow_and_late=rows[t], t=t)\n"
    )
    done = subprocess.run([sys.executable, "-c", code + end, str(store.path)], timeout=120, check=False)
    assert done.returncode == 0
    (episode,) = open(store.path)
    assert episode.interrupted
    assert np.array_equal(episode["slow_and_late"], values(0, 40))


def test_compaction_concatenation_and_checkpoints_keep_every_run(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", "late", "slow", final=True, segment_bytes=300)
    with store.writer() as writer:
        for number in range(8):
            record(store, writer, number, 1 + 3 * number % 7)
            record(store, writer, 99, 5, discard=True)
    lengths = [(number, 1 + 3 * number % 7) for number in range(8)]
    assert_episodes(store, lengths)
    with store.writer() as writer:
        writer.append(step(store, 8, 0))
        writer.flush()
        copy = open(store.checkpoint(tmp_path / "checkpoint.well"))
        assert np.array_equal(copy[8]["late"], values(8, 1))
        writer.discard_episode()
    store.delete_episodes([2, 5])
    assert store.compact() > 0
    kept = [entry for entry in lengths if entry[0] not in (2, 5)]
    assert_episodes(store, kept)
    whole = concatenate(tmp_path / "whole.well", [store, store])
    assert_episodes(whole, kept + kept)
    assert whole.verify(deep=True).is_ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequential_column_can_be_added(tmp_path: Path, kind: str) -> None:
    store = create(tmp_path / "a.well", {"t": Array((), "int64", final=True)}, segment_bytes=200)
    with store.writer() as writer:
        for number in range(5):
            writer.add_episode({"t": np.arange(3 + number)}, final={"t": 0} if number % 2 else None, number=number)
            writer.append(t=0)
            writer.discard_episode()
    store.add_column("front", KINDS[kind], lambda episode: values(episode.metadata["number"], episode.length))
    store.add_column("back", KINDS[kind].with_final(), [values(n, 3 + n + n % 2) for n in range(5)])
    for number, episode in enumerate(store):
        assert np.array_equal(episode["front"], values(number, 3 + number))
        assert np.array_equal(episode["back"], values(number, 3 + number + number % 2))
    assert store.verify(deep=True).is_ok
    with store.writer() as writer:
        writer.add_episode({"t": np.arange(6), "front": values(5, 6), "back": values(5, 6)}, number=5)
    store.compact()
    assert np.array_equal(store[5]["front"], values(5, 6))
