"""Tables and loaders over them show the windows of features with a rate that the model has, while a store grows."""

from __future__ import annotations

import numpy as np
import pytest

import stepwell
from stepwell import Field, ReplayLoader, Table, WindowError
from stepwell.replay import Pattern
from tests.helpers.rated import Recorded, make, schema_of, shown

FPS, RATE = 10.0, 47.0
FIELDS = {
    "native": Field("tactile", span=(-0.3, 0.0)),
    "hold": Field("tactile", seconds=[-0.1, 0.0], pad="zero"),
}


def episode_of(length: int, number: int) -> Recorded:
    times = np.sort(np.random.default_rng(number).uniform(0, length / FPS, int(length * RATE / FPS)))
    values = np.stack([number * 1000 + np.arange(len(times)), times], axis=1).astype(np.float32)
    return Recorded(length, values, times, False)


def compare(batch, fields: dict[str, Field], recorded: list[Recorded]) -> None:
    for i, (episode, step) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
        for key, field in fields.items():
            values, marks = shown(field, recorded[episode], RATE, FPS, step)
            assert np.array_equal(batch[key][i], values)
            assert np.array_equal(batch[f"{key}_is_pad"][i], marks)


def test_draws_of_a_table_are_the_windows_of_the_model(tmp_path):
    recorded = [episode_of(length, number) for number, length in enumerate([9, 1, 14])]
    store = make(f"{tmp_path}/a.well", recorded, FPS, RATE)
    fields = {**FIELDS, "ahead": Field("tactile", span=(-0.1, 0.15))}
    own = {**fields, "episode": "episode_index", "step": "step_index"}
    with pytest.raises(WindowError, match="steps ahead"):
        ReplayLoader(Table(store), own, batch_size=8)
    table = Table(store, pattern=Pattern(length=1, ahead=2))
    for batch, _ in zip(ReplayLoader(table, own, batch_size=16, seed=0), range(4), strict=False):
        compare(batch, fields, recorded)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_table_follows_samples_as_they_are_recorded(tmp_path, codec):
    episode = episode_of(40, 0)
    store = stepwell.create(tmp_path / "a.well", schema_of(RATE, final=False, codec=codec), fps=FPS)
    table = Table(store)
    loader, given = None, 0
    with store.writer() as writer:
        for step in range(episode.length):
            upto = int(np.searchsorted(episode.times, step / FPS, side="right"))
            writer.append_at("tactile", episode.values[given:upto], episode.times[given:upto])
            writer.append(step=step, action=step)
            given = upto
            if step == 3:
                own = {**FIELDS, "episode": "episode_index", "step": "step_index"}
                loader = iter(ReplayLoader(table, own, batch_size=16, seed=0))
            if loader is not None:
                compare(next(loader), FIELDS, [episode])
        writer.append_at("tactile", episode.values[given:], episode.times[given:])
        writer.end_episode()
        compare(next(loader), FIELDS, [episode])
