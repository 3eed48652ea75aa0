"""Which reader a source gets, and the parts of addresses."""

from pathlib import Path

import pytest
from folder_reader import FolderReader, write_folder

from stepwell.errors import FormatError
from stepwell.formats import Reader, find_reader, open_reader, reader_names, register_reader
from stepwell.formats.registry import _REGISTRY, Address, parse_address, scheme_of, told_address

READERS = ("beton", "lerobot", "webdataset")


def parsed(source: object) -> Address:
    return parse_address(source, READERS, {"lerobot"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("data/a.beton", Address("data/a.beton")),
        (Path("data/a.beton"), Address("data/a.beton")),
        ("s3://bucket/a.tar?x=1", Address("s3://bucket/a.tar?x=1")),
        ("beton://data/a.beton", Address("data/a.beton", "beton")),
        ("Beton:///data/a.beton?pages=4", Address("/data/a.beton", "beton", {"pages": "4"})),
        ("beton://a.beton?x=1&y=a%26b&z=", Address("a.beton", "beton", {"x": "1", "y": "a&b", "z": ""})),
        ("webdataset://a-0?.tar", Address("a-0?.tar", "webdataset")),
        ("webdataset://a-0?.tar?keys=jpg", Address("a-0?.tar", "webdataset", {"keys": "jpg"})),
        ("webdataset://https://host/a.tar?token=1", Address("https://host/a.tar?token=1", "webdataset")),
        ("webdataset://a-{000..009}.tar", Address("a-{000..009}.tar", "webdataset")),
        ("lerobot://owner/name?episodes=0:2", Address("lerobot://owner/name?episodes=0:2", "lerobot")),
        (["a.tar", Path("b.tar")], Address("a.tar\nb.tar")),
        (["a.tar"], Address("a.tar")),
        ("file:///data/a%20b.tar", Address("/data/a b.tar")),
        (["file:///data/a.tar", "b.tar", "s3://b/c.tar"], Address("/data/a.tar\nb.tar\ns3://b/c.tar")),
        ("beton://file:///data/a.beton", Address("/data/a.beton", "beton")),
        ("beton://file:///data/a%3Fb=1.beton?x=%2541", Address("/data/a?b=1.beton", "beton", {"x": "%41"})),
    ],
)
def test_parts_of_an_address(source: object, wanted: Address) -> None:
    assert parsed(source) == wanted


def test_a_home_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parsed("beton://~/a.beton?x=1") == Address("/home/me/a.beton", "beton", {"x": "1"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no source"),
        ([], "no source"),
        ("beton://", "no source"),
        (["a.tar", ""], "no source"),
        ("beton://a.beton?x=1&x=2", "a name comes twice"),
        ("file://data/a.beton", "file://data is no file of this machine"),
        ("beton://file://a.beton", "is no file of this machine"),
        ("a\nb", "has a line break. Give several paths as a list"),
        ("beton://a.beton?x=1&y", r"options 'x=1&y' of beton://a\.beton\?x=1&y: .*Allowed: name=value"),
    ],
)
def test_what_is_no_address_is_refused(source: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parsed(source)


def test_a_letter_before_a_colon_is_no_scheme() -> None:
    assert (scheme_of("C:/data"), scheme_of("data:set"), scheme_of("S3://a")) == (None, None, "s3")


@pytest.mark.parametrize(
    "address",
    [
        "beton://data/a.beton",
        "beton:///data/a-0?.beton?keys=jpg,png",
        "webdataset://a.tar?split=train[:10%]+val&x=50%2525&y=a%26b&z=which%3F",
    ],
)
def test_an_address_is_told_as_it_can_be_given_again(address: str) -> None:
    found = parsed(address)
    assert told_address(found, str(found.reader)) == address
    assert parsed(told_address(found, str(found.reader))) == found


def test_an_address_is_told_without_secrets_and_what_is_no_text() -> None:
    found = Address("https://me:secret@host/a.tar?token=secret", None, {"decoders": {"txt": 1}, "allow_cut": True})
    assert told_address(found, "webdataset") == "webdataset://https://host/a.tar?allow_cut=True"


pytest.importorskip("imagecodecs")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "set")


class Also(FolderReader):
    """Takes what the other takes."""

    name = "also"


def test_a_reader_is_found_by_looking(folder):
    assert find_reader(folder) is FolderReader
    assert isinstance(open_reader(folder), FolderReader)
    assert "folder" in reader_names() and "lerobot" in reader_names()


def test_a_name_overrides_what_is_found(folder, monkeypatch):
    monkeypatch.setitem(_REGISTRY, "also", Also)
    assert find_reader(folder, "also") is Also


def test_what_looks_like_two_formats_must_be_named(folder, monkeypatch):
    monkeypatch.setitem(_REGISTRY, "also", Also)
    with pytest.raises(FormatError, match=r"several formats: also, folder\. Say which"):
        find_reader(folder)


