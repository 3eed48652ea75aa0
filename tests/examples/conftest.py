"""Running the programs in ``examples/`` as their users do: each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
# a limit against hanging, many times what a slow machine needs
TIMEOUT_SECONDS = 280


@pytest.fixture
def start_example(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return what starts an example that writes to ``out`` in the test's folder; it is ended with the test."""
    # this folder is searched for modules: ``--env reach:Reach-v0``
    path = os.pathsep.join(part for part in (str(HERE), os.environ.get("PYTHONPATH")) if part)
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: Any, out: str = "out") -> subprocess.Popen[str]:
        command = [sys.executable, EXAMPLES / name, "--out", tmp_path / out, *arguments]
        process = subprocess.Popen(
            list(map(str, command)),
            # networks this small are slower on several threads, which spin beside the other tests
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_example(start_example: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what runs an example to its end and gives back its summary."""

    def run(name: str, *arguments: Any, out: str = "out") -> dict[str, Any]:
        process = start_example(name, *arguments, out=out)
        printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, printed
        summary: dict[str, Any] = json.loads((tmp_path / out / "summary.json").read_text())
        return summary

    return run
