"""Folders of images and of videos.

::

    classes     ROOT/cat/0.jpg, ROOT/dog/7.png         an image an episode of one step; its label is its folder
    episodes    ROOT/run_1/0.jpg, 1.jpg, ...           a folder an episode; the images are its steps
                ROOT/run_1/front/0.jpg, wrist/0.jpg    a camera a folder
                ROOT/run_1/front.mp4, wrist.mp4        a camera a video
                ROOT/run_1/actions.npy, more.npz       further features, a row a step (or one more: a final row)
    videos      ROOT/clip_1.mp4, clip_2.mp4            a video an episode
                ROOT/clip_1.actions.npy, clip_1.npz    further features of it

Names are in natural order: 2 before 10.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.image_files import ImageHead
from stepwell.codecs.video_files import VideoFile
from stepwell.errors import DecodeError, FormatError, SchemaError
from stepwell.formats.arrays import npz_arrays
from stepwell.formats.images import IMAGE_CODECS, channels_of, image_feature, image_head
from stepwell.formats.options import flag_of, names_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import natural
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Array, Feature, Schema
from stepwell.store.beneath import read_again

__all__ = ["ARRAYS", "IMAGES", "FolderListing", "FolderReader"]

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
LAYOUTS = ("classes", "episodes", "videos")
Layout = Literal["classes", "episodes", "videos"]
LOOKED_FOR = (
    "Looked for: videos at the top, or images and videos in most folders there (ROOT/CLASS/0.jpg, ROOT/EPISODE/0.jpg, "
    "ROOT/EPISODE/CAMERA/0.jpg, ROOT/EPISODE/front.mp4)"
)
# folders that are looked into, to recognise a data set
MAX_LOOKS = 32
# of source code, where some pictures are no data set
PROJECTS = ("pyproject.toml", "setup.py", "package.json", "Cargo.toml", "CMakeLists.txt")
# other systems have readers of their own
FOREIGN = ("meta/info.json", "store.json", "dataset_info.json", "features.json", "state.json")
HEAD_BYTES = 4096
Part = dict[str, Any]
# what messages say of where files go
_PLACES = {
    "classes": "put images in a folder a class (or an episode)",
    "episodes": "put images in a folder an episode, or in a folder a camera in it, and videos in a folder an episode",
    "videos": "of videos at the top each is an episode, and what lies in folders is not read",
}


class FolderListing:
    """A directory's folders and files."""

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
        """Yield images and videos, by their endings, that are not read."""
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
    """Return the numbers in the names of files that differ in their last number alone; None of others."""
    found = [NUMBERED.fullmatch(path.stem) for path in paths]
    matches = [match for match in found if match is not None]
    if len(matches) < len(paths) or len({(match[1], match[3]) for match in matches}) != 1:
        return None
    return [int(match[2]) for match in matches]


IMAGE, LABEL, VIDEO = "image", "label", "video"


