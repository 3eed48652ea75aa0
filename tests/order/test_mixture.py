"""Statistical tests have fixed seeds; MAX_Z standard deviations are p < 1e-5 for each number."""

from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import FeatureNotFoundError, OrderError
from stepwell.order import BoundOrder, mixed, random, sequential, weighted
from stepwell.order.mixture import _Shares
from stepwell.order.mixture_kernels import BLOCK

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1.0)), min_size=1, max_size=6).filter(any)


def epochs_of(bound: BoundOrder, count: int) -> npt.NDArray[np.int64]:
    return np.concatenate([bound.positions(epoch, 0, bound.num_positions) for epoch in range(count)])


@given(weights=WEIGHTS, num_spans=st.one_of(st.integers(0, 50), st.integers(0, 10**15)))
def test_shares_are_exact_to_less_than_one_slot_and_never_negative(weights: list[float], num_spans: int) -> None:
    shares = _Shares.of(weights)
    before, after = shares.slots_before(num_spans), shares.slots_before(num_spans + 1)
    slots = num_spans * shares.span
    assert sum(before) == slots
    widths = [end - begin for begin, end in pairwise(shares.bounds)]
    for part, width in enumerate(widths):
        # whole numbers: |before - slots * width / total| < 1
        assert abs(before[part] * shares.bounds[-1] - slots * width) < shares.bounds[-1]
        assert after[part] >= before[part]
        assert weights[part] > 0 or before[part] == 0


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    seed=st.integers(0, 10),
    num_samples=st.integers(1, 700),
    data=st.data(),
)
def test_every_part_is_walked_pass_after_pass_over_the_epochs(
    make_index: Any, sizes: list[int], seed: int, num_samples: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.floats(0.05, 1)) for _ in sizes]
    bound = mixed(weights, seed=seed, num_samples=num_samples).bind(make_index([[size] for size in sizes]))
    stream = epochs_of(bound, 5)
    starts = np.cumsum([0, *sizes])
    for begin, end in pairwise(starts):
        walked = stream[(stream >= begin) & (stream < end)] - begin
        size = end - begin
        for k in range(0, len(walked), size):
            one_pass = walked[k : k + size]
            assert len(np.unique(one_pass)) == len(one_pass)


def test_passes_of_a_part_have_different_orders(make_index: Any) -> None:
    bound = mixed([1, 1]).bind(make_index([[50], [50]]))
    stream = epochs_of(bound, 10)
    walked = stream[stream < 50]
    assert not np.array_equal(walked[:50], walked[50:100])
    other = stream[stream >= 50] - 50
    assert not np.array_equal(walked[:50], other[:50])


def test_a_part_is_walked_by_its_own_order(make_index: Any) -> None:
    bound = mixed([1, 2], order=[sequential(), random(7)]).bind(make_index([[9], [30]]))
    stream = epochs_of(bound, 20)
    first = stream[stream < 9]
    assert first.tolist() == [i % 9 for i in range(len(first))]
    second = stream[stream >= 9] - 9
    alone = random(7).bind(make_index([[30]]))
    assert np.array_equal(second[:60], np.concatenate([alone.positions(epoch, 0, 30) for epoch in range(2)]))


def test_the_order_of_a_part_sees_its_episodes_and_steps_only(make_index: Any) -> None:
    index = make_index([[2, 3], [1, 4]], {"priority": [0, 0, 0, 0, 1, 0, 0, 0, 1, 0]})
    by_step = epochs_of(mixed([1, 1], order=weighted(steps="priority")).bind(index), 30)
    assert set(by_step.tolist()) == {4, 8}
    by_episode = epochs_of(mixed([1, 1], order=weighted(episodes=[1, 0])).bind(index), 30)
    assert set(by_episode.tolist()) == {0, 1, 5}


