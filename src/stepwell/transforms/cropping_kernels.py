"""Boxes of images: cut out, shifted with a border, flipped, HWC -> CHW, through a table of values, or resized.

Images are given by address, one each, so that they may lie anywhere: in a batch, in the rows of a pool, in a file's
map. All of a call have the same shape (height, width, channels), without gaps. The part cut out of each is its box
(top, left, height, width); heights and widths are those of ``out``. A box may stick out of its image::

    . . . . . . .        fill EDGE: the nearest pixel of the image
    . +-------------+    fill FILL: the pixel ``fill``
    . | box   |     |
    . |       |  image
    - - - - - +     |
      +-------------+

An axis of a box that is resized is described by its **taps**: output i is the sum of ``weights[i, k] * input[starts[i]
+ k]``. Bytes are weighed in whole numbers: 14 bits a weight, 8 bits after the point between the two passes, rounded at
the end::

    box of the image --columns, row by row, vectorised--> one row of uint16 --rows, pixel by pixel--> one row of bytes

Nothing outside of a box is read: a crop that is resized is the same as the part that is resized. Weights of an output
sum to one exactly, so that a plain image stays plain.

Notes:
    Addresses are not checked: callers check shapes. Boxes are not written. Without the GIL; any number of threads.

Source:
    Linear and area are those of OpenCV (half-pixel centres); antialiased linear is a triangle as wide as the scale, as
    in Pillow and in torch. Cubic: R. Keys, Cubic convolution interpolation for digital image processing, 1981, with
    a = -0.5; Lanczos: a sinc in the window of one of three lobes. Both as wide as the scale, as in Pillow and
    TensorFlow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types

from stepwell.kernels.kernel import inlined, intrinsic, kernel
from stepwell.kernels.memory import STREAM_BYTES, end_stream, memcpy, memset, stream
from stepwell.windows.plans import HeldArray

__all__ = [
    "ANTIALIAS",
    "AREA",
    "CUBIC",
    "HORIZONTAL",
    "LANCZOS",
    "LINEAR",
    "NEAREST",
    "OPENCV_AREA",
    "VERTICAL",
    "Cuts",
    "crop_affine",
    "crop_planes",
    "crop_rows",
    "crop_tables",
    "image_addresses",
    "resize_bytes",
    "resize_floats",
    "resize_signed",
    "whole",
]

HORIZONTAL, VERTICAL = 1, 2
"""Bits of a flip: left and right exchanged, top and bottom exchanged."""

LINEAR, ANTIALIAS, AREA, NEAREST = 0, 1, 2, 3
CUBIC, LANCZOS = 4, 5
"""Filters with negative weights: of bytes `resize_signed` takes them, `resize_bytes` does not."""
OPENCV_AREA, GROWING = 10, 11
"""OpenCV's INTER_AREA: AREA where no side grows, else GROWING, along both."""
WEIGHT_BITS = 14
ONE = 1 << WEIGHT_BITS
# bits after the point that a value keeps between the passes: 8 + 8 bits fill a uint16
ROW_BITS = 8
ROW_SHIFT = WEIGHT_BITS - ROW_BITS
OUT_SHIFT = WEIGHT_BITS + ROW_BITS
# of weights that may be negative: their sums over bytes stay within 32 bits
SIGNED_BITS = 22
# pixels of a row whose values are made at once: they stay in the first cache
PART_PIXELS = 256
# what a core's own cache does not hold until it is read
STREAMED_BYTES = 4 << 20

# addresses, shape, boxes, flips and fill of a kernel that cuts
Cuts = tuple[
    npt.NDArray[np.int64], tuple[int, int, int], npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]
]


def image_addresses(images: npt.NDArray[Any] | HeldArray) -> npt.NDArray[np.int64]:
    """Return the address of each image of an array.

    Args:
        images: [m, ...], C-contiguous; to be kept alive while its addresses are used.
    """
    if isinstance(images, HeldArray):
        return images.addresses
    step = images.strides[0] if len(images) else 0
    return images.ctypes.data + step * np.arange(len(images), dtype=np.int64)


def whole(images: npt.NDArray[Any] | HeldArray) -> Cuts:
    """Return the first arguments of the kernels that cut, for images as they are: of one row each.

    Args:
        images: [m, height, width, channels], each C-contiguous; to be kept alive.
    """
    number, height, width, channels = images.shape
    boxes, flips, fill = np.zeros((number, 4), np.int64), np.zeros(number, np.uint8), np.empty(0, np.uint8)
    return image_addresses(images), (1, height * width, channels), boxes, flips, fill


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as a pointer to bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(8)))

    return types.CPointer(types.uint8)(types.int64), generate


