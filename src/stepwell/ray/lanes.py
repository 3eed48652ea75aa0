"""Chunks of RLlib's episodes as rows of a ring: which features they are, and which lane of a vector writer each gets.

::

    chunks of one add()    e7 [3]  e9 [5]  e8 [2]       e7 is done, e9 begins in its lane, e8 goes on in its own
    lane 0               | e7 e7 e7 e9 e9 e9 e9 e9
    lane 1               | e8 e8                        vector steps: 2 of both lanes at once, 6 of one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, TableError
from stepwell.schema import is_feature_name
from stepwell.store import VectorWriter

try:
    import tree
except ImportError as error:
    raise MissingDependencyError.of("ray[rllib]", "ray") from error

__all__ = ["Chunk", "Lanes", "Part"]

Rows = dict[str, npt.NDArray[Any]]


class Part:
    """A part of a step, such as its observation: an array, or arrays in dicts and tuples, which are a feature each.

    Args:
        structure: the name of a feature, or names in the dicts and tuples in which their arrays come.
    """

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        self.names: list[str] = tree.flatten(structure)

    @classmethod
    def like(cls, name: str, values: Any) -> Part:
        """Return the part that such arrays are; their features have this name, or names that begin with it."""
        names = []
        for number, (path, _) in enumerate(tree.flatten_with_path(values)):
            full = ".".join((name, *map(str, path)))
            # keys may hold what names of features cannot
            names.append(full if is_feature_name(full) and full not in names else f"{name}.{number}")
        return cls(tree.unflatten_as(values, names))

    def rows(self, values: Any) -> Rows:
        """Return the arrays by feature."""
        leaves = [np.asarray(leaf) for leaf in tree.flatten(values)]
        if len(leaves) != len(self.names):
            raise TableError(f"{len(leaves)} arrays of an episode, and those before had {', '.join(self.names)}.")
        return dict(zip(self.names, leaves, strict=True))

    def of(self, values: Mapping[str, npt.NDArray[Any]], index: Any) -> Any:
        """Return what an episode has of a batch: the rows at an index, in the structure of the part."""
        if isinstance(self.structure, str):
            return values[self.structure][index]
        return tree.map_structure(lambda name: values[name][index], self.structure)


class Chunk(NamedTuple):
    """What was recorded of an episode at a time: rows [t, ...] of each feature, and the observation after them."""

    episode: str
    rows: Rows
    final: Rows
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        """The number of its steps."""
        return len(next(iter(self.rows.values())))

    @property
    def is_last(self) -> bool:
        """Whether its episode is done."""
        return self.terminated or self.truncated


class Lane(NamedTuple):
    """Where an episode is written: one environment of a vector writer."""

    writer: VectorWriter
    number: int


class Open(NamedTuple):
    """An episode under way: its lane, what came after its last step, and the steps that there were by then."""

    lane: Lane
    final: Rows
    num_written: int


class Lanes:
    """Write episodes that are under way at once, a lane each.

    Args:
        make: a vector writer of so many lanes.
        capacity: steps of the ring.
    """

    def __init__(self, make: Callable[[int], VectorWriter], capacity: int) -> None:
        self._make, self._capacity = make, capacity
        self._writers: list[VectorWriter] = []
        self._free: list[Lane] = []
        self._open: dict[str, Open] = {}
        self._num_written = 0

    def write(self, chunks: Sequence[Chunk]) -> int:
        """Write chunks, those of one episode in their order; return how many episodes began.

        After an error, what is left of the episodes that are under way comes as others: none has a gap.
        """
        queues: dict[Lane, list[Chunk]] = {}
        num_begun = 0
        for number, chunk in enumerate(chunks):
            known = self._open.pop(chunk.episode, None)
            num_begun += known is None
            lane = self._free_lane(chunks[number:], queues) if known is None else known.lane
            queues.setdefault(lane, []).append(chunk)
            if chunk.is_last:
                self._free.append(lane)
            else:
                self._open[chunk.episode] = Open(lane, chunk.final, self._num_written)
        try:
            for writer in self._writers:
                of_lanes = [queues.get(Lane(writer, number), []) for number in range(writer.num_envs)]
                if any(of_lanes):
                    _append(writer, of_lanes)
        except BaseException:
            self._discard()
            raise
        self._num_written += sum(chunk.length for chunk in chunks)
        return num_begun

    def _free_lane(self, chunks: Sequence[Chunk], queues: Mapping[Lane, list[Chunk]]) -> Lane:
        """Take a lane for the first of some chunks: that for which least is to be written, so that all have alike."""
        if not self._free:
            # nothing came for so long that the ring has none of their steps: whoever ran them is dead
            oldest = self._num_written - self._capacity
            self.end([name for name, each in self._open.items() if each.num_written < oldest])
        if not self._free:
            begin = {each.episode for each in chunks if not each.is_last} - self._open.keys()
            # twice as many each time: a writer has a segment of its own
            num_lanes = max(1, len(begin), sum(writer.num_envs for writer in self._writers))
            self._writers.append(self._make(num_lanes))
            self._free = [Lane(self._writers[-1], number) for number in range(num_lanes)]
        lane = min(self._free, key=lambda each: sum(chunk.length for chunk in queues.get(each, ())))
        self._free.remove(lane)
        return lane

    def end(self, episodes: Iterable[str] | None = None) -> None:
        """End episodes that are under way, by their ids; None: all. Their final rows are what came after the last step.

        What comes of them later is an episode of its own.
        """
        for name in list(self._open if episodes is None else episodes):
            lane, final, _ = self._open.pop(name)
            num_envs = lane.writer.num_envs
            rows = {key: np.broadcast_to(row, (num_envs, *row.shape)) for key, row in final.items()}
            lane.writer.end_episodes(np.arange(num_envs) == lane.number, final=rows)
            self._free.append(lane)

    def _discard(self) -> None:
        """Take back the episodes that are under way, of which some steps may be missing, and begin with new writers."""
        writers, self._writers, self._free, self._open = self._writers, [], [], {}
        for writer in writers:
            # each may fail for the same reason, and the first error is the one to tell
            with suppress(Exception):
                writer.discard_episodes()
            with suppress(Exception):
                writer.close()

    def close(self) -> None:
        """End all episodes, and the writers."""
        self.end()
        for writer in self._writers:
            writer.close()


def _append(writer: VectorWriter, lanes: list[list[Chunk]]) -> None:
    """Write chunks, some of each lane, as vector steps."""
    lengths = np.array([sum(chunk.length for chunk in chunks) for chunks in lanes])
    shape = int(lengths.max()), len(lanes)
    example = next(chunk for chunks in lanes for chunk in chunks)
    columns = {name: np.zeros((*shape, *rows.shape[1:]), rows.dtype) for name, rows in example.rows.items()}
    finals = {name: np.zeros((*shape, *row.shape), row.dtype) for name, row in example.final.items()}
    terminated, truncated = np.zeros((2, *shape), np.bool_)
    for lane, chunks in enumerate(lanes):
        at = 0
        for chunk in chunks:
            stop = at + chunk.length
            for name, rows in chunk.rows.items():
                columns[name][at:stop, lane] = rows
            terminated[stop - 1, lane], truncated[stop - 1, lane] = chunk.terminated, chunk.truncated
            if chunk.is_last:
                for name, row in chunk.final.items():
                    finals[name][stop - 1, lane] = row
            at = stop
    ends = terminated | truncated
    whole = int(lengths.min())
    if whole:
        writer.append_batch(
            {name: column[:whole] for name, column in columns.items()},
            terminated=terminated[:whole],
            truncated=truncated[:whole],
            final={name: rows[:whole] for name, rows in finals.items()} if ends[:whole].any() else None,
        )
    for step in range(whole, shape[0]):
        writer.append(
            {name: column[step] for name, column in columns.items()},
            terminated=terminated[step],
            truncated=truncated[step],
            final={name: rows[step] for name, rows in finals.items()} if ends[step].any() else None,
            mask=lengths > step,
        )
