"""imports: data sets of others made stores by one process each, beside those who only read them, and beside the disk.

What ours does: it reads records or members, compares CRCs where there are any, and writes a store, which is sealed with
its checksums and statistics; and here it waits until all of it is on the disk. The rivals:

- who reads: "webdataset" and "tarfile" iterate over all samples and members; "crc" goes from record to record and
  compares each with its CRC, by the function that ours uses. Files are in the page cache, nothing is written.
- "disk" does what any import has to: it reads the files from the disk, writes as many bytes, and waits until they are
  there. Both it and ours ("ours, cold") begin without the files in the page cache.

The target is half of the speed of who reads a tar; of TFRecord files, whose CRCs cost next to nothing in memory, half
of that of the disk.

WebDataset: 2 shards of 4,000 samples, a JPEG image of 256 x 256, a label and 60 bytes of JSON each; and as many samples
without an image. TFRecord: 2 shards of 100 RLDS episodes of 150 steps, a JPEG image of 256 x 256, an action and a flag
each; and of 15,000 examples of one image and a label.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import photo_crops
from page_cache import forget
from report import Row, compare, skipped
from timing import Settings, Work, time_rounds

import stepwell
from stepwell import Image, convert
from stepwell.codecs import make_codec
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Fields, Leaf, Repeated, feature_json
from stepwell.tfds.framing import framed, masked_crc32c

__all__ = ["run"]

NAME = "imports"
SHARDS, SAMPLES, SIDE = 2, 4000, 256
TARGET = 0.5
READ_BYTES = 1 << 20
IMAGE = Leaf("image", "uint8", (SIDE, SIDE, 3), image_format="jpeg")
STEP = Fields({"image": IMAGE, "action": Leaf("tensor", "float32", (7,)), "is_last": Leaf("tensor", "bool")})
RLDS_TREE = Fields({"steps": Repeated(STEP, is_dataset=True)})
IMAGES_TREE = Fields({"image": IMAGE, "label": Leaf("label", "int64", num_classes=1000)})


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of each format."""
    yield from _webdataset_rows(settings)
    yield from _tfrecord_rows(settings)


def _tfrecord_rows(settings: Settings) -> Iterator[Row]:
    codec = make_codec(Image((SIDE, SIDE, 3), codec="jpeg", quality=90))
    blobs = [codec.encode(image) for image in photo_crops(settings.sized(200, 4), SIDE)]
    for case, is_rlds in (("TFRecord: RLDS episodes of JPEG images", True), ("TFRecord: JPEG images, labels", False)):
        folder = settings.data / f"tfrecord-{is_rlds}"
        files = _write_records(folder, settings, blobs, is_rlds)
        yield from _rows(case, settings, files, {"crc": partial(_check_records, files)}, None)


def _rows(
    case: str, settings: Settings, files: list[Path], rivals: dict[str, Work], target: float | None
) -> Iterator[Row]:
    """Yield the rows of a data set: ours beside those who read it, and beside the disk.

    Args:
        case: what it is.
        settings: of the run.
        files: of the data set, in one folder.
        rivals: who reads it.
        target: the ratio to reach beside them; None: it is to be reached beside the disk.
    """
    store, copies = settings.data / "imported.well", settings.data / "copies"
    contenders: dict[str, Work] = {
        "ours": partial(_import, files, store),
        **rivals,
        "ours, cold": partial(_import, files, store, is_cold=True),
        "disk": partial(_copy, files, copies),
    }
    _wait_for_disk(files)
    rates = time_rounds(contenders, settings, partial(_remove, store, copies))
    for rival in rivals:
        yield compare(NAME, case, rates, ours="ours", theirs=rival, unit="MB/s", target=target)
    yield compare(NAME, case, rates, ours="ours, cold", theirs="disk", unit="MB/s", target=None if target else TARGET)


def _write_records(folder: Path, settings: Settings, blobs: list[bytes], is_rlds: bool) -> list[Path]:
    """Write a dataset of TFRecord files as TFDS does."""
    folder.mkdir()
    steps, count = (settings.sized(150, 3), settings.sized(100, 2)) if is_rlds else (1, settings.sized(15000, 12))
    names, tree = ("steps/", RLDS_TREE) if is_rlds else ("", IMAGES_TREE)
    for shard in range(SHARDS):
        with (folder / f"made-train.tfrecord-{shard:05d}-of-{SHARDS:05d}").open("wb") as file:
            for number in range(count):
                lists: dict[str, Any] = {
                    f"{names}image": [blobs[(number + step) % len(blobs)] for step in range(steps)]
                }
                if is_rlds:
                    lists["steps/action"] = np.full(7 * steps, number, np.float32)
                    lists["steps/is_last"] = np.arange(steps) == steps - 1
                else:
                    lists["label"] = np.array([number % 1000])
                file.write(framed(encode_example(lists)))
    splits = [{"name": "train", "shardLengths": [str(count)] * SHARDS}]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "made", "splits": splits}))
    (folder / "features.json").write_text(json.dumps(feature_json(tree)))
    return sorted(folder.glob("*.tfrecord*"))


