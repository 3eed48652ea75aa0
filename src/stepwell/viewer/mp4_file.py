"""An episode as an mp4 file: the cameras side by side, and curves of its numbers beside them with a cursor that moves.

::

    +--------+--------+-----------------+
    | front  | wrist  | state    x  y   |    cameras: the same height each, at most three in a row
    |        |        | ~~~~~|~~~~~~~~  |    curves: drawn once; the cursor and the values of a step on a copy a frame
    | step 3 |        | action   0  1   |
    +--------+--------+-----------------+
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, MissingDependencyError, StepwellError
from stepwell.store import Store
from stepwell.viewer.episodes import DEFAULT_FPS, is_camera, is_drawn, names_of_axes, numbers_of, schema_of
from stepwell.viewer.frames import Frames

__all__ = ["write_mp4"]

Box = tuple[int, int, int, int]
# pixels
LEAST_HEIGHT, MOST_HEIGHT, PLOTS_WIDTH, PANEL_HEIGHT, HEAD_HEIGHT, BORDER = 240, 720, 480, 96, 18, 6
MAX_IN_A_ROW = 3
# names and values that find room above a curve
MAX_NAMED = 12
PAPER, INK, FAINT, RED = (255, 255, 255), (30, 30, 30), (150, 150, 150), (170, 0, 0)
ENCODER = "libx264"
OPTIONS = {"crf": "20", "preset": "veryfast"}


def write_mp4(
    path: Path,
    store: Store,
    index: int,
    features: Sequence[str],
    *,
    fps: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Write a film of one episode, H.264, a frame a step.

    Frames are read a few at a time and never all of them held. A damaged frame is a red tile that says so.

    Args:
        path: of the file, not there yet.
        store: open for reading.
        index: of the episode.
        features: the cameras and the numbers that are shown.
        fps: frames a second; default the store's, else 10.
        progress: called for each frame that was written.

    Raises:
        StepwellError: nothing to show: no step, or neither a camera nor numbers among ``features``; or less than a
            frame in 1000 seconds.
        MissingDependencyError: PyAV is missing, or has no encoder of H.264.
    """
    try:
        import av
    except ImportError:
        raise MissingDependencyError.of("av", "video") from None
    if ENCODER not in av.codecs_available:
        raise MissingDependencyError(f"this PyAV has no {ENCODER}. Install the wheel of PyPI: pip install av")
    film = _Film(store, index, features)
    rate = Fraction(fps or store.fps or DEFAULT_FPS).limit_denominator(1000)
    if not rate:
        raise StepwellError(f"a film of {fps or store.fps} frames a second. Allowed: 0.001 or more, by fps, e.g. 10.")
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream(ENCODER, rate=rate, options=OPTIONS)
        stream.width, stream.height = film.size
        stream.pix_fmt = "yuv420p"
        for number, pixels in enumerate(film.frames()):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
            progress()
        container.mux(stream.encode(None))


@dataclass(frozen=True, slots=True)
class _Panel:
    """The curve of one feature and where it lies."""

    name: str
    axes: list[str]
    values: npt.NDArray[np.float32]  # [places, width]
    box: Box  # of the curve: left, top, right, bottom


