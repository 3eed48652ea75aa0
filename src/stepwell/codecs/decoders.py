"""Decoders: how the rows of a feature come into a batch, chosen when they are read and not when they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec
from stepwell.kernels.draws import Draws
from stepwell.schema import Feature

__all__ = ["Decoder"]


class Decoder(ABC):
    """What a field makes of each row of its feature: a crop, a smaller image, a part of it.

    Subclass it, implement `convert`, and `output` where shape or dtype change; use it as ``Field(..., decoder=...)``.

    Attributes:
        is_random: whether `draw` returns something: then every window has a draw of its own, all its steps the same.
        key: fields whose decoders have the same key draw the same numbers; None: each its own.
        resizes_to: height and width, when `convert` does nothing but resize to them: video is then resized in the step
            that turns its colours into RGB, and `convert` is not called.

    Notes:
        One instance serves many threads at once: keep no state that a call changes.
    """

    is_random: ClassVar[bool] = False
    key: str | None = None
    resizes_to: tuple[int, int] | None = None

    def output(self, feature: Feature) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of a step that comes out; as they are in the feature, unless overridden.

        One shape for all steps, also of images of any size: where nothing else is said, these are refused.
        """
        return feature.fixed_shape, feature.np_dtype

    def draw(self, feature: Feature, draws: Draws) -> npt.NDArray[Any] | None:
        """Return what is random about each window, [B, ...], or None.

        Of images of any size no row is known yet: draw what holds for every size, such as parts of it.
        """
        return None

    @abstractmethod
    def convert(self, pixels: npt.NDArray[Any], out: npt.NDArray[Any], draw: Any) -> None:
        """Make a step of a whole decoded row.

        Args:
            pixels: of the feature's dtype and shape, an image of any size of its own; not to be written.
            out: of `output`'s shape and dtype, C-contiguous; written.
            draw: the window's entry of what `draw` returned.
        """

    def decode(self, codec: Codec, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any], draw: Any) -> None:
        """Make a step of an encoded row; to be overridden where less than the whole row need be decoded.

        Raises:
            DecodeError: the bytes are not a row of this codec.
        """
        self.convert(codec.decode(blob), out, draw)
