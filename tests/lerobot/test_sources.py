"""What is written for a dataset is a directory or a repository, never a guess between them."""

from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.lerobot.hub import Source, parse_episodes, parse_source

HERE = Source("directory", path=Path())


def hub(repo_id: str, **more: Any) -> Source:
    return Source("hub", repo_id=repo_id, **more)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("lerobot:///data/push t", Source("directory", path=Path("/data/push t"))),
        ("lerobot:///data/a%3Fb%25", Source("directory", path=Path("/data/a?b%"))),
        ("lerobot:///data/x@y?episodes=3", Source("directory", path=Path("/data/x@y"), episodes=(3,))),
        ("lerobot://./rel", Source("directory", path=Path("rel"))),
        ("lerobot://../rel", Source("directory", path=Path("../rel"))),
        ("lerobot://.", Source("directory", path=Path())),
        ("lerobot://~/rel", Source("directory", path=Path.home() / "rel")),
        ("lerobot://lerobot/pusht", hub("lerobot/pusht")),
        ("lerobot://lerobot/pusht@v2.1", hub("lerobot/pusht", revision="v2.1")),
        ("lerobot://lerobot/pusht@refs%2Fpr%2F1", hub("lerobot/pusht", revision="refs/pr/1")),
        ("lerobot://a/b.c-d_e?episodes=0:10,15", hub("a/b.c-d_e", episodes=(slice(0, 10), 15))),
        ("lerobot://a/b@main?episodes=-5:", hub("a/b", revision="main", episodes=(slice(-5, None),))),
        ("lerobot/pusht", hub("lerobot/pusht")),
    ],
)
def test_address_means_one_thing(text: str, source: Source) -> None:
    assert parse_source(text) == source


def test_directory_that_is_there_wins_over_a_repository_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lerobot" / "pusht").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_source("lerobot/pusht") == Source("directory", path=Path("lerobot/pusht"))
    assert parse_source("lerobot://lerobot/pusht") == hub("lerobot/pusht")
    assert parse_source(tmp_path) == Source("directory", path=tmp_path)


def test_a_file_address_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    found = Source("directory", path=tmp_path / "a b")
    assert parse_source(f"file://{tmp_path}/a%20b") == parse_source(f"lerobot://file://{tmp_path}/a%20b") == found


@pytest.mark.parametrize("text", ["/none/such", "./a/b", "a/b/c", "pusht", "", "a b/c", "-a/b"])
def test_path_that_is_not_there_is_not_asked_for_on_the_hub(text: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="Allowed: a directory"):
        parse_source(text)


def test_path_object_is_never_a_repository() -> None:
    with pytest.raises(DatasetNotFoundError, match="lerobot/pusht"):
        parse_source(Path("lerobot/pusht"))


@pytest.mark.parametrize(
    "text", ["lerobot://", "lerobot://pusht", "lerobot://a/b/c", "lerobot://a/b@", "lerobot://a/é"]
)
def test_address_that_names_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="names no dataset"):
        parse_source(text)


def test_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(FormatError, match="the part 'split'"):
        parse_source("lerobot://a/b?split=train")


@pytest.mark.parametrize("text", ["", "a", "-1", "1:2:3", "1,,2", "1.5", "²", "1" * 13])
def test_list_of_episodes_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="Allowed: numbers and ranges"):
        parse_episodes(text)


def test_list_of_episodes_has_numbers_and_slices() -> None:
    assert parse_episodes("3, 0:2,:,7:") == (3, slice(0, 2), slice(None, None), slice(7, None))


def test_a_negative_number_alone_is_told_how_it_is_written() -> None:
    with pytest.raises(FormatError, match="the last is -1:"):
        parse_episodes("-1")
