"""Files of other machines: fetched once, in a state that is known, within a number of bytes."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warm_children
from web_server import WebServer

from stepwell.errors import (
    DatasetNotFoundError,
    FormatError,
    MissingDependencyError,
    ReadOnlyError,
    StepwellError,
)
from stepwell.files.addresses import cache_directory, is_remote
from stepwell.references import remote_files, remote_sources
from stepwell.references.remote_files import kept_files, local_path, remote_states


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPWELL_CACHE_BYTES", raising=False)
    monkeypatch.setattr(remote_files, "_STATES", {})
    monkeypatch.setattr(remote_files, "_UNREACHABLE", set())
    monkeypatch.setattr(remote_sources, "WAITS_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote_files, "GRACE_SECONDS", 0.0)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a b.tar").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "web" / "empty").write_bytes(b"")
    with WebServer(tmp_path / "web") as server:
        yield server


def kept() -> list[str]:
    return sorted(
        path.name.split("-", 2)[2] for path in (cache_directory() / "remote").glob("*") if path.name[0] != "."
    )


def test_local_paths_are_returned_as_they_are(tmp_path: Path) -> None:
    assert [local_path(path) for path in ("a", "/a/b c", "C:/x", "file:///a/b%20c")] == [
        "a",
        "/a/b c",
        "C:/x",
        "/a/b c",
    ]
    assert not cache_directory().exists() and not is_remote("C:/x")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_of_a_web_server_is_fetched_once(web: WebServer, has_ranges: bool) -> None:
    web.has_ranges = has_ranges
    path = local_path(f"{web.url}/a%20b.tar?token=1")
    assert Path(path).read_bytes() == bytes(range(256)) * 100 and path.endswith("-a_b.tar")
    count = len(web.fetched)
    assert local_path(f"{web.url}/a%20b.tar?token=1") == path and len(web.fetched) == count
    assert Path(local_path(f"{web.url}/empty")).read_bytes() == b""


def test_a_file_of_a_file_system_of_fsspec_is_fetched() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/remote_files/x.bin", b"abc" * 1000)
    assert Path(local_path("memory://remote_files/x.bin")).read_bytes() == b"abc" * 1000
    assert remote_sources.list_addresses("memory://remote_files/*.bin") == ["memory:///remote_files/x.bin"]
    with pytest.raises(DatasetNotFoundError, match=r"no file at memory://remote_files/y.bin"):
        local_path("memory://remote_files/y.bin")
    fsspec.filesystem("memory").pipe("/remote_files/x.bin", b"other")
    state = remote_files._STATES["memory://remote_files/x.bin"]
    with pytest.raises(FormatError, match="changed while it was in use: it had 3000 bytes, and has 5"):
        remote_sources.source_of("memory://").fetch("memory://remote_files/x.bin", state, io.BytesIO())


def test_threads_that_want_the_same_file_fetch_it_once(web: WebServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(local_path, [f"{web.url}/a%20b.tar"] * 8))
    assert len(set(paths)) == 1 and web.fetched == ["a b.tar"]


def test_processes_that_want_the_same_file_fetch_it_once(web: WebServer) -> None:
    code = f"from stepwell.references.remote_files import local_path; print(local_path('{web.url}/a%20b.tar'))"
    children = [warm_children.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    paths = {child.communicate(timeout=60)[0] for child in children}
    assert len(paths) == 1 and web.fetched == ["a b.tar"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_fork_waits_no_longer_than_its_parent_fetches(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, fetch, has_begun, may_end = f"{web.url}/a%20b.tar", remote_files._fetch, threading.Event(), threading.Event()

    def fetch_slowly(*given: Any) -> None:
        has_begun.set()
        may_end.wait(5)
        fetch(*given)

    monkeypatch.setattr(remote_files, "_fetch", fetch_slowly)
    thread = threading.Thread(target=local_path, args=[url])
    thread.start()
    has_begun.wait(5)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            os._exit(0 if Path(local_path(url)).stat().st_size == 25600 else 3)
        finally:
            os._exit(4)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0 and web.fetched == ["a b.tar"]


def test_a_connection_that_breaks_off_is_gone_on_with(web: WebServer) -> None:
    remote_states([f"{web.url}/a%20b.tar"])
    web.cut_bytes = 10_000
    assert Path(local_path(f"{web.url}/a%20b.tar")).read_bytes() == bytes(range(256)) * 100
    assert web.fetched == ["a b.tar"] * 2


def test_what_may_go_well_later_is_tried_again_three_times(web: WebServer) -> None:
    web.statuses = [503, 429, 500]
    assert Path(local_path(f"{web.url}/a%20b.tar")).stat().st_size == 25600
    web.statuses = [503] * 4
    with pytest.raises(DatasetNotFoundError, match=r"empty cannot be fetched: status 503\. Try again later"):
        local_path(f"{web.url}/empty")
    assert web.statuses == []


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no file at .* Check the address"), (401, "may not be read"), (403, "may not be read")]
)
def test_a_refusal_is_told_at_once_and_without_the_query(web: WebServer, status: int, words: str) -> None:
    web.statuses = [status, 503]
    with pytest.raises(DatasetNotFoundError, match=words) as error:
        local_path(f"{web.url}/a%20b.tar?secret=1")
    assert "secret" not in str(error.value) and f"status {status}" in str(error.value) and web.statuses == [503]
    assert kept() == []


def test_no_answer_is_told_unless_the_file_is_kept(tmp_path: Path) -> None:
    with WebServer(tmp_path) as web:
        (tmp_path / "a").write_bytes(b"abc")
        path, states = local_path(f"{web.url}/a"), remote_states([f"{web.url}/a"])
        url = web.url
    remote_files._STATES.clear()
    assert local_path(f"{url}/a") == path and remote_states([f"{url}/a"]) == states
    with pytest.raises(DatasetNotFoundError, match=r"b cannot be fetched: .*refused.* Is there a network"):
        local_path(f"{url}/b")


def test_the_warning_that_the_cache_is_read_comes_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WebServer(tmp_path) as web:
        for name in "ab":
            (tmp_path / name).write_bytes(name.encode())
            local_path(f"{web.url}/{name}")
    remote_files._STATES.clear()
    with caplog.at_level(logging.WARNING):
        for name in "ab":
            assert Path(local_path(f"{web.url}/{name}")).read_bytes() == name.encode()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and "refused" in messages[0] and f"What the cache has of {web.url} is read" in messages[0]


def test_waits_grow_between_four_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, tries = [], []
    monkeypatch.setattr(remote_sources, "WAITS_SECONDS", (0.5, 2.0, 8.0))
    monkeypatch.setattr(remote_sources.time, "sleep", waits.append)

    def refuse(address: str, headers: object) -> None:
        tries.append(address)
        raise urllib.error.URLError(TimeoutError("timed out"))

    monkeypatch.setattr(remote_sources, "_opened", refuse)
    with pytest.raises(DatasetNotFoundError, match=r"a cannot be fetched: .*timed out"):
        local_path("http://host.invalid/a")
    assert waits == [0.5, 2.0, 8.0] and len(tries) == 4


def test_a_server_that_is_gone_is_waited_for_once_where_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebServer(tmp_path) as web:
        for name in "abc":
            (tmp_path / name).write_bytes(name.encode())
            local_path(f"{web.url}/{name}")
    waits: list[float] = []
    monkeypatch.setattr(remote_sources, "WAITS_SECONDS", (0.5, 2.0, 8.0))
    monkeypatch.setattr(remote_sources.time, "sleep", waits.append)

    def refuse(address: str, headers: object) -> None:
        raise urllib.error.URLError(TimeoutError("timed out"))

    monkeypatch.setattr(remote_sources, "_opened", refuse)
    for name in "abc":
        assert len(remote_states([f"{web.url}/{name}"])) == 1
    assert waits == [0.5, 2.0, 8.0]


def test_what_is_kept_of_an_address_is_named(web: WebServer) -> None:
    url = f"{web.url}/a%20b.tar"
    fetched = local_path(url)
    assert kept_files(url) == [fetched]
    assert kept_files(f"gzip://{url}") == kept_files(url) and kept_files(f"{web.url}/d") == []


def test_a_file_that_was_replaced_is_another_once_it_is_asked_about(web: WebServer, tmp_path: Path) -> None:
    url = f"{web.url}/a%20b.tar"
    before, state = local_path(url), remote_states([url])[0]
    (tmp_path / "web" / "a b.tar").write_bytes(b"new")
    assert local_path(url) == before
    Path(before).unlink()
    with pytest.raises(FormatError, match=r"it had 25600 bytes, and has 3. Open the dataset again"):
        local_path(url)
    assert remote_states([url])[0] != state and Path(local_path(url)).read_bytes() == b"new"
    assert kept() == ["a_b.tar"]


def test_those_used_last_are_kept_within_the_bytes_that_are_allowed(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE_BYTES", "3 kB")
    for name in "cdefg":
        (tmp_path / "web" / name).write_bytes(name.encode() * 1000)
    paths = []
    for name in "cdecf":
        paths.append(local_path(f"{web.url}/{name}"))
        time.sleep(0.01)
    assert kept() == ["c", "e", "f"]
    with Path(paths[0]).open("rb") as file:
        for name in "gde":
            local_path(f"{web.url}/{name}")
            time.sleep(0.01)
        assert kept() == ["d", "e", "g"]
        assert file.read() == b"c" * 1000, "an open file stays readable"
    assert local_path(f"{web.url}/a%20b.tar") and kept() == ["a_b.tar"], "a larger one is there while used"


def test_what_a_killed_process_left_goes_when_room_is_made(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE_BYTES", "26 kB")
    folder = cache_directory() / "remote"
    folder.mkdir(parents=True)
    (folder / ".old.partial").write_bytes(b"x" * 1000)
    monkeypatch.setattr(remote_files, "ABANDONED_SECONDS", 0.2)
    time.sleep(0.3)
    (folder / ".new.partial").write_bytes(b"x" * 1000)
    local_path(f"{web.url}/a%20b.tar")
    assert sorted(path.name for path in folder.glob(".*.partial")) == [".new.partial"]


def test_what_was_used_a_moment_ago_is_kept_for_who_opens_it(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE_BYTES", "1")
    monkeypatch.setattr(remote_files, "GRACE_SECONDS", 60.0)
    first = local_path(f"{web.url}/empty")
    assert local_path(f"{web.url}/a%20b.tar") and Path(first).exists()


def test_a_file_that_goes_before_it_is_opened_is_fetched_again(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = iter(["/nothing/there"] * 3)
    monkeypatch.setattr(remote_files, "local_path", lambda path: next(paths, None) or local_path(path))
    assert remote_files.opened(f"{web.url}/a%20b.tar").num_bytes == 25600
    numbers = [(number, file.num_bytes) for number, file in remote_files.fetched_ahead([f"{web.url}/empty"] * 5)]
    assert numbers == [(number, 0) for number in range(5)]


def test_addresses_that_cannot_be_read_are_named(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(FormatError, match=r"nosuch://a/b cannot be read: .*Allowed"):
        local_path("nosuch://a/b")
    with pytest.raises(FormatError, match="no commands are run"):
        remote_sources.source_of("pipe:curl http://a")
    with pytest.raises(FormatError, match=r"HTTP lists no files. Name them by braces"):
        remote_sources.list_addresses("http://a/*.tar")
    monkeypatch.setenv("STEPWELL_CACHE_BYTES", "many")
    with pytest.raises(StepwellError, match="STEPWELL_CACHE_BYTES='many'"):
        local_path(f"{web.url}/empty")


@pytest.mark.parametrize(
    "address", ["{web}/a b.tar?token=SECRET", "http://me:SECRET@localhost/a.tar", "http://a:SECRET/x"]
)
def test_an_address_that_is_none_is_told_at_once_and_without_secrets(web: WebServer, address: str) -> None:
    with pytest.raises(FormatError, match="cannot be read: no address of HTTP") as error:
        local_path(address.format(web=web.url))
    assert "SECRET" not in str(error.value).replace("http://a:SECRET", "") and error.value.__suppress_context__


def test_what_a_library_says_of_an_address_is_left_out_where_it_has_its_secrets() -> None:
    address = "s3://me:PASS@host/a.tar?token=SECRET"
    for told in ("no user me", "/a.tar?token=SECRET", "password PASS"):
        with (
            pytest.raises(DatasetNotFoundError, match="cannot be fetched: RuntimeError: RuntimeError") as error,
            remote_sources._explained(address),
        ):
            raise RuntimeError(told)
        assert not {"me", "PASS", "SECRET"} & set(str(error.value).split())
    with (
        pytest.raises(DatasetNotFoundError, match="RuntimeError: bucket is closed"),
        remote_sources._explained(address),
    ):
        raise RuntimeError("bucket is closed")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[remote\]"):
        local_path("s3://bucket/a.tar")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_named(web: WebServer, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(ReadOnlyError, match="Set STEPWELL_CACHE"):
        local_path(f"{web.url}/empty")
