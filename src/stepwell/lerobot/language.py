"""Columns of language: annotations of what is going on, beside the numbers of each step.

::

    language_persistent   all of an episode's annotations that stay true for a while, the same list in each of its rows:
                          {"role", "content", "style", "timestamp", "camera", "tool_calls"}
    language_events       those that belong to this row alone: likewise, without a timestamp

A store has a row of them as text, the list in JSON; an item of `LeRobotDataset` has the list. In parquet files they are
lists of structs, and ``tool_calls`` lists of JSON.

Source: huggingface/lerobot 0.6.2, ``datasets/language.py``, and the files that it writes, observed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import FormatError, SchemaError
from stepwell.json_text import parse_json
from stepwell.lerobot.info import LANGUAGE
from stepwell.lerobot.meta_files import import_pyarrow
from stepwell.schema import Feature
from stepwell.store.bulk_writing import Blobs

__all__ = [
    "EVENT_ONLY_STYLES",
    "EVENT_ROW_FIELDS",
    "LANGUAGE_COLUMNS",
    "LANGUAGE_EVENTS",
    "LANGUAGE_PERSISTENT",
    "NO_LANGUAGE",
    "PERSISTENT_ROW_FIELDS",
    "PERSISTENT_STYLES",
    "VIEW_DEPENDENT_STYLES",
    "LanguageRows",
    "arrow_rows",
    "arrow_type",
    "column_for_style",
    "hf_type",
    "is_language_column",
    "is_view_dependent_style",
    "language_feature_info",
    "language_rows",
    "validate_camera_field",
]

LANGUAGE_PERSISTENT: Final = "language_persistent"
LANGUAGE_EVENTS: Final = "language_events"
LANGUAGE_COLUMNS = (LANGUAGE_PERSISTENT, LANGUAGE_EVENTS)
PERSISTENT_ROW_FIELDS = ("role", "content", "style", "timestamp", "camera", "tool_calls")
EVENT_ROW_FIELDS = ("role", "content", "style", "camera", "tool_calls")
PERSISTENT_STYLES = {"subtask", "plan", "memory", "motion", "task_aug"}
EVENT_ONLY_STYLES = {"interjection", "vqa", "trace"}
# annotations about one camera's image
VIEW_DEPENDENT_STYLES = {"vqa", "trace"}
# the JSON of a row that nobody has annotated
NO_LANGUAGE = "null"
Annotation = dict[str, Any]


def language_feature_info() -> dict[str, dict[str, Any]]:
    """Return the entries in info.json of both columns."""
    return {name: {"dtype": LANGUAGE, "shape": (1,), "names": None} for name in LANGUAGE_COLUMNS}


def column_for_style(style: str | None) -> Literal["language_persistent", "language_events"]:
    """Return the column that annotations of a style are stored in; those without one are events.

    Raises:
        SchemaError: another style (a ValueError).
    """
    if style in PERSISTENT_STYLES:
        return LANGUAGE_PERSISTENT
    if style is None or style in EVENT_ONLY_STYLES:
        return LANGUAGE_EVENTS
    known = ", ".join(sorted(PERSISTENT_STYLES | EVENT_ONLY_STYLES))
    raise SchemaError(
        f"Unknown language style: {style!r}. Allowed: {known}; others are added to PERSISTENT_STYLES or "
        "EVENT_ONLY_STYLES."
    )


def is_language_column(key: str) -> bool:
    """Return whether a feature's name is that of a column of language."""
    return key in LANGUAGE_COLUMNS


def is_view_dependent_style(style: str | None) -> bool:
    """Return whether annotations of a style are about one camera's image."""
    return style in VIEW_DEPENDENT_STYLES


def validate_camera_field(style: str | None, camera: str | None) -> None:
    """Refuse an annotation about an image that names no camera, and another one that names one.

    Raises:
        SchemaError: see above (a ValueError).
    """
    if style in VIEW_DEPENDENT_STYLES and not camera:
        raise SchemaError(
            f"an annotation of view-dependent style {style!r} is about an image: camera must be its name."
        )
    if style not in VIEW_DEPENDENT_STYLES and camera is not None:
        raise SchemaError(
            f"an annotation of style {style!r} is about no image: it must have camera=None, not {camera!r}."
        )


@dataclass(frozen=True, slots=True, eq=False)
class LanguageRows:
    """Rows of a column: those that are alike are held once."""

    texts: list[str]  # the different ones, JSON
    numbers: npt.NDArray[np.int64]  # int64 [n], which of them a row is

    def strings(self, part: slice) -> list[str]:
        """Return the texts of some rows."""
        return [self.texts[number] for number in self.numbers[part].tolist()]

    def blobs(self, feature: Feature) -> Blobs:
        """Return the rows as a feature of text stores them."""
        codec = make_codec(feature)
        rows = [codec.encode(text) for text in self.texts]
        numbers = self.numbers.tolist()
        data = b"".join([rows[number] for number in numbers])
        sizes = np.array([len(rows[number]) for number in numbers], np.int64)
        return Blobs(np.frombuffer(data, np.uint8), sizes)


