"""EpisodeAwareSampler against a list of the items, and LeRobot's own sampler where lerobot is installed."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.lerobot import EpisodeAwareSampler, LeRobotDataset, compute_sampler_state
from stepwell.testing import tiny_lerobot

FIXED = [[7, 1, 0, 2, 5, 8, 4, 6, 3], [1, 8, 6, 3, 5, 4, 7, 0, 2]]


@st.composite
def settings_of_samplers(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    stops = np.cumsum(lengths)
    episodes = draw(st.none() | st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=6))
    return {
        "dataset_from_indices": (stops - lengths).tolist(),
        "dataset_to_indices": stops.tolist(),
        "episode_indices_to_use": episodes,
        "drop_n_first_frames": draw(st.integers(0, 3)),
        "drop_n_last_frames": draw(st.integers(0, 3)),
    }


def expected(settings: dict[str, Any]) -> list[int]:
    chosen = settings["episode_indices_to_use"]
    spans = zip(settings["dataset_from_indices"], settings["dataset_to_indices"], strict=True)
    return [
        row
        for number, (first, stop) in enumerate(spans)
        if chosen is None or number in chosen
        for row in range(first + settings["drop_n_first_frames"], stop - settings["drop_n_last_frames"])
    ]


@given(settings_of_samplers(), st.booleans(), st.integers(0, 3), st.integers(0, 40))
def test_items_are_those_of_the_chosen_frames_and_go_on_where_they_stopped(
    settings: dict[str, Any], shuffle: bool, epoch: int, start: int
) -> None:
    rows = expected(settings)
    if not rows:
        with pytest.raises(ValueError, match="No valid frames remain"):
            EpisodeAwareSampler(**settings)
        return
    sampler = EpisodeAwareSampler(**settings, shuffle=shuffle, seed=7)
    assert sampler.indices == rows
    assert len(sampler) == len(rows)
    sampler.set_epoch(epoch)
    whole = list(sampler)
    assert sorted(whole) == rows
    assert shuffle or whole == rows
    again = EpisodeAwareSampler(**settings, shuffle=shuffle, seed=7)
    again.load_state_dict({"epoch": epoch, "start_index": start})
    assert list(again) == whole[start:]
    assert again.state_dict() == {"epoch": epoch + 1, "start_index": 0}


@given(settings_of_samplers(), st.integers(0, 3))
def test_orders_are_those_of_lerobots_sampler(settings: dict[str, Any], seed: int) -> None:
    theirs = pytest.importorskip("lerobot.datasets.sampler").EpisodeAwareSampler
    if not hasattr(theirs, "set_epoch") or theirs is EpisodeAwareSampler:
        pytest.skip("lerobot's own is older, or replaced")
    assume(expected(settings))
    ours, other = (each(**settings, shuffle=True, seed=seed) for each in (EpisodeAwareSampler, theirs))
    assert [list(ours) for _ in range(3)] == [list(other) for _ in range(3)]


def test_orders_are_fixed() -> None:
    """Epochs of lerobot 0.6.2 with the same arguments."""
    sampler = EpisodeAwareSampler([0, 4], [4, 9], shuffle=True, seed=3)
    assert [list(sampler) for _ in range(2)] == FIXED


def test_of_some_episodes_items_are_counted_among_theirs(tmp_path: Any) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=[5, 4, 3])
    dataset = LeRobotDataset("me/tiny", root, episodes=[0, 2])
    rows = dataset.meta.episodes
    sampler = EpisodeAwareSampler(
        rows["dataset_from_index"],
        rows["dataset_to_index"],
        episode_indices_to_use=dataset.episodes,
        drop_n_last_frames=1,
        absolute_to_relative_idx=dataset.absolute_to_relative_idx,
    )
    assert list(sampler) == [0, 1, 2, 3, 5, 6]
    assert [int(dataset[item]["index"]) for item in sampler] == [0, 1, 2, 3, 9, 10]


@pytest.mark.parametrize("batch, processes", [(4, 1), (4, 3), (7, 2)])
def test_the_state_after_a_step_is_where_its_batches_end(batch: int, processes: int) -> None:
    frames = 50
    # each epoch's last step is filled up
    starts = [(epoch, start) for epoch in range(3) for start in range(0, frames, batch * processes)]
    for step, (epoch, start) in enumerate(islice(starts, 20)):
        assert compute_sampler_state(step, frames, batch, processes) == {"epoch": epoch, "start_index": start}


def test_what_cannot_be_sampled_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="drop_n_first_frames must be >= 0, got -1"):
        EpisodeAwareSampler([0], [3], drop_n_first_frames=-1)
    with pytest.raises(ValueError, match="same length, got 2 and 1"):
        EpisodeAwareSampler([0, 3], [3])
    with pytest.raises(IndexError, match="no episode 5 among 1"):
        EpisodeAwareSampler([0], [3], episode_indices_to_use=[5])
    with caplog.at_level(logging.WARNING):
        assert list(EpisodeAwareSampler([0, 2], [2, 6], drop_n_last_frames=3)) == [2]
    assert "Episode 0 has 2 frames" in caplog.text