def test_readers_of_last_resort_let_others_go_first(folder, monkeypatch):
    monkeypatch.setitem(_REGISTRY, "also", type("Last", (Also,), {"is_last_resort": True}))
    assert find_reader(folder) is FolderReader
    monkeypatch.delitem(_REGISTRY, "folder")
    assert find_reader(folder).name == "also"


def test_what_no_reader_takes_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(
        FormatError, match=r"nowhere: it is not there. There are readers for: .*lerobot.*--import MODULE"
    ):
        find_reader(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="looks like none of them"):
        find_reader(tmp_path)
    with pytest.raises(FormatError, match="no reader 'tfrecord'"):
        find_reader(tmp_path, "tfrecord")


def test_many_paths_are_looked_at_by_their_first(tmp_path):
    shards = [tmp_path / f"train-{number:06d}.tar" for number in range(300)]
    assert find_reader(shards).name == "webdataset"
    with pytest.raises(FormatError, match=r"000000\.xyz and 299 more: it is not there"):
        find_reader([shard.with_suffix(".xyz") for shard in shards])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x" * 5000, r"cannot be looked at \(File name too long\)"),
        ("a\0b", "cannot be looked at"),
        ("~/x", "is not there"),
    ],
)
def test_what_can_be_no_path_is_refused_as_such(source, message, monkeypatch):
    expanded = Path.expanduser

    def no_home(path):
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return expanded(path)

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(FormatError, match=message):
        find_reader(source)


def test_a_fault_of_a_reader_that_looks_is_not_hidden(folder, monkeypatch):
    def accepts(source):
        raise RuntimeError("a fault")

    monkeypatch.setattr(FolderReader, "accepts", accepts)
    with pytest.raises(RuntimeError, match="a fault"):
        find_reader(folder)


def test_an_option_that_a_reader_does_not_have_is_refused(folder):
    assert open_reader(folder, options={"fps": 5.0}).fps == 5.0
    with pytest.raises(FormatError, match=r"'folder' has no option 'revision'\. It has: fps, slow"):
        open_reader(folder, options={"revision": "main"})


def test_a_name_is_given_once():
    with pytest.raises(FormatError, match="'folder' is taken by folder_reader"):
        register_reader(type("Other", (FolderReader,), {"name": "folder"}))
    with pytest.raises(FormatError, match=r"'lerobot' is taken by stepwell\.lerobot\.reader"):
        register_reader(type("Other", (FolderReader,), {"name": "lerobot"}))
    with pytest.raises(FormatError, match="has no name"):
        register_reader(type("Nameless", (Reader,), {}))
    assert register_reader(FolderReader) is FolderReader


def test_a_reader_is_a_sequence_of_its_episodes(folder: Path) -> None:
    reader = open_reader(folder)
    assert [len(episode.columns["action"]) for episode in reader.episodes()] == [4, 7, 3, 5]
    assert reader.label(2) == f"episode 2 of {folder}"
    assert reader.identity == f"folder {folder}, 4 episodes"


def test_an_address_names_its_reader_and_its_options(folder: Path) -> None:
    assert find_reader(f"folder://{folder}") is FolderReader
    reader = open_reader(f"folder://{folder}?fps=5")
    assert (reader.source, reader.fps) == (str(folder), "5")
    assert find_reader("lerobot://owner/name").name == "lerobot"


def test_the_files_of_a_reader_are_those_below_its_paths(folder: Path, tmp_path: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "notes.txt").write_text("")
    files = [*sorted(map(str, folder.glob("*.*"))), f"{folder}/more/notes.txt"]
    assert sorted(Reader.files(str(folder))) == sorted(files)
    assert Reader.files(f"{folder}/kind.txt\ns3://bucket/a", split="train") == [f"{folder}/kind.txt", "s3://bucket/a"]
    assert Reader.files(str(tmp_path / "none")) == [str(tmp_path / "none")]


@pytest.mark.parametrize("inner", ["https://host/train-000000.tar", "memory://bucket/train-0.tar"])
def test_options_of_a_reader_do_not_go_to_a_server(inner):
    from stepwell.formats import open_in_place

    told = rf"{inner}: .*the server's.* stepwell\.open\(address, rename='jpg=image'\), or --with rename=jpg=image\."
    for source in (f"webdataset://{inner}?token=1&rename=jpg=image", ["a.tar", f"{inner}?rename=jpg=image"]):
        for opened in (open_reader, lambda source, name: open_in_place(source, reader=name)):
            with pytest.raises(FormatError, match=told) as caught:
                opened(source, "webdataset")
            assert "token" not in str(caught.value)


def test_what_a_reader_does_not_know_goes_to_the_server():
    from stepwell.formats.registry import address_of, check_address

    for query in ("token=1&source=2", "X-Amz-Signature=3", "split", "list=train-?.tar"):
        source = f"webdataset://https://host/a.tar?{query}"
        check_address(find_reader(source), address_of(source))
    # a name of a file, and what reads its addresses' queries itself
    check_address(FolderReader, address_of("file:///data/a?pages=1", "folder"))
    check_address(find_reader("lerobot://a/b"), address_of("lerobot://a/b?revision=main"))
