"""Writing a store as an RLDS or TFDS dataset, which TensorFlow Datasets opens; no TensorFlow is needed.

::

    view ──> episodes ──> EpisodeExamples ──> records ──> shards          by several processes
                 |                                          |
                 └── metadata: a type for each entry        └── dataset_info.json, features.json, labels; a rename
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from stepwell.errors import EpisodeNotFoundError, StepwellError
from stepwell.files.addresses import local_path
from stepwell.sizes import parse_bytes
from stepwell.store.layout import built_directory
from stepwell.tfds.array_records import import_array_record
from stepwell.tfds.dataset_files import DatasetName, WrittenSplit, shard_name, write_info
from stepwell.tfds.episode_examples import EpisodeExamples, StepExamples
from stepwell.tfds.features import Encoding
from stepwell.tfds.record_writing import FileFormat
from stepwell.tfds.shard_writing import Shard, ShardJob, cut_shards, mean_row_bytes, write_shards
from stepwell.tfds.sources import Source, entries_of, steps_of, views_of
from stepwell.tfds.step_forms import ImageFormat
from stepwell.windows import View

__all__ = ["write_rlds", "write_tfds"]

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
    return writing.write(directory, views, examples, workers, progress)


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
    return writing.write(directory, views, StepExamples(columns), workers, progress)


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
        workers: int | None,
        progress: bool | None,
    ) -> Path:
        """Write all files; returns where."""
        tree, labels = examples.tree, examples.labels
        job = ShardJob(views, examples, self.file_format)
        target = Path(directory).absolute() / self.name.folder
        with built_directory(target) as hidden:
            shards = {split: self._shards(hidden, job, split) for split in views}
            every = [shard for some in shards.values() for shard in some]
            found = write_shards(job, every, workers, progress)
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
