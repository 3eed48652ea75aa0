"""What is printed obeys the width of a terminal and is whole in a pipe; questions."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.cli.main import main
from stepwell.cli.terminal import cut, display_width, fold, lay_out, print_cut, print_folded

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Zs")) | st.just(" "), max_size=80)


@given(texts, st.integers(1, 60))
def test_folded_lines_fit_and_no_word_is_lost(text: str, width: int) -> None:
    lines = fold(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    # a line is wider only where it is one word
    assert all(display_width(line) <= width or len(line.split()) == 1 for line in lines)


@given(texts, st.integers(0, 60))
def test_a_cut_text_fits_and_is_the_beginning(text: str, width: int) -> None:
    shown = cut(text, width)
    assert display_width(shown) <= width
    assert shown == text or text.startswith(shown.removesuffix("…"))
    assert cut(text, None) == text


@given(st.lists(st.tuples(texts, st.integers(-(10**9), 10**9).map(str), texts), max_size=5), st.integers(20, 100))
def test_tables_fit_or_name_what_they_left_out(rows: list[tuple[str, str, str]], width: int) -> None:
    head = ("name", "count", "note")
    lines = lay_out(head, rows, right={"count"}, width=width)
    assert all(display_width(line) <= width for line in lines)
    for column in head[1:]:
        assert column in lines[0] or column in " ".join(lines)
    whole = lay_out(head, rows, right={"count"})
    assert len(whole) == 1 + len(rows)
    assert all(row[1] in line for row, line in zip(rows, whole[1:], strict=True))


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a\x1b[31mred\x9b2J\tb"
    # in a pipe, too: it may end at a terminal
    print_folded(evil)
    assert capsys.readouterr().out == "a\\x1b[31mred\\x9b2J\tb\n"
    monkeypatch.setattr("stepwell.cli.terminal.width_of", lambda stream=None: 80)
    print_folded(evil)
    print_cut(evil)
    assert capsys.readouterr().out == "a\\x1b[31mred\\x9b2J\tb\n" * 2
    # letters from right to left, and a line of a list that would look like two
    print_cut("1  \u202eb\n2  a=1")
    assert capsys.readouterr().out == "1  \\u202eb\\n2  a=1\n"


class Terminal:
    """A pseudo terminal of some columns that the command runs on."""

    def __init__(self, columns: int, cwd: Path) -> None:
        self.columns, self._cwd = columns, cwd

    def run(self, *words: str, answer: bytes = b"", **variables: str) -> tuple[int, list[str]]:
        """Run the command; return its exit code and the lines on the terminal."""
        return self.run_python("-m", "stepwell", *words, answer=answer, **variables)

    def run_python(self, *words: str, answer: bytes = b"", **variables: str) -> tuple[int, list[str]]:
        """Run Python; likewise."""
        main_end, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            [sys.executable, *words],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=self._cwd,
            env={**inherited, **variables},
        )
        os.close(side)
        if answer:
            os.write(main_end, answer)
        printed = b""
        while part := self._read(main_end):
            printed += part
        os.close(main_end)
        return process.wait(), printed.decode().replace("\r\n", "\n").splitlines()

    def _read(self, main_end: int) -> bytes:
        try:
            return os.read(main_end, 1 << 16)
        except OSError:
            # the other end was closed
            return b""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a store whose metadata, features and values are wide."""
    features = {
        "observation.a_long_name": stepwell.Array(3, final=True),
        "action": stepwell.Array(()),
        "task": stepwell.Text(),
    }
    store = stepwell.create(tmp_path / "wide.well", features, fps=10)
    with store.writer() as writer:
        for number in range(3):
            columns = {
                "observation.a_long_name": np.ones((5, 3), np.float32),
                "action": np.ones(4, np.float32),
                "task": ["words " * 30] * 4,
            }
            writer.add_episode(columns, note="many words " * 10, number=number)
    yield tmp_path


SEVERAL = """
import sys
from stepwell.cli.main import main
for words in (["info"], ["ls"], ["head"], ["stats"], ["show", "0"]):
    assert main([words[0], "wide.well", *words[1:]]) == 0
try:
    main(["--help"])
except SystemExit:
    pass
"""


