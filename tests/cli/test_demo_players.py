"""The scripted pusher: its model of a push against the simulator, and that it solves PushT."""

import numpy as np
import pytest

from stepwell.cli.demo import OUTLINE, ScriptedPusher, contact_points, distance_to_outline

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("gym_pusht")


def test_normals_point_into_the_block() -> None:
    contacts, normals = contact_points()
    assert (distance_to_outline(contacts + 2.0 * normals) == 0).all()
    assert (distance_to_outline(contacts - 2.0 * normals) > 1.9).all()


def test_outline_is_that_of_the_simulator() -> None:
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="state").unwrapped
    env.reset(seed=0)
    corners = {tuple(map(float, corner)) for shape in env.block.shapes for corner in shape.get_vertices()}
    assert corners == {*map(tuple, OUTLINE.tolist()), (15.0, 30.0), (-15.0, 30.0)}


def test_pusher_solves_most_episodes_and_lengths_differ() -> None:
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="state")
    lengths, is_success = [], []
    for seed in (2, 3, 6, 9, 14, 21):
        _, info = env.reset(seed=seed)
        pusher, over, length = ScriptedPusher(seed), False, 0
        while not over:
            action = pusher.act(info)
            assert env.action_space.contains(action)
            *_, terminated, truncated, info = env.step(action)
            over, length = terminated or truncated, length + 1
        lengths.append(length)
        is_success.append(info["is_success"])
    assert np.mean(is_success) > 0.5
    assert len(set(lengths)) > 3


def test_same_seed_plays_the_same() -> None:
    info = {
        "pos_agent": np.array([100.0, 100.0]),
        "block_pose": np.array([300.0, 300.0, 1.0]),
        "goal_pose": np.array([256.0, 256.0, 0.78]),
    }
    np.testing.assert_array_equal(ScriptedPusher(5).act(info), ScriptedPusher(5).act(info))
