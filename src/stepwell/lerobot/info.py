"""What ``meta/info.json`` says of a LeRobot dataset: version, rate, features, where its files lie.

Source: the LeRobot dataset formats v2.0, v2.1 and v3.0, as huggingface/lerobot 0.3.3, 0.4.4 and 0.6.2 read and write
them.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from stepwell.errors import FeatureNotFoundError, FormatError, SchemaError
from stepwell.schema import Array, Feature, Image, Text

__all__ = [
    "CAMERAS",
    "ENCODERS",
    "ENCODER_SETTINGS",
    "FORMAT_ENTRIES",
    "INDEX_FEATURES",
    "INDEX_INFOS",
    "INFO_PATH",
    "MAX_FPS",
    "MAX_RANK",
    "MIN_FPS",
    "VERSIONS",
    "DatasetInfo",
    "FeatureInfo",
    "Problem",
    "Report",
    "Version",
    "is_depth_map",
    "refuse",
    "sizes_of",
]

Version = Literal["v2.0", "v2.1", "v3.0"]
# the newest first: of several tags on the hub the first of these is taken
VERSIONS: tuple[Version, ...] = ("v3.0", "v2.1", "v2.0")
INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
INFO_PATH = "meta/info.json"
# the encoders that are written, by LeRobot's names of them; its "auto" is the recorder's own choice
ENCODERS = {"libx264": "h264", "libx265": "hevc", "libsvtav1": "av1"}
# what LeRobot notes in info.json of an encoder's configuration, in the entry of a camera
ENCODER_SETTINGS = (
    "video.g",
    "video.crf",
    "video.preset",
    "video.fast_decode",
    "video.video_backend",
    "video.extra_options",
)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = ("bool", *INTEGERS, "float16", "float32", "float64")
CAMERAS = ("image", "video")
LANGUAGE = "language"
TEXTS = ("string", LANGUAGE)
# of info.json, in any version; others are further entries, of people and their tools
FORMAT_ENTRIES = frozenset(
    {
        "codebase_version",
        "robot_type",
        "total_episodes",
        "total_frames",
        "total_tasks",
        "total_videos",
        "total_chunks",
        "chunks_size",
        "data_files_size_in_mb",
        "video_files_size_in_mb",
        "fps",
        "splits",
        "data_path",
        "video_path",
        "features",
    }
)
MAX_RANK = 5
MIN_FPS = 1e-6
MAX_FPS = 1e6
DEFAULT_CHUNKS_SIZE = 1000
# sizes from which on a parquet or an mp4 file is not added to
DATA_FILES_MB = 100
VIDEO_FILES_MB = 200
# numbers of so many are made before it is known whether there are so many
MAX_EPISODES = 1 << 26
# of v3 and of v2; the names in braces are the only ones that a template may have
DATA_PATHS = {
    True: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    False: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
}
VIDEO_PATHS = {
    True: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    False: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
# a width of ten digits would be a path of gigabytes
NUMBER_SPEC = re.compile(r"(0?\d{1,2})?d?")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in ``meta/``, without which a reader can go on."""

    about: str  # a feature, or a file below the root
    error: FormatError
    detail: str = ""  # the error in short, beside `about`
    is_harmless: bool = False  # a reader of datasets does without it


Report = Callable[[Problem], None]


def refuse(problem: Problem) -> None:
    """Raise a problem that matters: the report of every reader but the audit."""
    if not problem.is_harmless:
        raise problem.error


