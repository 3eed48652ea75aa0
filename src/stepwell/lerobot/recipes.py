"""Messages to train on, made of annotations by a recipe, as LeRobot renders them.

::

    recipe        messages: user "${task}" -> assistant "${subtask}" (target)      a turn is left out by if_present
    bindings      task, subtask = active_at(t, style=subtask), ...                 the name of a placeholder: its row
    an item       language_persistent, language_events, timestamp ── render_sample ──> {"messages": [...], ...}

    blend         {"low": recipe of weight 0.8, "vqa": recipe of weight 0.2, route "vqa"}
                  a routed one where it has annotations at this row; else one by weight, drawn by the item's number

Source: huggingface/lerobot 0.6.2, ``configs/recipe.py`` and ``datasets/language_render.py``: the same names, and the
same messages for the same annotations.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stepwell.errors import MissingDependencyError, SchemaError
from stepwell.lerobot.language import LANGUAGE_PERSISTENT, column_for_style

__all__ = [
    "DEFAULT_BINDINGS",
    "EMITTED_AT_TOLERANCE_S",
    "MessageTurn",
    "TrainingRecipe",
    "active_at",
    "emitted_at",
    "load_recipe",
    "nth_next",
    "nth_prev",
    "render_sample",
]

Role = Literal["user", "assistant", "system", "tool"]
Stream = Literal["high_level", "low_level"]
ROLES, STREAMS, ROUTES = get_args(Role), get_args(Stream), ("vqa",)
# the annotations that a placeholder stands for, where a recipe does not say
DEFAULT_BINDINGS = {
    "subtask": "active_at(t, style=subtask)",
    "memory": "active_at(t, style=memory)",
    "plan": "active_at(t, style=plan)",
    "speech": "emitted_at(t, role=assistant, tool_name=say)",
    "interjection": "emitted_at(t, style=interjection)",
    "vqa": "emitted_at(t, style=vqa, role=assistant)",
    "vqa_query": "emitted_at(t, style=vqa, role=user)",
}
TASK = "task"
PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
EXPRESSION = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.ASCII)
# seconds by which a persistent annotation may be off a time that was computed
EMITTED_AT_TOLERANCE_S = 0.1
Row = dict[str, Any]
# what a placeholder stands for: an annotation, or a text
Bound = Row | str | None
Rendered = dict[str, list[Any]]


@dataclass
class MessageTurn:
    """One message of a recipe.

    Args:
        role: "user", "assistant", "system" or "tool".
        content: a text with placeholders ``${name}``, or blocks such as ``{"type": "text", "text": "${task}"}``; None
            only where ``tool_calls_from`` is given.
        stream: "high_level" or "low_level".
        target: whether the message is trained on.
        if_present: name of a binding; without a row for it the message is left out.
        tool_calls_from: name of a binding whose row's tool calls the message has.

    Raises:
        SchemaError: a value that is not allowed (a ValueError).
        TypeError: content that is neither text nor blocks.
    """

    role: Role
    content: str | list[dict[str, Any]] | None = None
    stream: Stream | None = None
    target: bool = False
    if_present: str | None = None
    tool_calls_from: str | None = None

    def __post_init__(self) -> None:
        _check_choice("message role", self.role, ROLES)
        if self.stream is None:
            raise SchemaError(f"a message of role {self.role!r} is missing a stream. Allowed: {', '.join(STREAMS)}.")
        _check_choice("message stream", self.stream, STREAMS)
        if self.content is None and self.tool_calls_from is None:
            raise SchemaError("a message's content is required unless tool_calls_from is set.")
        if self.content is not None and not isinstance(self.content, str | list):
            raise TypeError(f"content is a {type(self.content).__name__}. Allowed: a text, or a list of blocks.")
        blocks = self.content if isinstance(self.content, list) else []
        if not all(isinstance(block, dict) and "type" in block for block in blocks):
            raise SchemaError(f"content {blocks!r}: each block is a dict with a type key, such as 'text' or 'image'.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MessageTurn:
        """Return the message that a dict describes."""
        return cls(**data)

    @property
    def bindings(self) -> set[str]:
        """The names that the message refers to."""
        named = {name for name in (self.if_present, self.tool_calls_from) if name is not None}
        texts = [self.content] if isinstance(self.content, str) else _texts_of(self.content or [])
        return named.union(*map(PLACEHOLDER.findall, texts))


@dataclass
class TrainingRecipe:
    """How messages are made of the annotations of an item: of one kind, or a blend of several.

    Args:
        messages: the messages; or ``blend``.
        bindings: name to the expression that finds its annotation: ``active_at``, ``emitted_at``, ``nth_prev`` or
            ``nth_next``, e.g. ``"emitted_at(t, style=vqa, camera=observation.images.top)"``. Besides
            `DEFAULT_BINDINGS`.
        blend: name to recipe of messages, each with a weight.
        weight: of a part of a blend.
        route: "vqa": where a part of a blend has annotations at an item, it is taken before any other.

    Raises:
        SchemaError: neither or both of messages and blend, unknown names, no weights, or nothing to train on (a
            ValueError).
    """

    messages: list[MessageTurn] | None = None
    bindings: dict[str, str] | None = None
    blend: dict[str, TrainingRecipe] | None = None
    weight: float | None = None
    route: Literal["vqa"] | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.blend is None):
            which = "one of" if self.messages is None else "only one of"
            raise SchemaError(f"a recipe must set {which} messages or blend.")
        if self.route is not None:
            _check_choice("recipe route", self.route, ROUTES)
        if self.route is not None and self.blend is not None:
            raise SchemaError("TrainingRecipe.route may only be set on a message recipe inside a blend.")
        if self.messages is not None:
            self._check_messages(self.messages)
        if self.blend is not None:
            self._check_blend(self.blend)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainingRecipe:
        """Return the recipe that nested dicts describe."""
        given = dict(data)
        if given.get("messages") is not None:
            turns = given["messages"]
            given["messages"] = [t if isinstance(t, MessageTurn) else MessageTurn.from_dict(t) for t in turns]
        if given.get("blend") is not None:
            parts = given["blend"].items()
            given["blend"] = {name: p if isinstance(p, TrainingRecipe) else cls.from_dict(p) for name, p in parts}
        return cls(**given)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> TrainingRecipe:
        """Return the recipe of a YAML file.

        Raises:
            SchemaError: no mapping at its top (a ValueError).
            MissingDependencyError: PyYAML is not installed.
        """
        try:
            import yaml  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependencyError("recipes are YAML files. Type: pip install pyyaml") from error
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise SchemaError(f"{os.fspath(path)}: a recipe must contain a mapping at the top level.")
        return cls.from_dict(data)

    def referenced_binding_names(self) -> set[str]:
        """Return the names that the messages refer to."""
        return set().union(*(turn.bindings for turn in self.messages or ()))

    def _check_messages(self, messages: Sequence[MessageTurn]) -> None:
        known = {*DEFAULT_BINDINGS, *(self.bindings or {}), TASK}
        unknown = sorted(self.referenced_binding_names() - known)
        if unknown:
            raise SchemaError(f"a message references unknown binding(s): {unknown}. There are: {sorted(known)}.")
        if not any(turn.target or turn.stream == "low_level" for turn in messages):
            raise SchemaError(
                "a recipe needs at least one supervised message: target=True, or stream='low_level' for actions."
            )

    def _check_blend(self, blend: Mapping[str, TrainingRecipe]) -> None:
        if not blend:
            raise SchemaError("a blend must contain at least one component.")
        for name, part in blend.items():
            if part.blend is not None:
                raise SchemaError(f"component {name!r} of a blend cannot itself define a blend.")
            if part.messages is None:
                raise SchemaError(f"component {name!r} of a blend must define messages.")
            if part.weight is None:
                raise SchemaError(f"component {name!r} of a blend must define weight.")
            if part.weight <= 0:
                raise SchemaError(f"component {name!r} of a blend must have a positive weight, not {part.weight}.")


def load_recipe(path: str | os.PathLike[str]) -> TrainingRecipe:
    """Return the recipe of a YAML file; see `TrainingRecipe.from_yaml`."""
    return TrainingRecipe.from_yaml(path)


@dataclass(frozen=True, slots=True)
class _Selector:
    """Which annotations are meant; None: any."""

    style: str | None = None
    role: str | None = None
    tool_name: str | None = None
    camera: str | None = None

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that are meant."""
        return [row for row in rows if self._takes(row)]

    def one(self, rows: Sequence[Row]) -> Row | None:
        """Return the only row, None of no row."""
        if len(rows) > 1:
            raise SchemaError(
                f"Ambiguous resolver: {len(rows)} annotations match {self}. Name the role, tool_name or camera that "
                "tells them apart."
            )
        return rows[0] if rows else None

    def _takes(self, row: Row) -> bool:
        named = (("style", self.style), ("role", self.role), ("camera", self.camera))
        is_named = all(wanted is None or row.get(name) == wanted for name, wanted in named)
        return is_named and (self.tool_name is None or self.tool_name in _tool_names(row))


