import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.errors import WindowError
from stepwell.testing import tiny_store
from stepwell.transforms.returns import DiscountedSum, NStepReturn

GAMMA = 0.9


def n_step(rewards, terminated, truncated, is_pad) -> tuple[float, float, int]:
    """Return return, discount and length of one window, step by step."""
    total, length = 0.0, 0
    for reward, ends, cut, pad in zip(rewards, terminated, truncated, is_pad, strict=True):
        if pad:
            break
        total += GAMMA**length * reward
        length += 1
        if ends:
            return total, 0.0, length
        if cut:
            break
    return total, GAMMA**length, length


windows = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-9, 9), min_size=n, max_size=n),
        *[st.lists(st.booleans(), min_size=n, max_size=n)] * 2,
        st.integers(1, n).map(lambda k: [i >= k for i in range(n)]),
    )
)


@given(windows)
def test_returns_are_those_of_going_step_by_step(window) -> None:
    rewards, terminated, truncated, is_pad = window
    batch = {"reward": rewards, "terminated": terminated, "truncated": truncated, "reward_is_pad": is_pad}
    transform = NStepReturn(truncated="truncated", gamma=GAMMA)
    found = transform({key: np.array([value]) for key, value in batch.items()})
    total, discount, length = n_step(*window)
    assert found["reward"][0] == pytest.approx(total, abs=1e-4)
    assert found["discount"][0] == pytest.approx(discount, abs=1e-6)
    assert found["length"].tolist() == [length]


@given(windows)
def test_the_first_sum_is_the_n_step_return(window) -> None:
    rewards, terminated, truncated, is_pad = window
    batch = {"reward": rewards, "terminated": terminated, "truncated": truncated, "reward_is_pad": is_pad}
    arrays = {key: np.array([value]) for key, value in batch.items()}
    found = DiscountedSum(terminated="terminated", truncated="truncated", gamma=GAMMA, output="to_go")(arrays)
    assert found["to_go"][0, 0] == pytest.approx(n_step(*window)[0], abs=1e-4)
    assert found["reward"].tolist() == [rewards]


def test_sums_to_go_start_anew_after_an_end_and_leave_padding_out() -> None:
    batch = {
        "reward": np.array([[1.0, 2, 4, 8, 99]]),
        "terminated": np.array([[False, True, False, False, False]]),
        "reward_is_pad": np.array([[False] * 4 + [True]]),
    }
    found = DiscountedSum(terminated="terminated", gamma=0.5)(dict(batch))["reward"]
    assert found.tolist() == [[2, 2, 8, 8, 0]]
    assert DiscountedSum(gamma=0.5)(dict(batch))["reward"].tolist() == [[4, 6, 8, 8, 0]]


def test_padding_may_be_nan() -> None:
    batch = {"reward": np.array([[1.0, np.nan]]), "reward_is_pad": np.array([[False, True]])}
    assert NStepReturn(terminated=None)(dict(batch))["reward"].tolist() == [1]
    assert DiscountedSum()(dict(batch))["reward"].tolist() == [[1, 0]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    """Two episodes of five steps with final observations: the first terminates, the second is truncated."""
    schema = {"observation": stepwell.Array((), "float64", final=True), "reward": stepwell.Array((), "float64")}
    store = stepwell.create(tmp_path_factory.mktemp("returns") / "s.well", schema)
    with store.writer() as writer:
        for first, ends in ((0, "terminated"), (100, "truncated")):
            writer.add_episode({"observation": first + np.arange(6.0), "reward": np.ones(5)}, **{ends: True})
    store.refresh()
    return store


def test_the_observation_after_n_steps_is_the_one_to_bootstrap_from(store: stepwell.Store) -> None:
    fields = {
        "observation": "observation",
        "next": stepwell.Field("observation", 3),
        "reward": stepwell.Field("reward", range(3)),
        "terminated": stepwell.Field("terminated", range(3)),
    }
    (batch,) = stepwell.Loader(store, fields, transform=NStepReturn(gamma=0.5))
    assert batch["length"].tolist() == [3, 3, 3, 2, 1] * 2
    assert (batch["next"] == batch["observation"] + batch["length"]).all()
    assert batch["reward"].tolist() == [1.75, 1.75, 1.75, 1.5, 1] * 2
    assert batch["discount"].tolist() == [0.125, 0.125, 0, 0, 0, 0.125, 0.125, 0.125, 0.25, 0.5]


def test_keys_and_shapes_are_as_told(store: stepwell.Store) -> None:
    fields = {"reward": stepwell.Field("reward", range(3)), "terminated": stepwell.Field("terminated", range(3))}
    read = {key: (values.shape[1:], values.dtype) for key, values in next(iter(stepwell.Loader(store, fields))).items()}
    for transform in (NStepReturn(output="return"), DiscountedSum(output="to_go"), DiscountedSum()):
        (batch,) = stepwell.Loader(store, fields, transform=transform)
        assert transform.outputs(dict(read)) == {key: (v.shape[1:], v.dtype) for key, v in batch.items()}


def test_what_does_not_fit_is_refused_when_the_loader_is_made(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    fields = {"reward": stepwell.Field("reward", range(3)), "terminated": stepwell.Field("terminated", range(2))}
    with pytest.raises(WindowError, match="must have the same offsets"):
        stepwell.Loader(store, fields, transform=NStepReturn())
    with pytest.raises(WindowError, match="wants key 'truncated'"):
        stepwell.Loader(store, fields, transform=NStepReturn(terminated=None, truncated="truncated"))
    with pytest.raises(WindowError, match=r"Use Field\('reward', range\(n\)\)"):
        stepwell.Loader(store, {"reward": "reward"}, transform=DiscountedSum())
    with pytest.raises(WindowError, match="gamma=2 is not between 0 and 1"):
        NStepReturn(gamma=2)
