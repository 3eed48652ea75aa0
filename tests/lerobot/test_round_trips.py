"""Datasets opened in place, written anew, and opened again: every value is the same, pictures too."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")

from stepwell.lerobot import write_dataset
from stepwell.lerobot.in_place import open_in_place
from stepwell.lerobot.metadata import Metadata
from stepwell.testing.lerobot import tiny_lerobot

REAL = Path(__file__).parents[3] / "shared/data/lerobot"
CAMERAS = {"observation.images.top": ("png", (32, 48)), "observation.images.side": ("video", (48, 64))}


def assert_same(found, expected):
    assert list(found.schema) == list(expected.schema)
    assert len(found) == len(expected)
    for number in range(len(expected)):
        mine, theirs = found[number], expected[number]
        # of several lerobot keeps no order
        assert sorted(mine.metadata["tasks"]) == sorted(theirs.metadata["tasks"])
        for name in expected.schema:
            if expected.schema[name].kind == "text":
                assert mine[name] == theirs[name]
            else:
                assert mine[name].dtype == theirs[name].dtype
                assert np.array_equal(mine[name], theirs[name]), (number, name)


def written_anew(source, root, version, cache, episodes=None, **options):
    with open_in_place(source, cache=cache, episodes=episodes) as before:
        metadata = write_dataset(before, root, version=version, workers=0, **options)
        with open_in_place(root, cache=cache) as after:
            assert_same(after, before)
    return metadata


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("source", ["v3.0", "v2.1", "v2.0"])
def test_a_dataset_written_anew_is_the_same(tmp_path, source, version):
    root = tiny_lerobot(tmp_path / "old", version=source, cameras=CAMERAS, lengths=[4, 7, 5], files=2)
    metadata = written_anew(root, tmp_path / "new", version, tmp_path / "cache")
    old = Metadata.load(root)
    assert metadata.tasks == old.tasks
    for name, info in old.info.features.items():
        assert (metadata.info.features[name].dtype, metadata.info.features[name].shape) == (info.dtype, info.shape)
        assert metadata.info.features[name].names == info.names


def test_files_of_one_episode_each_are_the_same(tmp_path):
    root = tiny_lerobot(tmp_path / "old", cameras=CAMERAS, lengths=[4, 7, 5])
    metadata = written_anew(
        root, tmp_path / "new", "v3.0", tmp_path / "cache", data_files_mb=0.001, video_files_mb=0.001
    )
    assert metadata.episodes.data_file.tolist() == [0, 1, 2]
    assert metadata.episodes.videos["observation.images.side"].file.tolist() == [0, 1, 2]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real datasets are not in ../shared/data/lerobot")
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("name", ["v30_png", "v30_video", "v21_png", "v21_video"])
def test_real_datasets_written_anew_are_the_same(tmp_path, name, version):
    # the second has two tasks; the files of a camera are split
    cache, sizes = tmp_path / "cache", {"video_files_mb": 0.05, "data_files_mb": 1}
    written_anew(REAL / name, tmp_path / "new", version, cache, episodes=[0, 1], **sizes)
