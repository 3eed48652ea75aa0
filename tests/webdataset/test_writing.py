"""Shards that are written: read back to the same steps, by stepwell and by webdataset; the same bytes every time."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import picture  # type: ignore[import-not-found]

import stepwell
from stepwell import Array, Bytes, Image, Text
from stepwell.errors import FeatureNotFoundError, SchemaError, StepwellError, StoreExistsError
from stepwell.webdataset import WebDatasetReader, write_webdataset

SCHEMA = {
    "camera": Image((24, 32, 3), codec="jpeg"),
    "still": Image((24, 32, 3), codec="png"),
    "raw": Image((24, 32, 3)),
    "depth": Image((8, 8), "float32"),
    "label": Array((), "int64"),
    "action": Array(3),
    "points": Array((None, 2), "int16"),
    "note": Text(),
    "blob": Bytes(),
}


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    pytest.importorskip("simplejpeg")
    pytest.importorskip("imagecodecs")
    made = stepwell.create(tmp_path / "a.well", SCHEMA)
    with made.writer() as writer:
        for episode, length in enumerate((4, 1, 6)):
            pictures = np.stack([picture(10 * episode + step) for step in range(length)])
            numbers = np.arange(length) + 10 * episode
            writer.add_episode(
                {
                    "camera": pictures,
                    "still": pictures,
                    "raw": pictures,
                    "depth": np.ones((length, 8, 8), "f4") * numbers[:, None, None].astype("f4"),
                    "label": numbers - 5,
                    "action": np.ones((length, 3), "f4") * numbers[:, None].astype("f4"),
                    "points": [np.full((number % 3, 2), number, "i2") for number in numbers],
                    "note": [f"ä{number}" for number in numbers],
                    "blob": [bytes([number]) * 3 for number in numbers],
                }
            )
    return made


def steps_of(source: Any, names: Any) -> list[dict[str, Any]]:
    return [
        {name: np.asarray(episode[name][step]).tolist() for name in names}
        for episode in source
        for step in range(episode.length)
    ]


def test_shards_are_read_back_to_the_same_steps(store: stepwell.Store, tmp_path: Path) -> None:
    shards = write_webdataset(store, tmp_path / "shards", shard_samples=4, workers=1)
    assert [path.name for path in shards] == [f"train-00000{n}.tar" for n in range(3)]
    reader = WebDatasetReader(str(tmp_path / "shards"))
    assert reader.edges.tolist() == [0, 4, 8]
    names = [name for name in SCHEMA if name not in ("raw",)]
    assert {name: reader.schema[name] for name in names if name != "depth"} == {
        name: store.schema[name]
        for name in names
        if name != "depth"  # type: ignore[index]
    }
    back = stepwell.open(f"webdataset://{tmp_path}/shards")
    assert steps_of(back, SCHEMA) == steps_of(store, SCHEMA)
    assert [episode["__key__"][0] for episode in back] == [f"{n:06d}" for n in range(11)]


def test_files_are_written_as_they_are_stored(store: stepwell.Store, tmp_path: Path) -> None:
    (shard,) = write_webdataset(store, tmp_path / "shards", workers=0)
    with tarfile.open(shard) as archive:
        found = archive.extractfile("000000.camera.jpg").read()  # type: ignore[union-attr]
        assert {(entry.uid, entry.mtime) for entry in archive} == {(0, 0)}
    segment = store.segments[0]
    assert found == segment.blob_map("camera")[: segment.offsets_map("camera")[1]].tobytes()
    info = json.loads((tmp_path / "shards" / "_info.json").read_text())
    assert info["splits"]["train"] == {
        "name": "train",
        "num_samples": 11,
        "filenames": ["train-000000.tar"],
        "shard_lengths": [11],
    }


# webdataset leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_them(store: stepwell.Store, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    rename = {"still": "png", "label": "cls", "note": "txt", "action": "action.npy"}
    write_webdataset(store, tmp_path / "shards", features=rename, rename=rename, shard_samples=5, workers=1)
    source = webdataset.WebDataset(f"{tmp_path}/shards/train-{{000000..000002}}.tar", shardshuffle=False)
    found = list(source.decode("rgb8"))
    assert [sample["__key__"] for sample in found] == [f"{n:06d}" for n in range(11)]
    wanted = steps_of(store, rename)
    for sample, step in zip(found, wanted, strict=True):
        assert (sample["cls"], sample["txt"]) == (step["label"], step["note"])
        assert np.array_equal(sample["png"], step["still"]) and sample["action.npy"].tolist() == step["action"]


def test_processes_write_the_same_bytes(store: stepwell.Store, tmp_path: Path) -> None:
    one = write_webdataset(store, tmp_path / "one", shard_samples=3, workers=1)
    two = write_webdataset(store.path, tmp_path / "two", shard_samples=3, workers=2)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_keys_and_shards_are_as_asked_for(store: stepwell.Store, tmp_path: Path) -> None:
    write_webdataset(
        store, tmp_path / "a", features=["note"], names="e{episode}/s{step:02d}", shard_bytes="5 kB", workers=1
    )
    reader = WebDatasetReader(str(tmp_path / "a"))
    assert reader[4].columns["__key__"] == ["e1/s00"] and len(reader.paths) == 3
    view = stepwell.View(store).select([2])
    write_webdataset(view, tmp_path / "b", prefix="val", features=["note"], workers=1)
    assert [path.name for path in (tmp_path / "b").glob("*.tar")] == ["val-000000.tar"]
    again = tmp_path / "again.well"
    stepwell.formats.convert(str(tmp_path / "a"), again, workers=1)
    write_webdataset(again, tmp_path / "c", workers=1)
    assert WebDatasetReader(str(tmp_path / "c"))[4].columns["__key__"] == ["e1/s00"]


def test_images_that_are_left_in_shards_are_written_as_they_are(store: stepwell.Store, tmp_path: Path) -> None:
    first = write_webdataset(store, tmp_path / "a", features=["camera", "note"], workers=1)
    write_webdataset(stepwell.open(f"webdataset://{tmp_path}/a"), tmp_path / "b", workers=1)
    assert (tmp_path / "b" / "train-000000.tar").read_bytes() == first[0].read_bytes()


def test_what_cannot_be_written_is_refused_and_nothing_is_left(store: stepwell.Store, tmp_path: Path) -> None:
    def write(**options: Any) -> None:
        write_webdataset(store, tmp_path / "shards", workers=1, **options)

    with pytest.raises(FeatureNotFoundError, match="no feature 'nope'"):
        write(features=["nope"])
    with pytest.raises(SchemaError, match=r"'note'.* as \.jpg: its members are txt files"):
        write(rename={"note": "jpg"})
    with pytest.raises(SchemaError, match=r"'blob'.* as \.x\.txt: its members are bin files"):
        write(rename={"note": "x.txt", "blob": "x.txt"})
    with pytest.raises(StepwellError, match="cannot be the key"):
        write(names="{:.2f}")
    with pytest.raises(StepwellError, match="names="):
        write(names="{nope}")
    with pytest.raises(StepwellError, match="shard_samples=0"):
        write(shard_samples=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.well"]
    write()
    with pytest.raises(StoreExistsError, match="is there already"):
        write()


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_one_key_are_refused_and_nothing_is_left(tmp_path: Path, workers: int) -> None:
    made = stepwell.create(tmp_path / "a.well", {"label": Array((), "int64")})
    with made.writer() as writer:
        for length in (1, 3, 2):
            writer.add_episode({"label": np.arange(length)})
    with pytest.raises(StepwellError, match=r"sample 2 could not be written: .*key, 'run 1', is another sample's"):
        write_webdataset(made, tmp_path / "shards", names="run {episode}", shard_samples=5, workers=workers)
    assert not (tmp_path / "shards").exists()
    # of shards of their own they are told apart
    assert len(write_webdataset(made, tmp_path / "shards", names="k", shard_samples=1, workers=0)) == 6


@pytest.mark.parametrize("prefix", ["", "a/b", "../b", ".hidden"])
def test_a_prefix_is_no_path(store: stepwell.Store, tmp_path: Path, prefix: str) -> None:
    with pytest.raises(StepwellError, match="prefix="):
        write_webdataset(store, tmp_path / "shards", prefix=prefix, workers=0)


@pytest.mark.parametrize("ending", ["a/b.cls", ".cls", ""])
def test_an_ending_is_no_path(store: stepwell.Store, tmp_path: Path, ending: str) -> None:
    with pytest.raises(SchemaError, match=r"Give an ending such as label\.cls"):
        write_webdataset(store, tmp_path / "shards", rename={"label": ending}, workers=0)


def test_long_names_are_written(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"__key__": Text(), "txt": Text()})
    keys = ["k" * length for length in (94, 95, 96, 97, 250)] + ["ä/0"]
    with store.writer() as writer:
        writer.add_episode({"__key__": keys, "txt": keys})
    (shard,) = write_webdataset(store, tmp_path / "shards", workers=1)
    with tarfile.open(shard) as archive:
        assert archive.getnames() == [f"{key}.txt" for key in keys]
    reader = WebDatasetReader(str(shard))
    assert [reader[n].columns["__key__"][0] for n in range(6)] == keys


def test_names_of_features_are_found_by_endings_of_any_case(tmp_path: Path) -> None:
    made = stepwell.create(tmp_path / "a.well", {"action": Array(2)})
    with made.writer() as writer:
        writer.add_episode({"action": np.ones((3, 2), np.float32)})
    write_webdataset(made, tmp_path / "shards", rename={"action": "Act.npy"}, workers=1)
    assert list(WebDatasetReader(str(tmp_path / "shards")).schema) == ["__key__", "action"]
