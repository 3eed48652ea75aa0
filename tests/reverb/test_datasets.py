"""Data sets of samples: elements, verbs, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepwell import reverb
from stepwell.reverb import rate_limiters, selectors

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]
SIGNATURE = {
    "action": reverb.TensorSpec((None,), np.dtype(np.int64)),
    "observation": reverb.TensorSpec((None, 2), np.dtype(np.float32)),
}


@pytest.fixture
def filled(serve: Serve) -> reverb.Client:
    table = reverb.Table(
        "t", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1), max_times_sampled=1, signature=SIGNATURE
    )
    _, client = serve(table)
    with client.trajectory_writer(3) as writer:
        for number in range(12):
            writer.append({"action": number, "observation": np.full(2, number, np.float32)})
            if number >= 2:
                writer.create_item("t", 1.0, {name: column[-3:] for name, column in writer.history.items()})
    return client


def test_trajectories_come_as_the_signature_says_and_end_with_the_time(filled: reverb.Client) -> None:
    dataset = reverb.TrajectoryDataset.from_table_signature(
        filled.server_address, "t", max_in_flight_samples_per_worker=4, rate_limiter_timeout_ms=200
    )
    assert dataset.element_spec.data["observation"].shape == (None, 2)
    samples = list(dataset.as_numpy_iterator())
    assert len(samples) == 10
    for number, (info, data) in enumerate(samples):
        assert data["action"].tolist() == [number, number + 1, number + 2]
        assert data["observation"].dtype == np.float32
        assert (info.key.dtype, info.table_size.dtype) == (np.uint64, np.int64)
        assert info.times_sampled == 1


def test_batches_are_stacked_and_verbs_go_together(filled: reverb.Client) -> None:
    dataset = reverb.TrajectoryDataset(
        filled, "t", {name: spec.dtype for name, spec in SIGNATURE.items()},
        {"action": (3,), "observation": (3, 2)}, 10, max_samples=10,
    )  # fmt: skip
    batches = list(dataset.batch(4, drop_remainder=True).map(lambda sample: sample.data["action"]).prefetch(2))
    assert [batch[:, 0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_steps_come_one_by_one(filled: reverb.Client) -> None:
    dataset = reverb.TimestepDataset(
        filled,
        "t",
        {"action": np.int64, "observation": np.float32},
        {"action": (), "observation": (2,)},
        1,
        max_samples=2,
    )
    steps = list(dataset)
    assert [int(step.data["action"]) for step in steps] == [0, 1, 2, 1, 2, 3]
    assert steps[0].info.key == steps[2].info.key != steps[3].info.key
    with pytest.raises(ValueError, match="sequence_length=2"):
        next(iter(reverb.ReplayDataset(filled, "t", (np.int64, np.float32), ((), (2,)), 1, sequence_length=2)))
    old = reverb.ReplayDataset(filled, "t", (np.int64, np.float32), ((), (2,)), 1, sequence_length=3)
    assert [int(step.data[0]) for step in old.take(3)] == [3, 4, 5]


def test_verbs_do_what_their_names_say() -> None:
    numbers = reverb.datasets.Dataset(lambda _: iter(range(6)))
    assert list(numbers.skip(2).take(3)) == [2, 3, 4]
    assert list(numbers.filter(lambda number: number % 2)) == [1, 3, 5]
    assert list(numbers.take(2).repeat(2)) == [0, 1, 0, 1]
    assert [batch.tolist() for batch in numbers.batch(4)] == [[0, 1, 2, 3], [4, 5]]
    assert [int(number) for number in numbers.batch(4).unbatch()] == list(range(6))
    assert list(numbers.take(3).flat_map(lambda number: [number] * number)) == [1, 2, 2]
    pairs = numbers.map(lambda number: (number, -number)).map(lambda first, second: first - second)
    assert list(pairs) == [0, 2, 4, 6, 8, 10]
    turns = numbers.take(3).interleave(lambda n: [10 * n, 10 * n + 1, 10 * n + 2], cycle_length=2, block_length=2)
    assert list(turns) == [0, 1, 10, 11, 2, 12, 20, 21, 22]


def test_torch_gets_tensors(filled: reverb.Client) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dataset = reverb.TrajectoryDataset.from_table_signature(filled, "t", 4, max_samples=2).batch(2).as_torch()
    (batch,) = dataset
    assert batch.data["observation"].dtype == torch.float32
    assert tuple(batch.data["observation"].shape) == (2, 3, 2)
    assert batch.info.priority.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_in_flight_samples_per_worker": 0},
        {"num_workers_per_iterator": 0},
        {"max_samples_per_stream": -2},
        {"rate_limiter_timeout_ms": -2},
        {"max_samples": 0},
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    options = {"max_in_flight_samples_per_worker": 1, **changes}
    for kind in (reverb.TrajectoryDataset, reverb.TimestepDataset, reverb.ReplayDataset):
        with pytest.raises(ValueError, match="must be"):
            kind("localhost:1", "t", np.float32, (), **options)


def test_tables_without_what_is_asked_for_are_told(serve: Serve, filled: reverb.Client) -> None:
    _, plain = serve(reverb.Table.queue("plain", 1))
    with pytest.raises(ValueError, match="does not have a signature"):
        reverb.TrajectoryDataset.from_table_signature(plain, "plain", 1)
    with pytest.raises(ValueError, match="does not contain any table named other"):
        reverb.TrajectoryDataset.from_table_signature(plain, "other", 1)
    wrong = reverb.TrajectoryDataset(filled, "t", (np.int32, np.float32), ((3,), (3, 2)), 1)
    with pytest.raises(ValueError, match=r"Requested .dtype, shape.: .int32, \[3\].*Signature .dtype, shape.: .int64"):
        next(iter(wrong))
    wrong = reverb.TrajectoryDataset(filled, "t", (np.int64, np.float32), ((3,), (4, 2)), 1)
    with pytest.raises(ValueError, match=r"float, \[4,2\].*float, \[3,2\]"):
        next(iter(wrong))


def test_batches_keep_bytes_whole(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("q", 3))
    with client.trajectory_writer(1) as writer:
        for text in (b"a\0", b"", b"bcd"):
            writer.append(text)
            writer.create_item("q", 1.0, writer.history[-1])
    samples = reverb.TrajectoryDataset(client, "q", np.dtype(object), (), 1, max_samples=3)
    (batch,) = samples.batch(3)
    assert batch.data.tolist() == [b"a\0", b"", b"bcd"]
