"""Values of images: colours changed in place, blur, noise, filled boxes, blends of rows for mixup, and planes.

Values are bytes, rounded after every change, or floats of [0, 1]; ``bound`` says which (255 or 1). Each image has
amounts of its own. Images of one channel are grey, those of three RGB; further channels are left as they are.

Notes:
    Without the GIL; any number of threads, each its own images.

Source:
    The changes are those of torchvision (blends with black, with the mean grey, with the pixel's grey; hue by HSV),
    which truncates where this rounds. Grey is that of ITU-R BT.601.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.permutation import mix64

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "HUE",
    "NONE",
    "SATURATION",
    "SOLARIZE",
    "add_noise",
    "blend_bytes",
    "blur",
    "change_colors",
    "fill_boxes",
    "greater",
    "lesser",
    "make_gray",
    "normal_table",
    "turn_of",
    "turned",
]

NONE, BRIGHTNESS, CONTRAST, SATURATION, HUE, SOLARIZE = 0, 1, 2, 3, 4, 5

RED, GREEN, BLUE = np.float32(0.299), np.float32(0.587), np.float32(0.114)
THREE = np.uintp(3)
ZERO, ONE, SIXTHS = np.float32(0), np.float32(1), np.float32(6)
TABLE_BITS = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64((1 << TABLE_BITS) - 1)
_BITS = np.uint64(TABLE_BITS)
ZERO = np.float32(0)


# numba's own min and max of floats have branches, for NaNs
@inlined
def lesser(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers."""
    return a if a < b else b


@inlined
def greater(a: Any, b: Any) -> Any:
    """Return the larger of two numbers."""
    return a if a > b else b


@inlined
def _clipped(value: Any, bound: Any, half: Any) -> Any:
    """Return a value that may be stored; ``half`` is 0.5 where storing truncates."""
    return lesser(greater(value, ZERO), bound) + half


@inlined
def _gray(red: Any, green: Any, blue: Any) -> Any:
    return np.float32(red) * RED + np.float32(green) * GREEN + np.float32(blue) * BLUE


@kernel
def _mean_of(image: Any, first: Any, step: Any) -> Any:
    """Return the mean of every ``step``-th value from ``first`` on."""
    number = np.uintp(image.size) // step
    if image.itemsize == 1:
        # whole numbers need not be added in order
        whole = 0
        for k in range(number):
            whole += image[k * step + first]
        return whole / number
    total = 0.0
    for k in range(number):
        total += image[k * step + first]
    return total / number


@kernel
def _mean_gray(image: Any, channels: Any) -> Any:
    step = np.uintp(channels)
    first = _mean_of(image, np.uintp(0), step)
    if channels < 3:
        return np.float32(first)
    return np.float32(_gray(first, _mean_of(image, np.uintp(1), step), _mean_of(image, np.uintp(2), step)))


@kernel
def _blend_with(image: Any, channels: Any, amount: Any, other: Any, bound: Any, half: Any) -> None:  # noqa: PLR0917
    """Make ``amount * value + (1 - amount) * other`` of each value of the colours."""
    rest = (ONE - amount) * other
    if channels in (1, 3):
        for k in range(np.uintp(image.size)):
            image[k] = _clipped(np.float32(image[k]) * amount + rest, bound, half)
        return
    for k in range(0, image.size, channels):
        for c in range(min(channels, 3)):
            place = np.uintp(k + c)
            image[place] = _clipped(np.float32(image[place]) * amount + rest, bound, half)


