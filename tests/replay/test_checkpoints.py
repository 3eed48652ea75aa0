"""Checkpoints of tables with their store (C13): all of it comes back, whole, and nothing else is touched."""

import json
import sys

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import CorruptSegmentError, RateLimitError, StoreExistsError, StoreNotFoundError, TableError
from stepwell.replay.checkpoints import checkpoint, load, restore, save
from stepwell.replay.limiters import SampleToInsertRatio
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import Pattern, steps_since_applied
from stepwell.replay.selectors import Fifo
from stepwell.replay.tables import Table
from stepwell.schema import Array

SAMPLERS = ["uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized(0.5)"]


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "steps.well", {"value": Array(dtype="int64")})


def used(table):
    """Draw, update and delete, so that no number is a default."""
    for _ in range(3):
        sample = table.sample(5)
        table.update_priorities(sample.keys, np.arange(1, 6) / 2)
    table.delete(table.sample(1).keys)


def contents(table):
    items = table._contents.items
    slots = items.slots
    return (
        items.keys_of(slots).tolist(),
        table.history.step_ids(items.episode[slots], items.row[slots]).tolist(),
        [
            getattr(items, name)[slots].tolist()
            for name in ("length", "priority", "times_sampled", "sequence", "touched")
        ],
        table._contents.counts,
        table._contents.largest,
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_c13_keys_order_priorities_and_counts_survive(store, tmp_path, sampler):
    with store.writer() as writer:
        for length in (4, 9, 3):
            writer.add_episode({"value": np.arange(length)})
        table = Table(store, max_size=12, sampler=sampler, remover="min_heap", seed=3)
        used(table)
        gone = table.sample(1)
        table.delete(gone.keys)
        path = table.checkpoint(tmp_path / "run.ckpt")
        again = Table.restore(path)
    assert contents(again) == contents(table)
    assert again.settings == table.settings
    assert again.follow() == 0
    assert again.update_priorities(gone.keys, 9.0) == 0
    if sampler not in ("uniform", "prioritized(0.5)"):
        again_drawn, drawn = (each._contents.sampler.pop(each.size, 0, 0) for each in (again, table))
        assert again_drawn.tolist() == drawn.tolist()
        dropped = [each._contents.remover.pop(each.size, 0, 0).tolist() for each in (again, table)]
        assert dropped[0] == dropped[1]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("remover", ["fifo", "uniform", "prioritized"])
def test_a_restored_table_draws_what_the_other_one_draws(store, tmp_path, sampler, remover):
    with store.writer() as writer:
        for length in (9, 14, 6, 11):
            writer.add_episode({"value": np.arange(length)})
    table = Table(store, max_size=20, sampler=sampler, remover=remover, seed=3)
    used(table)
    again = Table.restore(table.checkpoint(tmp_path / "run.ckpt"))
    for each in (table, again):
        with each.store.writer() as writer:
            writer.add_episode({"value": np.arange(7)})
    for _ in range(3):
        drawn, again_drawn = table.sample(16), again.sample(16)
        assert again_drawn.keys.tolist() == drawn.keys.tolist()
        assert again_drawn.probabilities.tolist() == drawn.probabilities.tolist()
        for each in (table, again):
            each.update_priorities(drawn.keys, np.arange(16) / 4)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_a_loader_over_a_restored_ring_goes_on_with_the_same_batches(tmp_path, sampler):
    ring = stepwell.create(tmp_path / "ring.well", {"value": Array(dtype="int64")}, capacity=200)
    table = Table(ring, sampler=sampler, seed=4)

    def grow(store, first):
        with store.writer() as writer:
            for start in range(first, first + 54, 9):
                writer.add_episode({"value": np.arange(start, start + 9)})
        return first + 54

    def batch_of(loader):
        batch = next(loader)
        loader.update_priorities(batch, batch["value"] % 5 + 0.1)
        return {key: values.tolist() for key, values in batch.items()}

    options = {"batch_size": 16, "beta": (0.4, 1.0, 1000)}
    loader, count = ReplayLoader(table, {"value": "value"}, **options), grow(ring, 0)
    for _ in range(6):
        batch_of(loader)
        # the table has not seen these yet, nor what they evict
        count = grow(ring, count)
    again = Table.restore(table.checkpoint(tmp_path / "run.ckpt"))
    resumed = ReplayLoader(again, {"value": "value"}, **options)
    resumed.load_state_dict(loader.state_dict())
    for _ in range(6):
        assert batch_of(resumed) == batch_of(loader)
        grow(again.store, count)
        count = grow(ring, count)


def test_c13_another_process_goes_on(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(6)})
    table = Table(store, sampler="prioritized")
    used(table)
    path = table.checkpoint(tmp_path / "run.ckpt")
    script = (
        "import sys, json\nfrom stepwell.replay.tables import Table\n"
        "table = Table.restore(sys.argv[1])\nitems = table._contents.items\n"
        "print(json.dumps([items.keys_of(items.slots).tolist(), table.info.counts.samples, len(table.sample(8).keys)]))"
    )
    result = warm_children.run([sys.executable, "-c", script, str(path)], capture_output=True, check=True, text=True)
    assert json.loads(result.stdout) == [contents(table)[0], 16, 8]


