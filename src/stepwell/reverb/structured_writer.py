"""Items by patterns: which slices of the newest steps become an item, of which table, under which conditions.

::

    reference step   {"a": ref, "b": ref}
    pattern          {"last_two": ref["a"][-2:], "now": ref["b"][-1]}        a nest of nodes
    config           pattern, table, conditions, priority
    append(step) --> of each config whose conditions hold, once a step: an item of the last steps

Source: Reverb, ``reverb/structured_writer.py`` and ``reverb/cc/structured_writer.cc``, for what the rules are.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from stepwell.reverb.specs import TensorSpec, as_spec, import_tree, to_tensorflow
from stepwell.reverb.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from stepwell.reverb.client import Client

__all__ = [
    "Condition",
    "Config",
    "Patterns",
    "StructuredWriter",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]

Cell = TypeVar("Cell")
STEP_INDEX, SINCE_APPLIED, END_EPISODE, DATA = "step_index", "steps_since_applied", "is_end_episode", "data"


@dataclass(frozen=True)
class Node:
    """One column of a pattern: steps of a column of the data, counted from the newest, which is -1.

    Args:
        flat_source_index: number of the column in dm-tree's order.
        start: first step, negative; None: the one step ``stop``, without the dimension of the steps.
        stop: the step after the last, 0 or negative; None: 0.
        step: of the slice; None: 1.
    """

    flat_source_index: int
    start: int | None
    stop: int | None
    step: int | None

    def __post_init__(self) -> None:
        start, stop, step = self.start, self.stop, self.step
        if start is None and (stop is None or stop >= 0 or step is not None):
            raise ValueError(f"pattern {self._text}: a slice begins at a negative number, and an index is one.")
        if start is not None and (start >= 0 or (stop or 0) > 0 or start >= (stop or 0)):
            raise ValueError(f"pattern {self._text}: start must be negative, stop larger and at most 0.")
        if step is not None and step <= 0:
            raise ValueError(f"pattern {self._text}: step must be positive.")

    @property
    def _text(self) -> str:
        return f"[{self.start}:{self.stop}:{self.step}]" if self.start is not None else f"[{self.stop}]"

    @property
    def is_squeezed(self) -> bool:
        """Whether it is one step without the dimension of the steps."""
        return self.start is None

    @property
    def age(self) -> int:
        """How many steps back it reaches."""
        return -(self.stop or 0) if self.start is None else -self.start

    @property
    def positions(self) -> list[int]:
        """Positions of its steps, counted from the newest, -1."""
        if self.start is None:
            return [self.stop or 0]
        return list(range(self.start, self.stop or 0, self.step or 1))


class _Reference:
    """A column of a reference step; an index or a slice of it is a `Node`."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getitem__(self, key: Any) -> Node:
        if isinstance(key, slice):
            return Node(self._number, key.start, key.stop, key.step)
        if isinstance(key, int | np.integer):
            return Node(self._number, None, int(key), None)
        raise ValueError(f"Key must be int or slice but got {key} (type {type(key)}).")


@dataclass(frozen=True, eq=False)
class Rule:
    """A condition: what is compared, and how; made by `Condition`."""

    what: str
    source: int = -1
    modulus: int | None = None
    compare: Callable[[int, int], bool] = operator.eq
    number: int = 1

    def holds(self, value: int) -> bool:
        """Return whether it holds of a value."""
        return self.compare(value if self.modulus is None else value % self.modulus, self.number)