class _Film:
    """The frames of an episode's film."""

    def __init__(self, store: Store, index: int, features: Sequence[str]) -> None:
        from PIL import ImageFont

        schema, self._episode = schema_of(store), store[index]
        self._frames = Frames(store)
        self._cameras = [name for name in features if is_camera(schema[name])]
        drawn = [name for name in features if is_drawn(schema[name])]
        if not self._episode.length or not (self._cameras or drawn):
            raise StepwellError(
                f"episode {index} has {self._episode.length} steps and {', '.join(features) or 'no features'}. A film "
                "needs a step and a camera, or a feature of up to 64 numbers."
            )
        self._font = ImageFont.load_default(12)
        self._tiles = self._place_cameras(max(LEAST_HEIGHT, PANEL_HEIGHT * len(drawn)))
        right = max((box[2] for box in self._tiles), default=0)
        bottom = max((box[3] for box in self._tiles), default=0)
        height = max(bottom, PANEL_HEIGHT * len(drawn) if drawn else 0)
        # of an even size, which 4:2:0 needs
        self.size = right + (PLOTS_WIDTH if drawn else 0), height + height % 2
        self._panels = [
            _Panel(
                name,
                names_of_axes(name, schema[name]),
                numbers_of(self._episode, name),
                self._panel_box(number, len(drawn), right),
            )
            for number, name in enumerate(drawn)
        ]
        self._ground = self._draw_ground()

    def frames(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield uint8 [height, width, 3] of each step."""
        from PIL import ImageDraw

        for step in range(self._episode.length):
            image = self._ground.copy()
            pen = ImageDraw.Draw(image)
            for name, box in zip(self._cameras, self._tiles, strict=True):
                self._draw_camera(image, pen, name, step, box)
            for panel in self._panels:
                self._draw_cursor(pen, panel, step)
            label = f"step {step} of {self._episode.length}"
            pen.rectangle((4, self.size[1] - 20, 12 + int(pen.textlength(label, self._font)), self.size[1] - 3), PAPER)
            pen.text((8, self.size[1] - 19), label, INK, self._font)
            yield np.asarray(image)

    def _place_cameras(self, least: int) -> list[Box]:
        """Return the tile of each camera: all of one height, ``least`` or more in all, as wide as its first frame."""
        sizes = [self._first_size(name) for name in self._cameras]
        columns = len(sizes) if len(sizes) <= MAX_IN_A_ROW else -(-len(sizes) // 2)
        highest = max((high for high, _ in sizes), default=0)
        least = max(LEAST_HEIGHT, least // (1 if len(sizes) == columns else 2))
        height = int(np.clip(highest, min(least, MOST_HEIGHT), MOST_HEIGHT)) // 2 * 2
        widths = [max(2, round(wide * height / high / 2) * 2) for high, wide in sizes]
        boxes, top = [], 0
        for first in range(0, len(widths), columns or 1):
            left = 0
            for width in widths[first : first + columns]:
                boxes.append((left, top, left + width, top + height))
                left += width
            top += height
        return boxes

    def _first_size(self, name: str) -> tuple[int, int]:
        for step in range(self._episode.length):
            try:
                high, wide, _ = self._frames.pixels(self._episode.index, name, step).shape
            except DecodeError:
                continue
            return max(high, 1), max(wide, 1)
        return LEAST_HEIGHT, LEAST_HEIGHT

    def _panel_box(self, number: int, count: int, left: int) -> Box:
        top, bottom = (round(place * self.size[1] / count) for place in (number, number + 1))
        return left + BORDER, top + HEAD_HEIGHT + 4, left + PLOTS_WIDTH - BORDER, bottom - BORDER

    def _draw_ground(self) -> Any:
        """Return the image of what is the same in every frame: the curves."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", self.size, PAPER)
        pen = ImageDraw.Draw(image)
        for panel in self._panels:
            _draw_curves(image, panel)
            pen.text((panel.box[0], panel.box[1] - HEAD_HEIGHT), panel.name, INK, self._font)
            finite = panel.values[np.isfinite(panel.values)]
            if len(finite):
                pen.text((panel.box[0], panel.box[1]), f"{finite.max():.4g}", FAINT, self._font)
                pen.text((panel.box[0], panel.box[3] - 14), f"{finite.min():.4g}", FAINT, self._font)
        return image

    def _draw_camera(self, image: Any, pen: Any, name: str, step: int, box: Box) -> None:
        from PIL import Image

        left, top, right, bottom = box
        try:
            pixels = self._frames.pixels(self._episode.index, name, step)
        except DecodeError:
            pen.rectangle(box, RED)
            pen.text((left + 8, top + 8), f"{name}: this frame is damaged", PAPER, self._font)
            return
        frame = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
        # frames of another shape than the first keep theirs
        scale = min((right - left) / frame.width, (bottom - top) / frame.height)
        size = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
        filter_ = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BILINEAR
        image.paste(frame if size == frame.size else frame.resize(size, filter_), (left, top))
        pen.rectangle((left, top, left + 8 + int(pen.textlength(name, self._font)), top + 16), PAPER)
        pen.text((left + 4, top + 1), name, INK, self._font)

    def _draw_cursor(self, pen: Any, panel: _Panel, step: int) -> None:
        left, top, right, bottom = panel.box
        place = left + round(step / max(self._episode.length - 1, 1) * (right - left))
        pen.line((place, top, place, bottom), INK)
        values = panel.values[step * len(panel.values) // self._episode.length]
        at = left + int(pen.textlength(panel.name, self._font)) + 12
        for axis, (name, value) in enumerate(list(zip(panel.axes, values.tolist(), strict=True))[:MAX_NAMED]):
            text = f"{value:.3g}" if name == panel.name else f"{name} {value:.3g}"
            wide = int(pen.textlength(text, self._font))
            if at + wide > right:
                break
            pen.text((at, top - HEAD_HEIGHT), text, _color(axis), self._font)
            at += wide + 10


def _draw_curves(image: Any, panel: _Panel) -> None:
    """Draw the curves of a panel, at twice the size and made smaller, so that lines are smooth."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = panel.box
    wide, high = 2 * (right - left), 2 * max(bottom - top, 1)
    large = Image.new("RGB", (wide, high), PAPER)
    pen = ImageDraw.Draw(large)
    pen.rectangle((0, 0, wide - 1, high - 1), outline=(220, 220, 220))
    finite = np.isfinite(panel.values)
    if finite.any():
        low, most = float(panel.values[finite].min()), float(panel.values[finite].max())
        x = np.linspace(0, wide - 1, len(panel.values))
        y = high - 5 - (panel.values - low) / ((most - low) or 1) * (high - 10)
        for axis in range(panel.values.shape[1]):
            for points in _runs(x, y[:, axis]):
                pen.line(points, _color(axis), 3)
    image.paste(large.resize((right - left, high // 2), Image.Resampling.LANCZOS), (left, top))


def _runs(x: npt.NDArray[np.float64], y: npt.NDArray[np.float32]) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of a curve between values that are none."""
    for part in np.split(np.arange(len(y)), np.flatnonzero(~np.isfinite(y))):
        kept = part[np.isfinite(y[part])]
        if len(kept) == 1:
            yield [(float(x[kept[0]]) - 1, float(y[kept[0]])), (float(x[kept[0]]) + 1, float(y[kept[0]]))]
        elif len(kept):
            yield list(zip(x[kept].tolist(), y[kept].tolist(), strict=True))


def _color(axis: int) -> tuple[int, int, int]:
    """Return the colour of an axis, the same as on the page."""
    red, green, blue = colorsys.hls_to_rgb((axis * 137 + 210) % 360 / 360, 0.48, 0.7)
    return round(red * 255), round(green * 255), round(blue * 255)
