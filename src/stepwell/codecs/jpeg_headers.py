"""What a JPEG file says before its scan, and which parts of the scan a crop needs.

A file can be cut in two ways: below a crop, by a smaller height in its header, behind which libjpeg stops; and, where
restart marks divide its rows of blocks into **tiles**, around a crop, by leaving other tiles out::

    t00 FFD0 t01 FFD1 t02 FFD2     a crop within t11 and t12:    t11 FFD0 t12 EOI
    t10 FFD3 t11 FFD4 t12 EOI

Source:
    ITU-T T.81, annex B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Header", "Part"]

BASELINE = (0xC0, 0xC1)
START_OF_SCAN, RESTART_INTERVAL = 0xDA, 0xDD
FIRST_MARK, END = 0xD0, 0xD9
ADOBE, ADOBE_BYTES = 0xEE, 14
BLOCK = 8

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Part:
    """A JPEG file of a part of an image.

    Args:
        file: its bytes.
        top: of the part in the whole image, in pixels; left, height, width as well.
        is_open: whether the scan goes on behind the rows that the header promises.
    """

    file: Bytes | bytearray
    top: int
    left: int
    height: int
    width: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Header:
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
    def of(cls, image: bytes) -> Header:
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

    def part_of(self, blob: Bytes, size: tuple[int, int], box: tuple[int, int, int, int]) -> Part:
        """Return the smallest file that has the pixels of a box.

        Args:
            blob: the file of this header.
            size: height and width of the image.
            box: top, left, height and width of the box; it may reach beyond the image.
        """
        whole = Part(blob, 0, 0, *size)
        if not self.size_place:
            return whole
        if self.interval:
            return self._tiled_part(blob, size, box) or whole
        stop, unit = box[0] + box[2], self.unit[0]
        if -(-stop // unit) >= -(-size[0] // unit):
            return whole
        changed = bytearray(blob)
        changed[self.size_place : self.size_place + 2] = stop.to_bytes(2, "big")
        return Part(changed, 0, 0, stop, size[1], is_open=True)

    def _tiled_part(self, blob: Bytes, size: tuple[int, int], box: tuple[int, int, int, int]) -> Part | None:
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
        return Part(file, top, left, height, width)

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
