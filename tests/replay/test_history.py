"""A history against a slow model, which makes all of it anew from the store's episodes after every step."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import warm_children
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Schema
from stepwell.replay.episode_records import HI_FINAL, HI_STEP, IS_GONE, LO, ORIGIN, SKIPPED, START
from stepwell.replay.history import History
from stepwell.store.layout import split_id, step_id

SCHEMA = Schema({"x": Array((), "int64", final=True)})
FLAGS = {"terminated": 1, "truncated": 2, "is_open": 4, "interrupted": 8, "goes_on": 16}


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "a.well", SCHEMA)


@dataclass
class Steps:
    """What runs and evictions add up to: the steps that are there, by their ids, in the order in which they came."""

    history: History
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    ever: list[int] = field(default_factory=list)

    def take(self) -> None:
        runs, evicted = self.history.advance()
        for episode, first, stop, has_ended in runs.tolist():
            ids = self.history.step_ids([episode] * (stop - first), range(first, stop)).tolist()
            assert not set(ids) & set(self.ever)
            self.ever += ids
            self.known.update(zip(ids, [(episode, row) for row in range(first, stop)], strict=True))
            record = self.history.records[episode - self.history.base]
            assert bool(has_ended) or bool(record[6] & 4) or bool(record[6] & IS_GONE)
        for episode, first in evicted.tolist():
            for step, (of, row) in list(self.known.items()):
                if of == episode and row < first:
                    del self.known[step]


def shown_steps(store: stepwell.Store) -> dict[int, dict[str, Any]]:
    """Return every step that a store shows, and what its episode is, from the table of episodes."""
    store.refresh()
    table, found = store.episodes, {}
    for i in range(len(table)):
        ordinal = store.segments[int(table.segment[i])].ordinal
        for row in range(int(table.start[i]), int(table.start[i] + table.length[i])):
            found[step_id(ordinal, row)] = {
                "lo": int(table.start[i]),
                "hi_step": int(table.start[i] + table.length[i]),
                "hi_final": int(table.start[i] + table.rows[i]),
                "zero": int(table.start[i] - table.skipped[i]),
                "origin": int(table.origin[i]),
                "flags": sum(flag for name, flag in FLAGS.items() if getattr(table, name)[i]),
            }
    return found


def assert_same(steps: Steps, store: stepwell.Store) -> None:
    """Compare what a history knows with what the store shows; what a ring let go does not come back."""
    steps.take()
    shown = shown_steps(store)
    history = steps.history
    if not history.is_ring:
        assert set(steps.known) == set(shown)
    gone = set(steps.ever) - set(steps.known)
    assert set(steps.known) == set(shown) - gone
    if not steps.ever:
        return
    ids = np.array(steps.ever)
    episodes, rows = history.find(ids)
    assert (
        dict(
            zip(
                ids[episodes >= 0].tolist(),
                zip(episodes[episodes >= 0].tolist(), rows[episodes >= 0].tolist(), strict=True),
                strict=True,
            )
        )
        == steps.known
    )
    for step, (episode, row) in steps.known.items():
        record, expected = history.records[episode - history.base], shown[step]
        assert record[HI_STEP] == expected["hi_step"]
        assert record[HI_FINAL] == expected["hi_final"]
        assert record[START] - record[SKIPPED] == expected["zero"]
        assert record[6] == expected["flags"]
        assert record[ORIGIN] == expected["origin"]
        assert expected["lo"] <= record[LO] <= row if history.is_ring else record[LO] == expected["lo"]
        assert split_id(step)[1] == row


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 9)),
        st.tuples(st.just("whole"), st.integers(0, 1), st.integers(1, 9)),
        st.tuples(st.just("end"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("discard"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Actor:
    """Two writers of a store, and changes of what is sealed."""

    def __init__(self, store: stepwell.Store) -> None:
        self.store, self.writers, self.open = store, [None, None], [False, False]

    def act(self, action: str, number: int, size: int) -> None:
        if action in {"append", "whole", "end", "discard", "close"}:
            if self.writers[number] is None:
                self.writers[number] = self.store.writer()
            getattr(self, action)(number, self.writers[number], size)
        elif action == "delete":
            self.store.refresh()
            ended = np.flatnonzero(~self.store.episodes.is_open)
            if len(ended):
                self.store.delete_episodes(int(ended[number % len(ended)]))
        elif action == "compact":
            self.store.compact()

    def append(self, number, writer, size):
        for value in range(size):
            writer.append(x=value)
        self.open[number] = True

    def whole(self, number, writer, size):
        if not self.open[number]:
            writer.add_episode({"x": np.arange(size)}, truncated=True)

    def end(self, number, writer, kind):
        if self.open[number]:
            writer.end_episode(terminated=kind == 1, truncated=kind == 2, final={"x": 7} if kind else None)
        self.open[number] = False

    def discard(self, number, writer, size):
        if self.open[number]:
            writer.discard_episode()
        self.open[number] = False

    def close(self, number, writer, size):
        writer.close()
        self.writers[number], self.open[number] = None, False

    def stop(self) -> None:
        for writer in self.writers:
            if writer is not None:
                writer.close()


@pytest.mark.parametrize("unit", [None, "steps", "bytes"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_history_is_what_the_store_shows_after_every_step(unit, data):
    actions = data.draw(ACTIONS)
    amount = data.draw(st.integers(1, 40))
    capacity = {None: None, "steps": amount, "bytes": f"{8 * amount} B"}[unit]
    with (
        tempfile.TemporaryDirectory() as path,
        # segments of a few rows, so that a ring removes some, and cuts episodes
        patch("stepwell.store.ring.LEAST_ROWS", 2),
        patch("stepwell.store.ring.LEAST_BYTES", 16),
    ):
        store = stepwell.create(Path(path) / "a.well", SCHEMA, segment_bytes=200, capacity=capacity)
        actor, steps = Actor(store), Steps(History(store))
        for action in actions:
            actor.act(*action)
            if action[0] == "look":
                assert_same(steps, store)
        actor.stop()
        assert_same(steps, store)
        assert_same(Steps(History(store)), store)
        steps.history.close()


def test_a_ring_of_several_segments_and_writers_is_followed_to_the_step(tmp_path):
    ring = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=1500)
    writers, steps, rng = [ring.writer(), ring.writer()], Steps(History(ring)), np.random.default_rng(3)
    for _ in range(12):
        for writer, length in zip(writers, rng.integers(1, 900, 2).tolist(), strict=True):
            for value in range(length):
                writer.append(x=value)
            if length % 3:
                writer.end_episode(truncated=True, final={"x": 0})
        assert_same(steps, ring)
        assert len(steps.known) <= 1500
    for writer in writers:
        writer.close()
    assert_same(steps, ring)
    assert sum(segment is None or not segment.path.exists() for segment in steps.history.segments) > 2


def test_an_episode_of_a_killed_writer_ends_where_it_was_committed(store):
    history = History(store)
    code = (
        "import os, sys, stepwell\n"
        "writer = stepwell.open(sys.argv[1]).writer()\n"
        "for value in range(3):\n"
        "    writer.append(x=value)\n"
        "os._exit(0)\n"
    )
    warm_children.run([sys.executable, "-c", code, str(store.path)], check=True)
    assert history.advance().runs.tolist() == [[0, 0, 3, 0]]
    stepwell.open(store.path)
    assert history.advance().runs.tolist() == [[0, 3, 3, 1]]
    assert history.records[0, :7].tolist() == [0, 0, 0, 3, 3, 0, FLAGS["interrupted"]]


def test_nothing_new_is_nothing(store):
    history = History(store)
    assert [len(part) for part in history.advance()] == [0, 0]
    with store.writer() as writer:
        writer.append(x=1)
        assert history.advance().runs.tolist() == [[0, 0, 1, 0]]
        assert [len(part) for part in history.advance()] == [0, 0]


def test_an_episode_that_ends_without_new_steps_has_an_empty_run(store):
    history = History(store)
    with store.writer() as writer:
        for value in range(3):
            writer.append(x=value)
        history.advance()
        writer.end_episode(terminated=True, final={"x": 3})
        assert history.advance().runs.tolist() == [[0, 3, 3, 1]]
        assert history.records[0, :7].tolist() == [0, 0, 0, 3, 4, 0, 1]


def test_a_discarded_episode_goes_and_one_that_was_never_seen_does_not_come(store):
    history = History(store)
    with store.writer() as writer:
        writer.append(x=1)
        history.advance()
        writer.discard_episode()
        writer.append(x=2)
        writer.discard_episode()
        writer.append(x=3)
        runs, evicted = history.advance()
        assert evicted.tolist() == [[0, 1]]
        assert runs.tolist() == [[1, 2, 3, 0]]


def test_an_episode_deleted_before_it_was_seen_lets_no_other_go(store):
    history = History(store)
    with store.writer() as writer:
        writer.add_episode({"x": [1, 2]})
        history.advance()
        writer.add_episode({"x": [3]})
        store.refresh()
        store.delete_episodes(1)
        assert [part.tolist() for part in history.advance()] == [[], []]


def test_episodes_keep_their_numbers_when_older_ones_are_forgotten(tmp_path):
    ring = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=3000)
    history = History(ring)
    numbers = {}
    with ring.writer() as writer:
        for episode in range(6000):
            writer.add_episode({"x": [episode, episode]})
            if episode % 50 == 0:
                for number, first, *_ in history.advance().runs.tolist():
                    numbers[number] = int(history.step_ids([number], [first])[0])
    history.advance()
    assert history.base > 0
    assert len(history.records) < 6000
    last = [number for number in numbers if number > history.num_seen - 1000]
    found, _ = history.find([numbers[number] for number in last])
    assert found.tolist() == last
    assert history.find([numbers[0]])[0].tolist() == [-1]


def test_a_segment_that_went_is_let_go_after_a_while(store, monkeypatch):
    monkeypatch.setattr("stepwell.replay.history.LEAVE_SECONDS", 0.0)
    with store.writer() as writer:
        writer.add_episode({"x": [1, 2]})
    history = History(store)
    history.advance()
    before = history.revision
    store.refresh()
    store.delete_episodes(0)
    store.compact()
    history.advance()
    assert history.segments == [None]
    assert history.need_rows.tolist() == [0]
    assert history.revision > before


def test_computed_columns_are_those_of_a_reader(tmp_path):
    from stepwell.windows import View, WindowReader
    from stepwell.windows.reader import PlaceReader

    store = stepwell.create(tmp_path / "a.well", SCHEMA, fps=10.0)
    names = ["step_id", "store_index", "episode_index", "step_index", "timestamp", "is_first", "is_last"]
    fields = {name: [-1, 0, 1] for name in [*names, "terminated", "truncated", "x"]}
    writer = store.writer()
    for length in (3, 1, 4):
        for value in range(length):
            writer.append(x=value)
        writer.end_episode(terminated=length == 3, truncated=length == 4, final={"x": 9} if length == 3 else None)
    store.refresh()
    reader, history = WindowReader(View(store), fields), History(store)
    history.advance()
    ids = reader.index.step_ids(np.arange(reader.index.num_anchors))
    live = PlaceReader([history], fields).read_places([history.places(*history.find(ids))])
    expected = reader.read(np.arange(reader.index.num_anchors))
    assert list(live) == list(expected)
    for key, values in expected.items():
        assert np.array_equal(live[key], values), key
    writer.close()


def test_an_error_names_the_episode_and_the_step(store):
    with store.writer() as writer:
        writer.add_episode({"x": [1, 2]})
        writer.add_episode({"x": [1, 2, 3]})
        history = History(store)
        history.advance()
        assert history.describe(0, 3).endswith("a.well: episode 1, step 1")
