"""Each defect of the columns' types and values is found under its code, with the episodes that it touches."""

import json

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from stepwell.lerobot.auditing import audit  # noqa: E402

from .damage import (  # noqa: E402
    change_column,
    change_json,
    change_rows,
    change_table,
    change_type,
    data_files,
    found,
    tiny_set,
)


def codes_but_statistics(root):
    """What is found; values that were changed do not fit the stored statistics any more."""
    return {code: episodes for code, episodes in found(audit(root)).items() if not code.startswith("statistics")}


def rows_of(episode, values, make):
    """Replace the rows of an episode of three in one file."""
    first, stop = ((0, 5), (5, 12), (12, 18))[episode]
    return [make(i - first) if first <= i < stop else value for i, value in enumerate(values)]


def test_nan_and_infinity_are_found_with_their_feature_and_episodes(tmp_path):
    root = tiny_set(tmp_path)
    change_rows(root, "observation.state", {3: [0, float("nan"), 0, 0], 16: [0, 0, float("inf"), 0]})
    report = audit(root)
    assert found(report) == {"not-finite": [0, 2]}
    assert "observation.state: NaN, infinite or missing in 2 rows" in report.findings[0].message


def test_a_missing_scalar_is_found(tmp_path):
    root = tiny_set(tmp_path)
    change_rows(root, "next.reward", {6: None})
    assert found(audit(root)) == {"not-finite": [1]}


def test_a_feature_that_never_changes_is_named(tmp_path):
    root = tiny_set(tmp_path)
    change_column(data_files(root)[0], "next.reward", lambda values: [0.25] * len(values))
    assert codes_but_statistics(root) == {"constant": []}


def test_flags_that_never_change_are_named_too(tmp_path):
    root = tiny_set(tmp_path)
    change_column(data_files(root)[0], "next.done", lambda values: [False] * len(values))
    (finding,) = [finding for finding in audit(root).findings if finding.code == "constant"]
    assert finding.message == "next.done: 0 in every row"


def test_of_a_single_row_nothing_is_said_to_be_constant_or_a_duplicate(tmp_path):
    assert found(audit(tiny_set(tmp_path, lengths=(1,)))) == {"episode-short": [0]}


def test_elements_that_never_change_are_named(tmp_path):
    root = tiny_set(tmp_path, files=3)
    for path in data_files(root):
        change_column(path, "observation.state", lambda values: [[a, 7, c, 7] for a, _, c, _ in values])
    report = audit(root)
    (finding,) = [finding for finding in report.findings if finding.code == "constant"]
    assert finding.message == "observation.state: 2 elements of 4 (1, 3) never change: 7, 7"


def test_a_feature_that_changes_from_one_file_to_the_next_is_not_constant(tmp_path):
    root = tiny_set(tmp_path, files=3)
    for number, path in enumerate(data_files(root)):
        change_column(path, "next.reward", lambda values, number=number: [number] * len(values))
    assert codes_but_statistics(root) == {}


def test_an_episode_whose_actions_are_all_zero_is_named(tmp_path):
    root = tiny_set(tmp_path)
    change_column(data_files(root)[0], "action", lambda values: rows_of(1, values, lambda step: [0, 0]))
    assert codes_but_statistics(root) == {"action-zero": [1]}


def test_an_episode_with_one_zero_action_is_fine(tmp_path):
    root = tiny_set(tmp_path)
    change_rows(root, "action", {8: [0, 0]})
    assert codes_but_statistics(root) == {}


def test_episodes_with_the_same_actions_are_named(tmp_path):
    root = tiny_set(tmp_path, lengths=(5, 7, 7))
    change_column(data_files(root)[0], "action", lambda values: [*values[:12], *values[5:12]])
    report = audit(root)
    assert codes_but_statistics(root) == {"episode-duplicate": [1, 2]}
    assert any("episodes 1, 2 have the same actions" in finding.message for finding in report.findings)


def test_episodes_with_the_same_actions_are_found_over_several_files(tmp_path):
    root = tiny_set(tmp_path, lengths=(6, 7, 6), files=3)
    first, _, last = data_files(root)
    actions = pq.read_table(first).column("action").to_pylist()
    change_column(last, "action", lambda _: actions)
    assert codes_but_statistics(root) == {"episode-duplicate": [0, 2]}


def test_a_column_that_is_missing_is_named(tmp_path):
    root = tiny_set(tmp_path, version="v2.1")
    change_table(data_files(root)[1], lambda table: table.drop_columns(["action"]))
    assert found(audit(root)) == {"column-missing": [1]}


