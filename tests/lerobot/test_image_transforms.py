"""LeRobot's image transforms: pixels beside a model and torchvision, laws of draws, items, workers and loaders.

The model is numpy's, in float64, written from the definitions. torchvision and lerobot are looked at where they are.
"""

from __future__ import annotations

import itertools
import math
import pickle
import sys
import types
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from stepwell.errors import WindowError  # noqa: E402
from stepwell.kernels.draws import Draws  # noqa: E402
from stepwell.lerobot import (  # noqa: E402
    ImageTransformConfig,
    ImageTransforms,
    ImageTransformsConfig,
    LeRobotDataset,
    MultiLeRobotDataset,
)
from stepwell.lerobot.image_transforms import (  # noqa: E402
    AFFINE,
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    SHARPNESS,
    Affine,
    ChangeImages,
    ImageChanges,
    Jitter,
    KeyedNumbers,
    Op,
    Sharpness,
    TorchNumbers,
    Unchanged,
    change_frames,
    changes_of,
)
from stepwell.store import Store  # noqa: E402

from .item_model import SIDE, TOP, converted_store  # noqa: E402

Image = npt.NDArray[Any]
GRAY = np.array([0.2989, 0.587, 0.114])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return converted_store(tmp_path_factory.mktemp("items") / "a.well")


def default(number: int = 3, *, is_shuffled: bool = False) -> ImageTransforms:
    return ImageTransforms(ImageTransformsConfig(enable=True, max_num_transforms=number, random_order=is_shuffled))


# pixels: the model


def cut(values: Image, is_whole: bool) -> Image:
    """Return values within bounds, cut off to whole numbers where they are bytes."""
    clipped = np.clip(values, 0, 255 if is_whole else 1)
    # what float32 cannot tell from a whole number is one
    return np.floor(clipped + 1e-4) if is_whole else clipped


def gray(image: Image, is_whole: bool) -> Image:
    found = image[..., 0] if image.shape[-1] == 1 else image @ GRAY
    return np.floor(found + 1e-4) if is_whole and image.shape[-1] == 3 else found


def turned(image: Image, part: float, is_whole: bool) -> Image:
    """Return an image [h, w, 3] with its hues turned, by way of HSV."""
    most, chroma = image.max(-1), np.ptp(image, axis=-1)
    safe = np.where(chroma > 0, chroma, 1)
    red, green, blue = np.moveaxis(image, -1, 0)
    sixths = np.select(
        [most == red, most == green],
        [(green - blue) / safe, 2 + (blue - red) / safe],
        4 + (red - green) / safe,
    )
    sixths = (sixths + 6 * part) % 6
    found = []
    for shift in (5, 3, 1):
        place = (sixths + shift) % 6
        found.append(most - chroma * np.clip(np.minimum(place, 4 - place), 0, 1))
    return np.stack(found, axis=-1) * (255.999 / 255 if is_whole else 1)


