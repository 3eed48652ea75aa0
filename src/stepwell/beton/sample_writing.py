"""Writing samples of a dataset into a ``.beton`` file, by several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder
from stepwell.beton.laying import Lot, Lots, lay
from stepwell.beton.sample_lots import IndexedSamples, SampleLots, StreamedSamples, lots_of, stream_lots
from stepwell.beton.unfinished import unfinished_file
from stepwell.errors import StepError
from stepwell.recorders.chunks import StartMethod, num_workers

__all__ = ["Target", "check_not_empty", "write_indexed", "write_streams"]

STREAMS_AT_ONCE = 16


class Target:
    """Where samples are written to, and how; see `stepwell.beton.write_beton` for what is not said here.

    Args:
        path: of the file.
        page_size: in bytes, checked.
        align: of regions, checked.
        workers: see `write_beton`.
        progress: see `write_beton`.
        replaces: whether a file that is there is replaced.
        start_method: of the processes.
    """

    def __init__(  # noqa: PLR0917
        self,
        path: str | os.PathLike[str],
        page_size: int,
        align: int = 1,
        workers: int | None = None,
        progress: bool | None = None,
        replaces: bool = False,
        start_method: StartMethod = "spawn",
    ) -> None:
        self.path, self.page_size, self.align = path, page_size, align
        self.workers, self.progress = num_workers(workers), progress
        self.replaces, self.start_method = replaces, start_method

    def lay(self, source: Lots, lots: Sequence[Lot], encoders: Mapping[str, Encoder]) -> None:
        """Write lots, which begin with sample 0, into the file.

        Raises:
            StepError: there are none.
            StoreExistsError: something is at the path already.
            WorkerError: a sample that could not be written, or a worker that was killed.
            DiskFullError: no space; nothing is left.
        """
        fields = tuple(encoder.descriptor(name) for name, encoder in encoders.items())
        number = max(lot.stop for lot in lots)
        with unfinished_file(self.path, fields, self.page_size, number, replaces=self.replaces) as file:
            lay(lots, source, file, workers=self.workers, progress=self.progress, start_method=self.start_method)


def write_indexed(
    target: Target,
    dataset: Any,
    encoders: Mapping[str, Encoder],
    *,
    indices: npt.NDArray[np.int64] | None = None,
    lot_samples: int = 1 << 30,
) -> None:
    """Write the samples of a dataset that has ``len()`` and ``dataset[i]``.

    Args:
        target: where to.
        dataset: of tuples or mappings.
        encoders: of the fields, by name.
        indices: int64 [n], which samples, in the file's order; default all.
        lot_samples: how many a worker encodes at a time, at most.

    Raises:
        StepError: it is empty, or no such dataset.
        WorkerError: a sample that could not be read or written, or a worker that was killed.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise StepError(f"the dataset is a {type(dataset).__name__}. Give one with len() and dataset[i].")
    number = len(dataset) if indices is None else len(indices)
    check_not_empty(number)
    source = IndexedSamples(dataset, indices, encoders, target.page_size, target.align)
    target.lay(source, lots_of(number, source.lot_samples(lot_samples, number)), encoders)


def write_streams(
    target: Target,
    open_stream: Callable[[int], Iterator[Any]],
    counts: Sequence[int],
    names: Sequence[str],
    encoders: Mapping[str, Encoder],
    *,
    lot_samples: int = 1 << 30,
) -> None:
    """Write the samples of several streams, one after the other in the file.

    Args:
        target: where to.
        open_stream: returns an iterator of the samples of a stream, by its number.
        counts: samples of each stream.
        names: of the streams, for messages.
        encoders: of the fields, by name.
        lot_samples: how many a worker encodes at a time, at most.

    Raises:
        StepError: they are all empty.
        WorkerError: a sample that could not be read or written, or a worker that was killed.
    """
    firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    check_not_empty(int(firsts[-1]))
    source: SampleLots = StreamedSamples(open_stream, firsts, names, encoders, target.page_size, target.align)
    length = source.lot_samples(lot_samples, int(firsts[-1]))
    target.lay(source, stream_lots(firsts, length, STREAMS_AT_ONCE), encoders)


def check_not_empty(number: int) -> None:
    """Refuse to write a file without samples."""
    if number == 0:
        raise StepError("there are no samples. A .beton file without any is one that FFCV's loader cannot iterate.")
