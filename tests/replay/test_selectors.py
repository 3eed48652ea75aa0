"""The statistical tests have fixed keys and a p-value of 0.001, so a right selector passes them for ever."""

import itertools
from collections.abc import Callable
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import TableError
from stepwell.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Uniform

# P(z > 3.09) = 0.001
MAX_Z = 3.09
MAKERS: dict[str, Callable[[], Selector]] = {
    "fifo": Fifo,
    "lifo": Lifo,
    "max_heap": MaxHeap,
    "min_heap": MinHeap,
    "uniform": Uniform,
    "prioritized": lambda: Prioritized(0.7),
}
ORDERED = ("fifo", "lifo", "max_heap", "min_heap")
# (what, slots, priorities); few priorities, so that ties come
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "update", "remove", "pop", "clear"]),
        st.lists(st.integers(0, 40), max_size=6),
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e6]), min_size=6, max_size=6),
    ),
    max_size=40,
)


class Model:
    """The rules in plain Python: what is in it, with priority, number of its insert, number of its last touch."""

    def __init__(self) -> None:
        self.known: dict[int, list[float]] = {}
        self.clock = itertools.count()

    def insert(self, slot: int, priority: float) -> None:
        now = next(self.clock)
        self.known[slot] = [priority, now, now]

    def update(self, slot: int, priority: float) -> None:
        self.known[slot][0] = priority
        self.known[slot][2] = next(self.clock)

    def order(self, name: str) -> list[int]:
        rules = {
            "fifo": lambda slot: self.known[slot][1],
            "lifo": lambda slot: -self.known[slot][1],
            "max_heap": lambda slot: (-self.known[slot][0], self.known[slot][2]),
            "min_heap": lambda slot: (self.known[slot][0], self.known[slot][2]),
        }
        return sorted(self.known, key=rules[name])

    def probabilities(self, name: str) -> dict[int, float]:
        weights = dict.fromkeys(self.known, 1.0)
        if name == "prioritized":
            powers = {slot: entry[0] ** 0.7 if entry[0] else 0.0 for slot, entry in self.known.items()}
            weights = powers if sum(powers.values()) else weights
        return {slot: weight / sum(weights.values()) for slot, weight in weights.items()}


def slots_of(slots: list[int]) -> npt.NDArray[np.int64]:
    return np.array(slots, np.int64)


def filled(selector: Selector, priorities: list[float]) -> Selector:
    selector.insert(np.arange(len(priorities)), np.array(priorities))
    return selector


