"""What somebody says of where a data set is."""

from pathlib import Path

import pytest

from stepwell.errors import FormatError
from stepwell.formats.registry import Address, parse_address, scheme_of, told_address

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
