"""transforms: chains of image transforms on batches, beside a copy of the batch, and beside OpenCV and torch.

Batches of 64 windows of 2 images of 96 x 96 and 224 x 224, RGB bytes, as a loader applies a field's chain to them: new
random numbers a batch, neighbours fused, one thread. "one by one" is the same chain with nothing fused. What comes out
of a chain is dropped before the next batch, as when a loader's consumer keeps none.

The copy goes into memory that is used again and again, and so do OpenCV's results. torch allocates its own, as it does
in a data set's code. The ratio to a copy is images over images: half means that the chain takes as long as two copies
of the whole batch, however many bytes come out of it.

Rivals do the same work, cut at the boxes that our transforms draw, which are worked out before: OpenCV and torch resize
whole images, torch puts channels first, and torch does whole chains as code of a data set does, image by image what
differs from window to window and the rest for the batch. All are compared with ours before they are timed: equal where
pixels are moved, within one level where they are resized, within 1e-5 where they are floats.

LeRobot's image transforms, by its default configuration (3 of 6), are done to the frames of 8 items with 3 cameras of
480 x 640: bytes in, float32 channels first out. torchvision's do them image by image, as LeRobot calls them, by the
same draws; the SharpnessJitter that LeRobot adds is written out here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import photo_crops
from report import Row, compare, skipped
from timing import Rates, Settings, Work, time_rounds

from stepwell.lerobot import ImageTransforms, ImageTransformsConfig
from stepwell.loader.transforms import BatchKey, TransformChain
from stepwell.transforms import (
    ColorJitter,
    Normalize,
    PadShift,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    ToCHW,
    ToFloat,
    Transform,
)
from stepwell.transforms.images import ImageLayout

__all__ = ["run"]

NAME = "transforms"
# of images, and what they are resized to: not half, which has a code of its own in OpenCV
RESIZED = {96: 64, 224: 128}
WINDOWS, STEPS = 64, 2
COPY, ONE_BY_ONE = "copy of the batch", "one by one"
OPENCV, TORCH = "opencv-python", "torch"
LINEAR, ANTIALIAS = "resize, linear", "resize, antialias"
FULL = "crop + flip + float + normalise + CHW"
RESIZED_CROP = "resized crop + flip + CHW"
TORCHVISION = "torchvision"
LEROBOTS = "480x640, 3 of LeRobot's 6 image transforms"
ITEMS, CAMERAS, FRAME = 8, 3, (480, 640)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Images = np.ndarray
# -> what a rival makes of the batch
Rival = Callable[[], Any]


@dataclass(frozen=True)
class Chain:
    """The transforms of one field, and random numbers for them.

    Args:
        transforms: in order.
        batch: uint8 [windows, steps, height, width, 3], what they are applied to.
        is_fused: whether neighbours may be done in one pass.
    """

    transforms: tuple[Transform, ...]
    batch: Images
    is_fused: bool = True

    def work(self) -> Work:
        """Return the work of applying it, each time with other random numbers, in images."""
        chain, epochs = self._chain(), itertools.count()
        scratch = self.batch.copy() if isinstance(self.transforms[0], ColorJitter) else None

        def apply() -> float:
            values = self.batch
            if scratch is not None:
                # colours are changed in place: those of a batch that was changed often are no colours any more
                np.copyto(scratch, self.batch)
                values = scratch
            chain.apply({"image": values}, self._key(next(epochs)))
            return len(values) * STEPS

        return apply

    def result(self) -> Images:
        """Return what it makes of the batch in epoch 0, [images, ...]."""
        found = self._chain().apply({"image": self.batch.copy()}, self._key(0))["image"]
        return found.reshape(-1, *found.shape[2:])

    def boxes(self) -> list[list[int]]:
        """Return the boxes that the first transform draws in epoch 0: top, left, height and width of each image."""
        layout = ImageLayout.of(self.batch.shape[1:])
        return self.transforms[0].image_boxes(layout, self._key(0).draws("field image transform 0")).tolist()

    def flips(self) -> list[bool]:
        """Return which images the second transform, a flip, turns in epoch 0."""
        layout = ImageLayout.of(self.batch.shape[1:])
        return (
            self.transforms[1].image_flips(layout, self._key(0).draws("field image transform 1")).astype(bool).tolist()
        )

    def _key(self, epoch: int) -> BatchKey:
        return BatchKey(0, ((epoch, range(len(self.batch))),), len(self.batch))

    def _chain(self) -> TransformChain:
        # what is not known is not fused
        samples = {"image": (self.batch.shape[1:], self.batch.dtype)} if self.is_fused else None
        return TransformChain({"image": self.transforms}, samples=samples)


def run(settings: Settings) -> Iterator[Row]:
    """Yield for each size the rows beside a copy, beside the chain one by one, and beside the rivals."""
    for size in RESIZED:
        windows = settings.sized(WINDOWS, 4)
        batch = photo_crops(windows * STEPS, size).reshape(windows, STEPS, size, size, 3)
        chains = _chains(batch, size)
        rivals = {OPENCV: _opencv_rivals(chains), TORCH: _torch_rivals(chains)}
        works = {name: chain.work() for name, chain in chains.items()} | {COPY: _copy(batch)}
        for who, several in rivals.items():
            works |= {_beside(name, who): _counted(rival, windows * STEPS) for name, rival in (several or {}).items()}
        rates = time_rounds(works, settings)
        for name in chains:
            yield compare(NAME, _case(size, name), rates, ours=name, theirs=COPY, unit="images/s")
        yield _beside_row(rates, size, FULL, ONE_BY_ONE)
        for who, several in rivals.items():
            if several is None:
                yield from skipped(NAME, who, _case(size, "all transforms"))
            for name in several or {}:
                yield _beside_row(rates, size, name, who)
    yield from _lerobot_rows(settings)


def _lerobot_rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows of LeRobot's image transforms beside a copy of the frames, and beside torchvision."""
    try:
        import torch
    except ImportError:
        yield from skipped(NAME, TORCH, LEROBOTS)
        return
    torch.set_num_threads(1)
    items = settings.sized(ITEMS, 2)
    images = photo_crops(items * CAMERAS, max(FRAME))[:, : FRAME[0]]
    frames = np.ascontiguousarray(images.reshape(items, CAMERAS, *FRAME, 3).swapaxes(0, 1))
    ours = _lerobot_chain(frames)
    works = {LEROBOTS: _counted(ours, len(images)), COPY: _copied(frames, len(images))}
    theirs = _torchvision_rival(images)
    if theirs is not None:
        torch.manual_seed(0)
        expected = ours()
        torch.manual_seed(0)
        _compare(theirs().numpy(), np.stack(expected, 1).reshape(-1, 3, *FRAME), 1e-5)
        works[TORCHVISION] = _counted(theirs, len(images))
    rates = time_rounds(works, settings)
    yield compare(NAME, LEROBOTS, rates, ours=LEROBOTS, theirs=COPY, unit="images/s")
    if theirs is None:
        yield from skipped(NAME, TORCHVISION, LEROBOTS)
    else:
        yield compare(NAME, LEROBOTS, rates, ours=LEROBOTS, theirs=TORCHVISION, unit="images/s")


