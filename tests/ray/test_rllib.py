"""RLlib's episode replay buffers over a ring: what goes in comes out, by itself and inside of algorithms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
import stepwell.store
from stepwell.errors import DiskFullError, SchemaError, TableError

pytest.importorskip("ray.rllib", reason="RLlib is not installed: pip install 'stepwell[ray]'")
gym = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.utils.replay_buffers import episode_replay_buffer, prioritized_episode_buffer  # noqa: E402

from stepwell.ray import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer  # noqa: E402

# of Ray and what it imports
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]

BOTH = pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
GAMMA = 0.5


def episode(length: int, first: int, *, name: str | None = None, begin: int = 0, **options: Any) -> Any:
    """Return a chunk whose step t has observation ``first + t``, and rewards and actions that follow from it."""
    numbers = first + begin + np.arange(length + 1)
    return SingleAgentEpisode(
        id_=name,
        observations=np.repeat(numbers[:, None], 2, axis=1).astype(np.float32),
        actions=numbers[:-1] % 7,
        rewards=(numbers[:-1] % 5).astype(np.float32),
        infos=[{"cost": float(number), "other": "text"} for number in numbers],
        t_started=begin,
        len_lookback_buffer=0,
        **options,
    )


def chunks(name: str, first: int, lengths: list[int], **options: Any) -> list[Any]:
    """Return the chunks of an episode."""
    begins = np.cumsum([0, *lengths])
    last = len(lengths) - 1
    return [
        episode(length, first, name=name, begin=int(begins[number]), **(options if number == last else {}))
        for number, length in enumerate(lengths)
    ]


def check_transition(found: Any, ends: dict[int, tuple[int, bool]], n_step: int) -> int:
    """Check a transition against the last observation of its episode, and return its anchor's observation.

    Args:
        found: the sampled episode.
        ends: hundreds of the observation to the last observation of the episode, and whether it terminated.
        n_step: rewards.
    """
    (anchor, _), (after, _) = found.get_observations()
    last, has_terminated = ends[int(anchor) // 100]
    steps = min(n_step, last - int(anchor))
    assert after == anchor + steps
    assert found.get_actions().tolist() == [int(anchor) % 7]
    rewards = (int(anchor) + np.arange(steps)) % 5
    assert found.get_rewards()[0] == pytest.approx(float((rewards * GAMMA ** np.arange(steps)).sum()))
    assert found.get_extra_model_outputs("n_step").tolist() == [steps]
    assert found.t_started == int(anchor) % 100
    is_end = after == last
    assert found.is_terminated == (is_end and has_terminated)
    assert found.is_truncated == (is_end and not has_terminated)
    return int(anchor)


@BOTH
@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_are_what_went_in(kind: Any, n_step: int) -> None:
    buffer = kind(capacity=1000, seed=1)
    # two episodes in chunks that take turns, and whole ones
    first, second = chunks("a", 100, [3, 2, 4], terminated=True), chunks("b", 200, [1, 5, 1], truncated=True)
    for pair in zip(first, second, strict=True):
        buffer.add(list(pair))
    buffer.add([episode(6, 300, terminated=True), episode(1, 400, truncated=True)])
    buffer.add(episode(2, 500, terminated=True))
    assert len(buffer) == buffer.get_num_timesteps() == 9 + 7 + 6 + 1 + 2
    assert (buffer.get_num_episodes(), buffer.get_added_timesteps()) == (5, 25)
    ends = {1: (109, True), 2: (207, False), 3: (306, True), 4: (401, False), 5: (502, True)}
    sample = buffer.sample(400, n_step=n_step, gamma=GAMMA, beta=0.4)
    anchors = {check_transition(each, ends, n_step) for each in sample}
    assert len(sample) == 400
    assert anchors == {100 * number + t for number, (last, _) in ends.items() for t in range(last % 100)}
    assert buffer.get_sampled_timesteps() == 400


def test_samples_equal_those_of_rllib_where_its_episodes_go_on() -> None:
    episodes = [episode(40, 100, name="a", terminated=True), episode(40, 200, name="b", terminated=True)]
    ours, theirs = EpisodeReplayBuffer(1000, seed=0), episode_replay_buffer.EpisodeReplayBuffer(1000)
    found = []
    for buffer in (ours, theirs):
        buffer.add(episodes)
        sample = buffer.sample(2000, n_step=3, gamma=GAMMA, sample_episodes=True)
        found.append({
            float(each.get_observations(0)[0]): (
                each.get_observations(-1).tolist(), int(each.get_actions(0)), float(each.get_rewards(0)),
                each.is_terminated, each.t_started,
            )
            for each in sample
            # nearer to the end theirs does not say that the episode terminated
            if each.get_observations(0)[0] % 100 <= 37
        })  # fmt: skip
    assert found[0] == found[1]
    assert len(found[0]) == 76


def test_rewards_of_a_transition_are_drawn_from_a_range() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episode(50, 100, truncated=True))
    counts = set()
    for each in buffer.sample(200, n_step=(2, 5), gamma=GAMMA):
        (steps,) = each.get_extra_model_outputs("n_step").tolist()
        check_transition(each, {1: (150, False)}, steps)
        counts.add(steps)
    assert counts == {1, 2, 3, 4}


def test_a_step_waits_for_the_steps_of_its_transition() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episode(3, 100, name="a"))
    with pytest.raises(TableError, match="num_steps_sampled_before_learning_starts"):
        buffer.sample(8, n_step=3)
    buffer.add(episode(2, 100, name="a", begin=3))
    anchors = {int(each.get_observations(0)[0]) for each in buffer.sample(50, n_step=3)}
    assert anchors == {100, 101}
    with pytest.raises(TableError, match="empty"):
        EpisodeReplayBuffer().sample(1)


def test_sequences_have_what_recurrent_modules_need() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=2, infos=("cost",))
    whole = episode(7, 100, terminated=True)
    whole.extra_model_outputs["state_out"] = whole.actions.__class__(
        {"h": np.arange(100, 107, dtype=np.float32)[:, None]}, lookback=0
    )
    buffer.add(whole)
    sample = buffer.sample(60, batch_length_T=3, lookback=1, n_step=1, include_infos=True)
    assert sum(len(each) + 1 for each in sample) >= 60
    for each in sample:
        first, length = 100 + each.t_started, len(each)
        lookback = each.observations.lookback
        assert (length, lookback) == (min(3, 107 - first), min(1, each.t_started))
        rows = np.arange(first - lookback, first + length + 1)
        assert each.observations.data[:, 0].tolist() == rows.tolist()
        assert each.actions.data.tolist() == (rows[:-1] % 7).tolist()
        assert each.get_rewards().tolist() == (rows[lookback:-1] % 5).tolist()
        state = each.get_extra_model_outputs("state_out")["h"]
        assert state[:, 0].tolist() == rows[lookback:-1].tolist()
        assert [info["cost"] for info in each.get_infos()[1:]] == rows[lookback + 1 :].tolist()
        assert each.is_terminated == (first + length == 107)
    long = buffer.sample(200, batch_length_T=3, n_step=1, min_batch_length_T=4)
    assert max(each.t_started for each in long) == 2
    with pytest.raises(TableError, match="more than 20 steps"):
        buffer.sample(20, batch_length_T=3, n_step=1, min_batch_length_T=20)


def test_infos_that_are_not_stored_are_not_given() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episode(5, 100, terminated=True))
    with pytest.raises(TableError, match="no infos are stored"):
        buffer.sample(4, include_infos=True)
    with pytest.raises(TableError, match="infos without 'missing'"):
        EpisodeReplayBuffer(infos=("missing",)).add(episode(5, 100))
    kept = EpisodeReplayBuffer(1000, seed=0, infos=("cost",))
    kept.add(episode(5, 100, terminated=True))
    for each in kept.sample(20, n_step=2, include_infos=True):
        assert each.get_infos(-1) == {"cost": float(each.get_observations(-1)[0])}


def test_observations_in_dicts_and_actions_in_tuples_keep_their_structure() -> None:
    def part(name: str, length: int, begin: int, **options: Any) -> Any:
        numbers = np.arange(begin, begin + length + 1)
        return SingleAgentEpisode(
            id_=name,
            observations=[{"a": np.float32(t), "b b": {"c": np.full((2, 2), t, np.uint8)}} for t in numbers],
            actions=[(np.int64(t), np.full(3, t, np.float32)) for t in numbers[:-1]],
            rewards=numbers[:-1].tolist(),
            t_started=begin,
            len_lookback_buffer=0,
            **options,
        )

    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add([part("a", 4, 0), part("b", 3, 0, terminated=True).to_numpy()])
    buffer.add(part("a", 3, 4, terminated=True))
    assert sorted(buffer.store.schema) == [
        "action.0", "action.1", "observation.1", "observation.a", "reward",
    ]  # fmt: skip
    for each in buffer.sample(50, n_step=1):
        first = float(each.get_rewards(0))
        assert [float(value) for value in each.get_observations()["a"]] == [first, first + 1]
        assert each.get_observations(-1)["b b"]["c"].tolist() == [[first + 1] * 2] * 2
        number, values = each.get_actions(0)
        assert (int(number), values.tolist()) == (first, [first] * 3)
    with pytest.raises(TableError, match="1 arrays of an episode"):
        buffer.add(episode(3, 0))


def test_the_oldest_steps_go_and_lanes_are_used_again() -> None:
    buffer = EpisodeReplayBuffer(200, seed=0)
    # one whose runner died
    buffer.add(episode(2, 100, name="dead"))
    for number in range(60):
        names = [f"{number}.{lane}" for lane in range(3)]
        buffer.add([episode(5, 1000 * number, name=name) for name in names])
        buffer.add([episode(3, 1000 * number, name=name, begin=5, terminated=True) for name in names])
    assert len(buffer) == 200
    buffer.store.refresh()
    # steps that were written at once go at once
    assert 200 - buffer.store.num_steps in range(3)
    assert buffer.get_added_timesteps() == 2 + 60 * 24
    assert buffer.get_num_episodes() + buffer.get_num_episodes_evicted() == 181
    assert buffer.get_num_episodes() - buffer.store.num_episodes in range(3)
    # four lanes at once, and never more
    assert sum(writer.num_envs for writer in buffer._lanes._writers) <= 4
    anchors = {int(each.get_observations(0)[0]) for each in buffer.sample(300)}
    assert min(anchors) >= 1000 * 51


def test_priorities_say_what_is_drawn() -> None:
    buffer = PrioritizedEpisodeReplayBuffer(1000, alpha=1.0, seed=0)
    buffer.add(episode(10, 100, terminated=True))
    sample = buffer.sample(200, n_step=1, beta=1.0)
    wanted = [3.0 if int(each.get_observations(0)[0]) == 104 else -1.0 for each in sample]
    buffer.update_priorities(np.array(wanted), "default_policy")
    after = buffer.sample(2000, n_step=1, beta=1.0)
    is_104 = np.array([int(each.get_observations(0)[0]) == 104 for each in after])
    weights = np.array([each.get_extra_model_outputs("weights")[0] for each in after])
    assert 0.2 < is_104.mean() < 0.3
    assert weights[is_104] == pytest.approx(1 / 3)
    assert weights[~is_104] == pytest.approx(1)
    with pytest.raises(TableError, match="sample of 2000"):
        buffer.update_priorities(np.ones(3))


@BOTH
def test_a_state_goes_to_another_buffer(kind: Any, tmp_path: Path) -> None:
    buffer = kind(1000, seed=0, path=tmp_path / "run.well")
    buffer.add([episode(5, 100, name="a"), episode(6, 200, terminated=True)])
    sample = buffer.sample(50)
    if kind is PrioritizedEpisodeReplayBuffer:
        buffer.update_priorities([1e6 if int(each.get_observations(0)[0]) == 202 else 0.0 for each in sample])
    state = buffer.get_state()
    # what was under way goes on as an episode of its own
    buffer.add(episode(5, 100, name="a", begin=5, terminated=True))
    other = kind(1000, seed=0, path=tmp_path / "run.well")
    other.set_state(state)
    assert other.store.path == tmp_path / "run-1.well"
    assert (len(other), other.get_num_episodes(), other.get_sampled_timesteps()) == (11, 2, 50)
    anchors = {int(each.get_observations(0)[0]) for each in other.sample(100)}
    if kind is PrioritizedEpisodeReplayBuffer:
        # what could not be drawn before its episode was cut begins with the largest priority
        assert anchors == {104, 202}
    else:
        assert anchors == {*range(100, 105), *range(200, 206)}
    other.add(episode(4, 300, terminated=True))
    assert len(other) == 15
    # twice, and of a buffer without steps
    other.set_state(kind().get_state())
    assert len(other) == 0
    other.set_state(state)
    assert len(other) == 11
    buffer.close()
    other.close()


def test_a_state_of_rllib_is_taken() -> None:
    theirs = prioritized_episode_buffer.PrioritizedEpisodeReplayBuffer(1000)
    theirs.add([episode(5, 100, terminated=True)])
    buffer = PrioritizedEpisodeReplayBuffer(1000, seed=0)
    buffer.set_state(theirs.get_state())
    ends = {1: (105, True)}
    assert {check_transition(each, ends, 1) for each in buffer.sample(60, gamma=GAMMA)} == set(range(100, 105))


def test_a_failed_write_leaves_no_gap_in_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add([episode(5, 100, name="a"), episode(4, 200, terminated=True)])
    with monkeypatch.context() as patch:
        patch.setattr(stepwell.store.VectorWriter, "append", failing)
        patch.setattr(stepwell.store.VectorWriter, "append_batch", failing)
        with pytest.raises(DiskFullError):
            buffer.add(episode(3, 100, name="a", begin=5))
    assert (len(buffer), buffer.get_num_episodes()) == (4, 1)
    buffer.add(episode(6, 100, name="a", begin=8, terminated=True))
    pairs = {tuple(each.get_observations()[:, 0].tolist()) for each in buffer.sample(200, n_step=1)}
    assert pairs == {(t, t + 1) for t in (*range(200, 204), *range(108, 114))}


def failing(*_: Any, **__: Any) -> Any:
    raise DiskFullError("no space")


def test_episodes_unlike_the_first_one_are_refused_whole() -> None:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(episode(5, 100, name="a"))
    wider = episode(3, 200)
    wider.observations.data = np.zeros((4, 3), np.float32)
    floats = episode(3, 200)
    floats.actions.data = np.zeros(3, np.float32)
    for bad in (wider, floats):
        with pytest.raises(TableError, match="in the first episode"):
            buffer.add([episode(2, 100, name="a", begin=5), bad])
    assert len(buffer) == 5
    # other widths of a kind are fine
    doubles = episode(3, 300, terminated=True)
    doubles.observations.data = doubles.observations.data.astype(np.float64)
    buffer.add([doubles, episode(2, 100, name="a", begin=5, terminated=True)])
    assert (len(buffer), buffer.get_num_episodes()) == (10, 2)
    with pytest.raises(SchemaError):
        EpisodeReplayBuffer().add(
            SingleAgentEpisode(
                observations=np.array([None, None]), infos=[{}, {}], actions=[0], rewards=[0.0], len_lookback_buffer=0
            )
        )


@BOTH
def test_arguments_that_cannot_be_are_refused(kind: Any) -> None:
    buffer = kind(100)
    buffer.add(episode(9, 0, terminated=True))
    with pytest.raises(TableError, match=r"n_step=\(0, 1\)"):
        buffer.sample(3, n_step=(0, 1))
    with pytest.raises(TableError, match="mean the same"):
        buffer.sample(3, batch_size_B=3)
    with pytest.raises(TableError, match="a dict"):
        buffer.add({"obs": 1})
    if kind is EpisodeReplayBuffer:
        with pytest.raises(TableError, match="sample_episodes=True"):
            buffer.sample(3, sample_episodes=False)
        with pytest.raises(TableError, match="of sequences"):
            buffer.sample(3, n_step=2, batch_length_T=4)


class Counting(gym.Env):  # type: ignore[misc,name-defined]
    """An environment whose observations count, so that a stored episode tells whether it is whole."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.number = self.length = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.length = 3 + (self.length + 5) % 11
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.number += 1
        return np.full(2, self.number, np.float32), 1.0, self.number == self.length, False, {}


