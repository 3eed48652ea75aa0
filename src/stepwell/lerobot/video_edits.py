"""Cameras encoded anew: videos by other options, images as videos; by processes, and resumed after a kill.

::

    data/
      reach/                    the dataset; as it was until all of the new one is there
      .reach.videos/            mp4 files that are done, for one request; locked while one works on them
        plan.json               the request: another one begins anew
        0.mp4  0.json           a chunk: consecutive episodes of one camera, and what is said of their file
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FeatureNotFoundError, FormatError, SchemaError, StoreBusyError
from stepwell.files.file_locks import lock_directory
from stepwell.formats.source_episodes import episodes_of, schema_of
from stepwell.formats.source_paths import digest_of, walked
from stepwell.lerobot.appending import finish_append
from stepwell.lerobot.camera_writing import MAX_RATE_TERMS, VideoFiles, encoded_packets, encoding_of, import_av
from stepwell.lerobot.dataset_files import video_info
from stepwell.lerobot.depth import depth_of, split_options
from stepwell.lerobot.editing import Chosen, Edit, EncodedFile
from stepwell.lerobot.edits import Place, chosen_places, edited, states_of
from stepwell.lerobot.in_place import files_digest, open_in_place
from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.meta_files import read_json
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.parquet_writing import MEGABYTE, FileNumbers
from stepwell.lerobot.schema_mapping import Column, map_schema
from stepwell.recorders.chunks import ITEM, NUM_ITEMS, NUM_STEPS, Workers, run_chunks
from stepwell.schema import Feature
from stepwell.store.layout import full_disk_named, replace_file
from stepwell.windows import View

__all__ = ["encode_images", "reencode", "retime"]

PLAN = "plan.json"
# a guess of how much smaller a video is than its pixels, for the size of files alone
RATIO = 100
CHUNK_FRAMES = 20_000
# of `stepwell.Video`, and how LeRobot names them in info.json
NAMES = {"gop": "video.g", "crf": "video.crf", "preset": "video.preset"}


def reencode(
    root: Place,
    cameras: Iterable[str] | None = None,
    *,
    video: Mapping[str, Any] | None = None,
    depth: Mapping[str, Any] | None = None,
    target: Place | None = None,
    workers: Workers = None,
    progress: bool | None = None,
) -> Path:
    """Encode the videos of cameras anew: frame n of each file at n / fps, a key frame where each episode begins.

    Args:
        root: directory of the dataset.
        cameras: names; default all whose frames are in mp4 files.
        video: options of `stepwell.Video`; default ``{"encoder": "av1", "gop": 2, "crf": 30, "preset": "12"}``.
        depth: of depth maps, whose codes are encoded without loss: ``gop``; default that of ``video``.
        target: of a new dataset; None: in place.
        workers: processes; default one a processor.
        progress: a bar on stderr; default: when it is a terminal.

    Returns:
        The directory of the result.

    Raises:
        FeatureNotFoundError: a name that no such camera has.
        StoreBusyError: another process does the same.

    Notes:
        Killed at any moment it leaves the dataset as it was; the same call goes on with the files that were done.
    """
    metadata, states = _loaded(root, target)
    names = _chosen(metadata, metadata.info.video_keys, cameras, "whose frames are in mp4 files")
    places = range(len(metadata.episodes))
    return _encoded(
        metadata, states, names, places, video=video, depth=depth, target=target, workers=workers, progress=progress
    )


def encode_images(
    root: Place,
    cameras: Iterable[str] | None = None,
    *,
    episodes: Iterable[int] | None = None,
    video: Mapping[str, Any] | None = None,
    depth: Mapping[str, Any] | None = None,
    target: Place | None = None,
    workers: Workers = None,
    progress: bool | None = None,
) -> Path:
    """Turn cameras whose images are in the data files into videos; see `reencode`.

    Args:
        cameras: names; default all whose images are in the data files.
        episodes: only these; default all.
        depth: of depth maps: ``gop``, and ``depth_min``, ``depth_max``, ``shift`` and ``use_log`` of their codes, see
            `stepwell.lerobot.depth.Quantization`.
    """
    metadata, states = _loaded(root, target)
    names = _chosen(metadata, metadata.info.image_keys, cameras, "whose images are in the data files")
    places = range(len(metadata.episodes)) if episodes is None else chosen_places(metadata, episodes)
    return _encoded(
        metadata, states, names, places, video=video, depth=depth, target=target, workers=workers, progress=progress
    )


def retime(root: Place, cameras: Iterable[str] | None = None, *, target: Place | None = None) -> Path:
    """Show frame n of each mp4 file at n / fps: packets stay, nothing is decoded.

    Args:
        root: directory of the dataset.
        cameras: names; default all whose frames are in mp4 files.
        target: of a new dataset; None: in place.

    Raises:
        FeatureNotFoundError: a name that no such camera has.
        FormatError: a file that does not have as many frames as its episodes have steps: which frame is of which step
            is not known.
    """
    path = Path(root if target is None else target).absolute()
    with edited(root, target) as place, tempfile.TemporaryDirectory(dir=place.path) as work:
        metadata = Metadata.load(root)
        names = _chosen(metadata, metadata.info.video_keys, cameras, "whose frames are in mp4 files")
        encoded: dict[str, list[EncodedFile]] = {name: [] for name in names}
        for name, each in encoded.items():
            for number, (file, lengths) in enumerate(_files(metadata, name)):
                made = Path(work, f"{len(names)}-{names.index(name)}-{number}.mp4")
                _retime_file(file, made, metadata.info.fps, sum(lengths))
                each.append(EncodedFile(made, lengths))
        episodes = [Chosen(0, number) for number in range(len(metadata.episodes))]
        Edit(
            [metadata], episodes, metadata.info.features, metadata.tasks, encoded=encoded, link=place.is_in_place
        ).write(place.path)
    return path


def _files(metadata: Metadata, key: str) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the mp4 files of a camera, and the lengths of the episodes in each."""
    spans, lengths = metadata.episodes.videos[key], metadata.episodes.length
    places = zip(spans.chunk.tolist(), spans.file.tolist(), lengths.tolist(), strict=True)
    for (chunk, file), group in groupby(places, lambda place: place[:2]):
        yield metadata.video_path(key, chunk, file), tuple(length for _, _, length in group)


