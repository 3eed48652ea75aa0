"""Two views, compared: features, episodes, and every value; what differs, and where it does so first."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, did_you_mean
from stepwell.schema import Feature
from stepwell.sizes import counted
from stepwell.store import Episode
from stepwell.windows.conditions import FACTS, facts_of
from stepwell.windows.views import View

__all__ = ["Comparison", "ValueDifference", "compare"]

# rows that are read at once
CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 256
# what is said of episodes; all are counted
MAX_TOLD = 10
MAX_TEXT = 60


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """The values of one feature that differ, and the first of them."""

    num_steps: int  # steps at which they do
    episode: int  # of the first, its number in the first view
    step: int  # of the first; the episode's length for the final row
    first: str  # the value in the first view, as text
    second: str
    largest: float | None  # largest distance of two numbers; None where there is none, as between texts

    def __str__(self) -> str:
        far = "" if self.largest is None else f", by {self.largest:.4g} at most"
        place = f"episode {self.episode}, step {self.step}"
        return f"{counted(self.num_steps, 'step')} differ{far}; the first at {place}: {self.first} and {self.second}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found; ``str()`` says it in lines."""

    features: list[str] = field(default_factory=list)  # a line each
    num_episodes: int = 0  # how many differ in length, end or metadata
    episodes: list[str] = field(default_factory=list)  # the first of them, a line each
    values: dict[str, ValueDifference] = field(default_factory=dict)  # by feature
    num_compared: int = 0  # values that were compared: features times steps

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.features or self.num_episodes or self.values)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"is_equal": self.is_equal, **asdict(self)}

    def __str__(self) -> str:
        lines = [*self.features, *self.episodes]
        if self.num_episodes > len(self.episodes):
            lines.append(f"and {counted(self.num_episodes - len(self.episodes), 'more episode')} that differ")
        lines += [f"{name}: {found}" for name, found in self.values.items()]
        return "\n".join(lines)


