import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.errors import WindowError
from stepwell.loader.transforms import BatchKey, TransformChain
from stepwell.testing import tiny_store
from stepwell.transforms.conversion import Convert
from stepwell.transforms.normalising import MODES, Normalize, Unnormalize
from stepwell.windows import View

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    """A store of states of several scales, the last of them constant, and of small images."""
    schema = {
        "state": stepwell.Array(4),
        "image": stepwell.Image((4, 5, 3)),
        "number": stepwell.Array((), "int64"),
        "text": stepwell.Text(),
    }
    store = stepwell.create(tmp_path_factory.mktemp("normalising") / "s.well", schema)
    with store.writer() as writer:
        for _ in range(3):
            states = RNG.normal([0, 5, -100, 7], [1, 0.1, 30, 0], (50, 4)).astype(np.float32)
            images = RNG.integers(0, 256, (50, 4, 5, 3)).astype(np.uint8)
            numbers = 10**12 + np.arange(50)
            writer.add_episode({"state": states, "image": images, "number": numbers, "text": ["a"] * 50})
    store.refresh()
    return store


def all_of(store: stepwell.Store, name: str) -> np.ndarray:
    return np.concatenate([episode[name] for episode in store])


def test_mean_and_deviation_become_0_and_1(store: stepwell.Store) -> None:
    states = all_of(store, "state")
    found = Normalize.of(store, "state")(states)
    assert found.dtype == np.float32
    expected = (states[:, :3].astype("f8") - states[:, :3].mean(0, "f8")) / states[:, :3].std(0, "f8")
    assert np.abs(found[:, :3] - expected).max() < 2e-4  # 7 digits of -100 +- 30, and of 5 +- 0.1
    assert np.abs(found[:, :3].mean(0)).max() < 1e-4


def test_minimum_and_maximum_become_minus_1_and_1(store: stepwell.Store) -> None:
    found = Normalize.of(store, "state", mode="min_max")(all_of(store, "state"))[:, :3]
    assert np.allclose(found.min(0), -1, atol=1e-4)
    assert np.allclose(found.max(0), 1, atol=1e-4)


def test_quantiles_become_minus_1_and_1(store: stepwell.Store) -> None:
    states = all_of(store, "state")
    found = Normalize.of(store, "state", mode="quantile")(states)[:, :3]
    low, high = np.quantile(states[:, :3].astype("f8"), [0.01, 0.99], axis=0)
    assert np.allclose(found, (states[:, :3] - low) / (high - low) * 2 - 1, atol=1e-3)
    assert found.max() > 1
    assert found.min() < -1


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_becomes_0_and_comes_back(store: stepwell.Store, mode) -> None:
    normalize = Normalize.of(store, "state", mode=mode)
    found = normalize(np.array([[0, 5, -100, 7], [0, 5, -100, 9]], np.float32))
    assert found[:, 3].tolist() == [0, 2]
    assert normalize.inverse()(found)[:, 3].tolist() == [7, 9]


def test_a_constant_that_rounding_has_touched_is_one() -> None:
    assert Normalize([0.1], [1e-17])(np.array([[0.1], [0.2]])).ravel().tolist() == [0.0, np.float32(0.1)]


def test_channels_of_an_image_have_statistics_of_their_own(store: stepwell.Store) -> None:
    images = all_of(store, "image").reshape(75, 2, 4, 5, 3)
    normalize = Normalize.of(store, "image")
    assert normalize.center.shape == (3,)
    pixels = images.reshape(-1, 3).astype("f8")
    assert np.allclose(normalize(images), (images - pixels.mean(0)) / pixels.std(0), atol=1e-5)
    assert normalize.output((2, 4, 5, 3), np.dtype("uint8")) == ((2, 4, 5, 3), np.dtype("float32"))


def test_large_integers_lose_nothing_before_they_are_centred(store: stepwell.Store) -> None:
    numbers = all_of(store, "number")
    found = Normalize.of(store, "number")(numbers)
    assert np.allclose(found, (np.tile(np.arange(50), 3) - 24.5) / np.arange(50).std(), atol=1e-6)


@given(
    mean=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    spread=st.lists(st.floats(1e-2, 1e3), min_size=3, max_size=3),
    values=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
)
def test_the_inverse_undoes_it(mean: list[float], spread: list[float], values: list[float]) -> None:
    normalize = Normalize(mean, spread)
    given_values = np.array(mean) + np.array(values) * spread
    back = normalize.inverse()(normalize(given_values))
    assert np.allclose(back, given_values, rtol=1e-6, atol=1e-6 * max(spread))
    assert normalize.inverse().inverse() == normalize


