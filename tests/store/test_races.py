"""Fields that one thread replaces while another reads: what is read is right, whichever moment it is."""

import json
import os
import signal
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, View
from stepwell.store import Store
from stepwell.store.following import Follower
from stepwell.store.manifests import has_listed_files
from stepwell.webdataset import write_webdataset
from stepwell.webdataset.writing import EPISODE


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


def test_a_segment_that_is_seen_in_the_moment_before_its_new_name_is_found_under_it(tmp_path: Path) -> None:
    _, writer = recorded(tmp_path / "a.well")
    writer.close()
    (sealed,) = (tmp_path / "a.well" / "segments").iterdir()
    # its commit record is gone, and its new name is not there yet
    sealing = sealed.rename(f"{sealed}.open")
    (segment,) = stepwell.open(tmp_path / "a.well", mode="r").segments
    assert (segment.is_sealed, segment.path) == (True, sealing)
    sealing.rename(sealed)
    assert segment.path == sealed


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_segment_that_gets_its_sealed_name_while_a_reader_opens_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    _, writer = recorded(tmp_path / "a.well")
    writer.close()
    sealed = next((tmp_path / "a.well" / "segments").iterdir())
    # as it is between the end of its commit record and its new name
    sealed.rename(f"{sealed}.open")

    def listed(directory: str) -> bool:
        is_listed = moment == "after" and has_listed_files(directory)
        Path(directory).rename(sealed)
        return is_listed

    monkeypatch.setattr("stepwell.store.segments.has_listed_files", listed)
    store = stepwell.open(tmp_path / "a.well", mode="r")
    assert not Path(f"{sealed}.open").exists()
    assert [episode["x"].tolist() for episode in store] == [[[1, 1]]]


def test_refreshes_of_several_threads_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer = recorded(tmp_path / "a.well")
    reader = stepwell.open(tmp_path / "a.well", mode="r")
    real = Follower._in_table
    calls: list[Any] = []

    def slow(self: Any, keys: Any) -> Any:
        # another thread refreshes between the listing, where this is called first, and the snapshot that is made of it
        calls.append(keys)
        if len(calls) == 2:
            with Store(str(reader.path)).writer() as other:
                other.add_episode({"x": np.ones((3, 2), "f4"), "z": np.ones((3, 2), "f4")})
            thread = threading.Thread(target=reader.refresh)
            thread.start()
            thread.join(0.2)
            threads.append(thread)
        return real(self, keys)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(Follower, "_in_table", slow)
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


def _values(store: Any) -> list[list[float]]:
    return [episode["x"][:, 0].tolist() for episode in store]


BEFORE, AFTER = [[10.0] * 3, [20.0], [30.0] * 2], [[0.0] * 4, [10.0] * 3, [20.0], [30.0] * 2]


def _statistics(store: Any, path: Path) -> bool:
    found = store.statistics([2], names=["x"])["x"]
    return (int(found.count[0]), float(found.mean[0])) in ((2, 30.0), (1, 20.0))


def _statistics_of_a_view(store: Any, path: Path) -> bool:
    view = View(store).select(episodes=[1])
    expected = {1: (1, 20.0), 3: (3, 10.0)}[view.num_steps]
    store.segments  # noqa: B018
    found = view.statistics(names=["x"])["x"]
    return (int(found.count[0]), float(found.mean[0])) == expected


def _deletion(store: Any, path: Path) -> bool:
    store.delete_episodes([2])
    left = _values(store)
    return left in ([*BEFORE[:2]], [*AFTER[:3]], [*AFTER[:2], AFTER[3]])


def _iteration(store: Any, path: Path) -> bool:
    found = []
    for episode in store:
        store.episodes  # noqa: B018
        found.append(episode["x"][:, 0].tolist())
    return found in (BEFORE, AFTER)


def _conversion(store: Any, path: Path) -> bool:
    stepwell.convert(store, path, {"x": "zstd"}, workers=1, progress=False)
    return _values(stepwell.open(path)) in (BEFORE, AFTER)


def _export(store: Any, path: Path) -> bool:
    (shard,) = write_webdataset(store, path, samples="episodes", workers=0, progress=False)
    with tarfile.open(shard) as tar:
        members = [tar.extractfile(name) for name in tar.getnames() if name.endswith(EPISODE)]
        facts = [json.load(member) for member in members if member is not None]
    found = [(each["length"], each["truncated"]) for each in facts]
    return found in ([(3, True), (1, False), (2, False)], [(4, False), (3, True), (1, False), (2, False)])


def _information(store: Any, path: Path) -> bool:
    table = store.info()
    return (table.num_episodes, table.num_steps, table.num_segments) in ((3, 6, 2), (4, 10, 3))


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize(
    "call", [_statistics, _statistics_of_a_view, _deletion, _iteration, _conversion, _export, _information]
)
def test_a_call_sees_one_moment_of_a_store_that_another_thread_refreshes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, moment: int
) -> None:
    store = stepwell.create(tmp_path / "a.well", {"x": Array(2)})
    for key, each in (("b", BEFORE[:1]), ("c", BEFORE[1:])):
        with store.writer(key=key) as writer:
            for values in each:
                rows = np.repeat(np.array(values, "f4")[:, None], 2, 1)
                writer.add_episode({"x": rows}, truncated=len(values) == 3)
    looks: list[str] = []

    def racing(name: str) -> property:
        real = getattr(Store, name).fget

        def look(self: Any) -> Any:
            if self is store:
                looks.append(name)
                if len(looks) == moment + 1:
                    # what has no key comes first: all numbers are others now
                    with Store(str(self.path)).writer() as other:
                        other.add_episode({"x": np.zeros((4, 2), "f4")})
                    self.refresh()
            return real(self)

        return property(look)

    for name in ("segments", "episodes", "listing"):
        monkeypatch.setattr(Store, name, racing(name))
    assert call(store, tmp_path / "b.well")
