"""LeRobot's image transforms, a random few of several a camera, done for whole batches of frames by one kernel.

::

    ImageTransformsConfig, or LeRobot's ImageTransforms  -->  ImageChanges: laws of draws, how many are chosen
    numbers of torch's generator (items) or by key (loaders)  -->  ops of each image  -->  change_images, once a batch

Draws by torch's generator are LeRobot's, call for call: after the same ``torch.manual_seed`` the same transforms are
chosen, in the same order and with the same numbers. So are the pixels, but for the last bits of float32.

Source: ``lerobot.transforms`` of huggingface/lerobot, ``torchvision.transforms.v2`` (ColorJitter, RandomAffine),
``torch.multinomial`` (the order of exponential variables over their weights); observed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.loader.memory import import_torch
from stepwell.loader.worker_memory import Empty
from stepwell.process import this
from stepwell.transforms.base import Shape, Transform, as_array, as_given
from stepwell.transforms.images import ImageLayout

__all__ = ["ChangeImages", "ImageTransformConfig", "ImageTransforms", "ImageTransformsConfig", "changes_of"]

# as in stepwell.lerobot.image_transforms_kernels, which is not imported before it is used, since it needs numba
BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS, AFFINE = 1, 2, 3, 4, 5, 6
NEAREST, LINEAR, LINEAR_FILLED = 0.0, 1.0, 2.0
# a kind, and its numbers
Op = tuple[int, tuple[float, ...]]
Range = tuple[float, float]
Dtype = Literal["float32", "uint8"]
# where LeRobot has its class, by version
LEROBOT_MODULES = ("lerobot.transforms.transforms", "lerobot.datasets.transforms", "lerobot.common.datasets.transforms")


@dataclass
class ImageTransformConfig:
    """One transform to choose from; the fields are those of LeRobot's class.

    Args:
        weight: chance to be chosen, beside the weights of the others; 0 or less: never.
        type: "ColorJitter", "RandomAffine", "SharpnessJitter" or "Identity"; or any other class of
            ``torchvision.transforms.v2`` or of ``lerobot.transforms``, which is then called image by image, and needs
            these to be installed.
        kwargs: its arguments, as torchvision and LeRobot have them.
    """

    weight: float = 1.0
    type: str = "Identity"
    kwargs: dict[str, Any] = field(default_factory=dict)


def _default_transforms() -> dict[str, ImageTransformConfig]:
    return {
        "brightness": ImageTransformConfig(type="ColorJitter", kwargs={"brightness": (0.8, 1.2)}),
        "contrast": ImageTransformConfig(type="ColorJitter", kwargs={"contrast": (0.8, 1.2)}),
        "saturation": ImageTransformConfig(type="ColorJitter", kwargs={"saturation": (0.5, 1.5)}),
        "hue": ImageTransformConfig(type="ColorJitter", kwargs={"hue": (-0.05, 0.05)}),
        "sharpness": ImageTransformConfig(type="SharpnessJitter", kwargs={"sharpness": (0.5, 1.5)}),
        "affine": ImageTransformConfig(type="RandomAffine", kwargs={"degrees": (-5.0, 5.0), "translate": (0.05, 0.05)}),
    }


@dataclass
class ImageTransformsConfig:
    """Which transforms there are, and how many are done; the fields and their defaults are those of LeRobot's class.

    Args:
        enable: False: none is done.
        max_num_transforms: how many are chosen each time; all, where there are fewer.
        random_order: do them in the order in which they were drawn, instead of that of ``tfs``.
        tfs: name to transform.
    """

    enable: bool = False
    max_num_transforms: int = 3
    random_order: bool = False
    tfs: dict[str, ImageTransformConfig] = field(default_factory=_default_transforms)


class Numbers(Protocol):
    """Where random numbers come from."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number of [low, high)."""

    def permutation(self, number: int) -> list[int]:
        """Return whole numbers below ``number`` in a random order."""

    def subset(self, weights: Sequence[float], number: int) -> list[int]:
        """Return ``number`` places of weights, drawn one after the other by weight, without going back."""


