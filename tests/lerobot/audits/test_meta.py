"""Stored statistics that are not those of the rows are found, right ones are not."""

import json
import os

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

from stepwell.cli.main import main
from stepwell.lerobot.auditing import audit
from stepwell.lerobot.edits import change_features
from stepwell.lerobot.parquet_writing import tasks_table

from .damage import change_json, change_lines, found, tiny_set

CAMERA = "observation.images.top"
CAMERAS = {CAMERA: ("png", (16, 24))}


def change_stats(root, change):
    """Change stored statistics: of all rows, or of episode 1 in v2.1."""
    if (root / "meta/stats.json").exists():
        change_json(root / "meta/stats.json", change)
        return

    def change_line(lines):
        change(lines[1]["stats"])
        return lines

    change_lines(root / "meta/episodes_stats.jsonl", change_line)


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
@pytest.mark.parametrize(
    ("feature", "key", "value"),
    [
        ("observation.state", "mean", lambda values: [values[0] + 0.1, *values[1:]]),
        ("observation.state", "std", lambda values: [0, *values[1:]]),
        ("action", "min", lambda values: [-5, *values[1:]]),
        ("action", "max", lambda values: [None, *values[1:]]),
        ("action", "max", lambda values: [*values, 1]),
        ("next.reward", "count", lambda values: [values[0] + 1]),
        ("next.done", "mean", lambda values: ["many"]),
    ],
)
def test_statistics_of_numbers_that_do_not_match_are_an_error(version, feature, key, value, tmp_path):
    root = tiny_set(tmp_path, version=version)
    change_stats(root, lambda stats: stats[feature].update({key: value(stats[feature][key])}))
    report = audit(root)
    assert found(report) == {"statistics": [1] if version == "v2.1" else []}
    assert report.findings[0].message.startswith(f"{feature}: ")


def test_quantiles_that_are_means_of_quantiles_are_a_warning(tmp_path):
    root = tiny_set(tmp_path, lengths=(40, 40, 40))

    def average(stats):
        stats["action"]["q01"] = [-0.5, -0.5]

    change_stats(root, average)
    report = audit(root)
    assert found(report) == {"statistics-quantiles": []}
    assert report.is_ok and "action: q01[0] is -0.5" in report.findings[0].message


@pytest.mark.parametrize("value", [[0.0], [[0.0], "x"], [float("nan")] * 2])
def test_quantiles_that_are_none_are_found(value, tmp_path):
    root = tiny_set(tmp_path)
    change_stats(root, lambda stats: stats["action"].update(q10=value))
    codes = found(audit(root))
    assert list(codes) in (["statistics-quantiles"], ["statistics"])


def test_quantiles_of_other_definitions_are_right(tmp_path):
    root = tiny_set(tmp_path, lengths=(40, 40, 40))
    rng = np.random.default_rng(0)

    def jitter(stats):
        for key in ("q10", "q50", "q90"):
            stats["action"][key] = [value + 0.01 * rng.uniform(-1, 1) for value in stats["action"][key]]

    change_stats(root, jitter)
    assert found(audit(root)) == {}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_missing_statistics_are_a_warning(version, tmp_path):
    root = tiny_set(tmp_path, version=version)
    (root / "meta" / ("episodes_stats.jsonl" if version == "v2.1" else "stats.json")).unlink()
    report = audit(root)
    assert found(report) == {"statistics-missing": []} and report.is_ok


def test_statistics_that_are_no_json_are_a_warning(tmp_path):
    root = tiny_set(tmp_path)
    (root / "meta/stats.json").write_text("{")
    assert found(audit(root)) == {"statistics-missing": []}


def test_statistics_that_lack_a_feature_are_a_warning(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS)
    change_stats(root, lambda stats: [stats.pop("action"), stats.pop(CAMERA)])
    report = audit(root)
    assert found(report) == {"statistics-missing": []}
    assert [finding.message for finding in report.findings] == ["action: no statistics", f"{CAMERA}: no statistics"]


def squared_in_uint8(stats):
    stats[CAMERA]["std"] = [[[0.0004]], [[0.0004]], [[0.0004]]]


@pytest.mark.parametrize("kind", ["png", "video"])
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_pixels_squared_in_uint8_are_found_when_pictures_are_decoded(kind, version, tmp_path):
    root = tiny_set(tmp_path, version=version, cameras={CAMERA: (kind, (16, 24))})
    change_stats(root, squared_in_uint8)
    report = audit(root, deep=True)
    assert found(report) == {"statistics-camera": [1] if version == "v2.1" else []}
    assert report.is_ok and "std[0] is 0.0004" in report.findings[0].message


def test_pixels_squared_in_uint8_are_found_by_their_quantiles_alone(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS)
    change_stats(root, squared_in_uint8)
    assert found(audit(root)) == {"statistics-camera": []}


