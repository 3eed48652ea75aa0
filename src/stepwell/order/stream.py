"""The endless sequence of epochs, ``epoch 0 || epoch 1 || ...``, and where one of its positions lies."""

from __future__ import annotations

from typing import NamedTuple

from stepwell.errors import OrderError

__all__ = ["Span", "stream_spans"]


class Span(NamedTuple):
    """Positions ``[start, start + count)`` of one epoch."""

    epoch: int
    start: int
    count: int  # type: ignore[assignment]


def stream_spans(num_positions: int, offset: int, count: int) -> list[Span]:
    """Return the spans that a range of the stream covers, one an epoch that it touches.

    ::

        num_positions = 5        |0 1 2 3 4|0 1 2 3 4|0 1 ...
        offset = 3, count = 4          [3 4 0 1]            -> (0, 3, 2), (1, 0, 2)

    Args:
        num_positions: positions an epoch has, the same in each.
        offset: first position of the range within the stream, 0 or more, of any size.
        count: positions in the range.

    Raises:
        OrderError: an epoch without positions, or a negative range.

    Example:
        >>> stream_spans(5, 3, 4)
        [Span(epoch=0, start=3, count=2), Span(epoch=1, start=0, count=2)]
    """
    if num_positions < 1:
        raise OrderError("an endless stream of epochs that have no positions. Add episodes, or use epochs=1.")
    if offset < 0 or count < 0:
        raise OrderError(f"positions [{offset}, {offset + count}) of a stream. Allowed is a range from 0 on.")
    spans = []
    end = offset + count
    while offset < end:
        epoch, start = divmod(offset, num_positions)
        taken = min(num_positions - start, end - offset)
        spans.append(Span(epoch, start, taken))
        offset += taken
    return spans
