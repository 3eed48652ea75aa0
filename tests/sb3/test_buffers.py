"""Replay buffers by Stable-Baselines3's names beside Stable-Baselines3's own: the same seed gives the same batches."""

import copy
import io
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import DiskFullError, TableError

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
torch = pytest.importorskip("torch")
from gymnasium import spaces  # noqa: E402
from stable_baselines3 import DQN, SAC, TD3, HerReplayBuffer  # noqa: E402
from stable_baselines3.common import buffers  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.envs import BitFlippingEnv  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

import stepwell.sb3  # noqa: E402
from stepwell.replay import Table  # noqa: E402
from stepwell.replay.limiters import Queue  # noqa: E402

BOX = spaces.Box(-1, 1, (3,))
GOALS = spaces.Dict({"state": BOX, "image one": spaces.Box(0, 255, (4, 4, 1), np.uint8), "kind": spaces.Discrete(5)})
Step = tuple[Any, Any, Any, Any, Any, list[dict[str, Any]]]


def steps(
    space: Any, action_space: Any, num_envs: int, *, seed: int = 0, end: float = 0.1, are_hidden: bool = False
) -> Iterator[Step]:
    """Yield what `add` takes, without end; hidden ends are not in ``done``, as CleanRL hides those of time limits."""
    space.seed(seed)
    action_space.seed(seed)
    rng = np.random.default_rng(seed)

    def observe(of: Any = space) -> Any:
        if isinstance(of, spaces.Dict):
            return {key: observe(each) for key, each in of.items()}
        return np.stack([of.sample() for _ in range(num_envs)])

    obs = observe()
    while True:
        next_obs, other = observe(), observe()
        action = np.stack([action_space.sample() for _ in range(num_envs)])
        ended, is_limit = rng.random(num_envs) < end, rng.random(num_envs) < 0.5
        done = ended & ~is_limit if are_hidden else ended
        infos = [{"TimeLimit.truncated": bool(each)} for each in ended & is_limit & (not are_hidden)]
        # buffers may change a dict that they are given, as Stable-Baselines3's does
        yield copy.copy(obs), copy.copy(next_obs), action, rng.normal(size=num_envs), done, infos
        if isinstance(space, spaces.Dict):
            obs = {key: _chosen(ended, other[key], next_obs[key]) for key in space}
        else:
            obs = _chosen(ended, other, next_obs)


def _chosen(mask: Any, first: Any, second: Any) -> Any:
    return np.where(mask.reshape(-1, *(1,) * (first.ndim - 1)), first, second)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_equal(found[key], expected[key])
    elif expected is None:
        assert found is None
    else:
        assert found.dtype == expected.dtype
        assert found.is_contiguous()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_same_batch(ours: Any, theirs: Any, *args: Any) -> None:
    state = np.random.get_state()
    expected = theirs.sample(*args)
    np.random.set_state(state)
    found = ours.sample(*args)
    assert type(found) is type(expected)
    for each, other in zip(found, expected, strict=True):
        assert_equal(each, other)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("size", [1, 5, 40, 3000])
@pytest.mark.parametrize(("end", "are_hidden"), [(0.1, False), (0.1, True), (0.0, False)])
def test_draws_are_those_of_stable_baselines3(num_envs: int, size: int, end: float, are_hidden: bool) -> None:
    options = {"device": "cpu", "n_envs": num_envs, "handle_timeout_termination": not are_hidden}
    ours = stepwell.sb3.ReplayBuffer(size * num_envs, BOX, BOX, **options)
    theirs = buffers.ReplayBuffer(size * num_envs, BOX, BOX, **options)
    source = steps(BOX, BOX, num_envs, end=end, are_hidden=are_hidden)
    for number, step in enumerate(itertools.islice(source, 5 * size // 2 if size > 100 else 300)):
        ours.add(*step)
        theirs.add(*step)
        if number % (7 if size < 100 else 60) == 3:
            assert_same_batch(ours, theirs, 64)
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(np.asarray(getattr(ours, name)), getattr(theirs, name))


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2, 2), np.float64)]
)
def test_dicts_of_observations_and_kinds_of_actions(num_envs: int, action_space: Any) -> None:
    ours, theirs = (
        module.DictReplayBuffer(100, GOALS, action_space, device="cpu", n_envs=num_envs)
        for module in (stepwell.sb3, buffers)
    )
    for step in itertools.islice(steps(GOALS, action_space, num_envs), 330):
        ours.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))
        if ours.pos % 11 == 1:
            assert_same_batch(ours, theirs, 32)


