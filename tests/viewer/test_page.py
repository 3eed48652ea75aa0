"""The page in a real browser: list, filter, keys, and the right frame at each step."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.store.bulk_writing import EpisodeBlock, write_store
from stepwell.viewer.app import make_app

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn")
pytest.importorskip("starlette", reason="needs starlette")
pytest.importorskip("PIL", reason="needs pillow")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
# a machine that is busy takes its time
playwright.expect.set_options(timeout=60_000)


CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PIXEL = """async () => {
  const image = document.querySelector('#cameras img');
  await image.decode();
  const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
  pen.drawImage(image, 0, 0);
  return [...pen.getImageData(3, 3, 1, 1).data].slice(0, 3);
}"""


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = stepwell.create(tmp_path / "s.well", {"image": stepwell.Image((8, 8, 3), codec="raw")})
    with store.writer() as writer:
        for index in range(6):
            image = np.zeros((120, 8, 8, 3), np.uint8)
            image[..., 0], image[..., 1] = np.arange(120)[:, None, None], index
            writer.add_episode({"image": image}, terminated=index == 4, truncated=index != 4, note="<b id=evil>")
    return store


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def served(store: Any, token: str | None = None, **options: Any) -> Iterator[str]:
    with serving(make_app(store, token, **options)) as address:
        yield address if token is None else f"{address}?token={token}"


@pytest.fixture
def address(store: Any) -> Iterator[str]:
    with served(store) as address:
        yield address


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_filter_open_and_step_a_hundred_times(store: Any, address: str) -> None:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.goto(address)
        page.wait_for_selector("#rows tr:nth-child(6)")
        assert page.evaluate("document.getElementById('evil')") is None
        page.select_option("[name=end]", "terminated")
        playwright.expect(page.locator("#rows tr")).to_have_count(1)
        page.click("#rows tr")
        page.wait_for_selector("#cameras img[src]")
        page.click("h2")
        for step in range(1, 101):
            page.keyboard.press("ArrowRight")
            assert page.evaluate(PIXEL) == [step, 4, 0]
        assert page.inner_text("#at") == "step 100 of 120"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.focus("#step")
        page.keyboard.press("Home")
        page.select_option("#speed", "4")
        page.click("#play")
        playwright.expect(page.locator("#at")).to_have_text("step 119 of 120", timeout=30_000)
        browser.close()
    assert faults == []


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_numbers_at_the_step_histograms_and_a_new_episode(tmp_path: Path) -> None:
    features = {"state": stepwell.Array((2,), "<f4", names=["x", "y"]), "action": stepwell.Array((2,), "<f4")}
    store = stepwell.create(tmp_path / "n.well", features)
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    with store.writer() as writer:
        writer.add_episode({"state": values, "action": -values}, terminated=True, task="push")
    with served(stepwell.open(store.path, mode="r")) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(address)
        page.click("#rows tr")
        playwright.expect(page.locator(".legend").first).to_have_text("x 0y 1")
        page.keyboard.press("ArrowRight")
        playwright.expect(page.locator(".legend").first).to_have_text("x 2y 3")
        page.check("#overlaid")
        playwright.expect(page.locator(".legend")).to_have_text(["state x 2state y 3action 0 -2action 1 -3"])
        page.check("#spread")
        playwright.expect(page.locator("canvas.bars")).to_have_count(4)
        page.fill("#fields", "state=-2:1 action=0,1")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#sample table")).to_have_count(2)
        playwright.expect(page.locator("#sample table").first.locator("tr").nth(1)).to_have_text("x002")
        playwright.expect(page.locator("#sample td.pad")).to_have_count(3)
        with store.writer() as writer:
            writer.add_episode({"state": values, "action": values}, terminated=True, task="lift")
        playwright.expect(page.locator("#rows tr")).to_have_count(2, timeout=20_000)
        page.fill("[name=where]", "task=lift")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#rows tr")).to_have_count(1)
        playwright.expect(page.locator("#rows tr td").nth(1)).to_have_text("1")
        browser.close()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_a_damaged_frame_is_marked(damaged_store: Any) -> None:
    with served(damaged_store) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(address)
        page.click("#rows tr")
        page.wait_for_selector("#cameras img[src]")
        for step, count in [(1, 1), (2, 0)]:
            page.keyboard.press("ArrowRight")
            playwright.expect(page.locator("figure.damaged")).to_have_count(count)
            playwright.expect(page.locator("#fault")).to_contain_text("step 1" if step == 1 else "")
        browser.close()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_keys_mark_and_a_selection_is_saved(store: Any) -> None:
    with served(store, "t", edit=True) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 400, "height": 800})
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.goto(address)
        page.click("#rows tr:nth-child(2)")
        page.wait_for_selector("#marking:visible")
        page.keyboard.press("g")
        playwright.expect(page.locator("#rows tr:nth-child(2) .mark")).to_have_text("good")
        page.keyboard.press("n")
        playwright.expect(page.locator("#title")).to_contain_text("episode 2")
        page.keyboard.press("b")
        playwright.expect(page.locator("#rows tr:nth-child(3) .mark")).to_have_text("bad")
        page.fill("#note", "g b <i>")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#rows tr:nth-child(3) td").last).to_contain_text("note=g b <i>")
        page.select_option("[name=mark]", "bad")
        playwright.expect(page.locator("#rows tr")).to_have_count(1)
        page.click("#selection summary")
        playwright.expect(page.locator("#commands pre").first).to_contain_text("chosen=2")
        page.fill("#newname", "bad.well")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#saved")).to_contain_text("bad.well")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert faults == []
        browser.close()
    assert [each.metadata["note"] for each in stepwell.open(store.path.parent / "bad.well", mode="r")] == ["g b <i>"]


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_tables_are_shown_as_they_change(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs grpcio")
    from stepwell.service import Client, Server, open_table
    from stepwell.viewer.tables import make_tables_app

    store = stepwell.create(tmp_path / "run.well", {"x": stepwell.Array(2)}, capacity=10_000)
    server = Server(open_table(store, "items", max_size=500), "127.0.0.1:0")
    with (
        Client(server.address, timeout=5) as client,
        client.writer("actor") as writer,
        serving(make_tables_app(client)) as address,
        playwright.sync_playwright() as play,
    ):
        writer.add_episode({"x": np.zeros((30, 2), np.float32)})
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        playwright.expect(page.locator("#tables h2")).to_have_text("items")
        playwright.expect(page.locator("#tables dd").first).to_have_text("30 of 500", timeout=20_000)
        playwright.expect(page.locator("#tables small").nth(1)).to_have_text("0 to 29, mean 14.5")
        writer.add_episode({"x": np.zeros((20, 2), np.float32)})
        playwright.expect(page.locator("#tables dd").first).to_have_text("50 of 500", timeout=20_000)
        playwright.expect(page.locator("#writers td").first).to_have_text("actor")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert faults == []
        writer.close()
        server.stop()
        playwright.expect(page.locator("#wrong")).to_contain_text(server.address, timeout=30_000)
        browser.close()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
def test_a_hundred_thousand_episodes_are_listed_filtered_and_opened(tmp_path: Path) -> None:
    count = 100_000
    schema = stepwell.Schema({"x": stepwell.Array((), "<i4")})
    lengths, facts = np.full(count, 2), [{"task": f"t{number % 10}"} for number in range(count)]
    block = EpisodeBlock(
        lengths,
        {"x": np.repeat(np.arange(count, dtype=np.int32) % 1000, 2)},
        facts,
        terminated=np.arange(count) % 4 == 0,
    )
    write_store(tmp_path / "m.well", schema, [block])
    store = stepwell.open(tmp_path / "m.well", mode="r")
    with served(store) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(address)
        playwright.expect(page.locator("#total")).to_have_text("100000 episodes, from 0", timeout=20_000)
        page.click("#on")
        playwright.expect(page.locator("#rows tr td:nth-child(2)").first).to_have_text("100")
        page.select_option("[name=end]", "terminated")
        playwright.expect(page.locator("#total")).to_have_text("25000 episodes, from 0", timeout=20_000)
        page.fill("[name=where]", "task=t4")
        page.check("[name=descending]")
        playwright.expect(page.locator("#total")).to_have_text("5000 episodes, from 0", timeout=20_000)
        page.click("#rows tr")
        playwright.expect(page.locator("#title")).to_contain_text("episode 99984")
        playwright.expect(page.locator(".legend b")).to_have_text("984")
        browser.close()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
@pytest.mark.parametrize("gop", [2, 12])
def test_a_playing_browser_decodes_the_right_frame_at_each_step(tmp_path: Path, gop: int) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    length = 70
    store = stepwell.create(tmp_path / "v.well", {"image": stepwell.Image((47, 48, 3), codec="video", gop=gop)}, fps=50)
    values = np.empty((length, 47, 48, 3), np.uint8)
    values[:] = (40 + 3 * np.arange(length))[:, None, None, None]
    with store.writer() as writer:
        writer.add_episode({"image": values}, terminated=True)
    script = """async () => {
      const player = new Player(0, "image"), found = [];
      for (let step = 0; step < shown.length; step++) {
        const image = await player.frame(step), pen = document.createElement("canvas").getContext("2d");
        if (!image) return null;
        pen.drawImage(image, 0, 0);
        found.push([...pen.getImageData(40, 40, 1, 1).data].slice(0, 3));
      }
      return found;
    }"""
    with served(store) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(address)
        page.click("#rows tr")
        page.wait_for_selector("#cameras img[src]")
        found = np.array(page.evaluate(script))
        assert found.shape == (length, 3)
        assert abs(found - np.asarray(store[0]["image"])[:, 40, 40].astype(int)).max() <= 2
        page.select_option("#speed", "0.25")
        page.click("#play")
        playwright.expect(page.locator("#cameras canvas")).to_be_visible()
        page.select_option("#speed", "4")
        playwright.expect(page.locator("#play")).to_have_text("play", timeout=60_000)
        # it stands still: the server's frame is shown
        playwright.expect(page.locator("#at")).to_have_text(f"step {length - 1} of {length}")
        playwright.expect(page.locator("#cameras canvas")).to_be_hidden()
        assert page.evaluate(PIXEL) == np.asarray(store[0]["image"])[-1, 3, 3].tolist()
        browser.close()
