"""Samples of shards: as webdataset groups them; what it would drop silently is said."""

from pathlib import Path

import pytest
from shards import write_tar  # type: ignore[import-not-found]

from stepwell.errors import FormatError
from stepwell.webdataset import read_tar_index
from stepwell.webdataset.samples import Shard, group_samples, split_name


def shard_of(path: Path, names: list[str], **options: object) -> Shard:
    return group_samples(read_tar_index(str(write_tar(path, [(name, name.encode()) for name in names]))), **options)  # type: ignore[arg-type]


NAMES = ["a/0.jpg", "a/0.Cls", "a/0.vec.npy", "README", "b.x/0.jpg", "b.x/0.cls", "__meta__/x.json", "1.cls", "._1.jpg"]


def test_members_are_grouped_by_what_is_before_the_first_dot(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "a.tar", NAMES)
    assert shard.keys == ["a/0", "b.x/0", "1"]
    assert {ending: members.is_there.tolist() for ending, members in shard.members.items()} == {
        "jpg": [True, True, False],
        "cls": [True, True, True],
        "vec.npy": [True, False, False],
    }
    data = (tmp_path / "a.tar").read_bytes()
    cls = shard.members["cls"]
    assert [data[start : start + size] for start, size in zip(cls.offsets, cls.sizes, strict=True)] == [
        b"a/0.Cls",
        b"b.x/0.cls",
        b"1.cls",
    ]


# webdataset leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    names = [name for name in NAMES if "._" not in name]
    shard = shard_of(tmp_path / "a.tar", names)
    found = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))
    assert shard.keys == [sample["__key__"] for sample in found]
    for number, sample in enumerate(found):
        there = {ending for ending, members in shard.members.items() if members.is_there[number]}
        assert there == {name for name in sample if not name.startswith("__")}


def test_only_wanted_endings_make_samples(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "a.tar", NAMES, keep=lambda ending: ending == "jpg")
    assert shard.keys == ["a/0", "b.x/0"] and list(shard.members) == ["jpg"]


def test_a_member_that_comes_twice_in_a_sample_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"byte 1024: 0\.CLS comes twice in its sample"):
        shard_of(tmp_path / "a.tar", ["0.cls", "0.CLS"])


def test_a_key_that_comes_again_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    names = ["0.cls", "1.cls", "0.jpg"]
    with pytest.raises(FormatError, match=r"byte 2048: sample 0 comes again"):
        shard_of(tmp_path / "a.tar", names)
    assert shard_of(tmp_path / "a.tar", names, allow_repeats=True).keys == ["0", "1", "0"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b.c", ("a", "b.c")),
        ("x.y/a.b", ("x.y/a", "b")),
        ("a", None),
        (".a", None),
        ("__x__", None),
        ("a.", ("a", "")),
    ],
)
def test_names_are_split_at_the_first_dot(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name) == parts
