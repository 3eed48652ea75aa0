"""Tables over a store: the conformance list C2 to C15 of the replay semantics, each claim by its number."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import RateLimitError, TableError
from stepwell.replay.extensions import Extension
from stepwell.replay.limiters import MinSize, Queue, SampleToInsertRatio
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import Pattern
from stepwell.replay.selectors import Fifo, Prioritized, Uniform
from stepwell.replay.tables import Table
from stepwell.schema import Array
from stepwell.store import back_pressure


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "steps.well", {"value": Array(dtype="int64")})


def record(store, count=5):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(count)})


def explicit(store, priorities, **options):
    """Make a table of one item a step, with these priorities."""
    record(store, len(priorities))
    table = Table(store, pattern=None, **options)
    keys = [int(table.create_item([step], priority=p)[0]) for step, p in enumerate(priorities)]
    return table, keys


def rows_of(table):
    items = table._contents.items
    return items.row[items.slots].tolist()


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        ("fifo", [0, 1, 2, 3, 4]),
        ("lifo", [4, 3, 2, 1, 0]),
        ("max_heap", [1, 3, 0, 2, 4]),
        ("min_heap", [2, 4, 0, 1, 3]),
    ],
)
def test_c2_orders_with_ties(store, sampler, order):
    table, _ = explicit(store, [5, 7, 3, 7, 3], sampler=sampler, max_times_sampled=1)
    assert table.sample(5).rows.tolist() == order


@pytest.mark.parametrize(
    ("remover", "left"),
    [("fifo", [2, 3, 4]), ("lifo", [0, 1, 2]), ("max_heap", [1, 3, 4]), ("min_heap", [0, 2, 3])],
)
def test_c3_the_newcomer_is_a_candidate_for_removal(store, remover, left):
    table, keys = explicit(store, [5, 1, 9, 4, 2], remover=remover, max_size=3)
    assert rows_of(table) == left
    assert len(set(keys)) == 5
    assert table.info.counts.dropped == 2


@pytest.mark.parametrize(
    ("exponent", "priorities", "chances"),
    [
        (0.5, [1, 4, 9], [1 / 6, 1 / 3, 1 / 2]),
        (1.0, [0, 1, 3], [0, 0.25, 0.75]),
        (1.0, [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]),
        (0.0, [0, 2, 7], [0, 0.5, 0.5]),
    ],
)
def test_c4_prioritized_probabilities(store, exponent, priorities, chances):
    table, _ = explicit(store, priorities, sampler=Prioritized(exponent))
    sample = table.sample(3000)
    np.testing.assert_allclose(sample.probabilities, np.array(chances)[sample.rows], rtol=1e-12)
    np.testing.assert_allclose(np.bincount(sample.rows, minlength=3) / 3000, chances, atol=0.04)


def test_c5_times_sampled_counts_this_one_and_table_size_the_item_itself(store):
    table, keys = explicit(store, [1, 2, 3], sampler="fifo", max_times_sampled=1)
    sample = table.sample(3)
    assert sample.keys.tolist() == keys
    assert sample.table_size.tolist() == [3, 2, 1]
    assert sample.times_sampled.tolist() == [1, 1, 1]
    assert sample.priorities.tolist() == [1, 2, 3]
    assert table.size == 0


def test_c5_max_times_sampled_is_exact_within_one_batch(store):
    table, _ = explicit(store, [1, 1, 1], sampler="uniform", max_times_sampled=4)
    sample = table.sample(12)
    assert np.bincount(sample.rows).tolist() == [4, 4, 4]
    assert table.info.counts.exhausted == 3


def test_c6_a_batch_stops_where_its_own_removals_bring_the_table_below_min_size(store):
    table, _ = explicit(store, [1, 1, 1, 1], sampler="fifo", max_times_sampled=1, limiter=MinSize(3))
    with pytest.raises(RateLimitError, match="2 of the 3 items"):
        table.sample(3, timeout=0)
    assert table.size == 2


def test_c7_a_full_queue_keeps_items_waiting_and_an_empty_one_its_samplers(store):
    record(store, 5)
    queue = Table.queue(store, max_size=3)
    assert queue.size == 3 and queue.follow() == 0
    assert queue.info.num_pending == 2 and not queue.can_insert()
    assert queue.sample(5, timeout=0).rows.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RateLimitError, match="0 of the 1 items"):
        queue.sample(1, timeout=0.01)


def test_c7_a_stack_gives_the_newest_first(store):
    record(store, 5)
    stack = Table.stack(store, max_size=3)

    assert stack.sample(3, timeout=0).rows.tolist() == [2, 1, 0]
    # what waited came in when there was room
    assert stack.sample(2, timeout=0).rows.tolist() == [4, 3]


def test_c7_an_explicit_item_is_refused_whole_when_it_waits_too_long(store):
    record(store, 5)
    table = Table(store, pattern=None, limiter=Queue(2), sampler="fifo", max_times_sampled=1)
    table.create_item([0, 1], 1, timeout=0)
    with pytest.raises(RateLimitError, match="waits for samples"):
        table.create_item([2], timeout=0.01)
    assert table.size == 2
    table.sample(1, timeout=0)
    assert len(table.create_item([2], timeout=0)) == 1
    with pytest.raises(TableError, match="never lets in more than 2"):
        table.create_item([0, 1, 2], 1, timeout=0)


def test_rows_drawn_before_a_time_out_come_first_in_the_next_call(store):
    record(store, 3)
    queue = Table.queue(store, max_size=3)
    with pytest.raises(RateLimitError, match="3 rows were drawn and are the first of the next call"):
        queue.sample(5, timeout=0.01)
    record(store, 3)
    assert queue.sample(2, timeout=0).rows.tolist() == [0, 1]
    # the second episode lies in a segment of its own
    assert queue.sample(3, timeout=0).rows.tolist() == [2, 0, 1]


def test_rows_that_wait_for_the_next_call_go_with_their_steps(tmp_path):
    ring = stepwell.create(tmp_path / "ring.well", {"value": Array(dtype="int64")}, capacity=10)
    queue = Table.queue(ring, max_size=5, pattern=Pattern(ahead=0))
    with ring.writer() as writer:
        for value in range(4):
            writer.append(value=value)
        with pytest.raises(RateLimitError, match="4 rows were drawn"):
            queue.sample(6, timeout=0)
        for value in range(4, 12):
            writer.append(value=value)
        assert queue.sample(4, timeout=0).rows.tolist() == [2, 3, 4, 5]
        drawn = queue.sample(1, timeout=0)
        for value in range(12, 30):
            writer.append(value=value)
        queue.follow()
        with pytest.raises(TableError, match="were evicted since it was drawn"):
            queue.places(drawn)


def test_c10_no_item_spans_two_episodes(store):
    record(store, 3)
    record(store, 3)
    table = Table(store, pattern=None)
    with pytest.raises(TableError, match="not in one episode"):
        table.create_item([2, 3])
    with pytest.raises(TableError, match="follow each other"):
        table.create_item([0, 2])
    assert table.size == 0


def test_c11_tables_over_one_store_do_not_touch_each_other(store):
    record(store, 4)
    first, second = Table(store, "first"), Table(store, "second")
    first.follow(), second.follow()
    first.delete(first.sample(20).keys)
    assert second.size == 4
    first.reset()
    assert second.size == 4 and first.size == 0


def test_c12_updates_of_items_that_are_gone_are_counted_and_never_hit_another(store):
    table, keys = explicit(store, [1, 2, 3])
    assert table.delete([keys[0], keys[0], 2**63]) == 1
    table.create_item([0], priority=1.0)
    assert table.update_priorities([keys[0], keys[1]], [50.0, 60.0]) == 1
    items = table._contents.items
    assert sorted(items.priority[items.slots].tolist()) == [1.0, 3.0, 60.0]
    assert table.info.counts.missed_updates == 1


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf, -np.inf])
@pytest.mark.parametrize("sampler", ["prioritized", "max_heap", "uniform"])
def test_c12_a_bad_priority_is_refused_before_anything_changes(store, bad, sampler):
    table, keys = explicit(store, [1, 2, 3], sampler=sampler)
    for change in (
        lambda: table.update_priorities(keys, [9.0, 9.0, bad]),
        lambda: table.create_item([0], priority=bad),
        lambda: table.mutate(updates={keys[0]: bad}, deletes=keys[1:]),
    ):
        with pytest.raises(TableError, match="finite and not negative"):
            change()
    items = table._contents.items
    assert items.priority[items.slots].tolist() == [1.0, 2.0, 3.0]
    assert len(table.sample(4, timeout=0).keys) == 4


def test_deletes_come_before_updates(store):
    table, keys = explicit(store, [1, 2, 3])
    assert table.mutate(updates={keys[0]: 5.0, keys[1]: 6.0}, deletes=[keys[0]]) == 2
    assert table.info.counts.missed_updates == 1


def test_new_items_get_the_largest_priority_so_far(store):
    table, keys = explicit(store, [1, 2, 3], sampler="prioritized")
    table.update_priorities(keys[:1], [7.5])
    table.update_priorities(keys, 0.25)
    table.create_item([0])
    items = table._contents.items
    assert items.priority[items.slots].tolist() == [0.25, 0.25, 0.25, 7.5]


def test_c15_a_time_out_is_its_own_error_and_says_what_it_waits_for(store):
    record(store, 2)
    table = Table(store, limiter=SampleToInsertRatio(2.0, 3, 4.0))
    began = time.monotonic()
    with pytest.raises(RateLimitError, match="2 of the 3 items") as caught:
        table.sample(1, timeout=0.05)
    assert isinstance(caught.value, TimeoutError) and not isinstance(caught.value, StopIteration)
    assert time.monotonic() - began >= 0.05


def test_a_waiting_sample_takes_what_another_thread_inserts(store):
    record(store, 3)
    table = Table(store, pattern=None)
    threading.Timer(0.05, lambda: table.create_item([1])).start()
    assert table.sample(2, timeout=30).rows.tolist() == [1, 1]


def test_a_table_on_an_old_store_takes_in_all_steps(store):
    record(store, 5)
    record(store, 3)
    assert Table(store).size == 8


def test_the_ring_removes_items_and_counts_them(tmp_path):
    ring = stepwell.create(tmp_path / "ring.well", {"value": Array(dtype="int64")}, capacity=10)
    table, waiting = Table(ring), Table.queue(ring, max_size=2)
    with ring.writer() as writer:
        for value in range(40):
            writer.append(value=value)
            table.follow()
            if value == 9:
                assert waiting.follow() == 2
        writer.end_episode()
    table.follow(), waiting.follow()
    assert table.size == 10 and table.info.counts.evicted == 30
    assert rows_of(table) == list(range(30, 40))
    assert waiting.info.num_pending == 9 and waiting.info.num_missed == 7
    places = table.places(table.sample(64))
    assert places[2].min() >= 30 and (places[3] == 30).all()


class Recorder(Extension):
    def __init__(self):
        self.events = []

    def on_insert(self, table, keys, priorities):
        self.events.append(("insert", len(keys), priorities.tolist()))

    def on_sample(self, table, sample):
        self.events.append(("sample", len(sample.keys)))

    def on_update(self, table, keys, priorities):
        self.events.append(("update", len(keys)))
        # from inside it may call the table
        table.follow()

    def on_remove(self, table, keys):
        self.events.append(("remove", len(keys)))

    def on_reset(self, table):
        self.events.append(("reset",))


class Broken(Extension):
    def on_sample(self, table, sample):
        raise ZeroDivisionError("mine")


def test_extensions_are_told_of_batches_in_order(store):
    record(store, 4)
    recorder = Recorder()
    table = Table(store, max_size=3, extensions=[recorder])
    sample = table.sample(2)
    table.mutate(updates=(sample.keys, 2.0), deletes=[])
    table.reset()
    assert recorder.events == [
        ("insert", 3, [1.0] * 3),
        ("remove", 1),
        ("insert", 1, [1.0]),
        ("sample", 2),
        ("update", 2),
        ("reset",),
    ]


def test_an_error_of_an_extension_leaves_the_table_whole(store):
    record(store, 4)
    recorder = Recorder()
    table = Table(store, extensions=[Broken(), recorder])
    with pytest.raises(ZeroDivisionError) as caught:
        table.sample(2)
    assert "extension of table 'replay'" in caught.value.__notes__[0]
    assert ("sample", 2) in recorder.events
    assert table.info.counts.samples == 2 and table.follow() == 0


def test_info_prints_as_a_table_and_as_json(store):
    record(store, 4)
    table = Table(store, limiter=SampleToInsertRatio(2.0, 2, 4.0))
    table.sample(3)
    info = table.info
    assert info.samples_per_insert == 3 / 4 and info.diff == 5.0 and info.corridor == (0.0, 8.0)
    assert str(info).splitlines()[0] == (
        "<Table replay  4 of 1,000,000 items  uniform  fifo  SampleToInsertRatio(2, 2, 4.0)>"
    )
    assert "0.750" in str(info) and "<table" in info._repr_html_() and repr(table) == info.line
    # as of a store, whose info is called
    assert info() is info
    assert f"{info.counts.unique_samples} distinct items" in str(info)
    assert "limits of diff (0, 8)" in str(info)
    assert info.to_json()["counts"]["samples"] == 3
    assert info.rates.inserts > 0
    assert table.info.rates.inserts == 0 and table.info.rates.overall_inserts > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampler": "best"}, "is not one of uniform"),
        ({"sampler": "uniform(3)"}, "takes a number"),
        ({"remover": "prioritized(x)"}, "takes a number"),
        ({"max_size": 0}, "max_size=0"),
        ({"max_times_sampled": -1}, "max_times_sampled"),
        ({"limiter": 3}, "no Limiter"),
        ({"pattern": "every"}, "no Pattern"),
        ({"limiter": MinSize(9), "max_size": 8}, "Raise max_size"),
        ({"name": "a/b"}, "file's name"),
        ({"name": "a\0b"}, "file's name"),
        ({"name": "é" * 101}, "200 bytes"),
        ({"name": "\udc80"}, "file's name"),
        ({"name": 3}, "name=3"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_that_cannot_be_are_refused(store, options, says):
    with pytest.raises(TableError, match=says):
        Table(store, **options)


def test_a_name_of_200_bytes_becomes_a_file_s(store, tmp_path):
    name = "é" * 100
    path = Table(store, name).checkpoint(tmp_path / "run.ckpt")
    assert Table.restore(path, name).name == name


@pytest.mark.parametrize("count", [0, -1, 2.5, 4.0, True, "4", np.float64(3)])
def test_a_count_that_is_no_whole_number_draws_nothing(store, count):
    record(store)
    table = Table(store)
    with pytest.raises(TableError, match="whole number of rows"):
        table.sample(count)
    assert table.info.counts.samples == 0
    assert len(table.sample(np.int64(2)).keys) == 2


@pytest.mark.parametrize("timeout", [float("nan"), -1, True, "5"])
def test_a_time_out_that_is_no_number_of_seconds_is_refused(store, timeout):
    record(store)
    table = Table(store)
    with pytest.raises(TableError, match="timeout="):
        table.sample(1, timeout=timeout)
    with pytest.raises(TableError, match="timeout="):
        table.create_item([0], timeout=timeout)
    assert table.info.counts.samples == 0 and table.size == 5


def test_a_table_is_not_pickled_and_says_what_to_do(store):
    with pytest.raises(TableError, match="make a table over the same store"):
        pickle.dumps(Table(store))


def test_extensions_are_told_of_steps_that_were_there_while_the_table_is_made(store):
    record(store)
    recorder = Recorder()
    table = Table(store, extensions=[recorder])
    assert recorder.events == [("insert", 5, [1.0] * 5)] and table.size == 5


def test_a_long_wait_without_a_time_out_is_logged_once_and_says_what_for(store, monkeypatch, caplog):
    monkeypatch.setattr(back_pressure, "SILENT_SECONDS", 0.02)
    record(store)
    table = Table(store, limiter=MinSize(6))

    def record_later():
        deadline = time.monotonic() + 20
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        record(store)

    actor = threading.Thread(target=record_later)
    with caplog.at_level("WARNING", "stepwell.replay"):
        actor.start()
        table.sample(1)
        actor.join()
    (message,) = caplog.messages
    assert "without a time-out" in message and "the table has 5 of the 6 items" in message


def test_a_wait_with_a_time_out_is_not_logged(store, monkeypatch, caplog):
    monkeypatch.setattr(back_pressure, "SILENT_SECONDS", 0.01)
    table = Table(store)
    with caplog.at_level("WARNING", "stepwell.replay"), pytest.raises(RateLimitError):
        table.sample(1, timeout=0.05)
    assert not caplog.messages


def test_a_selector_serves_one_table(store):
    selector = Uniform()
    with pytest.raises(TableError, match="one object"):
        Table(store, sampler=selector, remover=selector)
    record(store, 2)
    Table(store, sampler=selector, remover=Fifo()).follow()
    with pytest.raises(TableError, match="another table's already"):
        Table(store, sampler=selector)
    empty = Uniform()
    Table(store, sampler=empty)
    with pytest.raises(TableError, match="another table's already"):
        Table(store, remover=empty)


def test_c12_a_key_of_one_table_finds_nothing_in_another(store):
    record(store, 2000)
    table, other = Table(store), Table(store, "other")
    keys = np.unique(table.sample(4000).keys)
    assert other.size == 2000
    assert other.delete(keys) == 0
    assert table.delete(keys.astype(np.int64)) == len(keys)


def test_c12_priorities_that_are_no_numbers_are_refused(store):
    table, keys = explicit(store, [1, 2])
    for bad in (["a", "b"], [1.0, None], [[1.0], [2.0, 3.0]]):
        with pytest.raises(TableError, match="Nothing was changed"):
            table.update_priorities(keys, bad)


def test_sampling_and_updating_threads_with_a_writer_leave_a_whole_table(store):
    table = Table(store, sampler="prioritized", max_size=500, pattern=Pattern(ahead=0))
    record(store, 10)
    failed, stop = [], threading.Event()

    def learn(seed):
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                sample = table.sample(32, timeout=30)
                assert table.places(sample).shape == (6, 32)
                table.update_priorities(sample.keys, rng.uniform(0, 5, 32))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    with store.writer() as writer:
        for value in range(3000):
            writer.append(value=value)
            if value % 100 == 99:
                writer.end_episode()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    table.follow()
    assert table.info.counts.inserts == 3010 and table.size == 500
    items = table._contents.items
    draws = table.sample(1000)
    weights = items.priority[items.slots] ** 0.6
    of = dict(zip(items.keys_of(items.slots).tolist(), (weights / weights.sum()).tolist(), strict=True))
    np.testing.assert_allclose(draws.probabilities, [of[key] for key in draws.keys.tolist()], rtol=1e-9)


WRITER = """
import sys, stepwell
store = stepwell.open(sys.argv[1])
with store.writer() as writer:
    print("ready", flush=True)
    sys.stdin.readline()
    for value in range(4000):
        writer.append(value=value)
        if value % 50 == 49:
            writer.end_episode()