class _Builder:
    """The left side of a condition; a comparison with a number makes a `Rule`."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __mod__(self, modulus: int) -> _Builder:
        if modulus <= 0:
            raise ValueError(f"`mod_eq.mod` must be > 0 but got {modulus}.")
        return _Builder(replace(self._rule, modulus=modulus))

    def __eq__(self, number: Any) -> Rule:  # type: ignore[override]
        return replace(self._rule, compare=operator.eq, number=number)

    def __ne__(self, number: Any) -> Rule:  # type: ignore[override]
        return replace(self._rule, compare=operator.ne, number=number)

    def __ge__(self, number: int) -> Rule:
        return replace(self._rule, compare=operator.ge, number=number)

    def __gt__(self, number: int) -> Rule:
        return replace(self._rule, compare=operator.gt, number=number)

    def __le__(self, number: int) -> Rule:
        return replace(self._rule, compare=operator.le, number=number)

    def __lt__(self, number: int) -> Rule:
        return replace(self._rule, compare=operator.lt, number=number)


class Condition:
    """What conditions are made of: compare one of these with a number, ``Condition.step_index() % 4 == 0``."""

    @staticmethod
    def step_index() -> Any:
        """Return the index of the newest step in its episode."""
        return _Builder(Rule(STEP_INDEX))

    @staticmethod
    def steps_since_applied() -> Any:
        """Return how many steps were added since the config made an item."""
        return _Builder(Rule(SINCE_APPLIED))

    @staticmethod
    def is_end_episode() -> Rule:
        """Return a condition that holds when ``end_episode`` is called, only then."""
        return Rule(END_EPISODE)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """Return a nest of the columns of a step: of each the newest value, an int or a bool."""
        tree = import_tree()
        count = len(tree.flatten(step_structure))
        return tree.unflatten_as(step_structure, [_Builder(Rule(DATA, number)) for number in range(count)])


@dataclass(frozen=True)
class Priority:
    """The priority of an item: a number, or the TD error of a column; see `td_error`."""

    value: float = 1.0
    source: int | None = None

    def of(self, nodes: Sequence[Node], columns: Sequence[Sequence[Any]]) -> float:
        """Return the priority of an item of these values."""
        if self.source is None:
            return self.value
        for node, values in zip(nodes, columns, strict=True):
            if node.flat_source_index == self.source:
                errors = np.abs(np.array([np.asarray(value).reshape(()) for value in values], np.float64))
                return float(self.value * errors.max() + (1 - self.value) * errors.mean())
        raise ValueError("the priority is the TD error of a column that the pattern does not have.")


@dataclass(frozen=True)
class Config:
    """A pattern, and the table that it makes items of; made by `create_config`."""

    pattern: Any
    table: str
    conditions: tuple[Rule, ...]
    priority: Priority

    @property
    def flat(self) -> list[Node]:
        """The nodes of the pattern, in dm-tree's order."""
        found: list[Node] = import_tree().flatten(self.pattern)
        return found


def create_reference_step(step_structure: Any) -> Any:
    """Return a nest like a step whose leaves make the nodes of patterns, by an index or a slice."""
    tree = import_tree()
    count = len(tree.flatten(step_structure))
    return tree.unflatten_as(step_structure, [_Reference(number) for number in range(count)])


