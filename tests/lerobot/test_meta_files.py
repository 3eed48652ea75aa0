"""Files of meta/ are read whole, or the file and what is wrong with it are named."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.lerobot.auditing import audit
from stepwell.lerobot.meta_files import (
    EpisodeRecords,
    VideoSpans,
    episode_paths,
    number_column,
    open_parquet,
    read_columns,
    read_episodes,
    read_json,
    read_json_lines,
    read_tasks,
    said,
    whole_number,
)
from stepwell.lerobot.metadata import read_info
from stepwell.testing import TINY_TASKS, tiny_lerobot

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def column(path: Path, name: str, dtype: str) -> Any:
    with open_parquet(path) as file:
        return number_column(read_columns(file, path, [name]), name, dtype, path)


@pytest.mark.parametrize("read", [read_json, read_json_lines, open_parquet])
def test_missing_file_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(FormatError, match=f"^{tmp_path}/none is missing. Download"):
        read(tmp_path / "none")


@pytest.mark.parametrize("read", [read_json, read_json_lines, open_parquet])
def test_directory_in_the_place_of_a_file_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(FormatError, match=re.escape(str(tmp_path))):
        read(tmp_path)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 100_000, b"", b'{"a": }'])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.json"):
        read_json(path)


def test_lines_end_at_line_feeds_only_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"task": "a\u2028b\u0085c"}\r\n\n  \n{"task": "d"}', encoding="utf-8", newline="")
    assert read_json_lines(path) == [{"task": "a\u2028b\u0085c"}, {"task": "d"}]


@pytest.mark.parametrize("value", [None, -1, True, 1.0, "1", 2**40, [1]])
def test_only_whole_numbers_are_counts(value: Any) -> None:
    with pytest.raises(FormatError, match=r"x: length is .* in "):
        whole_number({"length": value, "tasks": ["a" * 200]}, "length", Path("x"))
    assert whole_number({"length": 0}, "length", Path("x")) == 0


def test_numbers_come_as_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", small=pa.array([1, 2], pa.int8()), whole=[1.0, 2.0])
    for name in ("small", "whole"):
        found = column(path, name, "int64")
        assert (found.tolist(), found.dtype) == ([1, 2], np.int64)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1, None], "1 of 2 values are missing"),
        ([1.5, 2.0], "is not int64"),
        (["a", "b"], "is not int64"),
        ([[1], [2]], ""),
    ],
)
def test_numbers_that_would_change_are_refused(tmp_path: Path, values: list[Any], says: str) -> None:
    with pytest.raises(FormatError, match=f"column 'a'.*{says}"):
        column(table(tmp_path / "x.parquet", a=values), "a", "int64")


def test_columns_with_dots_and_slashes_in_their_names_are_found(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", **{"videos/observation.images.top/file_index": [3], "observation": [1]})
    assert column(path, "videos/observation.images.top/file_index", "int64").tolist() == [3]
    with pytest.raises(FormatError, match="has no column 'videos/observation'"):
        column(path, "videos/observation", "int64")


def test_message_goes_on_in_one_line() -> None:
    assert said(ValueError("too short.\nmore")) == "too short"
    assert said(KeyError()) == "KeyError"


pytest.importorskip("av")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
LENGTHS = [4, 6, 3]
CAMERAS = {"top": ("video", (16, 16)), "side": ("png", (16, 16))}
TABLE = "meta/episodes/chunk-000/file-000.parquet"


def read(root: Path) -> EpisodeRecords:
    return read_episodes(root, read_info(root))


def tiny(root: Path, **options: Any) -> Path:
    return tiny_lerobot(root, **{"lengths": LENGTHS, "cameras": CAMERAS, **options})


def rewrite(root: Path, change: Callable[[dict[str, list[Any]]], Any], name: str = TABLE) -> None:
    """Change the columns of a parquet file, as lists."""
    columns = pq.read_table(root / name).to_pydict()
    change(columns)
    pq.write_table(pa.table(columns), root / name)


def set_info(root: Path, **values: Any) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_rows_and_tasks_are_read_from_every_version(tmp_path: Path, version: str) -> None:
    found = read(tiny(tmp_path / "tiny", version=version))
    assert (found.index.tolist(), found.first.tolist(), found.stop.tolist()) == ([0, 1, 2], [0, 4, 10], [4, 10, 13])
    assert list(found.tasks) == [(TINY_TASKS[0],), (TINY_TASKS[1], TINY_TASKS[2]), (TINY_TASKS[0],)]
    assert list(found.videos) == ["top"]
    arrays = [found.index, found.first, found.stop, found.data_chunk, found.data_file]
    assert all(array.dtype == np.int64 for array in [*arrays, found.videos["top"].chunk, found.videos["top"].file])


def test_each_episode_of_v2_has_its_own_files(tmp_path: Path) -> None:
    found = read(tiny(tmp_path / "tiny", version="v2.1", chunks_size=2))
    assert (found.data_chunk.tolist(), found.data_file.tolist()) == ([0, 0, 1], [0, 1, 2])
    top = found.videos["top"]
    assert (top.chunk.tolist(), top.file.tolist(), top.start.tolist()) == ([0, 0, 1], [0, 1, 2], [0, 0, 0])


def test_episodes_of_v3_share_files_and_begin_somewhere_in_them(tmp_path: Path) -> None:
    found = read(tiny(tmp_path / "tiny", files=2, chunks_size=1))
    assert (found.data_chunk.tolist(), found.data_file.tolist()) == ([0, 0, 1], [0, 0, 0])
    top = found.videos["top"]
    assert (top.chunk.tolist(), top.file.tolist(), top.start.tolist()) == ([0, 1, 1], [0, 0, 0], [0, 0, 0.6])


@needs_data
def test_several_mp4_files_of_a_real_dataset_are_told_apart() -> None:
    found = read(SHARED / "v30_video")
    assert found.index.tolist() == list(range(9))
    assert found.stop[-1] == 1481
    side, top = found.videos["observation.images.side"], found.videos["observation.images.top"]
    assert (set(side.file.tolist()), set(top.file.tolist())) == ({0, 1}, {0})
    assert side.start[side.file == 1][0] == 0
    np.testing.assert_allclose(top.start, found.first / 10)


def test_files_are_in_order_of_their_numbers_beyond_three_digits(tmp_path: Path) -> None:
    names = ["chunk-000/file-999", "chunk-000/file-1000", "chunk-001/file-000", "chunk-1000/file-000"]
    for name in reversed(names):
        path = tmp_path / "meta" / "episodes" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [f"{path.parent.name}/{path.stem}" for path in episode_paths(tmp_path)] == names


@pytest.mark.parametrize("column", ["tasks", "length", "episode_index", "stats/action/mean", "videos/top/to_timestamp"])
def test_column_that_lerobot_does_without_may_be_missing(tmp_path: Path, column: str) -> None:
    root = tiny(tmp_path / "tiny")
    rewrite(root, lambda columns: columns.pop(column))
    found = read(root)
    assert (found.index.tolist(), found.stop.tolist()) == ([0, 1, 2], [4, 10, 13])
    assert column != "tasks" or list(found.tasks) == [(), (), ()]


def test_parquet_files_are_found_by_their_rows_where_the_table_does_not_name_them(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny", files=2)
    for number in (0, 1):
        rewrite(
            root, lambda columns: columns.pop("data/file_index"), f"meta/episodes/chunk-000/file-00{number}.parquet"
        )
    assert read(root).data_file.tolist() == [0, 0, 1]
    (root / "data" / "chunk-000" / "file-001.parquet").unlink()
    with pytest.raises(FormatError, match="does not say in which parquet files"):
        read(root)


@pytest.mark.parametrize("column", ["dataset_from_index", "dataset_to_index", "videos/top/from_timestamp"])
def test_column_that_is_needed_and_missing_is_named(tmp_path: Path, column: str) -> None:
    root = tiny(tmp_path / "tiny")
    rewrite(root, lambda columns: columns.pop(column))
    with pytest.raises(FormatError, match=f"file-000.parquet has no column '{column}'"):
        read(root)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("episode_index", [0, 2, 1], "episode 2 stands where episode 1 belongs"),
        ("episode_index", [1, 2, 3], "episode 1 stands where episode 0 belongs"),
        ("dataset_from_index", [0, 3, 10], r"episode 1 has rows \[3, 10\), after row 4"),
        ("dataset_to_index", [4, 3, 13], r"episode 1 has rows \[4, 3\)"),
        ("dataset_to_index", [4, 10, 2**60], "episode 2 has rows"),
        ("dataset_to_index", [4, None, 13], "'dataset_to_index' is not int64: 1 of 3 values are missing"),
        ("dataset_to_index", ["4", "x", "13"], "'dataset_to_index' is not int64"),
        ("data/file_index", [0, -1, 0], "data/file_index of episode 1 is -1"),
        ("videos/top/file_index", [0, 0, 2**31], "videos/top/file_index of episode 2"),
        ("videos/top/from_timestamp", [0, float("nan"), 1], "from_timestamp of episode 1 is nan"),
        ("videos/top/from_timestamp", [0, -1.0, 1], "from_timestamp of episode 1 is -1.0"),
        ("tasks", [3, 4, 5], "'tasks' is not lists of texts"),
        ("tasks", [["a"], [None], ["b"]], "lacks 1 texts"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, column: str, values: list[Any], says: str) -> None:
    root = tiny(tmp_path / "tiny")
    rewrite(root, lambda columns: columns.update({column: values}))
    with pytest.raises(FormatError, match=says):
        read(root)
    # an audit names each dataset that is refused
    assert not audit(root).is_ok


def test_missing_list_of_tasks_is_an_empty_one(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny")
    rewrite(root, lambda columns: columns.update({"tasks": [["a"], None, ["b", "c"]]}))
    assert list(read(root).tasks) == [("a",), (), ("b", "c")]


def test_rows_between_episodes_that_belong_to_none_are_allowed(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny")
    rewrite(root, lambda columns: columns.update({"dataset_from_index": [0, 7, 13], "dataset_to_index": [4, 13, 16]}))
    assert read(root).length.tolist() == LENGTHS


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episodes_that_info_json_does_not_count_yet_are_not_shown(tmp_path: Path, version: str) -> None:
    root = tiny(tmp_path / "tiny", version=version)
    set_info(root, total_episodes=2, total_frames=10)
    found = read(root)
    assert (found.stop.tolist(), len(found.tasks), len(found.videos["top"].file)) == ([4, 10], 2, 2)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lost_episodes_are_an_error(tmp_path: Path, version: str) -> None:
    root = tiny(tmp_path / "tiny", version=version)
    set_info(root, total_episodes=5)
    with pytest.raises(FormatError, match=r"info.json counts 5 episodes, meta/ describes 3"):
        read(root)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_dataset_without_episodes_has_none(tmp_path: Path, version: str) -> None:
    root = tiny(tmp_path / "tiny", version=version)
    info = replace(read_info(root), total_episodes=0, total_frames=0)
    for path in [*(root / "meta" / "episodes").rglob("*.parquet")]:
        path.unlink()
    if version == "v2.1":
        (root / "meta" / "episodes.jsonl").write_text("")
    found = read_episodes(root, info)
    assert (len(found), found.length.tolist(), len(found.videos["top"].start)) == (0, [], 0)
    with pytest.raises(FormatError):
        read_episodes(root, replace(info, total_episodes=1))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "record 2 is not JSON"),
        ("[]", "record 2 is a JSON list"),
        ('{"episode_index": 1}', "length is None"),
        ('{"episode_index": 1, "length": -4}', "length is -4"),
        ('{"episode_index": true, "length": 4}', "episode_index is True"),
        ('{"episode_index": 0, "length": 4}', "episode 0 stands where episode 1 belongs"),
        ('{"episode_index": 1, "length": 4, "tasks": "x"}', "tasks is 'x'"),
        ('{"episode_index": 1, "length": 4, "tasks": [1]}', r"tasks is \[1\]"),
    ],
)
def test_wrong_line_of_v2_is_named(tmp_path: Path, line: str, says: str) -> None:
    root = tiny(tmp_path / "tiny", version="v2.1")
    path = root / "meta" / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, lines[2]]))
    with pytest.raises(FormatError, match=f"episodes.jsonl.*{says}"):
        read(root)
    assert not audit(root).is_ok


def test_lines_of_v2_may_be_in_any_order_and_name_no_tasks(tmp_path: Path) -> None:
    root = tiny(tmp_path / "tiny", version="v2.1")
    path = root / "meta" / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[2], '{"episode_index": 0, "length": 5}', "", lines[1]]))
    set_info(root, total_frames=14)
    found = read(root)
    assert (found.first.tolist(), found.stop.tolist(), found.tasks[0]) == ([0, 5, 11], [5, 11, 14], ())


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"no parquet at all, not even a little"])
def test_file_that_is_no_parquet_is_named(tmp_path: Path, damage: bytes) -> None:
    root = tiny(tmp_path / "tiny")
    (root / TABLE).write_bytes(damage)
    with pytest.raises(FormatError, match=r"file-000\.parquet is not a parquet file, or an unfinished one"):
        read(root)


def records() -> EpisodeRecords:
    number = np.arange(4)
    return EpisodeRecords(
        index=number,
        first=np.array([0, 5, 5, 9]),
        stop=np.array([5, 5, 9, 12]),
        data_chunk=number // 2,
        data_file=number % 2,
        tasks=[("a",), (), ("a", "b"), ("b",)],
        videos={"top": VideoSpans(number * 0, number, number * 0.5, number * 0.5 + 0.5)},
        table_length=np.array([5, 0, 4, 3]),
    )


def test_length_is_from_first_to_stop() -> None:
    assert records().length.tolist() == [5, 0, 4, 3]
    assert len(records()) == 4


def test_taking_places_takes_all_of_their_records() -> None:
    some = records().take([3, 1])
    assert [some.index.tolist(), some.first.tolist(), some.stop.tolist()] == [[3, 1], [9, 5], [12, 5]]
    assert [some.data_chunk.tolist(), some.data_file.tolist(), list(some.tasks)] == [[1, 0], [1, 1], [("b",), ()]]
    assert (some.videos["top"].file.tolist(), some.videos["top"].start.tolist()) == ([3, 1], [1.5, 0.5])
    assert len(records().take([])) == 0


def test_records_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(records()))
    assert (copy.stop.tolist(), copy.tasks) == ([5, 5, 9, 12], records().tasks)


def tasks_of(root: Path) -> tuple[str, ...]:
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
    assert tasks_of(tiny_lerobot(tmp_path / "tiny", version=version, cameras={})) == TINY_TASKS


@needs_data
def test_tasks_of_a_real_dataset_are_read() -> None:
    assert tasks_of(SHARED / "v30_video")[2] == tasks_of(SHARED / "v21_video")[1] == "Second half: another task"


@pytest.mark.parametrize("name", ["task", "__index_level_0__", "instruction"])
def test_texts_are_in_whatever_column_was_the_index(tmp_path: Path, name: str) -> None:
    columns = {"note": ["x", "y"], "task_index": [0, 1], name: ["a", "b"]}
    assert tasks_of(with_table(tmp_path / "tiny", columns, {"index_columns": [name]})) == ("a", "b")


@pytest.mark.parametrize("pandas", [None, {}, [], {"index_columns": 3}, {"index_columns": [{"kind": "range"}]}])
def test_column_of_any_name_does_where_pandas_says_nothing(tmp_path: Path, pandas: Any) -> None:
    assert tasks_of(with_table(tmp_path / "tiny", {"text": ["a"], "task_index": [0]}, pandas)) == ("a",)


def test_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    columns = {"task_index": [2, 0, 1], "task": ["c", "a", "b"]}
    assert tasks_of(with_table(tmp_path / "tiny", columns)) == ("a", "b", "c")


def test_index_that_no_task_has_is_empty(tmp_path: Path) -> None:
    root = with_lines(tmp_path / "tiny", '{"task_index": 2, "task": "c"}\n{"task_index": 0, "task": "a\u2028b"}\n')
    assert tasks_of(root) == ("a\u2028b", "", "c")


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
    root = with_table(tmp_path / "tiny", columns)
    with pytest.raises(FormatError, match=f"tasks.parquet.*{says}"):
        tasks_of(root)
    assert not audit(root).is_ok


@pytest.mark.parametrize("line", ['{"task": "a"}', '{"task_index": 0}', '{"task_index": 0, "task": 1}', "3", "{"])
def test_line_that_cannot_be_is_refused(tmp_path: Path, line: str) -> None:
    root = with_lines(tmp_path / "tiny", line)
    with pytest.raises(FormatError, match=r"tasks\.jsonl"):
        tasks_of(root)
    assert not audit(root).is_ok


@pytest.mark.parametrize(("version", "name"), [("v3.0", "tasks.parquet"), ("v2.1", "tasks.jsonl")])
def test_missing_file_of_tasks_is_named(tmp_path: Path, version: str, name: str) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras={})
    (root / "meta" / name).unlink()
    with pytest.raises(FormatError, match=f"{name} is missing"):
        tasks_of(root)
