"""Writers with a key: tasks that are tried again leave their episodes once, in the order of the keys."""

import collections
import mmap
import os
import pickle
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import stepwell
from stepwell import Array, CorruptSegmentError, StepwellError, Store, StoreBusyError, View, convert
from stepwell.json_text import open_json, seal_json
from stepwell.store import manifests, snapshot, step_id
from stepwell.store.manifests import ARRANGEMENT_JSON, MAX_KEY, KeyNote
from stepwell.store.rewrite import concatenate
from stepwell.store.sealing import write_manifest

SCHEMA = {"state": Array(2), "action": Array((), "int64")}
KEYS = ("task-1", "task-10", "task-2", "Ünit", "été")


def write(store: Store, key: str, *, ends: int = 3, attempt: int = 0) -> stepwell.Writer:
    """Write the first episodes of a task, and return the writer as it is then."""
    writer = store.writer(key=key)
    for number in range(ends):
        seed = KEYS.index(key) * 10 + number
        length = 1 + seed % 4
        action = np.arange(length) + 100 * seed
        writer.add_episode({"state": np.full((length, 2), seed, "float32"), "action": action}, key=key, number=number)
    if attempt:
        writer.append(state=[-1.0, -1.0], action=-attempt)
    return writer


def contents(store: Store) -> list[tuple[object, ...]]:
    return [(e.metadata["key"], e.metadata["number"], e["action"].tolist(), e["state"].tolist()) for e in store]


def expected(store: Store, keys: tuple[str, ...] = KEYS) -> None:
    """Assert that the store shows each task once, in order, opened anew as well."""
    names = [(key, number) for key in sorted(keys) for number in range(3)]
    store.refresh()
    assert [(e.metadata.get("key"), e.metadata.get("number")) for e in store] == names
    assert contents(stepwell.open(store.path, mode="r")) == contents(store)
    assert store.verify().is_ok


def record(path: Path, seed: int, **options: Any) -> Store:
    """Run all tasks in a random order, some of which die and some of which are run twice."""
    return run_all(stepwell.create(path, SCHEMA, **options), seed)


def run_all(store: Store, seed: int, *, is_deadly: bool = True) -> Store:
    draw = random.Random(seed)
    runs = [(key, attempt) for key in KEYS for attempt in range(draw.randint(1, 3))]
    draw.shuffle(runs)
    for key, attempt in runs:
        writer = write(store, key, ends=draw.randint(0, 3), attempt=attempt) if draw.random() < 0.6 else None
        if writer is not None and (not is_deadly or draw.random() < 0.5):
            writer.close()
        # else abandoned: its steps stay as those of a killed one
        del writer
    for key in draw.sample(KEYS, len(KEYS)):
        write(store, key).close()
    return store


def copied(store: Store, path: Path) -> Store:
    """Return a copy of a store that nothing was recorded into: born as the same."""
    shutil.copytree(store.path, path)
    return stepwell.open(path)


def as_of_before(store: Store) -> Store:
    """Return a store as releases wrote it that kept the keys of all segments in one file, and ids as origins."""
    keys = {}
    for directory in (store.path / "segments").iterdir():
        note = directory / "key.json"
        keys[directory.name] = open_json(note.read_bytes())["key"]
        note.unlink()
        (directory / "segment.json").unlink()
        records = np.load(directory / "episodes.npy")
        records["origin"] = step_id(int(directory.name[:8]), records["start"])
        rows = (directory / "episodes.npy").read_bytes()
        (directory / "episodes.npy").write_bytes(rows[: len(rows) - records.nbytes] + records.tobytes())
        assert store.schema is not None
        write_manifest(str(directory), store.schema)
    (store.path / ARRANGEMENT_JSON).write_bytes(
        seal_json({"sequence": len(keys), "positions": {}, "hidden": [], "keys": keys})
    )
    return stepwell.open(store.path)


def sides(*stores: Store) -> list[Any]:
    """Return what each of several ways to split a view puts on one side."""
    view = View(stores)
    found = []
    for seed in range(3):
        parts = [*view.split(0.3, 0.3, seed=seed), view.split(0.5, seed=seed, version=1)[0]]
        for part in (*parts, view.select(split=(0.2, 0.7), seed=seed)):
            tables = [(each.table, index) for each in part.parts for index in each.indices.tolist()]
            found.append([(m["key"], m["number"]) for table, index in tables for m in [table.metadata(index)]])
    return found


