"""The store that stands for a LeRobot dataset: its numbers, and references to its pictures.

::

    data/*.parquet  numbers, text ── once ──> NAME.npy                             mapped, as of any store
                    pictures  <──────────── 16 bytes a row: chunk, file, row       codec "parquet-image"
    videos/*.mp4    frames    <──────────── 16 bytes a row: chunk, file, seconds   codec "video-file"
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.formats.chosen_features import store_schema
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.parquet_images import picture_format
from stepwell.lerobot.tables import first_picture, read_files
from stepwell.progress import make_bar
from stepwell.references.file_codec import REFERENCE_DTYPE, file_template, noting_states
from stepwell.references.span_files import noted_states
from stepwell.schema import Feature, Image, Schema
from stepwell.store.bulk_writing import Blobs, EpisodeBlock, write_store

if TYPE_CHECKING:
    from stepwell.lerobot.metadata import Metadata
    from stepwell.lerobot.tables import FileRows

__all__ = ["mapped_schema", "write_mapped_store"]

Ints = npt.NDArray[np.int64]
# the names that the versions of the format have for the two numbers of a file
NUMBERS = {"chunk_index": "chunk", "file_index": "file", "episode_chunk": "chunk", "episode_index": "file"}


def write_mapped_store(path: Path, metadata: Metadata, *, tolerance: float, progress: bool | None = None) -> None:
    """Write the store of the selected episodes."""
    told = {
        "root": str(metadata.root),
        "repo_id": metadata.repo_id,
        "revision": metadata.revision,
        "info": metadata.info.raw,
        "tasks": list(metadata.tasks),
        "tolerance": tolerance,
    }
    schema = _noting_states(mapped_schema(metadata, tolerance), metadata)
    with make_bar(len(metadata.selected), "episodes", f"map {metadata.root.name}", wanted=progress) as bar:
        blocks = _blocks(metadata, bar)
        write_store(path, schema, blocks, fps=metadata.info.fps, metadata={"lerobot": told}, uuid=_identity(metadata))


def _identity(metadata: Metadata) -> str:
    """Return the same for the same episodes of a dataset wherever they lie: training goes on on another machine."""
    records, places = metadata.episodes, metadata.selected
    found = hashlib.blake2b(json.dumps(metadata.info.raw, sort_keys=True).encode(), digest_size=16)
    for numbers in (records.index[places], records.first[places], records.stop[places]):
        found.update(numbers.tobytes())
    for path in metadata.data_files(places):
        found.update(path.stat().st_size.to_bytes(8, "little") if path.exists() else b"")
    return found.hexdigest()


def mapped_schema(metadata: Metadata, tolerance: float) -> Schema:
    """Return the features of a dataset in its order; cameras are references into its files."""
    features: dict[str, Feature] = {}
    for name, info in metadata.info.features.items():
        feature = info.feature
        if info.is_video:
            files = _template(metadata, metadata.info.video_path or "", name)
            feature = Image(feature.fixed_shape, codec="video-file", files=files, tolerance=tolerance)
        elif info.is_image:
            files = _template(metadata, metadata.info.data_path, name)
            found = _first_format(metadata, name)
            feature = Image(feature.fixed_shape, codec="parquet-image", files=files, column=name, format=found)
        features[name] = feature
    return store_schema(features, str(metadata.root / INFO_PATH))


def _noting_states(schema: Schema, metadata: Metadata) -> Schema:
    """Return a schema whose references into tables know what these were before they were read."""
    keys = metadata.info.image_keys
    if not keys:
        return schema
    records = metadata.episodes
    chunks, files = (part[metadata.selected].tolist() for part in (records.data_chunk, records.data_file))
    lines = []
    # many episodes lie in one file
    for chunk, file in dict.fromkeys(zip(chunks, files, strict=True)):
        path = metadata.root / metadata.info.data_name(chunk, file)
        if path.exists():
            status = path.stat()
            lines.append(f"{chunk} {file} {noted_states([(status.st_size, status.st_mtime_ns)])}")
    states = "\n".join(lines)
    return Schema({name: noting_states(found, states) if name in keys else found for name, found in schema.items()})


def _template(metadata: Metadata, template: str, key: str) -> str:
    """Return the option ``files`` of a camera: the dataset's template, with references' names of the numbers."""
    parts = []
    for literal, name, spec, _ in Formatter().parse(template):
        parts.append(_escaped(literal))
        if name is not None:
            parts.append(_escaped(key) if name == "video_key" else f"{{{NUMBERS[name]}:{spec}}}")
    return file_template(str(metadata.root), "".join(parts))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _first_format(metadata: Metadata, name: str) -> str:
    """Return the format of the first picture of a camera; "png" for one that is neither PNG nor JPEG."""
    return picture_format(first_picture(metadata, name)) or "png"


def _blocks(metadata: Metadata, bar: Any) -> Iterator[EpisodeBlock]:
    """Yield the selected episodes, a parquet file at a time."""
    features = metadata.info.features
    numeric = [name for name, info in features.items() if not info.is_camera]
    for rows in read_files(metadata, metadata.selected, numeric, present=metadata.info.image_keys):
        columns: dict[str, npt.NDArray[Any] | Blobs] = {}
        for name, info in features.items():
            if info.is_video:
                columns[name] = _video_references(metadata, name, rows)
            else:
                columns[name] = _picture_references(rows) if info.is_image else rows.columns[name]
        yield EpisodeBlock(rows.lengths, columns, _told_of(metadata, rows.places))
        bar.update(len(rows.places))


def _told_of(metadata: Metadata, places: Ints) -> list[dict[str, Any]]:
    records = metadata.episodes
    numbers = records.index[places].tolist()
    return [
        {"lerobot_episode": number, "tasks": list(records.tasks[place])}
        for number, place in zip(numbers, places.tolist(), strict=True)
    ]


def _video_references(metadata: Metadata, name: str, rows: FileRows) -> Blobs:
    spans = metadata.episodes.videos[name]
    # as LeRobot asks its decoder: the row's float32 seconds and the start, added as float64
    seconds = np.asarray(rows.columns["timestamp"], np.float64)
    at = np.repeat(spans.start[rows.places], rows.lengths) + seconds
    return _references(
        np.repeat(spans.chunk[rows.places], rows.lengths), np.repeat(spans.file[rows.places], rows.lengths), at
    )


def _picture_references(rows: FileRows) -> Blobs:
    ends = np.cumsum(rows.lengths)
    num_rows = int(ends[-1]) if len(ends) else 0
    at = np.arange(num_rows) + np.repeat(rows.first_rows - (ends - rows.lengths), rows.lengths)
    return _references(rows.chunk, rows.file, at)


def _references(chunk: Ints | int, file: Ints | int, at: npt.NDArray[Any]) -> Blobs:
    """Return the rows of a column of references, see `stepwell.references.file_codec`."""
    made = np.empty(len(at), REFERENCE_DTYPE)
    made["chunk"], made["file"], made["at"] = chunk, file, at
    return Blobs(made.view(np.uint8), np.full(len(at), REFERENCE_DTYPE.itemsize, np.int64))
