"""Tiny LeRobot datasets, written straight after the format with pyarrow and PyAV alone: what readers are tested with.

The real library and stepwell's own writer have no part in it, so that neither can hide a fault of a reader.

Source: the LeRobot dataset formats v2.0, v2.1 and v3.0, as huggingface/lerobot 0.3.3 and 0.4.4 read and write them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_encoding import ordinary_threads

__all__ = [
    "TINY_TASKS",
    "arrow_schema",
    "encode_png",
    "flat",
    "lists",
    "statistics",
    "tiny_lerobot",
    "tiny_lerobot_picture",
    "tiny_lerobot_rows",
    "write_lines",
    "write_tasks",
    "write_video",
]

TINY_TASKS = ("push the block", "lift the block", "put it down")
Camera = tuple[Literal["png", "video"], tuple[int, int]]
DEFAULT_CAMERAS: Mapping[str, Camera] = {"observation.images.top": ("png", (32, 48))}
NUMBERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "observation.state": ("float32", (4,)),
    "action": ("float32", (2,)),
    "next.reward": ("float32", (1,)),
    "next.done": ("bool", (1,)),
    "observation.grid": ("int64", (2, 3)),
}
TEXTS: dict[str, tuple[str, tuple[int, ...]]] = {"observation.note": ("string", (1,))}
INDEXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "timestamp": ("float32", (1,)),
    "frame_index": ("int64", (1,)),
    "episode_index": ("int64", (1,)),
    "index": ("int64", (1,)),
    "task_index": ("int64", (1,)),
}
V3_PATHS = (
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
)
V2_PATHS = (
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
)
NAMES: dict[str, Any] = {"observation.state": ["x", "y", "vx", "vy"], "action": {"motors": ["left", "right"]}}
IMAGE_NAMES = ["height", "width", "channels"]
ROW_GROUP_EPISODES = 10


def tiny_lerobot_picture(camera: int, episode: int, step: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return the picture that a camera of `tiny_lerobot` shows, uint8 [H, W, 3].

    Its left half is one shade of grey that says which camera, episode and step it is, neighbours far enough apart that
    lossy video cannot confuse them; its right half is a gradient in colours.

    Example:
        >>> [int(tiny_lerobot_picture(0, 0, step, (16, 16))[0, 0, 0]) for step in range(4)]
        [0, 17, 34, 51]
    """
    height, width = size
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    picture = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) * 255 // (height + width)], -1)
    picture[:, : width // 2] = (59 * camera + 41 * episode + 17 * step) % 256
    return picture.astype(np.uint8)


def tiny_lerobot_rows(episode: int, length: int, *, fps: float = 10, seed: int = 0) -> dict[str, Any]:
    """Return what the columns of `tiny_lerobot` hold in one episode, but for pictures and the global index.

    Args:
        episode: its index; episode 1 has two tasks, one in each half.
        length: its number of rows.
        fps: rows a second.
        seed: of the random values.

    Returns:
        By feature: an array [length, ...], scalars without the axis of size 1; a list of strings for
        ``"observation.note"``.

    Example:
        >>> tiny_lerobot_rows(1, 4)["task_index"]
        array([1, 1, 2, 2])
    """
    rng = np.random.default_rng([seed, episode])
    steps = np.arange(length)
    return {
        "observation.state": rng.normal(size=(length, 4)).astype(np.float32),
        "action": rng.uniform(-1, 1, size=(length, 2)).astype(np.float32),
        "next.reward": rng.uniform(size=length).astype(np.float32),
        "next.done": steps == length - 1,
        "observation.grid": 1000 * episode + 10 * steps[:, None, None] + np.arange(6).reshape(2, 3),
        "observation.note": [f"episode {episode}, step {step}" for step in range(length)],
        "timestamp": (steps / fps).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.full(length, episode),
        "task_index": np.where((episode == 1) & (steps >= length // 2), 2, episode % 2),
    }


def tiny_lerobot(
    root: str | os.PathLike[str],
    *,
    version: Literal["v2.0", "v2.1", "v3.0"] = "v3.0",
    episodes: int = 3,
    lengths: Sequence[int] | None = None,
    cameras: Mapping[str, Camera] = DEFAULT_CAMERAS,
    fps: float = 10,
    seed: int = 0,
    files: int = 1,
    chunks_size: int = 1000,
    encoder: Literal["h264", "av1"] = "h264",
) -> Path:
    """Write a small LeRobot dataset that the real ``lerobot`` opens; the same arguments give the same values.

    Args:
        root: directory to make.
        version: of the format.
        episodes: how many, unless ``lengths`` says it.
        lengths: rows of each episode; default 5 to 12, by the seed.
        cameras: by feature name: ``"png"`` (in the parquet files) or ``"video"`` (mp4 files), and height and width,
            even numbers for video. ``{}`` for none.
        fps: rows a second.
        seed: of the random values.
        files: v3.0: parquet files, and mp4 files of each camera, that the episodes are spread over; they are not cut at
            the same episodes. In v2 each episode has files of its own.
        chunks_size: files in a directory; in v2 episodes in a directory.
        encoder: of the videos, with a key frame every second frame.

    Returns:
        The root. What the columns hold, say `tiny_lerobot_rows` and `tiny_lerobot_picture`; tasks are `TINY_TASKS`.

    Raises:
        FileExistsError: something is at the root already.
        ImportError: pyarrow or av (where there are cameras) is not installed.

    Example:
        >>> import tempfile
        >>> root = tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}, files=2)
        >>> sorted(path.relative_to(root).as_posix() for path in root.rglob("*.parquet"))
        ['data/chunk-000/file-000.parquet', 'data/chunk-000/file-001.parquet',
         'meta/episodes/chunk-000/file-000.parquet', 'meta/episodes/chunk-000/file-001.parquet', 'meta/tasks.parquet']
    """
    if lengths is None:
        lengths = np.random.default_rng(seed).integers(5, 13, size=episodes).tolist()
    tiny = _Tiny(Path(root), version, list(lengths), dict(cameras), fps, seed, files, chunks_size, encoder)
    tiny.root.mkdir(parents=True)
    tiny.write_data()
    tiny.write_videos()
    tiny.write_meta()
    return tiny.root


@dataclass(frozen=True)
class _Tiny:
    """A dataset that is being written."""

    root: Path
    version: str
    lengths: list[int]
    cameras: dict[str, Camera]
    fps: float
    seed: int
    files: int
    chunks_size: int
    encoder: str
    # columns of meta/episodes that say where the videos are: {name: values by episode}
    video_columns: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def is_v3(self) -> bool:
        return self.version == "v3.0"

    @cached_property
    def ends(self) -> list[int]:
        return [int(end) for end in np.cumsum(self.lengths)]

    @cached_property
    def data_groups(self) -> list[list[int]]:
        return self.groups(0)

    @property
    def keys(self) -> dict[str, list[str]]:
        """Feature names: numbers and the text, cameras of either kind."""
        pngs = [key for key, (kind, _) in self.cameras.items() if kind == "png"]
        return {"png": pngs, "video": [key for key in self.cameras if key not in pngs]}

    def groups(self, turn: int) -> list[list[int]]:
        """Return the episodes of each file; another turn cuts elsewhere."""
        episodes = range(len(self.lengths))
        if not self.is_v3:
            return [[episode] for episode in episodes]
        count = min(self.files, len(self.lengths))
        sizes = np.roll([len(part) for part in np.array_split(episodes, count)], turn)
        if turn and count > 1 and sizes.max() == sizes.min() > 1:
            sizes[[turn % count, (turn - 1) % count]] += [1, -1]
        return [part.tolist() for part in np.split(np.arange(len(self.lengths)), np.cumsum(sizes)[:-1])]

    def place(self, number: int) -> tuple[int, int]:
        """Return chunk and file (v2: chunk and episode) of the number-th file."""
        return number // self.chunks_size, number % self.chunks_size if self.is_v3 else number

    def path(self, folder: str, number: int, ending: str, key: str = "") -> Path:
        """Return the path of the number-th file below data/ or videos/."""
        chunk, file = self.place(number)
        if self.is_v3:
            path = self.root / folder / key / f"chunk-{chunk:03d}" / f"file-{file:03d}.{ending}"
        else:
            path = self.root / folder / f"chunk-{chunk:03d}" / key / f"episode_{file:06d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def rows(self, episode: int) -> dict[str, Any]:
        """Return the columns of an episode in the order of the features, but for pictures."""
        rows = tiny_lerobot_rows(episode, self.lengths[episode], fps=self.fps, seed=self.seed)
        rows["index"] = np.arange(self.ends[episode] - self.lengths[episode], self.ends[episode])
        return {name: rows[name] for name in (*NUMBERS, *TEXTS, *INDEXES)}

    def pictures(self, key: str, episode: int) -> list[npt.NDArray[np.uint8]]:
        camera = list(self.cameras).index(key)
        size = self.cameras[key][1]
        return [tiny_lerobot_picture(camera, episode, step, size) for step in range(self.lengths[episode])]

    def write_data(self) -> None:
        """Write the parquet files, one row group an episode."""
        import pyarrow.parquet as pq

        pictures = dict.fromkeys(self.keys["png"], ("image", ()))
        schema = arrow_schema(NUMBERS | TEXTS | pictures | INDEXES)
        for number, group in enumerate(self.data_groups):
            with pq.ParquetWriter(self.path("data", number, "parquet"), schema) as writer:
                for episode in group:
                    writer.write_table(self.table(episode, schema))

    def table(self, episode: int, schema: Any) -> Any:
        import pyarrow as pa

        columns: dict[str, Any] = {
            name: values if isinstance(values, list) else values.tolist() for name, values in self.rows(episode).items()
        }
        for key in self.keys["png"]:
            columns[key] = [{"bytes": encode_png(picture), "path": None} for picture in self.pictures(key, episode)]
        return pa.table([pa.array(columns[entry.name], entry.type) for entry in schema], schema=schema)

    def write_videos(self) -> None:
        """Write the mp4 files, and note where each episode lies."""
        for turn, key in enumerate(self.keys["video"], 1):
            names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            columns = [self.video_columns.setdefault(f"videos/{key}/{name}", []) for name in names]
            for number, group in enumerate(self.groups(turn)):
                parts = (self.pictures(key, episode) for episode in group)
                path = self.path("videos", number, "mp4", key)
                write_video(path, parts, self.cameras[key][1], self.fps, self.encoder)
                stop = np.cumsum([self.lengths[episode] for episode in group])
                for episode, end in zip(group, stop.tolist(), strict=True):
                    start = (end - self.lengths[episode]) / self.fps
                    for column, value in zip(columns, (*self.place(number), start, end / self.fps), strict=True):
                        column.append(value)

    def write_meta(self) -> None:
        """Write what is under meta/."""
        meta = self.root / "meta"
        meta.mkdir()
        stats = [self.stats_of([episode]) for episode in range(len(self.lengths))]
        if self.is_v3:
            write_tasks(meta / "tasks.parquet", TINY_TASKS)
            self.write_episodes_parquet(stats)
        else:
            write_lines(meta / "tasks.jsonl", ({"task_index": i, "task": task} for i, task in enumerate(TINY_TASKS)))
            write_lines(meta / "episodes.jsonl", (self.episode_record(e) for e in range(len(self.lengths))))
        if self.version == "v2.1":
            lines = ({"episode_index": episode, "stats": lists(found)} for episode, found in enumerate(stats))
            write_lines(meta / "episodes_stats.jsonl", lines)
        else:
            (meta / "stats.json").write_text(json.dumps(lists(self.stats_of(range(len(self.lengths)))), indent=4))
        (meta / "info.json").write_text(json.dumps(self.info(), indent=4))

    def episode_record(self, episode: int) -> dict[str, Any]:
        tasks = dict.fromkeys(self.rows(episode)["task_index"].tolist())
        return {
            "episode_index": episode,
            "tasks": [TINY_TASKS[task] for task in tasks],
            "length": self.lengths[episode],
        }

    def write_episodes_parquet(self, stats: list[dict[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number, group in enumerate(self.data_groups):
            records = [self.v3_record(episode, number) | flat(stats[episode]) for episode in group]
            path = self.path("meta/episodes", number, "parquet")
            pq.write_table(pa.Table.from_pylist(records), path, row_group_size=ROW_GROUP_EPISODES)

    def v3_record(self, episode: int, number: int) -> dict[str, Any]:
        chunk, file = self.place(number)
        return {
            **self.episode_record(episode),
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self.ends[episode] - self.lengths[episode],
            "dataset_to_index": self.ends[episode],
            **{name: values[episode] for name, values in self.video_columns.items()},
            "meta/episodes/chunk_index": chunk,
            "meta/episodes/file_index": file,
        }

    def stats_of(self, episodes: Sequence[int]) -> dict[str, Any]:
        """Return the statistics of some episodes: of every number, and of pictures a channel."""
        rows = [self.rows(episode) for episode in episodes]
        found = {}
        for name in (*NUMBERS, *INDEXES):
            values = np.concatenate([columns[name] for columns in rows]).astype(np.float64)
            found[name] = statistics(values if values.ndim > 1 else values[:, None], len(values))
        for key in self.cameras:
            pictures = np.concatenate([self.pictures(key, episode) for episode in episodes]) / 255
            channels = np.moveaxis(pictures, -1, 0).reshape(3, -1).T
            found[key] = statistics(channels[:, :, None, None], len(pictures))
        return found

    def info(self) -> dict[str, Any]:
        """Return what meta/info.json holds."""
        count = len(self.lengths)
        data_path, video_path = V3_PATHS if self.is_v3 else V2_PATHS
        sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        totals = {"total_videos": count * len(self.keys["video"]), "total_chunks": -(-count // self.chunks_size)}
        return {
            "codebase_version": self.version,
            "robot_type": "tiny",
            "total_episodes": count,
            "total_frames": sum(self.lengths),
            "total_tasks": len(TINY_TASKS),
            **(sizes if self.is_v3 else totals),
            "chunks_size": self.chunks_size,
            "fps": self.fps,
            "splits": {"train": f"0:{count}"},
            "data_path": data_path,
            "video_path": video_path if self.keys["video"] else None,
            "features": self.features(),
        }

    def features(self) -> dict[str, Any]:
        entries = {
            name: {"dtype": dtype, "shape": list(shape), "names": NAMES.get(name)}
            for name, (dtype, shape) in (NUMBERS | TEXTS | INDEXES).items()
        }
        entries |= {key: self.camera_entry(kind, size) for key, (kind, size) in self.cameras.items()}
        return {name: entries[name] for name in (*NUMBERS, *TEXTS, *self.cameras, *INDEXES)}

    def camera_entry(self, kind: str, size: tuple[int, int]) -> dict[str, Any]:
        entry: dict[str, Any] = {"dtype": "image", "shape": [*size, 3], "names": IMAGE_NAMES}
        if kind == "video":
            entry["dtype"] = "video"
            entry["info"] = {
                "video.height": size[0],
                "video.width": size[1],
                "video.codec": self.encoder,
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": self.fps,
                "video.channels": 3,
                "has_audio": False,
            }
        return entry


QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
ENCODERS = {
    "h264": ("libx264", {"g": "2", "crf": "20", "bf": "0"}),
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "11", "svtav1-params": "lp=1:scd=0"}),
}


def arrow_schema(columns: Mapping[str, tuple[str, tuple[int, ...]]]) -> Any:
    """Return the schema of data parquet files, with the metadata from which ``datasets`` knows pictures."""
    import pyarrow as pa

    features = {name: _hf_feature(dtype, shape) for name, (dtype, shape) in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, _arrow_type(dtype, shape)) for name, (dtype, shape) in columns.items()], metadata)


def _arrow_type(dtype: str, shape: tuple[int, ...]) -> Any:
    import pyarrow as pa

    if dtype == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    element = {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.from_numpy_dtype(np.dtype(dtype))
    if shape == (1,):
        return element
    if len(shape) == 1:
        return pa.list_(element, shape[0])
    for _ in shape:
        element = pa.list_(element)
    return element


def _hf_feature(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    if dtype == "image":
        return {"_type": "Image"}
    if shape == (1,):
        return {"dtype": dtype, "_type": "Value"}
    if len(shape) == 1:
        # "List" is what datasets 4 writes and datasets 3 cannot parse; both parse this
        return {"feature": {"dtype": dtype, "_type": "Value"}, "length": shape[0], "_type": "Sequence"}
    return {"shape": list(shape), "dtype": dtype, "_type": f"Array{len(shape)}D"}


def encode_png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture, uint8 [H, W, 3], as the bytes of a PNG file."""
    import av

    context = av.CodecContext.create("png", "w")
    context.height, context.width, context.pix_fmt = *picture.shape[:2], "rgb24"
    context.time_base = Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(picture, "rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def write_video(
    path: Path, parts: Iterable[Sequence[npt.NDArray[np.uint8]]], size: tuple[int, int], fps: float, encoder: str
) -> None:
    """Write pictures, part after part, to an mp4 file; a part begins with a key frame, and every second is one.

    Each part is encoded by itself and its packets are appended, as ``lerobot`` does with episodes.
    """
    import av

    codec, options = ENCODERS[encoder]
    rate, done = Fraction(fps).limit_denominator(1001), 0
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        # the header is written before the first packet, from the stream's own encoder
        with ordinary_threads():
            container.start_encoding()
        for pictures in parts:
            context = av.CodecContext.create(codec, "w")
            context.height, context.width, context.pix_fmt = *size, "yuv420p"
            context.time_base, context.framerate, context.options = 1 / rate, rate, options
            with ordinary_threads():
                context.open()
            for packet in _packets(context, pictures):
                packet.pts, packet.dts = packet.pts + done, packet.dts + done
                packet.time_base, packet.stream = 1 / rate, stream
                container.mux(packet)
            done += len(pictures)


def _packets(context: Any, pictures: Iterable[npt.NDArray[np.uint8]]) -> Iterator[Any]:
    import av

    for number, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(picture, "rgb24")
        frame.pts, frame.time_base = number, context.time_base
        yield from context.encode(frame)
    yield from context.encode(None)


def statistics(values: npt.NDArray[np.float64], count: int) -> dict[str, npt.NDArray[Any]]:
    """Return minimum, maximum, mean, deviation, count and quantiles over the first axis."""
    found: dict[str, npt.NDArray[Any]] = {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
        "count": np.array([count]),
    }
    return found | {name: np.quantile(values, at, axis=0) for name, at in QUANTILES.items()}


def lists(stats: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> dict[str, dict[str, Any]]:
    """Return statistics as JSON types."""
    return {name: {key: value.tolist() for key, value in found.items()} for name, found in stats.items()}


def flat(stats: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    """Return statistics as columns of the table of episodes: ``stats/FEATURE/mean``."""
    return {f"stats/{name}/{key}": value for name, found in lists(stats).items() for key, value in found.items()}


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the parquet file of tasks as pandas writes a table whose index is the text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [("task_index", "task_index", "int64", "int64"), (None, "__index_level_0__", "unicode", "object")]
    keys = ("name", "field_name", "pandas_type", "numpy_type")
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [dict(zip(keys, column, strict=True)) | {"metadata": None} for column in columns],
        "pandas_version": "2.3.3",
    }
    table = pa.table({"task_index": list(range(len(tasks))), "__index_level_0__": list(tasks)})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
