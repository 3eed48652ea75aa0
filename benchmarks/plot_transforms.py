"""Draw a contact sheet of every image transform: docs/images/transforms.png.

Usage: python benchmarks/plot_transforms.py [--output PATH]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.transforms import (
    Brightness,
    CenterCrop,
    CenterResizedCrop,
    ColorJitter,
    Contrast,
    Cutout,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Hue,
    PadShift,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Saturation,
    Solarize,
    Transform,
    Translate,
)

SIDE = 128
COLUMNS = 6
TRANSFORMS: list[tuple[str, Transform]] = [
    ("RandomCrop(96)", RandomCrop(96)),
    ("CenterCrop(96)", CenterCrop(96)),
    ("CenterResizedCrop(128, part=0.5)", CenterResizedCrop(SIDE, part=0.5)),
    ("RandomResizedCrop(128)", RandomResizedCrop(SIDE)),
    ("Resize(32)", Resize(32)),
    ("Resize(32, antialias=False)", Resize(32, antialias=False)),
    ('Resize(32, "area")', Resize(32, "area")),
    ('Resize(32, "nearest")', Resize(32, "nearest")),
    ("PadShift(16)", PadShift(16)),
    ("Translate(24, fill=90)", Translate(24, fill=90)),
    ("RandomFlip(1)", RandomFlip(1)),
    ("RandomFlip(1, vertical=True)", RandomFlip(1, vertical=True)),
    ("Cutout(40)", Cutout(40)),
    ("RandomErasing(1)", RandomErasing(1, fill=(200, 60, 160))),
    ("Brightness((1.5, 1.5))", Brightness((1.5, 1.5))),
    ("Contrast((0.4, 0.4))", Contrast((0.4, 0.4))),
    ("Saturation((2, 2))", Saturation((2, 2))),
    ("Hue((0.3, 0.3))", Hue((0.3, 0.3))),
    ("ColorJitter(.5, .5, .5, .2)", ColorJitter(0.5, 0.5, 0.5, 0.2)),
    ("Grayscale()", Grayscale()),
    ("Solarize(128)", Solarize(128)),
    ("GaussianNoise(25)", GaussianNoise(25.0)),
    ("GaussianBlur(9, 2.5)", GaussianBlur(9, 2.5)),
]


def scene() -> npt.NDArray[np.uint8]:
    """Return a picture with colours, edges, writing-like detail and a slope: uint8 [128, 128, 3]."""
    y, x = np.mgrid[:SIDE, :SIDE]
    image = np.stack([140 + 0.5 * y, 175 + 0.3 * y, 230 - 0.3 * y], axis=-1)
    ground = y > 84 + 4 * np.sin(x / 11)
    image[ground] = np.stack([168 - 0.4 * (y - 84), 150 - 0.2 * x, 110 + 0 * x], axis=-1)[ground]
    image[(abs(x - 44) < 26) & (abs(y - 44) < 7)] = (70, 130, 90)
    image[(abs(x - 44) < 7) & (y >= 44) & (y < 78)] = (70, 130, 90)
    ball = (x - 95) ** 2 + (y - 74) ** 2
    shade = np.clip(1.15 - ((x - 88) ** 2 + (y - 66) ** 2) / 900, 0.35, 1.15)
    image[ball < 330] = (np.stack([215 * shade, 60 * shade, 50 * shade], axis=-1))[ball < 330]
    board = (x >= 84) & (x < 120) & (y >= 8) & (y < 36)
    image[board] = np.where(((x // 2 + y // 2) % 2 == 0)[..., None], 245, 25)[board]
    for number, color in enumerate([(220, 50, 47), (250, 190, 40), (60, 160, 80), (40, 110, 200), (150, 70, 170)]):
        image[106:118, 10 + 14 * number : 22 + 14 * number] = color
    return np.clip(image, 0, 255).astype(np.uint8)


def draw(output: Path) -> None:
    """Write the sheet as a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    image = scene()
    cells = [("the image", image)]
    for number, (title, transform) in enumerate(TRANSFORMS):
        draws = Draws.of(np.array([11, number], np.uint64), np.zeros(1, np.int64))
        cells.append((title, transform(image[None].copy(), draws)[0]))
    rows = -(-len(cells) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(1.75 * COLUMNS, 2.0 * rows), layout="constrained")
    for axis in axes.flat:
        axis.axis("off")
    for axis, (title, picture) in zip(axes.flat, cells, strict=False):
        axis.imshow(picture, interpolation="nearest")
        axis.set_title(f"{title}\n{picture.shape[0]}x{picture.shape[1]}", fontsize=7)
    figure.savefig(output, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Draw the sheet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "docs" / "images" / "transforms.png"
    parser.add_argument("--output", type=Path, default=default)
    draw(parser.parse_args().output)


if __name__ == "__main__":
    main()
