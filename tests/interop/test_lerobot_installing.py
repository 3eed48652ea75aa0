"""stepwell's classes inside of lerobot: its modules have them after install(), and its datasets record and are read."""

import subprocess
import sys

SCRIPT = """
import sys, tempfile
import numpy as np
import stepwell.lerobot
stepwell.lerobot.install()

from lerobot.datasets import factory
from lerobot.datasets.lerobot_dataset import LeRobotDataset
assert LeRobotDataset is factory.LeRobotDataset is stepwell.lerobot.LeRobotDataset
assert factory.LeRobotDatasetMetadata is stepwell.lerobot.LeRobotDatasetMetadata

features = {"observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}
dataset = LeRobotDataset.create("me/reach", 10, features, root=f"{tempfile.mkdtemp()}/reach")
for step in range(4):
    dataset.add_frame({"observation.state": np.array([step, 0], np.float32), "task": "reach"})
dataset.save_episode()
dataset.finalize()

meta = factory.LeRobotDatasetMetadata("me/reach", root=dataset.root)
class Policy:
    observation_delta_indices, action_delta_indices, reward_delta_indices = [-1, 0], None, None
deltas = factory.resolve_delta_timestamps(Policy(), meta)
item = LeRobotDataset("me/reach", root=dataset.root, delta_timestamps=deltas)[3]
assert item["observation.state"].tolist() == [[2, 0], [3, 0]], item
assert dataset.hf_dataset[3]["observation.state"].tolist() == [3, 0]
assert meta.tasks.reset_index()["task"].tolist() == ["reach"]
print("whole")
"""


def test_lerobots_modules_have_our_classes_and_they_record_and_read():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.endswith("whole\n"), done.stderr
