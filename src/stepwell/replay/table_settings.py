"""The arguments of a table and of its methods, checked as a whole before anything changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.kernels.places import CHAIN_START, CHAIN_STEP
from stepwell.replay import selectors
from stepwell.replay.episode_records import HI_STEP, LO
from stepwell.replay.limiters import Limiter
from stepwell.replay.patterns import Pattern
from stepwell.replay.selectors import Selector
from stepwell.store.back_pressure import MODES, BackPressure, TableGate
from stepwell.store.layout import split_id

if TYPE_CHECKING:
    from stepwell.replay.history import History
    from stepwell.store import Store

__all__ = [
    "TableSettings",
    "checked_keys",
    "checked_priorities",
    "checked_updates",
    "find_slices",
    "make_selector",
    "open_gate",
    "slices_of_steps",
]

SELECTORS = {
    "uniform": "Uniform",
    "fifo": "Fifo",
    "lifo": "Lifo",
    "max_heap": "MaxHeap",
    "min_heap": "MinHeap",
    "prioritized": "Prioritized",
}
OWN = "own"
# as in the paper that brought prioritised replay (Schaul et al., 2015)
DEFAULT_EXPONENT = "0.6"
# of 255 that file systems allow: a suffix, and the marks of files that are not whole yet, come on top
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The arguments of a table, as `stepwell.replay.Table` has them."""

    name: str
    max_size: int
    sampler: str
    remover: str
    max_times_sampled: int
    limiter: Limiter
    pattern: Pattern | None
    seed: int
    follow_seconds: float = 0.0
    back_pressure: BackPressure | None = None

    def __post_init__(self) -> None:
        if not _is_file_name(self.name):
            raise TableError(
                f"name={_shortened(self.name)}: a table's name becomes a file's name. Use letters, digits, - and _, of "
                f"{MAX_NAME_BYTES} bytes in all."
            )
        for key, least in (("max_size", 1), ("max_times_sampled", 0), ("seed", 0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TableError(f"{key}={value!r} of table {self.name!r} must be a whole number, at least {least}.")
        seconds = self.follow_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise TableError(f"follow_seconds={seconds!r} of table {self.name!r}: allowed are seconds, 0 or more.")
        if not isinstance(self.limiter, Limiter):
            raise TableError(
                f"limiter={self.limiter!r} is no Limiter. Use MinSize, SampleToInsertRatio, Queue or Stack."
            )
        if not (self.pattern is None or isinstance(self.pattern, Pattern)):
            raise TableError(
                f"pattern={self.pattern!r} is no Pattern. None makes a table that is filled by create_item."
            )
        self.limiter.check_size(self.max_size)
        if self.back_pressure not in (None, *MODES):
            raise TableError(
                f"back_pressure={self.back_pressure!r} of table {self.name!r}: allowed are "
                f"{', '.join(map(repr, MODES))}, and None."
            )
        if self.back_pressure is not None and self.pattern is None:
            raise TableError(
                f"back_pressure={self.back_pressure!r} of table {self.name!r}, whose items are made by create_item and "
                "not of steps: its pattern is None. There is nothing to hold writers by; create_item waits itself."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON types."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.back_pressure is None:
            # as releases have it that know of none
            del record["back_pressure"]
        pattern = None if self.pattern is None else self.pattern.to_json()
        return {**record, "limiter": self.limiter.to_json(), "pattern": pattern}

    def arguments(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a table with these settings, but for those that change."""
        names = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - names - {"extensions"})
        if unknown:
            raise TableError(f"{unknown[0]!r} is no argument of a table. They are {', '.join(sorted(names))}.")
        for role in ("sampler", "remover"):
            text = getattr(self, role)
            if text.startswith(OWN) and role not in changes:
                raise TableError(
                    f"the {role} of table {self.name!r} was a {text.removeprefix(OWN).strip()}, which a checkpoint "
                    f"cannot make again. Give it: restore(..., {role}=...)."
                )
        return {name: getattr(self, name) for name in names if name not in changes}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableSettings:
        """Return the settings of `to_json`."""
        pattern = record["pattern"]
        return cls(
            **{
                **record,
                "limiter": Limiter.from_json(record["limiter"]),
                "pattern": None if pattern is None else Pattern.from_json(pattern),
            }
        )


def open_gate(store: Store, settings: TableSettings) -> TableGate | None:
    """Return a table's hold on the writers of its ring; None where they go on whatever comes."""
    mode, pattern, limiter = settings.back_pressure, settings.pattern, settings.limiter
    if mode is None or pattern is None:
        return None
    store.check_writable("hold its writers by back_pressure=")
    if store.capacity is None:
        raise TableError(
            f"back_pressure={mode!r} of table {settings.name!r} over {store.path}, which is no ring: it holds the "
            "writers of rings. Give create() a capacity, or use TableWriter in this process."
        )
    if limiter.max_diff == math.inf:
        return None
    # an episode has about an item for each `every` steps, and one more
    weights = (0, 1) if pattern.at == "end" else (1, pattern.every if pattern.every > 1 else 0)
    names = (settings.name, limiter.name)
    return TableGate(str(store.path), mode, names, step_weight=weights[0], end_weight=weights[1])


def _is_file_name(name: object) -> bool:
    if not isinstance(name, str) or not name or name != name.strip() or name[0] == ".":
        return False
    is_encodable = not any("\ud800" <= character <= "\udfff" for character in name)
    return is_encodable and not set(name) & set('/\\:*?"<>|\0') and len(name.encode()) <= MAX_NAME_BYTES


def _shortened(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:80]}..."


def make_selector(given: str | Selector, role: str) -> tuple[Selector, str]:
    """Return a selector and the text that makes it again."""
    if isinstance(given, Selector):
        if given.num or given.is_taken:
            raise TableError(f"{role}={given!r} is another table's already. Give each table a selector of its own.")
        return given, _text_of(given)
    name, _, rest = str(given).partition("(")
    if name == "prioritized" and not rest:
        rest = DEFAULT_EXPONENT
    if name not in SELECTORS:
        raise TableError(f"{role}={given!r} is not one of {', '.join(SELECTORS)} or a Selector.")
    try:
        made: Selector = getattr(selectors, SELECTORS[name])(*([float(rest.rstrip(")"))] if rest else []))
    except (TypeError, ValueError):
        raise TableError(f'{role}={given!r}: only "prioritized" takes a number, its exponent.') from None
    return made, _text_of(made)


def _text_of(selector: Selector) -> str:
    for text, name in SELECTORS.items():
        if type(selector) is getattr(selectors, name, None):
            exponent = getattr(selector, "exponent", None)
            return text if exponent is None else f"{text}({exponent!r})"
    return f"{OWN} {type(selector).__name__}"


def checked_keys(keys: Any) -> npt.NDArray[np.uint64]:
    """Return keys as uint64 [n]; TableError when they are no keys."""
    if isinstance(keys, list | tuple):
        # numpy makes float64 of Python numbers that no signed integer holds together
        keys = np.array(keys, object if keys else np.uint64)
        if any(not isinstance(key, int | np.integer) or not 0 <= key < 1 << 64 for key in keys.flat):
            raise TableError("keys are whole numbers of 64 bits, as a sample gives them.")
        keys = keys.astype(np.uint64)
    array = np.asarray(keys)
    if array.dtype != np.uint64:
        if array.size and (array.dtype.kind not in "iu" or (array.dtype.kind == "i" and int(array.min()) < 0)):
            raise TableError(f"keys of dtype {array.dtype}: they are uint64, as a sample gives them.")
        array = array.astype(np.uint64)
    if array.ndim != 1:
        array = array.reshape(-1)
    return np.ascontiguousarray(array)


def checked_priorities(priorities: Any, count: int) -> npt.NDArray[np.float64]:
    """Return priorities as float64 [count]; one number is given to all."""
    try:
        array = np.asarray(priorities, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TableError(f"priorities that are no numbers: {error}. Nothing was changed.") from error
    if array.ndim == 0:
        array = np.full(count, float(array))
    if array.ndim != 1:
        array = array.reshape(-1)
    if len(array) != count:
        raise TableError(f"{len(array)} priorities for {count} items. Give one for each.")
    # one pass: NaN and negative numbers fail the first comparison, infinite ones the second
    if count and not (array.min() >= 0.0 and array.max() < np.inf):
        bad = np.flatnonzero(~((array >= 0.0) & (array < np.inf)))
        raise TableError(
            f"priority {array[bad[0]]} at index {bad[0]} ({len(bad)} of {count} are bad): a priority is finite and not "
            "negative. Nothing was changed."
        )
    return np.ascontiguousarray(array)


def checked_updates(
    updates: Mapping[int, float] | tuple[Any, Any],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Return the keys and priorities of a mapping, or of two arrays."""
    if isinstance(updates, Mapping):
        updates = list(updates.keys()), list(updates.values())
    keys = checked_keys(updates[0])
    return keys, checked_priorities(updates[1], len(keys))


Ints = npt.NDArray[np.int64]


def slices_of_steps(steps: Any, length: Any) -> tuple[Ints, Ints, Ints | None]:
    """Return the first step, the number of steps and, where it is known, the last step of each slice, int64 [n] each.

    Args:
        steps: without a length: ids of the steps of one slice [k], or of several of one length [n, k]. With one: the
            id of the first step, or of several slices [n].
        length: steps of each, one number or [n]; None.

    Example:
        >>> slices_of_steps([[4, 5, 6], [7, 8, 9]], None)
        (array([4, 7]), array([3, 3]), array([6, 9]))
        >>> slices_of_steps([4, 7], 2)
        (array([4, 7]), array([2, 2]), None)
    """
    ids = np.asarray(steps)
    if not ids.size or ids.dtype.kind not in "iu":
        raise TableError(f"step ids are whole numbers, of Writer.append; got {ids.size} of dtype {ids.dtype}.")
    ids = ids.astype(np.int64)
    if length is None:
        slices = np.atleast_2d(ids)
        # where a ring cut the episode, the next step is the first one of another segment
        if slices.ndim != 2 or ((np.diff(slices, axis=1) != 1) & (split_id(slices[:, 1:])[1] != 0)).any():
            raise TableError(
                "an item is a slice of steps that follow each other in one episode. Make several items of others."
            )
        return slices[:, 0].copy(), np.full(len(slices), slices.shape[1], np.int64), slices[:, -1].copy()
    firsts = ids.reshape(-1)
    lengths = np.broadcast_to(np.asarray(length), firsts.shape)
    if lengths.dtype.kind not in "iu" or lengths.min() < 1:
        raise TableError(f"length={length!r}: an item covers one step or more.")
    return firsts, lengths.astype(np.int64), None


def find_slices(history: History, firsts: Ints, lengths: Ints, lasts: Ints | None = None) -> Ints:
    """Return the items that slices are, int64 [3, n]: episode, row and number of steps.

    Args:
        history: that has followed its store.
        firsts: int64 [n], ids of their first steps.
        lengths: int64 [n].
        lasts: int64 [n], ids of their last steps, where they are known.
    """
    episodes, rows = history.find(firsts)
    is_there = episodes >= 0
    if is_there.all():
        records = history.records[episodes - history.base]
        stops, chains = records[:, HI_STEP], history.chains
        if chains is not None:
            at = chains.find(episodes)
            ends = chains.bounds()[at, 1] - chains.pieces[at, CHAIN_STEP] + chains.pieces[at, CHAIN_START]
            stops = np.where(at >= 0, ends, stops)
        is_there = (rows >= records[:, LO]) & (rows + lengths <= stops)
        if lasts is not None:
            is_there[is_there] = _last_ids(history, episodes, rows, lengths)[is_there] == lasts[is_there]
    if not is_there.all():
        index = int(np.flatnonzero(~is_there)[0])
        raise TableError(
            f"item {index} of {len(firsts)}: {lengths[index]} steps from step id {firsts[index]} are not in one "
            "episode of the store, or are not committed yet, or were evicted. Nothing was inserted."
        )
    return np.stack([episodes, rows, lengths])


def _last_ids(history: History, episodes: Ints, rows: Ints, lengths: Ints) -> Ints:
    """Return the ids of the last steps of slices that are there; of others any numbers."""
    rows, chains = rows + lengths - 1, history.chains
    if chains is not None:
        at = chains.find(episodes)
        chosen = np.flatnonzero(at >= 0)
        pieces, found = chains.piece_of(at[chosen], rows[chosen])
        episodes = episodes.copy()
        episodes[chosen], rows[chosen] = chains.numbers[pieces], found
    return history.step_ids(np.maximum(episodes, history.base), rows)