@inlined
def bytes_at(address: Any, number: Any) -> Any:
    """Return the ``number`` bytes at an address as an array."""
    return carray(_pointer(address), (number,), np.uint8)


@intrinsic
def _float_pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as a pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.PointerType(ir.FloatType()))

    return types.CPointer(types.float32)(types.int64), generate


@inlined
def floats_at(address: Any, number: Any) -> Any:
    """Return the ``number`` float32 at an address as an array."""
    return carray(_float_pointer(address), (number,), np.float32)


@kernel
def _reverse_pixels(source: Any, number: Any, pixel: Any, target: Any) -> None:
    row, out = bytes_at(source, number * pixel), bytes_at(target, number * pixel)
    last = np.uintp(number - 1)
    if pixel == 3:
        for x in range(np.uintp(number)):
            to, place = np.uintp(3) * x, np.uintp(3) * (last - x)
            out[to] = row[place]
            out[to + np.uintp(1)] = row[place + np.uintp(1)]
            out[to + np.uintp(2)] = row[place + np.uintp(2)]
    elif pixel == 1:
        for x in range(np.uintp(number)):
            out[x] = row[last - x]
    else:
        for x in range(number):
            memcpy(target + x * pixel, source + (number - 1 - x) * pixel, pixel)


@kernel
def _repeat_pixel(source: Any, pixel: Any, number: Any, target: Any) -> None:
    if pixel == 3:
        color, out = bytes_at(source, 3), bytes_at(target, 3 * number)
        for x in range(np.uintp(number)):
            out[np.uintp(3) * x] = color[0]
            out[np.uintp(3) * x + np.uintp(1)] = color[1]
            out[np.uintp(3) * x + np.uintp(2)] = color[2]
    elif pixel == 1:
        memset(target, bytes_at(source, 1)[0], number)
    else:
        for x in range(number):
            memcpy(target + x * pixel, source, pixel)


@kernel
def _bordered_row(source: Any, width: Any, left: Any, fill: Any, pixel: Any, number: Any, target: Any) -> None:  # noqa: PLR0917
    """Copy pixels from ``left`` on of a row that they leave at the sides."""
    before = min(max(-left, 0), number)
    after = min(max(left + number - width, 0), number)
    first = fill if fill else source
    last = fill if fill else source + (width - 1) * pixel
    _repeat_pixel(first, pixel, before, target)
    _repeat_pixel(last, pixel, after, target + (number - after) * pixel)
    if before + after < number:
        memcpy(target + before * pixel, source + (left + before) * pixel, (number - before - after) * pixel)


@kernel
def _cut_row(image: Any, shape: Any, y: Any, left: Any, flip: Any, fill: Any, number: Any, spare: Any) -> Any:  # noqa: PLR0917
    """Return the address of row y of a box: in the image where it can be, else in ``spare`` of 2 rows."""
    height, width, pixel = shape
    if fill and not 0 <= y < height:
        _repeat_pixel(fill, pixel, number, spare)
        return spare
    row = image + min(max(y, 0), height - 1) * width * pixel
    if left >= 0 and left + number <= width:
        row += left * pixel
    else:
        _bordered_row(row, width, left, fill, pixel, number, spare)
        row = spare
    if flip & HORIZONTAL:
        _reverse_pixels(row, number, pixel, spare + number * pixel)
        row = spare + number * pixel
    return row


@inlined
def _fill_address(fill: Any) -> Any:
    return np.int64(fill.ctypes.data) if fill.size else np.int64(0)


@kernel
def crop_rows(addresses: Any, shape: Any, boxes: Any, flips: Any, fill: Any, out: Any) -> None:  # noqa: PLR0917
    """Cut boxes out of images, wherever these lie: straight from the rows of a pool, without a gather before.

    Args:
        addresses: int64 [m], of the images.
        shape: (height, width, bytes of a pixel) of each image; pixels of any dtype.
        boxes: int64 [m, 4], top, left, height, width.
        flips: uint8 [m], HORIZONTAL, VERTICAL, both or none, done to what was cut.
        fill: uint8 [bytes of a pixel], outside of the image; empty: the nearest pixel.
        out: uint8 [m, h, w * bytes of a pixel], C-contiguous; written.
    """
    number, rows, row_bytes = out.shape
    columns = row_bytes // shape[2]
    spare = np.empty(2 * row_bytes, np.uint8)
    target, border = np.int64(out.ctypes.data), _fill_address(fill)
    for i in range(number):
        top, left, flip = boxes[i, 0], boxes[i, 1], flips[i]
        for y in range(rows):
            from_y = top + (rows - 1 - y if flip & VERTICAL else y)
            # a row with a border is made where it belongs, unless it must be turned round
            place = np.int64(spare.ctypes.data) if flip & HORIZONTAL else target
            row = _cut_row(addresses[i], shape, from_y, left, flip, border, columns, place)
            if row != target:
                memcpy(target, row, row_bytes)
            target += row_bytes


