"""Writers of clients store what writers of a store do: the same steps, once, in order."""

import os
import threading

import numpy as np
import pytest

import stepwell
from stepwell import Array, EncodedRows, Image, Text
from stepwell.errors import RateLimitError, ServiceError, StepError, TableError, WriterClosedError
from stepwell.replay import Queue
from stepwell.service import Client, Limits, Server
from stepwell.service.messages import PROTOCOL, Kind, pack, unpack
from stepwell.service.settings import SERVICE, import_grpc


@pytest.fixture
def served(store):
    with Server(stepwell.Table(store)) as server, Client(server.address, timeout=20) as client:
        yield store, server, client


def episodes(store):
    store.refresh()
    return [
        {
            **{name: np.asarray(episode[name]).tolist() for name in store.schema},
            "flags": (episode.terminated, episode.truncated, episode.interrupted),
            "metadata": dict(episode.metadata),
        }
        for episode in store
    ]


def write_some(writer, seed):
    """Use all verbs in a random order."""
    rng = np.random.default_rng(seed)
    number = 0

    def step():
        nonlocal number
        number += 1
        return {"obs": rng.random(3, np.float32), "number": number, "actor": seed}

    for _ in range(30):
        match rng.integers(5):
            case 0:
                for _ in range(rng.integers(1, 100)):
                    writer.append(step())
            case 1:
                steps = [step() for _ in range(rng.integers(1, 200))]
                writer.append_batch({name: np.array([each[name] for each in steps]) for name in steps[0]})
            case 2:
                writer.append(**step())
                writer.discard_episode()
                continue
            case 3:
                count = int(rng.integers(1, 50))
                steps = [step() for _ in range(count)]
                columns = {name: np.array([each[name] for each in steps]) for name in steps[0]}
                if rng.random() < 0.5:
                    columns["obs"] = rng.random((count + 1, 3), np.float32)
                writer.add_episode(columns, terminated=bool(rng.random() < 0.5), seed=int(seed))
                continue
            case 4:
                writer.append(step())
        final = {"obs": rng.random(3, np.float32)} if rng.random() < 0.5 else None
        writer.end_episode(
            terminated=bool(rng.random() < 0.5), truncated=bool(rng.random() < 0.3), final=final, task="t"
        )
    writer.append(step())


FEATURES = {"x": Array(2, final=True), "t": Text(), "n": Array((), "int64")}
ROWS = {"x": np.zeros((3, 2), np.float32), "n": np.arange(3), "t": ["a"] * 3}


@pytest.mark.parametrize(
    "use",
    [
        lambda writer: writer.append(x=[0, 0], t="a"),
        lambda writer: writer.append(x=[0, 0], t="a", n=1, z=1),
        lambda writer: writer.append(x=["a", "b"], t="a", n=1),
        lambda writer: writer.append(x=[0, 0], t="a", n=1.5),
        lambda writer: writer.append(x=[0, 0, 0], t="a", n=1),
        lambda writer: writer.append(x=[0, 0], t=3, n=1),
        lambda writer: writer.append(x=None, t="a", n=1),
        lambda writer: writer.append([1, 2]),
        lambda writer: writer.append(),
        lambda writer: writer.append_batch({**ROWS, "z": [1] * 3}),
        lambda writer: writer.append_batch({**ROWS, "x": np.zeros((3, 3), np.float32)}),
        lambda writer: writer.append_batch({**ROWS, "x": np.zeros((3, 2), np.complex64)}),
        lambda writer: writer.append_batch({**ROWS, "n": np.arange(2)}),
        lambda writer: writer.add_episode({"x": ROWS["x"]}),
        lambda writer: writer.end_episode(),
        lambda writer: (writer.append_batch(ROWS), writer.end_episode(final={"n": 1})),
        lambda writer: (writer.append_batch(ROWS), writer.end_episode(final={"x": [1, 2, 3]})),
        lambda writer: (writer.append_batch(ROWS), writer.end_episode(word=object())),
    ],
)
def test_a_remote_writer_refuses_what_a_writer_does_in_the_same_words(use):
    store = stepwell.create(":memory:", FEATURES)
    with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        with pytest.raises(StepError) as local, store.writer() as writer:
            use(writer)
        with pytest.raises(StepError) as remote, client.writer() as writer:
            use(writer)
    assert str(remote.value) == str(local.value)


VECTOR = {"obs": np.zeros((2, 3), np.float32), "number": np.arange(2), "actor": np.arange(2)}


