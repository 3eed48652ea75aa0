"""Sound datasets have no findings, and whatever is on the disk ends no audit."""

import importlib
import json
import pkgutil
import random
import shlex
import shutil
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

import av
import pyarrow as pa
import pyarrow.parquet as pq
import written_videos

import stepwell.lerobot
from stepwell.cli.main import main
from stepwell.errors import DatasetNotFoundError, EpisodeNotFoundError
from stepwell.lerobot import audits
from stepwell.lerobot.auditing import audit, is_lerobot
from stepwell.lerobot.audits.report import Rule, Tally
from stepwell.testing.lerobot import tiny_lerobot, tiny_lerobot_picture

from .audits.damage import (
    change_column,
    change_json,
    change_rows,
    change_table,
    change_type,
    data_files,
    found,
    set_span,
    tiny_set,
)
from .written import make_store

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
CAMERA, SIDE = "observation.images.top", "observation.images.side"
CAMERAS = {CAMERA: ("png", (16, 24)), SIDE: ("video", (32, 48))}
CHOSEN = ["totals and statistics of the whole dataset"]

needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the real datasets of ../shared/data are not here")


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_a_sound_dataset_has_no_findings(version, files, deep, tmp_path):
    root = tiny_set(tmp_path, version=version, cameras=CAMERAS, files=files, lengths=(5, 9, 6, 7))
    report = audit(root, deep=deep)
    several = {"video-several-files": [1, 2, 3]} if (version, files) == ("v3.0", 3) else {}
    assert set(found(report)) == set(several)
    assert (report.version, report.num_episodes, report.num_steps, report.is_ok) == (version, 4, 27, True)


def test_datasets_of_many_files_and_directories_have_no_findings(tmp_path):
    for version in ("v2.1", "v3.0"):
        root = tiny_lerobot(tmp_path / version, version=version, cameras={}, episodes=12, files=5, chunks_size=2)
        assert found(audit(root)) == {}


def test_a_rate_that_is_no_whole_number_of_milliseconds_is_sound(tmp_path):
    root = tiny_set(tmp_path, fps=29.97, cameras={"observation.images.side": ("video", (32, 48))}, lengths=(50, 40))
    assert found(audit(root)) == {}


@needs_samples
@pytest.mark.parametrize("name", ["v21_png", "v21_video", "v30_png", "v30_video"])
def test_real_datasets_have_no_errors_and_true_warnings(name):
    report = audit(SHARED / name, deep=True)
    codes = found(report)
    assert report.is_ok
    # the goal's pose never changes in these recordings
    assert codes.pop("constant") == []
    # what lerobot 0.4.4 is known for
    if name.startswith("v30"):
        assert codes.pop("statistics-quantiles") == [] and codes.pop("statistics-camera") == []
    if name == "v30_video":
        assert codes.pop("video-several-files") == [7, 8]
    assert codes == {}


def test_episodes_may_be_chosen_and_the_others_are_not_looked_at(tmp_path):
    root = tiny_set(tmp_path, files=3)
    change_rows(root, "timestamp", {2: 0.203}, file=1)
    assert found(audit(root, episodes=[0, 2]), unchecked=CHOSEN) == {}
    assert found(audit(root, episodes=[1]), unchecked=CHOSEN) == {"timestamp-grid": [1]}
    report = audit(root, episodes=range(1, 3))
    assert (report.num_episodes, found(report, unchecked=CHOSEN)) == (2, {"timestamp-grid": [1]})


def test_chosen_episodes_in_a_file_with_others_are_looked_at_alone(tmp_path):
    root = tiny_set(tmp_path)
    change_rows(root, "timestamp", {2: 0.203, 15: 0.303})
    for name, value in (("index", 40), ("frame_index", 9), ("task_index", 7), ("next.reward", float("nan"))):
        change_rows(root, name, {3: value})
    assert found(audit(root, episodes=[1]), unchecked=CHOSEN) == {}
    assert found(audit(root, episodes=[2]), unchecked=CHOSEN) == {"timestamp-grid": [2]}


def test_a_source_may_be_written_as_a_url(tmp_path, monkeypatch):
    root = tiny_set(tmp_path)
    monkeypatch.chdir(tmp_path)
    for source in (f"lerobot://{root}", "lerobot://./set", "set", str(root)):
        assert audit(source).num_steps == 18


def test_what_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no directory"):
        audit(tmp_path / "nothing")
    with pytest.raises(EpisodeNotFoundError, match="no episode 9"):
        audit(tiny_set(tmp_path), episodes=[0, 9])


def test_an_empty_directory_is_one_finding(tmp_path):
    assert found(audit(tmp_path), unchecked=["everything else"]) == {"info": []}


