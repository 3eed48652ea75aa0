"""The intrinsics against numpy, at every alignment and around every size that a copy treats on its own."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from stepwell.kernels import memory


@njit
def copy(target, source, number):
    memory.memcpy(target, source, number)


@njit
def fill(target, value, number):
    memory.memset(target, value, number)


@njit
def load(address):
    return memory.load_u64(address)


@njit
def store(address, value):
    memory.store_u8(address, value)


@njit
def fetch(address):
    memory.prefetch(address)


@njit
def copy_past_caches(target, source, number):
    for at in range(0, number, memory.STREAM_BYTES):
        memory.stream(target + at, source + at)
    memory.end_stream()


def address_of(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 4096, 100_003])
def test_memcpy_copies_exactly_the_bytes_it_was_asked_for(size):
    source = np.random.default_rng(size).integers(1, 255, size + 8, dtype=np.uint8)
    for shift in (0, 1, 3):
        target = np.zeros(size + 16, np.uint8)
        copy(address_of(target) + 4 + shift, address_of(source) + shift, size)
        expected = np.zeros_like(target)
        expected[4 + shift : 4 + shift + size] = source[shift : shift + size]
        np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("size", [0, 1, 8, 13, 64, 1000])
def test_memset_fills_exactly_the_bytes_it_was_asked_for(size):
    target = np.full(size + 10, 9, np.uint8)
    fill(address_of(target) + 5, np.uint8(200), size)
    assert target.tolist() == [9] * 5 + [200] * size + [9] * 5


def test_load_reads_unaligned_little_endian_words():
    data = np.arange(1, 20, dtype=np.uint8)
    for shift in range(9):
        assert load(address_of(data) + shift) == int.from_bytes(data[shift : shift + 8].tobytes(), "little")


def test_store_writes_one_byte():
    data = np.zeros(5, np.uint8)
    store(address_of(data) + 2, np.uint8(255))
    assert data.tolist() == [0, 0, 255, 0, 0]


@pytest.mark.parametrize("address", [0, 1, -1, 1 << 62])
def test_prefetch_of_any_address_does_no_harm(address):
    fetch(address)


@pytest.mark.parametrize("lines", [0, 1, 5])
@pytest.mark.parametrize("shift", [0, 4, 60])
def test_stream_copies_whole_lines_from_anywhere(lines, shift):
    size = lines * memory.STREAM_BYTES
    source = np.random.default_rng(lines).integers(1, 255, size + shift, dtype=np.uint8)
    target = np.zeros(size + 3 * memory.STREAM_BYTES, np.uint8)
    first = -address_of(target) % memory.STREAM_BYTES + memory.STREAM_BYTES
    copy_past_caches(address_of(target) + first, address_of(source) + shift, size)
    expected = np.zeros_like(target)
    expected[first : first + size] = source[shift:]
    np.testing.assert_array_equal(target, expected)