@given(st.data())
def test_weights_of_episodes_are_those_of_the_part_where_some_have_no_anchors(make_index: Any, data: Any) -> None:
    counts = st.lists(st.sampled_from([0, 0, 1, 3]), min_size=1, max_size=5).filter(any)
    parts = data.draw(st.lists(counts, min_size=1, max_size=3))
    weights = [[1.0 + number for number in range(len(part))] for part in parts]
    orders = [weighted(episodes=each, per="episode", seed=3) for each in weights]
    index = make_index(parts)
    walked = mixed([1.0] * len(parts), order=orders, num_samples=200).bind(index).positions(0, 0, 200)
    for number, (part, order) in enumerate(zip(parts, orders, strict=True)):
        first, last = index.part_starts[number : number + 2]
        own = walked[(walked >= first) & (walked < last)] - first
        alone = order.bind(make_index([part]))
        passes = [alone.positions(epoch, 0, alone.num_positions) for epoch in range(200 // alone.num_positions + 1)]
        assert own.tolist() == np.concatenate(passes)[: len(own)].tolist()


@pytest.mark.parametrize("weights", [[0.7, 0.2, 0.1], [1, 1, 1], [0.999, 0.001, 0], [1e6, 1, 1], [1, 0, 0]])
def test_batches_are_close_to_the_shares(make_index: Any, weights: list[float]) -> None:
    batch = 256
    bound = mixed(weights, num_samples=batch * 100).bind(make_index([[100], [100], [100]]))
    stream = epochs_of(bound, 2).reshape(-1, batch)
    shares = np.array(weights) / sum(weights)
    for part, share in enumerate(shares):
        counts = ((stream >= part * 100) & (stream < part * 100 + 100)).sum(axis=1)
        # an aligned batch is four whole blocks: one step of rounding at either end, and of the parts before
        assert np.abs(counts - batch * share).max() <= 3


def test_rare_stores_do_not_come_all_at_once(make_index: Any) -> None:
    bound = mixed([*[0.001] * 30, 0.97], num_samples=64 * 640).bind(make_index([*[[10]] * 30, [1000]]))
    rare = (bound.positions(0, 0, 64 * 640).reshape(640, 64) < 300).sum(axis=1)
    # about 1230 throws into 640 batches, two each: P(any has 12 or more) < 1e-3; without phases it would be 30 at once
    assert rare.max() < 12


@pytest.mark.parametrize("weights", [[0.4, 0.004, 0.596], [1, 1e-5, 1, 1e-4, 1], [1e-9, 1, 1e-9]])
def test_no_span_takes_slots_back(weights: list[float]) -> None:
    shares = _Shares.of(weights)
    ends = np.array([shares.slots_before(num_spans) for num_spans in range(1000)])
    assert (np.diff(ends, axis=0) >= 0).all()


def test_two_epochs_of_one_seed_and_two_seeds_differ(make_index: Any) -> None:
    index = make_index([[500], [500]])
    streams = {
        mixed([1, 2], seed=seed).bind(index).positions(epoch, 0, 1000).tobytes() for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(streams) == 4


def test_which_part_a_slot_goes_to_differs_by_seed(make_index: Any) -> None:
    index = make_index([[500], [500]])
    a, b = (mixed([1, 1], seed=seed).bind(index).positions(0, 0, 1000) < 500 for seed in (0, 1))
    # two independent fair deals agree on half of 1000 slots; 4.5 standard deviations
    assert abs(np.mean(a == b) - 0.5) < 4.5 * 0.5 / np.sqrt(1000)


def test_an_epoch_has_as_many_positions_as_there_are_anchors_unless_told(make_index: Any) -> None:
    index = make_index([[2, 6], [3]])
    assert mixed([1, 1]).bind(index).num_positions == 11
    assert mixed([1, 1], num_samples=5).bind(index).num_positions == 5
    assert mixed([1, 1]).bind(make_index([[0], []])).num_positions == 0
    assert mixed([1, 0]).bind(make_index([[4], []])).num_positions == 4


def test_far_epochs_cost_and_work_as_near_ones(make_index: Any) -> None:
    bound = mixed([0.3, 0.7]).bind(make_index([[5], [6]]))
    for epoch in (10**9, 10**18, 10**30):
        drawn = bound.positions(epoch, 0, 11)
        assert drawn.min() >= 0
        assert drawn.max() < 11


@pytest.mark.parametrize(
    "weights", [[], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1, 1e-12], [1e308, 5e-324], ["a"], 1]
)
def test_weights_that_cannot_be_are_refused(weights: Any) -> None:
    with pytest.raises(OrderError, match="weight"):
        mixed(weights)


def test_the_largest_weights_are_taken(make_index: Any) -> None:
    drawn = mixed([1e308, 1e308]).bind(make_index([[500], [500]])).positions(0, 0, 10 * BLOCK)
    assert np.mean(drawn < 500) == 0.5


@pytest.mark.parametrize("order", ["random", 3, [random()], [random(), "random"], [random()] * 3])
def test_orders_that_cannot_walk_the_parts_are_refused(order: Any) -> None:
    with pytest.raises(OrderError, match="order"):
        mixed([1, 1], order=order)


def test_a_view_of_another_number_of_stores_is_refused(make_index: Any) -> None:
    with pytest.raises(OrderError, match="2 weights for a view of 3 stores"):
        mixed([1, 1]).bind(make_index([[1], [1], [1]]))


def test_a_store_of_some_weight_and_no_anchor_is_refused(make_index: Any) -> None:
    with pytest.raises(OrderError, match="store 1 of the mixture"):
        mixed([1, 1]).bind(make_index([[4], [0]]))


MAX_Z = 4.5
DRAWS = 200_000


def assert_law(drawn: npt.NDArray[np.int64], probabilities: Any) -> None:
    """Compare each anchor's count with its probability."""
    expected = np.asarray(probabilities, np.float64) * len(drawn)
    counts = np.bincount(drawn, minlength=len(expected))
    assert len(counts) == len(expected)
    assert (counts[expected == 0] == 0).all()
    spread = np.sqrt(expected * (1 - expected / len(drawn)))
    assert (np.abs(counts - expected) <= MAX_Z * spread + 1e-9).all()


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"episodes": [3, 1]}, [3, 3, 1, 1, 1, 1, 1, 1]),
        ({"episodes": [3, 1], "per": "episode"}, [9, 9, 1, 1, 1, 1, 1, 1]),
        ({"per": "episode"}, [3, 3, 1, 1, 1, 1, 1, 1]),
        ({"steps": [1, 0, 2, 0, 0, 5, 0.5, 0]}, [1, 0, 2, 0, 0, 5, 0.5, 0]),
        ({"steps": "priority"}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"steps": "priority", "episodes": [27, 2]}, [0, 27, 4, 6, 8, 10, 12, 14]),
        ({"steps": "priority", "episodes": [2, 1], "per": "episode"}, [0, 54, 2, 3, 4, 5, 6, 7]),
        ({"episodes": [0, 1]}, [0, 0, 1, 1, 1, 1, 1, 1]),
        ({"episodes": [1e308, 1e308]}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"steps": [1e308] * 8}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"episodes": [5e-324, 0]}, [1, 1, 0, 0, 0, 0, 0, 0]),
        ({"drop_last_steps": 1}, [1, 0, 1, 1, 1, 1, 1, 0]),
        ({"drop_last_steps": 3}, [0, 0, 1, 1, 1, 0, 0, 0]),
        ({"drop_last_steps": 1, "episodes": [3, 1], "per": "episode"}, [15, 0, 1, 1, 1, 1, 1, 0]),
        ({"drop_last_steps": 2, "steps": "priority"}, [0, 0, 2, 3, 4, 5, 0, 0]),
    ],
)
def test_draws_follow_the_weights(make_index: Any, options: dict[str, Any], weights: list[float]) -> None:
    index = make_index([[2, 6]], {"priority": range(8)})
    bound = weighted(seed=1, num_samples=DRAWS, **options).bind(index)
    assert_law(bound.positions(0, 0, DRAWS), np.array(weights) / sum(weights))


