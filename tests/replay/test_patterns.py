"""Patterns: what is made of rows as they come, against asking every step one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import SegmentGoneError, TableError
from stepwell.replay.intake import Matcher
from stepwell.replay.patterns import (
    Condition,
    Pattern,
    at_episode_end,
    every_step,
    feature,
    is_end,
    step_index,
    steps_since_applied,
)
from stepwell.schema import Array, Schema

OPEN, GOES_ON, TERMINATED = 4, 16, 1


class FakeStore:
    schema = Schema({"reward": Array(), "flag": Array(dtype="bool"), "state": Array(3)})


class FakeSegment:
    def raw_map(self, name):
        dtype = FakeStore.schema[name].np_dtype
        return (np.arange(100) % 3).astype(dtype).view(np.uint8)


class FakeHistory:
    """One episode an entry, all in one segment, at rows 10, 50, ..."""

    chains = None

    def __init__(self, num_episodes=1, base=0):
        self.store, self.segments, self.base = FakeStore(), [FakeSegment()], base
        self.records = np.zeros((num_episodes, 8), np.int64)
        for episode in range(num_episodes):
            self.records[episode] = [0, *[10 + 40 * episode] * 4, 0, OPEN, 100 + episode]

    def grow(self, steps, *, episode=0, ended=False, final=False, goes_on=False):
        record = self.records[episode]
        first = record[4]
        record[3] += steps
        record[4] = record[3] + (final and ended)
        if ended:
            record[6] = GOES_ON if goes_on else TERMINATED
        return np.array([[episode + self.base, first, record[4], ended]], np.int64)


def steps_of(items, start=10):
    return [(int(row) - start, int(length)) for row, length in zip(items[1], items[2], strict=True)]


def match_all(pattern, *grown, **options):
    history = FakeHistory()
    matcher = Matcher(pattern, history)
    return [steps_of(matcher.match(history.grow(*each[:1], **(each[1] if len(each) > 1 else {})))) for each in grown]


def test_an_item_is_made_once_the_step_ahead_is_committed():
    assert match_all(every_step(), (1,), (1,), (2,)) == [[], [(0, 1)], [(1, 1), (2, 1)]]


def test_the_last_step_comes_with_the_end_of_its_episode():
    assert match_all(every_step(), (3,), (0, {"ended": True})) == [[(0, 1), (1, 1)], [(2, 1)]]


def test_dropping_ends_keeps_the_last_step_only_where_a_final_row_is_there():
    pattern = Pattern(ends="drop")
    assert match_all(pattern, (3, {"ended": True})) == [[(0, 1), (1, 1)]]
    assert match_all(pattern, (3, {"ended": True, "final": True})) == [[(0, 1), (1, 1), (2, 1)]]


def test_the_drawing_of_the_module():
    pattern = Pattern(length=3, every=2)
    assert match_all(pattern, (4,), (2,), (2,), (1, {"ended": True})) == [
        [(0, 3)],
        [(2, 3)],
        [(4, 3)],
        [(6, 3), (8, 1)],
    ]


def test_items_at_the_end_cover_the_last_steps_of_their_episode():
    assert match_all(at_episode_end(4), (6,), (1, {"ended": True})) == [[], [(3, 4)]]
    assert match_all(at_episode_end(4), (2, {"ended": True})) == [[(0, 2)]]
    assert match_all(Pattern(length=4, at="end", ends="drop", ahead=0), (2, {"ended": True})) == [[]]
    assert match_all(Pattern(length=4, at="end", ends="drop", ahead=1), (6, {"ended": True})) == [[(1, 4)]]


def test_a_cut_is_not_the_end_of_an_episode():
    assert match_all(at_episode_end(4), (6, {"ended": True, "goes_on": True})) == [[]]
    assert match_all(Pattern(where=[is_end]), (6, {"ended": True, "goes_on": True})) == [[]]


def test_every_counts_from_the_true_beginning_of_an_episode():
    history = FakeHistory()
    history.records[0, 5] = 4  # four steps lie before its first row
    items = Matcher(Pattern(every=3, ahead=0), history).match(history.grow(7))
    assert [(step + 4) % 3 for step, _ in steps_of(items)] == [0, 0]
    assert [step for step, _ in steps_of(items)] == [2, 5]


def test_steps_that_were_evicted_before_they_were_seen_make_no_items():
    history = FakeHistory()
    run = history.grow(6)
    history.records[0, 2] = 13
    assert steps_of(Matcher(every_step(), history).match(run)) == [(3, 1), (4, 1)]


@settings(deadline=None, max_examples=60)
@given(
    st.builds(
        Pattern,
        length=st.integers(1, 4),
        every=st.integers(1, 3),
        ahead=st.integers(0, 3),
        behind=st.integers(0, 3),
        ends=st.sampled_from(["keep", "drop"]),
    ),
    st.lists(st.integers(0, 4), max_size=6),
    st.booleans(),
    st.integers(0, 5),
    st.integers(0, 2),
)
def test_any_growth_makes_each_complete_item_once(pattern, growth, final, skipped, base):
    history = FakeHistory(base=base)
    history.records[0, 5] = skipped
    matcher = Matcher(pattern, history)
    found = []
    for steps in growth:
        found += steps_of(matcher.match(history.grow(steps)))
        there = history.records[0, 3] - 10
        assert found == expected(pattern, int(there), int(there), skipped, ended=False)
    found += steps_of(matcher.match(history.grow(0, ended=True, final=final)))
    there = int(history.records[0, 3] - 10)
    assert found == expected(pattern, there, there + final, skipped, ended=True)


def expected(pattern, num_steps, num_rows, skipped, *, ended):
    keeps = ended and pattern.ends == "keep"
    return [
        (step, min(pattern.length, num_steps - step))
        for step in range(num_steps)
        if (step + skipped) % pattern.every == 0
        and (keeps or (step + pattern.length <= num_steps and step + pattern.length - 1 + pattern.ahead < num_rows))
        and (pattern.ends == "keep" or step >= pattern.behind)
    ]


def test_conditions_of_reverb_make_items_at_two_four_and_six():
    # a window of three steps, at even steps: the last steps of the items, as Reverb's StructuredWriter makes them
    pattern = Pattern(length=3, ahead=0, ends="drop", where=[step_index >= 2, step_index % 2 == 0])
    made = match_all(pattern, *[(1,)] * 8)
    assert [step + length - 1 for items in made for step, length in items] == [2, 4, 6]


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5]])
def test_steps_since_applied_counts_from_the_last_item(chunks):
    pattern = Pattern(ahead=0, where=[steps_since_applied >= 3])
    assert [step for items in match_all(pattern, *[(n,) for n in chunks]) for step, _ in items] == [2, 5, 8]


def test_steps_since_applied_is_forgotten_when_the_episode_ends():
    history = FakeHistory(2)
    matcher = Matcher(Pattern(ahead=0, where=[steps_since_applied == 2]), history)
    runs = np.concatenate([history.grow(5, ended=True), history.grow(4, episode=1)])
    assert matcher.match(runs)[1].tolist() == [11, 13, 51, 53]
    assert matcher.applied == {101: 3}


def test_steps_since_applied_counts_on_behind_a_cut():
    history = FakeHistory(2)
    matcher = Matcher(Pattern(ahead=0, where=[steps_since_applied >= 4]), history)
    # pieces of one episode: five steps, cut by a ring, and on
    history.records[1, 5:8] = 5, OPEN, history.records[0, 7]
    runs = np.concatenate([history.grow(5, ended=True, goes_on=True), history.grow(4, episode=1)])
    assert matcher.match(runs)[1].tolist() == [13, 52]
    assert len(matcher.match(history.grow(1, episode=1, ended=True))[1]) == 0
    assert matcher.applied == {}


def test_features_are_compared_at_the_last_step_of_an_item():
    items = match_all(Pattern(length=2, ahead=0, ends="drop", where=[feature("reward") > 1]), (7,))[0]
    assert [(step + 1 + 10) % 3 for step, _ in items] == [2] * len(items)
    assert len(items) == 2
    flags = match_all(Pattern(ahead=0, where=feature("flag") == 1), (6,))[0]
    assert flags and all((step + 10) % 3 for step, _ in flags)


def test_steps_that_a_ring_removed_before_their_feature_was_read_make_no_items():
    history = FakeHistory()

    class Gone:
        def raw_map(self, name):
            raise SegmentGoneError("evicted")

    history.segments = [Gone()]
    matcher = Matcher(Pattern(ahead=0, where=[feature("reward") >= 0]), history)
    assert steps_of(matcher.match(history.grow(3))) == []
    history.segments = [FakeSegment()]
    assert steps_of(matcher.match(history.grow(2))) == [(3, 1), (4, 1)]


def test_is_end_holds_at_the_last_step_of_an_ended_episode():
    assert match_all(Pattern(where=[is_end]), (3,), (2, {"ended": True})) == [[], [(4, 1)]]
    assert match_all(Pattern(length=2, where=[is_end]), (3,), (2, {"ended": True})) == [[], [(3, 2), (4, 1)]]
    assert match_all(Pattern(length=2, at="end", where=[is_end]), (5, {"ended": True})) == [[(3, 2)]]


def test_a_feature_that_is_no_number_is_refused():
    with pytest.raises(TableError, match='feature\\("state"\\) is not one raw number'):
        Matcher(Pattern(where=[feature("state") > 0]), FakeHistory())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"length": 0}, "length=0"),
        ({"length": True}, "length=True"),
        ({"every": 0}, "every=0"),
        ({"ahead": -1}, "ahead=-1"),
        ({"behind": 1.5}, "behind=1.5"),
        ({"ends": "pad"}, '"keep", "drop"'),
        ({"at": "start"}, '"step", "end"'),
        ({"at": "end", "every": 2}, "one item"),
        ({"where": [True]}, "no condition"),
        ({"where": [is_end], "ahead": 0}, "not known yet"),
    ],
)
def test_patterns_that_cannot_be_are_refused(options, says):
    with pytest.raises(TableError, match=says):
        Pattern(**options)


def test_conditions_are_not_chained_by_accident():
    with pytest.raises(TableError, match="neither true nor false"):
        bool(1 < step_index < 3)
    with pytest.raises(TableError, match="modulus"):
        step_index % 0
    with pytest.raises(TableError, match="no condition"):
        Condition("reward", "", 0, ">", 1.0)


def test_json_gives_the_pattern_back():
    pattern = Pattern(length=3, ends="drop", where=[step_index % 2 == 0, feature("reward") > 0.5, is_end])
    assert Pattern.from_json(pattern.to_json()) == pattern
    assert str(pattern) == (
        "Pattern(length=3, ends='drop', where=[step_index % 2 == 0, feature(\"reward\") > 0.5, is_end == 1])"
    )
