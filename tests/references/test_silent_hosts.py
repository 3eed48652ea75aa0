"""Machines that do not answer: waited for once, and said once that the cache stands for them."""

import logging
import socket
import time
import urllib.error
from pathlib import Path

import pytest

from stepwell.errors import DatasetNotFoundError
from stepwell.references import remote_files, remote_sources, silent_hosts
from stepwell.references.remote_files import kept_files, local_path, remote_states
from stepwell.testing import WebServer


@pytest.fixture
def waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, none of which pass."""
    waits: list[float] = []
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_files, "_STATES", {})
    monkeypatch.setattr(remote_files, "_TOLD", set())
    monkeypatch.setattr(silent_hosts, "_SILENT", {})
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


@pytest.fixture
def gone(tmp_path: Path, waited: list[float]) -> str:
    """Address of a server that is gone after a, b and c were fetched."""
    (tmp_path / "web").mkdir()
    with WebServer(tmp_path / "web") as web:
        for name in "abc":
            (tmp_path / "web" / name).write_bytes(name.encode())
            local_path(f"{web.url}/{name}")
    remote_files._STATES.clear()
    return web.url


def test_the_second_file_of_a_machine_that_is_gone_is_not_waited_for(gone: str, waited: list[float]) -> None:
    for name in "abc":
        assert Path(local_path(f"{gone}/{name}")).read_bytes() == name.encode()
    assert waited == list(remote_sources.WAITS_SECONDS)
    with pytest.raises(DatasetNotFoundError, match=r"/d cannot be fetched: .*refused"):
        local_path(f"{gone}/d")
    assert waited == list(remote_sources.WAITS_SECONDS)


def test_after_some_seconds_it_is_waited_for_again(
    gone: str, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_hosts, "SILENT_SECONDS", 0.0)
    remote_states([f"{gone}/a"])
    remote_states([f"{gone}/b"])
    assert len(waited) == 6


def test_that_the_cache_is_read_is_said_once(gone: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for name in "abc":
            local_path(f"{gone}/{name}")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "refused" in told[0] and f"What the cache has of {gone} is read" in told[0]


def test_one_that_answers_again_is_asked_at_once(tmp_path: Path, waited: list[float]) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with WebServer(tmp_path) as web:
        address = f"{web.url}/a"
        silent_hosts.note_failure(address, urllib.error.URLError(ConnectionRefusedError(111, "refused")), 0.01)
        assert silent_hosts.is_silent(address)
        assert Path(local_path(address)).read_bytes() == b"abc" and not silent_hosts.is_silent(address)


@pytest.mark.parametrize("error", [TimeoutError("timed out"), socket.gaierror(-2, "Name or service not known")])
def test_what_takes_long_to_fail_is_not_tried_at_all(
    waited: list[float], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(silent_hosts, "SILENT_SECONDS", 9_000.0)
    asked: list[str] = []

    def refuse(address: str, headers: object) -> None:
        asked.append(address)
        raise urllib.error.URLError(error)

    monkeypatch.setattr(remote_sources, "_opened", refuse)
    for name in "ab":
        with pytest.raises(DatasetNotFoundError, match="cannot be fetched: "):
            local_path(f"http://host.invalid/{name}")
    assert asked == ["http://host.invalid/a"] * 4


def test_a_machine_that_answers_with_a_fault_is_not_silent(tmp_path: Path, waited: list[float]) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with WebServer(tmp_path) as web:
        web.statuses = [503] * 4
        with pytest.raises(DatasetNotFoundError, match="status 503"):
            local_path(f"{web.url}/a")
        assert not silent_hosts.is_silent(web.url)
        web.statuses = [503]
        assert Path(local_path(f"{web.url}/a")).read_bytes() == b"abc"


def test_what_is_kept_of_an_address_is_named(tmp_path: Path, gone: str) -> None:
    assert [Path(path).read_bytes() for path in kept_files(f"{gone}/a")] == [b"a"]
    assert kept_files(f"gzip://{gone}/a") == kept_files(f"{gone}/a") and kept_files(f"{gone}/d") == []
