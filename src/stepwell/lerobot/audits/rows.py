"""The data files: where the rows of each begin, types and shapes of its columns, and its index columns in pieces.

In a sound dataset a piece is an episode: of 10^7 rows a few numbers an episode are kept, and each check of the index
columns is a comparison of pieces.

::

    row             0  1  2  3  4 | 5  6  7  8 | 9 ...
    episode_index   0  0  0  0  0 | 1  1  1  1 | 2
    frame_index     0  1  2  3  4 | 0  1  2  3 | 0
    index           0  1  2  3  4 | 5  6  7  8 | 9       cut where one of these does not go on, and where an episode of
                                                         the table begins or ends

Source: Hugging Face ``datasets`` 3.6 and 4.8, for what they make of a column and of their own metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.formats.arrays import numpy_dtype
from stepwell.json_text import parse_json
from stepwell.lerobot.audits.report import WRITE_AGAIN, Rule, Subject, problem_of
from stepwell.lerobot.info import INDEX_FEATURES, DatasetInfo, FeatureInfo
from stepwell.lerobot.language import LANGUAGE_COLUMNS
from stepwell.lerobot.meta_files import open_parquet, read_columns

__all__ = [
    "SHAPE",
    "UNREADABLE",
    "DataFile",
    "Pieces",
    "data_paths",
    "episode_cuts",
    "pieces_of",
    "problems_of",
    "read_data_files",
]

Integers = npt.NDArray[np.int64]

UNREADABLE = Rule(
    "data-unreadable",
    "error",
    "Download it again. A recorder that was killed leaves files without end: their rows are lost.",
)


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """One parquet file of rows that is open."""

    path: str  # below the root
    number: int  # among the files that are looked at
    first: int  # position of its first row in the dataset
    num_rows: int
    episodes: Integers  # numbers of the episodes that should be in it
    file: Any  # the ``pyarrow.parquet.ParquetFile``
    kept: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # index columns that were read

    def numbers(self, name: str, info: DatasetInfo) -> npt.NDArray[Any] | None:
        """Return a numeric column as [rows, elements], None where it is missing; raises FormatError, ValueError."""
        if name not in self.file.schema_arrow.names:
            return None
        if name not in self.kept:
            table = read_columns(self.file, Path(self.path), [name])
            values = numbers_of(table.column(name), info.features[name])
            if not info.features[name].is_index:
                return values
            self.kept[name] = values
        return self.kept[name]


def data_paths(subject: Subject) -> list[str]:
    """Return the data files that are there and are looked at, in the order in which readers join them."""
    wanted = {path for place in subject.places.tolist() if (path := subject.data_path(place)) is not None}
    there = {path for path in wanted if (subject.root / path).is_file()}
    if subject.chosen is None:
        found = (subject.root / "data").glob("*/*.parquet")
        there.update(path.relative_to(subject.root).as_posix() for path in found)
    return sorted(there)


def read_data_files(subject: Subject, paths: Sequence[str]) -> Iterator[DataFile]:
    """Yield the data files, open; those that cannot be opened are findings."""
    members = subject.members(np.arange(len(subject.episodes)), subject.data_path)
    numbers = {path: number for number, path in enumerate(paths)}
    position: int | None = 0
    for path in sorted({*paths, *members}):
        places = members.get(path, np.empty(0, np.int64))
        file = _opened(subject, path, places) if path in numbers else None
        if file is None:
            position = None
            continue
        if position is None:
            position = max(0, int(subject.episodes.first[places].min())) if len(places) else 0
        with file:
            num_rows = file.metadata.num_rows
            yield DataFile(path, numbers[path], position, num_rows, subject.episodes.index[places], file)
        position += num_rows


def _opened(subject: Subject, path: str, places: Integers) -> Any:
    try:
        return open_parquet(subject.root / path)
    except FormatError as error:
        subject.tally.add(UNREADABLE, path, problem_of(error), subject.episodes.index[places])
        return None


HF_KEY = b"huggingface"
NUMBER_KINDS = "biuf"

MISSING = Rule("column-missing", "error", "Write the data files again with it, or take the feature out of info.json.")
EXTRA = Rule(
    "column-extra",
    "error",
    "Add it to the features of info.json, or drop the column: LeRobot cannot open it (CastError), stepwell can.",
    WRITE_AGAIN,
)
TYPE = Rule("column-type", "error", "Write the column as the feature says, or correct the dtype in info.json.")
WIDTH = Rule(
    "column-width",
    "warning",
    "Correct the dtype in info.json: v3.0 readers convert to it, those of v2.1 give the file's own.",
    WRITE_AGAIN,
)
SHAPE = Rule("column-shape", "error", "Write the column as the feature says, or correct the shape in info.json.")
HF_METADATA = Rule(
    "hf-metadata",
    "warning",
    'Write the files again, with "Sequence" instead of "List" and with the type of each image.',
    WRITE_AGAIN,
)


def problems_of(schema: Any, info: DatasetInfo) -> Iterator[tuple[Rule, str, str]]:
    """Yield (rule, feature, what is wrong) of a data file's ``pyarrow.Schema``."""
    expected = {name: feature for name, feature in info.features.items() if not feature.is_video}
    for name, feature in expected.items():
        if name not in schema.names:
            yield MISSING, name, "no such column in the data files"
        else:
            yield from _type_problems(schema.field(name).type, feature)
    if not info.is_v3:
        yield from _metadata_problems(schema.metadata or {}, info)
        return
    # v2.1 is read by the files' own schema
    for name in schema.names:
        if name not in info.raw["features"]:
            yield EXTRA, name, "a column of the data files that is no feature"


