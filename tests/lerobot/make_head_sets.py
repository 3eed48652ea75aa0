"""Made ``head_sets.zip``: small datasets that lerobot 0.6.2 recorded, and the items that it reads of them.

Run by a Python that has lerobot 0.6.2: ``python make_head_sets.py``. Not a test.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH, FPS = 24, 32, 10
DEPTH, LENGTHS = "observation.images.depth", (4, 3)
DELTAS = {DEPTH: [-0.1, 0.0], "action": [0.0, 0.1]}
HERE = Path(__file__).parent


def depth_image(episode: int, step: int, *, is_float: bool) -> np.ndarray:
    """Return a slope with a hole where nothing was measured, and a part beyond ten metres: [H, W, 1]."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    depth = (300 + 17 * columns + 31 * rows + 40 * step + 100 * episode).astype(np.uint16)
    depth[2:5, 3:9], depth[20:, 25:] = 0, 12000
    return (depth.astype(np.float32) / 1000 if is_float else depth)[..., None]


def annotations(episode: int, step: int) -> dict[str, Any]:
    """Return the columns of language of a row."""
    plain = {"camera": None, "tool_calls": None}
    began = [
        {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0, **plain},
        {"role": "assistant", "content": "grüßen", "style": "subtask", "timestamp": 0.1, **plain},
        {"role": "user", "content": f"pick {episode}", "style": "task_aug", "timestamp": 0.0, **plain},
    ]
    say = [{"type": "function", "function": {"name": "say", "arguments": {"text": "on it", "volume": 0.5}}}]
    events = {
        0: [],
        1: [{"role": "assistant", "content": None, "style": None, "camera": None, "tool_calls": say}],
        2: [{"role": "user", "content": "where?", "style": "vqa", "camera": DEPTH, "tool_calls": None}],
    }
    return {"language_persistent": began[episode:], "language_events": events.get(step, [])}


def record(root: Path, dtype: str, *, is_float: bool, **options: Any) -> None:
    """Record a dataset of depth maps."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = ["height", "width", "channels"]
    features = {
        DEPTH: {"dtype": dtype, "shape": (HEIGHT, WIDTH, 1), "names": names, "info": {"is_depth_map": True}},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    }
    made = LeRobotDataset.create("me/set", FPS, features, root=root, use_videos=dtype == "video", **options)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            action = np.array([step, episode], np.float32)
            depth = depth_image(episode, step, is_float=is_float)
            made.add_frame({DEPTH: depth, "action": action, "task": f"task {episode}"})
        made.save_episode()
    made.finalize()


def record_language(root: Path) -> None:
    """Record a dataset, and add annotations as lerobot's annotation pipeline does."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from lerobot.datasets import language
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    made = LeRobotDataset.create("me/set", FPS, features, root=root, use_videos=False)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            made.add_frame({"action": np.array([step, episode], np.float32), "task": f"task {episode}"})
        made.save_episode()
    made.finalize()
    path = next(root.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    places = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]
    types = (language.language_persistent_arrow_type(), language.language_events_arrow_type())
    for name, kind in zip(language.LANGUAGE_COLUMNS, types, strict=True):
        rows = [annotations(*place)[name] for place in places]
        texts = [
            [{**r, "tool_calls": r["tool_calls"] and [*map(json.dumps, r["tool_calls"])]} for r in row] for row in rows
        ]
        fields = [pa.field(f.name, pa.list_(pa.string())) if f.name == "tool_calls" else f for f in kind.value_type]
        table = table.append_column(name, pa.array(texts, pa.list_(pa.struct(fields))).cast(kind))
    pq.write_table(table, path)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= language.language_feature_info()
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))


def read(root: Path) -> None:
    """Write the items that lerobot reads: tensors into ``items.npz``, texts and lists into ``items.json``."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    arrays, lists = {}, {}
    has_depth = DEPTH in json.loads((root / "meta/info.json").read_text())["features"]
    for unit in ("mm", "m") if has_depth else ("mm",):
        for deltas in (None, DELTAS) if has_depth else (None,):
            made = LeRobotDataset("me/set", root=root, depth_output_unit=unit, delta_timestamps=deltas)
            items = [made[number] for number in range(len(made))]
            for key, first in items[0].items():
                place = f"{unit}/{'window' if deltas else 'step'}/{key}"
                if hasattr(first, "numpy"):
                    arrays[place] = np.stack([item[key].numpy() for item in items])
                else:
                    lists[place] = [item[key] for item in items]
            for key, value in (made.meta.stats or {}).get(DEPTH, {}).items():
                arrays[f"{unit}/stats/{key}"] = np.asarray(value)
    np.savez_compressed(root / "items.npz", **arrays)
    (root / "items.json").write_text(json.dumps(lists))


def main() -> None:
    """Make the file."""
    from lerobot.configs import DepthEncoderConfig

    folder = Path(tempfile.mkdtemp())
    linear = DepthEncoderConfig(depth_min=0.2, depth_max=3.0, use_log=False)
    record(folder / "video", "video", is_float=False)
    record(folder / "video_metres", "video", is_float=True)
    record(folder / "video_linear", "video", is_float=False, depth_encoder=linear)
    record(folder / "image", "image", is_float=False)
    record(folder / "image_metres", "image", is_float=True)
    record_language(folder / "language")
    for root in sorted(folder.iterdir()):
        read(root)
    with zipfile.ZipFile(HERE / "head_sets.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                made.write(path, path.relative_to(folder))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