@register_reader
class FolderReader(Reader):
    """Episodes of folders of images or videos.

    Args:
        source: the directory.
        layout: "classes", "episodes" or "videos"; default: "videos" where there are some at the top, "episodes" where a
            folder has arrays, videos or folders of its own, else "classes".
        fps: steps a second; default that of the videos, if they agree, else none.
        ignore: files and folders that are left out: endings, names or patterns, ``["gif", "thumb_*"]`` or
            ``"gif,thumb_*"``; see `FolderListing`.
        channels: 1, 3 or 4 that all images are to have: grey, RGB, RGBA; default: as many as one has.
        allow_gaps: of episodes take images whose numbers have gaps; default: a gap is an error.

    Notes:
        As for `Reader`. Images stay the files that they are, JPEG, PNG or WebP, in place or imported; of different
        sizes they are images of varying size, and have the channels that one of them needs. Packets of videos are taken
        as they are, and copied into the cache in place. Of classes the store's metadata hold ``labels``, their names;
        an episode's hold its file's or folder's name.
    """

    name = "folders"
    is_last_resort = True

    def __init__(
        self,
        source: str,
        *,
        layout: Layout | None = None,
        fps: float | str | None = None,
        ignore: Collection[str] | str = (),
        channels: int | str | None = None,
        allow_gaps: bool | str = False,
    ) -> None:
        super().__init__(source)
        self._root = Path(source)
        if not self._root.is_dir():
            raise FormatError(f"{source} is no directory.")
        if layout is not None and layout not in LAYOUTS:
            raise FormatError(f"layout={layout!r}. Allowed: {', '.join(LAYOUTS)}.")
        self._channels = channels_of(channels)
        listing = FolderListing(self._root, ignore)
        self._layout: Layout = layout or _layout_of(listing)
        self._episodes = _EPISODES[self._layout](listing)
        _check_all_are_read(listing, self._layout, self._episodes)
        if self._layout == "episodes":
            _check_numbers(self._episodes, allow_gaps=flag_of("allow_gaps", allow_gaps))
        self._labels = sorted({part["label"] for part in self._episodes if "label" in part}, key=natural)
        self._paths = tuple(str(path) for part in self._episodes for files in part["images"].values() for path in files)
        self._numbers = {path: number for number, path in enumerate(self._paths)}
        self._sizes = [Path(path).stat().st_size for path in self._paths]
        self.schema = self._schema()
        self.fps = _rate(fps, self._episodes[0])
        self.metadata = {"folders": {"layout": self._layout, **({"labels": self._labels} if self._labels else {})}}

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a directory with images or videos in most of its folders, and no data set of another system."""
        if not _is_plain(source) or any(Path(source, name).exists() for name in PROJECTS):
            return False
        try:
            listing = FolderListing(Path(source))
            return bool(listing.files(listing.root, VIDEOS)) or _most_have_some(listing)
        except (OSError, FormatError):
            return False

    @classmethod
    def advice(cls, source: str) -> str:
        """Say where images and videos go that lie elsewhere; see `Reader.advice`."""
        if not _is_plain(source):
            return ""
        first = next(FolderListing(Path(source)).passed_over((), levels=2), None)
        if first is None:
            return ""
        if first.name.lower().endswith(UNREAD):
            return f"Images and videos are read of {', '.join(IMAGES + VIDEOS)}, not as {first}."
        if first.parent == Path(source):
            return f"Of {first} and others: {_PLACES['classes']}."
        return f'{first} and others lie otherwise than in a data set. {LOOKED_FOR}. reader="folders" takes it as one.'

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> EpisodeData:
        part = self._episodes[index]
        columns: dict[str, Any] = _arrays(part)
        if "label" in part:
            columns[LABEL] = np.array([self._labels.index(part["label"])], np.int64)
        names = {*part["images"], *part["videos"], *columns}
        if names != set(self.schema):
            raise FormatError(
                f"{self.label(index)} has {', '.join(sorted(names))}; the first episode {', '.join(self.schema)}. "
                "Episodes have the same cameras and arrays: leave out the folder that is none with ignore=."
            )
        columns |= {name: self._spans(name, files) for name, files in part["images"].items()}
        columns |= {name: _video(path) for name, path in part["videos"].items()}
        if self._layout != "classes":
            self._check_lengths(index, columns)
        return EpisodeData(columns, metadata={"name": part["name"]})

    def _check_lengths(self, index: int, columns: Mapping[str, Any]) -> None:
        """Refuse arrays that have not a row a step, and those of a final row where one is missing."""
        part = self._episodes[index]
        rows = {name: len(files) for name, files in part["images"].items()}
        rows |= {name: columns[name].num_rows for name in part["videos"]}
        rows |= {name: len(column) for name, column in columns.items() if name not in rows}
        if len({count - self.schema[name].final for name, count in rows.items()}) > 1:
            told = ", ".join(f"{name} {count}" for name, count in rows.items())
            finals = ", ".join(name for name in rows if self.schema[name].final)
            more = f", and one more of {finals}, as the first episode has it" if finals else ""
            raise FormatError(f"{self.label(index)} has rows of {told}. There should be as many of each{more}.")

    @property
    def in_place_schema(self) -> Schema:
        """The features, with images left in their files; see `Reader.in_place_schema`."""
        staying = [name for name, feature in self.schema.items() if feature.codec in IMAGE_CODECS]
        return Schema({**self.schema, **{name: span_feature(self.schema[name], self._paths) for name in staying}})

    def label(self, index: int) -> str:
        """Return the name of an episode's file or folder; see `Reader.label`."""
        return f"{self._episodes[index]['name']} of {self.source}"

    def _schema(self) -> Schema:
        try:
            return Schema(self._features())
        except SchemaError as error:
            raise FormatError(f"{self.source}: {error} Rename the folder or file that is called so.") from error

    def _features(self) -> dict[str, Feature]:
        first = self._episodes[0]
        features = {name: self._image_feature(name) for name in first["images"]}
        features |= {name: _video(path).feature for name, path in first["videos"].items()}
        lengths = [len(files) for files in first["images"].values()]
        lengths += [_video(path).num_rows for path in first["videos"].values()]
        for name, rows in _arrays(first).items():
            is_final = bool(lengths) and len(rows) == min(lengths) + 1
            features[name] = Array(rows.shape[1:], rows.dtype, final=is_final)
        if self._layout == "classes":
            features[LABEL] = Array((), "int64")
        return features

    def _image_feature(self, name: str) -> Feature:
        """Return the feature of a camera: of one size or of any, with the channels that its images need."""
        paths = [path for part in self._episodes for path in part["images"].get(name, ())]
        where = f"{name!r} of {self.source}"
        return image_feature(map(_head, paths), where, files=paths, channels=self._channels)

    def _spans(self, name: str, files: Sequence[Path]) -> FileSpans:
        numbers = np.array([self._numbers[str(path)] for path in files], np.int64)
        sizes = np.array([self._sizes[number] for number in numbers.tolist()], np.int64)
        return FileSpans(self.schema[name], self._paths, numbers, np.zeros(len(files), np.int64), sizes)