def loaded(store: Store) -> list[list[int]]:
    orders: tuple[Literal["random", "pooled"], ...] = ("random", "pooled")
    found = []
    for order in orders:
        loader = stepwell.Loader(store, {"action": "action"}, batch_size=4, seed=3, order=order)
        found += [batch["action"].tolist() for batch in pickle.loads(pickle.dumps(loader))]
    return found


def test_the_store_is_the_same_whatever_order_tasks_ran_in_and_however_often(tmp_path: Path) -> None:
    first, *others = [record(tmp_path / f"{seed}.well", seed) for seed in range(4)]
    expected(first)
    for other in others:
        expected(other)
        assert contents(other) == contents(first)
        assert loaded(other) == loaded(first)


def test_splits_are_the_same_whatever_order_tasks_ran_in_and_in_every_copy(tmp_path: Path) -> None:
    born = stepwell.create(tmp_path / "born.well", SCHEMA, segment_bytes=60)
    first, *others = [run_all(copied(born, tmp_path / f"{seed}.well"), seed, is_deadly=False) for seed in range(4)]
    expected_sides = sides(first)
    # two may be the same by chance
    assert len({str(side) for side in expected_sides}) > len(expected_sides) // 2
    for other in others:
        assert sides(other) == expected_sides
        assert np.array_equal(other.episodes.origin, first.episodes.origin)
    assert len(set(first.episodes.origin.tolist())) == len(first)
    # told from the ids of steps
    assert first.episodes.origin.max() < 0
    first.checkpoint(tmp_path / "copy.well")
    assert sides(stepwell.open(tmp_path / "copy.well")) == expected_sides
    assert sides(concatenate(tmp_path / "joined.well", [first])) == expected_sides
    assert sides(stepwell.open(convert(first, tmp_path / "converted.well", {"state": "zstd"}).path)) == expected_sides
    first.compact()
    assert sides(first) == expected_sides
    # of two stores that the same tasks were recorded into each splits for itself
    again = record(tmp_path / "again.well", 1)
    assert contents(again) == contents(first)
    assert sides(again) != expected_sides


@pytest.mark.parametrize("segment_bytes", [1, 60, 10_000])
def test_an_origin_follows_from_the_key_and_how_many_episodes_came_before(tmp_path: Path, segment_bytes: int) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, segment_bytes=segment_bytes)
    writer = store.writer(key="task-1")
    step = {"state": np.zeros((1, 2), "f4"), "action": [0]}
    found = []
    for number in range(4):
        if number % 2:
            writer.append({name: column[0] for name, column in step.items()})
            writer.discard_episode()
        writer.add_episode(step)
    writer.add_one_step_episodes({"state": np.zeros((2, 2), "f4"), "action": [0, 0]})
    writer.append(state=[0, 0], action=0)
    # while the last one is open, when its writer is gone, and when it was closed
    found.append(stepwell.open(store.path, mode="r").episodes.origin.tolist())
    writer._seals.wait()
    del writer
    found.append(stepwell.open(store.path).episodes.origin.tolist())
    with store.writer(key="task-1") as writer:
        for _ in range(6):
            writer.add_episode(step)
        writer.append(state=[0, 0], action=0)
    found.append(store.episodes.origin.tolist())
    assert found == [[KeyNote("task-1").origin(number) for number in range(7)]] * 3
    assert KeyNote("task-1").origin(3) == KeyNote("task-1", 2).origin(1) == -1788993624368443355


def test_stores_of_earlier_releases_keep_their_order_and_their_splits(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, segment_bytes=60)
    store = as_of_before(run_all(store, 3, is_deadly=False))
    expected(store)
    before = sides(store)
    ids = step_id(np.array([store.segments[n].ordinal for n in store.episodes.segment]), store.episodes.start)
    assert np.array_equal(store.episodes.origin, ids)
    store.checkpoint(tmp_path / "copy.well")
    copy = stepwell.open(tmp_path / "copy.well")
    assert sides(copy) == before
    copy.compact()
    expected(copy)
    assert sides(copy) == before
    for each in (store, copy):
        write(each, "task-10").close()
        expected(each)
    for other in (store, copy):
        other.compact()
        expected(other)


