"""Writes `octo.npz`, the batches of Octo and OpenVLA by their own code.

`python make_octo.py OCTO DLIMP OPENVLA DATA FILE`: OCTO, DLIMP and OPENVLA are checkouts of octo-models/octo,
kvablack/dlimp and openvla/openvla; DATA is a copy of the directory that has the RLDS sample ``mini_rlds``
(statistics are written into it). Needs tensorflow-cpu, tensorflow-datasets and tqdm.
"""

import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
OCTO, DLIMP, OPENVLA, DATA, FILE = sys.argv[1:]
sys.path[:0] = [OCTO, DLIMP]


def stub(name, **values):
    """Put a module of a name in place of one that the data's code imports and does not need."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(values)
    sys.modules[name] = module
    return module


stub("huggingface_hub", hf_hub_download=None)
import logging  # noqa: E402

import numpy as np  # noqa: E402
import octo.data.dataset  # noqa: E402
import tensorflow as tf  # noqa: E402

for package in ("prismatic", "prismatic.vla", "prismatic.vla.datasets"):
    stub(package).__path__ = [str(Path(OPENVLA, *package.split(".")))]
stub("prismatic.overwatch", initialize_overwatch=logging.getLogger)
import prismatic.vla.datasets.rlds.dataset as openvla  # noqa: E402

# functions in place of their names
octo.data.dataset.ModuleSpec = types.SimpleNamespace(instantiate=lambda function: function, to_string=repr)

IN_ORDER = {"num_parallel_calls": 1}


def standard(trajectory):
    """Cut the action and drop the last step, as many transforms of Open X-Embodiment do."""
    action = trajectory["action"]
    trajectory["action"] = tf.concat([action[:, :3], tf.clip_by_value(action[:, 3:], -0.5, 0.5)], 1)
    return tf.nest.map_structure(lambda values: values[:-1], trajectory)


def constant(trajectory):
    """Give the action a number that never changes."""
    trajectory["action"] = tf.concat([trajectory["action"][:, :3], tf.ones_like(trajectory["action"][:, :1])], 1)
    return trajectory


BOTH = {"primary": "image", "wrist": "wrist_image"}
ONE = {"primary": "image", "wrist": None}
SMALL = {"primary": (32, 32), "wrist": (16, 16)}
MASK = [True, True, True, False]
CASES = {
    "octo": (
        {"image_obs_keys": BOTH, "action_proprio_normalization_type": "normal"},
        {"window_size": 2, "action_horizon": 4},
        {"primary": (48, 40), "wrist": (16, 16)},
    ),
    "octo_padded": (
        {"image_obs_keys": ONE, "action_proprio_normalization_type": "bounds", "action_normalization_mask": MASK}
        | {"standardize_fn": standard},
        {"window_size": 3, "action_horizon": 2, "max_action_dim": 7, "max_proprio_dim": 9},
        SMALL,
    ),
    # the one goal that is nearer than a step is the anchor: nothing is drawn
    "octo_goal": (
        {"image_obs_keys": ONE, "action_proprio_normalization_type": "normal"},
        {"window_size": 2, "action_horizon": 3, "goal_relabeling_strategy": "uniform"}
        | {"goal_relabeling_kwargs": {"max_goal_distance": 1}},
        SMALL,
    ),
    "openvla": (
        {"image_obs_keys": BOTH, "action_proprio_normalization_type": "bounds_q99", "action_normalization_mask": MASK}
        | {"absolute_action_mask": [False, False, False, True]},
        {"window_size": 2, "future_action_window_size": 3},
        SMALL,
    ),
    "openvla_bounds": (
        {"image_obs_keys": ONE, "action_proprio_normalization_type": "bounds", "standardize_fn": constant},
        {"window_size": 1, "future_action_window_size": 7},
        SMALL,
    ),
}


def flat(tree, prefix=""):
    """Return the leaves of nested dicts by dotted names."""
    found = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def batches(case, dataset, windows, sizes):
    """Return all steps of the train split, in order, and the statistics."""
    common = {"name": "mini_rlds", "data_dir": DATA, "shuffle": False, "num_parallel_reads": 1, **IN_ORDER, **dataset}
    common["language_key"] = "language_instruction"
    windows, frames = windows | IN_ORDER, {"resize_size": sizes, **IN_ORDER}
    for path in Path(DATA).rglob("dataset_statistics_*.json"):
        path.unlink()
    if case.startswith("octo"):
        found = octo.data.dataset.make_single_dataset(
            common | {"proprio_obs_key": "state", "force_recompute_dataset_statistics": True},
            train=True,
            traj_transform_kwargs=windows,
            frame_transform_kwargs=frames,
        )
        statistics, episodes = found.dataset_statistics, list(found.as_numpy_iterator())
    else:
        found, statistics = openvla.make_dataset_from_rlds(**common, state_obs_keys=[None, "state"], train=True)
        found = openvla.apply_trajectory_transforms(found, train=True, **windows)
        found = openvla.apply_frame_transforms(found, train=True, **frames)
        episodes = list(found.as_numpy_iterator())
    leaves = [flat(episode) for episode in episodes]
    made = {key: np.concatenate([each[key] for each in leaves]) for key in leaves[0]}
    # a dozen of images are enough, and a small file
    made = {key: value[:12] if ".image_" in key and value.dtype == np.uint8 else value for key, value in made.items()}
    texts = {key: np.char.decode(value.astype(bytes)) for key, value in made.items() if value.dtype == object}
    text = json.dumps(statistics, default=lambda value: np.asarray(value).tolist())
    return made | texts | {"statistics": np.array(text)}


found = {case: batches(case, *own) for case, own in CASES.items()}
np.savez_compressed(FILE, **{f"{case}/{key}": value for case, each in found.items() for key, value in each.items()})
