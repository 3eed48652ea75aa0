"""TorchRL's replay buffers over a ring beside the same over tensors."""

import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import TableError

torchrl = pytest.importorskip("torchrl", reason="TorchRL is not installed")
import torch  # noqa: E402
from tensordict import TensorDict, tensorclass  # noqa: E402
from torchrl.data import Categorical, LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.samplers import (  # noqa: E402
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from torchrl.envs.transforms import RewardScaling  # noqa: E402
from torchrl.modules import QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss  # noqa: E402

from stepwell.torchrl import StepwellStorage  # noqa: E402


def transitions(start: int, count: int) -> Any:
    numbers = torch.arange(start, start + count)
    done = (numbers % 10 == 9).unsqueeze(1)
    following = {"observation": numbers.float().unsqueeze(1) + 1, "reward": numbers.double().unsqueeze(1), "done": done}
    return TensorDict(
        {"observation": numbers.float().unsqueeze(1), "action": numbers.to(torch.int32), "next": following},
        batch_size=[count],
    )


def as_it_is(batch: Any) -> Any:
    return batch


def buffers_of(make_sampler: Any, size: int, batch_size: int, **more: Any) -> list[Any]:
    storages = StepwellStorage(size), LazyTensorStorage(size)
    options = {"batch_size": batch_size, "collate_fn": as_it_is, **more}
    return [TensorDictReplayBuffer(storage=storage, sampler=make_sampler(), **options) for storage in storages]


def assert_same(found: Any, expected: Any) -> None:
    keys = set(expected.keys(include_nested=True, leaves_only=True))
    assert set(found.keys(include_nested=True, leaves_only=True)) == keys
    for key in keys:
        torch.testing.assert_close(found.get(key), expected.get(key), rtol=0, atol=0)


def slices(kind: Any, **options: Any) -> Any:
    return lambda: kind(end_key=("next", "done"), strict_length=False, **options)


SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": slices(SliceSampler, slice_len=4),
    "slices, ends kept": slices(SliceSampler, num_slices=4, cache_values=True),
    "slices without replacement": slices(SliceSamplerWithoutReplacement, slice_len=4),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("step", [10, 37, 120])
def test_samplers_draw_the_same_over_a_ring(name: str, step: int) -> None:
    ours, theirs = buffers_of(SAMPLERS[name], 50, 16)
    for start in range(0, 130, step):
        for buffer in (ours, theirs):
            # of positions that come twice in one call TorchRL's tensors keep one or the other
            buffer.extend(transitions(start, min(step, 50)))
        assert_same(*drawn(ours, theirs, start))
    assert len(ours) == len(theirs) == 50
    assert_same(ours[:], theirs[:])
    for index in (3, -1, slice(2, 30, 3), [4, 1], torch.tensor([2, 2]), torch.arange(50) % 3 == 0):
        assert_same(ours[index], theirs[index])
        assert ours[index].batch_size == theirs[index].batch_size


def drawn(ours: Any, theirs: Any, seed: int) -> list[Any]:
    batches = []
    for buffer in (ours, theirs):
        torch.manual_seed(seed)
        batches.append(buffer.sample())
    return batches


def test_more_elements_than_positions_leave_the_last_ones() -> None:
    storage = StepwellStorage(50)
    storage.set(torch.arange(120) % 50, transitions(0, 120))
    storage.set((torch.arange(7) + 20) % 50, transitions(120, 7))
    assert storage.get(slice(None))["action"].sort().values.tolist() == list(range(77, 127))


def test_elements_come_one_by_one_through_a_transform() -> None:
    scale = RewardScaling(loc=0.0, scale=2.0, in_keys=[("next", "reward")])
    ours, theirs = buffers_of(RandomSampler, 20, 8, transform=scale)
    for number in range(50):
        for buffer in (ours, theirs):
            buffer.add(transitions(number, 1)[0])
        assert_same(*drawn(ours, theirs, number))


def test_batches_are_drawn_ahead() -> None:
    # random numbers of its own: its threads draw ahead beside the tests that follow
    ours, _ = buffers_of(RandomSampler, 50, 16, prefetch=3, generator=torch.Generator())
    for start in range(0, 130, 10):
        ours.extend(transitions(start, 10))
        for _ in range(3):
            batch = ours.sample()
            # each is whole: what it had when it was drawn
            torch.testing.assert_close(batch["next", "reward"][:, 0], batch["action"].double(), rtol=0, atol=0)


def test_a_loss_is_the_same_to_the_bit() -> None:
    losses = []
    for buffer in buffers_of(RandomSampler, 60, 16):
        torch.manual_seed(1)
        actor = QValueActor(
            torch.nn.Linear(1, 3), in_keys=["observation"], spec=Categorical(3), action_space="categorical"
        )
        loss = DQNLoss(actor, action_space="categorical", delay_value=False)
        loss.make_value_estimator(gamma=0.9)
        optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
        found = []
        for start in range(0, 100, 10):
            elements = transitions(start, 10)
            elements["action"] = (elements["action"] % 3).long()
            elements["next", "terminated"] = elements["next", "done"]
            elements["next", "reward"] = elements["next", "reward"].float()
            buffer.extend(elements)
            value = loss(buffer.sample())["loss"]
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(value.item())
        losses.append(found)
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 10


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


@pytest.mark.parametrize("count", [20, 70])
def test_buffers_are_saved_and_go_on(tmp_path: Path, count: int) -> None:
    ours, theirs = buffers_of(RandomSampler, 50, 16)
    for start in range(0, count, 10):
        for buffer in (ours, theirs):
            buffer.extend(transitions(start, 10))
    ours.dumps(tmp_path / "checkpoint")
    again = buffers_of(RandomSampler, 50, 16)[0]
    again.loads(tmp_path / "checkpoint")
    copied = pickle.loads(pickle.dumps(ours._storage))
    assert_same(copied.get(slice(None)), theirs[:])
    for buffer in (again, theirs):
        buffer.extend(transitions(count, 7))
    assert_same(again[:], theirs[:])
    assert_same(*drawn(again, theirs, 0))


def test_what_a_tensor_storage_saved_is_taken(tmp_path: Path) -> None:
    ours, theirs = buffers_of(RandomSampler, 50, 16)
    theirs.extend(transitions(0, 30))
    theirs.dumps(tmp_path / "checkpoint")
    ours.loads(tmp_path / "checkpoint")
    for buffer in (ours, theirs):
        buffer.extend(transitions(30, 40))
    assert_same(ours[:], theirs[:])


@pytest.mark.parametrize("count", [20, 70])
def test_states_are_taken_as_from_tensor_storages(count: int) -> None:
    ours, theirs = buffers_of(RandomSampler, 50, 16)
    for start in range(0, count, 10):
        for buffer in (ours, theirs):
            buffer.extend(transitions(start, 10))
    saved = []
    for buffer in (ours, theirs):
        file = io.BytesIO()
        torch.save(buffer.state_dict(), file)
        file.seek(0)
        # what `Trainer.load_from_file` takes by default
        saved.append(torch.load(file, weights_only=True))
    for state in saved[: 1 if count == 70 else 2]:
        for again in (buffers_of(RandomSampler, 50, 16)[0], ours):
            again.load_state_dict(state)
            assert_same(again[:], theirs[:])
            again.extend(transitions(count, 7))
            assert len(again) == min(count + 7, 50)
            assert (again[:]["action"] == count + 6).any()


def test_a_state_with_other_keys_leaves_what_was_there() -> None:
    first, second = StepwellStorage(10), StepwellStorage(10)
    first.set(torch.arange(4), transitions(0, 4))
    second.set(torch.arange(4), TensorDict({"a": torch.zeros(4)}, [4]))
    with pytest.raises(TableError, match="keys"):
        first.load_state_dict(second.state_dict())
    assert_same(first.get(slice(None)), transitions(0, 4))
    first.load_state_dict(StepwellStorage(10).state_dict())
    assert len(first) == 0


def test_another_process_cannot_have_the_storage() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print, args=(StepwellStorage(5),))
    with pytest.raises(RuntimeError, match="of one process"):
        process.start()


