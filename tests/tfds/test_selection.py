"""Which records of which files a split is."""

import json
from pathlib import Path

import pytest
from made_sets import episode, simple_tree, write_set

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.formats import even_splits
from stepwell.tfds.dataset_files import read_info
from stepwell.tfds.shards import files_of, lengths_by_split, select

SHARDS = {"train": [[episode(2)] * 3, [], [episode(1)] * 2], "val": [[episode(1)] * 2]}


@pytest.fixture
def path(tmp_path):
    return write_set(tmp_path, simple_tree(), SHARDS)


def places(path, split):
    found = select(read_info(str(path)), split)
    return list(zip(found.shard.tolist(), found.record.tolist(), strict=True)), found


def test_records_follow_from_the_lengths_of_shards(path):
    found, selection = places(path, "train[1:]+val")
    assert found == [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert selection.edges.tolist() == [0, 2, 4]
    assert selection.splits == ("train", "train", "val") and selection.names == ("train", "val")
    # the second file has no records
    ends = ["train.tfrecord-00000-of-00003", "train.tfrecord-00002-of-00003", "val.tfrecord-00000-of-00001"]
    assert [name.rpartition("made-")[2] for name in selection.paths] == ends
    assert selection.num_bytes.tolist() == [Path(name).stat().st_size for name in selection.paths]
    assert [selection.run(position, 10) for position in range(6)] == [2, 1, 2, 1, 2, 1]
    assert selection.run(0, 1) == 1


def test_parts_in_any_order_and_twice_are_taken_as_asked(path):
    found, selection = places(path, "val[1:]+train[2:3]+train[1:3]")
    assert found == [(0, 1), (1, 2), (1, 1), (1, 2)]
    assert selection.run(1, 9) == 1
    assert selection.edges.tolist() == [0, 1]


def test_even_parts_are_taken(path):
    assert [len(places(path, part)[0]) for part in even_splits("train", 3)] == [2, 2, 1]


def test_files_that_are_not_asked_for_may_be_missing(path):
    next(path.glob("*-val*")).unlink()
    assert len(places(path, "train")[0]) == 5
    with pytest.raises(DatasetNotFoundError, match=r"made-val\.tfrecord-00000-of-00001: No such file.*another split"):
        places(path, "train+val")


def test_of_a_slice_only_the_files_that_hold_it_need_be_there(path):
    info = read_info(str(path))
    next(path.glob("*-00000-of-00003")).unlink()
    found, selection = places(path, "train[3:]")
    assert found == [(0, 0), (0, 1)] and list(selection.paths) == files_of(info, "train[3:]")
    # two parts of one file, and one of none
    assert len(files_of(info, "train[4:]+train[:1]+val[:0]+train[4:]")) == 2
    with pytest.raises(DatasetNotFoundError, match=r"00000-of-00003: No such file"):
        places(path, "train[2:]")


def test_where_no_lengths_are_told_files_are_counted(path):
    record = json.loads((path / "dataset_info.json").read_text())
    record["splits"] = [{"name": "train", "numShards": 3}]
    (path / "dataset_info.json").write_text(json.dumps(record))
    assert places(path, "train[1:]")[0] == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert lengths_by_split(read_info(str(path))) == {"train": None}


def test_where_no_lengths_are_told_only_files_of_the_splits_that_are_named_are_counted(path):
    record = json.loads((path / "dataset_info.json").read_text())
    record["splits"] = [{"name": "train", "numShards": 3}, {"name": "val", "numShards": 1}]
    (path / "dataset_info.json").write_text(json.dumps(record))
    next(path.glob("*-val*")).unlink()
    assert len(places(path, "train")[0]) == len(places(path, even_splits("train", 1)[0])[0]) == 5
    assert len(files_of(read_info(str(path)), "train")) == 2
    for split in ("val", "all"):
        with pytest.raises(DatasetNotFoundError, match="made-val"):
            places(path, split)
    with pytest.raises(FormatError, match=r"there is no 'test'\. There are: train, val"):
        places(path, "test")


def test_a_length_that_the_file_cannot_hold_is_refused_before_anything_is_made_of_it(path):
    record = json.loads((path / "dataset_info.json").read_text())
    record["splits"][0]["shardLengths"][0] = str(2**61)
    (path / "dataset_info.json").write_text(json.dumps(record))
    with pytest.raises(FormatError, match=rf"{2**61} records by dataset_info\.json, in a file of"):
        places(path, "train")
    assert len(places(path, "val")[0]) == 2


def test_nothing_may_be_asked_for(path):
    found, selection = places(path, "train[:0]")
    assert (found, selection.edges.tolist()) == ([], [])
    assert (len(selection.lengths), selection.paths, selection.names) == (0, (), ("train",))
