"""Writers, readers, deletion and kills against a model of plain lists."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepwell.errors import WindowError
from stepwell.order import random, sequential
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Writer, create, open
from stepwell.windows import Field, View, WindowReader

SCHEMA = Schema({"observation": Array(2, "int64", final=True), "action": Array((), "int64"), "note": Bytes()})


class ModelEpisode:
    """What one episode must look like: its values of ``observation`` by row, and how it ended."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.length = 0
        self.state = "open"

    @property
    def is_shown(self) -> bool:
        return self.length > 0 and self.state != "gone"


class StoreMachine(RuleBasedStateMachine):
    """Each writer is a list of episodes; the store shows all of them, by the order of their segments."""

    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = create(self.directory / "a.well", SCHEMA, segment_bytes=400)
        self.reader = open(self.store.path, mode="r")
        self.model: list[ModelEpisode] = []
        self.counter = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def value(self) -> int:
        self.counter += 1
        return self.counter

    @rule(target=writers)
    def start_writer(self) -> Any:
        return {"writer": self.store.writer(), "open": None}

    @rule(entry=writers, count=st.integers(1, 6), batch=st.booleans())
    def append(self, entry: Any, count: int, batch: bool) -> None:
        writer = entry["writer"]
        if writer is None:
            return
        if entry["open"] is None:
            entry["open"] = ModelEpisode()
            self.model.append(entry["open"])
        values = [self.value() for _ in range(count)]
        if batch:
            writer.append_batch(
                {
                    "observation": np.array([[v, -v] for v in values]),
                    "action": values,
                    "note": [b"%d" % v for v in values],
                }
            )
        else:
            for v in values:
                writer.append({"observation": np.array([v, -v]), "action": v, "note": b"%d" % v})
        entry["open"].rows += values
        entry["open"].length += count

    @rule(entry=writers, final=st.booleans())
    def end(self, entry: Any, final: bool) -> None:
        if entry["writer"] is None or entry["open"] is None:
            return
        v = self.value()
        entry["writer"].end_episode(terminated=final, final={"observation": np.array([v, -v])} if final else None)
        if final:
            entry["open"].rows.append(v)
        entry["open"].state = "ended"
        entry["open"] = None

    @rule(entry=writers)
    def discard(self, entry: Any) -> None:
        if entry["writer"] is None:
            return
        entry["writer"].discard_episode()
        if entry["open"] is not None:
            entry["open"].state = "gone"
            entry["open"] = None

    @rule(entry=writers)
    def close(self, entry: Any) -> None:
        if entry["writer"] is None:
            return
        entry["writer"].close()
        entry["writer"] = None
        if entry["open"] is not None:
            entry["open"].state = "ended"
            entry["open"] = None

    @rule(entry=writers)
    def drop_without_closing(self, entry: Any) -> None:
        writer: Writer | None = entry["writer"]
        entry["writer"] = None
        del writer
        if entry["open"] is not None:
            entry["open"].state = "left"
            entry["open"] = None

    @rule()
    def reopen(self) -> None:
        self.store = open(self.store.path)
        for episode in self.model:
            if episode.state == "left":
                episode.state = "ended"
        self.reader = open(self.store.path, mode="r")

    def shown(self) -> dict[int, ModelEpisode]:
        return {episode.rows[0]: episode for episode in self.model if episode.is_shown}

    @invariant()
    def a_refreshed_reader_shows_exactly_the_model(self) -> None:
        self.reader.refresh()
        expected = self.shown()
        assert len(self.reader) == len(expected)
        assert self.reader.num_steps == sum(episode.length for episode in expected.values())
        for episode in self.reader:
            model = expected[int(episode["observation"][0, 0])]
            assert episode["observation"][:, 0].tolist() == model.rows
            assert episode["action"].tolist() == model.rows[: model.length]
            assert episode["note"] == [b"%d" % v for v in model.rows[: model.length]]

    @invariant()
    def windows_are_those_of_the_model(self) -> None:
        if not self.model:
            return
        fields = {
            "here": Field("action"),
            "next": Field("observation", 1),
            "around": Field("action", (-2, 0, 3), pad="zero"),
            "inside": Field("action", (-1, 0), pad="drop"),
        }
        index_of = {value: (episode, t) for episode in self.shown().values() for t, value in enumerate(episode.rows)}
        try:
            reader = WindowReader(View(self.reader), fields)
        except WindowError as error:
            assert all(episode.length < 2 for episode in self.shown().values()), error
            return
        for order in (sequential(), random(seed=3)):
            bound = order.bind(reader.index)
            batch = reader.read(bound.positions(0, 0, bound.num_positions))
            check_windows(batch, index_of)