def _is_plain(source: str) -> bool:
    """Return whether a source is a directory that is no data set of another system."""
    root = Path(source)
    return "://" not in source and root.is_dir() and not any((root / name).exists() for name in FOREIGN)


def _most_have_some(listing: FolderListing) -> bool:
    """Return whether most of a directory's folders hold images or videos, right in them or a camera a folder."""

    def has_some(folder: Path) -> bool:
        if listing.files(folder, (*IMAGES, *VIDEOS)):
            return True
        return any(listing.files(camera, IMAGES) for camera in listing.folders(folder)[:MAX_LOOKS])

    looked_at = listing.folders(listing.root)[:MAX_LOOKS]
    return 2 * sum(map(has_some, looked_at)) > len(looked_at)


def _part(name: str, **more: Any) -> Part:
    return {"name": name, "images": {}, "videos": {}, "arrays": [], **more}


def _classes(listing: FolderListing, most: int | None = None) -> list[Part]:
    """Return the images of each folder, in the order of the folders."""
    parts: list[Part] = []
    for folder in listing.folders(listing.root):
        for path in listing.files(folder, IMAGES):
            parts.append(_part(f"{folder.name}/{path.name}", images={IMAGE: [path]}, label=folder.name))
            if most is not None and len(parts) >= most:
                return parts
    return parts


def _folder_episodes(listing: FolderListing, most: int | None = None) -> list[Part]:
    """Return the folders that have images or videos, right in them or a camera a folder."""
    parts = []
    for folder in listing.folders(listing.root):
        images = {camera.name: listing.files(camera, IMAGES) for camera in listing.folders(folder)}
        images = {name: files for name, files in images.items() if files}
        own = listing.files(folder, IMAGES)
        videos = {path.stem: path for path in listing.files(folder, VIDEOS)}
        if set(videos) & set(images) or (own and IMAGE in {*images, *videos}):
            raise FormatError(f"{folder} has two cameras of one name. Rename a folder or a video, or move images.")
        if own or images or videos:
            images |= {IMAGE: own} if own else {}
            parts.append(_part(folder.name, images=images, videos=videos, arrays=listing.files(folder, ARRAYS)))
        if most is not None and len(parts) >= most:
            break
    return parts


def _video_episodes(listing: FolderListing, most: int | None = None) -> list[Part]:
    """Return the videos of a folder, each with the arrays of its name."""
    videos = listing.files(listing.root, VIDEOS)[:most]
    arrays: dict[str, list[Path]] = {}
    for path in listing.files(listing.root, ARRAYS):
        arrays.setdefault(path.name.partition(".")[0], []).append(path)
    return [
        _part(path.name, videos={VIDEO: path}, arrays=arrays.get(path.name.partition(".")[0], [])) for path in videos
    ]


_EPISODES = {"classes": _classes, "episodes": _folder_episodes, "videos": _video_episodes}


def _layout_of(listing: FolderListing) -> Layout:
    if listing.files(listing.root, VIDEOS):
        return "videos"
    for folder in listing.folders(listing.root):
        if listing.files(folder, (*VIDEOS, *ARRAYS)) or listing.folders(folder):
            return "episodes"
    return "classes"


def _check_all_are_read(listing: FolderListing, layout: Layout, episodes: Sequence[Part]) -> None:
    """Refuse a directory without episodes, and images and videos that would be lost silently."""
    read = {path for part in episodes for files in part["images"].values() for path in files}
    read.update(path for part in episodes for path in part["videos"].values())
    passed = list(listing.passed_over(read))
    unread = [path for path in passed if path.name.lower().endswith(UNREAD)]
    if unread:
        endings = ",".join(sorted({path.suffix.lower().lstrip(".") for path in unread}))
        raise FormatError(
            f"{_some(unread)} would be passed over: {', '.join(IMAGES + VIDEOS)} are read. Convert them, move them "
            f'away, or leave them out with ignore="{endings}".'
        )
    if not episodes:
        there = f"{_PLACES[layout]}, not as {_some(passed)}" if passed else f"no files of {', '.join(IMAGES + VIDEOS)}"
        raise FormatError(f"{listing.root} has no {layout}: {there}.")
    if passed:
        raise FormatError(
            f"{_some(passed)} would be passed over: {_PLACES[layout]}. Move them, say another layout= ("
            f'{", ".join(LAYOUTS)}), or leave them out with ignore= (names, endings or patterns: "{passed[0].name}").'
        )


