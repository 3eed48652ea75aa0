"""Images."""

from __future__ import annotations

from typing import Any

from stepwell.beton.encoding import Encoder
from stepwell.beton.pictures import ImageEncoder, WriteMode
from stepwell.ffcv.fields.base import Field

__all__ = ["RGBImageField"]


class RGBImageField(Field):
    """RGB images: uint8 [height, width, 3], PIL images, or the bytes of JPEG files.

    Args:
        write_mode: "raw" (default), "jpg", "smart" or "proportion"; see `stepwell.beton.pictures.ImageEncoder`.
        max_resolution: the longest side; larger images become smaller.
        smart_threshold: bytes of pixels above which "smart" writes JPEG; None: it never does, as in FFCV.
        jpeg_quality: 1 to 100, default 90.
        compress_probability: of JPEG with "proportion"; drawn by the number of the sample, the same in every run.

    Raises:
        SchemaError: an option that is not allowed.
        MissingDependencyError: simplejpeg is not installed, and JPEG is asked for.
    """

    def __init__(
        self,
        write_mode: WriteMode = "raw",
        max_resolution: int | None = None,
        smart_threshold: int | None = None,
        jpeg_quality: int = 90,
        compress_probability: float | None = 0.5,
    ) -> None:
        # scripts pass None where the mode does not ask for it
        probability = 0.5 if compress_probability is None else float(compress_probability)
        options: dict[str, Any] = {"smart_threshold": smart_threshold, "compress_probability": probability}
        self._encoder = ImageEncoder(write_mode, max_resolution, jpeg_quality=int(jpeg_quality), **options)

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return self._encoder
