"""A storage for TorchRL's replay buffers over a ring: its samplers, transforms and trainers run over a store.

::

    ReplayBuffer.extend(td) --> StepwellStorage.set(positions, td) --> rows of a ring, a feature a key: next.reward
    ReplayBuffer.sample(n)  --> StepwellStorage.get(positions) ------> one read of n rows --> TensorDict [n]
"""

from __future__ import annotations

import json
import os
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, TableError
from stepwell.json_text import parse_json
from stepwell.replay.slots import Slots
from stepwell.schema import Array, Feature, is_feature_name
from stepwell.store import create

try:
    import torch
    from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor, is_tensorclass
    from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
    from torchrl.data.replay_buffers.storages import Storage
except ImportError as error:
    raise MissingDependencyError.of("torchrl", "torchrl") from error

__all__ = ["StepwellStorage"]

Int64s = npt.NDArray[np.int64]


# what a checkpoint has beside the elements, under the name that TorchRL's have
METADATA = "storage_metadata.json"


class Checkpointer(StorageCheckpointerBase):  # type: ignore[misc]
    """Save the elements as TorchRL's storages do, as files that are mapped, and which position comes next."""

    def dumps(self, storage: StepwellStorage, path: str | os.PathLike[str]) -> None:
        """Write the elements into a directory."""
        if not len(storage):
            raise TableError("a storage without elements has nothing to save.")
        storage.get(slice(None)).memmap(path, copy_existing=True)
        metadata = {"metadata": {}, "is_pytree": False, "len": len(storage), "next": storage._next}
        Path(path, METADATA).write_text(json.dumps(metadata), encoding="utf-8")

    def loads(self, storage: StepwellStorage, path: str | os.PathLike[str]) -> None:
        """Take the elements of a directory in place of those of a storage; those of TensorStorage, too."""
        metadata = parse_json(Path(path, METADATA).read_bytes())
        storage._load(TensorDict.load_memmap(path)[: metadata["len"]], metadata.get("next", 0))


