"""Features of a dataset as columns of a store: which are read, their names, and the rows of some examples at once.

::

    steps/observation/image         observation.image            a column
    steps/is_first                  steps.is_first               stepwell computes an is_first of its own
    episode_metadata/file_path      metadata["file_path"]
    label (no steps)                label                        a column: the example is one step

What they are there:

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
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.decoded_sizes import WHAT_TO_SET, most_bytes
from stepwell.codecs.image_files import read_image_head
from stepwell.errors import DecodeError, FeatureNotFoundError, FormatError
from stepwell.schema import RESERVED, Array, Bytes, Feature, Image, Text
from stepwell.tfds.examples import Examples
from stepwell.tfds.features import Fields, Leaf, Node, Placed, Repeated, Shape, walk
from stepwell.windows.fields import VIRTUAL_DTYPES

__all__ = ["Chosen", "Column", "Values", "choose", "column_of", "default_of", "item_size", "values_of"]

STEPS, METADATA = "steps", "episode_metadata"
# what stepwell says of an episode itself
OWN_METADATA = frozenset({"terminated", "truncated", "final", "columns", "self", "tfds_split"})
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The features that are read."""

    steps: tuple[str, ...] | None
    columns: Mapping[str, Placed]
    sources: Mapping[str, str]
    metadata: Sequence[tuple[tuple[str, ...], Placed]]

    @property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """The names that lead to each column in the dataset, which may have characters that no feature's name has."""
        start = len(self.steps or ())
        return {name: placed.path[start:] or placed.path[-1:] for name, placed in self.columns.items()}

    def flag(self, name: str, tree: Node) -> str | None:
        """Return the key of a flag of steps, such as ``is_last``; None where there is none."""
        if self.steps is None:
            return None
        wanted = "/".join((*self.steps, name))
        return next((wanted for found in walk(tree) if found.key == wanted and found.leaf.dtype == "bool"), None)