def tree(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_going_on_in_a_copy_leaves_the_checkpoint_as_it_is(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(6)})
    table, other = Table(store, seed=3), Table(store, "other")
    used(table)
    path = checkpoint(tmp_path / "run.ckpt", [table, other])
    before = tree(path)
    again = Table.restore(path, to=tmp_path / "run-2.well")
    assert again.store.path == tmp_path / "run-2.well" and contents(again) == contents(table)
    with again.store.writer() as writer:
        writer.add_episode({"value": np.arange(4)})
    assert again.follow() == 4
    again.store.delete_episodes([0])
    assert tree(path) == before
    assert {*restore(path)} == {*restore(tmp_path / "run-2.well")} == {"replay", "other"}
    sealed = next((path / "segments").rglob("value.npy"))
    assert (tmp_path / "run-2.well" / sealed.relative_to(path)).stat().st_ino == sealed.stat().st_ino
    with pytest.raises(StoreExistsError):
        Table.restore(path, to=tmp_path / "run-2.well")
    assert {*load(path, to=tmp_path / "run-3.well")} == {"replay", "other"}
    assert (tmp_path / "run-3.well").is_dir()


def test_a_table_may_be_restored_for_reading_alone(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(6)})
    path = Table(store).checkpoint(tmp_path / "run.ckpt")
    again = Table.restore(path, mode="r")
    assert again.size == 6 and again.store.mode == "r"


def test_steps_after_the_last_look_become_items_once(store, tmp_path):
    writer = store.writer()
    writer.add_episode({"value": np.arange(3)})
    for value in range(4):
        writer.append(value=value)
    table = Table(store)
    assert table.size == 6
    for value in range(2):
        writer.append(value=value)
    path = table.checkpoint(tmp_path / "run.ckpt")
    again = Table.restore(path)
    assert again.size == 6
    # two that a next step completes, and the last one: in the checkpoint its episode has ended
    assert again.follow() == 3 and again.follow() == 0
    assert len(set(contents(again)[1])) == 9
    assert again.history.store.num_episodes == 2
    writer.close()


def test_what_waits_and_what_a_pattern_remembers_survive(store, tmp_path):
    pattern = Pattern(ahead=0, where=[steps_since_applied >= 3])
    writer = store.writer()
    for value in range(5):
        writer.append(value=value)
    queue, spaced = Table.queue(store, max_size=2), Table(store, "spaced", pattern=pattern)
    assert queue.size == 2 and spaced.size == 1
    tables = restore(checkpoint(tmp_path / "run.ckpt", [queue, spaced]))
    assert sorted(tables) == ["queue", "spaced"]
    assert tables["queue"].info.num_pending == 2
    assert tables["queue"].sample(4, timeout=0).rows.tolist() == [0, 1, 2, 3]
    assert [*tables["spaced"]._intake.matcher.applied.values()] == [2]
    writer.close()


def test_c13_no_other_file_is_touched_and_a_path_in_use_is_refused(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(3)})
    table = Table(store)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "zzz").mkdir()
    before = {entry: entry.stat().st_mtime_ns for entry in tmp_path.iterdir()}
    path = table.checkpoint(tmp_path / "run.ckpt")
    assert {entry: entry.stat().st_mtime_ns for entry in tmp_path.iterdir() if entry != path} == before
    for make in (table.checkpoint, table.save):
        with pytest.raises(StoreExistsError):
            make(path)
    with pytest.raises(StoreExistsError):
        save(tmp_path / "notes.tar", [table]) and save(tmp_path / "notes.tar", [table])


def test_c13_other_arguments_are_an_explicit_change(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(8)})
    table = Table(store, sampler="fifo")
    used(table)
    path = table.checkpoint(tmp_path / "run.ckpt")
    limiter = SampleToInsertRatio(2.0, 3, 4.0)
    changed = Table.restore(path, max_size=3, sampler="lifo", limiter=limiter)
    assert changed.size == 3 and changed.settings.sampler == "lifo" and changed.settings.limiter == limiter
    assert contents(changed)[0] == contents(table)[0][-3:]
    with pytest.raises(TableError, match="'speed' is no argument"):
        Table.restore(path, speed=3)
    with pytest.raises(TableError, match="no table 'other'"):
        Table.restore(path, "other")