def _tool_names(row: Row) -> list[Any]:
    functions = [call.get("function") for call in row.get("tool_calls") or [] if isinstance(call, dict)]
    return [function.get("name") for function in functions if isinstance(function, dict)]


def _seconds(row: Row) -> float:
    return float(row["timestamp"])


def active_at(
    t: float,
    *,
    persistent: Sequence[Row],
    style: str | None = None,
    role: str | None = None,
    tool_name: str | None = None,
    camera: str | None = None,
) -> Row | None:
    """Return the persistent annotation that holds at a time: the last one that began by then.

    Args:
        t: seconds from the episode's beginning.
        persistent: an item's ``language_persistent``.
        style, role, tool_name, camera: of the annotations that are meant; a style is needed.

    Raises:
        SchemaError: no persistent style; several annotations that began last (a ValueError).
    """
    _check_persistent("active_at", style)
    selector = _Selector(style, role, tool_name, camera)
    begun = [row for row in selector.of(persistent) if _seconds(row) <= t]
    last = max(map(_seconds, begun), default=0.0)
    return selector.one([row for row in begun if _seconds(row) == last])


def emitted_at(
    t: float,
    *,
    persistent: Sequence[Row],
    events: Sequence[Row],
    style: str | None = None,
    role: str | None = None,
    tool_name: str | None = None,
    camera: str | None = None,
) -> Row | None:
    """Return the annotation that begins at a time, within `EMITTED_AT_TOLERANCE_S`; of events, that of the item.

    Args:
        t: seconds from the episode's beginning.
        persistent: an item's ``language_persistent``.
        events: its ``language_events``.
        style, role, tool_name, camera: of the annotations that are meant.

    Raises:
        SchemaError: an unknown style; several annotations (a ValueError).
    """
    selector = _Selector(style, role, tool_name, camera)
    if column_for_style(style) != LANGUAGE_PERSISTENT:
        return selector.one(selector.of(events))
    near = [row for row in selector.of(persistent) if abs(_seconds(row) - t) <= EMITTED_AT_TOLERANCE_S]
    return selector.one(near)


