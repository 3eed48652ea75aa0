"""TorchRL's replay buffers over a ring beside the same over tensors."""

from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import TableError

torchrl = pytest.importorskip("torchrl", reason="TorchRL is not installed")
import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler, SliceSampler  # noqa: E402

from stepwell.torchrl import StepwellStorage  # noqa: E402


def transitions(start: int, count: int) -> Any:
    numbers = torch.arange(start, start + count)
    done = (numbers % 10 == 9).unsqueeze(1)
    following = {"observation": numbers.float().unsqueeze(1) + 1, "reward": numbers.double().unsqueeze(1), "done": done}
    return TensorDict(
        {"observation": numbers.float().unsqueeze(1), "action": numbers.to(torch.int32), "next": following},
        batch_size=[count],
    )


def buffers_of(make_sampler: Any, size: int, batch_size: int) -> list[Any]:
    storages = StepwellStorage(size), LazyTensorStorage(size)
    options = {"batch_size": batch_size, "collate_fn": lambda batch: batch}
    return [TensorDictReplayBuffer(storage=storage, sampler=make_sampler(), **options) for storage in storages]


def assert_same(found: Any, expected: Any) -> None:
    keys = set(expected.keys(include_nested=True, leaves_only=True))
    assert set(found.keys(include_nested=True, leaves_only=True)) == keys
    for key in keys:
        torch.testing.assert_close(found.get(key), expected.get(key), rtol=0, atol=0)


@pytest.mark.parametrize("make_sampler", [RandomSampler, lambda: SliceSampler(slice_len=4, end_key=("next", "done"))])
def test_samplers_draw_the_same_over_a_ring(make_sampler: Any) -> None:
    ours, theirs = buffers_of(make_sampler, 50, 16)
    for start in range(0, 130, 10):
        for buffer in (ours, theirs):
            buffer.extend(transitions(start, 10))
        batches = []
        for buffer in (ours, theirs):
            torch.manual_seed(start)
            batches.append(buffer.sample())
        assert_same(*batches)
    assert len(ours) == len(theirs) == 50
    assert_same(ours[:], theirs[:])


def test_priorities_go_by_position() -> None:
    try:
        ours, _ = buffers_of(lambda: PrioritizedSampler(100, alpha=1.0, beta=1.0), 100, 64)
    except RuntimeError as error:
        pytest.skip(f"this TorchRL was built for another torch: {error}")
    for start in range(100):
        ours.add(transitions(start, 1)[0])
    batch = ours.sample()
    batch.set("td_error", torch.where(batch["action"] == batch["action"][0], 1e6, 1e-6))
    ours.update_tensordict_priority(batch)
    again = ours.sample()
    assert (again["action"] == batch["action"][0]).float().mean() > 0.9


def test_a_state_goes_into_another_storage(tmp_path: Path) -> None:
    first, second = StepwellStorage(30), StepwellStorage(30, path=tmp_path / "ring.well")
    for start in range(0, 40, 8):
        first.set((torch.arange(8) + start) % 30, transitions(start, 8))
    second.load_state_dict(first.state_dict())
    assert_same(second.get(slice(None)), first.get(slice(None)))
    second.close()
    assert stepwell.open(tmp_path / "ring.well", mode="r").num_steps == 30


def test_a_ring_is_written_in_order() -> None:
    storage = StepwellStorage(10)
    storage.set(0, transitions(0, 1)[0])
    with pytest.raises(TableError, match="1 comes next"):
        storage.set(5, transitions(5, 1)[0])
    with pytest.raises(IndexError):
        storage.get(1)
    assert storage.get(0)["action"] == 0