@inlined
def _saturate(image: Any, amount: Any, bound: Any, half: Any) -> None:
    one, two = np.uintp(1), np.uintp(2)
    for k in range(np.uintp(image.size) // THREE):
        place = k * THREE
        red, green, blue = np.float32(image[place]), np.float32(image[place + one]), np.float32(image[place + two])
        rest = (ONE - amount) * _gray(red, green, blue)
        image[place] = _clipped(red * amount + rest, bound, half)
        image[place + one] = _clipped(green * amount + rest, bound, half)
        image[place + two] = _clipped(blue * amount + rest, bound, half)


@inlined
def _of_hue(hue: Any, shift: Any, most: Any, chroma: Any) -> Any:
    """Return the channel that is ``shift`` sixths of the circle on from a hue, in sixths."""
    place = hue + shift
    place = place - SIXTHS if place >= SIXTHS else place
    return most - chroma * greater(lesser(lesser(place, np.float32(4) - place), ONE), ZERO)


@inlined
def turn_of(amount: Any) -> Any:
    """Return a part of the circle, -0.5 to 0.5, in sixths, for `turned`."""
    # never below zero, so that one subtraction brings every hue back into the circle
    return SIXTHS * (amount if amount >= ZERO else amount + ONE)


@inlined
def turned(red: Any, green: Any, blue: Any, turn: Any) -> Any:
    """Return the three channels of a pixel, float32, with its hue turned."""
    most, least = greater(red, greater(green, blue)), lesser(red, lesser(green, blue))
    chroma = most - least
    part = ONE / (chroma if chroma > ZERO else ONE)
    of_red = (green - blue) * part
    of_red = of_red + SIXTHS if green < blue else of_red
    of_green = (blue - red) * part + np.float32(2)
    of_blue = (red - green) * part + np.float32(4)
    hue = of_green if most == green else of_blue
    hue = (of_red if most == red else hue) + turn
    hue = hue - SIXTHS if hue >= SIXTHS else hue
    return (
        _of_hue(hue, np.float32(5), most, chroma),
        _of_hue(hue, np.float32(3), most, chroma),
        _of_hue(hue, ONE, most, chroma),
    )


@inlined
def _turn_hue(image: Any, amount: Any, bound: Any, half: Any) -> None:
    """Turn hues by a part of the circle, -0.5 to 0.5."""
    one, two = np.uintp(1), np.uintp(2)
    turn = turn_of(amount)
    for k in range(np.uintp(image.size) // THREE):
        place = k * THREE
        red, green, blue = np.float32(image[place]), np.float32(image[place + one]), np.float32(image[place + two])
        red, green, blue = turned(red, green, blue, turn)
        image[place] = _clipped(red, bound, half)
        image[place + one] = _clipped(green, bound, half)
        image[place + two] = _clipped(blue, bound, half)


@kernel
def _change_pixels(image: Any, kind: Any, amount: Any, bound: Any, half: Any) -> None:
    # loops over pixels are vectorised when they know at what distance pixels are: hue took 20 times as long
    if kind == HUE:
        _turn_hue(image, amount, bound, half)
    else:
        _saturate(image, amount, bound, half)


@kernel
def _change_first_three(image: Any, channels: Any, kind: Any, amount: Any, bound: Any, half: Any) -> None:  # noqa: PLR0917
    """Change pixels of more than three channels by the loops of those of three, which need not be compiled twice."""
    step = np.uintp(channels)
    number = np.uintp(image.size) // step
    colors = np.empty(number * THREE, image.dtype)
    for k in range(number):
        for c in range(THREE):
            colors[k * THREE + c] = image[k * step + c]
    _change_pixels(colors, kind, amount, bound, half)
    for k in range(number):
        for c in range(THREE):
            image[k * step + c] = colors[k * THREE + c]


@kernel
def _solarize(image: Any, threshold: Any, bound: Any) -> None:
    """Turn values round that are at least ``threshold``."""
    for k in range(np.uintp(image.size)):
        value = np.float32(image[k])
        image[k] = bound - value if value >= threshold else value


@kernel
def change_colors(images: Any, channels: Any, kinds: Any, amounts: Any, bound: Any) -> None:
    """Change the colours of images in place, several changes after each other while an image is in the cache.

    Args:
        images: uint8 or float32 [m, values], C-contiguous, of interleaved pixels; written.
        channels: of a pixel. Saturation and hue leave pixels of fewer than three as they are.
        kinds: int64 [m, n], for each image NONE, BRIGHTNESS, CONTRAST, SATURATION, HUE or SOLARIZE, in the order to do
            them in.
        amounts: float32 [m, n]: factors; for HUE the part of the circle, -0.5 to 0.5, for SOLARIZE the threshold.
        bound: float32, the largest value: 255 for bytes, 1 for floats.
    """
    half = np.float32(0.5) if images.itemsize == 1 else ZERO
    for i in range(images.shape[0]):
        image = images[i]
        for n in range(kinds.shape[1]):
            kind, amount = kinds[i, n], amounts[i, n]
            if kind == BRIGHTNESS:
                _blend_with(image, channels, amount, ZERO, bound, half)
            elif kind == CONTRAST:
                _blend_with(image, channels, amount, _mean_gray(image, channels), bound, half)
            elif kind in (SATURATION, HUE) and channels == 3:
                _change_pixels(image, kind, amount, bound, half)
            elif kind in (SATURATION, HUE) and channels > 3:
                _change_first_three(image, channels, kind, amount, bound, half)
            elif kind == SOLARIZE:
                _solarize(image, amount, bound)


@kernel
def make_gray(images: Any, chosen: Any, out: Any) -> None:
    """Write the grey of images of three channels.

    Args:
        images: uint8 or float32 [m, pixels * 3], C-contiguous.
        chosen: bool [m]: which images; the others are left out, and ``out`` is not written there.
        out: of the same dtype; [m, pixels], or [m, pixels * 3], all three alike; this may be ``images``.
    """
    half = np.float32(0.5) if images.itemsize == 1 else ZERO
    one, two = np.uintp(1), np.uintp(2)
    for i in range(images.shape[0]):
        image, target = images[i], out[i]
        if chosen[i] and target.size == image.size:
            for k in range(np.uintp(image.size) // THREE):
                place = k * THREE
                gray = _gray(image[place], image[place + one], image[place + two]) + half
                target[place], target[place + one], target[place + two] = gray, gray, gray
        elif chosen[i]:
            for k in range(np.uintp(target.size)):
                place = k * THREE
                target[k] = _gray(image[place], image[place + one], image[place + two]) + half


@cache
def normal_table() -> npt.NDArray[np.float32]:
    """Return 65,536 equally likely values of a normal distribution of mean 0 and deviation 1, float32, ascending.

    Notes:
        Its values reach 4.3 deviations. Made once a process, 20 ms; not to be written.
    """
    half = 1 << (TABLE_BITS - 1)
    inverse = NormalDist().inv_cdf
    above = np.array([inverse(0.5 + (k + 0.5) / (2 * half)) for k in range(half)], np.float32)
    return np.concatenate([-above[::-1], above])


@kernel
def add_noise(images: Any, keys: Any, deviations: Any, table: Any, bound: Any) -> None:
    """Add normal noise to each value of images, in place.

    Args:
        images: uint8 or float32 [m, values]; written.
        keys: uint64 [m]: equal keys add equal noise.
        deviations: float32 [m], in units of the values.
        table: of `normal_table`.
        bound: float32: results are clipped to [0, bound]; 0: they are not.
    """
    half = np.float32(0.5) if images.itemsize == 1 else ZERO
    for i in range(images.shape[0]):
        image, deviation, state = images[i], deviations[i], mix64(keys[i])
        for first in range(0, images.shape[1], 4):
            # four values of sixteen bits a hash
            state += _GOLDEN
            word = mix64(state)
            for k in range(first, min(first + 4, images.shape[1])):
                value = np.float32(image[np.uintp(k)]) + deviation * table[word & _LOW]
                word >>= _BITS
                if bound > ZERO:
                    value = min(max(value, ZERO), bound)
                image[np.uintp(k)] = value + half


@kernel
def _reflected(place: Any, size: Any) -> Any:
    """Return where a place outside of [0, size) is mirrored to; the border pixel stands once."""
    if size == 1:
        return 0
    place = abs(place) % (2 * size - 2)
    return min(place, 2 * size - 2 - place)


@kernel
def _weights(sigma: Any, out: Any) -> None:
    radius = out.size // 2
    total = 0.0
    for k in range(out.size):
        out[k] = math.exp(-0.5 * ((k - radius) / sigma) ** 2)
        total += out[k]
    for k in range(out.size):
        out[k] /= total


@kernel
def _add_row(row: Any, at: Any, weight: Any, sums: Any, to: Any, size: Any) -> None:  # noqa: PLR0917
    first, target = np.uintp(at), np.uintp(to)
    for x in range(np.uintp(size)):
        sums[target + x] += np.float32(row[first + x]) * weight


@kernel
def blur(images: Any, size: Any, sigmas: Any, out: Any) -> None:
    """Blur images by a Gaussian of ``size`` x ``size`` pixels, mirrored at the borders.

    Args:
        images: uint8 or float32 [m, height, width, channels], C-contiguous.
        size: odd, at least 1.
        sigmas: float32 [m], in pixels, above 0.
        out: as ``images``, another memory; written.
    """
    number, height, width, channels = images.shape
    half = np.float32(0.5) if images.itemsize == 1 else ZERO
    line, border = width * channels, (size // 2) * channels
    weights = np.empty(size, np.float32)
    # a row with its mirrored borders, and the row that comes out
    wide, sums = np.empty(line + 2 * border, np.float32), np.empty(line, np.float32)
    for i in range(number):
        _weights(sigmas[i], weights)
        source, target = images[i].reshape(-1), out[i].reshape(-1)
        for y in range(height):
            wide[:] = ZERO
            for k in range(size):
                _add_row(source, _reflected(y + k - size // 2, height) * line, weights[k], wide, border, line)
            for x in range(size // 2):
                left, right = _reflected(x - size // 2, width), _reflected(width + x, width)
                for c in range(channels):
                    wide[x * channels + c] = wide[border + left * channels + c]
                    wide[border + line + x * channels + c] = wide[border + right * channels + c]
            sums[:] = half
            for k in range(size):
                _add_row(wide, k * channels, weights[k], sums, 0, line)
            start = np.uintp(y * line)
            for x in range(np.uintp(line)):
                target[start + x] = sums[x]


@kernel
def fill_boxes(images: Any, boxes: Any, color: Any) -> None:
    """Fill a box of each image with a colour, in place.

    Args:
        images: [m, height, width, channels]; written.
        boxes: int64 [m, 4], top, left, height, width, inside of the image; height 0: none.
        color: [channels], of the images' dtype.
    """
    for i in range(images.shape[0]):
        top, left, height, width = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
        for y in range(top, top + height):
            for x in range(left, left + width):
                for c in range(color.size):
                    images[i, y, x, c] = color[c]


@kernel
def blend_bytes(values: Any, partner: Any, weights: Any, out: Any) -> None:
    """Write ``weight * own + (1 - weight) * partner`` of every row, rounded.

    Args:
        values: uint8 [B, N].
        partner: int64 [B], rows in 0 .. B - 1: not checked.
        weights: float32 [B], 0 to 1.
        out: uint8 [B, N], other memory.
    """
    half = np.float32(0.5)
    for i in range(np.uintp(values.shape[0])):
        own, other, into, weight = values[i], values[np.uintp(partner[i])], out[i], weights[i]
        for j in range(np.uintp(own.size)):
            base = np.float32(other[j])
            into[j] = np.uint8(np.int32(base + (np.float32(own[j]) - base) * weight + half))
