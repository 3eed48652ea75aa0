"""Decoders that are kept open: few, and never those of another thread."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.codecs.video_decoding import MAX_OPEN_DECODERS, FrameDecoder, open_decoder
from stepwell.codecs.video_streams import StreamId
from stepwell.errors import DecodeError

pytest.importorskip("av")
STREAM = StreamId("h264")
SHAPE = (32, 32, 3)


def opened(number: int) -> FrameDecoder:
    return open_decoder(STREAM, (32 + number, 32, 3), None)


def test_decoder_stays_open_while_no_more_than_allowed_were_used_since() -> None:
    first = opened(0)
    for number in range(1, MAX_OPEN_DECODERS):
        opened(number)
    assert opened(0) is first
    for number in range(1, MAX_OPEN_DECODERS + 1):
        opened(number)
    assert opened(0) is not first


def test_decoder_that_failed_is_replaced() -> None:
    first = open_decoder(STREAM, SHAPE, None)
    with pytest.raises(DecodeError):
        first.decode([b"no packet"], b"", {0: []})
    assert open_decoder(STREAM, SHAPE, None) is not first


def test_threads_do_not_share_decoders() -> None:
    mine, theirs = open_decoder(STREAM, SHAPE, None), []
    thread = threading.Thread(target=lambda: theirs.append(open_decoder(STREAM, SHAPE, None)))
    thread.start()
    thread.join()
    assert theirs[0] is not mine


def test_stream_that_no_decoder_knows_is_refused() -> None:
    with pytest.raises(DecodeError, match="has no decoder 'h999'"):
        FrameDecoder(StreamId("h999"), SHAPE, None)


def test_frames_that_nothing_needs_are_not_decoded(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    frames = [np.roll(np.arange(64 * 96 * 3, dtype=np.uint32) % 251, 97 * t).astype(np.uint8) for t in range(24)]
    with av.open(tmp_path / "b.mp4", "w") as file:
        stream = file.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.options = {"x264-params": "keyint=24:scenecut=0:bframes=3:b-adapt=0"}
        for each in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(each.reshape(64, 96, 3), "rgb24")))
        file.mux(stream.encode())
    with av.open(tmp_path / "b.mp4") as file:
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    store = stepwell.create(tmp_path / "b.well", {"cam": stepwell.Video((64, 96, 3))})
    with store.writer() as writer:
        writer.add_episode({"cam": stepwell.VideoFile(tmp_path / "b.mp4")})
    came: list[int] = []
    decode = FrameDecoder.decode

    def count(self: FrameDecoder, *arguments: Any) -> set[int]:
        found = decode(self, *arguments)
        came.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameDecoder, "decode", count)
        for batch in stepwell.Loader(store, {"cam": "cam", "step": "step_index"}, order="random", batch_size=1):
            np.testing.assert_array_equal(batch["cam"][0], shown[batch["step"][0]])
    # each decoded its run's front, of 24 / 2 frames in the mean, but for those that no other needs
    assert len(came) == 24 and sum(came) < 0.8 * sum(range(1, 25))
    np.testing.assert_array_equal(np.stack(list(store[0]["cam"])), shown)
