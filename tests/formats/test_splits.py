"""Splits by TFDS's syntax, and the one that a store has; tests/interop compares them with the real TFDS."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell import convert
from stepwell.cli.main import main
from stepwell.errors import FormatError
from stepwell.formats import even_splits, split_indices
from stepwell.formats.splits import TakenSplit, taken_split
from stepwell.tfds import write_rlds

SIZES = {"train": [10, 12, 8], "val": 10, "half": 15}
FOUND = {
    "train": range(30),
    "train[:10%]": range(3),
    "train[33%:66%]": range(10, 20),
    "train[-25%:]": range(22, 30),
    "train[10:20]": range(10, 20),
    "train[-5:]": range(25, 30),
    "train[:-28]": range(2),
    "train[20:10]": range(20, 20),
    "train[:1_0]": range(10),
    "train[:1shard]": range(10),
    "train[1shard]": range(10, 22),
    "train[-1shard]": range(22, 30),
    "train[-2shard:]": range(10, 30),
    # half of one goes to the even number
    "half[:50%]": range(8),
    "val[:45%]": range(4),
    "val[:55%]": range(6),
    "val[:100%]": range(10),
}


@pytest.mark.parametrize("text", FOUND)
def test_a_slice_is_these_items(text):
    ((name, indices),) = split_indices(text, SIZES)
    assert name == text.partition("[")[0]
    assert indices.dtype == np.int64
    assert indices.tolist() == list(FOUND[text])


def test_sums_come_in_the_order_of_the_text():
    found = split_indices(" val[8:] +train[:2]+ val[:1]", SIZES)
    assert [(name, indices.tolist()) for name, indices in found] == [("val", [8, 9]), ("train", [0, 1]), ("val", [0])]


def test_all_is_every_split_unless_one_is_called_so():
    assert [(name, len(indices)) for name, indices in split_indices("all", SIZES)] == [
        ("train", 30),
        ("val", 10),
        ("half", 15),
    ]
    assert len(split_indices("all[:2]", {"all": 5})[0][1]) == 2


WRONG = {
    "train[": "Allowed:",
    "": "Allowed:",
    "train[:]": "Allowed:",
    "train[1:2:3]": "Allowed:",
    "train[a:]": "Allowed:",
    "train[10%]": "a single one of shards only",
    "train[5]": "a single one of shards only",
    "train[10%:20]": "two units",
    "train[:101%]": "-100% to 100%",
    "train[:31]": "has 30 items. Allowed: -30 to 30",
    "train[-31:]": "has 30 items",
    "train[3shard]": "there are 3 shards",
    "val[:1shard]": "shards are not known",
    "test": "there is no 'test'. There are: train, val, half",
    "all[:2]": "there is no 'all'",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_split_is_refused(text):
    with pytest.raises(FormatError, match=WRONG[text]):
        split_indices(text, SIZES)


def test_one_per_cent_is_the_same_everywhere_where_remainders_are_dropped():
    (_, indices), (_, others) = split_indices("a[:1%]+a[98%:99%]", {"a": 250}, rounding="pct1_dropremainder")
    assert (indices.tolist(), others.tolist()) == ([0, 1], [196, 197])
    with pytest.raises(FormatError, match="1% of 30 items is none"):
        split_indices("train[:5%]", SIZES, rounding="pct1_dropremainder")
    with pytest.raises(FormatError, match="rounding 'floor'"):
        split_indices("train", SIZES, rounding="floor")


def test_even_parts_are_as_tfds_has_them():
    sizes = {"train": 30, "val": 10}
    for name, count, wanted in [
        ("train", 2, [15, 15]),
        ("train", 4, [8, 8, 7, 7]),
        ("train", 7, [5, 5, 4, 4, 4, 4, 4]),
        ("val", 4, [3, 3, 2, 2]),
        ("val", 7, [2, 2, 2, 1, 1, 1, 1]),
    ]:
        assert [len(split_indices(part, sizes)[0][1]) for part in even_splits(name, count)] == wanted


@given(st.integers(0, 200), st.integers(1, 20), st.booleans())
def test_even_parts_are_even_and_share_nothing(size, count, drop):
    parts = [split_indices(part, {"a": size})[0][1] for part in even_splits("a", count, drop_remainder=drop)]
    together = np.concatenate(parts)
    assert together.tolist() == list(range(size // count * count if drop else size))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= (0 if drop else 1)
    assert lengths == sorted(lengths, reverse=True)


def test_of_a_sum_each_part_is_cut_by_itself_and_parts_are_cut_again():
    first, second = even_splits("train[:4]+val[:3]", 2)
    assert [i.tolist() for _, i in split_indices(first, SIZES)] == [[0, 1], [0, 1]]
    assert [i.tolist() for _, i in split_indices(second, SIZES)] == [[2, 3], [2]]
    assert [i.tolist() for _, i in split_indices(even_splits(first, 2)[1], SIZES)] == [[1], [1]]
    assert str(second) == "part 1 of 2 of train[:4]+val[:3]"


def test_less_than_one_part_is_refused():
    with pytest.raises(FormatError, match="0 parts of train"):
        even_splits("train", 0)


LINE = "train taken, of train (2), val (1); split=NAME takes another"


@pytest.fixture
def arm(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    store = stepwell.create(tmp_path / "arm.well", {"action": stepwell.Array(2)})
    with store.writer() as writer:
        for length in (3, 4, 2):
            writer.add_episode({"action": [[step, length] for step in range(length)]}, terminated=True)
    view = stepwell.View(store)
    splits = {"train": view.select([0, 1]), "val": view.select([2])}
    return write_rlds(splits, tmp_path / "data", name="arm", workers=1, progress=False)


def test_info_of_an_address_tells_the_splits_in_one_line(arm, capsys):
    assert main(["info", f"tfds://{arm}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  splits           {LINE}"
    assert main(["info", f"tfds://{arm}?split=all", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["split"] == {"taken": "all", "splits": {"train": 2, "val": 1}} and record["num_episodes"] == 3


def test_an_import_tells_them_and_so_does_the_store(arm, tmp_path, capsys):
    assert main(["convert", str(arm), str(tmp_path / "x.well"), "--workers", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("x.well: 2 episodes") and told[1] == f"  splits: {LINE}"
    assert main(["info", str(tmp_path / "x.well")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  splits           {LINE}"
    report = convert(arm, tmp_path / "y.well", split="val", workers=1)
    assert report.split == TakenSplit("val", {"train": 2, "val": 1})
    assert report.to_json()["split"]["taken"] == "val"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tfds": {"split": "train", "splits": {"train": 2}}},
        {"splits": {"train": 1, "val": 2}},
        {"mine": {"splits": {"a": 1, "b": 2}}},
        {"mine": {"split": "a", "splits": ["a", "b"]}},
    ],
)
def test_of_one_split_nothing_is_told(metadata):
    assert taken_split(metadata) is None


def test_of_very_many_splits_some_are_named():
    told = str(TakenSplit("a", dict.fromkeys("abcdefghijkl")))
    assert told == "a taken, of a, b, c, d, e, f, g, h and 4 more; split=NAME takes another"
