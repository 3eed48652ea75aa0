"""Fields that one thread replaces while another reads: what is read is right, whichever moment it is."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, View
from stepwell.store import Store


def recorded(path: Path) -> tuple[Any, Any]:
    """Return a store with an open segment of one episode, and its writer."""
    store = stepwell.create(path, {"x": Array(2), "z": Array(2, codec="zstd")})
    writer = store.writer()
    writer.append(x=np.ones(2, "f4"), z=np.ones(2, "f4"))
    writer.end_episode(task="lift")
    return store, writer


@pytest.mark.parametrize("read", ["raw_map", "offsets_map", "blob_map", "metadata_lines"])
def test_a_segment_that_is_sealed_while_a_file_of_it_is_opened_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    _, writer = recorded(tmp_path / "a.well")
    segment = stepwell.open(tmp_path / "a.well", mode="r").segments[0]
    writer.close()
    real = os.lstat, os.open

    def racing(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return real(*arguments, **options)
            except FileNotFoundError:
                monkeypatch.setattr(os, "lstat", lstat)
                monkeypatch.setattr(os, "open", open_)
                # what another thread does in that moment
                segment.refresh()
                raise

        return call

    lstat, open_ = real
    monkeypatch.setattr(os, "lstat", racing(lstat))
    monkeypatch.setattr(os, "open", racing(open_))
    arguments = () if read == "metadata_lines" else ("x" if read == "raw_map" else "z",)
    assert len(getattr(segment, read)(*arguments)) > 0


def test_the_words_of_a_commit_record_go_at_any_moment(tmp_path: Path) -> None:
    _, writer = recorded(tmp_path / "a.well")
    segment = stepwell.open(tmp_path / "a.well", mode="r").segments[0]
    writer.close()
    stop = threading.Event()
    raised: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                words = segment.commit_words
                assert words is None or len(words) in (0, 32)
                segment.refresh()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        segment.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert not raised


def test_a_view_holds_one_snapshot_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, writer = recorded(tmp_path / "a.well")
    store.refresh()
    writers = [writer]
    real = Store.episodes.fget
    assert real is not None

    def racing(self: Any) -> Any:
        # another thread records and refreshes before each look at the episodes
        other = Store(str(store.path)).writer()
        writers.append(other)
        other.add_episode({"x": np.ones((3, 2), "f4"), "z": np.ones((3, 2), "f4")})
        store.refresh()
        return real(self)

    monkeypatch.setattr(Store, "episodes", property(racing))
    part = View(store).parts[0]
    assert int(part.table.segment.max()) < len(part.segments)
    assert len(part.indices) == len(part.table)
    for each in writers:
        each.close()


def test_refreshes_of_several_threads_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer = recorded(tmp_path / "a.well")
    reader = stepwell.open(tmp_path / "a.well", mode="r")
    real = Store._in_table
    calls: list[Any] = []

    def slow(self: Any, keys: Any) -> Any:
        # another thread refreshes between the listing, where this is called first, and the snapshot that is made of it
        calls.append(keys)
        if len(calls) == 2:
            with Store(str(self.path)).writer() as other:
                other.add_episode({"x": np.ones((3, 2), "f4"), "z": np.ones((3, 2), "f4")})
            thread = threading.Thread(target=self.refresh)
            thread.start()
            thread.join(0.2)
            threads.append(thread)
        return real(self, keys)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(Store, "_in_table", slow)
    writer.close()
    reader.refresh()
    for thread in threads:
        thread.join()
    reader.refresh()
    assert len(reader) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork")
def test_a_child_of_a_fork_refreshes_where_a_thread_of_the_parent_was_refreshing(tmp_path: Path) -> None:
    _, writer = recorded(tmp_path / "a.well")
    reader = stepwell.open(tmp_path / "a.well", mode="r")
    writer.close()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._changing:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        reader.refresh()
        os._exit(0 if len(reader) == 1 else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_read_and_refresh_while_segments_are_recorded_and_sealed(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"x": Array(2), "z": Array(2, codec="zstd")}, segment_bytes=64)
    stop = threading.Event()
    raised: list[BaseException] = []
    reader = stepwell.open(tmp_path / "a.well", mode="r")

    def read() -> None:
        try:
            while not stop.is_set():
                reader.refresh()
                for episode in list(reader)[-3:]:
                    assert (episode["x"] == episode["z"]).all()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    with store.writer() as writer:
        for k in range(40):
            for _ in range(3):
                writer.append(x=np.full(2, k, "f4"), z=np.full(2, k, "f4"))
            writer.end_episode()
    stop.set()
    for thread in threads:
        thread.join()
    assert not raised, raised
    reader.refresh()
    assert [float(episode["x"][0, 0]) for episode in reader] == list(range(40))
