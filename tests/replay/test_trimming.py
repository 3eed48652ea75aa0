"""What a follower of a ring lets go, segment by segment."""

from __future__ import annotations

import stepwell
from stepwell import Array, Schema
from stepwell.replay.followed import FollowedSegment
from stepwell.replay.trimming import RingTrimmer


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
