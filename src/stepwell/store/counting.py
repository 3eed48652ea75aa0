"""Numbers with their nouns, for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "step"), counted(25_650, "step")
        ('1 step', '25,650 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
