import numpy as np
import pytest

import stepwell
from stepwell.errors import WindowError
from stepwell.testing import tiny_store
from stepwell.transforms.chosen_steps import Poison, ReplaceLabel

FIELDS = {
    "image": stepwell.Field("observation.image", [-1, 0]),
    "label": stepwell.Field("step_index", [-1, 0]),
    "step_id": stepwell.Field("step_id", [-1, 0]),
}


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
