"""The real TensorFlow Datasets on behalf of test_tfds.py: reads what stepwell wrote, and writes random datasets.

What answering.py lets it do is in `ANSWERS`. Values go through files of pickled numpy arrays.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets import features as F

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
WORDS = ("", "push", "héllo", "日本語", "a b\nc", "x" * 300)


def read(path: str, out: str, split: str = "train") -> dict[str, Any]:
    """Save all examples of a split, as TensorFlow has them, in the order of the files."""
    builder = tfds.builder_from_directory(path)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    found = [_flat(example) for example in builder.as_dataset(split=split, read_config=config)]
    Path(out).write_bytes(pickle.dumps(found))
    return {"length": len(found), "total": builder.info.splits[split].num_examples, "names": _labels(builder)}


def read_source(path: str, out: str, split: str = "train") -> dict[str, Any]:
    """Save all examples of a split of ArrayRecord files, as numpy has them."""
    found = [_flat(example) for example in tfds.builder_from_directory(path).as_data_source(split=split)]
    Path(out).write_bytes(pickle.dumps(found))
    return {"length": len(found)}


def load(name: str, data_dir: str) -> dict[str, Any]:
    """Return what `tfds.load` finds of a dataset by its name."""
    datasets = tfds.load(name, data_dir=data_dir)
    return {split: int(sum(1 for _ in dataset)) for split, dataset in datasets.items()}


def split_ids(path: str, splits: list[str], parts: int) -> dict[str, Any]:
    """Return the ids of the examples of splits, and those of each one's even parts."""
    builder = tfds.builder_from_directory(path)
    config = tfds.ReadConfig(interleave_cycle_length=1)

    def ids(split: Any) -> list[int]:
        try:
            dataset = builder.as_dataset(split=split, read_config=config)
        except ValueError as error:
            if "corresponds to no data" in str(error):
                return []
            raise
        return [int(example["id"]) for example in dataset]

    def even(split: str, drop: bool) -> list[list[int]]:
        return [ids(part) for part in tfds.even_splits(split, parts, drop_remainder=drop)]

    return {"ids": [ids(split) for split in splits], "even": [even(s, d) for s in splits for d in (False, True)]}


