"""Columns of a LeRobot dataset's parquet files, checked, and the store that is mapped from them, a file at a time.

::

    file-000.parquet      episode_index   3 3 3 3 5 5 5 9 9        the rows of an episode are found by it,
                          frame_index     0 1 2 3 0 1 2 0 1        counted by this, and by the table of episodes
                          action          . . . . . . . . .
                                                  |------| chosen: rows [4, 7) of the file

    data/*.parquet  numbers, text ── once ──> NAME.npy                             mapped, as of any store
                    images   <─────────────── 16 bytes a row: chunk, file, row       codec "parquet-image"
    videos/*.mp4    frames   <─────────────── 16 bytes a row: chunk, file, seconds   codec "video-file"
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.image_files import read_image_head
from stepwell.errors import DecodeError, FormatError, LeftOutWarning
from stepwell.formats.reader import store_schema
from stepwell.lerobot.episode_metadata import metadata_of
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.language import LANGUAGE_COLUMNS, LanguageRows, language_rows
from stepwell.lerobot.meta_files import SUBTASK_INDEX, open_parquet, read_subtasks
from stepwell.lerobot.parquet_images import depth_file_kind, png_or_jpeg
from stepwell.progress import make_bar
from stepwell.references.file_codec import REFERENCE_DTYPE, file_template, noting_states
from stepwell.references.span_files import noted_states
from stepwell.schema import Feature, Image, Schema
from stepwell.store.bulk_writing import Blobs, EpisodeBlock, write_store

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.lerobot.metadata import Metadata

__all__ = [
    "FileRows",
    "array_of",
    "first_image",
    "mapped_schema",
    "read_columns",
    "read_files",
    "text_of",
    "write_mapped_store",
]

EPISODE, FRAME = "episode_index", "frame_index"
Ints = npt.NDArray[np.int64]
# dtype and shape of a row; None of a text, LANGUAGE of annotations
Kind = tuple[np.dtype[Any], tuple[int, ...]] | Literal["language"] | None
Column = npt.NDArray[Any] | Blobs | LanguageRows


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """What one parquet file holds of some episodes."""

    places: Ints  # int64 [n], of the episodes in the dataset's records, in order
    chunk: int  # first number of the file's name
    file: int  # second number
    first_rows: Ints  # int64 [n], the row of the file at which each episode begins
    lengths: Ints  # int64 [n], rows of each
    # the episodes' rows one after the other: an array [rows, *shape], `Blobs` of UTF-8 where it is text, or annotations
    columns: Mapping[str, Column]

    def episode(self, number: int) -> dict[str, npt.NDArray[Any] | list[str]]:
        """Return the columns of one of the episodes: arrays, and lists of texts."""
        start = int(self.lengths[:number].sum())
        part = slice(start, start + int(self.lengths[number]))
        return {
            name: column[part] if isinstance(column, np.ndarray) else _strings(column, part)
            for name, column in self.columns.items()
        }


def read_files(
    metadata: Metadata, places: npt.ArrayLike, names: Iterable[str], *, present: Iterable[str] = ()
) -> Iterator[FileRows]:
    """Yield columns of episodes, a parquet file at a time."""
    chosen, kinds = np.asarray(places, np.int64), {name: _kind_of(metadata, name) for name in names}
    required = list(dict.fromkeys([*kinds, *present, EPISODE, FRAME]))
    records = metadata.episodes
    lengths = records.stop[chosen] - records.first[chosen]
    where = np.stack([records.data_chunk[chosen], records.data_file[chosen]], 1)
    edges = [0, *(np.flatnonzero((where[1:] != where[:-1]).any(1)) + 1).tolist(), len(chosen)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield _read_file(metadata, chosen[start:stop], lengths[start:stop], kinds, required)


def read_columns(
    metadata: Metadata, places: npt.ArrayLike, names: Iterable[str]
) -> Iterator[tuple[int, dict[str, npt.NDArray[Any] | list[str]]]]:
    """Yield columns of whole episodes, one episode at a time; each parquet file is read once."""
    for found in read_files(metadata, places, names):
        for number, place in enumerate(found.places.tolist()):
            yield place, found.episode(number)


def first_image(metadata: Metadata, name: str) -> bytes:
    """Return the first image file of a camera in the parquet files; empty without any."""
    import pyarrow as pa

    records = metadata.episodes
    places = metadata.selected[records.length[metadata.selected] > 0]
    if not len(places):
        return b""
    path = metadata.data_path(int(records.data_chunk[places[0]]), int(records.data_file[places[0]]))
    with _TableFile(path, _advice(metadata)) as table:
        table.check_names([name])
        column = table.first_value(name)
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise FormatError(
            f"{path}: column {name!r} is {column.type}. Allowed: binary, or a struct with bytes and path."
        )
    return column[0].as_py() or b""


def _kind_of(metadata: Metadata, name: str) -> Kind:
    info = metadata.info.features[name]
    if info.is_text:
        return "language" if info.is_language else None
    return info.feature.np_dtype, info.feature.fixed_shape


def _advice(metadata: Metadata) -> str:
    return f'Run "stepwell verify lerobot://{metadata.root}" to see all that is wrong with it.'


def _read_file(
    metadata: Metadata, places: Ints, lengths: Ints, kinds: Mapping[str, Kind], required: Sequence[str]
) -> FileRows:
    records = metadata.episodes
    chunk, file = int(records.data_chunk[places[0]]), int(records.data_file[places[0]])
    with _TableFile(metadata.data_path(chunk, file), _advice(metadata)) as table:
        table.check_names(required)
        table.check_languages(metadata.info.raw["features"])
        first_rows = table.find(records.index[places], lengths, kinds)
        columns = table.read(first_rows, lengths, kinds)
    return FileRows(places, chunk, file, first_rows, lengths, columns)


class _TableFile:
    """One parquet file."""

    def __init__(self, path: Path, advice: str) -> None:
        self._path, self._advice = path, advice
        self._reader = open_parquet(path)
        self._whole: pa.Table | None = None

    def __enter__(self) -> _TableFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse a file that has not all of these columns."""
        there = set(self._reader.schema_arrow.names)
        missing = [name for name in names if name not in there]
        if missing:
            raise FormatError(f"{self._path} has no column {', '.join(map(repr, missing))}. {self._advice}")

    def check_languages(self, features: Mapping[str, Any]) -> None:
        """Refuse a file with annotations that info.json does not tell of: they would be left out silently."""
        there = set(self._reader.schema_arrow.names)
        unknown = [name for name in LANGUAGE_COLUMNS if name in there and name not in features]
        if unknown:
            raise FormatError(
                f"{self._path} has {', '.join(unknown)}, of which meta/info.json says nothing. Add to its features "
                "what stepwell.lerobot.language.language_feature_info() returns."
            )

    def find(self, episodes: Ints, lengths: Ints, kinds: Mapping[str, Kind]) -> Ints:
        """Return the row at which each episode begins."""
        if self._reader.metadata.num_rows == lengths.sum():
            # all of it is wanted: one read instead of two
            self._whole = self._read_columns(list(dict.fromkeys([*kinds, EPISODE, FRAME])))
        table = self._read_columns([EPISODE]) if self._whole is None else self._whole
        numbers = array_of(table.column(EPISODE), np.dtype(np.int64), (), self._about(EPISODE))
        return self._find_runs(numbers, episodes, lengths)

    def _find_runs(self, numbers: Ints, episodes: Ints, lengths: Ints) -> Ints:
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)) if len(numbers) else np.empty(0, np.int64)
        sizes = np.diff(starts, append=len(numbers)).tolist()
        runs: dict[int, list[tuple[int, int]]] = {}
        for number, start, size in zip(numbers[starts].tolist(), starts.tolist(), sizes, strict=True):
            runs.setdefault(number, []).append((start, size))
        first_rows = np.zeros(len(episodes), np.int64)
        for i, (episode, length) in enumerate(zip(episodes.tolist(), lengths.tolist(), strict=True)):
            found = runs.get(episode, [(0, 0)])
            if len(found) > 1 or found[0][1] != length:
                places = "" if len(found) == 1 else f" in {len(found)} places"
                raise FormatError(
                    f"{self._path}: episode {episode} has {sum(size for _, size in found)} rows{places} by the column "
                    f"{EPISODE!r}, the table of episodes says {length} that follow each other. {self._advice}"
                )
            first_rows[i] = found[0][0]
        return first_rows

    def read(self, first_rows: Ints, lengths: Ints, kinds: Mapping[str, Kind]) -> dict[str, Column]:
        """Return the wanted columns of the rows of episodes, which were found before."""
        rows = _rows(first_rows, lengths)
        if self._whole is not None:
            table = _cut(self._whole, rows)
        else:
            table = self._read_rows(list(dict.fromkeys([*kinds, FRAME])), rows)
        self._check_frames(table, lengths)
        return {name: self._column(table.column(name), name, kind) for name, kind in kinds.items()}

    def _column(self, column: pa.ChunkedArray, name: str, kind: Kind) -> Column:
        where = self._about(name)
        if kind is None:
            return text_of(column, where)
        return language_rows(column, where) if kind == "language" else array_of(column, *kind, where)

    def first_value(self, name: str) -> pa.Array:
        """Return a column's first row."""
        import pyarrow as pa

        try:
            return next(self._reader.iter_batches(1, columns=[name], use_threads=False)).column(name)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self._path} cannot be read: {error}. {self._advice}") from error

    def _check_frames(self, table: pa.Table, lengths: Ints) -> None:
        frames = array_of(table.column(FRAME), np.dtype(np.int64), (), self._about(FRAME))
        expected = _row_numbers(np.zeros_like(lengths), lengths)
        wrong = np.flatnonzero(frames != expected)
        if len(wrong):
            row = int(wrong[0])
            raise FormatError(
                f"{self._path}: column {FRAME!r} is {frames[row]} in row {expected[row]} of an episode "
                f"({len(wrong)} rows are wrong). Allowed: 0, 1, 2, ... in each episode. {self._advice}"
            )

    def _read_rows(self, names: list[str], rows: slice | Ints) -> pa.Table:
        """Return columns of some rows; only the row groups that hold them are read."""
        footer = self._reader.metadata
        ends = np.cumsum([footer.row_group(i).num_rows for i in range(footer.num_row_groups)])
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        of_rows = np.searchsorted(ends, numbers, "right")
        groups, places = np.unique(of_rows, return_inverse=True)
        sizes = np.diff(ends, prepend=0)[groups]
        within = numbers - (ends[of_rows] - np.diff(ends, prepend=0)[of_rows])
        read = within + (np.cumsum(sizes) - sizes)[places]
        table = self._read_columns(names, groups.tolist())
        return _cut(table, slice(int(read[0]), int(read[-1]) + 1) if _is_run(read) else read)

    def _read_columns(self, names: list[str], groups: list[int] | None = None) -> pa.Table:
        import pyarrow as pa

        try:
            if groups is None:
                return self._reader.read(columns=names)
            return self._reader.read_row_groups(groups, columns=names)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self._path} cannot be read: {error}. {self._advice}") from error

    def _about(self, name: str) -> str:
        return f"{self._path}: column {name!r}"


