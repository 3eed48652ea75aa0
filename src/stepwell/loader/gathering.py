"""The rows of a whole epoch from all ranks, each anchor once: what an evaluation ends with.

::

    rank 0   anchors 0 1 2   6 7 7*          * valid is False: left behind where it is
    rank 1   anchors 3 4 5   8 9 9*
                 told to all, and checked by all alike: none twice, and with expected=10 none missing
    result   anchors 0 1 2 3 4 5 6 7 8 9     the same on all ranks, or on one
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, OrderError
from stepwell.loader.batch import Batch
from stepwell.loader.columns import Columns, Kind, columns_of, join
from stepwell.loader.exchange import Exchange
from stepwell.order.order import check_count

__all__ = ["gather_valid"]

Int64s = npt.NDArray[np.int64]
MAX_NAMED = 8


@overload
def gather_valid(
    batches: Batch | Iterable[Batch],
    *,
    expected: int | None = None,
    to: None = None,
    group: Any = None,
    timeout_seconds: float | None = None,
) -> Batch: ...
@overload
def gather_valid(
    batches: Batch | Iterable[Batch],
    *,
    expected: int | None = None,
    to: int,
    group: Any = None,
    timeout_seconds: float | None = None,
) -> Batch | None: ...
def gather_valid(
    batches: Batch | Iterable[Batch],
    *,
    expected: int | None = None,
    to: int | None = None,
    group: Any = None,
    timeout_seconds: float | None = None,
) -> Batch | None:
    """Gather the rows of all ranks: padding removed, in the order of their anchors, each exactly once.

    Every rank calls it equally often, after its own batches, of which ranks may have different numbers, or none. Where
    torch.distributed is not in use the rows of this process are all there are.

    Args:
        batches: of one epoch, with what is to be gathered: ``batch.with_values({"loss": losses})`` is a batch of other
            values of the same rows. Arrays, tensors or lists with an entry a row. May be a generator that evaluates;
            where it raises, all ranks do.
        expected: how many anchors there are (``loader.num_positions``): that anchors 0 to ``expected - 1`` have all
            come is checked then. Default: what came is what there is.
        to: the one rank (of the group) that gets the rows; default: all.
        group: of torch.distributed; default: all ranks.
        timeout_seconds: to wait for other ranks; default: as the group was made (gloo: 30 minutes, nccl: 10).

    Returns:
        A batch with the rows by key and their ``anchors``, ascending; arrays as arrays, lists as lists, tensors as
        tensors, on the device where this rank's were. None on ranks that do not get it.

    Raises:
        LoaderError: a rank's batches cannot be gathered or raised (there: what they raised), an anchor came twice or
            not at all: on all ranks. Or another rank did not answer in time. Names the rank or the anchors.

    Example:
        >>> first = Batch({"loss": [0.5, 0.25, 0.25]}, valid=np.array([True, True, False]), anchors=np.array([1, 2, 2]))
        >>> second = Batch({"loss": [0.75]}, anchors=np.array([0]))
        >>> whole = gather_valid([first, second], expected=3)
        >>> whole["loss"], whole.anchors.tolist()
        ([0.75, 0.5, 0.25], [0, 1, 2])

    Notes:
        Holds all rows two or three times for a moment on each rank that gets them. Values travel pickled, between the
        processes of one run.
    """
    check_count("expected", expected)
    exchange = Exchange(group, timeout_seconds)
    if to is not None and not 0 <= to < exchange.world_size:
        raise OrderError(f"to={to}. Ranks of the group count from 0 to {exchange.world_size - 1}.")
    own, columns, message, cause = _packed(batches)
    told = [_Told.unpacked(each) for each in exchange.messages(own.packed())]
    _check_told(told, cause)
    anchors = np.concatenate([each.anchors for each in told])
    order = np.argsort(anchors)
    _check_anchors(anchors[order], expected)
    messages = exchange.messages(message, to)
    if not messages:
        return None
    kinds: Mapping[str, Kind] = next((each.kinds for each in told if each.kinds), {})
    parts = [part for part in map(pickle.loads, messages) if part]
    values = {key: join(kind, [part[key] for part in parts], order, columns.get(key)) for key, kind in kinds.items()}
    return Batch(values, own.epoch, anchors=anchors[order])


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank tells the others before any value travels.

    Args:
        anchors: int64 [n], of its rows that are no padding.
        kinds: what its values are, by key; empty where it has no batch.
        epoch: of its first batch.
        error: why it has nothing to gather.
    """

    anchors: Int64s
    kinds: Mapping[str, Kind]
    epoch: int = 0
    error: str | None = None

    @classmethod
    def nothing(cls, error: str | None = None) -> _Told:
        """Return what a rank without rows tells."""
        return cls(np.zeros(0, np.int64), {}, error=error)

    def packed(self) -> bytes:
        """Return it as it travels: plain types only."""
        return pickle.dumps(
            (self.anchors, {key: tuple(kind) for key, kind in self.kinds.items()}, self.epoch, self.error)
        )

    @classmethod
    def unpacked(cls, message: memoryview) -> _Told:
        """Return what `packed` made a message of."""
        anchors, kinds, epoch, error = pickle.loads(message)
        return cls(anchors, {key: Kind(*kind) for key, kind in kinds.items()}, epoch, error)