def test_dropping_every_step_of_every_episode_is_refused(make_index: Any) -> None:
    with pytest.raises(OrderError, match="no anchor can be drawn"):
        weighted(drop_last_steps=6).bind(make_index([[2, 6]]))


def test_what_is_dropped_is_part_of_the_order() -> None:
    assert weighted(drop_last_steps=2) != weighted()
    assert "drop_last_steps=2" in repr(weighted(drop_last_steps=2))


def test_episodes_without_anchors_are_never_drawn(make_index: Any) -> None:
    index = make_index([[0, 2, 0], [0, 3, 0]])
    for options in ({"steps": [1, 2, 3, 4, 5]}, {}):
        bound = weighted(episodes=[9, 1, 9, 9, 2, 9], per="episode", num_samples=DRAWS, **options).bind(index)
        drawn = bound.positions(0, 0, DRAWS)
        # 2 of 3 draws from the second of the two that have anchors; 4.5 standard deviations
        assert abs(np.mean(drawn >= 2) - 2 / 3) < MAX_Z * sqrt(2 / 9 / DRAWS)


def test_small_weights_keep_their_digits_behind_large_ones(make_index: Any) -> None:
    index = make_index([[2, 2]])
    bound = weighted(steps=[1e15, 1e15, 1e-3, 3e-3], per="episode", num_samples=DRAWS).bind(index)
    assert_law(bound.positions(0, 0, DRAWS), [1 / 4, 1 / 4, 1 / 8, 3 / 8])


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    data=st.data(),
    per=st.sampled_from(["step", "episode"]),
)
def test_what_weighs_nothing_is_never_drawn(make_index: Any, counts: list[int], data: st.DataObject, per: Any) -> None:
    weight = st.one_of(st.just(0.0), st.floats(1e-300, 1e300))
    steps = data.draw(st.lists(weight, min_size=sum(counts), max_size=sum(counts)))
    index = make_index([counts])
    if not any(steps):
        return
    drawn = weighted(steps=steps, per=per, num_samples=200).bind(index).positions(3, 0, 200)
    assert (np.array(steps)[drawn] > 0).all()


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (1 - 2**-53, 5)])
def test_the_ends_of_the_uniform_numbers_draw_the_first_and_the_last_that_weigh(
    make_index: Any, monkeypatch: pytest.MonkeyPatch, uniform: float, expected: int
) -> None:
    monkeypatch.setattr("stepwell.kernels.permutation.uniforms", lambda places, key: np.full(len(places), uniform))
    # 2 + (1 - 2**-53) rounds up to 3, which is behind the third episode
    index = make_index([[2, 2, 2, 1]])
    for options in ({"episodes": [1, 1, 1, 0]}, {"per": "episode"}):
        bound = weighted(steps=[0, 1, 1, 1, 1, 1, 0], num_samples=1, **options).bind(index)
        assert bound.positions(0, 0, 1).tolist() == [expected]


