"""Standardising functions, as Octo's and OpenVLA's are written: in a module that workers can import."""

import numpy as np


def each(function, tree):
    """What ``tf.nest.map_structure`` does."""
    return {key: each(function, value) if isinstance(value, dict) else function(value) for key, value in tree.items()}


def standard(trajectory):
    action = trajectory["action"]
    trajectory["action"] = np.concatenate([action[:, :3], np.clip(action[:, 3:], -0.5, 0.5)], 1)
    return each(lambda values: values[:-1], trajectory)


def constant(trajectory):
    action = trajectory["action"]
    trajectory["action"] = np.concatenate([action[:, :3], np.ones_like(action[:, :1])], 1)
    return trajectory


def not_idle(trajectory):
    """Leave out steps that hardly move; references to images are filtered as they are."""
    keeps = np.abs(trajectory["action"][:, :3]).max(axis=1) > 0.5
    return each(lambda values: values[keeps], trajectory)


def nothing(trajectory):
    return each(lambda values: values[:0], trajectory)


def without_first(episode):
    """A transform of a reader that leaves one episode out."""
    return None if episode.metadata["episode_id"] == 0 else episode
