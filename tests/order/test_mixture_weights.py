"""Statistical tests have fixed seeds; MAX_Z standard deviations are p < 1e-5 for each number."""

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import FeatureNotFoundError, OrderError
from stepwell.order import weighted

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
