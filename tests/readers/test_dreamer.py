"""Dreamer's files are read to the episodes that were written, of V3 across chunks; damage is told."""

from pathlib import Path

import numpy as np
import pytest
from robot_sets import dreamer_rows, write_dreamer_v2, write_dreamer_v3

import stepwell
from stepwell.cli.main import main
from stepwell.errors import FormatError
from stepwell.formats import find_reader, open_reader


@pytest.mark.parametrize(("write", "lengths"), [(write_dreamer_v2, (5, 4, 7)), (write_dreamer_v3, (5, 4, 7, 3))])
def test_episodes_are_those_that_were_written(tmp_path: Path, write, lengths: tuple[int, ...]) -> None:
    root = write(tmp_path / "replay")
    assert find_reader(root).name == "dreamer"
    assert main(["convert", str(root), str(tmp_path / "a.well"), "--workers", "1"]) == 0
    store = stepwell.open(tmp_path / "a.well")
    assert len(store) == len(lengths)
    for number, (episode, length) in enumerate(zip(store, lengths, strict=True)):
        for name, rows in dreamer_rows(length, number).items():
            assert np.array_equal(episode[name], rows), name
        assert (episode.terminated, episode.truncated) == (number % 2 == 0, number % 2 == 1)


@pytest.mark.parametrize(("version", "first"), [("v3", 0.0), ("v2", 0.01)])
def test_a_step_can_be_an_action_with_what_follows(tmp_path: Path, version: str, first: float) -> None:
    reader = open_reader(write_dreamer_v2(tmp_path / "replay"), options={"transitions": version})
    assert reader.schema["image"].final
    columns = reader[0].columns
    assert (len(columns["image"]), len(columns["action"])) == (5, 4)
    assert np.isclose(columns["action"][0], first).all()
    assert columns["reward"].tolist() == [1, 2, 3, 4]
    assert columns["is_terminal"].tolist() == [False, False, False, True]
    assert "is_first" not in columns


def test_chunks_whose_first_one_is_gone_begin_in_the_middle(tmp_path: Path) -> None:
    root = write_dreamer_v3(tmp_path / "replay")
    next(root.glob("*-id0-*")).unlink()
    episodes = list(open_reader(root).episodes())
    assert [len(episode.columns["reward"]) for episode in episodes] == [3, 7, 3]
    assert episodes[0].columns["reward"].tolist() == [1, 2, 3]


def rename(root: Path) -> None:
    path = next(root.glob("*-id1-*"))
    path.rename(path.with_name(path.name.replace("-6.npz", "-7.npz")))


def circle(root: Path) -> None:
    last = next(root.glob("*-0-1.npz"))
    last.rename(last.with_name(last.name.replace("-0-1.npz", "-id0-1.npz")))


def mix(root: Path) -> None:
    np.savez(root / f"20210101T000000-{'a' * 32}-4.npz", **dreamer_rows(5, 0))


def cut(root: Path) -> None:
    path = next(root.glob("*-id2-*"))
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rename, r"should have is_first of 7 rows, as its name says: it has \(6,\)"),
        (circle, r"follow each other in a circle"),
        (mix, r"episodes of V2 and chunks of V3"),
        (cut, r"-id2-.*should hold arrays of numbers"),
    ],
)
def test_what_does_not_fit_together_is_told(tmp_path: Path, change, told: str) -> None:
    root = write_dreamer_v3(tmp_path / "replay")
    change(root)
    with pytest.raises(FormatError, match=told):
        list(open_reader(root, "dreamer").episodes())


def test_an_episode_of_other_rows_than_its_name_says_is_told(tmp_path: Path) -> None:
    root = write_dreamer_v2(tmp_path / "replay")
    path = next(root.glob("*-6.npz"))
    path.rename(path.with_name(path.name.replace("-6.npz", "-5.npz").replace("-5.npz", "-8.npz")))
    with pytest.raises(FormatError, match=r"its name says 8 rows"):
        list(open_reader(root).episodes())
    with pytest.raises(FormatError, match=r"transitions='v1'\. Allowed"):
        open_reader(root, options={"transitions": "v1"})
    with pytest.raises(FormatError, match=r"has no files as Dreamer calls them"):
        open_reader(tmp_path, "dreamer")
