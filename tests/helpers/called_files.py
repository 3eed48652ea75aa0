"""Which Python functions of stepwell are called: what the tests of walks count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stepwell

PACKAGE = f"{Path(stepwell.__file__).parent}/"


def called_files(run: Callable[[], object]) -> list[str]:
    """Return the file, below the package, of each function of ours that is called, in order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            files.append(name.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files


def files_in_python(run: Callable[[], object]) -> list[str]:
    """Return the files of `called_files` without kernels, which say that they are called, and are compiled."""
    return [name for name in called_files(run) if "kernels" not in name]
