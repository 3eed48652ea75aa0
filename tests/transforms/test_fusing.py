"""Fused chains against the same transforms one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.draws import Draws
from stepwell.transforms import (
    Brightness,
    CenterCrop,
    Convert,
    Normalize,
    PadShift,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    ToCHW,
    ToFloat,
    Transform,
    Translate,
)
from stepwell.transforms.fusing import ImageStage, fuse


class Squares(Transform):
    """Pointwise, and no straight line."""

    is_pointwise = True

    def output(self, shape, dtype):
        return shape, np.dtype(np.float32)

    def __call__(self, values, draws):
        return (values.astype(np.float32) / 255) ** 2


class Inverted(Transform):
    is_pointwise = True

    def __call__(self, values, draws):
        return ~values


IMAGENET = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def draws(number, purpose):
    return Draws.of(np.array([7, purpose], np.uint64), np.arange(number))


def pictures(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def one_by_one(chain, values):
    for number, transform in enumerate(chain):
        values = transform(values, draws(len(values), number))
    return values


def fused(chain, values):
    stages = fuse(chain, values.shape[1:], values.dtype)
    for stage in stages:
        own = [draws(len(values), stage.first + number) for number in range(len(stage.transforms))]
        values = stage(values, own)
    return values, [len(stage.transforms) for stage in stages]


def assert_equal(chain, values):
    expected = one_by_one(chain, values.copy())
    result, lengths = fused(chain, values.copy())
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    if result.dtype == np.float32:
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(result, expected)
    return lengths


def named(values):
    """Name a case by its classes: some of them print their address."""
    return "-".join(str(value) if isinstance(value, int) else type(value).__name__ for value in values) or "none"


@pytest.mark.parametrize(
    ("chain", "lengths"),
    [
        ([RandomCrop(20), RandomFlip(), ToFloat(), IMAGENET, ToCHW()], [5]),
        ([RandomCrop(20), ToCHW()], [2]),
        ([RandomFlip(), RandomCrop(20), RandomFlip(vertical=True), ToCHW()], [4]),
        ([RandomFlip(), PadShift(4), ToFloat(), ToCHW()], [4]),
        ([RandomFlip(vertical=True), Translate(6, (9, 8, 7)), ToFloat()], [3]),
        ([RandomResizedCrop(16), RandomFlip(), ToFloat(), ToCHW()], [4]),
        ([RandomResizedCrop(16), ToCHW()], [2]),
        ([Resize((12, 40), antialias=False), RandomFlip()], [2]),
        ([RandomFlip(), Resize(12), ToFloat()], [1, 2]),
        ([ToFloat(), ToCHW()], [2]),
        ([ToCHW(), ToFloat()], [2]),
        ([ToCHW(), ToFloat(), Squares()], [3]),
        ([CenterCrop(20), Squares(), ToCHW()], [3]),
        ([CenterCrop(20), Inverted(), RandomFlip()], [2, 1]),
        ([CenterCrop(20), Inverted(), ToCHW(), Inverted()], [4]),
        ([RandomCrop(20), RandomCrop(10), ToCHW()], [1, 2]),
        ([RandomCrop(20), Brightness(0.5), ToFloat(), ToCHW()], [1, 1, 2]),
        ([RandomCrop(20), ToFloat(), RandomFlip(), ToCHW()], [2, 1, 1]),
        ([RandomCrop(20), ToFloat(dtype="float16"), ToCHW()], [1, 1, 1]),
        ([Convert("float32"), IMAGENET], [2]),
        ([RandomFlip()], [1]),
        ([], []),
    ],
    ids=named,
)
@pytest.mark.parametrize("steps", [(), (3,)])
def test_neighbours_are_done_in_one_pass_and_make_the_same(chain, lengths, steps):
    assert assert_equal(chain, pictures(8, *steps, 24, 28, 3)) == lengths


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_values_that_are_no_bytes_are_cut_and_turned_in_one_pass(dtype):
    values = pictures(8, 2, 24, 28, 3, dtype=dtype)
    assert assert_equal([RandomCrop(20), RandomFlip(), ToFloat(), ToCHW()], values) == [2, 1, 1]
    assert assert_equal([RandomResizedCrop(20), RandomFlip()], values) == [2]


def test_grey_images_are_fused():
    assert assert_equal([RandomCrop(20), RandomFlip(), ToFloat(), ToCHW()], pictures(8, 2, 24, 28)) == [4]
    assert assert_equal([ToCHW(), ToFloat()], pictures(8, 2, 24, 28, 1)) == [2]


def test_many_channels_are_fused():
    assert assert_equal([RandomCrop(20), RandomFlip(), ToFloat(), ToCHW()], pictures(8, 24, 28, 9)) == [4]


ALONE = [ToFloat(), IMAGENET, ToCHW(), RandomCrop(20), RandomFlip(), Resize(12)]


@pytest.mark.parametrize("alone", ALONE, ids=lambda alone: type(alone).__name__)
def test_a_transform_of_images_alone_is_a_pass_that_makes_the_same(alone):
    chain = [alone]
    (stage,) = fuse(chain, (2, 24, 28, 3), np.dtype(np.uint8))
    assert isinstance(stage, ImageStage)
    assert assert_equal(chain, pictures(8, 2, 24, 28, 3)) == [1]


class Negative:
    """What a user's class does in its own way."""

    def __call__(self, values, draws):
        return 255 - super().__call__(values, draws)


