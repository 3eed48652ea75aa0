"""replay_checkpoint: a replay of a million transitions, and its table, written so that another process can go on.

stepwell links the files of the store that are sealed, copies what is recorded now, and writes the items of the table.
"bytes written" are those of new files. Beside it what others write, all of it, to files of the page cache: numpy an
array a field, TorchRL its buffer by `dumps`. Nobody waits for the disk. A turn is one call, into an empty directory.

Restoring is opening what was written and drawing a batch of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from datasets import removed
from report import Row, compare, skipped, within
from rivals import quiet_torchrl
from timing import Settings, Work, time_rounds
from transitions import EPISODE, FEATURES, Transitions, make_transitions

import stepwell
from stepwell.replay import Prioritized, Table

__all__ = ["run"]

NAME = "replay_checkpoint"
CASE, RESTORING = "checkpoint of 1M transitions", "restoring 1M transitions"
OURS, NUMPY, TORCHRL = "stepwell", "numpy save", "torchrl dumps"
BATCH = 256


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a rival, then those of restoring and of bytes."""
    transitions = make_transitions(settings.sized(1_000_000, 20 * EPISODE))
    directory = settings.data / "checkpoints"
    with removed(_record(settings.data / "replay.well", transitions)) as store:
        table = Table(store, max_size=len(transitions.reward), sampler=Prioritized(0.6))
        table.follow()
        contenders = {OURS: _saving(table, directory), NUMPY: _numpy(transitions, directory)}
        try:
            contenders[TORCHRL] = _torchrl(transitions, directory)
        except ImportError:
            yield from skipped(NAME, TORCHRL, CASE)
        rates = time_rounds(contenders, settings, before=lambda: _empty(directory))
        for name in list(contenders)[1:]:
            yield compare(NAME, CASE, rates, ours=OURS, theirs=name, unit="checkpoints/s", target=1.0)
        _empty(directory)
        path = table.checkpoint(directory / OURS)
        # before the store goes, and links with it
        files = [file.stat() for file in path.rglob("*") if file.is_file()]
        written = float(sum(file.st_size for file in files if file.st_nlink == 1))
        rates = time_rounds({OURS: _restoring(path), NUMPY: _loading(transitions, directory)}, settings)
        yield compare(NAME, RESTORING, rates, ours=OURS, theirs=NUMPY, unit="restores/s")
        memcpy, stored = rates.memcpy_gb_per_s, float(sum(column.nbytes for column in transitions.columns().values()))
    shutil.rmtree(directory)
    yield within(NAME, f"{CASE}, bytes written", NUMPY, [written], stored, unit="bytes", memcpy_gb_per_s=memcpy)


def _record(path: Path, transitions: Transitions) -> stepwell.Store:
    """Record in segments as large as they are where nothing else is asked for."""
    store = stepwell.create(path, FEATURES)
    with store.writer() as writer:
        for start in range(0, len(transitions.reward), EPISODE):
            steps = {name: getattr(transitions, name)[start : start + EPISODE] for name in FEATURES}
            final = {"observation": transitions.next_observation[start + EPISODE - 1]}
            writer.add_episode(steps, final=final, truncated=True)
    store.refresh()
    return store


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()


def _saving(table: Table, directory: Path) -> Work:
    def save() -> float:
        table.checkpoint(directory / OURS)
        return 1.0

    _empty(directory)
    save()
    again = Table.restore(directory / OURS)
    found, expected = again.sample(BATCH), table.sample(BATCH)
    np.testing.assert_array_equal(found.keys, expected.keys)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    return save


def _restoring(path: Path) -> Work:
    def restore() -> float:
        Table.restore(path).sample(BATCH)
        return 1.0

    return restore


def _numpy(transitions: Transitions, directory: Path) -> Work:
    columns = transitions.columns()

    def save() -> float:
        for name, column in columns.items():
            np.save(directory / name, column)
        return 1.0

    return save


def _loading(transitions: Transitions, directory: Path) -> Work:
    _numpy(transitions, directory)()
    names, number = list(transitions.columns()), len(transitions.reward)

    def load() -> float:
        rows = np.random.default_rng(0).integers(0, number, BATCH)
        for name in names:
            np.load(directory / f"{name}.npy")[rows]
        return 1.0

    return load


def _torchrl(transitions: Transitions, directory: Path) -> Work:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    quiet_torchrl()
    number = len(transitions.reward)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(number), batch_size=BATCH)
    columns = {name: torch.from_numpy(column) for name, column in transitions.columns().items()}
    buffer.extend(TensorDict(columns, batch_size=[number]))

    def save() -> float:
        buffer.dumps(directory / "torchrl")
        return 1.0

    return save
