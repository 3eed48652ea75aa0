"""Batches that were read before they were drawn are those that would come one by one."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import LoaderError, RateLimitError
from stepwell.replay import Pattern, ReplayLoader, SampleToInsertRatio, Table, transition_fields
from stepwell.replay.speculation import MOST_AHEAD

BATCH = 4
FIELDS = {"step_id": [0, 1], "action": [-1, 0], "is_last": 0}
BACKWARDS = {"step_id": [-1, 0], "is_last": 0}
CHANGES = ("append", "end", "update", "delete", "sample", "create", "reset", "reload", "drop_episode")
OPTIONS = {
    "all steps": {},
    "some steps": {"pattern": Pattern(every=3), "max_size": 5},
    "made by hand": {"pattern": None},
    "paid for": {"limiter": SampleToInsertRatio(6.0, 2, 24.0)},
}


class Pair:
    """Two tables of one store that go through the same; the loader of the second one does not speculate."""

    def __init__(self, path: Path, options: dict, **loading) -> None:
        self.store = stepwell.create(path / "walk.well", capacity=30)
        self.writer = self.store.writer()
        self.append(6)
        self.tables = [Table(self.store, seed=5, **options) for _ in range(2)]
        for table in self.tables:
            if table.pattern is None:
                # whether it is the last step of its episode is not known yet
                table.create_item([self.last], priority=1.0)
        self.loaders = [
            ReplayLoader(
                table,
                FIELDS if table.pattern else BACKWARDS,
                batch_size=BATCH,
                timeout=0,
                beta=(0.4, 1.0, 100),
                **loading,
            )
            for table in self.tables
        ]
        assert self.loaders[1]._speculate is not None
        self.loaders[1]._speculate = None
        self.kept: list[tuple] = []

    def append(self, number: int) -> None:
        for _ in range(number):
            self.last = self.writer.append(action=np.random.default_rng(number).normal())
        # what two tables see is then the same
        time.sleep(0.0005)

    def draw(self) -> None:
        found = []
        for loader in self.loaders:
            try:
                found.append(next(loader))
            except RateLimitError:
                found.append({})
        ours, theirs = found
        assert ours.keys() == theirs.keys()
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
            assert ours[key].dtype == theirs[key].dtype
        self.kept.append((ours, {key: value.copy() for key, value in ours.items()}))

    def change(self, what: str, number: int) -> None:
        keys = self.kept[-1][0].get("table.key", np.zeros(0, np.uint64)) if self.kept else np.zeros(0, np.uint64)
        if what == "append":
            self.append(number)
        elif what == "end":
            self.writer.end_episode()
            self.append(1)
        elif what == "drop_episode":
            self.drop_oldest()
        elif what == "reload":
            for loader in self.loaders:
                loader.load_state_dict(loader.state_dict())
        for table in self.tables:
            if what == "update":
                table.update_priorities(keys, np.arange(len(keys)) + float(number))
            elif what == "delete":
                table.delete(keys[:number])
            elif what == "sample" and table.can_sample(number):
                table.sample(number)
            elif what == "create" and table.can_insert(1):
                table.create_item([self.last], priority=number)
            elif what == "reset":
                table.reset()

    def drop_oldest(self) -> None:
        self.store.refresh()
        ended = np.flatnonzero(~self.store.episodes.is_open)[:1]
        if len(ended):
            self.store.delete_episodes(ended)
            time.sleep(0.0005)

    def check(self) -> None:
        """Check what is left behind: the tables' states, and the batches that somebody kept."""
        ours, theirs = (table.state_arrays() for table in self.tables)
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
        assert self.tables[0].info.counts == self.tables[1].info.counts
        assert self.loaders[0].state_dict() == self.loaders[1].state_dict()
        for batch, copy in self.kept:
            for key, value in copy.items():
                np.testing.assert_array_equal(batch[key], value)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()
        self.writer.close()


