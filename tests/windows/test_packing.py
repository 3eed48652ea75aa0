"""Pickled views: a few bytes, and exactly the episodes that the view had."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Loader, View, WindowDataset, WindowError
from stepwell.store.episodes import EPISODE_DTYPE, EpisodeTable
from stepwell.store.snapshot import SegmentList, SegmentTable, columns_of
from stepwell.windows.views import pack_episodes, pack_numbers, unpack_numbers

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