def test_elements_of_several_dimensions_keep_them() -> None:
    ours, theirs = buffers_of(RandomSampler, 8, 4)
    for start in range(0, 60, 30):
        for buffer in (ours, theirs):
            buffer.extend(transitions(start, 30).reshape(6, 5))
        found, expected = drawn(ours, theirs, start)
        assert_same(found, expected)
        assert found.batch_size == expected.batch_size == (4, 5)
        assert found["next"].batch_size == expected["next"].batch_size
        assert ours[1].batch_size == theirs[1].batch_size
        assert pickle.loads(pickle.dumps(ours._storage)).get(1).batch_size == (5,)


def test_a_storage_without_elements(tmp_path: Path) -> None:
    storage = StepwellStorage(5)
    with pytest.raises(TableError, match="nothing to save"):
        storage.dumps(tmp_path / "checkpoint")
    assert len(pickle.loads(pickle.dumps(storage))) == len(storage.get(slice(None))) == 0


def test_buffers_begin_anew() -> None:
    ours, theirs = buffers_of(RandomSampler, 50, 16)
    for buffer in (ours, theirs):
        buffer.extend(transitions(0, 50))
        buffer.extend(transitions(50, 20))
        buffer.empty()
        assert len(buffer) == 0
        buffer.extend(transitions(100, 30))
    assert_same(ours[:], theirs[:])


