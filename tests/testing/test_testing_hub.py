"""A hub on this machine answers as the real one does, as far as datasets are read from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stepwell.testing import HubServer


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    for branch in ("main", "v2.1"):
        (tmp_path / branch / "meta").mkdir(parents=True)
        (tmp_path / branch / "meta" / "info.json").write_text(f'"{branch}"')
    with HubServer({"me/tiny": {"main": tmp_path / "main", "v2.1": tmp_path / "v2.1"}}) as server:
        yield server


def status(request: str | Request) -> tuple[int, str | None]:
    try:
        return urlopen(request, timeout=10).status, None
    except HTTPError as error:
        with error:
            return error.code, error.headers["X-Error-Code"]


def test_file_comes_with_its_commit_and_hash(hub: HubServer) -> None:
    with urlopen(f"{hub.url}/datasets/me/tiny/resolve/v2.1/meta/info.json") as answer:
        assert answer.read() == b'"v2.1"'
        assert answer.headers["X-Repo-Commit"] == hub.commit("me/tiny", "v2.1") != hub.commit("me/tiny", "main")
        assert answer.headers["ETag"]
    assert [(request.method, request.file) for request in hub.requests] == [("GET", "meta/info.json")]
    assert hub.files == ["meta/info.json"]


def test_part_of_a_file_can_be_asked_for(hub: HubServer) -> None:
    url = f"{hub.url}/datasets/me/tiny/resolve/main/meta/info.json"
    with urlopen(Request(url, headers={"Range": "bytes=1-2"})) as answer:
        assert (answer.status, answer.read(), answer.headers["Content-Range"]) == (206, b"ma", "bytes 1-2/6")


def test_tree_and_revisions_are_listed(hub: HubServer) -> None:
    with urlopen(f"{hub.url}/api/datasets/me/tiny/tree/main?recursive=true") as answer:
        assert [entry["path"] for entry in json.load(answer)] == ["meta", "meta/info.json"]
    with urlopen(f"{hub.url}/api/datasets/me/tiny/refs") as answer:
        assert [tag["name"] for tag in json.load(answer)["tags"]] == ["v2.1"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/datasets/me/none", (401, "RepoNotFound")),
        ("/api/datasets/me/tiny/revision/none", (404, "RevisionNotFound")),
        ("/datasets/me/tiny/resolve/main/none", (404, "EntryNotFound")),
        ("/none", (404, None)),
    ],
)
def test_what_is_not_there_is_refused_by_its_code(hub: HubServer, path: str, code: tuple[int, str | None]) -> None:
    assert status(hub.url + path) == code


def test_tokens_and_gates_are_checked(hub: HubServer) -> None:
    url = f"{hub.url}/datasets/me/tiny/resolve/main/meta/info.json"
    hub.tokens = ("secret",)
    assert status(url) == (401, "RepoNotFound")
    assert status(Request(url, headers={"Authorization": "Bearer secret"})) == (200, None)
    assert hub.requests[-1].token == "secret"
    hub.gated, hub.tokens = ("me/tiny",), None
    assert status(url) == (403, "GatedRepo")
    hub.gated, hub.failing = (), 503
    assert status(url) == (503, None)
