"""Sizes, counts and ranges as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError

__all__ = ["counted", "human_bytes", "parse_bytes", "ranges_of"]

_PREFIXES = ("", "k", "m", "g", "t")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE)


def parse_bytes(name: str, size: int | str, *, least: int = 1, error: type[StepwellError] = StepwellError) -> int:
    """Return a number of bytes, an int or a text: kB, MB, GB, TB are powers of 1,000, KiB, MiB, GiB, TiB of 1,024."""
    if isinstance(size, str) and (found := _FORM.fullmatch(size)):
        number, prefix, is_binary = found.groups()
        if (prefix or not is_binary) and (whole := _multiply(number, prefix.lower(), bool(is_binary))) >= least:
            return whole
    elif isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= least:
        return int(size)
    raise error(f'{name}={size!r}. Allowed is an int of at least {least}, or a size such as "512 MiB" or "2 GB".')


def _multiply(number: str, prefix: str, is_binary: bool) -> int:
    return int(Fraction(number) * (1024 if is_binary else 1000) ** _PREFIXES.index(prefix))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_bytes(size: int) -> str:
    """Return a size for people, three digits and a decimal unit."""
    value, unit = float(size), 0
    # 999.5 would print as 1000 of the smaller unit
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def ranges_of(numbers: npt.ArrayLike) -> list[str]:
    """Return ascending numbers as the command line takes them.

    Example:
        >>> ranges_of([0, 3, 4, 5, 9])
        ['0', '3:6', '9']
    """
    ascending = np.asarray(numbers)
    if not len(ascending):
        return []
    runs = np.split(ascending, np.flatnonzero(np.diff(ascending) > 1) + 1)
    return [str(run[0]) if len(run) == 1 else f"{run[0]}:{run[-1] + 1}" for run in runs]
