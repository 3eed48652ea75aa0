"""Any sequence of recording and maintenance shows what a plain list would."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import warm_children
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError, ReadOnlyError, StoreBusyError
from stepwell.store.maintenance import maintained_store
from stepwell.store.verify import verify_store

OPERATIONS = st.one_of(
    st.tuples(st.just("record"), st.integers(1, 6)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 10**6), max_size=4)),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("add"), st.none()),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("concatenate"), st.none()),
)


class Model:
    """A store next to the list of its episodes' numbers; each episode knows its number in every added column."""

    def __init__(self, folder, wells):
        self.folder, self.wells = folder, wells
        self.store = stepwell.create(folder / "0.well", wells.features, segment_bytes=300)
        self.numbers: list[int] = []
        self.recorded = self.made = 0
        self.added: list[str] = []

    def record(self, count):
        with self.store.writer() as writer:
            for _ in range(count):
                number = self.recorded % 90
                columns = self.wells.episode_of(number, 1 + number % 4)
                for name in self.added:
                    columns[name] = [f"{name} {number}"] * (1 + number % 4)
                writer.add_episode(columns, truncated=bool(number % 3), number=number)
                if number % 4 == 0:
                    writer.append_batch({name: columns[name][:1] for name in columns})
                    writer.discard_episode()
                self.numbers.append(number)
                self.recorded += 1
        self.store.refresh()

    def delete(self, indices):
        indices = sorted({index % len(self.numbers) for index in indices}) if self.numbers else []
        assert self.store.delete_episodes(indices) == len(indices)
        self.numbers = [number for index, number in enumerate(self.numbers) if index not in indices]

    def compact(self, _):
        self.store.compact()
        assert self.store.compact() == 0

    def add(self, _):
        name = f"added{len(self.added)}"
        self.store.add_column(name, stepwell.Text(), lambda e: [f"{name} {e.metadata['number']}"] * e.length)
        self.added.append(name)

    def checkpoint(self, _):
        self.made += 1
        self.store = stepwell.open(self.store.checkpoint(self.folder / f"{self.made}.well"))

    def concatenate(self, _):
        if len(self.numbers) < 50:
            self.made += 1
            self.store = stepwell.concatenate(self.folder / f"{self.made}.well", [self.store, self.store])
            self.numbers += self.numbers

    def check(self):
        for store in (self.store, stepwell.open(self.store.path, mode="r")):
            assert self.wells.shown(store) == self.numbers
            for name in self.added:
                assert [episode[name][0] for episode in store] == [f"{name} {number}" for number in self.numbers]
            expected = np.concatenate([np.full(1 + n % 4, n, float) for n in self.numbers] or [[]])
            statistics = store.statistics(names=["action"])
            if self.numbers:
                assert statistics["action"].mean[0] == pytest.approx(expected.mean())
        self.wells.assert_sound(self.store)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=3, max_size=12))
def test_any_sequence_of_operations_shows_what_a_list_would(wells, operations):
    with tempfile.TemporaryDirectory(dir=wells.folder) as folder:
        model = Model(Path(folder), wells)
        for name, argument in operations:
            getattr(model, name)(argument)
            model.check()


def test_what_a_dead_owner_left_is_cleaned_up_by_the_next_open_and_a_live_one_is_left_alone(wells):
    store = wells.make()
    staging = store.path / "staging"
    with maintained_store(str(store.path)):
        (staging / "half").mkdir()
        stepwell.open(store.path)
        assert (staging / "half").exists()
        with pytest.raises(StoreBusyError, match="being compacted"):
            store.add_column("more", stepwell.Array(), lambda episode: np.zeros(episode.length, "float32"))
    assert not staging.exists()
    (staging / "half").mkdir(parents=True)
    stepwell.open(store.path, mode="r")
    assert staging.exists()
    stepwell.open(store.path)
    assert not staging.exists()


