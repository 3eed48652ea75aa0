"""Conditions on episodes as text, such as ``length > 100 and not success``; the language of ``where=``.

::

    condition = both ("or" both)*
    both      = one (("and" | ",") one)*
    one       = "not" one | "(" condition ")" | NAME | NAME OP VALUE | NAME "in" "(" VALUE ("," VALUE)* ")"
    OP        = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    VALUE     = a number | true | false | null | "text" | 'text' | words up to the next and, or, comma or bracket

It is parsed here and never handed to Python: a condition can do nothing but compare.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from stepwell.errors import WindowError, did_you_mean
from stepwell.store.episodes import EpisodeTable

__all__ = ["FACTS", "Condition", "Names", "facts_of", "sort_key", "value_of"]

# what is known of every episode without its metadata
NUMBERS = ("episode_index", "length")
FACTS = (*NUMBERS, "terminated", "truncated", "interrupted", "is_open")
MAX_LENGTH = 10_000
MAX_DEPTH = 50
TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
      | (?P<op>[=!<>]=|[=<>~])
      | (?P<mark>[(),])
      | (?P<word>[^\s=!<>~(),"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)
WORDS = ("and", "or", "not", "in")
CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
EXAMPLE = 'Write it such as: length > 100 and not success, or task = "push it"; see stepwell\'s docs/command-line.md'


class Token(NamedTuple):
    """A piece of a condition and where it stands."""

    kind: str
    text: str
    start: int
    stop: int


class Literal(NamedTuple):
    """A value to compare with: as it was written, and what it means; a quoted one is a text and nothing else."""

    text: str
    value: Any


Test = Callable[[Mapping[str, Any]], bool]
_MISSING = object()


class Condition:
    """A condition on the facts of an episode: its metadata, and `FACTS`.

    A name alone holds where its value is true, not zero and not empty. A bare word equals a text and, where it is a
    number, ``true``, ``false`` or ``null``, that value. Of a list any item may be equal. Numbers are ordered among
    numbers, texts among texts; ``~`` is "contains", whatever the case. ``a.b`` is also ``b`` within ``a``. Of an
    episode without the name nothing holds but ``!=`` and ``not``.

    Args:
        text: the condition; at most 10,000 characters.

    Raises:
        WindowError: it cannot be parsed, or compares one of `FACTS` with a text; the message points at the place.

    Example:
        >>> condition = Condition("length >= 10 and (task ~ push or seed in (1, 2)) and not success")
        >>> sorted(condition.names)
        ['length', 'seed', 'success', 'task']
        >>> condition({"length": 12, "task": "Push the T", "success": False})
        True
        >>> condition({"length": 12, "task": "lift", "seed": 3})
        False
    """

    def __init__(self, text: str) -> None:
        self.text = text
        parser = _Parser(text)
        self._test = parser.parse()
        self.names = frozenset(parser.names)

    def __call__(self, facts: Mapping[str, Any]) -> bool:
        """Return whether it holds of an episode."""
        return self._test(facts)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Condition, (self.text,)


def value_of(facts: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a name; ``a.b`` is also ``b`` within ``a``."""
    if name in facts:
        return facts[name]
    head, dot, rest = name.partition(".")
    inner = facts.get(head) if dot else None
    return value_of(inner, rest, default) if isinstance(inner, Mapping) else default