def sharpened(image: Image, factor: float, is_whole: bool) -> Image:
    height, width = image.shape[:2]
    if height <= 2 or width <= 2:
        return image
    parts = [image[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    blurred = (sum(parts) + 4 * parts[4]) / 13
    blurred = np.rint(blurred) if is_whole else blurred
    found = image.copy()
    found[1:-1, 1:-1] = image[1:-1, 1:-1] * factor + (1 - factor) * blurred
    return found


def model(image: Image, ops: Sequence[Op], *, is_whole: bool = False) -> Image:
    """Return an image [h, w, c] after changes of colour and sharpness, in float64."""
    found = image.astype(np.float64) / (1 if is_whole or image.dtype != np.uint8 else 255)
    for kind, (amount, *_) in ops:
        if kind == BRIGHTNESS:
            found = cut(found * amount, is_whole)
        elif kind == CONTRAST:
            found = cut(found * amount + (1 - amount) * gray(found, is_whole).mean(), is_whole)
        elif kind == SHARPNESS:
            found = cut(sharpened(found, amount, is_whole), is_whole)
        elif image.shape[-1] == 3 and kind == SATURATION:
            found = cut(found * amount + (1 - amount) * gray(found, is_whole)[..., None], is_whole)
        elif image.shape[-1] == 3 and kind == HUE:
            found = cut(turned(found, amount, is_whole), is_whole)
    return found


def ours(image: Image, ops: Sequence[Op], dtype: Any = "float32") -> Image:
    return np.moveaxis(change_frames(image[None], [ops], dtype)[0], 0, -1)


def image_of(seed: int, height: int, width: int, channels: int) -> Image:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    # colours of no hue, and those of the borders between hues
    image[rng.random((height, width)) < 0.2] = rng.integers(0, 256)
    return image


IMAGES = st.builds(image_of, st.integers(0, 999), st.integers(1, 20), st.integers(1, 70), st.sampled_from([1, 3]))
FACTORS = st.floats(0, 2)
COLORS = st.one_of(
    st.tuples(st.sampled_from([BRIGHTNESS, CONTRAST, SATURATION, SHARPNESS]), FACTORS.map(lambda each: (each,))),
    st.tuples(st.just(HUE), st.floats(-0.5, 0.5).map(lambda each: (each,))),
)


@given(IMAGES, st.lists(COLORS, max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_chain_of_changes_is_that_of_the_model(image: Image, ops: list[Op]) -> None:
    expected = model(image, ops)
    # a hue is not continuous at grey, where a clipped value may be one off in its last bit
    np.testing.assert_allclose(ours(image, ops), expected, atol=3e-5)
    np.testing.assert_allclose(ours(image.astype(np.float32) / 255, ops), expected, atol=3e-5)


@given(IMAGES, COLORS)
@settings(max_examples=150, deadline=None)
def test_one_change_of_bytes_is_within_one_level_of_the_model(image: Image, op: Op) -> None:
    found = ours(image, [op], "uint8")
    assert found.dtype == np.uint8
    assert np.abs(found - model(image, [op], is_whole=True)).max() <= 1


def test_frames_of_an_item_are_changed_alike_and_threads_change_nothing() -> None:
    frames = np.stack([image_of(k, 12, 17, 3) for k in range(8)]).reshape(4, 2, 12, 17, 3)
    drawn: list[list[Op]] = [[], [(CONTRAST, (0.5,))], [(SHARPNESS, (1.5,)), (HUE, (0.2,))], [(BRIGHTNESS, (1.2,))] * 3]
    found = change_frames(frames, drawn, "float32")
    assert found.shape == (4, 2, 3, 12, 17) and found.flags.c_contiguous
    for i, k in np.ndindex(4, 2):
        assert np.array_equal(np.moveaxis(found[i, k], 0, -1), ours(frames[i, k], drawn[i]))
    assert np.array_equal(found, change_frames(frames, drawn, "float32", num_threads=3))


class Given:
    """Numbers that are what they are said to be."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def uniform(self, low: float, high: float) -> float:
        return self.numbers.pop(0)


def places_of(image: Image, angle: float, shift: Sequence[float], scale: float, shear: Sequence[float]) -> Image:
    """Return where the pixels of a turned image come from, [2, h, w], x and y: the inverse of the definition."""
    height, width = image.shape[:2]
    turn, shear_x, shear_y = np.radians([angle, *shear])
    rotate = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    forward = scale * rotate @ [[1, 0], [-math.tan(shear_y), 1]] @ [[1, -math.tan(shear_x)], [0, 1]]
    middle = np.array([(width - 1) / 2, (height - 1) / 2])[:, None, None]
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), 0) - middle - np.reshape(shift, (2, 1, 1))
    return np.einsum("ij,jhw->ihw", np.linalg.inv(forward), pixels) + middle


@given(
    IMAGES,
    st.floats(-180, 180),
    st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    st.floats(0.5, 2),
    st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_an_affine_map_takes_pixels_from_where_the_definition_says(
    image: Image, angle: float, shift: tuple[int, int], scale: float, shear: tuple[float, float], is_linear: bool
) -> None:
    fill = (0.25,) * image.shape[2]
    law = Affine((0, 1), (1, 1), (1, 1), (0, 1, 0, 1), is_linear, fill)
    found = ours(image, law.ops(Given(angle, *shift, scale, *shear), *image.shape[:2]))  # type: ignore[arg-type]
    xs, ys = places_of(image, angle, shift, scale, shear)
    padded = np.pad(image / 255, ((2, 2), (2, 2), (0, 0)), constant_values=np.nan)
    height, width = image.shape[:2]

    def at(y: Image, x: Image) -> Image:
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        taken = padded[np.clip(y + 2, 0, height + 3).astype(int), np.clip(x + 2, 0, width + 3).astype(int)]
        return np.where(inside[..., None], taken, 0), inside  # type: ignore[return-value]

    if not is_linear:
        values, inside = at(np.rint(ys), np.rint(xs))
        expected = np.where(inside[..., None], values, fill[0])
        # beside the borders of pixels, where rounding decides
        clear = (np.abs(xs % 1 - 0.5) > 1e-3) & (np.abs(ys % 1 - 0.5) > 1e-3)
        np.testing.assert_allclose(found[clear], expected[clear], atol=1e-6)
        return
    left, top = np.floor(xs), np.floor(ys)
    blend, weight = np.zeros(image.shape), np.zeros((height, width))
    for k, m in itertools.product(range(2), range(2)):
        values, inside = at(top + k, left + m)
        part = np.abs(1 - k - (ys - top)) * np.abs(1 - m - (xs - left)) * inside
        blend, weight = blend + values * part[..., None], weight + part
    expected = (blend - fill[0]) * weight[..., None] + fill[0]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_a_map_after_colours_and_sharpness_is_that_of_the_steps_one_by_one() -> None:
    image = image_of(3, 24, 40, 3)
    for is_linear in (False, True):
        turn = Affine((9, 9), (0.1, 0.1), is_linear=is_linear).ops(KeyedNumbers([0.5, 0.9, 0.2]), 24, 40)
        ops: list[Op] = [
            (BRIGHTNESS, (1.2,)),
            *turn,
            (HUE, (0.1,)),
            (SHARPNESS, (1.4,)),
            *turn,
            (CONTRAST, (0.7,)),
            *turn,
        ]
        expected = image
        for op in ops:
            expected = ours(expected, [op])
        np.testing.assert_allclose(ours(image, ops), expected, atol=2e-6)


# pixels: torchvision


def tensor_of(image: Image, *, is_whole: bool) -> Any:
    planes = torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, 0)))
    return planes if is_whole else planes.float() / 255


def theirs_of(kind: int, amount: float, images: Any) -> Any:
    functional = pytest.importorskip("torchvision.transforms.v2.functional", reason="torchvision is not installed")
    names = {
        BRIGHTNESS: "brightness",
        CONTRAST: "contrast",
        SATURATION: "saturation",
        HUE: "hue",
        SHARPNESS: "sharpness",
    }
    return getattr(functional, f"adjust_{names[kind]}")(images, amount)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("kind", [BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS])
def test_each_change_is_within_one_level_of_torchvisions(kind: int, is_whole: bool) -> None:
    amounts = (-0.5, -0.03, 0.0, 0.05, 0.25) if kind == HUE else (0.0, 0.5, 0.9, 1.0, 1.3, 2.0)
    for number, (amount, channels) in enumerate(itertools.product(amounts, (1, 3))):
        image = image_of(number, 31, 45, channels)
        theirs = np.moveaxis(theirs_of(kind, amount, tensor_of(image, is_whole=is_whole)).numpy(), 0, -1)
        found = ours(image, [(kind, (amount,))], "uint8" if is_whole else "float32")
        assert found.dtype == theirs.dtype
        most = 1 if is_whole else 2e-5
        assert np.abs(found.astype(np.float64) - theirs).max() <= most


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [0, (51, 102, 204), None])
def test_an_affine_map_is_torchvisions(interpolation: str, fill: Any, is_whole: bool) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    options = {"degrees": 40, "translate": (0.2, 0.1), "scale": (0.7, 1.4), "shear": (-9, 9, -5, 5), "center": (10, 7)}
    theirs = v2.RandomAffine(**options, interpolation=v2.InterpolationMode(interpolation), fill=fill)
    law = changes_of_transform(theirs)
    assert law == Affine.of(**options, interpolation=interpolation, fill=fill)
    for seed in range(12):
        image = image_of(seed, 37, 52, 3)
        given = tensor_of(image, is_whole=is_whole)
        torch.manual_seed(seed)
        expected = theirs(given)
        torch.manual_seed(seed)
        found = law(given)
        levels = (found.double() - expected.double()).abs() * (1 if is_whole else 255)
        # a place that lies on the border of two pixels may be rounded to the other one
        assert found.dtype == expected.dtype and (levels > 1).double().mean() <= 1e-3


def changes_of_transform(transform: Any) -> Any:
    """Return the law of a transform of torchvision, as that of LeRobot's ImageTransforms would be."""
    found = changes_of(lerobots([transform], [1.0], 1))
    assert found is not None
    return found.laws[0]


def test_a_jitter_is_torchvisions_after_the_same_seed() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
    options: dict[str, Any] = {"brightness": 0.4, "contrast": (0.5, 1.5), "saturation": 0.3, "hue": 0.2}
    theirs, law = v2.ColorJitter(**options), Jitter.of(**options)
    assert changes_of_transform(theirs) == law
    for seed in range(20):
        given = tensor_of(image_of(seed, 16, 21, 3), is_whole=False)
        torch.manual_seed(seed)
        expected = theirs(given)
        torch.manual_seed(seed)
        torch.testing.assert_close(law(given), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_all_is_lerobots_after_the_same_seed(is_shuffled: bool) -> None:
    theirs = pytest.importorskip("lerobot.transforms", reason="lerobot is not installed")
    config = theirs.ImageTransformsConfig(enable=True, max_num_transforms=4, random_order=is_shuffled)
    their, own = theirs.ImageTransforms(config), ImageTransforms(config)
    assert changes_of(their) == changes_of(own)
    images = [tensor_of(image_of(seed, 24, 32, 3), is_whole=False) for seed in range(20)]
    torch.manual_seed(5)
    expected = [their(each) for each in images]
    after = torch.get_rng_state()
    torch.manual_seed(5)
    for image, wanted in zip(images, expected, strict=True):
        torch.testing.assert_close(own(image), wanted, atol=1e-4, rtol=0)
    assert torch.equal(torch.get_rng_state(), after)
    assert vars(ImageTransformsConfig())["tfs"].keys() == vars(theirs.ImageTransformsConfig())["tfs"].keys()


# what is drawn


def test_numbers_of_torch_are_drawn_by_lerobots_calls() -> None:
    changes = default(6, is_shuffled=True).changes
    torch.manual_seed(11)
    expected: list[Op] = []
    for place in torch.multinomial(torch.tensor([1 / 6] * 6), 6).tolist():
        if place < 4:
            torch.randperm(4)
            bounds = [(0.8, 1.2), (0.8, 1.2), (0.5, 1.5), (-0.05, 0.05)][place]
            expected.append((BRIGHTNESS + place, (torch.empty(1).uniform_(*bounds).item(),)))
        elif place == 4:
            expected.append((SHARPNESS, (torch.empty(1).uniform_(0.5, 1.5).item(),)))
        else:
            numbers = [torch.empty(1).uniform_(-most, most).item() for most in (5.0, 0.05 * 40, 0.05 * 30)]
            angle, *shift = numbers
            expected += Affine((angle, angle), (1, 1)).ops(Given(angle, *map(round, shift)), 30, 40)  # type: ignore[arg-type]
    after = torch.get_rng_state()
    torch.manual_seed(11)
    assert changes.ops(TorchNumbers(), 30, 40) == expected
    assert torch.equal(torch.get_rng_state(), after)


def keyed(number: int, changes: ImageChanges) -> list[KeyedNumbers]:
    draws = Draws.of(np.array([7, 9], np.uint64), np.arange(number))
    return [KeyedNumbers(units) for units in draws.uniform(size=changes.num_draws).tolist()]


@pytest.mark.parametrize("kind", ["keyed", "torch"])
def test_subsets_have_the_chances_of_draws_without_going_back(kind: str) -> None:
    weights, number, total = [1.0, 2.0, 5.0, 0.5], 2, 20_000
    laws = ImageChanges((Unchanged(),) * 4, tuple(weight / 8.5 for weight in weights), number, True)
    torch.manual_seed(3)
    sources: Any = keyed(total, laws) if kind == "keyed" else [TorchNumbers()] * total
    found = Counter(tuple(source.subset(laws.weights, number)) for source in sources)
    chances = {
        (a, b): weights[a] / 8.5 * weights[b] / (8.5 - weights[a]) for a, b in itertools.permutations(range(4), 2)
    }
    assert set(found) <= set(chances)
    surprise = sum((found[pair] - total * each) ** 2 / (total * each) for pair, each in chances.items())
    # chi square of 11 degrees: more than 40 has a chance of 4e-5
    assert surprise < 40


def test_amounts_by_key_are_uniform_and_orders_equally_likely() -> None:
    total = 20_000
    changes = ImageChanges(
        (Jitter((0.5, 1.5), (0.0, 1.0), None, (-0.1, 0.1)), Sharpness((1.0, 3.0))), (0.5, 0.5), 2, False
    )
    drawn = [changes.ops(numbers, 8, 8) for numbers in keyed(total, changes)]
    orders = Counter(tuple(kind for kind, _ in ops[:3]) for ops in drawn)
    assert sum((orders[each] - total / 6) ** 2 * 6 / total for each in orders) < 30 and len(orders) == 6
    bounds = {BRIGHTNESS: (0.5, 1.5), CONTRAST: (0.0, 1.0), HUE: (-0.1, 0.1), SHARPNESS: (1.0, 3.0)}
    for kind, (low, high) in bounds.items():
        amounts = np.sort([numbers[0] for ops in drawn for each, numbers in ops if each == kind])
        assert len(amounts) == total
        steps = np.arange(total + 1) / total
        units = (amounts - low) / (high - low)
        # Kolmogorov and Smirnov: more than 2.3 has a chance of 5e-5
        assert max(np.abs(units - steps[1:]).max(), np.abs(units - steps[:-1]).max()) * total**0.5 < 2.3


def test_shifts_are_whole_pixels() -> None:
    law = Affine((0.0, 0.0), (0.1, 0.2))
    changes = ImageChanges((law,), (1.0,), 1, False)
    shifts = Counter()
    for numbers in keyed(4_000, changes):
        ((kind, values),) = changes.ops(numbers, 10, 30)
        assert kind == AFFINE
        shifts[round(-values[2] * 15, 4), round(-values[5] * 5, 4)] += 1
    # the ends of a range are half as likely
    assert set(shifts) == set(itertools.product(range(-3, 4), range(-2, 3)))
    assert shifts[3, 2] * 2 < shifts[0, 0]


@pytest.mark.parametrize("number", [0, 1, 3, 6, 9])
def test_as_many_are_chosen_as_there_are(number: int) -> None:
    changes = default(number).changes
    for numbers in keyed(50, changes):
        kinds = [kind for kind, _ in changes.ops(numbers, 20, 20)]
        assert len(kinds) == min(number, 6) and kinds == sorted(set(kinds))
    off = ImageTransforms(ImageTransformsConfig(max_num_transforms=3))
    image = torch.rand(3, 4, 5)
    assert off(image) is image and off.selected_transforms == []


# items


def test_items_and_batches_are_those_of_calls_for_each_image(store: Store) -> None:
    deltas = {TOP: [-0.2, 0.0], SIDE: [0.0]}
    options: dict[str, Any] = {"image_transforms": default(), "delta_timestamps": deltas}
    for is_uint8 in (False, True):
        fused = LeRobotDataset(store, return_uint8=is_uint8, **options)
        called = LeRobotDataset(store, return_uint8=is_uint8, fuse_image_transforms=False, **options)
        for numbers in ([3], [5, 0, 9, 5]):
            found = []
            for dataset in (fused, called):
                torch.manual_seed(4)
                items = [dataset[numbers[0]]] if len(numbers) == 1 else dataset.__getitems__(numbers)
                found.append((list(items), torch.get_rng_state()))
            for item, expected in zip(found[0][0], found[1][0], strict=True):
                assert list(item) == list(expected)
                for key in item:
                    assert (
                        item[key] == expected[key]
                        if isinstance(item[key], str)
                        else torch.equal(item[key], expected[key])
                    )
            assert torch.equal(found[0][1], found[1][1])
            assert found[0][0][0][TOP].dtype == (torch.uint8 if is_uint8 else torch.float32)


def test_all_frames_of_a_window_and_no_two_cameras_are_changed_alike(store: Store) -> None:
    config = ImageTransformsConfig(
        enable=True, tfs={"b": ImageTransformConfig(type="ColorJitter", kwargs={"brightness": 0.9})}
    )
    plain = LeRobotDataset(store, delta_timestamps={TOP: [-0.2, 0.0]})
    made = LeRobotDataset(store, delta_timestamps={TOP: [-0.2, 0.0]}, image_transforms=ImageTransforms(config))
    torch.manual_seed(1)
    item, raw = made[3], plain[3]
    factors = [float(torch.nanmedian(item[key][k] / raw[key][k])) for key, k in ((TOP, 0), (TOP, 1), (SIDE, ...))]
    assert factors[0] == pytest.approx(factors[1], abs=1e-3) and abs(factors[0] - factors[2]) > 0.01


def test_transforms_may_be_set_cleared_and_copied(store: Store) -> None:
    dataset = LeRobotDataset(store)
    before = dataset[2][TOP]
    dataset.set_image_transforms(default(6))
    torch.manual_seed(0)
    changed = dataset[2][TOP]
    torch.manual_seed(0)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[2][TOP], changed) and not torch.equal(changed, before)
    dataset.clear_image_transforms()
    assert torch.equal(dataset[2][TOP], before)


def test_workers_draw_by_the_seeds_that_torch_gives_them(store: Store) -> None:
    dataset = LeRobotDataset(store, image_transforms=default(6))

    def epoch(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(dataset, batch_size=4, num_workers=2, generator=generator, multiprocessing_context="fork")
        return torch.cat([batch[TOP] for batch in loader])

    first = epoch(1)
    assert torch.equal(first, epoch(1)) and not torch.equal(first, epoch(2))


def test_several_datasets_take_them(store: Store) -> None:
    both = MultiLeRobotDataset([LeRobotDataset(store), LeRobotDataset(store)], image_transforms=None)
    both.set_image_transforms(default())
    batch = next(iter(DataLoader(both, batch_size=5)))
    assert batch[TOP].shape[0] == 5 and batch[TOP].dtype == torch.float32


# loaders


@pytest.mark.parametrize("images", ["uint8", "float32"])
def test_a_loader_draws_by_key(store: Store, images: Any) -> None:
    deltas = {TOP: [-0.2, 0.0], SIDE: [0.0]}
    dataset = LeRobotDataset(store, delta_timestamps=deltas, image_transforms=default(6))
    plain = LeRobotDataset(store, delta_timestamps=deltas)

    def epoch(source: LeRobotDataset, batch_size: int, threads: int, **options: Any) -> dict[str, Any]:
        loader = source.loader(batch_size, order="random", images=images, threads=threads, seed=3, epochs=1, **options)
        batches = [{key: batch[key].clone() for key in (TOP, SIDE, "index")} for batch in loader]
        return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}

    expected, raw = epoch(dataset, 4, 0), epoch(plain, 4, 0)
    for found in (epoch(dataset, 7, 2), epoch(plain, 5, 1, image_transforms=dataset.image_transforms)):
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    for key in (TOP, SIDE):
        assert expected[key].shape == raw[key].shape and expected[key].dtype == raw[key].dtype
        assert not torch.equal(expected[key], raw[key])
    assert torch.equal(expected["index"], raw["index"])


def test_a_field_may_have_them() -> None:
    frames = np.stack([image_of(k, 9, 30, 3) for k in range(6)]).reshape(3, 2, 9, 30, 3)
    transform = ChangeImages(default(6).changes, "float32")
    assert transform.output((2, 9, 30, 3), np.dtype(np.uint8)) == ((2, 3, 9, 30), np.dtype(np.float32))
    draws = Draws(np.arange(3, dtype=np.uint64))
    found = transform(frames, draws)
    assert np.array_equal(found[1:], transform(frames[1:], Draws(np.arange(1, 3, dtype=np.uint64))))


def test_functions_of_an_image_are_no_transforms_of_a_loader(store: Store) -> None:
    for dataset, options in (
        (LeRobotDataset(store, image_transforms=lambda image: image), {}),
        (LeRobotDataset(store), {"image_transforms": lambda image: image}),
        (LeRobotDataset(store, image_transforms=default(), fuse_image_transforms=False), {}),
    ):
        with pytest.raises(WindowError, match="image_transforms"):
            dataset.loader(**options)  # type: ignore[arg-type]


# configurations


def lerobots(transforms: Sequence[Any], p: Sequence[float], number: int, *, is_shuffled: bool = False) -> Any:
    """Return an object like LeRobot's ImageTransforms, told by its class's module and name."""
    home = {"__module__": "lerobot.transforms.transforms"}
    subset = type("RandomSubsetApply", (), home)()
    subset.transforms, subset.p, subset.n_subset, subset.random_order = [*transforms], [*p], number, is_shuffled
    found = type("ImageTransforms", (), {**home, "__call__": lambda self, image: image + 1})()
    found.tf = subset
    return found


def like(module: str, name: str, **attributes: Any) -> Any:
    return type(name, (), {"__module__": module, "__call__": lambda self, image: image, **attributes})()


def test_lerobots_own_are_known_without_importing_lerobot(store: Store) -> None:
    jitter = like(
        "torchvision.transforms.v2._color",
        "ColorJitter",
        brightness=(0.5, 2.0),
        contrast=None,
        saturation=None,
        hue=None,
    )
    sharp = like("lerobot.transforms.transforms", "SharpnessJitter", sharpness=(0.5, 1.5))
    theirs = lerobots([jitter, sharp], [0.25, 0.75], 1, is_shuffled=True)
    expected = ImageChanges((Jitter((0.5, 2.0)), Sharpness((0.5, 1.5))), (0.25, 0.75), 1, True)
    assert changes_of(theirs) == expected
    assert changes_of(lerobots([jitter, like("mine", "Blur")], [0.5, 0.5], 1)) is None
    # a subclass may do anything
    assert changes_of(lerobots([like("mine", "ColorJitter", brightness=None)], [1.0], 1)) is None
    plain = LeRobotDataset(store)[0][TOP]
    assert torch.equal(LeRobotDataset(store, image_transforms=theirs, fuse_image_transforms=False)[0][TOP], plain + 1)
    assert float(LeRobotDataset(store, image_transforms=theirs)[0][TOP].max()) <= 1.0


def test_a_disabled_one_of_lerobots_changes_nothing(store: Store) -> None:
    theirs = lerobots([], [], 0)
    theirs.tf = like("torchvision.transforms.v2._misc", "Identity")
    assert torch.equal(LeRobotDataset(store, image_transforms=theirs)[1][TOP], LeRobotDataset(store)[1][TOP])


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        ("ColorJitter", {"brightness": -1}, "brightness"),
        ("ColorJitter", {"contrast": (2.0, 1.0)}, "contrast"),
        ("ColorJitter", {"hue": 0.7}, "hue"),
        ("ColorJitter", {"colour": 1}, "ColorJitter with kwargs"),
        ("SharpnessJitter", {"sharpness": (-0.1, 2.0)}, "sharpness"),
        ("RandomAffine", {"degrees": "many"}, "degrees"),
        ("RandomAffine", {"degrees": 5, "translate": (2, 0)}, "translate"),
        ("RandomAffine", {"degrees": 5, "scale": (0, 1)}, "scale"),
        ("RandomAffine", {"degrees": 5, "interpolation": "bicubic"}, "interpolation"),
        ("NoSuchTransform", {}, "not valid"),
    ],
)
def test_what_cannot_be_is_refused_by_name(kind: str, kwargs: dict[str, Any], message: str) -> None:
    config = ImageTransformsConfig(enable=True, tfs={"one": ImageTransformConfig(type=kind, kwargs=kwargs)})
    with pytest.raises(WindowError, match=message):
        ImageTransforms(config)


def test_other_transforms_are_called_image_by_image(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("torchvision.transforms.v2")
    module.Transform = type("Transform", (), {})

    class Turned(module.Transform):  # type: ignore[name-defined,misc]
        def __call__(self, image: Any) -> Any:
            return image.flip(-1)

    module.Turned = Turned
    outer: Any = types.ModuleType("torchvision.transforms")
    outer.v2 = module
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.transforms", outer)
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", module)
    tfs = {
        "b": ImageTransformConfig(type="ColorJitter", kwargs={"brightness": (0.5, 0.5)}),
        "turn": ImageTransformConfig(type="Turned"),
        "unused": ImageTransformConfig(weight=0.0, type="NoSuchTransform"),
    }
    dataset = LeRobotDataset(store, image_transforms=ImageTransforms(ImageTransformsConfig(enable=True, tfs=tfs)))
    torch.testing.assert_close(dataset[0][TOP], LeRobotDataset(store)[0][TOP].flip(-1) * 0.5)
    with pytest.raises(WindowError, match="image_transforms"):
        dataset.loader()


def test_images_of_other_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="4 channels"):
        default(1)(torch.rand(4, 6, 6))