@kernel
def _split_row(source: Any, channels: Any, width: Any, target: Any, plane: Any) -> None:
    """Write a row of pixels to planes that are ``plane`` bytes apart."""
    row = bytes_at(source, width * channels)
    if channels == 3:
        red, green, blue = bytes_at(target, width), bytes_at(target + plane, width), bytes_at(target + 2 * plane, width)
        for x in range(np.uintp(width)):
            red[x] = row[np.uintp(3) * x]
            green[x] = row[np.uintp(3) * x + np.uintp(1)]
            blue[x] = row[np.uintp(3) * x + np.uintp(2)]
    else:
        for c in range(channels):
            part = bytes_at(target + c * plane, width)
            for x in range(np.uintp(width)):
                part[x] = row[x * np.uintp(channels) + np.uintp(c)]


@kernel
def crop_planes(addresses: Any, shape: Any, boxes: Any, flips: Any, fill: Any, out: Any) -> None:  # noqa: PLR0917
    """Cut boxes out of uint8 images, HWC -> CHW in the same pass.

    Args:
        addresses: as for `crop_rows`, and so the others.
        shape: (height, width, channels).
        boxes: int64 [m, 4].
        flips: uint8 [m].
        fill: uint8 [channels], or empty.
        out: uint8 [m, channels, h, w], C-contiguous; written.
    """
    number, channels, rows, columns = out.shape
    spare = np.empty(2 * columns * channels, np.uint8)
    target, border = np.int64(out.ctypes.data), _fill_address(fill)
    for i in range(number):
        top, left, flip = boxes[i, 0], boxes[i, 1], flips[i]
        for y in range(rows):
            from_y = top + (rows - 1 - y if flip & VERTICAL else y)
            row = _cut_row(addresses[i], shape, from_y, left, flip, border, columns, np.int64(spare.ctypes.data))
            _split_row(row, channels, columns, target + y * columns, rows * columns)
        target += channels * rows * columns


@kernel
def _write_values(source: Any, number: Any, factors: Any, target: Any) -> None:
    """Write ``value * scale + value * rest + offset`` of bytes as float32; ``factors`` [3, >= number] says of which."""
    values, floats = bytes_at(source, number), floats_at(target, number)
    scales, rests, offsets = factors[0], factors[1], factors[2]
    for k in range(np.uintp(number)):
        value = np.float32(values[k])
        floats[k] = value * scales[k] + value * rests[k] + offsets[k]


@kernel
def _write_plane(source: Any, number: Any, scale: Any, rest: Any, offset: Any, target: Any) -> None:  # noqa: PLR0917
    """Write ``value * scale + value * rest + offset`` of bytes as float32."""
    values, floats = bytes_at(source, number), floats_at(target, number)
    for k in range(np.uintp(number)):
        value = np.float32(values[k])
        floats[k] = value * scale + value * rest + offset


