"""Colors, noise, blur and filled boxes of images."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import Shape
from stepwell.transforms.cropping import Color, border_pixel, boxes_within, check_color
from stepwell.transforms.images import (
    ImageLayout,
    ImageTransform,
    Size,
    check_dtype,
    check_probability,
    of_images,
    range_of,
    sides_of,
)

__all__ = [
    "Brightness",
    "ColorJitter",
    "Contrast",
    "Cutout",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Hue",
    "RandomErasing",
    "Saturation",
    "Solarize",
]

Amount = float | tuple[float, float]
COLORED = ("uint8", "float16", "float32", "float64")
MOST = 1e6
# as in stepwell.transforms.colors_kernels, which is not imported before it is used, since it needs numba
BRIGHTNESS, CONTRAST, SATURATION, HUE, SOLARIZE = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class ColorTransform(ImageTransform):
    """A transform of bytes, or of floats of 0 to 1, that keeps shape and dtype."""

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return both as they are; see `Transform.output`."""
        ImageLayout.of(shape)
        check_dtype(dtype, COLORED, type(self).__name__)
        return shape, dtype

    def _change(
        self, values: npt.NDArray[Any], kinds: npt.NDArray[np.int64], amounts: npt.NDArray[np.float64]
    ) -> npt.NDArray[Any]:
        """Return values with the changes ``kinds`` and ``amounts`` [B, 1 or steps, n] made."""
        from stepwell.transforms.colors_kernels import change_colors

        layout = ImageLayout.of(values.shape[1:])
        images = computable(layout.images(values))
        change_colors(
            flat(images),
            layout.channels,
            of_images(kinds, layout),
            of_images(amounts, layout).astype(np.float32),
            bound_of(images.dtype),
        )
        return layout.windows(images).astype(values.dtype, copy=False)