@dataclass(frozen=True)
class FeatureInfo:
    """One entry of the features of a LeRobot dataset.

    Example:
        >>> FeatureInfo("action", "float32", (2,), ["x", "y"], {}).feature
        Array(2, names=('x', 'y'))
        >>> FeatureInfo("next.reward", "float32", (1,), None, {}).feature
        Array()
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    raw: Mapping[str, Any]

    @property
    def is_video(self) -> bool:
        """Whether the rows are frames of mp4 files."""
        return self.dtype == "video"

    @property
    def is_image(self) -> bool:
        """Whether the rows are encoded images in the parquet files."""
        return self.dtype == "image"

    @property
    def is_camera(self) -> bool:
        """Whether the rows are images, in mp4 or in parquet files."""
        return self.dtype in CAMERAS

    @property
    def is_depth(self) -> bool:
        """Whether it is a camera whose images are depth maps, see `stepwell.lerobot.depth`."""
        return self.is_camera and is_depth_map(self.raw)

    @property
    def is_text(self) -> bool:
        """Whether the rows are strings, or language, which a store has as JSON."""
        return self.dtype in TEXTS

    @property
    def is_language(self) -> bool:
        """Whether the rows are lists of annotations, see `stepwell.lerobot.language`."""
        return self.dtype == LANGUAGE

    @property
    def is_index(self) -> bool:
        """Whether it is one of the five columns that every dataset has."""
        return self.name in INDEX_FEATURES

    @property
    def feature(self) -> Feature:
        """The feature of a store that holds the same rows; of a camera the plain images, as PNG."""
        if self.is_text:
            return Text(codec="zstd" if self.is_language else "raw")
        if self.is_depth:
            # of an image, where its files are not floats
            return Image((*self._height_width_channels()[:2], 1), "uint16", codec="png")
        if self.is_camera:
            return Image(self._height_width_channels(), codec="png")
        shape = () if self.shape == (1,) else self.shape
        return Array(shape, self.dtype, names=self._last_axis_names(shape))

    def _height_width_channels(self) -> tuple[int, ...]:
        first = self.names[0] if isinstance(self.names, list) and len(self.names) == 3 else None
        if isinstance(first, str) and first.startswith("channel"):
            channels, height, width = self.shape
            return height, width, channels
        return self.shape

    def _last_axis_names(self, shape: tuple[int, ...]) -> list[str] | None:
        names = self.names
        # {"motors": ["shoulder", ...]} is what robots of lerobot write
        if isinstance(names, Mapping) and len(names) == 1:
            names = next(iter(names.values()))
        fits = isinstance(names, list) and shape and len(names) == shape[-1]
        return names if fits and all(isinstance(name, str) for name in names) else None


# the entries of the columns that every dataset has
INDEX_INFOS = {
    name: FeatureInfo(name, dtype, (1,), None, {"dtype": dtype, "shape": [1], "names": None})
    for name, dtype in {**dict.fromkeys(INDEX_FEATURES, "int64"), "timestamp": "float32"}.items()
}


@dataclass(frozen=True)
class DatasetInfo:
    """What a LeRobot dataset says of itself, checked.

    Notes:
        An immutable value: safe to share between threads and processes, picklable.
    """

    version: Version
    fps: float
    features: dict[str, FeatureInfo]
    chunks_size: int
    data_path: str
    video_path: str | None
    robot_type: str | None
    total_episodes: int
    total_frames: int
    raw: dict[str, Any]

    @property
    def is_v3(self) -> bool:
        """Whether files hold several episodes; in v2 each episode has its own."""
        return self.version == "v3.0"

    @property
    def video_keys(self) -> tuple[str, ...]:
        """Names of the cameras whose frames are in mp4 files."""
        return tuple(name for name, feature in self.features.items() if feature.is_video)

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Names of the cameras whose images are in the parquet files."""
        return tuple(name for name, feature in self.features.items() if feature.is_image)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of all cameras, in the order of the features."""
        return tuple(name for name, feature in self.features.items() if feature.is_camera)

    def data_name(self, chunk: int, file: int) -> str:
        """Return the name of a parquet file below the root; of v2, ``file`` is the episode's number."""
        return self.data_path.format(**self.file_numbers(chunk, file))

    def video_name(self, key: str, chunk: int, file: int) -> str:
        """Return the name of an mp4 file below the root; of v2, ``file`` is the episode's number."""
        if self.video_path is None or key not in self.video_keys:
            raise FeatureNotFoundError(f"no videos of {key!r}. Allowed: {', '.join(self.video_keys) or 'none'}.")
        return self.video_path.format(video_key=key, **self.file_numbers(chunk, file))

    def file_numbers(self, chunk: int, file: int) -> dict[str, int]:
        """Return the two numbers of a file by the names that templates of paths have for them."""
        names = ("chunk_index", "file_index") if self.is_v3 else ("episode_chunk", "episode_index")
        return dict(zip(names, (chunk, file), strict=True))

    @classmethod
    def parse(
        cls, raw: Any, where: str = INFO_PATH, *, ignore: Collection[str] = (), report: Report = refuse
    ) -> DatasetInfo:
        """Return the checked form of what ``meta/info.json`` holds."""
        if not isinstance(raw, dict):
            raise FormatError(f"{where} holds a JSON {type(raw).__name__}. Allowed: an object with codebase_version.")
        version = _version(raw, where)
        is_v3 = version == "v3.0"
        features = _features(raw.get("features"), where, ignore, report)
        has_videos = any(feature.is_video for feature in features.values())
        robot_type = raw.get("robot_type")
        return cls(
            version=version,
            fps=_fps(raw.get("fps"), where),
            features=features,
            chunks_size=_count(raw, "chunks_size", where, least=1, default=DEFAULT_CHUNKS_SIZE),
            data_path=_template(raw.get("data_path", DATA_PATHS[is_v3]), "data_path", DATA_PATHS[is_v3], where),
            video_path=_video_path(raw, VIDEO_PATHS[is_v3], where) if has_videos else None,
            robot_type=robot_type if isinstance(robot_type, str) else None,
            total_episodes=_count(raw, "total_episodes", where, most=MAX_EPISODES),
            total_frames=_count(raw, "total_frames", where),
            raw=raw,
        )


