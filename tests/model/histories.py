"""Random histories of stores: a list of operations, made from a number, that is run beside the model.

Each operation has random numbers of its own, and one that makes no sense is left out. So a history that fails is
shortened by dropping operations, see `shortest`.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import stepwell
from stepwell import View

from .features import FEATURES, make_feature, value_of
from .plain import Piece, PlainEpisode, PlainStore
from .readings import observe, read

Operation = tuple[str, int]
# how often each comes
WEIGHTS = {
    "start": 3, "append": 10, "end": 6, "add": 5, "ones": 1, "discard": 1, "close": 2, "drop": 1, "reopen": 1,
    "delete": 2, "compact": 1, "concatenate": 1, "checkpoint": 1, "column": 1, "read": 8, "keep": 1, "verify": 1,
    "convert": 1,
}  # fmt: skip
MOST_WRITERS = 4
MOST_STORES = 4
MOST_STEPS = 150
# runs in which a history that failed is made shorter
MOST_TRIES = 100


@dataclass
class Recorded:
    """A store with its model; ``reader`` is another object over it, which only reads."""

    store: Any
    reader: Any
    plain: PlainStore


@dataclass
class Writing:
    """A writer, and the episode that it has open."""

    writer: Any
    of: Recorded
    episode: PlainEpisode | None = None


@dataclass
class Kept:
    """A view that was made, and what it showed; a change of what lies on the disk ends its promise."""

    view: Any
    reader: Any
    shown: list[Piece]
    of: Recorded


def operations(seed: int, count: int) -> list[Operation]:
    """Return the operations of a history."""
    rng = Random(seed)
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [
        ("make", seed),
        ("start", rng.getrandbits(30)),
        *((kind, rng.getrandbits(30)) for kind in kinds),
        ("read", 1),
        ("verify", 1),
    ]


@dataclass
class History:
    """Runs operations; raises AssertionError where a store differs from the model."""

    directory: Path
    recorded: list[Recorded] = field(default_factory=list)
    writing: list[Writing] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    finals: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    num_keys: int = 0
    num_paths: int = 0

    def run(self, operations: list[Operation]) -> None:
        for kind, seed in operations:
            self.notes.append(f"{kind} {seed}")
            getattr(self, kind)(Random(seed))

    def path(self) -> Path:
        self.num_paths += 1
        return self.directory / f"{self.num_paths}.well"

    # what is recorded

    def make(self, rng: Random) -> None:
        """Make one store or two of the same features, the first one a ring or not."""
        self.names = ["key", *rng.sample(list(FEATURES), rng.randint(1, 5))]
        self.finals = {name: name == "key" or rng.random() < 0.4 for name in self.names}
        schema = {name: make_feature(name, self.finals[name]) for name in self.names}
        capacity: Any = rng.choice([None, None, 1, 7, 30, 64, "2 kB", "9 kB"])
        if isinstance(capacity, str) and {"video", "jpeg", "delta", "png", "sizes"} & set(self.names):
            capacity = 40
        for number in range(2):
            ring = capacity if number == 0 else None
            # small enough that some have several segments, and that rings cut episodes
            size = rng.choice([200, 500, 3000, 1 << 20])
            path = self.path()
            store = stepwell.create(path, schema, segment_bytes=size, capacity=ring)
            plain = PlainStore(ring if ring is None or isinstance(ring, int) else 1, isinstance(ring, str))
            self.recorded.append(Recorded(store, stepwell.open(path, mode="r"), plain))

    def start(self, rng: Random) -> None:
        recorded = rng.choice(self.recorded)
        if len(self.writing) < MOST_WRITERS:
            self.writing.append(Writing(recorded.store.writer(), recorded))

    def append(self, rng: Random) -> None:
        """Append steps one by one or as a batch."""
        each = self.pick(rng)
        if each is None:
            return
        if each.episode is None:
            each.episode = PlainEpisode()
            each.of.plain.episodes.append(each.episode)
        keys = self.keys(rng.choice([1, 1, 3, 9]))
        if rng.random() < 0.5:
            each.writer.append_batch(self.columns(each.of, keys))
        else:
            for key in keys:
                each.writer.append({name: value_of(name, key) for name in each.of.store.schema})
        each.episode.keys += keys
        each.episode.length += len(keys)

    def end(self, rng: Random) -> None:
        each = self.pick(rng)
        if each is None or each.episode is None:
            return
        flags, metadata = self.ending(rng)
        final = None
        if rng.random() < 0.5:
            (key,) = self.keys(1)
            final = {name: value_of(name, key) for name, feature in each.of.store.schema.items() if feature.final}
            each.episode.keys.append(key)
        each.writer.end_episode(terminated=flags[0], truncated=flags[1], final=final, **metadata)
        self.finish(each, flags, metadata)

    def add(self, rng: Random) -> None:
        """Add a whole episode."""
        each = self.pick(rng)
        if each is None or each.episode is not None:
            return
        flags, metadata = self.ending(rng)
        keys, has_final = self.keys(rng.choice([1, 2, 6, 17])), rng.random() < 0.5
        own = [*keys, *self.keys(1)] if has_final else keys
        schema, final = each.of.store.schema, None
        columns = self.columns(each.of, keys)
        if has_final and (rng.random() < 0.5 or all(feature.final for feature in schema.values())):
            # where all features have a final row, columns of T + 1 would be T + 1 steps
            final = {name: value_of(name, own[-1]) for name, feature in schema.items() if feature.final}
        elif has_final:
            columns |= {name: stacked(name, own) for name, feature in schema.items() if feature.final}
        each.writer.add_episode(columns, terminated=flags[0], truncated=flags[1], final=final, **metadata)
        each.episode = PlainEpisode(own, len(keys))
        each.of.plain.episodes.append(each.episode)
        self.finish(each, flags, metadata)

    def ones(self, rng: Random) -> None:
        """Add episodes of one step each."""
        each = self.pick(rng)
        if each is None or each.episode is not None:
            return
        keys = self.keys(rng.randint(1, 5))
        each.writer.add_one_step_episodes(self.columns(each.of, keys))
        each.of.plain.episodes += [PlainEpisode([key], 1, "ended") for key in keys]

    def discard(self, rng: Random) -> None:
        each = self.pick(rng)
        if each is not None:
            each.writer.discard_episode()
            if each.episode is not None:
                each.episode.state = "gone"
                each.episode = None

    def close(self, rng: Random) -> None:
        """Close a writer; an episode that is open is kept as interrupted."""
        each = self.pick(rng)
        if each is None:
            return
        each.writer.close()
        if each.episode is not None:
            self.finish(each, (False, False, True), {})
        self.writing.remove(each)

    def drop(self, rng: Random) -> None:
        """Leave a writer as a killed one does: who opens the store for writing ends its episode."""
        each = self.pick(rng)
        if each is None:
            return
        each.writer.flush()
        if each.episode is not None:
            each.episode.state = "left"
        self.writing.remove(each)
        each.writer = None
        gc.collect()

    def reopen(self, rng: Random) -> None:
        recorded = rng.choice(self.recorded)
        self.recover(recorded)

    # what is changed

    def delete(self, rng: Random) -> None:
        recorded = rng.choice(self.recorded)
        self.look(recorded)
        ended = [piece.episode for piece in recorded.plain.seen if not piece.episode.is_open and piece.is_last]
        gone = rng.sample(ended, min(len(ended), rng.choice([1, 1, 3])))
        # all pieces of each
        chosen = [n for n, piece in enumerate(recorded.plain.seen) if any(piece.episode is each for each in gone)]
        if chosen:
            assert recorded.store.delete_episodes(chosen) == len(chosen)
        for episode in gone:
            episode.state = "gone"

    def compact(self, rng: Random) -> None:
        recorded = rng.choice(self.recorded)
        self.recover(recorded)
        recorded.store.compact()
        self.forget(recorded)

    def concatenate(self, rng: Random) -> None:
        """Make a new store of some of them, which are not being recorded."""
        parts = [recorded for recorded in self.recorded if not self.is_recorded(recorded)]
        parts = [each for each in parts if each.store.schema == parts[0].store.schema]
        if not parts or len(self.recorded) >= MOST_STORES:
            return
        parts = rng.sample(parts, rng.randint(1, min(2, len(parts))))
        shown: list[Piece] = []
        for each in parts:
            self.recover(each)
            shown += self.look(each)
        store = stepwell.concatenate(self.path(), [each.store for each in parts], link=rng.random() < 0.5)
        self.recorded.append(Recorded(store, stepwell.open(store.path, mode="r"), PlainStore(episodes=copies(shown))))

    def convert(self, rng: Random) -> None:
        """Make a new store of one that is not being recorded, with one feature stored in another way."""
        recorded = rng.choice(self.recorded)
        if self.is_recorded(recorded) or len(self.recorded) >= MOST_STORES:
            return
        self.recover(recorded)
        shown, path = self.look(recorded), self.path()
        if not shown:
            return
        codec = "zstd" if recorded.store.schema["key"].is_raw else "raw"
        stepwell.convert(recorded.store, path, {"key": codec}, workers=1, progress=False)
        plain = PlainStore(episodes=copies(shown))
        self.recorded.append(Recorded(stepwell.open(path), stepwell.open(path, mode="r"), plain))

    def checkpoint(self, rng: Random) -> None:
        """Make a copy of what a store is now; what was open is interrupted in it."""
        recorded = rng.choice(self.recorded)
        if len(self.recorded) >= MOST_STORES:
            return
        path, plain = self.path(), recorded.plain
        shown = self.look(recorded)
        recorded.store.checkpoint(path)
        episodes = copies(shown)
        if plain.capacity is not None:
            # what is not shown counts in the copy, too
            episodes = [replace(episode, keys=list(episode.keys)) for episode in plain.episodes]
        for episode in episodes:
            if episode.is_open:
                episode.state, episode.flags = "ended", (False, False, True)
        plain = replace(plain, episodes=episodes, seen=[])
        self.recorded.append(Recorded(stepwell.open(path), stepwell.open(path, mode="r"), plain))

    def column(self, rng: Random) -> None:
        """Add a feature with its values to a store that nobody records."""
        recorded = rng.choice(self.recorded)
        rest = [name for name in FEATURES if name not in recorded.store.schema]
        if self.is_recorded(recorded) or not rest:
            return
        self.look(recorded)
        name = rng.choice(rest)
        is_final = self.finals.setdefault(name, rng.random() < 0.4)
        self.recover(recorded)

        def values(episode: Any) -> Any:
            keys = episode["key"].tolist()
            return stacked(name, keys if is_final else keys[: episode.length])

        recorded.store.add_column(name, make_feature(name, is_final), values)
        self.forget(recorded)

    # what is read

    def read(self, rng: Random) -> None:
        """Read one store, or all that have some features."""
        chosen = self.recorded if rng.random() < 0.4 else [rng.choice(self.recorded)]
        names = [name for name in chosen[0].store.schema if all(name in each.store.schema for each in chosen)]
        views = [(self.reader_of(rng, each), self.look(each, rng)) for each in chosen]
        for _ in range(rng.choice([1, 1, 2])):
            read(rng, views, names, self.notes)

    def keep(self, rng: Random) -> None:
        """Make a view, or look again at those that were made: they show what was there then."""
        for each in self.kept:
            names = [name for name in self.names if name in each.of.store.schema]
            if each.view.num_episodes:
                read(rng, [(each.reader, each.shown)], names, self.notes)
        recorded = rng.choice(self.recorded)
        if recorded.plain.capacity is None:
            shown = self.look(recorded)
            reader = stepwell.open(recorded.store.path, mode="r")
            self.kept.append(Kept(View(reader), reader, shown, recorded))

    def verify(self, rng: Random) -> None:
        for recorded in self.recorded if rng.random() < 0.5 else [rng.choice(self.recorded)]:
            report = recorded.reader.verify(deep=True)
            assert not report.findings, report

    # what they have in common

    def pick(self, rng: Random) -> Writing | None:
        few = [each for each in self.writing if sum(len(e.keys) for e in each.of.plain.episodes) < MOST_STEPS]
        return rng.choice(few) if few else None

    def keys(self, count: int) -> list[int]:
        self.num_keys += count
        return list(range(self.num_keys - count + 1, self.num_keys + 1))

    def columns(self, recorded: Recorded, keys: list[int]) -> dict[str, Any]:
        return {name: stacked(name, keys) for name in recorded.store.schema}

    def ending(self, rng: Random) -> tuple[tuple[bool, bool, bool], dict[str, Any]]:
        return (rng.random() < 0.4, rng.random() < 0.4, False), rng.choice([{}, {"task": "push"}, {"n": [1, None]}])

    def finish(self, each: Writing, flags: tuple[bool, bool, bool], metadata: dict[str, Any]) -> None:
        assert each.episode is not None
        each.episode.state, each.episode.flags, each.episode.metadata = "ended", flags, metadata
        each.episode = None

    def is_recorded(self, recorded: Recorded) -> bool:
        return any(each.of is recorded for each in self.writing)

    def recover(self, recorded: Recorded) -> None:
        """Open a store anew for writing: what dead writers left is ended."""
        wait_for_seals()
        recorded.store = stepwell.open(recorded.store.path)
        for episode in recorded.plain.episodes:
            if episode.state == "left":
                episode.state, episode.flags = "ended", (False, False, True)

    def forget(self, recorded: Recorded) -> None:
        self.kept = [each for each in self.kept if each.of is not recorded]

    def reader_of(self, rng: Random, recorded: Recorded) -> Any:
        return recorded.reader if rng.random() < 0.8 else recorded.store

    def look(self, recorded: Recorded, rng: Random | None = None) -> list[Piece]:
        """Refresh the objects of a store, and compare what they show."""
        for each in self.writing:
            if each.of is recorded:
                each.writer.flush()
        shown: list[Piece] = []
        for store in (recorded.store, recorded.reader):
            store.refresh()
            names = list(store.schema) if rng is None else [name for name in store.schema if rng.random() < 0.5]
            shown = observe(recorded.plain, store, names)
        return shown


def stacked(name: str, keys: list[int]) -> Any:
    values = [value_of(name, key) for key in keys]
    return values if make_feature(name, False).is_ragged else np.stack(values)


def copies(pieces: list[Piece]) -> list[PlainEpisode]:
    """Return the episodes of pieces once each, as episodes of another store."""
    episodes = {id(piece.episode): piece.episode for piece in pieces}
    return [replace(episode, keys=list(episode.keys), is_cut=True) for episode in episodes.values()]


def wait_for_seals() -> None:
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


@contextmanager
def history() -> Iterator[History]:
    directory = Path(tempfile.mkdtemp())
    try:
        yield History(directory)
    finally:
        wait_for_seals()
        shutil.rmtree(directory, ignore_errors=True)


def failure(operations: list[Operation]) -> tuple[BaseException, list[str]] | None:
    """Run a history; return what it raised, with its last notes."""
    with history() as running:
        try:
            running.run(operations)
        except Exception as error:
            return error, running.notes
    return None


def shortest(operations: list[Operation]) -> list[Operation]:
    """Drop operations from a history that fails for as long as it fails in the same way, and not too long."""
    kind = _kind(failure(operations))
    size, left = len(operations) // 2, MOST_TRIES
    while size:
        begin = 1
        while begin < len(operations) and left:
            left -= 1
            fewer = operations[:begin] + operations[begin + size :]
            if _kind(failure(fewer)) == kind:
                operations = fewer
            else:
                begin += size
        size //= 2
    return operations


def _kind(found: tuple[BaseException, list[str]] | None) -> Any:
    if found is None:
        return None
    frames = traceback.extract_tb(found[0].__traceback__)
    return type(found[0]), frames[-1].filename, frames[-1].lineno