def _check_records(files: list[Path]) -> float:
    total = 0
    for path in files:
        with path.open("rb") as file:
            while head := file.read(12):
                size, crc = struct.unpack("<QI", head)
                record = file.read(size)
                assert masked_crc32c(head[:8]) == crc and masked_crc32c(record) == int.from_bytes(
                    file.read(4), "little"
                )
                total += size
    assert total > 0
    return _num_bytes(files)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _import(files: list[Path], target: Path, *, is_cold: bool = False) -> float:
    if is_cold:
        forget(files)
    convert(files[0].parent, target, workers=1, progress=False)
    _wait_for_disk(path for path in target.rglob("*") if path.is_file())
    return _num_bytes(files)


def _copy(files: list[Path], folder: Path) -> float:
    forget(files)
    folder.mkdir()
    for path in files:
        with path.open("rb") as source, (folder / path.name).open("wb") as target:
            shutil.copyfileobj(source, target, READ_BYTES)
    _wait_for_disk(folder.iterdir())
    return _num_bytes(files)


def _wait_for_disk(files: Iterable[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _webdataset_rows(settings: Settings) -> Iterator[Row]:
    for case, has_images in (("WebDataset: JPEG images, labels, JSON", True), ("WebDataset: labels, JSON", False)):
        folder = settings.data / f"shards-{has_images}"
        shards = _write_shards(folder, settings, has_images)
        rivals: dict[str, Work] = {"tarfile": partial(_iterate, shards)}
        samples = _webdataset(folder)
        if samples is None:
            yield from skipped(NAME, "webdataset", case)
        else:
            _check(shards, settings.data / f"checked-{has_images}.well", samples)
            rivals["webdataset"] = partial(_iterate_samples, shards, samples)
        yield from _rows(case, settings, shards, rivals, TARGET)


def _write_shards(folder: Path, settings: Settings, has_images: bool) -> list[Path]:
    """Write shards with Python's tarfile, as webdataset does."""
    folder.mkdir()
    count = settings.sized(SAMPLES, 12)
    codec = make_codec(Image((SIDE, SIDE, 3), codec="jpeg", quality=90))
    images = [codec.encode(image) for image in photo_crops(min(count, 200), SIDE)] if has_images else []
    for shard in range(SHARDS):
        with tarfile.open(folder / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(shard * count, (shard + 1) * count):
                members = {
                    "cls": b"%d" % (number % 1000),
                    "json": json.dumps({"id": number, "text": "x" * 40}).encode(),
                }
                if images:
                    members["jpg"] = images[number % len(images)]
                for ending, data in members.items():
                    entry = tarfile.TarInfo(f"{number:08d}.{ending}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    return sorted(folder.glob("*.tar"))


def _num_bytes(shards: list[Path]) -> float:
    return sum(path.stat().st_size for path in shards) / 1e6


def _iterate(shards: list[Path]) -> float:
    total = 0
    for path in shards:
        with tarfile.open(path, "r|") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                assert file is not None
                total += len(file.read())
    assert total > 0
    return _num_bytes(shards)


def _webdataset(folder: Path) -> Callable[[], Iterator[dict[str, bytes]]] | None:
    try:
        import webdataset
    except ImportError:
        return None
    source = f"{folder}/train-{{000000..{SHARDS - 1:06d}}}.tar"
    return lambda: iter(webdataset.WebDataset(source, shardshuffle=False))


def _iterate_samples(shards: list[Path], samples: Callable[[], Iterator[dict[str, bytes]]]) -> float:
    assert sum(1 for _ in samples()) > 0
    return _num_bytes(shards)


def _check(shards: list[Path], target: Path, samples: Callable[[], Iterator[dict[str, bytes]]]) -> None:
    """Compare what is imported with what webdataset reads."""
    _import(shards, target)
    store = stepwell.open(target, mode="r")
    assert len(store) > 0
    for episode, sample in zip(store, samples(), strict=True):
        assert int(sample["cls"]) == episode["cls"][0] and sample["json"].decode() == episode["json"][0]
    if store.schema is not None and "jpg" in store.schema:
        segment = store.segments[0]
        first = segment.blob_map("jpg")[: int(segment.offsets_map("jpg")[1])]
        assert np.array_equal(first, np.frombuffer(next(samples())["jpg"], np.uint8))