def _packed(batches: Batch | Iterable[Batch]) -> tuple[_Told, Columns, bytes, Exception | None]:
    """Return what this rank tells, its values, these as they travel, and what went wrong."""
    try:
        own, columns = _collected(batches)
        return own, columns, pickle.dumps({key: column.packed() for key, column in columns.items()}), None
    except Exception as error:
        # not raised before the others, which wait for an answer, know it
        return _Told.nothing(f"{type(error).__name__}: {error}"), {}, b"", error


def _collected(batches: Batch | Iterable[Batch]) -> tuple[_Told, Columns]:
    """Return what this rank has: what it tells, and the values."""
    anchors: list[Int64s] = []
    values: list[Batch] = []
    keeps: list[npt.NDArray[np.bool_]] = []
    for batch in [batches] if isinstance(batches, Batch) else batches:
        rows, keep = _rows_of(batch)
        anchors.append(rows[keep])
        values.append(batch)
        keeps.append(keep)
    if not values:
        return _Told.nothing(), {}
    columns = columns_of(values, keeps)
    kinds = {key: column.kind for key, column in columns.items()}
    return _Told(np.concatenate(anchors), kinds, values[0].epoch), columns


def _rows_of(batch: Batch) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the anchors of a batch, and which of its rows are no padding.

    Raises:
        LoaderError: it does not know its anchors.
    """
    if not isinstance(batch, Batch) or batch.anchors is None:
        raise LoaderError(
            f"a {type(batch).__name__} that does not know its anchors. Gather batches of a Loader or of a DataLoader "
            "with a BatchSampler and collate_fn=dataset.collate, or what their with_values(...) returns."
        )
    valid = batch.valid
    if valid is None:
        return batch.anchors, np.ones(len(batch.anchors), np.bool_)
    return batch.anchors, np.asarray(valid.cpu() if hasattr(valid, "cpu") else valid, np.bool_)


def _check_told(told: list[_Told], cause: Exception | None) -> None:
    """Raise on every rank what any rank has found."""
    if cause is not None:
        raise cause
    for number, each in enumerate(told):
        if each.error is not None:
            raise LoaderError(f"rank {number} had nothing to gather: {each.error}")
    known = [(number, each.kinds) for number, each in enumerate(told) if each.kinds]
    for number, kinds in known[1:]:
        if kinds != known[0][1]:
            raise LoaderError(
                f"rank {number} gathers {_shown(kinds)}, rank {known[0][0]} {_shown(known[0][1])}. "
                "Give the same keys, dtypes and shapes of a row on all ranks; a list may hold rows of any kind."
            )


def _shown(kinds: Mapping[str, Kind]) -> str:
    return ", ".join(f"{key!r}: {kind}" for key, kind in kinds.items())


def _check_anchors(anchors: Int64s, expected: int | None) -> None:
    """Raise LoaderError where an anchor came twice or, of as many as are expected, not at all.

    Args:
        anchors: int64 [n], ascending.
        expected: how many there are to be, or None.
    """
    repeated = np.unique(anchors[1:][anchors[1:] == anchors[:-1]])
    if len(repeated):
        raise LoaderError(
            f"{len(repeated)} anchors came more than once: {_named(repeated)}. Gather each epoch by itself, of an "
            "order that visits every anchor once, with the rank and world_size of each process."
        )
    # ascending, none twice and none below 0: the last one tells
    if expected is None or (len(anchors) == expected and (expected == 0 or anchors[-1] == expected - 1)):
        return
    missing = np.setdiff1d(np.arange(expected), anchors)
    beyond = anchors[anchors >= expected]
    if len(missing):
        raise LoaderError(
            f"{len(missing)} of {expected} anchors did not come: {_named(missing)}. Run the epoch to its end on every "
            "rank, without drop_last, and gather the batches of all ranks (is torch.distributed initialised?)."
        )
    raise LoaderError(f"anchors {_named(beyond)} came, and {expected} were expected. Give loader.num_positions.")


def _named(anchors: Int64s) -> str:
    shown = ", ".join(map(str, anchors[:MAX_NAMED].tolist()))
    return shown if len(anchors) <= MAX_NAMED else f"{shown}, ..."
