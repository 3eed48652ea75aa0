"""Fresh processes: each measures one thing about itself and prints it as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

__all__ = ["run_child"]

PRELUDE = """
import json, sys, time
argument, begun = json.loads(sys.argv[1]), float(sys.argv[2])
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
"""


def run_child(code: str, argument: Any = None, **environment: str) -> Any:
    """Run Python in a process of its own.

    Args:
        code: finds ``argument``, ``begun`` (of `time.monotonic`, when the process was started) and a function
            ``anonymous``, the process's own memory in bytes; prints one JSON value.
        argument: anything that JSON holds.
        environment: variables to set.

    Returns:
        What it printed.
    """
    command = [sys.executable, "-c", PRELUDE + code, json.dumps(argument), repr(time.monotonic())]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)