def _version(raw: Mapping[str, Any], where: str) -> Version:
    version = raw.get("codebase_version")
    if version not in VERSIONS:
        raise FormatError(
            f"{where}: codebase_version is {version!r}. Allowed: {', '.join(sorted(VERSIONS))}. Older datasets: "
            f"convert them with lerobot's own converter; newer ones need a newer stepwell."
        )
    if raw.get("storage_format", "parquet") != "parquet":
        raise FormatError(
            f"{where}: storage_format is {raw['storage_format']!r}. Allowed: parquet files, which are the default."
        )
    return cast(Version, version)


def _fps(fps: Any, where: str) -> float:
    is_number = isinstance(fps, int | float) and not isinstance(fps, bool)
    if not is_number or not MIN_FPS <= fps <= MAX_FPS:
        allowed = f"a number of rows a second, {MIN_FPS:g} to {MAX_FPS:.0f}"
        raise FormatError(f"{where}: fps is {repr(fps)[:40]}. Allowed: {allowed}.")
    return float(fps)


def _count(
    raw: Mapping[str, Any], name: str, where: str, *, least: int = 0, default: int | None = None, most: int = 2**62
) -> int:
    value = raw.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise FormatError(f"{where}: {name} is {value!r}. Allowed: a whole number, at least {least}, at most {most}.")
    return value


def _features(raw: Any, where: str, ignore: Collection[str], report: Report) -> dict[str, FeatureInfo]:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: features is {raw!r}. Allowed: an object, an entry for each feature.")
    features: dict[str, FeatureInfo] = {}
    for name in (name for name in raw if name not in ignore):
        try:
            features[name] = _feature(name, raw[name], where)
        except FormatError as error:
            report(Problem(name, error))
    for name in INDEX_FEATURES:
        if name not in features:
            raise FormatError(f"{where}: features has no {name!r}, which every LeRobot dataset has.")
        if features[name].dtype not in NUMBERS or features[name].shape != (1,):
            raise FormatError(
                f"{where}: feature {name!r} is {features[name].dtype} of shape {features[name].shape}. Allowed: a "
                f"number of shape (1,)."
            )
    return features