def facts_of(table: EpisodeTable, index: int, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the metadata of an episode and what its table says of it; no metadata where ``names`` need none."""
    needs_metadata = names is None or not set(names).issubset(FACTS)
    columns = {name: getattr(table, name)[index].item() for name in FACTS if name != "episode_index"}
    return {**(table.metadata(index) if needs_metadata else {}), "episode_index": index, **columns}


def sort_key(value: Any) -> tuple[int, Any]:
    """Return what values of any kinds are sorted by: numbers, then texts, then others by their JSON, then none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return 3, 0
    if isinstance(value, bool | int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, json.dumps(value, default=str, sort_keys=True))


class _Parser:
    """A recursive descent over the tokens of one condition."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise WindowError(f"a condition of {len(text):,} characters. Allowed: {MAX_LENGTH:,}.")
        self._source, self.names = text, set[str]()
        self._depth = 0
        self._tokens: list[Token] = []
        place = 0
        while place < len(text.rstrip()):
            found = TOKEN.match(text, place)
            if found is None:
                self._fail("this cannot be read", len(text) - len(text[place:].lstrip()))
            kind = str(found.lastgroup)
            self._tokens.append(Token(kind, found[kind], found.start(kind), found.end(kind)))
            place = found.end()
        self._next = 0

    def parse(self) -> Test:
        """Return the test that the whole text says."""
        if not self._tokens:
            raise WindowError(f"a condition without a word. {EXAMPLE}.")
        test = self._either()
        if self._peek() is not None:
            self._fail("and, or, or a comma is missing before this")
        return test

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _takes(self, *words: str) -> bool:
        """Whether the next token is one of some words or marks; it is taken then."""
        token = self._peek()
        if token is None or token.kind == "text" or token.text.lower() not in words:
            return False
        self._next += 1
        return True

    def _fail(self, what: str, place: int | None = None) -> NoReturn:
        token = self._peek() if place is None else None
        start = (token.start if token else len(self._source)) if place is None else place
        rest = self._source[start : start + 30]
        where = f"at {rest!r}" if rest.strip() else "at its end"
        raise WindowError(f"condition {self._source!r}: {what}, {where}. {EXAMPLE}.")

    def _either(self) -> Test:
        tests = [self._both()]
        while self._takes("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda facts: any(test(facts) for test in tests)

    def _both(self) -> Test:
        tests = [self._one()]
        while self._takes("and", ","):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda facts: all(test(facts) for test in tests)

    def _one(self) -> Test:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} brackets within each other")
        try:
            if self._takes("not"):
                test = self._one()
                return lambda facts: not test(facts)
            if self._takes("("):
                test = self._either()
                if not self._takes(")"):
                    self._fail("a closing bracket is missing")
                return test
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Test:
        token = self._peek()
        if token is None or token.kind not in ("word", "text") or (token.kind == "word" and token.text in WORDS):
            self._fail("a name is missing")
        self._next += 1
        name = _unquoted(token.text) if token.kind == "text" else token.text
        self.names.add(name)
        found = self._peek()
        if found is not None and found.kind == "op":
            self._next += 1
            return _comparing(name, found.text, self._value(None if found.text == "~" else name))
        if self._takes("in"):
            return _one_of(name, self._values(name))
        return lambda facts: bool(value_of(facts, name))

    def _values(self, name: str) -> list[Literal]:
        if not self._takes("("):
            self._fail("a bracket is missing, as in seed in (1, 2, 3)")
        values = [self._value(name)]
        while self._takes(","):
            values.append(self._value(name))
        if not self._takes(")"):
            self._fail("a closing bracket is missing")
        return values

    def _value(self, name: str | None) -> Literal:
        """Return the value that comes next; of a fact, which is compared with nothing else, a number or a bool."""
        first = self._next
        literal = self._literal()
        if name in FACTS and not isinstance(literal.value, int | float):
            # "not length > 1O" would hold of every episode
            meant = "a number" if name in NUMBERS else "true or false"
            self._fail(f"{name} is {meant}, and {literal.text!r} is not", self._tokens[first].start)
        return literal

    def _literal(self) -> Literal:
        token = self._peek()
        if token is not None and token.kind == "text":
            self._next += 1
            text = _unquoted(token.text)
            return Literal(text, text)
        first = self._next
        while (token := self._peek()) is not None and token.kind == "word" and token.text.lower() not in ("and", "or"):
            self._next += 1
        if self._next == first:
            self._fail("a value is missing")
        text = self._source[self._tokens[first].start : self._tokens[self._next - 1].stop]
        return Literal(text, _meaning(text))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _meaning(text: str) -> Any:
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    # exact where it is an integer; and no underscores, which Python takes and people do not mean
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equals(value: Any, literal: Literal) -> bool:
    if isinstance(value, str):
        return value == literal.text
    if isinstance(value, list):
        return any(_equals(item, literal) for item in value) or json.dumps(value, default=str) == literal.text
    if isinstance(value, Mapping):
        return json.dumps(value, default=str) == literal.text
    return bool(value == literal.value) and (value is None) == (literal.value is None)


def _is_ordered(value: Any, literal: Literal, op: str) -> bool:
    limit = literal.value
    if isinstance(value, str):
        limit = literal.text
    elif not (_is_number(value) and _is_number(limit)):
        return False
    return bool({"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[op])


def _contains(value: Any, literal: Literal) -> bool:
    if isinstance(value, list):
        return any(_contains(item, literal) for item in value)
    return literal.text.casefold() in (value if isinstance(value, str) else json.dumps(value, default=str)).casefold()


def _comparing(name: str, op: str, literal: Literal) -> Test:
    def holds(facts: Mapping[str, Any]) -> bool:
        value = value_of(facts, name, _MISSING)
        if value is _MISSING:
            return op == "!="
        if op in ("=", "=="):
            return _equals(value, literal)
        if op == "!=":
            return not _equals(value, literal)
        return _contains(value, literal) if op == "~" else _is_ordered(value, literal, op)

    return holds


def _one_of(name: str, literals: list[Literal]) -> Test:
    def holds(facts: Mapping[str, Any]) -> bool:
        value = value_of(facts, name, _MISSING)
        return value is not _MISSING and any(_equals(value, literal) for literal in literals)

    return holds


class Names:
    """The names that episodes have, gathered as their facts go by, and which of the wanted ones none has."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._lacking, self._known = set(wanted), set[str]()

    def see(self, facts: Mapping[str, Any]) -> None:
        """Take in the facts of an episode."""
        if self._lacking:
            self._lacking = {name for name in self._lacking if value_of(facts, name, _MISSING) is _MISSING}
            self._known.update(facts)

    def check(self) -> None:
        """Raise WindowError for a wanted name that no episode has, unless there was none at all."""
        if self._known and self._lacking:
            unknown = ", ".join(map(repr, sorted(self._lacking)))
            told = did_you_mean(min(self._lacking), self._known)
            raise WindowError(f"no episode has {unknown}.{told} There are: {', '.join(sorted(self._known))}.")
