"""start: what comes before the second batch, in fresh processes.

* import: `import stepwell` after `import numpy`; and the same with every public name used once, which loads what is
  behind it.
* first batch: from the start of the process to the first batch of a random loader of 5 features, interpreter and
  imports included; with kernels cached, and with an empty ``NUMBA_CACHE_DIR``, as on the very first run after an
  installation.
* open: `stepwell.open` of 100,000 episodes in 1,000 segments, files cached; and the memory that it takes an episode,
  also when the episodes have ten times the steps.

The rival of most is a limit that was set beforehand; ratios are limit / ours, above 1 is within it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from children import run_child
from datasets import LOW_DIM, low_dim_store
from report import Row, within
from timing import Settings, memcpy_gb_per_s

import stepwell

__all__ = ["run"]

NAME = "start"
IMPORT_MS, FIRST_BATCH_S, OPEN_MS = 60.0, 1.0, 150.0
EPISODES, SEGMENTS, STEPS = 100_000, 1_000, 2

IMPORT = """
import numpy
start = time.perf_counter()
import stepwell
print((time.perf_counter() - start) * 1e3)
"""
# all modules behind the names, which `import stepwell` leaves for their first use
IMPORT_ALL = IMPORT.replace(
    "import stepwell\n", "import stepwell; [getattr(stepwell, name) for name in stepwell.__all__]\n"
)
FIRST_BATCH = """
import stepwell
store = stepwell.open(argument["path"], mode="r")
loader = stepwell.Loader(store, {name: range(16) for name in argument["names"]}, batch_size=256, order="random")
batch = next(iter(loader))
print(time.monotonic() - begun)
"""
OPEN = """
import numpy, stepwell
stepwell.open
before, start = anonymous(), time.perf_counter()
store = stepwell.open(argument, mode="r")
seconds, after = time.perf_counter() - start, anonymous()
# at toy size the pages that are there may do
print(json.dumps([seconds * 1e3, max(after - before, 1) / len(store), len(store)]))
"""


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of imports and first batches, then those of a store of many episodes."""
    row = partial(within, memcpy_gb_per_s=memcpy_gb_per_s(settings))
    for case, code, target in (("import", IMPORT, 1.0), ("import, and all names used", IMPORT_ALL, None)):
        run_child(code)
        times = [run_child(code) for _ in range(settings.rounds)]
        yield row(NAME, case, "limit", times, IMPORT_MS, unit="ms", target=target)
    store = low_dim_store(settings.data / "start.well", settings.sized(64 << 20, 1 << 20))
    cold, warm = _first_batches(store, settings)
    yield row(NAME, "first batch", "limit", warm, FIRST_BATCH_S, unit="s", target=1.0)
    yield row(NAME, "first batch, nothing compiled", "kernels cached", cold, warm, unit="s")
    yield from _openings(settings, row)


def _first_batches(store: stepwell.Store, settings: Settings) -> tuple[list[float], list[float]]:
    """Return the seconds to the first batch with an empty cache, and with the one that this left, in turns."""
    argument = {"path": str(store.path), "names": list(LOW_DIM)}
    cold, warm = [], []
    for _ in range(settings.sized(settings.rounds, 1)):
        with tempfile.TemporaryDirectory(dir=settings.data) as cache:
            cold.append(run_child(FIRST_BATCH, argument, NUMBA_CACHE_DIR=cache))
            warm.append(run_child(FIRST_BATCH, argument, NUMBA_CACHE_DIR=cache))
    return cold, warm


def _openings(settings: Settings, row: partial[Row]) -> Iterator[Row]:
    few, many = (_many_episodes(settings, STEPS * factor) for factor in (1, 10))
    run_child(OPEN, str(few))
    short, long = zip(
        *[(run_child(OPEN, str(few)), run_child(OPEN, str(many))) for _ in range(settings.rounds)], strict=True
    )
    case = f"{short[0][2]:,} episodes in {settings.sized(SEGMENTS, 10):,} segments"
    yield row(NAME, f"open {case}", "limit", [ms for ms, _, _ in short], OPEN_MS, unit="ms", target=1.0)
    each, ten_fold = ([num_bytes for _, num_bytes, _ in runs] for runs in (short, long))
    yield row(NAME, f"memory of {case}", "10x the steps", each, ten_fold, unit="bytes an episode")


def _many_episodes(settings: Settings, steps: int) -> Path:
    """Record many episodes of a few steps each, in many segments."""
    num_episodes, num_segments = settings.sized(EPISODES, 100), settings.sized(SEGMENTS, 10)
    features = stepwell.Schema({"x": stepwell.Array()})
    path = settings.data / f"many-{steps}.well"
    store = stepwell.create(path, features, segment_bytes=num_episodes // num_segments * steps * 4)
    column = {"x": _ramp(steps)}
    with store.writer() as writer:
        for number in range(num_episodes):
            writer.add_episode(column, number=number)
    store.refresh()
    if (store.num_episodes, len(store.segments)) != (num_episodes, num_segments):
        raise RuntimeError(f"{store!r} of {len(store.segments)} segments is not what was to be measured.")
    return path


def _ramp(steps: int) -> list[float]:
    return [float(step) for step in range(steps)]
