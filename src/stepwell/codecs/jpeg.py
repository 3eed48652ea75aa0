"""Camera images as JPEG, decoded by libjpeg-turbo straight into the batch.

A file is cut in two ways: below a crop, by a smaller height in its header, behind which libjpeg stops; and, where
restart marks divide its rows of blocks into **tiles**, around a crop, by leaving other tiles out::

    t00 FFD0 t01 FFD1 t02 FFD2     a crop within t11 and t12:    t11 FFD0 t12 EOI
    t10 FFD3 t11 FFD4 t12 EOI

Source:
    ITU-T T.81, annex B.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, check_option_names, choice_option, int_option, register_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError, StepError
from stepwell.schema import Feature

__all__ = ["JpegCodec", "JpegHeader", "JpegPart", "with_tiles"]

BASELINE = (0xC0, 0xC1)
START_OF_SCAN, RESTART_INTERVAL = 0xDA, 0xDD
FIRST_MARK, END = 0xD0, 0xD9
ADOBE, ADOBE_BYTES = 0xEE, 14
BLOCK = 8
HUFFMAN_TABLES = 0xC4
MAX_TABLES = 4
DEFAULT_QUALITY = 95
SUBSAMPLINGS = ("444", "422", "420", "440", "411", "gray")
TRANSFORMS = ("exact", "fast")
COLORSPACES = ("YCbCr", "RGB", "Gray")
# cyan, magenta, yellow and black: read as RGB
INKS = ("CMYK", "YCCK")
MAX_SIDE = 65500
# a block of 8 x 8 pixels takes a bit at least
MAX_PIXELS_A_BYTE = 512
# of the scales that libjpeg-turbo offers, those that it has SIMD code for: others take longer than the whole image
SHRINKS = (8, 4, 2)
END_OF_IMAGE = b"\xff\xd9"
# libjpeg's first complaint, when rows of blocks are left over after those that the header promised
LEFT_OVER = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class JpegPart:
    """A JPEG file of a part of an image."""

    file: Bytes | bytearray  # its bytes
    top: int  # of the part in the whole image, in pixels; left, height, width as well
    left: int
    height: int
    width: int
    is_open: bool = False  # whether the scan goes on behind the rows that the header promises


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The head of a JPEG file.

    Args:
        head: the bytes up to the scan's data; empty where they do not end.
        size_place: where height and width stand in them; 0 where rows come in several scans, which cannot be cut.
        unit: height and width of what is coded together, in pixels.
        interval: units between restart marks; 0 without.
        is_adobes: whether it has Adobe's mark: inks are inverted then.
    """

    head: bytes
    size_place: int = 0
    unit: tuple[int, int] = (BLOCK, BLOCK)
    interval: int = 0
    is_adobes: bool = False

    @classmethod
    def of(cls, image: bytes) -> JpegHeader:
        """Return the header of a JPEG file."""
        place, frame, interval, is_adobes = 2, 0, 0, False
        while image[place : place + 1] == b"\xff":
            marker, size = image[place + 1], int.from_bytes(image[place + 2 : place + 4], "big")
            if marker == START_OF_SCAN:
                is_whole = frame > 0 and image[place + 4] == image[frame + 9]
                head = image[: place + 2 + size]
                if not is_whole:
                    return cls(head, is_adobes=is_adobes)
                return cls(head, frame + 5, _unit(image, frame), interval, is_adobes)
            if marker in BASELINE:
                frame = place
            if marker == ADOBE and size >= ADOBE_BYTES and image[place + 4 : place + 9] == b"Adobe":
                is_adobes = True
            if marker == RESTART_INTERVAL:
                interval = int.from_bytes(image[place + 4 : place + 6], "big")
            place += 2 + size
        return cls(b"", is_adobes=is_adobes)

    def part_of(self, blob: Bytes, size: tuple[int, int], box: tuple[int, int, int, int]) -> JpegPart:
        """Return the smallest file that has the pixels of a box."""
        whole = JpegPart(blob, 0, 0, *size)
        if not self.size_place:
            return whole
        if self.interval:
            return self._tiled_part(blob, size, box) or whole
        stop, unit = box[0] + box[2], self.unit[0]
        if -(-stop // unit) >= -(-size[0] // unit):
            return whole
        changed = bytearray(blob)
        changed[self.size_place : self.size_place + 2] = stop.to_bytes(2, "big")
        return JpegPart(changed, 0, 0, stop, size[1], is_open=True)

    def _tiled_part(self, blob: Bytes, size: tuple[int, int], box: tuple[int, int, int, int]) -> JpegPart | None:
        """Return the file of the tiles that a box touches; None where tiles are not where the header says."""
        sides = self.unit[0], self.interval * self.unit[1]
        num_rows, num_columns = (-(-whole // side) for whole, side in zip(size, sides, strict=True))
        if -(-size[1] // self.unit[1]) % self.interval:
            return None
        tiles = self._tiles(blob, num_rows * num_columns)
        if tiles is None:
            return None
        first_row, first = max(box[0], 0) // sides[0], max(box[1], 0) // sides[1]
        last_row = min(-(-(box[0] + box[2]) // sides[0]), num_rows)
        last = min(-(-(box[1] + box[3]) // sides[1]), num_columns)
        if first and size[1] - first * sides[1] < self.unit[1]:
            # libjpeg interpolates no colours in an image of less than three samples of them
            first -= 1
        top, left = first_row * sides[0], first * sides[1]
        height, width = min(last_row * sides[0], size[0]) - top, min(last * sides[1], size[1]) - left
        chosen = tiles.reshape(num_rows, num_columns, 2)[first_row:last_row, first:last]
        head = bytearray(self.head)
        head[self.size_place : self.size_place + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        pieces = [blob[row[0, 0] : row[-1, 1] + 2] for row in chosen]
        file = np.concatenate([np.frombuffer(head, np.uint8), *pieces])
        ends = len(head) + np.cumsum((chosen[..., 1] - chosen[..., 0] + 2).reshape(-1))
        file[ends - 2] = 0xFF
        file[ends - 1] = FIRST_MARK + np.arange(len(ends)) % 8
        file[-1] = END
        return JpegPart(file, top, left, height, width)

    def _tiles(self, blob: Bytes, number: int) -> npt.NDArray[np.int64] | None:
        """Return where the tiles of a scan begin and end, int64 [number, 2]; None where marks are missing."""
        scan = blob[len(self.head) :]
        places = np.flatnonzero(scan[:-1] == 0xFF)
        codes = scan[places + 1]
        is_mark = codes != 0
        marks = places[is_mark]
        wanted = FIRST_MARK + np.arange(number) % 8
        wanted[-1] = END
        if len(marks) != number or (codes[is_mark] != wanted).any() or marks[-1] != len(scan) - 2:
            return None
        begins = np.concatenate([[0], marks[:-1] + 2])
        return len(self.head) + np.stack([begins, marks], axis=1)


def _unit(image: bytes, frame: int) -> tuple[int, int]:
    """Return height and width of what is coded together, from the sampling factors in a frame header."""
    factors = [image[frame + 11 + 3 * k] for k in range(image[frame + 9])]
    if len(factors) == 1:
        return BLOCK, BLOCK
    return BLOCK * max(factor & 15 for factor in factors), BLOCK * max(factor >> 4 for factor in factors)


def with_tiles(image: bytes, columns: int) -> bytes:
    """Return a JPEG file with restart marks between tiles of one row of blocks."""
    from stepwell.codecs.jpeg_kernels import NOT_CODED, mark_scan

    header = JpegHeader.of(image)
    if not header.size_place or header.interval:
        return image
    tables = _tables_of(header.head)
    height, width = (int.from_bytes(image[header.size_place + k : header.size_place + k + 2], "big") for k in (0, 2))
    rows, units = -(-height // header.unit[0]), -(-width // header.unit[1])
    most = max(1, columns // header.unit[1])
    interval = max(number for number in range(1, min(most, units) + 1) if units % number == 0)
    scan = np.frombuffer(image, np.uint8)[len(header.head) :]
    # behind each mark first coefficients take a little more; and bytes of ones, with what is stuffed, may be others
    out = np.empty(2 * scan.size + 64 * rows * units // interval + 2048, np.uint8)
    size = mark_scan(scan, tables.blocks, tables.lookups, tables.codes, interval, rows * units, out)
    if size == NOT_CODED:
        return image
    start_of_scan = header.head.rindex(b"\xff\xda")
    head, scan_header = header.head[:start_of_scan], header.head[start_of_scan:]
    marks = b"\xff\xdd\x00\x04" + interval.to_bytes(2, "big")
    return head + marks + scan_header + out[:size].tobytes() + b"\xff\xd9"


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """The Huffman tables of a file, and which of them each block of a unit is coded with; see `mark_scan`."""

    blocks: npt.NDArray[np.int64]
    lookups: npt.NDArray[np.uint16]
    codes: npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def _tables_of(head: bytes) -> _Tables:
    """Return the tables of a head that ends with the header of a scan; rows of a feature have the same."""
    lookups, codes = np.zeros((2 * MAX_TABLES, 1 << 16), np.uint16), np.zeros((2 * MAX_TABLES, 256), np.int64)
    blocks: list[tuple[int, int, int]] = []
    factors: dict[int, tuple[int, int]] = {}
    *segments, (_, scan) = _segments(head)
    for marker, body in segments:
        if marker == HUFFMAN_TABLES:
            for number, counts, symbols in _huffman_tables(body):
                _fill(lookups[number], codes[number], counts, symbols)
        elif marker in BASELINE:
            factors = {body[6 + 3 * k]: divmod(body[7 + 3 * k], 16) for k in range(body[5])}
    for component in range(scan[0]):
        name, tables = scan[1 + 2 * component : 3 + 2 * component]
        number = 1 if len(factors) == 1 else factors[name][0] * factors[name][1]
        blocks += [(component, tables >> 4, MAX_TABLES + (tables & 15))] * number
    return _Tables(np.array(blocks, np.int64), lookups, codes)


def _segments(head: bytes) -> list[tuple[int, bytes]]:
    found, place = [], 2
    while place < len(head):
        size = int.from_bytes(head[place + 2 : place + 4], "big")
        found.append((head[place + 1], head[place + 4 : place + 2 + size]))
        place += 2 + size
    return found


def _huffman_tables(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return number, counts of codes by length, and symbols, of each table of a segment."""
    found, place = [], 0
    while place < len(body):
        kind, counts = body[place], body[place + 1 : place + 17]
        stop = place + 17 + sum(counts)
        found.append(((kind >> 4) * MAX_TABLES + (kind & 15), counts, body[place + 17 : stop]))
        place = stop
    return found


def _fill(lookup: npt.NDArray[np.uint16], codes: npt.NDArray[np.int64], counts: bytes, symbols: bytes) -> None:
    """Write the codes of one table, which are numbered in order of their lengths."""
    code, place = 0, 0
    for length, count in enumerate(counts, start=1):
        for symbol in symbols[place : place + count]:
            first = code << (16 - length)
            lookup[first : first + (1 << (16 - length))] = length << 8 | symbol
            codes[symbol] = code << 8 | length
            code += 1
        place += count
        code <<= 1


@register_codec
class JpegCodec(Codec):
    """One JPEG file a row: uint8, lossy.

    Args:
        feature: uint8 of height x width x 3 (RGB), height x width x 1 or height x width (grey), of one size or of any.
            Rows of grey files and of inks (CMYK) are taken for RGB, those of colours for grey. Options: ``quality``
            1 to 100, default 95; ``subsampling`` of the colours, "420" (default), "422", "444", "440", "411" or "gray";
            ``tile`` 0 (default) or the width in pixels of tiles that crops are decoded by: a random resized crop then
            takes about two thirds of the time, the file 1 to 2 % more bytes, and writing a row twice as long or more;
            ``dct``, how rows are decoded: "exact" (default) or "fast", libjpeg-turbo's less precise transform, whose
            pixels are FFCV's.

    Example:
        >>> from stepwell.schema import Image
        >>> codec = JpegCodec(Image((16, 20, 3), codec="jpeg", quality=90))
        >>> codec.decode(np.frombuffer(codec.encode(np.zeros((16, 20, 3), "uint8")), np.uint8)).shape
        (16, 20, 3)

    Notes:
        Safe for any number of threads; decoding releases the GIL. Of a crop what lies below it is not decoded, and it
        is decoded at 1/2, 1/4 or 1/8 where that is enough; a file of inks is always decoded whole. Rows of one size
        begin with the same bytes: one that begins as the last good one did needs no second look at its header. A
        corrupt header is refused before anything is written, or memory asked for that its row cannot fill; a row that
        breaks off raises. What JPEG itself cannot detect (a changed coefficient) shows as changed pixels; ``stepwell
        verify`` finds it by the segment's checksum.

    Source:
        ITU-T T.81.
    """

    name: ClassVar[str] = "jpeg"
    decoding_options: ClassVar[tuple[str, ...]] = ("dct",)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "quality", "subsampling", "tile", "dct")
        _check_is_jpeg_image(feature)
        self._size = None if feature.is_ragged else (feature.fixed_shape[0], feature.fixed_shape[1])
        self._channels = tuple(int(size or 0) for size in feature.shape[2:])
        is_grey = self._channels != (3,)
        self._colorspace = "GRAY" if is_grey else "RGB"
        self._quality = int_option(feature, "quality", DEFAULT_QUALITY, least=1, most=100)
        self._tile = int_option(feature, "tile", 0, least=0, most=MAX_SIDE)
        choices = ("gray",) if is_grey else SUBSAMPLINGS
        self._subsampling = choice_option(feature, "subsampling", "gray" if is_grey else "420", choices)
        try:
            import simplejpeg
        except ImportError as error:
            raise MissingDependencyError.of("simplejpeg", "image") from error
        self._encode = simplejpeg.encode_jpeg
        self._decode_header = simplejpeg.decode_jpeg_header
        self._colorspaces = COLORSPACES if is_grey else COLORSPACES + INKS
        # of the last row: its header, height and width, and whether it has inks
        self._known = JpegHeader(b""), (0, 0), False
        is_fast = choice_option(feature, "dct", TRANSFORMS[0], TRANSFORMS) == "fast"
        self._decode = partial(simplejpeg.decode_jpeg, fastdct=True) if is_fast else simplejpeg.decode_jpeg

    def encode(self, value: Any) -> bytes:
        """Return the image as a JPEG file; see `Codec.encode`."""
        image = np.ascontiguousarray(value, dtype=np.uint8)
        if max(image.shape[:2]) > MAX_SIDE:
            raise StepError(
                f"an image of {image.shape[0]}x{image.shape[1]}. Allowed as JPEG: sides of 1 to {MAX_SIDE}."
            )
        image = image.reshape(*image.shape[:2], -1)
        encoded = self._encode(image, self._quality, colorspace=self._colorspace, colorsubsampling=self._subsampling)
        return with_tiles(bytes(encoded), self._tile) if self._tile else bytes(encoded)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        out = np.empty((*self.image_size(blob), *self._channels), np.uint8)
        self.decode_into(blob, out)
        return out

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width, of images of any size from the header; see `Codec.image_size`."""
        if self._size is not None:
            return self._size
        try:
            return self._header_of(blob)[1]
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        try:
            header, _, has_inks = self._header_of(blob)
            if has_inks:
                out[...] = self._decode_inks(blob, header)
                return
            # Where rows of pixels begin at multiples of 32 bytes, as in a batch, libjpeg-turbo (AVX2) writes around
            # the cache, which takes a tenth longer than to write to an odd address and to copy.
            if out.ctypes.data % 2:
                self._decode(blob, self._colorspace, buffer=out)
                return
            pixels = np.empty(out.nbytes + 1, np.uint8)[1:]
            self._decode(blob, self._colorspace, buffer=pixels)
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        out[...] = pixels.reshape(out.shape)

    def check(self, blob: npt.NDArray[np.uint8]) -> None:
        """Look at header and end of a file, and decode one that has others; see `Codec.check`."""
        try:
            is_whole = not self._header_of(blob)[2] and blob[-2:].tobytes() == END_OF_IMAGE
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        if not is_whole:
            super().check(blob)

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part, without what lies below, and tiles beside it; see `Codec.decode_crop`.

        Equal to the part of the whole image where it is not smaller than ``box``; else at a scale of 1/2, 1/4 or 1/8,
        its edges at the nearest pixels of that scale.
        """
        top, left, height, width = box
        shrink = next((s for s in SHRINKS if height >= s * size[0] and width >= s * size[1]), 1)
        # colours at an edge are interpolated with those of the pixel beyond; edges are rounded at a smaller scale
        margin = 1 if shrink == 1 else 2 * shrink
        needed = (top - margin, left - margin, height + 2 * margin, width + 2 * margin)
        try:
            header, whole, has_inks = self._header_of(blob)
            if has_inks:
                return self._decode_inks(blob, header)[top : top + height, left : left + width]
            part = header.part_of(blob, whole, needed)
            pixels = self._decode_part(part, shrink)
        except ValueError as error:
            raise DecodeError(f"jpeg row of {blob.size} bytes: {error}.") from error
        rows, columns = (
            slice((start + shrink // 2) // shrink, (start + length + shrink // 2) // shrink)
            for start, length in ((top - part.top, height), (left - part.left, width))
        )
        cut = pixels[rows, columns]
        return cut.reshape(*cut.shape[:2], *self._channels)

    def _decode_inks(self, blob: npt.NDArray[np.uint8], header: JpegHeader) -> npt.NDArray[np.uint8]:
        """Return RGB of a file of inks, as TensorFlow mixes them; raise ValueError."""
        inks: npt.NDArray[np.uint16] = self._decode(blob, "CMYK").astype(np.uint16)
        if not header.is_adobes:
            inks = 255 - inks
        mixed: npt.NDArray[np.uint8] = (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
        return mixed

    def _decode_part(self, part: JpegPart, shrink: int) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part of the image at 1 / `shrink`; raise ValueError."""
        shape = (-(-part.height // shrink), -(-part.width // shrink), 1 if self._colorspace == "GRAY" else 3)
        memory = np.empty(shape[0] * shape[1] * shape[2] + 1, np.uint8)[1:]
        least = {"min_height": shape[0], "min_width": shape[1], "min_factor": shrink} if shrink > 1 else {}
        try:
            self._decode(part.file, self._colorspace, buffer=memory, **least)
        except ValueError as error:
            if not part.is_open or not LEFT_OVER.fullmatch(str(error)):
                raise
        return memory.reshape(shape)

    def _header_of(self, blob: npt.NDArray[np.uint8]) -> tuple[JpegHeader, tuple[int, int], bool]:
        """Return header, height and width, and whether it has inks, such as the feature may have; remember them."""
        known = self._known
        head = known[0].head
        if head and blob[: len(head)].tobytes() == head and (self._size or _may_hold(blob, known[1])):
            return known
        height, width, colorspace, _ = self._decode_header(blob)
        size = height, width
        if size != (self._size or size) or colorspace not in self._colorspaces:
            wanted = "x".join(map(str, self._size or "??"))
            raise ValueError(
                f"{height}x{width} {colorspace}, where the feature is {wanted} of {', '.join(self._colorspaces)}"
            )
        if self._size is None and not _may_hold(blob, size):
            raise ValueError(f"its header says {height}x{width}, which it cannot hold")
        if self._size is None:
            num_bytes = height * width * (1 if self._colorspace == "GRAY" else 3)
            check_decoded_bytes(num_bytes, blob.size, f"{height}x{width} pixels")
        self._known = known = JpegHeader.of(blob.tobytes()), size, colorspace in INKS
        return known


def _may_hold(blob: npt.NDArray[np.uint8], size: tuple[int, int]) -> bool:
    """Return whether a file of this length can hold so many pixels: a corrupt header must not allocate memory."""
    return size[0] * size[1] <= MAX_PIXELS_A_BYTE * blob.size


def _check_is_jpeg_image(feature: Feature) -> None:
    shape = feature.shape
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    is_image &= not feature.is_ragged or feature.is_image_of_any_size
    if feature.kind not in ("image", "array") or feature.np_dtype != np.uint8 or not is_image:
        raise SchemaError(
            f'codec "jpeg" cannot store {feature.np_dtype.name} {shape}. Allowed: uint8 (height, width) or '
            '(height, width, 1 | 3). Use "png" for uint16 and for 4 channels, "zstd" for anything else.'
        )
    if not feature.is_ragged and not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "jpeg" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
