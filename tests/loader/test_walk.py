"""The way of a raw batch through our code: how deep it is, and how many Python calls it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from called_files import files_in_python

import stepwell
from stepwell import Field, Loader, Store

PACKAGE = str(Path(stepwell.__file__).parent)
NUM_BATCHES = 100


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = stepwell.create(tmp_path_factory.mktemp("walk") / "walk.well", {"state": stepwell.Array(7)})
    with store.writer() as writer:
        for _ in range(40):
            writer.add_episode({"state": np.zeros((200, 7), np.float32)})
    store.refresh()
    return store


def is_ours(frame: FrameType) -> bool:
    # a kernel says that it is called; it is compiled
    return frame.f_code.co_filename.startswith(PACKAGE) and "kernels" not in frame.f_code.co_filename


def depth_of(frame: FrameType | None) -> int:
    """Return how many frames of ours are on the stack."""
    depth = 0
    while frame is not None:
        depth, frame = depth + is_ours(frame), frame.f_back
    return depth


@pytest.mark.parametrize("batch_size", [32, 256])
@pytest.mark.parametrize(
    "fields", [{"state": "state"}, {"state": Field("state", range(-15, 1))}], ids=["step", "window"]
)
def test_a_raw_batch_takes_at_most_five_frames_and_twelve_calls(
    store: Store, batch_size: int, fields: dict[str, Any]
) -> None:
    loader = Loader(store, fields, batch_size=batch_size, order="random", epochs=None, threads=0)
    batches = iter(loader)
    next(batches)
    assert len(files_in_python(lambda: [next(batches) for _ in range(NUM_BATCHES)])) <= 12 * NUM_BATCHES
    depths: list[int] = []
    copy = loader.reader._locate_and_gather

    def copy_noted(*arguments: Any) -> Any:
        depths.append(depth_of(sys._getframe()))
        return copy(*arguments)

    loader.reader._locate_and_gather = copy_noted
    for _ in range(NUM_BATCHES):
        next(batches)
    assert depths
    assert max(depths) <= 5
