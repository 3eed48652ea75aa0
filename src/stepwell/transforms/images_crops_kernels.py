"""Parts of images, copied row by row: crops, shifts with a border, flips, HWC -> CHW, and values through a table.

Images are given by address, one each, so that they may lie anywhere: in a batch, in the rows of a pool, in a file's
map. All of a call have the same shape (height, width, channels), without gaps. What is cut out of each is its box
(top, left, height, width); heights and widths are those of ``out``. A box may stick out of its image::

    . . . . . . .        fill EDGE: the nearest pixel of the image
    . +-------------+    fill FILL: the pixel ``fill``
    . | box   |     |
    . |       |  image
    - - - - - +     |
      +-------------+

Notes:
    Addresses are not checked: who has them checks shapes. Boxes are not written. Without the GIL; any number of
    threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types

from stepwell.kernels.kernel import inlined, intrinsic, kernel
from stepwell.kernels.memory import memcpy, memset

__all__ = ["HORIZONTAL", "VERTICAL", "crop_affine", "crop_planes", "crop_rows", "crop_tables", "image_addresses"]

HORIZONTAL, VERTICAL = 1, 2
"""Bits of a flip: left and right exchanged, top and bottom exchanged."""

NO_PIXEL = np.empty(0, np.uint8)


def image_addresses(images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the address of each image of an array.

    Args:
        images: [m, ...], C-contiguous; to be kept alive while its addresses are used.
    """
    step = images.strides[0] if len(images) else 0
    return images.ctypes.data + step * np.arange(len(images), dtype=np.int64)


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
def crop_affine(  # noqa: PLR0917
    addresses: Any, shape: Any, boxes: Any, flips: Any, fill: Any, lines: Any, is_planar: Any, out: Any
) -> None:
    """Cut boxes out of uint8 images, and make ``value * scale + offset`` of each value in the same pass.

    Args:
        addresses: as for `crop_planes`, and so the others.
        shape: (height, width, channels).
        boxes: int64 [m, 4].
        flips: uint8 [m].
        fill: uint8 [channels], or empty.
        lines: float32 [2, channels], scale and offset.
        is_planar: whether ``out`` is CHW.
        out: float32 [m, h, w, channels] or [m, channels, h, w], C-contiguous; written.
    """
    channels = shape[2]
    rows, columns = (out.shape[2], out.shape[3]) if is_planar else (out.shape[1], out.shape[2])
    flat = out.reshape(-1)
    spare, split = np.empty(2 * columns * channels, np.uint8), np.empty(columns * channels, np.uint8)
    border = _fill_address(fill)
    # one scale and offset a value of a row, so that the loop over an HWC row has no channels in it
    scales, offsets = np.empty(columns * channels, np.float32), np.empty(columns * channels, np.float32)
    for k in range(columns * channels):
        scales[k], offsets[k] = lines[0, k % channels], lines[1, k % channels]
    for i in range(out.shape[0]):
        top, left, flip = boxes[i, 0], boxes[i, 1], flips[i]
        for y in range(rows):
            from_y = top + (rows - 1 - y if flip & VERTICAL else y)
            place = _cut_row(addresses[i], shape, from_y, left, flip, border, columns, np.int64(spare.ctypes.data))
            if is_planar:
                _split_row(place, channels, columns, np.int64(split.ctypes.data), columns)
                for c in range(channels):
                    plane = bytes_at(np.int64(split.ctypes.data) + c * columns, columns)
                    scale, offset = lines[0, c], lines[1, c]
                    start = np.uintp(((i * channels + c) * rows + y) * columns)
                    for x in range(np.uintp(columns)):
                        flat[start + x] = np.float32(plane[x]) * scale + offset
            else:
                row, start = bytes_at(place, columns * channels), np.uintp((i * rows + y) * columns * channels)
                for k in range(np.uintp(columns * channels)):
                    flat[start + k] = np.float32(row[k]) * scales[k] + offsets[k]


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
