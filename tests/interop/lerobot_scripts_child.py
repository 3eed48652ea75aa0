"""Scripts of lerobot in a process of their own: first as they are, then the same with stepwell's classes.

lerobot_scripts_child.py train ROOT OUT POLICY_OPTION ...
lerobot_scripts_child.py record ROOT
lerobot_scripts_child.py show ROOT OUT
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

import stepwell.lerobot

DATASET = ["--dataset.repo_id=me/scripts", "--dataset.push_to_hub=false"]


def run(script, *options):
    """Run a script of lerobot in this process."""
    sys.argv = [script, *map(str, options)]
    return import_module(f"lerobot.scripts.{script}")


def train(root, out, *policy):
    torch.set_num_threads(1)
    common = [
        "--dataset.repo_id=me/scripts",
        f"--dataset.root={root}",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.pretrained_backbone_weights=null",
        "--batch_size=4",
        "--num_workers=0",
        "--steps=2",
        "--save_freq=2",
    ]
    for kind in ("theirs", "ours"):
        if kind == "ours":
            stepwell.lerobot.install()
        here = Path(out, kind)
        run("lerobot_train", *common, *policy, f"--output_dir={here}").train()
        config = here / "checkpoints/last/pretrained_model/train_config.json"
        run("lerobot_train", f"--config_path={config}", "--resume=true", "--steps=3").train()


def record(root):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot_robot import SENT, seen

    stepwell.lerobot.install()
    options = [
        "--robot.type=counting_robot",
        "--teleop.type=counting_arm",
        "--play_sounds=false",
        f"--dataset.root={root}",
        "--dataset.single_task=count",
        "--dataset.fps=30",
        "--dataset.episode_time_s=0.3",
        "--dataset.reset_time_s=0",
        *DATASET,
    ]
    assert run("lerobot_record", *options, "--dataset.num_episodes=2").record().num_episodes == 2
    last = run("lerobot_record", *options, "--dataset.num_episodes=1", "--resume=true").record()
    assert type(last) is stepwell.lerobot.LeRobotDataset
    assert last.num_episodes == 3

    theirs = LeRobotDataset("me/scripts", root=root, video_backend="torchcodec")
    assert len(theirs) == last.num_frames
    lengths = [*theirs.meta.episodes["length"]]
    # the robot of the resumed session begins to count anew
    for number, count in enumerate([*range(sum(lengths[:2])), *range(lengths[2])]):
        item, wanted = theirs[number], seen(count)
        assert item["observation.state"].tolist() == [count, -1]
        assert item["action"].tolist() == [count, 2]
        assert item["task"] == "count"
        shown = item["observation.images.top"].permute(1, 2, 0).numpy() * 255
        assert np.abs(shown - wanted["top"]).max() < 12, number

    run(
        "lerobot_replay",
        "--robot.type=counting_robot",
        f"--dataset.root={root}",
        "--dataset.repo_id=me/scripts",
        "--dataset.episode=1",
        "--play_sounds=false",
    ).replay()
    assert [action["x.pos"] for action in SENT] == [*range(lengths[0], lengths[0] + lengths[1])]


def show(root, out):
    """Have lerobot-dataset-viz say the same of a dataset to Rerun, and write its file."""
    import rerun

    said, log = [], rerun.log

    def noting(path, entity=None, **options):
        said.append((path, [batch.as_arrow_array() for batch in entity.as_component_batches()]))
        return log(path, entity, **options)

    rerun.log = noting
    options = ["--repo-id=me/scripts", f"--root={root}", "--episode-index=1", "--num-workers=0", "--save=1"]
    run("lerobot_dataset_viz", *options, f"--output-dir={out}/theirs").main()
    theirs = said.copy()
    said.clear()
    stepwell.lerobot.install()
    run("lerobot_dataset_viz", *options, f"--output-dir={out}/ours").main()
    assert len(said) > 0
    assert said == theirs
    files = [*Path(out).rglob("*.rrd")]
    assert len(files) == 2
    assert all(file.stat().st_size > 1000 for file in files)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    {"train": train, "record": record, "show": show}[verb](*arguments)
    print("whole")