@kernel
def crop_affine(  # noqa: PLR0917
    addresses: Any, shape: Any, boxes: Any, flips: Any, fill: Any, lines: Any, is_planar: Any, out: Any
) -> None:
    """Cut boxes out of uint8 images, and make ``value * scale + value * rest + offset`` of each value in the same pass.

    Args:
        addresses: as for `crop_planes`, and so the others.
        shape: (height, width, channels).
        boxes: int64 [m, 4].
        flips: uint8 [m].
        fill: uint8 [channels], or empty.
        lines: float32 [3, channels], scale, rest and offset. A factor in two parts, of which the first is a number of
            16 bits, is exact to the last bit: bytes times that are not rounded.
        is_planar: whether ``out`` is CHW.
        out: float32 [m, h, w, channels] or [m, channels, h, w], C-contiguous; written.

    Notes:
        An ``out`` that the caches do not hold is written past them where its rows are whole lines of the cache: they
        would read first what is written over, a third of the time.
    """
    channels = shape[2]
    rows, columns = (out.shape[2], out.shape[3]) if is_planar else (out.shape[1], out.shape[2])
    run = columns if is_planar else columns * channels
    is_plain = channels == 1 or (lines[:, 1:] == lines[:, :-1]).all()
    is_streamed = out.nbytes >= STREAMED_BYTES and (out.ctypes.data | (4 * run)) % STREAM_BYTES == 0
    spare, split = np.empty(2 * columns * channels, np.uint8), np.empty(PART_PIXELS * channels, np.uint8)
    floats = np.empty(PART_PIXELS * channels, np.float32)
    border, planes, made = _fill_address(fill), np.int64(split.ctypes.data), np.int64(floats.ctypes.data)
    # a factor a value of a row, so that the loop over an HWC row has no channels in it
    factors = np.empty((3, PART_PIXELS * channels), np.float32)
    for j in range(3):
        for k in range(PART_PIXELS * channels):
            factors[j, k] = lines[j, k % channels]
    for i in range(out.shape[0]):
        top, left, flip = boxes[i, 0], boxes[i, 1], flips[i]
        image = np.int64(out.ctypes.data) + 4 * i * channels * rows * columns
        for y in range(rows):
            from_y = top + (rows - 1 - y if flip & VERTICAL else y)
            row = _cut_row(addresses[i], shape, from_y, left, flip, border, columns, np.int64(spare.ctypes.data))
            for x in range(0, columns, PART_PIXELS):
                number = min(columns - x, PART_PIXELS)
                if not is_planar:
                    target = image + 4 * (y * columns + x) * channels
                    source, to = row + x * channels, made if is_streamed else target
                    if is_plain:
                        _write_plane(source, number * channels, lines[0, 0], lines[1, 0], lines[2, 0], to)
                    else:
                        _write_values(source, number * channels, factors, to)
                    if is_streamed:
                        _stream_lines(made, 4 * number * channels, target)
                    continue
                _split_row(row + x * channels, channels, number, planes, PART_PIXELS)
                for c in range(channels):
                    target = image + 4 * ((c * rows + y) * columns + x)
                    plane, to = planes + c * PART_PIXELS, made if is_streamed else target
                    _write_plane(plane, number, lines[0, c], lines[1, c], lines[2, c], to)
                    if is_streamed:
                        _stream_lines(made, 4 * number, target)
    end_stream()


@kernel
def _stream_lines(source: Any, num_bytes: Any, target: Any) -> None:
    for at in range(0, num_bytes, STREAM_BYTES):
        stream(target + at, source + at)


@kernel
def crop_tables(  # noqa: PLR0917
    addresses: Any, shape: Any, boxes: Any, flips: Any, fill: Any, tables: Any, is_planar: Any, out: Any
) -> None:
    """Cut boxes out of uint8 images, and look each value up in its channel's table in the same pass.

    Args:
        addresses: as for `crop_affine`, and so the others.
        shape: (height, width, channels).
        boxes: int64 [m, 4].
        flips: uint8 [m].
        fill: uint8 [channels], or empty.
        tables: [channels, 256], of ``out``'s dtype.
        is_planar: whether ``out`` is CHW.
        out: [m, h, w, channels] or [m, channels, h, w], C-contiguous; written.
    """
    channels = shape[2]
    rows, columns = (out.shape[2], out.shape[3]) if is_planar else (out.shape[1], out.shape[2])
    flat = out.reshape(-1)
    spare, split = np.empty(2 * columns * channels, np.uint8), np.empty(columns * channels, np.uint8)
    border = _fill_address(fill)
    for i in range(out.shape[0]):
        top, left, flip = boxes[i, 0], boxes[i, 1], flips[i]
        for y in range(rows):
            from_y = top + (rows - 1 - y if flip & VERTICAL else y)
            place = _cut_row(addresses[i], shape, from_y, left, flip, border, columns, np.int64(spare.ctypes.data))
            if is_planar:
                _split_row(place, channels, columns, np.int64(split.ctypes.data), columns)
                for c in range(channels):
                    plane, table = bytes_at(np.int64(split.ctypes.data) + c * columns, columns), tables[c]
                    start = np.uintp(((i * channels + c) * rows + y) * columns)
                    for x in range(np.uintp(columns)):
                        flat[start + x] = table[np.uintp(plane[x])]
            else:
                row = bytes_at(place, columns * channels)
                for c in range(channels):
                    table, start = tables[c], np.uintp((i * rows + y) * columns * channels + c)
                    for x in range(np.uintp(columns)):
                        at = x * np.uintp(channels)
                        flat[start + at] = table[np.uintp(row[at + np.uintp(c)])]


@inlined
def _reach(kind: Any) -> Any:
    """Return how many inputs an output of a filter takes in to either side, at scale 1."""
    return 2.0 if kind == CUBIC else 3.0


@kernel
def _filter_weight(kind: Any, distance: Any) -> Any:
    x = abs(distance)
    if kind == CUBIC:
        if x < 1.0:
            return (1.5 * x - 2.5) * x * x + 1.0
        return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2.0 else 0.0
    if x == 0.0:
        return 1.0
    angle = math.pi * x
    return 3.0 * math.sin(angle) * math.sin(angle / 3.0) / (angle * angle) if x < 3.0 else 0.0


