"""The files of a split, opened one at a time; the next one of another machine comes meanwhile."""

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from made_sets import episode, simple_tree, write_set
from remote_sets import fetched, kept, own_cache
from web_server import WebServer

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import cache_directory
from stepwell.tfds.record_files import TFRecordFile
from stepwell.tfds.shards import FetchedFile, Shards, _Coming, open_shard


@pytest.fixture
def folder(tmp_path):
    with own_cache(tmp_path / "cache"):
        yield write_set(tmp_path, simple_tree(), {"train": [[episode(2, n)] * 3 for n in range(4)]})


@pytest.fixture
def web(folder):
    with WebServer(folder) as server:
        yield server


def addresses(web, folder):
    return [f"{web.url}/{path.name}?token=secret" for path in sorted(folder.glob("*-of-*"))]


def come(web, count):
    """Wait until so many files were sent; return their numbers, ascending: the first two may come in any order."""
    for _ in range(500):
        if len(fetched(web)) >= count:
            break
        time.sleep(0.01)
    return sorted(int(name.split("-")[-3]) for name in fetched(web))


def test_the_next_file_that_is_expected_comes_while_one_is_read(web, folder):
    shards = Shards(addresses(web, folder), "tfrecord")
    shards.expect(np.array([0, 0, 2, 2, 2, 3]))
    assert len(shards.records(0)) == 3 and come(web, 2) == [0, 2]
    shards.records(0)
    assert len(shards.records(2)) == 3 and come(web, 3) == [0, 2, 3]
    # one that was not expected; nothing follows it
    assert len(shards.records(1)) == 3 and come(web, 4) == [0, 1, 2, 3]
    shards.records(3)
    assert len(kept()) == 4 and come(web, 4) == [0, 1, 2, 3]


def test_nothing_is_fetched_ahead_that_nobody_expects(web, folder):
    shards = Shards(addresses(web, folder), "tfrecord")
    shards.records(1)
    assert fetched(web) == ["made-train.tfrecord-00001-of-00004"]


def test_a_file_that_leaves_the_cache_is_read_to_its_end_and_its_space_is_free_then(web, folder):
    shards = Shards(addresses(web, folder), "tfrecord")
    found = shards.records(0)
    assert len(found.read(0, 1).starts) == 1
    for path in (cache_directory() / "remote").glob("[!.]*"):
        path.unlink()
    assert len(found.read(1, 9).starts) == 2 and len(found.read(0, 9).starts) == 3
    assert removed_and_open()
    del found
    shards.records(1)
    assert not removed_and_open()


def removed_and_open():
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if str(cache_directory()) in link and link.endswith("(deleted)")]


def test_a_file_that_cannot_be_had_is_an_error_when_it_is_asked_for(web, folder):
    shards = Shards(addresses(web, folder), "tfrecord")
    shards.expect(np.arange(4))
    (folder / "made-train.tfrecord-00001-of-00004").rename(folder / "away")
    assert len(shards.records(0)) == 3
    with pytest.raises(DatasetNotFoundError, match=r"00001-of-00004 \(status 404\)"):
        shards.records(1)
    (folder / "away").rename(folder / "made-train.tfrecord-00001-of-00004")
    assert len(shards.records(1)) == 3


def test_errors_name_the_address_without_what_is_secret(web, folder):
    path = folder / "made-train.tfrecord-00000-of-00004"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=rf"{web.url}/{path.name}: record 2, byte \d+: the file ends before") as error:
        len(Shards(addresses(web, folder), "tfrecord").records(0))
    assert "secret" not in str(error.value) and "/dev/fd" not in str(error.value)
    with pytest.raises(FormatError, match=r"00000-of-00004: files of format 'parquet'"):
        open_shard(addresses(web, folder)[0], "parquet")
    assert "secret" not in repr(open_shard(addresses(web, folder)[1], "tfrecord"))


def test_it_travels_to_another_process_with_what_is_expected(web, folder):
    shards = Shards(addresses(web, folder), "tfrecord")
    shards.expect(np.arange(2))
    shards.records(0)
    again = pickle.loads(pickle.dumps(shards))
    assert len(again.records(1)) == 3 and isinstance(again.records(1), FetchedFile)


def test_a_child_does_not_wait_for_a_thread_of_its_parent(web, folder, monkeypatch):
    shards = Shards(addresses(web, folder), "tfrecord")
    shards.expect(np.arange(2))
    # a thread that never comes to it, as a child has it
    monkeypatch.setattr(_Coming, "fetch", lambda coming: None)
    shards.records(0)
    assert shards._coming is not None and not shards._coming.file.done()
    shards._coming = shards._coming._replace(process=0)
    assert len(shards.records(1)) == 3


def test_files_of_this_machine_are_opened_as_they_are(folder):
    paths = sorted(map(str, folder.glob("*-of-*")))
    shards = Shards(paths, "tfrecord")
    shards.expect(np.arange(4))
    assert isinstance(shards.records(2), TFRecordFile) and shards.called(2) == paths[2] and shards.can_be_left()
    assert not Shards(paths, "array_record").can_be_left()
