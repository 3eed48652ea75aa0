"""Columns of a store from features of TFDS: which feature stands for which, and the rows of some examples at once.

::

    in features.json                      in an example                     in a store
    Tensor (7,) of any dtype              all steps' numbers in one list    Array(7), of the feature's dtype
    Tensor, encoding bytes or zlib        a string a step                   Array
    Image                                 a file a step                     Image, of the files' codec
    Image of float32                      a PNG file of 4 channels          Image((8, 8, 1), "float32")
    Text, Tensor of string                a string a step                   Text, or Bytes
    ClassLabel                            a number a step                   Array((), "int64")
    Sequence of Tensor (3,)               ragged_flat_values, row lengths   Array((None, 3)); of length 5 Array((5, 3))
    Sequence of Text                      the same                          Text, a list in JSON
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.schema import Array, Bytes, Feature, Image, Text
from stepwell.tfds.examples import Examples
from stepwell.tfds.features import Placed, Shape
from stepwell.tfds.values import Values, default_of, item_size, values_of

__all__ = ["Column", "column_of"]

FLAT, LENGTHS = "ragged_flat_values", "ragged_row_lengths_0"
# shorter rows are copied: a reference takes 16 bytes, and a read
LEFT_BYTES = 4096
IMAGE_SIDE = 16
IMAGE_CHANNELS = (1, 3, 4)
IMAGE_DTYPES = ("uint8", "uint16")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """A feature whose rows are steps.

    Args:
        name: in the store.
        placed: the leaf and its place.
        in_steps: whether a list holds all steps of an episode; else the example is one step.
        feature: as it is stored; None of images, as long as nobody looked at a file.
        item_shape: of one value, () of strings.
        length: values of a row that is a sequence of them; None: it varies.
        is_sequence: whether a row is a sequence of values; else it is one.

    Notes:
        An immutable value; picklable.
    """

    name: str
    placed: Placed
    in_steps: bool
    feature: Feature | None
    item_shape: tuple[int, ...] = ()
    length: int | None = None
    is_sequence: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the lists that it needs: of the values, and of the rows' lengths where they have a list of their own."""
        key = self.placed.key
        return (f"{key}/{FLAT}", f"{key}/{LENGTHS}") if self._has_lengths else (key,)

    @property
    def _has_lengths(self) -> bool:
        return len(self.placed.lengths) > 1

    @property
    def _is_text(self) -> bool:
        return self.feature is not None and self.feature.kind == "text"

    @property
    def is_image(self) -> bool:
        """Whether its rows are files of images."""
        return self.placed.leaf.kind == "image" and self.placed.leaf.dtype in IMAGE_DTYPES

    @property
    def is_left(self) -> bool:
        """Whether its rows may stay in the file as they are: images, and long tensors of plain bytes."""
        if self.is_image:
            return True
        is_plain = self.placed.leaf.encoding == "bytes" and None not in self.placed.leaf.shape and not self.is_sequence
        return is_plain and self.feature is not None and self.feature.row_bytes >= LEFT_BYTES

    def row_counts(self, examples: Examples) -> Int64s | None:
        """Return how many rows each example has, int64 [n]; None where its lists do not tell.

        Raises:
            FormatError: a list that ends within a row.
        """
        if self._has_lengths:
            return examples.counts(self.keys[1])
        size = item_size(self.placed.leaf, self.item_shape)
        if self.is_sequence:
            size *= self.length or 0
        is_missing = self.placed.leaf.is_optional and not examples.has(self.keys[0]).all()
        if size == 0 or is_missing:
            return None
        counts = examples.counts(self.keys[0])
        if (counts % size).any():
            count = counts[np.argmax(counts % size > 0)]
            raise FormatError(f"{self.keys[0]!r}: {count} values, in rows of {size} by features.json.")
        return counts // size

    def rows(self, examples: Examples, lengths: Int64s) -> Values:
        """Return the rows of all examples, one after the other, as a store takes them; not of images.

        Args:
            examples: that have the `keys`.
            lengths: int64 [n], rows of each.

        Raises:
            FormatError: values that are not as the feature says.
        """
        key, leaf, shape = self.keys[0], self.placed.leaf, self.item_shape
        has = examples.has(key) | np.bool_(not leaf.is_optional or self._has_lengths)
        if 0 in shape and not self.is_sequence:
            return np.zeros((int(lengths.sum()), *shape), leaf.dtype)
        values = values_of(leaf, key, shape, examples, is_text=self._is_text)
        rows = self._cut(values, self._sizes(examples, lengths[has], has)) if self.is_sequence else values
        if len(rows) != int(lengths[has].sum()):
            raise FormatError(f"{key!r}: {len(rows)} rows for {int(lengths[has].sum())} steps.")
        return rows if has.all() else self._with_missing(rows, np.repeat(has, lengths))

    def _sizes(self, examples: Examples, lengths: Int64s, has: npt.NDArray[np.bool_]) -> Int64s:
        """Return how many values each row has, int64 [rows]."""
        if self._has_lengths:
            return examples.ints(self.keys[1])
        if self.length is not None:
            return np.full(int(lengths.sum()), self.length, np.int64)
        return examples.counts(self.keys[0])[has] // max(1, item_size(self.placed.leaf, self.item_shape))

    def _cut(self, values: Values, sizes: Int64s) -> Values:
        """Return rows of these sizes."""
        key = self.placed.key
        if (sizes < 0).any() or (sizes > len(values)).any() or int(sizes.sum()) != len(values):
            raise FormatError(f"{key!r}: {len(values)} values for rows of {int(sizes.sum())} in all.")
        if self.length is not None and (sizes != self.length).any():
            raise FormatError(f"{key!r}: rows of {sizes.min()} to {sizes.max()}, {self.length} by features.json.")
        if self.length is not None and isinstance(values, np.ndarray):
            return values.reshape(len(sizes), self.length, *self.item_shape)
        parts = [values[start:stop] for start, stop in pairwise(np.cumsum([0, *sizes]).tolist())]
        return [json.dumps(part, ensure_ascii=False) for part in parts] if isinstance(values, list) else parts

    def _with_missing(self, rows: Values, has: npt.NDArray[np.bool_]) -> Values:
        """Return rows of an optional feature, with its default where examples have none."""
        shape = self.item_shape if not self.is_sequence else (self.length or 0, *self.item_shape)
        default = default_of(self.placed.leaf, shape, is_text=self._is_text)
        if isinstance(rows, np.ndarray):
            out = np.empty((len(has), *rows.shape[1:]), rows.dtype)
            out[has], out[~has] = rows, default
            return out
        present = iter(rows)
        return [next(present) if is_there else default for is_there in has.tolist()]