def chi_square_z(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    assert not counts[probabilities == 0].any()
    expected = probabilities[probabilities > 0] * counts.sum()
    assert expected.min() > 5
    freedom = len(expected) - 1
    statistic = float(((counts[probabilities > 0] - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))


def check(selector: Selector, model: Model, name: str, key: int) -> None:
    assert selector.num == len(model.known)
    if not model.known:
        with pytest.raises(TableError):
            selector.select(1, key, 0)
        return
    slots, probabilities = selector.select(5, key, 3)
    if name in ORDERED:
        assert slots.tolist() == [model.order(name)[0]] * 5
        assert probabilities.tolist() == [1.0] * 5
    else:
        expected = model.probabilities(name)
        assert all(expected[slot] > 0 for slot in slots.tolist())
        np.testing.assert_allclose(probabilities, [expected[slot] for slot in slots.tolist()], rtol=1e-12)


def apply(selector: Selector, model: Model, change: tuple[str, list[int], list[float]], name: str) -> None:
    what, slots, priorities = change
    new = [slot for slot in dict.fromkeys(slots) if slot not in model.known]
    there = [slot for slot in slots if slot in model.known]
    if what == "insert":
        selector.insert(slots_of(new), np.array(priorities[: len(new)]))
        for slot, priority in zip(new, priorities, strict=False):
            model.insert(slot, priority)
    elif what == "update":
        selector.update(slots_of(there), np.array(priorities[: len(there)]))
        for slot, priority in zip(there, priorities, strict=False):
            model.update(slot, priority)
    elif what == "remove":
        selector.remove(slots_of(slots))
        for slot in set(there):
            del model.known[slot]
    elif what == "pop":
        count = min(2, len(model.known))
        popped = selector.pop(count, 5, 0).tolist()
        assert len(set(popped)) == count
        assert name not in ORDERED or popped == model.order(name)[:count]
        for slot in popped:
            del model.known[slot]
    else:
        selector.clear()
        model.known.clear()


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None, max_examples=40)
@given(changes=CHANGES)
def test_a_selector_answers_as_plain_lists_do(name: str, changes: list[tuple[str, list[int], list[float]]]) -> None:
    selector, model = MAKERS[name](), Model()
    for i, change in enumerate(changes):
        apply(selector, model, change, name)
        check(selector, model, name, i)


@pytest.mark.parametrize("name", MAKERS)
def test_memory_grows_with_the_highest_slot_and_keeps_what_was_in_it(name: str) -> None:
    selector, model = MAKERS[name](), Model()
    priorities = np.random.default_rng(1).random(5000)
    for first, last in ((0, 900), (900, 1100), (1100, 5000)):
        selector.insert(np.arange(first, last), priorities[first:last])
        for slot in range(first, last):
            model.insert(slot, priorities[slot])
        check(selector, model, name, last)
    selector.remove(np.arange(0, 5000, 2))
    selector.remove(np.array([99_999]))
    for slot in range(0, 5000, 2):
        del model.known[slot]
    check(selector, model, name, 7)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [(MaxHeap(), [1, 3, 0, 2, 4]), (MinHeap(), [2, 4, 0, 1, 3]), (Fifo(), [0, 1, 2, 3, 4]), (Lifo(), [4, 3, 2, 1, 0])],
    ids=repr,
)
def test_orders_and_ties_are_those_of_reverb(selector: Selector, expected: list[int]) -> None:
    filled(selector, [5.0, 7.0, 3.0, 7.0, 3.0])
    assert selector.pop(5, 0, 0).tolist() == expected
    assert selector.num == 0


@pytest.mark.parametrize(("selector", "expected"), [(MaxHeap(), [3, 1]), (MinHeap(), [3, 1])], ids=repr)
def test_a_touched_slot_goes_behind_others_of_its_priority(selector: Selector, expected: list[int]) -> None:
    selector.insert(slots_of([1, 3]), np.full(2, 2.0))
    selector.update(slots_of([1]), np.full(1, 2.0))
    assert selector.pop(2, 0, 0).tolist() == expected


@pytest.mark.parametrize("selector", [Fifo(), Lifo()], ids=repr)
def test_an_update_does_not_move_what_goes_by_insertion(selector: Selector) -> None:
    filled(selector, [1.0, 1.0, 1.0])
    before = selector.select(1, 0, 0)[0].tolist()
    selector.update(slots_of([0, 1, 2]), np.array([9.0, 0.0, 5.0]))
    assert selector.select(1, 0, 0)[0].tolist() == before