def pattern_from_transform(step_structure: Any, transform: Callable[[Any], Any]) -> Any:
    """Return the pattern that a function makes of a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(pattern: Any, table: str, conditions: Sequence[Any] = (), priority: Priority | None = None) -> Config:
    """Return a config.

    Args:
        pattern: a nest of slices of a reference step.
        table: that its items go to.
        conditions: all of which must hold.
        priority: of its items; default 1.0.

    Raises:
        ValueError: an empty pattern, no table, or conditions that are none.
    """
    nodes = import_tree().flatten(pattern)
    if not nodes or not all(isinstance(node, Node) for node in nodes):
        raise ValueError("a pattern is a nest of slices of a reference step, with at least one.")
    if not table:
        raise ValueError("`table` must not be empty.")
    for each in conditions:
        if not isinstance(each, Rule):
            raise ValueError(f"condition {each!r} is none: compare it with a number.")
    return Config(pattern, table, tuple(conditions), priority or Priority())


def unpack_pattern(config: Config) -> Any:
    """Return the pattern of a config."""
    return config.pattern


def constant_priority_fn(value: float) -> Priority:
    """Return the priority that is the same for all items."""
    return Priority(value)


def td_error(max_priority_weight: float, step_structure: Any, get_field_from_step_fn: Callable[[Any], Any]) -> Priority:
    """Return the priority of recurrent replay: ``w * max|e| + (1 - w) * mean|e|`` over the steps of an item.

    Args:
        max_priority_weight: w.
        step_structure: of the steps that are appended.
        get_field_from_step_fn: from a step to its column of TD errors, which the pattern has, too.

    Source: Kapturowski et al., Recurrent experience replay in distributed reinforcement learning, 2019.
    """
    tree = import_tree()
    numbers = tree.unflatten_as(step_structure, list(range(len(tree.flatten(step_structure)))))
    return Priority(max_priority_weight, get_field_from_step_fn(numbers))


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:
    """Return the signature of the table that configs make items of.

    Args:
        configs: all that make items of it.
        step_spec: a nest of specs of the steps.

    Returns:
        A nest of specs, of TensorFlow's where it has been imported; None is the number of steps where configs differ
        in it.

    Raises:
        ValueError: no configs, or ones of different tables, nests, dtypes or shapes.
    """
    tree = import_tree()
    if not configs:
        raise ValueError("At least one config must be provided.")
    nests = [tree.map_structure(lambda _: None, config.pattern) for config in configs]
    if any(nest != nests[0] for nest in nests):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(f"All configs must target the same table but provided configs included {', '.join(tables)}.")
    specs = [as_spec(leaf) for leaf in tree.flatten(step_spec)]

    def merged(path: Any, *nodes: Node) -> Any:
        dtypes = [specs[node.flat_source_index].dtype for node in nodes]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise ValueError(f"Configs produce trajectories with multiple dtypes at {path}. Got {dtypes}.")
        shapes: list[tuple[int | None, ...]] = []
        for node in nodes:
            shape = specs[node.flat_source_index].shape
            if shape is None:
                raise ValueError(f"a spec of the steps without a known number of dimensions, at {path}.")
            if node.start is not None:
                shape = (math.ceil(((node.stop or 0) - node.start) / (node.step or 1)), *shape)
            shapes.append(shape)
        if any(len(shape) != len(shapes[0]) or shape[1:] != shapes[0][1:] for shape in shapes):
            raise ValueError(f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}.")
        same = all(shape == shapes[0] for shape in shapes)
        shape = shapes[0] if same else (None, *shapes[0][1:])
        return to_tensorflow(TensorSpec(shape, dtypes[0], "/".join(map(str, path))))

    return tree.map_structure_with_path(merged, *(config.pattern for config in configs))


class Made(NamedTuple, Generic[Cell]):
    """What a config makes of steps: an item's table, priority and columns of cells."""

    config: Config
    priority: float
    columns: list[tuple[list[Cell], bool]]


class Patterns(Generic[Cell]):
    """Applies configs to steps, one after the other.

    Args:
        configs: to apply.
        value_of: the value of a cell.
    """

    def __init__(self, configs: Sequence[Config], value_of: Callable[[Cell], Any]) -> None:
        self._configs, self._value_of = configs, value_of
        ages: dict[int, int] = {}
        for config in configs:
            for node in config.flat:
                ages[node.flat_source_index] = max(ages.get(node.flat_source_index, 0), node.age)
            for rule in config.conditions:
                if rule.what == DATA:
                    ages[rule.source] = max(ages.get(rule.source, 0), 1)
        # of each column that is used the last cells, as many as any pattern needs
        self._ages = ages
        self._columns: dict[int, deque[Cell | None]] = {}
        self._step, self._index = 0, -1
        self._since = [0] * len(configs)
        self._checked, self._applied = [-1] * len(configs), [-1] * len(configs)
        self.is_open = False

    def uses(self, column: int) -> bool:
        """Return whether any config uses a column."""
        return column in self._ages

    def append(self, cells: Sequence[Cell | None], *, partial_step: bool) -> Iterator[Made[Cell]]:
        """Take a step, or a part of one, and yield the items that are complete by it."""
        if not self.is_open:
            self._step, self._index = self._step + 1, self._index + 1
        for number, age in self._ages.items():
            column = self._columns.setdefault(number, deque(maxlen=age))
            cell = cells[number] if number < len(cells) else None
            if not self.is_open:
                column.append(cell)
            elif cell is not None:
                column[-1] = cell
        self.is_open = partial_step
        return self._apply(is_end=False)

    def end_episode(self, *, clear: bool) -> Iterator[Made[Cell]]:
        """Yield the items of configs that wait for the end of the episode."""
        yield from self._apply(is_end=True)
        if clear:
            self._columns.clear()
        self._index, self.is_open = -1, False

    def _apply(self, *, is_end: bool) -> Iterator[Made[Cell]]:
        if not any(column and column[-1] is not None for column in self._columns.values()):
            return
        for number, config in enumerate(self._configs):
            if self._applied[number] == self._step:
                continue
            if self._checked[number] != self._step:
                self._since[number] += 1
                self._checked[number] = self._step
            if not all(self._holds(rule, number, is_end) for rule in config.conditions):
                continue
            made = self._made(config)
            if made is not None:
                self._applied[number], self._since[number] = self._step, 0
                yield made

    def _holds(self, rule: Rule, number: int, is_end: bool) -> bool:
        match rule.what:
            case "step_index":
                return rule.holds(self._index)
            case "steps_since_applied":
                return rule.holds(self._since[number])
            case "is_end_episode":
                return is_end
        cell = self._columns[rule.source][-1]
        if cell is None:
            return False
        value = np.asarray(self._value_of(cell))
        return value.size == 1 and value.dtype.kind in "biu" and rule.holds(int(value.reshape(())))

    def _made(self, config: Config) -> Made[Cell] | None:
        columns: list[tuple[list[Cell], bool]] = []
        for node in config.flat:
            column = self._columns[node.flat_source_index]
            if len(column) < node.age:
                return None
            cells = [column[position] for position in node.positions]
            found = [cell for cell in cells if cell is not None]
            if len(found) < len(cells):
                return None
            columns.append((found, node.is_squeezed))
        if config.priority.source is None:
            return Made(config, config.priority.value, columns)
        values = [[self._value_of(cell) for cell in cells] for cells, _ in columns]
        return Made(config, config.priority.of(config.flat, values), columns)