def prebuilt(path: Path, count: int) -> Store:
    """Return a store of as many segments with keys, in no order."""
    store = stepwell.create(path, SCHEMA)
    with store.writer(key="any") as writer:
        writer.add_episode({"state": np.zeros((1, 2), "f4"), "action": [0]}, key="any", number=0)
    (source,) = (path / "segments").iterdir()
    for number in range(1, count):
        directory = path / "segments" / f"{number:08d}-{number:04x}"
        directory.mkdir()
        for file in source.iterdir():
            if file.name != "key.json":
                os.link(file, directory / file.name)
        (directory / "key.json").write_bytes(seal_json({"key": f"task-{number * 7919 % count}", "episodes": 0}))
    (path / "lock").write_text(f"{count:<20}\n")
    return stepwell.open(path)


def test_a_writer_with_a_key_reads_and_writes_as_much_in_a_large_store_as_in_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = collections.Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    stores = [prebuilt(tmp_path / f"{count}.well", count) for count in (300, 2000)]
    counted(os, "open")
    for name in ("_place", "_number"):
        counted(manifests, name)
    for name in ("open_json", "check_key"):
        counted(manifests, name)
    found = []
    for count, store in zip((300, 2000), stores, strict=True):
        store.writer(key="first").close()
        counts.clear()
        for key in ("new", "new", "task-250"):
            write_one(store, key)
        found.append(dict(counts))
        assert len(store) == count + 1
        assert not (store.path / ARRANGEMENT_JSON).exists()
    assert found[0] == found[1]


def write_one(store: Store, key: str) -> None:
    with store.writer(key=key) as writer:
        writer.add_episode({"state": np.zeros((1, 2), "f4"), "action": [1]}, key=key, number=1)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_keys_whichever_the_table_of_segments_has(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MIN_NEW", 3)
    monkeypatch.setattr(snapshot, "NEW_SHARE", 2)
    draw = random.Random(seed)
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    there: dict[str, int] = {}
    for number in range(25):
        key = draw.choice("abcdefgxyz") + draw.choice(["", "é", "0"])
        there[key] = number
        with store.writer(key=key) as writer:
            writer.add_episode({"state": np.zeros((1, 2), "f4"), "action": [number]})
        if draw.random() < 0.2:
            store = stepwell.open(store.path)
        for each in (store, stepwell.open(store.path, mode="r")):
            assert [e["action"].tolist() for e in each] == [[there[key]] for key in sorted(there)]
        if draw.random() < 0.1:
            store.compact()
    assert (store.path / "segments.table").exists()
    assert store.verify().is_ok


def test_a_second_writer_of_a_key_replaces_what_the_first_left(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    write(store, "task-1").close()
    reader = stepwell.open(store.path, mode="r")
    held = reader[0]["action"]
    writer = store.writer(key="task-1")
    assert len(store) == 0
    assert held.tolist() == [0]
    writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]})
    writer.close()
    reader.refresh()
    assert [episode["action"].tolist() for episode in reader] == [[7]]
    assert [path.name for path in store.path.glob("segments/*/key.json")] == ["key.json"]


def test_two_live_writers_of_one_key_are_refused(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    idle = store.writer(key="task-1")
    with pytest.raises(StoreBusyError, match="'task-1'"):
        stepwell.open(store.path).writer(key="task-1")
    store.writer(key="task-2").close()
    idle.close()
    writer = write(store, "task-1")
    with pytest.raises(StoreBusyError, match="'task-1'"):
        store.writer(key="task-1")
    writer.close()
    assert len(store) == 3
    write(store, "task-1").close()
    assert not list((store.path / "keys").iterdir())


def test_segments_without_a_key_come_first(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    write(store, "task-2").close()
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]})
    write(store, "task-1").close()
    assert [episode.metadata.get("key") for episode in store] == [None, *["task-1"] * 3, *["task-2"] * 3]