def nth_prev(
    t: float,
    *,
    persistent: Sequence[Row],
    style: str | None = None,
    offset: int = 1,
    role: str | None = None,
    tool_name: str | None = None,
    camera: str | None = None,
) -> Row | None:
    """Return the persistent annotation so many before the one that holds at a time; see `active_at`."""
    selector = _Selector(style, role, tool_name, camera)
    return _beside("nth_prev", t, persistent, selector, -offset)


def nth_next(
    t: float,
    *,
    persistent: Sequence[Row],
    style: str | None = None,
    offset: int = 1,
    role: str | None = None,
    tool_name: str | None = None,
    camera: str | None = None,
) -> Row | None:
    """Return the persistent annotation so many after the one that holds at a time; see `active_at`."""
    selector = _Selector(style, role, tool_name, camera)
    return _beside("nth_next", t, persistent, selector, offset)


def _beside(name: str, t: float, rows: Sequence[Row], selector: _Selector, offset: int) -> Row | None:
    _check_persistent(name, selector.style)
    if offset == 0:
        raise SchemaError(f"{name} offset must be non-zero.")
    found = sorted(selector.of(rows), key=lambda row: (_seconds(row), row.get("style") or "", row.get("role") or ""))
    # before the first one begins, the next is the first
    place = sum(_seconds(row) <= t for row in found) - 1 + offset
    return found[place] if 0 <= place < len(found) else None