def _rows(first_rows: Ints, lengths: Ints) -> slice | Ints:
    """Return the rows of episodes in order: a slice where they follow each other."""
    if not len(first_rows):
        return slice(0, 0)
    if (first_rows[1:] == first_rows[:-1] + lengths[:-1]).all():
        return slice(int(first_rows[0]), int(first_rows[-1] + lengths[-1]))
    return _row_numbers(first_rows, lengths)


def _row_numbers(first_rows: Ints, lengths: Ints) -> Ints:
    """Return the rows of episodes, one episode after the other."""
    starts = np.cumsum(lengths) - lengths
    found: Ints = np.arange(int(lengths.sum())) + np.repeat(first_rows - starts, lengths)
    return found


def _is_run(rows: Ints) -> bool:
    return bool(len(rows) and (np.diff(rows) == 1).all())


def _cut(table: pa.Table, rows: slice | Ints) -> pa.Table:
    return table.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else table.take(rows)


def _strings(blobs: Blobs | LanguageRows, part: slice) -> list[str]:
    if isinstance(blobs, LanguageRows):
        return blobs.strings(part)
    edges = np.cumsum([0, *blobs.sizes]).tolist()[part.start : part.stop + 1]
    return [blobs.data[start:stop].tobytes().decode("utf-8") for start, stop in pairwise(edges)]


