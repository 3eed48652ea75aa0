"""Statistics of relative actions, against a plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.lerobot.relative_actions import compute_relative_action_stats, relative_action_statistics
from stepwell.schema import Array

NAMES = ["Shoulder.pos", "elbow.pos", "gripper.pos"]


def episodes_of(lengths: Any, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the actions and states of some episodes, float32 [n, 3] and [n, 4]."""
    rng = np.random.default_rng(seed)
    made = [(rng.normal(3, 2, (n, 3)), rng.normal(1, 5, (n, 4))) for n in lengths]
    return [(actions.astype(np.float32), states.astype(np.float32)) for actions, states in made]


def model(episodes: Any, size: int, is_relative: Any) -> np.ndarray:
    """Return the relative actions of every chunk, one by one."""
    rows = [
        actions[start + i] - np.where(is_relative, states[start, :3], np.float32(0))
        for actions, states in episodes
        for start in range(len(actions) - size + 1)
        for i in range(size)
    ]
    return np.array(rows).reshape(-1, 3)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    size=st.integers(1, 8),
    excluded=st.sampled_from([(), ("gripper",), ("SHOULDER", "elbow.pos"), ("wrist", "")]),
    seed=st.integers(0, 99),
)
def test_they_are_those_of_all_chunks(lengths: list[int], size: int, excluded: tuple[str, ...], seed: int) -> None:
    episodes = episodes_of(lengths, seed)
    parts = [part.lower() for part in excluded if part]
    rows = model(episodes, size, [not any(part in name.lower() for part in parts) for name in NAMES])
    columns = {
        "action": np.concatenate([actions for actions, _ in episodes]),
        "observation.state": np.concatenate([states for _, states in episodes]),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
    }
    features = {"action": {"names": {"motors": NAMES} if seed % 2 else NAMES}}
    if not len(rows):
        with pytest.raises(ValueError, match="No valid chunks"):
            compute_relative_action_stats(columns, features, size, list(excluded))
        return
    found = compute_relative_action_stats(columns, features, size, list(excluded))
    assert found["count"].tolist() == [len(rows)]
    for key, expected in (("min", rows.min(0)), ("max", rows.max(0))):
        np.testing.assert_array_equal(found[key], expected)
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(found["mean"], wide.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["std"], wide.std(0), rtol=1e-6, atol=1e-6)
    for key, share in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        slack = 0.02 + 1 / len(rows)
        low, high = (np.quantile(wide, np.clip(share + off, 0, 1), axis=0) for off in (-slack, slack))
        assert ((found[key] >= low - 1e-6) & (found[key] <= high + 1e-6)).all()


def test_a_store_gives_the_same(tmp_path: Path) -> None:
    episodes = episodes_of((9, 3, 12), 0)
    schema = {"action": Array(3, names=NAMES), "observation.state": Array(4, final=True)}
    store = stepwell.create(tmp_path / "a.well", schema, fps=10)
    with store.writer() as writer:
        for actions, states in episodes:
            writer.add_episode({"action": actions, "observation.state": np.vstack([states, states[-1:]])})
    found = relative_action_statistics(stepwell.open(tmp_path / "a.well"), 4, ["gripper"])
    rows = model(episodes, 4, [True, True, False])
    np.testing.assert_array_equal(found["min"], rows.min(0))
    np.testing.assert_allclose(found["mean"], rows.astype(np.float64).mean(0), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"chunk_size": 13}, ValueError, "No valid chunks"),
        ({"chunk_size": 0}, ValueError, "at least 1"),
        ({"chunk_size": 2, "exclude_joints": "gripper"}, ValueError, "list of names"),
        ({"chunk_size": 2, "state": "joints"}, KeyError, "joints"),
        ({"chunk_size": 2, "state": "reward"}, ValueError, "as many elements"),
    ],
)
def test_what_has_no_chunks_is_refused(tmp_path: Path, options: Any, error: Any, says: str) -> None:
    store = stepwell.create(tmp_path / "a.well", {"action": Array(3), "reward": Array(1)}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"action": np.zeros((12, 3), np.float32), "reward": np.zeros((12, 1), np.float32)})
    with pytest.raises(error, match=says):
        relative_action_statistics(stepwell.open(tmp_path / "a.well"), **{"state": "action", **options})
