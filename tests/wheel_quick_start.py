"""Install the wheel by each Python from 3.11 on that is there, and run README's quick start from an empty directory.

python3 tests/wheel_quick_start.py      or make test-wheel
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
BLOCKS = re.compile(r"```python\n(.*?)```\s+```output\n(.*?)```", re.DOTALL)
PIP = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")


def interpreters() -> Iterator[tuple[str, str | None]]:
    """Yield each version with an interpreter of it, None where there is none."""
    for version in VERSIONS:
        own = [sys.executable] if sys.version.startswith(f"{version}.") else []
        managed = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
        yield version, next(filter(runs, [*own, *managed, f"python{version}"]), None)


def runs(python: str) -> bool:
    """Return whether an interpreter is there; a name of pyenv's may stand for a version that is not installed."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def quick_start(python: str, wheel: Path, folder: Path) -> str | None:
    """Return what is wrong with the quick start in a new environment; None if nothing is."""
    code, expected = BLOCKS.search((ROOT / "README.md").read_text()).groups()
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    inner = str(folder / "venv" / "bin" / "python")
    subprocess.run([inner, *PIP, wheel], check=True)
    (folder / "empty").mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [inner, "-c", code],
        cwd=folder / "empty",
        env=variables | {"NUMBA_CACHE_DIR": str(folder / "numba")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.stderr
    is_same = doctest.OutputChecker().check_output(expected, done.stdout, doctest.ELLIPSIS)
    return None if is_same else f"README says:\n{expected}\nIt printed:\n{done.stdout}"


def main() -> int:
    """Print a line a version; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", place, str(ROOT)], check=True)
        (wheel,) = folder.glob("stepwell-*.whl")
        for version, python in interpreters():
            if python is None:
                print(f"Python {version}: not on this machine")
                continue
            try:
                (folder / version).mkdir()
                wrong = quick_start(python, wheel, folder / version)
            except subprocess.CalledProcessError as error:
                wrong = f"{error}"
            failed += wrong is not None
            print(f"Python {version}: {'the quick start runs' if wrong is None else wrong}", flush=True)
            shutil.rmtree(folder / version)
    return failed


if __name__ == "__main__":
    sys.exit(main())