@pytest.mark.parametrize(
    "base", [RandomCrop(20), RandomFlip(), ToCHW(), Resize(12)], ids=lambda base: type(base).__name__
)
@pytest.mark.parametrize("chain", [[], [ToFloat()]], ids=named)
def test_a_class_that_is_called_in_another_way_is_called(base, chain):
    kind = type(f"Negative{type(base).__name__}", (Negative, type(base)), {})
    options = {"size": base.size} if hasattr(base, "size") else {}
    stages = fuse([kind(**options), *chain], (24, 28, 3), np.dtype(np.uint8))
    assert not isinstance(stages[0], ImageStage)
    values = pictures(8, 24, 28, 3)
    np.testing.assert_array_equal(stages[0](values, [draws(8, 0)]), 255 - base(values, draws(8, 0)))


class Marked(RandomCrop):
    """A crop that marks a corner."""

    def cut(self, images, boxes, flips):
        found = super().cut(np.asarray(images), boxes, flips)
        found[:, 0, 0] = 9
        return found


@pytest.mark.parametrize("chain", [[], [ToFloat()], [ToCHW()]], ids=named)
def test_a_cut_that_is_made_in_another_way_gets_arrays(chain):
    assert not fuse([Marked(20), *chain], (24, 28, 3), np.dtype(np.uint8))[0].takes_held
    result, _ = fused([Marked(20)], pictures(8, 24, 28, 3))
    assert (result[:, 0, 0] == 9).all()
    assert_equal([Marked(20), *chain], pictures(8, 24, 28, 3))


@pytest.mark.parametrize("chain", [[RandomCrop(20), ToFloat()], [Resize(12), ToCHW()], [IMAGENET]], ids=named)
def test_a_pass_writes_into_the_memory_that_it_is_given(chain):
    (stage,) = fuse(chain, (24, 28, 3), np.dtype(np.uint8))
    given = np.zeros(8 * stage.num_bytes, np.uint8)
    asked = []

    def memory(num_bytes):
        asked.append(num_bytes)
        return given

    result = stage(pictures(8, 24, 28, 3), [draws(8, number) for number in range(len(chain))], memory)
    assert asked == [result.nbytes] == [given.size]
    assert np.shares_memory(result, given)


def test_statistics_of_something_else_than_channels_are_not_done_by_channel():
    of_columns = Normalize(np.linspace(0, 1, 28), np.linspace(1, 2, 28))
    assert assert_equal([ToFloat(), of_columns], pictures(8, 24, 28)) == [1, 1]


def test_plain_functions_stay_alone_and_nothing_after_them_is_fused():
    def plain(values):
        return values

    chain = [RandomCrop(20), RandomFlip(), plain, ToFloat(), ToCHW()]
    stages = fuse(chain, (24, 28, 3), np.dtype("uint8"))
    assert [(stage.first, len(stage.transforms)) for stage in stages] == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert stages[1].transforms == (plain,)


def test_what_is_no_image_is_left_to_its_transforms():
    values = pictures(8, 7)
    assert assert_equal([ToFloat(), ToFloat(2.0)], values) == [1, 1]


def test_more_images_than_fit_the_cache_are_resized_in_parts():
    assert assert_equal([RandomResizedCrop(96), RandomFlip(), ToFloat(), ToCHW()], pictures(45, 24, 28, 3)) == [4]


GEOMETRY = [
    RandomCrop(17),
    CenterCrop((17, 19)),
    PadShift(3),
    Translate(4, 5),
    Resize(13),
    RandomFlip(),
    RandomFlip(0.3, True),
]
POINTWISE = [ToFloat(), Squares(), Inverted(), Brightness(0.3), ToCHW()]


@settings(deadline=None, max_examples=60)
@given(
    geometry=st.lists(st.sampled_from([*GEOMETRY, RandomResizedCrop(18), RandomCrop(17, per_step=True)]), max_size=3),
    pointwise=st.lists(st.sampled_from(POINTWISE), max_size=3, unique_by=type),
    channels=st.sampled_from([(), (1,), (3,), (4,)]),
)
def test_random_chains_make_the_same_fused(geometry, pointwise, channels):
    values = pictures(5, 2, 24, 28, *channels)
    chain, shape, dtype = [], values.shape[1:], values.dtype
    for transform in [*geometry, *pointwise]:
        is_late = any(isinstance(other, ToCHW) for other in chain) and isinstance(transform, Brightness)
        if is_late or (isinstance(transform, Inverted) and dtype != np.uint8):
            continue
        try:
            shape, dtype = transform.output(shape, dtype)
        except ValueError:
            continue
        chain.append(transform)
    assert_equal(chain, values)
