"""A view: episodes of one or several stores, chosen once, as they were at one moment.

::

    store 0  | e0 e1 e2 e3 e4 |    View([store0, store1])                     episodes 0 .. 7
    store 1  | e0 e1 e2 |            .select(where={"success": True})         those that say so
                                     .split(0.9, 0.1, seed=0)                 two views, no episode in both

A view is pickled as a few bytes: the episodes of segments in place of the episodes themselves::

    a part of a view                                    packed
      table     a row of 13 numbers an episode    -->   ordinals of segments, records of each, a bit a record: shown?
                episodes that are cut or open     -->   as they are: one a segment at most
      indices   the chosen ones                   -->   a bit an episode, or nothing: all
      (all that is chosen)                        -->   16 digits, compared when it is unpacked

Sealed segments do not change, and of one that is written only the end does: the same records are found again, however
much came or was deleted since. Episodes that were compacted away or evicted are an error.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.display.completion import Completed
from stepwell.display.html import never_raising
from stepwell.errors import EpisodeNotFoundError, WindowError
from stepwell.sizes import counted
from stepwell.store import Store
from stepwell.store.episodes import Episode, EpisodeTable
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.mark_keys import MarkedColumns
from stepwell.store.marks import metadata_reader
from stepwell.store.records import births_of
from stepwell.store.snapshot import MetadataLines, SegmentList, columns_of
from stepwell.windows.conditions import Condition, Names, facts_of

if TYPE_CHECKING:
    from stepwell.store import Store
    from stepwell.store.statistics_table import StatisticsTable

__all__ = [
    "PackedEpisodes",
    "Part",
    "View",
    "pack_episodes",
    "pack_numbers",
    "split_position",
    "unpack_episodes",
    "unpack_numbers",
]

Int64s = npt.NDArray[np.int64]
COLUMNS = [field.name for field in fields(EpisodeTable) if field.name not in {"segment", "read_metadata"}]
DIGESTED = ("start", "length", "rows", "origin")
Where = Callable[[dict[str, Any]], bool] | Mapping[str, Any] | str
# 1: by seed and origin; 2: by seed, the store that the episode was first written in, and origin
SPLIT_VERSION = 2


class PackedEpisodes(NamedTuple):
    """Episodes of a store, to be found again in it."""

    num_episodes: int  # E, that the table has
    ordinals: bytes  # of the segments that they are in, packed int64 [S]
    counts: bytes  # how many records of each are meant, packed int64 [S]
    shown: bytes  # which records are episodes of the table, packed bool
    others: Int64s  # int64 [m], numbers of episodes that are not as their records
    columns: dict[str, npt.NDArray[Any]]  # of those, by name; ``segment`` counts in ``ordinals``
    chosen: bytes | None  # which episodes are chosen, packed bool; None: all
    digest: bytes  # of the chosen ones


def pack_episodes(segments: SegmentList, table: EpisodeTable, indices: Int64s) -> PackedEpisodes:
    """Return episodes of a store as a few bytes."""
    records, counts = segments.records()
    numbers, owners = np.unique(table.segment, return_inverse=True)
    places = (np.cumsum(counts) - counts)[table.segment] + table.record
    # of an open episode there is no record yet, or one of what it became
    is_other = table.is_open | (table.record >= counts[table.segment])
    for name, column in columns_of(_taken(records, np.where(is_other, 0, places))).items():
        is_other |= getattr(table, name) != column
    if (np.diff(places[~is_other]) <= 0).any():
        is_other[:] = True
    plain, others = np.flatnonzero(~is_other), np.flatnonzero(is_other)
    need = np.zeros(len(numbers), np.int64)
    np.maximum.at(need, owners[plain], table.record[plain] + 1)
    shown = np.zeros(int(need.sum()), np.bool_)
    shown[(np.cumsum(need) - need)[owners[plain]] + table.record[plain]] = True
    columns = {name: getattr(table, name)[others] for name in COLUMNS}
    return PackedEpisodes(
        num_episodes=len(table),
        ordinals=_pack(np.diff(ordinals_of_keys(segments.keys[numbers]), prepend=0)),
        counts=_pack(need),
        shown=_pack_bits(shown),
        others=others,
        columns=columns | {"segment": owners[others]},
        chosen=None if len(indices) == len(table) else _pack_bits(np.isin(np.arange(len(table)), indices)),
        digest=_digest(ordinals_of_keys(segments.keys), table, indices),
    )


def unpack_episodes(store: Store, packed: PackedEpisodes) -> tuple[SegmentList, EpisodeTable, Int64s]:
    """Return the packed episodes: the segments that the store has now, the table over them, and the chosen ones."""
    segments = store.segments
    records, counts = segments.records()
    there, need = ordinals_of_keys(segments.keys), _unpack(packed.counts)
    numbers = _found(there, np.cumsum(_unpack(packed.ordinals)))
    numbers[(numbers >= 0) & (counts[numbers] < need) if len(counts) else numbers >= 0] = -1
    shown = np.flatnonzero(_unpack_bits(packed.shown, int(need.sum())))
    owners = np.repeat(np.arange(len(need)), need)[shown]
    within = shown - (np.cumsum(need) - need)[owners]
    starts, own = np.cumsum(counts) - counts, numbers[owners]
    places = np.where(own >= 0, (starts[own] if len(starts) else own) + within, 0)
    plain = np.delete(np.arange(packed.num_episodes), packed.others)
    found = columns_of(_taken(records, places))
    found |= {"segment": own.astype(np.int32), "record": within, "is_open": np.zeros(len(own), np.bool_)}
    others = packed.columns | {"segment": numbers[packed.columns["segment"]]}
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, values in found.items():
        columns[name] = np.empty(packed.num_episodes, values.dtype)
        columns[name][plain], columns[name][packed.others] = values, others[name]
    marked = MarkedColumns(*(columns[name] for name in MarkedColumns._fields))
    table = EpisodeTable(**columns, read_metadata=metadata_reader(segments, MetadataLines(), store.marks, marked))
    chosen = packed.chosen
    is_chosen = np.ones(len(table), np.bool_) if chosen is None else _unpack_bits(chosen, len(table))
    indices = np.flatnonzero(is_chosen)
    if (table.segment[indices] < 0).any():
        raise WindowError(
            f"segments of a view of {store.path} were removed before it was unpickled. Make the view again."
        )
    if _digest(there, table, indices) != packed.digest:
        raise WindowError(f"{store.path} has other episodes than a view of it that was pickled. Make the view again.")
    return segments, table, indices


def pack_numbers(episodes: Any) -> Any:
    """Return numbers or a mask of episodes in few bytes; as they are where some count from the end."""
    if episodes is None or isinstance(episodes, int | np.integer | slice | range):
        return episodes
    array = np.asarray(episodes)
    if array.ndim != 1 or array.dtype.kind not in "biu" or (array < 0).any():
        return episodes
    if array.dtype == np.bool_:
        return _PackedNumbers(_pack_bits(array), len(array), True)
    mask = np.zeros(int(array.max(initial=-1)) + 1, np.bool_)
    mask[array] = True
    return _PackedNumbers(_pack_bits(mask), len(mask), False) if mask.sum() == len(array) else episodes


def unpack_numbers(packed: Any) -> Any:
    """Return what `pack_numbers` took, as numbers or a mask that mean the same."""
    if not isinstance(packed, _PackedNumbers):
        return packed
    mask = _unpack_bits(packed.bits, packed.length)
    return mask if packed.is_mask else np.flatnonzero(mask)


class _PackedNumbers(NamedTuple):
    bits: bytes
    length: int
    is_mask: bool


def _found(there: Int64s, ordinals: Int64s) -> Int64s:
    """Return the number of the segment with each ordinal, -1 where there is none."""
    if len(there) == 0:
        return np.full(len(ordinals), -1, np.int64)
    order = np.argsort(there, kind="stable")
    at = order[np.minimum(np.searchsorted(there[order], ordinals), len(there) - 1)]
    return np.where(there[at] == ordinals, at, -1)


def _taken(records: npt.NDArray[Any], places: Int64s) -> npt.NDArray[Any]:
    if len(records) == 0:
        return np.zeros(len(places), records.dtype)
    if len(places) == len(records) and (np.diff(places) == 1).all():
        return records
    return records[places]


def _digest(ordinals: Int64s, table: EpisodeTable, indices: Int64s) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    is_all = len(indices) == len(table)
    for column in (ordinals[table.segment] if len(ordinals) else table.segment, *(getattr(table, n) for n in DIGESTED)):
        found.update(np.ascontiguousarray(column if is_all else column[indices], np.int64).data)
    return found.digest()


def _pack(values: Int64s) -> bytes:
    # the bytes of equal weight together: most of them are zeros
    return zlib.compress(np.ascontiguousarray(values.astype("<i8").view(np.uint8).reshape(-1, 8).T).data)


def _unpack(data: bytes) -> Int64s:
    planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1)


def _pack_bits(mask: npt.NDArray[np.bool_]) -> bytes:
    return zlib.compress(np.packbits(mask).data)


def _unpack_bits(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(zlib.decompress(data), np.uint8), count=count).astype(np.bool_)


@dataclass(frozen=True, slots=True)
class Part:
    """The episodes of one store in a view."""

    store: Store  # the store
    segments: SegmentList  # the store's segments at the moment of the snapshot
    table: EpisodeTable  # its episodes at that moment, all of them
    indices: npt.NDArray[np.int64]  # int64 [n], the chosen ones, ascending


class View(Completed):
    """An immutable choice of episodes, and a snapshot of them: a store that grows does not change it until `refresh`.

    Args:
        stores: one store or several; their episodes follow each other in this order.
        indices: numbers of the episodes to keep, counted over all stores. Default: all.

    Raises:
        EpisodeNotFoundError: an index beyond the episodes there are.
        WindowError: no store, or an episode twice.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     for seed in range(10):
        ...         _ = writer.add_episode({"action": [0, 1, 2]}, seed=seed)
        >>> train, test = View(store).select(where=lambda facts: facts["seed"] > 1).split(0.75, 0.25)
        >>> train, test
        (<View of walk.well  6 episodes  18 steps>, <View of walk.well  2 episodes  6 steps>)

    Notes:
        Safe to share between threads. Pickles as its stores' paths and a bit an episode: the copy has the same episodes
        though stores grew meanwhile, or episodes were deleted; where a ring evicted some, or they were compacted away,
        it is a `WindowError`. A predicate that cannot be pickled is left behind, and only `refresh` of the copy misses
        it.
    """

    _INTERNAL = frozenset({"parts", "segments"})

    def __init__(self, stores: Store | Sequence[Store], indices: Iterable[int] | None = None) -> None:
        found = list(stores) if isinstance(stores, Sequence) and not isinstance(stores, str) else [stores]
        if not found:
            raise WindowError("a view needs at least one store.")
        for store in found:
            if isinstance(store, View):
                raise WindowError(
                    "got a view where a store is needed. Select from one view of all: View([a, b]).select()."
                )
            if not hasattr(store, "segments"):
                raise WindowError(f"{store!r} is not a store. Open it first: stepwell.open(path).")
        # of one moment: another thread may refresh the store
        listings = [(store, *store.listing) for store in found]
        self.parts = tuple(
            Part(store, segments, table, np.arange(len(table), dtype=np.int64)) for store, segments, table in listings
        )
        self._choices: tuple[dict[str, Any], ...] = ()
        if indices is not None:
            chosen = self.select(list(indices))
            self.parts, self._choices = chosen.parts, chosen._choices

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores, in the order of their episodes."""
        return tuple(part.store for part in self.parts)

    @property
    def segments(self) -> Sequence[Any]:
        """The segments of all stores, store by store; those of a large store are made on first use."""
        return self.parts[0].segments if len(self.parts) == 1 else _Joined([part.segments for part in self.parts])

    @property
    def num_episodes(self) -> int:
        """How many episodes the view holds."""
        return sum(len(part.indices) for part in self.parts)

    @property
    def num_steps(self) -> int:
        """How many steps they hold together, final rows not counted."""
        return int(self.column("length").sum())

    @property
    def episode_index(self) -> npt.NDArray[np.int64]:
        """The view's episodes by their numbers in their stores: int64 [num_episodes]."""
        return np.concatenate([part.indices for part in self.parts])

    @property
    def store_index(self) -> npt.NDArray[np.int64]:
        """The store of each of the view's episodes, by its number in `stores`: int64 [num_episodes]."""
        return np.repeat(np.arange(len(self.parts)), [len(part.indices) for part in self.parts])

    def statistics(self, names: Iterable[str] | None = None) -> StatisticsTable:
        """Return count, min, max, mean, std and quantiles over the view's episodes.

        Args:
            names: of features; default all that have statistics.

        Returns:
            By name; see `Store.statistics`.
        """
        from stepwell.store.statistics import EpisodeSelection, aggregate

        return aggregate(
            [EpisodeSelection(part.store.schema, part.segments, part.table.take(part.indices)) for part in self.parts],
            names,
        )

    def __len__(self) -> int:
        return self.num_episodes

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column of the episode tables for the view's episodes.

        Args:
            name: a column of `stepwell.store.episodes.EpisodeTable`.

        Returns:
            array [num_episodes].
        """
        return np.concatenate([getattr(part.table, name)[part.indices] for part in self.parts])

    def select(
        self,
        episodes: int | slice | Sequence[int] | npt.NDArray[Any] | None = None,
        *,
        where: Where | None = None,
        split: tuple[float, float] | None = None,
        seed: int = 0,
        split_version: int = SPLIT_VERSION,
    ) -> View:
        """Return the view of fewer episodes; several conditions must all hold.

        Args:
            episodes: number(s) among this view's episodes, a slice of them, or a bool mask; negative numbers count
                from the end. The result keeps the view's order.
            where: a predicate of an episode's metadata, to which are added ``episode_index`` (in its store),
                ``length``, ``terminated``, ``truncated``, ``interrupted`` and ``is_open``; a mapping of names to the
                values they must have; or a text such as ``"length > 100 and not success"``, see
                `stepwell.windows.conditions`.
            split: (low, high), fractions in [0, 1]: keeps the episodes whose hash of (seed, store in which it was first
                written, origin) lies in [low, high). An episode's side never changes, however the store grows; sizes
                are only about right. See `split` for exact ones.
            seed: of the hash.
            split_version: of the hash: 2 (default), or 1, which leaves the store out: episodes of several stores that
                have the same origin are on the same side. For splits that were made before there was a version 2.

        Raises:
            EpisodeNotFoundError: a number beyond the episodes there are.
            WindowError: an episode twice, a mask of another length, a split outside [0, 1], or a ``where`` with a name
                that no episode has, or a text that cannot be parsed.
        """
        choice = {
            "episodes": episodes,
            "where": where,
            "split": split,
            "seed": seed,
            "split_version": split_version,
        }
        mask = np.ones(self.num_episodes, dtype=np.bool_)
        if episodes is not None:
            mask &= _mask_of(episodes, self.num_episodes)
        if split is not None:
            low, high = split
            if not 0 <= low <= high <= 1:
                raise WindowError(f"split={split} is not a range within [0, 1].")
            positions = self._split_positions(seed, split_version)
            mask &= (positions >= low) & (positions < high)
        if where is not None:
            mask &= self._mask_where(where, mask)
        return self._kept(mask, choice)

    def split(self, *fractions: float, seed: int = 0, version: int = SPLIT_VERSION) -> tuple[View, ...]:
        """Return one view for each fraction; no episode is in two of them, and their sizes are exact to a rounding.

        Episodes are ranked by a hash of (seed, store in which it was first written, origin) and the ranks are cut: the
        same episodes always split the same way, in any order and in any copy of the store. In a store that still grows,
        episodes near a cut may change sides; where that matters use ``select(split=(0.0, 0.9))``, whose sizes are only
        about right.

        Args:
            fractions: of the view's episodes, with a sum of at most 1.
            seed: of the hash.
            version: of the hash, see ``split_version`` of `select`.

        Raises:
            WindowError: fractions that are negative or sum to more than 1, or a version that is none.

        Example:
            ``train, test = view.split(0.9, 0.1)``
        """
        if not all(isinstance(fraction, Real) for fraction in fractions):
            raise WindowError(f"fractions {fractions} are not numbers. Give one for each part: split(0.9, 0.1).")
        if not fractions or not all(fraction >= 0 for fraction in fractions) or sum(fractions) > 1 + 1e-9:
            raise WindowError(f"fractions {fractions} must be 0 or more, and sum to at most 1.")
        ranks = np.empty(self.num_episodes, dtype=np.int64)
        ranks[np.argsort(self._split_positions(seed, version), kind="stable")] = np.arange(self.num_episodes)
        cuts = [round(min(edge, 1.0) * self.num_episodes) for edge in np.cumsum((0.0, *fractions)).tolist()]
        return tuple(
            self._kept(
                (ranks >= cuts[i]) & (ranks < cuts[i + 1]),
                {"fractions": fractions, "seed": seed, "version": version, "number": i},
            )
            for i in range(len(fractions))
        )

    def _split_positions(self, seed: int, version: int) -> npt.NDArray[np.float64]:
        """Return a number in [0, 1) for each episode."""
        if version == 1:
            return split_position(self.column("origin"), seed)
        if version != SPLIT_VERSION:
            raise WindowError(f"no split of version {version!r}. There are 1 and {SPLIT_VERSION}.")
        found = []
        for part in self.parts:
            table, chosen = part.table, part.indices
            ordinals = ordinals_of_keys(part.segments.keys)[table.segment[chosen]]
            uuids, numbers = births_of(part.store.record, ordinals, table.record[chosen])
            found.append(split_position(table.origin[chosen], seed, uuids, numbers))
        return np.concatenate(found)

    def refresh(self) -> View:
        """Return the view of the stores as they are now, with the same choices made again; itself if nothing changed.

        Numbers and slices of episodes are then taken from the new list of episodes, predicates see the new ones too.

        Raises:
            WindowError: a predicate was left behind when the view was pickled.
        """
        for store in self.stores:
            store.refresh()
        # a store replaces its table when, and only when, something changed
        if all(part.table is part.store.episodes for part in self.parts):
            return self
        view = View(self.stores)
        for choice in self._choices:
            if "fractions" in choice:
                parts = view.split(*choice["fractions"], seed=choice["seed"], version=choice["version"])
                view = parts[choice["number"]]
            else:
                view = view.select(**choice)
        return view

    def _kept(self, mask: npt.NDArray[np.bool_], choice: dict[str, Any]) -> View:
        ends = np.cumsum([len(part.indices) for part in self.parts])[:-1]
        parts = tuple(
            Part(part.store, part.segments, part.table, part.indices[kept])
            for part, kept in zip(self.parts, np.split(mask, ends), strict=True)
        )
        view = object.__new__(View)
        view.parts, view._choices = parts, (*self._choices, choice)
        return view

    def _mask_where(self, where: Where, candidates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return where the predicate holds, of the candidates only: metadata is read from files."""
        mask = np.zeros(self.num_episodes, dtype=np.bool_)
        holds, wanted = _predicate(where)
        names = Names(wanted or ())
        start = 0
        for part in self.parts:
            for i, index in enumerate(part.indices.tolist(), start):
                if candidates[i]:
                    facts = facts_of(part.table, index, wanted)
                    names.see(facts)
                    mask[i] = holds(facts)
            start += len(part.indices)
        names.check()
        return mask

    def __getstate__(self) -> dict[str, Any]:
        return {
            "parts": tuple((part.store, pack_episodes(part.segments, part.table, part.indices)) for part in self.parts),
            "choices": tuple(_picklable(choice) for choice in self._choices),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.parts = tuple(Part(store, *unpack_episodes(store, packed)) for store, packed in state["parts"])
        self._choices = tuple(
            {**choice, "episodes": unpack_numbers(choice["episodes"])} if "episodes" in choice else choice
            for choice in state["choices"]
        )

    def __repr__(self) -> str:
        names = ", ".join(store.name for store in self.stores)
        return f"<View of {names}  {counted(self.num_episodes, 'episode')}  {counted(self.num_steps, 'step')}>"

    @never_raising
    def _repr_html_(self) -> str:
        from stepwell.store.notebook import MAX_EPISODES, episodes_html

        numbers, owners = self.episode_index, self.store_index
        places = np.unique(np.linspace(0, len(numbers) - 1, MAX_EPISODES).astype(int)) if len(numbers) else ()
        shown = [Episode(part.store, part, int(numbers[at])) for at in places for part in (self.parts[owners[at]],)]
        return episodes_html(repr(self), shown, self.column("length"))


class _Joined(Sequence[Any]):
    """The segments of several stores."""

    def __init__(self, parts: list[SegmentList]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        part, number = self._place(index)
        return part[number]

    def directory(self, index: int) -> str:
        """Return the directory of a segment, see `SegmentList.directory`."""
        part, number = self._place(index)
        return part.directory(number)

    def _place(self, index: int) -> tuple[SegmentList, int]:
        index = range(len(self))[index]
        number = bisect_right(self._ends, index)
        part = self._parts[number]
        return part, index - self._ends[number] + len(part)


def split_position(
    origins: npt.NDArray[np.int64],
    seed: int,
    uuids: Sequence[str] = (),
    births: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each episode, from its store and origin and a seed alone."""
    # Source: The finaliser of SplitMix64 (Steele, Lea, Flood 2014), over the seed, the two words of the store, and then
    # over the origin.
    key = _mixed(np.array([seed & (2**64 - 1)], dtype=np.uint64))
    if births is not None:
        words = [hashlib.blake2b(uuid.encode(), digest_size=16).digest() for uuid in uuids]
        low, high = np.frombuffer(b"".join(words), "<u8").reshape(-1, 2).T
        key = _mixed(_mixed(key ^ low) ^ high)[births]
    bits = _mixed(np.ascontiguousarray(origins, dtype=np.int64).view(np.uint64) ^ key)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mask_of(episodes: Any, num_episodes: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(num_episodes, dtype=np.bool_)
    if isinstance(episodes, slice):
        mask[episodes] = True
        return mask
    numbers = np.atleast_1d(np.asarray(episodes if not isinstance(episodes, range) else list(episodes)))
    if numbers.dtype == np.bool_:
        if numbers.shape != mask.shape:
            raise WindowError(f"a mask of {numbers.size} entries does not fit {num_episodes} episodes.")
        return numbers
    if numbers.size == 0:
        return mask
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise WindowError(f"episodes={episodes!r} are neither numbers, a slice nor a bool mask.")
    outside = (numbers < -num_episodes) | (numbers >= num_episodes)
    if outside.any():
        raise EpisodeNotFoundError(f"no episode {numbers[outside][0]} among {num_episodes}.")
    numbers = numbers % num_episodes
    mask[numbers] = True
    if np.count_nonzero(mask) != numbers.size:
        raise WindowError(
            "an episode was chosen twice. A view holds each once; use order=weighted(...) to see some more often."
        )
    return mask


def _predicate(where: Where) -> tuple[Callable[[dict[str, Any]], bool], Collection[str] | None]:
    """Return a function of an episode's facts, and the names that it looks at; None: it may look at any."""
    if isinstance(where, str):
        condition = Condition(where)
        return condition, condition.names
    if isinstance(where, Mapping):
        return (lambda facts: all(name in facts and facts[name] == value for name, value in where.items())), [*where]
    if not callable(where):
        raise WindowError(
            f"where={where!r} is no condition. Give a text ('length > 100'), a mapping ({{'success': True}}) or a "
            "function of an episode's metadata."
        )
    return (lambda facts: bool(where(facts))), None


def _left_behind(facts: dict[str, Any]) -> bool:
    raise WindowError(
        "this view was chosen by a predicate that could not be pickled. Use a named function of a module."
    )


def _picklable(choice: dict[str, Any]) -> dict[str, Any]:
    if "episodes" in choice:
        choice = {**choice, "episodes": pack_numbers(choice["episodes"])}
    where = choice.get("where")
    if where is None:
        return choice
    try:
        pickle.dumps(where)
    except (pickle.PicklingError, AttributeError, TypeError):
        return {**choice, "where": _left_behind}
    return choice
