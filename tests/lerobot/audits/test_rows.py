"""Each defect of the tables is found under its code, with the episodes that it touches, and nothing else is."""

import shutil

import pytest

pa = pytest.importorskip("pyarrow")

from stepwell.lerobot.auditing import audit  # noqa: E402

from .damage import (  # noqa: E402
    LENGTHS,
    change_column,
    change_episodes,
    change_json,
    change_lines,
    change_rows,
    change_table,
    cut_off,
    data_files,
    episode_files,
    found,
    tiny_set,
)

# statistics of all rows are compared only where all rows are there; those of v2.1 are an episode's
UNCHECKED = {"v2.0": ["statistics"], "v2.1": [], "v3.0": ["statistics"]}


def tiny(path, version="v3.0", **options):
    return tiny_set(path, version=version, cameras={}, **{"lengths": LENGTHS, **options})


def swap(values, a, b):
    values = list(values)
    values[a], values[b] = values[b], values[a]
    return values


def drop_rows(root, first, stop, file=0):
    def change(table):
        return pa.concat_tables([table.slice(0, first), table.slice(stop)])

    change_table(data_files(root)[file], change)


def v3_index_gap(root):
    change_column(data_files(root)[0], "index", lambda index: [i + (i >= 7) for i in index])


def v3_index_back(root):
    change_column(data_files(root)[0], "index", lambda index: swap(index, 6, 7))


def v3_frame_from_one(root):
    change_column(data_files(root)[0], "frame_index", lambda frames: [f + (5 <= i < 12) for i, f in enumerate(frames)])


def v3_off_grid(root):
    change_rows(root, "timestamp", {13: 0.103})


def v3_shifted(root):
    change_column(
        data_files(root)[0], "timestamp", lambda times: [t + (0.1 if 5 <= i < 12 else 0) for i, t in enumerate(times)]
    )


def v3_range_shifted(root):
    change_episodes(root, dataset_from_index={1: 6}, length={1: 6})


def v3_ranges_overlap(root):
    change_episodes(root, dataset_to_index={0: 7}, length={0: 7})


def v3_range_beyond(root):
    change_episodes(root, dataset_to_index={2: 40}, length={2: 28})


def v3_bound_moved(root):
    change_episodes(root, dataset_to_index={0: 6}, dataset_from_index={1: 6}, length={0: 6, 1: 6})


def v3_all_ranges_moved(root):
    change_episodes(root, dataset_from_index={0: 3, 1: 8, 2: 15}, dataset_to_index={0: 8, 1: 15, 2: 21})


def v3_last_episode_forgotten(root):
    change_table(episode_files(root)[0], lambda table: table.slice(0, 2))
    change_json(root / "meta/info.json", lambda info: info.update(total_episodes=2))


def v3_episode_without_rows(root):
    drop_rows(root, 12, 18)
    change_json(root / "meta/info.json", lambda info: info.update(total_frames=12))


def v3_table_reversed(root):
    change_table(episode_files(root)[0], lambda table: table.take([2, 1, 0]))


def v3_tasks_reversed(root):
    change_table(root / "meta/tasks.parquet", lambda table: table.take([2, 1, 0]))


def v3_task_twice(root):
    change_column(root / "meta/tasks.parquet", "__index_level_0__", lambda texts: [texts[0], texts[0], texts[2]])


def info_says(**values):
    return lambda root: change_json(root / "meta/info.json", lambda info: info.update(values))


