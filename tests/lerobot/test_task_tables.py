"""Texts of tasks are found by task_index, however pandas named the column that they are in."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.errors import FormatError
from stepwell.lerobot.meta_files import read_tasks
from stepwell.lerobot.metadata import read_info
from stepwell.testing import TINY_TASKS, tiny_lerobot

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")


def read(root: Path) -> tuple[str, ...]:
    return read_tasks(root, read_info(root))


def with_table(root: Path, columns: dict[str, Any], pandas: Any = None) -> Path:
    tiny_lerobot(root, cameras={})
    metadata = {"pandas": json.dumps(pandas)} if pandas is not None else None
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), root / "meta" / "tasks.parquet")
    return root


def with_lines(root: Path, text: str) -> Path:
    tiny_lerobot(root, cameras={}, version="v2.1")
    (root / "meta" / "tasks.jsonl").write_text(text)
    return root


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_tasks_are_read_from_every_version(tmp_path: Path, version: str) -> None:
    assert read(tiny_lerobot(tmp_path / "tiny", version=version, cameras={})) == TINY_TASKS


@needs_data
def test_tasks_of_a_real_dataset_are_read() -> None:
    assert read(SHARED / "v30_video")[2] == read(SHARED / "v21_video")[1] == "Second half: another task"


@pytest.mark.parametrize("name", ["task", "__index_level_0__", "instruction"])
def test_texts_are_in_whatever_column_was_the_index(tmp_path: Path, name: str) -> None:
    columns = {"note": ["x", "y"], "task_index": [0, 1], name: ["a", "b"]}
    assert read(with_table(tmp_path / "tiny", columns, {"index_columns": [name]})) == ("a", "b")


@pytest.mark.parametrize("pandas", [None, {}, [], {"index_columns": 3}, {"index_columns": [{"kind": "range"}]}])
def test_column_of_any_name_does_where_pandas_says_nothing(tmp_path: Path, pandas: Any) -> None:
    assert read(with_table(tmp_path / "tiny", {"text": ["a"], "task_index": [0]}, pandas)) == ("a",)


def test_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    columns = {"task_index": [2, 0, 1], "task": ["c", "a", "b"]}
    assert read(with_table(tmp_path / "tiny", columns)) == ("a", "b", "c")


def test_index_that_no_task_has_is_empty(tmp_path: Path) -> None:
    root = with_lines(tmp_path / "tiny", '{"task_index": 2, "task": "c"}\n{"task_index": 0, "task": "a\u2028b"}\n')
    assert read(root) == ("a\u2028b", "", "c")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"task": ["a"]}, "no column 'task_index'"),
        ({"task_index": [0]}, "no column of texts"),
        ({"task_index": [0, 0], "task": ["a", "b"]}, "twice"),
        ({"task_index": [0, 1], "task": ["a", None]}, "no text"),
        ({"task_index": [0], "task": [3]}, "no text"),
        ({"task_index": ["x"], "task": ["a"]}, "'task_index' is not int64"),
        ({"task_index": [-1], "task": ["a"]}, "from -1 to -1"),
        ({"task_index": [10**9], "task": ["a"]}, "from 1000000000"),
    ],
)
def test_table_that_cannot_be_is_refused(tmp_path: Path, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=f"tasks.parquet.*{says}"):
        read(with_table(tmp_path / "tiny", columns))


@pytest.mark.parametrize("line", ['{"task": "a"}', '{"task_index": 0}', '{"task_index": 0, "task": 1}', "3", "{"])
def test_line_that_cannot_be_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(FormatError, match=r"tasks\.jsonl"):
        read(with_lines(tmp_path / "tiny", line))


@pytest.mark.parametrize(("version", "name"), [("v3.0", "tasks.parquet"), ("v2.1", "tasks.jsonl")])
def test_missing_file_is_named(tmp_path: Path, version: str, name: str) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras={})
    (root / "meta" / name).unlink()
    with pytest.raises(FormatError, match=f"{name} is missing"):
        read(root)
