"""``stepwell completion``: what shells are told, by the protocol and by a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.main import main

pytest.importorskip("argcomplete")


def completed(line: str, cwd: Path) -> list[str]:
    """Return what the command answers a shell in which a line was typed."""
    answer = cwd / "answer"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "stepwell"],
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")
    return [word.strip() for word in answer.read_text().split("\n")]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("stepwell s", {"show", "stats", "split", "serve"}),
        ("stepwell ls toy.well --fi", {"--first"}),
        ("stepwell export toy.well out --to web", {"webdataset"}),
        ("stepwell edit re", {"reencode", "renumber", "retime", "rewrite"}),
        ("stepwell head toy.well --feature a", {"action"}),
        ("stepwell ls toy.well --sort ", {"score", "length", "episode_index"}),
        ("stepwell ls to", {"toy.well/"}),
        ("stepwell stats nothing.well --feature a", {""}),
    ],
)
def test_a_shell_is_told_what_may_come_next(toy_path: Path, line: str, want: set[str]) -> None:
    found = set(completed(line, toy_path.parent))
    assert want <= found
    assert len(found) == len(want) or "--sort" in line


def test_no_key_reads_a_data_set_or_fetches_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    from stepwell.testing import tiny_lerobot

    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    tiny_lerobot(tmp_path / "arm", episodes=2, cameras={})
    for place in ("arm", f"lerobot://{tmp_path / 'arm'}", "lerobot://somebody/arm"):
        assert completed(f"stepwell stats {place} --feature ", tmp_path) == [""]
        assert completed(f"stepwell ls {place} --where ", tmp_path) == [""]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_of_a_shell_can_be_evaluated(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "stepwell" in code and "_ARGCOMPLETE" in code
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "code").write_text(code)
    done = subprocess.run([shell, "-n", str(tmp_path / "code")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_verbs_options_and_names(toy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    folder = toy_path.parent
    (folder / "code").write_text(capsys.readouterr().out)
    (folder / "stepwell").write_text(f'#!/bin/sh\nexec {sys.executable} -m stepwell "$@"\n')
    (folder / "stepwell").chmod(0o755)
    script = """
    . ./code
    ask() {
        COMP_LINE="$1"; COMP_POINT=${#1}; COMP_TYPE=9; read -ra COMP_WORDS <<< "$1"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        "$(complete -p stepwell | sed 's/.*-F \\([^ ]*\\).*/\\1/')" stepwell "${COMP_WORDS[COMP_CWORD]}" ""
        echo "${COMPREPLY[@]}"
    }
    ask "stepwell conv"
    ask "stepwell head toy.well --js"
    ask "stepwell head toy.well --feature obs"
    """
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert [line.strip() for line in done.stdout.splitlines()] == ["convert", "--json", "observation.image"]


@pytest.fixture
def shell_folder(toy_path: Path) -> Path:
    """A folder with a store, and a command ``stepwell``."""
    command = toy_path.parent / "stepwell"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m stepwell "$@"\n')
    command.chmod(0o755)
    return toy_path.parent


def variables_of(folder: Path) -> dict[str, str]:
    """Return the environment of a shell that finds the command, and no configuration of the user."""
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}
    return {**os.environ, **own}


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_verbs_options_paths_and_names(shell_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    (shell_folder / "code").write_text(capsys.readouterr().out)
    lines = ["stepwell conv", "stepwell head toy.well --js", "stepwell ls to", "stepwell head toy.well --feature obs"]
    script = "source code; " + "; ".join(f'complete -C "{line}"; echo .' for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env=variables_of(shell_folder),
        cwd=shell_folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    answers = [[line.split("\t")[0] for line in part.split("\n") if line] for part in done.stdout.split(".\n")[:-1]]
    assert answers == [["convert"], ["--json"], ["toy.well/"], ["observation.image"]]


def test_without_argcomplete_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    assert main(["completion", "bash"]) == 1
    assert "argcomplete is not installed" in capsys.readouterr().err
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert main(["--version"]) == 0