def test_a_mean_of_other_pictures_is_found(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS)
    change_stats(root, lambda stats: stats[CAMERA].update(mean=[[[0.9]], [[0.9]], [[0.9]]]))
    assert found(audit(root)) == {}
    assert found(audit(root, deep=True)) == {"statistics-camera": []}


def test_statistics_of_a_camera_that_are_of_no_channels_are_found(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS)
    change_stats(root, lambda stats: stats[CAMERA].update(std=[0.5]))
    assert found(audit(root)) == {"statistics-camera": []}


def test_statistics_of_the_whole_are_not_compared_with_some_episodes(tmp_path):
    root = tiny_set(tmp_path)
    change_stats(root, lambda stats: stats["action"].update(mean=[9, 9]))
    assert found(audit(root, episodes=[1]), unchecked=["totals and statistics of the whole dataset"]) == {}


def test_a_report_is_json_with_what_the_table_says(tmp_path):
    root = tiny_set(tmp_path, version="v2.1")
    change_stats(root, lambda stats: stats["action"].update(mean=[9, 9]))
    record = json.loads(json.dumps(audit(root).to_json()))
    (finding,) = record["findings"]
    assert (record["version"], record["num_episodes"], record["num_steps"], record["is_ok"]) == ("v2.1", 3, 18, False)
    assert (finding["code"], finding["severity"], finding["episodes"], finding["num_episodes"]) == (
        "statistics",
        "error",
        [1],
        1,
    )


@pytest.mark.parametrize(
    "text", ["[1]", "null", '{"action": null}', '{"action": {"mean": "x"}}', '{"action": {}}', "{"]
)
def test_the_command_computes_statistics_that_cannot_be_read(text, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tiny_set(tmp_path)
    (root / "meta/stats.json").write_text(text)
    commands = {finding.command for finding in audit(root).findings}
    assert len(commands) >= 1 and all(main(command.split()[1:]) == 0 for command in commands)
    assert found(audit(root)) == {}


@pytest.mark.parametrize(
    ("cut", "lacking"), [(lambda lines: [], [0, 1, 2]), (lambda lines: [lines[0], *lines[2:]], [1])]
)
def test_episodes_of_v2_without_statistics_are_a_warning(cut, lacking, tmp_path):
    root = tiny_set(tmp_path, version="v2.1")
    change_lines(root / "meta/episodes_stats.jsonl", cut)
    assert found(audit(root)) == {"statistics-missing": lacking}


def test_texts_of_subtasks_that_cannot_be_read_or_are_too_few_are_an_error(tmp_path):
    import pyarrow.parquet as pq

    root = tiny_set(tmp_path)
    rows = json.loads((root / "meta/info.json").read_text())["total_frames"]
    entry = {"dtype": "int64", "shape": [1], "names": None}
    change_features(root, added={"subtask_index": (np.arange(rows) % 3, entry)})
    texts = root / "meta/subtasks.parquet"
    assert found(audit(root)) == {}
    for words, codes in ((["a", "b", "c"], {}), (["a", "b"], {"subtask-index": []})):
        pq.write_table(tasks_table(words, "subtask_index"), texts)
        assert found(audit(root)) == codes
    texts.write_bytes(texts.read_bytes()[:40])
    assert found(audit(root)) == {"subtasks-unreadable": []}


@pytest.mark.parametrize("name", ["data/**/*.parquet", "meta/tasks.parquet", "videos/**/*.mp4"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name, tmp_path):
    root = tiny_set(tmp_path, cameras={CAMERA: ("video", (16, 24))})
    path = next(root.glob(name))
    path.unlink()
    os.mkfifo(path)
    assert any("it is a FIFO" in finding.message for finding in audit(root).errors)


def test_a_data_file_is_not_sought_among_videos(tmp_path):
    root = tiny_set(tmp_path, cameras={CAMERA: ("video", (16, 24))})
    next(root.glob("data/**/*.parquet")).unlink()
    assert not any("mp4 is there" in finding.message for finding in audit(root).errors)


def test_two_rows_of_v2_that_claim_one_episode_end_no_check(tmp_path):
    root = tiny_set(tmp_path, version="v2.1", cameras={CAMERA: ("video", (16, 24))})
    change_lines(root / "meta/episodes.jsonl", lambda lines: [lines[0], lines[1] | {"episode_index": 0}, lines[2]])
    report = audit(root)
    assert "episodes-order" in found(report) and not report.unchecked


@pytest.mark.parametrize("fps", [5, 20, 12, 9.5])
def test_a_rate_that_no_episode_has_is_told_and_no_command_makes_it_that_of_the_data(fps, tmp_path):
    root = tiny_set(tmp_path, cameras={CAMERA: ("video", (16, 24))}, lengths=(40, 30))
    change_json(root / "meta/info.json", lambda info: info.update(fps=fps))
    findings = audit(root).findings
    assert {"fps"} <= {finding.code for finding in findings} and findings[0].code == "fps"
    assert not any(finding.command for finding in findings)
    assert "10 rows a second" in findings[0].message
