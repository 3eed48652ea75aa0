"""Decoders that are kept open: few, and never those of another thread."""

import threading

import pytest

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