@pytest.mark.parametrize("columns", [40, 80])
def test_every_line_fits_the_terminal(folder: Path, columns: int) -> None:
    code, lines = Terminal(columns, folder).run_python("-c", SEVERAL)
    assert code == 0, lines
    assert len(lines) > 60
    assert all(display_width(line) <= columns for line in lines), lines
    assert any("…" in line for line in lines)


def test_columns_of_the_environment_count_more_than_the_terminal(folder: Path) -> None:
    code, lines = Terminal(200, folder).run("ls", "wide.well", COLUMNS="50")
    assert code == 0
    assert max(map(len, lines)) == 50


def test_in_a_pipe_nothing_is_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "30")
    for verb in ("ls", "head", "stats", "info"):
        assert main([verb, "wide.well"]) == 0
        out = capsys.readouterr().out
        assert "…" not in out and "left out" not in out
        if verb == "ls":
            assert out.count("many words " * 10) == 3
        if verb == "head":
            assert "words " * 30 in out


def test_rm_asks_at_a_terminal(folder: Path) -> None:
    terminal = Terminal(80, folder)
    code, lines = terminal.run("rm", "wide.well", "1", answer=b"n\n")
    assert code == 1
    assert "Delete 1 of 3 episodes (4 of 12 steps) of wide.well: 1?" in "".join(lines)
    assert "nothing was done" in lines[-1]
    assert len(stepwell.open(folder / "wide.well", mode="r")) == 3
    code, lines = terminal.run("rm", "wide.well", "1", answer=b"yes\n")
    assert (code, len(stepwell.open(folder / "wide.well", mode="r"))) == (0, 2)
    assert "1 episode deleted, 2 left" in lines[-1]


NASTY = "a\x1b[31m\nb\x9b2J\u202e"


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """A store whose metadata and axes are called so that a terminal would obey, or a table break."""
    path = tmp_path / "nasty.well"
    features = {"x": stepwell.Array(2, names=[NASTY, "y"]), "task": stepwell.Text()}
    store = stepwell.create(path, features, fps=10)
    with store.writer() as writer:
        for number in range(2):
            columns = {"x": np.full((4, 2), number, np.float32), "task": [NASTY] * 4}
            writer.add_episode(columns, **{NASTY: NASTY, "seed": number})
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["ls"],
        ["ls", "--sort", "no"],
        ["ls", "--where", "no = 1"],
        ["ls", "--where", NASTY],
        ["show", "0"],
        ["show", "0:1"],
        ["head"],
        ["stats"],
        ["diff", "OTHER"],
        ["verify"],
        ["rm", "0"],
        ["convert", "OTHER", "--codec", "x=zstd", "--where", "seed = 0"],
        ["export", "OTHER", "--to", "lerobot", "--where", "seed = 1"],
        ["cache"],
    ],
)
def test_no_verb_prints_what_a_terminal_obeys(
    nasty: Path, tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.well"
    if words[0] == "diff":
        store = stepwell.create(other, stepwell.open(nasty, mode="r").schema, fps=10)
        with store.writer() as writer:
            writer.add_episode({"x": np.zeros((4, 2), np.float32), "task": ["t"] * 4}, **{NASTY: "other"})
    verb, *rest = [str(other) if word == "OTHER" else word for word in words]
    given = [verb, *rest] if verb == "cache" else [verb, str(nasty), *rest]
    with suppress(SystemExit):
        main(given)
    out, err = capfd.readouterr()
    printed = out + err
    assert printed
    assert not set(printed) & {"\x1b", "\x9b", "\u202e"}
    if NASTY[:1] + "\\x1b[31m" in printed:
        assert "\nb\\x9b" not in printed


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_fault(nasty: Path, closed: str) -> None:
    command = f'exec "{sys.executable}" -m stepwell ls "{nasty}" {closed}'
    found = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
    assert (b"episode  length" in found.stdout) == (">&-" not in closed.replace("2>&-", ""))
