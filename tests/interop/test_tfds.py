"""RLDS and TFDS datasets that are written here: the real TensorFlow Datasets reads them with the same values."""

import json
import os
import pickle

import numpy as np
import pytest
from formats_process import PYTHON, REASON, FormatsProcess

import stepwell
from stepwell import Array, Bytes, Image, Text, Video, View, convert
from stepwell.tfds import write_rlds, write_tfds

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)

LABELS = ["left", "right", "none"]
LENGTHS = (5, 1, 7, 3)
SCHEMA = {
    "observation.state": Array(7, final=True),
    "observation.top": Image((16, 24, 3), codec="jpeg", final=True),
    "observation.grey": Image((8, 9), codec="png", final=True),
    "observation.depth": Image((8, 9, 1), "uint16", codec="png"),
    "observation.raw": Image((8, 9, 4)),
    "observation.film": Video((32, 32, 3), final=True),
    "action": Array(3, "float64"),
    "reward": Array(),
    "phase": Array((), "int64"),
    "big": Array((), "uint64"),
    "small": Array((2, 2), "int8"),
    "pixels": Array(5, ">u2"),
    "half": Array(2, "float16"),
    "flags": Array(2, "bool"),
    "points": Array((None, 3)),
    "lengths": Array((None,), "float64"),
    "ids": Array((None,), "uint64"),
    "note": Text(),
    "blob": Bytes(),
}
# TensorFlow's own decoders: PNG is exact, JPEG may be off by as much as this
JPEG_ATOL = 24
NUM_TREES = int(os.environ.get("STEPWELL_TREES", "6"))


