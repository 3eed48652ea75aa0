"""The kernels of crops and of resizing against plain indexing and sums in NumPy, on images that lie anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.transforms.cropping_kernels import (
    ANTIALIAS,
    AREA,
    HORIZONTAL,
    LINEAR,
    NEAREST,
    STREAMED_BYTES,
    VERTICAL,
    axis_taps,
    crop_affine,
    crop_planes,
    crop_rows,
    crop_tables,
    image_addresses,
    num_taps,
    resize_bytes,
    resize_floats,
    whole,
)

GUARD = 0xEE


def scattered(images):
    """The same images at odd addresses in a memory of poison, in another order; the memory and their addresses."""
    size = images[0].size + 7
    memory = np.full(size * len(images) + 9, GUARD, np.uint8)
    places = 9 + size * np.random.default_rng(1).permutation(len(images))
    for image, place in zip(images, places, strict=True):
        memory[place : place + image.size] = image.reshape(-1)
    return memory, memory.ctypes.data + places.astype(np.int64)


def expected_cut(image, box, sides, flip, fill):
    """A part of an image with a border wide enough, turned."""
    reach = 64
    pad = ((reach, reach), (reach, reach), (0, 0))
    wide = np.pad(image, pad, mode="edge")
    if fill.size:
        inside = wide[reach:-reach, reach:-reach].copy()
        wide[:] = fill
        wide[reach:-reach, reach:-reach] = inside
    top, left = box[0] + reach, box[1] + reach
    part = wide[top : top + sides[0], left : left + sides[1]]
    part = part[::-1] if flip & VERTICAL else part
    return part[:, ::-1] if flip & HORIZONTAL else part


@st.composite
def cuts(draw):
    height, width, channels = draw(st.integers(1, 30)), draw(st.integers(1, 30)), draw(st.sampled_from([1, 2, 3, 4, 6]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    number = draw(st.integers(0, 5))
    sides = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    boxes = np.zeros((number, 4), np.int64)
    boxes[:, :2] = rng.integers(-20, 20, (number, 2))
    flips = rng.integers(0, 4, number).astype(np.uint8)
    fill = rng.integers(0, 256, channels).astype(np.uint8) if draw(st.booleans()) else np.empty(0, np.uint8)
    images = rng.integers(0, 256, (number, height, width, channels), dtype=np.uint8)
    expected = [expected_cut(*of, sides, flip, fill) for *of, flip in zip(images, boxes, flips, strict=True)]
    return images, sides, boxes, flips, fill, np.array(expected, np.uint8).reshape(number, *sides, channels)


@settings(deadline=None, max_examples=150)
@given(cuts())
def test_boxes_are_cut_out_of_images_at_any_address(cut):
    images, sides, boxes, flips, fill, expected = cut
    number, height, width, channels = images.shape
    memory, addresses = scattered(images) if number else (None, np.empty(0, np.int64))
    before = None if memory is None else memory.copy()
    guarded = np.full(expected.size + 2 * 64, GUARD, np.uint8)
    out = guarded[64 : 64 + expected.size].reshape(number, sides[0], sides[1] * channels)
    crop_rows(addresses, (height, width, channels), boxes, flips, fill, out)
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)
    assert (guarded[:64] == GUARD).all() and (guarded[64 + expected.size :] == GUARD).all()
    assert memory is None or (memory == before).all()


@settings(deadline=None, max_examples=60)
@given(cuts())
def test_boxes_are_cut_with_their_channels_first(cut):
    images, sides, boxes, flips, fill, expected = cut
    number, *shape = images.shape
    out = np.empty((number, shape[2], *sides), np.uint8)
    crop_planes(image_addresses(images), tuple(shape), boxes, flips, fill, out)
    np.testing.assert_array_equal(out, np.moveaxis(expected, -1, 1))


@settings(deadline=None, max_examples=60)
@given(cuts(), st.booleans())
def test_boxes_are_cut_and_scaled(cut, is_planar):
    images, sides, boxes, flips, fill, expected = cut
    number, *shape = images.shape
    lines = np.random.default_rng(0).normal(size=(3, shape[2])).astype(np.float32)
    out = np.empty((number, shape[2], *sides) if is_planar else (number, *sides, shape[2]), np.float32)
    crop_affine(image_addresses(images), tuple(shape), boxes, flips, fill, lines, is_planar, out)
    scaled = expected * lines[0] + expected * lines[1] + lines[2]
    np.testing.assert_allclose(out, np.moveaxis(scaled, -1, 1) if is_planar else scaled, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("is_planar", [True, False], ids=["CHW", "HWC"])
@pytest.mark.parametrize("shape", [(7, 256, 208, 3), (20, 300, 61, 3), (4, 260, 1030, 1), (2, 500, 400, 4)])
@pytest.mark.parametrize("offset", [0, 4], ids=["aligned", "between lines"])
def test_images_larger_than_the_caches_are_scaled(shape, is_planar, offset):
    number, channels = shape[0], shape[3]
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    memory = np.full(4 * images.size + 3 * 64, GUARD, np.uint8)
    first = -memory.ctypes.data % 64 + 64 + offset
    out = memory[first : first + 4 * images.size].view(np.float32)
    assert out.nbytes >= STREAMED_BYTES
    wanted = np.moveaxis(images, -1, 1) if is_planar else images
    per_channel = np.random.default_rng(1).normal(size=(3, channels)).astype(np.float32)
    unit = np.array([[257 / 65536], [1 / (255 * 65536)], [0]], np.float32).repeat(channels, axis=1)
    boxes, flips, fill = np.zeros((number, 4), np.int64), np.zeros(number, np.uint8), np.empty(0, np.uint8)
    rows = image_addresses(images), shape[1:], boxes, flips, fill
    as_rows = (number, channels, 1, -1) if is_planar else (number, 1, -1, channels)
    for cut, form in ((rows, wanted.shape), (whole(images), as_rows)):
        out[:] = 0
        crop_affine(*cut, unit, is_planar, out.reshape(form))
        np.testing.assert_array_equal(out.reshape(wanted.shape), wanted / np.float32(255))
        crop_affine(*cut, per_channel, is_planar, out.reshape(form))
        scale, rest, shift = (np.expand_dims(line, (1, 2)) if is_planar else line for line in per_channel)
        np.testing.assert_array_equal(out.reshape(wanted.shape), wanted * scale + wanted * rest + shift)
    assert (memory[:first] == GUARD).all() and (memory[first + out.nbytes :] == GUARD).all()


@settings(deadline=None, max_examples=60)
@given(cuts(), st.booleans(), st.sampled_from([np.uint8, np.float32]))
def test_boxes_are_cut_and_looked_up(cut, is_planar, dtype):
    images, sides, boxes, flips, fill, expected = cut
    number, *shape = images.shape
    tables = np.random.default_rng(0).integers(0, 256, (shape[2], 256)).astype(dtype)
    out = np.empty((number, shape[2], *sides) if is_planar else (number, *sides, shape[2]), dtype)
    crop_tables(image_addresses(images), tuple(shape), boxes, flips, fill, tables, is_planar, out)
    found = tables[np.arange(shape[2]), expected]
    np.testing.assert_array_equal(out, np.moveaxis(found, -1, 1) if is_planar else found)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float64])
def test_pixels_are_of_any_dtype(dtype):
    images = np.random.default_rng(0).normal(size=(3, 9, 11, 3)).astype(dtype)
    pixel = 3 * images.itemsize
    out = np.empty((3, 5, 6 * pixel), np.uint8)
    boxes = np.array([[0, 0, 5, 6], [4, 5, 5, 6], [2, 1, 5, 6]])
    flips = np.array([0, HORIZONTAL, VERTICAL], np.uint8)
    crop_rows(image_addresses(images), (9, 11, pixel), boxes, flips, np.empty(0, np.uint8), out)
    cut = out.view(dtype).reshape(3, 5, 6, 3)
    np.testing.assert_array_equal(cut[0], images[0, :5, :6])
    np.testing.assert_array_equal(cut[1], images[1, 4:9, 5:11][:, ::-1])
    np.testing.assert_array_equal(cut[2], images[2, 2:7, 1:7][::-1])


KINDS = [LINEAR, ANTIALIAS, AREA, NEAREST]
PAGE = 4096


def taps_of(kind, length, number):
    starts, weights = np.empty(number, np.int64), np.empty((number, num_taps(kind, length, number)))
    axis_taps(kind, length, number, starts, weights)
    return starts, weights


def as_matrix(kind, length, number):
    """What an axis does, [number, length]."""
    starts, weights = taps_of(kind, length, number)
    matrix = np.zeros((number, length))
    for i in range(number):
        matrix[i, starts[i] : starts[i] + weights.shape[1]] += weights[i]
    return matrix


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(KINDS), st.integers(1, 300), st.integers(1, 300))
def test_taps_lie_within_the_axis_and_sum_to_one(kind, length, number):
    starts, weights = taps_of(kind, length, number)
    assert (starts >= 0).all() and (starts + weights.shape[1] <= length).all()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([LINEAR, ANTIALIAS, AREA]), st.integers(1, 200), st.integers(1, 200))
def test_an_axis_is_resized_alike_from_both_ends(kind, length, number):
    matrix = as_matrix(kind, length, number)
    np.testing.assert_allclose(matrix[::-1, ::-1], matrix, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_an_axis_of_the_same_length_stays(kind):
    np.testing.assert_allclose(as_matrix(kind, 37, 37), np.eye(37), atol=1e-12)


def test_area_is_the_mean_of_what_an_output_covers():
    np.testing.assert_allclose(as_matrix(AREA, 6, 2), [[1 / 3] * 3 + [0] * 3, [0] * 3 + [1 / 3] * 3], atol=1e-12)
    np.testing.assert_allclose(as_matrix(AREA, 3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], atol=1e-12)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_boxes_are_resized_by_the_taps_of_both_axes(data):
    kind, channels = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([1, 2, 3, 4]))
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    rows, columns = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    images = rng.integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    sides = rng.integers(1, [height + 1, width + 1], (3, 2))
    boxes = np.concatenate([rng.integers(0, [height, width] - sides + 1), sides], axis=1)
    flips = rng.integers(0, 4, 3).astype(np.uint8)
    out, floats = np.empty((3, rows, columns, channels), np.uint8), np.empty((3, rows, columns, channels), np.float32)
    resize_bytes(image_addresses(images), images.shape[1:], boxes, flips, kind, out)
    resize_floats(images.astype(np.float32), boxes, flips, kind, floats)
    for i, (top, left, box_height, box_width) in enumerate(boxes):
        part = images[i, top : top + box_height, left : left + box_width].astype(float)
        expected = np.einsum(
            "yY,xX,YXc->yxc", as_matrix(kind, box_height, rows), as_matrix(kind, box_width, columns), part
        )
        expected = expected[::-1] if flips[i] & VERTICAL else expected
        expected = expected[:, ::-1] if flips[i] & HORIZONTAL else expected
        assert np.abs(out[i] - expected).max() <= 0.6
        np.testing.assert_allclose(floats[i], expected, atol=1e-3)


@pytest.mark.parametrize("size", [(5, 9), (40, 50), (23, 3), (60, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_after_the_last_image(kind, size):
    mmap = pytest.importorskip("mmap")
    height, width = 16, 85
    used = height * width * 3
    memory = mmap.mmap(-1, 2 * PAGE)
    # the image ends with the page; what comes after it is not to be read
    whole = np.frombuffer(memory, np.uint8)
    image = whole[PAGE - used :][:used]
    image[:] = np.random.default_rng(0).integers(0, 256, used)
    results = []
    for poison in (0, 255):
        whole[PAGE:] = poison
        out = np.empty((1, *size, 3), np.uint8)
        boxes = np.array([[0, 0, height, width]])
        addresses = np.array([image.ctypes.data])
        resize_bytes(addresses, (height, width, 3), boxes, np.zeros(1, np.uint8), kind, out)
        results.append(out)
    np.testing.assert_array_equal(*results)