def _lerobot_chain(frames: Images) -> Rival:
    """Return what makes items' images of frames [cameras, items, height, width, 3], as `LeRobotDataset` does it."""
    changes = ImageTransforms(ImageTransformsConfig(enable=True)).changes
    keys = [f"camera {number}" for number in range(len(frames))]

    def apply() -> list[Images]:
        columns: dict[str, Any] = {key: np.moveaxis(own, -1, -3) for key, own in zip(keys, frames, strict=True)}
        changes.change_columns(columns, keys, "float32")
        return list(columns.values())

    return apply


def _torchvision_rival(images: Images) -> Rival | None:
    """Return LeRobot's default transforms by torchvision, image by image; None where it is not installed."""
    try:
        import torch
        from torchvision.transforms import v2
    except ImportError:
        return None

    def sharpen(image: Any) -> Any:
        return v2.functional.adjust_sharpness(image, torch.empty(1).uniform_(0.5, 1.5).item())

    transforms = [
        v2.ColorJitter(brightness=(0.8, 1.2)),
        v2.ColorJitter(contrast=(0.8, 1.2)),
        v2.ColorJitter(saturation=(0.5, 1.5)),
        v2.ColorJitter(hue=(-0.05, 0.05)),
        sharpen,
        v2.RandomAffine((-5.0, 5.0), translate=(0.05, 0.05)),
    ]

    def apply() -> Any:
        made = []
        for frame in images:
            image = torch.from_numpy(frame).permute(2, 0, 1).contiguous().float() / 255
            for place in torch.multinomial(torch.ones(6) / 6, 3).sort().values.tolist():
                image = transforms[place](image)
            made.append(image)
        return torch.stack(made)

    return apply


def _beside_row(rates: Rates, size: int, name: str, who: str) -> Row:
    row = compare(NAME, _case(size, name), rates, ours=name, theirs=_beside(name, who), unit="images/s")
    return replace(row, rival=who)


def _beside(name: str, who: str) -> str:
    return f"{name}, {who}"


def _case(size: int, name: str) -> str:
    return f"{size}x{size}, {name}"


