"""What a ring shows: exactly the newest steps that fit, whatever else is done to the store."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.errors import LoaderError, SegmentGoneError, StoreBusyError
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import EPISODE_DTYPE, Store, Writer
from stepwell.store.beneath import TICK_SECONDS
from stepwell.store.records import Capacity
from stepwell.store.ring import RingCut, SegmentLimit
from stepwell.windows import Field, View, WindowReader

SCHEMA = Schema({"obs": Array((), "int64", final=True), "act": Array((), "int64")})
ENCODED = Schema({"obs": Array((), "int64"), "note": Bytes()})
# rings of a part of the test of the rule
RULE_SEEDS = int(os.environ.get("STEPWELL_RING_SEEDS", "30"))


def make(folder: Path, capacity: int | str, schema: Schema = SCHEMA, **options: Any) -> Store:
    # 10 rows of SCHEMA a segment, and an open episode is cut at 20
    return stepwell.create(folder / "a.well", schema, capacity=capacity, **{"segment_bytes": 160, **options})


def record(writer: Writer, values: range, *, final: bool = True, **ending: Any) -> None:
    """Record an episode whose actions are ``values``, and end it if ``ending`` says how."""
    for value in values:
        writer.append(obs=value, act=value)
    if ending:
        writer.end_episode(final={"obs": values.stop} if final else None, **ending)


def actions(store: Store) -> list[list[int]]:
    store.refresh()
    return [episode["act"].tolist() for episode in store]


def steps(store: Store) -> list[int]:
    return list(itertools.chain.from_iterable(actions(store)))


# the rule


class Rows:
    """A segment as `RingCut` sees one, whose rows, stamps and sizes are plain lists."""

    has_lanes = False

    def __init__(self, ordinal: int, *, has_clock: bool = True) -> None:
        self.ordinal, self.name, self.is_sealed = ordinal, str(ordinal), False
        self.has_clock = has_clock
        self.stamps: list[int] = []
        self.sizes: list[int] = []
        self.ended: list[tuple[int, int, int, int, bool]] = []

    @property
    def num_rows(self) -> int:
        return len(self.stamps)

    @property
    def ended_rows(self) -> int:
        return self.ended[-1][0] + self.ended[-1][2] if self.ended else 0

    def append(self, stamp: int, size: int) -> None:
        self.stamps.append(stamp)
        self.sizes.append(size)

    def end(self, time_ns: int, *, final: bool = False, discarded: bool = False) -> None:
        start = self.ended_rows
        length = self.num_rows - start
        if length:
            if final:
                self.append(self.stamps[-1], 3)
            self.ended.append((start, length, length + final, time_ns, discarded))

    @property
    def records(self) -> Any:
        found = np.zeros(len(self.ended), EPISODE_DTYPE)
        for place, one in enumerate(self.ended):
            found["start"][place], found["length"][place], found["rows"][place] = one[:3]
            found["time_ns"][place], found["discarded"][place] = one[3:]
        return found

    def clock_map(self) -> Any:
        return np.array(self.stamps, np.int64) if self.has_clock else None

    def offsets_map(self, name: str) -> Any:
        return np.cumsum([0, *self.sizes]).astype(np.uint64)

    def steps(self, capacity: Capacity) -> list[tuple[int, int, int, int]]:
        """Return (stamp, ordinal, row, weight) of the steps that count."""
        steps, ended, num_open = [], self.ended_rows, self.num_rows - self.ended_rows
        episodes = [one[:4] for one in self.ended]
        for start, length, rows, time_ns in [*episodes, (ended, num_open, num_open, -1)]:
            old = max(one[3] for one in self.ended if one[0] <= start) if time_ns >= 0 else 1 << 62
            for row in range(start, start + length):
                taken = range(row, start + rows if row == start + length - 1 else row + 1)
                weight = sum(self.sizes[i] + 16 for i in taken) if capacity.unit == "bytes" else 1
                stamp = self.stamps[row] if self.has_clock else old
                steps.append((stamp, self.ordinal, row, weight))
        return steps


def shown_rows(segments: list[Rows], capacity: Capacity) -> dict[int, list[int]]:
    """Return the rows that are shown of each segment, by sorting all steps."""
    shown: dict[int, list[int]] = {one.ordinal: [] for one in segments}
    left = capacity.amount
    everything = [step for one in segments for step in one.steps(capacity)]
    for _, ordinal, row, weight in sorted(everything, reverse=True):
        left -= weight
        if left < 0:
            break
        shown[ordinal].append(row)
    return {ordinal: sorted(rows) for ordinal, rows in shown.items()}


def found_rows(cut: RingCut, segments: list[Rows], capacity: Capacity) -> dict[int, list[int]]:
    firsts = cut.first_rows(cut.slots(one.name for one in segments)).tolist()
    return {
        one.ordinal: [row for _, _, row, _ in one.steps(capacity) if row >= first]
        for one, first in zip(segments, firsts, strict=True)
    }


class Changes:
    """Random changes of a ring of four writers, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        unit: Any = self.rng.choice(["steps", "bytes"])
        amount = self.rng.choice([1, 7, 30, 90])
        self.capacity = Capacity(amount if unit == "steps" else amount * 20, unit)
        self.tie, self.has_old = self.rng.randint(1, 4), self.rng.random() < 0.3
        self.clock, self.ordinal = 10, 0
        self.writers, self.segments = [self.begin(number) for number in range(4)], []
        self.segments += self.writers
        # whose changes are seen late, with what others wrote since
        self.held: set[int] = set()

    def begin(self, number: int) -> Rows:
        self.ordinal += 1
        return Rows(self.ordinal, has_clock=not (self.has_old and number == 1))

    def change(self) -> None:
        """Change something."""
        number = self.rng.choice([0, 0, 0, 1, 2, 3])
        writer, kind = self.writers[number], self.rng.random()
        if kind < 0.6:
            for _ in range(self.rng.randint(1, 9)):
                self.clock += self.rng.random() * self.tie < 1
                writer.append(self.clock, self.rng.randint(0, 10))
        elif kind < 0.85:
            writer.end(self.clock, final=self.rng.random() < 0.3, discarded=self.rng.random() < 0.3)
        elif kind < 0.9:
            writer.end(self.clock)
            writer.is_sealed = True
            self.writers[number] = self.begin(number)
            self.segments.append(self.writers[number])
        else:
            self.held ^= {writer.ordinal}

    def forgotten(self, cut: RingCut) -> list[str]:
        """Let some sealed segments go of which nothing is shown, as an eviction does; returns their names."""
        shown = shown_rows(self.segments, self.capacity)
        gone = [
            one for one in self.segments if one.is_sealed and not shown[one.ordinal] and not cut.is_needed(one.name)
        ]
        gone = gone[: self.rng.randint(0, 2)]
        self.segments = [one for one in self.segments if one not in gone]
        return [one.name for one in gone]


