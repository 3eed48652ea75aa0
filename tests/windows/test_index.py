"""The anchor index: which steps are anchors, and finding them from either side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, FeatureNotFoundError, Field, Schema, Text, View, WindowError
from stepwell.windows import AnchorIndex, WindowReader, resolve


def index_of(stores, fields=None):
    return WindowReader(View(stores), fields or {"reward": None}).index


def expected_anchors(length, rows, offsets, pad, is_final):
    end = rows if is_final else length
    return [t for t in range(length) if pad != "drop" or all(0 <= t + o < end for o in offsets)]


@settings(deadline=None, max_examples=80)
@given(
    offsets=st.lists(st.integers(-4, 4), min_size=1, max_size=4),
    pad=st.sampled_from(["edge", "zero", "drop"]),
    name=st.sampled_from(["observation", "action"]),
)
def test_anchors_are_the_steps_whose_windows_fit(shared, offsets, pad, name):
    store, lengths, finals = shared
    expected = [
        (episode, t)
        for episode, (length, has_final) in enumerate(zip(lengths, finals, strict=True))
        for t in expected_anchors(length, length + has_final, offsets, pad, name == "observation")
    ]
    view = View(store)
    field = resolve(Field(name, offsets, pad=pad), "k", store.schema, None)
    if not expected:
        with pytest.raises(WindowError, match="does not fit episode"):
            AnchorIndex(view, [field])
        return
    index = AnchorIndex(view, [field])
    episodes, _, rows, lo, *_ = index.locate(np.arange(index.num_anchors))
    assert list(zip(episodes.tolist(), (rows - lo).tolist(), strict=True)) == expected


@pytest.fixture(scope="module")
def shared(make_store):
    lengths, finals = (1, 6, 2, 9, 4), (True, False, True, True, False)
    return make_store(lengths, finals=finals, per_segment=2), lengths, finals


def test_two_drop_fields_leave_the_anchors_that_both_allow(shared):
    store, *_ = shared
    fields = {
        "past": Field("action", [-2, 0], pad="drop"),
        "next": Field("observation", [1, 2], pad="drop"),
        "r": Field("reward", [5]),
    }
    index = index_of(store, fields)
    episodes, _, rows, lo, *_ = index.locate(np.arange(index.num_anchors))
    # step t needs t - 2 >= 0, and t + 2 within the rows: the final one counts for the observation
    assert list(zip(episodes.tolist(), (rows - lo).tolist(), strict=True)) == [(1, 2), (1, 3)] + [
        (3, t) for t in range(2, 8)
    ]


def test_nothing_that_fits_is_an_error_that_says_what_would(shared):
    store, *_ = shared
    message = (
        "a window of 64 steps does not fit episode 3 (9 steps), the longest of 5. "
        'Use pad="edge", or a window of at most 9.'
    )
    with pytest.raises(WindowError) as caught:
        index_of(store, {"action": Field("action", range(64), pad="drop")})
    assert str(caught.value) == message


def test_empty_view_has_no_anchors_and_is_no_error(shared):
    index = WindowReader(View(shared[0], []), {"action": Field("action", [0, 1], pad="drop")}).index
    assert (index.num_anchors, index.anchor_starts.tolist(), index.part_starts.tolist()) == (0, [0], [0, 0])
    assert index.positions_of([0, 1]).tolist() == [-1, -1]


def test_part_starts_count_the_anchors_before_each_store(make_store):
    index = index_of([make_store((3, 4), ("reward",)), make_store((5,), ("reward",))])
    assert index.part_starts.tolist() == [0, 7, 12]
    assert index.anchor_starts.tolist() == [0, 3, 7, 12]


def test_step_ids_and_positions_are_inverse(shared):
    store, *_ = shared
    index = index_of(store, {"action": Field("action", [-1, 0], pad="drop")})
    positions = np.random.default_rng(0).permutation(index.num_anchors)
    np.testing.assert_array_equal(index.positions_of(index.step_ids(positions)), positions)
    everything = np.concatenate([segment.ordinal << 32 | np.arange(segment.num_rows + 5) for segment in store.segments])
    found = index.positions_of(everything)
    assert sorted(found[found >= 0].tolist()) == list(range(index.num_anchors))
    assert index.positions_of([-1, 1 << 62, 99 << 32]).tolist() == [-1, -1, -1]


def test_ids_of_several_stores_need_to_say_which(make_store):
    stores = [make_store((3, 4), ("reward",)), make_store((5,), ("reward",))]
    index = index_of(stores)
    with pytest.raises(WindowError, match="Say which"):
        index.positions_of([0])
    ids = index.step_ids([7, 9])
    assert index.positions_of(ids, store=1).tolist() == [7, 9]
    assert index.positions_of(ids, store=0).tolist() == [0, 2]


def test_read_steps_gives_the_value_at_every_anchor(make_store):
    stores = [make_store((3, 6, 2), ("reward",), per_segment=2), make_store((4,), ("reward",), first=3)]
    reader = WindowReader(View(stores).select([0, 1, 3]), {"reward": Field("reward", [0, 1], pad="drop")})
    expected = reader.read(np.arange(reader.index.num_anchors))["reward"][:, 0]
    values = reader.index.read_steps("reward")
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, expected)


class _Counted(np.ndarray):
    """An array that counts the entries which numpy's functions take in."""

    entries = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        _Counted.entries += max(np.size(each) for each in inputs)
        return getattr(ufunc, method)(*(np.asarray(each) for each in inputs), **keywords)