class TorchNumbers:
    """The numbers of torch's global generator, drawn by the calls of LeRobot and torchvision."""

    def __init__(self) -> None:
        self._torch = import_torch()

    def uniform(self, low: float, high: float) -> float:
        """Return a number of [low, high), float32."""
        number: float = self._torch.empty(1).uniform_(low, high).item()
        return number

    def permutation(self, number: int) -> list[int]:
        """Return whole numbers in a random order."""
        found: list[int] = self._torch.randperm(number).tolist()
        return found

    def subset(self, weights: Sequence[float], number: int) -> list[int]:
        """Return places of weights."""
        found: list[int] = self._torch.multinomial(self._torch.tensor(weights), number).tolist()
        return found


class KeyedNumbers:
    """Numbers that are drawn already, one after the other: those of one window."""

    def __init__(self, units: Sequence[float]) -> None:
        self._units = iter(units)

    def uniform(self, low: float, high: float) -> float:
        """Return a number of [low, high)."""
        return low + (high - low) * next(self._units)

    def permutation(self, number: int) -> list[int]:
        """Return whole numbers in a random order."""
        return self.subset([1.0] * number, number)

    def subset(self, weights: Sequence[float], number: int) -> list[int]:
        """Return places of weights."""
        # the first of exponential variables is each with the chance of its rate, and then the first of the others
        times = [-math.log1p(-unit) / weight for weight, unit in zip(weights, self._units, strict=False)]
        return sorted(range(len(times)), key=times.__getitem__)[:number]


class Law(ABC):
    """A transform to choose: what it draws, and the changes of an image that are made of that."""

    # numbers that a draw by key may take
    num_draws: int = 0

    @abstractmethod
    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Draw, and return the changes of an image of this size."""

    def __call__(self, images: Any) -> Any:
        """Return a tensor of images transformed, by a draw of torch's generator; see `ImageTransforms`."""
        return _changed(images, self.ops(TorchNumbers(), *images.shape[-2:]))


