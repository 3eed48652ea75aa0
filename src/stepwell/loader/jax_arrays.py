"""Batches as arrays of JAX: over their own memory on the CPU, by one transfer a batch elsewhere.

::

    batch of numpy arrays  -- one jax.device_put of all its leaves -->  CPU: arrays over the same memory
    64-byte aligned, on lease                                           GPU, TPU, a mesh: copies, under way

JAX keeps the array that its own lies over, or copies from, until the last use of it has ended, that of a computation
under way included. So the lease lives as long (`stepwell.loader.memory`), and memory is written again only then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, MissingDependencyError, OrderError
from stepwell.loader.batch import Batch
from stepwell.windows import aligned_empty

__all__ = ["JaxCopier", "import_jax"]

# its high half names the generation of an item: 32 bits of it would name another one
KEY = "table.key"
WHAT_DIVIDES = "Choose another batch_size; drop_last=True, pad=True or epochs=None make all batches of an epoch full."


@cache
def import_jax() -> Any:
    """Return the jax module, to which a `Batch` is known as a pytree: its values, and ``valid``."""
    try:
        import jax
    except ImportError as error:
        raise MissingDependencyError.of("jax", "jax") from error

    def flatten(batch: Batch) -> tuple[tuple[Any, Any], None]:
        # epoch and index are no part of it: a function that is compiled for each batch anew would be the end
        return (dict(batch), batch.valid), None

    def unflatten(_: None, children: tuple[Any, Any]) -> Batch:
        return Batch(children[0], valid=children[1])

    jax.tree_util.register_pytree_node(Batch, flatten, unflatten)
    return jax


class JaxCopier:
    """Makes arrays of JAX of the batches of a loader; see `Loader` for ``device`` and ``sharding``."""

    def __init__(self, device: str | None, sharding: Any, sizes: Iterable[int] = ()) -> None:
        self._jax = import_jax()
        self._device = None if device is None else find_jax_device(device, self._jax)
        self._dtypes: dict[tuple[np.dtype[Any], bool, bool], np.dtype[Any] | None] = {}
        self._named: Mapping[str, Any] | None = None
        self._sharding_of: Callable[[str, tuple[int, ...]], Any] = lambda key, shape: None
        if isinstance(sharding, self._jax.sharding.Sharding):
            self._sharding_of = lambda key, shape: sharding
            self._check_sizes([sharding], sizes)
        elif isinstance(sharding, Mapping):
            self._named = {key: self._checked(each, f" of {key!r}") for key, each in sharding.items()}
            self._sharding_of = lambda key, shape: sharding.get(key)
            self._check_sizes(self._named.values(), sizes)
        elif callable(sharding):
            self._sharding_of = lambda key, shape: self._checked(sharding(key, shape), f" of {key!r}, as returned,")
        elif sharding is not None:
            self._checked(sharding, "")

    def begin(self, batch: Batch) -> tuple[Batch, None]:
        """Return a batch of arrays; where they are copied, that is under way."""
        made, also = _copied(batch), {} if batch.valid is None else {"valid": batch.valid}
        leaves = [*_leaves(made, ""), *_leaves(also, "")]
        if self._named is not None and not self._named.keys() <= (keys := {key for _, _, key in leaves}):
            missing = ", ".join(map(repr, sorted(self._named.keys() - keys)))
            raise LoaderError(f"sharding names {missing}, which the batch does not have. It has: {', '.join(keys)}.")
        held, values = [], []
        for branch, name, key in leaves:
            value = branch[name]
            dtype = self._held_dtype(key, value.dtype) if isinstance(value, np.ndarray) else None
            if dtype is not None:
                held.append((branch, name, self._sharding_of(key, value.shape) or self._device))
                values.append(value if dtype == value.dtype else self._as_held(key, value, dtype))
        try:
            placed = self._placed(values, [target for _, _, target in held])
        except ValueError as error:
            raise LoaderError(
                f"a batch of {len(values[0])} rows cannot be laid out: {error} {WHAT_DIVIDES} Where arrays of a batch "
                "need shardings of their own, masks among them, give a mapping of key to sharding."
            ) from error
        for (branch, name, _), value in zip(held, placed, strict=True):
            branch[name] = value
        return Batch(made, batch.epoch, batch.index, also.get("valid"), batch.anchors), None

    def finish(self, batch: Batch, event: None) -> None:
        """Do nothing: what is computed from an array that is under way waits for it."""

    def _placed(self, values: list[npt.NDArray[Any]], targets: list[Any]) -> list[Any]:
        """Return JAX's arrays of some of numpy."""
        if all(getattr(target, "is_fully_addressable", True) for target in targets):
            found: list[Any] = self._jax.device_put(values, targets)
            return found
        return [
            self._jax.device_put(value, target)
            if getattr(target, "is_fully_addressable", True)
            else self._jax.make_array_from_process_local_data(target, value)
            for value, target in zip(values, targets, strict=True)
        ]

    def _held_dtype(self, key: str, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return the dtype of JAX's array of a value; None: the value stays an array of numpy.

        64-bit types become 32-bit ones, as wherever JAX is given them, unless ``jax_enable_x64`` is set.
        """
        asked = dtype, key == KEY, self._jax.config.jax_enable_x64
        if asked not in self._dtypes:
            native = dtype.newbyteorder("=")
            try:
                found = self._jax.device_put(np.zeros(0, native)).dtype
            except TypeError:
                found = None
            self._dtypes[asked] = None if key == KEY and found != dtype else found
        return self._dtypes[asked]

    def _as_held(self, key: str, value: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return a value in another dtype or byte order; aligned, so that it is not copied again."""
        narrow = aligned_empty(value.size * dtype.itemsize).view(dtype).reshape(value.shape)
        with np.errstate(over="ignore"):
            np.copyto(narrow, value, casting="unsafe")
        if dtype.kind in "iu" and not np.array_equal(narrow, value):
            raise LoaderError(
                f"{key!r} holds {value.dtype} values that {dtype} does not, as which JAX takes them: "
                f"{value.min()} to {value.max()}. Set jax.config.update('jax_enable_x64', True), leave the field out, "
                "or make smaller numbers of it by a transform."
            )
        return narrow

    def _checked(self, sharding: Any, what: str) -> Any:
        if sharding is None or isinstance(sharding, self._jax.sharding.Sharding):
            return sharding
        raise OrderError(
            f"a {type(sharding).__qualname__} as sharding{what}. Allowed: a jax.sharding.Sharding, a mapping of key to "
            "Sharding, or a function of key and shape that returns one."
        )

    @staticmethod
    def _check_sizes(shardings: Iterable[Any], sizes: Iterable[int]) -> None:
        """Refuse batches that a sharding cannot divide before the first one is built."""
        for sharding in shardings:
            parts = _num_parts(sharding)
            for size in sizes:
                if size % parts:
                    raise OrderError(
                        f"a batch of {size} rows, and {sharding} makes {parts} parts of it. {WHAT_DIVIDES}"
                    )


def find_jax_device(name: str, jax: Any) -> Any:
    """Return the device of this process that has a name: a platform of JAX, or one and a number, ``"gpu:1"``."""
    platform, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not platform or (number and not number.isdecimal()):
        raise OrderError(f'device={name!r}. Allowed: "cpu", "gpu", "tpu" or another platform of JAX, or "gpu:N".')
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:
        raise LoaderError(
            f"device={name!r}: {error} Install JAX for it (jax[cuda12], jax[tpu]), or leave it out."
        ) from error
    if int(number or 0) >= len(devices):
        raise LoaderError(f"device={name!r}, and JAX finds {len(devices)} devices {platform!r} here.")
    return devices[int(number or 0)]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts anew, with the same leaves."""
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in values.items()}


def _leaves(values: dict[str, Any], prefix: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the dict, the key in it and the dotted key of each leaf of nested dicts."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield values, key, f"{prefix}{key}"


def _num_parts(sharding: Any) -> int:
    """Return how many parts a sharding over a mesh makes of this process's rows, as far as it says so."""
    axes = next(iter(getattr(sharding, "spec", None) or ()), None)
    if not isinstance(axes, str | tuple) or not sharding.is_fully_addressable:
        return 1
    return math.prod(sharding.mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))