@pytest.mark.parametrize("part", range(4))
def test_the_rule_is_the_newest_steps_that_fit_by_the_clock(part: int) -> None:
    for seed in range(part * RULE_SEEDS, (part + 1) * RULE_SEEDS):
        ring = Changes(seed)
        capacity, cut = ring.capacity, RingCut(ring.capacity, ENCODED)
        for number in range(50):
            ring.change()
            if ring.rng.random() < 0.5:
                continue
            if number == 49:
                ring.held.clear()
            for one in ring.segments:
                if one.ordinal not in ring.held:
                    cut.follow(one)  # type: ignore[arg-type]
            names = [one.name for one in ring.segments]
            if ring.held:
                # they are taken in by and by
                if cut.names >= set(names):
                    cut.move()
                if ring.rng.random() < 0.5:
                    ring.held.clear()
                continue
            before = cut.first_rows(cut.slots(names)).tolist()
            moved = cut.move()
            after = cut.first_rows(cut.slots(names)).tolist()
            assert set(moved) == {name for name, old, new in zip(names, before, after, strict=True) if old != new}
            expected = shown_rows(ring.segments, capacity)
            assert found_rows(cut, ring.segments, capacity) == expected
            fresh = RingCut(capacity, ENCODED)
            for one in ring.segments:
                fresh.follow(one)  # type: ignore[arg-type]
            fresh.move()
            assert found_rows(fresh, ring.segments, capacity) == expected
            cut.forget(ring.forgotten(cut))


