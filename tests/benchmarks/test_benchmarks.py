"""Every benchmark runs at toy size, as a user runs it, and prints what it promises; the plot is drawn from that."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = [
    *("append", "beton", "codecs", "crop_jpeg", "ffcv_loader", "gather", "imports", "jpeg"),
    *("lerobot_open", "lerobot_png", "lerobot_state", "lerobot_swap", "lerobot_video", "lossless", "memory", "mixing"),
    *("pool_jpeg", "pool_video", "rates"),
    "ray",
    *(
        "replay_checkpoint",
        "replay_insert",
        "replay_loop",
        "replay_prioritized",
        "replay_sb3",
        "replay_service",
        "replay_slices",
        "replay_stacks",
    ),
    *("replay_uniform", "replay_vector", "rlds_windows", "scale"),
    *("start", "stream", "transforms", "video_append", "windows"),
]
# several run in one process, which imports everything once
PROCESSES = 2
# less than pytest allows, so that one that hangs says what it printed
SECONDS = 280
KEYS = ["bench", "case", "rival", "ratio", "spread", "ours", "theirs", "unit", "memcpy_gb_per_s"]


def run(script, *arguments):
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def hiding(tmp_path, *packages):
    """Return code that runs a benchmark where some packages are not installed."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in packages)
    script = tmp_path / "hiding.py"
    script.write_text(
        f"import sys; {blocked}; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "import run\nsys.exit(run.main(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    return script


@pytest.fixture
def disk_path():
    """A directory on a disk: files in memory are never read from anywhere."""
    with tempfile.TemporaryDirectory(dir="/var/tmp" if Path("/var/tmp").is_dir() else None) as path:
        yield Path(path)


def test_list_prints_the_names_one_a_line():
    done = run("run.py", "--list")
    assert (done.returncode, done.stdout.split()) == (0, NAMES)


def test_unknown_name_is_a_usage_error_that_lists_the_names():
    done = run("run.py", "nothing")
    assert done.returncode == 2
    assert "gather" in done.stderr


@pytest.mark.parametrize("names", [NAMES[first::PROCESSES] for first in range(PROCESSES)], ids=" ".join)
def test_benchmarks_print_rows_with_all_figures(names, disk_path):
    pytest.importorskip("simplejpeg")
    rows = rows_of(run("run.py", *names, "--quick", "--data", disk_path))
    assert list(dict.fromkeys(row["bench"] for row in rows)) == names
    for row in rows:
        name = row["bench"]
        assert list(row)[: len(KEYS)] == KEYS
        if "skipped" not in row:
            figures = [row["ratio"], row["ours"], row["theirs"], row["memcpy_gb_per_s"]]
            # "start" takes small figures from each other, which at toy size may come out below zero
            assert all(np.isfinite(figures)) if name == "start" else min(figures) > 0
            assert row["spread"] >= 0
            assert row["versions"]["stepwell"]
    assert len({(row["bench"], row["case"], row["rival"]) for row in rows}) == len(rows)
    assert list(disk_path.iterdir()) == []


@pytest.mark.parametrize(
    "absent",
    # of one benchmark one rival, so that the other is measured where it is installed
    [{("append", "stable_baselines3"): 3, ("windows", "torchrl"): 2}, {("append", "cpprb"): 3}],
    ids=["two", "one"],
)
def test_absent_rivals_are_skipped_by_name_and_the_others_are_measured(absent, tmp_path):
    pytest.importorskip("simplejpeg")
    names = [name for name, _ in absent]
    done = run(hiding(tmp_path, *(package for _, package in absent)), *names, "--quick")
    rows = rows_of(done)
    for (name, package), num_rows in absent.items():
        skipped = [row for row in rows if "skipped" in row and row["bench"] == name and package in row["rival"]]
        assert len(skipped) == num_rows
        assert all(row["ratio"] is None for row in skipped)
        told = [line for line in done.stderr.splitlines() if "is not installed" in line and package in line]
        assert len(told) == num_rows
    others = [row for row in rows if "skipped" not in row]
    assert all(row["ratio"] > 0 for row in others)


def test_ratio_is_of_rounds_and_time_is_the_better_the_less():
    code = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "import numpy as np; from report import compare, within; from timing import Rates\n"
        "found = {'a': [10., 40., 90.], 'b': [10., 20., 30.], 'memcpy': [1., 2., 9.]}\n"
        "rates = Rates({name: np.array(values) for name, values in found.items()})\n"
        "row = compare('x', 'y', rates, ours='a', theirs='b', unit='u')\n"
        "assert (row.ratio, row.ours, row.theirs, row.memcpy_gb_per_s) == (2.0, 40.0, 20.0, 2.0), row\n"
        "row = within('x', 'y', 'limit', [2., 4., 8.], 8.0)\n"
        "assert (row.ratio, row.ours, row.theirs, row.spread) == (2.0, 4.0, 8.0, 1.5), row\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def test_plot_draws_a_mark_a_row_and_says_each_rival(tmp_path):
    pytest.importorskip("matplotlib")
    row = dict(zip(KEYS, ["gather", "a case", "memcpy", 1.5, 0.1, 3.0, 2.0, "GB/s", 2.0], strict=True), target=0.85)
    lines = [row, {**row, "rival": "numpy", "target": None}, {**row, "rival": "absent", "ratio": None, "skipped": "no"}]
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = run("plot.py", results, tmp_path / "plot.svg")
    assert done.returncode == 0, done.stderr
    text = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert "memcpy" in text
    assert "numpy" in text
    assert "absent" not in text


def test_the_interpreter_of_a_rival_is_found_from_where_it_was_named(tmp_path, monkeypatch):
    """A relative path is of this process's folder; a link of a virtual environment stays, since its target lacks it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from asked import interpreter

    link = tmp_path / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter("env/bin/python", "a rival") == str(link)
    monkeypatch.setenv("PATH", str(link.parent))
    assert interpreter("python", "a rival") == str(link)
    with pytest.raises(FileNotFoundError, match="no interpreter for a rival at 'env/python'"):
        interpreter("env/python", "a rival")
