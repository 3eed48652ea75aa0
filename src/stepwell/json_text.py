"""JSON that somebody else wrote."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return what a text of JSON says.

    Args:
        text: JSON; bytes are UTF-8, UTF-16 or UTF-32.

    Raises:
        ValueError: it is no JSON, no text, or nested too deep.

    Example:
        >>> parse_json('{"a": [1]}')
        {'a': [1]}
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: it is nested too deep
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        # its traceback is a thousand lines of the same
        raise ValueError("it is nested too deep") from error.with_traceback(None)
