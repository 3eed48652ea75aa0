"""FFCV's transforms: those of arrays are stepwell's by FFCV's names, those of tensors are torch's.

A `Lowered` one says which `stepwell.Transform` it is. At the beginning of a pipeline the loader does it while it builds
the batch, fused with its neighbours; elsewhere it is called with the batch. Its random numbers depend on seed, epoch
and position alone where a loader runs it, else on numpy's global generator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.ffcv.pipeline import Allocation, AllocationQuery, Operation, State, as_python, torch_of
from stepwell.kernels.draws import Draws
from stepwell.transforms import Cutout as _Cutout
from stepwell.transforms import RandomFlip, Resize, Transform, Translate
from stepwell.transforms import RandomResizedCrop as _RandomResizedCrop
from stepwell.transforms.base import Shape, as_array, as_given

__all__ = [
    "Convert",
    "Cutout",
    "ImageMixup",
    "LabelMixup",
    "Lowered",
    "MixupToOneHot",
    "ModuleWrapper",
    "NormalizeImage",
    "Poison",
    "RandomBrightness",
    "RandomContrast",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSaturation",
    "RandomTranslate",
    "ReplaceLabel",
    "Squeeze",
    "ToDevice",
    "ToTensor",
    "ToTorchImage",
    "View",
    "random_draws",
]

Fill = tuple[int, int, int]
CHANNELS = 3
# what red, green and blue weigh in a grey value
GREY = (0.2989, 0.587, 0.114)


def random_draws(size: int) -> Draws:
    """Return random numbers for a batch from numpy's global generator.

    Example:
        >>> random_draws(3).uniform(-1.0, 1.0).shape
        (3,)
    """
    return Draws(np.random.randint(0, 2**63, size, np.int64).astype(np.uint64))


class Lowered(Operation):
    """An operation that is one of stepwell's transforms.

    Example:
        >>> isinstance(RandomHorizontalFlip(), Lowered), RandomHorizontalFlip().lowered()
        (True, RandomFlip(per_step=False, key=None, p=0.5, vertical=False))
    """

    @abstractmethod
    def lowered(self) -> Transform:
        """Return the transform."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return what the transform makes of a state, and FFCV's memory; see `Operation.declare_state_and_memory`.

        The memory is for subclasses of users' own, whose code replaces the transform.
        """
        shape, dtype = self.lowered().output(tuple(previous_state.shape), np.dtype(previous_state.dtype))
        state = replace(previous_state, jit_mode=True, shape=shape, dtype=dtype)
        return state, AllocationQuery(self._memory_shape(shape), dtype)

    def _memory_shape(self, shape: Shape) -> Shape:
        """Return the shape of FFCV's memory for images of a shape."""
        return shape

    def generate_code(self) -> Callable[..., Any]:
        """Return the transform with random numbers of numpy's generator; see `Operation.generate_code`."""
        transform = self.lowered()

        def run(values: Any, memory: Any) -> Any:
            return transform(values, random_draws(len(values)))

        return as_python(run)


class AsOpencv:
    """A transform that resizes as OpenCV's INTER_AREA does."""

    @property
    def kind(self) -> int:
        """How the kernel resizes; see `Cut.kind`."""
        from stepwell.transforms.cropping_kernels import OPENCV_AREA

        return OPENCV_AREA


class OpencvResize(AsOpencv, Resize):
    """The whole image, resized."""

    resizes_to = None


class OpencvRandomResizedCrop(AsOpencv, _RandomResizedCrop):
    """A random part, resized."""


class RandomHorizontalFlip(Lowered):
    """Exchange left and right of some images.

    Args:
        flip_prob: probability.
    """

    def __init__(self, flip_prob: float = 0.5) -> None:
        super().__init__()
        self.flip_prob = flip_prob

    def lowered(self) -> Transform:
        """Return the flip; see `Lowered.lowered`."""
        return RandomFlip(float(self.flip_prob))


