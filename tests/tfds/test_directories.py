"""Where a dataset is: the directory of its version, here or on another machine."""

import os
import sys
from pathlib import Path

import pytest
from made_sets import episode, simple_tree, write_set
from remote_sets import in_memory, own_cache
from web_server import WebServer

from stepwell.errors import DatasetNotFoundError, FormatError, MissingDependencyError
from stepwell.tfds.dataset_files import Directory, find_version, named_version, read_info


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory):
    with own_cache(tmp_path_factory.mktemp("cache")):
        yield


def made(root, **more):
    return write_set(root, simple_tree(), {"train": [[episode(2)]]}, **more)


def found(source):
    return Path(find_version(str(source)).place)


def test_the_newest_version_is_taken_whatever_the_path(tmp_path):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        made(tmp_path, version=version)
    newest = tmp_path / "made" / "1.10.0"
    assert found(tmp_path) == found(tmp_path / "made") == found(newest) == newest
    assert read_info(str(tmp_path / "made" / "1.2.0")).version == "1.2.0"


def test_several_configurations_are_named_by_the_error(tmp_path):
    for config in ("large", "small"):
        made(tmp_path / "set" / config, name="one")
    with pytest.raises(FormatError, match=r"large, small\. Give the path of one"):
        found(tmp_path / "set")
    assert found(tmp_path / "set" / "small").parent.name == "one"


def test_folders_of_very_many_entries_are_not_searched(tmp_path, monkeypatch):
    folder = tmp_path / "images"
    for number in range(300):
        (folder / f"{number:03d}").mkdir(parents=True)
    made(folder / "000")
    looked_at = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked_at.append(path) or scan(path))
    with pytest.raises(DatasetNotFoundError):
        found(folder)
    assert len(looked_at) == 1


def test_no_dataset_is_an_error_that_says_what_is_looked_for(tmp_path):
    (tmp_path / "1.0.0").mkdir()
    with pytest.raises(DatasetNotFoundError, match=r"no features\.json there"):
        found(tmp_path)
    with pytest.raises(DatasetNotFoundError):
        found(tmp_path / "none")


def test_addresses_are_joined_as_their_kind_is(tmp_path):
    assert (
        Directory.of("https://me@host/arm/1.0.0/?token=1").file("a b+c.txt")
        == "https://me@host/arm/1.0.0/a%20b%2Bc.txt?token=1"
    )
    assert str(Directory.of("https://me@host/arm/1.0.0/?token=1")) == "https://host/arm/1.0.0"
    assert Directory.of("gs://bucket/arm/1.0.0/").file("a b.txt") == "gs://bucket/arm/1.0.0/a b.txt"
    assert Directory.of(f"file://{tmp_path}/a%20b").place == f"{tmp_path}/a b"
    names = [
        "s3://b/arm/1.0.0",
        "https://h/arm/1.2.30/?x=1.0",
        "s3://b/arm",
        "arm/1.0.0",
        "s3://b/1.0.0/a.tar",
        "s3://b/1.0.0\ns3://b/1.0.0",
    ]
    assert [named_version(name) for name in names] == [True, True, False, False, False, False]


def test_the_newest_version_of_an_object_store_is_taken(tmp_path):
    for version in ("1.9.0", "1.10.0"):
        made(tmp_path, version=version)
    (tmp_path / "made" / "notes").mkdir()
    (tmp_path / "made" / "notes" / "features.json").write_text("{}")
    bucket = in_memory(tmp_path, "versions")
    for source in ("", "/", "/made", "/made/1.10.0/"):
        assert find_version(bucket + source).place == f"{bucket}/made/1.10.0"
    assert read_info(f"{bucket}/made/1.9.0").version == "1.9.0"


def test_several_configurations_of_an_object_store_are_named_by_the_error(tmp_path):
    for config in ("large", "small"):
        made(tmp_path / "set", name=config)
    bucket = in_memory(tmp_path, "several")
    with pytest.raises(FormatError, match=r"memory://several has several .*: set/large, set/small\. Give the path"):
        find_version(bucket)
    assert find_version(f"{bucket}/set/small").place == f"{bucket}/set/small/1.0.0"


def test_nothing_in_a_bucket_is_an_error_that_says_what_is_looked_for(tmp_path):
    pytest.importorskip("fsspec")
    with pytest.raises(
        DatasetNotFoundError, match=r"no TFDS dataset at memory://none: no file at .*json \(status 404\)"
    ):
        find_version("memory://none")
    path = made(tmp_path)
    (path / "dataset_info.json").unlink()
    bucket = in_memory(tmp_path, "half")
    with pytest.raises(DatasetNotFoundError, match=r"no file at memory://half/made/1\.0\.0/dataset_info\.json"):
        find_version(f"{bucket}/made/1.0.0")


def test_of_a_web_server_the_version_must_be_named(tmp_path):
    made(tmp_path)
    with WebServer(tmp_path) as web:
        assert find_version(f"{web.url}/made/1.0.0/").place == f"{web.url}/made/1.0.0"
        with pytest.raises(DatasetNotFoundError, match=r"status 404.*HTTP has no lists of files: give .* a version's"):
            find_version(f"{web.url}/made?token=secret")
        web.statuses = [403, 403]
        with pytest.raises(DatasetNotFoundError, match=r"may not be read \(status 403\)"):
            find_version(f"{web.url}/made/1.0.0")
        web.statuses = [503] * 8
        with pytest.raises(DatasetNotFoundError, match=r"status 503\. Try again later"):
            find_version(f"{web.url}/made/1.0.0")


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[remote\]"):
        find_version("gs://bucket/arm")
    monkeypatch.undo()
    fsspec = pytest.importorskip("fsspec.core")

    def without(address):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "url_to_fs", without)
    with pytest.raises(MissingDependencyError, match=r"gs://bucket/arm/.*: Please install gcsfs .*stepwell\[remote\]"):
        find_version("gs://bucket/arm")
