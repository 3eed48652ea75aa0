"""The episodes of a reader as `write_episodes` takes them: chosen ones, with errors that say of which they are.

::

    Reader --EpisodeData--> EncodedRows, FileSpans as they come ───┐
                      └---> plain FileSpans read as arrays ────────┴──> EpisodeData of the store's schema
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class
from stepwell.errors import FormatError
from stepwell.formats.reader import Reader
from stepwell.formats.source_paths import digest_of, entries_of
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_codec import FileCodec
from stepwell.references.file_spans import SPAN_DTYPE, FileSpans
from stepwell.schema import Feature, Schema, flatten
from stepwell.store.values import EncodedRows, HasRows, encoded_of, has_rows

__all__ = ["ReaderEpisodes"]


class ReaderEpisodes:
    """Some episodes of a reader, for a store.

    Args:
        reader: of the data set.
        schema: of the store: the reader's, or the one of a store in place.
        chosen: int64 [n], ascending: its episodes.

    Notes:
        As the reader: for one thread, sent to workers by pickle.
    """

    def __init__(self, reader: Reader, schema: Schema, chosen: npt.NDArray[np.int64]) -> None:
        self._reader, self._chosen = reader, chosen
        self._staying = frozenset(
            name for name, feature in schema.items() if issubclass(codec_class(feature), FileCodec)
        )

    @property
    def identity(self) -> str:
        """What an interrupted import is known by."""
        return f"{self._reader.identity}; chosen {len(self._chosen)} {zlib.crc32(self._chosen.tobytes()):08x}"

    @property
    def state(self) -> str:
        """What changes when a file of the data set does: a digest, "" of files that are not on this machine."""
        reader = self._reader
        source = str(reader.source)
        if "://" in source:
            return ""
        paths = type(reader).files(source, **reader.given_options)
        return digest_of(entries_of([path for path in paths if os.path.isfile(path)]))  # noqa: PTH113  many files

    @property
    def edges(self) -> list[int] | None:
        """The items that begin a shard; see `Reader.edges`."""
        edges = self._reader.edges
        return None if edges is None else np.unique(np.searchsorted(self._chosen, edges)).tolist()

    def prepare(self, spans: Sequence[tuple[int, int]]) -> None:
        """Tell the reader which episodes will be read; see `HasSpans`."""
        parts = [self._chosen[start:stop] for start, stop in spans]
        self._reader.prepare(np.concatenate([np.empty(0, np.int64), *parts]))

    def forget(self, start: int, stop: int) -> None:
        """Tell the reader which episodes are stored; see `HasSpans`."""
        self._reader.forget(self._chosen[start:stop])

    def label(self, index: int) -> str:
        """Return what messages call an episode; see `Reader.label`."""
        return self._reader.label(int(self._chosen[index]))

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[EpisodeData | None]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> EpisodeData | None:
        episode, label = int(self._chosen[index]), self.label(index)
        try:
            found = self._reader[episode]
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            raise FormatError(f"{label} cannot be read: {error}") from error
        if found is None:
            return None
        columns = {name: self._column(name, values, label) for name, values in flatten(found.columns)}
        return EpisodeData(columns, found.terminated, found.truncated, found.metadata)

    def one_step_episodes(self, start: int, stop: int) -> Mapping[str, Any] | None:
        """Return columns of many episodes of one step, where the reader has them; see `HasOneStepEpisodes`."""
        first, last = int(self._chosen[start]), int(self._chosen[stop - 1])
        if self._staying or last - first != stop - 1 - start:
            return None
        columns = self._reader.one_step_episodes(first, last + 1)
        if columns is None:
            return None
        label = f"{self._reader.label(first)} and those after it"
        return {name: self._column(name, values, label) for name, values in flatten(columns)}

    def _column(self, name: str, values: Any, label: str) -> Any:
        if not has_rows(values):
            return values
        where = f"{label}, feature {name!r}"
        if name in self._staying:
            return _Named(values, where, SPAN_DTYPE.itemsize * values.num_rows)
        if isinstance(values, FileSpans) and values.feature.is_raw:
            return _array_of(values, where)
        return _Named(values, where)


def _array_of(spans: FileSpans, where: str) -> npt.NDArray[Any]:
    try:
        return spans.array()
    except (OSError, ValueError, LookupError) as error:
        raise FormatError(f"{where}: {error}") from error


class _Named:
    """Rows whose errors say of which episode and feature they are; it counts their bytes as they come."""

    def __init__(self, given: HasRows, where: str, num_bytes: int | None = None) -> None:
        self._given, self.where = given, where
        self.nbytes = int(getattr(given, "nbytes", 0)) if num_bytes is None else num_bytes

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return self._given.num_rows

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows; see `HasRows`."""
        self.nbytes = 0
        try:
            for blob in self._given.rows(feature):
                self.nbytes += len(blob)
                yield blob
        except (OSError, ValueError, LookupError) as error:
            raise FormatError(f"{self.where}: {error}") from error

    def encoded(self, feature: Feature) -> EncodedRows | None:
        """Return the rows where they lie in memory; see `encoded_of`."""
        try:
            found = encoded_of(self._given, feature)
        except (OSError, ValueError, LookupError) as error:
            raise FormatError(f"{self.where}: {error}") from error
        if found is not None:
            self.nbytes = found.nbytes
        return found
