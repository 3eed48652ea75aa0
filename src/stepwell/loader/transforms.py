"""The chain of transforms that a batch goes through, and the random numbers that they get.

::

    Field(transform=[RandomCrop(84, key="crop"), ToFloat()])      of one field, on [B, *window, *step]; neighbours fused
    Field(transform=lambda values, rng: ...)                      any function of it
    Loader(transform=[Mixup("image"), lambda batch: ...])         of the whole batch, after those of the fields

Random numbers are drawn for a purpose: ``key crop``, ``field image transform 0``, ``transform 0 of the loader``.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.order.order import derive_key
from stepwell.transforms.base import BatchTransform, Sample, Samples, Transform
from stepwell.transforms.fusing import Memory, Stage, fuse, new_memory
from stepwell.transforms.images import check_axes

if TYPE_CHECKING:
    from stepwell.loader.memory import ArenaPool
    from stepwell.order import Share
    from stepwell.windows.fields import ResolvedField

__all__ = ["BatchKey", "TransformChain", "WholeTransform", "samples_of"]

# what Loader(transform=...) takes
WholeTransform = Callable[..., Any] | Sequence[Callable[..., Any]]


class BatchKey(NamedTuple):
    """What a batch's random numbers depend on, and nothing else: not on threads, or on what was drawn before."""

    seed: int
    # an epoch and positions in it, one after the other; several where a batch crosses into another epoch
    parts: tuple[tuple[int, range | npt.NDArray[np.int64]], ...]
    # rows beyond the positions repeat the last
    num_rows: int

    @classmethod
    def of(cls, seed: int, share: Share) -> BatchKey:
        """Return the key of a rank's share of a batch."""
        parts = tuple((span.epoch, range(span.start, span.start + span.count)) for span in share.spans)
        return cls(seed, parts, share.num_rows)

    @classmethod
    def joined(cls, keys: Sequence[BatchKey]) -> BatchKey:
        """Return the key of full batches, one after the other."""
        if len(keys) == 1:
            return keys[0]
        return cls(keys[0].seed, tuple(part for key in keys for part in key.parts), sum(key.num_rows for key in keys))

    def pieces(self, number: int) -> list[BatchKey]:
        """Return the keys of batches of equal size that make up one of a single part, one after the other."""
        ((epoch, positions),) = self.parts
        size = self.num_rows // number
        starts = range(0, self.num_rows, size)
        return [BatchKey(self.seed, ((epoch, positions[start : start + size]),), size) for start in starts]

    def draws(self, purpose: str) -> Draws:
        """Return the random numbers of every window, of its own epoch and position: equal in any batch."""
        keys = [derive_key(self.seed, epoch, purpose) for epoch, _ in self.parts]
        positions = [np.asarray(part, np.int64) for _, part in self.parts]
        missing = self.num_rows - sum(map(len, positions))
        if len(keys) == 1 and not missing:
            return Draws.of(keys[0], positions[0])
        if missing:
            keys.append(keys[-1])
            positions.append(np.repeat(positions[-1][-1:], missing))
        keys_of_rows = np.repeat(np.stack(keys, axis=1), [len(part) for part in positions], axis=1)
        return Draws.of(keys_of_rows, np.concatenate(positions))

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a generator of the batch: other numbers when its windows come in batches of another size."""
        epoch, positions = self.parts[0]
        first = positions.start if isinstance(positions, range) else zlib.crc32(positions.tobytes())
        return np.random.Generator(np.random.Philox(key=derive_key(self.seed, epoch, f"{purpose} {first}")))

    def __str__(self) -> str:
        epoch, positions = self.parts[0]
        return f"epoch {epoch}, batch that starts at position {positions[0] if len(positions) else 0}"


def samples_of(fields: Mapping[str, ResolvedField]) -> Samples:
    """Return shape and dtype of every key that is read, of masks, too; None where they vary from window to window."""
    found: Samples = {}
    for key, field in fields.items():
        _check_any_size(key, field)
        found[key] = None if field.is_ragged else (field.shape, field.dtype)
        if field.has_mask:
            found[field.mask_key] = (field.window_shape, np.dtype(np.bool_))
    return found


class TransformChain:
    """The transforms of all fields, then the loader's own, in order; runs in many threads at once."""

    # A Transform, a BatchTransform and a function with a parameter `draws` get the Draws of the batch's windows, for
    # its key or else for its place (field and number); a function with a parameter `rng` gets a numpy Generator, see
    # BatchKey.generator. Either way no numbers change when another field is added.
    # `is_by_row`: every row that comes out depends on its own row alone, so that several batches may be transformed as
    # one; all transforms say so by an attribute of this name.
    # `arenas`: from a number of bytes a window to the pool of memory for what a fused stage makes; default: new memory.
    # `in_place`: keys of the fields that may come as a `HeldArray`.

    __slots__ = ("_calls", "_whole", "in_place", "is_by_row")

    def __init__(
        self,
        fields: Mapping[str, Iterable[Callable[..., Any]]],
        whole: WholeTransform | None = None,
        samples: Samples | None = None,
        arenas: Callable[[int], ArenaPool] | None = None,
    ) -> None:
        known: Samples | None = None if samples is None else dict(samples)
        self._calls: list[tuple[str, _Call]] = []
        in_place = []
        for key, transforms in fields.items():
            calls = _field_calls(key, tuple(transforms), known, arenas)
            self._calls += [(key, call) for call in calls]
            if calls and calls[0].takes_held:
                in_place.append(key)
        self.in_place = frozenset(in_place)
        several = () if whole is None else tuple(whole) if isinstance(whole, Sequence) else (whole,)
        self._whole = _whole_calls(several, known)
        self.is_by_row = not self._calls and all(getattr(each, "is_by_row", False) for each in several)

    def __bool__(self) -> bool:
        return bool(self._calls or self._whole)

    def apply(self, values: dict[str, Any], key: BatchKey) -> dict[str, Any]:
        """Return the transformed batch."""
        for name, call in self._calls:
            found = call(values[name], key)
            if found is None:
                raise LoaderError(f"transform {call.name} {call.where} returned None. It must return the array.")
            call.check_windows(found, len(values[name]))
            values[name] = found
        for call in self._whole:
            # called from here where it takes no random numbers: a batch finds the caches cold, and each call costs
            try:
                batch = call.run(values, key) if call.function is None else call.function(values)
            except Exception as error:
                raise call.failed(error, key) from error
            if not isinstance(batch, Mapping):
                raise LoaderError(
                    f"transform {call.name} {call.where} returned a {type(batch).__name__}. "
                    "It must return the batch: a dict of key to array."
                )
            values = batch if type(batch) is dict else dict(batch)
            if call.samples is not None:
                call.check_batch(values, key.num_rows)
        return values