V3 = {
    "index that jumps": (v3_index_gap, {"index": [1, 2]}),
    "index that goes back": (v3_index_back, {"index": [1]}),
    "a frame_index that is another": (lambda root: change_rows(root, "frame_index", {8: 30}), {"frame-index": [1]}),
    "a frame_index from 1 on": (v3_frame_from_one, {"frame-index": [1]}),
    "an episode_index that is another": (
        lambda root: change_rows(root, "episode_index", {8: 2}),
        {"episode-index": [1]},
    ),
    "an episode_index that is none": (lambda root: change_rows(root, "episode_index", {17: 9}), {"episode-index": [2]}),
    "a timestamp beside the grid": (v3_off_grid, {"timestamp-grid": [2]}),
    "a timestamp that is none": (
        lambda root: change_rows(root, "timestamp", {1: float("nan")}),
        {"timestamp-grid": [0], "not-finite": [0]},
    ),
    "timestamps from 0.1 s on": (v3_shifted, {"timestamp-shift": [1]}),
    "a timestamp of another step": (lambda root: change_rows(root, "timestamp", {14: 0.1}), {"timestamp-shift": [2]}),
    "a task_index beyond the tasks": (lambda root: change_rows(root, "task_index", {2: 3}), {"task-index": [0]}),
    "a task_index below 0": (lambda root: change_rows(root, "task_index", {12: -1}), {"task-index": [2]}),
    "a range that begins too late": (v3_range_shifted, {"episode-range": [1], "episode-length": [1]}),
    "ranges that overlap": (v3_ranges_overlap, {"episode-range": [0], "episode-length": [0]}),
    "a range beyond the rows": (v3_range_beyond, {"episode-range": [2], "episode-length": [2]}),
    "a bound between episodes moved": (v3_bound_moved, {"episode-range": [0, 1], "episode-length": [0, 1]}),
    "all ranges moved": (v3_all_ranges_moved, {"episode-range": [0, 1, 2]}),
    "a length that is another": (lambda root: change_episodes(root, length={2: 9}), {"episode-length": [2]}),
    "rows of no episode": (v3_last_episode_forgotten, {"orphaned-rows": [2]}),
    "an episode of no rows": (v3_episode_without_rows, {"episode-empty": [2]}),
    "a table of episodes in another order": (v3_table_reversed, {"episodes-order": [0, 2]}),
    "tasks in another order": (v3_tasks_reversed, {"tasks-order": []}),
    "a task's text twice": (v3_task_twice, {"tasks-repeated": []}),
    "another number of rows": (info_says(total_frames=19), {"totals": []}),
    "another number of episodes": (info_says(total_episodes=4), {"totals": []}),
    "another number of tasks": (info_says(total_tasks=1), {"totals": []}),
}


@pytest.mark.parametrize("name", V3)
def test_a_defect_of_a_v3_table_is_found_alone(name, tmp_path):
    damage, codes = V3[name]
    root = tiny(tmp_path)
    damage(root)
    report = audit(root)
    unchecked = ("statistics",) if "episode-empty" in codes else ()
    assert found(report, unchecked=unchecked) == codes
    assert all(finding.message and finding.advice for finding in report.findings)


def test_a_set_in_which_files_are_swapped_has_another_index_in_every_row(tmp_path):
    root = tiny(tmp_path, files=3)
    one, two, _ = data_files(root)
    spare = one.with_suffix(".spare")
    one.rename(spare), two.rename(one), spare.rename(two)
    assert found(audit(root)) == {"index": [0, 1], "episode-range": [0, 1], "data-file": [0, 1]}


def test_an_episode_that_is_said_to_be_in_another_file_is_found(tmp_path):
    root = tiny(tmp_path, files=3)
    change_column(episode_files(root)[1], "data/file_index", lambda _: [2])
    assert found(audit(root)) == {"data-file": [1]}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_a_missing_data_file_is_named_with_its_episodes(version, tmp_path):
    root = tiny(tmp_path, version, files=3)
    data_files(root)[1].unlink()
    report = audit(root)
    assert found(report, unchecked=UNCHECKED[version]) == {"data-missing": [1]}
    assert "data/chunk-000" in report.findings[0].message


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_data_files_in_a_directory_of_another_name_are_one_finding_with_the_command_that_mends_it(version, tmp_path):
    root = tiny(tmp_path, version, files=3)
    (root / "data").rename(root / "parquet")
    (finding,) = [finding for finding in audit(root).findings if finding.code == "data-missing"]
    assert finding.message.startswith("3 of 3 files are missing, the first is data/chunk-000/")
    assert finding.command == f"mv {root}/parquet {root}/data"
    # the table of episodes has a file of the same name
    shutil.rmtree(root / "parquet")
    (finding,) = [finding for finding in audit(root).findings if finding.code == "data-missing"]
    assert finding.message.endswith("; there is no directory data") and not finding.command


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_a_data_file_without_its_end_is_named_and_the_others_are_looked_at(version, tmp_path):
    root = tiny(tmp_path, version, files=3)
    cut_off(data_files(root)[1])
    change_rows(root, "timestamp", {2: 0.203}, file=2)
    codes = found(audit(root), unchecked=UNCHECKED[version])
    assert codes == {"data-unreadable": [1], "timestamp-grid": [2]}


def test_a_table_of_episodes_without_its_end_is_found_and_its_rows_are_orphans(tmp_path):
    root = tiny(tmp_path, files=3)
    cut_off(episode_files(root)[2])
    assert found(audit(root)) == {"episodes-unreadable": [], "orphaned-rows": [2], "totals": []}


def test_a_column_that_is_missing_in_the_table_of_episodes_is_named(tmp_path):
    root = tiny(tmp_path)
    change_table(episode_files(root)[0], lambda table: table.drop_columns(["dataset_from_index"]))
    report = audit(root)
    assert found(report)["episodes-unreadable"] == []
    assert "dataset_from_index" in report.findings[0].message


def test_tables_may_lack_what_nobody_needs_to_read_them(tmp_path):
    root = tiny(tmp_path)
    optional = ["length", "tasks", "data/chunk_index", "data/file_index", "meta/episodes/chunk_index"]
    change_table(episode_files(root)[0], lambda table: table.drop_columns(optional))
    assert found(audit(root)) == {}


