"""What lies in a store's directory, but for what differs from run to run: times, random digits, other releases' codecs.

It reads by docs/format.md alone, with no help of stepwell.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .expectations import digest

NAME = re.compile(r"(\d{8,10})-[0-9a-f]{4}")
UUID = re.compile(r"\b[0-9a-f]{32}\b")
# where writers and openers keep what is true for a moment, or for one machine
MOMENTARY = {"lock", "clock", "maintenance", "progress", "segments.table", "clock.stamps"}
# bytes that a release of the codec's library decides: their rows are frozen as values, or only counted
COMPRESSED = ("zstd", "lz4", "png", "delta")


def describe(path: Path) -> dict[str, Any]:
    """Return what is in a store, by file; random digits of segments are left out of names."""
    features = json.loads((path / "store.json").read_text())["features"]
    found = {}
    for file in sorted(path.rglob("*")):
        name = NAME.sub(r"\1", file.relative_to(path).as_posix())
        if file.is_dir():
            found[name + "/"] = ""
        elif file.name not in MOMENTARY:
            found[name] = _describe_file(file, features)
        else:
            found[name] = "is there"
    return found


def _describe_file(file: Path, features: dict[str, Any]) -> Any:
    match file.suffix:
        case ".json":
            return _describe_json(file)
        case ".jsonl":
            return file.read_text().splitlines()
        case ".npz":
            with np.load(file) as arrays:
                return {name: f"{arrays[name].dtype} {arrays[name].shape}" for name in sorted(arrays)}
        case ".npy" if file.name == "deleted.npy":
            return np.load(file).tolist()
        case ".npy" if file.name == "episodes.npy":
            records = np.load(file)
            assert (records["time_ns"] > 0).all()
            return {name: records[name].tolist() for name in records.dtype.names if name != "time_ns"}
        case ".npy" | ".bin":
            return _describe_rows(file, features[file.stem])
    raise AssertionError(f"{file}: no file of docs/format.md")


def _describe_rows(file: Path, feature: dict[str, Any]) -> Any:
    if feature["codec"] == "raw":
        return digest(file.read_bytes())
    if file.suffix == ".npy":
        assert np.load(file).dtype == np.uint64
        return f"{len(np.load(file)) - 1} rows"
    rows = _rows(file)
    if feature["codec"] in COMPRESSED:
        return digest(*_decoded(rows, feature["codec"], feature.get("options", {}).get("compression", "zstd")))
    return {feature["codec"]: ["a row" if row else "empty" for row in rows]}


def _describe_json(file: Path) -> Any:
    data = file.read_bytes()
    record = json.loads(data)
    checksum = record.pop("crc32")
    assert data.endswith(b'\n  "crc32": "%s"\n}\n' % checksum.encode())
    assert zlib.crc32(data[: data.rindex(b'  "crc32"')]) == int(checksum, 16)
    if file.name == "segment.json":
        for name, told in record["files"].items():
            content = (file.parent / name).read_bytes()
            assert told == {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}, f"{file.parent / name}"
        record["files"] = sorted(record["files"])
    return json.loads(
        UUID.sub("UUID", NAME.sub(r"\1", json.dumps(record))), parse_float=lambda text: f"{float(text):.6g}"
    )


def _rows(file: Path) -> list[bytes]:
    offsets = np.load(file.with_suffix(".npy")).tolist()
    data = file.read_bytes()
    return [data[start:stop] for start, stop in itertools.pairwise(offsets)]


def _decoded(rows: list[bytes], codec: str, compression: str) -> list[bytes]:
    if codec == "delta":
        return _decoded_delta(rows, compression)
    return [_decompressed(row, codec) if row else b"" for row in rows]


def _decompressed(row: bytes, codec: str) -> bytes:
    match codec:
        case "zstd":
            import zstandard

            return zstandard.ZstdDecompressor().decompress(row)
        case "lz4":
            assert zlib.crc32(row[4:]) == int.from_bytes(row[:4], "little")
            return _lz4(row[12:], int.from_bytes(row[4:12], "little"))
        case _:
            import io

            from PIL import Image

            return np.asarray(Image.open(io.BytesIO(row))).tobytes()


def _lz4(block: bytes, size: int) -> bytes:
    import lz4.block

    return lz4.block.decompress(block, uncompressed_size=size)


def _decoded_delta(rows: list[bytes], compression: str) -> list[bytes]:
    import zstandard

    run: list[bytes] = []
    decoded = []
    for row in rows:
        if not row:
            decoded.append(b"")
            continue
        assert zlib.crc32(row[4:]) == int.from_bytes(row[:4], "little")
        marks, place, rest = row[4], row[5], row[6:]
        run = [] if marks & 1 else run
        assert place == len(run)
        if compression == "zstd":
            plain = zstandard.ZstdDecompressor().decompress(rest, max_output_size=1 << 20)
        else:
            plain = _lz4(rest, 1 << 20)
        if marks & 2:
            before = np.frombuffer(run[place & (place - 1)], np.uint8)
            plain = (np.frombuffer(plain, np.uint8) ^ before).tobytes()
        run.append(plain)
        decoded.append(plain)
    return decoded
