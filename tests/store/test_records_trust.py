"""A store from elsewhere reaches only what its user says: for every codec of references, every way to read."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Bytes, Loader
from stepwell.errors import StepwellError, UntrustedFileError
from stepwell.json_text import open_json, seal_json
from stepwell.references.file_codec import file_template, make_references
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Image
from stepwell.store.rewrite import concatenate

PLAIN, SECRET = Array(4), Bytes()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "secret"
    path.parent.mkdir()
    path.write_bytes(np.arange(40, dtype="<f4").tobytes())
    return path


def made(path: Path, files: list[Path], features: Any = (("x", PLAIN), ("y", SECRET))) -> stepwell.Store:
    """Return a store of references, two rows each."""
    store = stepwell.create(path, {name: span_feature(feature, files) for name, feature in features})
    with store.writer() as writer:
        writer.add_episode({name: FileSpans(feature, files, 0, [0, 16], [16, 16]) for name, feature in features})
    return store


READS: dict[str, Callable[[stepwell.Store], Any]] = {
    "plain rows": lambda store: store[0]["x"],
    "rows": lambda store: store[0]["y"],
    "batches": lambda store: list(Loader(store, {"x": "x"}, batch_size=2)),
    "batches of rows": lambda store: list(Loader(store, {"y": "y"}, batch_size=2)),
    "convert": lambda store: stepwell.convert(store, store.path.with_name("converted.well"), workers=1),
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_a_copied_store_reads_no_file_that_it_refers_to_until_its_user_says_so(
    tmp_path: Path, secret: Path, read: Callable[[stepwell.Store], Any]
) -> None:
    made(tmp_path / "a.well", [secret])
    shutil.copytree(tmp_path / "a.well", tmp_path / "b.well")
    for mode in ("r", "a"):
        with pytest.raises(StepwellError, match=r"secret: references .*trust='") as told:
            read(stepwell.open(tmp_path / "b.well", mode=mode))
        assert "trust=True" in str(told.value)
    with pytest.raises(StepwellError, match="trust="):
        read(stepwell.open(tmp_path / "b.well", trust=tmp_path / "elsewhere"))
    read(stepwell.open(tmp_path / "b.well", trust=secret.parent))


def test_trust_goes_with_pickles_refreshes_and_concatenation(tmp_path: Path, secret: Path) -> None:
    first = made(tmp_path / "a.well", [secret])
    wanted = np.arange(8, dtype="f4").reshape(2, 4)
    assert np.array_equal(first[0]["x"], wanted)  # what its own process made
    store = stepwell.open(tmp_path / "a.well", trust=secret.parent)
    again = pickle.loads(pickle.dumps(store))
    again.refresh()
    assert np.array_equal(again[0]["x"], wanted)
    both = concatenate(tmp_path / "b.well", [store, again])
    assert np.array_equal(both[1]["x"], wanted)
    refused = concatenate(tmp_path / "c.well", [stepwell.open(tmp_path / "a.well")])
    with pytest.raises(UntrustedFileError):
        refused[0]["x"]


def test_the_record_of_a_store_cannot_say_what_is_trusted(tmp_path: Path, secret: Path) -> None:
    made(tmp_path / "a.well", [secret])
    path = tmp_path / "a.well" / "store.json"
    record = open_json(path.read_bytes(), name="store.json")
    for feature in record["features"].values():
        feature["reach"] = None
        feature["trust"] = True
    path.write_bytes(seal_json({name: value for name, value in record.items() if name != "crc32"}))
    with pytest.raises(UntrustedFileError):
        stepwell.open(tmp_path / "a.well")[0]["x"]


@pytest.mark.parametrize("name", ["../home/secret", "link", "folder/secret"])
def test_no_name_and_no_link_leads_out_of_a_root_that_is_trusted(tmp_path: Path, secret: Path, name: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    (root / "link").symlink_to(secret)
    (root / "folder").symlink_to(secret.parent)
    (root / "good").write_bytes(secret.read_bytes())
    made(tmp_path / "a.well", [root / "good"])
    path = tmp_path / "a.well" / "store.json"
    record = open_json(path.read_bytes(), name="store.json")
    for feature in record["features"].values():
        feature["options"] |= {"root": str(root), "files": name}
    path.write_bytes(seal_json({key: value for key, value in record.items() if key != "crc32"}))
    for read in list(READS.values())[:4]:
        with pytest.raises(StepwellError, match=r"secret|link"):
            read(stepwell.open(tmp_path / "a.well", trust=root))


def test_frames_and_pictures_in_files_are_reached_as_spans_are(tmp_path: Path) -> None:
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    template = file_template(str(tmp_path), "{chunk}/{file}")
    features = {
        "video": Image((32, 32, 3), codec="video-file", files=template),
        "picture": Image((32, 32, 3), codec="parquet-image", files=template, column="image"),
    }
    for name, feature in features.items():
        store = stepwell.create(tmp_path / f"{name}.well", {name: feature})
        with store.writer() as writer:
            writer.add_episode({name: stepwell.EncodedRows(make_references(0, 0, [0.0, 1.0]))})
        for trust, told in ((None, "trust="), (tmp_path / "sub", "trust="), (tmp_path, "0/0")):
            opened = stepwell.open(store.path, trust=trust)
            with pytest.raises(StepwellError, match=told) as error:
                opened[0][name]
            assert ("trust=" in str(error.value)) == (told == "trust=")
            with pytest.raises(StepwellError, match=told):
                next(iter(Loader(opened, {name: name}, batch_size=1)))


def test_verifying_looks_at_no_file_that_is_not_trusted_and_says_so_once(tmp_path: Path, secret: Path) -> None:
    made(tmp_path / "a.well", [secret, tmp_path / "home" / "other"])
    report = stepwell.open(tmp_path / "a.well").verify()
    assert [finding.problem for finding in report.findings if "trust=" in finding.problem]
    assert len(report.findings) == 1
    assert "other" not in json.dumps([finding.problem for finding in report.findings])