def test_keys_and_types_of_all_kinds() -> None:
    elements = TensorDict(
        {
            "of two words": torch.arange(6.0),
            "a": {"b": torch.arange(6.0) + 1},
            "a.b": torch.arange(6.0) + 2,
            "half": torch.rand(6, 2).bfloat16(),
            "pixels": torch.randint(0, 255, (6, 3, 4, 4), dtype=torch.uint8),
            "flag": torch.arange(6) % 2 == 0,
            "transposed": torch.rand(2, 6).mT,
        },
        [6],
    )
    storage = StepwellStorage(10)
    storage.set(torch.arange(6), elements)
    assert_same(storage.get(slice(None)), elements)
    assert_same(storage.get(4), elements[4])


@tensorclass
class Moment:
    """An element that is no TensorDict."""

    number: torch.Tensor


def test_elements_of_a_class_come_back_as_such() -> None:
    storage = StepwellStorage(10)
    storage.set(torch.arange(4), Moment(torch.arange(4), batch_size=[4]))
    found = storage.get([3, 0])
    assert isinstance(found, Moment)
    assert found.number.tolist() == [3, 0]


def test_what_a_ring_cannot_hold_is_refused() -> None:
    storage = StepwellStorage(10)
    with pytest.raises(TableError, match="'text' has"):
        storage.set(torch.arange(4), TensorDict({"a": torch.zeros(4), "text": "hello"}, [4]))
    with pytest.raises(TableError, match="elements of Tensor"):
        storage.set(torch.arange(4), torch.zeros(4))
    storage.set(torch.arange(4), TensorDict({"a": torch.zeros(4)}, [4]))
    for other, message in (({"b": torch.zeros(4)}, "keys"), ({"a": torch.zeros(4).double()}, "float64")):
        with pytest.raises(TableError, match=message):
            storage.set(torch.arange(4, 8), TensorDict(other, [4]))
    assert len(storage) == 4


def test_a_ring_is_written_in_order() -> None:
    storage = StepwellStorage(10)
    storage.set(0, transitions(0, 1)[0])
    with pytest.raises(TableError, match="1 comes next"):
        storage.set(5, transitions(5, 1)[0])
    with pytest.raises(IndexError):
        storage.get(1)
    assert storage.get(0)["action"] == 0


def test_a_buffer_whose_elements_were_refused_goes_on_when_it_is_emptied() -> None:
    buffer = TensorDictReplayBuffer(storage=StepwellStorage(10), batch_size=4, collate_fn=as_it_is)
    buffer.extend(transitions(0, 4))
    state = buffer.state_dict()
    for go_on in (buffer.empty, lambda: buffer.load_state_dict(state)):
        with pytest.raises(TableError, match="Those before it have"):
            buffer.extend(transitions(4, 3).exclude("action"))
        with pytest.raises(TableError, match=r"the buffer counts them. Call its empty\(\)"):
            buffer.extend(transitions(4, 3))
        go_on()
        buffer.extend(transitions(20, 3))
        assert buffer[:]["action"][-3:].tolist() == [20, 21, 22]
