"""How much memory a row may ask for, where its own bytes say how large it is: a stated limit, and not what they claim.

::

    a feature of fixed shape     what its shape has, whatever the row claims
    any other                    1 GiB, or 64 times the row's own bytes where that is more; STEPWELL_MAX_ROW_BYTES
"""

from __future__ import annotations

import functools
import os

from stepwell.errors import DecodeError, StepwellError
from stepwell.sizes import parse_bytes

__all__ = ["WHAT_TO_SET", "are_too_many_rows", "check_decoded_bytes", "is_too_large", "max_row_bytes", "most_bytes"]

VARIABLE = "STEPWELL_MAX_ROW_BYTES"
DEFAULT = "1 GiB"
# images and zeros are compressed more than that, but no single row of them is this large
USUAL_RATIO = 64
WHAT_TO_SET = (
    f"Allowed: {DEFAULT}, or {USUAL_RATIO} times what is stored. If it is right, set {VARIABLE}, e.g. to '8 GiB'."
)


def max_row_bytes() -> int:
    """Return how many bytes a row may become that says itself how large it is."""
    return _parsed(os.environ.get(VARIABLE) or DEFAULT)


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> int:
    return parse_bytes(VARIABLE, int(text) if text.isdecimal() else text, error=StepwellError)


def most_bytes(stored: int) -> int:
    """Return how many bytes of memory so many stored bytes may ask for."""
    return max(USUAL_RATIO * stored, max_row_bytes())


def is_too_large(num_bytes: int, stored: int) -> bool:
    """Return whether bytes of memory are more than so many stored bytes may ask for."""
    return num_bytes > USUAL_RATIO * stored and num_bytes > max_row_bytes()


def are_too_many_rows(num_rows: int, stored: int) -> bool:
    """Return whether a table claims more rows than its file may have, of 8 bytes each: what is alike takes no bytes."""
    return is_too_large(8 * num_rows, stored)


def check_decoded_bytes(num_bytes: int, stored: int, row: str) -> None:
    """Refuse a row that would become too large, before memory is allocated.

    Args:
        num_bytes: bytes of memory that the decoded row would take.
        stored: bytes of the stored row.
        row: its description, for the message.

    Example:
        >>> check_decoded_bytes(3 << 20, 100, "a png row")
    """
    if is_too_large(num_bytes, stored):
        raise DecodeError(f"{row}, stored in {stored:,} bytes, would take {num_bytes:,} of memory. {WHAT_TO_SET}")
