"""Taps of resizing, and the two ways through an image, against sums in NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.transforms.images_crops_kernels import HORIZONTAL, VERTICAL, image_addresses
from stepwell.transforms.images_resizing_kernels import (
    ANTIALIAS,
    AREA,
    LINEAR,
    NEAREST,
    axis_taps,
    num_taps,
    resize_bytes,
    resize_floats,
)

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
