"""lerobot's own scripts with stepwell's classes in them: training, recording, replay and the viewer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepwell.lerobot import LeRobotRecorder

pytest.importorskip("torch")
CHILD = Path(__file__).with_name("lerobot_scripts_child.py")
ACT = ["act", "chunk_size=8", "n_action_steps=8", "dim_model=32", "n_heads=2", "dim_feedforward=32"]
DIFFUSION = [
    "diffusion",
    "horizon=8",
    "n_action_steps=4",
    "down_dims=[16,32]",
    "crop_shape=[40,40]",
    "diffusion_step_embed_dim=16",
    "spatial_softmax_num_keypoints=4",
]


def whole(*arguments):
    done = subprocess.run(
        [sys.executable, CHILD, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.endswith("whole\n"), done.stderr[-4000:]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a small dataset with a camera whose images are those of videos."""
    root = tmp_path_factory.mktemp("scripts") / "set"
    features = {
        "observation.images.top": {"dtype": "video", "shape": (48, 48, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    }
    rng = np.random.default_rng(0)
    video = {"encoder": "h264", "gop": 4}
    with LeRobotRecorder.create(root, fps=10, features=features, output="v3.0", video=video) as recorder:
        for length in (12, 9):
            image = np.kron(rng.integers(0, 255, (6, 6, 3)), np.ones((8, 8, 1))).astype("u1")
            for step in range(length):
                row = {"observation.state": rng.normal(size=4).astype("f4"), "action": rng.normal(size=2).astype("f4")}
                recorder.add_frame({**row, "observation.images.top": np.roll(image, 3 * step, 1), "task": "push"})
            recorder.save_episode()
    return root


@pytest.mark.parametrize("policy", [ACT, DIFFUSION], ids=["act", "diffusion"])
def test_training_and_resumed_training_give_the_same_weights(root, tmp_path, policy):
    pytest.importorskip("accelerate")
    if policy is DIFFUSION:
        pytest.importorskip("diffusers")
    kind, *options = policy
    whole("train", root, tmp_path, f"--policy.type={kind}", *(f"--policy.{option}" for option in options))
    theirs = sorted(tmp_path.glob("theirs/checkpoints/0*/pretrained_model/model.safetensors"))
    assert [path.parts[-3] for path in theirs] == ["000002", "000003"]
    for path in theirs:
        ours = Path(str(path).replace("theirs", "ours"))
        assert ours.read_bytes() == path.read_bytes(), path


def test_a_robot_is_recorded_resumed_and_replayed(tmp_path):
    whole("record", tmp_path / "set")


def test_the_viewer_is_told_the_same(root, tmp_path):
    pytest.importorskip("rerun")
    whole("show", root, tmp_path)
