"""One feature for images of several kinds, by what the heads of their files say: nothing of them is lost in it.

::

    JPEG files alone, or PNG files alone     codec "jpeg", "png"
    WebP, or files of several formats        codec "image-file"
    grey, RGB, RGBA among each other         the most channels that one of them has; JPEG has 3 at most
    all of one size                          of that size, else of any

Who says how many channels there are to be gets so many: decoding leaves alpha out, and makes grey of colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat

from stepwell.codecs.image_files import ImageHead
from stepwell.errors import FormatError
from stepwell.schema import Feature, Image

__all__ = ["MIXED_CODEC", "ImageKinds", "channels_of", "holds"]

MIXED_CODEC = "image-file"
"""Of files of several formats, and of WebP."""

CODECS = ("jpeg", "png")
CHANNELS = (1, 3, 4)


@dataclass(slots=True)
class ImageKinds:
    """What the heads of some images say.

    Args:
        formats: that there are: "jpeg", "png", "webp".
        channels: the most that one has.
        dtypes: "uint8" and "uint16", each with the name of the first such image.
        sizes: heights and widths; no more than two are kept.

    Example:
        >>> kinds = ImageKinds()
        >>> kinds.add([ImageHead(48, 64, 1, "uint8", "png"), ImageHead(48, 64, 3, "uint8", "png")])
        >>> print(kinds.feature("image"))
        png 48x64x3 uint8
    """

    formats: set[str] = field(default_factory=set)
    channels: int = 1
    dtypes: dict[str, str] = field(default_factory=dict)
    sizes: set[tuple[int, int]] = field(default_factory=set)

    def add(self, heads: Iterable[ImageHead], names: Iterable[object] = repeat("")) -> None:
        """Take some more into account.

        Args:
            heads: of images.
            names: of their files, for messages.
        """
        for head, name in zip(heads, names, strict=False):
            self.formats.add(head.format)
            self.channels = max(self.channels, head.channels)
            if head.dtype not in self.dtypes:
                self.dtypes[head.dtype] = str(name)
            if len(self.sizes) < 2:
                self.sizes.add((head.height, head.width))

    @property
    def codec(self) -> str:
        """That reads them all."""
        return next((codec for codec in CODECS if self.formats == {codec}), MIXED_CODEC)

    def feature(self, name: str, channels: int | None = None) -> Feature:
        """Return the feature that holds them all.

        Args:
            name: of the feature, for messages.
            channels: that they are to have: 1, 3 or 4; default: as many as one has.

        Raises:
            FormatError: 8 and 16 bits in one column.
        """
        if len(self.dtypes) > 1:
            first = ", ".join(f"{file} has {dtype.removeprefix('uint')}" for dtype, file in self.dtypes.items() if file)
            told = f" ({first})" if first else ""
            raise FormatError(f"{name}: images of 8 and of 16 bits in one column{told}. Leave it out, or convert them.")
        height, width = next(iter(self.sizes)) if len(self.sizes) == 1 else (None, None)
        # JPEG has no alpha
        codec = MIXED_CODEC if channels == 4 and self.codec == "jpeg" else self.codec
        return Image((height, width, channels or self.channels), next(iter(self.dtypes)), codec=codec)


def channels_of(given: int | str | None) -> int | None:
    """Return the channels that images are to have, which may be given as text; None where nobody says.

    Raises:
        FormatError: another number than 1, 3 or 4.

    Example:
        >>> channels_of("3"), channels_of(None)
        (3, None)
    """
    if given is None:
        return None
    found = next((channels for channels in CHANNELS if str(given).strip() == str(channels)), None)
    if found is None:
        raise FormatError(f"channels={given!r}. Allowed: {', '.join(map(str, CHANNELS))}: grey, RGB, RGBA.")
    return found


def holds(feature: Feature, head: ImageHead) -> bool:
    """Whether an image is a row of a feature as it is, of whatever size, and loses nothing.

    Example:
        >>> grey = ImageHead(48, 64, 1, "uint8", "png")
        >>> holds(Image((None, None, 3), codec="png"), grey), holds(Image((None, None, 3), codec="jpeg"), grey)
        (True, False)
    """
    is_read = feature.codec in (head.format, MIXED_CODEC)
    channels = next(iter(feature.shape[2:]), 1) or 1  # grey ones may be [H, W]
    return is_read and head.channels <= channels and head.dtype == feature.np_dtype.name