class RandomTranslate(Lowered):
    """Shift images by up to so many pixels.

    Args:
        padding: largest shift to each side.
        fill: colour outside of the image.
    """

    def __init__(self, padding: int, fill: Fill = (0, 0, 0)) -> None:
        super().__init__()
        self.padding, self.fill = padding, np.array(fill)

    def lowered(self) -> Transform:
        """Return the shift; see `Lowered.lowered`."""
        return Translate(int(self.padding), tuple(self.fill.tolist()))

    def _memory_shape(self, shape: Shape) -> Shape:
        height, width, channels = shape
        return height + 2 * self.padding, width + 2 * self.padding, channels


class Cutout(Lowered):
    """Fill a square of each image, at a random place inside.

    Args:
        crop_size: its side.
        fill: its colour.
    """

    def __init__(self, crop_size: int, fill: Fill = (0, 0, 0)) -> None:
        super().__init__()
        self.crop_size, self.fill = crop_size, np.array(fill)

    def lowered(self) -> Transform:
        """Return the cutout; see `Lowered.lowered`."""
        return _Cutout(int(self.crop_size), tuple(self.fill.tolist()))


class RandomResizedCrop(Lowered):
    """Cut out a random part of images and resize it; as a decoder it costs less.

    Args:
        scale: least and largest part of the area.
        ratio: least and largest width for a height of 1.
        size: side of what comes out.
    """

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float], size: int) -> None:
        super().__init__()
        self.scale, self.ratio, self.size = scale, ratio, size

    def lowered(self) -> Transform:
        """Return the crop; see `Lowered.lowered`."""
        (low, high), (narrow, wide) = self.scale, self.ratio
        options: dict[str, Any] = {"scale": (float(low), float(high)), "ratio": (float(narrow), float(wide))}
        return OpencvRandomResizedCrop(int(self.size), **options)


class _Jitter(Lowered):
    """A change of colours, drawn for each image."""

    kind: Literal["brightness", "contrast", "saturation"]

    def __init__(self, magnitude: float, p: float = 0.5) -> None:
        super().__init__()
        self.magnitude, self.p = magnitude, p

    def lowered(self) -> Transform:
        """Return the change; see `Lowered.lowered`."""
        return Blend(self.kind, float(self.magnitude), float(self.p))


class RandomBrightness(_Jitter):
    """Multiply the values of some images.

    Args:
        magnitude: the factor is uniform in [max(0, 1 - magnitude), 1 + magnitude].
        p: probability.
    """

    kind = "brightness"


class RandomContrast(_Jitter):
    """Blend some images with the mean of their grey values, see `RandomBrightness`."""

    kind = "contrast"


class RandomSaturation(_Jitter):
    """Blend some images with their grey values, see `RandomBrightness`."""

    kind = "saturation"