@pytest.mark.parametrize("space", [spaces.Discrete(7), spaces.MultiBinary(3), spaces.Box(0, 255, (1, 8, 8), np.uint8)])
def test_kinds_of_observations(space: Any) -> None:
    ours, theirs = (module.ReplayBuffer(60, space, BOX, device="cpu", n_envs=2) for module in (stepwell.sb3, buffers))
    for step in itertools.islice(steps(space, BOX, 2), 100):
        ours.add(*step)
        theirs.add(*step)
    assert_same_batch(ours, theirs, 200)


def test_the_position_that_is_written_next_is_left_out_where_stable_baselines3_does() -> None:
    options = {"device": "cpu", "optimize_memory_usage": True, "handle_timeout_termination": False}
    ours, theirs = (module.ReplayBuffer(20, BOX, BOX, **options) for module in (stepwell.sb3, buffers))
    for step in itertools.islice(steps(BOX, BOX, 1, end=0.0), 50):
        ours.add(*step)
        theirs.add(*step)
        assert_same_batch(ours, theirs, 30)


def test_steps_that_found_no_space_are_written_by_the_next_flush() -> None:
    ours, theirs = (module.ReplayBuffer(60, BOX, BOX, device="cpu", n_envs=2) for module in (stepwell.sb3, buffers))
    append_batch = ours._writer.append_batch

    def append_few(given: Any, **options: Any) -> Any:
        for key in ("terminated", "truncated", "out"):
            options[key] = options[key][:4]
        final = {name: rows[:4] for name, rows in options.pop("final").items()}
        append_batch({name: rows[:4] for name, rows in given.items()}, final=final, **options)
        raise DiskFullError("no space")

    for number, step in enumerate(itertools.islice(steps(BOX, BOX, 2), 80)):
        ours.add(*step)
        theirs.add(*step)
        if number % 20 == 19:
            ours._writer.append_batch = append_few
            with pytest.raises(DiskFullError):
                ours.flush()
            ours._writer.append_batch = append_batch
            assert_same_batch(ours, theirs, 200)
            ours.flush()
            assert_same_batch(ours, theirs, 200)
    ours.close()
    # each step is there once: the ring has those of 30 vector steps, and keeps some more
    assert ours.store.num_steps >= 60
    found = np.sort(np.concatenate([episode["reward"] for episode in ours.store]))
    assert len(np.unique(found)) == len(found)


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_positions_that_were_never_written_are_zeros(count: int) -> None:
    # tests of Stable-Baselines3 say so by hand
    ours, theirs = (module.ReplayBuffer(800, BOX, BOX, device="cpu", n_envs=2) for module in (stepwell.sb3, buffers))
    for step in itertools.islice(steps(BOX, BOX, 2), count):
        ours.add(*step)
        theirs.add(*step)
    ours.full = theirs.full = True
    assert_same_batch(ours, theirs, 100)


def test_steps_that_a_table_drops_are_said_to_be_lost() -> None:
    buffer = stepwell.sb3.ReplayBuffer(60, BOX, BOX, device="cpu", n_envs=2)
    table = Table(buffer.store, limiter=Queue(2), back_pressure="drop")
    for step in itertools.islice(steps(BOX, BOX, 2), 30):
        buffer.add(*step)
    with pytest.raises(TableError, match="back-pressure dropped"):
        buffer.flush()
    assert table.follow() > 0


def test_what_says_that_time_is_up_may_be_an_array() -> None:
    ours, theirs = (module.ReplayBuffer(60, BOX, BOX, device="cpu") for module in (stepwell.sb3, buffers))
    for step in itertools.islice(steps(BOX, BOX, 1), 60):
        for buffer in (ours, theirs):
            buffer.add(*step[:5], [{"TimeLimit.truncated": np.array([step[5][0]["TimeLimit.truncated"]], np.float32)}])
    assert_same_batch(ours, theirs, 200)


