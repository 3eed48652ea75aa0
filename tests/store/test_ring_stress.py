"""One process writes a ring at full speed, four read it: every value is right, and no window reaches what is gone.

Every step tells its episode, its place in it, how many steps were recorded before it, and a checksum over all of that
and its values. ``STEPWELL_STRESS_SECONDS=60`` makes it the long run.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import stepwell
from stepwell.errors import LoaderError, SegmentGoneError
from stepwell.replay import Pattern, ReplayLoader, Table
from stepwell.schema import Array, Bytes, Schema
from stepwell.windows import Field, View, WindowReader

SECONDS = float(os.environ.get("STEPWELL_STRESS_SECONDS", "2"))
CAPACITY = 20_000
WIDTH = 6
OFFSETS = tuple(range(-3, 5))
# all have a value in final rows: that of the step that would come next
NAMES = ("episode", "t", "count", "values", "check")
SCHEMA = Schema(
    {name: Array(WIDTH if name == "values" else (), "int64", final=True) for name in NAMES} | {"note": Bytes()}
)
FIELDS = {name: Field(name, OFFSETS) for name in NAMES} | {
    "note": Field("note"),
    "anchor": Field("t"),
    "step_index": Field("step_index"),
}
FACTORS = np.array([3, 5, 7, 11, 13, 17], np.int64) * 0x5851F42D4C957F2D
# words in memory that processes share, written by one store each: steps recorded, whether to end
Shared: TypeAlias = "memoryview[int]"


def checksums(step: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a number that any other value of any column would change."""
    total: np.ndarray = (step["values"] * FACTORS).sum(-1)
    for name, factor in (("episode", 0x2545F4914F6CDD1D), ("t", 0x369DEA0F31A53F85), ("count", 0x1B8735939E3779B1)):
        total = (total ^ step[name]) * factor
        total = total ^ (total >> 29)
    return total


