"""What a follower of a ring lets go, segment by segment."""

from __future__ import annotations

import shutil

import pytest

import stepwell
from stepwell import Array, Schema
from stepwell.replay import Pattern, Table
from stepwell.replay.episode_records import HI_STEP, LO, SEGMENT
from stepwell.replay.following import FollowedSegment, RingTrimmer
from stepwell.store import ring, segment_writer
from stepwell.store.ring import RingCut


def test_a_segment_without_news_has_nothing_to_let_go(tmp_path):
    store = stepwell.create(tmp_path / "a.well", Schema({"x": Array((), "int64")}), capacity=5)
    with store.writer() as first, store.writer() as second, store.writer() as third:
        first.append(x=1)
        for value in range(7):
            second.append(x=value)
        store.refresh()
        old, new = (FollowedSegment(segment, number) for number, segment in enumerate(store.segments))
        trimmer = RingTrimmer(store)
        assert list(trimmer.trim({new.segment.name: new}, [new])) == [(new, 2)]
        third.append(x=1)
        store.refresh()
        newest = FollowedSegment(store.segments[-1], 2)
        followed = {one.segment.name: one for one in (old, new, newest)}
        assert list(trimmer.trim(followed, [newest])) == [(new, 3)]
        # what was not seen is found when it is
        assert list(trimmer.trim(followed, [old])) == [(old, 1)]


def test_what_was_let_go_is_told_once(tmp_path):
    store = stepwell.create(tmp_path / "a.well", Schema({"x": Array((), "int64")}), capacity=5)
    with store.writer() as writer:
        for value in range(7):
            writer.append(x=value)
        store.refresh()
        (segment,) = store.segments
        followed, trimmer = FollowedSegment(segment, 0), RingTrimmer(store)
        ((_, first_row),) = trimmer.trim({segment.name: followed}, [followed])
        followed.first_row = first_row
        assert list(trimmer.trim({segment.name: followed}, [followed])) == []
        assert list(trimmer.trim({}, [])) == []


@pytest.mark.parametrize("gone", [0, 1])
def test_a_segment_that_is_removed_while_it_is_taken_in_leaves_no_items(tmp_path, monkeypatch, gone):
    monkeypatch.setattr(ring, "LEAST_ROWS", 4)
    monkeypatch.setattr(ring, "LEAST_BYTES", 1 << 8)
    monkeypatch.setattr(segment_writer, "FIRST_BYTES", 4096)
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array((), "int64")}, capacity=24)
    table = Table(store, pattern=Pattern(ahead=1), follow_seconds=1e6)
    writer = store.writer()
    # one episode in many pieces: an item of a piece may reach into the next
    for number in range(60):
        writer.append(x=number)
    writer._seals.wait()
    real, calls = RingCut.follow, []

    def racing(self, segment):
        if self is table.history.store._follower._ring:
            return real(self, segment)
        if len(calls) == gone:
            # newer steps came meanwhile, and another process removed what they pushed out
            shutil.rmtree(segment.path)
        calls.append(segment)
        return real(self, segment)

    monkeypatch.setattr(RingCut, "follow", racing)
    table.follow()
    size = table.size
    sample, places = table.sample_placed(4 * size)
    assert len(calls) > gone + 1
    rows = {(int(e), int(r)) for e, r in zip(sample.episodes, sample.rows, strict=True)}
    records = table.history.records
    assert table.history.base == 0
    assert all(records[e, LO] <= r < records[e, HI_STEP] for e, r in rows)
    assert places.shape[1] == 4 * size
    # what a reader would open
    segments = table.history.segments
    assert all(segments[records[e, SEGMENT]].path.is_dir() for e, _ in rows)
    writer.close()
