"""Data sets that are TensorFlow's, too: run by `make test-interop-reverb`, whose environment has TensorFlow."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepwell import reverb
from stepwell.errors import TableError

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: make test-interop-reverb")

SIGNATURE = {"a": tf.TensorSpec([None, 2], tf.float32), "name": tf.TensorSpec([], tf.string)}


@pytest.fixture
def filled(serve: Callable[..., Any]) -> reverb.Client:
    client: reverb.Client
    _, client = serve(
        reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1), 1,
                     signature=SIGNATURE)
    )  # fmt: skip
    insert(client, range(6))
    return client


def insert(client: reverb.Client, numbers: range) -> None:
    with client.trajectory_writer(2) as writer:
        for number in numbers:
            writer.append({"a": np.full(2, number, np.float32), "name": f"step {number}"})
            writer.append({"a": np.full(2, number, np.float32), "name": f"step {number}"})
            writer.create_item("t", 1.0, {"a": writer.history["a"][-2:], "name": writer.history["name"][-1]})


def samples_of(client: reverb.Client, **options: int) -> reverb.TrajectoryDataset:
    return reverb.TrajectoryDataset.from_table_signature(client.server_address, "t", 1, **options)


def test_elements_are_tensors_of_the_spec(filled: reverb.Client) -> None:
    dataset = samples_of(filled, max_samples=6)
    assert isinstance(dataset, tf.data.Dataset) and isinstance(dataset, reverb.TrajectoryDataset)
    assert dataset.element_spec.data == SIGNATURE
    assert dataset.element_spec.info.key == tf.TensorSpec([], tf.uint64)
    found = list(dataset)
    assert [sample.data["name"].numpy() for sample in found] == [f"step {number}".encode() for number in range(6)]
    assert all(sample.data["a"].shape == (2, 2) and sample.info.table_size.dtype == tf.int64 for sample in found)


def test_verbs_are_those_of_tensorflow(filled: reverb.Client) -> None:
    batches = samples_of(filled, max_samples=6).batch(2, drop_remainder=True)
    assert batches.element_spec.data["a"] == tf.TensorSpec([2, None, 2], tf.float32)
    sums = batches.map(lambda sample: tf.reduce_sum(sample.data["a"], [1, 2]), num_parallel_calls=2).prefetch(2)
    assert np.concatenate([each.numpy() for each in sums]).tolist() == [0, 4, 8, 12, 16, 20]


def test_without_tensorflow_go_numpy_and_torch(filled: reverb.Client) -> None:
    torch = pytest.importorskip("torch")
    batches = samples_of(filled, max_samples=6).batch(2)
    first, *_ = batches.take(3).as_numpy_iterator()
    assert type(first.data["a"]) is np.ndarray and first.data["name"].tolist() == [b"step 0", b"step 1"]
    insert(filled, range(4))
    _, second = samples_of(filled, max_samples=4).batch(2).as_torch()
    assert isinstance(second.data["a"], torch.Tensor) and second.data["a"][:, 0, 0].tolist() == [2, 3]


def test_several_are_interleaved_as_acme_does(filled: reverb.Client) -> None:
    dataset = tf.data.Dataset.range(2).interleave(
        lambda _: samples_of(filled, max_samples=3), cycle_length=2, num_parallel_calls=2, deterministic=False
    )
    found = [sample.data["a"].numpy()[0, 0] for sample in dataset.batch(6).unbatch()]
    assert sorted(found) == list(range(6))


def test_single_calls_are_operations(serve: Callable[..., Any]) -> None:
    server, _ = serve(
        reverb.Table(
            "a", reverb.selectors.Prioritized(1.0), reverb.selectors.Fifo(), 9, reverb.rate_limiters.MinSize(1)
        ),
        reverb.Table.queue("b", 9),
    )
    client = reverb.TFClient(f"localhost:{server.port}")

    @tf.function
    def go_round(value: Any) -> Any:
        with tf.control_dependencies(
            [client.insert([value, value + 1], tf.constant(["a", "b"]), tf.ones(2, tf.float64))]
        ):
            first = client.sample("a", [tf.int32, tf.int32])
        update = client.update_priorities("a", first.info.key[None], tf.constant([5.0], tf.float64))
        with tf.control_dependencies([update]):
            return first.data, client.sample(tf.constant("a"), [tf.int32, tf.int32]).info

    data, info = go_round(tf.constant([1, 2]))
    assert [column.numpy().tolist() for column in data] == [[1, 2], [2, 3]]
    assert info.priority == 5.0 and info.times_sampled == 2 and info.table_size == 1
    assert client.sample("b", {"x": tf.int32, "y": tf.int32}).data["y"].numpy().tolist() == [2, 3]
    with pytest.raises(TableError, match="was not found"):
        client.sample("c", [tf.int32])
    with pytest.raises(ValueError, match="must be float64"):
        client.insert([tf.constant(1)], tf.constant(["a"]), tf.constant([1.0]))


def test_an_iterator_that_goes_takes_nothing_with_it(filled: reverb.Client) -> None:
    iterator = iter(samples_of(filled).map(lambda sample: sample.data["a"]).prefetch(1))
    for _ in range(6):
        next(iterator)
    time.sleep(0.3)
    del iterator
    insert(filled, range(1))
    (sample,) = filled.sample("t", 1, emit_timesteps=False)
    assert sample.info.table_size == 1


def test_a_timeout_ends_the_iteration(filled: reverb.Client) -> None:
    assert len(list(samples_of(filled, rate_limiter_timeout_ms=350))) == 6


def test_items_of_patterns_are_a_data_set_of_tensorflow() -> None:
    steps = tf.data.Dataset.range(5).map(lambda number: {"x": number})
    pattern = reverb.structured_writer.pattern_from_transform({"x": None}, lambda step: {"two": step["x"][-2:]})
    config = reverb.structured_writer.create_config(pattern, "t")
    items = reverb.PatternDataset(steps, [config], True, lambda step: step["x"] == 2)
    assert items.element_spec == {"two": tf.TensorSpec([2], tf.int64, "two")}
    assert [item["two"].numpy().tolist() for item in items] == [[0, 1], [1, 2], [3, 4]]


@pytest.mark.parametrize("last", ["", "del batches", "server.stop()"])
def test_a_process_ends_whatever_is_still_asked_for(last: str) -> None:
    code = f"""
        import numpy as np
        import tensorflow as tf
        from stepwell import reverb
        server = reverb.Server([reverb.Table.queue("q", 10, signature=tf.TensorSpec([], tf.float32))])
        client = server.localhost_client()
        with client.trajectory_writer(1) as writer:
            for number in range(3):
                writer.append(np.float32(number))
                writer.create_item("q", 1.0, writer.history[-1])
        samples = reverb.TrajectoryDataset.from_table_signature(client.server_address, "q", 1)
        batches = iter(samples.map(lambda sample: sample.data).prefetch(4))
        print([float(next(batches)) for _ in range(3)], flush=True)
        {last}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[0.0, 1.0, 2.0]\n", done.stderr
    assert done.returncode == 0