def computable(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return images as kernels take them: bytes, or float32."""
    return images if images.dtype == np.uint8 else images.astype(np.float32, copy=False)


def flat(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return images as rows of values, [m, values]; a view."""
    return images.reshape(len(images), math.prod(images.shape[1:]))


def bound_of(dtype: np.dtype[Any]) -> np.float32:
    """Return the largest value of images: 255 for bytes, 1 for floats."""
    return np.float32(255 if dtype == np.uint8 else 1)


@dataclass(frozen=True)
class _OneChange(ColorTransform):
    amount: Amount = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability(self.p)
        self._range()

    def _range(self) -> tuple[float, float]:
        return range_of(self.amount, type(self).__name__, 1.0, 0.0, MOST)

    def _draw(self, values: npt.NDArray[Any], draws: Draws, kind: int) -> npt.NDArray[Any]:
        number = self.draws_of(ImageLayout.of(values.shape[1:]))
        amounts = draws.uniform(*self._range(), (number, 1))
        chosen = draws.uniform(size=(number, 1)) < self.p
        return self._change(values, np.where(chosen, kind, 0), amounts)


@dataclass(frozen=True)
class Brightness(_OneChange):
    """Multiply the values of images by a random factor.

    Args:
        amount: factors of 1 - amount to 1 + amount, or (least, largest) factor.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Example:
        >>> images = np.full((1, 8, 8, 3), 100, np.uint8)
        >>> Brightness((1.5, 1.5))(images, Draws(np.zeros(1, np.uint64)))[0, 0, 0].tolist()
        [150, 150, 150]
    """

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        return self._draw(values, draws, BRIGHTNESS)


@dataclass(frozen=True)
class Contrast(_OneChange):
    """Blend images with their mean grey, by a random factor: 0 all grey, 1 unchanged, more than 1 away from it.

    Args:
        amount: factors of 1 - amount to 1 + amount, or (least, largest) factor.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.
    """

    mixes_channels: ClassVar[bool] = True

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        return self._draw(values, draws, CONTRAST)


@dataclass(frozen=True)
class Saturation(_OneChange):
    """Blend images with their grey, by a random factor: 0 grey, 1 unchanged, more than 1 more colourful.

    Args:
        amount: factors of 1 - amount to 1 + amount, or (least, largest) factor.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Notes:
        Grey images stay as they are.
    """

    mixes_channels: ClassVar[bool] = True

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        return self._draw(values, draws, SATURATION)


@dataclass(frozen=True)
class Hue(_OneChange):
    """Turn the hues of images by a random angle.

    Args:
        amount: turns of -amount to amount, or (least, largest) turn, in circles: -0.5 to 0.5.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Notes:
        Grey images stay as they are.
    """

    mixes_channels: ClassVar[bool] = True
    amount: Amount = 0.05

    def _range(self) -> tuple[float, float]:
        amount = (-self.amount, self.amount) if isinstance(self.amount, (int, float)) else self.amount
        return range_of(amount, "Hue", 0.0, -0.5, 0.5)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        return self._draw(values, draws, HUE)


@dataclass(frozen=True)
class ColorJitter(ColorTransform):
    """Change brightness, contrast, saturation and hue by random amounts, in random order, in one pass.

    Args:
        brightness: as for `Brightness`; 0: not changed, and so the others.
        contrast: as for `Contrast`.
        saturation: as for `Saturation`.
        hue: as for `Hue`.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.
    """

    mixes_channels: ClassVar[bool] = True
    brightness: Amount = 0.0
    contrast: Amount = 0.0
    saturation: Amount = 0.0
    hue: Amount = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability(self.p)
        try:
            self._parts()
        except WindowError as error:
            raise WindowError(f"ColorJitter: {error}") from error

    def _parts(self) -> tuple[_OneChange, ...]:
        return Brightness(self.brightness), Contrast(self.contrast), Saturation(self.saturation), Hue(self.hue)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        number = self.draws_of(ImageLayout.of(values.shape[1:]))
        low, high = np.array([part._range() for part in self._parts()]).T
        amounts = draws.uniform(low, high, (number, 4))
        orders = draws.uniform(size=(number, 4)).argsort(axis=2)
        kinds = np.where(low == high, np.where(low == [1, 1, 1, 0], 0, 1), 1) * [BRIGHTNESS, CONTRAST, SATURATION, HUE]
        chosen = draws.uniform(size=(number, 1)) < self.p
        return self._change(values, np.where(chosen, kinds[orders], 0), np.take_along_axis(amounts, orders, axis=2))


@dataclass(frozen=True)
class Grayscale(ColorTransform):
    """Make grey images of colour images.

    Args:
        channels: of what comes out: 3, all alike, or 1. With 1 every image is made grey.
        p: probability for a window to be made grey.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Source:
        ITU-R BT.601: 0.299 red, 0.587 green, 0.114 blue.
    """

    mixes_channels: ClassVar[bool] = True
    channels: int = 3
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability(self.p)
        if self.channels not in (1, 3) or (self.channels == 1 and self.p < 1):
            raise WindowError(f"{self!r}. Allowed: 3 channels, or 1 with p=1.")

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the new number of channels; see `Transform.output`."""
        layout = ImageLayout.of(shape)
        check_dtype(dtype, COLORED, "Grayscale")
        if layout.channels != 3:
            raise WindowError(f"Grayscale of images of {layout.channels} channels. Allowed: 3.")
        return layout.shape(layout.height, layout.width, self.channels), dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        from stepwell.transforms.colors_kernels import make_gray

        layout = ImageLayout.of(values.shape[1:])
        images = computable(layout.images(values))
        out = images if self.channels == 3 else np.empty((*images.shape[:3], 1), images.dtype)
        chosen = of_images(draws.uniform(size=(self.draws_of(layout),)) < self.p, layout)
        make_gray(flat(images), chosen, flat(out))
        return layout.windows(out).astype(values.dtype, copy=False)


@dataclass(frozen=True)
class Solarize(ColorTransform):
    """Turn bright values round: ``largest - value`` of those that are at least ``threshold``.

    Args:
        threshold: in the images' unit: 0 to 255 for bytes, 0 to 1 for floats.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.
    """

    threshold: float = 128
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability(self.p)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        number = self.draws_of(ImageLayout.of(values.shape[1:]))
        chosen = draws.uniform(size=(number, 1)) < self.p
        return self._change(values, np.where(chosen, SOLARIZE, 0), np.full(chosen.shape, self.threshold))


@dataclass(frozen=True)
class GaussianNoise(ColorTransform):
    """Add normal noise to each value of images.

    Args:
        deviation: of the noise, in the images' unit (0 to 255 for bytes, 0 to 1 for floats); or (least, largest), drawn
            for each window.
        clip: whether results are kept within 0 and the largest value; bytes always are.
        per_step: whether each step of a window has noise of its own, as a camera has; False: all the same.
        key: transforms of the same key add the same noise to images of the same size.

    Notes:
        Noise comes from 65,536 equally likely values: its largest is 4.3 deviations.
    """

    deviation: float | tuple[float, float]
    clip: bool = True
    per_step: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self._range()

    def _range(self) -> tuple[float, float]:
        one = isinstance(self.deviation, (int, float))
        amount = (self.deviation, self.deviation) if one else self.deviation
        return range_of(amount, "noise", 0.0, 0.0, np.inf)  # type: ignore[arg-type]

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        from stepwell.transforms.colors_kernels import add_noise, normal_table

        layout = ImageLayout.of(values.shape[1:])
        images = computable(layout.images(values))
        deviations = draws.uniform(*self._range(), (1,)).astype(np.float32)
        words = draws.integers(0, 2**53 - 1, (self.draws_of(layout),))
        keys = of_images(words.view(np.uint64) ^ draws.keys[:, None], layout)
        bound = bound_of(values.dtype) if self.clip or values.dtype == np.uint8 else np.float32(0)
        add_noise(flat(images), keys, of_images(deviations, layout), normal_table(), bound)
        return layout.windows(images).astype(values.dtype, copy=False)


@dataclass(frozen=True)
class GaussianBlur(ColorTransform):
    """Blur images, mirrored at their borders.

    Args:
        size: of the filter in pixels, odd.
        sigma: its deviation in pixels, above 0; or (least, largest), drawn for each window.
        p: probability for a window to be blurred.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Source:
        As torchvision's: the filter is the normal density at whole pixels, of sum one.
    """

    size: int = 5
    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability(self.p)
        if self.size < 1 or self.size % 2 == 0:
            raise WindowError(f"a blur of {self.size} pixels. Allowed: odd numbers.")
        self._range()

    def _range(self) -> tuple[float, float]:
        amount = (self.sigma, self.sigma) if isinstance(self.sigma, (int, float)) else self.sigma
        return range_of(amount, "sigma", 0.0, 1e-3, np.inf)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        from stepwell.transforms.colors_kernels import blur

        layout = ImageLayout.of(values.shape[1:])
        images = computable(layout.images(values))
        number = self.draws_of(layout)
        sigmas = draws.uniform(*self._range(), (number,))
        chosen = of_images(draws.uniform(size=(number,)) < self.p, layout)
        out = np.empty_like(images)
        # a filter so narrow that only its middle is above zero changes nothing
        blur(images, self.size, np.where(chosen, of_images(sigmas, layout), 1e-3).astype(np.float32), out)
        return layout.windows(out).astype(values.dtype, copy=False)


@dataclass(frozen=True)
class _Filled(ImageTransform):
    """A transform that fills a box of images with a colour, in place."""

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return both as they are; see `Transform.output`."""
        layout = ImageLayout.of(shape)
        self._boxes(layout.height, layout.width, Draws(np.zeros(1, np.uint64)), 1)
        check_color(self._color, layout.channels, dtype, type(self).__name__)
        return shape, dtype

    @property
    @abstractmethod
    def _color(self) -> Color:
        """The colour of boxes."""

    @abstractmethod
    def _boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return boxes, int64 [B, number, 4]; height 0: none."""

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        from stepwell.transforms.colors_kernels import fill_boxes

        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        boxes = of_images(self._boxes(layout.height, layout.width, draws, self.draws_of(layout)), layout)
        # kernels know no float16, and colours are only copied
        words = np.dtype(f"u{values.dtype.itemsize}")
        fill_boxes(images.view(words), boxes, border_pixel(self._color, layout.channels, values.dtype).view(words))
        return layout.windows(images)


@dataclass(frozen=True)
class Cutout(_Filled):
    """Fill a square of images, at a random place inside, with a colour.

    Args:
        size: height and width of what is filled, or one number for both; at most the image's.
        fill: the colour: one number, or one a channel.
        p: probability for a window to be changed at all.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Source:
        T. DeVries, G. W. Taylor: Improved regularization of convolutional neural networks with cutout, 2017. There a
        square may leave the image; here it is all inside.
    """

    size: Size
    fill: Color = 0
    p: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of(self.size))
        check_probability(self.p)

    @property
    def _color(self) -> Color:
        return self.fill

    def _boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        sides = sides_of(self.size)
        if sides[0] > height or sides[1] > width:
            raise WindowError(f"Cutout of {sides[0]}x{sides[1]} of images of {height}x{width}. Use a smaller size.")
        places = draws.uniform(size=(number, 2))
        boxes = boxes_within(height, width, np.broadcast_to(np.array(sides), (len(draws), number, 2)), places)
        return np.where(draws.uniform(size=(number, 1)) < self.p, boxes, 0)


@dataclass(frozen=True)
class RandomErasing(_Filled):
    """Fill a part of images, of random size, form and place, with a colour.

    Args:
        p: probability for a window to be changed at all.
        scale: least and largest part of the image's area.
        ratio: least and largest width of the part for a height of 1; uniform in its logarithm.
        fill: the colour: one number, or one a channel.
        per_step: whether each step of a window has a draw of its own.
        key: transforms of the same key draw the same.

    Source:
        Z. Zhong and others: Random erasing data augmentation, 2017. A part that does not fit is made to.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: Color = 0

    def __post_init__(self) -> None:
        check_probability(self.p)
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise WindowError(f"{self!r}. Allowed: ranges above 0, scale at most 1.")

    @property
    def _color(self) -> Color:
        return self.fill

    def _boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        areas = height * width * draws.uniform(*self.scale, (number,))
        low, high = np.log(self.ratio)
        ratios = np.exp(draws.uniform(low, high, (number,)))
        sides = np.rint(np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], axis=-1)).astype(np.int64)
        boxes = boxes_within(height, width, np.clip(sides, 1, [height, width]), draws.uniform(size=(number, 2)))
        return np.where(draws.uniform(size=(number, 1)) < self.p, boxes, 0)