def compare(
    first: View,
    second: View,
    *,
    features: Collection[str] | None = None,
    tolerance: float = 0.0,
    with_values: bool = True,
    with_metadata: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare the episodes of two views in their order.

    How values are stored does not matter: rows are compared as they are decoded, NaN equals NaN.

    Args:
        first: a view.
        second: another one.
        features: only these; default all.
        tolerance: how far two numbers may be apart, >= 0.
        with_values: whether values are read at all.
        with_metadata: whether the metadata of episodes counts.
        progress: called with (episodes done, episodes in all) while values are read.

    Raises:
        FeatureNotFoundError: a feature that neither has.
    """
    schemas = _schema_of(first), _schema_of(second)
    names = _names(schemas, features)
    found = Comparison(features=[*_feature_lines(schemas, names), *_count_lines(first, second)])
    alike = [name for name in names if name in schemas[0] and name in schemas[1] and not _unlike(schemas, name)]
    episodes = list(zip(_episodes(first), _episodes(second), strict=False))
    lines: list[str] = []
    num_episodes = num_compared = 0
    values: dict[str, ValueDifference] = {}
    for number, (mine, theirs) in enumerate(episodes):
        told = _episode_line(number, mine, theirs, with_metadata)
        num_episodes += told is not None
        if told is not None and len(lines) < MAX_TOLD:
            lines.append(told)
        for name in alike if with_values else ():
            num_compared += min(mine.length, theirs.length)
            for one in _value_differences(name, schemas[0][name], mine.episode, theirs.episode, tolerance):
                values[name] = _joined(values.get(name), one, number)
        if progress is not None:
            progress(number + 1, len(episodes))
    return Comparison(found.features, num_episodes, lines, values, num_compared)


class _Listed(NamedTuple):
    episode: Episode
    facts: dict[str, Any]
    length: int


def _schema_of(view: View) -> Mapping[str, Feature]:
    return view.stores[0].schema or {}


def _episodes(view: View) -> Iterator[_Listed]:
    for part in view.parts:
        for index in part.indices.tolist():
            yield _Listed(part.store[index], facts_of(part.table, index), int(part.table.length[index]))


def _names(schemas: tuple[Mapping[str, Feature], ...], features: Collection[str] | None) -> list[str]:
    known = list(dict.fromkeys(name for schema in schemas for name in schema))
    for name in features or ():
        if name not in known:
            told = did_you_mean(name, known)
            raise FeatureNotFoundError(f"no feature {name!r} in either.{told} There are: {', '.join(known)}.")
    return known if features is None else [name for name in known if name in features]


def _unlike(schemas: tuple[Mapping[str, Feature], Mapping[str, Feature]], name: str) -> list[str]:
    """Return what differs between two features of a name, but for how they are stored."""
    mine, theirs = (schema[name] for schema in schemas)
    pairs = {
        "kind": (mine.kind, theirs.kind),
        "dtype": (mine.np_dtype.name, theirs.np_dtype.name),
        "shape": (mine.shape, theirs.shape),
        "names": (mine.names, theirs.names),
        "final": (mine.final, theirs.final),
    }
    return [f"{what} {one} and {two}" for what, (one, two) in pairs.items() if one != two]


def _feature_lines(schemas: tuple[Mapping[str, Feature], Mapping[str, Feature]], names: Iterable[str]) -> list[str]:
    lines = []
    for name in names:
        if name not in schemas[0] or name not in schemas[1]:
            lines.append(f"{name}: only in the {'first' if name in schemas[0] else 'second'}")
        elif unlike := _unlike(schemas, name):
            lines.append(f"{name}: {', '.join(unlike)}")
    return lines


def _count_lines(first: View, second: View) -> list[str]:
    fps = first.stores[0].fps, second.stores[0].fps
    lines = [] if fps[0] == fps[1] else [f"fps: {fps[0]} and {fps[1]}"]
    if len(first) != len(second):
        lines.append(f"episodes: {len(first):,} and {len(second):,}; those that both have are compared")
    return lines


def _episode_line(number: int, mine: _Listed, theirs: _Listed, with_metadata: bool) -> str | None:
    names = [name for name in FACTS if name != "episode_index"]
    if with_metadata:
        names += [name for name in {**mine.facts, **theirs.facts} if name not in FACTS]
    differing = [name for name in names if _text(mine.facts, name) != _text(theirs.facts, name)]
    # a name of metadata may have ends of lines
    told = [
        f"{json.dumps(name, ensure_ascii=False)[1:-1]} {_short(_text(mine.facts, name))} and "
        f"{_short(_text(theirs.facts, name))}"
        for name in differing
    ]
    if mine.episode.has_final != theirs.episode.has_final:
        told.append(f"a final row only in the {'first' if mine.episode.has_final else 'second'}")
    if not told:
        return None
    return f"episode {number}: {', '.join(told)}"


def _text(facts: Mapping[str, Any], name: str) -> str:
    return json.dumps(facts[name], sort_keys=True, ensure_ascii=False, default=str) if name in facts else "none"


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _joined(before: ValueDifference | None, one: ValueDifference, number: int) -> ValueDifference:
    if before is None:
        return ValueDifference(one.num_steps, number, one.step, one.first, one.second, one.largest)
    distances = [each.largest for each in (before, one) if each.largest is not None]
    largest = max(distances, default=None)
    return ValueDifference(
        before.num_steps + one.num_steps, before.episode, before.step, before.first, before.second, largest
    )


def _value_differences(
    name: str, feature: Feature, mine: Episode, theirs: Episode, tolerance: float
) -> Iterator[ValueDifference]:
    """Yield what differs in one feature of an episode, a chunk of rows at a time; the common rows are compared."""
    num_rows = min(mine.length, theirs.length)
    if feature.final and mine.has_final and theirs.has_final and mine.length == theirs.length:
        num_rows += 1
    chunk = CHUNK_ROWS if feature.is_ragged else max(1, CHUNK_BYTES // max(feature.row_bytes, 1))
    for start in range(0, num_rows, chunk):
        rows = [each.read_rows(name, start, min(start + chunk, num_rows)) for each in (mine, theirs)]
        steps = _differing(rows[0], rows[1], tolerance)
        if len(steps):
            step = int(steps[0])
            yield ValueDifference(
                num_steps=len(steps),
                episode=mine.index,
                step=start + step,
                first=_shown(rows[0][step]),
                second=_shown(rows[1][step]),
                largest=_largest([(rows[0][i], rows[1][i]) for i in steps]),
            )


def _differing(mine: Any, theirs: Any, tolerance: float) -> npt.NDArray[np.int64]:
    """Return the rows that differ: int64 [n], ascending."""
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        unequal = _unequal(mine, theirs, tolerance)
        return np.flatnonzero(unequal.reshape(len(mine), -1).any(axis=1))
    return np.array([i for i, pair in enumerate(zip(mine, theirs, strict=True)) if not _same(*pair, tolerance)], int)


def _same(one: Any, two: Any, tolerance: float) -> bool:
    if not isinstance(one, np.ndarray):
        return bool(one == two)
    return one.shape == two.shape and not bool(_unequal(one, two, tolerance).any())


def _unequal(mine: npt.NDArray[Any], theirs: npt.NDArray[Any], tolerance: float) -> npt.NDArray[np.bool_]:
    unequal: npt.NDArray[np.bool_] = np.asarray(mine != theirs)
    if mine.dtype.kind in "fc":
        unequal &= ~(np.isnan(mine) & np.isnan(theirs))
    if tolerance and mine.dtype.kind in "iufc" and unequal.any():
        unequal &= ~(_distances(mine, theirs) <= tolerance)
    return unequal


def _distances(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return how far numbers are apart, without the wrap of unsigned ones; NaN is infinitely far from a number."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.complex128 if mine.dtype.kind == "c" else np.float64
        apart = np.abs(mine.astype(wide) - theirs.astype(wide))
    return np.where(np.isnan(apart) & (mine != theirs), np.inf, np.nan_to_num(apart, nan=0.0, posinf=np.inf))


def _largest(pairs: Iterable[tuple[Any, Any]]) -> float | None:
    """Return the largest distance of two numbers; None where these are no numbers, or arrays of other shapes."""
    found = []
    for pair in pairs:
        mine, theirs = map(np.asarray, pair)
        if mine.dtype.kind not in "biufc" or mine.shape != theirs.shape:
            return None
        found.append(float(_distances(mine, theirs).max(initial=0.0)))
    return max(found, default=None)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return _short(json.dumps(value, ensure_ascii=False))
    if isinstance(value, bytes):
        return counted(len(value), "byte")
    array = np.asarray(value)
    if array.size > 8:
        return f"{array.dtype} {'x'.join(map(str, array.shape))}"
    return np.array2string(array, precision=6, separator=", ", max_line_width=1000)
