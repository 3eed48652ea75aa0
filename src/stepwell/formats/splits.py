"""Splits of data sets: parts of them by TFDS's syntax, ``train[:80%]+val``, and which one a store has.

It knows names and sizes only, so that any data set that has splits can be cut so::

    "train[:10%]+val"  ──{"train": 30, "val": 10}──>  [("train", [0 1 2]), ("val", [0 1 ... 9])]

    train  |0 1 2 3 4 5 6 7 8 9|
           |     |  [:33%]                  0 to 3: 3.3, to the closest
                     |     |  [50%:-2]      no: one unit a slice
                           |       |  [-4:]

Source:
    The splits API of tensorflow-datasets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, did_you_mean

__all__ = [
    "EvenSplit",
    "Rounding",
    "Sizes",
    "Split",
    "TakenSplit",
    "even_splits",
    "split_indices",
    "split_ranges",
    "taken_split",
]

Rounding = Literal["closest", "pct1_dropremainder"]
Sizes = Mapping[str, int | Sequence[int]]
Int64s = npt.NDArray[np.int64]
Range = tuple[str, int, int]

ALL = "all"
PART = re.compile(r"([\w-]+)(?:\[([^\[\]]+)\])?")
BOUND = re.compile(r"(?:(-?\d[\d_]*)(%|shard)?)?")
ALLOWED = (
    'Allowed: "train", "train[:10%]", "train[10:20]", "train[-5:]", "train[2shard]", "train[:3shard]", "all", and '
)
ALLOWED += 'several of them with "+".'
MAX_TOLD = 8


@dataclass(frozen=True, slots=True)
class EvenSplit:
    """One of several parts of a split, of the same size or nearly; see `even_splits`."""

    split: Split
    # which part, 0 to count - 1
    index: int
    count: int
    # whether parts are all of the same size, and up to count - 1 items of each range are in none
    drop_remainder: bool = False

    def __str__(self) -> str:
        return f"part {self.index} of {self.count} of {self.split}"


Split = str | EvenSplit


def even_splits(split: Split, n: int, *, drop_remainder: bool = False) -> list[EvenSplit]:
    """Return ``n`` parts of a split that share nothing, the first ones longer by one where it does not divide.

    Args:
        split: as `split_indices` takes it. Of a sum each part is cut by itself, as TFDS does.
        n: how many.
        drop_remainder: whether all are of the same size, and what is left over is in none.

    Raises:
        FormatError: less than one part.

    Example:
        >>> [len(split_indices(part, {"train": 11})[0][1]) for part in even_splits("train", 3)]
        [4, 4, 3]
    """
    if n < 1:
        raise FormatError(f"{n} parts of {split}. Allowed: 1 or more.")
    return [EvenSplit(split, index, n, drop_remainder) for index in range(n)]


def split_indices(split: Split, sizes: Sizes, *, rounding: Rounding = "closest") -> list[tuple[str, Int64s]]:
    """Return which items of which splits a text asks for.

    Args:
        split: names and slices, joined by ``+``: ``train``, ``train[:10%]``, ``train[10:20]``, ``train[-5:]``,
            ``train[2shard]``, ``train[:3shard]``, or ``all``; or one of `even_splits`.
        sizes: name to the number of items; or to those of its shards, for slices of shards.
        rounding: of per cent: to the "closest" number of items (half of one to the even number), or
            "pct1_dropremainder", where 1% is the same number everywhere, and up to 99 items are in none.

    Returns:
        Name and int64 indices for each part, in the order of the text. What is asked for twice comes twice.

    Raises:
        FormatError: no such split, a slice that reaches beyond it, or another syntax.

    Example:
        >>> split_indices("train[:10%]+val[-2:]", {"train": 30, "val": 10})
        [('train', array([0, 1, 2])), ('val', array([8, 9]))]
    """
    ranges = split_ranges(split, sizes, rounding=rounding)
    return [(name, np.arange(start, stop, dtype=np.int64)) for name, start, stop in ranges]


def split_ranges(split: Split, sizes: Sizes, *, rounding: Rounding = "closest") -> list[tuple[str, int, int]]:
    """Return name, first item and one past the last of each part; see `split_indices`."""
    if isinstance(split, EvenSplit):
        return [_even_range(part, split) for part in split_ranges(split.split, sizes, rounding=rounding)]
    if rounding not in get_args(Rounding):
        raise FormatError(f"rounding {rounding!r}. Allowed: {', '.join(get_args(Rounding))}.")
    if not isinstance(split, str):
        raise FormatError(f"split {split!r}. {ALLOWED}")
    ranges = []
    for part in re.split(r"\s*\+\s*", split.strip()):
        if part == ALL and ALL not in sizes:
            ranges += [(name, 0, _count(size)) for name, size in sizes.items()]
        else:
            ranges.append(_range(part, sizes, rounding))
    return ranges


def _even_range(part: Range, split: EvenSplit) -> Range:
    name, start, stop = part
    size, rest = divmod(stop - start, split.count)
    rest = 0 if split.drop_remainder else rest
    first = start + size * split.index + min(split.index, rest)
    return name, first, first + size + (split.index < rest)


def _range(part: str, sizes: Sizes, rounding: Rounding) -> Range:
    """Return name, start and stop of one part of a text."""
    found = PART.fullmatch(part)
    if found is None:
        raise FormatError(f"split {part!r}. {ALLOWED}")
    name, selector = found.groups()
    if name not in sizes:
        told = did_you_mean(name, sizes)
        raise FormatError(f"split {part!r}: there is no {name!r}.{told} There are: {', '.join(sizes) or 'none'}.")
    count = _count(sizes[name])
    if selector is None:
        return name, 0, count
    low, high, unit = _bounds(part, selector)
    start = 0 if low is None else _item(part, low, unit, sizes[name], rounding)
    stop = count if high is None else _item(part, high, unit, sizes[name], rounding)
    if max(abs(start), abs(stop)) > count:
        raise FormatError(f"split {part!r}: {name!r} has {count} items. Allowed: -{count} to {count}.")
    start, stop = (place + count if place < 0 else place for place in (start, stop))
    return name, start, max(start, stop)


def _bounds(part: str, selector: str) -> tuple[int | None, int | None, str]:
    """Return the numbers of a slice, None where there is none, and their unit."""
    bounds = [BOUND.fullmatch(bound) for bound in selector.split(":")]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or len(bounds) > 2 or not any(bound[0] for bound in known):
        raise FormatError(f"split {part!r}. {ALLOWED}")
    numbers = [None if bound[1] is None else int(bound[1].replace("_", "")) for bound in known]
    units = {bound[2] or "" for bound in known if bound[0]}
    if len(units) > 1:
        raise FormatError(f"split {part!r}: two units in one slice. Give both numbers in items, in % or in shards.")
    unit = units.pop()
    if len(numbers) == 1:
        number = numbers[0]
        if unit != "shard" or number is None:
            raise FormatError(f"split {part!r}: a single one of shards only. Say {part[: part.index('[')]}[n:n+1].")
        return number, None if number == -1 else number + 1, unit
    return numbers[0], numbers[1], unit


def _item(part: str, number: int, unit: str, size: int | Sequence[int], rounding: Rounding) -> int:
    """Return where a bound lies, in items; below 0 from the end."""
    count = _count(size)
    if unit == "shard":
        return _shard_start(part, number, size)
    if unit != "%":
        return number
    if abs(number) > 100:
        raise FormatError(f"split {part!r}: {number}%. Allowed: -100% to 100%.")
    if rounding == "closest":
        return round(number * count / 100)
    if count < 100:
        raise FormatError(f"split {part!r}: 1% of {count} items is none, by {rounding!r}. Use rounding='closest'.")
    return number * (count // 100)


def _shard_start(part: str, number: int, size: int | Sequence[int]) -> int:
    if isinstance(size, int):
        raise FormatError(f"split {part!r}: its shards are not known. Give numbers of items, or %.")
    if abs(number) > len(size):
        raise FormatError(f"split {part!r}: there are {len(size)} shards. Allowed: -{len(size)} to {len(size)}.")
    return sum(size[:number])


def _count(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else sum(size)


@dataclass(frozen=True, slots=True)
class TakenSplit:
    """What of a data set with several splits is in a store.

    Args:
        taken: as the reader was told: "train", "train[:10%]", "all".
        splits: name to number of examples; None where nobody knows it without reading.

    Example:
        >>> print(TakenSplit("train[:10%]", {"train": 1200, "val": None}))
        train[:10%] taken, of train (1,200), val; split=NAME takes another
    """

    taken: str
    splits: Mapping[str, int | None]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"taken": self.taken, "splits": dict(self.splits)}

    def __str__(self) -> str:
        told = [name if count is None else f"{name} ({count:,})" for name, count in self.splits.items()]
        more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
        return f"{self.taken} taken, of {', '.join(told[:MAX_TOLD])}{more}; split=NAME takes another"


def taken_split(metadata: Mapping[str, Any]) -> TakenSplit | None:
    """Return which split a store is of, by its metadata; None where its data set had not several."""
    for told in metadata.values():
        splits, taken = (told.get(key) for key in ("splits", "split")) if isinstance(told, Mapping) else (None, None)
        if isinstance(splits, Mapping) and isinstance(taken, str) and len(splits) > 1:
            return TakenSplit(taken, splits)
    return None