def make(root: str, seed: int, is_rlds: bool, file_format: str, out: str) -> dict[str, Any]:
    """Write a dataset of a random tree of features, and save what TensorFlow reads of it."""
    rng = np.random.default_rng(seed)
    tree, draw = _episode(rng) if is_rlds else _sample(rng)
    examples = [draw() for _ in range(int(rng.integers(1, 6)))]

    # one process makes many of that name
    class Random(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = "random_set"
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(builder=self, features=tree)

        def _split_generators(self, _: Any) -> dict[str, Iterator[Any]]:
            return {"train": iter(enumerate(examples))}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    builder = Random(data_dir=root, file_format=file_format)
    builder.download_and_prepare()
    reading = read_source if file_format == "array_record" else read
    reading(str(builder.data_path), out)
    return {"path": str(builder.data_path), "tree": str(tree), "strings": _strings(tree)}


def images(root: str, files: str, channels: int, dtype: str, out: str) -> dict[str, Any]:
    """Write a dataset of image files as they are, and save what TensorFlow reads of it."""
    blobs = pickle.loads(Path(files).read_bytes())

    class Pictures(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = "pictures"
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            feature = F.Image(shape=(None, None, channels), dtype=getattr(np, dtype))
            tree = F.FeaturesDict({"image": feature})
            return tfds.core.DatasetInfo(builder=self, features=tree, disable_shuffling=True)

        def _split_generators(self, _: Any) -> dict[str, Iterator[Any]]:
            return {"train": ((number, {"image": io.BytesIO(blob)}) for number, blob in enumerate(blobs))}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    builder = Pictures(data_dir=root)
    builder.download_and_prepare()
    read(str(builder.data_path), out)
    return {"path": str(builder.data_path)}


def _flat(value: Any) -> Any:
    """Return nested values by paths with dots; datasets as lists of steps."""
    if isinstance(value, tf.data.Dataset) or (
        hasattr(value, "__iter__")
        and hasattr(value, "__getitem__")
        and not (isinstance(value, dict | np.ndarray | bytes | str | list) or tf.is_tensor(value))
    ):
        return [_flat(step) for step in value]
    if isinstance(value, dict):
        found = {}
        for name, part in value.items():
            flat = _flat(part)
            found |= {f"{name}.{key}": each for key, each in flat.items()} if isinstance(flat, dict) else {name: flat}
        return found
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if tf.is_tensor(value):
        return value.numpy()
    return value


def _labels(builder: Any) -> dict[str, list[str]]:
    """Return names of classes by path."""
    found = {}

    def visit(feature: Any, path: str) -> None:
        if isinstance(feature, F.ClassLabel):
            found[path] = feature.names
        elif isinstance(feature, F.FeaturesDict):
            for name, part in feature.items():
                visit(part, f"{path}.{name}" if path else name)
        elif isinstance(feature, F.Sequence):
            visit(feature.feature, path)

    visit(builder.info.features, "")
    return found


def _strings(tree: Any) -> list[str]:
    """Return the names of strings that are no text."""
    found = []

    def visit(feature: Any, path: str) -> None:
        if isinstance(feature, F.FeaturesDict):
            for name, part in feature.items():
                visit(part, f"{path}.{name}" if path else name)
        elif isinstance(feature, F.Dataset):
            visit(feature.feature, "")
        elif isinstance(feature, F.Tensor) and feature.np_dtype == np.object_ and not isinstance(feature, F.Text):
            found.append(path)

    visit(tree, "")
    return found


Draw = Callable[[], Any]


def _episode(rng: np.random.Generator) -> tuple[Any, Draw]:
    step, draw_step = _fields(rng, 2, LEAVES)
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
    metadata, draw_metadata = _fields(rng, 1, METADATA)

    def draw() -> dict[str, Any]:
        length = int(rng.choice([1, 2, 5, 9]))
        ends = bool(rng.random() < 0.5)
        steps = [
            {**draw_step(), "is_first": i == 0, "is_last": i == length - 1, "is_terminal": ends and i == length - 1}
            for i in range(length)
        ]
        return {"steps": steps, "episode_metadata": draw_metadata()}

    return F.FeaturesDict({"steps": F.Dataset({**step, **flags}), "episode_metadata": metadata}), draw


def _sample(rng: np.random.Generator) -> tuple[Any, Draw]:
    fields, draw = _fields(rng, 2, SAMPLES)
    return F.FeaturesDict(fields), draw


def _fields(rng: np.random.Generator, depth: int, makers: tuple[Any, ...]) -> tuple[dict[str, Any], Draw]:
    tree, draws = {}, {}
    for number in range(int(rng.integers(2, 6))):
        if depth > 1 and rng.random() < 0.25:
            feature, draw = _fields(rng, depth - 1, makers)
        else:
            feature, draw = makers[int(rng.integers(len(makers)))](rng)
        tree[f"f{number}"], draws[f"f{number}"] = feature, draw
    return tree, lambda: {name: draw() for name, draw in draws.items()}


def _numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in FLOATS:
        return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def _tensor(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice([*INTEGERS, *FLOATS, "bool"]))
    shape = tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
    encoding = str(rng.choice(["none", "bytes", "zlib"]))
    if encoding != "none" and dtype in ("uint32", "uint64", "bool"):
        encoding = "none"  # TensorFlow's own reading of these fails, or is another one
    feature = F.Tensor(shape=shape, dtype=np.dtype(dtype), encoding=encoding)
    return feature, lambda: _numbers(rng, dtype, shape)


def _scalar(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice([*INTEGERS, *FLOATS, "bool"]))
    return F.Scalar(np.dtype(dtype)), lambda: _numbers(rng, dtype, ())[()]


def _text(rng: np.random.Generator) -> tuple[Any, Draw]:
    return F.Text(), lambda: str(rng.choice(WORDS))


def _bytes(rng: np.random.Generator) -> tuple[Any, Draw]:
    return F.Tensor(shape=(), dtype=np.object_), lambda: rng.bytes(int(rng.integers(0, 20)))


def _label(rng: np.random.Generator) -> tuple[Any, Draw]:
    return F.ClassLabel(names=["left", "right", "none"]), lambda: int(rng.integers(3))


def _image(rng: np.random.Generator) -> tuple[Any, Draw]:
    encoding = str(rng.choice(["png", "jpeg"]))
    channels = int(rng.choice([1, 3]))
    dtype = "uint16" if encoding == "png" and rng.random() < 0.3 else "uint8"
    is_fixed = rng.random() < 0.5
    shape = (12, 17, channels)
    told = shape if is_fixed else (None, None, channels)
    feature = F.Image(shape=told, dtype=np.dtype(dtype), encoding_format=encoding)

    def draw() -> np.ndarray:
        sides = shape[:2] if is_fixed else tuple(rng.integers(8, 20, 2).tolist())
        return _numbers(rng, dtype, (*sides, channels))

    return feature, draw


def _float_image(rng: np.random.Generator) -> tuple[Any, Draw]:
    feature = F.Image(shape=(6, 7, 1), dtype=np.dtype("float32"), encoding_format="png")
    return feature, lambda: _numbers(rng, "float32", (6, 7, 1))


def _ragged(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice(["int64", "float32", "uint8", "bool"]))
    inner = tuple(rng.integers(1, 4, rng.integers(0, 2)).tolist())
    feature = F.Sequence(F.Tensor(shape=inner, dtype=np.dtype(dtype)))
    return feature, lambda: _numbers(rng, dtype, (int(rng.integers(0, 4)), *inner))


def _packed_ragged(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice(["int64", "float64", "float32"]))
    feature = F.Tensor(shape=(None, 2), dtype=np.dtype(dtype), encoding=str(rng.choice(["bytes", "zlib"])))
    return feature, lambda: _numbers(rng, dtype, (int(rng.integers(0, 4)), 2))


def _fixed_sequence(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice(["int64", "float32", "uint8"]))
    return F.Sequence(F.Scalar(np.dtype(dtype)), length=3), lambda: _numbers(rng, dtype, (3,))


def _dict_sequence(rng: np.random.Generator) -> tuple[Any, Draw]:
    feature = F.Sequence({"a": F.Scalar(np.int64), "b": F.Tensor(shape=(2,), dtype=np.float32)})

    def draw() -> list[Any]:
        count = int(rng.integers(0, 4))
        return [{"a": int(rng.integers(9)), "b": rng.normal(size=2).astype("f4")} for _ in range(count)]

    return feature, draw


def _box(rng: np.random.Generator) -> tuple[Any, Draw]:
    def draw() -> Any:
        (top, bottom), (left, right) = np.sort(rng.random((2, 2)), axis=1).tolist()
        return F.BBox(ymin=top, xmin=left, ymax=bottom, xmax=right)

    return F.BBoxFeature(), draw


def _optional(rng: np.random.Generator) -> tuple[Any, Draw]:
    dtype = str(rng.choice(["int64", "float32", "int32"]))
    feature = F.Scalar(np.dtype(dtype), optional=True)
    return feature, lambda: None if rng.random() < 0.5 else _numbers(rng, dtype, ())[()]


LEAVES = (
    *(_tensor, _tensor, _scalar, _text, _bytes, _label, _image, _image),
    *(_ragged, _packed_ragged, _dict_sequence, _box),
)
# TensorFlow Datasets itself fails to read these of steps
SAMPLES = (*LEAVES, _fixed_sequence, _optional)
METADATA = (_tensor, _scalar, _text, _label)


ANSWERS = (read, read_source, load, split_ids, make, images)