class StepwellStorage(Storage):  # type: ignore[misc]
    """A storage of TensorDicts over a ring.

    Args:
        max_size: elements.
        path: of the ring, a new directory; None: in memory.

    Attributes:
        store: the ring, from the first element on; a feature for each key, nested ones with dots.

    Example:
        ``TensorDictReplayBuffer(storage=StepwellStorage(1_000_000), batch_size=256, collate_fn=lambda batch: batch)``

    Notes:
        Elements are written in the order of their positions, round and round, as ``TensorDictRoundRobinWriter`` does;
        they cannot be changed afterwards. Batches are in the memory of the CPU. ``dumps`` writes the files of TorchRL's
        tensor storages, and ``loads`` takes theirs while they are not full; ``state_dict`` and ``load_state_dict``
        alike. A pickle has the elements. One process at a time: collectors in other processes return their batches.
    """

    _default_checkpointer = Checkpointer

    def __init__(self, max_size: int, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(max_size)
        self._path = ":memory:" if path is None else os.fspath(path)
        self.device = torch.device("cpu")
        self._clear()

    def _clear(self) -> None:
        self.store: Any = None
        self._columns: list[_Column] = []
        self._kind: Any = None
        self._element_size: tuple[int, ...] = ()
        self._num = self._next = 0
        # whether a call of `set` failed, of which the buffer's writer has counted the elements
        self._has_failed = False

    def _begin(self, elements: Any) -> None:
        self._columns, self._element_size = _columns_of(elements), elements.batch_size[1:]
        schema = {column.name: column.feature for column in self._columns}
        self.store = create(self._path, schema, capacity=self.max_size)
        self._writer = self.store.vector_writer(1)
        self._slots = Slots(self.store, self.max_size, {name: name for name in schema})

    def __len__(self) -> int:
        return self._num

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write elements at the positions that come next.

        Args:
            cursor: a position, or int [n].
            data: a TensorDict, of batch size [n] where ``cursor`` is [n].
            set_cursor: whether these are the newest elements.

        Raises:
            TableError: other positions than those that come next, or what a ring cannot hold: other keys than those of
                the first elements, and what is no tensor.
            DiskFullError: no space.

        Notes:
            TorchRL's writers count elements that were not written, for whatever reason: call the buffer's ``empty()``
            then, or load its state.
        """
        positions = np.asarray(cursor, np.int64).reshape(-1)
        if not len(positions):
            return
        expected = (self._next + np.arange(len(positions))) % self.max_size
        if not set_cursor or not np.array_equal(positions, expected):
            if self._has_failed:
                raise TableError(
                    f"positions from {positions[0]} on, and {self._next} comes next: elements before these were not "
                    "written, and the buffer counts them. Call its empty(), or load its state, and go on."
                )
            raise TableError(
                f"positions from {positions[0]} on, and {self._next} comes next: a ring is written in order. Use a "
                "round-robin writer, and add changed elements as new ones."
            )
        self._has_failed = True
        if not isinstance(data, TensorDictBase) and not is_tensorclass(data):
            raise TableError(
                f"elements of {type(data).__name__}. A StepwellStorage has TensorDicts and tensor classes."
            )
        batch = data if np.ndim(cursor) else data.unsqueeze(0)
        if self.store is None:
            self._begin(batch)
        keys, known = _keys_of(batch), [column.key for column in self._columns]
        if set(keys) != set(known):
            raise TableError(f"an element with the keys {keys}. Those before it have {known}.")
        ids = self._writer.append_batch({each.name: each.rows(batch.get(each.key))[:, None] for each in self._columns})
        if ids.min() < 0:
            raise TableError("a table with back-pressure dropped elements of this storage. Let it wait, or refuse.")
        self._has_failed = False
        # more than there are slots for: the last ones stay
        kept = slice(-self.max_size, None)
        self._slots.put(positions[kept], ids[kept, 0])
        self._next = int(positions[-1] + 1) % self.max_size
        self._num = min(self._num + len(positions), self.max_size)
        if is_tensorclass(data):
            self._kind = type(data)
        self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def get(self, index: Any) -> Any:
        """Return the element at a position, or a TensorDict [n] of several: int [n], or a slice."""
        if isinstance(index, tuple):
            (index,) = index
        if isinstance(index, slice):
            index = np.arange(self._num)[index]
        positions = np.asarray(index)
        if positions.dtype == np.bool_:
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64, copy=False)
        if positions.size and (positions.min() < -self._num or positions.max() >= self._num):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of {self._num} elements.")
        if self.store is None:
            return TensorDict({}, batch_size=positions.shape)
        found = self._read(positions.reshape(-1) % max(self._num, 1))
        found = found.reshape((*positions.shape, *self._element_size))
        return found if self._kind is None else self._kind.from_tensordict(found)

    def _read(self, positions: Int64s) -> Any:
        """Return the elements at positions, int64 [n], as a TensorDict."""
        values = self._slots.read(positions)
        found = TensorDict({}, batch_size=[len(positions), *self._element_size])
        for column in self._columns:
            found.set(column.key, torch.from_numpy(values[column.name]).view(column.dtype))
        return found

    def contains(self, item: Any) -> Any:
        """Return whether there is an element at a position, or at each of several."""
        positions = torch.as_tensor(item)
        is_there = (positions >= -self._num) & (positions < self._num)
        return is_there if positions.ndim else bool(is_there)

    def state_dict(self) -> dict[str, Any]:
        """Return all elements as TorchRL's tensor storages do, a dict of tensors, and which position comes next."""
        elements = self._read(np.arange(self._num)) if self._num else TensorDict()
        return {
            "_storage": elements.state_dict(),
            "initialized": self._num > 0,
            "_len": self._num,
            "next": self._next,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the elements of a state, or of one of TorchRL's tensor storages, in place of those of this storage."""
        elements = TensorDict().load_state_dict(state_dict["_storage"], strict=False)
        self._load(elements[: state_dict["_len"]] if state_dict["_len"] else None, state_dict.get("next", 0))

    def _load(self, elements: Any, following: int) -> None:
        """Take elements [n], or None, in place of those there are."""
        num = 0 if elements is None else len(elements)
        kept = self._num, self._next
        self._empty()
        self._next = first = following if num == self.max_size else 0
        order = (torch.arange(num) + first) % self.max_size
        try:
            self.set(order, elements[order] if num else None)
        except TableError:
            # elements that a ring cannot hold, or other keys: nothing was written
            self._num, self._next = kept
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle has: the elements; they are loaded into a ring in memory."""
        if get_spawning_popen() is not None:
            # what TorchRL's list storages raise: its collectors swallow others when they begin processes
            raise RuntimeError(
                "a StepwellStorage is of one process: elements that another one adds would not be here. Extend the "
                "buffer by what the collector returns, instead of giving the buffer to the collector."
            )
        state: dict[str, Any] = super().__getstate__()
        for name in ("store", "_writer", "_slots"):
            state.pop(name, None)
        return state | {"elements": self.get(slice(None)) if self._num else None, "_path": ":memory:"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        elements, following = state.pop("elements"), state.pop("_next")
        super().__setstate__(state)
        self._clear()
        self._load(elements, following)

    def _empty(self) -> None:
        self._num = self._next = 0
        self._has_failed = False
        self._bump_mutation_revision()

    def close(self) -> None:
        """Seal the ring. May be called twice."""
        if self.store is not None:
            self._writer.close()

    def __repr__(self) -> str:
        return f"StepwellStorage({self._num} of {self.max_size} elements in {self._path})"


class _Column(NamedTuple):
    """A feature of the ring that holds a key of the elements."""

    name: str
    key: Any
    dtype: torch.dtype
    feature: Feature

    def rows(self, values: torch.Tensor) -> npt.NDArray[Any]:
        """Return tensors [n, ...] as rows of the feature."""
        if values.dtype != self.dtype:
            raise TableError(f"key {self.key!r}: {values.dtype}, and elements before have {self.dtype}.")
        return _as_numpy(values)


def _columns_of(elements: Any) -> list[_Column]:
    """Return a column for each key of elements [n]."""
    columns: list[_Column] = []
    for number, key in enumerate(_keys_of(elements)):
        values = elements.get(key)
        name = key if isinstance(key, str) else ".".join(key)
        # keys ("a", "b") and "a.b" may both be there, and files cannot have all names
        if not is_feature_name(name) or any(column.name == name for column in columns):
            name = f"key.{number}"
        rows = _as_numpy(values)
        columns.append(_Column(name, key, values.dtype, Array(rows.shape[1:], rows.dtype)))
    return columns


def _keys_of(elements: Any) -> list[Any]:
    """Return the keys of all tensors, nested ones as tuples; TableError where something else is there."""
    keys = []
    for key in elements.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        value = elements.get(key)
        if not isinstance(value, torch.Tensor):
            raise TableError(
                f"key {key!r} has {type(value).__name__}. A StepwellStorage has tensors of one shape only."
            )
        keys.append(key)
    return keys


def _as_numpy(values: torch.Tensor) -> npt.NDArray[Any]:
    """Return tensors as numpy has them; the bytes of others, bfloat16 for one, as integers."""
    values = values.detach().cpu().contiguous()
    try:
        rows: npt.NDArray[Any] = values.numpy()
    except TypeError:
        rows = values.view({1: torch.uint8, 2: torch.int16}[values.itemsize]).numpy()
    return rows