def test_changes_keep_the_order(tmp_path: Path) -> None:
    store = record(tmp_path / "a.well", 5)
    before = contents(store)
    store.checkpoint(tmp_path / "copy.well")
    copy = stepwell.open(tmp_path / "copy.well")
    joined = concatenate(tmp_path / "joined.well", [store, copy])
    assert contents(copy) == before
    assert contents(joined) == before + before
    store.delete_episodes([4, 6])
    kept = [row for number, row in enumerate(before) if number not in (4, 6)]
    store.compact()
    assert contents(store) == contents(stepwell.open(store.path, mode="r")) == kept
    store.add_column("reward", Array(()), lambda episode: np.ones(episode.length, np.float32))
    assert contents(store) == kept
    # those of a compacted segment, and those of a copy, are replaced as well
    for each in (copy, stepwell.open(store.path)):
        if "reward" in (each.schema or {}):
            with each.writer(key="task-10"):
                pass
            assert [row[0] for row in contents(each)].count("task-10") == 0
        else:
            write(each, "task-10").close()
            assert contents(each) == before


def test_compaction_merges_segments_of_one_key_only(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    for key in ("task-2", "task-1"):
        write(store, key).close()
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]}, key="", number=0)
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [8]}, key="", number=1)
    before = contents(store)
    store.compact()
    assert contents(store) == before
    assert len(store.segments) == 3


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY + 1), 17, "\ud800"])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(StepwellError, match="key"):
        store.writer(key=key)


def test_rings_and_given_places_have_no_keys(tmp_path: Path) -> None:
    ring = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    with pytest.raises(StepwellError, match="rings"):
        ring.writer(key="task-1")
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(StepwellError, match="ordinal"):
        store.writer(key="task-1", ordinal=store.reserve_ordinals(1))


@pytest.mark.parametrize(
    "keys", [[], {"../../etc": "a"}, {"00000000-7f3a": ""}, {"00000000-7f3a": 3}, {"00000000-7f3a": "x" * 201}, "a"]
)
def test_damaged_keys_are_found(tmp_path: Path, keys: object) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record = {"sequence": 1, "positions": {}, "hidden": [], "keys": keys}
    (store.path / ARRANGEMENT_JSON).write_bytes(seal_json(record))
    with pytest.raises(CorruptSegmentError, match="arrangement"):
        stepwell.open(store.path)


@pytest.mark.parametrize(
    "note",
    [[], {}, {"key": ""}, {"key": 3, "episodes": 0}, {"key": "a", "episodes": -1}, {"key": "a", "episodes": "0"}],
)
def test_a_damaged_note_of_a_key_is_found(tmp_path: Path, note: Any) -> None:
    store = record(tmp_path / "a.well", 0)
    path = next(store.path.glob("segments/*/key.json"))
    path.write_bytes(seal_json(note) if isinstance(note, dict) else b"[]")
    with pytest.raises(CorruptSegmentError, match=r"key\.json"):
        stepwell.open(store.path)
    assert not store.verify().is_ok


