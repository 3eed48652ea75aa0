"""CRC-32C against its definition, by the instruction and by the tables, in one part and in many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.tfds.framing import crc32c, masked, masked_crc32c
from stepwell.tfds.record_kernels import crc32c_by_tables

# RFC 3720, appendix B.4
KNOWN = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"": 0}
LENGTHS = (1, 7, 8, 9, 255, 256, 767, 768, 769, 4096, 12287, 12288, 12289, 13056, 50001)


def by_definition(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def by_tables(data):
    array = np.frombuffer(data, np.uint8)
    return int(crc32c_by_tables(0, array.ctypes.data, array.size))


@pytest.mark.parametrize("data", KNOWN)
def test_known_sums_come_out(data):
    assert crc32c(data) == by_tables(data) == KNOWN[data]


@pytest.mark.parametrize("length", LENGTHS)
def test_stretches_of_all_lengths_are_joined_rightly(length):
    data = np.random.default_rng(length).bytes(length + 3)
    assert crc32c(data[3:]) == by_tables(data[3:])
    if length < 1000:
        assert crc32c(data[3:]) == by_definition(data[3:])


@given(st.binary(max_size=2000), st.integers(0, 2000))
@settings(max_examples=30)
def test_parts_give_the_sum_of_the_whole(data, cut):
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_arrays_of_any_dtype_are_taken_as_bytes():
    numbers = np.arange(7, dtype=np.float64)
    assert crc32c(numbers) == crc32c(numbers.tobytes()) == crc32c(memoryview(numbers.tobytes()))


def test_the_mask_can_be_undone():
    crc = crc32c(b"record")
    turned = (masked(crc) - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == crc
    assert masked_crc32c(b"record") == masked(crc)


def test_google_says_the_same():
    google = pytest.importorskip("google_crc32c")
    data = np.random.default_rng(0).bytes(100_001)
    assert google.value(data) == crc32c(data)