def test_a_segment_that_goes_before_newer_steps_were_seen_brings_none_back() -> None:
    cut, segments = RingCut(Capacity(5, "steps"), ENCODED), [Rows(number) for number in range(3)]
    for stamp in range(12):
        segments[stamp // 4].append(stamp, 1)
    for one in segments:
        cut.follow(one)  # type: ignore[arg-type]
    cut.move()
    names = [one.name for one in segments]
    assert [cut.first_row(name) for name in names] == [4, 3, 0]
    cut.forget([names[1]])
    assert cut.move() == []
    assert [cut.first_row(name) for name in (names[0], names[2])] == [4, 0]


@pytest.mark.parametrize("unit", ["steps", "bytes"])
def test_a_first_look_far_beyond_the_capacity_finds_what_small_steps_find(unit: Any) -> None:
    rng, clock = np.random.default_rng(0), 0
    capacity = Capacity(700 if unit == "steps" else 14_000, unit)
    segments = [Rows(number) for number in range(5)]
    for number in rng.integers(0, 5, 6_000).tolist():
        clock += int(rng.integers(0, 3))
        segments[number].append(clock, int(rng.integers(0, 9)))
        if rng.random() < 0.02:
            segments[number].end(clock, final=bool(number % 2), discarded=rng.random() < 0.2)
    cut = RingCut(capacity, ENCODED)
    for one in segments:
        cut.follow(one)  # type: ignore[arg-type]
    cut.move()
    assert found_rows(cut, segments, capacity) == shown_rows(segments, capacity)


def test_segments_of_a_ring_are_an_eighth_of_it_but_not_tiny() -> None:
    limit = SegmentLimit(1 << 28, Capacity(80_000, "steps"))
    assert [limit.is_full(rows, 100 * rows) for rows in (9_999, 10_000)] == [False, True]
    assert [limit.is_overlong(rows, 100 * rows) for rows in (19_999, 20_000)] == [False, True]
    small = SegmentLimit(1 << 28, Capacity(8, "steps"))
    assert [small.is_full(rows, rows) for rows in (1023, 1024)] == [False, True]
    assert [small.is_full(2, size) for size in ((1 << 20) - 1, 1 << 20)] == [False, True]
    assert SegmentLimit(500, Capacity(10**9, "bytes")).is_full(3, 500)
    assert not SegmentLimit(500).is_overlong(10**6, 10**6)


# what a store shows


@pytest.mark.parametrize("capacity", [1, 9, 10, 11, 25, 100])
def test_readers_see_exactly_the_newest_steps(tmp_path: Path, capacity: int) -> None:
    store = make(tmp_path, capacity)
    reader = stepwell.open(store.path, mode="r")
    count = 0
    with store.writer() as writer:
        for number in range(20):
            record(writer, range(count, count + 1 + number % 4), final=bool(number % 2), truncated=True)
            count += 1 + number % 4
            assert steps(reader) == list(range(max(0, count - capacity), count))
            assert reader.num_steps == min(count, capacity)


def test_the_rest_of_a_half_evicted_episode_keeps_its_numbers_and_its_end(tmp_path: Path) -> None:
    store = make(tmp_path, 5, fps=10)
    with store.writer() as writer:
        record(writer, range(8), terminated=True, task="walk")
    (episode,) = store
    assert (episode.length, episode.skipped, episode.terminated, episode.metadata) == (5, 3, True, {"task": "walk"})
    assert episode["obs"].tolist() == [3, 4, 5, 6, 7, 8]
    fields: Any = {name: Field(name) for name in ("step_index", "is_first", "is_last", "timestamp", "step_id")}
    fields["before"] = Field("act", (-2, 0))
    batch = WindowReader(View(store), fields).read(np.arange(5))
    assert batch["step_index"].tolist() == [3, 4, 5, 6, 7]
    assert not batch["is_first"].any()
    assert batch["is_last"].tolist() == [False] * 4 + [True]
    assert np.allclose(batch["timestamp"], np.arange(3, 8) / 10)
    assert batch["step_id"].tolist() == [3, 4, 5, 6, 7]
    assert batch["before"].tolist() == [[3, 3], [3, 4], [3, 5], [4, 6], [5, 7]]


def test_a_capacity_in_bytes_counts_encoded_rows_with_their_offsets(tmp_path: Path) -> None:
    store = make(tmp_path, "100 B", ENCODED)
    with store.writer() as writer:
        for value in range(10):
            writer.append(obs=value, note=b"x" * value)
        writer.end_episode()
    # 16 bytes and the note: 25 + 24 + 23 + 22 = 94, and 21 more would be too many
    assert [episode["obs"].tolist() for episode in store] == [[6, 7, 8, 9]]


def test_a_length_is_stable_until_a_refresh_however_late_the_table_is_asked_for(tmp_path: Path) -> None:
    store = make(tmp_path, 15)
    with store.writer() as writer:
        record(writer, range(12), truncated=True)
        reader, late = (stepwell.open(store.path, mode="r") for _ in range(2))
        assert len(reader) == 1
        record(writer, range(12, 60))
        for one in (reader, late):
            assert (len(one), one.num_steps) == (1, 12)
        assert steps(reader) == steps(late) == list(range(45, 60))


def test_a_refresh_that_finds_nothing_or_one_step_opens_no_file_and_lists_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path, 25)
    with store.writer() as writer:
        record(writer, range(58), truncated=True)
        record(writer, range(58, 60))
        for thread in threading.enumerate():
            if thread.name == "stepwell-seal":
                thread.join()
        # until the directory's time stamp can be trusted
        time.sleep(2 * TICK_SECONDS)
        reader = stepwell.open(store.path, mode="r")
        with monkeypatch.context() as patch:
            for name in ("open", "listdir", "scandir"):
                patch.setattr(os, name, lambda *_, **__: pytest.fail("a file was looked at"))
            assert not reader.refresh()
            assert reader.num_steps == 25
            writer.append(obs=60, act=60)
            assert reader.refresh()
            assert reader.num_steps == 25
            assert reader.episodes.length[-1] == 3
            assert not reader.refresh()