class OwnFifo(Fifo):
    pass


def test_rows_drawn_for_a_call_that_timed_out_survive(store, tmp_path):
    table = Table.queue(store, max_size=9, pattern=Pattern(ahead=0))
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(3)})
        with pytest.raises(RateLimitError, match="3 rows were drawn"):
            table.sample(5, timeout=0)
        again = Table.restore(table.checkpoint(tmp_path / "run.ckpt"), "queue")
    with again.store.writer() as writer:
        writer.add_episode({"value": np.arange(2)})
    sample = again.sample(5, timeout=0)
    assert sample.table_size.tolist() == [3, 2, 1, 2, 1]
    assert len(set(again.history.step_ids(sample.episodes, sample.rows).tolist())) == 5


def test_a_selector_of_ones_own_must_be_given_again(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(3)})
    table = Table(store, sampler=OwnFifo())
    table.follow()
    path = table.checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(TableError, match="was a OwnFifo"):
        Table.restore(path)
    assert Table.restore(path, sampler=OwnFifo()).size == 3


def test_tables_that_do_not_belong_together_are_refused(store, tmp_path):
    other = stepwell.create(tmp_path / "other.well", {"value": Array()})
    for tables, says in (
        ([], "no tables"),
        ([Table(store), Table(other)], "several stores"),
        ([Table(store), Table(store)], "one name"),
    ):
        with pytest.raises(TableError, match=says):
            checkpoint(tmp_path / "run.ckpt", tables)
    assert not (tmp_path / "run.ckpt").exists()


@pytest.mark.parametrize("name", ["saved", "saved.tar"])
def test_what_is_saved_loads(store, tmp_path, name):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(7)})
    table = Table(store)
    used(table)
    path = table.save(tmp_path / name)
    again = load(path)["replay"]
    assert contents(again) == contents(table)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted({"steps.well", name, "saved"})
    if name.endswith(".tar"):
        with pytest.raises(StoreExistsError, match="another directory"):
            load(path)
        assert load(path, to=tmp_path / "elsewhere")["replay"].size == table.size


def test_evicted_steps_take_their_items_with_them_on_the_way(store, tmp_path):
    with store.writer() as writer:
        for _ in range(3):
            writer.add_episode({"value": np.arange(4)})
    table = Table(store, sampler="prioritized")
    used(table)
    path = table.checkpoint(tmp_path / "run.ckpt")
    with stepwell.open(path) as copy:
        copy.delete_episodes([1])
    again = Table.restore(path)
    counts, before = again.info.counts, table.info.counts
    gone = sum(4 <= row < 8 for row in table._contents.items.row[table._contents.items.slots].tolist())
    assert again.size == table.size - gone and counts.evicted == gone and counts.deletes == before.deletes + gone
    assert again.update_priorities(contents(table)[0], 2.0) == again.size


def test_damaged_files_and_paths_without_tables_are_clear_errors(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(3)})
    with pytest.raises(StoreNotFoundError, match="no tables"):
        restore(store.path)
    path = Table(store).checkpoint(tmp_path / "run.ckpt")
    file = path / "tables" / "replay.npz"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\0" * len(whole)):
        file.write_bytes(damaged)
        with pytest.raises(CorruptSegmentError, match=r"replay\.npz is damaged"):
            restore(path)


KILLED = """
import os, sys
import stepwell
from stepwell.replay.tables import Table
store = stepwell.open(sys.argv[1])
table = Table(store)
table.follow()
left = int(sys.argv[3])
def watch(event, arguments):
    global left
    if event in ("open", "os.link", "os.mkdir", "os.rename", "os.remove") and "run.ckpt" in str(arguments):
        left -= 1
        if left == 0:
            os._exit(9)
sys.addaudithook(watch)
table.checkpoint(sys.argv[2])
os._exit(0 if left > 0 else 1)
"""


def test_c13_a_checkpoint_that_is_killed_at_any_step_is_there_whole_or_not_at_all(store, tmp_path):
    with store.writer() as writer:
        writer.add_episode({"value": np.arange(3)})
    target = tmp_path / "run.ckpt"
    for step in (1, 3, 6, 10, 15, 10**6):
        code = warm_children.run([sys.executable, "-c", KILLED, str(store.path), str(target), str(step)], check=False)
        if target.exists():
            break
        assert code.returncode == 9
    assert Table.restore(target).size == 3
    left = [entry for entry in tmp_path.iterdir() if entry.name.startswith(".run.ckpt.")]
    assert not left
