"""Writing a store as an RLDS or TFDS dataset, which TensorFlow Datasets opens; no TensorFlow is needed.

::

    view ──> episodes ──> EpisodeExamples ──> records ──> shards          by several processes
                 |                                          |
                 └── metadata: a type for each entry        └── dataset_info.json, features.json, labels; a rename

Shards are runs of consecutive episodes:

::

    episodes  | 0 1 2 3 | 4 5 6 | 7 8 9 |       cut by rows, the same for every number of processes
                  |         |       |
    shards    00000-of-3  00001   00002         each by whoever is free
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import EpisodeNotFoundError, SchemaError, StepwellError, WorkerError
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import SourceEpisode, as_view, episodes_of, refuse_rates, schema_of
from stepwell.recorders.chunks import ITEM, NUM_BYTES, NUM_ITEMS, NUM_STEPS, Executor, Workers, run_chunks
from stepwell.schema import Schema
from stepwell.sizes import parse_bytes
from stepwell.store import Store
from stepwell.store.layout import built_directory
from stepwell.tfds.columns import METADATA, STEPS
from stepwell.tfds.dataset_files import DatasetName, WrittenSplit, check_name, shard_name, write_info
from stepwell.tfds.episode_examples import (
    EpisodeExamples,
    MetadataColumn,
    StepExamples,
    encode_all,
    metadata_columns,
    runs_of,
)
from stepwell.tfds.features import Encoding
from stepwell.tfds.record_files import FileFormat, import_array_record, write_records
from stepwell.tfds.step_forms import ImageFormat, StepColumn, own_name, step_columns
from stepwell.windows import View

__all__ = [
    "Shard",
    "ShardJob",
    "ShardResult",
    "Source",
    "cut_shards",
    "entries_of",
    "mean_row_bytes",
    "steps_of",
    "views_of",
    "write_rlds",
    "write_shards",
    "write_tfds",
]

Source = Store | View | str | os.PathLike[str]
Names = Mapping[str, Sequence[str]]
ENTRY = f"{METADATA}."
# what an import of several splits says of each episode: where it is written it is in a split again
SPLIT_ENTRY = "tfds_split"


def views_of(source: Source | Mapping[str, Source], split: str) -> dict[str, View]:
    """Return the view of each split."""
    views = {name: as_view(one) for name, one in (source if isinstance(source, Mapping) else {split: source}).items()}
    for name in views:
        check_name("split", name)
    if not views:
        raise EpisodeNotFoundError("no splits. Give a mapping of at least one name to a store or view.")
    return views


def steps_of(
    views: Mapping[str, View], features: Collection[str] | None, labels: Names | None, **choices: Any
) -> tuple[StepColumn, ...]:
    """Return the columns of steps, which all splits have; see `step_columns`."""
    first, *others = (refuse_rates(_chosen(schema_of(view), features), "TFDS") for view in views.values())
    for split, schema in zip(list(views)[1:], others, strict=True):
        if schema != first:
            raise SchemaError(f"split {split!r} has other features than those before it. Choose equal ones: features=.")
    told = {path.removeprefix(f"{STEPS}/"): names for path, names in _told(views).items()}
    found = {name: told[path] for name in first if (path := own_name(name).replace(".", "/")) in told}
    own = {name: names for name, names in (labels or {}).items() if not name.startswith(ENTRY)}
    kept = {name: names for name, names in found.items() if first[name].np_dtype == "<i8" and not first[name].shape}
    return step_columns(first, features=features, labels={**kept, **own}, **choices)


def entries_of(
    views: Mapping[str, View], names: Collection[str] | None, labels: Names | None
) -> tuple[MetadataColumn, ...]:
    """Return how the metadata of the episodes are written; see `metadata_columns`."""
    own = {
        name.removeprefix(ENTRY).replace(".", "/"): given
        for name, given in (labels or {}).items()
        if name.startswith(ENTRY)
    }
    prefix = f"{METADATA}/"
    told = {path.removeprefix(prefix): given for path, given in _told(views).items() if path.startswith(prefix)}
    found = metadata_columns(_metadata(views), names, own)
    return tuple(
        column.with_labels(told[column.path])
        if column.path in told and column.labels is None and column.may_have_labels
        else column
        for column in found
        if names is not None or column.path != SPLIT_ENTRY
    )


def _metadata(views: Mapping[str, View]) -> Iterator[Mapping[str, Any]]:
    for view in views.values():
        for part in view.parts:
            yield from (part.table.metadata(i) for i in part.indices.tolist() if part.table.length[i])


def _told(views: Mapping[str, View]) -> Names:
    """Return the names of classes that an import of a TFDS dataset left, by the paths that it had."""
    told = next(iter(views.values())).stores[0].metadata.get("tfds")
    labels = told.get("labels") if isinstance(told, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


def _chosen(schema: Schema, features: Collection[str] | None) -> Schema:
    if features is None or isinstance(features, str):
        return schema
    found = {name: feature for name, feature in schema.items() if name in features}
    return Schema(found) if len(found) == len(set(features)) else schema


NUM_PROBED = 3


@dataclass(frozen=True, slots=True)
class Shard:
    """A file and the episodes that it gets."""

    path: str
    split: str
    start: int
    stop: int


class ShardResult(NamedTuple):
    """What a shard became.

    Args:
        path: of its file.
        num_records: in it.
        num_bytes: of the records.
    """

    path: str
    num_records: int
    num_bytes: int


class ShardJob:
    """What every worker needs to write any shard.

    Notes:
        Picklable; each worker opens the stores for itself.
    """

    noun = "episode"

    def __init__(
        self, views: Mapping[str, View], examples: EpisodeExamples | StepExamples, file_format: FileFormat
    ) -> None:
        self.views, self.examples, self.file_format = dict(views), examples, file_format
        self._episodes: dict[str, list[SourceEpisode]] = {}

    def write(self, shard: Shard, counters: MutableSequence[int]) -> ShardResult:
        """Write one shard."""
        before = counters[NUM_BYTES]
        num_records = 0

        def records() -> Iterator[bytes]:
            nonlocal num_records
            chosen = self.episodes(shard.split)[shard.start : shard.stop]
            counters[ITEM] = shard.start
            for run in runs_of(chosen):
                for episode, encoded in zip(run, encode_all(self.examples, run), strict=True):
                    yield from encoded
                    num_records += len(encoded)
                    counters[NUM_BYTES] += sum(map(len, encoded))
                    counters[NUM_STEPS] += episode.length
                    counters[NUM_ITEMS] += 1
                    counters[ITEM] += 1

        write_records(shard.path, records(), self.file_format)
        return ShardResult(shard.path, num_records, counters[NUM_BYTES] - before)

    def episodes(self, split: str) -> list[SourceEpisode]:
        """Return the episodes of a split."""
        if split not in self._episodes:
            self._episodes[split] = list(episodes_of(self.views[split]))
        return self._episodes[split]

    def __getstate__(self) -> dict[str, Any]:
        # episodes hold maps of files, which every process has its own of
        return {**self.__dict__, "_episodes": {}}


def cut_shards(rows: npt.ArrayLike, num_shards: int) -> list[tuple[int, int]]:
    """Return the half-open range of episodes of each shard: about the same number of rows, at least one episode.

    Args:
        rows: int [n], of each episode.
        num_shards: at most n.

    Example:
        >>> cut_shards([10, 10, 10, 90, 10], 2), cut_shards([5, 5], 2)
        ([(0, 3), (3, 5)], [(0, 1), (1, 2)])
    """
    ends = np.cumsum(np.asarray(rows, np.int64))
    number = len(ends)
    # cuts are put where they lie nearest to equal parts
    middles = ends - np.asarray(rows, np.int64) / 2
    cuts = np.searchsorted(middles, ends[-1] * np.arange(1, num_shards) / num_shards)
    place = np.arange(1, num_shards)
    cuts = np.maximum.accumulate(np.maximum(cuts, place) - place) + place
    cuts = np.minimum(cuts, number - num_shards + place)
    edges = [0, *cuts.tolist(), number]
    return list(pairwise(edges))


def mean_row_bytes(job: ShardJob, split: str) -> float:
    """Return about how many bytes a row of the records has: some episodes are encoded to find it."""
    episodes = job.episodes(split)
    chosen = np.unique(np.linspace(0, len(episodes) - 1, NUM_PROBED).astype(np.int64)).tolist()
    sizes = [sum(map(len, job.examples.encode(episodes[index]))) for index in chosen]
    num_rows: int = sum(episodes[index].length for index in chosen)
    return sum(sizes) / num_rows


def write_shards(
    job: ShardJob, shards: Sequence[Shard], workers: Workers, progress: bool | None, target: str | None = None
) -> dict[str, ShardResult]:
    """Write all shards; returns path to result."""
    total = sum(shard.stop - shard.start for shard in shards)
    try:
        results = run_chunks(
            job, shards, workers=workers, total=total, unit="episodes", progress=progress, target=target
        )
    except WorkerError as error:
        # an error of this process is raised as it is
        found = error.__cause__ or error
        raise found from found.__cause__
    return {result.path: result for result in results}


SHARD_BYTES = "256 MiB"


def write_rlds(
    source: Source | Mapping[str, Source],
    directory: str | os.PathLike[str],
    *,
    name: str,
    version: str = "1.0.0",
    config: str | None = None,
    split: str = "train",
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    metadata: Collection[str] | None = None,
    encodings: Encoding | Mapping[str, Encoding] | None = None,
    images: ImageFormat | Mapping[str, ImageFormat] = "png",
    labels: Mapping[str, Sequence[str]] | None = None,
    description: str = "",
    file_format: FileFormat = "tfrecord",
    shard_bytes: int | str = SHARD_BYTES,
    num_shards: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Path:
    """Write episodes as an RLDS dataset, which ``tfds.builder_from_directory`` opens with the same values.

    An episode is one record, in the order of the source. JPEG and PNG rows go out as they are, other images are
    encoded. A final observation becomes a last step, whose action and other values are zeros. Names with dots are
    nested: ``observation.image``. ``is_first``, ``is_last`` and ``is_terminal`` are made where the store has none.
    Episodes without a step are left out.

    Args:
        source: a store, some of its episodes (`stepwell.View`), a store's path; or a mapping of splits to these.
        directory: of all datasets, TFDS's ``data_dir``; the files are put into ``name/config/version`` below it.
        name: of the dataset, lower case.
        version: three numbers.
        config: of several datasets of one name.
        split: what a single source is.
        features: names in the store to write; default all.
        rename: names in the store to names in the dataset, e.g. ``{"camera": "observation.image"}``.
        metadata: which entries of the episodes' metadata become ``episode_metadata``; default all but ``tfds_split``.
        encodings: of numbers, for all or by name in the store: "bytes" and "zlib" are exact; "none" is what TFDS does
            by default, and makes float32 of float64. Default: "bytes" for float64, "none" for others.
        images: "png" (default) or "jpeg", for all or by name: how images that are no files yet are encoded.
        labels: names of the classes of int64 features by name in the store; of metadata by ``episode_metadata.NAME``.
            What was imported from TFDS has its own.
        description: for people, in dataset_info.json.
        file_format: "tfrecord", or "array_record", which needs ``stepwell[tfds]``.
        shard_bytes: about how large a file becomes.
        num_shards: of each split; default: as ``shard_bytes`` says.
        workers: processes that write, a shard each at a time; default one a processor. The files are the same for
            every number.
        executor: where that is done instead of in ``workers`` processes; see `stepwell.ray.RayExecutor`.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.

    Returns:
        The directory of the version, to be given to ``tfds.builder_from_directory``.

    Raises:
        SchemaError: a feature that TFDS has no form for; the message says what to do.
        FeatureNotFoundError: a name that the store does not have.
        EpisodeNotFoundError: a split without episodes.
        StoreExistsError: the version is there already.
        StoreBusyError: an episode is still being recorded.
        StepError: an episode of more than 2 GiB, which TensorFlow does not read.
        DiskFullError: no space; nothing is left behind.
        WorkerError: an episode that one of several processes could not write.
        MissingDependencyError: what reads or encodes a feature is not installed.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/tiny.well")
        >>> path = write_rlds(store, folder, name="tiny", features=["action"], workers=1)
        >>> sorted(file.name for file in path.iterdir())
        ['dataset_info.json', 'features.json', 'tiny-train.tfrecord-00000-of-00001']

    Notes:
        Memory: a worker holds an episode as rows and as a record. Killed at any moment, it leaves nothing at the
        version's place. In a script, more than one worker needs an ``if __name__ == "__main__":`` guard.

    Source:
        RLDS (Ramos et al. 2021), and the files of TensorFlow Datasets.
    """
    local_path(directory)
    views = views_of(source, split)
    columns = steps_of(views, features, labels, rename=rename, encodings=encodings, images=images)
    examples = EpisodeExamples(columns, entries_of(views, metadata, labels))
    writing = _Writing(DatasetName(name, version, config), file_format, shard_bytes, num_shards, description)
    return writing.write(directory, views, examples, executor or workers, progress)


def write_tfds(
    source: Source | Mapping[str, Source],
    directory: str | os.PathLike[str],
    *,
    name: str,
    version: str = "1.0.0",
    config: str | None = None,
    split: str = "train",
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    encodings: Encoding | Mapping[str, Encoding] | None = None,
    images: ImageFormat | Mapping[str, ImageFormat] = "png",
    labels: Mapping[str, Sequence[str]] | None = None,
    description: str = "",
    file_format: FileFormat = "tfrecord",
    shard_bytes: int | str = SHARD_BYTES,
    num_shards: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Path:
    """Write each step as a record of its own: a TFDS dataset of images and labels, not of episodes.

    Meant for stores of one-step episodes, such as what was imported from other data sets of samples; of longer
    episodes the steps follow each other, and final observations and metadata are left out. Arguments, result and
    errors are those of `write_rlds`.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/tiny.well")
        >>> path = write_tfds(store, folder, name="steps", features=["action"], num_shards=2, workers=1)
        >>> len(list(path.glob("steps-train.tfrecord-*")))
        2
    """
    local_path(directory)
    views = views_of(source, split)
    columns = steps_of(views, features, labels, rename=rename, encodings=encodings, images=images)
    writing = _Writing(DatasetName(name, version, config), file_format, shard_bytes, num_shards, description)
    return writing.write(directory, views, StepExamples(columns), executor or workers, progress)


@dataclass(frozen=True, slots=True)
class _Writing:
    """What a call asks for beside the episodes."""

    name: DatasetName
    file_format: FileFormat
    shard_bytes: int | str
    num_shards: int | None
    description: str

    def __post_init__(self) -> None:
        if self.file_format not in get_args(FileFormat):
            allowed = ", ".join(map(repr, get_args(FileFormat)))
            raise StepwellError(f"file_format={self.file_format!r}. Allowed: {allowed}.")
        if self.file_format == "array_record":
            import_array_record()
        if self.num_shards is not None and self.num_shards < 1:
            raise StepwellError(f"num_shards={self.num_shards}. Allowed: 1 and more.")
        parse_bytes("shard_bytes", self.shard_bytes)

    def write(
        self,
        directory: str | os.PathLike[str],
        views: Mapping[str, View],
        examples: EpisodeExamples | StepExamples,
        workers: Workers,
        progress: bool | None,
    ) -> Path:
        """Write all files; returns where."""
        tree, labels = examples.tree, examples.labels
        job = ShardJob(views, examples, self.file_format)
        target = Path(directory).absolute() / self.name.folder
        with built_directory(target) as hidden:
            shards = {split: self._shards(hidden, job, split) for split in views}
            every = [shard for some in shards.values() for shard in some]
            found = write_shards(job, every, workers, progress, str(hidden))
            splits = []
            for split, some in shards.items():
                results = [found[shard.path] for shard in some]
                lengths = tuple(result.num_records for result in results)
                splits.append(WrittenSplit(split, sum(result.num_bytes for result in results), lengths))
            write_info(
                Path(hidden),
                self.name,
                splits,
                tree,
                labels,
                file_format=self.file_format,
                description=self.description,
            )
        return target

    def _shards(self, folder: str, job: ShardJob, split: str) -> list[Shard]:
        rows = [episode.length for episode in job.episodes(split)]
        if not rows:
            raise EpisodeNotFoundError(f"split {split!r} has no episode with a step to write. Leave it out.")
        number = self.num_shards
        if number is None:
            most = parse_bytes("shard_bytes", self.shard_bytes)
            number = min(len(rows), max(1, round(mean_row_bytes(job, split) * sum(rows) / most)))
        if number > len(rows):
            raise StepwellError(f"num_shards={number} of {len(rows)} episodes. Allowed: up to one an episode.")
        return [
            Shard(f"{folder}/{shard_name(self.name.name, split, self.file_format, shard, number)}", split, start, stop)
            for shard, (start, stop) in enumerate(cut_shards(rows, number))
        ]
