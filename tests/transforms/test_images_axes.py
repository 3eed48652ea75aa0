import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.loader.transforms import TransformChain
from stepwell.transforms import (
    Brightness,
    ColorJitter,
    Contrast,
    Hue,
    RandomCrop,
    Saturation,
    ToCHW,
    ToFloat,
    ToHWC,
    Transform,
)

DRAWS = Draws(np.zeros(2, np.uint64))


def pictures(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 9])
def test_channels_come_first_and_back(dtype, channels):
    values = pictures(2, 3, 11, 13, channels, dtype=dtype)
    result = ToCHW()(values, DRAWS)
    np.testing.assert_array_equal(result, np.moveaxis(values, -1, -3))
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(ToHWC()(result, DRAWS), values)


def test_grey_images_get_an_axis_of_one():
    values = pictures(2, 3, 11, 13)
    assert ToCHW().output((3, 11, 13), values.dtype)[0] == (3, 1, 11, 13)
    np.testing.assert_array_equal(ToCHW()(values, DRAWS), values[:, :, None])


def test_two_axes_cannot_get_channels_last():
    with pytest.raises(WindowError, match="channels, height, width"):
        ToHWC().output((11, 13), np.dtype("uint8"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_values_times_the_scale(dtype):
    values = np.arange(256, dtype=np.uint8).reshape(2, 128)
    expected = (values.astype(np.float64) / 255).astype(dtype)
    np.testing.assert_allclose(ToFloat(dtype=dtype)(values, DRAWS), expected, rtol=1e-3 if dtype == "float16" else 1e-6)
    np.testing.assert_array_equal(ToFloat(2.0, dtype=dtype)(values, DRAWS), (2.0 * values).astype(dtype))


@pytest.mark.parametrize(
    "late", [Saturation(0.9), ColorJitter(0.2), Contrast(0.3), Hue(0.1), Brightness(per_step=True)]
)
def test_what_would_take_channels_for_steps_is_refused_after_tochw(late: Transform) -> None:
    with pytest.raises(WindowError, match=rf"{type(late).__name__} after ToCHW .* Put it before ToCHW"):
        TransformChain({"image": (ToCHW(), late)})
    for chain in ((late, ToCHW()), (ToCHW(), ToHWC(), late), (ToCHW(), Brightness(0.3), RandomCrop(8))):
        TransformChain({"image": chain})
