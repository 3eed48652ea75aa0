"""Patterns: which slices of the history become items, when, and under which conditions.

A condition looks at the step at which a pattern would make an item: ``step_index % 2 == 0``, ``feature("reward") > 0``.
The step is the item's last one, as in Reverb's ``StructuredWriter``: its values are known when the item is made.

Source: Reverb, ``reverb/structured_writer.py`` (``Condition``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError

__all__ = [
    "Condition",
    "Pattern",
    "StepValue",
    "at_episode_end",
    "every_step",
    "feature",
    "is_end",
    "step_index",
    "steps_since_applied",
]

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

    Example:
        >>> step_index % 4 == 0
        Condition(source='step_index', name='', modulus=4, comparison='==', number=0.0)
        >>> feature("reward") > 0.5
        Condition(source='feature', name='reward', modulus=0, comparison='>', number=0.5)
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
        where: conditions on an item's last step, of `stepwell.replay.patterns`; all must hold.

    Raises:
        TableError: numbers or words that cannot be.

    Example:
        >>> Pattern(length=4, every=2).reach
        4
        >>> from stepwell.replay.patterns import step_index
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
                    f"where={condition!r} is no condition. Compare a value of stepwell.replay.patterns with a "
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
