"""An edited dataset: the episodes of datasets that are there, in another choice, with other features or other tasks.

::

    datasets ─┬─ data/      files whose rows stay as they are: placed whole; of others the rows, index columns anew
              ├─ videos/    files whose episodes all stay: placed whole; of others the packets; nothing is decoded
              ├─ meta/      rows of episodes with their statistics; index columns, places and totals anew
              └─ encoded    cameras whose mp4 files were made before (`stepwell.lerobot.video_edits`): placed whole

An episode that does not begin with a key frame has no packets of its own: it alone is decoded and encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode, episodes_of, schema_of
from stepwell.lerobot.appending import cameras_of, is_per_element
from stepwell.lerobot.camera_writing import (
    EpisodePackets,
    VideoFiles,
    encoded_packets,
    encoding_of,
    stored_packets,
)
from stepwell.lerobot.dataset_files import EPISODES_PATH, EpisodeLines, appended_info, write_json, write_tasks
from stepwell.lerobot.in_place import open_in_place
from stepwell.lerobot.info import (
    DATA_PATHS,
    ENCODERS,
    INFO_PATH,
    VIDEO_PATHS,
    FeatureInfo,
    sizes_of,
)
from stepwell.lerobot.mapped_stores import array_of
from stepwell.lerobot.meta_files import (
    EPISODES_LINES,
    SUBTASK_INDEX,
    SUBTASKS_PATH,
    episode_paths,
    import_pyarrow,
    is_of_format,
    open_parquet,
    read_columns,
    read_json_lines,
    read_subtasks,
    said,
)
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.parquet_writing import (
    MEGABYTE,
    EpisodeRow,
    EpisodeTableWriter,
    FileNumbers,
    ParquetFiles,
    VideoSpan,
    data_schema,
    episode_schema,
    place_file,
    plain_array,
    plain_statistics,
    tasks_table,
)
from stepwell.lerobot.schema_mapping import Column, map_schema
from stepwell.lerobot.statistics import (
    EPISODES_STATS_LINES,
    QUANTILES,
    STATS_PATH,
    StatisticsSum,
    as_lerobot,
    image_stride,
    image_summary,
    merged,
    numeric_statistics,
    sampled_steps,
    stats_of_lines,
    stored_entries,
)
from stepwell.lerobot.tasks import TaskList
from stepwell.schema import Feature
from stepwell.store import Store
from stepwell.store.statistics import FeatureStatistics
from stepwell.windows import View

__all__ = ["Chosen", "Edit", "EncodedFile", "Values", "encoder_options", "told_options"]

# a column that is added: values of all rows of the result, [n, ...], or a function of a row, the number of its episode
# and its number therein
Values = npt.NDArray[Any] | Sequence[Any] | Callable[[dict[str, Any], int, int], Any]
# whole numbers and floats become floats
PERMISSIVE = {"promote_options": "permissive"}
INDEXES = ("episode_index", "index", "task_index")
# times that lie further off the grid are replaced
TOLERANCE_SECONDS = 1e-4
VERIFY = '"stepwell verify" says what is wrong.'


@dataclass(frozen=True, slots=True)
class Chosen:
    """An episode of the result: the number of its dataset, and its number there."""

    dataset: int
    place: int


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """An mp4 file that was made of episodes of the result, which follow each other; with their lengths."""

    path: Path
    lengths: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Edit:
    """What an edited dataset is made of.

    Args:
        datasets: that the episodes come from; of one version and rate.
        episodes: those of the result, in their order.
        features: all features of the result, the five index columns with them.
        texts: of tasks that come first, in this order; those that rows have besides follow.
        retask: the text of a step's task from the episode of the result, and what it was (None: of no task).
        added: values of features that the datasets do not have.
        encoded: mp4 files of cameras that were encoded anew.
        entries: what info.json says of features, where it is not what the first dataset says.
        subtasks: all texts of the result by ``subtask_index``, which is numbered anew; default: as in the first one.
        recomputed: names of features whose statistics are computed from all rows, of each episode, too; of cameras from
            16,384 images at most.
        summed: entries of stats.json that replace all others.
        is_packed: whether small mp4 files are joined, and small data files.
        sizes_mb: of a parquet and of an mp4 file, from which on it is not added to; default: of the first dataset.
        chunks_size: files a directory; default: of the first dataset.
        link: whether files that stay are hard links; else they are copies.
    """

    datasets: Sequence[Metadata]
    episodes: Sequence[Chosen]
    features: Mapping[str, FeatureInfo]
    texts: Sequence[str] = ()
    retask: Callable[[int, str | None], str | None] = lambda _episode, text: text
    added: Mapping[str, Values] = field(default_factory=dict)
    encoded: Mapping[str, Sequence[EncodedFile]] = field(default_factory=dict)
    entries: Mapping[str, Any] = field(default_factory=dict)
    subtasks: Sequence[str] = ()
    recomputed: frozenset[str] = frozenset()
    summed: Mapping[str, Any] = field(default_factory=dict)
    is_packed: tuple[bool, bool] = (False, False)
    sizes_mb: tuple[float, float] | None = None
    chunks_size: int | None = None
    link: bool = False

    def write(self, root: Path) -> None:
        """Write the dataset into an empty directory."""
        _Writing(self, root).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The rows of an episode of the result: where they are in a data file, and their new index columns."""

    number: int
    rows: slice
    first: int  # of all rows of the result
    columns: Mapping[str, npt.NDArray[Any]]
    texts: tuple[str, ...]

    @property
    def length(self) -> int:
        return int(self.rows.stop - self.rows.start)

    def renumbered(self, table: Any, features: Mapping[str, FeatureInfo]) -> Any:
        """Return the episode's rows of a file, with the new index columns."""
        rows = table.slice(self.rows.start, self.length)
        for name, values in self.columns.items():
            if name in rows.column_names:
                rows = rows.set_column(rows.column_names.index(name), name, plain_array(values, features[name]))
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """An episode whose rows are written: where, and the statistics that are not as they were."""

    part: _Part
    place: tuple[int, int]
    statistics: Mapping[str, Mapping[str, npt.NDArray[Any]]]


