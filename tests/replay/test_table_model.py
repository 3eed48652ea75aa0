"""A table against a model of plain lists: whatever is recorded, drawn, updated and deleted, in whatever order."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import RateLimitError
from stepwell.replay.contents import Counts, joined_samples
from stepwell.replay.limiters import MinSize, Queue, SampleToInsertRatio
from stepwell.replay.tables import Table
from stepwell.schema import Array


class ModelItem:
    def __init__(self, number, step, priority, touched):
        self.number, self.step, self.priority, self.touched, self.times = number, step, priority, touched, 0


class ModelTable:
    """Reverb's rules, one item at a time. Items are named by their steps; none is drawn by chance."""

    def __init__(self, max_size, sampler, remover, max_times, limiter):
        self.max_size, self.sampler, self.remover = max_size, sampler, remover
        self.max_times, self.limiter = max_times, limiter
        self.items, self.pending, self.counts = [], [], Counts()
        self.clock, self.largest = 0, 1.0

    def tick(self):
        self.clock += 1
        return self.clock

    def choose(self, rule):
        by = {
            "fifo": lambda item: item.number,
            "lifo": lambda item: -item.number,
            "max_heap": lambda item: (-item.priority, item.touched),
            "min_heap": lambda item: (item.priority, item.touched),
        }[rule]
        return min(self.items, key=by)

    def remove(self, item):
        self.items.remove(item)
        self.counts.deletes += 1

    def let_in(self):
        while self.pending and self.limiter.can_insert(self.counts):
            self.items.append(ModelItem(self.counts.inserts, self.pending.pop(0), self.largest, self.tick()))
            if len(self.items) > self.max_size:
                self.remove(self.choose(self.remover))
            self.counts.inserts += 1

    def sample(self, count):
        drawn = []
        while len(drawn) < count:
            if not self.limiter.can_sample(self.counts):
                before = self.counts.inserts
                self.let_in()
                if self.counts.inserts == before:
                    break
                continue
            item = self.choose(self.sampler)
            item.times += 1
            self.counts.samples += 1
            drawn.append((item.step, item.times, len(self.items), item.priority))
            if item.times == self.max_times:
                self.remove(item)
        return drawn

    def update(self, step, priority):
        for item in self.items:
            if item.step == step:
                item.priority, item.touched = priority, self.tick()
                self.largest = max(self.largest, priority)

    def delete(self, step):
        for item in [item for item in self.items if item.step == step]:
            self.remove(item)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 7)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 6)),
        st.tuples(
            st.just("update"),
            st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.5, 2.0, 3.0])), max_size=4),
        ),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 40), max_size=3)),
    ),
    min_size=3,
    max_size=14,
)
limiters = st.sampled_from([MinSize(1), MinSize(3), Queue(4), SampleToInsertRatio(2.0, 3, 4.0)])
orders = st.sampled_from(["fifo", "lifo", "max_heap", "min_heap"])


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(actions, orders, orders, st.integers(3, 8), st.integers(0, 3), limiters)
def test_a_table_does_what_counting_one_by_one_does(
    tmp_path_factory, actions, sampler, remover, max_size, max_times, limiter
):
    store = stepwell.create(tmp_path_factory.mktemp("model") / "model.well", {"value": Array(dtype="int64")})
    table = Table(
        store, max_size=max_size, sampler=sampler, remover=remover, max_times_sampled=max_times, limiter=limiter
    )
    model = ModelTable(max_size, sampler, remover, max_times, limiter)
    keys = {}
    with store.writer() as writer:
        steps, num_open = [], 0
        for action, argument in actions:
            if action == "append":
                for _ in range(argument):
                    steps.append(writer.append(value=len(steps)))
                    num_open += 1
                    if num_open > 1:
                        model.pending.append(len(steps) - 2)
            elif action == "end" and num_open:
                writer.end_episode(terminated=argument)
                num_open = 0
                model.pending.append(len(steps) - 1)
            elif action == "sample":
                model.let_in()
                expected = model.sample(argument)
                check_sample(table, argument, expected, steps)
            elif action == "update":
                chosen = [(step, priority) for step, priority in argument if step in keys]
                table.update_priorities([keys[step] for step, _ in chosen], [priority for _, priority in chosen])
                for step, priority in chosen:
                    model.update(step, priority)
            elif action == "delete":
                chosen = {step for step in argument if step in keys}
                table.delete([keys[step] for step in chosen])
                for step in chosen:
                    model.delete(step)
            table.follow()
            model.let_in()
            check_items(table, model, steps, keys)
    table.history.close()