@dataclass(frozen=True)
class Unchanged(Law):
    """Do nothing: v2's Identity."""

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Return no changes."""
        return []


@dataclass(frozen=True)
class Jitter(Law):
    """v2's ColorJitter: factors of these ranges, in a random order; None: not changed."""

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None
    num_draws = 8

    @classmethod
    def of(cls, brightness: Any = None, contrast: Any = None, saturation: Any = None, hue: Any = None) -> Jitter:
        """Return that of v2's arguments."""
        factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        ranges = {name: _range(name, value, 1.0, (0.0, math.inf)) for name, value in factors.items()}
        return cls(**ranges, hue=_range("hue", hue, 0.0, (-0.5, 0.5)))

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Return the changes of colours."""
        order = numbers.permutation(4)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        amounts = [None if each is None else numbers.uniform(*each) for each in ranges]
        kinds = (BRIGHTNESS, CONTRAST, SATURATION, HUE)
        return [(kinds[k], (amount,)) for k in order if (amount := amounts[k]) is not None]


@dataclass(frozen=True)
class Sharpness(Law):
    """LeRobot's SharpnessJitter: 0 blurred, 1 unchanged, more than 1 sharpened."""

    sharpness: Range
    num_draws = 1

    @classmethod
    def of(cls, sharpness: Any) -> Sharpness:
        """Return that of LeRobot's arguments."""
        return cls(_range("sharpness", sharpness, 1.0, (0.0, math.inf)) or (1.0, 1.0))

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Return the change of sharpness."""
        return [(SHARPNESS, (numbers.uniform(*self.sharpness),))]


@dataclass(frozen=True)
class Affine(Law):
    """v2's RandomAffine: turned, shifted, scaled and sheared about a point.

    Args:
        degrees: range of angles.
        translate: largest shifts, parts of width and height; whole pixels are drawn.
        scale: range of factors.
        shear: ranges of degrees, of x, or of x and y.
        is_linear: whether pixels are blended; else the nearest is taken.
        fill: colour outside, of one channel or each; empty: black.
        center: x and y in pixels; None: the middle.
    """

    degrees: Range
    translate: Range | None = None
    scale: Range | None = None
    shear: tuple[float, ...] | None = None
    is_linear: bool = False
    fill: tuple[float, ...] = (0.0,)
    center: Range | None = None
    num_draws = 6

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        degrees: Any,
        translate: Any = None,
        scale: Any = None,
        shear: Any = None,
        interpolation: Any = "nearest",
        fill: Any = 0,
        center: Any = None,
    ) -> Affine:
        """Return that of v2's arguments."""
        kind = getattr(interpolation, "value", interpolation)
        names = {"nearest": False, "bilinear": True, 0: False, 2: True}
        if kind not in names:
            raise WindowError(f"RandomAffine with interpolation={interpolation!r}. Allowed: 'nearest', 'bilinear'.")
        colors = () if fill is None else tuple(map(float, fill if isinstance(fill, Sequence) else (fill,)))
        bound = (-math.inf, math.inf)
        angles = _numbers("degrees", _both_sides(degrees), (2,), *bound)
        return cls(
            degrees=(angles[0], angles[1]),
            translate=None if translate is None else _pair("translate", translate, 0.0, 1.0),
            scale=None if scale is None else _pair("scale", scale, 1e-12, math.inf),
            shear=None if shear is None else _numbers("shear", _both_sides(shear), (2, 4), *bound),
            is_linear=names[kind],
            fill=colors,
            center=None if center is None else _pair("center", center, *bound),
        )

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Return the map of pixels to their sources."""
        angle = numbers.uniform(*self.degrees)
        shift_x = shift_y = 0
        if self.translate is not None:
            most_x, most_y = self.translate[0] * width, self.translate[1] * height
            shift_x, shift_y = round(numbers.uniform(-most_x, most_x)), round(numbers.uniform(-most_y, most_y))
        scale = 1.0 if self.scale is None else numbers.uniform(*self.scale)
        shear = self.shear or ()
        shears = [numbers.uniform(shear[k], shear[k + 1]) for k in range(0, len(shear), 2)] + [0.0, 0.0]
        center = (0.0, 0.0)
        if self.center is not None:
            center = self.center[0] - width * 0.5, self.center[1] - height * 0.5
        matrix = _inverse(angle, (shift_x, shift_y), scale, (shears[0], shears[1]), center)
        # torch counts in halves of the image, in float32
        halves = np.array([[0.5 * width], [0.5 * height]], np.float32)
        places = (np.array(matrix, np.float32).reshape(2, 3) / halves).ravel().tolist()
        fill = self.fill if len(self.fill) > 1 else (self.fill or (0.0,)) * 3
        return [(AFFINE, (*places, self._sampling, *fill))]

    @property
    def _sampling(self) -> float:
        """How the kernel reads a pixel; torch darkens blends at the border twice where there is a colour outside."""
        if not self.is_linear:
            return NEAREST
        return LINEAR_FILLED if self.fill else LINEAR


def _inverse(angle: float, shift: Range, scale: float, shear: Range, center: Range) -> list[float]:
    """Return the map from a pixel to its source, both counted from the middle: of x, then of y, [a, b, c] each."""
    turn, (shear_x, shear_y) = math.radians(angle), map(math.radians, shear)
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -(a * math.tan(shear_x) + math.sin(turn))
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = math.cos(turn) - c * math.tan(shear_x)
    to_x, to_y = center[0] + shift[0], center[1] + shift[1]
    row_x, row_y = (d / scale, -b / scale), (-c / scale, a / scale)
    return [
        *row_x,
        center[0] - row_x[0] * to_x - row_x[1] * to_y,
        *row_y,
        center[1] - row_y[0] * to_x - row_y[1] * to_y,
    ]


@dataclass(frozen=True)
class Called(Law):
    """A transform of others, of one image: it draws by itself."""

    function: Callable[[Any], Any]

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Raise: its changes are not known."""
        raise NotImplementedError

    def __call__(self, images: Any) -> Any:
        """Return what it makes of a tensor of images."""
        return self.function(images)


def _range(name: str, value: Any, center: float, bound: Range) -> Range | None:
    """Return a range as torchvision reads it: one number is taken to both sides of ``center``; None: no change."""
    if value is None:
        return None
    if isinstance(value, int | float):
        if value < 0:
            raise WindowError(f"{name}={value!r}. Allowed: a number of at least 0, or (least, largest).")
        low, high = center - value, center + value
        value = (max(low, bound[0]) if center else low, high)
    found = _pair(name, value, *bound)
    if found[0] > found[1]:
        raise WindowError(f"{name}={value!r}. Allowed: (least, largest).")
    return None if found == (center, center) and name != "sharpness" else found


def _both_sides(value: Any) -> Any:
    """Return one number as the range to both sides of 0."""
    return (-value, value) if isinstance(value, int | float) else value


def _pair(name: str, values: Any, least: float, most: float) -> Range:
    found = _numbers(name, values, (2,), least, most)
    return found[0], found[1]


