"""What lies in a directory: natural order, nothing hidden or ignored, and what nobody reads."""

from pathlib import Path

import pytest

from stepwell.readers.folders import IMAGES, FolderListing


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "cat/10.jpg",
        "cat/2.JPG",
        "cat/3.bmp",
        "cat/.4.gif",
        "cat/deep/depth/5.png",
        "dog/notes.txt",
        "6.avi",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def names(root: Path, paths) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


def test_folders_and_files_are_in_natural_order(root: Path):
    listing = FolderListing(root)
    assert names(root, listing.folders(root)) == ["cat", "dog"]
    assert names(root, listing.files(root / "cat", IMAGES)) == ["cat/2.JPG", "cat/10.jpg"]


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        ("", ["6.avi", "cat/2.JPG", "cat/3.bmp", "cat/10.jpg", "cat/deep/depth/5.png"]),
        (".bmp,avi", ["cat/2.JPG", "cat/10.jpg", "cat/deep/depth/5.png"]),
        (["cat"], ["6.avi"]),
        ("1?.jpg,*/DEPTH/*", ["6.avi", "cat/2.JPG", "cat/3.bmp"]),
    ],
)
def test_what_is_ignored_is_not_there(root: Path, ignore, left: list[str]):
    assert names(root, FolderListing(root, ignore).passed_over(())) == left


def test_what_is_read_is_not_passed_over(root: Path):
    listing = FolderListing(root)
    read = set(listing.files(root / "cat", IMAGES))
    assert names(root, listing.passed_over(read, levels=2)) == ["6.avi", "cat/3.bmp"]
