import gymnasium
import numpy as np
import pytest
from counting import SCHEDULES, CountingEnv, action_of, cut, expected, run_episode, stored
from gymnasium import spaces

import stepwell
from stepwell.errors import SchemaError, StepError
from stepwell.recorders import EpisodeRecorder, schema_of
from stepwell.schema import Array


@pytest.fixture
def store(tmp_path):
    with stepwell.create(tmp_path / "counting.well", schema_of(CountingEnv())) as store:
        yield store


def test_episodes_are_stored_with_their_true_final_observation(store):
    with EpisodeRecorder(CountingEnv(), store) as env:
        for episode in range(len(SCHEDULES[0])):
            run_episode(env, 0, episode, seed=episode)
    assert stored(store) == [expected(0, episode, seed=episode) for episode in range(len(SCHEDULES[0]))]


def test_the_wrapper_returns_what_the_environment_returns(store):
    plain, recorded = CountingEnv(), EpisodeRecorder(CountingEnv(), store)
    for env in (plain, recorded):
        observation, info = env.reset()
        assert observation.tolist() == [0, 0, 0] and info == {}
        observation, reward, terminated, truncated, info = env.step(np.array([2, 0], np.float32))
        assert (observation.tolist(), reward, terminated, truncated) == ([0, 0, 1], 3.0, False, False)
        assert info == {"is_success": False, "depth": {"t": 1}}
    recorded.close()


def test_a_reset_in_mid_episode_ends_it_as_neither_and_marks_it(store):
    with EpisodeRecorder(CountingEnv(), store, metadata={"task": "count"}) as env:
        run_episode(env, 0, 0, max_steps=2)
        run_episode(env, 0, 1, options={"level": np.int64(3)})
    assert stored(store) == [
        cut(expected(0, 0), 2, task="count", reset=True),
        expected(0, 1, task="count", options={"level": 3}),
    ]


def test_close_ends_the_running_episode_and_marks_it(store):
    env = EpisodeRecorder(CountingEnv(), store)
    run_episode(env, 0, 0, max_steps=1)
    env.close()
    env.close()
    assert stored(store) == [cut(expected(0, 0), 1, closed=True)]


def test_an_episode_without_an_action_leaves_nothing(store):
    with EpisodeRecorder(CountingEnv(), store) as env:
        env.reset()
        env.reset()
    assert stored(store) == []


def test_a_writer_that_was_given_stays_open(store):
    with store.writer() as writer:
        for _ in range(2):
            with EpisodeRecorder(CountingEnv(), writer) as env:
                run_episode(env, 0, 0)
    assert stored(store) == [expected(0, 0), expected(0, 0)]


def test_infos_become_features_or_metadata(tmp_path):
    schema = schema_of(
        CountingEnv(), infos={"is_success": Array((), "bool"), "depth.t": Array((), "int64")}, reward_dtype="float64"
    )
    with stepwell.create(tmp_path / "infos.well", schema) as store:
        with EpisodeRecorder(CountingEnv(), store, episode_infos=("is_success", "depth", "absent")) as env:
            run_episode(env, 0, 0)
        store.refresh()
        (episode,) = store
        assert np.asarray(episode["info.is_success"]).tolist() == [False, False, True]
        assert np.asarray(episode["info.depth.t"]).tolist() == [1, 2, 3]
        assert np.asarray(episode["reward"]).dtype == np.float64
        assert episode.metadata == {"is_success": True, "depth": {"t": 3}}


def test_render_frames_are_stored_with_the_final_one(tmp_path):
    env = CountingEnv(render_mode="rgb_array")
    with stepwell.create(tmp_path / "render.well", schema_of(env, record_render=True)) as store:
        env = CountingEnv(render_mode="rgb_array")
        with EpisodeRecorder(env, store) as env:
            run_episode(env, 0, 0)
        store.refresh()
        assert np.asarray(store[0]["observation.render"])[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


class NestedEnv(gymnasium.Env):
    observation_space = spaces.Dict(
        pixels=spaces.Box(0, 255, (20, 24, 3), np.uint8),
        state=spaces.Tuple((spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(5))),
        task=spaces.Text(20),
        points=spaces.Sequence(spaces.Box(-9, 9, (2,), np.float32), stack=True),
    )
    action_space = spaces.Dict(move=spaces.MultiDiscrete([3, 3]), push=spaces.MultiBinary(2))

    def _observe(self):
        t = self.t
        points = np.full((t, 2), t, np.float32)
        return {
            "pixels": np.full((20, 24, 3), t, np.uint8),
            "state": (np.full(2, t / 2), t),
            "task": "x" * t,
            "points": points,
        }

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 1, False, self.t == 3, {}


def test_nested_spaces_become_dotted_features(tmp_path):
    schema = schema_of(NestedEnv(), codec="png")
    assert {name: str(feature) for name, feature in schema.items()} == {
        "observation.pixels": "png 20x24x3 uint8",
        "observation.points": "raw ?x2 float32",
        "observation.state.0": "raw 2 float64",
        "observation.state.1": "raw scalar int64",
        "observation.task": "raw ? text",
        "action.move": "raw 2 int64",
        "action.push": "raw 2 int8",
        "reward": "raw scalar float32",
    }
    assert set(schema.final_names) == {name for name in schema if name.startswith("observation")}
    with stepwell.create(tmp_path / "nested.well", schema) as store:
        with EpisodeRecorder(NestedEnv(), store) as env:
            env.reset()
            for _ in range(3):
                env.step({"move": np.array([1, 2]), "push": np.array([0, 1], np.int8)})
        store.refresh()
        (episode,) = store
        assert np.asarray(episode["observation.pixels"])[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        assert list(episode["observation.task"]) == ["", "x", "xx", "xxx"]
        assert [points.tolist() for points in episode["observation.points"]] == [[[t, t]] * t for t in range(4)]
        assert np.asarray(episode["observation.state.1"]).tolist() == [0, 1, 2, 3]
        assert np.asarray(episode["action.move"]).tolist() == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Graph(spaces.Discrete(3), None), "Graph"),
        (spaces.Sequence(spaces.Text(3)), "sequences of arrays"),
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))}), "observation.a.b"),
    ],
)
def test_a_space_without_a_feature_is_refused_by_name(space, message):
    env = CountingEnv()
    env.observation_space = space
    with pytest.raises(SchemaError, match=message):
        schema_of(env)


