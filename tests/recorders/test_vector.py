import functools
from types import SimpleNamespace

import numpy as np
import pytest
from counting import SCHEDULES, CountingEnv, action_of, cut, expected, run_episode, stored
from gymnasium import Env, spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

import stepwell
from stepwell.errors import SchemaError, StepError
from stepwell.recorders import EpisodeRecorder, VectorRecorder, schema_of
from stepwell.schema import Array

MODES = ("NextStep", "SameStep", "Disabled")
NUM_ENVS = len(SCHEDULES)


def make_envs(mode, kind=SyncVectorEnv, **options):
    # SAME_STEP keeps the final observation and the reset one apart only when the environment does not reuse its array
    return kind(
        [functools.partial(CountingEnv, i, reuse=False) for i in range(NUM_ENVS)], autoreset_mode=mode, **options
    )


# a ring has one segment for all environments, other stores have a writer for each
@pytest.fixture(params=[None, 10_000], ids=["plain", "ring"])
def store(request, tmp_path):
    with stepwell.create(tmp_path / "vector.well", schema_of(CountingEnv()), capacity=request.param) as store:
        yield store


def run_vector(envs, num_steps, *, seed=None):
    """Step all environments; the actions follow each environment's own episode and step, read from its observation."""
    mode = envs.metadata["autoreset_mode"].value
    observations, _ = envs.reset(seed=seed)
    done = np.zeros(NUM_ENVS, bool)
    for _ in range(num_steps):
        if mode == "Disabled" and done.any():
            observations, _ = envs.reset(options={"reset_mask": done})
        actions = np.stack([action_of(i, observations[i, 1], observations[i, 2]) for i in range(NUM_ENVS)])
        observations, _, terminations, truncations, _ = envs.step(actions)
        done = terminations | truncations


def single_loop(path, num_episodes, **metadata):
    """The episodes that a plain loop over each environment stores."""
    with stepwell.create(path, schema_of(CountingEnv())) as store:
        for i in range(NUM_ENVS):
            with EpisodeRecorder(CountingEnv(i), store) as env:
                for episode in range(num_episodes[i]):
                    run_episode(env, i, episode, **({"seed": metadata["seed"] + i} if episode == 0 else {}))
        return stored(store)