def columns(rng, length, has_final):
    """Return the columns of an episode, final rows where it has some."""

    def numbers(feature, rows):
        shape, dtype = (rows, *feature.fixed_shape), feature.np_dtype
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if dtype.kind == "f":
            return rng.normal(size=shape).astype(dtype)
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype.newbyteorder("="), endpoint=True).astype(dtype)

    fixed = {
        name: numbers(feature, length + (has_final and feature.final))
        for name, feature in SCHEMA.items()
        if None not in feature.shape
    }
    return {
        **fixed,
        "phase": rng.integers(0, len(LABELS), length),
        "points": [rng.normal(size=(t % 3, 3)).astype("f4") for t in range(length)],
        "lengths": [rng.normal(size=t % 4) for t in range(length)],
        "ids": [rng.integers(0, 2**64, t % 2, dtype="u8") for t in range(length)],
        "note": ["hé\n" * t for t in range(length)],
        "blob": [bytes(range(t)) for t in range(length)],
    }


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    with FormatsProcess("tfds_child.py", tmp_path_factory.mktemp("log") / "errors") as process:
        yield process


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store of all kinds of features; two of its episodes have a final observation."""
    rng = np.random.default_rng(0)
    store = stepwell.create(tmp_path_factory.mktemp("source") / "source.well", SCHEMA)
    with store.writer() as writer:
        for number, length in enumerate(LENGTHS):
            writer.add_episode(
                columns(rng, length, number % 2 == 0),
                terminated=number == 2,
                task=f"push é {number}",
                seed=-number,
                scale=0.1 * number,
                is_good=number > 1,
                pose=[0.1, number],
                tags=["a"] * number,
                notes=None if number else {"a": 1},
                robot={"arm": {"name": "ur5", "dof": 6}},
            )
    store.refresh()
    return store


def read(process, path, out, split="train", do="read"):
    told = process.ask(do, path=str(path), out=str(out), split=split)
    return pickle.loads(out.read_bytes()), told


def expected_steps(episode, schema=SCHEMA):
    """Return the steps that an episode of a store should make, a mapping each."""
    count = episode.length + episode.has_final
    flags = {
        "is_first": np.arange(count) == 0,
        "is_last": np.arange(count) == count - 1,
        "is_terminal": (np.arange(count) == count - 1) & episode.terminated,
    }
    steps = [{name: flag[step] for name, flag in flags.items()} for step in range(count)]
    for name, feature in schema.items():
        values = list(episode[name])
        for step in range(count):
            steps[step][name] = values[step] if step < len(values) else zero_of(feature)
    return steps


def zero_of(feature):
    if feature.kind in ("text", "bytes"):
        return b""
    return np.zeros([size or 0 for size in feature.shape], feature.np_dtype)


def assert_same_step(found, step, where, is_numpys=False):
    assert sorted(found) == sorted(step), where
    for name, value in step.items():
        feature = SCHEMA.get(name)
        if isinstance(value, str | bytes):
            assert found[name] == (value.encode() if isinstance(value, str) else value), f"{where} {name}"
            continue
        got, want = np.asarray(found[name]), np.asarray(value)
        if feature is not None and feature.kind == "image" and len(feature.shape) == 2:
            want = want[..., None]
        if is_numpys and got.size == want.size == 0:
            continue  # TFDS's reading by numpy forgets shape and dtype of what is empty
        assert got.shape == want.shape, f"{where} {name}"
        assert got.dtype == want.dtype.newbyteorder("="), f"{where} {name}"
        is_jpeg = feature is not None and feature.codec == "jpeg"
        if is_jpeg and want.any():
            assert np.abs(got.astype(int) - want.astype(int)).max() <= JPEG_ATOL, f"{where} {name}"
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{where} {name}")


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_episodes_are_read_with_the_same_values_and_metadata(store, theirs, tmp_path, file_format, num_shards):
    path = write_rlds(
        store,
        tmp_path / "out",
        name="arm",
        labels={"phase": LABELS},
        file_format=file_format,
        num_shards=num_shards,
        workers=1,
    )
    if file_format == "array_record":
        found, _ = read(theirs, path, tmp_path / "values", do="read_source")
    else:
        found, told = read(theirs, path, tmp_path / "values")
        assert told["names"] == {"steps.phase": LABELS}
        assert told["total"] == len(store)
    assert len(found) == len(store)
    for episode, example in zip(store, found, strict=True):
        steps = expected_steps(episode)
        assert len(example["steps"]) == len(steps)
        for index, (got, want) in enumerate(zip(example["steps"], steps, strict=True)):
            assert_same_step(got, want, f"episode {episode.index} step {index}", file_format == "array_record")
        entries = {name.removeprefix("episode_metadata."): value for name, value in example.items() if name != "steps"}
        assert_metadata(entries, episode.metadata)


def assert_metadata(found, metadata):
    plain = {name: metadata[name] for name in ("seed", "scale", "is_good")}
    for name, value in plain.items():
        assert np.asarray(found[name]).item() == value
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype
    np.testing.assert_array_equal(found["pose"], metadata["pose"])
    assert found["task"] == metadata["task"].encode()
    assert [bytes(tag).decode() for tag in found["tags"]] == metadata["tags"]
    assert json.loads(found["notes"]) == metadata["notes"]
    assert (found["robot.arm.name"], int(found["robot.arm.dof"])) == (b"ur5", 6)


def test_splits_names_and_configs_are_found_by_their_names(store, theirs, tmp_path):
    views = {"train": View(store).select([0, 3]), "val": View(store).select([1])}
    path = write_rlds(
        views,
        tmp_path,
        name="arm",
        config="wide",
        version="2.1.0",
        features=["action", "observation.state"],
        rename={"observation.state": "observation.proprio"},
        metadata=["task"],
        encodings="none",
        workers=1,
    )
    assert path == tmp_path / "arm" / "wide" / "2.1.0"
    assert theirs.ask("load", name="arm/wide:2.1.0", data_dir=str(tmp_path)) == {"train": 2, "val": 1}
    found, _ = read(theirs, path, tmp_path / "values", split="val")
    (step,) = found[0]["steps"]
    assert sorted(step) == ["action", "is_first", "is_last", "is_terminal", "observation.proprio"]
    # a list of floats holds float32, whatever the feature says
    np.testing.assert_array_equal(step["action"], store[1]["action"][0].astype("f4").astype("f8"))


def test_steps_are_read_as_samples(store, theirs, tmp_path):
    names = [name for name, feature in SCHEMA.items() if not feature.final]
    path = write_tfds(
        store, tmp_path / "out", name="steps", features=names, labels={"phase": LABELS}, num_shards=2, workers=1
    )
    found, told = read(theirs, path, tmp_path / "values")
    assert told["names"] == {"phase": LABELS}
    steps = [{name: episode[name][step] for name in names} for episode in store for step in range(episode.length)]
    assert told["total"] == len(found) == len(steps)
    for index, (got, want) in enumerate(zip(found, steps, strict=True)):
        assert_same_step(got, want, f"step {index}")


# --- what TFDS wrote, through a store and out again; that it is read right is seen in test_tfds_reading.py ---


def imported(path, target, **options):
    convert(path, target, workers=1, progress=False, **options)
    return stepwell.open(target, mode="r")


def assert_equal(got, want, where):
    if isinstance(want, bytes):
        assert got == want, where
        return
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), where
    np.testing.assert_array_equal(got, want, err_msg=where)


@pytest.mark.parametrize("seed", range(NUM_TREES))
def test_random_trees_are_the_same_to_tensorflow_after_a_round_through_a_store(theirs, tmp_path, seed):
    made = theirs.ask(
        "make", root=str(tmp_path), seed=seed, is_rlds=True, file_format="tfrecord", out=str(tmp_path / "values")
    )
    expected = pickle.loads((tmp_path / "values").read_bytes())
    store = imported(made["path"], tmp_path / "found.well", as_bytes=made["strings"])
    path = write_rlds(store, tmp_path / "again", name="again", num_shards=1, workers=1)
    found, told = read(theirs, path, tmp_path / "again-values")
    labels = theirs.ask("read", path=made["path"], out=str(tmp_path / "values"))["names"]
    assert told["names"] == labels
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert sorted(got) == sorted(want)
        for index, (here, there) in enumerate(zip(got["steps"], want["steps"], strict=True)):
            assert sorted(here) == sorted(there)
            for name, value in there.items():
                assert_equal(here[name], value, f"step {index} {name} of {made['tree']}")
        for name in want.keys() - {"steps"}:
            # of metadata the dtype is JSON's
            assert np.asarray(got[name]).tolist() == np.asarray(want[name]).tolist(), name