def test_the_reader_of_the_format_shows_them_in_their_order(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "format.md"
    (code,) = re.findall(r"```python\n((?:(?!```).)*def read_store.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    store = run_all(stepwell.create(tmp_path / "a.well", SCHEMA, segment_bytes=60), 2, is_deadly=False)
    for make in (lambda: store, lambda: as_of_before(store)):
        each = make()
        found = list(namespace["read_store"](each.path))
        shown = [(m["key"], m["number"], rows["action"].tolist()) for _, m, rows in found]
        assert shown == [row[:3] for row in contents(each)]
        assert [int(record["origin"]) for record, _, _ in found] == each.episodes.origin.tolist()


KILLS = int(os.environ.get("STEPWELL_KEY_KILLS", "12"))
KEYS_KILLS = ("task-1", "task-2", "task-3")


def run_task(store: Store, key: str, pause: Callable[[], None] = lambda: None) -> None:
    """Record what a task records: in two segments, with steps, an episode that is taken back, and whole episodes."""
    with store.writer(key=key) as writer:
        for number in range(3):
            seed = 10 * KEYS_KILLS.index(key) + number
            for step in range(1 + seed % 3):
                pause()
                writer.append(state=[seed, step], action=seed)
            if number == 1:
                writer.discard_episode()
            else:
                writer.end_episode(truncated=True, key=key, number=number)
        action = np.full(40, KEYS_KILLS.index(key))
        for number in range(3, 5):
            pause()
            writer.add_episode({"state": np.zeros((40, 2), "f4"), "action": action}, key=key, number=number)


def shown(store: Store) -> list[Any]:
    """Return what a store shows, in its order, and on which side of a split each episode is."""
    train = set(View(store).split(0.5, 0.5, seed=1)[0].episode_index.tolist())
    return [
        (
            e.metadata["key"],
            e.metadata["number"],
            e["action"].tolist(),
            e["state"].tolist(),
            index in train,
            e.truncated,
        )
        for index, e in enumerate(store)
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of which two tasks are done, and the third died half-way."""
    path = tmp_path_factory.mktemp("keys") / "a.well"
    store = stepwell.create(path, SCHEMA, segment_bytes=500)
    for key in reversed(KEYS_KILLS[:2]):
        run_task(store, key)
    wait_for(fork(lambda: run_task(Store(str(path)), KEYS_KILLS[2], lambda: die_sometimes(random.Random(1)))))
    return path


@pytest.fixture(scope="module")
def undisturbed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    path = tmp_path_factory.mktemp("undisturbed") / "a.well"
    shutil.copytree(template, path)
    run_task(stepwell.open(path), KEYS_KILLS[2])
    return shown(stepwell.open(path))


def die_sometimes(draw: random.Random) -> None:
    if draw.random() < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)


def fork(action: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(repr(error))
            os._exit(2)
        os._exit(0)
    return child


def wait_for(child: int) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status


def check(path: Path, expected: list[Any], retried: str) -> None:
    """Assert that others lost nothing, and that a retry leaves the store as nobody's death did."""
    others = [row for row in expected if row[0] not in (retried, KEYS_KILLS[2])]
    store = stepwell.open(path)
    found = [(e.metadata.get("key"), e.metadata.get("number"), e["action"].tolist()) for e in store]
    assert [row for row in found if row[0] in {key for key, *_ in others}] == [row[:3] for row in others]
    for key in (retried, KEYS_KILLS[2]):
        run_task(stepwell.open(path), key)
    store = stepwell.open(path)
    assert shown(store) == expected
    assert shown(stepwell.open(path, mode="r")) == expected
    assert store.verify(deep=True).is_ok
    left = [entry.name for entry in (path / "segments").iterdir() if not entry.name[0].isdigit()]
    assert not left
    assert not list((path / "keys").iterdir())


def test_a_task_that_is_killed_before_any_change_of_a_directory_leaves_no_trace_once_it_is_retried(
    template: Path, undisturbed: list[Any], tmp_path: Path, wells: Any
) -> None:
    folder = tmp_path / "template"
    shutil.copytree(template.parent, folder)
    for work in wells.kills(folder, lambda work: run_task(Store(str(work / "a.well")), KEYS_KILLS[0])):
        check(work / "a.well", undisturbed, KEYS_KILLS[0])
        shutil.rmtree(work)


def test_of_two_that_race_for_a_key_one_is_killed_at_random_and_the_other_takes_over(
    template: Path, undisturbed: list[Any], tmp_path: Path
) -> None:
    draw = random.Random(5)
    path = tmp_path / "a.well"
    shutil.copytree(template, path)

    is_alone = mmap.mmap(-1, 1)

    def insist(seed: int, key: str) -> None:
        mine, store = random.Random(seed), Store(str(path))
        is_last = False
        while not is_last:
            # one that ended before the other was killed may have been replaced by half of the other's
            begins_alone = is_alone[0] == 1
            try:
                run_task(store, key, lambda: time.sleep(mine.choice((0, 0, 0.001))))
                is_last = begins_alone
            except StoreBusyError:
                time.sleep(0.001)

    for number in range(KILLS):
        key, is_alone[0] = draw.choice(KEYS_KILLS), 0
        first, second = (fork(lambda seed=2 * number + k, key=key: insist(seed, key)) for k in range(2))
        time.sleep(draw.uniform(0, 0.04))
        os.kill(first, signal.SIGKILL)
        is_alone[0] = 1
        assert wait_for(first) == -signal.SIGKILL
        assert wait_for(second) == 0
        if number % 4 == 3 or number == KILLS - 1:
            check(path, undisturbed, key)