@pytest.mark.parametrize(
    "use",
    [
        lambda writer: writer.append({"obs": VECTOR["obs"]}),
        lambda writer: writer.append({**VECTOR, "z": [1, 2]}),
        lambda writer: writer.append({**VECTOR, "obs": np.zeros((2, 4), np.float32)}),
        lambda writer: writer.append({**VECTOR, "number": np.zeros(2)}),
        lambda writer: writer.append(VECTOR, mask=[True]),
        lambda writer: writer.append(VECTOR, mask=[1, 0]),
        lambda writer: writer.append(VECTOR, terminated=[True] * 3),
        lambda writer: writer.append(VECTOR, terminated=[True, False], final={"number": [1, 2]}),
        lambda writer: writer.append(VECTOR, terminated=[True, False], metadata={0: {"word": object()}}),
        lambda writer: (writer.append(VECTOR), writer.end_episodes(final={"number": [1, 2]})),
    ],
)
def test_a_remote_vector_writer_refuses_what_a_vector_writer_does_in_the_same_words(served, use):
    store, _, client = served
    with pytest.raises(StepError) as local, store.vector_writer(2) as writer:
        use(writer)
    with pytest.raises(StepError) as remote, client.vector_writer(2) as writer:
        use(writer)
    assert str(remote.value) == str(local.value)


def test_two_clients_may_not_begin_a_store_with_different_features():
    store = stepwell.create(":memory:")
    with Server(stepwell.Table(store)) as server, Client(server.address, timeout=20) as client:
        with pytest.raises(TableError, match=r"no features yet\. Write a step"), client.loader() as loader:
            next(loader)
        first, second = client.writer(timeout=20), client.writer(timeout=20)
        first.append(x=[0.0, 0.0])
        first.flush()
        second.append(x=[0.0, 0.0], reward=1.0)
        with pytest.raises(StepError, match="'reward' is not in the schema"):
            second.flush()
        second.close()
        first.close()
        assert client.info()["replay"].counts.inserts == 1


@pytest.mark.parametrize(
    ("columns", "count", "ops", "kind", "text"),
    [
        ({"t:sizes": None}, 2, [], ServiceError, "without column 't:sizes'"),
        ({"t:rows": None}, 2, [], ServiceError, "without column 't'"),
        ({"n": None}, 2, [], StepError, "feature 'n' is missing. The store has: x, t, n"),
        ({"z": np.zeros(2)}, 2, [], StepError, "feature 'z' is not in the schema"),
        ({"final:n": np.zeros(2)}, 2, [], StepError, "final values of n.*final=True: x"),
        ({"x": np.zeros((2, 3), np.float32)}, 2, [], StepError, r"shape \(2, 3\)"),
        ({"x": np.zeros((2, 2), np.complex64)}, 2, [], StepError, "complex64, the store has float32"),
        ({"t:sizes": np.array([1, 9])}, 2, [], StepError, "rows from byte"),
        ({}, 3, [], ServiceError, "2 rows of 'x' in a message of 3 steps"),
        ({}, 2, [[2, "end", {"final": 0}]], ServiceError, "without column 'final:x'"),
        ({"final:x": np.zeros((1, 2), np.float32)}, 2, [[2, "end", {"final": 1}]], ServiceError, "1 came"),
        ({}, 2, [[2, "item", "none", 0, 1, None]], TableError, "no table 'none'. This server has: replay"),
    ],
)
def test_messages_of_steps_say_what_is_wrong(columns, count, ops, kind, text):
    store = stepwell.create(":memory:", FEATURES)
    with Server(stepwell.Table(store)) as server:
        sent = {
            "x": np.zeros((2, 2), np.float32), "n": np.arange(2), "t:sizes": np.array([1, 1]),
            "t:rows": np.frombuffer(b"ab", np.uint8), **columns,
        }  # fmt: skip
        hello = pack(Kind.HELLO, {"protocol": PROTOCOL, "name": "a", "incarnation": "b"})
        head = {"first": [0, 0, 0], "count": count, "ops": ops, "ack": True}
        steps = pack(Kind.STEPS, head, {name: each for name, each in sent.items() if each is not None})
        with import_grpc().insecure_channel(server.address) as channel:
            stream = channel.stream_stream(f"/{SERVICE}/write")(iter([hello, steps]), timeout=20)
            unpack(next(stream), Kind.WELCOME)
            with pytest.raises(kind, match=text) as error:
                unpack(next(stream), Kind.ACK)
            assert type(error.value) is kind
            stream.cancel()


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ({"call": "create_item", "table": "replay"}, "without column 'steps'"),
        ({"call": "mutate", "table": "replay"}, "without column 'priorities'"),
    ],
)
def test_calls_say_which_column_is_missing(served, head, text):
    _, server, _ = served
    with import_grpc().insecure_channel(server.address) as channel:
        data = pack(Kind.CALL, head, {"keys": np.zeros(1, np.uint64)})
        answer = channel.unary_unary(f"/{SERVICE}/call")(data, timeout=20)
    with pytest.raises(ServiceError, match=text):
        unpack(answer, Kind.ANSWER)


