"""Good headers stay good where threads get in each other's way."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import CorruptSegmentError
from stepwell.schema import Array
from stepwell.store import create
from stepwell.store.beneath import MAX_TRIES, read_again
from stepwell.store.statistics import load_statistics


def stumbling(times: int) -> object:
    left = [times]

    def read() -> str:
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return "read"

    return read


@pytest.mark.parametrize("times", [0, 1, MAX_TRIES - 1])
def test_a_reader_that_stumbles_is_asked_again(times):
    assert read_again(stumbling(times)) == "read"


def test_one_that_stumbles_every_time_is_given_up():
    with pytest.raises(SystemError, match="recursion depth"):
        read_again(stumbling(MAX_TRIES))


def test_statistics_are_not_called_damaged_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "a.well", {"x": Array(2)})
    with store.writer() as writer:
        writer.add_episode({"x": np.ones((4, 2), np.float32)})
    store.refresh()
    folder = store.segments[0].path
    load, stumbles = np.load, iter([True, True, False])

    def stumbling_load(*arguments, **options):
        if next(stumbles, False):
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", stumbling_load)
    assert load_statistics(folder, iter(["x"]))["x"].mean.tolist() == [1, 1]
    monkeypatch.setattr(np, "load", lambda *_, **__: stumbling(MAX_TRIES + 1)())
    with pytest.raises(CorruptSegmentError, match="damaged"):
        load_statistics(folder)
