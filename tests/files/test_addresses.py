"""What addresses of files say."""

import pytest

from stepwell.errors import FormatError
from stepwell.files.addresses import path_of_file, plain_address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("data/what?.tar", "data/what?.tar"),
        ("https://me:SECRET@host:80/a/b.tar?token=SECRET&x=1#SECRET", "https://host:80/a/b.tar"),
        ("https://host?token=SECRET", "https://host"),
        ("tfds://https://me:SECRET@host/set/1.0.0?token=SECRET", "tfds://https://host/set/1.0.0"),
        ("gzip:///data/what?.tgz", "gzip:///data/what?.tgz"),
        ("http://[bad/a?token=SECRET", "http://[bad/a"),
        ("S3://bucket/a@b.tar", "S3://bucket/a@b.tar"),
    ],
)
def test_messages_show_neither_query_nor_password(address: str, shown: str) -> None:
    assert plain_address(address) == shown


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///data/a%20b?.tar", "/data/a b?.tar"),
        ("FILE://localhost/data", "/data"),
        ("data/file://a", "data/file://a"),
        ("http://host/a%20b", "http://host/a%20b"),
    ],
)
def test_a_file_address_is_a_path(address: str, path: str) -> None:
    assert path_of_file(address) == path


@pytest.mark.parametrize("address", ["file://data/a.tar", "file://", "file://a.tar"])
def test_a_file_address_of_another_machine_is_refused(address: str) -> None:
    with pytest.raises(FormatError, match=r"is no file of this machine\. Write file:///"):
        path_of_file(address)
