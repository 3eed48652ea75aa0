"""Archives for tests, written member by member, and samples of members of every kind."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def picture(number: int, height: int = 24, width: int = 32) -> Any:
    y, x = np.mgrid[:height, :width]
    return np.stack([3 * y + number, 2 * x, x + y], -1).astype(np.uint8)


def sample(number: int) -> list[tuple[str, bytes]]:
    """Return the members of a sample without images."""
    key = f"set/{number:05d}"
    return [
        (f"{key}.cls", str(number % 7).encode()),
        (f"{key}.TXT", f"sämple {number}".encode()),
        (f"{key}.json", json.dumps({"score": number / 2, "at": {"row": number}, "tags": [1]}).encode()),
        (f"{key}.vec.npy", npy(np.full((2, 3), number, np.float32))),
        (f"{key}.more.npz", npz(a=np.arange(number % 3 + 1), b=np.float64(number))),
        (f"{key}.bin", bytes([number]) * number),
    ]


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    """Write an archive of members (name, bytes)."""
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path
