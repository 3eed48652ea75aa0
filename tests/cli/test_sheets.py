"""Contact sheets."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.cli.sheets import Row, Tile, displayable, write_sheet

images = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 6), np.uint8),
        np.zeros((4, 6, 1), np.uint8),
        np.zeros((4, 6, 4), np.uint8),
        np.linspace(0, 60000, 24).reshape(4, 6).astype(np.uint16),
        np.full((4, 6), np.nan, np.float32),
    ],
)
def test_any_image_becomes_rgb(image: np.ndarray) -> None:
    shown = displayable(image)
    assert (shown.shape, shown.dtype) == ((4, 6, 3), np.uint8)


def test_depth_is_stretched_from_its_minimum_to_its_maximum() -> None:
    shown = displayable(np.array([[1000, 3000]], np.uint16))
    assert shown[..., 0].tolist() == [[0, 255]]


def test_a_path_is_drawn_over_its_tile_only(tmp_path: Path) -> None:
    white = np.full((96, 96, 3), 255, np.uint8)
    path = np.array([[0.2, 0.2], [0.8, 0.8]])
    write_sheet(tmp_path / "with.png", [Row([Tile(white, "a", path), Tile(white, "b")])], title="t")
    write_sheet(tmp_path / "without.png", [Row([Tile(white, "a"), Tile(white, "b")])], title="t")
    with images.open(tmp_path / "with.png") as one, images.open(tmp_path / "without.png") as other:
        changed = (np.asarray(one) != np.asarray(other)).any(axis=2)
    assert changed.any()
    assert not changed[:, changed.shape[1] // 2 :].any()


def test_a_faded_tile_is_paler(tmp_path: Path) -> None:
    black = np.zeros((8, 8, 3), np.uint8)
    write_sheet(tmp_path / "x.png", [Row([Tile(black, "a"), Tile(black, "b", is_faded=True)], "caption")], title="t")
    with images.open(tmp_path / "x.png") as sheet:
        row = np.asarray(sheet)[sheet.height // 2 + 30]
    assert row[100].max() < 20
    assert row[100 + 192].min() > 120


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([(96, 96)], (184, 184)),
        ([(96, 128), (96, 128)], (184, 138)),
        ([(640, 480)], (138, 184)),
        ([(480, 640), (640, 480)], (184, 184)),
        # a label needs some room
        ([(100, 10)], (120, 184)),
        ([(1, 1000)], (184, 1)),
    ],
)
def test_tiles_have_the_shape_of_their_images(tmp_path: Path, shapes: list[tuple[int, int]], size) -> None:
    red = [np.tile(np.uint8([200, 0, 0]), (*shape, 1)) for shape in shapes]
    write_sheet(tmp_path / "x.png", [Row([Tile(image, "label") for image in red])], title="t")
    with images.open(tmp_path / "x.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    columns = len(shapes) * (size[0] + 8) - 8
    assert pixels.shape[:2] == (20 + 64 + size[1] + 20 + 8 + 20, max(480, columns + 40))
    drawn = np.argwhere((pixels[..., 0] > 150) & (pixels[..., 1] < 60))
    if size[1] > 2:
        assert drawn[:, 0].max() - drawn[:, 0].min() >= size[1] - 4
