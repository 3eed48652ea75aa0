"""Mixup and CutMix; labels replaced and images poisoned of chosen steps."""

import numpy as np
import pytest

import stepwell
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.testing import tiny_store
from stepwell.transforms.mixing import CutMix, Mixup, Poison, ReplaceLabel, SymmetricBeta, blend, partners

KEY = np.array([1, 2], np.uint64)
SIZE = 16
FIELDS = {
    "image": stepwell.Field("observation.image", [-1, 0]),
    "label": stepwell.Field("step_index", [-1, 0]),
    "step_id": stepwell.Field("step_id", [-1, 0]),
}


def draws(size: int = SIZE, start: int = 0) -> Draws:
    return Draws.of(KEY, np.arange(start, start + size))


def make_batch(size: int = SIZE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (size, 2, 8, 10, 3)).astype(np.uint8)
    return {"image": images, "state": rng.normal(size=(size, 3)).astype(np.float32), "label": np.arange(size) % 5}


def test_every_window_has_another_as_its_partner_and_is_one_once() -> None:
    for size in (2, 3, 64):
        found = partners(draws(size).uniform())
        assert sorted(found) == list(range(size))
        assert (found != np.arange(size)).all()
    assert partners(np.array([0.3])).tolist() == [0]


def test_mixup_blends_values_with_the_partners() -> None:
    before = make_batch()
    found = Mixup(("image", "state"), alpha=0.5, pairs="label")(make_batch(), draws())
    partner, weight = partners(draws().uniform()), found["mix_weight"].astype("f8")
    image_weight, state_weight = weight.reshape(-1, 1, 1, 1, 1), weight[:, None]
    images = before["image"] * image_weight + before["image"][partner] * (1 - image_weight)
    assert np.abs(found["image"] - images).max() <= 0.5 + 1e-3
    assert found["image"].dtype == np.uint8
    states = before["state"] * state_weight + before["state"][partner] * (1 - state_weight)
    assert np.allclose(found["state"], states, atol=1e-6)
    assert found["label"].tolist() == before["label"].tolist()
    assert found["label_partner"].tolist() == before["label"][partner].tolist()


def test_labels_become_the_blend_of_one_hot_vectors() -> None:
    mixup = Mixup("image", labels={"label": 5}, weight="w")
    found = mixup(make_batch(), draws())
    partner = partners(draws().uniform())
    labels, w = make_batch()["label"], found["w"][:, None]
    assert np.allclose(found["label"], np.eye(5)[labels] * w + np.eye(5)[labels[partner]] * (1 - w), atol=1e-6)
    samples = {key: (values.shape[1:], values.dtype) for key, values in make_batch().items()}
    assert mixup.outputs(samples) == {key: (values.shape[1:], values.dtype) for key, values in found.items()}


def test_one_weight_for_all_is_that_of_the_first_window() -> None:
    own = Mixup("image", weight="w")(make_batch(), draws())["w"]
    same = Mixup("image", weight="w", same=True)(make_batch(), draws())["w"]
    assert len(set(own)) == SIZE
    assert set(same) == {own[0]}


def test_a_weight_depends_on_its_window_alone() -> None:
    whole = Mixup("image", weight="w")(make_batch(), draws())["w"]
    half = Mixup("image", weight="w")(make_batch(8), draws(8, start=8))["w"]
    assert whole[8:].tolist() == half.tolist()


def test_cutmix_pastes_one_box_into_all_steps_of_a_window() -> None:
    before = make_batch()["image"]
    found = CutMix("image", labels={"label": 5}, weight="w")(make_batch(), draws())
    partner = partners(draws().uniform())
    is_own = (found["image"] == before).all(-1)
    is_others = (found["image"] == before[partner]).all(-1)
    assert (is_own | is_others).all()
    sizes = set()
    for i in range(SIZE):
        pasted = ~is_own[i]
        assert (pasted[0] == pasted[1]).all()
        rows, columns = pasted[0].any(1), pasted[0].any(0)
        assert (pasted[0] == rows[:, None] & columns).all()
        assert found["w"][i] == pytest.approx(1 - pasted[0].mean())
        sizes.add(int(pasted[0].sum()))
    assert len(sizes) > SIZE // 2
    assert np.allclose(found["label"].sum(-1), 1)


