"""stepwell where what only Linux has is missing, as on a Mac: see ``tests/helpers/without_linux``.

Nothing here runs on a Mac. It says that no name of Linux's stands without a fallback on these ways.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHOUT_LINUX = ROOT / "tests" / "helpers" / "without_linux"
# short ones: locks, memory, writers and what they leave, how tables hold writers, directories that are watched
TESTS = (
    "tests/files/test_file_locks.py",
    "tests/store/test_memory.py",
    "tests/store/test_writer.py",
    "tests/store/test_back_pressure.py",
    "tests/replay/test_watching.py",
)


def run_without_linux(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    paths = [str(WITHOUT_LINUX), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        # the suite may have its files in /dev/shm
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": "", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_recording_loading_replay_a_server_and_video_need_nothing_of_linux() -> None:
    done = run_without_linux(WITHOUT_LINUX / "walk.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == ["darwin False False False", "8 160", "160", "160", "300 32", lines[5]]
    assert lines[5] in ("(8, 3)", "no grpc")
    assert lines[6:] in (["(12, 2, 32, 48, 3)"], ["no av"])


def test_tests_pass_without_linux() -> None:
    options = ("-n", "0", "-p", "no:cacheprovider", "-q", "--no-header")
    done = run_without_linux("-m", "pytest", *options, *TESTS)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
