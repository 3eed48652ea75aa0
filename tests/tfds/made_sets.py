"""Small datasets as TFDS lays them out, of any tree of features, their Examples as given."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.recorders import EpisodeData
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Fields, Leaf, Node, Repeated, feature_json
from stepwell.tfds.framing import framed

FLOATS = Leaf("tensor", "float32", (2,))
FLAG = Leaf("tensor", "bool")
TEXT = Leaf("text", "string")


def steps_of(**features: Node) -> Fields:
    """Return the tree of episodes with these features of steps."""
    return Fields({"steps": Repeated(Fields(features), is_dataset=True)})


def write_set(
    root: Path,
    tree: Node,
    shards: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    *,
    name: str = "made",
    version: str = "1.0.0",
    raw_features: Any = None,
) -> Path:
    """Write a dataset: split to shards to examples; return the directory of its version."""
    folder = root / name / version
    folder.mkdir(parents=True)
    splits = []
    for split, parts in shards.items():
        for number, part in enumerate(parts):
            path = folder / f"{name}-{split}.tfrecord-{number:05d}-of-{len(parts):05d}"
            path.write_bytes(b"".join(framed(encode_example(example)) for example in part))
        splits.append({"name": split, "shardLengths": [str(len(part)) for part in parts]})
    info = {"name": name, "version": version, "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(feature_json(tree) if raw_features is None else raw_features))
    return folder


def episode(length: int, value: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return the lists of an episode of `simple_tree`."""
    last = np.arange(length) == length - 1
    return {
        "steps/action": np.arange(length * 2, dtype=np.float32) + np.float32(value),
        "steps/is_last": last,
        "steps/is_terminal": np.zeros(length, np.bool_),
        **more,
    }


def simple_tree(**more: Node) -> Fields:
    return steps_of(action=FLOATS, is_last=FLAG, is_terminal=FLAG, **more)


def standard(trajectory: dict[str, Any]) -> dict[str, Any]:
    """Leave out the steps before the third, as functions for Octo do: by the dataset's own names, and masks."""
    keeps = np.arange(4) >= 2
    assert trajectory["is_first"].tolist() == [True, False, False, False]
    seen, boxes = trajectory["observation"], trajectory["boxes"][keeps]
    moved = trajectory["action"]["future/xyz"][keeps]
    packed = np.array([[blob[0]] for blob in seen["packed"][keeps]])
    return {
        "observation": {"state": np.concatenate([seen["present/xyz"][keeps], packed], axis=1)},
        "action": np.stack([moved[:, 0], [len(each) for each in boxes]], axis=1),
        "note": trajectory["note"][keeps],
    }


def doubled(data: EpisodeData) -> EpisodeData:
    """Return an episode with twice its action, and one more column."""
    action = data.columns["action"]
    return replace(data, columns={**data.columns, "action": 2 * action, "sum": action.sum(axis=1)})
