"""The rows of a whole epoch from all ranks, each anchor once: what an evaluation ends with.

::

    rank 0   anchors 0 1 2   6 7 7*          * valid is False: not sent
    rank 1   anchors 3 4 5   8 9 9*
                 all ranks get all anchors and check them: none twice, and with expected=10 none missing
    result   anchors 0 1 2 3 4 5 6 7 8 9     the same on all ranks, or on one
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain, compress
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, OrderError
from stepwell.loader.batch import Batch
from stepwell.loader.memory import import_torch
from stepwell.order.order import check_count

__all__ = ["gather_valid"]

Int64s = npt.NDArray[np.int64]
Keep = npt.NDArray[np.bool_]
MAX_NAMED = 8


class _Note(NamedTuple):
    """What each rank sends before any value: its anchors, the kinds of its values by key, or what went wrong."""

    anchors: Int64s
    kinds: dict[str, str]
    epoch: int = 0
    error: str | None = None


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
    ranks = _Ranks(group, timeout_seconds)
    if to is not None and not 0 <= to < ranks.world_size:
        raise OrderError(f"to={to}. Ranks of the group count from 0 to {ranks.world_size - 1}.")
    cause: Exception | None = None
    own: dict[str, Any] = {}
    try:
        note, own = _collect([batches] if isinstance(batches, Batch) else batches)
        message = pickle.dumps({key: _on_cpu(values) for key, values in own.items()})
    except Exception as error:
        # raised after the other ranks know it: they wait for this one
        cause, message = error, b""
        note = _Note(np.zeros(0, np.int64), {}, error=f"{type(error).__name__}: {error}")
    # a plain tuple travels: nothing of this module is needed to read it
    notes = [_Note(*pickle.loads(each)) for each in ranks.gather(pickle.dumps(tuple(note)))]
    if cause is not None:
        raise cause
    kinds = _check_notes(notes)
    anchors = np.concatenate([each.anchors for each in notes])
    order = np.argsort(anchors)
    anchors = anchors[order]
    _check_anchors(anchors, expected)
    messages = ranks.gather(message, to)
    if not messages:
        return None
    parts = [part for part in map(pickle.loads, messages) if part]
    values = {key: _joined([part[key] for part in parts], order, own.get(key)) for key in kinds}
    return Batch(values, note.epoch, anchors=anchors)


class _Ranks:
    """The ranks of a group of torch.distributed, or this process alone where it is not in use."""

    def __init__(self, group: Any, timeout_seconds: float | None) -> None:
        # not imported: a process that has joined a group has loaded it
        distributed: Any = sys.modules.get("torch.distributed")
        is_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
        self._distributed: Any = distributed if is_joined else None
        self._group = group
        self._timeout = None if timeout_seconds is None else timedelta(seconds=timeout_seconds)
        self.rank = int(distributed.get_rank(group)) if is_joined else 0
        self.world_size = int(distributed.get_world_size(group)) if is_joined else 1
        if self.rank < 0:
            raise LoaderError("this process is not in the group. Gather with a group that it belongs to.")

    def gather(self, own: bytes, to: int | None = None) -> list[memoryview]:
        """Return the messages of all ranks in their order; an empty list where another rank gets them."""
        if self._distributed is None:
            return [memoryview(own)]
        # all_gather_object has no time-out, and no form in which one rank alone gets the objects
        try:
            sizes = [int.from_bytes(size, "little") for size in self._gather(len(own).to_bytes(8, "little"), 8, None)]
            rows = self._gather(own, max(*sizes, 1), to)
        except RuntimeError as error:
            raise LoaderError(
                f"rank {self.rank} of {self.world_size} waited for the others, and one did not answer: {error} "
                "Look for the first error in the other ranks' output, and let all ranks gather equally often."
            ) from error
        return [row[:size] for row, size in zip(rows, sizes, strict=False)]

    def _gather(self, own: bytes, size: int, to: int | None) -> list[memoryview]:
        """Return the bytes of all ranks, each padded with zeros to a size."""
        distributed, group = self._distributed, self._group
        backend = str(distributed.get_backend(group))
        # a group of both ("cpu:gloo,cuda:nccl") needs no copies to a GPU
        device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
        padded = np.zeros(size, np.uint8)
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        mine = import_torch().from_numpy(padded).to(device)
        rows = [mine.new_empty(size) for _ in range(self.world_size)] if to in (None, self.rank) else []
        if to is None:
            work = distributed.all_gather(rows, mine, group=group, async_op=True)
        else:
            root = to if group is None else distributed.get_global_rank(group, to)
            work = distributed.gather(mine, rows or None, dst=root, group=group, async_op=True)
        work.wait() if self._timeout is None else work.wait(self._timeout)
        return [row.cpu().numpy().data for row in rows]


def _collect(batches: Iterable[Batch]) -> tuple[_Note, dict[str, Any]]:
    """Return the note of this rank, and its values by key: the rows of all its batches without the padding."""
    found: list[Batch] = []
    keeps: list[Keep] = []
    for batch in batches:
        keeps.append(_valid_rows(batch))
        found.append(batch)
    if not found:
        return _Note(np.zeros(0, np.int64), {}), {}
    keys = list(found[0])
    if other := next((batch for batch in found if list(batch) != keys), None):
        raise LoaderError(f"batches with keys {keys} and {list(other)}. Give the same keys, in the same order, in all.")
    values = {key: _concatenated(key, [batch[key] for batch in found], keeps) for key in keys}
    anchors = [batch.anchors[keep] for batch, keep in zip(found, keeps, strict=True) if batch.anchors is not None]
    return _Note(np.concatenate(anchors), {key: _kind(each) for key, each in values.items()}, found[0].epoch), values


def _valid_rows(batch: Batch) -> Keep:
    """Return which rows of a batch are no padding, bool [rows]."""
    if not isinstance(batch, Batch) or batch.anchors is None:
        raise LoaderError(
            f"a {type(batch).__name__} that does not know its anchors. Gather batches of a Loader or of a DataLoader "
            "with a BatchSampler and collate_fn=dataset.collate, or what their with_values(...) returns."
        )
    valid = batch.valid
    if valid is None:
        return np.ones(len(batch.anchors), np.bool_)
    return np.asarray(valid.cpu() if hasattr(valid, "cpu") else valid, np.bool_)


def _concatenated(key: str, values: Sequence[Any], keeps: Sequence[Keep]) -> Any:
    """Return the rows of a key that are no padding: a list, an array or a tensor."""
    pieces = [_kept(key, each, keep) for each, keep in zip(values, keeps, strict=True)]
    kinds = {_kind(piece) for piece in pieces}
    if len(kinds) > 1:
        shown = " and ".join(sorted(kinds))
        raise LoaderError(f"key {key!r}: {shown} in batches of one rank. Give the same in all, or lists.")
    if isinstance(pieces[0], list | tuple):
        return list(chain.from_iterable(pieces))
    return np.concatenate(pieces) if isinstance(pieces[0], np.ndarray) else import_torch().cat(pieces)


def _kept(key: str, values: Any, keep: Keep) -> Any:
    is_tensor = hasattr(values, "detach")
    if not is_tensor and not isinstance(values, np.ndarray | list | tuple):
        raise LoaderError(f"key {key!r}: a {type(values).__name__}. Give an array, a tensor or a list, an entry a row.")
    is_single = not isinstance(values, list | tuple) and values.ndim == 0
    if is_single or len(values) != len(keep):
        shown = "a single value" if is_single else f"{len(values)} entries"
        raise LoaderError(f"key {key!r}: {shown} in a batch of {len(keep)} rows. Give one entry a row.")
    values = values.detach() if is_tensor else values
    if keep.all():
        return values
    if is_tensor:
        return values[import_torch().from_numpy(keep).to(values.device)]
    return values[keep] if isinstance(values, np.ndarray) else list(compress(values, keep.tolist()))


def _kind(values: Any) -> str:
    """Return container, dtype and shape of a row as text, which all ranks must have alike."""
    if isinstance(values, list | tuple):
        return "list"
    container = "array" if isinstance(values, np.ndarray) else "tensor"
    return f"{container} {str(values.dtype).removeprefix('torch.')}{list(values.shape[1:])} a row"


def _on_cpu(values: Any) -> Any:
    return values.cpu() if hasattr(values, "detach") else values


def _joined(parts: Sequence[Any], order: Int64s, own: Any) -> Any:
    """Return the rows of all ranks in a new order; tensors on the device of this rank's own."""
    if isinstance(parts[0], list):
        rows = list(chain.from_iterable(parts))
        return [rows[number] for number in order.tolist()]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)[order]
    torch = import_torch()
    return torch.cat(parts)[torch.from_numpy(order)].to("cpu" if own is None else own.device)


