"""A store that nobody has any more is gone at once, with its maps and files: no garbage collector need come."""

import gc
import weakref
from pathlib import Path

import pytest

import stepwell
from stepwell import Array
from stepwell.store.beneath import open_file, raise_from


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = stepwell.create(tmp_path / "a.well", {"x": Array(2), "z": Array(2, codec="zstd")})
    with store.writer() as writer:
        writer.add_episode({"x": [[0, 1]] * 3, "z": [[0, 1]] * 3})
    return tmp_path / "a.well"


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_store_goes_with_its_last_reference(path: Path, mode: str) -> None:
    pytest.importorskip("zstandard")
    gc.collect()
    gc.disable()
    try:
        store = stepwell.open(path, mode=mode)  # type: ignore[arg-type]
        store.refresh()
        assert store[0]["x"].shape == store[0]["z"].shape == (3, 2)
        gone = weakref.ref(store)
        del store
        assert gone() is None
    finally:
        gc.enable()


def test_no_error_is_its_own_cause(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        open_file(tmp_path / "none")
    assert missing.value.__cause__ is None
    with pytest.raises(ValueError, match="what it became") as became:
        try:
            raise KeyError("what it was")
        except KeyError as error:
            raise_from(ValueError("what it became"), error)
    assert isinstance(became.value.__cause__, KeyError)
