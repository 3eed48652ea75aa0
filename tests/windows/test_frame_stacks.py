"""The four examples of Reverb's frame stacking, as fields: the same items with the same frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Field, View
from stepwell.windows import WindowReader

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "reverb" / "frame_stacking.json"
if not RECORDED.exists():
    pytest.skip("Reverb's recorded items (../shared/data/reverb) are not beside this checkout", allow_module_level=True)
CASES = json.loads(RECORDED.read_text())["cases"]


def stack_offsets(stack_size: int, stride: int, sequence_length: int) -> list[list[int]]:
    """Stacks of consecutive frames, ``stride`` apart; the last frame of the last stack is the anchor."""
    starts = [-(sequence_length - 1 - i) * stride - stack_size + 1 for i in range(sequence_length)]
    return [[start + k for k in range(stack_size)] for start in starts]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['case']}-{case['variant']}")
def test_frame_stacks_equal_reverbs_items(case, tmp_path):
    store = stepwell.create(tmp_path / "frames.well")
    with store.writer() as writer:
        frames = np.arange(1, case["frames_written"] + 1, dtype=np.uint8)
        writer.add_episode({"frame": np.broadcast_to(frames[:, None, None], (len(frames), 16, 16)).copy()})
    store.refresh()
    # flat sequences are stacked after sampling: stacks that are one step apart
    offsets = stack_offsets(case["stack_size"], case["stride"] or 1, case["sequence_length"])
    reader = WindowReader(View(store), {"frame": Field("frame", offsets, pad="drop")})
    # an item that was created after frame f is anchored at it, step f - 1
    steps = np.array(case["item_created_after_frame"]) - 1
    positions = reader.index.positions_of(store.segments[0].ordinal << 32 | steps)
    assert (positions >= 0).all()
    assert positions[0] < case["stride"] if case["stride"] else positions[0] == 0
    batch = reader.read(positions)["frame"]
    assert batch.shape[1:] == tuple(case["sample_shape"])
    stacks = batch[..., 0, 0].tolist()
    # the seeded variant samples the first item again and again, the others go through all of them
    expected = stacks if len(case["samples"]) == len(stacks) else [stacks[0]] * len(case["samples"])
    assert case["samples"] == expected
    assert (batch == batch[..., :1, :1]).all()
