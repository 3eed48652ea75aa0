"""Maps without a file handle."""

import gc
from pathlib import Path

import numpy as np
import pytest

from stepwell.files.local_files import available_memory, map_file


def test_a_map_outlives_the_handle_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    whole, part = map_file(str(path)), map_file(str(path), 10)
    path.unlink()
    assert whole.tolist() == list(range(100)) and part.tolist() == list(range(10))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(ValueError, match="read-only"):
        whole[0] = 1


def test_a_view_keeps_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    last = map_file(str(path))[-3:]
    gc.collect()
    assert last.tolist() == [97, 98, 99]
    (tmp_path / "none").write_bytes(b"")
    assert map_file(str(tmp_path / "none")).size == 0


def test_what_is_written_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(4))
    map_file(str(path), writable=True)[:] = np.arange(4)
    assert path.read_bytes() == bytes(range(4))


def test_available_memory_is_a_plausible_number() -> None:
    assert 1 << 24 < available_memory() < 1 << 50