def test_a_dataset_is_told_by_its_info_or_its_scheme(tmp_path):
    assert is_lerobot("lerobot://lerobot/pusht") and is_lerobot(tiny_set(tmp_path))
    assert not is_lerobot(tmp_path) and not is_lerobot(tmp_path / "nothing")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("seed", range(12))
def test_garbage_ends_no_audit(seed, version, tmp_path):
    root = tiny_set(tmp_path, version=version, cameras=CAMERAS, files=2)
    rng = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for path in rng.sample(files, 3):
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice([len(data), len(data), len(data) // 2])])
    report = audit(root, deep=True)
    assert report.findings and str(report) and json.dumps(report.to_json())


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_every_file_may_be_missing(version, tmp_path):
    sound = tiny_set(tmp_path, version=version, cameras=CAMERAS, files=2)
    for number, path in enumerate(sorted(path for path in sound.rglob("*") if path.is_file())):
        root = Path(shutil.copytree(sound, tmp_path / str(number)))
        (root / path.relative_to(sound)).unlink()
        report = audit(root)
        assert {finding.code for finding in report.findings} - {"video-several-files"}


def test_the_report_is_a_table_of_errors_and_then_warnings(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS, files=3)
    change_rows(root, "timestamp", {2: 0.203}, file=1)
    lines = str(audit(root)).splitlines()
    assert lines[0] == f"{root} (LeRobot v3.0): 3 episodes, 18 steps: 1 error, 1 warning"
    assert lines[1].split()[:6] == ["error", "timestamp-grid", "1", "of", "3:", "1"]
    assert lines[2].strip().startswith("-> Write timestamp = frame_index / fps")
    assert any(line.split()[:2] == ["warning", "video-several-files"] for line in lines)
    # commands are in one line, to be copied
    assert max(len(line) for line in lines[1:] if "$ stepwell" not in line) <= 120


def test_a_narrow_terminal_has_each_finding_below_its_code(tmp_path):
    root = tiny_set(tmp_path, cameras=CAMERAS, files=3)
    change_rows(root, "timestamp", {2: 0.203}, file=1)
    report = audit(root)
    text = report.text(60)
    assert all(len(line) <= 60 or line.strip().startswith("$ ") for line in text.splitlines()[1:])
    assert " ".join(text.split()).count("-> ") == str(report).count("-> ") > 0
    assert report.text(200) == str(report)


def test_a_report_without_findings_is_one_line(tmp_path):
    root = tiny_set(tmp_path)
    assert str(audit(root)).endswith("3 episodes, 18 steps: nothing found")
    assert repr(audit(root)) == f"<AuditReport {root}  3 episodes  nothing found>"


def test_findings_of_one_rule_about_one_thing_become_one():
    rule, other = Rule("a", "warning", "do"), Rule("b", "error", "do")
    tally = Tally()
    tally.add(rule, "x", "first", [3])
    tally.add(other, "x", "else")
    tally.add(rule, "x", "second", [1, 3])
    tally.add(rule, "y", "third")
    found = tally.findings("set")
    assert [(f.code, f.message) for f in found] == [
        ("b", "x: else"),
        ("a", "x: first (and in 1 more place)"),
        ("a", "y: third"),
    ]
    np.testing.assert_array_equal(found[1].episodes, [1, 3])


def test_what_cannot_be_looked_at_is_told_once():
    tally = Tally()
    tally.skip("videos: PyAV is not installed")
    tally.skip("videos: PyAV is not installed")
    assert tally.unchecked == ["videos: PyAV is not installed"]


def test_audit_is_a_name_of_the_package():
    assert stepwell.lerobot.audit is audit


def every_rule():
    modules = [
        importlib.import_module(f"{audits.__name__}.{module.name}") for module in pkgutil.iter_modules(audits.__path__)
    ]
    found = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    return list(found.values())


def test_every_code_is_one_rule_and_is_expected_by_a_test():
    codes = [rule.code for rule in every_rule()]
    assert len(codes) == len(set(codes)) > 50
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py") if path != Path(__file__))
    assert [code for code in codes if f'"{code}": [' not in tests and f'"{code}")' not in tests] == []


def change_stats(root, feature, **values):
    change_json(root / "meta/stats.json", lambda stats: stats[feature].update(values))


def change_codec(root, codec):
    def change(info):
        info["features"][SIDE]["info"]["video.codec"] = codec

    change_json(root / "meta/info.json", change)


def append_column(root):
    for path in data_files(root):
        change_table(path, lambda table: table.append_column("spare", table.column("index")))


def turn_video(root):
    (path,) = root.glob("videos/**/*.mp4")
    written_videos.set_matrix(path, written_videos.TURNS["180 degrees"][0])


def encode_video(root, **options):
    (path,) = root.glob("videos/**/*.mp4")
    written_videos.write_video(path, size=(32, 48), **options)


def time_video(root, times):
    """Write the video anew, its frames at other times."""
    (path,) = root.glob("videos/**/*.mp4")
    images = [tiny_lerobot_picture(0, number // 20, number % 20, (32, 48)) for number in range(40)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "0", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10_000)
        for image, seconds in zip(images, times, strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = round(seconds * 10_000), Fraction(1, 10_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def change_values(root, name, change):
    change_column(data_files(root)[0], name, change)


def repeat_task(root):
    path = root / "meta/tasks.parquet"
    table = pq.read_table(path)
    again = table.slice(0, 1).set_column(table.column_names.index("task_index"), "task_index", [pa.array([len(table)])])
    pq.write_table(pa.concat_tables([table, again.cast(table.schema)]), path)


# a defect of each code that a command of stepwell mends, of 40 steps at 25 a second
MENDED = {
    "totals": lambda root: change_json(root / "meta/info.json", lambda info: info.update(total_frames=41)),
    "tasks-order": lambda root: change_table(root / "meta/tasks.parquet", lambda table: table.take([1, 0, 2])),
    "tasks-repeated": repeat_task,
    "index": lambda root: change_values(root, "index", lambda rows: [row + 3 for row in rows]),
    "frame-index": lambda root: change_values(root, "frame_index", lambda rows: [row + 1 for row in rows]),
    "timestamp-grid": lambda root: change_values(root, "timestamp", lambda rows: [*rows[:-1], rows[-1] + 0.01]),
    "timestamp-shift": lambda root: change_values(root, "timestamp", lambda rows: [row + 0.04 for row in rows]),
    "statistics": lambda root: change_stats(root, "action", mean=[9, 9]),
    "statistics-missing": lambda root: (root / "meta/stats.json").unlink(),
    "statistics-quantiles": lambda root: change_stats(root, "action", q01=[0.9, 0.9]),
    "statistics-camera": lambda root: change_stats(root, SIDE, mean=[[[0.1]]], std=[[[0.1]]]),
    "column-extra": append_column,
    "column-width": lambda root: change_type(data_files(root)[0], "next.reward", pa.float64()),
    "hf-metadata": lambda root: change_table(data_files(root)[0], lambda table: table.replace_schema_metadata({})),
    "span-end": lambda root: set_span(root, SIDE, 1, to_timestamp=1.56),
    "video-start": lambda root: time_video(root, np.arange(40) / 25 + 0.2),
    "video-fps": lambda root: time_video(root, np.arange(40) / 20),
    "video-times": lambda root: time_video(root, np.arange(40) / 25 + (np.arange(40) % 3 == 1) * 0.01),
    "video-codec": lambda root: change_codec(root, "mpeg4"),
    "video-rotation": turn_video,
    "video-no-key": lambda root: encode_video(root, params="keyint=40:scenecut=0:bframes=0"),
    "video-open-gop": lambda root: encode_video(root, params=written_videos.OPEN_GOP + "normal:min-keyint=10"),
}
# where it depends on what is found whether there is a command
SOMETIMES = {"totals", "tasks-order", "frame-index", "video-start", "video-fps", "video-times"}


def test_every_rule_whose_command_edits_a_dataset_is_tested_for_it():
    assert {rule.code for rule in every_rule() if "stepwell" in rule.command} | SOMETIMES == set(MENDED)


@pytest.mark.parametrize("code", MENDED)
def test_a_finding_is_mended_by_its_command(code, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    cameras = {CAMERA: ("png", (16, 24))} if code == "hf-metadata" else {SIDE: ("video", (32, 48))}
    version = "v2.1" if code == "hf-metadata" else "v3.0"
    root = tiny_set(tmp_path, version=version, fps=25, lengths=(20, 20), cameras=cameras)
    MENDED[code](root)
    (finding,) = [finding for finding in audit(root).findings if finding.code == code]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(shlex.split(finding.command)[1:]) == 0
    assert found(audit(root)) == {} and audit(root).version == version


@pytest.mark.parametrize("code", ["index", "statistics-missing"])
def test_a_dataset_of_v20_is_mended_and_becomes_one_of_v21(code, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tiny_set(tmp_path, version="v2.0", fps=25, lengths=(20, 20), cameras={SIDE: ("video", (32, 48))})
    MENDED[code](root)
    (finding,) = [finding for finding in audit(root).findings if finding.code == code]
    assert main(shlex.split(finding.command)[1:]) == 0
    assert found(audit(root)) == {} and audit(root).version == "v2.1"


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("cameras", ["auto", "video"])
def test_what_stepwell_writes_has_no_findings(version, cameras, tmp_path):
    store = make_store(tmp_path / "a.well")
    stepwell.lerobot.write_dataset(store, tmp_path / "set", version=version, cameras=cameras)
    assert found(audit(tmp_path / "set", deep=True)) == {}
