"""Readers of places: the same bytes as a reader of positions, while the store grows, and several sources at once."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, LoaderError, Schema, View, WindowError
from stepwell.windows import WindowReader, aligned_empty
from stepwell.windows.reader import PlaceReader
from stepwell.windows.sources import ViewSource

ALL = ("observation", "action", "reward", "image", "words", "points")
FIELDS = {
    "observation": Field("observation", [-2, 0, 1]),
    "zero": Field("action", [[-1, 0], [3, 4]], pad="zero"),
    "reward": "reward",
    "image": Field("image", [0, 1]),
    "words": Field("words", [-1, 0]),
    "points": "points",
    "step_id": [-1, 0],
    "step_index": None,
    "terminated": [0, 1],
    "goal": Field("observation", at="final"),
}
PLAIN = {"x": Field("x", [-1, 0, 1]), "x_zero": Field("x", [0, 2], pad="zero"), "text": "text", "step_id": None}


def assert_same(got, expected):
    assert list(got) == list(expected)
    for key, values in expected.items():
        assert got[key].dtype == values.dtype, key
        if values.dtype == object:
            for one, other in zip(got[key].flat, values.flat, strict=True):
                assert np.array_equal(one, other), key
        else:
            assert got[key].tobytes() == values.tobytes(), key


def num_maps(path: Path) -> int:
    """Maps of files under ``path`` in this process."""
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def wait_for_seals() -> None:
    """Wait until the segments that a writer has filled are sealed: until then they are mapped for writing."""
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


@pytest.fixture(scope="module")
def store(make_store):
    return make_store([3, 1, 5, 4], ALL, finals=(True, False, False, True), per_segment=2)


def test_places_give_the_bytes_that_positions_give(store):
    reader, source = WindowReader(View(store), FIELDS), ViewSource(View(store))
    live = PlaceReader([source], FIELDS)
    positions = np.random.default_rng(0).integers(0, reader.index.num_anchors, 50)
    assert live.num_bytes(50) == reader.num_bytes(50)
    memory = aligned_empty(live.num_bytes(50))
    assert_same(live.read_places([source.places(positions)], memory), reader.read(positions))
    assert (live.min_offset, live.max_offset) == (-2, 4)


def test_sources_follow_each_other_in_a_batch(store, make_store):
    others = make_store([2, 6], ALL, finals=True, first=7)
    fields = {**FIELDS, "store_index": None, "episode_index": [0, 1]}
    sources = [ViewSource(View(others)), ViewSource(View([store, others])), ViewSource(View(store))]
    live = PlaceReader(sources, fields)
    reader = WindowReader(View([others, store, others, store]), fields)
    rng = np.random.default_rng(1)
    chosen = [rng.integers(0, source.index.num_anchors, n) for n, source in zip((5, 0, 9), sources, strict=True)]
    batch = live.read_places([source.places(each) for source, each in zip(sources, chosen, strict=True)])
    # the parts of the view: others, store, others, store
    parts = reader.index.part_starts
    assert_same(batch, reader.read(np.concatenate([chosen[0], chosen[2] + parts[3]])))


def test_empty_batches_and_wrong_numbers_of_sources(store):
    source = ViewSource(View(store))
    live = PlaceReader([source, source], {"reward": None})
    nothing = source.places(np.empty(0, np.int64))
    assert live.read_places([nothing, nothing])["reward"].shape == (0,)
    with pytest.raises(WindowError, match="places of 1 sources, 2 are needed"):
        live.read_places([nothing])
    with pytest.raises(WindowError, match="Give at least one"):
        PlaceReader([], {"reward": None})


def make_live(tmp_path, **options):
    schema = Schema({"x": Array(3, "int64", final=True), "text": stepwell.Text()})
    return stepwell.create(tmp_path / "live.well", schema, **options)


def step_of(number: int):
    return {"x": np.full(3, number), "text": str(number)}


def history_of(store):
    from stepwell.replay.history import History

    history = History(store)
    history.advance()
    return history


def all_places(history, index):
    return history.places(*history.find(index.step_ids(np.arange(index.num_anchors))))


@pytest.mark.parametrize("max_maps", [1, 1000])
def test_a_store_that_grows_is_read_like_one_that_stands_still(tmp_path, max_maps):
    store = make_live(tmp_path, segment_bytes=20_000)
    history = None
    number = 0
    with store.writer() as writer:
        for _ in range(30):
            for _ in range(70):
                writer.append(**step_of(number))
                number += 1
            if history is None:
                history = history_of(store)
                live = PlaceReader([history], PLAIN, max_maps=max_maps)
            writer.end_episode(truncated=True, final={"x": np.full(3, -number)})
            history.advance()
            store.refresh()
            reader = WindowReader(View(store), PLAIN)
            places = all_places(history, reader.index)
            assert_same(live.read_places([places]), reader.read(np.arange(reader.index.num_anchors)))
    assert len(history.segments) > 2


def test_what_is_open_is_read_as_far_as_it_was_seen(tmp_path):
    store = make_live(tmp_path)
    with store.writer() as writer:
        writer.append(**step_of(0))
        history = history_of(store)
        live = PlaceReader([history], PLAIN)
        writer.append(**step_of(1))
        assert live.read_places([history.places([0], [0])])["x"][0, :, 0].tolist() == [0, 0, 0]
        history.advance()
        assert live.read_places([history.places([0], [0])])["x"][0, :, 0].tolist() == [0, 0, 1]


def test_a_view_and_a_history_share_a_batch(tmp_path):
    store = make_live(tmp_path)
    with store.writer() as writer:
        for number in range(5):
            writer.append(**step_of(number))
        store.refresh()
        history, view = history_of(store), ViewSource(View(store))
        live = PlaceReader([view, history], PLAIN)
        for number in range(5, 9):
            writer.append(**step_of(number))
        history.advance()
        batch = live.read_places([view.places(np.array([1, 3])), history.places([0], [7])])
        assert batch["x"][:, 1, 0].tolist() == [1, 3, 7]
        assert batch["x_is_pad"].tolist() == [[False] * 3] * 3
        assert batch["text"].tolist() == ["1", "3", "7"]


def test_threads_read_while_the_store_grows(tmp_path):
    store = make_live(tmp_path, segment_bytes=30_000)
    writer = store.writer()
    writer.append(**step_of(0))
    history = history_of(store)
    live, wrong, places = PlaceReader([history], PLAIN), [], [history.places([0], [0])]
    stop = threading.Event()

    def read():
        while not stop.is_set():
            chosen = places[0]
            batch = live.read_places([chosen])
            # one episode a hundred steps, each value its number
            if not np.array_equal(batch["x"][:, 1, 0], batch["text"].astype(np.int64)):
                wrong.append(chosen)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 5000):
            writer.append(**step_of(number))
            if number % 100 == 0:
                writer.end_episode(truncated=True)
                history.advance()
                episodes = np.random.default_rng(number).integers(0, history.num_seen, 64)
                episodes = episodes[episodes > 0]
                rows = history.records[episodes - history.base, 2]
                places[0] = history.places(episodes, rows)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    writer.close()
    assert not wrong
    assert len(history.segments) > 3


def test_no_thread_reads_while_another_takes_in_segments(tmp_path):
    store = make_live(tmp_path)
    writer = store.writer()
    writer.append(**step_of(0))
    history = history_of(store)
    live = PlaceReader([history], PLAIN)
    follow, errors = live._follow, []
    live.read_places([history.places([0], [0])])
    # more segments than there is room for
    others = [store.writer() for _ in range(4)]
    for number, each in enumerate(others, 1):
        each.append(**step_of(number))
    history.advance()
    last = history.num_seen - 1
    places = history.places([last], [history.records[last - history.base, 2]])

    def read():
        try:
            live.read_places([places])
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=read)

    def follow_slowly():
        live._follow = follow
        # sources are current from here on, and nothing else is
        live.sources.state()
        other.start()
        other.join(0.2)
        follow()

    live._follow = follow_slowly
    live.read_places([places])
    other.join()
    for each in (writer, *others):
        each.close()
    assert len(history.segments) == 5
    assert not errors


def test_maps_that_were_outgrown_or_went_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.replay.history.LEAVE_SECONDS", 0.0)
    store = make_live(tmp_path)
    with store.writer() as writer:
        writer.append(**step_of(0))
        history = history_of(store)
        live = PlaceReader([history], {"x": None, "text": None})
        before = num_maps(store.path)
        live.read_places([history.places([0], [0])])
        first = num_maps(store.path) - before
        assert first == 3
        for number in range(20_000):
            writer.append(**step_of(number))
        history.advance()
        assert live.read_places([history.places([0], [20_000])])["text"].tolist() == ["19999"]
        gc.collect()
        assert num_maps(store.path) - before == first
    history.advance()
    store.refresh()
    store.delete_episodes(0)
    store.compact()
    history.advance()
    history.advance()
    live.read_places([history.places(np.empty(0, np.int64), np.empty(0, np.int64))])
    gc.collect()
    assert num_maps(store.path) - before <= 0


def test_a_segment_that_went_before_it_was_read_is_a_clear_error(tmp_path):
    store = make_live(tmp_path)
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros((2, 3), np.int64), "text": ["a", "b"]})
    history = history_of(store)
    live, places = PlaceReader([history], {"x": None}), history.places([0], [0])
    store.refresh()
    store.delete_episodes(0)
    store.compact()
    with pytest.raises(LoaderError, match=r"episode 0, step 0: segment .* was removed since") as caught:
        live.read_places([places])
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_the_segments_of_a_ring_are_mapped_before_they_can_go(tmp_path):
    store = make_live(tmp_path, capacity=2000)
    with store.writer() as writer:
        for number in range(1500):
            writer.append(**step_of(number))
            if number % 50 == 49:
                writer.end_episode(truncated=True)
        history = history_of(store)
        live, places = PlaceReader([history], {"x": None}), history.places([0], [3])
        for number in range(1500, 9000):
            writer.append(**step_of(number))
            if number % 50 == 49:
                writer.end_episode(truncated=True)
        assert not (store.path / "segments" / history.segments[0].name).exists()
        assert live.read_places([places])["x"][0, 0] == 3


def test_a_ring_is_followed_for_long_with_few_maps(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.replay.history.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("stepwell.store.ring.LEAST_ROWS", 20)
    monkeypatch.setattr("stepwell.store.ring.LEAST_BYTES", 1)
    store = make_live(tmp_path, capacity=300)
    with store.writer() as writer:
        writer.append(**step_of(0))
        history = history_of(store)
        live = PlaceReader([history], {"x": [-1, 0], "text": None, "step_index": None})
        first = num_maps(store.path)
        for number in range(1, 3001):
            writer.append(**step_of(number))
            if number % 30 == 29:
                writer.end_episode(truncated=True)
            if number % 50 == 0:
                if number % 1000 == 0:
                    # what readers follow is what was sealed and evicted when they looked last, not what is by now
                    wait_for_seals()
                history.advance()
                records = history.records[: history.num_seen - history.base]
                bounds = enumerate(records[:, [2, 3]].tolist(), history.base)
                pairs = [(episode, row) for episode, (lo, hi) in bounds for row in range(lo, hi)]
                assert len(pairs) == min(number + 1, 300)
                batch = live.read_places([history.places(*np.array(pairs).T)])
                values = np.arange(number + 1 - len(pairs), number + 1)
                assert np.array_equal(batch["x"][:, 1, 0], values)
                assert np.array_equal(batch["text"].astype(np.int64), values)
                assert np.array_equal(batch["step_index"], values % 30)
            if number % 1000 == 0:
                gc.collect()
                assert num_maps(store.path) <= first + 3 * 16
    assert history.segments.count(None) > 20
