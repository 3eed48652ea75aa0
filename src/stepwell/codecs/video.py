"""Images as video: rows that share what does not change, in runs that are short enough to be read at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import SequentialCodec, check_option_names, register_codec
from stepwell.codecs.video_decoding import open_decoder
from stepwell.codecs.video_encoding import EncoderSettings, VideoEncoder, check_is_video
from stepwell.codecs.video_streams import FLAGS_PLACE, SYNC_FLAG, LastStream, VideoRow, parse_row
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.schema import Feature

__all__ = ["VideoCodec"]


@register_codec
class VideoCodec(SequentialCodec):
    """H.264, HEVC or AV1: uint8, lossy, a run of ``gop`` rows between rows that need no other.

    uint16 of 12 bits, as of depth maps: HEVC, without loss unless ``crf`` is given.

    A row's bytes name the kind of their stream: a column may also hold rows that `VideoFile` took from a file, whatever
    its encoder.

    Args:
        feature: uint8 of height x width x 3 (RGB), height x width x 1 or height x width (grey), sides of 1 to 8192;
            uint16 of height x width x 1 or height x width, whose values are at most 4095.
            Options: see `stepwell.schema.Video`.

    Example:
        >>> from stepwell.schema import Video
        >>> codec = VideoCodec(Video((48, 64, 3)))
        >>> encoder = codec.encoder()
        >>> rows = [np.frombuffer(encoder.put(np.full((48, 64, 3), 30 * i, "uint8"))[0], np.uint8) for i in range(2)]
        >>> last = np.empty((48, 64, 3), np.uint8)
        >>> codec.decode_run(rows, [1], [last])
        >>> abs(int(last[0, 0, 0]) - 30) < 4
        True

    Notes:
        Safe for any number of threads: each opens its own decoders, at most 8, and drops those of its parent after a
        fork. Encoding and decoding release the GIL. Every row has a checksum: one that was changed or cut off is
        refused, and so is a run of which ffmpeg cannot decode every frame up to the last one wanted. A file that was
        damaged before it was imported is the exception: damage that its decoder does not notice shows in the pixels.

    Source:
        ITU-T H.264 and H.265, AV1 bitstream specification; `video_rows` has the layout of a row.
    """

    name: ClassVar[str] = "video"
    is_slow: ClassVar[bool] = True
    resizes: ClassVar[bool] = True
    sync_mark = (FLAGS_PLACE, SYNC_FLAG)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "encoder", "gop", "crf", "preset", "pixel_format")
        check_is_video(feature)
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError.of("av", "video") from error
        self._settings = EncoderSettings.of(feature)
        self._streams, self._shape = LastStream(), feature.fixed_shape
        self._is_deep = self._settings.is_deep

    def encoder(self) -> VideoEncoder:
        """Return the encoder of a new column; see `SequentialCodec.encoder`."""
        return VideoEncoder(self._settings)

    def decode_run(
        self,
        blobs: Sequence[npt.NDArray[np.uint8]],
        wanted: Sequence[int],
        outs: Sequence[npt.NDArray[Any]],
        size: tuple[int, int] | None = None,
    ) -> None:
        """Decode rows of one run, up to the last one wanted; see `SequentialCodec.decode_run`."""
        if not len(wanted):
            return
        rows: list[VideoRow] = []
        packets: list[memoryview] = []
        outs_of: dict[int, list[npt.NDArray[Any]]] = {}
        for blob in blobs[: wanted[-1] + 1]:
            row = parse_row(blob.data)
            rows.append(row)
            packets += row.packets
            outs_of[row.frame] = []
        _check_is_run(rows)
        for place, out in zip(wanted, outs, strict=True):
            outs_of[rows[place].frame].append(out)
        stream, head = self._streams.of(rows[0].kind, packets[0])
        open_decoder(stream, self._shape, size, rows[0].turn, self._is_deep).decode(packets, head, outs_of)


def _check_is_run(rows: list[VideoRow]) -> None:
    """Refuse what is no run from its sync row on."""
    if not rows[0].is_sync or not rows[0].packets:
        raise DecodeError("video row: does not begin a run; it can be decoded only with the rows before it.")
    num_packets = 0
    for place, row in enumerate(rows):
        num_packets += len(row.packets)
        if row.kind != rows[0].kind or (row.is_sync and place > 0):
            raise DecodeError(f"video run: row {place} begins a run of its own ({row.kind}, not {rows[0].kind}).")
        if row.turn != rows[0].turn:
            raise DecodeError(f"video run: row {place} is turned otherwise than the one that begins it.")
        if row.frame >= num_packets:
            raise DecodeError(f"video run: row {place} shows frame {row.frame} of the {num_packets} that are there.")
