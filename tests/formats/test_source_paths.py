"""The files that a text names, as shells, glob and webdataset have it; those in a directory; gaps of numbers."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.formats import source_paths
from stepwell.formats.source_paths import (
    digest_of,
    expand_braces,
    names_files,
    skipped_numbers,
    source_files,
    walked,
)

TAR = (".tar",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("x{1..3}y", ["x1y", "x2y", "x3y"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{1..9..4}", ["1", "5", "9"]),
        ("{a..c}", ["a", "b", "c"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"]),
        ("{a}", ["{a}"]),
        ("{", ["{"]),
        ("}a{", ["}a{"]),
        ("{a{1..2}", ["{a1", "{a2"]),
        ("{,x}", ["", "x"]),
        ("{-1..1}", ["-1", "0", "1"]),
    ],
)
def test_braces_stand_for_choices_and_ranges(text: str, found: list[str]) -> None:
    assert list(expand_braces(text)) == found


@settings(max_examples=60)
@given(st.text(st.sampled_from("ab{},12."), max_size=12))
def test_any_text_is_expanded_as_braceexpand_does(text: str) -> None:
    braceexpand = pytest.importorskip("braceexpand")
    try:
        wanted = list(braceexpand.braceexpand(text))
    except braceexpand.UnbalancedBracesError:
        assert list(expand_braces(text))  # a brace that is not closed is a character here
        return
    assert list(expand_braces(text)) == wanted


def test_choices_may_be_longer_than_a_path() -> None:
    names = [f"{number:06d}" for number in range(100)]
    text = f"train-{{{','.join(names)}}}.tar"
    assert source_files(text, TAR) == [f"train-{name}.tar" for name in names]


def test_ranges_are_those_of_bash() -> None:
    text = "{000098..000102}.tar"
    shell = subprocess.run(["bash", "-c", f"echo {text}"], capture_output=True, text=True, check=True)
    assert list(expand_braces(text)) == shell.stdout.split()


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(FormatError, match="a step of 0"):
        list(expand_braces("{1..3..0}"))


def test_patterns_and_directories_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.tar", "a.tar", "sub/c.tar", "x.txt", ".hidden.tar", "lit{1,2}.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert source_files("?.tar", TAR) == ["a.tar", "b.tar"]
    assert source_files("{b,a}.tar", TAR) == ["b.tar", "a.tar"]
    below = ["a.tar", "b.tar", "lit{1,2}.tar", "sub/c.tar"]
    assert source_files(str(tmp_path), TAR) == [str(tmp_path / name) for name in below]
    assert source_files("lit{1,2}.tar", TAR) == ["lit{1,2}.tar"]
    assert source_files("sub::a.tar\nnone.tar", TAR) == ["sub/c.tar", "a.tar", "none.tar"]
    assert source_files(["b.tar", "a.tar"], TAR) == ["b.tar", "a.tar"]


def test_file_addresses_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x.tar").touch()
    where = f"file://{tmp_path}/a%20b"
    path = f"{tmp_path}/a b/x.tar"
    assert source_files(where, TAR) == source_files(f"{where}/?.tar", TAR) == [path]
    assert source_files(f"{where}/x.tar::{where}/x.tar", TAR) == [path, path]
    assert names_files(where, TAR) and not names_files(f"file://{tmp_path}", TAR)


def test_what_names_nothing_or_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_paths, "MAX_FILES", 1000)
    with pytest.raises(DatasetNotFoundError, match=r"no files fit .*\*\.tar"):
        source_files(f"{tmp_path}/*.tar", TAR)
    with pytest.raises(DatasetNotFoundError, match=r"no files of \.tar in"):
        source_files(str(tmp_path), TAR)
    with pytest.raises(FormatError, match="no commands are run"):
        source_files("pipe:curl http://host/a.tar", TAR)
    with pytest.raises(FormatError, match="HTTP lists no files"):
        source_files("http://host/*.tar", TAR)
    with pytest.raises(FormatError, match="more than 1,000 files"):
        source_files("{0..9999999999}.tar", TAR)
    with pytest.raises(FormatError, match="names no files"):
        source_files("::", TAR)


def test_a_question_in_an_address_is_no_pattern() -> None:
    assert source_files("https://host/{0..1}.tar?sign=[a]*", TAR) == [f"https://host/{n}.tar?sign=[a]*" for n in (0, 1)]


def test_patterns_of_object_stores_are_listed() -> None:
    fsspec = pytest.importorskip("fsspec")
    for name in "ba":
        fsspec.filesystem("memory").pipe(f"/source_files/{name}.tar", b"x")
    assert source_files("memory://source_files/*.tar", TAR) == [f"memory:///source_files/{name}.tar" for name in "ab"]


def test_what_may_name_files_is_told_cheaply(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    assert names_files(str(tmp_path), TAR) and names_files("s3://b/{0..9}.tar::x", TAR) and names_files("a/*.tar", TAR)
    assert not any(names_files(text, TAR) for text in ("", "a.txt", str(tmp_path / "none"), "s3://b/", "a\0b"))


def make(root: Path) -> Path:
    (root / "a" / "b").mkdir(parents=True)
    for name in ("one", "two", "b/three"):
        (root / "a" / name).write_text(name)
    return root / "a"


def test_files_of_a_directory_and_of_those_below_are_walked(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert sorted(Path(entry[0]).name for entry in walked(folder)) == ["one", "three", "two"]


def test_directory_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert walked(tmp_path / "none") == walked(make(tmp_path) / "one") == []


def test_links_are_followed_and_broken_ones_left_out(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "link").symlink_to(folder / "b" / "three")
    (folder / "broken").symlink_to(folder / "none")
    assert {Path(path).name: size for path, size, _ in walked(folder)} == {"one": 3, "two": 3, "three": 7, "link": 7}


def test_digest_depends_on_every_part_and_not_on_the_order() -> None:
    one, two = ("a", 1, 2), ("b", 1, 2)
    digests = [
        digest_of([one, two]),
        digest_of([one]),
        digest_of([("a", 1, 3)]),
        digest_of([("a", 2, 2)]),
        digest_of([one], b"x"),
        digest_of([one], b"x", b""),
        digest_of([one], b"", b"x"),
    ]
    assert len(set(digests)) == len(digests)
    assert digest_of([two, one]) == digests[0]


def test_change_of_a_file_is_seen_by_its_time(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = digest_of(walked(folder))
    assert digest_of(walked(folder)) == before
    os.utime(folder / "b" / "three", ns=(5, 5))
    assert digest_of(walked(folder)) != before


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["a-000000.tar", "a-000001.tar", "a-000003.tar"], ["a-000002.tar"]),
        (["a-8.tar", "a-9.tar", "a-11.tar"], ["a-10.tar"]),
        (["a-08.tgz", "a-09.tgz", "a-11.tgz"], ["a-10.tgz"]),
        (
            ["a-00001-of-00004.tar.gz", "a-00002-of-00004.tar.gz"],
            ["a-00000-of-00004.tar.gz", "a-00003-of-00004.tar.gz"],
        ),
        (["a-0.tar", "a-1.tar", "b-2.tar", "b-4.tar"], ["b-3.tar"]),
        # whole, or no sequence
        (["a-000001.tar", "a-000002.tar"], []),
        (["20240101.tar", "20240301.tar", "7f3a.tar", "a.tar", "99.tar.bak"], []),
        (["a-1-of-99999999999999.tar"], []),
        ([], []),
    ],
)
def test_gaps_of_numbers_are_found(names: list[str], lost: list[str]) -> None:
    assert skipped_numbers(names) == lost