@pytest.mark.parametrize("seed", range(5))
def test_a_remote_writer_stores_what_a_writer_does(served, seed):
    store, _, client = served
    local = stepwell.create(":memory:", store.schema, capacity=100_000)
    with local.writer() as writer:
        write_some(writer, seed)
    with client.writer(batch_steps=[1, 7, 64][seed % 3]) as writer:
        write_some(writer, seed)
    assert episodes(store) == episodes(local)


def test_steps_are_there_when_flush_returns(served):
    store, _, client = served
    with client.writer() as writer:
        assert [writer.append(obs=[0, 0, 0], number=t, actor=0) for t in range(3)] == [0, 1, 2]
        writer.flush()
        assert episodes(store)[0]["number"] == [0, 1, 2]


def test_a_step_that_waits_is_sent_after_a_while(served):
    _, _, client = served
    with client.writer(flush_seconds=0.01) as writer:
        writer.append(obs=[0, 0, 0], number=1, actor=0)
        for _ in range(500):
            if client.stats()[0]["writers"][0]["steps"] == 1:
                break
            threading.Event().wait(0.01)
        assert client.stats()[0]["writers"][0]["steps"] == 1


def test_a_step_that_does_not_fit_is_refused_here_and_nothing_is_sent(served):
    store, _, client = served
    with client.writer() as writer:
        with pytest.raises(StepError, match="'actor' is missing"):
            writer.append(obs=[0, 0, 0], number=1)
        with pytest.raises(StepError, match="'number'"):
            writer.append(obs=[0, 0, 0], number=1.5, actor=0)
        with pytest.raises(StepError, match="no steps since"):
            writer.end_episode()
        writer.append({"obs": [1, 2, 3], "number": 1, "actor": 0})
    assert [each["number"] for each in episodes(store)] == [[1]]


def test_a_writer_that_was_closed_is_refused(served):
    _, _, client = served
    writer = client.writer()
    writer.close()
    writer.close()
    with pytest.raises(WriterClosedError, match="closed"):
        writer.append(obs=[0, 0, 0], number=1, actor=0)


def test_images_and_texts_are_encoded_by_the_client(tmp_path):
    schema = {"image": Image((8, 8, 3), codec="png", final=True), "note": Text(), "zip": Array(100, codec="zstd")}
    store, local = (stepwell.create(tmp_path / name, schema) for name in ("a.well", "b.well"))
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": rng.integers(0, 255, (8, 8, 3), np.uint8),
            "note": f"note {t}" * t,
            "zip": np.full(100, t, np.float32),
        }
        for t in range(40)
    ]

    def write(writer):
        for t, row in enumerate(rows):
            writer.append(row)
            if t % 10 == 9:
                writer.end_episode(final={"image": row["image"]})
        encoded = EncodedRows([f"e{t}".encode() for t in range(3)])
        batch = {"image": np.zeros((3, 8, 8, 3), np.uint8), "note": encoded, "zip": np.zeros((3, 100), np.float32)}
        writer.append_batch(batch)

    with local.writer() as writer:
        write(writer)
    with Server(stepwell.Table(store)) as server, Client(server.address) as client, client.writer() as writer:
        write(writer)
    assert episodes(store) == episodes(local)


def test_a_store_without_features_takes_those_of_the_first_step(tmp_path):
    store = stepwell.create(tmp_path / "a.well")
    with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        assert client.schema is None
        with client.writer() as writer:
            writer.append(x=np.zeros(2, np.float32), y={"z": 1})
        assert list(client.schema) == ["x", "y.z"]


def test_two_writers_of_one_name_one_after_the_other(served):
    store, _, client = served
    first = client.writer("actor")
    first.append(obs=[0, 0, 0], number=1, actor=0)
    first.flush()
    # as a process that was restarted does
    with client.writer("actor") as second:
        second.append(obs=[0, 0, 0], number=2, actor=0)
        second.flush()
    with pytest.raises(ServiceError, match="another connection"):
        first.append(obs=[0, 0, 0], number=3, actor=0)
        first.flush(5.0)
    assert [(each["number"], each["flags"][2]) for each in episodes(store)] == [([1], True), ([2], True)]


