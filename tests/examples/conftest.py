"""Running the programs in ``examples/``: here, or where processes are the matter, as their users do."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


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
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """Return what runs an example to its end in this process, which has loaded what it needs; gives its summary."""
    torch: Any = sys.modules.get("torch")
    num_threads = None if torch is None else torch.get_num_threads()
    # processes that it spawns search the same folders; this one for ``--env reach:Reach-v0``
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name: str, *arguments: Any, out: str = "out") -> dict[str, Any]:
        with warnings.catch_warnings():
            # simulators warn of much
            warnings.simplefilter("ignore")
            program = importlib.import_module(name.removesuffix(".py"))
            program.main(["--out", str(tmp_path / out), *map(str, arguments)])
        summary: dict[str, Any] = json.loads((tmp_path / out / "summary.json").read_text())
        return summary

    yield run
    if torch is not None:
        torch.set_num_threads(num_threads)
