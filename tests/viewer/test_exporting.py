"""Episodes as files: what is in them is what the store holds, and a browser shows it without a server."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.errors import FeatureNotFoundError, MissingDependencyError, StepwellError
from stepwell.viewer.exporting import export_episode

image_files = pytest.importorskip("PIL.Image", reason="needs pillow")

LENGTH = 40
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Return a store of two episodes whose frames are grey as their step, and text that would end a script."""
    schema = {
        "front": stepwell.Image((48, 64, 3), codec="raw"),
        "wrist": stepwell.Image((32, 32, 1), codec="raw"),
        "state": stepwell.Array((2,), "<f4", names=["x", "y"]),
        "reward": stepwell.Array((), "<f4"),
    }
    store = stepwell.create(tmp_path / "s.well", schema, fps=20)
    steps = np.arange(LENGTH, dtype=np.uint8)
    with store.writer() as writer:
        for sign in (1, -1):
            values = {
                "front": np.broadcast_to(5 * steps[:, None, None, None], (LENGTH, 48, 64, 3)),
                "wrist": np.broadcast_to(255 - 5 * steps[:, None, None, None], (LENGTH, 32, 32, 1)),
                "state": sign * np.stack([np.sin(steps / 5), np.cos(steps / 5)], 1).astype(np.float32),
                "reward": np.where(steps == 7, np.nan, steps).astype(np.float32),
            }
            writer.add_episode(values, terminated=True, note="</script><script>alert(1)</script>")
    return store


