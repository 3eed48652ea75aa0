"""What a kill -9 leaves, and what the next open makes of it."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import warm_children

from stepwell.errors import CorruptSegmentError, DecodeError, DiskFullError, StepError, WriterClosedError
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Store, create, open

SCHEMA = Schema({"observation": Array(5, "int64", final=True), "action": Array((), "int32"), "note": Bytes()})
KILLS = 200
Words: TypeAlias = "memoryview[int]"


def shared_words(count: int) -> Words:
    """Return numbers that children share, each one store: `struct` writes zeros first, and a kill leaves them."""
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


def observation(writer: int, episode: int, t: int) -> np.ndarray:
    key = writer * 1_000_003 + episode * 1009 + t
    return np.array([writer, episode, t, key, key ^ 0x5DEECE66D], np.int64)


def record_forever(path: str, writer: int, acknowledged: Words) -> None:
    """Append without end; after each call that returned, write down how many steps the store owes us."""
    rng = random.Random(writer)
    store = Store(path)
    count = 0
    with store.writer() as out:
        for episode in range(10**9):
            for t in range(rng.randrange(1, 40)):
                out.append({"observation": observation(writer, episode, t), "action": t, "note": b"%d" % t * (t % 7)})
                count += 1
                acknowledged[writer] = count
            final = {"observation": observation(writer, episode, t + 1)} if episode % 3 else None
            out.end_episode(terminated=episode % 2 == 0, final=final, writer=writer, number=episode)


def fork_writer(path: str, writer: int, acknowledged: Words) -> int:
    child = os.fork()
    if child == 0:
        try:
            record_forever(path, writer, acknowledged)
        finally:
            os._exit(1)
    return child


def check_episode(store: Store, index: int) -> tuple[int, int]:
    """Check every value of an episode against what its writer must have written; returns (writer, steps)."""
    episode = store[index]
    seen = episode["observation"]
    writer, number = int(seen[0, 0]), int(seen[0, 1])
    expected = np.stack([observation(writer, number, t) for t in range(len(seen))])
    assert np.array_equal(seen, expected)
    assert episode["action"].tolist() == list(range(episode.length))
    assert episode["note"] == [b"%d" % t * (t % 7) for t in range(episode.length)]
    if not (episode.interrupted or episode.is_open):
        assert episode.metadata == {"writer": writer, "number": number}
        assert episode.terminated == (number % 2 == 0)
        assert episode.has_final == (number % 3 != 0)
    return writer, episode.length


def kill_and_reopen(path: Path, writers: int, steps: int) -> Store:
    """Kill all writers once the first was told of ``steps`` steps, reopen the store and check all of it."""
    before = Store(str(path), "r").num_steps
    acknowledged = shared_words(writers)
    children = [fork_writer(str(path), writer, acknowledged) for writer in range(writers)]
    deadline = time.monotonic() + 60
    while acknowledged[0] < steps:
        assert time.monotonic() < deadline
        time.sleep(50e-6)
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    owed = acknowledged.tolist()
    store = open(path)
    assert all(segment.is_sealed for segment in store.segments)
    found = [0] * writers
    for index in range(len(store)):
        writer, length = check_episode(store, index)
        found[writer] += length
    # a step may be committed while the kill came before its acknowledgement, never the other way round
    for writer in range(writers):
        assert found[writer] - before in (owed[writer], owed[writer] + 1)
    return store


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Seal once before forking, so that no child compiles kernels."""
    store = create(tmp_path_factory.mktemp("warm") / "warm.well", SCHEMA)
    with store.writer() as out:
        out.append({"observation": observation(0, 0, 0), "action": 0, "note": b""})
        out.end_episode()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_kill_of_a_writer_at_any_moment_loses_nothing_committed(part: int, tmp_path: Path) -> None:
    rng = random.Random(part)
    interrupted = 0
    for kill in range(KILLS // 4):
        path = tmp_path / f"{kill}.well"
        # small segments, so that kills fall into sealing, growing and rolling too
        create(path, SCHEMA, segment_bytes=rng.choice([2_000, 8_000, 1 << 28]))
        store = kill_and_reopen(path, 1, rng.randrange(400))
        interrupted += bool(store.episodes.interrupted.any())
        if kill % 10 == 0:
            assert store.verify().is_ok
    assert interrupted > 5  # else the kills did not fall where they should


def test_kill_of_several_writers_at_once_loses_nothing_committed(tmp_path: Path) -> None:
    for kill in range(5):
        path = tmp_path / f"{kill}.well"
        create(path, SCHEMA, segment_bytes=5_000)
        store = kill_and_reopen(path, 3, 300)
        assert store.verify().is_ok


def test_a_store_goes_on_after_a_kill(tmp_path: Path) -> None:
    create(tmp_path / "a.well", SCHEMA)
    before = kill_and_reopen(tmp_path / "a.well", 1, 100)
    ids = {episode.first_step_id for episode in before}
    after = kill_and_reopen(tmp_path / "a.well", 1, 100)
    assert len(after) > len(before)
    # ids of what was there stay, new ones were never given before
    now = [episode.first_step_id for episode in after]
    assert len(now) == len(set(now))
    assert ids <= set(now)


def test_recovery_by_several_processes_at_once_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    create(path, SCHEMA)
    acknowledged = shared_words(1)
    child = fork_writer(str(path), 0, acknowledged)
    time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    code = f"import stepwell.store as s; x = s.open({str(path)!r}); print(len(x), x.num_steps)"
    openers = [warm_children.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    told = {opener.communicate()[0] for opener in openers}
    assert all(opener.returncode == 0 for opener in openers)
    assert len(told) == 1
    assert open(path).verify().is_ok


def test_open_leaves_the_segments_of_live_writers_alone(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    with store.writer() as out:
        out.append({"observation": observation(0, 0, 0), "action": 0, "note": b""})
        other = open(tmp_path / "a.well")
        assert not other.segments[0].is_sealed
        out.append({"observation": observation(0, 0, 1), "action": 1, "note": b"1"})
        out.end_episode(terminated=True, writer=0, number=0)
        assert other.refresh()
        assert check_episode(other, 0) == (0, 2)
    assert other.refresh()
    assert other.segments[0].is_sealed


def test_mode_r_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    create(path, SCHEMA)
    acknowledged = shared_words(1)
    child = fork_writer(str(path), 0, acknowledged)
    while acknowledged[0] < 10:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    before = sorted(path.rglob("*"))
    store = open(path, mode="r")
    assert sorted(path.rglob("*")) == before
    assert store.num_steps >= acknowledged[0]
    assert sum(check_episode(store, index)[1] for index in range(len(store))) == store.num_steps


def test_a_segment_killed_before_its_first_row_is_removed(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", SCHEMA)
    (tmp_path / "a.well" / "segments" / ".new-00000009-beef").mkdir()
    assert len(open(tmp_path / "a.well")) == 0
    assert list((tmp_path / "a.well" / "segments").iterdir()) == []
    assert len(store) == 0


def test_a_forked_child_cannot_write_and_does_not_keep_a_dead_parent_s_segment_alive(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    store = create(path, SCHEMA)
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent == 0:
        out = Store(str(path)).writer()
        out.append({"observation": observation(0, 0, 0), "action": 0, "note": b""})
        child = os.fork()
        if child == 0:
            try:
                out.append({"observation": observation(0, 0, 1), "action": 1, "note": b""})
            except WriterClosedError:
                os.write(write_end, b"refused")
            time.sleep(1.5)  # outlives its parent
            os._exit(0)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(read_end, 7) == b"refused"
    recovered = open(path)
    assert recovered.num_steps == 1
    assert recovered.segments[0].is_sealed
    assert store.refresh()


def test_rows_that_cannot_be_decoded_do_not_keep_a_store_from_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    out = create(path, {"image": Array((8, 8), "uint8", codec="zstd"), "t": Array((), "int64")}).writer()
    for t in range(3):
        out.append(image=np.full((8, 8), t, np.uint8), t=t)
    del out
    blob = next(path.rglob("image.bin"))
    data = bytearray(blob.read_bytes())
    data[-10:] = bytes(10)  # what a loss of power may leave
    blob.write_bytes(data)
    store = open(path)
    assert store[0]["t"].tolist() == [0, 1, 2]
    assert set(store.statistics(names=["t"])) == {"t"}
    with pytest.raises(DecodeError, match="step 2"):
        store[0]["image"]
    with pytest.raises(DecodeError):
        store.statistics()
    assert [finding.file for finding in store.verify(deep=True).findings] == [
        f"segments/{store.segments[0].name}/image.bin"
    ]


def test_a_segment_that_somebody_else_renames_in_the_middle_of_its_sealing_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    out = create(path, {"t": Array((), "int64")}).writer()
    out.append(t=1)
    out.end_episode()
    remove = os.unlink

    def remove_and_open(file: str) -> None:
        remove(file)
        if file.endswith("/progress"):
            assert open(path).segments[0].is_sealed

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", remove_and_open)
        out.close()
    assert [episode["t"].tolist() for episode in open(path)] == [[1]]


def test_an_empty_segment_that_is_half_removed_does_not_keep_a_store_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    out = create(path, {"t": Array((), "int64")}).writer()
    with pytest.raises(StepError):
        out.append_batch({"t": ["no number"]})
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda directory, **_: Path(directory, "progress").unlink())
        out.close()
    assert len(open(path, mode="r")) == 0
    assert len(open(path)) == 0
    assert not list(path.glob("segments/*"))


def test_a_writer_whose_last_episode_cannot_be_ended_lets_go_of_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.well"
    out = create(path, {"t": Array((), "int64")}).writer()
    out.append(t=1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullError):
            out.close()
    recovered = open(path)
    assert recovered.segments[0].is_sealed
    assert recovered[0].interrupted


def test_a_forked_child_cannot_end_its_parent_s_episode(tmp_path: Path) -> None:
    out = create(tmp_path / "a.well", {"t": Array((), "int64")}).writer()
    out.append(t=1)
    child = os.fork()
    if child == 0:
        try:
            out.end_episode(task="child")
        except WriterClosedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    out.end_episode()
    out.close()
    assert open(tmp_path / "a.well")[0].metadata == {}


def test_an_episode_table_that_lost_committed_records_is_named_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.well"
    out = create(path, {"t": Array((), "int64")}).writer()
    for _ in range(2):
        out.append(t=1)
        out.end_episode()
    del out
    table = next(path.rglob("episodes.npy"))
    os.truncate(table, 400)
    with pytest.raises(CorruptSegmentError, match=r"episodes\.npy: 2 episodes were committed"):
        open(path)