class _Writing:
    """One run of `Edit.write`."""

    def __init__(self, edit: Edit, root: Path) -> None:
        self._edit, self._root = edit, root
        first = edit.datasets[0]
        self._is_v3, self._fps = first.info.is_v3, first.info.fps
        # v2.0 becomes v2.1, which has statistics of each episode
        self._is_old = first.info.version == "v2.0"
        self._raw = {**first.info.raw, **({"codebase_version": "v2.1"} if self._is_old else {})}
        self._chunks_size = edit.chunks_size or first.info.chunks_size
        self._sizes_mb = edit.sizes_mb or sizes_of(self._raw)
        self._tasks = TaskList(edit.texts)
        self._infos = list(edit.features.values())
        self._sources = [_Source(dataset) for dataset in edit.datasets]
        self._per_element = not self._is_v3 or self._is_per_element(first)
        self._total = StatisticsSum(per_element=self._per_element)
        self._stored = self._stored_statistics(first)
        self._schema = data_schema(self._infos)
        limit = self._sizes_mb[0] if self._is_v3 else 0
        self._data = ParquetFiles(partial(self._path, DATA_PATHS), self._schema, FileNumbers(self._chunks_size), limit)
        self._num_frames = 0

    def run(self) -> None:
        """Write all files."""
        spans = {info.name: self._write_videos(info) for info in self._infos if info.is_video}
        table = self._episode_table()
        try:
            for written in self._write_data():
                found = {key: each[written.part.number] for key, each in spans.items()}
                table.add(self._episode_row(written, found))
        finally:
            self._data.close()
            table.close()
        self._write_meta()

    def _path(self, templates: Mapping[bool, str], chunk: int, file: int, *, key: str = "") -> Path:
        numbers = {"chunk_index": chunk, "file_index": file, "episode_chunk": chunk}
        numbers["episode_index"] = chunk * self._chunks_size + file
        return self._root / templates[self._is_v3].format(video_key=key, **numbers)

    def _source_of(self, number: int) -> tuple[_Source, int]:
        chosen = self._edit.episodes[number]
        return self._sources[chosen.dataset], chosen.place

    # data files

    def _write_data(self) -> Iterator[_Written]:
        """Write the rows, a file of the datasets after the other, and yield the episodes in their order."""

        def file_of(number: int) -> tuple[int, Path]:
            source, place = self._source_of(number)
            return self._edit.episodes[number].dataset, source.data_path(place)

        for (dataset, path), group in groupby(range(len(self._edit.episodes)), file_of):
            with open_parquet(path) as parquet:
                yield from self._write_file(self._sources[dataset].metadata, path, parquet, list(group))

    def _write_file(self, dataset: Metadata, path: Path, parquet: Any, numbers: Sequence[int]) -> Iterator[_Written]:
        """Write the episodes of one file, or place it as it is where nothing in it changes."""
        numbered = (*INDEXES, "frame_index", *([SUBTASK_INDEX] if self._edit.subtasks else ()))
        index = {
            name: array_of(column, np.dtype(np.int64), (), f"{path}: column {name!r}")
            for name, column in _columns(read_columns(parquet, path, numbered)).items()
        }
        times = _columns(read_columns(parquet, path, ["timestamp"]))["timestamp"]
        index["timestamp"] = array_of(times, np.dtype(np.float32), (), f"{path}: column 'timestamp'")
        runs = _runs(index["episode_index"])
        parts = [self._part(dataset, index, runs, number, path) for number in numbers]
        names = [info.name for info in self._infos if not info.is_video and info.name not in self._edit.added]
        is_same = not self._edit.added and set(parquet.schema_arrow.names) == set(names)
        is_small = self._edit.is_packed[1] and path.stat().st_size < self._sizes_mb[0] * MEGABYTE / 2
        is_placed = (
            is_same
            and not is_small
            and _is_all(parts, len(index["index"]))
            and all(_stays(index, part) for part in parts)
        )
        if is_placed:
            names = [info.name for info in self._infos if info.name in names and self._is_read(info)]
        elif not self._edit.is_packed[1]:
            self._data.close()
        table = import_pyarrow().table(_columns(read_columns(parquet, path, names)))
        place = self._data.place(path, link=self._edit.link) if is_placed else (0, 0)
        for part in parts:
            rows = part.renumbered(table, self._edit.features)
            if not is_placed:
                rows = self._with_added(rows, part)
                place = self._data.begin(part.length)
                self._data.write(rows.select(self._schema.names).cast(self._schema))
            yield _Written(part, place, {**self._summarised(rows), **self._looked_at(part)})

    def _part(
        self,
        dataset: Metadata,
        index: Mapping[str, npt.NDArray[Any]],
        runs: Mapping[int, slice],
        number: int,
        path: Path,
    ) -> _Part:
        """Find an episode in a file, and number its rows."""
        place = self._edit.episodes[number].place
        length = int(dataset.episodes.length[place])
        rows = runs.get(place, slice(0, 0))
        if rows.stop - rows.start != length:
            raise FormatError(
                f"{path}: episode {place} has {rows.stop - rows.start} rows that follow each other; the table of "
                f"episodes says {length}. {VERIFY}"
            )
        first, self._num_frames = self._num_frames, self._num_frames + length
        tasks, texts = self._retasked(dataset, index["task_index"][rows], number, path)
        columns: dict[str, npt.NDArray[Any]] = {
            "episode_index": np.full(length, number, np.int64),
            "index": first + np.arange(length, dtype=np.int64),
            "task_index": tasks,
            "frame_index": np.arange(length, dtype=np.int64),
            "timestamp": _on_grid(index["timestamp"][rows], self._fps),
        }
        if self._edit.subtasks:
            columns[SUBTASK_INDEX] = self._renamed_subtasks(dataset, index[SUBTASK_INDEX][rows], path)
        return _Part(number, rows, first, columns, texts)

    def _renamed_subtasks(self, dataset: Metadata, old: npt.NDArray[Any], path: Path) -> npt.NDArray[np.int64]:
        """Return the new subtask_index of rows; those below 0 are of no subtask, and stay."""
        known = read_subtasks(dataset.root) or []
        if len(old) and old.max() >= len(known):
            raise FormatError(
                f"{path}: subtask_index {old.max()}, and {SUBTASKS_PATH} has {len(known)} texts. {VERIFY}"
            )
        new = np.array([self._edit.subtasks.index(text) for text in known] or [0], np.int64)
        return np.where(old < 0, old, new[np.maximum(old, 0)])

    def _retasked(
        self, dataset: Metadata, old: npt.NDArray[Any], number: int, path: Path
    ) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Return the new task_index of an episode's rows, and their texts by first appearance."""
        new, texts = np.zeros(len(old), np.int64), []
        for task in dict.fromkeys(old.tolist()):
            known = dataset.tasks[task] if 0 <= task < len(dataset.tasks) else ""
            text = self._edit.retask(number, known or None)
            if text is None:
                raise FormatError(
                    f"{path}: episode {self._edit.episodes[number].place} has task_index {task}, of which meta/ has no "
                    "text. Give such steps one: stepwell edit tasks ROOT --episode N=TEXT."
                )
            texts.append(text)
            new[old == task] = self._tasks.index(text)
        return new, tuple(dict.fromkeys(texts))

    def _with_added(self, table: Any, part: _Part) -> Any:
        """Return an episode's rows with the columns that are added."""
        for name, values in self._edit.added.items():
            info = self._edit.features[name]
            found = _called(values, table, part, self._edit.features) if callable(values) else values[_rows_of(part)]
            table = table.append_column(name, plain_array(_checked(found, info, part.length), info))
        return table

    # statistics

    def _is_per_element(self, first: Metadata) -> bool:
        try:
            return is_per_element(first)
        except FormatError:
            # statistics that cannot be read are a reason to compute them
            if not self._edit.recomputed:
                raise
            return False

    def _stored_statistics(self, first: Metadata) -> dict[str, Any]:
        """Return the entries of stats.json that stay right: those of features whose rows are all the same."""
        whole = [Chosen(0, place) for place in range(len(first.episodes))]
        if not self._is_v3 or list(self._edit.episodes) != whole:
            return {}
        stored = stored_entries(first.root)
        return {info.name: stored[info.name] for info in self._infos if info.name in stored and self._stays(info.name)}

    def _stays(self, name: str) -> bool:
        """Whether what is stored of an episode's rows of a feature stays right."""
        is_known = name not in INDEXES and name not in self._edit.added and name not in self._edit.recomputed
        return is_known and not self._is_old

    def _is_read(self, info: FeatureInfo) -> bool:
        """Whether rows are read for their statistics, or because they are numbered."""
        return info.name in INDEXES or not (info.is_camera or info.is_text or info.name in self._stored)

    def _summarised(self, table: Any) -> dict[str, Any]:
        """Add an episode's rows to the statistics, and return those that its row in the table needs."""
        found = {}
        for info in self._infos:
            if info.is_camera or info.is_text or not self._is_read(info):
                continue
            values = _numbers(table.column(info.name), info)
            self._total.add_rows(info.name, values)
            if not self._stays(info.name):
                found[info.name] = numeric_statistics(values, per_element=self._per_element)
        return found

    def _looked_at(self, part: _Part) -> dict[str, Any]:
        """Add the images of cameras that are looked at to the statistics; returns those of an episode."""
        found = {}
        source, place = self._source_of(part.number)
        for info in self._infos:
            if info.is_camera and not self._stays(info.name):
                summary = source.image_summary(place, info.name, self._stride)
                self._total.add({info.name: summary})
                found[info.name] = as_lerobot(summary, info)
        return found

    @cached_property
    def _stride(self) -> int:
        lengths = [int(self._edit.datasets[each.dataset].episodes.length[each.place]) for each in self._edit.episodes]
        return image_stride(sum(lengths))

    def _totals(self) -> dict[str, Any]:
        """Return the content of stats.json."""
        summed = self._total.result()
        found: dict[str, Any] = {}
        for info in self._infos:
            if info.name in self._edit.summed:
                found[info.name] = self._edit.summed[info.name]
            elif info.name in summed:
                found[info.name] = plain_statistics(as_lerobot(summed[info.name], info), info)
            elif info.name in self._stored:
                found[info.name] = self._stored[info.name]
            elif info.is_camera and self._edit.episodes:
                found[info.name] = plain_statistics(self._merged(info), info)
        return found

    def _merged(self, info: FeatureInfo) -> dict[str, npt.NDArray[Any]]:
        """Merge a camera's statistics of the episodes; quantiles cannot be merged, so these are their mean."""
        parts = []
        for number in range(len(self._edit.episodes)):
            source, place = self._source_of(number)
            parts.append(source.camera_statistics(place, info))
        whole = merged(({info.name: part} for part in parts), STATS_PATH)
        found = dict((whole or {})[info.name])
        counts = np.array([float(np.ravel(part["count"])[0]) for part in parts])
        for key in QUANTILES:
            if all(key in part for part in parts):
                found[key] = np.average([part[key] for part in parts], axis=0, weights=counts)
        return {**found, "count": np.asarray(found["count"], np.int64)}

    # videos

    def _write_videos(self, info: FeatureInfo) -> list[VideoSpan]:
        """Write the mp4 files of a camera; returns where each episode is."""
        limit = self._sizes_mb[1] if self._is_v3 else 0
        path_of = partial(self._path, VIDEO_PATHS, key=info.name)
        files = VideoFiles(path_of, self._fps, FileNumbers(self._chunks_size), limit)
        try:
            if info.name in self._edit.encoded:
                return list(self._encoded_spans(files, self._edit.encoded[info.name]))
            return [span for numbers, path in self._runs(info.name) for span in self._spans(files, info, numbers, path)]
        finally:
            files.close()

    def _encoded_spans(self, files: VideoFiles, encoded: Sequence[EncodedFile]) -> Iterator[VideoSpan]:
        for made in encoded:
            place, frames = files.place(made.path, link=True), 0
            for length in made.lengths:
                yield VideoSpan(*place, frames / self._fps, (frames + length) / self._fps)
                frames += length

    def _runs(self, key: str) -> Iterator[tuple[list[int], Path]]:
        """Yield the episodes that follow each other in the result and are in one mp4 file, and the file."""

        def file_of(number: int) -> tuple[int, Path]:
            source, place = self._source_of(number)
            return self._edit.episodes[number].dataset, source.video_path(key, place)

        for (_, path), group in groupby(range(len(self._edit.episodes)), file_of):
            yield list(group), path

    def _spans(self, files: VideoFiles, info: FeatureInfo, numbers: Sequence[int], path: Path) -> Iterator[VideoSpan]:
        source, _ = self._source_of(numbers[0])
        places = [self._edit.episodes[number].place for number in numbers]
        is_all = places == source.places_in(info.name, path)
        is_small = self._edit.is_packed[0] and path.stat().st_size < self._sizes_mb[1] * MEGABYTE / 2
        if is_all and not is_small:
            place = files.place(path, link=self._edit.link)
            spans = source.metadata.episodes.videos[info.name]
            lengths = source.metadata.episodes.length
            for at in places:
                start = float(spans.start[at])
                yield VideoSpan(*place, start, start + int(lengths[at]) / self._fps)
            return
        for _, run in groupby(enumerate(places), lambda each: each[1] - each[0]):
            for found, packets in source.packets(info.name, [place for _, place in run]):
                chunk, file, start = files.add(packets)
                frames = round(start * self._fps)
                for length in found:
                    yield VideoSpan(chunk, file, frames / self._fps, (frames + length) / self._fps)
                    frames += length

    # meta

    def _episode_table(self) -> EpisodeTableWriter | EpisodeLines:
        if not self._is_v3:
            return EpisodeLines(self._root / "meta")
        schema = self._episode_schema()
        path_of = partial(self._path, {True: EPISODES_PATH})
        files = ParquetFiles(path_of, schema, FileNumbers(self._chunks_size), self._sizes_mb[0])
        return EpisodeTableWriter(files, schema)

    def _episode_schema(self) -> Any:
        """Return the schema of the table: of the first dataset, as far as its features stay, and what is new."""
        pyarrow = import_pyarrow()
        wanted = episode_schema(self._infos)
        paths = episode_paths(self._edit.datasets[0].root)
        known = pyarrow.parquet.read_schema(paths[0]) if paths else wanted
        # where no episode has a task, the column of tasks may be of no type
        fields = {
            each.name: each if each.name.startswith("stats/") else wanted.field(each.name)
            for each in known
            if each.name in wanted.names
        }
        fields |= {each.name: each for each in self._further_fields()}
        # least and greatest values of a column may have another type once it is computed here
        fields |= {each.name: each for each in wanted if each.name not in fields or not self._stays(_named(each.name))}
        return pyarrow.schema(list(fields.values()))

    def _further_fields(self) -> Iterator[Any]:
        """Yield the columns of all datasets' tables that the format does not know."""
        pyarrow, found = import_pyarrow(), None
        for dataset in self._edit.datasets:
            for path in episode_paths(dataset.root):
                here = pyarrow.parquet.read_schema(path)
                further = pyarrow.schema([each for each in here if not is_of_format(each.name)])
                try:
                    found = further if found is None else pyarrow.unify_schemas([found, further], **PERMISSIVE)
                except pyarrow.ArrowException as error:
                    raise SchemaError(
                        f"{path} has a column of another type than the tables before it: {said(error)}. Write the "
                        "column as they do."
                    ) from error
        yield from found or ()

    def _episode_row(self, written: _Written, videos: Mapping[str, VideoSpan]) -> EpisodeRow:
        part = written.part
        source, place = self._source_of(part.number)
        others = source.row(place)
        stats: dict[str, Any] = {}
        if not self._is_v3:
            stored = source.lines_of_statistics.get(place, {})
            stats = {info.name: stored[info.name] for info in self._infos if info.name in stored}
        for name, found in written.statistics.items():
            stats[name] = plain_statistics(found, self._edit.features[name], quantiles=self._is_v3)
        return EpisodeRow(part.number, part.texts, part.length, part.first, written.place, videos, stats, others)

    def _write_meta(self) -> None:
        texts = self._tasks.texts
        write_tasks(self._root, texts, is_v3=self._is_v3)
        subtasks = self._edit.datasets[0].root / SUBTASKS_PATH
        if self._edit.subtasks:
            table = tasks_table(self._edit.subtasks, SUBTASK_INDEX)
            import_pyarrow().parquet.write_table(table, self._root / SUBTASKS_PATH, write_page_checksum=True)
        elif SUBTASK_INDEX in self._edit.features and subtasks.is_file():
            place_file(subtasks, self._root / SUBTASKS_PATH, link=self._edit.link)
        if self._is_v3:
            write_json(self._root / STATS_PATH, self._totals())
        counts = {"episodes": len(self._edit.episodes), "frames": self._num_frames, "tasks": len(texts)}
        content = appended_info(self._raw, counts)
        has_videos = any(info.is_video for info in self._infos)
        content |= {
            "chunks_size": self._chunks_size,
            "data_path": DATA_PATHS[self._is_v3],
            "video_path": VIDEO_PATHS[self._is_v3] if has_videos else None,
            "features": {info.name: self._edit.entries.get(info.name, dict(info.raw)) for info in self._infos},
        }
        if len(self._edit.episodes) != len(self._edit.datasets[0].episodes) or len(self._edit.datasets) > 1:
            # other splits name episodes by numbers that they no longer have
            content["splits"] = {"train": f"0:{counts['episodes']}"}
        if self._is_v3:
            content |= dict(zip(("data_files_size_in_mb", "video_files_size_in_mb"), self._sizes_mb, strict=True))
        else:
            cameras = sum(info.is_video for info in self._infos)
            content["total_videos"] = cameras * counts["episodes"]
            content["total_chunks"] = -(-counts["episodes"] // self._chunks_size)
        write_json(self._root / INFO_PATH, content)


class _Source:
    """A dataset that episodes are taken from; its files are read on first use."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self._members: dict[str, dict[Path, list[int]]] = {}
        self._tables: list[tuple[int, int, list[dict[str, Any]]]] = []

    def data_path(self, place: int) -> Path:
        """Return the data file of an episode."""
        records = self.metadata.episodes
        return self.metadata.data_path(int(records.data_chunk[place]), int(records.data_file[place]))

    def video_path(self, key: str, place: int) -> Path:
        """Return the mp4 file of an episode."""
        spans = self.metadata.episodes.videos[key]
        return self.metadata.video_path(key, int(spans.chunk[place]), int(spans.file[place]))

    def places_in(self, key: str, path: Path) -> list[int]:
        """Return all episodes of an mp4 file."""
        if key not in self._members:
            members = self._members[key] = {}
            for place in range(len(self.metadata.episodes)):
                members.setdefault(self.video_path(key, place), []).append(place)
        return self._members[key][path]

    def row(self, place: int) -> dict[str, Any]:
        """Return the row of an episode in the table, as it is."""
        if not self.metadata.info.is_v3:
            return self._lines[place]
        for begin, stop, rows in self._tables:
            if begin <= place < stop:
                return rows[place - begin]
        # one file at a time: statistics as objects are large
        begin = 0
        for path, count in self._table_files:
            if place < begin + count:
                with open_parquet(path) as file:
                    rows = read_columns(file, path, file.schema_arrow.names).to_pylist()
                self._tables = [(begin, begin + count, rows)]
                return dict(rows[place - begin])
            begin += count
        raise FormatError(f"{self.metadata.root}: the table of episodes has no row {place}. {VERIFY}")

    @cached_property
    def _table_files(self) -> list[tuple[Path, int]]:
        found = []
        for path in episode_paths(self.metadata.root):
            with open_parquet(path) as file:
                found.append((path, file.metadata.num_rows))
        return found

    @cached_property
    def _lines(self) -> dict[int, dict[str, Any]]:
        lines = read_json_lines(self.metadata.root / EPISODES_LINES)
        return {int(line["episode_index"]): line for line in lines}

    @cached_property
    def lines_of_statistics(self) -> dict[int, Any]:
        """The statistics of each episode of v2.1."""
        path = self.metadata.root / EPISODES_STATS_LINES
        return dict(stats_of_lines(path)) if path.exists() else {}

    def camera_statistics(self, place: int, info: FeatureInfo) -> Mapping[str, npt.NDArray[Any]]:
        """Return the stored statistics of a camera in an episode; where there are none, those of its images."""
        stored = (self.metadata.episode_stats(place) or {}).get(info.name, {})
        if all(key in stored for key in ("min", "max", "mean", "std", "count")):
            return stored
        return as_lerobot(self.image_summary(place, info.name), info)

    def image_summary(self, place: int, key: str, stride: int = 1) -> FeatureStatistics:
        """Look at about every so many-th image of a camera in an episode."""
        ((episode, column),) = self.camera_episodes(key, [place])
        steps = sampled_steps(episode.length, stride)
        return image_summary(episode.images(column.source, column.feature, steps), column.feature)

    def camera_episodes(self, key: str, places: Sequence[int]) -> Iterator[tuple[SourceEpisode, Column]]:
        """Yield episodes with the column of a camera."""
        for place in places:
            for episode in episodes_of(View(self._store, [place])):
                yield episode, self._columns[key]

    def packets(self, key: str, places: Sequence[int]) -> Iterator[tuple[list[int], EpisodePackets]]:
        """Yield lengths of episodes that follow each other in a file, and their packets.

        Those that lie before the first key frame of the run are encoded again, alone; of the others all are as stored.
        """
        episodes = [*self.camera_episodes(key, places)]
        may_join = True
        while episodes:
            (episode, column), *others = episodes
            found = stored_packets([episode], column)
            if found is not None and others and may_join:
                joined = stored_packets([each for each, _ in episodes], column)
                if joined is not None:
                    yield [each.length for each, _ in episodes], joined
                    return
                may_join = False
            yield [episode.length], encoded_packets(episode, column, self.encoding(key)) if found is None else found
            episodes = others

    def encoding(self, key: str) -> Feature:
        """Return how images of a camera are encoded where they must be: as its other videos."""
        return encoding_of(self._columns[key], encoder_options(self.metadata, key))

    @cached_property
    def _store(self) -> Store:
        return open_in_place(self.metadata, progress=False)

    @cached_property
    def _columns(self) -> dict[str, Column]:
        info = self.metadata.info
        columns = map_schema(schema_of(self._store), cameras=cameras_of(info), origin=info.raw["features"])
        return {column.name: column for column in columns}


def encoder_options(metadata: Metadata, key: str) -> dict[str, Any]:
    """Return the options of `stepwell.Video` that a camera's videos were encoded by, as far as info.json has them."""
    found = told_options(metadata, key)
    if found.get("encoder") not in (None, *ENCODERS.values()):
        raise SchemaError(
            f"{metadata.root}: camera {key!r} has videos of {found['encoder']!r}, which are not written here. Allowed: "
            f"{', '.join(ENCODERS.values())}. Encode them anew first: stepwell edit reencode."
        )
    return found


def told_options(metadata: Metadata, key: str) -> dict[str, Any]:
    """Return the options of a camera's encoder that info.json tells, whichever encoder it is."""
    facts = metadata.info.features[key].raw.get("info") or {}
    names = {"video.codec": "encoder", "video.g": "gop", "video.crf": "crf", "video.preset": "preset"}
    found = {option: facts[name] for name, option in names.items() if facts.get(name) is not None}
    if "preset" in found:
        found["preset"] = str(found["preset"])
    return found


def _columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table of pyarrow, those of Hugging Face's types as what they are stored as."""
    import pyarrow as pa

    return {
        name: pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if isinstance(column.type, pa.BaseExtensionType)
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _numbers(column: Any, info: FeatureInfo) -> npt.NDArray[Any]:
    shape = () if info.shape == (1,) else info.shape
    return array_of(column, np.dtype(info.dtype), shape, f"column {info.name!r}").reshape(-1, *info.shape)


def _is_all(parts: Sequence[_Part], num_rows: int) -> bool:
    """Whether episodes are all rows of a file, in their order."""
    stops = [0, *(part.rows.stop for part in parts)]
    return stops[-1] == num_rows and [part.rows.start for part in parts] == stops[:-1]


def _stays(index: Mapping[str, npt.NDArray[Any]], part: _Part) -> bool:
    return all(np.array_equal(index[name][part.rows], values) for name, values in part.columns.items())


def _runs(numbers: npt.NDArray[Any]) -> dict[int, slice]:
    """Return the rows of each episode of a file; of one in several pieces the last."""
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return {int(numbers[start]): slice(start, stop) for start, stop in pairwise(edges) if start < stop}


def _on_grid(times: npt.NDArray[np.float32], fps: float) -> npt.NDArray[np.float32]:
    """Return an episode's times, which may be rounded otherwise; those of the grid where one lies beside it."""
    grid = np.arange(len(times)) / fps
    return times if (np.abs(times - grid) <= TOLERANCE_SECONDS).all() else grid.astype(np.float32)


def _rows_of(part: _Part) -> slice:
    return slice(part.first, part.first + part.length)


def _called(
    function: Callable[[dict[str, Any], int, int], Any],
    table: Any,
    part: _Part,
    features: Mapping[str, FeatureInfo],
) -> list[Any]:
    """Call a function for each row of an episode."""
    columns = {}
    for name in table.column_names:
        info = features.get(name)
        is_number = info is not None and not info.is_camera and not info.is_text
        column = table.column(name)
        columns[name] = _numbers(column, info) if is_number and info is not None else column.to_pylist()
        if is_number and info is not None and info.shape == (1,):
            columns[name] = columns[name][:, 0]
    rows = ({name: values[row] for name, values in columns.items()} for row in range(part.length))
    return [function(row, part.number, int(row["frame_index"])) for row in rows]


def _checked(values: Any, info: FeatureInfo, num_rows: int) -> Any:
    """Return values of a feature that is added, [n, *shape]."""
    if info.is_language:
        return [_as_json(value) for value in values]
    if info.is_text:
        return [str(value) for value in np.ravel(np.asarray(values, object))]
    found = np.asarray([np.asarray(value) for value in values]) if num_rows else np.zeros((0, *info.shape))
    if found.size != num_rows * int(np.prod(info.shape)):
        raise SchemaError(
            f"feature {info.name!r}: values of shape {found.shape} for {num_rows} rows. Allowed: "
            f"{(num_rows, *info.shape)}, a value a row."
        )
    if not np.can_cast(found.dtype, np.dtype(info.dtype), "same_kind"):
        raise SchemaError(f"feature {info.name!r}: values of {found.dtype}, where the feature is {info.dtype}.")
    return found.reshape(num_rows, *info.shape).astype(info.dtype)


def _as_json(annotations: Any) -> str:
    """Return the annotations of a row as a store has them."""
    return annotations if isinstance(annotations, str) else json.dumps(list(annotations or ()))


def _named(column: str) -> str:
    """Return the feature that a column of statistics is of; "" of another column."""
    return column.removeprefix("stats/").rpartition("/")[0] if column.startswith("stats/") else ""
