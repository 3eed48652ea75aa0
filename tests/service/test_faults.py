"""What servers and clients promise when connections, servers, actors and learners go: nothing twice, nothing lost."""

import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from tcp_proxy import TcpProxy

import stepwell
from stepwell import Array, Table
from stepwell.errors import ServiceError, StepwellError
from stepwell.service import Client, Limits, Server, open_table

SCHEMA = {"obs": Array(3, final=True), "number": Array((), "int64"), "actor": Array((), "int64")}


def numbers_of(store, actor):
    """Return the numbers of the steps of an actor, in the order in which they were stored."""
    store.refresh()
    found = [np.asarray(episode["number"]) for episode in store if int(episode["actor"][0]) == actor]
    return np.concatenate([np.zeros(0, np.int64), *found]).tolist()


@pytest.fixture
def proxied(store):
    with Server(Table(store, sampler="prioritized"), limits=Limits(grace_seconds=20)) as server:
        proxy = TcpProxy(server.port)
        with Client(proxy.address, timeout=30) as client:
            yield store, proxy, client
        proxy.close()


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_stored_once_over_connections_that_are_cut(proxied, seed):
    store, proxy, client = proxied
    rng, is_over = random.Random(seed), threading.Event()

    def disturb():
        while not is_over.wait(rng.random() * 0.15):
            proxy.delay = rng.choice([0, 0, 0.003])
            if rng.random() < 0.5:
                proxy.cut()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with client.writer("a", batch_steps=rng.choice([1, 8, 64])) as writer:
            for number in range(4000):
                writer.append(obs=[0, 0, 0], number=number, actor=1)
                if number % 50 == 49:
                    writer.end_episode(terminated=True, final={"obs": [1, 1, 1]}, number=number)
                if number % 400 == 0:
                    time.sleep(0.05)
    finally:
        is_over.set()
        thread.join()
    assert numbers_of(store, 1) == list(range(4000))
    assert [episode.length for episode in store] == [50] * 80
    assert all(episode.terminated and episode.metadata["number"] == 50 * i + 49 for i, episode in enumerate(store))


@pytest.mark.parametrize("seed", range(2))
def test_vector_steps_are_stored_once_over_connections_that_are_cut(proxied, seed):
    store, proxy, client = proxied
    rng, masks, expected = random.Random(seed), np.random.default_rng(seed), [[] for _ in range(4)]
    with client.vector_writer(4, "v", batch_steps=3) as writer:
        for t in range(600):
            mask = masks.random(4) < 0.7
            for env in np.flatnonzero(mask):
                expected[env].append(4 * t + int(env))
            step = {"obs": np.zeros((4, 3), np.float32), "number": 4 * t + np.arange(4), "actor": np.arange(4)}
            writer.append(step, mask=mask, terminated=mask & (masks.random(4) < 0.02))
            if rng.random() < 0.02:
                proxy.cut()
            if t % 50 == 0:
                time.sleep(0.03)
    assert [numbers_of(store, env) for env in range(4)] == expected


def test_a_loader_goes_on_over_connections_that_are_cut(proxied):
    _, proxy, client = proxied
    with client.writer() as writer:
        for number in range(300):
            writer.append(obs=[number, 0, 0], number=number, actor=1)
    with client.loader({"number": "number", "obs": "obs"}, batch_size=16) as loader:
        for number in range(60):
            batch = next(loader)
            assert (batch["obs"][:, 0] == batch["number"]).all()
            loader.update_priorities(batch, np.ones(16))
            if number % 7 == 3:
                proxy.cut()


def test_a_stalled_connection_holds_nobody_else(store):
    with Server(Table(store)) as server:
        proxy = TcpProxy(server.port)
        with Client(proxy.address) as behind, Client(server.address) as client:
            stalled = behind.writer("stalled", timeout=0.5)
            stalled.append(obs=[0, 0, 0], number=0, actor=1)
            stalled.flush()
            proxy.is_stalled = True
            stalled.append(obs=[0, 0, 0], number=1, actor=1)
            with pytest.raises(ServiceError, match="did not acknowledge"):
                stalled.flush(0.2)
            with client.writer() as writer:
                for number in range(100):
                    writer.append(obs=[0, 0, 0], number=number, actor=2)
            proxy.is_stalled = False
            stalled._timeout = 20
            stalled.close()
        proxy.close()
    assert numbers_of(store, 1) == [0, 1]
    assert numbers_of(store, 2) == list(range(100))


def serve(path, port, ready):
    store = stepwell.open(path)
    tables = [open_table(store, "replay", sampler="prioritized", seed=1), open_table(store, "items", pattern=None)]
    server = Server(tables, f"127.0.0.1:{port}", save_seconds=0.2, limits=Limits(grace_seconds=2))
    ready.put(server.port)
    server.wait()