def embedded_in(path: Path) -> Any:
    found = re.search(r'<script type="application/json" id="embedded">(.*?)</script>', path.read_text("utf-8"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_html_names_nothing_elsewhere_and_runs_no_text_of_the_store(store: Any, tmp_path: Path) -> None:
    text = export_episode(store, 1, tmp_path / "1.html").read_text("utf-8")
    assert text.count("<script") == 3
    assert "alert(1)</script>" not in text
    assert not re.findall(r'(?:src|href)="(?!data:)|https?://|@import', text)


def test_html_holds_every_frame_and_number(store: Any, tmp_path: Path) -> None:
    import base64

    answers = embedded_in(export_episode(store, 0, tmp_path / "0.html"))["answers"]
    for step in range(LENGTH):
        media, _, body = answers[f"episodes/0/frame?name=front&step={step}"].partition(";base64,")
        assert media == "data:image/jpeg"
        assert abs(np.asarray(image_files.open(io.BytesIO(base64.b64decode(body)))).astype(int) - 5 * step).max() <= 2
    body = answers["episodes/0/numbers?name=state"].partition(";base64,")[2]
    assert np.array_equal(np.frombuffer(base64.b64decode(body), "<f4").reshape(-1, 2), store[0]["state"])


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_html_is_scrubbed_in_a_browser_without_a_server(store: Any, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = export_episode(store, 1, tmp_path / "1.html")
    pixel = """async () => {
      const image = document.querySelector('#cameras img');
      await image.decode();
      const pen = document.createElement('canvas').getContext('2d');
      pen.drawImage(image, 0, 0);
      return pen.getImageData(3, 3, 1, 1).data[0];
    }"""
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on(
            "request", lambda request: faults.append(request.url) if request.url[:5] not in ("data:", "file:") else 0
        )
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#plots canvas:nth-of-type(2)")
        assert "alert(1)" in page.locator("#facts").inner_text()
        assert not page.locator("#filter").is_visible()
        for step in range(1, LENGTH):
            page.keyboard.press("ArrowRight")
            assert abs(page.evaluate(pixel) - 5 * step) <= 2
        page.keyboard.press("Home")
        assert page.evaluate(pixel) == 0
        page.keyboard.press("Shift+ArrowRight")
        playwright.expect(page.locator("#at")).to_have_text(f"step 10 of {LENGTH}", timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert faults == []
        assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
        assert sum(url.startswith("file:") for url in asked) == 1
        browser.close()


def test_a_damaged_frame_is_told_in_html_and_red_in_a_film(damaged_store: Any, tmp_path: Path) -> None:
    answers = embedded_in(export_episode(damaged_store, 0, tmp_path / "0.html"))["answers"]
    assert "step 1" in answers["episodes/0/frame?name=image&step=1"]["error"]
    assert answers["episodes/0/frame?name=image&step=2"].startswith("data:image/png")
    av = pytest.importorskip("av", reason="needs PyAV")
    with av.open(str(export_episode(damaged_store, 0, tmp_path / "0.mp4"))) as film:
        pixels = [frame.to_ndarray(format="rgb24")[100, 100].astype(int) for frame in film.decode(video=0)]
    assert abs(pixels[1] - (170, 0, 0)).max() < 12


def test_a_film_has_a_frame_a_step_and_a_cursor_that_moves(store: Any, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="needs PyAV")
    path = export_episode(store, 1, tmp_path / "1.mp4")
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate, stream.codec_context.pix_fmt) == ("h264", 20, "yuv420p")
        frames = [frame.to_ndarray(format="rgb24").astype(int) for frame in film.decode(video=0)]
    assert len(frames) == LENGTH
    for step, frame in enumerate(frames):
        # the cameras side by side, as high as each other, by their aspect
        assert abs(frame[120, 100] - 5 * step).max() <= 4
        assert abs(frame[120, 400] - (255 - 5 * step)).max() <= 4
    width = frames[0].shape[1]
    # of the first panel: 480 wide, 6 of them its border
    darkest = np.stack([frame[30:90, width - 474 : width - 5].mean(axis=(0, 2)) for frame in frames]).argmin(axis=1)
    assert abs(darkest - np.arange(LENGTH) / (LENGTH - 1) * 468).max() <= 1


def test_a_film_of_one_feature_has_no_other(store: Any, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="needs PyAV")
    sizes = []
    for number, features in enumerate([["front"], ["state"], ["front", "state"]]):
        with av.open(str(export_episode(store, 0, tmp_path / f"{number}.mp4", features=features, fps=5))) as film:
            sizes.append((film.streams.video[0].width, film.streams.video[0].average_rate))
    assert sizes == [(320, 5), (480, 5), (800, 5)]


def test_a_recording_of_rerun_holds_what_the_store_does(store: Any, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="needs rerun-sdk, stepwell[rerun]")
    chunk = pytest.importorskip("rerun.chunk", reason="needs a rerun-sdk that reads recordings")
    path = export_episode(store, 1, tmp_path / "1.rrd")
    found: dict[str, list[Any]] = {"/state": [], "/front": []}
    for each in chunk.RrdReader(path).stream():
        if each.entity_path in found and not each.is_static:
            batch = each.to_record_batch()
            name = "Scalars:scalars" if each.entity_path == "/state" else "EncodedImage:blob"
            times = [seconds.total_seconds() for seconds in batch.column("time").to_pylist()]
            rows = zip(batch.column("step").to_pylist(), times, batch.column(name).to_pylist(), strict=True)
            found[each.entity_path] += rows
    for rows in found.values():
        rows.sort(key=lambda row: row[0])
        assert [row[0] for row in rows] == list(range(LENGTH))
        assert np.allclose([row[1] for row in rows], np.arange(LENGTH) / 20)
    assert np.array_equal(np.array([row[2] for row in found["/state"]], np.float32), store[1]["state"])
    for step, _, (body,) in found["/front"]:
        assert abs(np.asarray(image_files.open(io.BytesIO(bytes(body)))).astype(int) - 5 * step).max() <= 2


def test_without_reruns_package_the_error_names_the_extra(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rerun", None)
    with pytest.raises(MissingDependencyError, match=r"\[rerun\]"):
        export_episode(store, 0, tmp_path / "0.rrd")
    assert not (tmp_path / "0.rrd").exists()


def test_what_cannot_be_written_is_told(store: Any, tmp_path: Path) -> None:
    with pytest.raises(FeatureNotFoundError, match="front, wrist, state, reward"):
        export_episode(store, 0, tmp_path / "0.html", features=["nix"])
    with pytest.raises(StepwellError, match="html, mp4, rrd"):
        export_episode(store, 0, tmp_path / "0.gif")
    with pytest.raises(StepwellError, match="fps"):
        export_episode(store, 0, tmp_path / "0.html", fps=0)
    with pytest.raises(StepwellError, match=r"0\.001 or more"):
        export_episode(store, 0, tmp_path / "0.mp4", fps=0.0001)
    assert {path.name for path in tmp_path.iterdir()} == {"s.well"}


def test_the_case_of_an_ending_does_not_matter(store: Any, tmp_path: Path) -> None:
    assert export_episode(store, 0, tmp_path / "0.HTML").read_text("utf-8").startswith("<!doctype html>")
    # and not a directory of LeRobot of this name
    assert main(["export", str(store.path), str(tmp_path / "1.Html"), "--episode", "0"]) == 0
    assert (tmp_path / "1.Html").is_file()


def test_the_command_writes_one_episode(store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "1.html"
    assert main(["export", str(store.path), str(target)]) == 1
    assert "--episode N" in capsys.readouterr().err
    assert main(["export", str(store.path), str(target), "--episode", "-1", "--feature", "state", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["episode"], told["num_steps"], told["num_bytes"]) == (1, LENGTH, target.stat().st_size)
    assert main(["export", str(store.path), str(target), "--episode", "0", "--append"]) == 1
    assert "--append is of data sets" in capsys.readouterr().err
    assert main(["export", str(store.path), str(tmp_path / "set"), "--episode", "0"]) == 1
    assert "--episodes FIRST:STOP" in capsys.readouterr().err