def language_rows(column: Any, where: str) -> LanguageRows:
    """Return the rows of a ``pyarrow.ChunkedArray`` of lists of structs."""
    pa = import_pyarrow()
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not (pa.types.is_struct(kind.value_type) or pa.types.is_null(kind.value_type)):
        raise FormatError(f'{where} is of type {kind}. meta/info.json says "language": lists of structs.')
    texts: dict[str, int] = {}
    numbers = np.empty(len(column), np.int64)
    before: Any = None
    for row, values in enumerate(scalar.values for scalar in column):
        # an episode's list stands in each of its rows: to compare it costs a hundredth of reading it
        if row and _is_same(values, before):
            numbers[row] = numbers[row - 1]
            continue
        before = values
        listed = None if values is None else [_annotation(each, where) for each in values.to_pylist()]
        text = json.dumps(listed, ensure_ascii=False)
        numbers[row] = texts.setdefault(text, len(texts))
    return LanguageRows(list(texts), numbers)


def _is_same(values: Any, before: Any) -> bool:
    return values is before if values is None or before is None else bool(values.equals(before))


def _annotation(found: Any, where: str) -> Annotation:
    if not isinstance(found, dict):
        raise FormatError(f"{where} has a list with {found!r}. Allowed: annotations with role, content and style.")
    # pandas leaves out what no annotation of the file has
    row: Annotation = {"role": None, "content": None, "style": None}
    if "timestamp" in found:
        row["timestamp"] = None if found["timestamp"] is None else float(np.float32(found["timestamp"]))
    calls = found.get("tool_calls")
    known = {**found, "tool_calls": None if calls is None else [_call(call, where) for call in calls]}
    return row | {"camera": None} | {name: value for name, value in known.items() if name != "timestamp"}


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, str):
        return call
    try:
        return parse_json(call)
    except ValueError as error:
        raise FormatError(f"{where}: tool_calls holds {call[:40]!r}, which is no JSON ({error}).") from error


def row_fields(name: str) -> tuple[str, ...]:
    """Return the names in an annotation of a column."""
    return EVENT_ROW_FIELDS if name == LANGUAGE_EVENTS else PERSISTENT_ROW_FIELDS


def arrow_type(column: str) -> Any:
    """Return the type of a column in parquet files, as LeRobot writes it."""
    pa = import_pyarrow()
    kinds = {"timestamp": pa.float32(), "tool_calls": pa.list_(_json_type(pa))}
    required = ("role", "timestamp")
    names = row_fields(column)
    fields = [pa.field(name, kinds.get(name, pa.string()), nullable=name not in required) for name in names]
    return pa.list_(pa.struct(fields))


def _json_type(pa: Any) -> Any:
    return pa.json_() if hasattr(pa, "json_") else pa.string()


def hf_type(column: str) -> dict[str, Any]:
    """Return a column's type as Hugging Face's ``datasets`` declares it, from 4 on."""
    value = {"_type": "Value"}
    kinds: dict[str, Any] = {
        "timestamp": {"dtype": "float32", **value},
        "tool_calls": {"feature": {"_type": "Json"}, "_type": "List"},
    }
    return {
        "feature": {name: kinds.get(name, {"dtype": "string", **value}) for name in row_fields(column)},
        "_type": "List",
    }


def arrow_rows(column: str, texts: Sequence[str]) -> Any:
    """Return rows of JSON as an array of `arrow_type`."""
    pa = import_pyarrow()
    fields, made = row_fields(column), arrow_type(column)
    # columns of JSON are made of strings
    calls = pa.field("tool_calls", pa.list_(pa.string()))
    plain = pa.list_(pa.struct([calls if field.name == calls.name else field for field in made.value_type]))
    parsed: dict[str, Any] = {}
    for text in texts:
        if text not in parsed:
            parsed[text] = _parsed(text, fields, column)
    try:
        return pa.array([parsed[text] for text in texts], plain).cast(made)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaError(f"feature {column!r}: an annotation is not as LeRobot has it: {error}.") from error


def _parsed(text: str, fields: Sequence[str], name: str) -> list[Annotation] | None:
    """Return the annotations of a row as Arrow takes them."""
    problem = SchemaError(
        f"feature {name!r} has a row {text[:60]!r}. LeRobot has JSON there: a list of annotations, each an object of "
        f"{', '.join(fields)}; rename the feature, if it is something else."
    )
    try:
        rows = parse_json(text or NO_LANGUAGE)
    except ValueError as error:
        raise problem from error
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() <= {*fields} for row in rows):
        raise problem
    return [dict(_arrow_items(row, fields)) for row in rows]


def _arrow_items(row: Mapping[str, Any], fields: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in fields:
        value = row.get(name)
        if name == "tool_calls" and value is not None:
            value = [json.dumps(call, ensure_ascii=False) for call in value]
        yield name, value