def _chains(batch: Images, size: int) -> dict[str, Chain]:
    crop, smaller = RandomCrop(size * 7 // 8), RESIZED[size]
    full = (crop, RandomFlip(), ToFloat(), Normalize(MEAN, STD), ToCHW())
    chains: dict[str, tuple[Transform, ...]] = {
        "random crop": (crop,),
        "pad-shift": (PadShift(4),),
        "CHW": (ToCHW(),),
        "crop + CHW": (crop, ToCHW()),
        FULL: full,
        LINEAR: (Resize(smaller, antialias=False),),
        ANTIALIAS: (Resize(smaller),),
        RESIZED_CROP: (RandomResizedCrop(size), RandomFlip(), ToCHW()),
        "colour jitter": (ColorJitter(0.4, 0.4, 0.4, 0.1),),
    }
    found = {name: Chain(transforms, batch) for name, transforms in chains.items()}
    return found | {_beside(FULL, ONE_BY_ONE): Chain(full, batch, is_fused=False)}


def _opencv_rivals(chains: dict[str, Chain]) -> dict[str, Rival] | None:
    """Return OpenCV's resize; None where it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(1)
    images, expected = _images(chains[LINEAR]), chains[LINEAR].result()
    out = np.empty_like(expected)

    def resize() -> Images:
        for image, target in zip(images, out, strict=True):
            cv2.resize(image, target.shape[1::-1], dst=target, interpolation=cv2.INTER_LINEAR)
        return out

    _compare(resize(), expected, levels=1)
    return {LINEAR: resize}


def _torch_rivals(chains: dict[str, Chain]) -> dict[str, Rival] | None:
    """Return what torch does; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    rivals = {
        "CHW": (_torch_planes(chains["CHW"], torch), 0.0),
        ANTIALIAS: (_torch_resize(chains[ANTIALIAS], torch), 1.0),
        FULL: (_torch_floats(chains[FULL], torch), 1e-5),
        RESIZED_CROP: (_torch_crops(chains[RESIZED_CROP], torch), 1.0),
    }
    for name, (rival, levels) in rivals.items():
        _compare(rival().numpy(), chains[name].result(), levels)
    return {name: rival for name, (rival, _) in rivals.items()}


def _torch_planes(chain: Chain, torch: Any) -> Rival:
    images = torch.from_numpy(_images(chain))
    return lambda: images.permute(0, 3, 1, 2).contiguous()


def _torch_resize(chain: Chain, torch: Any) -> Rival:
    images = torch.from_numpy(_images(chain)).permute(0, 3, 1, 2)
    size = chain.result().shape[1:3]
    resize = torch.nn.functional.interpolate
    return lambda: resize(images, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def _torch_floats(chain: Chain, torch: Any) -> Rival:
    images, places = torch.from_numpy(_images(chain)), list(zip(chain.boxes(), chain.flips(), strict=True))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def make() -> Any:
        crops = []
        for image, ((top, left, height, width), is_flipped) in zip(images, places, strict=True):
            crop = image[top : top + height, left : left + width]
            crops.append(crop.flip(1) if is_flipped else crop)
        return torch.stack(crops).permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(mean).div_(std)

    return make


def _torch_crops(chain: Chain, torch: Any) -> Rival:
    images, places = torch.from_numpy(_images(chain)), list(zip(chain.boxes(), chain.flips(), strict=True))
    images, size = images.permute(0, 3, 1, 2), chain.result().shape[2:]

    def make() -> Any:
        out = torch.empty((len(images), 3, *size), dtype=torch.uint8)
        for number, ((top, left, height, width), is_flipped) in enumerate(places):
            part = images[number : number + 1, :, top : top + height, left : left + width]
            resized = torch.nn.functional.interpolate(part, size, mode="bilinear", antialias=True)[0]
            out[number] = resized.flip(2) if is_flipped else resized
        return out

    return make


def _copy(batch: Images) -> Work:
    return _copied(batch, len(batch) * STEPS)


def _copied(batch: Images, num_images: int) -> Work:
    target = np.empty_like(batch)

    def copy() -> float:
        np.copyto(target, batch)
        return num_images

    return copy


def _counted(rival: Rival, num_images: int) -> Work:
    def work() -> float:
        rival()
        return num_images

    return work


def _images(chain: Chain) -> Images:
    return chain.batch.reshape(-1, *chain.batch.shape[2:])


def _compare(theirs: Images, ours: Images, levels: float) -> None:
    """Compare what a rival makes of images with what a chain does."""
    assert theirs.shape == ours.shape and theirs.dtype == ours.dtype
    np.testing.assert_allclose(theirs.astype(np.float32), ours.astype(np.float32), atol=levels, rtol=0)