def _retime_file(source: Path, target: Path, fps: float, num_steps: int) -> None:
    """Copy the packets of an mp4 file, their frames at n / fps in the order in which they are shown."""
    av = import_av()
    tick = 1 / Fraction(fps).limit_denominator(MAX_RATE_TERMS)
    with av.open(str(source)) as before, av.open(str(target), "w", format="mp4") as after:
        stream = before.streams.video[0]
        track = after.add_stream_from_template(stream, opaque=True)
        track.time_base = tick
        packets = [packet for packet in before.demux(stream) if packet.size]
        if len(packets) != num_steps:
            raise FormatError(
                f"{source} has {len(packets)} frames, its episodes {num_steps} steps: which is of which is not known. "
                "Look which is right."
            )
        shown = np.argsort(np.argsort([packet.pts for packet in packets], kind="stable"), kind="stable")
        # a packet is decoded before its frame is shown
        delay = int((np.arange(len(packets)) - shown).max(initial=0))
        for number, (packet, rank) in enumerate(zip(packets, shown.tolist(), strict=True)):
            packet.stream, packet.time_base = track, tick
            packet.pts, packet.dts, packet.duration = rank, number - delay, 1
            after.mux_one(packet)


def _chosen(metadata: Metadata, known: Sequence[str], cameras: Iterable[str] | None, what: str) -> list[str]:
    names = list(known if cameras is None else cameras)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        found = f"no camera {unknown[0]!r}" if unknown else "no camera"
        raise FeatureNotFoundError(f"{found} of {metadata.root} {what}. There are: {', '.join(known) or 'none'}.")
    return names


def _loaded(root: Place, target: Place | None) -> tuple[Metadata, dict[Path, str]]:
    """Return the metadata of a dataset, and what to compare it with when files of it were encoded."""
    if target is None or Path(target).absolute() == Path(root).absolute():
        # episodes of an append that was killed are its own, too
        finish_append(root)
    states = states_of([root])
    return Metadata.load(root), states


