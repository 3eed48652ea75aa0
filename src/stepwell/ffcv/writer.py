"""FFCV's writer by its name: whole files, from datasets and from WebDataset shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

from stepwell.beton.encoding import check_names
from stepwell.beton.laying import Target, check_page_size
from stepwell.beton.sample_lots import write_indexed, write_streams
from stepwell.errors import MissingDependencyError, StepError, WorkerError
from stepwell.ffcv.fields import Field, encoder_of
from stepwell.files.addresses import local_path
from stepwell.recorders.chunks import num_workers

__all__ = ["DatasetWriter"]


class DatasetWriter:
    """Write a dataset as a ``.beton`` file, which FFCV's and stepwell's loaders read.

    Args:
        fname: path of the file; one that is there is replaced, when the new one is complete.
        fields: name to field, in the order of a sample's values; names of at most 16 ASCII characters.
        page_size: in bytes, a power of two; no sample is larger.
        num_workers: processes; below 1: one a processor. The file is the same for every number.

    Raises:
        SchemaError: a name or field that a file cannot hold.
        FormatError: a page size that is not allowed.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.ffcv.fields import IntField, NDArrayField
        >>> path = tempfile.mkdtemp() + "/squares.beton"
        >>> writer = DatasetWriter(path, {"number": IntField(), "square": NDArrayField(np.dtype("int64"), (1,))},
        ...                        num_workers=1)
        >>> writer.from_indexed_dataset([(i, np.array([i * i])) for i in range(20)])

    Notes:
        Workers are forked, as FFCV's are, so that a dataset need not be picklable: call it before threads are begun. A
        worker holds some MiB of samples. What goes wrong with a sample is raised here, with its number and the worker's
        traceback; Ctrl-C ends the workers; a writer that is killed leaves no file.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str],
        fields: Mapping[str, Field],
        page_size: int = 8 << 20,
        num_workers: int = -1,
    ) -> None:
        check_names(fields, "another key in fields")
        local_path(fname)
        self._fname, self._encoders = fname, {name: encoder_of(name, field) for name, field in fields.items()}
        self._page_size = check_page_size(page_size)
        self._workers = None if num_workers < 1 else num_workers

    def from_indexed_dataset(
        self,
        dataset: Any,
        indices: Sequence[int] | None = None,
        chunksize: int = 100,
        shuffle_indices: bool = False,
    ) -> None:
        """Write a dataset that has ``len()`` and ``dataset[i]``.

        Args:
            dataset: of tuples of values in the fields' order, or mappings by name.
            indices: only these samples, in this order.
            chunksize: samples that a worker encodes at a time; fewer where they are large.
            shuffle_indices: in random order, drawn from numpy's global generator, as FFCV does.

        Raises:
            WorkerError: a sample that could not be read or written, or a worker that was killed.
            StepError: no samples, or no such dataset.
            FormatError: a sample that is larger than a page.
            DiskFullError: no space; nothing is left.
        """
        if chunksize < 1:
            raise StepError(f"chunksize={chunksize}. Allowed: 1 and more.")
        chosen = None if indices is None else _indices(indices)
        if shuffle_indices:
            chosen = np.random.permutation(len(dataset) if chosen is None else chosen)
        write_indexed(self._target(), dataset, self._encoders, indices=chosen, lot_samples=chunksize)

    def from_webdataset(self, shards: Sequence[str], pipeline: Callable[[Any], Any]) -> None:
        """Write the samples of WebDataset shards; needs the ``webdataset`` package, which the pipeline speaks to.

        Each shard is read twice, as by FFCV: its samples are counted first.

        Args:
            shards: paths or addresses.
            pipeline: what is done to a ``webdataset.WebDataset`` of a shard; gives tuples in the fields' order.

        Raises:
            WorkerError: a sample that could not be read or written, or a worker that was killed.
            StepError: no samples.
            DiskFullError: no space; nothing is left.
            MissingDependencyError: webdataset is not installed.
        """
        source = _Shards([str(shard) for shard in shards], pipeline)
        with ThreadPoolExecutor(min(len(source.names), num_workers(self._workers)) or 1) as pool:
            counts = list(pool.map(source.count, range(len(source.names))))
        write_streams(self._target(), source, counts, source.names, self._encoders)

    def _target(self) -> Target:
        return Target(self._fname, self._page_size, workers=self._workers, replaces=True, start_method="fork")


class _Shards:
    """The samples of each shard, by its number."""

    def __init__(self, names: list[str], pipeline: Callable[[Any], Any]) -> None:
        self.names, self._pipeline = names, pipeline

    def __call__(self, number: int) -> Iterator[Any]:
        try:
            webdataset = import_module("webdataset")
        except ImportError as error:
            raise MissingDependencyError.of("webdataset", "webdataset") from error
        return iter(self._pipeline(webdataset.WebDataset(self.names[number], shardshuffle=False)))

    def count(self, number: int) -> int:
        try:
            return sum(1 for _ in self(number))
        except MissingDependencyError:
            raise
        except Exception as error:
            raise WorkerError(f"the samples of {self.names[number]} cannot be counted: {error}") from error


def _indices(indices: Sequence[int]) -> Any:
    found = np.asarray(indices)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise StepError(f"indices of dtype {found.dtype} and shape {found.shape}. Allowed: whole numbers, [n].")
    return found.astype(np.int64)