@pytest.mark.parametrize(("version", "codes"), [("v2.1", {}), ("v3.0", {"column-extra": [0, 1, 2]})])
def test_a_column_that_is_no_feature_is_an_error_where_it_cannot_be_cast(version, codes, tmp_path):
    root = tiny_set(tmp_path, version=version)
    for path in data_files(root):
        change_table(path, lambda table: table.append_column("spare", pa.array([0] * table.num_rows)))
    assert found(audit(root)) == codes


@pytest.mark.parametrize(
    ("name", "arrow_type", "code"),
    [
        ("next.reward", pa.float64(), "column-width"),
        ("task_index", pa.int32(), "column-width"),
        ("next.done", pa.int64(), "column-type"),
        ("next.reward", pa.string(), "column-type"),
        ("observation.note", pa.binary(), "column-type"),
        ("action", pa.list_(pa.float64()), "column-width"),
    ],
)
def test_a_column_of_another_type_is_named(name, arrow_type, code, tmp_path):
    root = tiny_set(tmp_path)
    values = pq.read_table(data_files(root)[0]).column(name).to_pylist()
    if arrow_type == pa.string():
        values = [str(value) for value in values]
    elif arrow_type == pa.int64():
        values = [int(value) for value in values]
    elif arrow_type == pa.binary():
        values = [value.encode() for value in values]
    change_type(data_files(root)[0], name, arrow_type, values)
    report = audit(root)
    assert {finding.code for finding in report.findings} == {code}
    assert report.is_ok == (code == "column-width")


def test_a_column_of_another_shape_is_named(tmp_path):
    root = tiny_set(tmp_path)
    values = pq.read_table(data_files(root)[0]).column("action").to_pylist()
    change_type(data_files(root)[0], "action", pa.list_(pa.float32(), 3), [[*value, 0] for value in values])
    assert found(audit(root)) == {"column-shape": [0, 1, 2]}


def test_rows_of_several_lengths_are_named(tmp_path):
    root = tiny_set(tmp_path)
    values = pq.read_table(data_files(root)[0]).column("action").to_pylist()
    change_type(data_files(root)[0], "action", pa.list_(pa.float32()), [[0], [0, 0, 0], *values[2:]])
    assert found(audit(root)) == {"column-shape": [0, 1, 2]}


def hf_metadata(root, change):
    for path in data_files(root):
        table = pq.read_table(path)
        record = json.loads((table.schema.metadata or {}).get(b"huggingface", b'{"info": {"features": {}}}'))
        change(record["info"]["features"])
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(record)}), path)


def to_list(features):
    for name in ("action", "observation.state"):
        features[name] = {"feature": {"dtype": "float32", "_type": "Value"}, "length": 2, "_type": "List"}


def test_metadata_that_old_readers_cannot_parse_is_a_warning_in_v2_only(tmp_path):
    for version, codes in (("v2.1", {"hf-metadata": [0, 1, 2]}), ("v3.0", {})):
        root = tiny_set(tmp_path / version, version=version)
        hf_metadata(root, to_list)
        assert found(audit(root)) == codes
        assert audit(root).is_ok


def test_images_that_no_metadata_names_are_a_warning_in_v2(tmp_path):
    root = tiny_set(tmp_path, version="v2.1", cameras={"observation.images.top": ("png", (16, 24))})
    hf_metadata(root, lambda features: features.pop("observation.images.top"))
    assert found(audit(root)) == {"hf-metadata": [0, 1, 2]}


def test_features_that_cannot_be_are_named_and_the_others_are_looked_at(tmp_path):
    root = tiny_set(tmp_path)
    change_rows(root, "timestamp", {6: 0.103})

    def spoil(info):
        info["features"]["action"]["dtype"] = "float7"

    change_json(root / "meta/info.json", spoil)
    assert found(audit(root)) == {"info": [], "timestamp-grid": [1]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"codebase_version": "v9"}', "\0"])
def test_an_info_that_says_nothing_is_one_error(text, tmp_path):
    root = tiny_set(tmp_path)
    (root / "meta/info.json").write_text(text)
    report = audit(root)
    assert found(report, unchecked=["everything else"]) == {"info": []}
    assert not report.is_ok and report.version == "unknown"


def test_rows_that_were_damaged_after_writing_are_named(tmp_path):
    root = tiny_set(tmp_path, files=3)
    path = data_files(root)[1]
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    data = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    data[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(data)
    assert found(audit(root)) == {"data-unreadable": [1]}