@dataclass(frozen=True)
class Blend(Transform):
    """Blend images with black, their mean or their grey values; results are cut off to whole numbers, as FFCV's."""

    kind: str
    magnitude: float
    p: float

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images, changed in place; see `Transform.__call__`."""
        chosen = draws.uniform() < self.p
        ratios = draws.uniform(max(0.0, 1 - self.magnitude), 1 + self.magnitude)
        for i in np.flatnonzero(chosen):
            image, ratio = values[i], ratios[i]
            blended = ratio * image + (1 - ratio) * self._other(image)
            values[i] = blended.clip(0, 255).astype(values.dtype)
        return values

    def _other(self, image: npt.NDArray[Any]) -> Any:
        if self.kind == "brightness":
            return 0.0
        red, green, blue = (weight * image[..., channel] for channel, weight in enumerate(GREY))
        grey = (red + green + blue).astype(image.dtype)
        return grey.mean() if self.kind == "contrast" else grey[..., None]


class NormalizeImage(Operation):
    """Make floats of bytes: ``(value - mean) / std`` of each channel, by a table.

    Of arrays, and of tensors [B, 3, height, width] on any device, which stay channels last.

    Args:
        mean: [3].
        std: [3].
        type: numpy's dtype of what comes out. Of float16 arrays have FFCV's dtype, int16, until `ToTorchImage`.
    """

    def __init__(self, mean: npt.NDArray[Any], std: npt.NDArray[Any], type: Any) -> None:
        super().__init__()
        self.table = Table.of(np.asarray(mean), np.asarray(std), np.dtype(type))
        self._on_tensors = False

    def lowered(self) -> Transform:
        """Return the table as a transform."""
        return self.table

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the shape as it is and the dtype; see `Operation.declare_state_and_memory`."""
        torch = torch_of(needed=False)
        dtype: Any = self.table.stored
        self._on_tensors = torch is not None and isinstance(previous_state.dtype, torch.dtype)
        if self._on_tensors:
            dtype = torch.from_numpy(np.empty(0, self.table.dtype)).dtype
            return replace(previous_state, dtype=dtype), None
        return replace(previous_state, dtype=dtype), AllocationQuery(previous_state.shape, dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what looks the values up; see `Operation.generate_code`."""
        table = self.table
        if self._on_tensors:
            return _tensor_table(table)

        def look_up(images: Any, memory: Any) -> Any:
            return table(images, None)

        return as_python(look_up)


class Table(Transform):
    """What becomes of each byte of each channel."""

    is_pointwise = True
    is_exact = True

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values, self.dtype = values, values.dtype
        self.stored = np.dtype(np.int16) if self.dtype == np.float16 else self.dtype

    @classmethod
    def of(cls, mean: npt.NDArray[Any], std: npt.NDArray[Any], dtype: np.dtype[Any]) -> Table:
        """Return the table [256, 3] of a normalisation."""
        return cls(((np.arange(256)[:, None] - mean[None, :]) / std[None, :]).astype(dtype))

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, and the dtype; see `Transform.output`."""
        if dtype != np.uint8 or not shape or shape[-1] != CHANNELS:
            raise WindowError(f"NormalizeImage of {dtype} {shape}. Allowed: uint8 [height, width, 3].")
        return shape, self.stored

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None) -> npt.NDArray[Any]:
        """Return the floats, those of 16 bits as int16; see `Transform.__call__`."""
        found: npt.NDArray[Any] = self.values.view(self.stored)[values, np.arange(CHANNELS)]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    def __repr__(self) -> str:
        return f"NormalizeImage({self.dtype.name})"


def _tensor_table(table: Table) -> Callable[..., Any]:
    """Return what looks up the values of tensors [B, 3, height, width]."""
    torch = torch_of()
    flat = torch.from_numpy(table.values.T.reshape(-1).copy())

    def run(images: Any, memory: Any) -> Any:
        nonlocal flat
        if flat.device != images.device:
            flat = flat.to(images.device)
        starts = torch.arange(0, 256 * CHANNELS, 256, device=images.device, dtype=torch.int32)
        places = images.permute(0, 2, 3, 1).to(torch.int32) + starts
        found = flat.index_select(0, places.reshape(-1)).reshape(places.shape)
        return found.permute(0, 3, 1, 2)

    return as_python(run)


