"""Images of shards: kept as the JPEG and PNG files they are, and the few that a store cannot keep made such files.

::

    JPEG of grey or colours, plain PNG        as they are, and where they are
    a palette, CMYK, WebP, interlaced ...     decoded, and encoded as the others are; PNG where no others are
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import FormatError, MissingDependencyError
from stepwell.schema import Feature, Image
from stepwell.webdataset.image_heads import ImageHead, read_image_head
from stepwell.webdataset.member_columns import MemberColumn

__all__ = ["ImageColumn", "ImageFacts"]


@dataclass(slots=True)
class ImageFacts:
    """What the heads of some images say, counted.

    Args:
        counts: (codec, channels, dtype) to how many images.
        sizes: height and width that there are; no more than two are kept.
    """

    counts: Counter[tuple[str | None, int, str]] = field(default_factory=Counter)
    sizes: set[tuple[int, int]] = field(default_factory=set)

    def add(self, heads: Iterable[ImageHead]) -> None:
        """Count some more."""
        for head in heads:
            self.counts[head.codec, head.channels, head.dtype] += 1
            if len(self.sizes) < 2:
                self.sizes.add((head.height, head.width))

    def column(self, name: str) -> ImageColumn:
        """Return the column of these images.

        Args:
            name: of the feature.

        Raises:
            FormatError: 8 and 16 bits in one column.
        """
        dtypes = {dtype for _, _, dtype in self.counts}
        if len(dtypes) > 1:
            raise FormatError(f"{name}: images of 8 and of 16 bits in one column. Leave them out with ignore=.")
        kept: Counter[str] = Counter()
        for (own, _, _), count in self.counts.items():
            if own:
                kept[own] += count
        codec = kept.most_common(1)[0][0] if kept else "png"
        channels = max(channels for _, channels, _ in self.counts)
        channels = min(channels, 3) if codec == "jpeg" else channels
        shape = (*next(iter(self.sizes)), channels) if len(self.sizes) == 1 else (None, None, channels)
        feature = Image(shape, dtypes.pop(), codec=codec)
        num_odd = sum(count for (own, planes, _), count in self.counts.items() if not _is_kept(feature, own, planes))
        return ImageColumn({name: feature}, num_odd, sum(self.counts.values()))


@dataclass(frozen=True)
class ImageColumn(MemberColumn):
    """Members that are images.

    Args:
        features: the one feature.
        num_odd: how many have to be decoded and encoded anew.
        num_images: how many there are.
    """

    features: dict[str, Feature]
    num_odd: int
    num_images: int

    @property
    def stays(self) -> bool:
        """Whether no image has to be made another file.

        Raises:
            FormatError: some have to be, which cannot be left where they are.
        """
        if 0 < self.num_odd < self.num_images:
            name, feature = next(iter(self.features.items()))
            raise FormatError(
                f"{name}: {self.num_odd:,} of {self.num_images:,} images are no plain {feature.codec} files of "
                f"{feature.shape[2]} channels (palettes, CMYK, other formats), and cannot be read where they are. Make "
                "a store of the shards with stepwell convert, which makes them so."
            )
        return self.num_odd == 0

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the file, or another one of the same image."""
        if self.num_odd == 0:
            return (data,)
        head = read_image_head(data)
        if head is None:
            raise ValueError("not a JPEG, PNG or WebP file")
        feature = self._codec.feature
        if _is_kept(feature, head.codec, head.channels):
            return (data,)
        return (self._codec.encode(_with_channels(decode_image(data), feature.shape[2] or 1)),)

    @cached_property
    def _codec(self) -> Any:
        return make_codec(next(iter(self.features.values())))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_codec"}


def decode_image(data: bytes) -> npt.NDArray[Any]:
    """Return the pixels of a JPEG, PNG or WebP file of any kind: [H, W] or [H, W, channels].

    Raises:
        MissingDependencyError: imagecodecs is not installed.
        ValueError: it cannot be decoded.
    """
    try:
        import imagecodecs
    except ImportError as error:
        raise MissingDependencyError.of("imagecodecs", "image") from error
    is_jpeg = data[:2] == b"\xff\xd8"
    decode = imagecodecs.jpeg8_decode if is_jpeg else imagecodecs.webp_decode
    try:
        pixels = np.asarray((imagecodecs.png_decode if data[:4] == b"\x89PNG" else decode)(data))
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if not is_jpeg or pixels.shape[2:] != (4,):
        return pixels
    # Adobe stores inks inverted, others do not
    inks = pixels.astype(np.uint16) if b"Adobe" in data[:1024] else 255 - pixels.astype(np.uint16)
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


def _is_kept(feature: Feature, codec: str | None, channels: int) -> bool:
    """Whether an image is a row of a feature as it is: JPEG's are read in grey or colours, PNG's are not."""
    return codec == feature.codec and (codec == "jpeg" or channels == feature.shape[2])


def _with_channels(pixels: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Return pixels [H, W, channels]: grey in all colours, opaque where there was no alpha, alpha left out."""
    planes = pixels.reshape(*pixels.shape[:2], -1)
    colors, alpha = planes[..., :3], planes[..., 3:]
    if planes.shape[2] < 3:
        colors, alpha = np.repeat(planes[..., :1], min(channels, 3), axis=2), planes[..., 1:]
    if channels == 4 and not alpha.size:
        alpha = np.full((*planes.shape[:2], 1), np.iinfo(planes.dtype).max, planes.dtype)
    return np.ascontiguousarray(np.concatenate([colors, alpha], axis=2)[..., :channels])
