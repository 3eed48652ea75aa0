"""Episodes: the record of one on disk, the table of all that a store shows, and one as a mapping of its columns.

``episodes.npy`` of a segment holds one `EPISODE_DTYPE` record an episode, in the order they were written; their rows
follow each other without gaps. ``episodes.jsonl`` holds their free metadata, one JSON object a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.display.completion import Completed
from stepwell.display.html import never_raising
from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError
from stepwell.sizes import counted
from stepwell.store.beneath import header_bytes
from stepwell.store.layout import step_id
from stepwell.store.samples import read_samples, read_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.store.segments import Segment
    from stepwell.store.store import Store

__all__ = [
    "EPISODE_DTYPE",
    "GOES_ON",
    "LANES_DTYPE",
    "MAX_SKIPPED",
    "Episode",
    "EpisodeTable",
    "check_lane_records",
    "check_records",
    "is_episodes_header",
    "is_lanes_header",
    "num_ended_rows",
]

EPISODE_DTYPE = np.dtype(
    [
        ("start", "<i8"),  # first row in the segment
        ("length", "<i8"),  # steps
        ("rows", "<i8"),  # length, or length + 1 with a final row
        ("origin", "<i8"),  # id of the first step when it was first written
        ("time_ns", "<i8"),  # when it ended, since 1970
        ("terminated", "?"),
        ("truncated", "?"),
        ("interrupted", "?"),  # its writer died before end_episode
        ("discarded", "?"),  # taken back by discard_episode: never shown
        ("cut", "<u4"),  # GOES_ON in another segment; below it: steps written before this piece
    ]
)


# of a segment with lanes: the records are in the order in which their episodes ended, and there are rows between these
LANES_DTYPE = np.dtype([*EPISODE_DTYPE.descr[:-1], ("piece", "<u4")])
# as it was before rings: the last four bytes had no meaning, and are zero
_FIRST_DTYPE = np.dtype([*EPISODE_DTYPE.descr[:-1], ("pad", "V4")])
GOES_ON = 1 << 31
MAX_SKIPPED = GOES_ON - 1


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """The episodes that a store shows, as columns; memory per episode, never per step.

    Args:
        segment: int32 [E], index into the store's ``segments``.
        start: int64 [E], first row in the segment.
        length: int64 [E], steps.
        rows: int64 [E], length, or length + 1 with a final row.
        origin: int64 [E], id of its first step when it was first written, or what follows from its writer's key; kept
            by compaction and concatenation.
        time_ns: int64 [E], nanoseconds since 1970 when it ended; 0 while open.
        terminated: bool [E].
        truncated: bool [E].
        interrupted: bool [E], its writer died before ``end_episode``.
        is_open: bool [E], still being recorded: length and rows are what is committed.
        record: int64 [E], its place among the segment's records.
        skipped: int64 [E], steps of the episode that lie before ``start``: a ring evicted them, or wrote them into an
            earlier piece. Step 0 of the table's episode is number ``skipped`` of the one that was recorded.
        goes_on: bool [E], a ring cut it here: the rest is another episode of the table, with the same ``origin``.
        read_metadata: from (segment, record) to an episode's metadata.

    Notes:
        An immutable snapshot; safe to share between threads.
    """

    segment: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    origin: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    interrupted: npt.NDArray[np.bool_]
    is_open: npt.NDArray[np.bool_]
    record: npt.NDArray[np.int64]
    skipped: npt.NDArray[np.int64]
    goes_on: npt.NDArray[np.bool_]
    read_metadata: Callable[[int, int], dict[str, Any]]

    def __len__(self) -> int:
        return len(self.start)

    def metadata(self, index: int) -> dict[str, Any]:
        """Return the free metadata of one episode."""
        return self.read_metadata(int(self.segment[index]), int(self.record[index]))

    def take(self, indices: Any) -> EpisodeTable:
        """Return the table of the chosen episodes: integer indices, a slice or a bool mask."""
        columns = {
            field.name: getattr(self, field.name)[indices] for field in fields(self) if field.name != "read_metadata"
        }
        return replace(self, **columns)


def num_ended_rows(records: npt.NDArray[Any]) -> int:
    """Return how many rows the episodes of a segment's records take: the row at which an open one begins."""
    return int(records["start"][-1] + records["rows"][-1]) if len(records) else 0


