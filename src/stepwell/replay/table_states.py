"""A table as arrays, so that another process can go on with it: what `stepwell.replay.checkpoints` writes.

Steps are named by their ids, which a checkpoint of the store keeps; numbers of episodes are a history's own. What the
table had seen of the store is one number a segment: all its rows below that one, and whether the last of those belonged
to an episode that was still recorded::

    segment   | e0 e0 e0 | e1 e1 . .        rows seen: 5, open       after: rows from 5 on are new, and the end of e1
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.json_text import parse_json
from stepwell.replay.contents import Counts, Sample, joined_samples
from stepwell.replay.episode_records import FLAGS, HI_FINAL, IS_GONE, IS_OPEN, SEGMENT, START
from stepwell.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Selector
from stepwell.store.layout import split_id

if TYPE_CHECKING:
    from stepwell.replay.contents import Contents
    from stepwell.replay.history import History
    from stepwell.replay.intake import Pending

__all__ = [
    "Seen",
    "contents_arrays",
    "drawn_arrays",
    "pending_arrays",
    "restore_contents",
    "restore_drawn",
    "restore_pending",
]

Arrays = Mapping[str, npt.NDArray[Any]]
Ints = npt.NDArray[np.int64]
ITEM_COLUMNS = ("length", "priority", "times_sampled", "sequence", "touched")
SAMPLE_COLUMNS = ("keys", "lengths", "probabilities", "priorities", "times_sampled", "table_size")


def contents_arrays(contents: Contents, history: History) -> dict[str, npt.NDArray[Any]]:
    """Return copies of what is in a table: arrays that `restore_contents` takes."""
    items = contents.items
    # in no order: `sequence` tells it, and the table stands still meanwhile
    slots = np.flatnonzero(items.episode[: len(items.generations)] >= 0)
    numbers = {
        "counts": asdict(contents.counts),
        "num_draws": contents.num_draws,
        "num_drops": contents.num_drops,
        "num_inserted": items.num_inserted,
        "num_touched": items.num_touched,
    }
    return {
        "numbers": text_array(numbers),
        "generations": items.generations.copy(),
        "slot": slots.astype(np.int32),
        "free": items.free_slots.astype(np.int32),
        "sampler_slots": contents.sampler.order().astype(np.int32),
        "remover_slots": contents.remover.order().astype(np.int32),
        "step_id": history.step_ids(items.episode[slots], items.row[slots]),
        **{name: getattr(items, name)[slots] for name in ITEM_COLUMNS},
    }


def restore_contents(contents: Contents, history: History, arrays: Arrays) -> None:
    """Put items back, in their slots and in the order of each selector; those whose steps are gone count as evicted."""
    numbers = json_of(arrays["numbers"])
    items = contents.items
    episodes, rows = history.find(arrays["step_id"])
    columns = {name: arrays[name] for name in ITEM_COLUMNS}
    is_there = episodes >= 0
    # the oldest go first, and the slot that was given back last is used next
    gone = np.flatnonzero(~is_there)
    gone = gone[np.argsort(arrays["step_id"][gone])]
    gone_slots = arrays["slot"][gone].astype(np.int64)
    generations = arrays["generations"].copy()
    generations[arrays["slot"][~is_there]] += 1
    items.restore(
        generations,
        arrays["slot"][is_there].astype(np.int64),
        np.concatenate([gone_slots[::-1], arrays["free"]]).astype(np.int64),
        {name: values[is_there] for name, values in {**columns, "episode": episodes, "row": rows}.items()},
        num_inserted=numbers["num_inserted"],
        num_touched=numbers["num_touched"],
    )
    contents.counts = Counts(**numbers["counts"])
    num_gone = len(is_there) - int(np.count_nonzero(is_there))
    contents.counts.deletes += num_gone
    contents.counts.evicted += num_gone
    contents.num_draws, contents.num_drops = numbers["num_draws"], numbers["num_drops"]
    _fill(contents.sampler, contents, arrays["sampler_slots"].astype(np.int64), gone_slots)
    _fill(contents.remover, contents, arrays["remover_slots"].astype(np.int64), gone_slots)


def _fill(selector: Selector, contents: Contents, order: Ints, gone: Ints) -> None:
    slots = contents.items.slots
    if isinstance(selector, MaxHeap | MinHeap):
        # ties go by the last touch
        slots = slots[np.argsort(contents.items.touched[slots], kind="stable")]
    elif not isinstance(selector, Fifo | Lifo):
        slots = np.sort(slots)
        if np.array_equal(np.sort(order), np.sort(np.concatenate([slots, gone]))):
            # random draws go on as they would have; another selector than there was has no order to keep
            selector.insert(order, contents.items.priority[order])
            selector.remove(gone)
            return
    selector.insert(slots, contents.items.priority[slots])


def pending_arrays(pending: Pending, history: History) -> dict[str, npt.NDArray[Any]]:
    """Return what waits for the limiter."""
    found = pending.items()
    ids = history.step_ids(found[0], found[1])
    return {"pending": np.stack([ids, found[2]]), "missed": np.array(pending.missed)}


def restore_pending(pending: Pending, history: History, arrays: Arrays) -> None:
    """Put back what waited."""
    episodes, rows = history.find(arrays["pending"][0])
    is_there = episodes >= 0
    pending.push(np.stack([episodes, rows, arrays["pending"][1]])[:, is_there])
    pending.missed = int(arrays["missed"]) + int(np.count_nonzero(~is_there))


def drawn_arrays(drawn: Sequence[Sample], history: History) -> dict[str, npt.NDArray[Any]]:
    """Return the rows that were drawn for a call which ran into its time-out."""
    if not drawn:
        return {}
    whole = joined_samples(drawn)
    columns = {f"drawn_{name}": getattr(whole, name) for name in SAMPLE_COLUMNS}
    return {**columns, "drawn_step_id": history.step_ids(whole.episodes, whole.rows)}


def restore_drawn(history: History, arrays: Arrays) -> list[Sample]:
    """Return the rows of `drawn_arrays` whose steps are still there, in the order of the draws."""
    if "drawn_step_id" not in arrays:
        return []
    episodes, rows = history.find(arrays["drawn_step_id"])
    columns = {name: arrays[f"drawn_{name}"] for name in SAMPLE_COLUMNS}
    sample = Sample(episodes=episodes, rows=rows, num_items=int(columns["table_size"][0]), **columns)
    kept = sample.part(episodes >= 0)
    return [kept] if len(kept.keys) else []


def _keys_of(history: History, episodes: Ints, records: Ints) -> Ints:
    """Return the entry of `Seen` that each episode has, int64 [n]."""
    ids = history.step_ids(episodes, records[:, START])
    has_lanes = np.array([getattr(segment, "has_lanes", False) for segment in history.segments], np.bool_)
    in_lanes = has_lanes[records[:, SEGMENT]] if len(has_lanes) else np.zeros(len(ids), np.bool_)
    return np.where(in_lanes, ~ids, split_id(ids)[0])


class Seen:
    """What a history had seen of its store.

    Args:
        ordinals: int64 [S], of segments, ascending; of segments with lanes each episode has an entry, the complement
            of the id of its first row.
        rows: int64 [S], the row after the last one seen of each.
        is_open: bool [S], whether that one's episode was still recorded.
    """

    def __init__(self, ordinals: Ints, rows: Ints, is_open: npt.NDArray[np.bool_]) -> None:
        self.ordinals, self.rows, self.is_open = ordinals, rows, is_open

    @classmethod
    def by(cls, history: History) -> Seen:
        """Return what a history has seen by now."""
        first, stop = history.base, history.num_seen
        records = history.records[: stop - first]
        kept = np.flatnonzero(records[:, FLAGS] & IS_GONE == 0)
        records = records[kept]
        of = _keys_of(history, kept + first, records)
        ordinals, line = np.unique(of, return_inverse=True)
        rows = np.zeros(len(ordinals), np.int64)
        is_open = np.zeros(len(ordinals), np.bool_)
        np.maximum.at(rows, line, records[:, HI_FINAL])
        is_open[line[records[:, FLAGS] & IS_OPEN != 0]] = True
        return cls(ordinals, rows, is_open)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as arrays."""
        return {"seen_ordinals": self.ordinals, "seen_rows": self.rows, "seen_open": self.is_open}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Seen:
        """Return what `arrays` was made of."""
        return cls(arrays["seen_ordinals"], arrays["seen_rows"], arrays["seen_open"])

    def unseen(self, runs: Ints, history: History) -> Ints:
        """Return the part of runs, int64 [r, 4], that is new since."""
        records = history.records[runs[:, 0] - history.base]
        ordinals = _keys_of(history, runs[:, 0], records)
        line = np.searchsorted(self.ordinals, ordinals)
        known = line < len(self.ordinals)
        line[~known] = 0
        known[known] = self.ordinals[line[known]] == ordinals[known]
        if not known.any():
            return runs
        rows = np.where(known, self.rows[line], -1)
        ended = ~self.is_open[line] & (records[:, HI_FINAL] == rows)
        old = (records[:, HI_FINAL] < rows) | ended
        runs = np.array(runs, np.int64)
        runs[:, 1] = np.minimum(np.maximum(runs[:, 1], rows), runs[:, 2])
        return np.asarray(runs[~old])


def text_array(record: Any) -> npt.NDArray[np.uint8]:
    """Return JSON as an array."""
    return np.frombuffer(json.dumps(record).encode(), np.uint8)


def json_of(array: npt.NDArray[Any]) -> Any:
    """Return what `text_array` was given."""
    try:
        return parse_json(array.tobytes())
    except ValueError as error:
        raise CorruptSegmentError(f"the state of a table is damaged: {error}.") from error
