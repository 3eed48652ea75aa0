"""``--trust DIR`` lets every verb read what a store refers to, as ``trust=`` does; for that run only."""

import os
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.cli.main import main
from stepwell.references.file_spans import FileSpans, span_feature


@pytest.fixture
def refers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("STEPWELL_TRUST", raising=False)
    path = tmp_path / "rows" / "numbers.bin"
    path.parent.mkdir()
    np.arange(8, dtype=np.float32).tofile(path)
    schema = {"x": span_feature(Array(4), [str(path)])}
    with stepwell.create(tmp_path / "refers.well", schema) as store, store.writer() as writer:
        writer.add_episode({"x": FileSpans(Array(4), [str(path)], 0, [0, 16], [16, 16])})
    return str(tmp_path / "refers.well")


VERBS = {
    "show": ["show", "PATH", "0:1"],
    "verify": ["verify", "--deep", "PATH"],
    "bench": ["bench", "PATH", "--seconds", "0.1", "--threads", "0"],
    "convert": ["convert", "PATH", "OUT.well", "--codec", "x=raw", "--workers", "1"],
    "export": ["export", "PATH", "OUT.beton"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reads_rows_takes_it(
    refers: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("PATH", refers).replace("OUT", str(tmp_path / "out")) for word in VERBS[verb]]
    assert main(words) == 1
    assert "--trust DIR" in "".join(capsys.readouterr())
    assert main([*words, "--trust", str(tmp_path / "elsewhere")]) == 1
    assert main([*words, "--trust", "/elsewhere", "--trust", str(tmp_path / "rows")]) == 0, capsys.readouterr()
    assert "STEPWELL_TRUST" not in os.environ


def test_it_adds_to_the_variable(refers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_TRUST", str(tmp_path / "rows"))
    assert main(["show", refers, "0:1", "--trust", "/elsewhere"]) == 0
    assert os.environ["STEPWELL_TRUST"] == str(tmp_path / "rows")


@pytest.mark.parametrize("name", ["https://host/set", "a:b"])
def test_what_is_no_directory_is_refused(refers: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", refers, "--trust", name]) == 1
    assert f"--trust {name}: give a directory" in capsys.readouterr().err