def _feature(name: str, raw: Any, where: str) -> FeatureInfo:
    about = f"{where}: feature {name!r}"
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise FormatError(f"{about} has a name that cannot be a directory's. Allowed: names without '/'.")
    if not isinstance(raw, dict):
        raise FormatError(f"{about} is {raw!r}. Allowed: an object with dtype and shape.")
    dtype, shape = raw.get("dtype"), raw.get("shape")
    if not isinstance(dtype, str) or dtype not in (*NUMBERS, *CAMERAS, *TEXTS):
        raise FormatError(f"{about}: dtype is {dtype!r}. Allowed: {', '.join((*NUMBERS, *TEXTS, *CAMERAS))}.")
    info = FeatureInfo(name, dtype, _shape(shape, dtype, about), raw.get("names"), raw)
    try:
        _ = info.feature
    except SchemaError as error:
        raise FormatError(f"{about} cannot be stored: {error}") from error
    return info


def is_depth_map(entry: Mapping[str, Any]) -> bool:
    """Return whether a feature's entry in info.json says that it is a depth map, in LeRobot's new or old way."""
    info, video_info = (about if isinstance(about := entry.get(name), dict) else {} for name in ("info", "video_info"))
    marks = (info.get("is_depth_map"), info.get("video.is_depth_map"), video_info.get("video.is_depth_map"))
    return any(map(bool, marks))


def _shape(shape: Any, dtype: str, about: str) -> tuple[int, ...]:
    low, high = (3, 3) if dtype in CAMERAS else (1, MAX_RANK)
    is_list = isinstance(shape, list) and low <= len(shape) <= high
    if not is_list or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**31 for n in shape):
        allowed = "height, width and channels" if dtype in CAMERAS else f"1 to {MAX_RANK} sizes; [1] is a scalar"
        raise FormatError(f"{about}: shape is {shape!r}. Allowed: a list of {allowed}.")
    if dtype in TEXTS and shape != [1]:
        raise FormatError(f"{about}: shape of a {dtype} is {shape!r}. Allowed: [1].")
    return tuple(shape)


def _video_path(raw: Mapping[str, Any], default: str, where: str) -> str:
    return _template(raw.get("video_path", default), "video_path", default, where)


def _template(template: Any, name: str, default: str, where: str) -> str:
    """Return the template of a path below the root, checked: it comes from strangers, and names files to open."""
    allowed = {field for _, field, _, _ in string.Formatter().parse(default) if field}
    problem = FormatError(
        f"{where}: {name} is {template!r}. Allowed: a relative path with the fields "
        f"{', '.join(sorted(allowed))}, such as {default!r}."
    )
    if not isinstance(template, str) or "\0" in template:
        raise problem
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise problem from error
    fields = [(field, spec or "", conversion) for _, field, spec, conversion in parts if field is not None]
    for field, spec, conversion in fields:
        pattern = NUMBER_SPEC if field != "video_key" else re.compile("")
        if field not in allowed or conversion is not None or not pattern.fullmatch(spec):
            raise problem
    path = PurePosixPath(template)
    if not template or path.is_absolute() or ".." in path.parts:
        raise problem
    return template


def sizes_of(raw: Mapping[str, Any]) -> tuple[float, float]:
    """Return the sizes in MB of parquet and mp4 files by info.json, which may have anything there."""
    data, video = raw.get("data_files_size_in_mb"), raw.get("video_files_size_in_mb")
    return _size_or(data, DATA_FILES_MB), _size_or(video, VIDEO_FILES_MB)


def _size_or(size: Any, default: float) -> float:
    return size if isinstance(size, int | float) and 0 < size < math.inf else default
