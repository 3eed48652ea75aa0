"""A rival in an interpreter of its own, asked by lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Asked", "asked", "interpreter"]


class Asked:
    """A process that does what a line says, and answers with one.

    Args:
        process: of a script of this folder.
        name: of the rival.
    """

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self._name = process, name

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Let it do something, and return what it says.

        Raises:
            RuntimeError: it died of that.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} died of {do!r}. Run its script by itself, or see its errors above.")
        return dict(json.loads(line))


@contextmanager
def asked(
    python: str,
    script: str,
    name: str,
    *,
    variables: Mapping[str, str],
    folder: str | None = None,
    is_quiet: bool = False,
) -> Iterator[Asked]:
    """Lend a rival.

    Args:
        python: its interpreter: a path, from the folder of this process where it is relative, or a name on PATH.
        script: of this folder.
        name: of the rival, for messages.
        variables: of its environment, beside ours.
        folder: that it works in.
        is_quiet: whether what it writes to standard error is dropped.

    Raises:
        FileNotFoundError: there is no such interpreter.
    """
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    # -P: a module of this folder may have the name of one that the rival imports
    command = [interpreter(python, name), "-P", str(Path(__file__).with_name(script))]
    pipe, errors = subprocess.PIPE, subprocess.DEVNULL if is_quiet else None
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment, cwd=folder
    ) as process:
        try:
            yield Asked(process, name)
        finally:
            process.kill()


def interpreter(python: str, name: str) -> str:
    """Return the absolute path of an interpreter; links stay, since those of a virtual environment lead out of it."""
    found = shutil.which(python)
    if found is None:
        raise FileNotFoundError(f"no interpreter for {name} at {python!r}. Give the path of one that can be run.")
    return str(Path(found).absolute())
