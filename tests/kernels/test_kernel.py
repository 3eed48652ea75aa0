"""Compiled functions keep their types for mypy, and tell once when compiling them takes long."""

from __future__ import annotations

from typing import Any

import pytest
from numba import njit

from stepwell.kernels import kernel as module
from stepwell.kernels.kernel import inlined, kernel


def made(number: int) -> Any:
    """Return a kernel that looks as one of ours, was never compiled and is not kept on the disk."""

    def add(value: int) -> int:
        return value + number

    add.__module__ = "stepwell.kernels.made"
    return njit(add)


@inlined
def doubled(value: int) -> int:
    """Return twice the value."""
    return 2 * value


@kernel
def doubled_and_one(value: int) -> int:
    """Return one more than twice the value."""
    return doubled(value) + 1


def test_kernels_call_what_is_inlined() -> None:
    assert doubled_and_one(3) == 7


def tell_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", seconds)
    monkeypatch.setattr(module._NOTICE, "_seconds", 0.0)


def test_one_line_tells_of_compilations_that_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_after(monkeypatch, 1e-9)
    for number in range(3):
        assert made(number)(4) == 4 + number
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stepwell compiles its kernels on the first run")


def test_short_compilations_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tell_after(monkeypatch, 1e9)
    assert made(1)(4) == 5
    assert capsys.readouterr().err == ""


def test_kernels_of_others_are_their_own_affair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_after(monkeypatch, 1e-9)
    assert njit(lambda value: value + 1)(1) == 2
    assert capsys.readouterr().err == ""