def test_a_mask_leaves_elements_as_they_are() -> None:
    found = Normalize([1.0, 2.0], [2.0, 4.0], mask=[True, False])(np.array([[3.0, 9.0]]))
    assert found.tolist() == [[1.0, 9.0]]


def test_json_and_pickle_bring_back_the_same_numbers(store: stepwell.Store) -> None:
    normalize = Normalize.of(store, "state")
    text = json.dumps(normalize.to_json())
    assert Normalize.from_json(text) == Normalize.from_json(json.loads(text)) == normalize
    assert Unnormalize.from_json(json.dumps(normalize.inverse().to_json())) == normalize.inverse()
    assert pickle.loads(pickle.dumps(normalize)) == normalize
    assert len({normalize, Normalize.from_json(text), normalize.inverse()}) == 2
    with pytest.raises(WindowError, match="'normalize' is not the record of Unnormalize"):
        Unnormalize.from_json(text)


def test_a_view_counts_its_own_episodes_only(store: stepwell.Store) -> None:
    view = View(store).select([1])
    assert Normalize.of(view, "state").center[1] == pytest.approx(store[1]["state"][:, 1].mean(dtype="f8"))


def test_what_does_not_fit_is_refused(store: stepwell.Store) -> None:
    normalize = Normalize.of(store, "image")
    with pytest.raises(WindowError, match="normalise before ToCHW"):
        normalize.output((3, 4, 5), np.dtype("uint8"))
    with pytest.raises(WindowError, match="cannot be normalised"):
        normalize.output((4, 5, 3), np.dtype("U3"))
    with pytest.raises(WindowError, match="no statistics of 'text'"):
        Normalize.of(store, "text")
    with pytest.raises(WindowError, match="mode='max' is not one of mean_std, min_max, quantile"):
        Normalize.of(store, "state", mode="max")
    with pytest.raises(WindowError, match="must be of one shape"):
        Normalize([1.0, 2.0], 1.0)


def test_values_are_not_changed_in_place() -> None:
    values = np.ones((2, 3), np.float32)
    Normalize(1.0, 2.0)(values)
    assert values.tolist() == np.ones((2, 3)).tolist()


def test_an_element_of_which_nothing_is_known_stays(tmp_path) -> None:
    store = stepwell.create(tmp_path / "s.well", {"x": stepwell.Array(2)})
    with store.writer() as writer:
        writer.add_episode({"x": np.array([[1, np.nan], [3, np.nan]], np.float32)})
    store.refresh()
    assert Normalize.of(store, "x")(np.array([[3.0, 5.0]])).tolist() == [[1.0, 5.0]]


def test_windows_of_bytes_that_are_no_images_are_scaled_by_element_in_a_chain() -> None:
    samples = {"x": ((5, 2), np.dtype("uint8"))}
    chain = TransformChain({"x": (Normalize([10.0, 100.0], [2.0, 4.0]), Convert("float16"))}, samples=samples)
    values = np.arange(20, dtype=np.uint8).reshape(2, 5, 2)
    found = chain.apply({"x": values.copy()}, BatchKey(0, ((0, range(2)),), 2))["x"]
    assert found.tolist() == ((values - [10.0, 100.0]) / [2.0, 4.0]).tolist()


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(WindowError, match=r"do not end with \(2,\)"):
        Normalize([1.0, 2.0], [1.0, 1.0])(np.zeros((256, 1)))


def test_a_loader_normalises_by_the_stores_own_statistics(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    field = stepwell.Field("action", [-1, 0], transform=Normalize.of(store, "action", mode="min_max"))
    values = np.concatenate([batch["action"] for batch in stepwell.Loader(store, {"action": field})])
    assert (values.min(), values.max()) == (-1, 1)


def test_no_windows_are_no_windows() -> None:
    assert Normalize([1.0, 2.0], [1.0, 1.0])(np.zeros((0, 4, 2), np.uint8)).shape == (0, 4, 2)


def test_a_misspelt_feature_is_refused_with_those_there_are(store: stepwell.Store) -> None:
    for ask in (lambda: Normalize.of(store, "stat"), lambda: View(store).statistics(["stat"])):
        meant = r"no feature 'stat'\. Did you mean 'state'\? There are: image, number, state"
        with pytest.raises(stepwell.FeatureNotFoundError, match=meant):
            ask()
    with pytest.raises(WindowError, match=r"statistics of 'path\.well', a str\. Give a store or a view"):
        Normalize.of("path.well", "state")