def test_rows_of_an_episode_that_another_one_took_the_place_of_are_orphans(tmp_path):
    root = tiny(tmp_path)

    def add_old_rows(table):
        old = table.slice(5, 7).set_column(
            table.column_names.index("index"), table.schema.field("index"), pa.array(range(18, 25), pa.int64())
        )
        return pa.concat_tables([table, old])

    change_table(data_files(root)[0], add_old_rows)
    info_says(total_frames=25)(root)
    report = audit(root)
    assert found(report)["orphaned-rows"] == [1]
    assert "7 rows" in next(f.message for f in report.findings if f.code == "orphaned-rows")
    assert set(found(report)) == {"orphaned-rows", "statistics"}


def test_episodes_of_one_step_are_named(tmp_path):
    root = tiny(tmp_path, lengths=(5, 1, 6))
    assert found(audit(root)) == {"episode-short": [1]}


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_a_length_in_v2_that_is_another_is_found_at_its_episode_only(version, tmp_path):
    root = tiny(tmp_path, version)
    change_lines(
        root / "meta/episodes.jsonl",
        lambda lines: [line | {"length": 6} if line["episode_index"] == 0 else line for line in lines],
    )
    assert found(audit(root)) == {"episode-length": [0]}


V2 = {
    "an episode_index that is another": (
        lambda root: change_rows(root, "episode_index", {3: 2}, file=1),
        {"episode-index": [1]},
    ),
    "a frame_index that is another": (
        lambda root: change_rows(root, "frame_index", {3: 9}, file=1),
        {"frame-index": [1]},
    ),
    "an index that is another": (lambda root: change_rows(root, "index", {3: 9}, file=2), {"index": [2]}),
    "a timestamp beside the grid": (
        lambda root: change_rows(root, "timestamp", {3: 0.308}, file=2),
        {"timestamp-grid": [2]},
    ),
    "a task_index of none": (lambda root: change_rows(root, "task_index", {3: 7}, file=0), {"task-index": [0]}),
    "an episode that is not in the table": (
        lambda root: change_lines(root / "meta/episodes.jsonl", lambda lines: lines[:2]),
        {"orphaned-rows": [2], "totals": []},
    ),
    "an episode left out of the numbers": (
        lambda root: change_lines(root / "meta/episodes.jsonl", lambda lines: [lines[0], lines[2]]),
        {"episodes-order": [2], "orphaned-rows": [1], "totals": []},
    ),
    "a task_index twice": (
        lambda root: change_lines(
            root / "meta/tasks.jsonl",
            lambda lines: [line | {"task_index": min(1, line["task_index"])} for line in lines],
        ),
        {"tasks-order": [], "task-index": [1]},
    ),
    "lines that are no JSON": (lambda root: cut_off(root / "meta/tasks.jsonl"), {"tasks-unreadable": []}),
}


@pytest.mark.parametrize("name", V2)
def test_a_defect_of_a_v2_table_is_found_alone(name, tmp_path):
    damage, codes = V2[name]
    root = tiny(tmp_path, "v2.1")
    damage(root)
    assert found(audit(root)) == codes


def test_tasks_of_v2_may_stand_in_any_order_and_have_any_number(tmp_path):
    root = tiny(tmp_path, "v2.1")
    spare = {"task_index": 9, "task": "an extra one"}
    change_lines(root / "meta/tasks.jsonl", lambda lines: [spare, *lines[::-1]])
    change_json(root / "meta/info.json", lambda info: info.update(total_tasks=4))
    assert found(audit(root)) == {}


def test_files_may_lie_where_the_info_says(tmp_path):
    root = tiny(tmp_path, "v2.1")
    for path in data_files(root):
        path.rename(root / "data" / path.name)
    change_json(root / "meta/info.json", lambda info: info.update(data_path="data/episode_{episode_index:06d}.parquet"))
    assert found(audit(root)) == {}


def test_the_texts_of_tasks_may_be_in_a_column_of_any_name(tmp_path):
    root = tiny(tmp_path)
    change_table(root / "meta/tasks.parquet", lambda table: table.rename_columns(["task_index", "text"]))
    assert found(audit(root)) == {}
    change_table(root / "meta/tasks.parquet", lambda table: table.drop_columns(["text"]))
    assert found(audit(root)) == {"tasks-unreadable": []}


def test_a_file_of_no_episode_holds_orphans(tmp_path):
    root = tiny(tmp_path, "v2.1")
    (root / "data/chunk-000/episode_000009.parquet").write_bytes(data_files(root)[2].read_bytes())
    assert found(audit(root)) == {"orphaned-rows": [2], "index": [], "totals": []}
