"""A web server for tests: whole files, parts, and what goes wrong when a test says so."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from web_server import WebServer


def get(url: str, **headers: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.status, answer.read()


def test_a_file_and_a_part_of_it_are_served(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    with WebServer(tmp_path) as web:
        assert get(f"{web.url}/a.bin") == (200, bytes(range(100)))
        assert get(f"{web.url}/a.bin", Range="bytes=10-12") == (206, b"\x0a\x0b\x0c")
        assert get(f"{web.url}/a.bin", Range="bytes=0-0") == (206, b"\x00")
        assert web.fetched == ["a.bin", "a.bin"]


@pytest.mark.parametrize(("name", "statuses", "status"), [("b.bin", [], 404), ("a.bin", [503], 503)])
def test_what_is_not_there_and_what_a_test_asks_for_is_refused(
    tmp_path: Path, name: str, statuses: list[int], status: int
) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")
    with WebServer(tmp_path, statuses=statuses) as web, pytest.raises(urllib.error.HTTPError) as error:
        get(f"{web.url}/{name}")
    assert error.value.code == status
    error.value.close()
