"""Frames as a browser takes them: image files as they lie, everything else as PNG."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.formats.images import IMAGE_CODECS, image_format
from stepwell.references.file_codec import FileCodec
from stepwell.store import Episode, Store
from stepwell.windows.fields import schema_of

__all__ = ["FILE_QUALITY", "Frames"]

# neighbours of a frame of video that are decoded with it, and how many such spans are kept: 128 MiB at most
SPAN_STEPS, SPAN_BYTES, NUM_SPANS = 16, 8 << 20, 16
# pixels of the shorter side
THUMBNAIL_SIDE = 48
# of JPEG, of what is exported
FILE_QUALITY = 90


class Frames:
    """The frames of a store's cameras as image files.

    Args:
        store: open for reading.

    Notes:
        Safe for any number of threads.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._decoded = functools.lru_cache(NUM_SPANS)(self._decode)

    def encoded(self, index: int, name: str, step: int, *, quality: int | None = None) -> tuple[bytes, str]:
        """Return the bytes and the media type of one frame.

        A row that is a JPEG, PNG or WebP file is given as it lies, after its codec has found it whole: a browser shows
        a part of a damaged one without a word.

        Args:
            index: of the episode.
            name: of an image or video feature of bytes.
            step: of the episode.
            quality: of JPEG, 1 to 100, for rows that are no image files and have no alpha; default None: PNG.

        Raises:
            DecodeError: the row is damaged; names the episode and the step.
        """
        episode = self._store[index]
        stored = self._stored_file(index, name, step)
        media = None if stored is None else image_format(stored[:12])
        if stored is not None and media is not None:
            episode.read_rows(name, step, step + 1)
            return stored, f"image/{media}"
        pixels = self._pixels(episode, name, step)
        if quality is not None and pixels.shape[-1] != 4:
            return _file_of(pixels, "JPEG", quality=quality), "image/jpeg"
        return to_png(pixels), "image/png"

    def pixels(self, index: int, name: str, step: int) -> npt.NDArray[np.uint8]:
        """Return the pixels of one frame, uint8 [height, width, channels]; see `encoded`."""
        return self._pixels(self._store[index], name, step)

    def thumbnail(self, index: int, name: str, step: int) -> tuple[bytes, str]:
        """Return a small frame for the list; see `encoded`."""
        pixels = np.asarray(self._store[index].read_rows(name, step, step + 1)[0])
        # every n-th pixel: at least as many as the list shows
        stride = max(1, min(pixels.shape[0], pixels.shape[1]) // THUMBNAIL_SIDE)
        return to_png(np.ascontiguousarray(pixels[::stride, ::stride])), "image/png"

    def _stored_file(self, index: int, name: str, step: int) -> bytes | None:
        """Return the bytes of a row that is an image file, in the store or in a file that it refers to."""
        feature = schema_of(self._store)[name]
        codec = make_codec(feature)
        kept = codec.embedded() if isinstance(codec, FileCodec) else feature
        if kept.codec not in IMAGE_CODECS:
            return None
        segments, table = self._store.listing
        blob = segments[int(table.segment[index])].stored_rows(name).blob(int(table.start[index]) + step)
        if isinstance(codec, FileCodec):
            return bytes(next(iter(codec.embed([blob]).rows(kept))))
        return bytes(blob)

    def _pixels(self, episode: Episode, name: str, step: int) -> npt.NDArray[np.uint8]:
        feature = schema_of(self._store)[name]
        if make_codec(feature).is_sequential and not feature.is_ragged:
            count = int(np.clip(SPAN_BYTES // max(feature.row_bytes, 1), 1, SPAN_STEPS))
            first = step // count * count
            stop = min(first + count, episode.length)
            try:
                rows = self._decoded(episode.index, episode.first_step_id, name, first, stop)
                return np.asarray(rows[step - first])
            except DecodeError:
                # another row of the span may be the damaged one
                pass
        return np.asarray(episode.read_rows(name, step, step + 1)[0])

    def _decode(self, index: int, first_step_id: int, name: str, first: int, stop: int) -> Any:
        """Return the rows of a span; the id tells an episode from another that took its number."""
        return self._store[index].read_rows(name, first, stop)


def to_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return pixels [height, width, channels] as a PNG file."""
    return _file_of(pixels, "PNG", compress_level=1)


def _file_of(pixels: npt.NDArray[np.uint8], kind: str, **options: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(out, kind, **options)
    return out.getvalue()