def test_seeds_and_epochs_draw_independently(make_index: Any) -> None:
    index = make_index([[100]])
    draws = {
        (seed, epoch): weighted(seed=seed).bind(index).positions(epoch, 0, 100) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len({drawn.tobytes() for drawn in draws.values()}) == 4


def test_an_epoch_has_as_many_draws_as_anchors_unless_told(make_index: Any) -> None:
    index = make_index([[2, 6]])
    assert weighted().bind(index).num_positions == 8
    assert weighted(num_samples=3).bind(index).num_positions == 3
    assert weighted().bind(make_index([[0, 0]])).num_positions == 0


@pytest.mark.parametrize("name", ["episodes", "steps"])
@pytest.mark.parametrize(
    "weights", [[1, -1], [1, float("nan")], [1, float("inf")], [0, 0], [[1, 2]], 3, ["a", "b"], [1, None]]
)
def test_weights_that_cannot_be_are_refused_by_name(name: str, weights: Any) -> None:
    with pytest.raises(OrderError, match=name):
        weighted(**{name: weights})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"episodes": [1]}, "1 weights of episodes for 2 episodes"),
        ({"steps": [1, 2]}, "2 weights of steps for 8 anchors"),
        ({"steps": "negative"}, r"'negative'\[7\] is -1"),
        ({"episodes": [1, 0], "steps": [0, 0, 1, 1, 1, 1, 1, 1]}, "no anchor can be drawn"),
    ],
)
def test_weights_that_do_not_fit_the_view_are_refused(make_index: Any, options: Any, named: str) -> None:
    index = make_index([[2, 6]], {"negative": [1, 1, 1, 1, 1, 1, 1, -1]})
    with pytest.raises(OrderError, match=named):
        weighted(**options).bind(index)


def test_weights_in_an_unknown_feature_are_refused(make_index: Any) -> None:
    with pytest.raises(FeatureNotFoundError):
        weighted(steps="nothing").bind(make_index([[2]]))


@pytest.mark.parametrize("options", [{"num_samples": -1}, {"num_samples": 1.5}, {"per": "row"}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OrderError, match=next(iter(options))):
        weighted(**options)


def test_draws_from_nothing_are_refused(make_index: Any) -> None:
    with pytest.raises(OrderError, match="without anchors"):
        weighted(num_samples=5).bind(make_index([[0]]))


def test_changing_the_callers_array_later_changes_nothing(make_index: Any) -> None:
    weights = np.array([1.0, 0.0])
    order = weighted(episodes=weights)
    weights[:] = [0, 1]
    assert order == weighted(episodes=[1, 0])
    assert order != weighted(episodes=weights)
    assert order.bind(make_index([[2, 6]])).positions(0, 0, 8).max() < 2


def test_the_repr_shows_shapes_and_not_values() -> None:
    assert "float64[1000]" in repr(weighted(episodes=range(1000), steps="priority"))
