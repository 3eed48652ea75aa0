"""Marks and selections: what is changed, by whom it may be, and what a selection becomes."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.errors import StepwellError
from stepwell.sizes import ranges_of
from stepwell.store import concatenate
from stepwell.store.marks import key_of_episode
from stepwell.viewer.selection import commands_for, save_selection

pytest.importorskip("starlette", reason="needs starlette")
pytest.importorskip("httpx2", reason="needs httpx2")
from starlette.testclient import TestClient

from stepwell.viewer.app import make_app
from stepwell.viewer.site import LOCAL_HOSTS

NUM = 7
OWN = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = stepwell.create(tmp_path / "s.well", {"x": stepwell.Array((), "<f4")})
    with store.writer() as writer:
        for number in range(NUM):
            writer.add_episode({"x": np.full(3, number, np.float32)}, terminated=number % 2 == 0, seed=number)
    return store


def client_of(store: Any) -> TestClient:
    return TestClient(make_app(store, "t", edit=True, hosts=LOCAL_HOSTS), base_url="http://127.0.0.1", headers=OWN)


def mark(client: TestClient, index: int, **change: Any) -> Any:
    about = client.get(f"/api/episodes/{index}?token=t").json()
    return client.post(f"/api/episodes/{index}/mark?token=t", json={"id": about["id"], **change})


def test_a_mark_is_kept_shown_and_filtered_by(store: Any) -> None:
    client = client_of(store)
    assert mark(client, 2, mark="good", note="firm").json()["mark"] == "good"
    assert mark(client, 5, mark="bad").status_code == 200
    with stepwell.open(store.path, mode="r") as other:
        assert other[2].metadata == {"seed": 2, "mark": "good", "note": "firm"}
    for query, want in [
        ("mark=good", [2]),
        ("mark=bad", [5]),
        ("mark=none", [0, 1, 3, 4, 6]),
        ("where=note=firm", [2]),
    ]:
        found = client.get(f"/api/episodes?token=t&{query}").json()["episodes"]
        assert [each["index"] for each in found] == want
    assert mark(client, 2, mark="", note="").json()["note"] == ""
    assert "mark" not in store[2].metadata


def test_a_new_mark_is_counted_in_histograms(store: Any) -> None:
    client = client_of(store)
    for count in (1, 2):
        mark(client, count, mark="good")
        assert client.get("/api/histograms?token=t&name=x&mark=good").json()["num_chosen"] == count


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 403),
        ("?token=x", {}, 403),
        ("?token=t", {"origin": "http://evil.example"}, 403),
        ("?token=t", {"origin": "null"}, 403),
        ("?token=t", {"sec-fetch-site": "cross-site"}, 403),
        ("?token=t", {"content-type": "text/plain"}, 403),
        ("?token=t", {"content-type": "application/x-www-form-urlencoded"}, 403),
        ("?token=t", {"host": "evil.example"}, 400),
    ],
)
def test_pages_of_others_change_nothing(store: Any, query: str, headers: dict[str, str], status: int) -> None:
    client = client_of(store)
    body = {"id": key_of_episode(store, 0), "mark": "bad"}
    text = json.dumps(body)
    sent = {"content-type": "application/json", **headers}
    assert client.post(f"/api/episodes/0/mark{query}", content=text, headers=sent).status_code == status
    assert client.post(f"/api/selection{query}", content='{"name": "x.well"}', headers=sent).status_code == status
    assert not (store.path / "marks.json").exists()
    assert [path.name for path in store.path.parent.iterdir()] == ["s.well"]
    # the browser asks before it sends JSON from another page, and is not told that it may
    asked = client.options(f"/api/episodes/0/mark{query}", headers={"access-control-request-method": "POST", **headers})
    assert "access-control-allow-origin" not in asked.headers


def test_without_edit_there_is_nothing_to_post_to(store: Any) -> None:
    client = TestClient(make_app(store, "t"), base_url="http://127.0.0.1", headers=OWN)
    assert client.post("/api/episodes/0/mark?token=t", json={}).status_code in (404, 405)
    assert client.post("/api/selection?token=t", json={"name": "x"}).status_code == 405
    assert client.get("/api/episodes?token=t").json()["edit"] is False
    with pytest.raises(StepwellError, match="token"):
        make_app(store, edit=True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b'{"mark": "good"}', 422),
        (b'{"id": "ID", "mark": "great"}', 422),
        (b'{"id": "ID", "note": 7}', 422),
        (b"[" * 60_000, 422),
        (b'{"note": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
def test_wrong_changes_are_refused(store: Any, body: bytes, status: int) -> None:
    client = client_of(store)
    body = body.replace(b"ID", key_of_episode(store, 0).encode())
    sent = {"content-type": "application/json"}
    assert client.post("/api/episodes/0/mark?token=t", content=body, headers=sent).status_code == status
    assert not (store.path / "marks.json").exists()


def test_an_episode_that_took_anothers_number_is_not_marked(store: Any) -> None:
    client = client_of(store)
    about = client.get("/api/episodes/2?token=t").json()
    store.delete_episodes(0)
    answer = client.post("/api/episodes/2/mark?token=t", json={"id": about["id"], "mark": "bad"})
    assert (answer.status_code, "another one" in answer.text) == (422, True)


def test_episodes_of_two_stores_that_share_an_origin_are_told_apart(store: Any, tmp_path: Path) -> None:
    other = stepwell.create(tmp_path / "o.well", {"x": stepwell.Array((), "<f4")})
    with other.writer() as writer:
        writer.add_episode({"x": np.ones(3, np.float32)}, seed=70)
    both = concatenate(tmp_path / "b.well", [store, other])
    assert both.episodes.origin[0] == both.episodes.origin[NUM]
    ids = {client_of(both).get(f"/api/episodes/{index}?token=t").json()["id"] for index in range(NUM + 1)}
    assert len(ids) == NUM + 1
    answer = client_of(both).post(
        f"/api/episodes/{NUM}/mark?token=t", json={"id": key_of_episode(both, 0), "mark": "bad"}
    )
    assert answer.status_code == 422


def test_marks_whose_episodes_are_gone_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.lerobot.edits import delete
    from stepwell.testing import tiny_lerobot

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tiny_lerobot(tmp_path / "set", lengths=[8] * 4, cameras={})
    with stepwell.open(f"lerobot://{root}", mode="r") as store:
        assert mark(client_of(store), 1, mark="bad").status_code == 200
        assert mark(client_of(store), 3, mark="good").status_code == 200
    delete(root, [1])
    with stepwell.open(f"lerobot://{root}", mode="r") as store:
        page = client_of(store).get("/api/episodes?token=t").json()
    assert ([each["mark"] for each in page["episodes"]], page["lost_marks"]) == (["", "", "good"], 1)


def test_a_selection_is_saved_as_links_that_stepwell_opens(store: Any) -> None:
    client = client_of(store)
    mark(client, 1, mark="good")
    mark(client, 4, mark="good")
    answer = client.post("/api/selection?token=t&mark=good", json={"name": "good.well"})
    assert answer.status_code == 200
    with stepwell.open(answer.json()["path"], mode="r") as chosen:
        assert [each["x"][0] for each in chosen] == [1, 4]
        assert [each.metadata["mark"] for each in chosen] == ["good", "good"]
        assert chosen.verify(deep=True).is_ok
    names = [file for file in store.path.rglob("x.npy") if file.stat().st_nlink > 1]
    assert names
    for name in ("good.well", "../x.well", "a/b", "", ".hidden"):
        assert client.post("/api/selection?token=t&mark=good", json={"name": name}).status_code == 422
    assert client.post("/api/selection?token=t&mark=bad", json={"name": "none.well"}).status_code == 422
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["good.well", "s.well"]


def test_commands_do_what_they_say(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = commands_for(store, np.array([1, 2, 5]))
    view = eval(found["Python"], {"stepwell": stepwell})
    assert view.episode_index.tolist() == [1, 2, 5]
    assert main(shlex.split(found["copy them"])[1:]) == 0
    copied = stepwell.open(tmp_path / "s-parts" / "chosen", mode="r")
    assert [each["x"][0] for each in copied] == [1, 2, 5]
    assert main([*shlex.split(found["delete them"])[1:], "--yes"]) == 0
    assert [each["x"][0] for each in stepwell.open(store.path, mode="r")] == [0, 3, 4, 6]


def test_ranges_are_the_numbers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        numbers = np.flatnonzero(rng.random(30) < rng.random())
        found = [list(map(int, part.split(":"))) for part in ranges_of(numbers)]
        assert [n for part in found for n in range(part[0], part[-1] + (len(part) == 1))] == numbers.tolist()


def test_a_selection_of_many_has_no_line_too_long(store: Any) -> None:
    assert "copy them" not in commands_for(store, np.arange(0, 200_000, 2))
    assert commands_for(store, np.arange(0)) == {}


def test_a_data_set_in_place_is_marked_and_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.testing import tiny_lerobot

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tiny_lerobot(tmp_path / "set", episodes=4, cameras={})
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    store = stepwell.open(f"lerobot://{root}", mode="r")
    client = client_of(store)
    assert mark(client, 1, mark="bad").status_code == 200
    assert client.get("/api/selection?token=t&mark=bad").json()["commands"]["delete them"].endswith(f"{root} 1")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(commands_for(store, np.array([1, 2]))["convert them"])[1:]) == 0
    assert [len(each["action"]) for each in stepwell.open("chosen.well", mode="r")] == [store[i].length for i in (1, 2)]
    assert client.post("/api/selection?token=t&mark=bad", json={"name": "x.well"}).status_code == 422
    with pytest.raises(StepwellError, match="in place"):
        save_selection(store, np.array([1]), "x.well")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_view_with_edit_prints_a_token(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="needs uvicorn")
    assert main(["view", str(store.path), "--edit", "--once"]) == 0
    assert "http://127.0.0.1:7080/?token=" in capsys.readouterr().out