@kernel
def num_taps(kind: Any, length: Any, number: Any) -> Any:
    """Return how many inputs an output of an axis takes in at most."""
    scale = length / number
    if kind == NEAREST:
        return 1
    if kind in (CUBIC, LANCZOS):
        return min(2 * math.ceil(_reach(kind) * max(scale, 1.0)) + 1, length)
    if scale <= 1.0 or kind in (LINEAR, GROWING):
        return min(2, length)
    return min(math.ceil(scale) + 1 if kind == AREA else 2 * math.ceil(scale) + 1, length)


@kernel
def _place_growing(i: Any, scale: Any) -> Any:
    """Return where output i of OpenCV's INTER_AREA lies between inputs: a part of it may cover the next one."""
    first = int(i * scale)
    part = (i + 1) - (first + 1) / scale
    return first + max(part - math.floor(part) if part > 0 else 0.0, 0.0)


@inlined
def _kind_of(kind: Any, height: Any, width: Any, rows: Any, columns: Any) -> Any:
    """Return how an image of these sides is resized."""
    if kind != OPENCV_AREA:
        return kind
    return AREA if height >= rows and width >= columns else GROWING


@kernel
def _set_taps(kind: Any, length: Any, scale: Any, i: Any, weights: Any) -> Any:
    """Set the weights of output i, not yet of sum one; return its first input."""
    center, taps = (i + 0.5) * scale, weights.shape[1]
    if kind == NEAREST:
        weights[i, 0] = 1.0
        return min(int(center), length - 1)
    if kind in (CUBIC, LANCZOS):
        width = max(scale, 1.0)
        start = max(int(center - _reach(kind) * width + 0.5), 0)
        stop = min(int(center + _reach(kind) * width + 0.5), length)
        for k in range(stop - start):
            weights[i, k] = _filter_weight(kind, (start + k + 0.5 - center) / width)
        return start
    if scale <= 1.0 or kind in (LINEAR, GROWING):
        place = _place_growing(i, scale) if kind == GROWING else center - 0.5
        place = min(max(place, 0.0), length - 1.0)
        start = min(int(place), max(length - 2, 0))
        weights[i, 0] = 1.0 - (place - start)
        weights[i, taps - 1] = 1.0 if taps == 1 else place - start
        return start
    if kind == AREA:
        start, stop = int(i * scale), min((i + 1) * scale, float(length))
        for k in range(taps):
            weights[i, k] = max(min(start + k + 1.0, stop) - max(float(start + k), i * scale), 0.0)
        return start
    start = max(int(center - scale + 0.5), 0)
    stop = min(int(center + scale + 0.5), length)
    for k in range(stop - start):
        weights[i, k] = max(1.0 - abs(start + k + 0.5 - center) / scale, 0.0)
    return start


@kernel
def axis_taps(kind: Any, length: Any, number: Any, starts: Any, weights: Any) -> None:
    """Describe an axis of ``length`` inputs and ``number`` outputs.

    Args:
        kind: LINEAR, ANTIALIAS, AREA, NEAREST, CUBIC or LANCZOS.
        length: at least 1.
        number: at least 1.
        starts: int64 [number], written.
        weights: float64 [number, num_taps], written.
    """
    for i in range(number):
        for k in range(weights.shape[1]):
            weights[i, k] = 0.0
        start = _set_taps(kind, length, length / number, i, weights)
        total = 0.0
        for k in range(weights.shape[1]):
            total += weights[i, k]
        # at the end, taps without weight come first, so that none is read after it
        late = max(start + weights.shape[1] - length, 0)
        starts[i] = start - late
        for k in range(weights.shape[1] - 1, -1, -1):
            weights[i, k] = weights[i, k - late] / total if k >= late else 0.0


@kernel
def _whole_weights(weights: Any, out: Any) -> None:
    """Round weights to whole numbers of sum ONE; the largest of an output takes what is left over."""
    for i in range(weights.shape[0]):
        total, largest = 0, 0
        for k in range(weights.shape[1]):
            out[i, k] = int(weights[i, k] * ONE + 0.5)
            total += out[i, k]
            if out[i, k] > out[i, largest]:
                largest = k
        out[i, largest] += ONE - total


@kernel
def _taps_of(kind: Any, length: Any, number: Any, starts: Any) -> Any:
    """Set the starts of an axis; return its weights, int32 [number, taps]."""
    exact = np.empty((number, num_taps(kind, length, number)))
    axis_taps(kind, length, number, starts, exact)
    weights = np.empty(exact.shape, np.int32)
    _whole_weights(exact, weights)
    return weights


