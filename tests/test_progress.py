"""The bar: silent away from a terminal, and without a thread of its own."""

import os
import select
import threading

import pytest

from stepwell.progress import NoBar, make_bar

pytest.importorskip("tqdm")


def test_no_bar_is_drawn_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with make_bar(10, "windows", "streaming") as bar:
        bar.update(10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_bar_is_drawn_on_a_terminal_that_says_it_is_0_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with make_bar(10, "windows", "streaming") as bar:
            bar.update(10)
        # a terminal hands over what it has, in pieces
        shown = ""
        while "10/10" not in shown and select.select([reader], [], [], 10)[0]:
            shown += os.read(reader, 10_000).decode()
    os.close(reader)
    assert "streaming" in shown
    assert "10/10" in shown


def test_a_bar_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with make_bar(10, "windows", "streaming") as bar:
        bar.update(1)
    assert set(threading.enumerate()) == before


def test_without_tqdm_the_bar_only_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    with make_bar(10, "windows", "streaming") as bar:
        bar.update(3)
    assert isinstance(bar, NoBar)
    assert bar.n == 3