"""


def test_sampling_while_another_process_writes_sees_every_step_once(store):
    with warm_children.Popen(
        [sys.executable, "-c", WRITER, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        table = Table(store, sampler="prioritized")
        process.stdin.write("\n")
        process.stdin.flush()
        while table.size < 4000:
            sample = table.sample(16, timeout=60)
            places = table.places(sample)
            # the anchor is a committed step of its episode
            assert ((places[3] <= places[2]) & (places[2] < places[4])).all()
            table.update_priorities(sample.keys, 1.0)
        assert process.wait(60) == 0
    assert table.follow() == 0
    assert rows_of(table) == list(range(4000))


INTERRUPTED = """
import sys, threading, stepwell
from stepwell.replay.tables import Table
table = Table(stepwell.open(sys.argv[1]))
print("ready", flush=True)
try:
    table.sample(1)
except KeyboardInterrupt:
    assert not table._lock.locked()
    print("ended", table.size, table.follow())
"""


def test_ctrl_c_ends_a_wait_cleanly(store):
    with warm_children.Popen(
        [sys.executable, "-c", INTERRUPTED, str(store.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ended 0 0\n"
        assert process.wait(60) == 0


# one thread that writes and draws


@pytest.mark.parametrize("is_ring", [True, False])
@pytest.mark.parametrize("way", ["sample", "loader", "prefetch"])
def test_a_thread_that_would_wait_for_its_own_steps_is_told_at_once(tmp_path, is_ring, way):
    options = {"capacity": 5_000} if is_ring else {}
    own = stepwell.create(tmp_path / "own.well", {"x": Array()}, segment_bytes=400, **options)
    table = Table(own, limiter=MinSize(150))
    loader = ReplayLoader(table, {"x": "x"}, batch_size=4, prefetch=3 if way == "prefetch" else None)
    draw = (lambda: table.sample(4)) if way == "sample" else (lambda: next(loader))
    num_refused = 0
    with own.writer() as writer:
        for n in range(200):
            writer.append(x=n)
            if n % 40 == 39:
                # also where its segment is full, and it has no other yet
                writer.end_episode()
            if n % 20 in {0, 19}:
                try:
                    draw()
                except RateLimitError as error:
                    assert "wait for itself" in str(error) and "of the 150 items" in str(error)
                    num_refused += 1
    assert num_refused == 15 and table.info.counts.samples >= 20


def test_a_thread_beside_another_writer_waits_for_it(tmp_path):
    own = stepwell.create(tmp_path / "own.well", {"x": Array()}, capacity=5_000)
    table = Table(own, limiter=MinSize(30))
    mine, other = own.writer(), own.writer()
    mine.append(x=0)

    def act() -> None:
        for n in range(40):
            other.append(x=n)
            time.sleep(0.001)
        other.close()

    # one that nobody has used yet may be any thread's
    thread = threading.Thread(target=act)
    thread.start()
    assert len(table.sample(4).keys) == 4
    thread.join()
    mine.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_thread_waits_for_a_writer_of_another_process_until_that_one_is_killed(tmp_path):
    own = stepwell.create(tmp_path / "own.well", {"x": Array()}, capacity=5_000)
    table = Table(own, limiter=MinSize(30))
    mine = own.writer()
    mine.append(x=0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            writer = stepwell.open(own.path).writer()
            writer.append(x=0)
            os.write(write, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
    assert os.read(read, 1) == b"x"
    killer = threading.Timer(0.1, os.kill, (child, signal.SIGKILL))
    killer.start()
    with pytest.raises(RateLimitError, match="wait for itself"):
        table.sample(4)
    assert os.waitpid(child, 0)[0] == child
    mine.close()
    os.close(read)
    os.close(write)