def check_sample(table, count, expected, steps):
    try:
        sample = table.sample(count, timeout=0)
    except RateLimitError:
        assert len(expected) < count
        if not table._drawn:
            assert not expected
            return
        sample, table._drawn = joined_samples(table._drawn), []
    ids = table.history.step_ids(sample.episodes, sample.rows).tolist()
    assert [
        (steps.index(step), *rest)
        for step, *rest in zip(
            ids, sample.times_sampled.tolist(), sample.table_size.tolist(), sample.priorities.tolist(), strict=True
        )
    ] == expected
    assert (sample.probabilities == 1.0).all()


def check_items(table, model, steps, keys):
    items = table._contents.items
    slots = items.slots
    ids = table.history.step_ids(items.episode[slots], items.row[slots]).tolist()
    found = [
        (steps.index(step), float(items.priority[slot]), int(items.times_sampled[slot]))
        for step, slot in zip(ids, slots, strict=True)
    ]
    assert found == [(item.step, item.priority, item.times) for item in model.items]
    counts = table._contents.counts
    assert (counts.inserts, counts.samples, counts.deletes) == (
        model.counts.inserts,
        model.counts.samples,
        model.counts.deletes,
    )
    assert table.info.num_pending == len(model.pending)
    keys.update((steps.index(step), key) for step, key in zip(ids, items.keys_of(slots).tolist(), strict=True))


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(3, 12),
    st.sampled_from(["uniform", "prioritized(0.5)"]),
    st.integers(0, 2),
    st.integers(0, 2**32),
)
def test_chance_draws_only_what_is_there_with_the_probability_it_tells(
    tmp_path_factory, lengths, max_size, sampler, max_times, seed
):
    store = stepwell.create(tmp_path_factory.mktemp("chance") / "chance.well", {"value": Array(dtype="int64")})
    table = Table(store, max_size=max_size, sampler=sampler, remover="uniform", max_times_sampled=max_times, seed=seed)
    with store.writer() as writer:
        for length in lengths:
            writer.add_episode({"value": np.arange(length)})
            table.follow()
            items = table._contents.items
            table.update_priorities(items.keys_of(items.slots), np.arange(len(items)) % 4)
            left = max_times * table.size - int(items.times_sampled[items.slots].sum())
            check_draws(table, min(left, 9) if max_times else 9, sampler, max_times)
            assert table.size == table._contents.counts.size <= max_size
            assert table._contents.sampler.num == table._contents.remover.num == table.size
    table.history.close()


def check_draws(table, count, sampler, max_times):
    items = table._contents.items
    slots = items.slots
    weights = dict(zip(items.keys_of(slots).tolist(), items.priority[slots].tolist(), strict=True))
    times = dict(zip(weights, items.times_sampled[slots].tolist(), strict=True))
    sample = table.sample(count, timeout=0) if weights else None
    for i, key in enumerate(sample.keys.tolist() if sample else []):
        powers = {k: (w**0.5 if w else 0.0) if sampler != "uniform" else 1.0 for k, w in weights.items()}
        total = sum(powers.values())
        chance = powers[key] / total if total else 1 / len(powers)
        assert sample.probabilities[i] == pytest.approx(chance, rel=1e-9)
        assert sample.table_size[i] == len(weights)
        times[key] += 1
        assert sample.times_sampled[i] == times[key]
        assert math.isclose(sample.priorities[i], weights[key])
        if times[key] == max_times:
            del weights[key]
    assert len(weights) == table.size