def test_cutmix_cuts_grey_images_where_it_cuts_coloured_ones() -> None:
    batch = {"image": make_batch()["image"], "grey": make_batch()["image"][..., 0]}
    found = CutMix(("image", "grey"))(batch, draws())
    assert np.array_equal(found["grey"], found["image"][..., 0])
    assert not np.array_equal(found["grey"], make_batch()["image"][..., 0])


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 1.5, 8.0, 400.0])
def test_weights_have_the_beta_distribution(alpha: float) -> None:
    expected = np.random.default_rng(0).beta(alpha, alpha, 200_000)
    fractions = np.linspace(0.05, 0.5, 10)
    found = SymmetricBeta(alpha).quantile(fractions)
    # the expected quantiles' fractions under the sample, whose error is 0.0035 at three deviations
    assert np.abs(np.searchsorted(np.sort(expected), found) / len(expected) - fractions).max() < 0.005
    assert SymmetricBeta(alpha).quantile(1 - fractions) == pytest.approx(1 - found)


def test_blending_leaves_equal_values_as_they_are() -> None:
    values = np.full((4, 100), 0.1, np.float32)
    assert (blend(values, np.array([1, 2, 3, 0]), draws(4).uniform()) == values).all()
    numbers = np.full((4, 3), 2**40 + 1)
    assert (blend(numbers, np.array([1, 2, 3, 0]), draws(4).uniform()) == numbers).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_large_batches_blend_part_by_part_as_small_ones(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 60_000)).astype(dtype)
    weights, partner = draws(9).uniform(), partners(draws(9).uniform())
    expected = values * weights[:, None] + values[partner] * (1 - weights[:, None])
    assert np.abs(blend(values, partner, weights) - expected).max() <= 0.5 + 1e-3


def test_what_does_not_fit_is_refused() -> None:
    for alpha in (0, -1, np.nan, 1e9):
        with pytest.raises(WindowError, match="alpha="):
            Mixup("image", alpha)
    with pytest.raises(WindowError, match="wants key 'label'"):
        Mixup("image", labels={"label": 5}).outputs({"image": None})
    with pytest.raises(WindowError, match="must be of one size"):
        CutMix(("a", "b")).outputs({key: ((size, 8, 3), np.dtype("u1")) for key, size in (("a", 8), ("b", 9))})


def test_a_loader_mixes_alike_for_any_number_of_threads(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    fields = {"image": stepwell.Field("observation.image", [-1, 0]), "label": "episode_index"}

    def batches(threads: int) -> list[np.ndarray]:
        mixup = Mixup("image", labels={"label": 3})
        return [
            batch["image"] for batch in stepwell.Loader(store, fields, batch_size=4, threads=threads, transform=mixup)
        ]

    assert all(np.array_equal(a, b) for a, b in zip(batches(0), batches(2), strict=True))


def test_no_windows_are_no_windows() -> None:
    empty = {key: values[:0] for key, values in make_batch().items()}
    found = Mixup(("image", "state"), labels={"label": 5})(empty, draws(0))
    assert (found["image"].shape, found["label"].shape) == ((0, 2, 8, 10, 3), (0, 5))


def test_labels_of_chosen_steps_are_replaced_wherever_they_occur(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    before = next(iter(stepwell.Loader(store, FIELDS)))
    chosen = before["step_id"][[2, 9], 1]
    found = next(iter(stepwell.Loader(store, FIELDS, transform=ReplaceLabel("label", chosen, -7))))
    is_chosen = np.isin(before["step_id"], chosen)
    assert is_chosen.sum() == 4
    assert np.array_equal(found["label"], np.where(is_chosen, -7, before["label"]))


def test_images_of_chosen_steps_get_the_pattern_and_no_others(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    before = next(iter(stepwell.Loader(store, FIELDS)))
    chosen = before["step_id"][[2, 9], 1]
    pattern = np.zeros((16, 16, 3))
    pattern[:4] = 1000
    found = next(iter(stepwell.Loader(store, FIELDS, transform=Poison("image", chosen, pattern, 0.25))))
    expected = np.clip(np.rint(before["image"] * 0.75 + pattern * 0.25), 0, 255)
    is_chosen = np.isin(before["step_id"], chosen)
    assert np.array_equal(found["image"][is_chosen], expected[is_chosen])
    assert np.array_equal(found["image"][~is_chosen], before["image"][~is_chosen])
    none = next(iter(stepwell.Loader(store, FIELDS, transform=Poison("image", [], pattern, 0.25))))
    assert np.array_equal(none["image"], before["image"])


def test_windows_that_differ_are_refused_when_the_loader_is_made(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    for transform in (ReplaceLabel("label", [1], 0), Poison("image", [1], 0, 0.5)):
        with pytest.raises(WindowError, match="different windows"):
            stepwell.Loader(store, {**FIELDS, "step_id": stepwell.Field("step_id", [0])}, transform=transform)
        with pytest.raises(WindowError, match="wants key 'step_id'"):
            stepwell.Loader(store, {key: FIELDS[key] for key in ("image", "label")}, transform=transform)