def test_extend_and_reset() -> None:
    ours = stepwell.sb3.ReplayBuffer(50, BOX, BOX, device="cpu")
    theirs = buffers.ReplayBuffer(50, BOX, BOX, device="cpu")
    source = steps(BOX, BOX, 1)
    for _ in range(3):
        given = [list(each) for each in zip(*itertools.islice(source, 30), strict=True)]
        for buffer in (ours, theirs):
            buffer.extend(*given)
        assert_same_batch(ours, theirs, 40)
        for buffer in (ours, theirs):
            buffer.reset()
        assert ours.size() == 0


def test_a_vec_normalize_normalizes_what_is_drawn() -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2))
    env.reset()
    for _ in range(50):
        env.step(np.zeros((2, 1)))
    ours, theirs = (
        module.ReplayBuffer(100, env.observation_space, env.action_space, device="cpu", n_envs=2)
        for module in (stepwell.sb3, buffers)
    )
    for step in itertools.islice(steps(env.observation_space, env.action_space, 2), 70):
        ours.add(*step)
        theirs.add(*step)
    assert_same_batch(ours, theirs, 32, env)


@pytest.mark.parametrize(("num_envs", "count"), [(1, 30), (1, 700), (2, 700)])
def test_a_pickle_has_the_transitions(num_envs: int, count: int) -> None:
    ours, theirs = (
        module.DictReplayBuffer(200, GOALS, BOX, device="cpu", n_envs=num_envs) for module in (stepwell.sb3, buffers)
    )
    source = steps(GOALS, BOX, num_envs)
    for step in itertools.islice(source, count):
        ours.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))
    again = pickle.loads(pickle.dumps(ours))
    assert_same_batch(again, theirs, 64)
    for step in itertools.islice(source, 90):
        again.add(*copy.deepcopy(step))
        theirs.add(*copy.deepcopy(step))
    assert_same_batch(again, theirs, 64)


def test_a_ring_on_the_disk_is_a_store(tmp_path: Path) -> None:
    buffer = stepwell.sb3.ReplayBuffer(1000, BOX, BOX, device="cpu", path=tmp_path / "run.well")
    given = list(itertools.islice(steps(BOX, BOX, 1), 100))
    for step in given:
        buffer.add(*step)
    buffer.close()
    store = stepwell.open(tmp_path / "run.well", mode="r")
    found = [episode["observation"][: episode.length] for episode in store]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate([step[0] for step in given]))
    assert [episode.terminated for episode in store][:-1] == [
        not step[5][0]["TimeLimit.truncated"] for step in given[:-1] if step[4][0]
    ]


def learned(algorithm: Any, env_id: str, buffer: Any, num_envs: int, **options: Any) -> Any:
    """Return the parameters after a few steps of learning, and the model."""
    env = make_vec_env(env_id, n_envs=num_envs, seed=0)
    model = algorithm(
        "MlpPolicy", env, seed=1, replay_buffer_class=buffer, learning_starts=50, buffer_size=150,
        policy_kwargs={"net_arch": [16]}, train_freq=8, **options,
    )  # fmt: skip
    model.learn(200)
    return torch.cat([each.flatten() for each in model.policy.parameters()]), model


@pytest.mark.parametrize(("algorithm", "env_id"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1"), (TD3, "Pendulum-v1")])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_algorithms_learn_the_same(algorithm: Any, env_id: str, num_envs: int) -> None:
    found, model = learned(algorithm, env_id, stepwell.sb3.ReplayBuffer, num_envs)
    expected, _ = learned(algorithm, env_id, buffers.ReplayBuffer, num_envs)
    assert torch.equal(found, expected)
    file = io.BytesIO()
    model.save_replay_buffer(file)
    file.seek(0)
    model.load_replay_buffer(file)
    assert isinstance(model.replay_buffer, stepwell.sb3.ReplayBuffer)
    model.learn(50, reset_num_timesteps=False)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_learns_the_same(strategy: str) -> None:
    found = []
    for kind in (stepwell.sb3.HerReplayBuffer, HerReplayBuffer):
        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, continuous=True) for _ in range(2)])
        model = SAC(
            "MultiInputPolicy", env, seed=1, replay_buffer_class=kind, learning_starts=60, buffer_size=100,
            train_freq=10, policy_kwargs={"net_arch": [16]}, replay_buffer_kwargs={"goal_selection_strategy": strategy},
        )  # fmt: skip
        model.learn(110)
        found.append(torch.cat([each.flatten() for each in model.policy.parameters()]))
    assert torch.equal(*found)