def test_read_steps_looks_at_each_episode_a_few_times_however_many_segments_there_are(make_store):
    num = 40
    index = index_of(make_store((2,) * num, ("reward",), per_segment=1))
    expected = index.read_steps("reward")
    index.records, _Counted.entries = index.records.view(_Counted), 0
    np.testing.assert_array_equal(index.read_steps("reward"), expected)
    assert _Counted.entries <= 8 * num


def test_read_steps_refuses_what_is_no_number(make_store):
    index = index_of(make_store((3,), ("observation", "words", "reward")))
    for name in ("observation", "words"):
        with pytest.raises(WindowError, match="not one raw number a step"):
            index.read_steps(name)
    with pytest.raises(FeatureNotFoundError):
        index.read_steps("missing")


def test_open_episode_has_the_anchors_whose_windows_are_committed(tmp_path):
    store = stepwell.create(tmp_path / "live.well", Schema({"x": Array((), "int64")}))
    fields = {"past": Field("x", [-2, 0]), "future": Field("x", [0, 2])}
    with store.writer() as writer:
        for t in range(5):
            writer.append(x=t)
        reader = WindowReader(View(store), fields).refresh()
        assert reader.index.num_anchors == 3
        batch = reader.read([0, 2])
        assert batch["past"].tolist() == [[0, 0], [0, 2]]
        assert batch["past_is_pad"].tolist() == [[True, False], [False, False]]
        assert batch["future"].tolist() == [[0, 2], [2, 4]]
        assert not batch["future_is_pad"].any()
        writer.append(x=5)
        assert reader.refresh().index.num_anchors == 4
        writer.end_episode()
        ended = reader.refresh()
        assert ended.index.num_anchors == 6
        assert ended.read([5])["future"].tolist() == [[5, 5]]
        assert ended.snapshot_id != reader.snapshot_id
        # what was read before goes on as it was
        assert reader.read([2])["future"].tolist() == [[2, 4]]


def test_open_episode_too_short_for_any_window_waits(tmp_path):
    store = stepwell.create(tmp_path / "live.well", Schema({"x": Array((), "int64")}))
    with store.writer() as writer:
        writer.append(x=1)
        reader = WindowReader(View(store).refresh(), {"x": Field("x", range(4), pad="drop")})
        assert reader.index.num_anchors == 0
        writer.append_batch({"x": [2, 3, 4, 5]})
        assert reader.refresh().index.num_anchors == 2


def test_snapshot_id_changes_with_the_anchors_only(shared):
    store, *_ = shared
    first = WindowReader(View(store), {"action": [0, 1]})
    same = WindowReader(View(store), {"reward": [-4, 3]})
    fewer = WindowReader(View(store), {"action": Field("action", [0, 1], pad="drop")})
    other = WindowReader(View(store).select(slice(0, 4)), {"action": [0, 1]})
    assert first.snapshot_id == same.snapshot_id
    assert len({first.snapshot_id, fewer.snapshot_id, other.snapshot_id}) == 3


def test_snapshot_id_of_chosen_episodes_stays_while_the_store_grows_and_shrinks(make_store):
    store = make_store([4, 5, 6], ["reward"], per_segment=1)
    first = WindowReader(View(store).select([1, 2])).snapshot_id
    with store.writer() as writer:
        writer.add_episode({"reward": np.zeros(3)})
        assert store.refresh()
        assert WindowReader(View(store).select([1, 2])).snapshot_id == first
    store.delete_episodes([0])
    store.refresh()
    assert WindowReader(View(store).select([0, 1])).snapshot_id == first


def test_store_without_features_is_refused_until_it_has_some(tmp_path):
    store = stepwell.create(tmp_path / "new.well")
    with pytest.raises(WindowError, match="no features yet"):
        WindowReader(View(store))


def test_text_only_store_needs_no_kernel(tmp_path):
    store = stepwell.create(tmp_path / "text.well", Schema({"words": Text()}))
    with store.writer() as writer:
        writer.add_episode({"words": ["a", "b"]})
    store.refresh()
    assert WindowReader(View(store)).read([1, 0])["words"].tolist() == ["b", "a"]