@kernel
def _turned(starts: Any, weights: Any) -> Any:
    """Return the starts and weights of an axis the other way round; copies of slices take seconds to compile."""
    number = starts.size
    other, other_weights = np.empty(number, np.int64), np.empty(weights.shape, np.int32)
    for i in range(number):
        other[i] = starts[number - 1 - i]
        for k in range(weights.shape[1]):
            other_weights[i, k] = weights[number - 1 - i, k]
    return other, other_weights


@inlined
def _weighed(one: Any, a: Any, two: Any, b: Any, half: Any) -> Any:
    """Return one * a + two * b + half in 32 bits: numba makes 64 of a sum of two int32, which halves the speed."""
    return np.int32(np.int32(np.int32(np.int32(one) * a) + np.int32(np.int32(two) * b)) + half)


# The inner functions get whole arrays and where to begin: a slice costs numba as much as a dozen pixels.


@kernel
def _blend_rows(first: Any, line: Any, weights: Any, y: Any, size: Any, sums: Any, row: Any) -> None:  # noqa: PLR0917
    """Make one row of uint16 of ``size`` bytes each of rows that lie ``line`` apart."""
    half, shift = np.int32(1 << (ROW_SHIFT - 1)), np.int32(ROW_SHIFT)
    if weights.shape[1] == 2:
        one, two = bytes_at(first, size), bytes_at(first + line, size)
        for x in range(np.uintp(size)):
            row[x] = np.uint16(_weighed(one[x], weights[y, 0], two[x], weights[y, 1], half) >> shift)
        return
    for x in range(np.uintp(size)):
        sums[x] = half
    for k in range(weights.shape[1]):
        weight = weights[y, k]
        if weight:
            source = bytes_at(first + k * line, size)
            for x in range(np.uintp(size)):
                sums[x] = np.int32(sums[x] + np.int32(np.int32(source[x]) * weight))
    for x in range(np.uintp(size)):
        row[x] = np.uint16(sums[x] >> shift)


@kernel
def _blend_pixels(row: Any, channels: Any, starts: Any, weights: Any, shift: Any, out: Any, at: Any) -> None:  # noqa: PLR0917
    """Make a row of ``starts.size`` pixels, in ``out`` from ``at`` on, of a row of pixels."""
    half, places = np.int64(1 << (shift - 1)), np.int64(shift)
    step = np.uintp(channels)
    for x in range(np.uintp(starts.size)):
        place, to = np.uintp(starts[x]) * step, np.uintp(at) + x * step
        for c in range(step):
            total = half
            for k in range(np.uintp(weights.shape[1])):
                total += row[place + k * step + c] * weights[x, k]
            out[to + c] = total >> places


@kernel
def _blend_colors(row: Any, starts: Any, weights: Any, shift: Any, out: Any, at: Any) -> None:  # noqa: PLR0917
    """As `_blend_pixels`, of three channels."""
    half, places = np.int64(1 << (shift - 1)), np.int64(shift)
    one, two, three = np.uintp(1), np.uintp(2), np.uintp(3)
    to = np.uintp(at)
    for x in range(np.uintp(starts.size)):
        place = np.uintp(starts[x]) * three
        red, green, blue = half, half, half
        for k in range(np.uintp(weights.shape[1])):
            weight = weights[x, k]
            red += row[place] * weight
            green += row[place + one] * weight
            blue += row[place + two] * weight
            place += three
        out[to], out[to + one], out[to + two] = red >> places, green >> places, blue >> places
        to += three


@inlined
def _blend_pairs(row: Any, step: Any, starts: Any, weights: Any, shift: Any, out: Any, at: Any) -> None:  # noqa: PLR0917
    """As `_blend_pixels`, of two taps; ``step`` is the number of channels, best known to the compiler."""
    half, places = np.int32(1 << (shift - 1)), np.int32(shift)
    to = np.uintp(at)
    for x in range(np.uintp(starts.size)):
        place = np.uintp(starts[x]) * step
        a, b = weights[x, 0], weights[x, 1]
        for c in range(step):
            out[to + c] = _weighed(row[place + c], a, row[place + step + c], b, half) >> places
        to += step


@kernel
def _blend_across(row: Any, channels: Any, starts: Any, weights: Any, shift: Any, out: Any, at: Any) -> None:  # noqa: PLR0917
    is_pairs = weights.shape[1] == 2
    if is_pairs and channels == 1:
        _blend_pairs(row, np.uintp(1), starts, weights, shift, out, at)
    elif is_pairs and channels == 3:
        _blend_pairs(row, np.uintp(3), starts, weights, shift, out, at)
    elif channels == 3:
        _blend_colors(row, starts, weights, shift, out, at)
    else:
        _blend_pixels(row, channels, starts, weights, shift, out, at)