def episode_of(number: int, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return an episode of random length, and the row after its last step; one in 40 is cut into pieces."""
    length = int(rng.integers(5_000, 9_000)) if number % 40 == 39 else int(rng.integers(1, 300))
    steps = {
        "episode": np.full(length + 1, number),
        "t": np.arange(length + 1),
        "count": np.arange(count, count + length + 1),
        "values": rng.integers(-(2**62), 2**62, (length + 1, WIDTH)),
    }
    return steps | {"check": checksums(steps)}


def write(path: str, shared: Shared) -> dict[str, int]:
    """Record until told to stop; after each step say how many there are."""
    rng = np.random.default_rng(0)
    writer = stepwell.open(path).writer()
    count = number = 0
    while not is_over(shared):
        steps = episode_of(number, count, rng)
        rows = [dict(zip(steps, row, strict=True)) for row in zip(*steps.values(), strict=True)]
        for row in rows[:-1]:
            writer.append(row | {"note": b"%d" % row["check"]})
            count += 1
            shared[0] = count
        writer.end_episode(terminated=number % 2 == 0, final=rows[-1] if number % 3 else None)
        number += 1
    writer.close()
    return {"steps": count, "episodes": number}


def is_over(shared: Shared) -> bool:
    return shared[1] != 0


def acknowledged(shared: Shared) -> int:
    return shared[0]


def check_windows(batch: Mapping[str, Any], oldest: int) -> int:
    """Check all values of a batch; ``oldest`` is how many steps had been evicted when it was drawn, at least."""
    assert (checksums({name: batch[name] for name in NAMES}) == batch["check"]).all()
    assert (batch["episode"] == batch["episode"][:, :1]).all()
    wanted = batch["anchor"][:, None] + np.array(OFFSETS)
    for name in NAMES:
        assert (batch["t_is_pad"] == batch[f"{name}_is_pad"]).all()
    # padded with the nearest row, which is there as well
    assert ((batch["t"] == wanted) | batch["t_is_pad"]).all()
    assert not batch["t_is_pad"][:, OFFSETS.index(0)].any()
    nearest = np.where(batch["t_is_pad"], -1, batch["t"])
    first, last = np.where(nearest < 0, 1 << 40, nearest).min(1), nearest.max(1)
    assert (batch["t"] == np.clip(wanted, first[:, None], last[:, None])).all()
    assert (batch["count"] >= oldest).all()
    assert [b"%d" % value for value in batch["check"][:, OFFSETS.index(0)]] == list(batch["note"])
    assert (batch["step_index"] == batch["anchor"]).all()
    return len(wanted)


def check_length(store: stepwell.Store, known: int, later: int) -> None:
    """Check how many steps a store shows that was refreshed when ``known`` to ``later`` steps were recorded."""
    assert min(known, CAPACITY) <= store.num_steps <= min(later + 1, CAPACITY)


def read_windows(path: str, shared: Shared) -> Counter[str]:
    """Make a reader of the newest snapshot again and again, and read from each for a while."""
    store, rng, found = stepwell.open(path, mode="r"), np.random.default_rng(1), Counter[str]()
    while not is_over(shared):
        known = acknowledged(shared)
        if known < 1_000:
            continue
        store.refresh()
        check_length(store, known, acknowledged(shared))
        reader = WindowReader(View(store), FIELDS)
        assert reader.index.num_anchors <= CAPACITY
        shown = len(store), store.num_steps
        for _ in range(20):
            try:
                batch = reader.read(rng.integers(0, reader.index.num_anchors, 256))
            except LoaderError as error:
                # the writer went round while the reader was made, four times
                assert "removed since" in str(error)
                found["gone"] += 1
                break
            found["windows"] += check_windows(batch, known - CAPACITY)
        assert (len(store), store.num_steps) == shown
    return found


def read_epochs(path: str, shared: Shared) -> Counter[str]:
    """Go through all anchors of a snapshot with a loader; each comes once."""
    store, found = stepwell.open(path, mode="r"), Counter[str]()
    while not is_over(shared):
        known = acknowledged(shared)
        if known < 1_000:
            continue
        store.refresh()
        seen = []
        for batch in stepwell.Loader(View(store), FIELDS, batch_size=512, epochs=1, threads=1):
            found["windows"] += check_windows(batch, known - CAPACITY)
            seen.append(batch["count"][:, OFFSETS.index(0)])
        counts = np.sort(np.concatenate(seen))
        assert (np.diff(counts) > 0).all()
        found["epochs"] += 1
    return found


def read_items(path: str, shared: Shared) -> Counter[str]:
    """Sample a table that follows the ring."""
    table = Table(stepwell.open(path, mode="r"), max_size=10 * CAPACITY, pattern=Pattern(ahead=max(OFFSETS)))
    loader = ReplayLoader(table, FIELDS, batch_size=256)
    found = Counter[str]()
    # what was recorded before the batches that may still be on their way
    known = deque([0], maxlen=loader.max_staleness + 2)
    while not is_over(shared):
        known.append(acknowledged(shared))
        if known[-1] < 1_000:
            continue
        found["windows"] += check_windows(next(loader), known[0] - CAPACITY)
        assert table.size <= CAPACITY
    return found


def read_episodes(path: str, shared: Shared) -> Counter[str]:
    """Read whole episodes, the oldest and some others."""
    store, rng, found = stepwell.open(path, mode="r"), np.random.default_rng(2), Counter[str]()
    while not is_over(shared):
        known = acknowledged(shared)
        store.refresh()
        check_length(store, known, acknowledged(shared))
        table, shown = store.episodes, (len(store), store.num_steps)
        for index in [0, *rng.integers(0, max(len(store), 1), 5)] if len(store) else []:
            try:
                steps = {name: store[index][name] for name in NAMES}
            except SegmentGoneError:
                found["gone"] += 1
                continue
            length = int(table.length[index])
            assert (checksums(steps) == steps["check"]).all()
            assert len(set(steps["episode"].tolist())) == 1
            assert (np.diff(steps["t"]) == 1).all()
            assert steps["t"][0] == table.skipped[index]
            assert length <= len(steps["t"]) <= length + 1
            assert steps["count"][0] >= known - CAPACITY
            found["steps"] += length
        assert (len(store), store.num_steps) == shown
    return found


READERS = (read_windows, read_items, read_episodes, read_epochs)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a function in a child; what it returns, or its traceback, is in a file."""
    children: list[int] = []

    def start(function: Callable[..., Any], *arguments: Any) -> tuple[int, Path]:
        result = tmp_path / f"{function.__name__}.json"
        child = os.fork()
        if child == 0:
            try:
                result.write_text(json.dumps(function(*arguments)))
            except BaseException:
                result.write_text(traceback.format_exc())
                os._exit(1)
            os._exit(0)
        children.append(child)
        return child, result

    yield start
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read once before forking, so that no child compiles kernels."""
    path = str(tmp_path_factory.mktemp("warm") / "warm.well")
    store = stepwell.create(path, SCHEMA, capacity=100)
    with store.writer() as writer:
        steps = episode_of(0, 0, np.random.default_rng(0))
        writer.add_episode({name: steps[name] for name in NAMES} | {"note": [b"%d" % c for c in steps["check"][:-1]]})
    check_windows(WindowReader(View(store), FIELDS).read(np.arange(4)), 0)
    check_windows(next(ReplayLoader(Table(store, pattern=Pattern(ahead=4)), FIELDS, batch_size=4)), 0)


def test_no_reader_ever_sees_a_wrong_step_a_mixed_window_or_one_that_is_gone(
    tmp_path: Path, family: Callable[..., Any]
) -> None:
    path = str(tmp_path / "ring.well")
    stepwell.create(path, SCHEMA, capacity=CAPACITY)
    shared = memoryview(mmap.mmap(-1, 16)).cast("q")
    started = {function: family(function, path, shared) for function in (write, *READERS)}
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not any(result.exists() for _, result in started.values()):
        time.sleep(0.05)
    # on a slow machine, until it has gone round
    while acknowledged(shared) < 2 * CAPACITY and not any(result.exists() for _, result in started.values()):
        time.sleep(0.05)
    shared[1] = 1
    found = {}
    for function, (child, result) in started.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, f"{function.__name__}: {result.read_text() if result.exists() else status}"
        found[function] = json.loads(result.read_text())
    print({function.__name__: told for function, told in found.items()})
    assert found[write]["steps"] >= 2 * CAPACITY
    assert found[read_episodes]["steps"] > 0
    assert all(found[reader]["windows"] > 0 for reader in (read_windows, read_items, read_epochs))
    after = stepwell.open(path)
    assert after.num_steps == CAPACITY
    assert after.verify(deep=True).is_ok
