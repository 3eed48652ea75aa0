"""Metadata names what a dataset holds and where, and whatever is wrong with its files is a FormatError."""

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import DatasetNotFoundError, EpisodeNotFoundError, FormatError, LeftOutWarning
from stepwell.lerobot import Metadata
from stepwell.lerobot.metadata import read_info, select_episodes
from stepwell.testing import TINY_TASKS, tiny_lerobot

pytest.importorskip("pyarrow")
pytest.importorskip("av")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
CAMERAS = {"top": ("video", (16, 16)), "wrist": ("video", (16, 16)), "side": ("png", (16, 16))}
VERSIONS = ["v2.0", "v2.1", "v3.0"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One dataset of every version, which no test changes."""
    folder = tmp_path_factory.mktemp("lerobot")
    lengths = [4, 6, 3, 5]
    return {v: tiny_lerobot(folder / v, version=v, lengths=lengths, cameras=CAMERAS, files=2) for v in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_that_is_named_is_there_and_no_other(roots: dict[str, Path], version: str) -> None:
    metadata = Metadata.load(roots[version])
    data, videos = metadata.data_files(metadata.selected), metadata.video_files(metadata.selected)
    assert set(data) == set((roots[version] / "data").rglob("*.parquet"))
    assert set(videos) == set((roots[version] / "videos").rglob("*.mp4"))
    assert (len(set(data)), len(set(videos))) == (len(data), len(videos))


def test_files_of_some_episodes_are_few(roots: dict[str, Path]) -> None:
    metadata = Metadata.load(roots["v3.0"])
    assert [path.name for path in metadata.data_files([2, 3])] == ["file-001.parquet"]
    assert len(metadata.video_files([0])) == 2
    assert metadata.data_files([]) == metadata.video_files([]) == []
    assert [path.name for path in Metadata.load(roots["v2.1"]).data_files([3, 1])] == [
        "episode_000003.parquet",
        "episode_000001.parquet",
    ]


def test_metadata_of_all_versions_say_the_same(roots: dict[str, Path]) -> None:
    old, middle, new = (Metadata.load(roots[version]) for version in VERSIONS)
    assert old.tasks == middle.tasks == new.tasks == TINY_TASKS
    assert list(old.episodes.tasks) == list(middle.episodes.tasks) == list(new.episodes.tasks)
    assert old.episodes.stop.tolist() == middle.episodes.stop.tolist() == new.episodes.stop.tolist()
    assert [metadata.info.version for metadata in (old, middle, new)] == VERSIONS


@needs_data
@pytest.mark.parametrize("name", ["v21_png", "v21_video", "v30_png", "v30_video"])
def test_real_datasets_are_read(name: str) -> None:
    metadata = Metadata.load(SHARED / name)
    assert metadata.episodes.stop[-1] == metadata.info.total_frames
    files = metadata.data_files(metadata.selected) + metadata.video_files(metadata.selected)
    assert all(path.exists() for path in files)
    assert metadata.stats is not None
    assert set(metadata.episodes.tasks[1]) == {"Push the T-block onto the green T", "Second half: another task"}


def test_root_is_absolute_and_its_links_are_kept(
    roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(roots["v3.0"])
    monkeypatch.chdir(tmp_path)
    assert Metadata.load("link").root == tmp_path / "link"


@pytest.mark.parametrize(
    ("episodes", "places"),
    [
        (None, [0, 1, 2, 3]),
        ([2], [2]),
        ([3, 0, 3], [0, 3]),
        (range(1, 3), [1, 2]),
        (np.array([1]), [1]),
        ([slice(2, None), 0], [0, 2, 3]),
        ([slice(-1, None)], [3]),
        ([slice(2, 100)], [2, 3]),
        ([], []),
    ],
)
def test_episodes_that_are_asked_for_are_selected_in_order(roots: dict[str, Path], episodes: Any, places: Any) -> None:
    metadata = Metadata.load(roots["v3.0"], episodes=episodes)
    assert (metadata.selected.tolist(), metadata.selected.dtype) == (places, np.int64)
    assert len(metadata.episodes) == 4


@pytest.mark.parametrize("number", [-1, 4, 10**30])
def test_episode_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(EpisodeNotFoundError, match=f"no episode {number} in x. Allowed: 0 to 3"):
        select_episodes([number], 4, "x")


def test_directory_without_a_dataset_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"there is no meta/info\.json\. Give the directory"):
        Metadata.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Metadata.load(tmp_path / "none")


def test_features_can_be_left_out_with_their_videos(roots: dict[str, Path]) -> None:
    metadata = Metadata.load(roots["v3.0"], ignore=["top", "action"])
    assert "action" not in metadata.info.features
    assert {path.parts[-3] for path in metadata.video_files(metadata.selected)} == {"wrist"}


def test_pickle_holds_all_but_statistics(roots: dict[str, Path]) -> None:
    metadata = Metadata.load(roots["v2.1"], episodes=[1], repo_id="me/tiny", revision="v2.1")
    _ = metadata.stats
    copy = pickle.loads(pickle.dumps(metadata))
    assert "stats" in vars(metadata) and "stats" not in vars(copy)
    assert (copy.repo_id, copy.revision, copy.selected.tolist()) == ("me/tiny", "v2.1", [1])
    assert copy.stats["action"]["mean"].tolist() == metadata.stats["action"]["mean"].tolist()


JUNK = [None, True, -1, 0, 2**31, 2**70, 1.5, float("nan"), "", "../x", "{x}", [], [[1]], {}, {"a": 1}, ["a"], "video"]


def damaged(path: Path, how: random.Random) -> None:
    """Remove a file, cut it, change some of its bits, or put another value somewhere into its JSON."""
    data = bytearray(path.read_bytes())
    kind = how.choice(["remove", "cut", "flip", "value", "value", "value"])
    if kind == "remove":
        path.unlink()
        return
    if kind == "cut":
        del data[how.randrange(len(data)) :]
    elif kind == "flip" or path.suffix == ".parquet":
        for _ in range(how.choice([1, 1, 5])):
            data[how.randrange(len(data))] ^= 1 << how.randrange(8)
    else:
        lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
        number = how.randrange(len(lines))
        lines[number] = json.dumps(other_value(json.loads(lines[number]), how))
        data = bytearray("\n".join(lines).encode())
    path.write_bytes(data)


def other_value(value: Any, how: random.Random) -> Any:
    """Return JSON with one value replaced, at any depth."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or how.random() < 0.2:
        return how.choice(JUNK)
    key = how.choice(keys)
    value[key] = other_value(value[key], how)
    return value


@pytest.mark.filterwarnings("ignore::stepwell.errors.LeftOutWarning")
@settings(max_examples=120)
@given(seed=st.integers(0, 2**32), version=st.sampled_from(VERSIONS))
def test_damaged_meta_files_are_refused_or_read_as_they_say(
    seed: int, version: str, roots: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, how = tmp_path_factory.mktemp("damaged"), random.Random(seed)
    shutil.copytree(roots[version] / "meta", root / "meta")
    damaged(how.choice(sorted(path for path in root.rglob("*") if path.is_file())), how)
    try:
        metadata = Metadata.load(root)
        _ = metadata.stats, [metadata.episode_stats(place) for place in metadata.selected]
    except (FormatError, DatasetNotFoundError) as error:
        assert "meta/" in str(error)
        return
    finally:
        shutil.rmtree(root)
    records, info = metadata.episodes, metadata.info
    assert len(records) == info.total_episodes == len(records.tasks)
    assert all(isinstance(text, str) for text in (*metadata.tasks, *(t for tasks in records.tasks for t in tasks)))
    assert (records.length >= 0).all()
    assert all(path.is_relative_to(root) for path in metadata.data_files(metadata.selected))
    assert set(records.videos) == set(info.video_keys)


def test_repr_says_what_it_is(roots: dict[str, Path]) -> None:
    assert repr(Metadata.load(roots["v2.0"])) == "<Metadata v2.0  v2.0  10 fps  4 episodes>"
    assert "1 of 4" in repr(Metadata.load(roots["v2.0"], episodes=[1]))
    assert read_info(roots["v2.0"]).fps == 10


def test_repr_of_one_episode_is_in_the_singular(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "one", episodes=1, cameras={})
    assert repr(Metadata.load(root)) == "<Metadata one  v3.0  10 fps  1 episode>"


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_counts_of_info_json_that_the_episodes_do_not_have_are_told(tmp_path: Path, version: Any) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras={})
    info = json.loads((root / "meta/info.json").read_text())
    whole = Metadata.load(root)
    (root / "meta/info.json").write_text(json.dumps(info | {"total_frames": info["total_frames"] + 1}))
    with pytest.warns(LeftOutWarning, match=rf"counts {info['total_frames'] + 1} frames, the episodes in meta/ have"):
        assert len(Metadata.load(root).episodes) == len(whole.episodes)
    # fewer episodes, as a reader sees them whose writer is appending, have fewer frames
    first = int(whole.episodes.length[:1].sum())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 1, "total_frames": first}))
    assert len(Metadata.load(root).episodes) == 1
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 1}))
    with pytest.raises(FormatError, match=r"counts 1 episodes and \d+ frames; meta/ describes 3 episodes"):
        Metadata.load(root)