@kernel
def _mix_rows(rows: Any, start: Any, after: Any, weights: Any, y: Any, out: Any) -> None:  # noqa: PLR0917
    """Make one row of bytes of two rows of uint16."""
    half, shift = np.int32(1 << (OUT_SHIFT - 1)), np.int32(OUT_SHIFT)
    one, two = np.uintp(start), np.uintp(after)
    a, b = weights[y, 0], np.int32(weights[y, 1] if weights.shape[1] > 1 else 0)
    for x in range(np.uintp(out.size)):
        out[x] = np.uint8(_weighed(rows[one + x], a, rows[two + x], b, half) >> shift)


@kernel
def _down_first(  # noqa: PLR0917
    first: Any, line: Any, size: Any, channels: Any, tops: Any, down: Any, lefts: Any, across: Any, out: Any
) -> None:
    """Resize a box whose first byte is at address ``first``: the wide rows vectorised, then their pixels."""
    sums, row = np.empty(size, np.int32), np.empty(size, np.uint16)
    out_size = lefts.size * channels
    for y in range(tops.size):
        _blend_rows(first + tops[y] * line, line, down, y, size, sums, row)
        _blend_across(row, channels, lefts, across, OUT_SHIFT, bytes_at(out + y * out_size, out_size), 0)


@kernel
def _across_first(  # noqa: PLR0917
    first: Any, line: Any, size: Any, channels: Any, tops: Any, down: Any, lefts: Any, across: Any, out: Any
) -> None:
    """Resize a box that becomes higher: its few rows once, then the many that are mixed of two of them."""
    num_inputs, out_size = max(tops[0], tops[-1]) + down.shape[1], lefts.size * channels
    rows = np.empty(num_inputs * out_size, np.uint16)
    for y in range(num_inputs):
        _blend_across(bytes_at(first + y * line, size), channels, lefts, across, ROW_SHIFT, rows, y * out_size)
    to_next = (down.shape[1] - 1) * out_size
    for y in range(tops.size):
        start = tops[y] * out_size
        _mix_rows(rows, start, start + to_next, down, y, bytes_at(out + y * out_size, out_size))


@kernel
def resize_bytes(addresses: Any, shape: Any, boxes: Any, flips: Any, kind: Any, out: Any) -> None:  # noqa: PLR0917
    """Cut boxes out of uint8 images, and resize them.

    Args:
        addresses: int64 [m], of the images.
        shape: (height, width, channels) of each.
        boxes: int64 [m, 4], top, left, height, width; inside of the image.
        flips: uint8 [m], done to what comes out.
        kind: LINEAR, ANTIALIAS, AREA, NEAREST or OPENCV_AREA.
        out: uint8 [m, h, w, channels], C-contiguous; written.
    """
    number, rows, columns, channels = out.shape
    line = shape[1] * channels
    tops, lefts = np.empty(rows, np.int64), np.empty(columns, np.int64)
    last_height, last_width, last_kind = -1, -1, -1
    down, across = np.empty((rows, 2), np.int32), np.empty((columns, 2), np.int32)
    for i in range(number):
        top, left, height, width = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
        this_kind = _kind_of(kind, height, width, rows, columns)
        if height != last_height or this_kind != last_kind:
            down = _taps_of(this_kind, height, rows, tops)
        if width != last_width or this_kind != last_kind:
            across = _taps_of(this_kind, width, columns, lefts)
        last_height, last_width, last_kind = height, width, this_kind
        ys, by_row, xs, by_column = tops, down, lefts, across
        if flips[i] & VERTICAL:
            ys, by_row = _turned(tops, down)
        if flips[i] & HORIZONTAL:
            xs, by_column = _turned(lefts, across)
        first = addresses[i] + top * line + left * channels
        target = out.ctypes.data + i * rows * columns * channels
        if height < rows:
            _across_first(first, line, width * channels, channels, ys, by_row, xs, by_column, target)
        else:
            _down_first(first, line, width * channels, channels, ys, by_row, xs, by_column, target)


