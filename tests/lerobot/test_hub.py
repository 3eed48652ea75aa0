"""Of the hub only what the chosen episodes need is fetched, once; what cannot be fetched is said at once."""

import errno
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import warm_children

from stepwell.errors import DatasetNotFoundError, DiskFullError, EpisodeNotFoundError, FormatError, StepwellError
from stepwell.lerobot import Metadata, locate
from stepwell.lerobot.hub import explained, is_refusal, locate_meta, needed_files, raised_by_hub, status_of
from stepwell.testing import HubServer, tiny_lerobot

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("huggingface_hub")

REPO = "me/tiny"
CAMERAS = {"top": ("video", (16, 16)), "side": ("png", (16, 16))}
LENGTHS = [2, 2, 2, 2]
V3_OF_EPISODE_0 = ["data/chunk-000/file-000.parquet", "videos/top/chunk-000/file-000.mp4"]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("lerobot")
    versions = ("v2.0", "v2.1", "v3.0")
    return {v: tiny_lerobot(folder / v, version=v, lengths=LENGTHS, cameras=CAMERAS, files=4) for v in versions}


@pytest.fixture
def hub(roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({REPO: {"main": roots["v2.0"], "v2.1": roots["v2.1"], "v3.0": roots["v3.0"]}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def get(tmp_path: Path, source: str = REPO, **options: Any) -> Metadata:
    # the token of who runs the tests is nobody's business
    return locate(source, **{"cache_dir": tmp_path / "cache", "token": False, "progress": False, **options})


def outside_meta(hub: HubServer) -> list[str]:
    return sorted(name for name in hub.files if not name.startswith("meta/"))


def test_directory_asks_nobody(roots: dict[str, Path], hub: HubServer) -> None:
    for source in (roots["v3.0"], str(roots["v3.0"]), f"lerobot://{roots['v3.0']}?episodes=1:3"):
        assert locate(source).root == roots["v3.0"]
    assert locate(f"lerobot://{roots['v3.0']}?episodes=1:3").selected.tolist() == [1, 2]
    assert hub.requests == []


def test_only_the_files_of_the_chosen_episodes_are_fetched(hub: HubServer, tmp_path: Path) -> None:
    metadata = get(tmp_path, episodes=[0])
    assert outside_meta(hub) == V3_OF_EPISODE_0
    assert (metadata.repo_id, metadata.revision, metadata.selected.tolist()) == (REPO, "v3.0", [0])
    assert all((metadata.root / name).exists() for name in V3_OF_EPISODE_0)


def test_each_episode_of_v2_is_fetched_by_itself(hub: HubServer, tmp_path: Path) -> None:
    get(tmp_path, f"lerobot://{REPO}@v2.1?episodes=1,3:")
    names = ["data/chunk-000/episode_00000{}.parquet", "videos/chunk-000/top/episode_00000{}.mp4"]
    assert outside_meta(hub) == [name.format(number) for name in names for number in (1, 3)]


def test_everything_is_fetched_when_no_episodes_are_chosen(
    hub: HubServer, tmp_path: Path, roots: dict[str, Path]
) -> None:
    root = get(tmp_path).root
    here, there = (
        {p.relative_to(r).as_posix(): p.read_bytes() for p in r.rglob("*") if p.is_file()}
        for r in (root, roots["v3.0"])
    )
    assert here == there


def test_videos_and_features_can_be_left_out(hub: HubServer, tmp_path: Path) -> None:
    get(tmp_path, episodes=[0], download_videos=False)
    get(tmp_path, episodes=[1], ignore=["top"])
    assert outside_meta(hub) == ["data/chunk-000/file-000.parquet", "data/chunk-000/file-001.parquet"]


def test_second_time_no_file_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    get(tmp_path, episodes=[0])
    hub.requests.clear()
    get(tmp_path, episodes=[0])
    assert [request for request in hub.requests if request.file] == []
    get(tmp_path, episodes=[0, 1])
    assert outside_meta(hub) == [name.replace("file-000", "file-001") for name in V3_OF_EPISODE_0]


@pytest.mark.parametrize(
    ("tags", "found"), [(["v2.0", "v2.1", "v3.0"], "v3.0"), (["v2.1", "v1.6"], "v2.1"), (["v9"], "main"), ([], "main")]
)
def test_newest_version_that_is_read_is_taken(
    roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: list[str], found: str
) -> None:
    branches = {"main": roots["v2.0"], **{tag: roots.get(tag, roots["v2.0"]) for tag in tags}}
    with HubServer({REPO: branches}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        metadata = get(tmp_path, episodes=[0])
    assert metadata.revision == found
    assert metadata.info.version == ("v2.0" if found == "main" else found)


def test_revision_may_be_a_branch_a_tag_or_a_commit(hub: HubServer, tmp_path: Path) -> None:
    commit = hub.commit(REPO, "v2.1")
    assert get(tmp_path, revision="main", episodes=[0]).info.version == "v2.0"
    assert get(tmp_path, f"lerobot://{REPO}@v2.1", episodes=[0]).root.name == commit
    assert get(tmp_path, revision=commit, episodes=[0]).info.version == "v2.1"
    assert get(tmp_path, f"lerobot://{REPO}@main", revision="v2.1", episodes=[0]).revision == "v2.1"


def test_token_is_sent_with_every_request_and_needed(hub: HubServer, tmp_path: Path) -> None:
    hub.tokens = ("secret",)
    assert get(tmp_path, token="secret", episodes=[0]).selected.tolist() == [0]
    assert {request.token for request in hub.requests} == {"secret"}
    for token in (False, "wrong"):
        with pytest.raises(DatasetNotFoundError, match=r"me/tiny is not at .* or is private.* HF_TOKEN"):
            get(tmp_path, token=token, cache_dir=tmp_path / "other")


def test_gated_dataset_says_where_to_ask(hub: HubServer, tmp_path: Path) -> None:
    hub.gated = (REPO,)
    with pytest.raises(DatasetNotFoundError, match=f"is gated. Ask for access on its page at {hub.url}"):
        get(tmp_path)


def test_unknown_repository_and_revision_are_said(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="me/none is not at"):
        get(tmp_path, "me/none")
    with pytest.raises(DatasetNotFoundError, match=r"me/tiny@v7 does not exist at .* no such tag, branch or commit"):
        get(tmp_path, f"lerobot://{REPO}@v7")
    with pytest.raises(DatasetNotFoundError, match="cannot be a repository"):
        get(tmp_path, "me/a..b")
    assert outside_meta(hub) == []


def test_unknown_episode_is_refused_before_anything_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(EpisodeNotFoundError, match="no episode 7"):
        get(tmp_path, episodes=[7])
    assert outside_meta(hub) == []


def test_file_that_the_repository_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras={})
    (root / "data" / "chunk-000" / "file-000.parquet").unlink()
    with HubServer({REPO: {"main": root}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(FormatError, match=r"data/chunk-000/file-000.parquet of me/tiny is not there at"):
            get(tmp_path)


def test_repository_that_is_no_dataset_of_lerobot_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("nothing here")
    with HubServer({REPO: {"main": tmp_path / "other"}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(DatasetNotFoundError, match="no LeRobot dataset"):
            get(tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_until_the_end:
        yield open_until_the_end


def offline(monkeypatch: pytest.MonkeyPatch, how: str, stack: ExitStack) -> dict[str, Any]:
    """Make the hub unreachable, and return what `locate` is told."""
    if how == "argument":
        return {"local_files_only": True}
    if how == "environment":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    elif how == "down":
        down = stack.enter_context(HubServer({}, failing=503))
        monkeypatch.setenv("HF_ENDPOINT", down.url)
    else:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    return {}


@pytest.mark.parametrize("how", ["argument", "environment", "closed port", "down"])
def test_what_is_in_the_cache_is_found_without_the_hub(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, how: str
) -> None:
    root = get(tmp_path, episodes=[0]).root
    get(tmp_path, episodes=[2], revision="main")
    hub.requests.clear()
    told = offline(monkeypatch, how, stack)
    assert get(tmp_path, episodes=[0], **told).root == root
    assert get(tmp_path, episodes=[2], revision="main", **told).info.version == "v2.0"
    assert hub.requests == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("argument", "local_files_only=True"),
        ("environment", "HF_HUB_OFFLINE"),
        ("closed port", "cannot be reached"),
        ("down", "cannot be reached .*503"),
    ],
)
def test_what_is_not_in_the_cache_is_said_without_waiting(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, how: str, why: str
) -> None:
    get(tmp_path, episodes=[0])
    hub.requests.clear()
    told = offline(monkeypatch, how, stack)
    with pytest.raises(DatasetNotFoundError, match=f"2 of 2 files of me/tiny are not in the cache, .*{why}"):
        get(tmp_path, episodes=[3], **told)
    with pytest.raises(DatasetNotFoundError, match=f"me/none is not in the cache .*{why}.*Fetch it once"):
        get(tmp_path, "me/none", **told)
    (tmp_path / "me" / "none").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetNotFoundError, match=r"directory of this name is lerobot://\./me/none"):
        get(tmp_path, "lerobot://me/none", **told)
    assert hub.requests == []


def test_environment_of_a_process_is_obeyed(hub: HubServer, tmp_path: Path) -> None:
    hub.tokens = ("secret",)
    code = "import sys; from stepwell.lerobot import locate; print(locate('me/tiny', episodes=[0]).root)"

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "secret", **more}
        command = [sys.executable, "-c", code]
        return warm_children.run(command, env=environment, capture_output=True, text=True, check=False)

    first = run(HF_ENDPOINT=hub.url)
    assert Path(first.stdout.strip()).is_relative_to(tmp_path / "home"), first.stderr
    assert first.stderr == ""
    assert outside_meta(hub) == V3_OF_EPISODE_0
    hub.requests.clear()
    assert run(HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url).stdout == first.stdout
    assert hub.requests == []


def test_files_can_be_fetched_into_a_directory_by_another_process(hub: HubServer, tmp_path: Path) -> None:
    get(tmp_path, episodes=[0])
    metadata, snapshot = locate_meta(REPO, cache_dir=tmp_path / "cache", token=False)
    assert snapshot is not None
    assert (snapshot.commit, snapshot.revision) == (hub.commit(REPO, "v3.0"), "v3.0")
    fetch = pickle.loads(pickle.dumps(snapshot.fetch_into))
    hub.requests.clear()
    names = needed_files(metadata, videos=False)[:2]
    for name in names:
        fetch(name, tmp_path / "work")
    cached, fetched = (tmp_path / "work" / name for name in names)
    assert (cached.is_symlink(), fetched.is_symlink()) == (True, False)
    assert hub.files == names[1:]
    assert fetched.read_bytes() == (hub.folder(REPO, "v3.0") or ("", Path()))[1].joinpath(names[1]).read_bytes()


def test_file_that_may_not_be_fetched_into_a_directory_is_named(hub: HubServer, tmp_path: Path) -> None:
    get(tmp_path, episodes=[0])
    metadata, snapshot = locate_meta(REPO, cache_dir=tmp_path / "cache", local_files_only=True)
    assert snapshot is not None
    with pytest.raises(DatasetNotFoundError, match=r"file-003.* not in the cache, and local_files_only=True"):
        snapshot.fetch_into(needed_files(metadata)[3], tmp_path / "work")


def test_bar_counts_files(hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    get(tmp_path, episodes=[0])
    assert capfd.readouterr().err == ""
    get(tmp_path, episodes=[1], progress=True)
    assert "fetching me/tiny: 100%" in capfd.readouterr().err


def test_damaged_metadata_of_the_hub_is_a_format_error(
    tmp_path: Path, roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad" / "meta").mkdir(parents=True)
    (tmp_path / "bad" / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v1.0"}))
    with HubServer({REPO: {"main": tmp_path / "bad"}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(FormatError, match=r"codebase_version is 'v1\.0'"):
            get(tmp_path)


utils = pytest.importorskip("huggingface_hub.utils")


class Answer:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class Answered(OSError):
    def __init__(self, status: int) -> None:
        super().__init__("the first line\nand others")
        self.response = Answer(status)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "No space left"), DiskFullError, "no space left to fetch it"),
        (ConnectionError(""), DatasetNotFoundError, "cannot be fetched from here: ConnectionError"),
        (Answered(500), DatasetNotFoundError, "cannot be fetched from here: the first line"),
        (Answered(403), DatasetNotFoundError, r"may not be read \(status 403 from here\)"),
        (utils.LocalTokenNotFoundError("none"), DatasetNotFoundError, "needs a token"),
        (utils.LocalEntryNotFoundError("not here"), DatasetNotFoundError, "cannot be fetched from here: not here"),
    ],
)
def test_error_says_what_to_do(error: Exception, kind: type[StepwellError], says: str) -> None:
    assert isinstance(error, raised_by_hub())
    found = explained(error, "it", "here")
    assert type(found) is kind
    with pytest.raises(kind, match=says):
        raise found


@pytest.mark.parametrize(("status", "refused"), [(401, True), (403, True), (404, True), (429, False), (500, False)])
def test_only_an_answer_that_stays_is_a_refusal(status: int, refused: bool) -> None:
    assert status_of(Answered(status)) == status
    assert is_refusal(Answered(status)) is refused
    assert not is_refusal(ConnectionError())
