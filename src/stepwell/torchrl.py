"""A storage for TorchRL's replay buffers over a ring: its samplers, transforms and trainers run over a store.

::

    ReplayBuffer.extend(td) --> StepwellStorage.set(positions, td) --> rows of a ring, a feature a key: next.reward
    ReplayBuffer.sample(n)  --> StepwellStorage.get(positions) ------> one read of n rows --> TensorDict [n]
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, TableError
from stepwell.replay.slots import Slots
from stepwell.schema import Array, Feature
from stepwell.store import create

try:
    import torch
    from tensordict import TensorDict
    from torchrl.data.replay_buffers.storages import Storage
except ImportError as error:
    raise MissingDependencyError.of("torchrl", "torchrl") from error

__all__ = ["StepwellStorage"]

Int64s = npt.NDArray[np.int64]


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
        they cannot be changed afterwards. Batches are in the memory of the CPU.
    """

    def __init__(self, max_size: int, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(max_size)
        self._path = ":memory:" if path is None else os.fspath(path)
        self.device = torch.device("cpu")
        self.store: Any = None
        self._num = self._next = 0

    def _begin(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        schema: dict[str, Feature] = {name: Array(rows.shape[1:], rows.dtype) for name, rows in columns.items()}
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
            TableError: other positions than those that come next.
        """
        positions = np.asarray(cursor, np.int64).reshape(-1)
        if not len(positions):
            return
        expected = (self._next + np.arange(len(positions))) % self.max_size
        if not set_cursor or not np.array_equal(positions, expected):
            raise TableError(
                f"positions from {positions[0]} on, and {self._next} comes next: a ring is written in order. Use a "
                "round-robin writer, and add changed elements as new ones."
            )
        batch = data if np.ndim(cursor) else data.unsqueeze(0)
        columns = {
            key if isinstance(key, str) else ".".join(key): batch.get(key).detach().cpu().contiguous().numpy()
            for key in batch.keys(include_nested=True, leaves_only=True)
        }
        if self.store is None:
            self._keys = {
                key if isinstance(key, str) else ".".join(key): key
                for key in batch.keys(include_nested=True, leaves_only=True)
            }
            self._begin(columns)
        ids = self._writer.append_batch({name: rows[:, None] for name, rows in columns.items()})
        self._slots.put(positions, ids[:, 0])
        self._next = int(positions[-1] + 1) % self.max_size
        self._num = max(self._num, min(self._num + len(positions), self.max_size))
        self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def get(self, index: Any) -> Any:
        """Return the element at a position, or a TensorDict [n] of several: int [n], or a slice."""
        if isinstance(index, tuple):
            (index,) = index
        positions = np.asarray(np.arange(self._num)[index] if isinstance(index, slice) else index, np.int64)
        if positions.size and (positions.min() < -self._num or positions.max() >= self._num):
            raise IndexError(f"position {positions.max()} of {self._num} elements.")
        values = self._slots.read(positions.reshape(-1) % max(self._num, 1))
        found = TensorDict({}, batch_size=[positions.size])
        for name, key in self._keys.items():
            found.set(key, torch.from_numpy(values[name]))
        return found.reshape(positions.shape)

    def contains(self, item: Any) -> Any:
        """Return whether there is an element at a position, or at each of several."""
        positions = torch.as_tensor(item)
        is_there = (positions >= -self._num) & (positions < self._num)
        return is_there if positions.ndim else bool(is_there)

    def state_dict(self) -> dict[str, Any]:
        """Return all elements, and which position comes next."""
        return {"elements": self.get(slice(None)) if self._num else None, "next": self._next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Write the elements of a state into this storage, which must be empty."""
        if self._num:
            raise TableError(f"a state for a storage that has {self._num} elements. Load it into a new one.")
        elements = state_dict["elements"]
        if elements is None:
            return
        self._next = first = state_dict["next"] if len(elements) == self.max_size else 0
        order = (torch.arange(len(elements)) + first) % self.max_size
        self.set(order, elements[order])

    def _empty(self) -> None:
        self._num = self._next = 0
        self._bump_mutation_revision()

    def close(self) -> None:
        """Seal the ring. May be called twice."""
        if self.store is not None:
            self._writer.close()

    def __repr__(self) -> str:
        return f"StepwellStorage({self._num} of {self.max_size} elements in {self._path})"
