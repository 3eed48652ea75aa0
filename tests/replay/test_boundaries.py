"""What replay buffers get wrong at the ends of episodes and of the ring, asked of stepwell.

A ring of 200 steps, overwritten five times by episodes of 2 to 29 steps, every observation (episode, step)::

    episode 31 | 0 1 2 3 (4) |   32 | 0 1 ... 17 (18) |   33 | 0 1 (2) |       (n): the final row, after the last step
                     ^ the ring may begin here: steps 0 and 1 were evicted

Drawn all along while the ring is filled, and from it as it stands at the end. Statistical tests have fixed seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import warm_children

import stepwell
from stepwell.replay import Pattern, ReplayLoader, Table, transition_fields

CAPACITY, ROUNDS = 200, 5
FEATURES = {
    "observation": stepwell.Array(2, "int32", final=True),
    "action": stepwell.Array((), "int32"),
    "reward": stepwell.Array(),
}
# P(z > 3.09) = 0.001
MAX_Z = 3.09
Int64s = npt.NDArray[np.int64]


class Episode(NamedTuple):
    """What was recorded."""

    length: int
    terminated: bool


class Recorder:
    """Record episodes, and know what a right reader finds."""

    def __init__(self, path: Path) -> None:
        self.store = stepwell.create(path, FEATURES, capacity=CAPACITY)
        rng = np.random.default_rng(7)
        lengths = rng.integers(2, 30, 400)
        number = int(np.searchsorted(np.cumsum(lengths), CAPACITY * (ROUNDS + 1)))
        ends = rng.random(number) < 0.5
        self.episodes = [Episode(int(lengths[i]), bool(ends[i])) for i in range(number)]
        self.written: list[tuple[int, int]] = []

    def steps(self) -> Iterator[None]:
        """Record all, and let the caller do something after each step and each end."""
        with self.store.writer() as writer:
            for number, episode in enumerate(self.episodes):
                for step in range(episode.length):
                    writer.append({"observation": [number, step], "action": 100 * number + step, "reward": step})
                    self.written.append((number, step))
                    yield
                final = {"observation": [number, episode.length]}
                writer.end_episode(terminated=episode.terminated, truncated=not episode.terminated, final=final)
                yield

    def record(self) -> None:
        """Record all."""
        for _ in self.steps():
            pass

    @property
    def shown(self) -> set[tuple[int, int]]:
        """The newest steps, as many as the ring shows."""
        return set(self.written[-CAPACITY:])


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "ring.well")
    yield made
    made.store.close()


def check_transitions(recorder: Recorder, batch: Any) -> None:
    """Compare a batch of transitions with what was recorded, row by row."""
    shown = recorder.shown
    for row in range(len(batch["action"])):
        number, step = batch["observation"][row].tolist()
        episode = recorder.episodes[number]
        assert (number, step) in shown
        assert batch["next_observation"][row].tolist() == [number, step + 1]
        assert batch["action"][row] == 100 * number + step
        assert batch["reward"][row] == step
        is_end = episode.terminated and step == episode.length - 1
        assert batch["terminated"][row] == is_end
        assert batch["discount"][row] == (0 if is_end else np.float32(0.99))


def is_last(recorder: Recorder, observations: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    lengths = np.array([episode.length for episode in recorder.episodes])
    found: npt.NDArray[np.bool_] = observations[:, 1] == lengths[observations[:, 0]] - 1
    return found


def chi_square_z(counts: Int64s) -> float:
    """Return how many deviations the counts are from uniform ones, by Wilson and Hilferty."""
    expected, freedom = counts.mean(), len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))


def counts_of(drawn: Int64s, valid: list[tuple[int, int]]) -> Int64s:
    """Return how often each valid anchor was drawn; others must not have been."""
    names = np.array(sorted(100 * number + step for number, step in valid))
    places = np.searchsorted(names, drawn)
    np.testing.assert_array_equal(names[np.minimum(places, len(names) - 1)], drawn)
    return np.bincount(places, minlength=len(names))


def test_next_observation_is_right_at_every_moment_truncations_included(recorder: Recorder) -> None:
    targets = transition_fields()
    table = Table(recorder.store, max_size=CAPACITY)
    loader = ReplayLoader(table, targets.fields, batch_size=16, transform=targets.transform)
    num_ends = {True: 0, False: 0}
    for moment, _ in enumerate(recorder.steps()):
        if moment < 2:
            # the first transition is not there before the step after it
            continue
        batch = next(loader)
        check_transitions(recorder, batch)
        for number in batch["observation"][is_last(recorder, batch["observation"]), 0].tolist():
            num_ends[recorder.episodes[number].terminated] += 1
    assert min(num_ends.values()) > 200


def test_transitions_of_a_ring_at_rest_are_drawn_uniformly_and_all_of_them(recorder: Recorder) -> None:
    recorder.record()
    targets = transition_fields()
    loader = ReplayLoader(
        Table(recorder.store, max_size=CAPACITY, seed=3), targets.fields, batch_size=4000, transform=targets.transform
    )
    batches = [next(loader) for _ in range(10)]
    check_transitions(recorder, batches[0])
    drawn = np.concatenate([batch["action"] for batch in batches]).astype(np.int64)
    counts = counts_of(drawn, list(recorder.shown))
    # 200 of 200: neither the step at the write cursor nor the oldest, nor those that end an episode, are left out
    assert (len(counts), counts.min() > 0) == (CAPACITY, True)
    assert chi_square_z(counts) < MAX_Z


@pytest.mark.parametrize("length", [4, 16])
def test_slices_lie_in_one_episode_and_are_uniform_over_valid_anchors(recorder: Recorder, length: int) -> None:
    table = Table(
        recorder.store, max_size=CAPACITY, pattern=Pattern(length=length, ahead=0, ends="drop"), seed=length
    )  # fmt: skip
    fields = {name: stepwell.Field(name, range(length)) for name in ("observation", "action")}
    loader = ReplayLoader(table, fields, batch_size=16)
    for moment, _ in enumerate(recorder.steps()):
        if moment > 200 and moment % 7 == 0:
            check_slices(recorder, next(loader), length)
    many = ReplayLoader(table, fields, batch_size=40_000)
    batch = next(many)
    check_slices(recorder, batch, length)
    shown = recorder.shown
    valid = [(number, step) for number, step in shown if (number, step + length - 1) in shown]
    counts = counts_of(batch["action"][:, 0].astype(np.int64), valid)
    assert chi_square_z(counts) < MAX_Z


def check_slices(recorder: Recorder, batch: Any, length: int) -> None:
    observations = batch["observation"].astype(np.int64)
    assert (observations[:, :, 0] == observations[:, :1, 0]).all()
    np.testing.assert_array_equal(observations[:, :, 1], observations[:, :1, 1] + np.arange(length))
    np.testing.assert_array_equal(batch["action"], 100 * observations[..., 0] + observations[..., 1])
    assert not batch["observation_is_pad"].any()
    assert set(map(tuple, observations.reshape(-1, 2).tolist())) <= recorder.shown


def test_stacks_repeat_the_first_step_that_is_there_and_never_reach_before_it(recorder: Recorder) -> None:
    targets = transition_fields(stack=4)
    loader = ReplayLoader(
        Table(recorder.store, max_size=CAPACITY), targets.fields, batch_size=16, transform=targets.transform
    )
    num_short = 0
    for moment, _ in enumerate(recorder.steps()):
        if moment < CAPACITY or moment % 3:
            continue
        batch, shown = next(loader), recorder.shown
        for observation, following in zip(batch["observation"], batch["next_observation"], strict=True):
            number, step = observation[-1].tolist()
            first = min(at for episode, at in shown if episode == number)
            steps = [max(first, step + offset) for offset in range(-3, 2)]
            assert observation.tolist() == [[number, at] for at in steps[:4]]
            assert following.tolist() == [[number, at] for at in steps[1:]]
            num_short += step - 3 < first
    assert num_short > 100


ACTOR = """
import sys
import numpy as np
import stepwell
first = int(sys.argv[2])
with stepwell.open(sys.argv[1]) as store, store.writer() as writer:
    for number in range(first, first + 1_000_000):
        writer.append_batch({"values": np.repeat(np.arange(50 * number, 50 * number + 50.0)[:, None] + 1, 512, 1)})
        writer.end_episode()
"""


def test_rows_that_two_processes_write_are_never_torn_and_never_empty(tmp_path: Path) -> None:
    features = {"values": stepwell.Array(512, "float64")}
    store = stepwell.create(tmp_path / "ring.well", features, capacity=20_000)
    commands = [[sys.executable, "-c", ACTOR, str(store.path), str(first)] for first in (0, 10_000_000)]
    table = Table(store, max_size=20_000, pattern=Pattern(ahead=0))
    loader = ReplayLoader(table, {"values": "values"}, batch_size=256, timeout=60)
    actors = [warm_children.Popen(command) for command in commands]
    try:
        num_rows, seen = 0, set()
        while num_rows < 50 * 256 or len(seen) < 2:
            values = next(loader)["values"]
            assert (values == values[:, :1]).all(), "a torn row"
            assert (values[:, 0] >= 1).all(), "a row that was never written"
            seen.update((values[:, 0] > 50 * 10_000_000).tolist())
            num_rows += len(values)
    finally:
        for actor in actors:
            actor.kill()
            actor.wait()
        store.close()