def _type_problems(found: Any, feature: FeatureInfo) -> Iterator[tuple[Rule, str, str]]:
    from pyarrow import types

    if feature.is_language:
        inner = found.value_type if types.is_list(found) or types.is_large_list(found) else found
        if not (types.is_struct(inner) or types.is_null(inner)):
            yield TYPE, feature.name, f"{found} in the data files, where language is lists of structs"
        return
    depth, leaf = _leaf_of(found)
    rank = 0 if feature.shape == (1,) or feature.is_text or feature.is_camera else len(feature.shape)
    if feature.is_camera:
        if not _holds_bytes(found):
            yield TYPE, feature.name, f"{found} in the data files, where images are struct<bytes, path>"
    elif feature.is_text:
        if not (types.is_string(found) or types.is_large_string(found)):
            yield TYPE, feature.name, f"{found} in the data files, string in info.json"
    elif (dtype := numpy_dtype(leaf)) is None or dtype.kind != np.dtype(feature.dtype).kind:
        yield TYPE, feature.name, f"{leaf} in the data files, {feature.dtype} in info.json"
    elif dtype.name != feature.dtype:
        yield WIDTH, feature.name, f"{leaf} in the data files, {feature.dtype} in info.json"
    if depth != rank or (types.is_fixed_size_list(found) and found.list_size != feature.shape[0]):
        yield SHAPE, feature.name, f"{found} in the data files, shape {list(feature.shape)} in info.json"


def _leaf_of(arrow_type: Any) -> tuple[int, Any]:
    """Return how many lists are around the numbers, and the type of these."""
    from pyarrow import types

    depth = 0
    while types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        depth, arrow_type = depth + 1, arrow_type.value_type
    return depth, arrow_type


def _holds_bytes(arrow_type: Any) -> bool:
    from pyarrow import types

    if types.is_struct(arrow_type):
        names = [arrow_type.field(number).name for number in range(arrow_type.num_fields)]
        return "bytes" in names and _holds_bytes(arrow_type.field("bytes").type)
    return bool(types.is_binary(arrow_type) or types.is_large_binary(arrow_type))


def _metadata_problems(metadata: dict[bytes, bytes], info: DatasetInfo) -> Iterator[tuple[Rule, str, str]]:
    try:
        features = parse_json(metadata.get(HF_KEY, b"{}")).get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        features = {}
    known = {name: each for name, each in features.items() if name not in LANGUAGE_COLUMNS}
    if '"_type": "List"' in json.dumps(known):
        yield HF_METADATA, "", 'metadata of type "List", which datasets < 4 and so lerobot 0.3 cannot parse'
    for name in info.image_keys:
        if not isinstance(features.get(name), dict) or features[name].get("_type") != "Image":
            yield HF_METADATA, name, "no metadata says that it is an image: lerobot 0.3 gives bytes, not pixels"


