"""Slots beside a dict of what they hold."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Field, WindowError
from stepwell.errors import LoaderError
from stepwell.replay.batch_kernels import mark_changed_rows
from stepwell.replay.slots import Slots

SCHEMA = {"observation": Array(2, final=True), "number": Array((), "int64")}
FIELDS = {"observation": Field("observation"), "following": Field("observation", 1), "number": Field("number")}


def rows(numbers: Any) -> dict[str, Any]:
    return {"observation": np.stack([numbers, -numbers], axis=-1).astype(np.float32), "number": numbers}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=20))
def test_slots_hold_what_was_put(num_envs: int, calls: list[tuple[int, bool]]) -> None:
    size = 40
    # the ring keeps what the slots hold, and what is put meanwhile
    store = stepwell.create(":memory:", SCHEMA, capacity=num_envs * (size + 31))
    slots, held, count = Slots(store, size * num_envs, FIELDS), {}, 0
    with store.vector_writer(num_envs) as writer:
        for length, is_read in calls:
            steps = np.arange(count, count + length)
            numbers = steps[:, None] * num_envs + np.arange(num_envs)
            # each step is an episode's last one, so that what follows it is there
            ends, finals = np.ones(numbers.shape, np.bool_), rows(numbers + 100_000)
            ids = writer.append_batch(rows(numbers), truncated=ends, final={"observation": finals["observation"]})
            cells = (steps[:, None] % size) * num_envs + np.arange(num_envs)
            slots.put(cells.reshape(-1), ids.reshape(-1))
            held.update(zip(cells.reshape(-1).tolist(), numbers.reshape(-1).tolist(), strict=True))
            count += length
            if is_read:
                check(slots, held, np.random.default_rng(count).choice(list(held), 50))
                check(slots, held, np.random.default_rng(count).integers(-1, size * num_envs, 50))
    check(slots, held, np.arange(-1, size * num_envs))


def check(slots: Slots, held: dict[int, int], chosen: Any) -> None:
    found = slots.read(chosen)
    expected = np.array([held.get(cell, 0) for cell in chosen.tolist()])
    is_there = np.array([cell in held for cell in chosen.tolist()])
    np.testing.assert_array_equal(found["number"], expected)
    np.testing.assert_array_equal(found["observation"][:, 0], expected)
    np.testing.assert_array_equal(found["following"][:, 0], np.where(is_there, expected + 100_000, 0))


def test_a_slot_whose_step_was_dropped_holds_none() -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=100)
    slots = Slots(store, 6, FIELDS)
    with store.vector_writer(1) as writer:
        ids = writer.append_batch(rows(np.arange(1, 7)[:, None]))[:, 0]
        slots.put(np.arange(6), ids)
        slots.put(np.arange(6), np.where(np.arange(6) % 3 == 2, -1, ids))
        assert slots.read(np.arange(5))["number"].tolist() == [1, 2, 0, 4, 5]
        slots.put(np.arange(2), np.full(2, -1))
        assert slots.read(np.arange(-1, 4))["number"].tolist() == [0, 0, 0, 0, 4]


def test_what_follows_from_episodes_is_refused() -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=100)
    slots = Slots(store, 10, {"step_index": "step_index"})
    with store.vector_writer(1) as writer:
        slots.put(np.arange(2), writer.append_batch(rows(np.arange(2)[:, None]))[:, 0])
        with pytest.raises(WindowError, match="'step_index' follows from episodes"):
            slots.read(np.arange(2))


def test_a_step_that_the_ring_let_go_is_said_to_be_gone() -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=20)
    slots = Slots(store, 10, FIELDS)
    with store.vector_writer(1) as writer:
        slots.put(np.zeros(1, np.int64), writer.append_batch(rows(np.zeros((1, 1), np.int64)))[:, 0])
        for number in range(1, 60):
            ids = writer.append_batch(rows(np.full((2, 1), number)))
            slots.put(np.array([1, 2]), ids[:, 0])
        with pytest.raises(LoaderError, match=r"ring|removed"):
            slots.read(np.zeros(1, np.int64))


@pytest.mark.parametrize("num_bytes", [1, 7, 8, 24, 29])
def test_rows_are_marked_where_a_byte_differs(num_bytes: int) -> None:
    rng = np.random.default_rng(num_bytes)
    first = rng.integers(0, 256, (9, 5, num_bytes), np.uint8)
    second, marks = first.copy(), rng.random((9, 5)) < 0.2
    changed = rng.random((9, 5)) < 0.3
    at = np.nonzero(changed)
    second[*at, rng.integers(0, num_bytes, len(at[0]))] ^= 1
    expected = marks | changed
    mark_changed_rows(first.ctypes.data, second.ctypes.data, num_bytes, marks)
    np.testing.assert_array_equal(marks, expected)
