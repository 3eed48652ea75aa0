"""The episodes of a reader as `write_episodes` takes them: chosen ones, with the rows that a store is to have.

::

    Reader --EpisodeData--> EncodedRows, FileSpans as they come ──────────────┐
                      |---> plain FileSpans read as arrays ───────────────────┼──> EpisodeData of the store's schema
                      └---> Recoded, where another codec is asked for ────────┘
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class, same_rows
from stepwell.errors import FormatError
from stepwell.formats.reader import Reader
from stepwell.formats.recoded import Recoded
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
        schema: of the store.
        chosen: int64 [n], ascending: its episodes.

    Notes:
        As the reader: for one thread, sent to workers by pickle.
    """

    def __init__(self, reader: Reader, schema: Schema, chosen: npt.NDArray[np.int64]) -> None:
        self._reader, self._before, self._after, self._chosen = reader, reader.schema, schema, chosen
        self._staying = frozenset(
            name for name, feature in schema.items() if issubclass(codec_class(feature), FileCodec)
        )
        self._is_as_it_comes = list(self._before) == list(schema) and all(
            same_rows(feature, schema[name]) for name, feature in self._before.items()
        )

    @property
    def identity(self) -> str:
        """What an interrupted import is known by."""
        return f"{self._reader.identity}; chosen {len(self._chosen)} {zlib.crc32(self._chosen.tobytes()):08x}"

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

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[EpisodeData]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> EpisodeData:
        episode = int(self._chosen[index])
        label = self._reader.label(episode)
        try:
            found = self._reader[episode]
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            raise FormatError(f"{label} cannot be read: {error}") from error
        columns = {name: self._column(name, values, label) for name, values in flatten(found.columns)}
        return EpisodeData(columns, found.terminated, found.truncated, found.metadata)

    def one_step_episodes(self, start: int, stop: int) -> Mapping[str, Any] | None:
        """Return columns of many episodes of one step, where the reader has them; see `HasOneStepEpisodes`."""
        first, last = int(self._chosen[start]), int(self._chosen[stop - 1])
        if not self._is_as_it_comes or last - first != stop - 1 - start:
            return None
        columns = self._reader.one_step_episodes(first, last + 1)
        if columns is None:
            return None
        label = f"{self._reader.label(first)} and those after it"
        return {name: self._column(name, values, label) for name, values in flatten(columns)}

    def _column(self, name: str, values: Any, label: str) -> Any:
        if not has_rows(values):
            return values
        before, after, where = self._before.get(name), self._after.get(name), f"{label}, feature {name!r}"
        if name in self._staying:
            return _Named(values, where, SPAN_DTYPE.itemsize * values.num_rows)
        if isinstance(values, FileSpans) and values.feature.is_raw:
            return _array_of(values, where)
        if before is None or (after is not None and same_rows(before, after)):
            return _Named(values, where)
        return Recoded(_Named(values, where), before, where)


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