class _MixedImages(Operation):
    """The weights of mixup: of a batch, by FFCV's draw, whose seed is the batch's last sample."""

    def __init__(self, alpha: float, same_lambda: bool) -> None:
        super().__init__()
        self.alpha, self.same_lambda = alpha, same_lambda

    def _weights(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return a weight for each sample, float64 [B]."""
        from stepwell.ffcv.kernels import beta_weights

        seed = np.int64(np.uint32(int(indices[-1]) & 0xFFFFFFFF))
        number = 1 if self.same_lambda else len(indices)
        weights: npt.NDArray[np.float64] = beta_weights(seed, float(self.alpha), number, len(indices))
        return weights


class ImageMixup(_MixedImages):
    """Blend each image with the one before it in the batch.

    Args:
        alpha: of the beta distribution that weights are drawn from.
        same_lambda: one weight for the batch.

    Notes:
        Equal to FFCV's for equal batches: its generator is seeded by the number of the batch's last sample, so that
        `LabelMixup` draws the same weights.
    """

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the state as it is; see `Operation.declare_state_and_memory`."""
        return previous_state, AllocationQuery(previous_state.shape, previous_state.dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what blends; see `Operation.generate_code`."""

        def mix(images: Any, out: Any, indices: Any) -> Any:
            for i, weight in enumerate(self._weights(indices)):
                out[i] = weight * images[i] + (1 - weight) * images[i - 1]
            return out

        return as_python(mix, with_indices=True)


class LabelMixup(_MixedImages):
    """Make of labels [B, 1] float32 [B, 3]: the label, that of the sample before, the weight of the first.

    Args:
        alpha: as of the `ImageMixup`.
        same_lambda: as of the `ImageMixup`.
    """

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return three floats; see `Operation.declare_state_and_memory`."""
        dtype = np.dtype(np.float32)
        return replace(previous_state, shape=(3,), dtype=dtype), AllocationQuery((3,), dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what pairs the labels; see `Operation.generate_code`."""

        def mix(labels: Any, out: Any, indices: Any) -> Any:
            out[:, 0] = labels[:, 0]
            out[:, 1] = np.roll(labels[:, 0], 1)
            out[:, 2] = self._weights(indices)
            return out

        return as_python(mix, with_indices=True)


class MixupToOneHot(Operation):
    """Make vectors of classes [B, num_classes] of what `LabelMixup` makes, a tensor by then.

    Args:
        num_classes: their length.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return vectors; see `Operation.declare_state_and_memory`."""
        shape = (self.num_classes,)
        query = AllocationQuery(shape, previous_state.dtype, previous_state.device)
        return replace(previous_state, shape=shape), query

    def generate_code(self) -> Callable[..., Any]:
        """Return what writes the vectors; see `Operation.generate_code`."""
        torch = torch_of()

        def to_vectors(mixed: Any, out: Any) -> Any:
            out.zero_()
            rows = torch.arange(len(mixed), device=mixed.device)
            out[rows, mixed[:, 0].long()] = mixed[:, 2]
            # where both labels are one, FFCV keeps what comes second
            out[rows, mixed[:, 1].long()] = 1 - mixed[:, 2]
            return out

        return as_python(to_vectors)


class Poison(Operation):
    """Blend the images of chosen samples with a mask.

    Args:
        mask: [height, width, 3].
        alpha: its opacity, [height, width].
        indices: of the samples.
        clamp: least and largest value of what comes out.
    """

    def __init__(
        self,
        mask: npt.NDArray[Any],
        alpha: npt.NDArray[Any],
        indices: Sequence[int],
        clamp: tuple[int, int] = (0, 255),
    ) -> None:
        super().__init__()
        self.mask, self.alpha, self.indices, self.clamp = mask, alpha, np.sort(indices), clamp

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the state as it is, and floats for subclasses; see `Operation.declare_state_and_memory`."""
        return previous_state, AllocationQuery(previous_state.shape, np.dtype(np.float32))

    def generate_code(self) -> Callable[..., Any]:
        """Return what blends; see `Operation.generate_code`."""
        alpha = np.repeat(self.alpha[:, :, None], CHANNELS, axis=2)
        mask, kept = self.mask.astype(np.float64) * alpha, 1 - alpha

        def poison(images: Any, memory: Any, indices: Any) -> Any:
            for i in np.flatnonzero(np.isin(indices, self.indices)):
                blended = images[i].astype(np.float32)
                blended *= kept
                blended += mask
                images[i] = np.clip(blended, *self.clamp)
            return images

        return as_python(poison, with_indices=True)


class ReplaceLabel(Operation):
    """Give chosen samples another label.

    Args:
        indices: of the samples.
        new_label: their label.
    """

    def __init__(self, indices: Sequence[int], new_label: int) -> None:
        super().__init__()
        self.indices, self.new_label = np.sort(indices), new_label

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the state as it is; see `Operation.declare_state_and_memory`."""
        return previous_state, None

    def generate_code(self) -> Callable[..., Any]:
        """Return what replaces labels; see `Operation.generate_code`."""

        def replace_labels(labels: Any, memory: Any, indices: Any) -> Any:
            labels[np.isin(indices, self.indices)] = self.new_label
            return labels

        return as_python(replace_labels, with_indices=True)


class TensorOperation(Operation):
    """An operation of tensors, as one function."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the state as it is, not for numba; see `Operation.declare_state_and_memory`."""
        return replace(previous_state, jit_mode=False), None

    @abstractmethod
    def run(self, values: Any) -> Any:
        """Return what becomes of a batch."""

    def generate_code(self) -> Callable[..., Any]:
        """Return the function; see `Operation.generate_code`."""
        return as_python(lambda values, memory: self.run(values))


class ToTensor(TensorOperation):
    """Make a tensor of an array, over the same memory."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return torch's dtype; see `Operation.declare_state_and_memory`."""
        dtype = torch_of().from_numpy(np.empty(0, previous_state.dtype)).dtype
        return replace(previous_state, jit_mode=False, dtype=dtype), None

    def run(self, values: Any) -> Any:
        """Return the tensor."""
        return torch_of().from_numpy(np.ascontiguousarray(values))


class ToDevice(TensorOperation):
    """Move tensors to a device.

    Args:
        device: torch's, or its name.
        non_blocking: let the copy run beside what the processor does; it is there when the batch is handed over.
    """

    def __init__(self, device: Any, non_blocking: bool = True) -> None:
        super().__init__()
        self.device, self.non_blocking = device, non_blocking

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the state on the device; see `Operation.declare_state_and_memory`."""
        return replace(previous_state, jit_mode=False, device=torch_of().device(self.device)), None

    def run(self, values: Any) -> Any:
        """Return the tensors there."""
        return values.to(self.device, non_blocking=self.non_blocking)


class ToTorchImage(TensorOperation):
    """Make [B, channels, height, width] of [B, height, width, channels].

    Args:
        channels_last: leave the values where they are (default), else move the channels in memory, too.
        convert_back_int16: take int16 for the float16 that `NormalizeImage` made.
    """

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        super().__init__()
        self.channels_last, self.convert_int16 = channels_last, convert_back_int16

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return channels first; see `Operation.declare_state_and_memory`."""
        torch = torch_of()
        height, width, channels = previous_state.shape
        is_half = previous_state.dtype is torch.int16 and self.convert_int16
        dtype = torch.float16 if is_half else previous_state.dtype
        return replace(previous_state, jit_mode=False, shape=(channels, height, width), dtype=dtype), None

    def run(self, values: Any) -> Any:
        """Return the images, of channels last where they stay in memory."""
        torch = torch_of()
        if values.dtype is torch.int16 and self.convert_int16:
            values = values.view(torch.float16)
        values = values.permute(0, 3, 1, 2)
        return values if self.channels_last else values.contiguous()


class _ToDtype(TensorOperation):
    """Values of another dtype, with the same shape."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the dtype; see `Operation.declare_state_and_memory`."""
        return replace(previous_state, jit_mode=False, dtype=self.target_dtype), None


class Convert(_ToDtype):
    """Convert values to another dtype.

    Args:
        target_dtype: of torch, or of numpy.
    """

    def run(self, values: Any) -> Any:
        """Return the values converted."""
        return values.astype(self.target_dtype) if isinstance(values, np.ndarray) else values.type(self.target_dtype)


class View(_ToDtype):
    """Read the bytes of values as another dtype.

    Args:
        target_dtype: of torch, or of numpy.
    """

    def run(self, values: Any) -> Any:
        """Return a view of the values."""
        return values.view(self.target_dtype)


class Squeeze(TensorOperation):
    """Remove axes of size 1.

    Args:
        dims: which, the batch counted; default: all of size 1.
    """

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the shape without sizes of 1; see `Operation.declare_state_and_memory`."""
        shape = tuple(size for size in previous_state.shape if size != 1)
        return replace(previous_state, jit_mode=False, shape=shape), None

    def run(self, values: Any) -> Any:
        """Return the values without the axes."""
        if self.dims:
            return values.squeeze(*self.dims)
        # a batch of one sample stays a batch
        kept = [size for axis, size in enumerate(values.shape) if size != 1 or axis == 0]
        return values.reshape(kept)


class ModuleWrapper(TensorOperation):
    """A torch module in a pipeline; a loader makes one of each module that it finds.

    Args:
        module: called with the tensor of the batch.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def run(self, values: Any) -> Any:
        """Return what the module returns."""
        return self.module(values)


def run_lowered(operation: Lowered | NormalizeImage, values: Any, draws: Draws) -> Any:
    """Return what a transform makes of a batch, an array or a tensor."""
    return as_given(operation.lowered()(as_array(values), draws), values)