def test_n_step_returns_are_those_of_stable_baselines3() -> None:
    if not hasattr(buffers, "NStepReplayBuffer"):
        pytest.skip("this version of Stable-Baselines3 has none")
    ours, theirs = (
        module.NStepReplayBuffer(150, BOX, BOX, device="cpu", n_envs=2, n_steps=3, gamma=0.9)
        for module in (stepwell.sb3, buffers)
    )
    for step in itertools.islice(steps(BOX, BOX, 2), 200):
        ours.add(*step)
        theirs.add(*step)
        if ours.pos % 9 == 5:
            assert_same_batch(ours, theirs, 32)


def test_priorities_decide_what_is_drawn() -> None:
    buffer = stepwell.sb3.PrioritizedReplayBuffer(
        500, BOX, BOX, device="cpu", n_envs=2, alpha=1.0, beta=1.0, eps=0.0, n_steps=2, gamma=0.5, seed=3
    )
    with pytest.raises(TableError, match="no transition of 2 steps"):
        buffer.sample(4)
    given = list(itertools.islice(steps(BOX, BOX, 2, end=0.0), 100))
    for step in given:
        buffer.add(*step)
    batch = buffer.sample(256)
    assert [tuple(each.shape) for each in batch[:7]] == [(256, 3), (256, 3), (256, 3), *[(256, 1)] * 4]
    observations = np.stack([step[0] for step in given])
    is_same = (observations[:, :, None] == batch.observations.numpy()).all(axis=-1)
    at, envs = np.nonzero(is_same.transpose(2, 0, 1))[1:]
    rewards = np.stack([step[3] for step in given])
    np.testing.assert_allclose(batch.rewards[:, 0], rewards[at, envs] + 0.5 * rewards[at + 1, envs], atol=1e-6)
    np.testing.assert_array_equal(batch.next_observations, observations[at + 2, envs])
    np.testing.assert_array_equal(batch.discounts, 0.25)
    # of those that were not drawn the priority stays 1
    buffer.update_priorities(batch.indices, torch.where(torch.as_tensor(batch.indices == batch.indices[0]), 700.0, 0.0))
    again = buffer.sample(1000)
    share = float((again.indices == batch.indices[0]).mean())
    assert 0.75 < share < 0.999
    assert float(again.weights.min()) < 0.01
    # CleanRL's Rainbow assigns another one before each draw
    buffer.beta = 0.0
    assert (buffer.sample(1000).weights == 1).all()


def test_the_last_transition_of_an_episode_is_drawn_at_once() -> None:
    buffer = stepwell.sb3.PrioritizedReplayBuffer(50, BOX, BOX, "cpu", n_steps=3, gamma=0.5)
    for number, step in enumerate(itertools.islice(steps(BOX, BOX, 1, end=0.0), 4)):
        buffer.add(*step[:4], np.array([number == 3]), step[5])
    batch = buffer.sample(200)
    assert np.unique(batch.observations, axis=0).shape[0] == 4
    assert set(np.asarray(batch.dones).ravel().tolist()) == {0.0, 1.0}


def test_a_learner_takes_prioritized_batches() -> None:
    options = {"replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.99}}
    _, model = learned(DQN, "CartPole-v1", stepwell.sb3.PrioritizedReplayBuffer, 2, **options)
    assert model.replay_buffer.table.info.counts.samples > 0
    again = pickle.loads(pickle.dumps(model.replay_buffer))
    assert again.size() == model.replay_buffer.size()
    again.sample(8)


def test_a_dict_buffer_refuses_other_observations() -> None:
    with pytest.raises(TableError, match="Dict"):
        stepwell.sb3.DictReplayBuffer(10, BOX, BOX)
