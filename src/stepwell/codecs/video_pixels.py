"""Conversion of frames between pixel formats, colour ranges and sizes: the same pixels with every PyAV from 15 on.

PyAV names libswscale's flags and libavutil's colour constants only in parts, and in which release differs; the numbers
are those of FFmpeg's public headers (libswscale/swscale.h, libavutil/pixfmt.h) and never change.
"""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["BT709", "FULL_RANGE", "LIMITED_RANGE", "SMOOTH", "FrameReformatter"]

# AVCOL_PRI_BT709, AVCOL_TRC_BT709, AVCOL_SPC_BT709 and SWS_CS_ITU709
BT709 = 1
# AVCOL_RANGE_MPEG and AVCOL_RANGE_JPEG
LIMITED_RANGE, FULL_RANGE = 1, 2
# SWS_BILINEAR | SWS_ACCURATE_RND
SMOOTH = 0x2 | 0x40000
# SWS_CS_ITU601 and SWS_CS_SMPTE170M: two numbers of one table of coefficients
BT601, BT601_TOO = 5, 6


class FrameReformatter:
    """libswscale through PyAV, on the calling thread."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformat: Any = VideoReformatter().reformat
        self._is_old = _is_before_17()

    def reformat(self, frame: Any, pixel_format: str, **changes: Any) -> Any:
        """Return a frame in another pixel format."""
        if self._is_old:
            return self._reformat(frame, format=pixel_format, **{**_source_colours(frame, pixel_format), **changes})
        return self._reformat(frame, format=pixel_format, **changes, threads=1)


@cache
def _is_before_17() -> bool:
    """Return whether PyAV reads no colours from frames, and converts on one thread only."""
    import av

    return int(av.__version__.split(".")[0]) < 17


def _source_colours(frame: Any, pixel_format: str) -> dict[str, int]:
    """Return what PyAV 17 reads from a frame. Older ones use BT.601 of limited range unless two arguments differ."""
    is_full = frame.color_range == FULL_RANGE or frame.format.name.startswith("yuvj")
    is_grey = "gray" in (pixel_format, frame.format.name)
    source = BT601 if is_grey else int(frame.colorspace)
    colours = {"src_color_range": FULL_RANGE if is_full else LIMITED_RANGE, "src_colorspace": source}
    # of the destination's table only conversions to YUV make use, and those name it
    return colours | {"dst_colorspace": BT601 if source == BT601_TOO else BT601_TOO}