def run(config: Any, path: Path, kind: Any, **options: Any) -> Any:
    """Train for some steps, and return the algorithm."""
    algorithm = (
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=4)
        .training(
            replay_buffer_config={"type": kind, "capacity": 500, "beta": 0.4, "path": str(path)},
            train_batch_size_per_learner=32,
            num_steps_sampled_before_learning_starts=40,
            **options,
        )
        .reporting(min_sample_timesteps_per_iteration=64, min_time_s_per_iteration=0)
        .build_algo()
    )
    for _ in range(2):
        result = algorithm.train()
    buffer = algorithm.local_replay_buffer
    assert type(buffer) is kind or kind == f"stepwell.ray.{type(buffer).__name__}"
    assert len(buffer) == result["env_runners"]["num_env_steps_sampled_lifetime"]
    assert result["learners"]["default_policy"]["num_module_steps_trained"] > 0
    return algorithm


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("kind", [PrioritizedEpisodeReplayBuffer, "stepwell.ray.EpisodeReplayBuffer"])
def test_dqn_learns_from_a_ring(kind: Any, tmp_path: Path) -> None:
    from ray.rllib.algorithms.dqn import DQNConfig

    algorithm = run(DQNConfig().environment(Counting), tmp_path / "run.well", kind, n_step=3)
    algorithm.local_replay_buffer.close()
    algorithm.stop()
    store = stepwell.open(tmp_path / "run.well", mode="r")
    assert store.num_episodes > 5
    for each in store:
        # with what came after the last action
        assert each["observation"][:, 0].tolist() == list(range(each.length + 1))
    done = [each for each in store if each.terminated]
    assert len(done) >= store.num_episodes - 2


@pytest.mark.usefixtures("local_ray")
def test_sac_learns_from_a_ring_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    from ray.rllib.algorithms.sac import SACConfig

    config = SACConfig().environment("Pendulum-v1")
    algorithm = run(config, tmp_path / "run.well", EpisodeReplayBuffer)
    buffer = algorithm.local_replay_buffer
    saved = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    other = type(algorithm).from_checkpoint(saved)
    # checkpoints of RLlib's new stack leave the buffer out
    other.local_replay_buffer.set_state(buffer.get_state())
    assert other.local_replay_buffer.store.path == tmp_path / "run-1.well"
    assert len(other.local_replay_buffer) == len(buffer)
    other.train()
    assert len(other.local_replay_buffer) > len(buffer)
    algorithm.stop()
    other.stop()
    store = stepwell.open(tmp_path / "run.well", mode="r")
    assert store.schema is not None
    assert {name: feature.shape for name, feature in store.schema.items()} == {
        "observation": (3,), "action": (1,), "reward": (),
    }  # fmt: skip