def array_of(column: pa.ChunkedArray, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> npt.NDArray[Any]:
    """Return a column of numbers."""
    array, sizes = _one_array(column), []
    while True:
        _check_is_whole(array, where)
        array, size = _flattened(array, where)
        if size is None:
            break
        sizes.append(size)
    if tuple(sizes) not in ({shape, (1,)} if shape == () else {shape}) and len(column):
        raise FormatError(f"{where} has rows of shape {tuple(sizes)}. {_features_say(dtype, shape)}")
    try:
        values = array.to_numpy(zero_copy_only=False)
    except (NotImplementedError, ValueError) as error:
        raise FormatError(f"{where} is of type {column.type}. {_features_say(dtype, shape)}") from error
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise FormatError(f"{where} is of type {column.type}. {_features_say(dtype, shape)}")
    return np.asarray(values, dtype).reshape(len(column), *shape)


def text_of(column: pa.ChunkedArray, where: str) -> Blobs:
    """Return a column of strings, as UTF-8."""
    import pyarrow as pa

    array = _one_array(column)
    _check_is_whole(array, where)
    kind = array.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise FormatError(f'{where} is of type {column.type}. meta/info.json says "string".')
    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    edges = (
        np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1] if len(array) else np.zeros(1)
    )
    edges = edges.astype(np.int64)
    whole = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Blobs(whole[edges[0] : edges[-1]], np.diff(edges))