@pytest.mark.parametrize("writers", [None, 1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_vector_environment_stores_what_single_loops_store(store, tmp_path, mode, writers):
    with VectorRecorder(make_envs(mode), store, writers=writers) as envs:
        run_vector(envs, 40, seed=7)
    found = stored(store)
    whole = [episode for episode in found if "closed" not in episode["metadata"]]
    num_episodes = [sum(episode["observation"][0][0] == i for episode in whole) for i in range(NUM_ENVS)]
    assert min(num_episodes) > 2 * len(SCHEDULES[0])
    assert whole == single_loop(tmp_path / "single.well", num_episodes, seed=7)


@pytest.mark.parametrize("mode", MODES)
def test_running_episodes_are_stored_at_close_and_marked(store, mode):
    with VectorRecorder(make_envs(mode), store) as envs:
        run_vector(envs, 2)
    assert cut(expected(0, 0), 2, closed=True) in stored(store)
    assert cut(expected(1, 0), 2, closed=True) in stored(store)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_asynchronous_environments_store_the_same(store, tmp_path, mode, shared_memory):
    with VectorRecorder(make_envs(mode, AsyncVectorEnv, shared_memory=shared_memory, context="fork"), store) as envs:
        run_vector(envs, 14, seed=7)
    whole = [episode for episode in stored(store) if "closed" not in episode["metadata"]]
    num_episodes = [sum(episode["observation"][0][0] == i for episode in whole) for i in range(NUM_ENVS)]
    assert whole == single_loop(tmp_path / "single.well", num_episodes, seed=7)


def test_environments_that_reuse_their_batch_are_recorded_rightly(store):
    with VectorRecorder(make_envs("NextStep", copy=False), store) as envs:
        run_vector(envs, 30)
    assert all(
        {**episode, "metadata": {}} == expected(*episode["observation"][0][:2])
        for episode in stored(store)
        if "closed" not in episode["metadata"]
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_all_ends_the_running_episodes(store, mode):
    with VectorRecorder(make_envs(mode), store) as envs:
        run_vector(envs, 2)
        run_vector(envs, 2, seed=[4, None, 5])
    episodes = [episode for episode in stored(store) if episode["observation"][0][0] == 1]
    assert episodes == [cut(expected(1, 0), 2, reset=True), cut(expected(1, 1), 2, closed=True)]


def test_a_masked_reset_ends_only_the_chosen(store):
    with VectorRecorder(make_envs("Disabled"), store) as envs:
        run_vector(envs, 1)
        envs.reset(options={"reset_mask": np.array([True, False, True]), "level": 2})
        run_actions = np.zeros((NUM_ENVS, 2), np.float32)
        envs.step(run_actions)
    by_env = {i: [e for e in stored(store) if e["observation"][0][0] == i] for i in range(NUM_ENVS)}
    assert [(e["length"], e["metadata"]) for e in by_env[0]] == [
        (1, {"reset": True}),
        (1, {"options": {"level": 2}}),
    ]
    assert [(e["length"], e["metadata"]) for e in by_env[1]] == [(2, {"closed": True})]


@pytest.mark.parametrize("capacity", [None, 10_000])
@pytest.mark.parametrize("mode", MODES)
def test_infos_are_those_of_the_environment_and_the_episode(tmp_path, mode, capacity):
    schema = schema_of(make_envs(mode), infos={"depth.t": Array((), "int64")})
    with stepwell.create(tmp_path / "infos.well", schema, capacity=capacity) as store:
        with VectorRecorder(make_envs(mode), store, episode_infos=("is_success", "depth.t")) as envs:
            run_vector(envs, 20)
        store.refresh()
        for episode in store:
            assert np.asarray(episode["info.depth.t"]).tolist() == list(range(1, episode.length + 1))
            assert episode.metadata["depth.t"] == episode.length
            assert episode.metadata["is_success"] == bool(episode.terminated)


def test_a_vector_environment_that_does_not_say_its_mode_is_refused(store):
    envs = make_envs("NextStep")
    del envs.metadata["autoreset_mode"]
    with pytest.raises(SchemaError, match="autoreset"):
        VectorRecorder(envs, store)
    VectorRecorder(envs, store, autoreset_mode="NextStep").close()


@pytest.mark.parametrize("writers", [0, NUM_ENVS + 1])
def test_a_number_of_writers_that_cannot_be_is_refused(store, writers):
    with pytest.raises(SchemaError, match="writers"):
        VectorRecorder(make_envs("NextStep"), store, writers=writers)


def test_same_step_without_the_final_observation_is_refused(store, monkeypatch):
    envs = make_envs("SameStep")
    plain_step = envs.step
    monkeypatch.setattr(envs, "step", lambda actions: (*plain_step(actions)[:4], {}))
    recorder = VectorRecorder(envs, store)
    recorder.reset()
    with pytest.raises(StepError, match=r"environment 2 .*final_obs"):
        recorder.step(np.zeros((NUM_ENVS, 2), np.float32))
    recorder.close()
    assert [(e["observation"][0][0], e["length"]) for e in stored(store)] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_value_of_one_environment_leaves_the_others_whole(store, mode):
    envs = make_envs(mode)
    envs.envs[0].step = SimpleNamespace(plain=envs.envs[0].step, calls=0)
    state = envs.envs[0].step

    def step(action):
        state.calls += 1
        observation, reward, *rest = state.plain(action)
        return observation, np.nan if state.calls == 2 else reward, *rest

    envs.envs[0].step = step
    recorder = VectorRecorder(envs, store)
    original = recorder._columns.outcome

    def outcome(reward, find):
        if np.isnan(reward):
            raise StepError("feature 'reward': refused by the test")
        return original(reward, find)

    def outcomes(rewards, mask, find):
        if np.isnan(rewards).any():
            raise StepError("one of them is refused")
        return all_at_once(rewards, mask, find)

    all_at_once = recorder._columns.outcomes
    recorder._columns.outcome, recorder._columns.outcomes = outcome, outcomes
    with pytest.raises(StepError, match="refused by the test"):
        run_vector(recorder, 40)
    # the loop that the caller had to leave goes on from a reset
    run_vector(recorder, 20)
    recorder.close()
    for episode in stored(store):
        number, index, first = episode["observation"][0]
        assert first == 0
        assert [o[2] for o in episode["observation"]] == list(range(episode["length"] + 1))
        assert (number, index) != (0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_environments_that_raise_end_their_episodes_where_they_were(store, mode):
    envs = make_envs(mode)
    plain_step = envs.step

    def step(actions):
        result = plain_step(actions)
        if envs.envs[1].episode == 1 and envs.envs[1].t == 2:
            raise KeyboardInterrupt
        return result

    envs.step = step
    recorder = VectorRecorder(envs, store)
    with pytest.raises(KeyboardInterrupt):
        run_vector(recorder, 40)
    run_vector(recorder, 12)
    recorder.close()
    episodes = stored(store)
    failed = [episode for episode in episodes if episode["metadata"] == {"failed": True}]
    assert cut(expected(1, 1), 1, failed=True) in failed
    for episode in episodes:
        number, index, _ = episode["observation"][0]
        assert episode == {**cut(expected(number, index), episode["length"]), **ends_of(episode)}


def ends_of(episode):
    return {name: episode[name] for name in ("terminated", "truncated", "metadata")}


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_reset_while_an_autoreset_is_due_stores_no_reset_row(store, shared_memory):
    with VectorRecorder(
        make_envs("NextStep", AsyncVectorEnv, shared_memory=shared_memory, context="fork"), store
    ) as envs:
        run_vector(envs, 3)  # environment 0 has just ended
        run_vector(envs, 12)
    for episode in stored(store):
        number, index, _ = episode["observation"][0]
        assert episode == {**cut(expected(number, index), episode["length"]), **ends_of(episode)}


class RaggedEnv(Env):
    """Observations of which some vary in size; episodes of 3 steps."""

    observation_space = spaces.Dict(
        {
            "text": spaces.Text(20),
            "points": spaces.Sequence(spaces.Box(0, 9, (2,), np.float32)),
            "x": spaces.Discrete(9),
        }
    )
    action_space = spaces.Text(20)

    def __init__(self, number):
        self.number = number

    def observe(self):
        points = tuple(np.full(2, self.t, np.float32) for _ in range(self.t))
        return {"text": f"{self.number}-{self.t}", "points": points, "x": self.t}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {"said": "reset"}

    def step(self, action):
        self.t += 1
        return self.observe(), 1.0, self.t == 3, False, {"said": f"{action} {self.t}"}


@pytest.mark.parametrize("writers", [None, 1])
@pytest.mark.parametrize("mode", MODES)
def test_values_that_vary_in_size_are_recorded(tmp_path, mode, writers):
    schema = schema_of(RaggedEnv(0), infos={"said": stepwell.Text()})
    store = stepwell.create(tmp_path / "ragged.well", schema)
    envs = SyncVectorEnv([functools.partial(RaggedEnv, i) for i in range(2)], autoreset_mode=mode)
    with VectorRecorder(envs, store, writers=writers) as envs:
        envs.reset()
        for _ in range(8):
            result = envs.step(("go", "stop"))
            if mode == "Disabled" and result[2].any():
                envs.reset()
    whole = [episode for episode in store if episode.terminated]
    assert len(whole) >= 4
    for episode in whole:
        number = episode["observation.text"][0][0]
        assert episode["observation.text"] == [f"{number}-{t}" for t in range(4)]
        assert [len(points) for points in episode["observation.points"]] == [0, 1, 2, 3]
        assert episode["action"] == [("go", "stop")[int(number)]] * 3
        assert episode["info.said"] == [f"{episode['action'][0]} {t}" for t in range(1, 4)]


@pytest.mark.parametrize(
    "wrong", [{"text": "\ud800"}, {"text": 3}, {"points": (np.zeros(3),)}, {"points": ([1], [2, 3])}]
)
def test_a_value_of_a_space_that_is_refused_leaves_the_others_whole(tmp_path, wrong, monkeypatch):
    store = stepwell.create(tmp_path / "ragged.well", schema_of(RaggedEnv(0), infos={"said": stepwell.Text()}))
    envs = SyncVectorEnv([functools.partial(RaggedEnv, i) for i in range(2)], autoreset_mode="NextStep")
    recorder = VectorRecorder(envs, store)
    recorder.reset()
    recorder.step(("go", "go"))
    observe = envs.envs[0].observe
    monkeypatch.setattr(envs.envs[0], "observe", lambda: {**observe(), **wrong})
    with pytest.raises((StepError, ValueError)):
        recorder.step(("go", "go"))
    monkeypatch.undo()
    for _ in range(6):
        recorder.step(("go", "go"))
    recorder.close()
    found = sorted(episode["observation.text"] for episode in store if episode.terminated)
    assert found == [["0-0", "0-1", "0-2", "0-3"], *[["1-0", "1-1", "1-2", "1-3"]] * 2]


class WalkEnvs(VectorEnv):
    """A simulator of 3 environments whose values lie where ``place`` puts them; it changes them in place."""

    def __init__(self, place):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.place, self.num_envs = place, 3
        self.single_observation_space, self.single_action_space = spaces.Box(0, 99, (2,)), spaces.Discrete(9)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)

    def reset(self, *, seed=None, options=None):
        self.t, self.due = np.zeros(3), np.zeros(3, bool)
        return self.place(self.observe()), {}

    def observe(self):
        return np.stack([self.t, np.arange(3)], axis=1).astype(np.float32)

    def step(self, actions):
        self.t = np.where(self.due, 0, self.t + 1)
        done, infos = self.t == np.arange(3, 6), {"speed": self.place(self.t * 2), "_speed": np.ones(3, bool)}
        rewards = np.asarray(actions.tolist(), np.float32)
        actions[...] = 8
        self.due = done
        return self.place(self.observe()), self.place(rewards), self.place(done), self.place(done & False), infos


def test_a_simulator_on_a_device_is_recorded_with_one_transfer_a_step(tmp_path):
    pytest.importorskip("torch")
    from tests.store.test_device_arrays import DeviceTensor, there

    found = []
    for name, place in (("here", np.array), ("there", there)):
        DeviceTensor.transfers.clear()
        envs = WalkEnvs(place)
        store = stepwell.create(tmp_path / f"{name}.well", schema_of(envs), capacity=1000)
        with VectorRecorder(envs, store, episode_infos=("speed",)) as recorder:
            observations, _ = recorder.reset(seed=1)
            for t in range(20):
                observations, *_ = recorder.step(place(np.full(3, t % 7)))
            assert type(observations) is type(place([0]))
        assert len(DeviceTensor.transfers) == (21 if name == "there" else 0)
        found.append(stored(store))
        assert all(max(episode["action"]) < 7 for episode in found[-1])
    assert found[0] == found[1]
    assert {episode["metadata"].get("speed") for episode in found[0] if episode["terminated"]} == {6.0, 8.0, 10.0}