def check_windows(batch: dict[str, Any], index_of: dict[int, tuple[ModelEpisode, int]]) -> None:
    """Compare every window with the model; no anchor twice, and all of them."""
    seen = batch["here"].tolist()
    expected = []
    for episode in {id(episode): episode for episode, _ in index_of.values()}.values():
        last = episode.length - 1
        if episode.state in ("open", "left"):
            last = min(last, len(episode.rows) - 1 - 3)  # what is not there yet is never padded
        expected += episode.rows[1 : last + 1]
    assert sorted(seen) == sorted(expected)
    for b, value in enumerate(seen):
        episode, t = index_of[value]
        last_row = len(episode.rows) - 1
        assert batch["next"][b, 0] == episode.rows[min(t + 1, last_row)]
        around = [episode.rows[t + o] if 0 <= t + o < episode.length else 0 for o in (-2, 0, 3)]
        assert batch["around"][b].tolist() == around
        assert batch["around_is_pad"][b].tolist() == [not 0 <= t + o < episode.length for o in (-2, 0, 3)]
        assert batch["inside"][b].tolist() == [episode.rows[t - 1], value]


def wait_for_seals() -> None:
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


class RingMachine(RuleBasedStateMachine):
    """A ring is a list of steps, of which the last ones are shown; one writer at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.writer: Writer | None = None
        self.model: list[ModelEpisode] = []
        self.counter = 0
        self.taken_back = 0

    @initialize(capacity=st.sampled_from([1, 7, 30, 64]))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.store = create(self.directory / "a.well", SCHEMA, segment_bytes=400, capacity=capacity)
        self.reader = open(self.store.path, mode="r")

    def teardown(self) -> None:
        wait_for_seals()
        shutil.rmtree(self.directory)

    @property
    def recording(self) -> ModelEpisode | None:
        return self.model[-1] if self.model and self.model[-1].state == "open" else None

    @rule(count=st.integers(1, 20), batch=st.booleans())
    def append(self, count: int, batch: bool) -> None:
        self.writer = self.writer or self.store.writer()
        if self.recording is None:
            self.model.append(ModelEpisode())
        values = list(range(self.counter + 1, self.counter + count + 1))
        self.counter += count
        observations, notes = np.array([[v, -v] for v in values]), [b"%d" % v for v in values]
        if batch:
            self.writer.append_batch({"observation": observations, "action": values, "note": notes})
        else:
            for observation, v, note in zip(observations, values, notes, strict=True):
                self.writer.append({"observation": observation, "action": v, "note": note})
        self.model[-1].rows += values
        self.model[-1].length += count

    @precondition(lambda self: self.recording is not None)
    @rule(final=st.booleans())
    def end(self, final: bool) -> None:
        episode = self.model[-1]
        if final:
            self.counter += 1
            episode.rows.append(self.counter)
        last = {"observation": np.array([self.counter, -self.counter])} if final else None
        self.writer.end_episode(final=last, terminated=final)
        episode.state = "ended"

    @precondition(lambda self: self.recording is not None)
    @rule()
    def discard(self) -> None:
        self.writer.discard_episode()
        self.model[-1].state = "gone"
        # pieces that were in segments of their own may have pushed out others
        self.taken_back += self.model[-1].length if self.model[-1].length > 8 else 0

    @rule(is_closed=st.booleans())
    def restart(self, is_closed: bool) -> None:
        if self.writer is not None and is_closed:
            self.writer.close()
        self.writer = None
        # a kill would end them, too: what is being sealed counts as live
        wait_for_seals()
        self.store = open(self.store.path)
        self.reader = open(self.store.path, mode="r")
        if self.recording is not None:
            self.model[-1].state = "ended"

    @rule(position=st.integers(0, 99))
    def delete(self, position: int) -> None:
        self.store.refresh()
        table = self.store.episodes
        number = position * len(table) // 100
        if not len(table) or table.is_open[number]:
            return
        values = set(self.store[number]["action"].tolist())
        pieces = [i for i, episode in enumerate(self.store) if values & set(self.rows_of(episode))]
        if table.is_open[pieces].any():
            return
        self.store.delete_episodes(pieces)
        episode = next(episode for episode in self.model if values & set(episode.rows))
        episode.state = "gone"
        self.taken_back += episode.length

    def rows_of(self, piece: Any) -> list[int]:
        """Return the values of the whole episode that a piece is of."""
        value = int(piece["action"][0])
        return next(episode.rows for episode in self.model if value in episode.rows)

    @precondition(lambda self: self.writer is None)
    @rule()
    def compact(self) -> None:
        self.store.compact()

    @invariant()
    def exactly_the_newest_steps_are_shown(self) -> None:
        self.reader.refresh()
        expected = [v for episode in self.model if episode.is_shown for v in episode.rows[: episode.length]]
        shown = [v for episode in self.reader for v in episode["action"].tolist()]
        assert shown == expected[len(expected) - len(shown) :]
        assert len(shown) <= self.capacity
        # what had been pushed out does not come back
        assert len(shown) >= min(self.capacity, len(expected)) - self.taken_back
        if not self.taken_back:
            assert len(shown) == min(self.capacity, len(expected))

    @invariant()
    def windows_never_reach_what_is_gone_or_another_episode(self) -> None:
        table = self.reader.episodes
        if not len(table):
            return
        fields = {
            "here": Field("action"),
            "t": Field("step_index"),
            "piece": Field("episode_index"),
            "first": Field("is_first"),
            "next": Field("observation", 1),
            "around": Field("action", (-2, 0, 3), pad="zero"),
        }
        reader = WindowReader(View(self.reader), fields)
        batch = reader.read(np.arange(reader.index.num_anchors))
        by_value = {v: episode for episode in self.model for v in episode.rows}
        # of the whole of each episode that is shown, in however many pieces: its first step, the one after its last
        whole = {}
        for origin in np.unique(table.origin).tolist():
            mine = table.origin == origin
            ends = table.skipped[mine] + table.length[mine]
            whole[origin] = int(table.skipped[mine].min()), int(ends.max()), bool(table.is_open[mine].any())
        assert len(batch["here"]) == sum(max(hi - lo - 3 * is_open, 0) for lo, hi, is_open in whole.values())
        for b, value in enumerate(batch["here"].tolist()):
            rows, t, piece = by_value[value].rows, int(batch["t"][b]), int(batch["piece"][b])
            assert rows[t] == value
            assert batch["first"][b] == (t == 0)
            assert batch["next"][b, 0] == rows[min(t + 1, len(rows) - 1)]
            lo, hi, _ = whole[int(table.origin[piece])]
            assert batch["around"][b].tolist() == [rows[t + o] if lo <= t + o < hi else 0 for o in (-2, 0, 3)]

    @invariant()
    def the_disk_holds_little_more(self) -> None:
        rows = sum(segment.num_rows for segment in self.store.segments if segment.is_sealed)
        # one that is half gone, one that is being sealed, and final rows; a batch of steps is not cut
        assert rows <= 2 * self.capacity + 3 * 24 + 40


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestRingMachine = RingMachine.TestCase
TestRingMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
