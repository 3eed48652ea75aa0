"""Calls that do not come back are left behind, and an encoder that stalls is replaced without a row being lost."""

import threading

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.codecs.video_encoding import PatientCaller, StalledError
from stepwell.errors import EncodeError
from stepwell.schema import Video


def test_results_and_errors_come_back():
    caller = PatientCaller(10)
    assert [caller.call(lambda n=n: n * n) for n in range(3)] == [0, 1, 4]
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0)
    assert caller.call(lambda: "still there") == "still there"
    caller.close()
    caller.close()


def test_a_call_that_does_not_come_back_is_left_behind():
    release = threading.Event()
    caller = PatientCaller(0.05)
    with pytest.raises(StalledError):
        caller.call(release.wait)
    release.set()


def test_the_thread_ends_with_the_caller():
    caller = PatientCaller(10)
    thread = caller.call(threading.current_thread)
    del caller
    thread.join(10)
    assert not thread.is_alive()


class Stalling:
    """An encoder's context that stalls at some of its calls, and then for ever."""

    def __init__(self, context, stalls: set[int], release: threading.Event) -> None:
        self._context, self._stalls, self._release, self._count = context, stalls, release, 0

    def encode(self, frame):
        self._count += 1
        if self._count in self._stalls:
            self._release.wait(30)
        return self._context.encode(frame)


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch):
    """Return what makes the n-th context that is opened stall at some calls, and gives the list of them."""
    pytest.importorskip("av")
    from stepwell.codecs import video_encoding

    release = threading.Event()

    def arrange(*stalls: set[int], library: str = "libx264") -> list[Stalling]:
        opened: list[Stalling] = []

        def opens(encoder, original=video_encoding.VideoEncoder._open):
            original(encoder)
            wanted = stalls[len(opened)] if len(opened) < len(stalls) else set()
            opened.append(Stalling(encoder._context, wanted, release))
            encoder._context = opened[-1]

        monkeypatch.setattr(video_encoding.VideoEncoder, "_open", opens)
        # x264, which does not stall by itself, stands for the one that does
        monkeypatch.setattr(video_encoding, "SVT", library)
        monkeypatch.setattr(video_encoding, "STALL_SECONDS", 0.2)
        return opened

    yield arrange
    release.set()


def rows_of(num_rows: int, gop: int) -> list[bytes]:
    codec = make_codec(Video((32, 48, 3), gop=gop))
    images = np.random.default_rng(0).integers(0, 255, (num_rows, 4, 6, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    encoder = codec.encoder()
    rows = [row for image in images for row in encoder.put(image)]
    rows += encoder.end()
    encoder.close()
    outs = list(np.empty((num_rows, 32, 48, 3), np.uint8))
    for start in range(0, num_rows, gop):
        run = [np.frombuffer(row, np.uint8) for row in rows[start : start + gop]]
        codec.decode_run(run, range(len(run)), outs[start : start + gop])
    assert np.abs(np.stack(outs).astype(int) - images).mean() < 12
    return rows


@pytest.mark.parametrize("place", [1, 2, 4, 6, 7])
def test_a_row_at_which_the_encoder_stalls_is_encoded_by_another(stall, place: int):
    opened = stall({place})
    assert len(rows_of(7, gop=3)) == 7
    assert len(opened) == 2


def test_one_that_stalls_again_and_again_is_an_error(stall):
    stall({2}, {2}, {1}, {2})
    with pytest.raises(EncodeError, match=r"did not come back .* 4 times. Use another encoder"):
        rows_of(7, gop=3)
