from typing import Any

import numpy as np
import pytest

from stepwell.errors import OrderError
from stepwell.sizes import parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (np.int64(7), 7),
        ("512 MiB", 512 << 20),
        ("2 GB", 2 * 10**9),
        ("1 GiB", 1 << 30),
        ("1.5kB", 1500),
        (" 3 kib ", 3072),
        ("2 TB", 2 * 10**12),
        ("10 B", 10),
    ],
)
def test_sizes_are_read_as_people_write_them(size: Any, expected: int) -> None:
    found = parse_bytes("bytes", size)
    assert (type(found), found) == (int, expected)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, None, "", "512", "MiB", "1 XB", "-1 GB", "1 iB", "0 MB", "0.1 B"])
def test_what_is_no_size_is_refused_by_name(size: Any) -> None:
    with pytest.raises(OrderError, match=r'memory=.*"512 MiB"'):
        parse_bytes("memory", size, error=OrderError)


def test_nothing_may_be_allowed() -> None:
    assert parse_bytes("queue", "0 B", least=0) == parse_bytes("queue", 0, least=0) == 0
