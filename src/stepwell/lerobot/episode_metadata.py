"""Metadata of a store's episodes as further columns of a dataset's table of episodes, and back.

::

    meta/episodes   episode_index  tasks  length ...  operator  success        columns that the format does not know
                                                         |         |
    episode.metadata   {"lerobot_episode": 1, "tasks": [...], "operator": "Ann", "success": True}
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwell.errors import LeftOutWarning
from stepwell.formats.reader import warn_of_left_out
from stepwell.lerobot.meta_files import import_pyarrow, is_of_format

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.lerobot.metadata import Metadata

__all__ = ["FurtherColumns", "metadata_of"]

NUMBER, TASKS, TASK = "lerobot_episode", "tasks", "task"
# of episodes that a dataset numbers, names the tasks of, or that a recorder recovered
OWN = frozenset({NUMBER, TASKS, "recovered"})


def metadata_of(metadata: Metadata, places: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the metadata of episodes in a store: number, tasks, and what further columns of the table say."""
    records, further = metadata.episodes, _json_columns(metadata)
    for place in places:
        found = {NUMBER: int(records.index[place]), TASKS: list(records.tasks[place])}
        yield found | {name: values[place] for name, values in further.items() if values[place] is not None}


def _json_columns(metadata: Metadata) -> dict[str, list[Any]]:
    """Return the further columns that hold what JSON does; others are named in a warning."""
    found, others = {}, []
    for name, values in metadata.further.items():
        try:
            json.dumps(values)
        except (TypeError, ValueError):
            others.append(name)
        else:
            found[name] = values
    warn_of_left_out(
        f"{metadata.root}: table of episodes", others, "since they hold neither numbers, nor text, nor lists of these"
    )
    return found


class FurtherColumns:
    """The columns that a table of episodes gets for what metadata of episodes say.

    Args:
        episodes: the metadata of all episodes that are written.
        known: the columns of a table that is appended to, which gets no others; None: of a new one.
    """

    def __init__(self, episodes: Sequence[Mapping[str, Any]], known: pa.Schema | None = None) -> None:
        plain = [_further(each) for each in episodes]
        values = {name: [each.get(name) for each in plain] for name in dict.fromkeys(k for each in plain for k in each)}
        refused = [name for name in values if is_of_format(name) or (known is not None and name not in known.names)]
        self._is_text: dict[str, bool] = {}
        self.fields: list[pa.Field] = []
        for name in values.keys() - refused:
            self._add(name, values[name], None if known is None else known.field(name).type, refused)
        self.fields.sort(key=lambda field: list(values).index(field.name))
        if refused:
            why = "the format has columns of these names" if known is None else "the table of episodes has other ones"
            warnings.warn(
                f"metadata of episodes, {', '.join(map(repr, sorted(refused)[:8]))}: left out, {why}.",
                LeftOutWarning,
                stacklevel=5,
            )

    def _add(self, name: str, values: list[Any], kind: Any, refused: list[str]) -> None:
        """Choose the type of a column: that of its values where they have one that is plain, else JSON as text."""
        pyarrow = import_pyarrow()
        texts = [None if value is None else json.dumps(value) for value in values]
        for is_text, column in ((False, values), (True, texts)):
            try:
                found = pyarrow.array(column) if kind is None else pyarrow.array(column).cast(kind)
            except (pyarrow.ArrowException, OverflowError, TypeError):
                continue
            if kind is not None or is_text or _is_plain(found.type):
                self._is_text[name] = is_text
                self.fields.append(pyarrow.field(name, found.type))
                return
        refused.append(name)

    def row(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the columns have of one episode."""
        found = {name: value for name, value in _further(metadata).items() if name in self._is_text}
        return {name: json.dumps(value) if self._is_text[name] else value for name, value in found.items()}


def _further(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata of an episode but for what a dataset has columns of its own for."""
    own = OWN if TASKS in metadata else OWN | {TASK}
    return {name: value for name, value in metadata.items() if name not in own and value is not None}


def _is_plain(kind: Any) -> bool:
    """Whether values of a type are written as they are: numbers, text, truth values, and lists and structs of these."""
    types = import_pyarrow().types
    if types.is_struct(kind):
        return bool(kind.num_fields) and all(_is_plain(kind.field(place).type) for place in range(kind.num_fields))
    if types.is_list(kind):
        return _is_plain(kind.value_type)
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind))
