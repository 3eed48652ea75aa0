"""What a table was made with: checked, comparable, and as JSON for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stepwell.errors import TableError
from stepwell.replay import selectors
from stepwell.replay.limiters import Limiter
from stepwell.replay.patterns import Pattern
from stepwell.replay.selectors import Selector

__all__ = ["TableSettings", "make_selector"]

SELECTORS = {
    "uniform": "Uniform",
    "fifo": "Fifo",
    "lifo": "Lifo",
    "max_heap": "MaxHeap",
    "min_heap": "MinHeap",
    "prioritized": "Prioritized",
}
OWN = "own"
# as in the paper that brought prioritised replay (Schaul et al., 2015)
DEFAULT_EXPONENT = "0.6"
# of 255 that file systems allow: a suffix, and the marks of files that are not whole yet, come on top
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The arguments of a table, as `stepwell.replay.Table` has them.

    Raises:
        TableError: arguments that cannot be.
    """

    name: str
    max_size: int
    sampler: str
    remover: str
    max_times_sampled: int
    limiter: Limiter
    pattern: Pattern | None
    seed: int
    follow_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not _is_file_name(self.name):
            raise TableError(
                f"name={_shortened(self.name)}: a table's name becomes a file's name. Use letters, digits, - and _, of "
                f"{MAX_NAME_BYTES} bytes in all."
            )
        for key, least in (("max_size", 1), ("max_times_sampled", 0), ("seed", 0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TableError(f"{key}={value!r} of table {self.name!r} must be a whole number, at least {least}.")
        seconds = self.follow_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise TableError(f"follow_seconds={seconds!r} of table {self.name!r}: allowed are seconds, 0 or more.")
        if not isinstance(self.limiter, Limiter):
            raise TableError(
                f"limiter={self.limiter!r} is no Limiter. Use MinSize, SampleToInsertRatio, Queue or Stack."
            )
        if not (self.pattern is None or isinstance(self.pattern, Pattern)):
            raise TableError(
                f"pattern={self.pattern!r} is no Pattern. None makes a table that is filled by create_item."
            )
        self.limiter.check_size(self.max_size)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON types."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        pattern = None if self.pattern is None else self.pattern.to_json()
        return {**record, "limiter": self.limiter.to_json(), "pattern": pattern}

    def arguments(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a table with these settings, but for those that change.

        Raises:
            TableError: a change of something else; a selector of the user's own class that is not among the changes.
        """
        names = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - names - {"extensions"})
        if unknown:
            raise TableError(f"{unknown[0]!r} is no argument of a table. They are {', '.join(sorted(names))}.")
        for role in ("sampler", "remover"):
            text = getattr(self, role)
            if text.startswith(OWN) and role not in changes:
                raise TableError(
                    f"the {role} of table {self.name!r} was a {text.removeprefix(OWN).strip()}, which a checkpoint "
                    f"cannot make again. Give it: restore(..., {role}=...)."
                )
        return {name: getattr(self, name) for name in names if name not in changes}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableSettings:
        """Return the settings of `to_json`."""
        pattern = record["pattern"]
        return cls(
            **{
                **record,
                "limiter": Limiter.from_json(record["limiter"]),
                "pattern": None if pattern is None else Pattern.from_json(pattern),
            }
        )


def _is_file_name(name: object) -> bool:
    if not isinstance(name, str) or not name or name != name.strip() or name[0] == ".":
        return False
    is_encodable = not any("\ud800" <= character <= "\udfff" for character in name)
    return is_encodable and not set(name) & set('/\\:*?"<>|\0') and len(name.encode()) <= MAX_NAME_BYTES


def _shortened(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:80]}..."


def make_selector(given: str | Selector, role: str) -> tuple[Selector, str]:
    """Return a selector and the text that makes it again.

    Args:
        given: "uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized", "prioritized(0.5)", or an object.
        role: what an error calls it: "sampler" or "remover".

    Returns:
        The selector, and its text: a checkpoint keeps it. Of a class that is not stepwell's it begins with "own".

    Raises:
        TableError: no such name; an object that is in use.
    """
    if isinstance(given, Selector):
        if given.num or given.is_taken:
            raise TableError(f"{role}={given!r} is another table's already. Give each table a selector of its own.")
        return given, _text_of(given)
    name, _, rest = str(given).partition("(")
    if name == "prioritized" and not rest:
        rest = DEFAULT_EXPONENT
    if name not in SELECTORS:
        raise TableError(f"{role}={given!r} is not one of {', '.join(SELECTORS)} or a Selector.")
    try:
        made: Selector = getattr(selectors, SELECTORS[name])(*([float(rest.rstrip(")"))] if rest else []))
    except (TypeError, ValueError):
        raise TableError(f'{role}={given!r}: only "prioritized" takes a number, its exponent.') from None
    return made, _text_of(made)


def _text_of(selector: Selector) -> str:
    for text, name in SELECTORS.items():
        if type(selector) is getattr(selectors, name, None):
            exponent = getattr(selector, "exponent", None)
            return text if exponent is None else f"{text}({exponent!r})"
    return f"{OWN} {type(selector).__name__}"
