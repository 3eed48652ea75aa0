"""An interpreter that has TensorFlow Datasets and others of the field, as a process that is asked by lines of JSON.

`STEPWELL_FORMATS_PYTHON` names it; without, it is the one that ``make test-interop-formats`` makes.
"""

import json
import os
import subprocess
from pathlib import Path

VARIABLE = "STEPWELL_FORMATS_PYTHON"
HERE = Path(__file__).parent
PYTHON = Path(os.environ.get(VARIABLE, HERE.parents[1] / ".venv-interop" / "formats" / "bin" / "python"))
REASON = f"TensorFlow Datasets is not here: make test-interop-formats, or name its interpreter by {VARIABLE}"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TFDS_DISABLE_PROGRESS_BAR": "1"}


class FormatsProcess:
    """Runs a script of this folder in that interpreter; a context manager."""

    def __init__(self, script: str, log: Path) -> None:
        self._log = log
        environment = {**os.environ, **QUIET}
        environment.pop("PYTHONPATH", None)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                # -P: a module of this folder may have the name of one that the others import
                [str(PYTHON), "-P", str(HERE / "answering.py"), str(HERE / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def ask(self, do: str, **arguments) -> dict:
        """Let it do something, and return what it says."""
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"it died of {do!r}: {self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.communicate()
