"""How the rows of a feature lie in an Example: numbers, packed numbers, ragged ones, strings, files of images.

::

    Form.read(episode)  -> rows, as they are stored where that is how TFDS has them
    Form.lists(key, rows) -> {key: float32, int64 or bytes lists}, of one step or of all steps of an episode
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, FeatureNotFoundError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Image, Schema
from stepwell.tfds.columns import STEPS
from stepwell.tfds.dataset_files import class_names
from stepwell.tfds.features import Encoding, Leaf, Node, Repeated

__all__ = ["Form", "ImageFormat", "Labels", "Numbers", "StepColumn", "Strings", "form_of", "own_name", "step_columns"]

ImageFormat = Literal["jpeg", "png"]
Lists = Mapping[str, Any]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
LABEL_DTYPE = np.dtype("<i8")
MAX_ITEM_BYTES = 8


class Form(ABC):
    """How the rows of one feature are written.

    Notes:
        An immutable value; picklable.
    """

    def __init__(self, feature: Feature) -> None:
        self.feature = feature

    @property
    @abstractmethod
    def node(self) -> Node:
        """The feature of one step in features.json."""

    @property
    @abstractmethod
    def blank(self) -> Any:
        """The row of a final step, where there is none: zeros."""

    @abstractmethod
    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """Return the lists of an Example that all steps of an episode make."""

    def step_lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """Return the lists of an Example that is one step; ``rows`` has that one."""
        return self.lists(key, rows)

    def read(self, episode: SourceEpisode, name: str, stop: int) -> Sequence[Any]:
        """Return the first ``stop`` rows of a feature of an episode, as `lists` takes them."""
        found: Sequence[Any] = episode.read(name, 0, stop)
        return found


class Numbers(Form):
    """Numbers of a fixed shape: a list of all; float64 becomes float32, uint64 keeps its bits."""

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        return Leaf("tensor", self.feature.np_dtype.name, self.feature.fixed_shape)

    @property
    def blank(self) -> npt.NDArray[Any]:
        """See `Form.blank`."""
        return _zeros(self.feature, 0)

    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.lists`."""
        return {key: np.asarray(rows)}


class Labels(Numbers):
    """Numbers of classes that have names."""

    def __init__(self, feature: Feature, names: Sequence[str]) -> None:
        super().__init__(feature)
        self.names = tuple(names)

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        return Leaf("label", "int64", num_classes=len(self.names))


class Packed(Form):
    """Numbers of a shape that may vary in its first dimension: a string of bytes a step, exact."""

    def __init__(self, feature: Feature, encoding: Encoding) -> None:
        super().__init__(feature)
        self._encoding: Encoding = encoding

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        return Leaf("tensor", self.feature.np_dtype.name, self.feature.shape, self._encoding)

    @property
    def blank(self) -> npt.NDArray[Any]:
        """See `Form.blank`."""
        return _zeros(self.feature, 0)

    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.lists`."""
        dtype = self.feature.np_dtype.newbyteorder("<")
        packed = [np.ascontiguousarray(row, dtype).tobytes() for row in rows]
        return {key: packed if self._encoding == "bytes" else [zlib.compress(row) for row in packed]}


class Ragged(Form):
    """Numbers of a first dimension that varies: all of them one after the other, and how many each step has."""

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        return Repeated(Leaf("tensor", self.feature.np_dtype.name, self.feature.shape[1:]))

    @property
    def blank(self) -> npt.NDArray[Any]:
        """See `Form.blank`."""
        return _zeros(self.feature, 0)

    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.lists`."""
        lengths = np.array([len(row) for row in rows], np.int64)
        return {f"{key}/ragged_flat_values": self._flat(rows), f"{key}/ragged_row_lengths_0": lengths}

    def step_lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.step_lists`."""
        return {key: self._flat(rows)}

    def _flat(self, rows: Sequence[Any]) -> npt.NDArray[Any]:
        return np.concatenate([self.blank, *rows])


