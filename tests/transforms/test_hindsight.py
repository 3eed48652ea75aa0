from collections.abc import Mapping

import numpy as np
import pytest

import stepwell
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.returns import HindsightRelabel

LENGTHS = (6, 4, 9)


def is_near(achieved: np.ndarray, goal: np.ndarray, info: Mapping) -> np.ndarray:
    return np.linalg.norm(achieved - goal, axis=-1) < 0.5


def reward_of(achieved: np.ndarray, goal: np.ndarray, info: Mapping) -> np.ndarray:
    return is_near(achieved, goal, info) - 1.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    """Episodes in which step t has achieved (100 * episode + t, 0), and no goal is ever reached."""
    schema = {
        "achieved": stepwell.Array(2, "float64", final=True),
        "goal": stepwell.Array(2, "float64"),
        "reward": stepwell.Array(),
    }
    store = stepwell.create(tmp_path_factory.mktemp("hindsight") / "s.well", schema)
    with store.writer() as writer:
        for episode, length in enumerate(LENGTHS):
            achieved = np.stack([100.0 * episode + np.arange(length + 1), np.zeros(length + 1)], axis=1)
            goal = np.full((length, 2), -1.0)
            writer.add_episode({"achieved": achieved, "goal": goal, "reward": np.full(length, -1, np.float32)})
    store.refresh()
    return store


def make_fields(at: str, offsets=None) -> dict[str, stepwell.Field]:
    after = 1 if offsets is None else [offset + 1 for offset in offsets]
    return {
        "desired_goal": stepwell.Field("goal", offsets),
        "achieved_goal": stepwell.Field("achieved", after),
        "her_goal": stepwell.Field("achieved", at=at),
        "reward": stepwell.Field("reward", offsets),
        "terminated": stepwell.Field("terminated", offsets),
        "episode": "episode_index",
        "step": "step_index",
    }


@pytest.mark.parametrize("at", ["future", "final", "episode"])
def test_relabelled_windows_have_a_goal_of_their_episode_and_its_reward(store: stepwell.Store, at: str) -> None:
    relabel = HindsightRelabel(probability=0.5, reward=reward_of, success=is_near, output="is_relabelled")
    loader = stepwell.Loader(store, make_fields(at), batch_size=7, order="random", epochs=12, transform=relabel)
    batches = list(loader)
    found = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    chosen = found["is_relabelled"]
    assert chosen.mean() == pytest.approx(0.5, abs=0.12)
    assert (found["desired_goal"][~chosen] == -1).all()
    assert (found["reward"][~chosen] == -1).all()
    step = found["desired_goal"][chosen, 0] - 100 * found["episode"][chosen]
    last = np.array(LENGTHS)[found["episode"][chosen]]
    first = {"future": found["step"][chosen] + 1, "final": last, "episode": 0}[at]
    assert ((first <= step) & (step <= last)).all()
    hit = step == found["step"][chosen] + 1
    assert np.array_equal(found["reward"][chosen], hit - 1.0)
    assert np.array_equal(found["terminated"][chosen], hit)
    assert hit.any()
    assert not hit.all()
    assert found["reward"].dtype == np.float32


def test_all_steps_of_a_window_get_the_same_goal(store: stepwell.Store) -> None:
    relabel = HindsightRelabel(probability=1.0, reward=reward_of)
    (batch,) = stepwell.Loader(store, make_fields("final", [-1, 0, 1]), transform=relabel)
    goals = batch["desired_goal"]
    assert (goals == goals[:, :1]).all()
    assert np.array_equal(goals[:, 0], batch["her_goal"])
    assert np.array_equal(batch["reward"] == 0, (batch["achieved_goal"] == goals).all(-1))


def test_relabelling_does_not_depend_on_the_batch_or_the_threads(store: stepwell.Store) -> None:
    def goals(**options) -> dict[tuple[int, int], tuple[float, ...]]:
        loader = stepwell.Loader(store, make_fields("future"), order="random", transform=HindsightRelabel(), **options)
        return {
            (int(episode), int(step)): tuple(goal)
            for batch in loader
            for episode, step, goal in zip(batch["episode"], batch["step"], batch["desired_goal"], strict=True)
        }

    assert goals(batch_size=64, threads=0) == goals(batch_size=3, threads=2)


def test_functions_see_the_relabelled_windows_only_and_all_their_keys() -> None:
    batch = {
        "desired_goal": np.zeros((6, 2)),
        "achieved_goal": np.arange(12.0).reshape(6, 2),
        "her_goal": np.ones((6, 2)),
        "reward": np.full(6, -5.0),
        "speed": np.arange(6.0),
    }

    def reward(achieved: np.ndarray, goal: np.ndarray, info: Mapping) -> np.ndarray:
        assert (goal == 1).all()
        assert (achieved[:, 0] == 2 * info["speed"]).all()
        return info["speed"]

    draws = Draws.of(np.array([1, 2], np.uint64), np.arange(6))
    found = HindsightRelabel(probability=0.5, reward=reward, output="chosen")(batch, draws)
    assert 0 < found["chosen"].sum() < 6
    assert np.array_equal(found["reward"], np.where(found["chosen"], np.arange(6.0), -5))


def test_without_a_chosen_window_nothing_changes_and_nothing_is_called() -> None:
    batch = {"desired_goal": np.zeros((2, 2)), "her_goal": np.ones((2, 2)), "reward": np.zeros(2)}
    draws = Draws.of(np.array([1, 2], np.uint64), np.arange(2))
    found = HindsightRelabel(probability=0, reward=reward_of)(batch, draws)
    assert not found["desired_goal"].any()


def test_what_does_not_fit_is_refused(store: stepwell.Store) -> None:
    fields = make_fields("final")
    with pytest.raises(WindowError, match="without a window"):
        stepwell.Loader(store, {**fields, "her_goal": stepwell.Field("reward")}, transform=HindsightRelabel())
    with pytest.raises(WindowError, match="wants key 'r'"):
        stepwell.Loader(store, fields, transform=HindsightRelabel(reward=reward_of, reward_key="r"))
    with pytest.raises(WindowError, match="probability=2"):
        HindsightRelabel(probability=2)
    wrong = HindsightRelabel(probability=1, reward=lambda achieved, goal, info: np.zeros(1))
    with pytest.raises(stepwell.LoaderError, match=r"returned shape \(1,\), and \(19,\) is needed"):
        list(stepwell.Loader(store, fields, transform=wrong))


def test_a_reward_that_is_no_function_is_refused() -> None:
    with pytest.raises(WindowError, match=r"reward=3 is a int\. Give a function .* reward_key"):
        HindsightRelabel(reward=3)
