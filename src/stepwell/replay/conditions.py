"""Conditions on the step at which a pattern would make an item: ``step_index % 2 == 0``, ``feature("reward") > 0``.

The step is the item's last one, as in Reverb's ``StructuredWriter``: what it says is known when the item is made.

Source: Reverb, ``reverb/structured_writer.py`` (``Condition``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError

__all__ = ["Condition", "StepValue", "feature", "is_end", "step_index", "steps_since_applied"]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
STEP_INDEX, STEPS_SINCE_APPLIED, IS_END, FEATURE = "step_index", "steps_since_applied", "is_end", "feature"


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a value of a step with a number; made by comparing one of the values of this module.

    Args:
        source: "step_index", "steps_since_applied", "is_end" or "feature".
        name: of the feature.
        modulus: what the value is reduced by first; 0 for not at all.
        comparison: "==", "!=", "<", "<=", ">" or ">=".
        number: what it is compared with.
    """

    source: str
    name: str
    modulus: int
    comparison: str
    number: float

    def __post_init__(self) -> None:
        if self.source not in (STEP_INDEX, STEPS_SINCE_APPLIED, IS_END, FEATURE) or self.comparison not in OPERATORS:
            raise TableError(
                f"no condition is {self.source!r} {self.comparison!r}. Compare step_index, steps_since_applied, is_end "
                "or feature(name) with a number."
            )

    def holds(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return for which values it holds.

        Args:
            values: [n], of the condition's source.

        Example:
            >>> (step_index % 2 == 0).holds(np.arange(4))
            array([ True, False,  True, False])
        """
        values = values % self.modulus if self.modulus else values
        return np.asarray(OPERATORS[self.comparison](values, self.number), np.bool_)

    def __bool__(self) -> bool:
        raise TableError(
            f"{self} is neither true nor false here. Give several conditions as where=[a, b]; all must hold."
        )

    def __str__(self) -> str:
        value = f'feature("{self.name}")' if self.source == FEATURE else self.source
        return f"{value}{f' % {self.modulus}' if self.modulus else ''} {self.comparison} {self.number:g}"


@dataclass(frozen=True, slots=True, eq=False)
class StepValue:
    """A number that each step has; comparing it with another number makes a `Condition`."""

    source: str
    name: str = ""
    modulus: int = 0

    def __mod__(self, modulus: int) -> StepValue:
        """Return the value's remainder."""
        if not isinstance(modulus, int) or modulus < 1:
            raise TableError(f"{self.source} % {modulus!r}: the modulus must be a whole number, at least 1.")
        return replace(self, modulus=modulus)

    def compared(self, comparison: str, number: float) -> Condition:
        """Return the condition that the value compares so with a number."""
        return Condition(self.source, self.name, self.modulus, comparison, float(number))

    def __eq__(self, number: float) -> Condition:  # type: ignore[override]
        return self.compared("==", number)

    def __ne__(self, number: float) -> Condition:  # type: ignore[override]
        return self.compared("!=", number)

    def __lt__(self, number: float) -> Condition:
        return self.compared("<", number)

    def __le__(self, number: float) -> Condition:
        return self.compared("<=", number)

    def __gt__(self, number: float) -> Condition:
        return self.compared(">", number)

    def __ge__(self, number: float) -> Condition:
        return self.compared(">=", number)

    __hash__ = None  # type: ignore[assignment]


step_index = StepValue(STEP_INDEX)
"""How many steps of the episode lie before the item's last step."""

steps_since_applied = StepValue(STEPS_SINCE_APPLIED)
"""Steps since this pattern last made an item in the episode, or since the episode began: 1 at its first step."""

is_end = StepValue(IS_END) == 1
"""The item's last step is the last of an episode that has ended."""


def feature(name: str) -> StepValue:
    """Return the value of a scalar raw feature (a number or a bool) at the item's last step.

    Example:
        >>> print(feature("reward") > 0)
        feature("reward") > 0
    """
    return StepValue(FEATURE, name)