def _numbers(name: str, values: Any, lengths: tuple[int, ...], least: float, most: float) -> tuple[float, ...]:
    """Return numbers that are within bounds."""
    try:
        found = tuple(float(each) for each in values)
    except (TypeError, ValueError):
        found = ()
    if len(found) not in lengths or not all(least <= each <= most for each in found):
        sizes = " or ".join(map(str, lengths))
        raise WindowError(f"{name}={values!r}. Allowed: {sizes} numbers of {least:g} to {most:g}.")
    return found


# what is done by the kernel, by the name that a configuration has for it
LAWS: dict[str, Callable[..., Law]] = {
    "ColorJitter": Jitter.of,
    "Identity": Unchanged,
    "RandomAffine": Affine.of,
    "SharpnessJitter": Sharpness.of,
}
# transforms of LeRobot's own that are called
LEROBOTS_OWN = (
    "CoarseDropout",
    "GammaCorrection",
    "GaussianNoise",
    "GaussianPatchBrightness",
    "JPEGCompression",
    "MotionBlur",
    "PlanckianJitter",
    "RandomShadow",
)


def _law_of_config(config: Any) -> Law:
    """Return the law of one ImageTransformConfig, ours or LeRobot's."""
    make = LAWS.get(config.type)
    if make is not None:
        try:
            return make(**config.kwargs)
        except TypeError as error:
            raise WindowError(f"{config.type} with kwargs={config.kwargs!r}: {error}.") from error
    return Called(_others(config.type)(**config.kwargs))


def _others(name: str) -> Any:
    """Return a class of LeRobot's own, or else of torchvision.transforms.v2."""
    allowed = f"{', '.join(LAWS)}; {', '.join(LEROBOTS_OWN)}, where lerobot is installed"
    try:
        found = import_module("lerobot.transforms" if name in LEROBOTS_OWN else "torchvision.transforms.v2")
    except ImportError as error:
        raise WindowError(
            f"Transform {name!r} is not valid here ({error}). Allowed: {allowed}; or a class of "
            "torchvision.transforms.v2, where torchvision is."
        ) from error
    kind = getattr(found, name, None)
    if not isinstance(kind, type) or not any(each.__name__ == "Transform" for each in kind.__mro__):
        raise WindowError(
            f"Transform {name!r} is not valid. Allowed: {allowed}; or a class of torchvision.transforms.v2."
        )
    return kind


def _law_of_object(transform: Any) -> Law:
    """Return the law of a transform of torchvision or LeRobot; of a subclass, or of another, that it is called."""
    kind = type(transform)
    home = kind.__module__
    if home.startswith("torchvision.transforms.v2."):
        if kind.__name__ == "Identity":
            return Unchanged()
        if kind.__name__ == "ColorJitter":
            return Jitter(transform.brightness, transform.contrast, transform.saturation, transform.hue)
        if kind.__name__ == "RandomAffine" and not isinstance(transform.fill, Mapping):
            names = ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center")
            return Affine.of(**{name: getattr(transform, name) for name in names})
    if home in LEROBOT_MODULES and kind.__name__ == "SharpnessJitter":
        return Sharpness(transform.sharpness)
    return Called(transform)


@dataclass(frozen=True)
class ImageChanges:
    """A random few of several laws.

    Args:
        laws: to choose from.
        weights: of each, above 0; of sum one.
        number: how many are chosen; 0: none.
        is_shuffled: whether they are done in the order in which they were drawn.
    """

    laws: tuple[Law, ...]
    weights: tuple[float, ...]
    number: int
    is_shuffled: bool

    @property
    def is_known(self) -> bool:
        """Whether all laws are ours, and the kernel does them."""
        return not any(isinstance(law, Called) for law in self.laws)

    @property
    def num_draws(self) -> int:
        """Return how many numbers by key a draw may take."""
        return len(self.laws) + sum(law.num_draws for law in self.laws)

    def chosen(self, numbers: Numbers) -> list[Law]:
        """Return the laws to be done, in order."""
        if not self.number:
            return []
        places = numbers.subset(self.weights, self.number)
        return [self.laws[place] for place in (places if self.is_shuffled else sorted(places))]

    def ops(self, numbers: Numbers, height: int, width: int) -> list[Op]:
        """Draw for one camera of one item, whose frames are all changed alike."""
        return [op for law in self.chosen(numbers) for op in law.ops(numbers, height, width)]

    def change_columns(
        self, columns: dict[str, Any], keys: Sequence[str], dtype: Dtype, empty: Empty = np.empty
    ) -> None:
        """Replace frames [n, *window, channels, height, width] by what is made of them, in place of the dict.

        Numbers are drawn as LeRobot draws them: of torch's generator, item by item, and of an item camera by camera.
        """
        present = [key for key in keys if key in columns]
        numbers, drawn = TorchNumbers(), {key: list[list[Op]]() for key in present}
        sizes = {key: columns[key].shape[-2:] for key in present}
        for _ in range(len(columns[present[0]]) if present else 0):
            for key in present:
                drawn[key].append(self.ops(numbers, *sizes[key]))
        for key in present:
            frames = np.moveaxis(columns[key], -3, -1)
            columns[key] = change_frames(frames, drawn[key], dtype, _torch_threads(), empty)


