"""The batch path: positions of anchors in, arrays out.

::

    positions int64 [n]
        | AnchorIndex.places              episode, segment, row, lo, hi of each anchor          1 kernel call
        | PlaceReader                     see `stepwell.windows.placed`
    dict of key to array [n, *window, *step]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.store.counting import counted
from stepwell.windows.held import HeldRows
from stepwell.windows.index import positions_array
from stepwell.windows.maps import MAX_MAPS, MapError, SegmentMaps
from stepwell.windows.placed import Drawing, PlaceReader
from stepwell.windows.row_loading import RowLoader
from stepwell.windows.sources import JoinedSources, ViewSource
from stepwell.windows.transient import hold_rows
from stepwell.windows.views import View

__all__ = ["WindowReader"]

# a ring evicts a segment in the time that many are mapped in
MAX_TRIES = 4


class WindowReader:
    """Read windows: from positions of anchors to a batch.

    Args:
        view: the episodes.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor.
        max_maps: how many files may be mapped at a time.
        memory_bytes: what may be used to keep files cached; default: what is available when the first file is mapped.
            See `stepwell.windows.maps`.
        page_cache: False reads rows into memory of its own, past the page cache: for stores much
            larger than memory. Offsets of encoded rows, ragged features and windows that are placed elsewhere than at
            the anchor are read through maps all the same.

    Attributes:
        view: the episodes.
        index: the `AnchorIndex`.
        fields: key to `ResolvedField`, in the batch's order.
        is_raw: whether nothing has to be decoded.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        maps: the `SegmentMaps` that it reads through.
        page_cache: as given.

    Raises:
        WindowError: a field that does not fit the stores or any episode, or stores that do not agree.
        FeatureNotFoundError: no such feature.

    Notes:
        Thread-safe: any number of `read` at once. Pickles as its view and fields, and maps files anew; after a fork
        both processes go on with the maps there are. Transforms are not applied here but by the loader, which knows
        the epoch. All segments of a ring are mapped when it is made, so that it can be read however far the writer
        gets; if one has gone since the view was made, the view is refreshed first.
    """

    def __init__(
        self,
        view: View,
        fields: Mapping[str, Any] | None = None,
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        page_cache: bool = True,
        _known: WindowReader | None = None,
    ) -> None:
        self.page_cache = page_cache
        self._arguments = (fields, max_maps, memory_bytes, page_cache)
        self._make(view, _known)
        for _ in range(MAX_TRIES):
            if self._map_rings():
                break
            self._make(view.refresh(), _known)

    def _make(self, view: View, known: WindowReader | None) -> None:
        fields, max_maps, memory_bytes, page_cache = self._arguments
        self.view = view
        source = ViewSource(view, fields)
        self.fields, self.index = source.fields, source.index
        self._placed = PlaceReader(
            JoinedSources([source]),
            self.fields,
            max_maps=max_maps,
            # nothing is fetched ahead of a read that goes past the page cache
            memory_bytes=memory_bytes if page_cache else 0,
            page_cache=page_cache,
            known=None if known is None else known.maps,
        )
        self.is_raw, self.sample_bytes = self._placed.is_raw, self._placed.sample_bytes
        self.maps: SegmentMaps = self._placed.maps
        self.num_bytes = self._placed.num_bytes

    def _map_rings(self) -> bool:
        """Map what a ring may remove before it is read for the first time; False when a segment is gone already."""
        if not any(store.capacity is not None for store in self.view.stores):
            return True
        try:
            self.maps.ensure(np.flatnonzero(self._placed.sources.need_rows))
        except MapError as error:
            # what is wrong with a file is said when it is read
            return not isinstance(error.cause, FileNotFoundError)
        return True

    @property
    def snapshot_id(self) -> str:
        """16 hexadecimal digits that change when the set of anchors does."""
        return self.index.digest

    def refresh(self) -> WindowReader:
        """Return a reader of the stores as they are now; maps that are long enough go on being used."""
        view = self.view.refresh()
        if view is self.view:
            return self
        fields, max_maps, memory_bytes, page_cache = self._arguments
        return WindowReader(
            view, fields, max_maps=max_maps, memory_bytes=memory_bytes, page_cache=page_cache, _known=self
        )

    @cached_property
    def row_loader(self) -> RowLoader:
        """What loads held rows: those that need decoding, or, past the page cache, all of fixed shape."""
        placed = self._placed
        return RowLoader(
            self.index, self.maps, placed.columns, placed.decoders, placed.slots, page_cache=self.page_cache
        )

    def read(
        self,
        positions: npt.ArrayLike,
        memory: npt.NDArray[np.uint8] | None = None,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            positions: int64 [n], anchors in any order, repeated or not.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes (see `aligned_empty`). Default:
                new.
            held: the anchors' rows, loaded by `row_loader`. Default: they are decoded here, each once a batch.
            draws: the random numbers of the n windows for a purpose; for decoders that draw, and for windows that are
                not put at the anchor. Default: others at every call.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause.
            WindowError: a position that is no anchor.
        """
        places = self.index.places(positions_array(positions))
        if held is None and not self.page_cache:
            places = self._placed.widened(places)
            held = hold_rows(self.row_loader, places)
        return self._placed.read(places, memory, held=held, draws=draws)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.view, *self._arguments)

    def __repr__(self) -> str:
        sizes = f"{counted(self.index.num_anchors, 'anchor')}  {counted(self.sample_bytes, 'byte')} each"
        return f"<WindowReader {', '.join(self.fields)}  {sizes}>"


def _rebuild(
    view: View, fields: Mapping[str, Any] | None, max_maps: int, memory_bytes: int | None, page_cache: bool
) -> WindowReader:
    return WindowReader(view, fields, max_maps=max_maps, memory_bytes=memory_bytes, page_cache=page_cache)