@kernel
def resize_floats(images: Any, boxes: Any, flips: Any, kind: Any, out: Any) -> None:
    """Cut boxes out of float32 images, and resize them.

    Args:
        images: float32 [m, height, width, channels].
        boxes: int64 [m, 4], top, left, height, width; inside of the image.
        flips: uint8 [m], done to what comes out.
        kind: LINEAR, ANTIALIAS, AREA, NEAREST, CUBIC, LANCZOS or OPENCV_AREA.
        out: float32 [m, h, w, channels]; written.
    """
    number, rows, columns, channels = out.shape
    tops, lefts = np.empty(rows, np.int64), np.empty(columns, np.int64)
    for i in range(number):
        top, left, height, width = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
        this_kind = _kind_of(kind, height, width, rows, columns)
        down = np.empty((rows, num_taps(this_kind, height, rows)))
        axis_taps(this_kind, height, rows, tops, down)
        across = np.empty((columns, num_taps(this_kind, width, columns)))
        axis_taps(this_kind, width, columns, lefts, across)
        row = np.empty((width, channels))
        for y in range(rows):
            row[:] = 0.0
            for k in range(down.shape[1]):
                row += images[i, top + tops[y] + k, left : left + width] * down[y, k]
            to_y = rows - 1 - y if flips[i] & VERTICAL else y
            for x in range(columns):
                to_x = columns - 1 - x if flips[i] & HORIZONTAL else x
                for c in range(channels):
                    total = 0.0
                    for k in range(across.shape[1]):
                        total += row[lefts[x] + k, c] * across[x, k]
                    out[i, to_y, to_x, c] = total


@kernel
def _signed_taps(kind: Any, length: Any, number: Any, starts: Any) -> Any:
    """Set the starts of an axis; return its weights as whole numbers, int32 [number, taps], as Pillow rounds them."""
    taps = num_taps(kind, length, number)
    exact, weights = np.empty((number, taps)), np.empty((number, taps), np.int32)
    axis_taps(kind, length, number, starts, exact)
    for i in range(number):
        for k in range(taps):
            weights[i, k] = math.floor(exact[i, k] * (1 << SIGNED_BITS) + 0.5)
    return weights


@inlined
def _clipped(total: Any) -> Any:
    return np.uint8(min(max(total >> np.int32(SIGNED_BITS), np.int32(0)), np.int32(255)))


@kernel
def _across_signed(  # noqa: PLR0917
    first: Any, line: Any, rows: Any, channels: Any, starts: Any, weights: Any, out: Any
) -> None:
    """Make rows of bytes, one after the other in ``out``, of rows of pixels, ``line`` apart from an address on."""
    half, step = np.int32(1 << (SIGNED_BITS - 1)), np.uintp(channels)
    size = starts.size * channels
    for y in range(rows):
        source = bytes_at(first + y * line, line)
        for x in range(np.uintp(starts.size)):
            place, to = np.uintp(starts[x]) * step, np.uintp(y * size) + x * step
            for c in range(step):
                total = half
                for k in range(np.uintp(weights.shape[1])):
                    total = np.int32(total + np.int32(np.int32(source[place + k * step + c]) * weights[x, k]))
                out[to + c] = _clipped(total)


@kernel
def _down_signed(rows: Any, size: Any, starts: Any, weights: Any, out: Any) -> None:
    """Make rows of ``size`` bytes, one after the other at address ``out``, of such rows."""
    sums = np.empty(size, np.int32)
    for y in range(starts.size):
        for x in range(np.uintp(size)):
            sums[x] = np.int32(1 << (SIGNED_BITS - 1))
        for k in range(weights.shape[1]):
            weight = weights[y, k]
            if weight:
                at = np.uintp((starts[y] + k) * size)
                for x in range(np.uintp(size)):
                    sums[x] = np.int32(sums[x] + np.int32(np.int32(rows[at + x]) * weight))
        target = bytes_at(out + y * size, size)
        for x in range(np.uintp(size)):
            target[x] = _clipped(sums[x])


@kernel
def resize_signed(addresses: Any, shape: Any, boxes: Any, flips: Any, kind: Any, out: Any) -> None:  # noqa: PLR0917
    """Cut boxes out of uint8 images, and resize them by a filter with negative weights.

    As in Pillow: columns first, to bytes, and then rows; weights of 22 bits.

    Args:
        addresses: as of `resize_bytes`, and so the others.
        shape: (height, width, channels) of each.
        boxes: int64 [m, 4], inside of the image.
        flips: uint8 [m], done to what comes out.
        kind: CUBIC or LANCZOS.
        out: uint8 [m, h, w, channels], C-contiguous; written.
    """
    number, rows, columns, channels = out.shape
    line, size = shape[1] * channels, columns * channels
    tops, lefts = np.empty(rows, np.int64), np.empty(columns, np.int64)
    for i in range(number):
        top, left, height, width = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
        ys, by_row = tops, _signed_taps(kind, height, rows, tops)
        xs, by_column = lefts, _signed_taps(kind, width, columns, lefts)
        if flips[i] & VERTICAL:
            ys, by_row = _turned(ys, by_row)
        if flips[i] & HORIZONTAL:
            xs, by_column = _turned(xs, by_column)
        first = addresses[i] + top * line + left * channels
        between = np.empty(height * size, np.uint8)
        _across_signed(first, line, height, channels, xs, by_column, between)
        _down_signed(between, size, ys, by_row, out.ctypes.data + i * rows * size)