@pytest.mark.parametrize(("choice", "number"), [("interrupt", 1), ("discard", 0)])
def test_the_episode_of_a_dead_actor_ends_after_a_grace_time(store, choice, number):
    with Server(stepwell.Table(store), limits=Limits(grace_seconds=0.05)) as server, Client(server.address) as client:
        pid = os.fork()
        if not pid:
            try:
                with Client(server.address) as own:
                    writer = own.writer("actor", on_disconnect=choice)
                    writer.append(obs=[0, 0, 0], number=1, actor=0)
                    writer.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        for _ in range(200):
            found = episodes(store)
            if len(found) == number and not (found and store[0].is_open):
                break
            threading.Event().wait(0.02)
        assert len(found) == number
        assert all(each["flags"][2] for each in found)
        assert not client.stats()[0]["writers"][0]["is_connected"]


def test_items_are_made_of_steps_by_their_numbers(store):
    table = stepwell.Table(store, pattern=None)
    with Server(table) as server, Client(server.address) as client, client.writer() as writer:
        for t in range(10):
            number = writer.append(obs=[t, 0, 0], number=t, actor=0)
            if t >= 2 and t % 2 == 0:
                writer.create_item("replay", number - 2, 3, priority=float(t))
        writer.flush()
        assert table.size == 4
        with client.loader({"number": [0, 1, 2]}, batch_size=50) as loader:
            batch = next(loader)
        assert {tuple(row) for row in batch["number"].tolist()} == {(t - 2, t - 1, t) for t in (2, 4, 6, 8)}
        with pytest.raises(StepError, match="10 were appended"):
            writer.create_item("replay", 9, 2)
        writer.create_item("nothing", 0)
        with pytest.raises(TableError, match="no table 'nothing'"):
            writer.flush()


def test_a_limiter_holds_a_writer_and_nothing_is_lost(store):
    table = stepwell.Table(store, limiter=Queue(50), sampler="fifo", remover="fifo", max_times_sampled=1, max_size=50)
    with Server(table) as server, Client(server.address) as client:
        writer = client.writer("a", timeout=0.2, max_in_flight=4000, batch_steps=8)
        number = 0
        with pytest.raises(RateLimitError, match="a limiter holds it"):
            while number < 5000:
                writer.append(obs=[0, 0, 0], number=number, actor=0)
                number += 1
        assert number < 500
        assert client.stats()[0]["writers"][0]["held_seconds"] > 0
        seen = []
        with client.loader({"number": "number"}, batch_size=10, in_flight=2, timeout=10) as loader:
            while len(seen) < number // 10 * 10 - 10:
                seen += next(loader)["number"].tolist()
        assert seen == list(range(len(seen)))
        writer._timeout = 20
        writer.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_remote_vector_writer_stores_what_a_vector_writer_does(served, seed):
    store, _, client = served
    local = stepwell.create(":memory:", store.schema, capacity=100_000)

    def write(writer):
        rng = np.random.default_rng(seed)
        for t in range(200):
            step = {"obs": rng.random((5, 3), np.float32), "number": np.arange(5) + 5 * t, "actor": np.full(5, seed)}
            mask = None if seed % 2 else rng.random(5) < 0.8
            ends = {name: rng.random(5) < 0.05 for name in ("terminated", "truncated")}
            has_final = rng.random() < 0.7
            final = {"obs": rng.random((5, 3), np.float32)} if has_final else None
            metadata = {1: {"t": t}} if rng.random() < 0.1 else None
            if mask is not None:
                ends = {name: flags & mask for name, flags in ends.items()}
            writer.append(step, **ends, final=final, mask=mask, metadata=metadata)
            if rng.random() < 0.03:
                writer.end_episodes(rng.random(5) < 0.5, truncated=True, final=final)
            if rng.random() < 0.03:
                writer.discard_episodes(rng.random(5) < 0.5)

    with local.vector_writer(5) as writer:
        write(writer)
    with client.vector_writer(5, batch_steps=[1, 4, 13][seed % 3]) as writer:
        write(writer)
    # episodes that are open at the end are listed by lane
    assert sorted(map(str, episodes(store))) == sorted(map(str, episodes(local)))


def test_numbers_of_vector_steps_make_items(store):
    table = stepwell.Table(store, pattern=None)
    with Server(table) as server, Client(server.address) as client, client.vector_writer(3) as writer:
        for t in range(6):
            step = {
                "obs": np.zeros((3, 3), np.float32),
                "number": np.arange(3) * 100 + t,
                "actor": np.zeros(3, np.int64),
            }
            numbers = writer.append(step)
            if t == 4:
                writer.create_item("replay", int(numbers[2]) - 2 * 3, 3)
        writer.flush()
        with client.loader({"number": [0, 1, 2]}, batch_size=2) as loader:
            assert next(loader)["number"].tolist() == [[202, 203, 204]] * 2


def test_a_vector_writer_says_where_it_cannot_be(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": Array(2)})
    with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        with pytest.raises(ServiceError, match="needs a ring"):
            client.vector_writer(3)
