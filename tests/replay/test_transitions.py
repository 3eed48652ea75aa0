"""Learning targets against a slow model in plain Python, over episodes of every kind of end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Field, Loader
from stepwell.errors import WindowError
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.tables import Table
from stepwell.replay.transitions import sequence_fields, transition_fields
from stepwell.transforms import HindsightRelabel

GAMMA = 0.9
SCHEMA = {"observation": Array(2, final=True), "action": Array(), "reward": Array()}
ENDS = ("terminated", "truncated", "neither", "truncated without a final row", "terminated without a final row")


@dataclass
class Episode:
    """An episode of the model: observation t of episode e is [e, t], its reward 10 e + t + 1."""

    number: int
    length: int
    end: str

    @property
    def has_final(self) -> bool:
        return "without" not in self.end

    @property
    def num_observations(self) -> int:
        return self.length + self.has_final

    def observation(self, step: int) -> list[int]:
        return [self.number, min(max(step, 0), self.num_observations - 1)]

    def reward(self, step: int) -> float:
        return 10.0 * self.number + step + 1

    def terminates_at(self, step: int) -> bool:
        return self.end.startswith("terminated") and step == self.length - 1


def expected_transition(episode: Episode, anchor: int, n_step: int, stack: int) -> dict[str, Any]:
    total, length, terminated = 0.0, 0, False
    for step in range(anchor, min(anchor + n_step, episode.length)):
        terminated = episode.terminates_at(step)
        if not terminated and step + 1 >= episode.num_observations:
            break
        total += GAMMA**length * episode.reward(step)
        length += 1
    is_valid = length > 0
    if not is_valid:
        total, length = episode.reward(anchor), 1

    def stacked(step: int) -> Any:
        frames = [episode.observation(step + offset) for offset in range(1 - stack, 1)]
        return frames if stack > 1 else frames[0]

    return {
        "observation": stacked(anchor),
        "next_observation": None if terminated else stacked(anchor + length),
        "action": episode.number + anchor / 100,
        "reward": total,
        "discount": 0.0 if terminated else GAMMA**length,
        "terminated": terminated,
        "is_valid": is_valid,
    }


def record(path: Path, episodes: list[Episode]) -> stepwell.Store:
    store = stepwell.create(path, SCHEMA)
    with store.writer() as writer:
        for episode in episodes:
            for step in range(episode.length):
                writer.append(
                    observation=np.array([episode.number, step], np.float32),
                    action=episode.number + step / 100,
                    reward=episode.reward(step),
                )
            final = {"observation": np.array([episode.number, episode.length], np.float32)}
            writer.end_episode(
                terminated=episode.end.startswith("terminated"),
                truncated=episode.end.startswith("truncated"),
                final=final if episode.has_final else None,
            )
    store.refresh()
    return store


episode_lists = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(ENDS)), min_size=1, max_size=5).map(
    lambda each: [Episode(number, *episode) for number, episode in enumerate(each)]
)
few = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@few
@given(episodes=episode_lists, n_step=st.integers(1, 5), stack=st.integers(1, 4))
def test_transitions_are_those_of_a_slow_model_at_every_step_of_every_kind_of_episode(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode], n_step: int, stack: int
) -> None:
    store = record(tmp_path_factory.mktemp("store") / "s.well", episodes)
    fields, transform = transition_fields(n_step=n_step, discount=GAMMA, stack=stack)
    loader = Loader(store, fields, batch_size=1000, transform=transform)
    (batch,) = loader
    wanted = [expected_transition(e, anchor, n_step, stack) for e in episodes for anchor in range(e.length)]
    assert set(batch) == {*wanted[0], *(["is_whole"] if stack > 1 else [])}
    # nothing was evicted: what is repeated before the beginning never was
    assert stack == 1 or batch["is_whole"].all()
    for row, expected in enumerate(wanted):
        for key, value in expected.items():
            if value is not None:
                np.testing.assert_allclose(batch[key][row], value, rtol=1e-6, err_msg=f"row {row}, {key}")


@few
@given(episodes=episode_lists, burn_in=st.integers(0, 4), length=st.integers(1, 5))
def test_sequences_are_those_of_a_slow_model_at_every_step_of_every_kind_of_episode(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode], burn_in: int, length: int
) -> None:
    store = record(tmp_path_factory.mktemp("store") / "s.well", episodes)
    fields, transform = sequence_fields(burn_in, length, discount=GAMMA)
    (batch,) = Loader(store, fields, batch_size=1000, transform=transform)
    row = 0
    for episode in episodes:
        for anchor in range(episode.length):
            begin = max(anchor - burn_in, 0)
            for column, step in enumerate(range(anchor - burn_in, anchor + length)):
                is_real = 0 <= step < episode.length
                terminated = is_real and episode.terminates_at(step)
                is_known = terminated or step + 1 < episode.num_observations
                assert batch["mask"][row, column] == (is_real and step >= anchor and is_known)
                assert batch["is_first"][row, column] == (step == begin)
                assert batch["terminated"][row, column] == terminated
                if is_real:
                    assert batch["reward"][row, column] == episode.reward(step)
                    assert batch["discount"][row, column] == pytest.approx(0 if terminated else GAMMA)
                    assert batch["observation"][row, column].tolist() == episode.observation(step)
                    if is_known and not terminated:
                        assert batch["observation"][row, column + 1].tolist() == episode.observation(step + 1)
            row += 1
    assert row == len(batch["mask"])


def test_observation_and_next_observation_are_views_of_one_window(tmp_path: Path) -> None:
    store = record(tmp_path / "s.well", [Episode(0, 5, "truncated")])
    for stack in (1, 3):
        fields, transform = transition_fields(stack=stack)
        (batch,) = Loader(store, fields, transform=transform)
        assert np.shares_memory(batch["observation"], batch["next_observation"]) == (stack > 1)
        assert batch["observation"].base is batch["next_observation"].base


def test_several_observations_each_have_a_next_one(tmp_path: Path) -> None:
    store = record(tmp_path / "s.well", [Episode(0, 4, "truncated")])
    fields, transform = transition_fields({"a": "observation", "b": "observation"}, action={"u": "action"})
    (batch,) = Loader(store, fields, transform=transform)
    assert {"a", "next_a", "b", "next_b", "u"} <= set(batch)
    assert np.array_equal(batch["next_a"], batch["next_b"])


def test_a_step_whose_successor_is_unknown_is_not_valid_and_keeps_its_reward(tmp_path: Path) -> None:
    store = record(tmp_path / "s.well", [Episode(0, 3, "truncated without a final row")])
    fields, transform = transition_fields(discount=GAMMA)
    (batch,) = Loader(store, fields, transform=transform)
    assert batch["is_valid"].tolist() == [True, True, False]
    assert batch["reward"].tolist() == [1, 2, 3]
    assert batch["discount"].tolist() == pytest.approx([GAMMA] * 3)


def test_hindsight_relabels_before_returns_are_summed_up(tmp_path: Path) -> None:
    schema = {
        "observation": Array(1, final=True), "achieved_goal": Array(1, final=True), "desired_goal": Array(1),
        "action": Array(), "reward": Array(),
    }  # fmt: skip
    store = stepwell.create(tmp_path / "her.well", schema)
    with store.writer() as writer:
        states = np.arange(7, dtype=np.float32)[:, None]
        writer.add_episode(
            {
                "observation": states, "achieved_goal": states, "desired_goal": np.full((6, 1), 99, np.float32),
                "action": np.zeros(6, np.float32), "reward": np.full(6, -1, np.float32),
            },
            truncated=True,
        )  # fmt: skip
    store.refresh()

    def reached(achieved: Any, goal: Any, info: Any) -> Any:
        return achieved[..., 0] == goal[..., 0]

    targets = transition_fields(n_step=2, discount=GAMMA)
    fields = {
        **targets.fields,
        "achieved_goal": Field("achieved_goal", range(1, 3)),
        "desired_goal": Field("desired_goal", range(2)),
        "her_goal": Field("achieved_goal", at="final"),
    }
    relabel = HindsightRelabel(
        reward=lambda *each: reached(*each).astype(np.float32) - 1, success=reached, probability=1.0
    )
    (batch,) = Loader(store, fields, transform=[relabel, targets.transform])
    # the goal is state 6, reached by the action at step 5: one step earlier, by the second of two
    assert batch["reward"].tolist() == pytest.approx([-1 - GAMMA] * 4 + [-1, 0])
    assert batch["terminated"].tolist() == [False] * 4 + [True, True]
    assert batch["discount"].tolist() == pytest.approx([GAMMA**2] * 4 + [0, 0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n_step": 0}, "n_step=0"),
        ({"stack": 1.5}, "stack=1.5"),
        ({"discount": 1.1}, "discount=1.1"),
        ({"observation": ()}, "names no feature"),
        ({"observation": "action"}, "not distinct"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(WindowError, match=said):
        transition_fields(**arguments)


def test_a_sequence_of_nothing_is_refused() -> None:
    with pytest.raises(WindowError, match="length=0"):
        sequence_fields(2, 0)


@pytest.mark.parametrize("is_vector", [False, True])
def test_a_transition_is_drawn_as_soon_as_its_next_observation_is_known(tmp_path: Path, is_vector: bool) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=1_000)
    targets = transition_fields()
    table = Table(store, sampler="lifo", pattern=targets.pattern)
    newest = ReplayLoader(table, targets.fields, batch_size=1, transform=targets.transform)
    writer: Any = store.vector_writer(1) if is_vector else store.writer()
    for t in range(12):
        step = {"observation": np.full((1, 2), t, np.float32), "action": np.zeros(1, "f4"), "reward": np.zeros(1, "f4")}
        has_ended, final = t % 4 == 3, {"observation": np.full((1, 2), t + 0.5, np.float32)}
        if is_vector:
            writer.append(step, terminated=np.array([False]), truncated=np.array([has_ended]), final=final)
        else:
            writer.append({name: value[0] for name, value in step.items()})
            if has_ended:
                writer.end_episode(truncated=True, final={"observation": final["observation"][0]})
        if t == 0:
            assert not table.can_sample()
            continue
        batch = next(newest)
        expected = (t, t + 0.5) if has_ended else (t - 1, t) if t % 4 else (t - 1, t - 0.5)
        assert (batch["observation"][0, 0], batch["next_observation"][0, 0]) == expected
        assert batch["is_valid"].all()
    writer.close()


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_numbers_are_columns_where_they_are_to_be(tmp_path: Path, n_step: int, prefetch: int, to: Any) -> None:
    if to == "torch":
        pytest.importorskip("torch")
    schema = {
        "pixels": Array((2, 3), "uint8", final=True),
        "choice": Array((), "uint8"),
        "speed": Array((), "float64"),
        "arms": Array(2, "int16"),
        "reward": Array(),
    }
    store = stepwell.create(tmp_path / "a.well", schema, capacity=1_000)
    with store.writer() as writer:
        for t in range(60):
            writer.append(
                pixels=np.full((2, 3), t, np.uint8),
                choice=t % 4,
                speed=0.5 * t,
                arms=np.array([t, -t], np.int16),
                reward=t,
            )
            if t % 7 == 6:
                writer.end_episode(terminated=True, final={"pixels": np.full((2, 3), t + 1, np.uint8)})
    found = {}
    for as_columns in (False, True):
        targets = transition_fields(
            "pixels", ["choice", "speed", "arms"], n_step=n_step, stack=2, as_columns=as_columns
        )
        table = Table(store, sampler="prioritized", pattern=targets.pattern)
        loader = ReplayLoader(
            table, targets.fields, batch_size=16, transform=targets.transform, prefetch=prefetch, to=to
        )
        found[as_columns] = [next(loader) for _ in range(6)]
        loader.update_priorities(found[as_columns][0], np.ones(16))
    for plain, columns in zip(found[False], found[True], strict=True):
        for key in plain:
            expected, values = np.asarray(plain[key]), np.asarray(columns[key])
            is_number = expected.ndim == 1 and (not key.startswith("table.") or key == "table.weight")
            np.testing.assert_array_equal(values, expected[:, None] if is_number else expected)
            is_index = key in {"choice", "arms"}
            assert values.dtype == (np.int64 if is_index else expected.dtype)
        assert set(columns) - set(plain) == {"done"}
        done = np.asarray(columns["done"])
        assert done.dtype == np.float32 and (done == columns["terminated"]).all() and done.shape == (16, 1)
    assert np.asarray(found[True][0]["terminated"]).any()
