"""Learning targets over a ring: at what was trimmed and where a long episode was cut, while a writer goes on."""

import threading
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import Pattern
from stepwell.replay.tables import Table
from stepwell.replay.transitions import transition_fields
from stepwell.transforms import HindsightRelabel

GAMMA = 0.5
SCHEMA = {"observation": Array((), "int64", final=True), "action": Array(), "reward": Array((), "float64")}


def write_episode(writer: stepwell.Writer, first: int, length: int, *, terminated: bool = False) -> None:
    steps = np.arange(first, first + length)
    for begin in range(0, length, 512):
        part = steps[begin : begin + 512]
        action, reward = (part % 7).astype(np.float32), (part % 5).astype(np.float64)
        writer.append_batch({"observation": part, "action": action, "reward": reward})
    writer.end_episode(terminated=terminated, truncated=not terminated, final={"observation": first + length})


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_across_a_cut_bootstrap_from_the_observation_that_follows(tmp_path: Path, n_step: int) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=8000)
    table = Table(store, pattern=Pattern(ahead=n_step), sampler="fifo", max_times_sampled=1)
    length = 7000
    with store.writer() as writer:
        for step in range(length):
            writer.append(observation=step, action=0.0, reward=1.0)
        writer.end_episode(truncated=True, final={"observation": length})
    fields, transform = transition_fields(n_step=n_step, discount=GAMMA)
    batch = next(ReplayLoader(table, fields, batch_size=length, transform=transform))
    observations, lengths = batch["observation"], np.log(batch["discount"]) / np.log(GAMMA)
    assert sorted(observations.tolist()) == list(range(length))
    assert batch["is_valid"].all()
    assert np.array_equal(batch["next_observation"], observations + np.round(lengths).astype(int))
    assert (lengths > 0.5).all()
    if n_step == 1:
        assert (lengths < 1.5).all()
    else:
        # the end has two shorter ones, a cut has none
        assert (lengths < n_step - 0.5).sum() == 2


@pytest.mark.parametrize(("threads", "prefetch"), [(0, 1), (0, 4), (2, 2)])
def test_every_transition_is_right_while_a_writer_goes_round_a_ring(
    tmp_path: Path, threads: int, prefetch: int
) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=5000)
    table = Table(store, max_size=100_000)
    stop = threading.Event()
    written = [0]

    def act() -> None:
        with store.writer() as writer:
            rng = np.random.default_rng(0)
            while not stop.is_set() and written[0] < 400_000:
                length = int(rng.integers(1, 900))
                write_episode(writer, written[0], length, terminated=length % 2 == 0)
                # numbers of two episodes never meet: a window over both would show
                written[0] += length + 10

    actor = threading.Thread(target=act)
    actor.start()
    fields, transform = transition_fields(discount=GAMMA)
    try:
        with ReplayLoader(
            table, fields, batch_size=128, transform=transform, threads=threads, prefetch=prefetch, timeout=5
        ) as loader:
            for _ in range(150):
                batch = next(loader)
                assert np.array_equal(batch["next_observation"], batch["observation"] + 1)
                assert np.array_equal(batch["reward"], (batch["observation"] % 5).astype(np.float32))
                assert np.array_equal(batch["action"], (batch["observation"] % 7).astype(np.float32))
    finally:
        stop.set()
        actor.join()
    assert written[0] > 0


def test_hindsight_goals_of_a_table_are_of_the_same_episode_and_later(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA)
    table = Table(store)
    with store.writer() as writer:
        for first in range(0, 2000, 100):
            write_episode(writer, first, 40)
    targets = transition_fields()
    fields = {
        **targets.fields,
        "achieved": Field("observation", 1),
        "goal": Field("observation", 0),
        "candidate": Field("observation", at="future"),
    }
    relabel = HindsightRelabel("goal", "candidate", achieved="achieved", probability=1.0)
    batch = next(ReplayLoader(table, fields, transform=[relabel, targets.transform], seed=3))
    distance = batch["goal"] - batch["observation"]
    assert (distance >= 1).all()
    assert (batch["goal"] // 100 == batch["observation"] // 100).all()
    assert distance.max() > 10
