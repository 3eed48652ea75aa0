"""Steps of a server: one store for each structure of step, read by id, and let go of when no item refers to them.

::

    append({a, b}) ---> structure 0: store  a.npy b.npy    segments of about 1 MiB
    append({c})    ---> structure 1: store  c.npy
    item           ---> columns: leaves [n], ids [n]       each segment counts the items and writers that need it
                        (leaf: number of a feature of a structure; id: segment << 32 | row)

A structure is the set of leaves that one call of `TrajectoryWriter.append` gave: partial steps and steps with new keys
are steps of another structure, so that each value is stored once and nothing is padded.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError
from stepwell.schema import Array, Bytes, Feature, is_feature_name
from stepwell.store.layout import MAX_ROWS, ROW_BITS, SEGMENTS, locked_store, remove_segments
from stepwell.store.manifests import shown_segments
from stepwell.store.opening import create
from stepwell.store.segments import Segment
from stepwell.store.snapshot import open_segment
from stepwell.store.store import Store
from stepwell.store.writer import Writer

__all__ = ["Leaf", "Leaves", "Steps"]

Int64s = npt.NDArray[np.int64]
MEMORY = ":memory:"
SEGMENT_BYTES = 1 << 20
MAX_STRUCTURES = 4096
# freed segments after which those that nothing needs are looked for
SWEEP = 16
# of a structure; the system has 65,530 for all of a process
MAX_MAPS = 16_384


class Leaf(NamedTuple):
    """One value of a step: its path in the nest, dtype (object: a string of bytes) and shape."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def feature(self) -> Feature:
        """The feature that it is stored as."""
        return Bytes() if self.dtype == object else Array(self.shape, self.dtype)


Leaves = tuple[Leaf, ...]


class Steps:
    """The steps that items of a server's tables refer to; one thread at a time.

    Args:
        path: a directory for the stores; ":memory:": in memory.
    """

    def __init__(self, path: str = MEMORY) -> None:
        self._path = path
        self._structures: dict[Leaves, _Structure] = {}
        # by the number of a leaf: its structure, the name of its feature, what it is
        self._leaves: list[tuple[_Structure, str, Leaf]] = []

    def structure(self, leaves: Leaves) -> _Structure:
        """Return the structure with these leaves, which is made where it is not there."""
        found = self._structures.get(leaves)
        if found is None:
            if len(self._structures) >= MAX_STRUCTURES:
                raise StepwellError(
                    f"steps of {MAX_STRUCTURES} structures are here, and no more are taken. A structure is the set of "
                    "names, dtypes and shapes of one append: give the same ones again."
                )
            number = len(self._structures)
            path = self._path if self._path == MEMORY else f"{self._path}/{number:04d}.well"
            found = self._structures[leaves] = _Structure(path, leaves, len(self._leaves))
            self._leaves += [(found, name, leaf) for name, leaf in zip(found.names, leaves, strict=True)]
        return found

    def leaf(self, number: int) -> Leaf:
        """Return what the leaf with a number is."""
        return self._leaves[number][2]

    def read(self, leaves: npt.NDArray[np.int32], ids: Int64s) -> npt.NDArray[Any]:
        """Return rows of leaves of one dtype and shape.

        Args:
            leaves: int32 [n], number of the leaf of each row.
            ids: int64 [n], of their steps.

        Returns:
            [n, *shape]; of strings an array of objects [n].
        """
        first = self._leaves[leaves[0]]
        out = np.empty((len(ids), *first[2].shape), first[2].dtype)
        for number in np.unique(leaves).tolist():
            structure, name, leaf = self._leaves[number]
            chosen = leaves == number
            if chosen.all():
                structure.read(name, leaf, ids, out)
            else:
                part = np.empty((int(chosen.sum()), *leaf.shape), leaf.dtype)
                structure.read(name, leaf, ids[chosen], part)
                out[chosen] = part
        return out

    def segments_of(self, leaves: npt.NDArray[np.int32], ids: Int64s) -> list[tuple[_Structure, int]]:
        """Return the segments in which steps lie, each once."""
        found = {}
        for number in np.unique(leaves).tolist():
            structure = self._leaves[number][0]
            for ordinal in np.unique(ids[leaves == number] >> ROW_BITS).tolist():
                found[id(structure), ordinal] = structure, ordinal
        return list(found.values())

    @property
    def num_segments(self) -> int:
        """Segments that are on the disk, or in memory."""
        return sum(len(shown_segments(str(each.store.path))[0]) for each in self._structures.values())

    def close(self) -> None:
        """Close the stores."""
        for each in self._structures.values():
            each.close()


