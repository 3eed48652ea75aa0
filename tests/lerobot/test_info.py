"""What meta/info.json says is taken as it is meant, or refused by name."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import FeatureNotFoundError, FormatError
from stepwell.lerobot.info import INDEX_FEATURES, DatasetInfo
from stepwell.schema import Array, Image, Text

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")


def number(shape: list[int], dtype: str = "float32", names: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "names": names}


FEATURES = {
    "observation.state": number([3], names=["x", "y", "z"]),
    "action": number([2], names={"motors": ["left", "right"]}),
    "next.reward": number([1], names=["reward"]),
    "grid": number([2, 3], "int64"),
    "note": number([1], "string"),
    "top": number([48, 64, 3], "video", ["height", "width", "channels"]),
    "side": number([3, 48, 64], "image", ["channels", "height", "width"]),
    **{name: number([1], "float32" if name == "timestamp" else "int64") for name in INDEX_FEATURES},
}
INFO = {
    "codebase_version": "v3.0",
    "fps": 10,
    "features": FEATURES,
    "total_episodes": 2,
    "total_frames": 20,
    "total_tasks": 1,
    "chunks_size": 500,
    "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    "robot_type": "so100",
}


def changed(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(INFO) | changes


def with_feature(name: str, entry: Any) -> dict[str, Any]:
    return changed(features={**copy.deepcopy(FEATURES), name: entry})


def test_features_are_those_of_a_store() -> None:
    info = DatasetInfo.parse(INFO)
    features = {name: entry.feature for name, entry in info.features.items()}
    assert features["observation.state"] == Array(3, names=["x", "y", "z"])
    assert features["action"] == Array(2, names=["left", "right"])
    assert features["next.reward"] == Array(())
    assert features["grid"] == Array((2, 3), "int64")
    assert features["note"] == Text()
    assert features["top"] == features["side"] == Image((48, 64, 3), codec="png")
    assert features["timestamp"] == Array((), "float32")
    assert list(features) == list(FEATURES)


def test_keys_are_told_apart() -> None:
    info = DatasetInfo.parse(INFO)
    assert (info.cameras, info.video_keys, info.image_keys) == (("top", "side"), ("top",), ("side",))
    assert tuple(name for name, entry in info.features.items() if entry.is_index) == INDEX_FEATURES
    assert [name for name, entry in info.features.items() if entry.is_text] == ["note"]
    assert (info.is_v3, info.fps, info.chunks_size, info.robot_type) == (True, 10.0, 500, "so100")
    assert info.raw == INFO


def test_files_are_named_by_the_templates() -> None:
    info = DatasetInfo.parse(INFO)
    assert info.data_name(1, 20) == "data/chunk-001/file-020.parquet"
    assert info.video_name("top", 0, 3) == "videos/top/chunk-000/file-003.mp4"
    with pytest.raises(FeatureNotFoundError, match="'side'"):
        info.video_name("side", 0, 3)


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_what_is_left_out_is_what_the_version_has_by_default(version: str) -> None:
    raw = {name: INFO[name] for name in ("fps", "features", "total_episodes", "total_frames")}
    info = DatasetInfo.parse({"codebase_version": version, **raw})
    assert info.data_name(0, 17) == "data/chunk-000/episode_000017.parquet"
    assert info.video_name("top", 2, 2017) == "videos/chunk-002/top/episode_002017.mp4"
    assert (info.chunks_size, info.robot_type) == (1000, None)


@pytest.mark.parametrize("fps", [10, 29.97, 0.5])
def test_rate_may_be_a_fraction(fps: float) -> None:
    assert DatasetInfo.parse(changed(fps=fps)).fps == fps


def test_dataset_without_videos_needs_no_path_of_them() -> None:
    features = {name: entry for name, entry in FEATURES.items() if name != "top"}
    assert DatasetInfo.parse(changed(features=features, video_path=None)).video_path is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"codebase_version": "v1.6"}, "codebase_version is 'v1.6'.*v2.0, v2.1, v3.0.*converter"),
        ({"codebase_version": None}, "codebase_version is None"),
        ({"storage_format": "lance"}, "storage_format is 'lance'"),
        ({"fps": 0}, "fps is 0"),
        ({"fps": True}, "fps is True"),
        ({"fps": "10"}, "fps is '10'"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": 10**400}, "fps is 1"),
        ({"fps": 5e-324}, "fps is 5e-324"),
        ({"total_episodes": -1}, "total_episodes is -1"),
        ({"total_frames": 1.5}, "total_frames is 1.5"),
        ({"chunks_size": 0}, "chunks_size is 0.*at least 1"),
        ({"features": []}, "features is"),
        ({"data_path": "/etc/passwd"}, "data_path is '/etc/passwd'.*relative path"),
        ({"data_path": "data/../../x"}, "data_path"),
        ({"data_path": "data/{file_index.__class__}"}, "data_path"),
        ({"data_path": "data/{file_index:0999999d}"}, "data_path"),
        ({"data_path": "data/{file_index!r}"}, "data_path"),
        ({"data_path": "data/{episode_index}"}, "data_path.*chunk_index, file_index"),
        ({"data_path": "data/{"}, "data_path"),
        ({"data_path": ""}, "data_path"),
        ({"video_path": None}, "video_path is None"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=f"the/info.json.*{says}"):
        DatasetInfo.parse(changed(**change), "the/info.json")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (None, "is None"),
        (number([3], "complex64"), "dtype is 'complex64'.*float32"),
        (number([3], "object"), "dtype is 'object'"),
        (number([]), r"shape is \[\]"),
        (number([0]), r"shape is \[0\]"),
        (number([1] * 6), "1 to 5 sizes"),
        (number([True]), r"shape is \[True\]"),
        (number([2], "string"), "shape of a string"),
        (number([48, 64], "image"), "height, width and channels"),
        (number([48, 64, 7], "video"), "cannot be stored"),
        (number([2], "language"), "shape of a language"),
    ],
)
def test_feature_that_cannot_be_is_refused_by_name_and_can_be_left_out(entry: Any, says: str) -> None:
    raw = with_feature("odd", entry)
    with pytest.raises(FormatError, match=f"feature 'odd'.*{says}"):
        DatasetInfo.parse(raw)
    assert "odd" not in DatasetInfo.parse(raw, ignore=["odd"]).features


@pytest.mark.parametrize(
    ("dtype", "about", "is_depth"),
    [
        ("video", {"info": {"is_depth_map": True}}, True),
        ("image", {"info": {"video.is_depth_map": True}}, True),
        ("video", {"video_info": {"video.is_depth_map": True}}, True),
        ("video", {"info": {"is_depth_map": False, "video.is_depth_map": False}}, False),
        ("image", {"info": None, "video_info": 3}, False),
        ("float32", {"info": {"is_depth_map": True}}, False),
    ],
)
def test_depth_maps_are_told_by_the_new_mark_or_the_old_ones(dtype: str, about: Any, is_depth: bool) -> None:
    found = DatasetInfo.parse(with_feature("odd", {**number([8, 16, 1], dtype), **about})).features["odd"]
    assert found.is_depth == is_depth
    assert (found.feature.dtype == "<u2") == is_depth


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\0b"])
def test_feature_name_that_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="name"):
        DatasetInfo.parse(with_feature(name, number([3])))


@pytest.mark.parametrize("name", INDEX_FEATURES)
def test_column_that_every_dataset_has_must_be_there_and_a_number(name: str) -> None:
    with pytest.raises(FormatError, match=f"no '{name}'"):
        DatasetInfo.parse(INFO, ignore=[name])
    with pytest.raises(FormatError, match=f"'{name}' is string"):
        DatasetInfo.parse(with_feature(name, number([1], "string")))


@pytest.mark.parametrize("raw", [None, [], "v3.0", 3])
def test_what_is_no_object_is_refused(raw: Any) -> None:
    with pytest.raises(FormatError, match="codebase_version"):
        DatasetInfo.parse(raw)


@needs_data
@pytest.mark.parametrize("name", ["v21_png", "v21_video", "v30_png", "v30_video"])
def test_real_datasets_are_read(name: str) -> None:
    info = DatasetInfo.parse(json.loads((SHARED / name / "meta" / "info.json").read_text()))
    kind = "video_keys" if name.endswith("video") else "image_keys"
    assert getattr(info, kind) == info.cameras == ("observation.images.top", "observation.images.side")
    assert info.features["observation.images.top"].feature == Image((96, 96, 3), codec="png")
    assert info.features["observation.grid"].feature == Array((2, 3), "int64")
    assert len(info.features["action"].feature.names or ()) == 14
