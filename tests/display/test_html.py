"""The HTML of notebooks: every text escaped, bounded in bytes and time, and well-formed."""

import base64
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.display import html
from stepwell.display.html import MAX_BYTES, Strip, bars, block, lines, never_raising, strips, table

VOID = {"img", "br"}


class Elements(HTMLParser):
    """The elements of a text, which must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=3), max_size=5), st.text(max_size=30))
def test_what_a_text_says_is_text(rows: list[list[str]], title: str) -> None:
    found = Elements(block(title, table(rows, ["<b>", "&amp;"], "row"), "<i>"))
    assert set(found.names) <= {"div", "code", "table", "thead", "tbody", "tr", "th", "td"}
    plain = found.text.replace("\r", "\n")
    for text in (title, "<b>", "&amp;", "<i>", *(cell for row in rows for cell in row)):
        assert text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "�") in plain.replace("\0", "�")


def test_a_long_table_and_long_cells_are_cut_and_say_so() -> None:
    found = Elements(table([("x" * 10_000, "ü" * 1000)] * 5000, noun="feature"))
    num_shown = found.names.count("tr")
    assert 10 < num_shown < 200
    assert f"and {5000 - num_shown:,} more features" in found.text
    assert "…" in found.text


@given(
    arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int8, np.bool_, np.uint64]),
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=90),
    )
)
def test_lines_of_any_numbers_are_small_and_finite(values: Any) -> None:
    found = lines(values)
    assert len(found) < 6000
    Elements(found)
    points = re.findall(r"points='([^']*)'", found)
    assert all(re.fullmatch(r"(-?\d+,-?\d+ ?)*", each) for each in points)
    assert len(points) <= 6


def test_lines_follow_the_values() -> None:
    (points,) = re.findall(r"points='([^']*)'", lines(np.array([0.0, 5.0, np.nan, 10.0])))
    xs, ys = zip(*(map(int, point.split(",")) for point in points.split()), strict=True)
    assert list(xs) == sorted(xs)
    assert len(ys) == 3
    assert ys[0] > ys[1] > ys[2]
    assert "0 to 10" in lines(np.array([0.0, 5.0, 10.0]))


def test_bars_have_a_height_for_each_count() -> None:
    assert bars([0, 0]) == bars([]) == ""
    heights = [float(each) for each in re.findall(r"height='([\d.]+)'/", bars([1, 0, 2, 1000]))]
    assert len(heights) == 3
    assert heights[0] == heights[1] == 1.0 < heights[2]


def frame(number: int, side: int = 300) -> Any:
    return lambda: np.random.default_rng(number).integers(0, 256, (side, side * 2, 3), dtype=np.uint8)


def fails() -> Any:
    raise RuntimeError("<b>the codec</b> has no more memory")


def test_thumbnails_of_noise_fit_their_share_of_bytes() -> None:
    found = strips([Strip(f"camera {c}", [(frame(i), f"step {i}") for i in range(12)]) for c in range(6)])
    assert len(found) <= html.STRIPS_BYTES + 10_000
    elements = Elements(block("x", table([["y" * 100] * 9] * 1000), table([["y" * 100] * 9] * 1000), found))
    assert len(elements.sources) == 4 * 12
    assert "and 2 more" in elements.text
    assert len(block("<" * 10_000, table([["ü" * 100]] * 1000), table([["ü" * 100]] * 1000), found)) <= MAX_BYTES


def test_thumbnails_are_the_frames_in_small() -> None:
    image_module = pytest.importorskip("PIL.Image")
    import io

    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    pixels = colours.repeat(200, axis=0).repeat(300, axis=1)
    (source,) = Elements(strips([Strip("", [(lambda: pixels, "")])])).sources
    png = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    shown = np.asarray(image_module.open(io.BytesIO(png)).convert("RGB"))
    assert shown.shape == (64, 96, 3)
    assert np.array_equal(shown[::63, ::95], colours)


def test_a_frame_that_fails_says_why_and_the_others_are_shown() -> None:
    elements = Elements(strips([Strip("camera", [(frame(0), "a"), (fails, "b"), (frame(1), "c")])]))
    assert len(elements.sources) == 2
    assert "RuntimeError: <b>the codec</b> has no more memory" in elements.text


def test_after_a_while_no_further_frame_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(html.time, "monotonic", lambda: now[0])

    def slow() -> Any:
        now[0] += 1.5
        return np.zeros((8, 8, 3), np.uint8)

    elements = Elements(strips([Strip("camera", [(slow, str(number)) for number in range(9)])]))
    assert len(elements.sources) == 2
    assert elements.text.count("not read: those before it took 2 s") == 7


def test_a_repr_never_raises() -> None:
    class Broken:
        @never_raising
        def _repr_html_(self) -> str:
            raise ValueError("<disk>")

        def __repr__(self) -> str:
            raise OSError("gone")

    assert "ValueError: <disk>" in Elements(Broken()._repr_html_()).text


def test_a_repr_is_stopped_by_the_user() -> None:
    class Stopped:
        @never_raising
        def _repr_html_(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stopped()._repr_html_()