@dataclass(frozen=True, slots=True)
class _Call:
    """One or several transforms in one call."""

    name: str
    where: str
    run: Callable[[Any, BatchKey], Any]
    # of the windows that come out, by key; of a field's by ""
    samples: Samples | None = None
    # what `run` calls, where that takes no random numbers
    function: Callable[[Any], Any] | None = None
    # whether a field may come as a `HeldArray`
    takes_held: bool = False

    def __call__(self, values: Any, key: BatchKey) -> Any:
        try:
            return self.run(values, key)
        except Exception as error:
            raise self.failed(error, key) from error

    def failed(self, error: Exception, key: BatchKey) -> LoaderError:
        """Return the error to raise from the one that it raised."""
        return LoaderError(f"transform {self.name} {self.where} raised {type(error).__name__}: {error} ({key}).")

    def check_batch(self, values: Mapping[str, Any], size: int) -> None:
        """Raise LoaderError where a batch is not what the transform says that it makes."""
        for key, sample in (self.samples or {}).items():
            if sample is not None:
                self._check(values.get(key), (size, *sample[0]), sample[1], f" as {key!r}")

    def check_windows(self, found: Any, size: int) -> None:
        """Raise LoaderError for another number of windows, or for others than the transform says that it makes."""
        sample = None if self.samples is None else self.samples[""]
        if sample is not None:
            self._check(found, (size, *sample[0]), sample[1], "")
        elif hasattr(found, "__len__") and len(found) != size:
            raise LoaderError(
                f"transform {self.name} {self.where} made {len(found)} windows of {size}. It must return as many."
            )

    def _check(self, found: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
        is_array = isinstance(found, np.ndarray)
        if not is_array or found.shape != shape or found.dtype != dtype:
            shown = f"{found.dtype} {found.shape}" if is_array else f"a {type(found).__name__}"
            raise LoaderError(
                f"transform {self.name} {self.where} returned {shown}{what}, where its output says {dtype} {shape}. "
                "Make both agree."
            )


def _check_any_size(key: str, field: ResolvedField) -> None:
    """Raise WindowError for a transform that says what becomes of a shape, where images have none in common."""
    source = field.sources[0]
    if not field.is_ragged or source.feature is None or not source.feature.is_image_of_any_size:
        return
    for transform in field.field.transforms:
        if isinstance(transform, Transform) and type(transform).output is not Transform.output:
            raise WindowError(
                f"field {key!r}: the images of {source.name!r} vary in size, and {_name(transform)} needs one shape. "
                f"Make them of one size first: Field({source.name!r}, decoder=Resize(224), transform=...), or "
                "decoder=RandomResizedCrop(224)."
            )


def _field_calls(
    key: str,
    transforms: tuple[Callable[..., Any], ...],
    samples: Samples | None,
    arenas: Callable[[int], ArenaPool] | None,
) -> list[_Call]:
    """Return a field's transforms as calls, and put what comes out of them into ``samples``."""
    for transform in transforms:
        _check_instance(transform, f"field {key!r}")
        if isinstance(transform, BatchTransform):
            raise WindowError(
                f"field {key!r}: {_name(transform)} is a transform of whole batches. Use Loader(transform=...)."
            )
    try:
        check_axes(transforms)
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from error
    sample = None if samples is None else samples.get(key)
    if samples is None or sample is None:
        stages = [Stage(number, (transform,)) for number, transform in enumerate(transforms)]
    else:
        samples[key] = _follow(key, transforms, sample)
        stages = fuse(transforms, *sample)
    calls = []
    for stage in stages:
        sample = _follow(key, stage.transforms, sample)
        # arrays that the allocator takes from the system are slow to touch
        memory = new_memory if arenas is None or not stage.num_bytes else arenas(stage.num_bytes).lease
        calls.append(_stage_call(key, stage, memory, sample))
    return calls


def _follow(key: str, transforms: Iterable[Callable[..., Any]], sample: Sample | None) -> Sample | None:
    """Return shape and dtype of what comes out of a field's transforms; None when one of them does not say."""
    for transform in transforms:
        if sample is None or not isinstance(transform, Transform):
            return None
        try:
            sample = transform.output(*sample)
        except Exception as error:
            raise WindowError(f"field {key!r}, transform {_name(transform)}: {error}") from error
    return sample


def _stage_call(key: str, stage: Stage, memory: Memory, sample: Sample | None) -> _Call:
    where = f"of field {key!r}"
    first = stage.transforms[0]
    if not isinstance(first, Transform):
        return _Call(_name(first), where, _plain(first, f"transform {stage.first} of {key}"))
    purposes = [
        _purpose(transform, f"field {key} transform {stage.first + number}")
        for number, transform in enumerate(stage.transforms)
    ]
    name = " + ".join(_name(transform) for transform in stage.transforms)

    def run(values: Any, batch: BatchKey) -> Any:
        return stage(values, [batch.draws(each) for each in purposes], memory)

    return _Call(name, where, run, {"": sample}, takes_held=stage.takes_held)


def _whole_calls(transforms: Iterable[Callable[..., Any]], samples: Samples | None) -> list[_Call]:
    """Return transforms of whole batches as calls, checked with the samples as far as they are known."""
    calls = []
    for number, transform in enumerate(transforms):
        _check_instance(transform, "Loader(transform=...)")
        name = _name(transform)
        if isinstance(transform, Transform):
            raise WindowError(
                f"{name} is a transform of one field. Use Field(transform=...), or Together(keys, transform)."
            )
        # the purpose of the only one is as it was when there could be no other
        own = "transform of the loader" if number == 0 else f"transform {number} of the loader"
        is_plain = False
        if isinstance(transform, BatchTransform):
            samples = None if samples is None else _outputs(transform, samples)
            run: Callable[[Any, BatchKey], Any] = partial(_run_with_draws, transform, _purpose(transform, own))
        else:
            samples, run = None, _plain(transform, own)
            is_plain = not _parameters(transform) & {"draws", "rng"}
        calls.append(_Call(name, "of the loader", run, samples, transform if is_plain else None))
    return calls


def _outputs(transform: BatchTransform, samples: Samples) -> Samples:
    try:
        return transform.outputs(dict(samples))
    except Exception as error:
        raise WindowError(f"transform {_name(transform)} of the loader: {error}") from error


def _run_with_draws(transform: Callable[..., Any], purpose: str, values: Any, batch: BatchKey) -> Any:
    return transform(values, batch.draws(purpose))


def _check_instance(transform: Callable[..., Any], where: str) -> None:
    if isinstance(transform, type) and issubclass(transform, Transform | BatchTransform):
        raise WindowError(f"{where}: {_name(transform)} is a class. Give an instance: {_name(transform)}(...).")
    if not callable(transform):
        raise WindowError(f"{where}: a {type(transform).__name__} is no transform. Give a Transform or a function.")
    if isinstance(transform, Transform | BatchTransform):
        try:
            inspect.signature(transform).bind(None, None)
        except TypeError as error:
            raise WindowError(
                f"{where}: {_name(transform)} cannot be called with (values, draws): {error}. Let it take both."
            ) from error


def _purpose(transform: Any, own: str) -> str:
    return own if transform.key is None else f"key {transform.key}"


def _plain(function: Callable[..., Any], purpose: str) -> Callable[[Any, BatchKey], Any]:
    """Return a function as one of values and the batch's key, with the random numbers that it has a parameter for."""
    wants = _parameters(function)
    if "draws" in wants:
        return lambda values, batch: function(values, draws=batch.draws(purpose))
    if "rng" in wants:
        return lambda values, batch: function(values, rng=batch.generator(purpose))
    return lambda values, batch: function(values)


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters that the user has not chosen already."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # builtins written in C have no signature; none of them takes random numbers
        return set()
    return names - set(function.keywords) if isinstance(function, partial) else names


def _name(transform: Callable[..., Any]) -> str:
    return getattr(transform, "__qualname__", None) or type(transform).__qualname__