class _Structure:
    """A store of steps with the same leaves."""

    def __init__(self, path: str, leaves: Leaves, first_leaf: int) -> None:
        self.first_leaf = first_leaf
        names = [leaf.path.replace("/", ".") or "value" for leaf in leaves]
        is_plain = len(set(names)) == len(names) and all(map(is_feature_name, names))
        self.names = names if is_plain else [f"leaf{number}" for number in range(len(leaves))]
        if path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        schema = {name: leaf.feature for name, leaf in zip(self.names, leaves, strict=True)}
        self.store: Store = create(
            path, schema, segment_bytes=SEGMENT_BYTES, metadata={"paths": [leaf.path for leaf in leaves]}
        )
        # by ordinal: who needs a segment, and what was read of it
        self._users: Counter[int] = Counter()
        self._free: set[int] = set()
        self._next_sweep = SWEEP
        self._idle: list[Writer] = []
        self._open: dict[int, tuple[Segment, dict[str, npt.NDArray[Any]]]] = {}

    def hold(self, ordinal: int, count: int = 1) -> None:
        """Keep a segment."""
        self._users[ordinal] += count
        self._free.discard(ordinal)

    def let_go(self, ordinal: int, count: int = 1) -> None:
        """Take back `hold`; a segment that nothing needs any more is removed, in time."""
        self._users[ordinal] -= count
        if self._users[ordinal] <= 0:
            del self._users[ordinal]
            self._free.add(ordinal)
            if len(self._free) >= self._next_sweep:
                self.sweep()

    def sweep(self) -> None:
        """Remove the sealed segments that nothing needs."""
        names = {
            name: ordinal
            for name, (ordinal, is_sealed) in shown_segments(str(self.store.path))[0].items()
            if is_sealed and ordinal in self._free
        }
        if names:
            with locked_store(str(self.store.path)):
                remove_segments(str(self.store.path), names)
        for ordinal in names.values():
            self._free.discard(ordinal)
            self._open.pop(ordinal, None)
        # those that are still written to come with a later look
        self._next_sweep = max(SWEEP, 2 * len(self._free))

    def writer(self) -> Writer:
        """Return a writer for one client: one that another gave back, or a new one."""
        return self._idle.pop() if self._idle else self.store.writer()

    def give_back(self, writer: Writer) -> None:
        """Take the writer of a client that has gone."""
        if writer.has_open_episode:
            writer.end_episode(truncated=True)
        self._idle.append(writer)

    def close(self) -> None:
        """Close the writers that were given back, and the store."""
        while self._idle:
            self._idle.pop().close()
        self.store.close()

    def read(self, name: str, leaf: Leaf, ids: Int64s, out: npt.NDArray[Any]) -> None:
        """Write the rows of a leaf to ``out``."""
        ordinals = ids >> ROW_BITS
        rows = ids & (MAX_ROWS - 1)
        for ordinal in np.unique(ordinals).tolist():
            chosen = np.flatnonzero(ordinals == ordinal)
            part = rows[chosen]
            segment, arrays = self._segment(ordinal, int(part.max()))
            if leaf.dtype == object:
                for at, row in zip(chosen.tolist(), part.tolist(), strict=True):
                    out[at] = bytes(segment.read_rows(name, row, row + 1)[0])
                continue
            known = arrays.get(name)
            if known is None or len(known) <= part.max():
                known = arrays[name] = segment.read_rows(name, 0, segment.num_rows)
            if len(chosen) == len(ids):
                np.take(known, part, 0, out)
            else:
                out[chosen] = known[part]

    def _segment(self, ordinal: int, row: int) -> tuple[Segment, dict[str, npt.NDArray[Any]]]:
        found = self._open.get(ordinal)
        if found is not None and row >= found[0].num_rows:
            found[0].refresh()
        if found is None or row >= found[0].num_rows:
            for name, (number, is_sealed) in shown_segments(str(self.store.path))[0].items():
                if number == ordinal:
                    assert self.store.schema is not None
                    directory = f"{self.store.path}/{SEGMENTS}/{name}"
                    opened = open_segment(directory, self.store.schema, is_sealed=is_sealed)
                    if opened is not None:
                        while len(self._open) * len(self.names) >= MAX_MAPS:
                            # the one that was opened first
                            self._open.pop(next(iter(self._open)))
                        found = self._open[ordinal] = opened, {}
        if found is None:
            raise StepwellError(f"segment {ordinal} of {self.store.path} is gone. Was it removed by another process?")
        return found
