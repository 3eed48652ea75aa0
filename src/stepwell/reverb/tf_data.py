"""Data sets that are ``tf.data.Dataset``, too, where TensorFlow has been imported before.

::

    samples (numpy) --> batch, take: here, of many at a time --> from_generator --> the other verbs: TensorFlow's
                   '--> as_numpy_iterator, as_torch, as_jax: without TensorFlow
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from stepwell.reverb.specs import as_spec, import_tensorflow, import_tree, leaf_array, to_tensorflow

__all__ = ["plain_value", "tf_class"]

EXIT_SECONDS, END_SECONDS = 2.0, 0.1
# of tf.data, in place of ours
VERBS = ("__iter__", "filter", "flat_map", "interleave", "map", "prefetch", "repeat", "skip", "unbatch", "with_options")


def tf_class(cls: type[Any]) -> type[Any]:
    """Return a class of data sets, which is one of TensorFlow's, too, where that has been imported."""
    return cls if import_tensorflow() is None else _joined(cls)  # type: ignore[arg-type]


@cache
def _joined(cls: type[Any]) -> type[Any]:
    tf = import_tensorflow()
    # the older interface has all of the newer one
    theirs, newer = tf.compat.v1.data.Dataset, tf.data.Dataset

    class TfDataset(cls, theirs):  # type: ignore[misc, valid-type]
        """A data set of stepwell that TensorFlow takes for one of its own."""

        _is_of_tensorflow = True

        def __init__(self, *arguments: Any, **options: Any) -> None:
            cls.__init__(self, *arguments, **options)
            # lists become tuples, as tf.data has them
            nest = import_tree().map_structure(lambda leaf: to_tensorflow(as_spec(leaf)), self._spec)
            self._tf_spec = _as_tuples(nest)
            # of one element or none: between two blocks TensorFlow looks whether it is to stop
            blocks = partial(_blocks, self._begin, tf.nest.map_structure(_nothing, self._tf_spec))
            signature = tf.nest.map_structure(_batched, self._tf_spec)
            made = newer.from_generator(blocks, output_signature=signature).unbatch()
            newer.__init__(self, made._variant_tensor)

        @property
        def element_spec(self) -> Any:
            return self._tf_spec

        def _inputs(self) -> list[Any]:
            return []

        def _as_variant_tensor(self) -> Any:
            return self._variant_tensor

    for verb in VERBS:
        setattr(TfDataset, verb, getattr(theirs, verb))
    TfDataset.__name__ = TfDataset.__qualname__ = cls.__name__
    return TfDataset


def _blocks(begin: Callable[[bool], Iterator[Any]], nothing: Any) -> Iterator[Any]:
    _alive.add(blocks := _each_block(begin, nothing))
    return blocks


def _each_block(begin: Callable[[bool], Iterator[Any]], nothing: Any) -> Iterator[Any]:
    tree = import_tree()
    elements = begin(True)
    while not _exit.is_set():
        with _executing:
            element = next(elements, elements)
            if element is elements:
                return
            block = nothing if element is None else _as_tuples(tree.map_structure(_block_of, element))
        yield block


class _Executing:
    """How many threads of TensorFlow are in our code."""

    def __init__(self) -> None:
        self._num, self._changed = 0, threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._num += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._num -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until there are none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num, seconds)


_exit, _executing = threading.Event(), _Executing()
_alive: WeakSet[Iterator[Any]] = WeakSet()


@atexit.register
def _end() -> None:
    # a thread of TensorFlow that comes back to Python after its end never ends, and the process with it
    if import_tensorflow() is not None:
        _exit.set()
        _executing.wait(EXIT_SECONDS)
        if _alive:
            # it may call once more, and tells a generator that it is at its end
            time.sleep(END_SECONDS)


def _block_of(leaf: Any) -> npt.NDArray[Any]:
    return leaf_array(leaf)[None]


def _nothing(spec: Any) -> npt.NDArray[Any]:
    sizes = [] if spec.shape.rank is None else [size or 0 for size in spec.shape]
    return np.empty((0, *sizes), spec.dtype.as_numpy_dtype)


def _batched(spec: Any) -> Any:
    return type(spec)(None if spec.shape.rank is None else [None, *spec.shape], spec.dtype, spec.name)


def plain_value(value: Any) -> Any:
    """Return what a tensor holds, of a graph too, where it is a constant of that; other values as they are."""
    tensorflow = import_tensorflow()
    is_tensor = tensorflow is not None and tensorflow.is_tensor(value)
    found = tensorflow.get_static_value(value) if is_tensor else value
    return found.item() if isinstance(found, np.ndarray) else found


def _as_tuples(nest: Any) -> Any:
    """Return a nest with tuples for lists."""
    if isinstance(nest, list) or type(nest) is tuple:
        return tuple(_as_tuples(each) for each in nest)
    if isinstance(nest, dict):
        return {key: _as_tuples(each) for key, each in nest.items()}
    if isinstance(nest, tuple):
        return type(nest)(*map(_as_tuples, nest))
    return nest
