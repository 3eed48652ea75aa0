"""Tables over a ring that n environments record into at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Store
from stepwell.replay import Fifo, Pattern, ReplayLoader, Table
from stepwell.replay.episode_records import IS_GONE
from stepwell.replay.history import History

SCHEMA = {"observation": Array((), "int64", final=True), "action": Array((), "int64")}


def steps_of(history: History) -> list[int]:
    """Return the ids of all steps that are there, ascending."""
    records, base = history.records, history.base
    found: list[int] = []
    for number in range(base, history.num_seen):
        _, _, lo, hi_step, _, _, flags, _ = records[number - base].tolist()
        if not flags & IS_GONE:
            found += history.step_ids(np.full(hi_step - lo, number), np.arange(lo, hi_step)).tolist()
    return sorted(found)


def ids_of(store: Store) -> list[int]:
    return sorted(episode.first_step_id + step for episode in store for step in range(episode.length))


STEPS = st.integers(1, 5).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.lists(st.booleans(), min_size=n, max_size=n),
            st.lists(st.integers(0, 6), min_size=n, max_size=n),
            st.integers(0, 20),
        ),
        min_size=1,
        max_size=40,
    )
)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.sampled_from([20, 60, 10_000]))
def test_a_history_follows_all_lanes(steps: list[Any], capacity: int) -> None:
    num_envs = len(steps[0][0])
    store = stepwell.create(":memory:", SCHEMA, capacity=capacity)
    reader = stepwell.open(store.path, mode="r")
    history, late = History(store), None
    seen: set[int] = set()
    came: dict[int, int] = {}
    with store.vector_writer(num_envs) as writer:
        for number, (mask, ends, kind) in enumerate(steps):
            numbers = np.arange(number * num_envs, (number + 1) * num_envs)
            if kind == 0:
                writer.discard_episodes(np.array(mask))
            elif kind == 1:
                writer.end_episodes(np.array(mask), final={"observation": -numbers})
            else:
                options = {"mask": np.array(mask)} if kind % 2 else {}
                done = np.array(ends) == 0
                writer.append(
                    observation=numbers, action=numbers, truncated=done, final={"observation": -numbers}, **options
                )
            if kind % 4 == 3:
                # several steps at once
                continue
            advance = history.advance()
            reader.refresh()
            assert steps_of(history) == ids_of(reader)
            for episode, first, stop, _ in advance.runs.tolist():
                # each row comes once
                assert first >= came.get(episode, 0)
                came[episode] = stop
            seen.update(advance.runs[:, 0].tolist())
            if number == len(steps) // 2:
                late = History(store)
    for each in (history, late):
        if each is not None:
            each.advance()
            reader.refresh()
            assert steps_of(each) == ids_of(reader)
            assert not (each.records[: each.num_seen - each.base, 6] & 4).any()
            each.close()


@pytest.mark.parametrize("capacity", [300, 5000])
def test_batches_are_those_of_the_environments(capacity: int) -> None:
    num_envs = 7
    store = stepwell.create(":memory:", SCHEMA, capacity=capacity)
    table = Table(store, remover=Fifo(), pattern=Pattern(length=1, ahead=1, ends="keep"))
    fields = {"now": "observation", "next": stepwell.Field("observation", offsets=[1]), "action": "action"}
    loader = ReplayLoader(table, fields, batch_size=64, timeout=5)
    rng = np.random.default_rng(0)
    time = np.zeros(num_envs, np.int64)
    episode = np.arange(num_envs)
    next_episode = num_envs
    with store.vector_writer(num_envs) as writer:
        for step in range(400):
            done = rng.random(num_envs) < 0.05
            values = episode * 10_000 + time
            mask = rng.random(num_envs) < 0.8
            writer.append(observation=values, action=values, terminated=done, mask=mask,
                          final={"observation": values + 1})  # fmt: skip
            time += mask
            for env in np.flatnonzero(done & mask).tolist():
                time[env], episode[env], next_episode = 0, next_episode, next_episode + 1
            if step > 20 and step % 5 == 0:
                batch = next(loader)
                assert (batch["now"] == batch["action"]).all()
                assert (batch["next"].reshape(-1) == batch["now"] + 1).all()
    assert table.size > 0.8 * min(capacity, 400 * num_envs * 0.8) - num_envs * 3


def test_items_of_cut_episodes_reach_over_the_cut() -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=100)
    table = Table(store, pattern=Pattern(length=1, ahead=1))
    fields = {"now": "observation", "next": stepwell.Field("observation", offsets=[1])}
    loader = ReplayLoader(table, fields, batch_size=200, timeout=5)
    with store.vector_writer(2) as writer:
        for t in range(400):
            writer.append(observation=np.full(2, t), action=np.full(2, t))
            assert table.follow() <= 4
            if t > 60:
                batch = next(loader)
                assert (batch["next"].reshape(-1) == batch["now"] + 1).all()
    assert table.size > 90


def test_a_checkpoint_in_mid_episode_goes_on(tmp_path: Any) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=200)
    table = Table(store, pattern=Pattern(length=1, ahead=1))
    with store.vector_writer(3) as writer:
        for t in range(30):
            writer.append(observation=np.full(3, t), action=np.full(3, t), truncated=np.arange(3) == t % 5)
            table.follow()
        state = table.save_state(tmp_path / "table.npz")
        before = table.size
        for t in range(30, 60):
            writer.append(observation=np.full(3, t), action=np.full(3, t), truncated=np.arange(3) == t % 5)
        table.follow()
        resumed = Table.resume(stepwell.open(store.path, mode="r"), state)
        resumed.follow()
        assert resumed.size == table.size > before