@pytest.mark.parametrize("name", OPTIONS)
@given(
    story=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(CHANGES), st.integers(1, 9)), min_size=2, max_size=8),
    clip=st.sampled_from(["episode", "item"]),
)
@settings(deadline=None, max_examples=12)
def test_batches_and_tables_are_the_same_whatever_happens_between(name, story, clip):
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory), OPTIONS[name], clip=clip)
        try:
            for draws, what, number in story:
                for _ in range(draws):
                    pair.draw()
                pair.change(what, number)
            pair.draw()
            pair.check()
        finally:
            pair.close()


@pytest.fixture
def table(tmp_path):
    store = stepwell.create(tmp_path / "walk.well")
    with store.writer() as writer:
        writer.add_episode({"observation": np.arange(50.0), "action": np.arange(50), "reward": np.ones(50)})
    return Table(store)


def test_only_what_was_handed_out_is_counted(table):
    loader = ReplayLoader(table, batch_size=BATCH)
    for number in range(1, 2 * MOST_AHEAD + 4):
        next(loader)
        assert table.info.counts.samples == number * BATCH
    assert loader._source._foreseen.number == MOST_AHEAD
    assert loader.max_staleness == 0


def test_a_change_ends_what_was_read_ahead(table):
    loader = ReplayLoader(table, batch_size=BATCH)
    for _ in range(MOST_AHEAD + 1):
        batch = next(loader)
    table.delete(batch["table.key"])
    assert not np.isin(next(loader)["table.key"], batch["table.key"]).any()
    assert loader._source._foreseen.number == 1


def test_transforms_get_each_batch_when_it_is_drawn(table):
    seen = []

    def note(batch, rng):
        seen.append((table.info.counts.samples, rng.integers(1000), *batch["table.key"].tolist()))
        return batch

    targets = transition_fields()
    loader = ReplayLoader(table, targets.fields, batch_size=BATCH, transform=[targets.transform, note])
    for number in range(1, 12):
        batch = next(loader)
        assert seen[-1][0] == number * BATCH
        np.testing.assert_array_equal(batch["observation"], batch["action"])
    again = ReplayLoader(Table(table.store), targets.fields, batch_size=BATCH, transform=[targets.transform, note])
    again._speculate = None
    for _ in range(11):
        next(again)
    assert [each[1:] for each in seen[:11]] == [each[1:] for each in seen[11:]]


@pytest.mark.parametrize(
    "options",
    [{"sampler": "prioritized"}, {"max_times_sampled": 3}],
    ids=str,
)
def test_nothing_is_read_ahead_of_tables_whose_draws_depend_on_more(table, options):
    loader = ReplayLoader(Table(table.store, **options), batch_size=BATCH)
    assert loader._speculate is None
    next(loader)


def test_a_batch_that_can_be_read_comes_although_a_later_one_cannot(table, monkeypatch):
    loader, plain = (ReplayLoader(Table(table.store), batch_size=BATCH) for _ in range(2))
    plain._speculate = None
    for number in range(12):
        if number == 3:

            def fail(*_):
                raise LoaderError("a row of a later batch is gone.")

            monkeypatch.setattr(type(loader._source._builder), "fetch", fail)
        np.testing.assert_array_equal(next(loader)["action"], next(plain)["action"])


@pytest.mark.parametrize("is_by_row", [False, True])
def test_a_transform_that_says_it_goes_by_rows_is_called_once_for_batches_that_are_read_together(tmp_path, is_by_row):
    sizes = []

    def doubled(batch):
        sizes.append(len(batch["value"]))
        return batch | {"double": batch["value"] * 2}

    doubled.is_by_row = is_by_row
    store = stepwell.create(tmp_path / "steps.well", {"value": stepwell.Array(dtype="int64")})
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(100)})
    loader = ReplayLoader(Table(store), {"value": "value"}, batch_size=8, prefetch=4, transform=doubled)
    for _ in range(8):
        batch = next(loader)
        assert batch["double"].shape == (8,)
        np.testing.assert_array_equal(batch["double"], 2 * batch["value"])
    assert sizes == ([32, 32] if is_by_row else [8] * 8)
