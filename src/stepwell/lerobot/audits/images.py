"""Checks of pictures in the data files: the first of each file by its head, or all of them, decoded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.cameras import CameraWatch
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.rows import DataFile
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.parquet_images import PILLOW_FORMATS

__all__ = ["check_first_images", "watch_images"]

BATCH_ROWS = 64

MISSING = Rule(
    "image-missing", "error", "Write the bytes of the pictures into the data files: the paths there lead nowhere else."
)
UNREADABLE = Rule("image-unreadable", "error", "Write these pictures again, or leave the steps' episodes out.")
SIZE = Rule("image-size", "error", "Correct the shape in info.json, or write the pictures at that size.")


def check_first_images(subject: Subject, data: DataFile) -> None:
    """Look at the head of the first picture of each camera in a file."""
    for camera in subject.info.image_keys:
        for blob in _blobs(subject, data, camera, 1):
            _opened(subject, camera, blob, data.episodes[:1].tolist(), f"{data.path}, row 0")
            break


def watch_images(
    subject: Subject, data: DataFile, owners: npt.NDArray[np.int64], watches: dict[str, CameraWatch]
) -> None:
    """Decode every picture of a file.

    Args:
        subject: what is audited.
        data: the file.
        owners: int64 [rows], place in the table of each row's episode; -1: none.
        watches: by camera.
    """
    steps: dict[int, int] = {}
    for camera, watch in watches.items():
        steps.clear()
        for row, blob in enumerate(_blobs(subject, data, camera, BATCH_ROWS)):
            place = int(owners[row])
            number = [] if place < 0 else [int(subject.episodes.number[place])]
            image = _opened(subject, camera, blob, number, f"{data.path}, row {row}")
            pixels = None if image is None else _pixels(subject, camera, image, number, f"{data.path}, row {row}")
            if pixels is not None and place >= 0:
                step = steps[place] = steps.get(place, -1) + 1
                watch.see(place, step, pixels)


def _blobs(subject: Subject, data: DataFile, camera: str, rows: int) -> Iterator[bytes | None]:
    """Yield the bytes of each row's picture, None where they are missing, as far as the column can be read."""
    if camera not in data.file.schema_arrow.names:
        return
    try:
        for batch in data.file.iter_batches(batch_size=rows, columns=[camera], use_threads=False):
            for value in batch.column(0).to_pylist():
                blob = value.get("bytes") if isinstance(value, dict) else value
                yield blob if isinstance(blob, bytes) else None
    except Exception as error:  # damage may raise anything
        subject.tally.add(UNREADABLE, camera, f"{data.path}: {type(error).__name__}: {error}", data.episodes)


def _opened(subject: Subject, camera: str, blob: bytes | None, episodes: list[int], where: str) -> Any:
    """Return a ``PIL.Image`` of the right size, not decoded yet; None where there is none."""
    try:
        from PIL import Image
    except ImportError:
        subject.tally.skip("pictures in data files: Pillow is not installed")
        return None
    if blob is None:
        subject.tally.add(MISSING, camera, f"{where}: no bytes", episodes)
        return None
    try:
        image = Image.open(io.BytesIO(blob), formats=PILLOW_FORMATS)
    except Exception as error:  # a decoder may raise anything
        subject.tally.add(UNREADABLE, camera, f"{where}: {type(error).__name__}: {error}", episodes)
        return None
    height, width = subject.info.features[camera].feature.fixed_shape[:2]
    if (image.height, image.width) != (height, width):
        detail = f"{where}: {image.height} x {image.width}, {height} x {width} in info.json"
        subject.tally.add(SIZE, camera, detail, episodes)
    return image


def _pixels(subject: Subject, camera: str, image: Any, episodes: list[int], where: str) -> Any:
    try:
        return np.asarray(image.convert("RGB"))
    except Exception as error:  # a decoder may raise anything
        subject.tally.add(UNREADABLE, camera, f"{where}: {type(error).__name__}: {error}", episodes)
        return None