def _check_notes(notes: Sequence[_Note]) -> Mapping[str, str]:
    """Return the kinds of values that all ranks with rows have; raise on every rank what any rank has found."""
    for number, note in enumerate(notes):
        if note.error is not None:
            raise LoaderError(f"rank {number} had nothing to gather: {note.error}")
    known = [(number, note.kinds) for number, note in enumerate(notes) if note.kinds]
    for number, kinds in known[1:]:
        if kinds != known[0][1]:
            raise LoaderError(
                f"rank {number} gathers {_shown(kinds)}, rank {known[0][0]} {_shown(known[0][1])}. "
                "Give the same keys, dtypes and shapes of a row on all ranks; a list may hold rows of any kind."
            )
    return known[0][1] if known else {}


def _shown(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{key!r}: {kind}" for key, kind in kinds.items())


def _check_anchors(anchors: Int64s, expected: int | None) -> None:
    """Raise LoaderError where one of ascending anchors came twice or, of those expected, not at all."""
    repeated = np.unique(anchors[1:][anchors[1:] == anchors[:-1]])
    if len(repeated):
        raise LoaderError(
            f"{len(repeated)} anchors came more than once: {_named(repeated)}. Gather each epoch by itself, of an "
            "order that visits every anchor once, with the rank and world_size of each process."
        )
    # ascending, none twice and none below 0: the last one is enough
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