def _check_persistent(name: str, style: str | None) -> None:
    if style is None:
        raise SchemaError(f"{name} requires a persistent style.")
    if column_for_style(style) != LANGUAGE_PERSISTENT:
        raise SchemaError(f"{name} cannot be used with event-only style {style!r}.")


RESOLVERS: dict[str, Callable[..., Row | None]] = {
    "active_at": active_at,
    "emitted_at": emitted_at,
    "nth_prev": nth_prev,
    "nth_next": nth_next,
}


def render_sample(
    *,
    recipe: TrainingRecipe,
    persistent: Sequence[Any] | None,
    events: Sequence[Any] | None,
    t: float,
    sample_idx: int,
    task: str | None = None,
    dataset_ctx: Any | None = None,
) -> Rendered | None:
    """Return the messages of an item, as chat templates take them.

    Args:
        recipe: how they are made.
        persistent: the item's ``language_persistent``.
        events: its ``language_events``.
        t: its ``timestamp``, seconds.
        sample_idx: its number, which draws the part of a blend and the wording of the task: always the same ones.
        task: its task; default: one of the annotations of style "task_aug", else that of ``dataset_ctx``.
        dataset_ctx: a dict, or an object, that may have a "task".

    Returns:
        "messages": dicts of role, content and tool_calls; "message_streams": the stream of each;
        "target_message_indices": those that are trained on. None where the recipe has nothing to train on here.

    Raises:
        SchemaError: an expression that cannot be read, or finds several annotations (a ValueError).
        TypeError: annotations that are no dicts.

    Example:
        >>> turns = [MessageTurn("user", "${task}", "high_level"),
        ...          MessageTurn("assistant", "${subtask}", "high_level", target=True)]
        >>> row = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0}
        >>> render_sample(recipe=TrainingRecipe(turns), persistent=[row], events=[], t=0.5, sample_idx=0,
        ...               task="pick")["messages"]
        [{'role': 'user', 'content': 'pick'}, {'role': 'assistant', 'content': 'reach'}]
    """
    here = _Moment(_plain(persistent), _plain(events), float(t), sample_idx, task, dataset_ctx)
    if recipe.blend is None:
        return here.rendered(recipe)
    routed = [(part, here.rendered(part)) for part in recipe.blend.values() if part.route is not None]
    made = [(part.weight or 0.0, rendered) for part, rendered in routed if rendered is not None]
    if made:
        return made[0][1] if len(made) == 1 else _drawn(made, f"vqa:{sample_idx}")
    return here.rendered(_drawn([(part.weight or 0.0, part) for part in recipe.blend.values()], str(sample_idx)))


