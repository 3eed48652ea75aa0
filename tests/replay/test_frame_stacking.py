"""C1: the frame-stacking cases that were recorded from Reverb, with a table over frames that are stored once.

A stack is a slice of frames, a sequence of stacks a longer one. An item covers all of it; which frames of it a stack
takes is a matter of the window that is read there.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.replay.limiters import MinSize
from stepwell.replay.tables import Table
from stepwell.schema import Array

CASES = Path(__file__).parents[3] / "shared" / "data" / "reverb" / "frame_stacking.json"


def cases():
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="../shared/data/reverb is not here"))]
    return [
        pytest.param(case, id=f"{case['case']}-{case['variant']}") for case in json.loads(CASES.read_text())["cases"]
    ]


@pytest.mark.parametrize("case", cases())
def test_c1_frame_stacks_are_those_of_reverb(case, tmp_path):
    store = stepwell.create(tmp_path / "frames.well", {"frame": Array(dtype="int64")})
    is_queue = case["variant"] != "seed"
    table = Table(
        store,
        pattern=None,
        sampler="fifo",
        max_times_sampled=1 if is_queue else 0,
        limiter=MinSize(1 if is_queue else 10),
    )
    stack, stride, sequence = case["stack_size"], case["stride"] or 1, case["sequence_length"]
    # frame f, counted from 1, ends a stack when f is a multiple of the stride
    made, ids = [], []
    with store.writer() as writer:
        for frame in range(1, case["frames_written"] + 1):
            ids.append(writer.append(frame=frame))
            ends = [end for end in range(stack, frame + 1) if end % stride == 0]
            if len(ends) >= sequence and ends[-1] == frame:
                table.create_item(ids[ends[-sequence] - stack :], priority=1.0)
                made.append(frame)
        assert made == case["item_created_after_frame"]
        assert table.size == case["items_in_table_after_write"]
        samples = [table.sample(1, timeout=0) for _ in case["samples"]]
    for sample, expected, info in zip(samples, case["samples"], case["sample_infos"], strict=True):
        row, length = int(sample.rows[0]), int(sample.lengths[0])
        frames = np.arange(row + 1, row + length + 1)
        starts = np.arange(0, length - stack + 1, stride)
        assert frames[starts[:, None] + np.arange(stack)].tolist() == expected
        told = {
            "probability": float(sample.probabilities[0]),
            "table_size": int(sample.table_size[0]),
            "priority": float(sample.priorities[0]),
            "times_sampled": int(sample.times_sampled[0]),
        }
        assert told == info
    assert table.size == case["table_size_after_sampling"]