def change_frames(
    frames: npt.NDArray[Any],
    drawn: Sequence[Sequence[Op]],
    dtype: Dtype,
    num_threads: int = 1,
    empty: Empty = np.empty,
) -> npt.NDArray[Any]:
    """Return images, changed, with their channels first.

    Args:
        frames: [n, *window, height, width, channels], of bytes, or of floats of 0 to 1.
        drawn: the changes of each of n, of all its frames alike.
        dtype: of what comes out, of bytes: float32 of 0 to 1, or uint8; of floats it is float32.
        num_threads: that share the images.
        empty: makes the array of them, as ``np.empty`` does.
    """
    from stepwell.lerobot.image_transforms_kernels import change_images

    number, *window, height, width, channels = frames.shape
    if channels not in (1, 3):
        raise WindowError(
            f"image transforms of images of {channels} channels. Allowed: 1 or 3. LeRobotDataset(..., "
            "fuse_image_transforms=False) calls them for each image instead."
        )
    if frames.dtype != np.uint8:
        frames, dtype = frames.astype(np.float32, copy=False), "float32"
    out = empty((number, *window, channels, height, width), dtype)
    images = np.ascontiguousarray(frames).reshape(-1, height, width * channels)
    into = out.reshape(-1, channels, height, width)
    ops, values, starts = _packed(drawn, math.prod(window))
    bound = np.float32(255 if dtype == "uint8" else 1)

    def run(first: int, last: int) -> None:
        change_images(images[first:last], channels, ops, values, starts[first : last + 1], bound, into[first:last])

    num_threads = min(num_threads, len(images))
    if num_threads <= 1:
        run(0, len(images))
        return out
    # an image takes as long as others take ten times: several pieces a thread
    step = max(1, len(images) // (4 * num_threads))
    pieces = [(first, min(first + step, len(images))) for first in range(0, len(images), step)]
    for done in [_pool(num_threads, this.pid).submit(run, *piece) for piece in pieces]:
        done.result()
    return out


def _packed(
    drawn: Sequence[Sequence[Op]], num_frames: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return changes as the kernel takes them; each frame of an item has the item's."""
    ops: list[tuple[int, int]] = []
    values: list[float] = []
    starts = [0]
    for several in drawn:
        own = []
        for kind, numbers in several:
            own.append((kind, len(values)))
            values += numbers
        for _ in range(num_frames):
            ops += own
            starts.append(len(ops))
    return np.array(ops, np.int64).reshape(-1, 2), np.array(values, np.float64), np.array(starts, np.int64)


def _torch_threads() -> int:
    """Return how many threads torch would use for one operation: one in a DataLoader's worker."""
    number: int = import_torch().get_num_threads()
    return number


@cache
def _pool(num_threads: int, pid: int) -> ThreadPoolExecutor:
    """Return threads of this process; those of the one that forked it are not there."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="stepwell-images")


class ImageTransforms:
    """LeRobot's class of this name: a random few of the transforms of a configuration, done to an image.

    ``LeRobotDataset(image_transforms=ImageTransforms(cfg))`` does them to the frames of a whole batch at once, instead
    of calling them for each image, also where these are LeRobot's own.

    Args:
        cfg: `ImageTransformsConfig`, or LeRobot's.

    Attributes:
        transforms: name to each transform whose weight is above 0, which may be called, too.
        weights: of these.
        selected_transforms: those that the last call chose, in order.
        tf: this, by LeRobot's name of what holds ``selected_transforms``.

    Raises:
        WindowError: (a ValueError) a transform that there is not, or arguments that it cannot have.

    Example:
        >>> import torch
        >>> config = ImageTransformsConfig(enable=True, max_num_transforms=1)
        >>> config.tfs = {"brightness": ImageTransformConfig(type="ColorJitter", kwargs={"brightness": (0.5, 0.5)})}
        >>> ImageTransforms(config)(torch.ones(3, 4, 4))[0, 0]
        tensor([0.5000, 0.5000, 0.5000, 0.5000])

    Notes:
        Random numbers come from torch's global generator, by the same calls as LeRobot's: `torch.manual_seed`, and the
        seeds that a ``DataLoader`` gives its workers, have the same effect. A loader draws by key instead, see
        `LeRobotDataset.loader`. All frames of one call, [..., channels, height, width], are changed alike.
    """

    def __init__(self, cfg: ImageTransformsConfig | Any) -> None:
        self._cfg = cfg
        taken = {name: each for name, each in cfg.tfs.items() if each.weight > 0}
        self.transforms = {name: _law_of_config(each) for name, each in taken.items()}
        self.weights: list[float] = [each.weight for each in taken.values()]
        number = min(len(taken), cfg.max_num_transforms) if cfg.enable else 0
        weights = tuple(weight / sum(self.weights) for weight in self.weights)
        self.changes = ImageChanges(tuple(self.transforms.values()), weights, number, cfg.random_order)
        self.selected_transforms: list[Law] = []

    @property
    def tf(self) -> ImageTransforms:
        """Return this."""
        return self

    def __call__(self, images: Any) -> Any:
        """Return images transformed.

        Args:
            images: tensor [..., channels, height, width] of 1 or 3 channels, uint8, or floats of 0 to 1.
        """
        numbers, ops = TorchNumbers(), list[Op]()
        self.selected_transforms = self.changes.chosen(numbers)
        for law in self.selected_transforms:
            if isinstance(law, Called):
                images, ops = law(_changed(images, ops)), []
            else:
                ops += law.ops(numbers, *images.shape[-2:])
        return _changed(images, ops)

    def __repr__(self) -> str:
        names = ", ".join(self.transforms)
        return f"ImageTransforms({self.changes.number} of {names})"


def _changed(images: Any, ops: Sequence[Op]) -> Any:
    """Return a tensor of images, changed."""
    if not ops:
        return images
    values = np.moveaxis(as_array(images), -3, -1)
    return as_given(change_frames(values[None], [ops], "uint8", _torch_threads())[0], images).to(images.dtype)


def changes_of(image_transforms: Any) -> ImageChanges | None:
    """Return what ImageTransforms of ours or of LeRobot do; None of other functions, and where they call such."""
    if type(image_transforms) is ImageTransforms:
        found = image_transforms.changes
    elif _is_lerobots(image_transforms, "ImageTransforms"):
        chooser = image_transforms.tf
        if _is_lerobots(chooser, "RandomSubsetApply"):
            laws = tuple(_law_of_object(each) for each in chooser.transforms)
            found = ImageChanges(laws, tuple(chooser.p), chooser.n_subset, chooser.random_order)
        else:
            found = ImageChanges(
                (_law_of_object(chooser),), (1.0,), 0 if type(chooser).__name__ == "Identity" else 1, False
            )
    else:
        return None
    return found if found.is_known else None


def _is_lerobots(found: Any, name: str) -> bool:
    return type(found).__module__ in LEROBOT_MODULES and type(found).__name__ == name


@dataclass(frozen=True)
class ChangeImages(Transform):
    """Image transforms as those of a field: frames [B, *window, height, width, channels], channels first afterwards.

    Args:
        changes: to choose from.
        dtype: float32 of 0 to 1, or uint8.
    """

    changes: ImageChanges
    dtype: Dtype

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the channels first; see `Transform.output`."""
        layout = ImageLayout.of(shape)
        found = np.dtype(self.dtype if dtype == np.uint8 else np.float32)
        return (*layout.window, layout.channels, layout.height, layout.width), found

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images changed; see `Transform.__call__`."""
        layout = ImageLayout.of(values.shape[1:])
        units = draws.uniform(size=self.changes.num_draws).tolist()
        drawn = [self.changes.ops(KeyedNumbers(each), layout.height, layout.width) for each in units]
        frames = values if layout.has_channels else values[..., None]
        return change_frames(frames, drawn, self.dtype)
