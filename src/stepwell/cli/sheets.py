"""Contact sheets: labelled images in a grid, as a PNG that a person can read.

::

    title
    caption of the row ........................
    +-------+ +-------+ +-------+
    | tile  | | tile  | | tile  |    all of one size, that of their images: the longer side of an image is the same
    +-------+ +-------+ +-------+    everywhere; a tile may carry a path, drawn from pale to dark
     label     label     label
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.display.pixels import displayable
from stepwell.errors import MissingDependencyError

__all__ = ["Row", "Tile", "displayable", "write_sheet"]

TILE_PIXELS = 184
# a narrower tile would not have room for its label
LABEL_WIDTH = 120
GAP, MARGIN = 8, 20
LABEL_HEIGHT, CAPTION_HEIGHT, TITLE_HEIGHT = 20, 26, 64
INK, GREY, PAPER, BORDER = (30, 34, 40), (110, 116, 124), (250, 250, 248), (205, 207, 210)
PATH_START, PATH_END = np.array([255, 190, 60]), np.array([200, 20, 60])


@dataclass(frozen=True)
class Tile:
    """One image of a sheet.

    Args:
        image: uint8 [H, W, 3].
        label: printed below it.
        path: float [N, 2], (x, y) as fractions of width and height, drawn over the image; None for none.
        is_faded: whether the image is shown pale, e.g. because it is padding.
    """

    image: npt.NDArray[np.uint8]
    label: str
    path: npt.NDArray[np.float64] | None = None
    is_faded: bool = False


@dataclass(frozen=True)
class Row:
    """A row of tiles under a caption; an empty caption takes no room."""

    tiles: Sequence[Tile]
    caption: str = ""


def write_sheet(path: Path, rows: Sequence[Row], *, title: str, subtitle: str = "") -> None:
    """Draw the rows and write them as a PNG."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise MissingDependencyError.of("pillow", "cli") from None
    size = _tile_size([tile.image.shape[:2] for row in rows for tile in row.tiles])
    heights = [size[1] + LABEL_HEIGHT + GAP + (CAPTION_HEIGHT if row.caption else 0) for row in rows]
    columns = max((len(row.tiles) for row in rows), default=1)
    width = 2 * MARGIN + columns * size[0] + (columns - 1) * GAP
    sheet = Image.new("RGB", (max(width, 480), MARGIN * 2 + TITLE_HEIGHT + sum(heights)), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, fill=INK, font=_font(22))
    pen.text((MARGIN, MARGIN + 32), subtitle, fill=GREY, font=_font(14))
    top = MARGIN + TITLE_HEIGHT
    for row, height in zip(rows, heights, strict=True):
        _draw_row(sheet, pen, row, top, size)
        top += height
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, optimize=True)


def _tile_size(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Return the width and height of all tiles: the least into which each image goes with its longer side fixed."""
    fitted = [_fitted(shape, TILE_PIXELS) for shape in shapes]
    width = max((width for width, _ in fitted), default=TILE_PIXELS)
    return max(width, LABEL_WIDTH), max((height for _, height in fitted), default=TILE_PIXELS)


def _fitted(shape: tuple[int, ...], longer: int) -> tuple[int, int]:
    """Return the width and height at which an image [H, W] has a longer side of so many pixels."""
    height, width = shape
    scale = longer / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _draw_row(sheet: Any, pen: Any, row: Row, top: int, size: tuple[int, int]) -> None:
    width, height = size
    if row.caption:
        pen.text((MARGIN, top + 4), row.caption, fill=INK, font=_font(15))
        top += CAPTION_HEIGHT
    for column, tile in enumerate(row.tiles):
        left = MARGIN + column * (width + GAP)
        sheet.paste(_draw_tile(tile, size), (left, top))
        pen.rectangle((left, top, left + width - 1, top + height - 1), outline=BORDER)
        pen.text((left + 2, top + height + 2), tile.label, fill=GREY, font=_font(13))


def _draw_tile(tile: Tile, size: tuple[int, int]) -> Any:
    """Return a tile as a Pillow image; it is drawn at twice its size, which smooths the path's edges."""
    from PIL import Image, ImageDraw

    fitted = _fitted(tile.image.shape[:2], 2 * TILE_PIXELS)
    canvas = Image.new("RGB", (2 * size[0], 2 * size[1]), PAPER)
    picture = Image.fromarray(tile.image).resize(fitted, Image.Resampling.BICUBIC)
    if tile.is_faded:
        picture = Image.blend(picture, Image.new("RGB", fitted, PAPER), 0.65)
    canvas.paste(picture, (0, 0))
    if tile.path is not None and len(tile.path):
        _draw_path(ImageDraw.Draw(canvas), tile.path * fitted)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def _draw_path(pen: Any, points: npt.NDArray[np.float64]) -> None:
    shares = np.linspace(0.0, 1.0, len(points))
    colours = [tuple(np.round(PATH_START + share * (PATH_END - PATH_START)).astype(int).tolist()) for share in shares]
    pen.line([tuple(point) for point in points], fill=(255, 255, 255), width=9, joint="curve")
    for start, end, colour in zip(points[:-1], points[1:], colours[1:], strict=True):
        pen.line([tuple(start), tuple(end)], fill=colour, width=5)
    for (x, y), colour in zip(points, colours, strict=True):
        pen.ellipse((x - 6, y - 6, x + 6, y + 6), fill=colour, outline=(255, 255, 255))


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=size)
