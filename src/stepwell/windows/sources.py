"""Where places come from: a view's anchor index, or whatever follows a store; and several of them in one batch.

A source numbers its segments and episodes for itself. A batch of several sources is read through one table of maps, so
their segments get numbers of their own, in the order in which they came::

    source 0   segments 0 1 2 . . 3        numbers  0 1 2 . . 5       one batch: rows of source 0, then of source 1
    source 1   segments . . . 0 1 .                 . . . 3 4 .

With one source both numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.places import CHAIN, CHAIN_SEGMENT
from stepwell.windows.chains import Chained, Chains, widened
from stepwell.windows.computed import VirtualColumns
from stepwell.windows.fields import resolve_fields
from stepwell.windows.index import AnchorIndex
from stepwell.windows.views import View

__all__ = ["JoinedSources", "PlaceSource", "ViewSource"]

Int64s = npt.NDArray[np.int64]


class PlaceSource(Protocol):
    """The origin of places, as a reader of places sees it.

    Attributes:
        stores: that the segments belong to.
        segments: by number; new ones are added at the end, none is ever renumbered. None for one that went.
        segment_stores: int64 [S], number of the store of each.
        need_rows: int64 [S], rows of each that may be read by now; 0 for one that went.
        revision: an int that grows whenever a segment comes or goes.
        is_live: whether any of this changes by itself.
        is_ring: whether old segments are removed while they may still be read, so that all are mapped at once.
        chains: the pieces of episodes that were cut, or None where there are none.
    """

    @property
    def stores(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def segments(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def segment_stores(self) -> Int64s: ...  # noqa: D102
    @property
    def chains(self) -> Chains | None: ...  # noqa: D102
    @property
    def need_rows(self) -> Int64s: ...  # noqa: D102
    @property
    def revision(self) -> int: ...  # noqa: D102
    @property
    def is_live(self) -> bool: ...  # noqa: D102
    @property
    def is_ring(self) -> bool: ...  # noqa: D102

    def describe(self, segment: int, row: int) -> str:
        """Return the store's path, episode and step of a row, for people."""
        ...

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Return a computed column (`stepwell.windows.fields.VIRTUAL_DTYPES`) at rows of the places' episodes.

        Args:
            name: of the column; ``store_index`` counts the source's own stores.
            places: int64 [6, n], with the source's own numbers.
            rows: int64 [n, K].

        Returns:
            array that broadcasts to [n, K].
        """
        ...


class ViewSource:
    """The anchors of a view as a source of places: a snapshot, nothing comes and nothing goes.

    Args:
        view: the episodes.
        fields: the fields read around each anchor, as `WindowReader` takes it; None: every step is an anchor.

    Attributes:
        fields: key to `ResolvedField`.
        index: the `AnchorIndex`.

    Notes:
        Immutable, safe to share between threads.
    """

    def __init__(self, view: View, fields: Mapping[str, Any] | None = None) -> None:
        self.fields = resolve_fields(fields, view.stores)
        self.index = index = AnchorIndex(view, self.fields.values())
        self.stores = view.stores
        self.segments = view.segments
        self.segment_stores = index.stores
        self.need_rows: Int64s = np.zeros(len(self.segments), dtype=np.int64)
        np.maximum.at(self.need_rows, index.records[:, 0], index.records[:, 4])
        self.revision, self.is_live = 0, False
        self.is_ring = any(getattr(store, "capacity", None) is not None for store in self.stores)
        self.describe = index.where
        self.chains = None if index.pieces is None else index.pieces.chains
        if index.pieces is not None:
            np.maximum.at(self.need_rows, index.pieces.chains.pieces[:, CHAIN_SEGMENT], index.pieces.needs)
        self.compute = VirtualColumns(view, index.ordinals, index.pieces).compute
        self.places = index.places


class JoinedSources:
    """Several sources seen as one."""

    # `state` and what it changes are for one thread at a time; the rest may be called meanwhile.

    def __init__(self, sources: Sequence[PlaceSource]) -> None:
        if not sources:
            raise WindowError("no source to read places of. Give at least one.")
        from stepwell.kernels.chains import num_leaving

        # bound once: an import statement would cost as much as the kernel's call
        self._num_leaving = num_leaving
        self.sources = tuple(sources)
        self.stores = tuple(store for source in sources for store in source.stores)
        self._first_store = np.cumsum([0] + [len(source.stores) for source in sources]).tolist()
        self.segments: Any = []
        self.segment_stores: Int64s = np.empty(0, dtype=np.int64)
        self.is_single = len(self.sources) == 1
        self.is_live = any(source.is_live for source in sources)
        self._numbers: list[Int64s] = [np.empty(0, dtype=np.int64) for _ in sources]
        self._owners: Int64s = np.empty((2, 0), dtype=np.int64)
        self._revisions = [-1] * len(self.sources)
        self._take_in()

    @property
    def is_current(self) -> bool:
        """Whether no segment came or went since the last `state`."""
        # looked at before every batch
        if self.is_single:
            return self.sources[0].revision == self._revisions[0]
        return [source.revision for source in self.sources] == self._revisions

    @property
    def need_rows(self) -> Int64s:
        """Rows of each segment that may be read by now: int64 [S]."""
        found = np.zeros(len(self.segments), dtype=np.int64)
        for numbers, source in zip(self._numbers, self.sources, strict=True):
            found[numbers] = source.need_rows[: len(numbers)]
        return found

    @property
    def ring_segments(self) -> Int64s:
        """Segments that are to be mapped before they are read, int64 [m]."""
        found = [n for source, n in zip(self.sources, self._numbers, strict=True) if source.is_ring]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def state(self) -> tuple[Sequence[Any], Int64s, Int64s]:
        """Number the segments that came; return all, the store of each, and the rows that may be read of each."""
        if not self.is_current:
            self._take_in()
        return self.segments, self.segment_stores, self.need_rows

    def _take_in(self) -> None:
        for i, source in enumerate(self.sources):
            self._revisions[i] = source.revision
            known, count = len(self._numbers[i]), len(source.segments)
            new = np.arange(len(self.segments), len(self.segments) + count - known, dtype=np.int64)
            if self.is_single and not self.is_live:
                self.segments = source.segments
            else:
                for number, segment in zip(self._numbers[i].tolist(), source.segments, strict=False):
                    self.segments[number] = segment
                self.segments += source.segments[known:count]
            stores = source.segment_stores[known:count] + self._first_store[i]
            self.segment_stores = np.concatenate([self.segment_stores, stores])
            own = np.stack([np.full(count - known, i), np.arange(known, count)]).astype(np.int64)
            self._owners = np.concatenate([self._owners, own], axis=1)
            self._numbers[i] = np.concatenate([self._numbers[i], new])

    def join(self, places: Sequence[Int64s]) -> Int64s:
        """Return the places of all sources, one after the other, with the numbers of segments here."""
        if self.is_single:
            return places[0]
        if max(map(len, places)) > 6:
            places = [each if len(each) > 6 else each[[*range(6), 3, 4, 5]] for each in places]
        joined = np.concatenate(list(places), axis=1)
        start = 0
        for numbers, part in zip(self._numbers, places, strict=True):
            stop = start + part.shape[1]
            joined[1, start:stop] = numbers[part[1]]
            start = stop
        return joined

    @property
    def has_chains(self) -> bool:
        """Whether any source has episodes in pieces."""
        # looked at before every batch
        return self.sources[0].chains is not None or (
            not self.is_single and any(source.chains is not None for source in self.sources)
        )

    def chained(
        self, places: Int64s, parts: Sequence[Int64s], min_offset: int, max_offset: int
    ) -> tuple[Int64s, Sequence[Int64s], Chained | None]:
        """Return the places of a batch with the bounds of whole episodes, where any window leaves its piece."""
        if not self._num_leaving(places, min_offset, max_offset):
            return places, parts, None
        chosen, at, tables = [], [], []
        start = num_pieces = 0
        wide: list[Int64s] = []
        for numbers, source, part in zip(self._numbers, self.sources, parts, strict=True):
            wide.append(part)
            # looked at once: another thread may follow a store meanwhile
            chains = source.chains
            if chains is not None:
                each, own, found = widened(part, min_offset, max_offset, chains)
                if len(own):
                    wide[-1] = each
                    chosen.append(own + start)
                    at.append(found + num_pieces)
                    tables.append(chains.pieces)
                    if not self.is_single:
                        tables[-1] = tables[-1].copy()
                        tables[-1][:, CHAIN_SEGMENT] = numbers[tables[-1][:, CHAIN_SEGMENT]]
                        tables[-1][:, CHAIN] += num_pieces
                    num_pieces += len(tables[-1])
            start += part.shape[1]
        if not tables:
            return places, parts, None
        if self.is_single:
            return wide[0], wide, Chained(chosen[0], at[0], tables[0])
        if len(places) == 6:
            wide = [each if len(each) > 6 else each[[*range(6), 3, 4, 5]] for each in wide]
            places = np.concatenate([places, np.concatenate([each[6:] for each in wide], axis=1)])
        return places, wide, Chained(np.concatenate(chosen), np.concatenate(at), np.concatenate(tables))

    def compute(self, name: str, parts: Sequence[Int64s], rows: Int64s) -> npt.NDArray[Any]:
        """Return a computed column at rows of the sources' places, one after the other."""
        if self.is_single:
            return self.sources[0].compute(name, parts[0], rows)
        found, start = [], 0
        for source, part, first in zip(self.sources, parts, self._first_store, strict=False):
            stop = start + part.shape[1]
            values = source.compute(name, part, rows[start:stop])
            values = values + first if name == "store_index" else values
            found.append(np.broadcast_to(values, (part.shape[1], rows.shape[1])))
            start = stop
        return np.concatenate(found)

    def describe(self, segment: int, row: int) -> str:
        """Return the store's path, episode and step of a row of a segment, for people."""
        source, own = self._owners[:, segment].tolist()
        text: str = self.sources[source].describe(own, row)
        return text
