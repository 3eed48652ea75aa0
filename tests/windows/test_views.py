"""Views: choosing, splitting and refreshing episodes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, EpisodeNotFoundError, Loader, View, WindowDataset, WindowError, create
from stepwell.store.episodes import EPISODE_DTYPE, EpisodeTable
from stepwell.store.snapshot import SegmentList, SegmentTable, columns_of
from stepwell.windows import WindowReader
from stepwell.windows.views import pack_episodes, pack_numbers, split_position, unpack_numbers


@pytest.fixture(scope="module")
def pair(make_store):
    return make_store((3, 4, 5, 6), ("reward",), per_segment=2), make_store((7, 8, 9), ("reward",), first=4)


def lengths(view):
    return view.column("length").tolist()


def is_even(facts):
    return facts["number"] % 2 == 0


def test_episodes_follow_each_other_in_the_order_of_the_stores(pair):
    view = View(pair)
    assert lengths(view) == [3, 4, 5, 6, 7, 8, 9]
    assert (len(view), view.num_steps) == (7, 42)
    assert lengths(View([pair[1], pair[0]])) == [7, 8, 9, 3, 4, 5, 6]
    assert repr(view) == "<View of a.well, a.well  7 episodes  42 steps>"


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        (2, [5]),
        (-1, [9]),
        (slice(2, 5), [5, 6, 7]),
        (slice(None, None, 3), [3, 6, 9]),
        (range(1, 4), [4, 5, 6]),
        ([5, 0], [3, 8]),
        ([-1, 1], [4, 9]),
        (np.array([True, False] * 3 + [True]), [3, 5, 7, 9]),
        ([], []),
    ],
)
def test_select_by_number_slice_list_or_mask(pair, episodes, expected):
    assert lengths(View(pair).select(episodes)) == expected


def test_select_numbers_count_within_the_view(pair):
    assert lengths(View(pair).select(slice(1, None)).select([0, 3])) == [4, 7]
    assert lengths(View(pair, [6, 1])) == [4, 9]


@pytest.mark.parametrize("episodes", [7, -8, [0, 7]])
def test_select_refuses_an_episode_there_is_not(pair, episodes):
    with pytest.raises(EpisodeNotFoundError, match="among 7"):
        View(pair).select(episodes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": [0, 0]}, "twice"),
        ({"episodes": [0, -7]}, "twice"),
        ({"episodes": [True, False]}, "does not fit 7"),
        ({"episodes": [0.5]}, "neither numbers"),
        ({"episodes": "train"}, "neither numbers"),
        ({"split": (0.5, 1.5)}, "within"),
        ({"split": (0.5, 0.2)}, "within"),
    ],
)
def test_select_refuses_what_it_cannot_mean(pair, arguments, message):
    with pytest.raises(WindowError, match=message):
        View(pair).select(**arguments)


def test_select_by_predicate_sees_metadata_and_facts(pair):
    view = View(pair)
    assert lengths(view.select(where=is_even)) == [3, 5, 7, 9]
    assert lengths(view.select(where=lambda facts: facts["length"] > 4 and facts["episode_index"] < 3)) == [5, 7, 8, 9]
    assert lengths(view.select(where={"terminated": True, "episode_index": 2})) == [5, 9]


def test_select_asks_the_predicate_about_candidates_only(pair):
    asked = []
    View(pair).select([1, 5], where=lambda facts: bool(asked.append(facts["number"])))
    assert asked == [1, 5]


def test_view_without_a_store_is_refused():
    with pytest.raises(WindowError, match="at least one store"):
        View([])


@settings(deadline=None, max_examples=100)
@given(num=st.integers(0, 300), seed=st.integers(-(2**70), 2**70), cut=st.floats(0, 1))
def test_split_positions_depend_on_seed_and_origin_alone(num, seed, cut):
    origins = np.arange(num, dtype=np.int64) * 977
    positions = split_position(origins, seed)
    assert ((positions >= 0) & (positions < 1)).all()
    permuted = np.random.default_rng(0).permutation(num)
    np.testing.assert_array_equal(split_position(origins[permuted], seed), positions[permuted])


@pytest.mark.parametrize("step", [1, 50, 1 << 32])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_split_positions_are_uniform(step, seed):
    """Chi-square over 20 bins: a fair hash exceeds 52.4 once in 16,000 (p = 6e-5)."""
    counts = np.histogram(split_position(np.arange(10_000, dtype=np.int64) * step, seed), 20, (0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 52.4


def test_split_has_exact_sizes_and_no_episode_twice(make_store):
    view = View(make_store([2] * 10, ("reward",)))
    for seed in range(20):
        train, test = view.split(0.9, 0.1, seed=seed)
        assert (len(train), len(test)) == (9, 1)
        both = [set(part.parts[0].indices.tolist()) for part in (train, test)]
        assert both[0] | both[1] == set(range(10))
    assert len({view.split(0.1, seed=seed)[0].parts[0].indices[0] for seed in range(20)}) > 3
    assert [len(part) for part in view.split(0.25, 0.25, 0.5)] == [2, 3, 5]


def test_split_is_the_same_again_and_for_any_order_of_episodes(make_store):
    store = make_store([2] * 9, ("reward",))
    first = View(store).split(0.5, 0.5, seed=3)
    again = View(store).split(0.5, 0.5, seed=3)
    assert [view.parts[0].indices.tolist() for view in first] == [view.parts[0].indices.tolist() for view in again]


@pytest.mark.parametrize("fractions", [(), (0.6, 0.6), (-0.1, 0.5), (float("nan"),)])
def test_split_refuses_fractions_that_are_none(pair, fractions):
    with pytest.raises(WindowError, match="sum to at most 1"):
        View(pair).split(*fractions)


def add(store, count):
    with store.writer() as writer:
        for _ in range(count):
            writer.add_episode({"reward": np.zeros(2)})


def test_select_by_split_keeps_every_episode_on_its_side_while_the_store_grows(make_store):
    store = make_store([2] * 20, ("reward",))
    train, test = (View(store).select(split=split, seed=5) for split in ((0.0, 0.7), (0.7, 1.0)))
    before = [set(view.column("origin").tolist()) for view in (train, test)]
    assert before[0] | before[1] == set(View(store).column("origin").tolist())
    add(store, 30)
    after = [set(view.refresh().column("origin").tolist()) for view in (train, test)]
    assert before[0] <= after[0]
    assert before[1] <= after[1]
    assert len(after[0]) + len(after[1]) == 50
    assert not after[0] & after[1]


def test_split_has_exact_sizes_again_after_the_store_grew(make_store):
    store = make_store([2] * 10, ("reward",))
    train, test = View(store).split(0.9, 0.1)
    add(store, 10)
    assert (len(train), len(test)) == (9, 1)
    train, test = train.refresh(), test.refresh()
    assert (len(train), len(test)) == (18, 2)
    assert not set(train.column("origin").tolist()) & set(test.column("origin").tolist())


def test_view_stands_still_until_it_is_refreshed(make_store):
    store = make_store([2, 3], ("reward",))
    view = View(store)
    even = view.select(where={"terminated": False})
    add(store, 2)
    store.refresh()
    assert (len(view), len(even)) == (2, 1)
    assert (len(view.refresh()), len(even.refresh())) == (4, 3)


def test_pickled_view_keeps_its_snapshot_though_the_store_grew(make_store):
    store = make_store([2, 3, 4], ("reward",), per_segment=1)
    view = View(store).select(slice(1, 3)).select(where=is_even)
    data = pickle.dumps(view)
    add(store, 2)
    copy = pickle.loads(data)
    assert lengths(copy) == [4]
    assert lengths(copy.refresh()) == [4]
    assert copy.parts[0].table.metadata(int(copy.parts[0].indices[0])) == {"number": 2}


def test_predicate_that_cannot_be_pickled_is_missed_only_by_refresh(make_store):
    view = View(make_store([2, 3], ("reward",))).select(where=lambda facts: facts["length"] == 3)
    copy = pickle.loads(pickle.dumps(view))
    assert lengths(copy) == [3]
    with pytest.raises(WindowError, match="could not be pickled"):
        copy.refresh()


@pytest.mark.parametrize("path", ["a.well", Path("a.well"), ["a.well"]])
def test_a_path_is_not_a_store_and_the_error_says_what_to_do(path: Any) -> None:
    with pytest.raises(WindowError, match=r"a\.well.* is not a store. Open it first: stepwell.open"):
        View(path)


def test_a_view_says_which_episodes_it_holds(pair: Any) -> None:
    chosen = View(pair).select([1, 3, 5])
    assert (chosen.episode_index.tolist(), chosen.store_index.tolist()) == ([1, 3, 1], [0, 0, 1])


def test_a_view_of_views_says_what_to_do(pair: Any) -> None:
    with pytest.raises(WindowError, match=r"Select from one view of all"):
        View([View(pair[0]), View(pair[1])])


def test_statistics_of_a_view_are_those_of_its_episodes(tmp_path: Path) -> None:
    stores = [create(tmp_path / name, {"x": Array()}) for name in ("a.well", "b.well")]
    for number, store in enumerate(stores):
        with store.writer() as out:
            for episode in range(3):
                out.add_episode({"x": np.full(4, 10 * number + episode, np.float32)})
    found = View(stores).select([0, 4, 5]).statistics()["x"]
    expected = np.repeat([0.0, 11.0, 12.0], 4)
    assert (int(found.count), float(found.max)) == (12, 12.0)
    assert np.isclose(float(found.mean), expected.mean())
    assert np.isclose(float(found.std), expected.std())


def test_store_index_tells_the_samples_of_a_mixed_batch_apart(tmp_path: Path) -> None:
    stores = [create(tmp_path / name, {"x": Array()}) for name in ("a.well", "b.well")]
    for number, store in enumerate(stores):
        with store.writer() as out:
            out.add_episode({"x": np.full(4, number, np.float32)})
    batch = WindowReader(View(stores), {"x": "x", "store_index": "store_index"}).read(np.arange(8))
    assert batch["store_index"].tolist() == batch["x"].tolist() == [0] * 4 + [1] * 4


def test_a_name_that_no_episode_has_is_refused_with_those_there_are(tmp_path) -> None:
    store = create(tmp_path / "s.well", {"x": Array()})
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros(3, np.float32)}, task="lift")
        writer.add_episode({"x": np.zeros(3, np.float32)})
    store.refresh()
    view = View(store)
    with pytest.raises(WindowError, match=r"no episode has 'tsk'\. Did you mean 'task'\? There are: .*task"):
        view.select(where={"tsk": "lift"})
    assert view.select(where={"task": "push"}).num_episodes == 0
    assert view.select([], where={"tsk": "lift"}).num_episodes == 0
    assert view.select(where=lambda facts: "tsk" in facts).num_episodes == 0


SCHEMA = {"x": stepwell.Array((), "int64")}
FIELDS = {"x": [-1, 0, 1]}


def record(store, lengths):
    with store.writer() as writer:
        for length in lengths:
            writer.add_episode({"x": np.arange(length) + 1000 * (1 + len(store))}, length=length)


def held(view):
    """Return all that a view says of its episodes, and what its windows hold."""
    names = [name for name in EpisodeTable.__slots__ if name not in ("segment", "read_metadata")]
    facts = {name: view.column(name).tolist() for name in names}
    loader = Loader(view, FIELDS, batch_size=64, order="sequential", threads=0)
    batches = [batch["x"].tolist() for batch in loader] if len(view) else []
    return facts, view.episode_index.tolist(), view.store_index.tolist(), batches, loader.reader.snapshot_id


CHOICES = st.sampled_from(["all", "none", "some", "mask", "slice", "split", "fraction", "where", "two"])
EVENTS = st.lists(st.sampled_from(["record", "append", "end", "delete", "column"]), max_size=5)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=CHOICES, before=EVENTS, after=EVENTS, capacity=st.sampled_from([None, 40]), seed=st.integers(0, 9))
def test_a_pickled_view_has_the_same_episodes_whatever_came_since(
    tmp_path_factory, choice, before, after, capacity, seed
):
    folder = tmp_path_factory.mktemp("packed")
    stores = [stepwell.create(folder / f"{k}.well", SCHEMA, capacity=capacity) for k in range(2)]
    random = np.random.default_rng(seed)
    writers = {}

    def happen(events):
        for event in events:
            number = int(random.integers(2))
            store = stores[number]
            if "y" in store.schema:
                return
            if event == "record":
                record(store, random.integers(1, 9, 3))
            elif event == "append":
                writers.setdefault(number, store.writer()).append(x=5)
            elif event == "end" and number in writers:
                writers[number].append(x=6)
                writers[number].end_episode()
            elif event == "delete" and len(store) and not store.episodes.is_open.all():
                store.delete_episodes(int(np.flatnonzero(~store.episodes.is_open)[0]))
            elif event == "column" and not writers:
                for each in stores:
                    each.add_column("y", stepwell.Array(()), lambda episode: np.zeros(episode.length, np.float32))
            for each in stores:
                each.refresh()

    for store in stores:
        record(store, random.integers(1, 9, 4))
    happen([event for event in before if event != "column"])
    view = View(stores)
    view = {
        "all": lambda: view,
        "none": lambda: view.select([]),
        "some": lambda: view.select([1, 2, len(view) - 1]),
        "mask": lambda: view.select(random.random(len(view)) < 0.5),
        "slice": lambda: view.select(slice(2, -1)),
        "split": lambda: view.select(split=(0.2, 0.7), seed=seed),
        "fraction": lambda: view.split(0.6, 0.4, seed=seed)[1],
        "where": lambda: view.select(where=is_long),
        "two": lambda: view.split(0.8, 0.2)[0].select([0, 1]),
    }[choice]()
    data, expected = pickle.dumps(view), held(view)
    happen([event for event in after if event != "append" or writers])
    try:
        copy = pickle.loads(data)
    except WindowError:
        assert capacity is not None
        return
    assert held(copy) == expected
    assert held(pickle.loads(pickle.dumps(copy))) == expected
    assert refreshed(copy) == refreshed(view)
    metadata = [part.table.metadata(index) for part in view.parts for index in part.indices.tolist()]
    assert metadata == [part.table.metadata(index) for part in copy.parts for index in part.indices.tolist()]
    for writer in writers.values():
        writer.close()


def refreshed(view):
    try:
        return view.refresh().column("origin").tolist()
    except (WindowError, stepwell.EpisodeNotFoundError) as error:
        return str(error)


def is_long(facts):
    return facts["length"] > 4


def test_a_view_of_what_was_compacted_away_is_refused_and_one_of_the_rest_is_not(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA, segment_bytes=2000)
    record(store, [100])
    record(store, [400])
    record(store, [100, 100])
    whole, rest = View(store), View(store).select([1])
    sent = [pickle.dumps(each) for each in (whole, rest)]
    expected = held(rest)
    store.delete_episodes([2])
    store.compact()
    with pytest.raises(WindowError, match="removed before it was unpickled"):
        pickle.loads(sent[0])
    assert held(pickle.loads(sent[1])) == expected


def test_a_view_of_another_store_at_the_same_place_is_refused(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, [5, 6])
    sent = pickle.dumps(View(store))
    (tmp_path / "a.well").rename(tmp_path / "b.well")
    record(stepwell.create(tmp_path / "a.well", SCHEMA), [5, 7])
    with pytest.raises(WindowError, match="other episodes"):
        pickle.loads(sent)


@pytest.mark.parametrize("pad", [0, 3])
def test_a_million_episodes_pickle_in_less_than_100_kb(tmp_path, pad):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    num, per_segment = 1_000_000, 10
    records = np.zeros(num, EPISODE_DTYPE)
    records["length"] = records["rows"] = 1 + np.random.default_rng(0).integers(0, 1 + pad, num)
    records["origin"] = np.arange(num)
    keys = np.arange(num // per_segment) << 16 | np.random.default_rng(1).integers(0, 1 << 16, num // per_segment)
    table = SegmentTable(keys, np.arange(per_segment, num + 1, per_segment), records)
    segments = SegmentList(str(store.path), store.schema, keys, {}, table, {})
    number = np.arange(num)
    episodes = EpisodeTable(
        segment=(number // per_segment).astype(np.int32),
        **columns_of(records),
        is_open=np.zeros(num, np.bool_),
        record=number % per_segment,
        read_metadata=lambda segment, record: {},
    )
    train = np.flatnonzero(np.random.default_rng(2).random(num) < 0.9)
    for indices, limit in ((number, 5_000), (number[1000:700_000], 5_000), (train, 100_000), (number[::2], 5_000)):
        assert len(pickle.dumps(pack_episodes(segments, episodes, indices))) < limit
        assert len(pickle.dumps(pack_numbers(indices))) < limit
    assert len(pickle.dumps(pack_episodes(segments, episodes, train[train % 2 == 0]))) < num // 8 + 5_000


def test_loaders_and_datasets_pickle_as_small_as_their_views(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    sizes = []
    for _ in range(2):
        record(store, [3] * 2000)
        things = (View(store), Loader(store, FIELDS, threads=0), WindowDataset(store, FIELDS))
        sizes.append([len(pickle.dumps(thing)) for thing in things])
    assert max(map(max, sizes)) < 4000
    assert all(abs(b - a) < 100 for a, b in zip(*sizes, strict=True))


@pytest.mark.parametrize(
    "episodes",
    [None, 3, -2, slice(1, 9, 2), range(4), [4, 1, 2], [0, -1], [], np.array([True, False, True]), [1, 1], "wrong"],
)
def test_packed_numbers_mean_the_same(tmp_path, episodes):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, [2] * (3 if isinstance(episodes, np.ndarray) else 9))
    sent = pickle.loads(pickle.dumps(pack_numbers(episodes)))

    def chosen(numbers):
        try:
            return View(store).select(numbers).episode_index.tolist()
        except (WindowError, ValueError) as error:
            return str(error)

    assert chosen(unpack_numbers(sent)) == chosen(episodes)