class Strings(Form):
    """Text or bytes: a string a step."""

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        return Leaf("text" if self.feature.kind == "text" else "tensor", "string")

    @property
    def blank(self) -> bytes:
        """See `Form.blank`."""
        return b""

    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.lists`."""
        return {key: [row.encode() if isinstance(row, str) else bytes(row) for row in rows]}


class Pictures(Form):
    """Files of images: those that are stored where they are JPEG or PNG, else encoded."""

    def __init__(self, feature: Feature, encoding: ImageFormat) -> None:
        super().__init__(feature)
        codec = make_codec(feature)
        self._stored = codec.embedded() if isinstance(codec, FileCodec) else feature
        self._is_kept = self._stored.codec in IMAGE_FORMATS
        found = self._stored.codec if self._is_kept else encoding
        self._written = Image(feature.shape, feature.np_dtype, codec=found)
        make_codec(self._written)

    @property
    def node(self) -> Node:
        """See `Form.node`."""
        shape = (*self.feature.shape, 1)[:3]
        return Leaf("image", self.feature.np_dtype.name, shape, image_format=self._written.codec)

    @cached_property
    def blank(self) -> bytes:
        """See `Form.blank`: a black image."""
        return make_codec(self._written).encode(_zeros(self.feature, 1))

    def lists(self, key: str, rows: Sequence[Any]) -> Lists:
        """See `Form.lists`."""
        return {key: rows}

    def read(self, episode: SourceEpisode, name: str, stop: int) -> Sequence[bytes]:
        """See `Form.read`."""
        if self._is_kept:
            return self._stored_files(episode, name, stop)
        encode = make_codec(self._written).encode
        if self.feature.is_ragged:
            return [encode(episode.read(name, step, step + 1)[0]) for step in range(stop)]
        return [encode(image) for image in episode.images(name, self.feature, range(stop))]

    def _stored_files(self, episode: SourceEpisode, name: str, stop: int) -> list[bytes]:
        codec, blobs = make_codec(self.feature), episode.blobs(name, stop)
        if not isinstance(codec, FileCodec):
            return [blob.tobytes() for blob in blobs]
        try:
            return list(codec.embed(blobs).rows(self._stored))
        except DecodeError as error:
            raise DecodeError(f"{episode.store.path}: episode {episode.index}, {name!r}: {error}") from error


def form_of(
    name: str, feature: Feature, encoding: Encoding | None = None, images: ImageFormat = "png", labels: Any = None
) -> Form:
    """Return how the rows of a feature are written."""
    where = f"feature {name!r} ({feature})"
    _check_choice(where, "encodings", encoding, (None, *ENCODINGS))
    _check_choice(where, "images", images, IMAGE_FORMATS)
    if labels is not None:
        return _labelled(where, feature, labels)
    if feature.kind in ("text", "bytes"):
        return Strings(feature)
    if feature.kind == "image" and feature.np_dtype in (np.uint8, np.uint16):
        return Pictures(feature, images if feature.np_dtype == np.uint8 else "png")
    return _array_form(where, feature, encoding)


def _zeros(feature: Feature, size: int) -> npt.NDArray[Any]:
    """Return a row of zeros; ``size`` is that of dimensions that vary."""
    return np.zeros(tuple(size if side is None else side for side in feature.shape), feature.np_dtype)


def _array_form(where: str, feature: Feature, encoding: Encoding | None) -> Form:
    if feature.np_dtype.kind not in "biuf" or feature.np_dtype.itemsize > MAX_ITEM_BYTES:
        raise SchemaError(
            f"{where}: TFDS has no such dtype. Leave it out by features=, or store other numbers or text."
        )
    if 0 in feature.shape:
        raise SchemaError(f"{where}: TensorFlow cannot read features of no values. Leave it out by features=.")
    if feature.shape.count(None) > 1:
        raise SchemaError(f"{where}: only the first dimension of numbers may vary. Leave it out by features=.")
    # a list of floats is one of float32
    chosen = encoding or ("bytes" if feature.np_dtype.newbyteorder("<") == np.dtype("<f8") else "none")
    if chosen != "none":
        return Packed(feature, chosen)
    return Ragged(feature) if feature.is_ragged else Numbers(feature)


def _labelled(where: str, feature: Feature, names: Any) -> Labels:
    if feature.np_dtype.newbyteorder("<") != LABEL_DTYPE or feature.shape or feature.kind != "array":
        raise SchemaError(f"{where}: labels are names of classes, whose numbers are int64 scalars.")
    return Labels(feature, class_names(where, names))


def _check_choice(where: str, argument: str, given: Any, allowed: Sequence[Any]) -> None:
    if given not in allowed:
        names = ", ".join(repr(choice) for choice in allowed if choice is not None)
        raise SchemaError(f"{where}: {argument}={given!r}. Allowed: {names}.")


@dataclass(frozen=True, slots=True)
class StepColumn:
    """A feature of steps."""

    source: str
    path: str
    form: Form


def step_columns(
    schema: Schema,
    *,
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    encodings: Any = None,
    images: Any = "png",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[StepColumn, ...]:
    """Return the features that are written, in the schema's order; see `stepwell.tfds.write_rlds` for all arguments.

    Example:
        >>> from stepwell.schema import Array, Schema
        >>> schema = Schema({"observation.state": Array(7), "note": Array()})
        >>> columns = step_columns(schema, features=["observation.state"])
        >>> [(column.path, column.form.node) for column in columns]
        [('observation/state', Leaf(tensor float32 (7,)))]
    """
    chosen = list(schema) if features is None else _known(schema, "features", features)
    for argument, given in (("rename", rename), ("encodings", encodings), ("images", images), ("labels", labels)):
        if isinstance(given, Mapping):
            _known(schema, argument, given)
    return tuple(
        StepColumn(
            name,
            _path(name, (rename or {}).get(name, own_name(name))),
            form_of(
                name, schema[name], _choice(encodings, name), _choice(images, name, "png"), (labels or {}).get(name)
            ),
        )
        for name in schema
        if name in chosen
    )


def _known(schema: Schema, argument: str, given: Collection[str]) -> list[str]:
    if isinstance(given, str):
        raise SchemaError(f"{argument}={given!r}. Give a list of names.")
    for name in given:
        if name not in schema:
            raise FeatureNotFoundError(f"{argument}: no feature {name!r}. There are: {', '.join(schema)}.")
    return list(given)


def _choice(given: Any, name: str, default: Any = None) -> Any:
    """Return what an argument says of a feature: it holds for all, or is a mapping of names."""
    return given.get(name, default) if isinstance(given, Mapping) else given


def own_name(name: str) -> str:
    """Return the name that a feature had where it came from: an import calls ``is_first`` of steps ``steps.is_first``.

    Example:
        >>> own_name("steps.is_first"), own_name("action")
        ('is_first', 'action')
    """
    return name.removeprefix(f"{STEPS}.") if name != STEPS else name


def _path(name: str, target: str) -> str:
    """Return the place of a feature, of a name with dots."""
    parts = target.replace("/", ".").split(".") if isinstance(target, str) else []
    if not parts or not all(parts):
        raise SchemaError(f"feature {name!r} as {target!r}. Allowed: names between single dots, which nest.")
    return "/".join(parts)