def act(address, actor, count, has_vector):
    with Client(address, timeout=120) as client:
        if has_vector:
            with client.vector_writer(2, f"actor-{actor}", batch_steps=4, timeout=120) as writer:
                for t in range(count // 2):
                    step = {
                        "obs": np.zeros((2, 3), np.float32),
                        "number": 2 * t + np.arange(2),
                        "actor": np.full(2, actor),
                    }
                    writer.append(step, terminated=np.array([t % 20 == 19, t % 30 == 29]))
                    time.sleep(0.0005)
            return
        with client.writer(f"actor-{actor}", batch_steps=16, timeout=120) as writer:
            for number in range(count):
                writer.append(obs=[actor, number, 0], number=number, actor=actor)
                if number % 37 == 36:
                    writer.end_episode(truncated=True)
                time.sleep(0.0003)


def learn(address, is_over, failed):
    try:
        with Client(address, timeout=120) as client:
            while client.info()["replay"].size < 50:
                time.sleep(0.05)
            with client.loader(
                {"obs": "obs", "number": "number", "actor": "actor"}, tables="replay", batch_size=32
            ) as loader:
                while not is_over.is_set():
                    batch = next(loader)
                    plain = batch["actor"] < 10
                    assert (batch["obs"][plain][:, 1] == batch["number"][plain]).all()
                    assert (batch["obs"][plain][:, 0] == batch["actor"][plain]).all()
                    loader.update_priorities(batch, np.ones(32))
    except BaseException as error:
        failed.put(repr(error))
        raise


@pytest.mark.parametrize("seed", range(2))
def test_killed_servers_lose_nothing_that_was_acknowledged(tmp_path, seed):
    """Servers, killed at any moment and begun again: all steps of all actors are there, once, in order."""
    path, count = tmp_path / "run.well", 3000
    stepwell.create(path, SCHEMA, capacity=100_000)
    context, rng = multiprocessing.get_context("spawn"), random.Random(seed)
    ready, failed, is_over = context.Queue(), context.Queue(), context.Event()
    server = context.Process(target=serve, args=(path, 0, ready))
    server.start()
    port = ready.get(timeout=60)
    address = f"127.0.0.1:{port}"
    actors = [context.Process(target=act, args=(address, actor, count, actor >= 10)) for actor in (1, 2, 10)]
    learner = context.Process(target=learn, args=(address, is_over, failed))
    try:
        for each in (*actors, learner):
            each.start()
        deadline = time.monotonic() + 150
        while any(each.is_alive() for each in actors) and time.monotonic() < deadline:
            time.sleep(0.3 + rng.random())
            if all(not each.is_alive() for each in actors):
                break
            os.kill(server.pid, signal.SIGKILL)
            server.join()
            server = context.Process(target=serve, args=(path, port, ready))
            server.start()
            ready.get(timeout=60)
            # time to go on
            time.sleep(1.0)
        assert [each.exitcode for each in actors] == [0, 0, 0]
        is_over.set()
        learner.join(60)
        assert failed.empty(), failed.get()
        assert learner.exitcode == 0
    finally:
        for each in (server, learner, *actors):
            if each.is_alive():
                each.kill()
            each.join()
    store = stepwell.open(path)
    for actor in (1, 2):
        assert numbers_of(store, actor) == list(range(count))
    lanes = numbers_of(store, 10)
    for env in range(2):
        assert [number for number in lanes if number % 2 == env] == list(range(env, count, 2))
    assert store.verify().is_ok


def test_a_server_that_is_begun_again_goes_on_with_its_tables(tmp_path):
    path = tmp_path / "run.well"
    store = stepwell.create(path, SCHEMA, capacity=1000)
    with Server(open_table(store, sampler="prioritized")) as server, Client(server.address) as client:
        with client.writer() as writer:
            for number in range(10):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
        with client.loader({"number": "number"}, batch_size=10) as loader:
            batch = next(loader)
            loader.update_priorities(batch, batch["number"] + 1.0)
            loader.flush()
            keys = dict(zip(batch["number"].tolist(), batch["table.key"].tolist(), strict=True))
    store = stepwell.open(path)
    with Server(open_table(store, sampler="prioritized")) as server, Client(server.address) as client:
        assert client.info()["replay"].size == 10
        with client.loader({"number": "number"}, batch_size=200) as loader:
            batch = next(loader)
        for number, key, priority in zip(
            batch["number"].tolist(), batch["table.key"].tolist(), batch["table.priority"].tolist(), strict=True
        ):
            if number in keys:
                assert (key, priority) == (keys[number], number + 1.0)


def test_a_writer_of_another_store_is_refused(store, tmp_path):
    other = stepwell.create(tmp_path / "other.well", SCHEMA, capacity=1000)
    server = Server(Table(store))
    client = Client(server.address, timeout=20)
    writer = client.writer(timeout=20)
    writer.append(obs=[0, 0, 0], number=0, actor=0)
    writer.flush()
    server.stop()
    with Server(Table(other), server.address), pytest.raises(ServiceError, match="began with store"):
        for number in range(10_000):
            writer.append(obs=[0, 0, 0], number=number, actor=0)
            writer.flush()
    client.close()


def test_a_server_that_is_stopped_says_what_is_missing(store):
    server = Server(Table(store))
    client = Client(server.address, timeout=0.3)
    writer = client.writer(timeout=0.3)
    server.stop()
    writer.append(obs=[0, 0, 0], number=0, actor=0)
    with pytest.raises(StepwellError, match=r"did not acknowledge the last [12] messages in time.*UNAVAILABLE"):
        writer.close()
    client.close()


def name_of(slot):
    """Return a name of the actors of a slot, by which even ones go to the first server, odd ones to the second."""
    names = (f"actor-{slot}-{number}" for number in range(100))
    return next(
        name for name in names
        if int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % 2 == slot % 2
    )  # fmt: skip


def act_until_killed(addresses, slot, actor, acknowledged):
    """Write without end; say which steps the server has acknowledged. Slots: plain, items, vectors, vectors, ..."""
    with Client(addresses, timeout=120) as client:
        if slot in (2, 3):
            writer = client.vector_writer(2, name_of(slot), batch_steps=8)
        else:
            writer = client.writer(name_of(slot), batch_steps=16)
        for t in itertools.count():
            if slot in (2, 3):
                number = 2 * t + np.arange(2)
                obs = np.stack([[actor, actor], number, [0, 0]], 1).astype(np.float32)
                ends = np.array([t % 20 == 19, t % 30 == 29])
                first = writer.append({"obs": obs, "number": number, "actor": np.full(2, actor)}, terminated=ends)[1]
                is_item, step, length = slot == 3 and t % 30 == 15, first - 2, 2
            else:
                step = writer.append(obs=[actor, t, 0], number=t, actor=actor)
                if t % 37 == 36:
                    writer.end_episode(truncated=True)
                is_item, step, length = slot == 1 and t % 37 == 20, step - 1, 2
            if is_item:
                writer.create_item("items", int(step), length)
            if t % 50 == 49:
                writer.flush()
                acknowledged.value = t + 1
            time.sleep(0.0002)


def learn_until_killed(addresses, table):
    with Client(addresses, timeout=120) as client:
        while not client.info()[table].size:
            time.sleep(0.05)
        fields = {"obs": [0, 1], "number": [0, 1], "actor": "actor"}
        with client.loader(fields, tables=table, batch_size=32) as loader:
            while True:
                batch = next(loader)
                if not (batch["obs"][:, :, 1] == batch["number"]).all():
                    os._exit(3)
                if not (batch["obs"][:, :, 0] == batch["actor"][:, None]).all():
                    os._exit(4)
                if table == "items" and not np.isin(np.diff(batch["number"], axis=1), [1, 2]).all():
                    os._exit(5)
                loader.update_priorities(batch, np.ones(32))


class Fleet:
    """Servers, actors and learners, any of which may be killed.

    Args:
        paths: of a store for each server.
    """

    def __init__(self, paths):
        self.paths, self.context = paths, multiprocessing.get_context("spawn")
        self.ready = self.context.Queue()
        self.servers, self.ports = [], [0] * len(paths)
        self.actors, self.counts, self.learners = {}, {}, []
        self.next_actor = 0
        for number in range(len(paths)):
            self.servers.append(None)
            self.begin_server(number)
        self.addresses = [f"127.0.0.1:{port}" for port in self.ports]

    def begin_server(self, number):
        arguments = self.paths[number], self.ports[number], self.ready
        self.servers[number] = self.context.Process(target=serve, args=arguments)
        self.servers[number].start()
        self.ports[number] = self.ready.get(timeout=60)

    def begin_actor(self, slot):
        # numbers of actors of one slot are equal modulo 4, and so is their name: each begins after the one that died
        actor = 4 * self.next_actor + slot
        self.next_actor += 1
        self.counts[actor] = self.context.Value("q", 0)
        arguments = self.addresses, slot, actor, self.counts[actor]
        self.actors[slot] = self.context.Process(target=act_until_killed, args=arguments)
        self.actors[slot].start()

    def begin_learner(self, table):
        self.learners.append((table, self.context.Process(target=learn_until_killed, args=(self.addresses, table))))
        self.learners[-1][1].start()

    def check(self):
        """Check that no actor and no learner has failed by itself."""
        assert {slot: each.exitcode for slot, each in self.actors.items() if each.exitcode is not None} == {}
        assert [(table, each.exitcode) for table, each in self.learners if each.exitcode is not None] == []

    def kill_all(self):
        for each in (*self.actors.values(), *(each for _, each in self.learners), *self.servers):
            each.kill()
            each.join()


@pytest.mark.slow
@pytest.mark.parametrize("num_servers", [1, 2])
def test_everything_is_killed_at_random(tmp_path, num_servers):
    """Kill servers, actors and learners; STEPWELL_SOAK_SECONDS: for how long."""
    seconds = float(os.environ.get("STEPWELL_SOAK_SECONDS", "12"))
    paths, rng = [tmp_path / f"run-{number}.well" for number in range(num_servers)], random.Random(int(seconds))
    for path in paths:
        stepwell.create(path, SCHEMA, capacity=50_000_000, segment_bytes="1 MiB")
    fleet, num_kills = Fleet(paths), 0
    try:
        for slot in range(4):
            fleet.begin_actor(slot)
        fleet.begin_learner("replay")
        fleet.begin_learner("items")
        end = time.monotonic() + seconds
        # on a machine with other work a server is begun in 5 s, not in 1
        while time.monotonic() < end or num_kills < 3:
            time.sleep(0.2 + 1.5 * rng.random())
            fleet.check()
            num_kills += 1
            match rng.choice(["server", "server", "actor", "learner"]):
                case "server":
                    number = rng.randrange(num_servers)
                    os.kill(fleet.servers[number].pid, signal.SIGKILL)
                    fleet.servers[number].join()
                    # the others go on meanwhile
                    time.sleep(rng.choice([0, 0, 1.5]))
                    fleet.begin_server(number)
                case "actor":
                    slot = rng.randrange(4)
                    fleet.actors[slot].kill()
                    fleet.actors[slot].join()
                    fleet.begin_actor(slot)
                case "learner":
                    table, one = fleet.learners.pop(rng.randrange(2))
                    one.kill()
                    one.join()
                    fleet.begin_learner(table)
        # each actor goes on by itself
        newest = [max(actor for actor in fleet.counts if actor % 4 == slot) for slot in range(4)]
        before = {actor: fleet.counts[actor].value for actor in newest}
        deadline = time.monotonic() + 60
        while any(fleet.counts[actor].value <= before[actor] for actor in newest):
            fleet.check()
            assert time.monotonic() < deadline, {actor: fleet.counts[actor].value - before[actor] for actor in newest}
            time.sleep(0.05)
        fleet.check()
        with Client(fleet.addresses, timeout=20) as client:
            assert client.info()["items"].size > 0
    finally:
        fleet.kill_all()
    stores = [stepwell.open(path) for path in paths]
    for actor, acknowledged in fleet.counts.items():
        # by their names, all of an actor is in one store
        stored = [number for store in stores for number in numbers_of(store, actor)]
        for lane in (0, 1) if actor % 4 in (2, 3) else (None,):
            mine = stored if lane is None else [number // 2 for number in stored if number % 2 == lane]
            assert mine == list(range(len(mine)))
            assert len(mine) >= acknowledged.value
    assert all(store.verify().is_ok for store in stores)


def test_items_over_what_cut_an_episode_are_left_out(tmp_path):
    """No client knows that its episode was cut: an item over it, or of steps before a restart, is no error of it."""
    path = tmp_path / "run.well"
    store = stepwell.create(path, SCHEMA, capacity=1000)
    server = Server(open_table(store, pattern=None))
    client = Client(server.address, timeout=20)

    def step(number):
        writer.append(obs=[0, 0, 0], number=number, actor=0)

    with client, client.writer("a", timeout=20) as writer:
        for number in range(3):
            step(number)
        writer.create_item("replay", 0, 2)
        writer.flush()
        session = server._service._sessions["a"]
        server._host.run(lambda: server._service._interrupt(session))
        for number in range(3, 6):
            step(number)
        writer.create_item("replay", 0, 3)
        writer.create_item("replay", 2, 2)
        writer.create_item("replay", 3, 3)
        writer.flush()
        assert client.info()["replay"].size == 3
        server.stop()
        store = stepwell.open(path)
        server = Server(open_table(store, pattern=None), server.address)
        writer.create_item("replay", 4, 2)
        step(6)
        writer.create_item("replay", 5, 2)
        step(7)
        writer.create_item("replay", 6, 2)
        writer.flush()
        assert client.info()["replay"].size == 4
        with client.loader({"number": "number"}, batch_size=50) as loader:
            assert set(next(loader)["number"].tolist()) == {0, 3, 6}
    server.stop()
