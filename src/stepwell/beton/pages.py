"""Pages of a ``.beton`` file, filled from front to back: where the next regions go.

What belongs to one sample lies on one page, so what is placed is a *unit*: a sample's regions, or a run of rows that
many samples share. A unit that does not fit into what is left of a page begins the next one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.sizes import parse_bytes

__all__ = ["MAX_PAGE_BYTES", "PageCursor", "aligned", "check_alignment", "check_page_size", "too_large"]

MIN_PAGE_BYTES = 1 << 16
MAX_PAGE_BYTES = 1 << 31


class PageCursor:
    """Where the next byte of data goes.

    Args:
        start: of the first page, a multiple of ``page_size``.
        page_size: a power of two, in bytes.

    Example:
        >>> cursor = PageCursor(start=1 << 16, page_size=1 << 16)
        >>> cursor.take(60_000) - (1 << 16), cursor.room
        (0, 5536)
        >>> cursor.take(6_000) - (1 << 16), cursor.stop - (1 << 16)
        (65536, 131072)

    Notes:
        Used by one thread, the one that alone places what many write.
    """

    def __init__(self, start: int, page_size: int) -> None:
        self.start, self.page_size = start, page_size
        self._next = start

    @property
    def room(self) -> int:
        """Bytes that are left of the page."""
        return -self._next % self.page_size or self.page_size

    @property
    def stop(self) -> int:
        """Where the pages end that something is on."""
        return -(-self._next // self.page_size) * self.page_size

    def take(self, num_bytes: int) -> int:
        """Return the place of a unit of ``num_bytes``, at most a page: on this page, or at the front of the next."""
        if num_bytes > self.room:
            self.turn()
        place = self._next
        self._next += num_bytes
        return place

    def turn(self) -> None:
        """Leave what is left of the page."""
        self._next += -self._next % self.page_size

    def take_all(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of units that follow each other.

        Args:
            sizes: int64 [n], each at most a page.

        Returns:
            int64 [n]; the same as n calls of `take`, one step a page.
        """
        ends = np.cumsum(sizes)
        places = ends - sizes
        done = 0
        while done < len(sizes):
            before = int(places[done])
            fitting = int(np.searchsorted(ends, before + self.room, side="right"))
            if fitting <= done:
                self.turn()
                continue
            places[done:fitting] += self._next - before
            self._next += int(ends[fitting - 1]) - before
            done = fitting
        return places


def aligned(sizes: Any, alignment: int) -> Any:
    """Return what regions take up: at least a byte each, so that no two share a place, up to a multiple.

    Args:
        sizes: an int, or int64 of any shape.
        alignment: in bytes.

    Example:
        >>> aligned(np.array([0, 1, 8, 9]), 8)
        array([ 8,  8,  8, 16])
    """
    return -(-np.maximum(sizes, 1) // alignment) * alignment


def check_page_size(page_size: int | str) -> int:
    """Return a page size in bytes.

    Args:
        page_size: an int, or a text such as "8 MiB".

    Raises:
        FormatError: no power of two, or out of range.
    """
    found = parse_bytes("page_size", page_size, error=FormatError)
    if found & (found - 1) or not MIN_PAGE_BYTES <= found <= MAX_PAGE_BYTES:
        raise FormatError(
            f"page_size={page_size!r} is {found} bytes. Allowed: powers of two from {MIN_PAGE_BYTES} to "
            f"{MAX_PAGE_BYTES}; FFCV's own writer begins at {1 << 21}."
        )
    return found


def check_alignment(align: int, page_size: int) -> int:
    """Return an alignment of regions in bytes; FormatError unless it is a power of two of at most a page."""
    if isinstance(align, bool) or not isinstance(align, int) or align < 1 or align & (align - 1) or align > page_size:
        raise FormatError(f"align={align!r}. Allowed: powers of two from 1 to the page size, {page_size}.")
    return align


def too_large(what: str, parts: str, num_bytes: int, page_size: int) -> FormatError:
    """Return the error for a unit that fits no page.

    Args:
        what: the sample, or the window.
        parts: its sizes by field.
        num_bytes: that it takes.
        page_size: that there is.
    """
    needed = 1 << (num_bytes - 1).bit_length()
    cure = (
        f"Give page_size={needed}, or more."
        if needed <= MAX_PAGE_BYTES
        else f"The largest page has {MAX_PAGE_BYTES} bytes: make it smaller."
    )
    return FormatError(
        f"{what} has {num_bytes} bytes ({parts}), and all that belongs to a sample lies on one page of {page_size} "
        f"bytes. {cure}"
    )
