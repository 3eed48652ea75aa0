"""A fingerprint changes with names, sizes and times of files, and is the same otherwise."""

import os
from pathlib import Path

from stepwell.formats.fingerprints import digest_of, listed, walked


def make(root: Path) -> Path:
    (root / "a" / "b").mkdir(parents=True)
    for name in ("one", "two", "b/three"):
        (root / "a" / name).write_text(name)
    return root / "a"


def test_files_of_a_directory_are_listed_and_of_those_below_walked(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert sorted(Path(entry[0]).name for entry in listed(folder)) == ["one", "two"]
    assert [(Path(path).name, size) for path, size, _ in listed(folder, {"two", "none"})] == [("two", 3)]
    assert sorted(Path(entry[0]).name for entry in walked(folder)) == ["one", "three", "two"]


def test_directory_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert list(listed(tmp_path / "none")) == list(walked(tmp_path / "none")) == []
    assert list(listed(make(tmp_path) / "one")) == []


def test_links_are_followed_and_broken_ones_left_out(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "link").symlink_to(folder / "b" / "three")
    (folder / "broken").symlink_to(folder / "none")
    assert {Path(path).name: size for path, size, _ in listed(folder)} == {"one": 3, "two": 3, "link": 7}


def test_digest_depends_on_every_part_and_not_on_the_order() -> None:
    one, two = ("a", 1, 2), ("b", 1, 2)
    digests = [
        digest_of([one, two]),
        digest_of([one]),
        digest_of([("a", 1, 3)]),
        digest_of([("a", 2, 2)]),
        digest_of([one], b"x"),
        digest_of([one], b"x", b""),
        digest_of([one], b"", b"x"),
    ]
    assert len(set(digests)) == len(digests)
    assert digest_of([two, one]) == digests[0]


def test_change_of_a_file_is_seen_by_its_time(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = digest_of(walked(folder))
    assert digest_of(walked(folder)) == before
    os.utime(folder / "b" / "three", ns=(5, 5))
    assert digest_of(walked(folder)) != before
