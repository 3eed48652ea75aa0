"""What lies in a directory of images and videos: in natural order, without what is hidden or ignored."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from stepwell.formats.options import names_of

__all__ = ["ARRAYS", "IMAGES", "UNREAD", "VIDEOS", "FolderListing", "frame_numbers", "natural"]

IMAGES = (".jpg", ".jpeg", ".png", ".webp")
VIDEOS = (".mp4", ".mkv", ".mov", ".webm")
ARRAYS = (".npy", ".npz")
UNREAD = (
    *(".bmp", ".dib", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".ppm", ".pgm", ".pbm", ".pnm", ".tga"),
    *(".jfif", ".jpe", ".jp2", ".j2k", ".jxl", ".apng", ".exr", ".hdr", ".dng", ".cr2", ".nef", ".arw"),
    *(".avi", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv", ".3gp", ".ogv", ".mts", ".m2ts"),
)
"""Of images and videos that are not read."""

NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII)
# a root, a folder in it, a camera in that, and one more
LEVELS = 4


class FolderListing:
    """A directory's folders and files.

    Args:
        root: the directory.
        ignore: what is left out: endings (".gif", "gif"), names, or patterns of names or of paths below the root
            ("thumb_*", "*/depth/*"); a folder that is called so with all that is in it. As text joined by commas.

    Example:
        >>> listing = FolderListing(Path("pics"), "gif,thumb_*")
        >>> listing.leaves_out(Path("pics/cat/7.GIF")), listing.leaves_out(Path("pics/cat/7.jpg"))
        (True, False)

    Notes:
        Holds nothing: each question reads directories anew.
    """

    def __init__(self, root: Path, ignore: Collection[str] | str = ()) -> None:
        self.root = root
        self._patterns = [pattern.lower() for pattern in names_of(ignore)]

    def leaves_out(self, path: Path) -> bool:
        """Whether a file or folder below the root is ignored."""
        if not self._patterns:
            return False
        name, below = path.name.lower(), path.relative_to(self.root).as_posix().lower()
        return any(
            name.endswith(f".{pattern.lstrip('.')}") or fnmatchcase(name, pattern) or fnmatchcase(below, pattern)
            for pattern in self._patterns
        )

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders in a folder."""
        return self._sorted(folder, lambda entry: entry.is_dir())

    def files(self, folder: Path, suffixes: Sequence[str]) -> list[Path]:
        """Return the files in a folder whose names end so, in whatever case."""
        endings = tuple(suffixes)
        return self._sorted(folder, lambda entry: entry.is_file() and entry.name.lower().endswith(endings))

    def passed_over(self, read: Collection[Path], *, levels: int = LEVELS) -> Iterator[Path]:
        """Yield images and videos, by their endings, that nobody reads.

        Args:
            read: the files that somebody does.
            levels: of folders that are looked at, the root the first.
        """
        endings = (*UNREAD, *IMAGES, *VIDEOS)

        def is_passed(folder: Path, entry: os.DirEntry[str]) -> bool:
            is_one = entry.is_file() and entry.name.lower().endswith(endings)
            return is_one and folder / entry.name not in read

        folders = [self.root]
        for level in range(levels):
            for folder in folders:
                # what is read, which is nearly all, is put into no order again
                yield from self._sorted(folder, partial(is_passed, folder))
            if level < levels - 1:
                folders = [inner for folder in folders for inner in self.folders(folder)]

    def _sorted(self, folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".") and wanted(entry)]
        paths = [folder / name for name in sorted(names, key=natural)]
        return [path for path in paths if not self.leaves_out(path)]


def frame_numbers(paths: Sequence[Path]) -> list[int] | None:
    """Return the numbers in the names of files that differ in their last number alone; None of others.

    Example:
        >>> frame_numbers([Path("run/rgb_0007.png"), Path("run/rgb_0009.jpg")])
        [7, 9]
    """
    found = [NUMBERED.fullmatch(path.stem) for path in paths]
    matches = [match for match in found if match is not None]
    if len(matches) < len(paths) or len({(match[1], match[3]) for match in matches}) != 1:
        return None
    return [int(match[2]) for match in matches]


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key by which numbers in names count as numbers.

    Example:
        >>> sorted(["10.jpg", "2.jpg", "a.jpg"], key=natural)
        ['2.jpg', '10.jpg', 'a.jpg']
    """
    parts = re.split(r"(\d+)", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part]
