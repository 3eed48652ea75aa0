"""A full disk, a disk that is only read, a clock that goes back, at the server: what clients are told, what stays."""

import errno
import os
import time

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.errors import DiskFullError, ReadOnlyError
from stepwell.service import Client, Limits, Server, open_table
from stepwell.service.sessions import Journal

SCHEMA = {"obs": Array(3, final=True), "number": Array((), "int64"), "actor": Array((), "int64")}


class FailingCalls:
    """Lets the first ``left`` calls that take space through; then the disk is full until it is told otherwise."""

    def __init__(self, monkeypatch, number=errno.ENOSPC):
        self.left, self.number = 10**9, number
        for name in ("posix_fallocate", "pwrite", "write", "fsync"):
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def call(file, *arguments):
            if name == "write" and file < 3:
                return real(file, *arguments)
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number))
            return real(file, *arguments)

        return call


def write_until_full(client, has_vectors, acknowledged):
    """Write and flush without end."""
    if has_vectors:
        with client.vector_writer(2, "actor", timeout=20) as writer:
            for t in range(100_000):
                step = {"obs": np.zeros((2, 3), np.float32), "number": [t, t], "actor": np.array([0, 1])}
                writer.append(step, terminated=np.array([t % 20 == 19, t % 30 == 29]))
                if t % 50 == 49:
                    writer.flush()
                    acknowledged[0] = acknowledged[1] = t + 1
    with client.writer("actor", timeout=20) as writer:
        for number in range(100_000):
            writer.append(obs=[0, 0, 0], number=number, actor=0)
            if number % 37 == 36:
                writer.end_episode(truncated=True)
            if number % 50 == 49:
                writer.flush()
                acknowledged[0] = number + 1


def numbers_of(store, actor):
    store.refresh()
    found = [np.asarray(episode["number"]) for episode in store if int(episode["actor"][0]) == actor]
    return np.concatenate([np.zeros(0, np.int64), *found]).tolist()


def write_one(client, name, actor):
    with client.writer(name, timeout=20) as writer:
        writer.append(obs=[0, 0, 0], number=0, actor=actor)


@pytest.mark.parametrize("has_vectors", [False, True])
@pytest.mark.parametrize("good", [0, 1, 2, 3, 5, 8, 13, 40])
def test_a_full_disk_at_the_server_loses_nothing_that_was_acknowledged(tmp_path, monkeypatch, good, has_vectors):
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=200_000, segment_bytes="64 KiB")
    full, acknowledged = FailingCalls(monkeypatch), [0, 0]
    server = Server(open_table(store), limits=Limits(grace_seconds=0.05))
    with server, Client(server.address, timeout=20) as client:
        write_one(client, "before", 7)
        full.left = good
        with pytest.raises(DiskFullError, match="no space left"):
            write_until_full(client, has_vectors, acknowledged)
        for name in ("actor", "other"):
            with pytest.raises(DiskFullError, match="no space left"):
                write_one(client, name, 8)
        with client.loader({"number": "number"}, batch_size=4) as loader:
            next(loader)
        # somebody makes room
        full.left = 10**9
        for name in ("actor", "other"):
            write_one(client, name, 9)
        assert numbers_of(store, 9) == [0, 0]
        for actor, count in enumerate(acknowledged):
            stored = numbers_of(store, actor)
            assert stored == list(range(len(stored)))
            assert len(stored) >= count
    assert store.verify().is_ok


