"""The page's endpoints: what they tell is what the store holds, and strangers are told nothing."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.cli import viewing
from stepwell.cli.main import main
from stepwell.errors import StepwellError
from stepwell.viewer.listing import list_episodes

pytest.importorskip("starlette", reason="needs starlette")
pytest.importorskip("httpx2", reason="needs httpx2")
from starlette.testclient import TestClient

from stepwell.viewer.app import make_app
from stepwell.viewer.episodes import MAX_STEPS
from stepwell.viewer.frames import Frames

LENGTHS = [4, 9, 6, 9]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    schema = {"image": stepwell.Image((8, 10, 3), codec="raw"), "action": stepwell.Array((2,), "<f4")}
    store = stepwell.create(tmp_path / "s.well", schema)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for index, length in enumerate(LENGTHS):
            values = {
                "image": rng.integers(0, 256, (length, 8, 10, 3), np.uint8),
                "action": rng.random((length, 2), np.float32),
            }
            writer.add_episode(values, truncated=index % 2 == 0, terminated=index % 2 == 1, note="<script>")
    return store


def client_of(store: Any, token: str | None = None, host: str = "127.0.0.1") -> TestClient:
    return TestClient(make_app(store, token), base_url=f"http://{host}")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("end", ["", "terminated", "truncated"])
def test_a_page_of_the_list_is_what_sorting_all_gives(store: Any, end: str, descending: bool) -> None:
    want = [i for i, n in enumerate(LENGTHS) if n >= 5 and (not end or getattr(store[i], end))]
    want.sort(key=lambda i: -LENGTHS[i] if descending else LENGTHS[i])
    got = list_episodes(store.episodes, first=1, count=2, sort="length", descending=descending, end=end, min_length=5)
    assert got["total"] == len(want)
    assert [each["index"] for each in got["episodes"]] == want[1:3]


def test_a_wrong_sort_is_named(store: Any) -> None:
    with pytest.raises(StepwellError, match="sort='path'"):
        list_episodes(store.episodes, sort="path")


def test_every_frame_is_the_row_of_its_step(store: Any) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    client = client_of(store)
    for index, length in enumerate(LENGTHS):
        for step in range(length):
            answer = client.get(f"/api/episodes/{index}/frame", params={"name": "image", "step": step})
            assert np.array_equal(np.asarray(image.open(io.BytesIO(answer.content))), store[index]["image"][step])


def test_numbers_are_the_rows(store: Any) -> None:
    got = client_of(store).get("/api/episodes/1/numbers", params={"name": "action"}).content
    assert np.array_equal(np.frombuffer(got, "<f4").reshape(-1, 2), store[1]["action"][: LENGTHS[1]])


def test_a_long_episode_keeps_its_peaks(tmp_path: Path) -> None:
    values = np.zeros(3 * MAX_STEPS + 1, np.float32)
    values[[7, 31_111]] = 5, -6
    store = stepwell.create(tmp_path / "long.well", {"x": stepwell.Array((), "<f4")})
    with store.writer() as writer:
        writer.add_episode({"x": values}, terminated=True)
    got = np.frombuffer(client_of(store).get("/api/episodes/0/numbers", params={"name": "x"}).content, "<f4")
    assert len(got) <= MAX_STEPS + 2
    assert (got.max(), got.min()) == (5, -6)


@pytest.mark.parametrize(
    "path",
    ["episodes/99", "episodes/0/frame?name=image&step=4", "episodes/0/frame?name=action", "episodes?first=x",
     "episodes/0/numbers?name=../../etc/passwd", "episodes?count=100000"],
)  # fmt: skip
def test_wrong_requests_are_told_why(store: Any, path: str) -> None:
    answer = client_of(store).get(f"/api/{path}")
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/plain")


def test_another_host_name_and_a_missing_token_are_refused(store: Any) -> None:
    assert client_of(store, host="evil.example").get("/api/episodes").status_code == 400
    far = client_of(store, "secret", "robot.example")
    assert far.get("/api/episodes").status_code == 403
    assert far.get("/api/episodes?token=secreT").status_code == 403
    assert far.get("/api/episodes?token=secret").json()["total"] == len(LENGTHS)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        # of another name, and of another port of this machine
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8888"}, 403),
        ({"origin": "null"}, 403),
        # a name that leads here, as DNS rebinding has it
        ({"host": "evil.example:7080"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"host": ""}, 400),
    ],
)
def test_pages_of_others_read_nothing(store: Any, headers: dict[str, str], status: int) -> None:
    client = client_of(store)
    for path in ("/api/episodes", "/api/episodes/0/frame?name=image&step=0", "/api/selection"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers
        if status != 400:
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_loads_only_its_own_files(store: Any) -> None:
    client = client_of(store)
    for path in ("/", "/common.js", "/viewer.js", "/viewer.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "http" not in answer.text
    assert "innerHTML" not in client.get("/viewer.js").text


def test_a_new_episode_is_listed(store: Any) -> None:
    client = client_of(stepwell.open(store.path, mode="r"))
    assert client.get("/api/episodes").json()["total"] == len(LENGTHS)
    with store.writer() as writer:
        writer.add_episode({name: store[0][name][:4] for name in ("image", "action")}, terminated=True)
    assert client.get("/api/episodes").json()["total"] == len(LENGTHS) + 1


def test_view_prints_where(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="needs uvicorn")
    assert main(["view", str(store.path), "--once"]) == 0
    assert capsys.readouterr().out == "http://127.0.0.1:7080/ shows 4 episodes\n"
    assert main(["view", str(store.path), "--once", "--host", "::1"]) == 0
    assert capsys.readouterr().out.startswith("http://[::1]:7080/?token=")
    with pytest.raises(SystemExit):
        main(["view", str(store.path), "--port", "70800"])
    assert "70800 is not the number of a port: 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_an_image_file_is_sent_as_it_lies(tmp_path: Path, codec: str) -> None:
    pytest.importorskip("simplejpeg", reason="needs simplejpeg")
    store = stepwell.create(tmp_path / "s.well", {"image": stepwell.Image((16, 16, 3), codec=codec)})
    with store.writer() as writer:
        writer.add_episode({"image": np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)})
    client = client_of(store)
    for step in range(3):
        answer = client.get(f"/api/episodes/0/frame?name=image&step={step}")
        assert answer.headers["content-type"] == f"image/{codec}"
        assert answer.content == store.segments[0].stored_rows("image").blob(step).tobytes()
        again = client.get(answer.request.url, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("camera", ["png", "video"])
def test_frames_of_a_lerobot_directory_are_its_rows(tmp_path: Path, camera: Any) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    from stepwell.testing import tiny_lerobot

    name = "observation.images.top"
    root = tiny_lerobot(tmp_path / "set", lengths=[20, 5], cameras={name: (camera, (32, 48))})
    store = stepwell.open(f"lerobot://{root}", mode="r")
    client = client_of(store)
    # forwards and backwards: from the spans that are kept, too
    for index, step in [(0, 0), (0, 19), (0, 15), (0, 16), (1, 4), (1, 0), (0, 0)]:
        answer = client.get(f"/api/episodes/{index}/frame", params={"name": name, "step": step})
        assert answer.status_code == 200
        assert np.array_equal(np.asarray(image.open(io.BytesIO(answer.content))), store[index][name][step])


def test_a_damaged_frame_is_told_and_its_neighbours_are_shown(damaged_store: Any) -> None:
    client = client_of(damaged_store)
    answers = [client.get(f"/api/episodes/0/frame?name=image&step={step}") for step in range(3)]
    assert [answer.status_code for answer in answers] == [200, 422, 200]
    assert "step 1" in answers[1].text


def test_metadata_chooses_episodes(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "s.well", {"x": stepwell.Array((), "<f4")})
    facts = [{"task": "push it", "seed": 1}, {"task": "push it", "seed": 2}, {"tasks": ["a", "b"]}, {}]
    with store.writer() as writer:
        for each in facts:
            writer.add_episode({"x": np.zeros(3, np.float32)}, terminated=True, **each)
    for where, want in [("task=push it", [0, 1]), ("seed=2, task=push it", [1]), ("tasks=b", [2]), ("task=x", [])]:
        got = client_of(store).get("/api/episodes", params={"where": where}).json()
        assert ([each["index"] for each in got["episodes"]], got["total"]) == (want, len(want))
    assert "at its end" in client_of(store).get("/api/episodes?where=task%20=").text


def test_histograms_are_numpys_and_follow_the_filter(store: Any) -> None:
    client = client_of(stepwell.open(store.path, mode="r"))
    got = client.get("/api/histograms?name=action&end=terminated").json()
    both = [np.concatenate([store[i]["action"] for i in chosen]) for chosen in (range(4), (1, 3))]
    for axis, found in enumerate(got["axes"]):
        edges = np.linspace(both[0][:, axis].min(), both[0][:, axis].max(), 41)
        for key, values in zip(("all", "chosen"), both, strict=True):
            assert np.allclose(found[key], np.histogram(values[:, axis], edges)[0] / len(values))
            for name, told in found["statistics"][key].items():
                assert np.isclose(told, getattr(values[:, axis].astype(np.float64), name)())
    with store.writer() as writer:
        writer.add_episode({name: store[0][name][:4] for name in ("image", "action")}, terminated=True)
    client.get("/api/episodes")
    assert client.get("/api/histograms?name=action").json()["num_all"] == len(LENGTHS) + 1


def test_a_thumbnail_is_small(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    store = stepwell.create(tmp_path / "s.well", {"image": stepwell.Image((480, 640, 3), codec="raw")})
    with store.writer() as writer:
        writer.add_episode({"image": np.full((1, 480, 640, 3), 7, np.uint8)}, terminated=True)
    answer = client_of(store).get("/api/episodes/0/frame?name=image&thumbnail=1")
    assert image.open(io.BytesIO(answer.content)).size == (64, 48)


def test_a_sample_is_what_a_loader_gives(store: Any) -> None:
    got = client_of(store).get("/api/episodes/1/sample", params={"fields": "action=-2:3:2", "step": 8}).json()
    want = store[1]["action"][[6, 8, 8]]
    assert got[0]["offsets"] == [-2, 0, 2]
    assert got[0]["is_pad"] == [False, False, True]
    assert np.array_equal(np.array(got[0]["values"], np.float32), want)


@pytest.mark.parametrize(
    "fields", ["action=0:1000000000", "action=0:99999999999999999999", "image=0", "action=x", "", "action=::"]
)
def test_a_wrong_sample_is_told(store: Any, fields: str) -> None:
    answer = client_of(store).get("/api/episodes/1/sample", params={"fields": fields})
    assert (answer.status_code, bool(answer.text)) == (422, True)


def test_nan_of_a_sample_is_json(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "s.well", {"x": stepwell.Array((), "<f4")})
    with store.writer() as writer:
        writer.add_episode({"x": np.array([np.nan, 1, np.inf], np.float32)}, terminated=True)
    answer = client_of(store).get("/api/episodes/0/sample", params={"fields": "x=0:3"})
    assert "NaN" not in answer.text
    assert answer.json()[0]["values"] == [["nan"], [1.0], ["inf"]]
    axis = client_of(store).get("/api/histograms?name=x").json()["axes"][0]
    assert (axis["low"], axis["high"], max(axis["all"])) == (1, 1, 1)


def test_frames_of_video_are_its_rows_and_a_span_is_decoded_once(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    store = stepwell.create(tmp_path / "v.well", {"image": stepwell.Image((32, 32, 3), codec="video")}, fps=10)
    with store.writer() as writer:
        writer.add_episode(
            {"image": np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), "u1")}
        )
    frames = Frames(store)
    want = store[0]["image"]
    for step in [*range(16), *reversed(range(16)), 39]:
        body, media = frames.encoded(0, "image", step)
        assert media == "image/png"
        assert np.array_equal(np.asarray(image.open(io.BytesIO(body))), want[step])
    assert frames._decoded.cache_info().misses == 2


def test_steps_of_long_episodes_are_thinned(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.viewer.histograms.MAX_VALUES", sum(LENGTHS))
    got = client_of(store).get("/api/histograms?name=action").json()
    values = np.concatenate([store[i]["action"][::2, 0] for i in range(len(LENGTHS))])
    assert got["axes"][0]["low"] == values.min()


def test_the_address_that_is_printed_is_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with viewing._listening("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        with pytest.raises(stepwell.StepwellError, match=f"another process listens at 127.0.0.1, port {taken}"):
            viewing._listening("127.0.0.1", taken)
        monkeypatch.setattr(viewing, "DEFAULT_PORT", taken)
        with viewing._listening("127.0.0.1", None) as second:
            assert taken < second.getsockname()[1] < taken + viewing.NUM_PORTS
    with pytest.raises(stepwell.StepwellError, match=r"cannot listen at 203.0.113.1, port 0"):
        viewing._listening("203.0.113.1", 0)


def test_a_page_of_a_store_loads_neither_numba_nor_replay() -> None:
    code = (
        "import sys, stepwell.cli.viewing; print({'numba', 'stepwell.replay', 'stepwell.service'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