def _check_numbers(episodes: Sequence[Part], *, allow_gaps: bool) -> None:
    """Refuse images of a camera that have one number, or whose numbers go on but for some that are missing."""
    for part in episodes:
        numbers = {name: frame_numbers(files) or [] for name, files in part["images"].items()}
        for name, files in part["images"].items():
            steps = np.diff(np.array(numbers[name], object))
            if not len(steps):
                continue
            if not steps.all():
                place = int(np.argmin(steps))
                raise FormatError(f"{files[place]} and {files[place + 1].name} have one number. Take one of them away.")
            step = steps.min()
            # numbers that go on mostly are counted; others are ids or times
            is_counted = not (steps % step).any() and 2 * np.count_nonzero(steps == step) >= len(steps)
            gaps = np.flatnonzero(steps > step)
            if len(gaps) and is_counted and not allow_gaps:
                more = f", and {len(gaps) - 1} more gaps" if len(gaps) > 1 else ""
                raise FormatError(
                    f"{files[gaps[0]]} is followed by {files[gaps[0] + 1].name}{more}: images are missing, and what "
                    "comes after would be taken for earlier steps. Copy them again; if they were left out on purpose, "
                    "allow_gaps=True takes those that are there as the steps."
                )
        starts = {name: counted[0] for name, counted in numbers.items() if counted}
        if len(set(starts.values())) > 1 and not allow_gaps:
            told = ", ".join(f"{name} with {start}" for name, start in starts.items())
            raise FormatError(
                f"{part['name']}: the images of {told} begin. Cameras of an episode begin with one number; if theirs "
                "mean nothing, allow_gaps=True."
            )


def _some(paths: Sequence[Path]) -> str:
    """Return what messages call some images or videos."""
    return f"{paths[0]} and {len(paths) - 1:,} more" if len(paths) > 1 else str(paths[0])


def _head(path: Path) -> ImageHead:
    """Return what an image says of itself."""
    try:
        return image_head(np.fromfile(path, np.uint8, HEAD_BYTES))
    except DecodeError:
        pass  # what it is comes after colours and previews
    try:
        return image_head(np.fromfile(path, np.uint8))
    except DecodeError as error:
        raise FormatError(f"{path}: {error}") from error


def _video(path: Path) -> VideoFile:
    try:
        return VideoFile(path)
    except (DecodeError, OSError) as error:
        raise FormatError(f"{path}: {error}") from error


def _arrays(part: Part) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an episode's .npy and .npz files by name."""
    found: dict[str, npt.NDArray[Any]] = {}
    for path in part["arrays"]:
        for name, rows in _loaded(path):
            if name in found or name in part["images"] or name in part["videos"]:
                raise FormatError(f"{path}: {name!r} is the name of another array, or of a camera. Rename one of them.")
            if rows.ndim == 0 or rows.dtype.kind not in "biuf":
                raise FormatError(f"{path}: {name!r} is {rows.dtype} {rows.shape}. Give rows of numbers.")
            found[name] = rows
    return found


def _loaded(path: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    try:
        if path.suffix.lower() == ".npy":
            # of clip_1.actions.npy the name is the part in the middle; a map is no longer than its file
            array = read_again(lambda: np.load(path, mmap_mode="r", allow_pickle=False))
            yield path.stem.rpartition(".")[2], array
            return
        with path.open("rb") as file:
            yield from npz_arrays(file).items()
    except Exception as error:  # of damaged headers and streams come errors of many kinds
        raise FormatError(f"{path}: {error}. It should hold arrays of numbers, as numpy.save writes them.") from error


def _rate(fps: float | str | None, first: Mapping[str, Any]) -> float | None:
    """Return the steps a second that were given, or those of the first episode's videos."""
    if fps is not None:
        try:
            return float(fps)
        except ValueError as error:
            raise FormatError(f"fps={fps!r}. Allowed: a number.") from error
    durations = [float(np.median(_video(path).frames["duration"])) for path in first["videos"].values()]
    return round(1 / durations[0], 6) if durations and durations[0] > 0 and np.ptp(durations) < 1e-6 else None