@dataclass(frozen=True, slots=True)
class _Moment:
    """An item's annotations, its time and its number."""

    persistent: list[Row]
    events: list[Row]
    t: float
    number: int
    task: str | None
    context: Any

    def rendered(self, recipe: TrainingRecipe) -> Rendered | None:
        """Return the messages of a recipe."""
        bound = self._bound(recipe)
        turns = [
            turn for turn in recipe.messages or () if turn.if_present is None or bound[turn.if_present] is not None
        ]
        streams = [turn.stream for turn in turns]
        targets = [place for place, turn in enumerate(turns) if turn.target]
        if not targets and "low_level" not in streams:
            return None
        messages = [_message(turn, bound) for turn in turns]
        return {"messages": messages, "message_streams": streams, "target_message_indices": targets}

    def _bound(self, recipe: TrainingRecipe) -> dict[str, Bound]:
        """Return what the names that a recipe uses stand for."""
        own = recipe.bindings or {}
        # a default that is not used may be ambiguous
        wanted = recipe.referenced_binding_names() | own.keys()
        found: dict[str, Bound] = {TASK: self._task()}
        for name, expression in {**DEFAULT_BINDINGS, **own}.items():
            if name in wanted:
                found[name] = self._resolved(expression)
        return found

    def _resolved(self, expression: str) -> Row | None:
        match = EXPRESSION.fullmatch(expression.strip())
        if match is None:
            raise SchemaError(
                f"Invalid resolver expression: {expression!r}. Allowed: such as 'active_at(t, style=plan)'."
            )
        name, written = match.groups()
        if name not in RESOLVERS:
            raise SchemaError(f"Unknown language resolver: {name!r}. Allowed: {', '.join(RESOLVERS)}.")
        given = _arguments(written)
        if name == "emitted_at":
            given["events"] = self.events
        return RESOLVERS[name](self.t, persistent=self.persistent, **given)

    def _task(self) -> str | None:
        if self.task is not None:
            return self.task
        wordings = [row for row in self.persistent if (row.get("style"), row.get("role")) == ("task_aug", "user")]
        if wordings:
            chosen = wordings[_digest(f"task_aug:{self.number}") % len(wordings)].get("content")
            if chosen:
                return str(chosen)
        if isinstance(self.context, Mapping):
            return self.context.get(TASK)
        return getattr(self.context, TASK, None)


def _arguments(written: str) -> dict[str, Any]:
    """Return the arguments of an expression; ``t`` stands for the item's time."""
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, written.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if equals:
            found[name] = int(value) if name == "offset" else value.strip("\"'")
        elif part != "t":
            raise SchemaError(f"Invalid resolver argument: {part!r}. Allowed: t, and name=value.")
    return found


def _message(turn: MessageTurn, bound: Mapping[str, Bound]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role}
    if isinstance(turn.content, str):
        message["content"] = _filled(turn.content, bound)
    elif turn.content is not None:
        message["content"] = [
            {name: _filled(value, bound) if isinstance(value, str) else value for name, value in block.items()}
            for block in copy.deepcopy(turn.content)
        ]
    row = bound.get(turn.tool_calls_from or "")
    if isinstance(row, dict) and row.get("tool_calls"):
        message["tool_calls"] = copy.deepcopy(row["tool_calls"])
    return message


def _filled(text: str, bound: Mapping[str, Bound]) -> str:
    """Return a text with what its placeholders stand for; nothing where there is none."""

    def value(match: re.Match[str]) -> str:
        found = bound[match[1]]
        content = found.get("content") if isinstance(found, dict) else found
        return "" if content is None else str(content)

    return PLACEHOLDER.sub(value, text)


def _plain(rows: Sequence[Any] | None) -> list[Row]:
    """Return annotations as dicts; Arrow's scalars are taken, too."""
    given = [row.as_py() if hasattr(row, "as_py") else row for row in rows or () if row is not None]
    wrong = next((row for row in given if not isinstance(row, dict)), None)
    if wrong is not None:
        raise TypeError(f"annotations must be dictionaries, got a {type(wrong).__name__}.")
    return given


def _drawn(weighted: Sequence[tuple[float, Any]], key: str) -> Any:
    """Return one of several by weight, always the same for a key."""
    place = _digest(key) / 2**64 * sum(weight for weight, _ in weighted)
    reached = 0.0
    for weight, each in weighted:
        reached += weight
        if place < reached:
            return each
    return weighted[-1][1]


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _texts_of(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    return [value for block in blocks for value in block.values() if isinstance(value, str)]


def _check_choice(what: str, given: Any, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise SchemaError(f"Unsupported {what}: {given!r}. Allowed: {', '.join(allowed)}.")
