"""Headers of ``.npy`` files, read by several threads.

numpy reads them by ``ast.literal_eval``. Before Python 3.12 all threads of a process share the depth that it counts
while it builds the tree: where threads change places in the midst of it, SystemError says that a good header's does
not add up.

Source:
    CPython, issue 106905.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["read_again"]

MAX_TRIES = 10

Found = TypeVar("Found")


def read_again(read: Callable[[], Found]) -> Found:
    """Return what a function reads; it is called again where another thread came in between.

    Args:
        read: reads ``.npy`` headers, from the beginning each time.

    Raises:
        SystemError: it was so every time.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()