def _encoded(
    metadata: Metadata,
    states: Mapping[Path, str],
    names: Sequence[str],
    places: Sequence[int],
    *,
    video: Mapping[str, Any] | None,
    depth: Mapping[str, Any] | None,
    target: Place | None,
    workers: Workers,
    progress: bool | None,
) -> Path:
    path = Path(metadata.root if target is None else target).absolute()
    job = _EncodeJob(str(metadata.root), str(_work(path)), dict(video or {}), dict(depth or {}), _digest(metadata))
    for name in names:
        # options that there are not are refused before anything is begun
        job.encoding(name)
    groups = [(name, group) for name in names for group in _groups(metadata, name, places)]
    chunks = [_Chunk(number, number + 1, name, group) for number, (name, group) in enumerate(groups)]
    with _working(job, chunks), edited(metadata.root, target, states=states) as place:
        steps = sum(int(metadata.episodes.length[list(each.places)].sum()) for each in chunks)
        run_chunks(job, chunks, workers=workers, total=steps, unit="steps", progress=progress)
        _edit(metadata, names, places, job, chunks, is_in_place=place.is_in_place).write(place.path)
    return path


def _work(path: Path) -> Path:
    return path.with_name(f".{path.name}.videos")


def _digest(metadata: Metadata) -> str:
    """Return what becomes another where a dataset's tables or videos do."""
    return digest_of(walked(metadata.root / "videos"), files_digest(metadata.root).encode())


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive episodes of a camera, which become one mp4 file."""

    start: int
    stop: int
    camera: str
    places: tuple[int, ...]


def _groups(metadata: Metadata, name: str, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield episodes of a camera that become one file: in v2 one, else as many as its size allows, by a guess."""
    height, width, _ = metadata.info.features[name].feature.fixed_shape
    limit = metadata.info.raw.get("video_files_size_in_mb", 200) * MEGABYTE * RATIO
    most = 1 if not metadata.info.is_v3 else max(1, min(CHUNK_FRAMES, int(limit / (height * width * 3))))
    held: list[int] = []
    frames = 0
    for place in places:
        length = int(metadata.episodes.length[place])
        if held and frames + length > most:
            yield tuple(held)
            held, frames = [], 0
        held.append(place)
        frames += length
    if held:
        yield tuple(held)


@dataclass(frozen=True, eq=False)
class _EncodeJob:
    """Encodes chunks of cameras; see `run_chunks`."""

    root: str
    work: str
    video: dict[str, Any]
    depth: dict[str, Any]
    digest: str
    noun = "file"

    def write(self, chunk: _Chunk, counters: MutableSequence[int], /) -> None:
        """Write the mp4 file of a chunk, unless an earlier call has."""
        counters[ITEM] = chunk.start
        facts_path = self.facts_path(chunk)
        if not facts_path.exists():
            column, encoding = self._columns[chunk.camera], self.encoding(chunk.camera)
            made = self.path(chunk).with_suffix(".part")
            files = VideoFiles(lambda _chunk, file: self._only(made, file), self._fps, FileNumbers(2), float("inf"))
            try:
                for episode in episodes_of(View(self._store, list(chunk.places))):
                    files.add(encoded_packets(episode, column, encoding))
                    counters[NUM_STEPS] += episode.length
            finally:
                files.close()
            made.replace(self.path(chunk))
            replace_file(str(facts_path), json.dumps(files.facts).encode())
        counters[NUM_ITEMS] += 1

    def encoding(self, camera: str) -> Feature:
        """Return how the images of a camera are encoded."""
        column = self.column(camera)
        return encoding_of(
            column, self.video if column.depth is None else {**self.video, **split_options(self.depth)[1]}
        )

    def column(self, camera: str) -> Column:
        """Return the column of a camera."""
        found: Column = self._columns[camera]
        return found

    def path(self, chunk: _Chunk) -> Path:
        """Return the mp4 file of a chunk."""
        return Path(self.work, f"{chunk.start}.mp4")

    def facts_path(self, chunk: _Chunk) -> Path:
        """Return the file that is there when a chunk is done."""
        return Path(self.work, f"{chunk.start}.json")

    def plan(self, chunks: Sequence[_Chunk]) -> dict[str, Any]:
        """Return the request, to compare it with an earlier one."""
        parts = [[chunk.camera, list(chunk.places)] for chunk in chunks]
        video, depth = ({key: str(value) for key, value in given.items()} for given in (self.video, self.depth))
        return {"digest": self.digest, "video": video, "depth": depth, "chunks": parts}

    @staticmethod
    def _only(path: Path, file: int) -> Path:
        if file:
            raise SchemaError(f"{path}: the encoder changed its stream between two episodes. Choose another encoder.")
        return path

    @cached_property
    def _store(self) -> Any:
        return open_in_place(self.root, progress=False)

    @cached_property
    def _fps(self) -> float:
        return float(Metadata.load(self.root).info.fps)

    @cached_property
    def _columns(self) -> dict[str, Any]:
        raw = Metadata.load(self.root).info.raw["features"]
        schema = schema_of(self._store)
        cameras = {name: "video" for name, feature in schema.items() if feature.kind == "image"}
        columns = map_schema(schema, cameras=cameras, origin=raw)  # type: ignore[arg-type]
        return {column.name: self._with_codes(column) for column in columns}

    def _with_codes(self, column: Column) -> Column:
        """Return a column; of images of depths with the codes that were asked for."""
        quantization, _ = split_options(self.depth)
        if quantization is None or column.depth is None or column.depth.quantization is not None:
            return column
        info = column.info
        raw = {**info.raw, "info": {**info.raw["info"], **quantization.info()}}
        return replace(column, info=replace(info, raw=raw))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("root", "work", "video", "depth", "digest")}