def numbers_of(column: Any, feature: FeatureInfo) -> npt.NDArray[Any]:
    """Return a numeric ``pyarrow.ChunkedArray`` as [rows, elements], missing values as NaN; raises ValueError."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    num_rows, num_elements = len(array), int(np.prod(feature.shape))
    while _leaf_of(array.type)[0]:
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        if lengths is not None and len(set(lengths.drop_null().unique().to_pylist())) > 1:
            raise ValueError("rows of several lengths")
        array = array.flatten()
    if len(array) != num_rows * num_elements:
        raise ValueError(f"{len(array)} numbers in {num_rows} rows of shape {list(feature.shape)}")
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if values.dtype.kind not in NUMBER_KINDS:
        # bools of which some are missing come as objects
        values = np.array([np.nan if value is None else value for value in values], np.float64)
    return values.reshape(num_rows, num_elements)


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Runs of rows in which episode_index stays, and frame_index and index count up by one."""

    file: Integers  # int64 [P], number of the data file
    first: Integers  # int64 [P], position of its first row in the dataset
    stop: Integers  # int64 [P], half-open
    episode: Integers  # int64 [P], episode_index of its rows
    frame: Integers  # int64 [P], frame_index of its first row
    index: Integers  # int64 [P], index of its first row
    late_low: Floats  # float64 [P], least of timestamp times fps minus the position, in steps
    late_high: Floats  # float64 [P], greatest
    off_grid: Floats  # float64 [P], seconds by which a timestamp lies beside a multiple of 1 / fps, at most
    num_bad_tasks: Integers  # int64 [P], rows whose task_index is no task's

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return the pieces of all files."""
        if not parts:
            whole, real = np.empty(0, np.int64), np.empty(0)
            return cls(whole, whole, whole, whole, whole, whole, real, real, real, whole)
        columns: Any = (np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__)
        return cls(*columns)


def episode_cuts(subject: Subject) -> Integers:
    """Return the positions at which episodes begin and end by the table, int64 [C], ascending."""
    return np.union1d(subject.episodes.first, subject.episodes.stop)


def pieces_of(data: DataFile, subject: Subject, cuts: Integers) -> Pieces | None:
    """Return the pieces of a file; None where it cannot be read or has no rows."""
    try:
        columns = {name: data.numbers(name, subject.info) for name in INDEX_FEATURES}
    except FormatError as error:
        subject.tally.add(UNREADABLE, data.path, problem_of(error), data.episodes)
        return None
    except ValueError:  # the check of the columns' types and shapes tells it
        return None
    episode = _whole(columns["episode_index"])
    if episode is None or not data.num_rows:
        return None
    position = data.first + np.arange(data.num_rows)
    index, frame = _whole(columns["index"]), _whole(columns["frame_index"])
    index = position if index is None else index
    frame = _counted(episode) if frame is None else frame
    is_cut = (np.diff(episode) != 0) | (np.diff(frame) != 1) | (np.diff(index) != 1)
    inner = cuts[(cuts > data.first) & (cuts < data.first + data.num_rows)] - data.first
    starts = np.union1d(np.append(np.flatnonzero(is_cut) + 1, 0), inner)
    time = columns["timestamp"]
    late, off_grid = _lateness(frame / subject.info.fps if time is None else time[:, 0], position, subject.info.fps)
    is_bad_task = _is_no_task(_whole(columns["task_index"]), subject, data.num_rows)
    return Pieces(
        file=np.full(len(starts), data.number),
        first=position[starts],
        stop=np.append(position[starts[1:]], data.first + data.num_rows),
        episode=episode[starts],
        frame=frame[starts],
        index=index[starts],
        late_low=np.minimum.reduceat(late, starts),
        late_high=np.maximum.reduceat(late, starts),
        off_grid=np.maximum.reduceat(off_grid, starts),
        num_bad_tasks=np.add.reduceat(is_bad_task, starts),
    )


def _is_no_task(task: Integers | None, subject: Subject, num_rows: int) -> Integers:
    """Return 1 for each row whose task_index names no task."""
    if task is None or subject.tasks is None:
        return np.zeros(num_rows, np.int64)
    known = range(len(subject.tasks)) if subject.info.is_v3 else [number for number, _ in subject.tasks]
    return np.isin(task, np.array(known, np.int64), invert=True).astype(np.int64)


def _whole(column: npt.NDArray[Any] | None) -> Integers | None:
    """Return a column of whole numbers; missing values become a number that nothing is equal to."""
    if column is None:
        return None
    values = column[:, 0]
    if values.dtype.kind == "f":
        values = np.where(np.isfinite(values), values, np.iinfo(np.int32).min)
    whole: Integers = values.astype(np.int64)
    return whole


def _counted(episode: Integers) -> Integers:
    """Return the number of each row in its run of equal values."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1])
    counted: Integers = np.arange(len(episode)) - np.repeat(starts, np.diff(np.append(starts, len(episode))))
    return counted


def _lateness(time: npt.NDArray[Any], position: Integers, fps: float) -> tuple[Floats, Floats]:
    """Return timestamps in steps, minus the position; and by how many seconds they are beside the grid."""
    seconds = time.astype(np.float64)
    # times that a float of the column's type cannot tell apart are no fault
    resolution = np.spacing(np.abs(time)).astype(np.float64) if time.dtype.kind == "f" else np.zeros(len(time))
    steps = seconds * fps
    off_grid = np.maximum(np.abs(steps - np.round(steps)) / fps - resolution, 0)
    is_known = np.isfinite(steps)
    return np.where(is_known, steps - position, np.inf), np.where(is_known, off_grid, np.inf)
