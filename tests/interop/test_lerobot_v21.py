"""v2.1 datasets, both ways, beside lerobot 0.3."""

import pytest
from interop_sets import CAMERAS, SHARED, assert_same_items, opened, ours, some_deltas, some_indices

import stepwell

pytestmark = pytest.mark.lerobot21


@pytest.mark.parametrize("name", ["v21_png", "v21_video"])
@pytest.mark.parametrize("seed", range(4))
def test_items_of_the_samples_are_equal_for_any_windows(name, seed, tmp_path, monkeypatch):
    if not SHARED.is_dir():
        pytest.skip("the samples of ../shared are not here")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    keys = ["action", "observation.state", "observation.grid", "observation.images.top", "observation.images.side"]
    deltas = some_deltas(seed, keys)
    theirs = opened(SHARED / name, deltas)
    assert_same_items(ours(SHARED / name, deltas), theirs, some_indices(seed, len(theirs)), inexact=CAMERAS)


@pytest.mark.parametrize("cameras", ["image", "video"])
def test_what_is_written_here_lerobot_reads_with_equal_items(store, tmp_path, cameras, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "set"
    stepwell.lerobot.write_dataset(store, root, cameras=cameras, version="v2.1")
    for seed in range(4):
        deltas = some_deltas(seed, list(store.schema))
        theirs = opened(root, deltas)
        inexact = CAMERAS if cameras == "video" else ()
        assert_same_items(ours(root, deltas), theirs, some_indices(seed, len(theirs)), inexact=inexact)
