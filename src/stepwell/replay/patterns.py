"""Patterns: which slices of the history become items of a table, and when.

::

    episode     0   1   2   3   4   5   6   7   8 | end          Pattern(length=3, every=2, ahead=1)
    item 0      [---------]   a                                  made once step 3 is committed
    item 2              [---------]   a                          step 5
    item 4                      [---------]   a                  step 7
    item 6                              [---------]              the end: a step ahead would be padding (ends="keep")
    item 8                                      [-              shorter, for the same reason

An item covers steps [a, a + length) and is made once step a + length - 1 + ahead is committed, or the episode has
ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stepwell.errors import TableError
from stepwell.replay.conditions import IS_END, STEPS_SINCE_APPLIED, Condition

__all__ = ["Pattern", "at_episode_end", "every_step"]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which items a table makes of the steps of its store.

    Args:
        length: steps that an item covers; near the end of an episode an item may cover fewer.
        every: steps between two items, counted from the true beginning of an episode, evicted steps included.
        ahead: steps after an item's last one that must be committed before it is made. 1 (default) suits a transition
            whose next observation is read; a final row counts as a step. A loader refuses fields that reach further.
        behind: steps before an item's first one that ``ends="drop"`` asks for.
        ends: "keep" also makes the items near the ends of an episode, whose windows are padded and marked; "drop" only
            those of which all steps, ``ahead`` and ``behind`` are there.
        at: "step" for items all along an episode, "end" for one item that covers its last ``length`` steps; with
            ``ends="drop"`` the last ones that have all ``ahead`` steps after them.
        where: conditions on an item's last step, of `stepwell.replay.conditions`; all must hold.

    Raises:
        TableError: numbers or words that cannot be.

    Example:
        >>> Pattern(length=4, every=2).reach
        4
        >>> from stepwell.replay.conditions import step_index
        >>> print(Pattern(where=[step_index % 2 == 0]))
        Pattern(where=[step_index % 2 == 0])
    """

    length: int = 1
    every: int = 1
    ahead: int = 1
    behind: int = 0
    ends: Literal["keep", "drop"] = "keep"
    at: Literal["step", "end"] = "step"
    where: Sequence[Condition] = ()

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("every", 1), ("ahead", 0), ("behind", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TableError(f"{name}={value!r} of a pattern must be a whole number, at least {least}.")
        if self.ends not in ("keep", "drop"):
            raise TableError(f'ends={self.ends!r} is not one of "keep", "drop".')
        if self.at not in ("step", "end"):
            raise TableError(f'at={self.at!r} is not one of "step", "end".')
        if self.at == "end" and self.every != 1:
            raise TableError('every= does not go with at="end": an episode has one item.')
        conditions = (self.where,) if isinstance(self.where, Condition) else tuple(self.where)
        for condition in conditions:
            if not isinstance(condition, Condition):
                raise TableError(
                    f"where={condition!r} is no condition. Compare a value of stepwell.replay.conditions with a "
                    "number, such as step_index % 2 == 0."
                )
            if condition.source == IS_END and self.ahead == 0 and self.at == "step":
                raise TableError(
                    "is_end of an item that is made with its last step (ahead=0) is not known yet. Use ahead=1, "
                    'or at="end".'
                )
        object.__setattr__(self, "where", conditions)

    @property
    def reach(self) -> int:
        """How many steps after an item's first one are committed when it is made, unless its episode has ended."""
        return self.length - 1 + self.ahead

    @property
    def needs_applied(self) -> bool:
        """Whether a condition asks for the steps since the last item, which must be remembered an episode."""
        return any(condition.source == STEPS_SINCE_APPLIED for condition in self.where)

    def __str__(self) -> str:
        parts = [
            f"{name}={getattr(self, name)!r}"
            for name in ("length", "every", "ahead", "behind", "ends", "at")
            if getattr(self, name) != getattr(EVERY_STEP, name)
        ]
        if self.where:
            parts.append(f"where=[{', '.join(map(str, self.where))}]")
        return f"Pattern({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """Return the pattern as JSON types."""
        return {**asdict(self), "where": [asdict(condition) for condition in self.where]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Pattern:
        """Return the pattern of `to_json`."""
        return cls(**{**record, "where": [Condition(**condition) for condition in record["where"]]})


EVERY_STEP = Pattern()


def every_step(length: int = 1, *, ahead: int = 1) -> Pattern:
    """Return the pattern of an item at each step.

    Args:
        length: steps that it covers.
        ahead: steps after its last one that must be committed first; for n-step returns, n.
    """
    return Pattern(length=length, ahead=ahead)


def at_episode_end(length: int = 1) -> Pattern:
    """Return the pattern of one item an episode, of its last ``length`` steps, made when it ends."""
    return Pattern(length=length, ahead=0, at="end")
