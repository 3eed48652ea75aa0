"""Datasets of both, and their items: equal key for key, in order, type for type, byte for byte."""

import random
from pathlib import Path

import numpy as np
import torch

import stepwell

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
FPS = 10
CAMERAS = {"observation.images.top": (48, 64, 3), "observation.images.side": (32, 32, 3)}
# conversion from yuv is rounded the same way or by one
ROUNDING = 1.01 / 255


def assert_same_items(ours, theirs, indices, *, inexact=()):
    """Compare items by their place; of the keys ``inexact`` pixels may be rounded another way."""
    assert len(ours) == len(theirs)
    for index in indices:
        found, wanted = ours[index], theirs[index]
        assert list(found) == list(wanted), index
        for key, value in wanted.items():
            assert_same_value(found[key], value, f"item {index}, {key}", is_exact=key not in inexact)


def assert_same_value(found, wanted, where, *, is_exact):
    assert type(found) is type(wanted), where
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted, where
        return
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
    if is_exact or wanted.dtype == torch.bool:
        assert torch.equal(found, wanted), where
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDING, err_msg=where)


def opened(root, deltas=None, **options):
    """Open a dataset as lerobot does."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("interop/set", root=root, delta_timestamps=deltas, video_backend="torchcodec", **options)


def ours(root, deltas=None, **options):
    return stepwell.lerobot.LeRobotDataset("interop/set", root=root, delta_timestamps=deltas, **options)


def some_deltas(seed, keys, fps=FPS):
    """Return windows of some features, drawn at random: in any order, a step more than once, beyond the episode."""
    rng = random.Random(seed)
    chosen = [key for key in rng.sample(keys, len(keys)) if rng.random() < 0.7]
    return {key: [rng.randrange(-40, 40) / fps for _ in range(rng.choice((1, 2, 5)))] for key in chosen}


def some_indices(seed, count, number=12):
    rng = random.Random(seed)
    return [0, count - 1, *(rng.randrange(count) for _ in range(number))]


def smooth(rng, length, shape):
    """Return images that video keeps well."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    phase = np.arange(length)[:, None, None, None] / 7 + rng.random() * 9 + np.arange(3)
    return (127 + 120 * np.sin(y[None, :, :, None] / 17 + x[None, :, :, None] / 23 + phase)).astype("u1")
