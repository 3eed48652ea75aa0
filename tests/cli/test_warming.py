"""All that the blocks of the tour call was compiled by `stepwell warm`, and the list of kernels is whole."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import stepwell
from stepwell.cli.main import main
from stepwell.kernels import signatures
from stepwell.kernels.kernel import KERNELS
from stepwell.kernels.signatures import known_signatures, text_of, type_of

ROOT = Path(__file__).parents[2]
CALLED_BY_KERNELS = {"stepwell.kernels.permutation.mix64", "stepwell.kernels.permutation.shuffle_labels"}
# runs the blocks after all kernels of the list are there, and prints those that were called with other types
RUN_BLOCKS = """
import re, sys, contextlib, io
from importlib.util import find_spec
from stepwell.kernels.kernel import KERNELS
from stepwell.kernels.signatures import compile_all, text_of
def called():
    return {(str(k.py_func), tuple(map(text_of, each.args))) for k in KERNELS for each in k.nopython_signatures}
list(compile_all())
before = called()
namespace = {"__name__": "__main__"}
block_of_python = r"(?:<!-- needs: ([^>]*?) -->\\n)?```python\\n(.*?)```"
for needs, block in re.findall(block_of_python, open(sys.argv[1]).read(), re.DOTALL):
    if any(find_spec(name) is None for name in re.findall(r"\\w+", needs)):
        continue
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block, namespace)
print(len(before), sorted(called() - before))
"""


def test_blocks_of_the_tour_need_no_kernel_that_was_not_compiled_beforehand(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN_BLOCKS, str(ROOT / "docs" / "tour.md")]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert found.returncode == 0, found.stderr
    number, others = re.fullmatch(r"(\d+) (.*)\n", found.stdout).groups()  # type: ignore[union-attr]
    assert int(number) >= len(known_signatures())
    assert others == "[]", "record them: see stepwell.kernels.signatures"


def test_every_kernel_that_python_calls_is_in_the_list() -> None:
    for module in walk_packages(stepwell.__path__, "stepwell."):
        if module.name.rpartition(".")[2].endswith("kernels") or module.name.startswith("stepwell.kernels."):
            import_module(module.name)
    known = known_signatures()
    names = {f"{kernel.py_func.__module__}.{kernel.py_func.__name__}" for kernel in KERNELS}
    assert set(known) <= names
    exported = {f"{kernel.py_func.__module__}.{name}" for kernel in KERNELS for name in _exported(kernel)}
    assert (names & exported) - CALLED_BY_KERNELS <= set(known)


def _exported(kernel: object) -> list[str]:
    return getattr(sys.modules[kernel.py_func.__module__], "__all__", [])  # type: ignore[attr-defined,no-any-return]


def test_types_are_told_apart_by_their_text() -> None:
    from numba import types

    for kind in (
        types.int64,
        types.boolean,
        types.Array(types.uint8, 2, "A", readonly=True),
        types.UniTuple(types.int64, 3),
        types.Tuple([types.int64, types.Array(types.int32, 1, "C")]),
    ):
        assert type_of(text_of(kind)) == kind


def test_warm_says_how_many_kernels_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "stepwell.kernels.locate.touch"
    monkeypatch.setattr(signatures, "known_signatures", lambda: {name: known_signatures()[name]})
    for _ in range(2):
        assert main(["warm"]) == 0
        printed = capsys.readouterr().out
        assert re.fullmatch(r"1 kernels, of which [01] were compiled, in \d+\.\d s\n", printed)
    assert "of which 0" in printed
