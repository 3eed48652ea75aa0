"""Tiny LeRobot datasets have the layout of those that the real library wrote, and the values that are promised."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.testing import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows

pq = pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
CAMERAS = {"observation.images.top": ("video", (32, 48)), "observation.images.side": ("png", (16, 24))}
COMMON = ("action", "next.reward", "next.done", "observation.grid", "timestamp", "index", "task_index")


def shapes_of_names(root: Path) -> set[str]:
    """Return the names of all files with their numbers and the cameras' names blotted out."""
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {re.sub(r"observation\.images\.\w+", "CAMERA", re.sub(r"\d", "0", name)) for name in names}


def info_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "meta" / "info.json").read_text())


def first_table(root: Path) -> Any:
    return pq.read_schema(min((root / "data").rglob("*.parquet")))


@needs_data
@pytest.mark.parametrize("name", ["v30_png", "v30_video", "v21_png", "v21_video"])
def test_layout_is_that_of_a_dataset_of_the_real_library(tmp_path: Path, name: str) -> None:
    real, kind = SHARED / name, name.split("_")[1]
    version = {"v30": "v3.0", "v21": "v2.1"}[name[:3]]
    tiny = tiny_lerobot(tmp_path / "tiny", version=version, cameras={"observation.images.top": (kind, (16, 16))})
    assert shapes_of_names(tiny) == shapes_of_names(real)
    ours, theirs = info_of(tiny), info_of(real)
    assert ours.keys() == theirs.keys()
    for key in ("codebase_version", "data_path", "video_path"):
        assert ours[key] == theirs[key]
    for feature in (*COMMON, "observation.images.top"):
        assert ours["features"][feature].keys() == theirs["features"][feature].keys()
        assert ours["features"][feature]["dtype"] == theirs["features"][feature]["dtype"]
    assert list(ours["features"])[-5:] == list(theirs["features"])[-5:]


@needs_data
def test_columns_have_the_types_of_the_real_library(tmp_path: Path) -> None:
    ours, theirs = first_table(tiny_lerobot(tmp_path / "tiny")), first_table(SHARED / "v30_png")
    for name in ("next.reward", "next.done", "observation.images.top", "timestamp", "frame_index", "task_index"):
        assert ours.field(name).type == theirs.field(name).type
    assert ours.field("action").type.list_size == 2
    assert (
        ours.field("observation.grid").type.value_type.value_type
        == theirs.field("observation.grid").type.value_type.value_type
    )
    described = json.loads(ours.metadata[b"huggingface"])["info"]["features"]
    assert list(described) == ours.names
    assert described["observation.grid"] == {"shape": [2, 3], "dtype": "int64", "_type": "Array2D"}


@needs_data
def test_table_of_episodes_has_the_columns_of_the_real_library(tmp_path: Path) -> None:
    cameras = {"observation.images.top": ("video", (16, 16)), "observation.images.side": ("video", (16, 16))}
    tiny = tiny_lerobot(tmp_path / "tiny", cameras=cameras)
    name = "meta/episodes/chunk-000/file-000.parquet"
    ours, theirs = pq.read_schema(tiny / name), pq.read_schema(SHARED / "v30_video" / name)
    plain = [[n for n in schema.names if not n.startswith("stats/")] for schema in (ours, theirs)]
    assert sorted(plain[0]) == sorted(plain[1])
    for column in plain[0]:
        assert ours.field(column).type == theirs.field(column).type
    both = [n for n in ours.names if n in theirs.names and n.startswith("stats/")]
    assert "stats/observation.images.top/q99" in both
    tasks = [pq.read_schema(root / "meta" / "tasks.parquet") for root in (tiny, SHARED / "v30_video")]
    assert tasks[0].names == tasks[1].names


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_columns_hold_the_rows_that_are_promised(tmp_path: Path, version: str) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, lengths=[4, 6, 3], fps=20, files=2)
    table = pq.read_table(sorted((root / "data").rglob("*.parquet")))
    expected = [tiny_lerobot_rows(episode, length, fps=20) for episode, length in enumerate([4, 6, 3])]
    for name in expected[0]:
        found = table.column(name).to_pylist()
        assert np.array_equal(np.array(found), np.concatenate([rows[name] for rows in expected])), name
    assert table.column("index").to_pylist() == list(range(13))


def test_second_episode_has_two_tasks(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version="v2.1", lengths=[4, 6, 3])
    tasks = [json.loads(line)["tasks"] for line in (root / "meta" / "episodes.jsonl").read_text().splitlines()]
    assert tasks == [[TINY_TASKS[0]], [TINY_TASKS[1], TINY_TASKS[2]], [TINY_TASKS[0]]]


def test_png_holds_the_picture_exactly(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", lengths=[3, 2], cameras={"a": ("png", (16, 16)), "b": ("png", (20, 30))})
    table = pq.read_table(root / "data" / "chunk-000" / "file-000.parquet")
    data = table.column("b").to_pylist()[4]["bytes"]
    codec = av.CodecContext.create("png", "r")
    (frame,) = [*codec.decode(av.Packet(data)), *codec.decode(None)]
    assert np.array_equal(frame.to_ndarray(format="rgb24"), tiny_lerobot_picture(1, 1, 1, (20, 30)))


def test_every_frame_of_a_video_shows_its_step_at_its_time_and_episodes_begin_with_key_frames(tmp_path: Path) -> None:
    lengths = [5, 4, 7]
    root = tiny_lerobot(tmp_path / "tiny", lengths=lengths, cameras={"top": ("video", (32, 48))}, files=2)
    episodes = pq.read_table(root / "meta" / "episodes").to_pylist()
    for episode, record in enumerate(episodes):
        path = root / f"videos/top/chunk-000/file-{record['videos/top/file_index']:03d}.mp4"
        with av.open(str(path)) as container:
            frames = {round(float(frame.pts * frame.time_base), 6): frame for frame in container.decode(video=0)}
        start = record["videos/top/from_timestamp"]
        assert frames[round(start, 6)].key_frame
        for step in range(lengths[episode]):
            shown = frames[round(start + step / 10, 6)].to_ndarray(format="rgb24")[:, :20].mean()
            assert abs(shown - tiny_lerobot_picture(0, episode, step, (32, 48))[0, 0, 0]) < 4


def test_files_are_cut_elsewhere_for_each_camera(tmp_path: Path) -> None:
    cameras = {"a": ("video", (16, 16)), "b": ("video", (16, 16))}
    root = tiny_lerobot(tmp_path / "tiny", lengths=[2, 2, 2, 2], cameras=cameras, files=2)
    table = pq.read_table(root / "meta" / "episodes")
    names = ("data/file_index", "videos/a/file_index", "videos/b/file_index")
    cuts = {tuple(table.column(name).to_pylist()) for name in names}
    assert len(cuts) == 3
    assert all(set(cut) == {0, 1} for cut in cuts)


@pytest.mark.parametrize(("version", "name"), [("v3.0", "chunk-002/file-000"), ("v2.1", "chunk-002/episode_000002")])
def test_directories_are_full_with_chunks_size_files(tmp_path: Path, version: str, name: str) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, files=3, chunks_size=1, cameras={})
    assert (root / "data" / f"{name}.parquet").exists()


def test_same_arguments_give_the_same_values_and_another_seed_others(tmp_path: Path) -> None:
    roots = [tiny_lerobot(tmp_path / name, seed=seed, cameras={}) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    one, same, other = [pq.read_table(root / "data") for root in roots]
    assert one.equals(same)
    assert not one.equals(other)


def test_root_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        tiny_lerobot(tmp_path)
