"""Reading the texts of tasks: ``meta/tasks.parquet`` in v3, ``meta/tasks.jsonl`` in v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.json_text import parse_json
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import (
    WHAT_TO_DO,
    number_column,
    open_parquet,
    read_columns,
    read_json_lines,
    said,
    whole_number,
)

__all__ = ["TASKS_LINES", "TASKS_TABLE", "read_tasks"]

TASKS_TABLE = "meta/tasks.parquet"
TASKS_LINES = "meta/tasks.jsonl"
INDEX = "task_index"
# pandas calls an index without a name by the second
TEXT_NAMES = ("task", "__index_level_0__")
MAX_TASKS = 2**20


def read_tasks(root: Path, info: DatasetInfo) -> tuple[str, ...]:
    """Return the texts of a dataset's tasks by their task_index.

    Args:
        root: of the dataset.
        info: of the dataset.

    Returns:
        The texts; "" at an index that no task has. ``lerobot`` looks them up by their place in the file instead: where
        a file is not in the order of its task_index, it gives other texts, and wrong ones.

    Raises:
        FormatError: the file is missing or wrong, or an index stands there twice.
    """
    if info.is_v3:
        path = root / TASKS_TABLE
        found = _read_table(path)
    else:
        path = root / TASKS_LINES
        found = [(whole_number(line, INDEX, path), line.get("task")) for line in read_json_lines(path)]
    texts = dict(found)
    if len(texts) < len(found) or not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"{path}: a {INDEX} stands there twice, or has no text. {WHAT_TO_DO}")
    if texts and not 0 <= min(texts) <= max(texts) < MAX_TASKS:
        raise FormatError(f"{path}: {INDEX} reaches from {min(texts)} to {max(texts)}. Allowed: 0 to {MAX_TASKS - 1}.")
    return tuple(str(texts.get(index, "")) for index in range(max(texts, default=-1) + 1))


def _read_table(path: Path) -> list[tuple[int, Any]]:
    with open_parquet(path) as file:
        name = _text_name(file.schema_arrow, path)
        table = read_columns(file, path, [INDEX, name])
    try:
        texts = table.column(name).to_pylist()
    except ValueError as error:
        raise FormatError(f"{path}: column {name!r} is not text: {said(error)}. {WHAT_TO_DO}") from error
    return list(zip(number_column(table, INDEX, "int64", path).tolist(), texts, strict=True))


def _text_name(schema: Any, path: Path) -> str:
    """Return the column that pandas wrote the texts to, which were the index of its table."""
    others: list[str] = [name for name in schema.names if name != INDEX]
    indexes = [name for name in _pandas_index(schema) if name in others]
    named = [name for name in (*TEXT_NAMES, *indexes, *others[:1]) if name in others]
    if not named:
        raise FormatError(f"{path} has no column of texts, only {schema.names}. Allowed: {' or '.join(TEXT_NAMES)}.")
    return named[0]


def _pandas_index(schema: Any) -> list[str]:
    try:
        indexes = parse_json((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [name for name in indexes if isinstance(name, str)] if isinstance(indexes, list) else []