def is_lanes_header(head: bytes, num_records: int) -> bool:
    """Whether a file that begins like this is the ``episodes.npy`` of a segment with lanes."""
    return head == header_bytes(LANES_DTYPE, (), num_records)


def check_lane_records(records: npt.NDArray[Any], segment: str, num_rows: int) -> None:
    """Refuse records of a segment with lanes and so many rows that cannot be."""
    if len(records) == 0:
        return
    rows, length, start = records["rows"], records["length"], records["start"]
    order = np.argsort(start, kind="stable")
    ends = (start + rows)[order]
    is_misplaced = start.min() < 0 or ends.max() > num_rows or (start[order][1:] < ends[:-1]).any()
    if is_misplaced or ((rows - length) & ~1).any() or length.min() < 0:
        raise CorruptSegmentError(
            f"episodes.npy of segment {segment}: its {len(records)} episodes have rows that cannot be. "
            'Run "stepwell verify PATH".'
        )


def is_episodes_header(head: bytes, num_records: int) -> bool:
    """Whether a file that begins like this is an ``episodes.npy`` of so many records."""
    return head == header_bytes(EPISODE_DTYPE, (), num_records) or head == header_bytes(_FIRST_DTYPE, (), num_records)


def check_records(records: npt.NDArray[Any], segment: str, *, first_row: int = 0) -> None:
    """Refuse episode records that cannot be."""
    if len(records) == 0:
        return
    rows, length, start = records["rows"], records["length"], records["start"]
    ends = rows.cumsum() + first_row
    # few numpy calls: a large store has thousands of segments to open
    misplaced = (
        start[0] != first_row or (start[1:] != ends[:-1]).any() or ((rows | start) >> 32).any() or ends[-1] >> 32
    )
    if misplaced or ((rows - length) & ~1).any() or length.min() < 0:
        raise CorruptSegmentError(
            f"episodes.npy of segment {segment}: the rows of its {len(records)} episodes do not follow each other. "
            'Run "stepwell verify PATH".'
        )


class Listing(Protocol):
    """Segments and their episodes, of one moment."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments."""

    @property
    def table(self) -> EpisodeTable:
        """The episodes in them."""