def _one_array(column: pa.ChunkedArray) -> Any:
    """Return a column as one array of its plain type."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise FormatError(f"a column of {column.nbytes} bytes is too large for one array.")
    while isinstance(array.type, pa.BaseExtensionType) or pa.types.is_dictionary(array.type):
        array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array.dictionary_decode()
    return array


def _flattened(array: Any, where: str) -> tuple[Any, int | None]:
    """Return the values of lists and the length that all of them have; of anything else itself and None."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return array.flatten(), int(kind.list_size)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return array, None
    lengths = np.diff(np.asarray(array.offsets))
    size = int(lengths[0]) if len(lengths) else 0
    if (lengths != size).any():
        row = int(np.argmax(lengths != size))
        raise FormatError(f"{where} has a list of {lengths[row]} values where others have {size}.")
    return array.flatten(), size


def _check_is_whole(array: Any, where: str) -> None:
    if array.null_count:
        raise FormatError(f"{where}: {array.null_count} of {len(array)} values are missing (null).")


def _features_say(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"meta/info.json says {dtype.name} of shape {shape or (1,)}."


# the names that the versions of the format have for the two numbers of a file
NUMBERS = {"chunk_index": "chunk", "file_index": "file", "episode_chunk": "chunk", "episode_index": "file"}


def write_mapped_store(
    path: Path, metadata: Metadata, *, dataset: str, tolerance: float, progress: bool | None = None
) -> None:
    """Write the store of the selected episodes; `dataset` is what `noted_dataset` said before metadata were read."""
    described: dict[str, Any] = {
        "root": str(metadata.root),
        "repo_id": metadata.repo_id,
        "revision": metadata.revision,
        "info": metadata.info.raw,
        "tasks": list(metadata.tasks),
        "tolerance": tolerance,
    }
    if SUBTASK_INDEX in metadata.info.features and (subtasks := read_subtasks(metadata.root)) is not None:
        described["subtasks"] = subtasks
    schema = _noting_states(mapped_schema(metadata, tolerance, dataset), metadata)
    with make_bar(len(metadata.selected), "episodes", f"map {metadata.root.name}", wanted=progress) as bar:
        blocks = _blocks(metadata, bar)
        write_store(
            path, schema, blocks, fps=metadata.info.fps, metadata={"lerobot": described}, uuid=_identity(metadata)
        )


def _identity(metadata: Metadata) -> str:
    """Return the same for the same episodes of a dataset wherever they lie: training goes on on another machine."""
    records, places = metadata.episodes, metadata.selected
    found = hashlib.blake2b(json.dumps(metadata.info.raw, sort_keys=True).encode(), digest_size=16)
    for numbers in (records.index[places], records.first[places], records.stop[places]):
        found.update(numbers.tobytes())
    for path in metadata.data_files(places):
        found.update(path.stat().st_size.to_bytes(8, "little") if path.exists() else b"")
    return found.hexdigest()


def mapped_schema(metadata: Metadata, tolerance: float, dataset: str | None = None) -> Schema:
    """Return the features of a dataset in its order; cameras are references into its files."""
    features: dict[str, Feature] = {}
    kept: dict[str, Any] = {"tolerance": tolerance, **({} if dataset is None else {"dataset": dataset})}
    for name, info in metadata.info.features.items():
        feature = info.feature
        if info.is_video:
            files = _template(metadata, metadata.info.video_path or "", name)
            feature = Image(feature.fixed_shape, feature.dtype, codec="video-file", files=files, **kept)
        elif info.is_image:
            files = _template(metadata, metadata.info.data_path, name)
            shape, dtype, found = _first_image_kind(metadata, name, feature)
            feature = Image(shape, dtype, codec="parquet-image", files=files, column=name, format=found)
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


def _first_image_kind(metadata: Metadata, name: str, feature: Feature) -> tuple[Sequence[int], str, str]:
    """Return shape, dtype and format of a camera's images, as its first image has them.

    The format of one that is neither PNG nor JPEG is "png", of floats "zstd".
    """
    file, shape = first_image(metadata, name), feature.fixed_shape
    head, dtype, found = read_image_head(file), feature.dtype, png_or_jpeg(file)
    size = None if head is None else (head.height, head.width)
    if found is None and file and metadata.info.features[name].is_depth:
        try:
            height, width, dtype = depth_file_kind(file)
            size = height, width
        except DecodeError as error:
            raise FormatError(f"{metadata.root}: the first image of {name!r}: {error}") from error
    if size is not None and size != tuple(shape[:2]):
        # as lerobot, which never compares them
        warnings.warn(
            f"{metadata.root / INFO_PATH}: images of {name!r} are {shape[0]}x{shape[1]} there, and "
            f"{size[0]}x{size[1]} in the tables. These are read.",
            LeftOutWarning,
            stacklevel=2,
        )
        shape = (*size, *shape[2:])
    return shape, dtype, found or ("zstd" if dtype == "float32" else "png")


def _blocks(metadata: Metadata, bar: Any) -> Iterator[EpisodeBlock]:
    """Yield the selected episodes, a parquet file at a time."""
    features = metadata.info.features
    numeric = [name for name, info in features.items() if not info.is_camera]
    selected = metadata.selected.tolist()
    described = dict(zip(selected, metadata_of(metadata, selected), strict=True))
    for rows in read_files(metadata, metadata.selected, numeric, present=metadata.info.image_keys):
        columns: dict[str, npt.NDArray[Any] | Blobs] = {}
        for name, info in features.items():
            found = rows.columns.get(name)
            if info.is_video:
                columns[name] = _video_references(metadata, name, rows)
            elif info.is_image or found is None:
                columns[name] = _image_references(rows)
            else:
                columns[name] = found.blobs(info.feature) if isinstance(found, LanguageRows) else found
        yield EpisodeBlock(rows.lengths, columns, [described[place] for place in rows.places.tolist()])
        bar.update(len(rows.places))


def _video_references(metadata: Metadata, name: str, rows: FileRows) -> Blobs:
    spans = metadata.episodes.videos[name]
    # as LeRobot asks its decoder: the row's float32 seconds and the start, added as float64
    seconds = np.asarray(rows.columns["timestamp"], np.float64)
    at = np.repeat(spans.start[rows.places], rows.lengths) + seconds
    return _references(
        np.repeat(spans.chunk[rows.places], rows.lengths), np.repeat(spans.file[rows.places], rows.lengths), at
    )


def _image_references(rows: FileRows) -> Blobs:
    return _references(rows.chunk, rows.file, _row_numbers(rows.first_rows, rows.lengths))


def _references(chunk: Ints | int, file: Ints | int, at: npt.NDArray[Any]) -> Blobs:
    """Return the rows of a column of references, see `stepwell.references.file_codec`."""
    made = np.empty(len(at), REFERENCE_DTYPE)
    made["chunk"], made["file"], made["at"] = chunk, file, at
    return Blobs(made.view(np.uint8), np.full(len(at), REFERENCE_DTYPE.itemsize, np.int64))
