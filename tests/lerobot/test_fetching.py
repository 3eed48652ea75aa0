"""Files that are fetched when an episode needs them, and gone after the last one."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from stepwell.lerobot.reader import FetchedFiles

USERS = {
    "data/0.parquet": np.array([0, 1, 2]),
    "data/1.parquet": np.array([3, 4]),
    "videos/top/0.mp4": np.array([0, 1]),
    "videos/top/1.mp4": np.array([2, 3, 4]),
}


class Fetch:
    """Writes a file, and its name into a log."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, name: str, directory: Path) -> None:
        with self.log.open("a") as file:
            file.write(f"{name}\n")
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x" * 100)


@pytest.fixture
def fetch(tmp_path):
    return Fetch(tmp_path / "log")


def need(files, episode):
    for name, users in USERS.items():
        if episode in users:
            files.need(name)


def there(directory):
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*.*") if "/." not in str(path)}


def test_a_file_is_fetched_once_and_goes_after_its_last_episode(tmp_path, fetch):
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.plan(np.arange(5))
    seen = []
    for episode in range(5):
        need(files, episode)
        need(files, episode)
        seen.append(there(tmp_path / "f"))
        files.done(np.array([episode]))
    first, second = {"data/0.parquet", "videos/top/0.mp4"}, {"data/1.parquet", "videos/top/1.mp4"}
    assert seen == [first, first, {"data/0.parquet", "videos/top/1.mp4"}, second, second]
    assert there(tmp_path / "f") == set()
    assert sorted(fetch.log.read_text().split()) == sorted(USERS)


def test_a_file_stays_for_the_episode_of_another_worker(tmp_path, fetch):
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.plan(np.arange(5))
    other = pickle.loads(pickle.dumps(files))
    need(files, 0)
    need(other, 4)
    other.done(np.array([3, 4]))
    assert there(tmp_path / "f") == {"data/0.parquet", "videos/top/0.mp4", "videos/top/1.mp4"}
    files.done(np.array([0, 1, 2]))
    assert there(tmp_path / "f") == set()


def test_what_is_done_already_is_not_waited_for(tmp_path, fetch):
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.plan(np.array([2]))
    need(files, 2)
    files.done(np.array([2]))
    assert there(tmp_path / "f") == set()


def test_what_another_import_left_is_used_if_it_is_needed_and_goes_if_not(tmp_path, fetch):
    before = FetchedFiles(tmp_path / "f", USERS, fetch)
    before.plan(np.arange(5))
    need(before, 0)
    need(before, 4)
    before.done(np.array([3]))
    fetch.log.unlink()
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.plan(np.array([3, 4]))
    assert there(tmp_path / "f") == {"data/1.parquet", "videos/top/1.mp4"}
    need(files, 3)
    files.done(np.array([4]))
    assert there(tmp_path / "f") == {"data/1.parquet", "videos/top/1.mp4"}
    assert not fetch.log.exists()


def test_a_link_to_a_cache_goes_and_the_cache_stays(tmp_path):
    cached = tmp_path / "cached"
    cached.write_bytes(b"mine")

    def link(name, directory):
        (directory / name).symlink_to(cached)

    files = FetchedFiles(tmp_path / "f", {"a.mp4": np.array([0])}, link)
    files.plan(np.array([0]))
    files.need("a.mp4")
    assert (tmp_path / "f" / "a.mp4").read_bytes() == b"mine"
    files.done(np.array([0]))
    assert not (tmp_path / "f" / "a.mp4").is_symlink()
    assert cached.read_bytes() == b"mine"


def test_a_link_to_what_a_cache_has_no_more_is_replaced(tmp_path, fetch):
    (tmp_path / "f" / "data").mkdir(parents=True)
    (tmp_path / "f" / "data" / "1.parquet").symlink_to(tmp_path / "gone")
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.need("data/1.parquet")
    assert (tmp_path / "f" / "data" / "1.parquet").read_bytes() == b"x" * 100
    assert not (tmp_path / "gone").exists()


def test_space_is_free_at_once_though_somebody_has_the_file_open(tmp_path, fetch):
    files = FetchedFiles(tmp_path / "f", USERS, fetch)
    files.plan(np.array([4]))
    need(files, 4)
    with (tmp_path / "f" / "data" / "1.parquet").open("rb") as file:
        files.done(np.array([4]))
        assert file.read() == b""


def test_a_file_that_cannot_be_fetched_is_tried_again(tmp_path, fetch):
    failing = [True]

    def flaky(name, directory):
        if failing:
            failing.pop()
            raise OSError("no network")
        fetch(name, directory)

    files = FetchedFiles(tmp_path / "f", USERS, flaky)
    files.plan(np.arange(5))
    with pytest.raises(OSError, match="no network"):
        need(files, 0)
    need(files, 0)
    assert there(tmp_path / "f") == {"data/0.parquet", "videos/top/0.mp4"}
