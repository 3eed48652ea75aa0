"""Loaders of clients give what loaders over the tables give: the same batches from the same seeds."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, ReplayLoader, Table, Text
from stepwell.errors import (
    FeatureNotFoundError,
    LoaderError,
    OrderError,
    RateLimitError,
    ServiceError,
    TableError,
    WindowError,
)
from stepwell.replay import MinSize, Queue, SampleToInsertRatio
from stepwell.service import Client, Server


def fill(store, episodes=6, steps=30):
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for number in range(episodes):
            for t in range(steps):
                writer.append(obs=rng.random(3, np.float32), number=100 * number + t, actor=number)
            writer.end_episode(terminated=number % 2 == 0, final={"obs": rng.random(3, np.float32)})


AHEAD = stepwell.replay.Pattern(1, ahead=3)
FIELDS = {
    "obs": [0, 1, 2],
    "number": Field("number", [-2, 0, 3], pad="zero"),
    "actor": "actor",
    "is_last": "is_last",
    "step_index": "step_index",
    "both": Field(("number", "actor"), combine="stack"),
}


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "fifo", "max_heap"])
@pytest.mark.parametrize("threads", [0, 2])
def test_equal_seeds_give_equal_batches(store, sampler, threads):
    fill(store)
    options = {"batch_size": 16, "seed": 3, "beta": (0.4, 1.0, 200)}
    near = ReplayLoader(Table(store, sampler=sampler, seed=7, pattern=AHEAD), FIELDS, **options)
    with Server(Table(store, sampler=sampler, seed=7, pattern=AHEAD)) as server, Client(server.address) as client:
        with client.loader(FIELDS, in_flight=1, threads=threads, **options) as far:
            for _ in range(20):
                one, other = next(near), next(far)
                assert set(one) == set(other)
                for key in one:
                    np.testing.assert_array_equal(one[key], other[key], err_msg=key)
                    assert one[key].dtype == other[key].dtype
                if not threads:
                    priorities = np.linspace(0.1, 2, 16)
                    near.update_priorities(one, priorities)
                    far.update_priorities(other, priorities)


@pytest.mark.parametrize("local", [True, False])
def test_windows_of_samples_and_of_seconds_come_as_they_are_near(tmp_path, local):
    camera = Image((16, 16, 3), codec="png", rate=50)
    schema = {"arm": Array(2), "tactile": Array(3, "float32", rate=150), "camera": camera}
    fields = {
        "span": Field("tactile", span=(-0.1, 0.0)),
        "times": Field("tactile_time", span=(-0.1, 0.05), pad="zero"),
        "even": Field("tactile", span=(-0.1, 0.0), rate=40, align="linear"),
        "points": Field("tactile", seconds=[-0.05, 0.0], align="nearest"),
        "now": "tactile",
        "arm": Field("arm", span=(-0.1, 0.0)),
        "arm_seconds": Field("arm", seconds=[-0.1, 0.0]),
        "camera": Field("camera", span=(-0.1, 0.0)),
    }
    rng = np.random.default_rng(0)
    with stepwell.create(tmp_path / "touch.well", schema, fps=30) as store:
        with store.writer() as writer:
            for _ in range(3):
                times = np.cumsum(rng.uniform(0.001, 0.012, 100))
                samples = stepwell.Samples(rng.random((100, 3), np.float32), times)
                images = stepwell.Samples(rng.integers(0, 255, (40, 16, 16, 3), np.uint8))
                columns = {"arm": rng.random((30, 2), np.float32), "tactile": samples, "camera": images}
                writer.add_episode(columns)
        pattern = stepwell.replay.Pattern(1, ahead=2)
        near = ReplayLoader(Table(store, seed=7, pattern=pattern), fields, batch_size=16, seed=3)
        with Server(Table(store, seed=7, pattern=pattern)) as server, Client(server.address) as client:
            with client.loader(fields, batch_size=16, seed=3, in_flight=1, local=local) as far:
                for _ in range(5):
                    one, other = next(near), next(far)
                    assert set(one) == set(other)
                    for key in one:
                        np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def test_tensors_nests_and_columns_come_as_asked(store):
    torch = pytest.importorskip("torch")
    fill(store)
    with Server(Table(store)) as server, Client(server.address) as client:
        with client.loader({"a.obs": Field("obs")}, to="torch", nested=True, info=["key"], batch_size=4) as loader:
            batch = next(loader)
    assert isinstance(batch["a"]["obs"], torch.Tensor)
    assert list(batch["table"]) == ["key"]


@pytest.mark.parametrize("threads", [0, 2])
def test_arrays_of_jax_hold_what_numpy_gets_and_stay(store, threads):
    jax = pytest.importorskip("jax", reason="the arrays are JAX's")
    fill(store)
    options = {"batch_size": 16, "seed": 3}
    near = ReplayLoader(Table(store, sampler="prioritized", seed=7, pattern=AHEAD), FIELDS, **options)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with Server(Table(store, sampler="prioritized", seed=7, pattern=AHEAD)) as server, Client(server.address) as client:
        with client.loader(FIELDS, in_flight=1, threads=threads, to="jax", sharding=sharding, **options) as far:
            held = []
            for _ in range(10):
                held.append((next(near).copy(), next(far)))
            far.update_priorities(held[-1][1], np.ones(16))
    for one, other in held:
        assert set(one) == set(other)
        assert isinstance(other["obs"], jax.Array)
        assert other["obs"].sharding == sharding
        assert isinstance(other["table.key"], np.ndarray), "without jax_enable_x64 JAX would cut a key to 32 bits"
        for key in one:
            # JAX has floats of 32 bits
            found = np.asarray(other[key])
            np.testing.assert_array_equal(one[key].astype(found.dtype), found, err_msg=key)


def test_a_sharding_without_jax_is_refused(store):
    fill(store)
    with Server(Table(store)) as server, Client(server.address) as client:
        with pytest.raises(OrderError, match="sharding"):
            client.loader({"obs": "obs"}, sharding=object())


def test_transitions_are_made_by_their_transform(store):
    fill(store)
    targets = stepwell.transition_fields({"obs": "obs"}, action="actor", reward="number", n_step=3)
    options = {"batch_size": 32, "transform": targets.transform}
    near = ReplayLoader(Table(store, pattern=targets.pattern), targets.fields, **options)
    with Server(Table(store, pattern=targets.pattern)) as server, Client(server.address) as client:
        with client.loader(targets.fields, in_flight=1, **options) as far:
            for _ in range(5):
                one, other = next(near), next(far)
                for key in one:
                    np.testing.assert_array_equal(one[key], other[key], err_msg=key)


class Half(stepwell.codecs.Decoder):
    """Every second pixel."""

    def output(self, feature):
        return (feature.shape[0] // 2, feature.shape[1] // 2, feature.shape[2]), np.dtype(np.uint8)

    def convert(self, pixels, out, draw):
        out[...] = pixels[::2, ::2]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("codec", ["png", "jpeg", "zstd", "delta"])
def test_images_and_texts_are_decoded_by_the_client(tmp_path, codec, threads):
    schema = {"image": Image((16, 16, 3), codec=codec), "note": Text(), "x": Array(2)}
    store = stepwell.create(tmp_path / "a.well", schema)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for number in range(4):
            for t in range(12):
                image = rng.integers(0, 255, (16, 16, 3), np.uint8)
                writer.append(image=image, note=f"{number} {t}", x=np.full(2, t, np.float32))
            writer.end_episode()
    fields = {
        "image": [-1, 0],
        "next": Field("image", [0, 1], pad="zero"),
        "small": Field("image", decoder=Half()),
        "note": [0, 1],
        "x": "x",
    }
    near = ReplayLoader(Table(store), fields, batch_size=16)
    with Server(Table(store)) as server, Client(server.address) as client:
        with client.loader(fields, batch_size=16, in_flight=1, threads=threads) as far:
            for _ in range(5):
                one, other = next(near), next(far)
                for key in one:
                    np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def test_a_learner_waits_without_holding_anything(store):
    table = Table(store, limiter=MinSize(20))
    with Server(table) as server, Client(server.address) as client, client.writer() as writer:
        writer.append(obs=[0, 0, 0], number=0, actor=0)
        writer.flush()
        with client.loader({"number": "number"}, batch_size=4, timeout=1.1) as loader:
            with pytest.raises(RateLimitError, match=r"MinSize\(20\)"):
                next(loader)
            assert table.info.counts.samples == 0
            for number in range(30):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
            writer.flush()
            assert len(next(loader)["number"]) == 4


@pytest.mark.parametrize("local", [False, True])
def test_a_draw_that_was_cancelled_counts_nothing(store, local):
    table = Table(store, limiter=MinSize(20))
    with Server(table) as server, Client(server.address, local=local) as client, client.writer() as writer:
        writer.append(obs=[0, 0, 0], number=0, actor=0)
        writer.flush()
        loader = client.loader({"number": "number"}, batch_size=4)
        failed = []

        def take():
            try:
                next(loader)
            except LoaderError as error:
                failed.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        while not client.stats()[0]["loaders"] or not client.stats()[0]["loaders"][0]["waits_seconds"]:
            pass
        loader.close()
        thread.join(10)
        assert failed and "closed" in str(failed[0])
        for number in range(30):
            writer.append(obs=[0, 0, 0], number=number, actor=0)
        writer.flush()
        while client.stats()[0]["loaders"]:
            pass
        assert table.info.counts.samples == 0


def test_a_batch_that_is_larger_than_a_queue_comes_in_parts(store):
    table = Table.queue(store, max_size=10)
    with Server(table) as server, Client(server.address) as client, client.writer(batch_steps=4) as writer:
        with client.loader({"number": "number"}, batch_size=32, in_flight=1, timeout=20) as loader:
            for number in range(100):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
            seen = [number for _ in range(3) for number in next(loader)["number"].tolist()]
    assert seen == list(range(96))


def test_the_ratio_of_draws_to_inserts_is_kept(store):
    table = Table(store, limiter=SampleToInsertRatio(2.0, min_size=10, error_buffer=64.0))
    with Server(table) as server, Client(server.address) as client:
        is_over = threading.Event()

        def learn():
            with Client(server.address) as own, own.loader({"number": "number"}, batch_size=8, timeout=0.5) as loader:
                while not is_over.is_set():
                    try:
                        next(loader)
                    except RateLimitError:
                        continue

        thread = threading.Thread(target=learn)
        thread.start()
        with client.writer(batch_steps=4) as writer:
            for number in range(2000):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
        counts = client.info()["replay"].counts
        is_over.set()
        thread.join(20)
    assert counts.inserts >= 1990
    assert abs(counts.samples - 2 * counts.inserts) <= 2 * 64 + 64


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"nothing": "nothing"}, FeatureNotFoundError, "no feature 'nothing'"),
        ({"x": Field("obs", pad="drop")}, WindowError, "pad='drop'"),
        ({"x": Field("obs", [0, 5])}, WindowError, "steps ahead"),
    ],
)
def test_fields_that_do_not_fit_are_refused(store, fields, error, text):
    fill(store)
    table = Table(store, pattern=stepwell.replay.Pattern(2))
    with Server(table) as server, Client(server.address) as client:
        with pytest.raises(error, match=text), client.loader(fields) as loader:
            next(loader)


def test_arguments_are_checked(store):
    fill(store)
    with Server([Table(store), Table(store, "other")]) as server, Client(server.address) as client:
        with pytest.raises(TableError, match="replay, other"):
            client.loader()
        with pytest.raises(TableError, match="no table 'x'"):
            client.loader(tables="x")
        with pytest.raises(OrderError, match="in_flight"):
            client.loader(tables="other", in_flight=1000)
        with pytest.raises(OrderError, match="shares"):
            client.loader(tables={"other": -1})
        with client.loader({"actor": "actor"}, tables={"replay": 3, "other": 1}, batch_size=8) as loader:
            batch = next(loader)
            assert batch["table.source"].tolist() == [0] * 6 + [1] * 2
            loader.update_priorities(batch, np.ones(8))
            with pytest.raises(TableError, match=r"shape \(3,\)"):
                loader.update_priorities(batch, np.ones(3))
            with pytest.raises(TableError, match="-1"):
                loader.update_priorities(batch, -np.ones(8))


def test_priorities_arrive_with_the_next_batch(store):
    fill(store)
    table = Table(store, sampler="prioritized(1.0)")
    with Server(table) as server, Client(server.address) as client:
        with client.loader({"number": "number"}, batch_size=64, in_flight=1) as loader:
            while True:
                batch = next(loader)
                loader.update_priorities(batch, (batch["number"] == 17).astype(float))
                if client.info()["replay"].counts.unique_samples == 180:
                    break
            next(loader)
            batch = next(loader)
            assert set(batch["number"].tolist()) == {17}
            loader.update_priorities(batch, np.full(64, 2.0))
            loader.flush()
            batch = next(loader)
            batch = next(loader)
            assert set(batch["table.priority"].tolist()) == {2.0}


def test_draws_over_shards_are_as_over_one_table(store):
    stores = [stepwell.create(":memory:", store.schema, capacity=1000) for _ in range(3)]
    priorities = {}
    for actor, (each, count) in enumerate(zip(stores, (5, 20, 75), strict=True)):
        with each.writer() as writer:
            for t in range(count):
                writer.append(obs=[0, 0, 0], number=100 * actor + t, actor=actor)
    tables = [Table(each, sampler="prioritized(0.5)", seed=number) for number, each in enumerate(stores)]
    servers = [Server(table) for table in tables]
    try:
        with Client([server.address for server in servers]) as client:
            with client.loader({"number": "number"}, batch_size=100, in_flight=1, beta=1.0, normalize=False) as loader:
                for _ in range(30):
                    batch = next(loader)
                    given = 1.0 + batch["number"] % 7
                    loader.update_priorities(batch, given)
                    priorities.update(zip(batch["number"].tolist(), given.tolist(), strict=True))
                    if len(priorities) == 100:
                        break
                for _ in range(3):
                    batch = next(loader)
                numbers, weights = [], []
                for _ in range(400):
                    batch = next(loader)
                    numbers.append(batch["number"])
                    weights.append(batch["table.weight"])
                assert (batch["table.size"] == 100).all()
            assert client.info()["replay"].size == 100
    finally:
        for server in servers:
            server.stop()
    seen = np.concatenate(numbers)
    keys = sorted(priorities)
    # an item that was not drawn before has the largest priority so far
    raw = np.array([priorities.get(key, 7.0) for key in keys]) ** 0.5
    expected = raw / raw.sum() * len(seen)
    found = np.array([(seen == key).sum() for key in keys])
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert len(keys) == 100
    # 99 degrees of freedom: 170 is beyond one chance in 10,000; the seeds are fixed
    assert chi_square < 170
    assert abs(np.concatenate(weights).mean() - 1.0) < 0.02


@contextmanager
def shards_of(store, count, **table):
    """Servers of empty stores, and a client of all."""
    stores = [stepwell.create(":memory:", store.schema, capacity=1000) for _ in range(count)]
    servers = [Server(Table(each, seed=number, **table)) for number, each in enumerate(stores)]
    try:
        with Client([server.address for server in servers]) as client:
            yield stores, servers, client
    finally:
        for server in servers:
            server.stop()


def write_numbers(store, numbers):
    with store.writer() as writer:
        for number in numbers:
            writer.append(obs=[0, 0, 0], number=number, actor=0)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized(0.5)"])
def test_empty_shards_are_passed_over_until_they_have_items(store, sampler, threads):
    with (
        shards_of(store, 3, sampler=sampler, limiter=MinSize(10)) as (stores, _, client),
        client.loader({"number": "number"}, batch_size=32, timeout=0.2, threads=threads) as loader,
    ):
        with pytest.raises(RateLimitError, match="nothing to draw from yet"):
            next(loader)
        write_numbers(stores[1], range(100, 150))
        # fewer than its limiter lets be drawn
        write_numbers(stores[2], range(200, 205))
        for _ in range(20):
            batch = next(loader)
            assert batch["number"].shape == (32,)
            assert set((batch["number"] // 100).tolist()) == {1}
            assert (batch["table.size"] == 50).all()
            np.testing.assert_allclose(batch["table.probability"], 1 / 50)
        write_numbers(stores[2], range(205, 250))
        write_numbers(stores[0], range(50))
        seen = np.concatenate([next(loader)["number"] // 100 for _ in range(20)][10:])
        assert set(seen.tolist()) == {0, 1, 2}


def test_rows_of_a_shard_that_was_emptied_come_from_the_others(store):
    with shards_of(store, 3) as (stores, _, client):
        for number, each in enumerate(stores):
            write_numbers(each, range(100 * number, 100 * number + 10 * (number + 1)))
        with client.loader({"number": "number"}, batch_size=60, in_flight=4, beta=1.0, normalize=False) as loader:
            for _ in range(3):
                next(loader)
            servers = [Client(address) for address in client.addresses]
            servers[2].reset("replay")
            # of batches that were asked for before, too, each row has the chance with which it came
            for _ in range(8):
                batch = next(loader)
                size = 60 if (batch["number"] >= 200).any() else 30
                np.testing.assert_allclose(batch["table.probability"], 1 / size)
            assert size == 30
            servers[0].reset("replay")
            servers[1].reset("replay")
            for each in servers:
                each.close()
            write_numbers(stores[0], range(5))
            for _ in range(8):
                batch = next(loader)
            assert set((batch["number"] // 100).tolist()) == {0}
            assert (batch["table.size"] == 5).all()


def test_a_batch_that_a_shard_holds_is_whole_after_the_limiter_let_go(store):
    limiter = SampleToInsertRatio(1.0, min_size=1, error_buffer=8.0)
    with shards_of(store, 2, limiter=limiter) as (stores, _, client):
        write_numbers(stores[0], range(8))
        write_numbers(stores[1], range(100, 108))
        with client.loader({"number": "number"}, batch_size=8, in_flight=3, timeout=0.0) as loader:
            found = []
            for number in range(16):
                try:
                    found.append(next(loader)["number"])
                except RateLimitError:
                    write_numbers(stores[number % 2], range(1000, 1004))
            assert len(found) >= 4
            assert {len(each) for each in found} == {8}


def test_a_loader_ends(store):
    fill(store)
    with Server(Table(store)) as server, Client(server.address) as client:
        loader = client.loader({"number": "number"}, threads=2)
        next(loader)
        loader.close()
        loader.close()
        with pytest.raises(LoaderError, match="closed"):
            next(loader)


def test_queue_tables_give_each_item_once_to_two_learners(store):
    table = Table(store, sampler="fifo", remover="fifo", limiter=Queue(1000), max_times_sampled=1, max_size=1000)
    seen, lock = [], threading.Lock()
    with Server(table) as server, Client(server.address) as client:

        def learn():
            with Client(server.address) as own, own.loader({"number": "number"}, batch_size=5, timeout=1.1) as loader:
                try:
                    while True:
                        batch = next(loader)["number"].tolist()
                        with lock:
                            seen.extend(batch)
                except RateLimitError:
                    return

        threads = [threading.Thread(target=learn) for _ in range(2)]
        with client.writer() as writer:
            for thread in threads:
                writer.append(obs=[0, 0, 0], number=-1, actor=0)
                thread.start()
            for number in range(498):
                writer.append(obs=[0, 0, 0], number=number, actor=0)
        for thread in threads:
            thread.join(30)
    assert sorted(seen) == [-1, -1, *range(498)]


def test_a_server_that_is_away_is_an_error_after_the_timeout():
    with pytest.raises(ServiceError, match="UNAVAILABLE"):
        Client("127.0.0.1:1", timeout=0.2).info()
