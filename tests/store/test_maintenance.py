"""Any sequence of recording and maintenance shows what a plain list would."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import StoreBusyError
from stepwell.store.maintenance import maintained_store

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