class StructuredWriter:
    """Write steps of one structure to a server, and the items that configs make of them.

    Made by `Client.structured_writer`. Columns that no config uses are not sent.

    Example:
        >>> from stepwell import reverb
        >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
        >>> client = server.localhost_client()
        >>> pairs = pattern_from_transform({"reward": None}, lambda steps: {"last_two": steps["reward"][-2:]})
        >>> with client.structured_writer([create_config(pairs, "queue")]) as writer:
        ...     for step in range(4):
        ...         writer.append({"reward": float(step)})
        ...     writer.flush()
        >>> [sample.data for sample in client.sample("queue", 2, emit_timesteps=False)]
        [[array([0., 1.])], [array([1., 2.])]]
        >>> server.stop()
    """

    def __init__(self, client: Client, configs: Sequence[Config]) -> None:
        if not configs:
            raise ValueError("At least one config must be provided.")
        self._writer = TrajectoryWriter(client, 1)
        self._patterns: Patterns[Any] = Patterns(configs, lambda cell: cell.value)
        self._length: int | None = None

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step, or a part of one, and insert the items that are complete by it.

        Args:
            data: a nest, of the same structure each time; None where a column has no value.
            partial_step: whether more columns of this step follow.

        Raises:
            ValueError: another number of columns than before, another dtype or shape, or a column that this step has
                already.
        """
        tree = import_tree()
        flat = tree.flatten(data)
        if self._length is None:
            self._length = len(flat)
        if len(flat) != self._length:
            raise ValueError(f"Flattened data has an unexpected length, got {len(flat)} but wanted {self._length}.")
        used = [leaf if self._patterns.uses(number) else None for number, leaf in enumerate(flat)]
        cells = self._writer.add(tree.unflatten_as(data, used), partial_step=partial_step)
        self._insert(self._patterns.append(cells, partial_step=partial_step))

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Wait until at most so many items are not in; see `TrajectoryWriter.flush`."""
        self._writer.flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Insert the items of configs that wait for the end, and begin another episode."""
        self._insert(self._patterns.end_episode(clear=clear_buffers))
        self._writer.end_episode(clear_buffers, timeout_ms)

    @property
    def step_is_open(self) -> bool:
        """Whether the last append was a part of a step."""
        return self._patterns.is_open

    def close(self) -> None:
        """End without waiting."""
        self._writer.close()

    def _insert(self, items: Iterator[Made[Any]]) -> None:
        for made in items:
            paths = [f"{number}" for number in range(len(made.columns))]
            self._writer.insert(made.config.table, made.priority, made.columns, paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)
