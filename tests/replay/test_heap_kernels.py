import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.replay.heap_kernels import CLOCK, NUM, pop_lowest, remove_slots, touch_slots
from stepwell.replay.link_kernels import ABSENT

Heap = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_heap(capacity: int) -> tuple[Heap, np.ndarray]:
    places = np.full(capacity, ABSENT, np.int32)
    arrays = np.empty(capacity), np.empty(capacity, np.int64), np.empty(capacity, np.int32), places
    return arrays, np.zeros(2, np.int64)


@settings(deadline=None, max_examples=60)
@given(changes=st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, 1.0, 2.0, 3.0])), max_size=120))
def test_children_never_rank_before_their_parent_and_places_are_right(changes: list[tuple[int, float | None]]) -> None:
    heap, state = make_heap(32)
    ranks, stamps, slots, places = heap
    known = set[int]()
    for slot, priority in changes:
        if priority is None:
            remove_slots(np.array([slot]), heap, state)
            known.discard(slot)
        else:
            touch_slots(np.array([slot]), np.array([priority]), 1.0, heap, state)
            known.add(slot)
        num = state[NUM]
        assert sorted(slots[:num].tolist()) == sorted(known)
        assert places[slots[:num]].tolist() == list(range(num))
        order = list(zip(ranks[:num].tolist(), stamps[:num].tolist(), strict=True))
        assert all(order[(i - 1) // 4] < order[i] for i in range(1, num))


def test_a_heap_sorts() -> None:
    heap, state = make_heap(3000)
    priorities = np.random.default_rng(0).integers(0, 50, 3000).astype(float)
    assert touch_slots(np.arange(3000), priorities, -1.0, heap, state) == 3000
    popped = np.empty(3000, np.int64)
    pop_lowest(heap, state, popped)
    assert popped.tolist() == np.argsort(-priorities, kind="stable").tolist()
    assert state.tolist() == [0, 3000]
    assert state[CLOCK] == 3000


def test_a_slot_beyond_the_heap_changes_nothing_and_tells_what_is_needed() -> None:
    heap, state = make_heap(4)
    assert touch_slots(np.array([0, 8]), np.ones(2), 1.0, heap, state) == -9
    assert state.tolist() == [0, 0]