@pytest.mark.parametrize(
    ("episodes", "kept"),
    [
        (2, [0, 1, 3, 4, 5, 6]),
        (-1, [0, 1, 2, 3, 4, 5]),
        ([0, 0, -7, 3], [1, 2, 4, 5, 6]),
        (slice(1, None, 2), [0, 2, 4, 6]),
        (np.arange(7) > 4, [0, 1, 2, 3, 4]),
        ([], [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_deleted_episodes_are_not_shown(wells, episodes, kept):
    store = wells.make()
    follower = stepwell.open(store.path, mode="r")
    assert store.delete_episodes(episodes) == 7 - len(kept)
    assert wells.shown(store) == kept
    assert len(follower) == 7
    assert follower.refresh() == (len(kept) < 7)
    assert wells.shown(follower) == kept
    assert wells.shown(stepwell.open(store.path)) == kept
    wells.assert_sound(store)


def test_deleting_again_counts_what_is_shown_now(wells):
    store = wells.make()
    for left in range(6, -1, -1):
        store.delete_episodes(0)
        assert wells.shown(store) == list(range(7 - left, 7))


@pytest.mark.parametrize("episodes", [7, -8, [0, 9], [0.5], "1", np.zeros((2, 2), int), np.array([True, False])])
def test_what_is_no_episode_is_refused_and_nothing_deleted(wells, episodes):
    store = wells.make()
    with pytest.raises(EpisodeNotFoundError):
        store.delete_episodes(episodes)
    assert len(stepwell.open(store.path)) == 7


def test_an_episode_being_recorded_cannot_be_deleted_until_it_ends(wells):
    store = wells.make(range(2))
    with store.writer() as writer:
        writer.append_batch(wells.episode_of(4, 3) | {"observation": np.arange(3)})
        store.refresh()
        with pytest.raises(StoreBusyError, match="still being recorded"):
            store.delete_episodes(2)
        writer.end_episode(number=4)
        store.refresh()
        store.delete_episodes(2)
        assert wells.shown(store) == [0, 1]
    store.refresh()
    assert wells.shown(store) == [0, 1]


def test_statistics_leave_deleted_episodes_out(wells):
    store = wells.make()
    store.delete_episodes([5, 6])
    assert store.statistics()["action"].max.tolist() == [4, 4]


def test_processes_that_delete_at_the_same_time_all_count(wells):
    store = wells.make(range(40), segment_bytes=3000)
    script = (
        "import sys, stepwell\nstore = stepwell.open(sys.argv[1])\nfor index in range(int(sys.argv[2]), 40, 4):\n"
        "    store.delete_episodes([i for i, e in enumerate(store) if e.metadata['number'] == index])\n"
    )
    children = [
        warm_children.Popen([sys.executable, "-c", script, str(store.path), str(number)]) for number in range(3)
    ]
    assert [child.wait(timeout=240) for child in children] == [0, 0, 0]
    store.refresh()
    assert wells.shown(store) == list(range(3, 40, 4))


def test_a_store_opened_for_reading_is_refused(wells):
    store = wells.make()
    with pytest.raises(ReadOnlyError):
        stepwell.open(store.path, mode="r").delete_episodes(0)


@pytest.mark.parametrize("file", ["deleted.npy", "arrangement.json"])
def test_every_flipped_bit_and_every_cut_of_the_stores_own_lists_is_found(wells, file):
    store = wells.make(range(2), discard=True)
    store.compact()
    store.delete_episodes([0])
    path = store.path / file
    good = path.read_bytes()
    damaged = [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))]
    # without the whole checksum the list itself is complete
    damaged += [good[:size] for size in range(len(good)) if size != len(good) - 16 or file != "deleted.npy"]
    for data in damaged:
        path.write_bytes(data)
        findings = verify_store(store).findings
        assert [finding.file for finding in findings] == [file], (findings, data)
        with pytest.raises(CorruptSegmentError, match=file):
            stepwell.Store(str(store.path))
    path.write_bytes(good)
    wells.assert_sound(store)


def test_numpy_reads_the_list(wells):
    store = wells.make()
    ids = [store[index].first_step_id for index in (2, 5)]
    store.delete_episodes([2, 5])
    assert np.load(store.path / "deleted.npy").tolist() == ids