def choose(
    tree: Node,
    *,
    steps: str | None = None,
    features: Collection[str] | None = None,
    ignore: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Chosen:
    """Return which features are read, and their names."""
    path = _steps_path(tree, steps)
    placed = {_dotted(found, path): found for found in walk(tree)}
    for names in (features or (), ignore, rename or ()):
        _check_known(names, placed)
    kept = {
        name: found
        for name, found in placed.items()
        if (features is None or _is_named(name, features)) and not _is_named(name, ignore)
    }
    columns: dict[str, Placed] = {}
    sources: dict[str, str] = {}
    for name, found in kept.items():
        if path is None or found.path[: len(path)] == path:
            stored = (rename or {}).get(name) or (rename or {}).get(_stored(name)) or _stored(name)
            if stored in columns:
                raise FormatError(f"two features would be called {stored!r}. Give one another name by rename=.")
            columns[stored], sources[stored] = found, name
    if not columns:
        raise FormatError(f"no features of steps are left. There are: {', '.join(placed) or 'none'}.")
    told = [found for found in kept.values() if path is not None and found.path[: len(path)] != path]
    return Chosen(path, columns, sources, [(_entry(found, told), found) for found in told])


def _steps_path(tree: Node, steps: str | None) -> tuple[str, ...] | None:
    top = tree.features if isinstance(tree, Fields) else {}
    if steps is None:
        found = [name for name, node in top.items() if isinstance(node, Repeated) and node.is_dataset]
        if len(found) > 1 and STEPS not in found:
            raise FormatError(
                f'several sequences could be the steps: {", ".join(found)}. Say which: steps="{found[0]}".'
            )
        return None if not found else (STEPS if STEPS in found else found[0],)
    node: Node = tree
    path = tuple(steps.replace("/", ".").split("."))
    for name in path:
        if not isinstance(node, Fields) or name not in node.features:
            raise FormatError(f"steps={steps!r}: there is no such feature. There are: {', '.join(top)}.")
        node = node.features[name]
    if not isinstance(node, Repeated):
        raise FormatError(f"steps={steps!r} is no sequence. Name one: a Dataset, a Sequence or a Video.")
    return path


def _dotted(found: Placed, steps: tuple[str, ...] | None) -> str:
    """Return a feature's name: below the steps, or in the example."""
    if steps is not None and found.path[: len(steps)] == steps:
        return ".".join(found.path[len(steps) :] or steps[-1:])
    return ".".join(found.path)


def _is_named(name: str, wanted: Collection[str]) -> bool:
    """Return whether it, or what it is nested in, is one of some names: of the dataset, or of the store."""
    return any(own == one or own.startswith(f"{one}.") for one in wanted for own in (name, _stored(name)))


def _check_known(names: Collection[str], placed: Mapping[str, Any]) -> None:
    for name in names:
        if not any(_is_named(known, [name]) for known in placed):
            raise FeatureNotFoundError(f"no feature {name!r}. There are: {', '.join(placed)}.")


def _stored(name: str) -> str:
    """Return a name that a store may have, and that hides none of those it computes."""
    plain = NOT_IN_NAMES.sub("_", name)
    is_taken = plain in VIRTUAL_DTYPES or plain in RESERVED
    return f"{STEPS}.{plain}" if is_taken or plain.startswith((".", "-")) else plain


def _entry(found: Placed, told: Sequence[Placed]) -> tuple[str, ...]:
    """Return where a feature of an episode stands in its metadata: those of ``episode_metadata`` at the top."""
    path = found.path
    tops = {other.path[0] for other in told} | OWN_METADATA
    if len(path) > 1 and path[0] == METADATA and path[1] not in tops:
        return path[1:]
    return (f"{STEPS}.{path[0]}", *path[1:]) if path[0] in OWN_METADATA else path


Values = npt.NDArray[Any] | list[Any]


def item_size(leaf: Leaf, shape: tuple[int, ...]) -> int:
    """Return how many numbers or strings of a list are one value of a shape."""
    is_string = leaf.dtype == "string" or leaf.encoding != "none" or leaf.kind == "image"
    return 1 if is_string else int(np.prod(shape, dtype=np.int64))


def values_of(leaf: Leaf, key: str, shape: tuple[int, ...], examples: Examples, *, is_text: bool) -> Values:
    """Return the values of a key, of all examples one after the other.

    Returns:
        [n, *shape] of the feature's dtype; a list of strings; or of tensors, where their shapes vary.
    """
    if leaf.kind == "image":
        return _float_images(examples.strings(key), shape, key)
    if leaf.encoding != "none":
        tensors = [_tensor(blob, leaf, key) for blob in examples.strings(key)]
        return tensors if None in leaf.shape else np.array(tensors, leaf.dtype).reshape(len(tensors), *shape)
    if leaf.dtype == "string":
        return [_text(blob, key) for blob in examples.strings(key)] if is_text else examples.strings(key)
    is_float = np.dtype(leaf.dtype).kind == "f"
    found = examples.floats(key).astype(leaf.dtype, copy=False) if is_float else examples.ints(key, leaf.dtype)
    size = item_size(leaf, shape)
    if found.size % max(1, size):
        raise FormatError(f"{key!r}: {found.size} values, in groups of {size} by features.json.")
    return found.reshape(found.size // max(1, size), *shape)


def default_of(leaf: Leaf, shape: tuple[int, ...], *, is_text: bool) -> Any:
    """Return what TFDS gives for an optional value that is missing: the dtype's lowest number, False, or nothing."""
    if leaf.dtype == "string":
        return "" if is_text else b""
    dtype = np.dtype(leaf.dtype)
    if dtype.kind == "b":
        return np.zeros(shape, dtype)
    return np.full(shape, np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min, dtype)


def _float_images(blobs: list[bytes], shape: tuple[int, ...], key: str) -> npt.NDArray[np.float32]:
    """Return images whose float32 are the bytes of PNG files of four channels: [n, height, width, 1]."""
    codec = make_codec(Image((*shape[:2], 4), codec="png"))
    pixels = np.empty((len(blobs), *shape[:2], 4), np.uint8)
    try:
        for blob, out in zip(blobs, pixels, strict=True):
            head = read_image_head(blob)
            if head is not None and (head.channels, head.dtype) != (4, "uint8"):
                raise FormatError(f"{key!r}: a png file of {head.channels} channels of {head.dtype}, not 4 of uint8.")
            codec.decode_into(np.frombuffer(blob, np.uint8), out)
    except DecodeError as error:
        raise FormatError(f"{key!r}: {error}") from error
    return pixels.view("<f4").astype(np.float32, copy=False)


def _text(blob: bytes, key: str) -> str:
    try:
        return blob.decode()
    except UnicodeDecodeError as error:
        name = key.removeprefix("steps/").replace("/", ".")
        raise FormatError(
            f"{key!r}: bytes that are no text ({error}). Import them as they are, by as_bytes=[{name!r}], or leave "
            f"them out, by ignore=[{name!r}]."
        ) from error


def _tensor(blob: bytes, leaf: Leaf, key: str) -> npt.NDArray[Any]:
    """Return a tensor from its bytes, little-endian, compressed or not."""
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    size = int(np.prod([side for side in leaf.shape if side is not None], dtype=np.int64)) * dtype.itemsize
    is_fixed = None not in leaf.shape
    if leaf.encoding == "zlib":
        blob = _inflated(blob, size if is_fixed else None, key)
    if (len(blob) != size) if is_fixed else (not size or len(blob) % size):
        raise FormatError(f"{key!r}: a tensor of {len(blob)} bytes, by features.json of {leaf.shape} {leaf.dtype}.")
    return np.frombuffer(blob, dtype).astype(leaf.dtype, copy=False).reshape([side or -1 for side in leaf.shape])


def _inflated(blob: bytes, size: int | None, key: str) -> bytes:
    """Return what was compressed; one byte more than there should be is enough to know that it is wrong."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(blob, 1 + (most_bytes(len(blob)) if size is None else size))
    except zlib.error as error:
        raise FormatError(f"{key!r}: {error} in a compressed tensor. The record is damaged: write it again.") from error
    if size is None and len(found) > most_bytes(len(blob)):
        raise FormatError(f"{key!r}: a compressed tensor of {len(blob):,} bytes that is too large. {WHAT_TO_SET}")
    if not inflater.eof and (size is None or len(found) <= size):
        raise FormatError(f"{key!r}: a compressed tensor that is cut off. The record is damaged: write it again.")
    return found


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
        """Return how many rows each example has, int64 [n]; None where its lists do not tell."""
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