def test_a_store_with_other_features_is_refused_before_the_first_step(tmp_path):
    with stepwell.create(
        tmp_path / "other.well", stepwell.Schema({"observation": Array(3, "int32"), "pose": Array(2)})
    ) as store:
        with pytest.raises(SchemaError, match=r"pose.*action"):
            EpisodeRecorder(CountingEnv(), store)
        assert store.refresh() is False


def test_metadata_names_that_are_taken_are_refused(store):
    with pytest.raises(SchemaError, match="seed"):
        EpisodeRecorder(CountingEnv(), store, episode_infos=("seed",))


class WrongOnceEnv(CountingEnv):
    """Returns a fractional observation, which int32 cannot hold, at one step."""

    wrong_at = (1, 2)

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation + 0.5 if (self.episode, self.t) == self.wrong_at else observation, *rest)


def test_a_refused_value_drops_the_whole_episode_and_names_the_feature(store):
    with EpisodeRecorder(WrongOnceEnv(0), store) as env:
        WrongOnceEnv.wrong_at = (2, 3)
        run_episode(env, 0, 0)
        run_episode(env, 0, 1)
        with pytest.raises(StepError, match="'observation'"):
            run_episode(env, 0, 2)
        run_episode(env, 0, 3)
    assert stored(store) == [expected(0, 0), expected(0, 1), expected(0, 3)]


def test_float64_actions_are_stored_in_the_dtype_of_the_space(store):
    with EpisodeRecorder(CountingEnv(), store) as env:
        env.reset()
        env.step(np.array([0.1, 0.2]))
    (episode,) = stored(store)
    assert episode["action"] == [np.array([0.1, 0.2], np.float32).tolist()]


def test_an_info_that_a_step_lacks_is_named(tmp_path):
    schema = schema_of(CountingEnv(), infos={"nothing": Array(())})
    with stepwell.create(tmp_path / "lacks.well", schema) as store, EpisodeRecorder(CountingEnv(), store) as env:
        env.reset()
        with pytest.raises(StepError, match=r"info\.nothing"):
            env.step(np.zeros(2, np.float32))


def test_an_environment_that_raises_ends_its_episode_where_it_was(store):
    class FailingEnv(CountingEnv):
        def step(self, action):
            observation, *rest = super().step(action)
            if (self.episode, self.t) == (2, 3):
                raise KeyboardInterrupt
            return observation, *rest

    with EpisodeRecorder(FailingEnv(), store) as env:
        run_episode(env, 0, 0)
        run_episode(env, 0, 1)
        with pytest.raises(KeyboardInterrupt):
            run_episode(env, 0, 2)
        env.step(action_of(0, 2, 3))
        run_episode(env, 0, 3)
    assert stored(store) == [expected(0, 0), expected(0, 1), cut(expected(0, 2), 2, failed=True), expected(0, 3)]


def test_an_info_that_its_feature_cannot_hold_is_refused(tmp_path):
    schema = schema_of(CountingEnv(), infos={"level": Array((), "int64")})
    env = CountingEnv()
    plain_step = env.step
    env.step = lambda action: (*plain_step(action)[:4], {"level": 0.5})
    with stepwell.create(tmp_path / "level.well", schema) as store, EpisodeRecorder(env, store) as env:
        env.reset()
        with pytest.raises(StepError, match=r"info\.level.*float64 value does not fit dtype int64"):
            env.step(np.zeros(2, np.float32))


def test_a_store_without_a_schema_gets_it_from_the_first_step(tmp_path):
    with stepwell.create(tmp_path / "bare.well") as store:
        with EpisodeRecorder(CountingEnv(), store, infos=("is_success",)) as env:
            run_episode(env, 0, 0)
        store.refresh()
        assert list(store.schema) == ["observation", "action", "reward", "info.is_success"]
        assert np.asarray(store[0]["observation"]).tolist() == expected(0, 0)["observation"]
        assert np.asarray(store[0]["info.is_success"]).tolist() == [False, False, True]
