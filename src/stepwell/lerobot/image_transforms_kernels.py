"""Chains of image changes, done row by row: colours, gains, sharpness and affine maps, bytes in and planes out.

A pass reads an image once and writes it once::

    row of the image, or of an affine map of it -> changes of pixels -> sharpness (three rows kept) -> changes -> row

and a chain is as few passes as it can be: a change that needs the whole image before it begins one. That is contrast,
which needs the mean grey (added up by the pass before), a second sharpness, and an affine map after one, or of blends.

Values are float32 of 0 to 1 between changes, never rounded, or whole numbers of 0 to 255, cut off after every change:
``bound`` says which. Rows are planar, and stay in the first cache.

Notes:
    Without the GIL; any number of threads, each its own images.

Source:
    The changes are those of ``torchvision.transforms.v2.functional`` for tensors, float32 and uint8, cutting off where
    it does; compared with it in tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import inlined, kernel
from stepwell.transforms.colors_kernels import greater, lesser, turn_of, turned

__all__ = ["AFFINE", "BRIGHTNESS", "CONTRAST", "HUE", "SATURATION", "SHARPNESS", "change_images"]

BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS, AFFINE = 1, 2, 3, 4, 5, 6
# the pixel nearest to a place; a blend of four; that, times the part inside, and the colour outside for the rest
NEAREST, LINEAR, LINEAR_FILLED = 0.0, 1.0, 2.0

RED, GREEN, BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
ZERO, HALF, ONE = (np.float32(n) for n in (0, 0.5, 1))
BYTE = np.float32(255)
# what torchvision multiplies floats of 0 to 1 by, to cut them off to bytes
TO_BYTE = np.float32(255.999)
BLUR, MIDDLE = np.float32(1 / 13), np.float32(5 / 13)


@inlined
def _clipped(value: Any, bound: Any) -> Any:
    return lesser(greater(value, ZERO), bound)


@kernel
def _copy(values: Any, out: Any) -> None:
    # an assignment of arrays takes seconds to compile
    for k in range(np.uintp(values.size)):
        out[k] = values[k]


@kernel
def _blend_row(values: Any, amount: Any, rest: Any, bound: Any) -> None:
    """Make ``amount * value + rest`` of each value."""
    for k in range(np.uintp(values.size)):
        values[k] = _clipped(values[k] * amount + rest, bound)


@kernel
def _gray_row(row: Any, is_whole: Any, out: Any) -> None:
    if row.shape[0] < 3:
        _copy(row[0], out)
        return
    red, green, blue = row[0], row[1], row[2]
    for x in range(np.uintp(out.size)):
        out[x] = red[x] * RED + green[x] * GREEN + blue[x] * BLUE
    if is_whole:
        _cut_off(out)


@kernel
def _saturate_row(row: Any, gray: Any, amount: Any, rest: Any, bound: Any) -> None:
    for c in range(3):
        values = row[c]
        for x in range(np.uintp(gray.size)):
            values[x] = _clipped(values[x] * amount + gray[x] * rest, bound)


@kernel
def _turn_row(row: Any, amount: Any) -> None:
    """Turn hues by a part of the circle, -0.5 to 0.5."""
    reds, greens, blues = row[0], row[1], row[2]
    turn = turn_of(amount)
    for x in range(np.uintp(reds.size)):
        reds[x], greens[x], blues[x] = turned(reds[x], greens[x], blues[x], turn)


@kernel
def _cut_off(values: Any) -> None:
    for k in range(np.uintp(values.size)):
        values[k] = np.floor(values[k])


@kernel
def _round(values: Any) -> None:
    for k in range(np.uintp(values.size)):
        values[k] = np.rint(values[k])


@kernel
def _change_row(row: Any, gray: Any, kind: Any, amount: Any, mean: Any, bound: Any) -> None:  # noqa: PLR0917
    """Do one change of the pixels of a row, [channels, width]."""
    is_whole, is_colored = bound > ONE, row.shape[0] == 3
    factor, rest = np.float32(amount), np.float32(1.0 - amount)
    values = row.reshape(-1)
    if kind == BRIGHTNESS:
        _blend_row(values, factor, ZERO, bound)
    elif kind == CONTRAST:
        _blend_row(values, factor, rest * mean, bound)
    elif kind == SATURATION and is_colored:
        _gray_row(row, is_whole, gray)
        _saturate_row(row, gray, factor, rest, bound)
    elif kind == HUE and is_colored:
        _turn_row(row, factor)
        if is_whole:
            for k in range(np.uintp(values.size)):
                values[k] *= TO_BYTE / BYTE
    if is_whole:
        _cut_off(values)


@kernel
def _change_rows(ops: Any, numbers: Any, row: Any, gray: Any, mean: Any, bound: Any) -> None:  # noqa: PLR0917
    for k in range(len(ops)):
        _change_row(row, gray, ops[k, 0], numbers[ops[k, 1]], mean, bound)


@kernel
def _sharpen_row(above: Any, middle: Any, below: Any, amount: Any, bound: Any, out: Any) -> None:  # noqa: PLR0917
    """Write a row blended with its blur by 3 x 3 pixels, but for the pixels at its ends."""
    rest, is_whole = np.float32(1.0 - amount), bound > ONE
    last = out.shape[1] - 1
    for c in range(out.shape[0]):
        high, mid, low, target = above[c], middle[c], below[c], out[c]
        target[0], target[last] = mid[0], mid[last]
        for k in range(np.uintp(last - 1)):
            left, x, right = k, k + np.uintp(1), k + np.uintp(2)
            around = high[left] + high[x] + high[right] + mid[left] + mid[right] + low[left] + low[x] + low[right]
            blurred = around * BLUR + mid[x] * MIDDLE
            if is_whole:
                blurred = np.rint(blurred)
            target[x] = _clipped(mid[x] + rest * (blurred - mid[x]), bound)
        if is_whole:
            _cut_off(target)


@kernel
def _read_row(image: Any, y: Any, divisor: Any, row: Any) -> None:
    """Write a row of an image of interleaved pixels, [height, width * channels], as planes."""
    line, three = image[y], np.uintp(3)
    if row.shape[0] == 3:
        red, green, blue = row[0], row[1], row[2]
        for x in range(np.uintp(row.shape[1])):
            red[x] = np.float32(line[three * x]) / divisor
            green[x] = np.float32(line[three * x + np.uintp(1)]) / divisor
            blue[x] = np.float32(line[three * x + np.uintp(2)]) / divisor
    else:
        gray = row[0]
        for x in range(np.uintp(row.shape[1])):
            gray[x] = np.float32(line[x]) / divisor


@inlined
def _locate(x: Any, along: Any, across: Any, shift: Any, half_size: Any) -> Any:
    """Return where a pixel of a row comes from, in pixels, rounded as torch does: (x * along + across) + shift."""
    place = np.float32(np.float64(np.float32(x * along)) + across) + shift
    return (place + ONE) * half_size - HALF


@kernel
def _locate_row(numbers: Any, y: Any, height: Any, places: Any) -> None:
    """Write the places that the pixels of a row come from: [2, width], x and y."""
    width = places.shape[1]
    middle = np.float32(width - 1) * HALF
    down = np.float64(y) - (height - 1) * 0.5
    for k in range(2):
        along, shift = np.float32(numbers[3 * k]), np.float32(numbers[3 * k + 2])
        across = down * numbers[3 * k + 1]
        half_size = np.float32((height if k else width) * 0.5)
        target = places[k]
        for x in range(np.uintp(width)):
            target[x] = _locate(np.float32(x) - middle, along, across, shift, half_size)


@inlined
def _value(image: Any, buffer: Any, from_image: Any, c: Any, y: Any, x: Any, divisor: Any) -> Any:  # noqa: PLR0917
    """Return one value of the image that a pass reads."""
    if from_image:
        return np.float32(image[y, x * np.uintp(buffer.shape[0]) + c]) / divisor
    return buffer[c, y, x]


@kernel
def _find_nearest(places: Any, height: Any, width: Any, found: Any) -> None:
    """Write which pixel is nearest to each place, counted by rows; -1 where it is outside."""
    xs, ys = places[0], places[1]
    last_x, last_y, line = np.float32(width), np.float32(height), np.int32(width)
    for x in range(np.uintp(found.size)):
        at_x, at_y = np.rint(xs[x]), np.rint(ys[x])
        is_inside = (at_x >= ZERO) & (at_x < last_x) & (at_y >= ZERO) & (at_y < last_y)
        # what is far outside is no int32
        column, down = (at_x if is_inside else ZERO), (at_y if is_inside else ZERO)
        found[x] = np.int32(down) * line + np.int32(column) if is_inside else np.int32(-1)


@kernel
def _take_pixels(image: Any, buffer: Any, from_image: Any, divisor: Any, found: Any, row: Any) -> None:  # noqa: PLR0917
    """Write pixels of the image; of those outside, one of it."""
    # 257 us for 480 x 640 with the division apart, 724 with it
    values = image.reshape(-1)
    for c in range(0 if from_image else row.shape[0]):
        plane, target = buffer[c].reshape(-1), row[c]
        for x in range(np.uintp(found.size)):
            target[x] = plane[np.uintp(max(found[x], np.int32(0)))]
    if from_image and row.shape[0] == 3:
        red, green, blue = row[0], row[1], row[2]
        for x in range(np.uintp(found.size)):
            at = np.uintp(max(found[x], np.int32(0))) * np.uintp(3)
            red[x] = np.float32(values[at])
            green[x] = np.float32(values[at + np.uintp(1)])
            blue[x] = np.float32(values[at + np.uintp(2)])
    elif from_image:
        gray = row[0]
        for x in range(np.uintp(found.size)):
            gray[x] = np.float32(values[np.uintp(max(found[x], np.int32(0)))])
    made = row.reshape(-1)
    if from_image:
        for k in range(np.uintp(made.size)):
            made[k] /= divisor


@kernel
def _fill_outside(found: Any, fill: Any, row: Any) -> None:
    for c in range(row.shape[0]):
        target, color = row[c], np.float32(fill[c])
        for x in range(np.uintp(found.size)):
            target[x] = color if found[x] < 0 else target[x]


@kernel
def _read_linear(  # noqa: PLR0917
    image: Any, buffer: Any, from_image: Any, divisor: Any, fill: Any, is_filled: Any, places: Any, row: Any
) -> None:
    """Write blends of the four pixels around places; of black, or of ``fill``, as far as these are outside."""
    channels, height, width = buffer.shape
    last_x, last_y = np.float32(width), np.float32(height)
    xs, ys = places[0], places[1]
    for x in range(np.uintp(row.shape[1])):
        left, top = np.floor(xs[x]), np.floor(ys[x])
        right_part, below_part = xs[x] - left, ys[x] - top
        if left >= ZERO and left + ONE < last_x and top >= ZERO and top + ONE < last_y:
            a, b = np.uintp(left), np.uintp(top)
            to_right, below = a + np.uintp(1), b + np.uintp(1)
            for c in range(np.uintp(channels)):
                high = _value(image, buffer, from_image, c, b, a, divisor) * (ONE - right_part)
                high += _value(image, buffer, from_image, c, b, to_right, divisor) * right_part
                low = _value(image, buffer, from_image, c, below, a, divisor) * (ONE - right_part)
                low += _value(image, buffer, from_image, c, below, to_right, divisor) * right_part
                row[c, x] = high * (ONE - below_part) + low * below_part
            continue
        inside = ZERO
        for c in range(np.uintp(channels)):
            row[c, x] = ZERO
        for k in range(4):
            at_x, at_y = (left + ONE if k % 2 else left), (top + ONE if k > 1 else top)
            if at_x >= ZERO and at_x < last_x and at_y >= ZERO and at_y < last_y:
                part = (right_part if k % 2 else ONE - right_part) * (below_part if k > 1 else ONE - below_part)
                inside += part
                for c in range(np.uintp(channels)):
                    value = _value(image, buffer, from_image, c, np.uintp(at_y), np.uintp(at_x), divisor)
                    row[c, x] += part * value
        for c in range(np.uintp(channels)):
            if is_filled:
                color = np.float32(fill[c])
                row[c, x] = (row[c, x] - color) * inside + color


@kernel
def _source_row(  # noqa: PLR0917
    image: Any, buffer: Any, from_image: Any, own: Any, y: Any, divisor: Any, places: Any, found: Any, row: Any
) -> None:
    """Write a row of the image that a pass reads; where ``own`` has numbers, of an affine map of it."""
    _, height, width = buffer.shape
    if len(own):
        _locate_row(own, y, height, places)
        if own[6] == NEAREST:
            _find_nearest(places, height, width, found)
            _take_pixels(image, buffer, from_image, divisor, found, row)
        else:
            _read_linear(image, buffer, from_image, divisor, own[7:], own[6] == LINEAR_FILLED, places, row)
    elif from_image:
        _read_row(image, y, divisor, row)
    else:
        for c in range(row.shape[0]):
            _copy(buffer[c, y], row[c])


@kernel
def _put_row(row: Any, y: Any, out: Any) -> None:
    for c in range(row.shape[0]):
        _copy(row[c], out[c, y])


@kernel
def _run_pass(  # noqa: PLR0917
    image: Any,
    buffer: Any,
    from_image: Any,
    ops: Any,
    numbers: Any,
    mean: Any,
    divisor: Any,
    bound: Any,
    rows: Any,
    sums: Any,
    out: Any,
) -> None:
    """Do a pass; ``sums`` float64 [width or 0]: of the grey of what comes out, by column; 0: not wanted."""
    _, height, width = buffer.shape
    is_whole = bound > ONE
    turn, middle = _places_of(ops)
    own = numbers[ops[turn, 1] :] if turn >= 0 else numbers[:0]
    # the nearest pixels are taken first, changed, and then those outside are filled
    before, between, after = ops[: max(turn, 0)], ops[turn + 1 : middle], ops[min(middle + 1, len(ops)) :]
    is_sharpened = middle < len(ops)
    # of `rows`: three of the image, one that is sharpened, one of grey
    gray = rows[4, 0]
    places, found = np.empty((2, width), np.float32), np.empty(width, np.int32)
    num_read = 0
    for y in range(height):
        while num_read < min(y + 2 if is_sharpened else y + 1, height):
            row = rows[num_read % 3]
            _source_row(image, buffer, from_image, own, num_read, divisor, places, found, row)
            _change_rows(before, numbers, row, gray, mean, bound)
            if len(own) and own[6] == NEAREST:
                _fill_outside(found, own[7:], row)
            elif len(own) and is_whole:
                _round(row.reshape(-1))
            _change_rows(between, numbers, row, gray, mean, bound)
            num_read += 1
        row = rows[y % 3]
        if is_sharpened:
            if width > 2 and 0 < y < height - 1:
                amount = numbers[ops[middle, 1]]
                _sharpen_row(rows[(y - 1) % 3], row, rows[(y + 1) % 3], amount, bound, rows[3])
            else:
                _copy(row.reshape(-1), rows[3].reshape(-1))
            row = rows[3]
            _change_rows(after, numbers, row, gray, mean, bound)
        if len(sums):
            _gray_row(row, is_whole, gray)
            for x in range(np.uintp(width)):
                sums[x] += gray[x]
        _put_row(row, y, out)


@kernel
def _places_of(ops: Any) -> Any:
    """Return which change of a pass is affine, -1: none, and which is one of sharpness, as many as there are: none."""
    turn, middle = -1, len(ops)
    for k in range(len(ops)):
        if ops[k, 0] == AFFINE:
            turn = k
        elif ops[k, 0] == SHARPNESS:
            middle = k
    return turn, middle


@kernel
def _end_of_pass(ops: Any, numbers: Any, first: Any) -> Any:
    """Return the first change that a pass from ``first`` on cannot do."""
    is_mapped, is_sharpened = False, False
    for k in range(first, len(ops)):
        kind = ops[k, 0]
        if kind == SHARPNESS:
            if is_sharpened:
                return k
            is_sharpened = True
        elif kind == CONTRAST and k > first:
            return k
        elif kind == AFFINE:
            # pixels that are not blended may be changed before or after they are taken
            is_nearest = numbers[ops[k, 1] + 6] == NEAREST
            if k > first and (is_mapped or is_sharpened or not is_nearest):
                return k
            is_mapped = True
    return len(ops)


@kernel
def _mean_of_image(image: Any, divisor: Any, bound: Any, rows: Any, sums: Any) -> Any:
    """Return the mean grey of an image."""
    sums.fill(0.0)
    row, gray = rows[0], rows[4, 0]
    for y in range(image.shape[0]):
        _read_row(image, y, divisor, row)
        _gray_row(row, bound > ONE, gray)
        for x in range(np.uintp(sums.size)):
            sums[x] += gray[x]
    return np.float32(sums.sum() / (image.shape[0] * sums.size))


@kernel
def change_images(images: Any, channels: Any, ops: Any, numbers: Any, starts: Any, bound: Any, out: Any) -> None:  # noqa: PLR0917
    """Write images as chains of changes make them, with their channels first.

    Args:
        images: uint8 or float32 [m, height, width * channels], C-contiguous.
        channels: of a pixel, 1 or 3. Of one, saturation and hue change nothing.
        ops: int64 [n, 2]: kind, and where its numbers are; those of an image follow each other, in their order.
        numbers: float64: of colours and of sharpness a factor, of hue a part of the circle, -0.5 to 0.5; of AFFINE the
            six of the map from pixel to source, both counted from the middle, the source in halves of the image (as
            float32); NEAREST, LINEAR or LINEAR_FILLED; the colour outside, one a channel.
        starts: int64 [m + 1]: the first of each image's ops.
        bound: float32, the largest value of ``out``: 255 for bytes, 1 for floats.
        out: uint8 or float32 [m, channels, height, width].
    """
    number, _, height, width = out.shape
    divisor = BYTE if images.itemsize == 1 and bound == ONE else ONE
    rows = np.empty((5, channels, width), np.float32)
    sums, none = np.empty(width, np.float64), np.empty(0, np.float64)
    buffers = np.empty((2, channels, height, width), np.float32)
    for i in range(number):
        own, first, place, mean = ops[starts[i] : starts[i + 1]], 0, 0, ZERO
        if len(own) and own[0, 0] == CONTRAST:
            mean = _mean_of_image(images[i], divisor, bound, rows, sums)
        while True:
            end = _end_of_pass(own, numbers, first)
            part, is_last = own[first:end], end == len(own)
            if is_last:
                _run_pass(
                    images[i], buffers[place], first == 0, part, numbers, mean, divisor, bound, rows, none, out[i]
                )
                break
            wanted = none
            if own[end, 0] == CONTRAST:
                sums.fill(0.0)
                wanted = sums
            target = buffers[1 - place]
            _run_pass(images[i], buffers[place], first == 0, part, numbers, mean, divisor, bound, rows, wanted, target)
            if own[end, 0] == CONTRAST:
                mean = np.float32(sums.sum() / (height * width))
            first, place = end, 1 - place