class Episode(Completed, Mapping[str, Any]):
    """An episode as a mapping from feature name to its column, read at each access.

    ``episode["action"]`` is an array [length, ...]; a feature with ``final=True`` gives one more row when the final
    observation was recorded; text, bytes and arrays of varying size come as lists, features with a rate as `Samples`.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     _ = writer.add_episode({"action": [0, 1, 2]}, terminated=True, task="walk")
        >>> episode = store[0]
        >>> episode["action"].tolist(), episode.length, episode.metadata, list(episode)
        ([0, 1, 2], 3, {'task': 'walk'}, ['action'])

    Notes:
        Reads from the store's files at every access; raw columns are read-only views of the file. Pickles as the
        store's path and its first step: another process opens the store and finds it there.
    """

    __slots__ = ("_index", "_segment", "_store", "_table")
    _INTERNAL = frozenset({"first_step_id"})

    def __init__(self, store: Store, snapshot: Listing, index: int) -> None:
        self._store = store
        self._table = snapshot.table
        self._index = index
        # taken now: after a compaction the table's numbers mean other segments of the store
        self._segment = snapshot.segments[int(self._table.segment[index])]

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self._store

    @property
    def index(self) -> int:
        """Its place in the store, as of the refresh before it was taken."""
        return self._index

    @property
    def length(self) -> int:
        """Steps."""
        return int(self._table.length[self._index])

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last action was recorded."""
        return int(self._table.rows[self._index]) > self.length

    @property
    def terminated(self) -> bool:
        """Whether the environment reached a terminal state."""
        return bool(self._table.terminated[self._index])

    @property
    def truncated(self) -> bool:
        """Whether it was cut."""
        return bool(self._table.truncated[self._index])

    @property
    def interrupted(self) -> bool:
        """Whether its writer died or was closed in mid-episode."""
        return bool(self._table.interrupted[self._index])

    @property
    def is_open(self) -> bool:
        """Whether it was still being recorded."""
        return bool(self._table.is_open[self._index])

    @property
    def skipped(self) -> int:
        """Steps of it that lie before its first one here: a ring evicted them, or has them in an earlier episode."""
        return int(self._table.skipped[self._index])

    @property
    def goes_on(self) -> bool:
        """Whether a ring cut it, since it is long, and the rest is a later episode of the store."""
        return bool(self._table.goes_on[self._index])

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata given to ``end_episode``."""
        return self._table.metadata(self._index)

    @property
    def first_step_id(self) -> int:
        """Id of its first step; the others follow."""
        return step_id(self._segment.ordinal, int(self._table.start[self._index]))

    def __getitem__(self, name: str) -> Any:
        schema = self._store.schema
        if schema is None:
            raise KeyError(name)
        num_rows = int(self._table.rows[self._index])
        rated = schema.rated_of(name)
        if rated is not None:
            begin = int(self._table.start[self._index])
            read = read_samples if name == rated else read_times
            return read(self._segment, rated, schema[rated], begin, begin + num_rows, is_open=self.is_open)
        return self.read_rows(name, 0, num_rows if schema[name].final else self.length)

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        """Return the rows of a feature from step ``start`` to before step ``stop``, decoding no others than they need.

        Args:
            name: of the feature.
            start: first step, 0 or more.
            stop: at most `length`, one more where a final row is.

        Raises:
            DecodeError: a row that its codec refuses; names the store, the episode and the steps.
        """
        begin = int(self._table.start[self._index])
        zero = begin - self.skipped
        file = f"feature {name!r} ({name}.bin of segment {self._segment.name})"

        def name_rows(first: int, last: int) -> str:
            steps = f"step {first - zero}" if first == last else f"steps {first - zero} to {last - zero}"
            return f"{self._store.path}: episode {self._index}, {steps}, {file}"

        return self._segment.read_rows(name, begin + start, begin + stop, name_rows=name_rows)

    def __contains__(self, name: object) -> bool:
        # the one of Mapping would read the column
        return name in (self._store.schema or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema or ())

    def __len__(self) -> int:
        return len(self._store.schema or ())

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self._store, self._index, int(self._table.origin[self._index]), self.skipped)

    def __repr__(self) -> str:
        flags = [
            flag for flag in ("terminated", "truncated", "interrupted", "goes_on", "is_open") if getattr(self, flag)
        ]
        ending = " ".join(flags) or "ended"
        return f"<Episode {self._index} of {self._store.name}  {counted(self.length, 'step')}  {ending}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    @never_raising
    def _repr_html_(self) -> str:
        from stepwell.store.notebook import episode_html

        return episode_html(self)

    def plot(self, names: Iterable[str] | None = None, *, frames: int = 8) -> Figure:
        """Draw it with matplotlib: a film strip for each camera, curves of each feature of numbers.

        The elements of a feature have the names of its schema, and the axis is in seconds where the store has fps. Of
        more than 64 elements a heat map is drawn. A frame that is damaged is a box that says why.

        Args:
            names: of the features; default all of images, and of numbers of a fixed shape, the first 24.
            frames: of each film strip, evenly spaced, the first and the last among them.

        Returns:
            ``matplotlib.figure.Figure``: a notebook shows it, ``savefig`` writes it, ``matplotlib.pyplot.show`` opens a
            window with it, where there are windows.

        Raises:
            FeatureNotFoundError: no such feature.
            SchemaError: a feature of texts, bytes or varying sizes.
            MissingDependencyError: no matplotlib.
        """
        from stepwell.store.notebook import plot_episode

        return plot_episode(self, names, frames)


def _find(store: Store, index: int, origin: int, skipped: int) -> Episode:
    """Return the episode that began as the step ``origin``; it was number ``index`` when it was pickled."""
    table = store.episodes
    # the piece that holds its first step, or what is left of it
    is_found = (table.origin == origin) & (table.skipped + table.length > skipped)
    # first by its number: what was concatenated twice has two of the same origin
    places = [index] if index < len(is_found) and is_found[index] else np.flatnonzero(is_found)
    if len(places) == 0:
        raise EpisodeNotFoundError(f"episode {index}, pickled before, is no more in {store.path}. Was it deleted?")
    return store[int(places[0])]
