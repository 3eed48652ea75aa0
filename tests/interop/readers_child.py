"""The real Minari, `datasets` and h5py on behalf of test_readers.py: write data sets, and say what they read of them.

What answering.py lets it do is in `ANSWERS`. Values go through files of pickled numpy arrays.
"""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (5, 1, 4)
ROWS = 23


def minari(root: str, out: str, data_format: str, jpeg: bool) -> dict[str, Any]:
    """Collect episodes of an environment with every kind of space, and save what Minari reads of them."""
    os.environ["MINARI_DATASETS_PATH"] = root
    import minari as package

    warnings.simplefilter("ignore")
    collector = package.DataCollector(_environment(), record_infos=True, data_format=data_format, jpeg_encoding=jpeg)
    for number, length in enumerate(LENGTHS):
        collector.reset(seed=number)
        for _ in range(length):
            collector.step(collector.action_space.sample())
    told = {"algorithm_name": "r", "author": "a", "author_email": "e", "code_permalink": "c", "description": "d"}
    dataset = collector.create_dataset("all/kinds-v0", **told)
    found = []
    for episode in dataset.iterate_episodes():
        columns: dict[str, Any] = {}
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            _flatten(getattr(episode, name), name, columns)
        found.append(columns)
    Path(out).write_bytes(pickle.dumps(found))
    return {"path": str(Path(root, "all", "kinds-v0"))}


def _environment() -> Any:
    import gymnasium
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

    class Environment(gymnasium.Env):
        observation_space = Dict(
            {
                "rgb": Box(0, 255, (40, 64, 3), np.uint8),
                "grey": Box(0, 255, (48, 36), np.uint8),
                "planes": Box(0, 255, (4, 40, 40), np.uint8),
                "narrow": Box(0, 200, (40, 40, 3), np.uint8),
                "tiny": Box(0, 255, (8, 8, 3), np.uint8),
                "name.with.dots": Box(-1, 1, (2, 2), np.float64),
                "pair": Tuple((Discrete(5, start=2), Dict({"many": MultiDiscrete([3, 4]), "bits": MultiBinary(4)}))),
                "say": Text(8),
            }
        )
        action_space = Tuple((Discrete(3), Box(-1, 1, (2, 3), np.float32)))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            self.action_space.seed(seed)
            self.step_number = 0
            return self._observe(), self._told()

        def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
            self.step_number += 1
            return self._observe(), self.step_number / 3, self.step_number == LENGTHS[0], False, self._told()

        def _observe(self) -> dict[str, Any]:
            at = self.step_number
            y, x = np.mgrid[:48, :64]
            rng = np.random.default_rng(at)
            return {
                "rgb": np.stack([x * 4, y * 5, x + y + at], -1)[:40].astype(np.uint8),
                "grey": (x + y + at)[:, :36].astype(np.uint8),
                "planes": rng.integers(0, 256, (4, 40, 40), np.uint8),
                "narrow": rng.integers(0, 200, (40, 40, 3), np.uint8),
                "tiny": rng.integers(0, 256, (8, 8, 3), np.uint8),
                "name.with.dots": rng.random((2, 2)),
                "pair": (
                    np.int64(2 + at % 5),
                    {"many": np.array([at % 3, at % 4]), "bits": np.array([1, 0, 1, at % 2], np.int8)},
                ),
                "say": "ab" * (at % 3) + "x",
            }

        def _told(self) -> dict[str, Any]:
            at = self.step_number
            return {"lives": 3 - at // 3, "deep": {"x": 1.5 * at, "y": np.full(3, at, np.float32)}}

    return Environment()


def _flatten(value: Any, name: str, found: dict[str, Any]) -> None:
    if isinstance(value, list | np.ndarray) and len(value) and isinstance(value[0], dict):
        value = {key: np.stack([each[key] for each in value]) for key in value[0]}
    if isinstance(value, dict):
        for key, each in value.items():
            _flatten(each, f"{name}.{key}", found)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            _flatten(each, f"{name}.{number}", found)
    else:
        found[name] = np.asarray(value)


def datasets(root: str, out: str) -> dict[str, Any]:
    """Save a data set of every kind of feature in all ways that there are, and what `datasets` reads of it."""
    import datasets as package

    package.disable_progress_bars()
    features = package.Features(
        {
            "episode_index": package.Value("int64"),
            "observation.state": package.Sequence(package.Value("float32"), length=3),
            "image": package.Image(),
            "grey": package.Image(),
            "matrix": package.Array2D((2, 3), "float32"),
            "cube": package.Array3D((2, 1, 3), "int16"),
            "text": package.Value("string"),
            "label": package.ClassLabel(names=["a", "b"]),
            "found": package.Sequence(package.Value("int32")),
            "inner": {"x": package.Value("float64"), "deep": {"y": package.Sequence(package.Value("uint8"), length=2)}},
            "done": package.Value("bool"),
            "half": package.Value("float16"),
        }
    )
    rows = [_row(number) for number in range(ROWS)]
    data = package.Dataset.from_list(rows, features=features)
    data.save_to_disk(f"{root}/saved", num_shards=3)
    package.DatasetDict({"train": data, "test": data.select(range(5))}).save_to_disk(f"{root}/dict")
    Path(root, "parquet", "data").mkdir(parents=True)
    data.to_parquet(f"{root}/parquet/data/train-00000-of-00001.parquet", batch_size=7)
    data.shuffle(seed=1).sort("episode_index").save_to_disk(f"{root}/sorted")
    for name, source in (("all", data), ("sorted", package.load_from_disk(f"{root}/sorted"))):
        Path(f"{out}-{name}").write_bytes(pickle.dumps([_plain(row) for row in source]))
    return {}


def _row(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "episode_index": (3, 0, 7)[min(2, number // 9)],
        "observation.state": rng.random(3).astype(np.float32),
        "image": rng.integers(0, 256, (16, 20, 3), np.uint8),
        "grey": rng.integers(0, 256, (9, 11), np.uint8),
        "matrix": rng.random((2, 3)).astype(np.float32),
        "cube": rng.integers(-9, 9, (2, 1, 3)).astype(np.int16),
        "text": "é" * (number % 4),
        "label": number % 2,
        "found": list(range(number % 4)),
        "inner": {"x": number / 3, "deep": {"y": [number, 1]}},
        "done": number % 3 == 0,
        "half": np.float16(number / 7),
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row by dotted names, its pictures as arrays with channels."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in _plain(value).items()}
        elif hasattr(value, "convert"):
            pixels = np.asarray(value)
            found[name] = pixels[..., None] if pixels.ndim == 2 else pixels
        else:
            found[name] = value
    return found


def replay(root: str) -> dict[str, Any]:
    """Write a replay buffer as diffusion policy does: of format 2, with Blosc and Zstandard."""
    import zarr
    from numcodecs import Blosc

    compressor = Blosc(cname="zstd", clevel=5, shuffle=Blosc.BITSHUFFLE)
    group = zarr.open_group(root, mode="w", zarr_format=2)
    rng = np.random.default_rng(0)
    values = {"data/img": rng.integers(0, 256, (50, 8, 8, 3)).astype(np.float32), "data/action": rng.random((50, 2))}
    values["meta/episode_ends"] = np.array([13, 14, 30, 50])
    for name, rows in values.items():
        made = group.create_array(
            name, shape=rows.shape, chunks=(9, *rows.shape[1:]), dtype=rows.dtype, compressors=compressor
        )
        made[...] = rows
    Path(f"{root}.values").write_bytes(pickle.dumps(values))
    return {}


ANSWERS = (minari, datasets, replay)