def column_of(name: str, placed: Placed, *, in_steps: bool, is_text: bool = True, source: str | None = None) -> Column:
    """Return the column of a feature.

    Args:
        name: in the store.
        placed: the leaf and its place.
        in_steps: whether a list holds the steps of an episode.
        is_text: whether strings are stored as text, not as bytes.
        source: its name in the dataset, said by errors; default: as in the store.

    Raises:
        FormatError: no feature of a store stands for it.

    Example:
        >>> from stepwell.tfds.features import Leaf
        >>> goals = Placed(("steps", "goal"), Leaf("tensor", "float32", (3,)), (None, None))
        >>> column_of("goal", goals, in_steps=True).feature
        Array((None, 3))
    """
    try:
        return _column(name, placed, in_steps, is_text)
    except FormatError as error:
        known = source or name
        raise FormatError(f"feature {known!r} is {error}. Leave it out by ignore=[{known!r}].") from error


def _column(name: str, placed: Placed, in_steps: bool, is_text: bool) -> Column:
    leaf = placed.leaf
    inner = placed.lengths[1:] if in_steps else placed.lengths
    if leaf.kind == "unknown":
        raise FormatError(f"of class {leaf.class_name}, which stepwell does not know")
    if len(inner) > 1:
        raise FormatError(f"sequences within sequences, {len(inner)} deep")
    if leaf.kind == "image":
        if inner:
            raise FormatError("a sequence of images. To make its images the steps of episodes, name it by steps=")
        if leaf.dtype == "float32" and None not in leaf.shape and leaf.shape[2] == 1:
            return _float_image(name, placed, in_steps)
        if leaf.dtype not in IMAGE_DTYPES:
            raise FormatError(f"images of {leaf.dtype}, which are PNG files of other numbers")
        return Column(name, placed, in_steps, None)
    if leaf.dtype == "string":
        return _strings(name, placed, inner, in_steps, is_text=is_text)
    return _numbers(name, placed, inner, in_steps)


def _float_image(name: str, placed: Placed, in_steps: bool) -> Column:
    """Return the column of an image whose numbers are the four channels of a PNG file."""
    shape = tuple(side or 0 for side in placed.leaf.shape)
    return Column(name, placed, in_steps, Image(shape, "float32"), shape)


def _strings(name: str, placed: Placed, inner: Shape, in_steps: bool, *, is_text: bool) -> Column:
    shape = (*inner, *placed.leaf.shape)
    if not shape:
        return Column(name, placed, in_steps, Text() if is_text else Bytes())
    is_counted = None not in shape or len(placed.lengths) > 1 or not in_steps
    if len(shape) > 1 or not is_counted or not is_text:
        raise FormatError(f"of shape {shape} of strings. Allowed: one a step, or a list of texts")
    return Column(name, placed, in_steps, Text(), (), shape[0], is_sequence=True)


def _numbers(name: str, placed: Placed, inner: Shape, in_steps: bool) -> Column:
    leaf = placed.leaf
    shape = (*inner, *leaf.shape)
    fixed = tuple(side for side in shape if side is not None)
    has_lengths, is_packed = len(placed.lengths) > 1, leaf.encoding != "none"
    is_unknown = in_steps and not has_lengths and not is_packed and None in shape
    if None in shape[1:] or (inner and None in leaf.shape) or is_unknown:
        raise FormatError(f"of shape {shape}, of which more varies than the length of a sequence")
    feature = _array(shape, leaf.dtype)
    if has_lengths or (inner and is_packed):
        return Column(name, placed, in_steps, feature, fixed[len(fixed) - len(leaf.shape) :], inner[0], True)
    if None in shape and not is_packed:
        return Column(name, placed, in_steps, feature, fixed, None, True)
    return Column(name, placed, in_steps, feature, fixed)


def _array(shape: Shape, dtype: str) -> Feature:
    """Return the feature of an array; of one that looks like a picture, an image."""
    is_picture = dtype == "uint8" and len(shape) == 3 and shape[2] in IMAGE_CHANNELS and None not in shape
    if is_picture and min(side or 0 for side in shape[:2]) >= IMAGE_SIDE:
        return Feature("image", "|u1", shape)
    return Array(shape, dtype)