@contextmanager
def _working(job: _EncodeJob, chunks: Sequence[_Chunk]) -> Iterator[None]:
    """Hold the directory of mp4 files that are done; at the end it is removed, after a failure it is left."""
    work = Path(job.work)
    with full_disk_named(f"to encode videos in {work}; those that are done stay there"):
        work.mkdir(parents=True, exist_ok=True)
        try:
            lock = lock_directory(work, is_waiting=False)
        except BlockingIOError:
            raise StoreBusyError(f"{work}: another process encodes these videos. Wait for it.") from None
        with lock:
            plan = job.plan(chunks)
            if not (work / PLAN).exists() or read_json(work / PLAN) != plan:
                for entry in work.iterdir():
                    entry.unlink()
                replace_file(str(work / PLAN), json.dumps(plan).encode())
            yield
            # the dataset is edited by now: what cannot be removed does not undo it
            shutil.rmtree(work, ignore_errors=True)


def _edit(
    metadata: Metadata,
    names: Sequence[str],
    places: Sequence[int],
    job: _EncodeJob,
    chunks: Sequence[_Chunk],
    *,
    is_in_place: bool,
) -> Edit:
    """Return the edit that puts the files into a dataset."""
    encoded: dict[str, list[EncodedFile]] = {}
    features = dict(metadata.info.features)
    for chunk in chunks:
        lengths = tuple(int(metadata.episodes.length[place]) for place in chunk.places)
        encoded.setdefault(chunk.camera, []).append(EncodedFile(job.path(chunk), lengths))
        if features[chunk.camera] is metadata.info.features[chunk.camera]:
            facts = read_json(job.facts_path(chunk))
            features[chunk.camera] = _video_feature(
                metadata, job.column(chunk.camera), facts, job.encoding(chunk.camera)
            )
    return Edit(
        [metadata],
        [Chosen(0, place) for place in places],
        features,
        metadata.tasks,
        encoded=encoded,
        link=is_in_place,
    )


def _video_feature(metadata: Metadata, column: Column, facts: Mapping[str, Any], encoding: Feature) -> FeatureInfo:
    """Return the entry of a camera whose videos were encoded."""
    info = metadata.info.features[column.name]
    options = dict(encoding.options)
    told = {key: options[option] for option, key in NAMES.items() if options.get(option) is not None}
    if str(told.get("video.preset", "")).isdecimal():
        told["video.preset"] = int(told["video.preset"])
    found = {**video_info(facts, metadata.info.fps, column.info), **told}
    if column.depth is not None:
        found = _depth_info(column, found)
    raw = {**info.raw, "dtype": "video", "info": found}
    return FeatureInfo(info.name, "video", info.shape, info.names, raw)


def _depth_info(column: Column, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what info.json says of a depth map that was encoded, which is without loss."""
    depth = depth_of(column.info.raw)
    assert depth is not None
    assert depth.quantization is not None
    about = {"is_depth_map": True, "depth_unit": depth.unit, "video.extra_options": {"x265-params": "lossless=1"}}
    return {**about, **depth.quantization.info(), **found}