def test_a_writer_of_a_full_server_is_told_what_to_do(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    full = FailingCalls(monkeypatch)
    with Server(open_table(store)) as server, Client(server.address) as client:
        writer = client.writer()
        full.left = 0
        writer.append(obs=[0, 0, 0], number=0, actor=0)
        with pytest.raises(DiskFullError) as error:
            writer.flush()
        full.left = 10**9
        writer.close()
    assert "make room at the server, and go on with a new client.writer" in str(error.value)


def test_a_server_that_cannot_save_its_tables_still_stops(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    server = Server([open_table(store, "a"), open_table(store, "b")])
    full = FailingCalls(monkeypatch)
    full.left = 0
    with pytest.raises(DiskFullError):
        server.stop()
    assert not server.is_running
    server.stop()
    with pytest.raises(DiskFullError):
        Server(open_table(store, "a"))
    full.left = 10**9
    with Server(open_table(store, "a")) as server, Client(server.address) as client:
        write_one(client, "one", 1)
    assert numbers_of(store, 1) == [0]


def test_a_line_of_a_journal_that_was_cut_off_hides_none_that_follows(tmp_path, monkeypatch):
    """A killed server counts the steps in all segments of its writers, so each must be in the journal."""
    (tmp_path / "service").mkdir()
    journal = Journal(str(tmp_path), "a", {"name": "a"})

    def write_a_part(file, data):
        real(file, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_a_part)
        with pytest.raises(DiskFullError):
            journal.add_segment("00000001-aaaa")
    journal.add_segment("00000002-bbbb")
    journal.close(is_over=False)
    (path,) = (tmp_path / "service").glob("*.journal")
    assert b"00000002-bbbb" in path.read_bytes().split(b"\n")


def test_a_store_that_is_read_only_may_be_drawn_from(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with store.writer() as writer:
        for number in range(10):
            writer.append(obs=[0, 0, 0], number=number, actor=0)
    store = stepwell.open(tmp_path / "a.well", mode="r")
    with Server(open_table(store)) as server, Client(server.address, timeout=20) as client:
        with client.loader({"number": "number"}, batch_size=4) as loader:
            assert len(next(loader)["number"]) == 4
        with pytest.raises(ReadOnlyError, match="opened with mode"):
            write_one(client, "one", 1)


def test_a_disk_that_becomes_read_only(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    disk = FailingCalls(monkeypatch, errno.EROFS)
    server = Server(open_table(store), save_seconds=None, limits=Limits(grace_seconds=0.05))
    with server, Client(server.address, timeout=20) as client:
        write_one(client, "before", 1)
        disk.left = 3
        with pytest.raises(ReadOnlyError, match="cannot be changed"):
            write_until_full(client, False, [0, 0])
        disk.left = 10**9
        write_one(client, "after", 2)
        assert numbers_of(store, 1) == numbers_of(store, 2) == [0]


def test_a_server_of_a_store_where_nothing_may_be_written(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    table = open_table(store)

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(ReadOnlyError, match=r"a\.well.* cannot be changed.*Get the right to write there"):
            Server(table)
    with Server(table):
        pass


def test_values_are_newer_though_the_clock_went_back(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with Server(open_table(store)) as server, Client(server.address) as client:
        version = client.publish("policy", {"w": np.zeros(1)})
        address = server.address
    # not time.time(), by which grpcio's clients in this process reckon how long they wait
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - 3600 * 10**9)
    with Server(open_table(store), address) as server, Client(server.address) as client:
        assert client.latest("policy", newer_than=version) is None
        client.publish("policy", {"w": np.ones(1)})
        newer, arrays, _ = client.latest("policy", newer_than=version)
        assert arrays["w"].tolist() == [1]
        assert client.latest("policy", newer_than=newer) is None
        assert client.stats()[0]["uptime"] >= 0


def test_steps_are_stored_and_drawn_though_the_clock_goes_back(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1000, segment_bytes="64 KiB")
    real_ns, back = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - back[0] * 10**9)
    server = Server(open_table(store), save_seconds=0.05, limits=Limits(grace_seconds=0.2))
    with server, Client(server.address, timeout=20) as client, client.writer("a", timeout=20) as writer:
        for number in range(3000):
            writer.append(obs=[0, 0, 0], number=number, actor=0)
            if number % 300 == 299:
                writer.end_episode()
                writer.flush()
                back[0] += 3600
                with client.loader({"number": "number"}, batch_size=8, timeout=20) as loader:
                    assert (next(loader)["number"] <= number).all()
        assert server.stats()["tables"]["replay"]["counts"]["inserts"] == 3000
    stored = numbers_of(store, 0)
    assert stored == list(range(stored[0], 3000))
