"""Batches of places that follow stores: no index over anchors, maps that grow, several sources in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.windows.maps import MAX_MAPS, MapError
from stepwell.windows.placed import Drawing, PlaceReader
from stepwell.windows.resolved import resolve_fields
from stepwell.windows.sources import JoinedSources, PlaceSource

__all__ = ["LiveReader"]

Int64s = npt.NDArray[np.int64]


class LiveReader:
    """Read windows at places of one or several sources, which may grow meanwhile.

    Args:
        sources: where places come from: a `stepwell.windows.sources.ViewSource`, a `stepwell.replay.history.History`.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor. Every source's stores
            must have them, with the same shapes and dtypes; codecs may differ.
        max_maps: how many files may be mapped at a time.
        memory_bytes: what may be used to keep files cached; default: what is available when the first file is mapped.

    Attributes:
        fields: key to `ResolvedField`, in the batch's order.
        is_raw: whether nothing has to be decoded.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        min_offset: the earliest step that any field reads, counted from the anchor; at most 0.
        max_offset: the latest; at least 0. Windows that are not placed at the anchor do not count.

    Raises:
        WindowError: a field that does not fit the stores, or stores that do not agree.
        FeatureNotFoundError: no such feature.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.windows.sources import ViewSource
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"action": [0, 1, 2]})
        >>> source = ViewSource(stepwell.View(store))
        >>> reader = LiveReader([source], {"action": [0, 1]})
        >>> reader.read([source.places(np.array([0, 2]))])["action"].tolist()
        [[0, 1], [2, 2]]

    Notes:
        Thread-safe: any number of `read` at once, also while sources grow. Old maps are let go when the last read that
        holds them is over. After a fork both processes go on.
    """

    def __init__(
        self,
        sources: Sequence[PlaceSource],
        fields: Mapping[str, Any] | None = None,
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
    ) -> None:
        self._sources = JoinedSources(sources)
        self.fields = resolve_fields(fields, self._sources.stores)
        self._placed = PlaceReader(self._sources, self.fields, max_maps=max_maps, memory_bytes=memory_bytes)
        self.is_raw, self.sample_bytes = self._placed.is_raw, self._placed.sample_bytes
        self.num_bytes = self._placed.num_bytes
        anchored = [field for field in self.fields.values() if field.field.at == "anchor"]
        self.min_offset = min((field.min_offset for field in anchored), default=0)
        self.max_offset = max((field.max_offset for field in anchored), default=0)
        self.min_offset, self.max_offset = min(self.min_offset, 0), max(self.max_offset, 0)
        self._map_rings()

    def read(
        self,
        places: Sequence[Int64s],
        memory: npt.NDArray[np.uint8] | None = None,
        *,
        draws: Drawing | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            places: int64 [6, n_i] of each source, C-contiguous, with the source's own numbers; n_i may be 0. The rows
                of the batch come in this order.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes. Default: new.
            draws: the random numbers of the n windows for a purpose. Default: others at every call.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause: a
                FileNotFoundError where its segment was removed.
            WindowError: places of another number of sources.
        """
        sources = self._sources
        if len(places) != len(sources.sources):
            raise WindowError(f"places of {len(places)} sources, {len(sources.sources)} are needed. Empty ones count.")
        # sources are current before what they tell is taken in: no other thread reads until it is
        with self._placed.maps.following:
            if not sources.is_current:
                self._placed.follow()
                self._map_rings()
        return self._placed.read(sources.join(places), memory, parts=places, draws=draws)

    def _map_rings(self) -> None:
        """Map what a ring may remove before it is read for the first time."""
        table = self._placed.maps.table
        for number in self._sources.ring_segments.tolist():
            if table.num_rows[number] < 0 and self._placed.maps.segments[number] is not None:
                try:
                    table = self._placed.maps.ensure(np.array([number]))
                except MapError:
                    # gone already: whoever asks for its rows is told
                    continue

    def __repr__(self) -> str:
        return f"<LiveReader {', '.join(self.fields)}  {len(self._sources.sources)} sources>"
