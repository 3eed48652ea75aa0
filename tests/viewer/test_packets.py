"""Video as it lies: packets give each step its frame, by their numbers, in ffmpeg's decoder and in a browser's."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.viewer.packets import packets_of

av = pytest.importorskip("av", reason="needs PyAV")

LENGTH, SIDE = 70, 48
KINDS = {"avc1": "h264", "av01": "libdav1d", "vp09": "vp9"}


def store_of(path: Path, **options: Any) -> Any:
    store = stepwell.create(path, {"image": stepwell.Image((SIDE, SIDE, 3), codec="video", **options)}, fps=50)
    values = np.empty((LENGTH, SIDE, SIDE, 3), np.uint8)
    values[:] = (40 + 2 * np.arange(LENGTH))[:, None, None, None]
    # what moves needs the frames before
    for step in range(LENGTH):
        values[step, 10:20, step % 30 : step % 30 + 8] = (200, 60, 20)
    with store.writer() as writer:
        writer.add_episode({"image": values}, terminated=True)
        writer.add_episode({"image": values[::-1]}, terminated=True)
    return store


def decoded(answer: Any) -> dict[int, np.ndarray]:
    """Return step to pixels, as a decoder gives frames to packets whose times are their numbers."""
    found = {}
    for run in answer["runs"]:
        context: Any = av.CodecContext.create(KINDS[answer["codec"][:4]], "r")
        packets = []
        for number, text in enumerate(run["packets"]):
            packets.append(av.Packet(base64.b64decode(text)))
            packets[-1].pts = number
        frames = {frame.pts: frame for packet in [*packets, None] for frame in context.decode(packet)}
        found |= {step: frames[number].to_ndarray(format="rgb24") for step, number in run["rows"]}
    return found


def check(store: Any, index: int, name: str, spans: list[tuple[int, int]]) -> None:
    want = np.asarray(store[index][name]).astype(int)
    for first, count in spans:
        found = decoded(packets_of(store, index, name, first, count))
        stop = min(first + count, len(want))
        assert set(range(first, stop)) <= set(found)
        for step in range(first, stop):
            got = found[step][: want.shape[1], : want.shape[2]].astype(int)
            assert abs(got - want[step]).mean() < 3, step


@pytest.mark.parametrize("gop", [1, 2, 12])
def test_packets_of_a_stores_video_are_its_steps(tmp_path: Path, gop: int) -> None:
    store = store_of(tmp_path / "v.well", gop=gop)
    for index in (0, 1):
        check(store, index, "image", [(0, 32), (32, 32), (64, 32), (5, 3), (LENGTH - 1, 1)])


def test_packets_of_a_lerobot_video_are_its_steps(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from stepwell.testing import tiny_lerobot

    name = "observation.images.top"
    root = tiny_lerobot(tmp_path / "set", lengths=[20, 9], cameras={name: ("video", (32, 48))})
    store = stepwell.open(f"lerobot://{root}", mode="r")
    for index in (0, 1):
        check(store, index, name, [(0, 32), (7, 2), (8, 1)])


def test_what_no_browser_decodes_has_no_packets(tmp_path: Path) -> None:
    raw = stepwell.create(tmp_path / "r.well", {"image": stepwell.Image((8, 8, 3), codec="raw")})
    with raw.writer() as writer:
        writer.add_episode({"image": np.zeros((3, 8, 8, 3), np.uint8)})
    assert packets_of(raw, 0, "image", 0, 3) == {"codec": None, "runs": []}


def test_a_run_that_began_far_before_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "v.well", gop=1000)
    assert packets_of(store, 0, "image", 40, 8)["codec"] is not None
    monkeypatch.setattr("stepwell.viewer.packets.MAX_BACK", 20)
    assert packets_of(store, 0, "image", 40, 8)["codec"] is None