@pytest.mark.parametrize(
    ("exponent", "priorities", "expected"),
    [
        (0.5, [1.0, 4.0, 9.0], [1 / 6, 1 / 3, 1 / 2]),
        (1.0, [1.0, 0.0, 3.0], [1 / 4, 0, 3 / 4]),
        (0.0, [5.0, 0.0, 0.1], [1 / 2, 0, 1 / 2]),
        (2.0, [0.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]),
        (0.0, [0.0, 0.0], [1 / 2, 1 / 2]),
        (2.0, [1e300, 1e-300], [1.0, 0.0]),
        (0.6, [1e-300, 1e-300], [1 / 2, 1 / 2]),
    ],
)
def test_priorities_make_the_probabilities_of_the_formula(
    exponent: float, priorities: list[float], expected: list[float]
) -> None:
    slots, probabilities = filled(Prioritized(exponent), priorities).select(4000, 3, 0)
    np.testing.assert_allclose(probabilities, np.array(expected)[slots], rtol=1e-12)
    assert set(slots.tolist()) == {slot for slot, probability in enumerate(expected) if probability}


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.6, 1.0, 2.0])
def test_frequencies_after_many_changes_pass_a_chi_square_test(exponent: float) -> None:
    rng = np.random.default_rng(3)
    selector, priorities = Prioritized(exponent), rng.uniform(0.2, 2, 1500)
    selector.insert(np.arange(1500), priorities)
    for _ in range(300):
        slots = rng.integers(0, 1500, 64)
        selector.update(slots, rng.uniform(0.2, 2, 64))
    gone = rng.permutation(1500)[:1400]
    selector.remove(gone)
    priorities = np.where(np.arange(1500) % 7 == 0, 0, rng.uniform(0.2, 2, 1500))
    left = np.setdiff1d(np.arange(1500), gone)
    selector.update(left, priorities[left])
    weights = np.zeros(1500)
    weights[left] = np.where(priorities[left] > 0, priorities[left] ** exponent, 0)
    slots, probabilities = selector.select(200_000, 11, 0)
    np.testing.assert_allclose(probabilities, (weights / weights.sum())[slots], rtol=1e-12)
    assert chi_square_z(np.bincount(slots, minlength=1500), weights / weights.sum()) < MAX_Z


@pytest.mark.parametrize("selector", [Uniform(), Prioritized(0.5)], ids=repr)
def test_equal_slots_come_equally_often_and_pairs_of_draws_too(selector: Selector) -> None:
    selector.insert(np.arange(40), np.zeros(40))
    selector.remove(np.arange(0, 40, 2))
    slots = selector.select(100_000, 5, 0)[0]
    assert chi_square_z(np.bincount(slots // 2, minlength=20), np.full(20, 1 / 20)) < MAX_Z
    pairs = slots[:-1] // 2 * 20 + slots[1:] // 2
    assert chi_square_z(np.bincount(pairs, minlength=400), np.full(400, 1 / 400)) < MAX_Z


@pytest.mark.parametrize("selector", [Uniform(), Prioritized(0.5)], ids=repr)
def test_what_is_popped_first_has_the_probabilities_of_a_draw(selector: Selector) -> None:
    counts = np.zeros(3, np.int64)
    for i in range(3000):
        filled(selector, [1.0, 4.0, 9.0])
        counts[selector.pop(3, 17, 3 * i)[0]] += 1
    weights = np.ones(3) if isinstance(selector, Uniform) else np.arange(1, 4)
    assert chi_square_z(counts, weights / weights.sum()) < MAX_Z


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
def test_a_draw_depends_on_the_key_and_its_number_alone(name: str) -> None:
    selector = filled(MAKERS[name](), list(range(1, 101)))
    together = selector.select(64, 2**64 - 1, 1000)[0]
    apart = [selector.select(1, 2**64 - 1, 1000 + i)[0][0] for i in range(64)]
    assert together.tolist() == apart
    assert together.tolist() != selector.select(64, 1, 1000)[0].tolist()


@pytest.mark.parametrize("name", MAKERS)
def test_more_than_is_there_cannot_be_popped_and_nothing_goes(name: str) -> None:
    selector = filled(MAKERS[name](), [1.0, 2.0])
    with pytest.raises(TableError, match="3 slots of a selector that has 2"):
        selector.pop(3, 0, 0)
    assert selector.num == 2


@pytest.mark.parametrize("exponent", [-0.1, float("nan"), float("inf")])
def test_an_exponent_is_finite_and_not_negative(exponent: float) -> None:
    with pytest.raises(TableError, match="exponent"):
        Prioritized(exponent)
