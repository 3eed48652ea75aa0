"""What agents of the field do with Reverb: adders in parts of steps, data sets by signature, priorities of learners."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from reverb_samples import drained

from stepwell import reverb
from stepwell.reverb import rate_limiters, selectors

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]


class Walk:
    """Three steps to the right, a reward each; observations are nests."""

    def reset(self) -> dict[str, Any]:
        self.at = 0
        return {"camera": np.full((4, 4), 0, np.uint8), "state": np.zeros(2, np.float32)}

    def step(self, action: int) -> tuple[dict[str, Any], float, float]:
        self.at += 1
        observation = {"camera": np.full((4, 4), self.at, np.uint8), "state": np.full(2, self.at, np.float32)}
        return observation, float(action), 0.0 if self.at == 3 else 1.0


def spec(shape: tuple[int, ...], dtype: Any) -> reverb.TensorSpec:
    return reverb.TensorSpec(shape, np.dtype(dtype))


def signature() -> dict[str, Any]:
    observation = {"camera": spec((4, 4), np.uint8), "state": spec((2,), np.float32)}
    return {
        "observation": observation, "action": spec((), np.int32), "reward": spec((), np.float32),
        "discount": spec((), np.float32), "next_observation": observation,
    }  # fmt: skip


def play(client: reverb.Client, episodes: int, n_step: int = 1) -> None:
    """Add transitions as an adder does: the observation first, the rest of its step when the action is known."""
    with client.trajectory_writer(num_keep_alive_refs=n_step + 1) as writer:
        for _ in range(episodes):
            walk = Walk()
            writer.append({"observation": walk.reset(), "start_of_episode": True}, partial_step=True)
            discount = 1.0
            while discount:
                observation, reward, discount = walk.step(1)
                writer.append({"action": np.int32(1), "reward": np.float32(reward), "discount": np.float32(discount)})
                writer.append({"observation": observation, "start_of_episode": False}, partial_step=True)
                history = writer.history
                transition = {
                    "observation": {name: column[-2] for name, column in history["observation"].items()},
                    "action": history["action"][-2],
                    "reward": history["reward"][-2],
                    "discount": history["discount"][-2],
                    "next_observation": {name: column[-1] for name, column in history["observation"].items()},
                }
                writer.create_item("replay", priority=1.0, trajectory=transition)
                writer.flush(block_until_num_items=5)
            writer.end_episode()


@pytest.fixture
def client(serve: Serve) -> reverb.Client:
    table = reverb.Table(
        "replay", selectors.Prioritized(0.6), selectors.Fifo(), 1000, rate_limiters.MinSize(1), signature=signature()
    )
    return serve(table)[1]


def test_a_learner_draws_transitions_and_sets_their_priorities(client: reverb.Client) -> None:
    play(client, 20)
    assert client.server_info()["replay"].current_size == 60
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay", 64)
    batches = dataset.batch(32, drop_remainder=True).prefetch(1).as_numpy_iterator()
    for _ in range(10):
        sample = next(batches)
        data, info = sample.data, sample.info
        before, after = data["observation"]["state"][:, 0], data["next_observation"]["state"][:, 0]
        np.testing.assert_array_equal(after, before + 1)
        np.testing.assert_array_equal(data["next_observation"]["camera"][:, 0, 0], after)
        np.testing.assert_array_equal(data["discount"], (after < 3).astype(np.float32))
        np.testing.assert_array_equal(data["reward"], 1)
        # only transitions from the start are worth something
        priorities = (before == 0).astype(np.float64)
        client.mutate_priorities("replay", updates=dict(zip(info.key.tolist(), priorities.tolist(), strict=True)))
    # in dm-tree's order: action, discount, next_observation, observation, reward
    weights = {float(sample.data[5][0]): sample.info.priority for sample in drained(client, "replay", 200)}
    assert weights[0.0] == 1.0


def test_sequences_of_recurrent_agents_overlap_and_end_with_the_episode(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("replay", 100))
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for number in range(10):
            writer.append({"observation": np.float32(number), "state": np.full(3, number, np.float32)})
            if number >= 3 and (number - 3) % 2 == 0:
                columns = {"observation": writer.history["observation"][-4:], "state": writer.history["state"][-4]}
                writer.create_item("replay", 1.0, columns)
        writer.create_item("replay", 2.0, {"observation": writer.history["observation"][-3:]})
        writer.end_episode()
    samples = drained(client, "replay")
    assert [sample.data[0].tolist() for sample in samples] == [
        [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [7, 8, 9],
    ]  # fmt: skip
    assert [sample.data[1].tolist() for sample in samples[:2]] == [[0, 0, 0], [2, 2, 2]]


def test_weights_travel_through_a_table_of_one(serve: Serve) -> None:
    table = reverb.Table("weights", selectors.Lifo(), selectors.Fifo(), 1, rate_limiters.MinSize(1))
    _, client = serve(table)
    for version in range(3):
        client.insert({"w": np.full((3, 2), version, np.float32), "version": version}, {"weights": 1.0})
    ((step,),) = client.sample("weights")
    assert int(step.data[0]) == 2
    np.testing.assert_array_equal(step.data[1], np.full((3, 2), 2, np.float32))


MODULES = ["item_selectors", "rate_limiters", "trajectory_dataset", "timestep_dataset", "pattern_dataset", "errors"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_names_that_users_import(name: str) -> None:
    assert import_module(f"stepwell.reverb.{name}").__all__