def test_a_long_episode_is_cut_into_pieces_and_loses_no_transition(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    with store.writer() as writer:
        record(writer, range(50), terminated=True, task="long")
        record(writer, range(50, 53), truncated=True)
    *pieces, other = store
    assert [piece.length for piece in pieces] == [20, 20, 10]
    assert [piece.skipped for piece in pieces] == [0, 20, 40]
    assert [piece.goes_on for piece in pieces] == [True, True, False]
    assert [piece.terminated for piece in pieces] == [False, False, True]
    assert [piece.metadata for piece in pieces] == [{}, {}, {"task": "long"}]
    assert len(set(store.episodes.origin[:3].tolist())) == 1
    assert (other.skipped, other.goes_on) == (0, False)
    fields = {"act": "act", "next": Field("obs", 1), "t": "step_index", "last": "is_last", "first": "is_first"}
    batch = WindowReader(View(store), fields).read(np.arange(53))
    assert batch["act"].tolist() == list(range(53))
    assert batch["next"].tolist() == list(range(1, 54))
    assert batch["t"].tolist() == [*range(50), *range(3)]
    assert np.flatnonzero(batch["last"]).tolist() == [49, 52]
    assert np.flatnonzero(batch["first"]).tolist() == [0, 50]
    copy = pickle.loads(pickle.dumps(pieces[1]))
    assert copy["act"].tolist() == pieces[1]["act"].tolist()


def test_an_open_piece_knows_how_many_steps_lie_before_it(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    writer = store.writer()
    record(writer, range(25))
    store.refresh()
    assert store.episodes.skipped.tolist() == [0, 20]
    assert store.episodes.is_open.tolist() == [False, True]
    assert len(set(store.episodes.origin.tolist())) == 1
    copy = stepwell.open(store.checkpoint(tmp_path / "copy.well"))
    del writer
    recovered = stepwell.open(store.path)
    for one in (recovered, copy):
        assert one.episodes.skipped.tolist() == [0, 20]
        assert one.episodes.interrupted.tolist() == [False, True]
        assert len(set(one.episodes.origin.tolist())) == 1


def test_batches_are_cut_between_calls_only_and_steps_of_one_call_stay_together(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    with store.writer() as writer:
        for start in (0, 30, 35):
            ids = writer.append_batch({"obs": np.arange(start, start + 30), "act": np.arange(start, start + 30)})
            assert ids >= 0
        writer.end_episode()
        writer.add_episode({"obs": np.arange(60), "act": np.arange(60)})
    assert [episode.length for episode in store] == [30, 30, 30, 60]
    assert [episode.skipped for episode in store] == [0, 30, 60, 0]
    assert store[0]["obs"].tolist() == list(range(31))


def test_discarding_takes_back_all_pieces(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    with store.writer() as writer:
        record(writer, range(3), truncated=True)
        record(writer, range(100, 150))
        writer.discard_episode()
        record(writer, range(3, 6), truncated=True)
    assert actions(store) == [[0, 1, 2], [3, 4, 5]]
    assert store.episodes.skipped.tolist() == [0, 0]


def test_a_cut_that_fails_leaves_the_episode_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.store.segment_writer import SegmentWriter

    store = make(tmp_path, 1000)
    writer = store.writer()
    record(writer, range(20))
    for method in ("__init__", "append", "end_episode"):
        with monkeypatch.context() as patch:
            patch.setattr(SegmentWriter, method, lambda self, *args, **options: (_ for _ in ()).throw(OSError("no")))
            with pytest.raises(OSError, match="no"):
                writer.append(obs=20, act=20)
    store.refresh()
    record(writer, range(20, 23), terminated=True)
    writer.close()
    assert [episode["act"].tolist() for episode in store if episode.length > 1] == [list(range(20)), [20, 21, 22]]
    assert stepwell.open(store.path).verify(deep=True).is_ok


def test_several_writers_share_the_capacity_and_old_steps_go_first(tmp_path: Path) -> None:
    store = make(tmp_path, 40)
    slow, fast = store.writer(), store.writer()
    record(slow, range(1000, 1003), truncated=True)
    for number in range(0, 200, 5):
        record(fast, range(number, number + 5), truncated=True)
        newest = [1000, 1001, 1002, *range(number + 5)][-40:]
        assert steps(store) == newest
    # a new step is there at once, however old the rest of its segment is
    record(slow, range(1003, 1006), truncated=True)
    assert steps(store) == [1003, 1004, 1005, *range(163, 200)]
    slow.close()
    fast.close()
    assert steps(store) == [1003, 1004, 1005, *range(163, 200)]


def test_deleted_episodes_count_until_their_time_comes_and_half_evicted_ones_can_be_deleted(tmp_path: Path) -> None:
    store = make(tmp_path, 12)
    with store.writer() as writer:
        for start in range(0, 30, 5):
            record(writer, range(start, start + 5), truncated=True)
    assert actions(store) == [[18, 19], [20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]
    store.delete_episodes([0])
    assert steps(store) == steps(stepwell.open(store.path)) == list(range(20, 30))
    with store.writer() as writer:
        record(writer, range(30, 32), truncated=True)
        assert steps(store) == list(range(20, 32))
        record(writer, range(32, 33), truncated=True)
        assert steps(store) == list(range(21, 33))


def test_compaction_of_a_ring_changes_nothing_that_it_shows(tmp_path: Path) -> None:
    store = make(tmp_path, 33)
    with store.writer() as writer:
        for start in range(0, 60, 3):
            record(writer, range(start, start + 3), truncated=True)
            if start % 2:
                record(writer, range(2))
                writer.discard_episode()
    # the newest 33 are 24 that are shown, and 9 that were discarded
    assert steps(store) == list(range(36, 60))
    store.delete_episodes([-1])
    before = actions(store)
    assert store.compact() >= 0
    assert actions(store) == actions(stepwell.open(store.path)) == before
    assert store.verify(deep=True).is_ok


def test_a_checkpoint_is_the_same_ring_and_a_concatenation_is_none(tmp_path: Path) -> None:
    store = make(tmp_path, 12)
    with store.writer() as writer:
        for start in range(0, 30, 5):
            record(writer, range(start, start + 5), truncated=True)
        record(writer, range(30, 32))
        copy = stepwell.open(store.checkpoint(tmp_path / "copy.well"))
        assert (copy.capacity, steps(copy)) == (store.capacity, steps(store))
        assert steps(copy) == list(range(20, 32))
    whole = stepwell.concatenate(tmp_path / "whole.well", [store, copy])
    assert whole.capacity is None
    assert actions(whole) == 2 * [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29], [30, 31]]


def test_a_column_is_added_to_what_is_shown(tmp_path: Path) -> None:
    for number, feature in enumerate(
        (Array((), "int64"), Array((), "int64", codec="zstd"), Array((), "int64", codec="delta"))
    ):
        store = make(tmp_path / str(number), 7)
        with store.writer() as writer:
            record(writer, range(5), truncated=True)
            record(writer, range(5, 10), truncated=True)
        store.add_column("double", feature, lambda episode: 2 * episode["act"])
        assert [episode["double"].tolist() for episode in store] == [[6, 8], [10, 12, 14, 16, 18]]
        assert store.verify(deep=True).is_ok


def test_segments_of_a_ring_are_sealed_without_statistics_and_those_asked_for_are_right(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    with store.writer() as writer:
        for start in range(0, 40, 10):
            record(writer, range(start, start + 10), truncated=True)
    assert len(store.segments) == 4
    assert not list(store.path.rglob("statistics.npz"))
    store.add_column("double", Array((), "int64"), lambda episode: 2 * episode["act"])
    assert not list(store.path.rglob("statistics.npz"))
    found = store.statistics()
    assert (int(found["act"].count), float(found["act"].mean), float(found["double"].mean)) == (40, 19.5, 39)
    assert store.verify(deep=True).is_ok
    assert store.compact() >= 0
    assert float(store.statistics()["double"].max) == 78
    assert store.verify(deep=True).is_ok


def test_statistics_are_those_of_what_is_shown(tmp_path: Path) -> None:
    store = make(tmp_path, 7)
    with store.writer() as writer:
        record(writer, range(5), truncated=True)
        record(writer, range(5, 10), truncated=True)
    found = store.statistics(names=["act"])["act"]
    assert (int(found.count), float(found.min), float(found.max)) == (7, 3, 9)
    found = store.statistics([0], names=["act"])["act"]
    assert (int(found.count), float(found.min), float(found.max)) == (2, 3, 4)


@pytest.mark.parametrize("codec", ["delta", "video"])
def test_a_cut_ends_the_run_of_a_sequential_codec(tmp_path: Path, codec: str) -> None:
    pytest.importorskip("av" if codec == "video" else "zstandard")
    shape = (48, 64, 3)
    camera = stepwell.Video(shape, final=True) if codec == "video" else stepwell.Image(shape, codec="delta", final=True)
    schema = Schema({"camera": camera, "act": Array((), "int64")})
    store = stepwell.create(tmp_path / "a.well", schema, capacity=1000, segment_bytes=600)
    with store.writer() as writer:
        for value in range(120):
            writer.append(camera=np.full(shape, 2 * value, np.uint8), act=value)
        writer.end_episode(terminated=True, final={"camera": np.full(shape, 240, np.uint8)})
    assert len(store) > 2
    assert store.verify(deep=True).is_ok
    reader = WindowReader(View(store), {"act": "act", "next": Field("camera", 1)})
    batch = reader.read(np.arange(120))
    assert batch["act"].tolist() == list(range(120))
    assert np.abs(batch["next"].mean((1, 2, 3)) - 2 * np.arange(1, 121)).max() < 3


def test_what_is_gone_says_why_and_what_to_do(tmp_path: Path) -> None:
    store = make(tmp_path, 10)
    old = stepwell.open(store.path, mode="r")
    with store.writer() as writer:
        record(writer, range(9), truncated=True, task="old")
        old.refresh()
        episode, late = old[0], View(old)
        kept = WindowReader(late, {"act": "act"})
        for start in range(9, 99, 9):
            record(writer, range(start, start + 9), truncated=True)
    for access in (
        lambda: episode["act"],
        lambda: episode.metadata,
        old.statistics,
        lambda: late.select(where={"task": "old"}),
    ):
        with pytest.raises(SegmentGoneError, match=r"is not there any more: a ring evicted it.*refresh\(\)"):
            access()
    with pytest.raises(StoreBusyError, match="evicted"):
        _delete_old(store, old)
    assert kept.read(np.arange(9))["act"].tolist() == list(range(9))
    fresh = WindowReader(late, {"act": "act"})
    assert fresh.read(np.arange(10))["act"].tolist() == list(range(89, 99))
    uncached = WindowReader(View(old), {"act": "act"}, page_cache=False)
    assert len(uncached.read(np.arange(10))["act"]) == 10


def _delete_old(store: Store, old: Store) -> None:
    from stepwell.store.maintenance import delete_episodes

    stale = Store(str(store.path))
    stale._snapshot = old._snapshot
    delete_episodes(stale, [0])


def test_a_batch_of_what_went_before_it_was_mapped_is_refused_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowReader, "_map_view", lambda self: True)
    store = make(tmp_path, 10)
    with store.writer() as writer:
        record(writer, range(9), truncated=True)
        store.refresh()
        reader = WindowReader(View(store), {"act": "act"})
        for start in range(9, 99, 9):
            record(writer, range(start, start + 9), truncated=True)
    with pytest.raises(LoaderError, match=r"episode 0, step 0: .*removed since. Refresh"):
        reader.read(np.arange(3))


def test_a_segment_that_is_being_sealed_stays_until_it_has_its_name(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": Array((), "int64")}, capacity=5)
    with store.writer() as writer:
        writer.add_episode({"x": np.arange(6)})
    (sealed,) = (tmp_path / "a.well/segments").iterdir()
    # its commit record is gone, and its new name is not there yet
    sealing = sealed.rename(f"{sealed}.open")
    with Store(str(store.path)).writer() as writer:
        writer.add_episode({"x": np.arange(10, 16)})
    assert sealing.exists()
    sealing.rename(sealed)
    assert Store(str(store.path)).evictor.evict() == [sealed.name]
