"""``features.json``: the tree of a TFDS dataset's features, read and written.

::

    Fields                             FeaturesDict
    ├── episode_metadata: Fields
    │   └── episode_id: Leaf           int32 ()
    └── steps: Repeated                Dataset: the steps of an RLDS episode
        └── Fields
            ├── observation: Fields
            │   └── image: Leaf        jpeg uint8 (64, 64, 3)
            └── action: Leaf           float32 (4,)

Both forms are read: ``{"pythonClassName": ..., "tensor": {...}}``, and the older ``{"type": ..., "content": ...}``. A
class that is not known here is a `Leaf` of kind "unknown": an error only where somebody wants to read it.

Source:
    feature.proto and ``core/features`` of tensorflow-datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from stepwell.errors import FormatError
from stepwell.json_text import parse_json

__all__ = ["Fields", "Leaf", "Node", "Placed", "Repeated", "feature_json", "parse_feature", "walk"]

Shape = tuple[int | None, ...]
Kind = Literal["tensor", "text", "label", "image", "unknown"]
Encoding = Literal["none", "bytes", "zlib"]
# deeper trees are no features of anybody, and would end Python's stack
MAX_DEPTH = 32
MAX_SIDE = 2**31
IMAGE_CHANNELS = (None, 1, 3, 4)
PACKAGE = "tensorflow_datasets"
CLASSES = {
    "FeaturesDict": "features_dict",
    "Tensor": "tensor_feature",
    "Scalar": "scalar",
    "Text": "text_feature",
    "ClassLabel": "class_label_feature",
    "Image": "image_feature",
    "Sequence": "sequence_feature",
    "Dataset": "dataset_feature",
}
# keys of a feature's own content in the newer form
CONTENTS = (
    "tensor",
    "classLabel",
    "image",
    "video",
    "audio",
    "boundingBox",
    "text",
    "translation",
    "sequence",
    "featuresDict",
    "jsonFeature",
)


# of any feature, for people
NOTES = ("description", "valueRange")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A feature that has values.

    Args:
        kind: "tensor", "text" (UTF-8), "label" (int64, a class), "image" (an encoded picture), or "unknown".
        dtype: numpy's name of the decoded elements, or "string" for texts and bytes.
        shape: of a value, without the sequences around it; None where it varies.
        encoding: of a tensor: "none", or its little-endian bytes, "bytes" or "zlib".
        image_format: "jpeg" or "png"; "" where features.json does not say.
        num_classes: of a label.
        is_optional: whether it may be missing from an example.
        class_name: as features.json has it.

    Example:
        >>> Leaf("tensor", "float32", (7,))
        Leaf(tensor float32 (7,))
    """

    kind: Kind
    dtype: str
    shape: Shape = ()
    encoding: Encoding = "none"
    image_format: str = ""
    num_classes: int | None = None
    is_optional: bool = False
    class_name: str = ""

    def __repr__(self) -> str:
        how = self.image_format or ("" if self.encoding == "none" else self.encoding)
        return f"Leaf({' '.join(filter(None, [self.kind, how, self.dtype, str(self.shape)]))})"


@dataclass(frozen=True, slots=True)
class Fields:
    """Features by name."""

    features: Mapping[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A sequence of what another feature describes."""

    feature: Node
    length: int | None = None
    is_dataset: bool = False


Node = Leaf | Fields | Repeated


@dataclass(frozen=True, slots=True)
class Placed:
    """A leaf and where it stands."""

    path: tuple[str, ...]
    leaf: Leaf
    lengths: Shape = ()

    @property
    def key(self) -> str:
        """Of its list in an example."""
        return "/".join(self.path)


def walk(node: Node, path: tuple[str, ...] = (), lengths: Shape = ()) -> Iterator[Placed]:
    """Yield all leaves of a tree with their places, in its order.

    Example:
        >>> tree = Fields({"steps": Repeated(Fields({"action": Leaf("tensor", "float32", (4,))}), is_dataset=True)})
        >>> [(found.key, found.lengths) for found in walk(tree)]
        [('steps/action', (None,))]
    """
    if isinstance(node, Leaf):
        yield Placed(path, node, lengths)
    elif isinstance(node, Repeated):
        yield from walk(node.feature, path, (*lengths, node.length))
    else:
        for name, feature in node.features.items():
            yield from walk(feature, (*path, name), lengths)


def parse_feature(record: Any, where: str = "features.json") -> Node:
    """Return the tree that features.json describes.

    Example:
        >>> parse_feature({"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}})
        Leaf(text string ())
    """
    try:
        return _parse(record, 0)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise FormatError(
            f"{where}: not a description of features: {error!r}. Take the file of the dataset."
        ) from error


def feature_json(node: Node) -> dict[str, Any]:
    """Return a tree as features.json has it, in the newer form.

    Example:
        >>> tree = Fields({"label": Leaf("label", "int64", num_classes=3)})
        >>> parse_feature(feature_json(tree)).features["label"].num_classes
        3
    """
    if isinstance(node, Fields):
        features = {name: feature_json(feature) for name, feature in node.features.items()}
        return {**_class("FeaturesDict"), "featuresDict": {"features": features}}
    if isinstance(node, Repeated):
        length = "-1" if node.length is None else str(node.length)
        name = "Dataset" if node.is_dataset else "Sequence"
        return {**_class(name), "sequence": {"feature": feature_json(node.feature), "length": length}}
    if node.kind == "text":
        return {**_class("Text"), "text": {}}
    if node.kind == "label":
        return {**_class("ClassLabel"), "classLabel": {"numClasses": str(node.num_classes or 0)}}
    content: dict[str, Any] = {"shape": _shape_json(node.shape), "dtype": node.dtype}
    if node.kind == "image":
        return {**_class("Image"), "image": {**content, "encodingFormat": node.image_format}}
    content |= {"encoding": node.encoding, **({"optional": True} if node.is_optional else {})}
    # TFDS takes no encoding from the record of a Scalar
    return {**_class("Tensor" if node.shape or node.encoding != "none" else "Scalar"), "tensor": content}


def _class(name: str) -> dict[str, Any]:
    return {"pythonClassName": f"{PACKAGE}.core.features.{CLASSES[name]}.{name}"}


def _shape_json(shape: Shape) -> dict[str, Any]:
    return {"dimensions": ["-1" if size is None else str(size) for size in shape]} if shape else {}


def _parse(record: Any, depth: int) -> Node:
    if not isinstance(record, Mapping):
        raise FormatError(f"a {type(record).__name__} where the record of a feature belongs.")
    if depth > MAX_DEPTH:
        raise FormatError(f"features within each other, more than {MAX_DEPTH} deep.")
    full_name, content = _class_and_content(record)
    package, _, name = full_name.rpartition(".")
    parse = _PARSERS.get(name) if not package or package.split(".")[0] == PACKAGE else None
    if parse is None or not isinstance(content, Mapping):
        return Leaf("unknown", "", class_name=full_name)
    try:
        return parse(content, full_name, depth)
    except TypeError as error:
        return Leaf("unknown", "", class_name=f"{full_name} ({error})")


def _class_and_content(record: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a feature's class, and what it is described by, in either form."""
    if "type" in record:
        content = record.get("content")
        # a message as text, and the text in quotes once more: both were written
        content = parse_json(content) if isinstance(content, str) else content
        return str(record["type"]), {} if content is None else content
    name = str(record["pythonClassName"])
    found = [record[key] for key in CONTENTS if key in record]
    others = [key for key in record if key not in ("pythonClassName", *NOTES)]
    if not found and others and name.rpartition(".")[2] in _PARSERS:
        raise FormatError(f"{name} has {', '.join(map(repr, others))}, and none of {', '.join(CONTENTS)}.")
    return name, found[0] if found else {}


def _of(content: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return an entry by its name in messages, ``encodingFormat``, or in older files, ``encoding_format``."""
    old = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    value = content.get(name, content.get(old))
    return default if value is None else value


def _size(value: Any) -> int | None:
    """Return a size; None where it varies."""
    size = -1 if value is None else int(value)
    if size > MAX_SIDE:
        raise FormatError(f"a size of {size}. Allowed: up to {MAX_SIDE}.")
    return None if size < 0 else size


def _shape(content: Mapping[str, Any], default: Shape = ()) -> Shape:
    shape = _of(content, "shape", default)
    sizes = shape.get("dimensions", ()) if isinstance(shape, Mapping) else shape
    return tuple(map(_size, sizes))


def _dtype(content: Mapping[str, Any], default: str) -> str:
    """Return a dtype as numpy names it; "string" for texts and bytes."""
    name = str(_of(content, "dtype", default) or default)
    if name in ("string", "object", "str", "bytes", "object_", "str_"):
        return "string"
    found = np.dtype(name)
    if found.kind not in "biuf" or found.itemsize > 8:
        raise TypeError(f"dtype {name!r}")
    return found.name


def _encoding(content: Mapping[str, Any]) -> Encoding:
    name = str(_of(content, "encoding", "none") or "none").lower()
    if name not in get_args(Encoding):
        raise FormatError(f"a tensor of encoding {name!r}. Allowed: {', '.join(get_args(Encoding))}.")
    found: Encoding = next(encoding for encoding in get_args(Encoding) if encoding == name)
    return found


def _tensor(content: Mapping[str, Any], name: str, depth: int) -> Node:
    return Leaf(
        "tensor",
        _dtype(content, "float32"),
        _shape(content),
        _encoding(content),
        is_optional=bool(_of(content, "optional", False)),
        class_name=name,
    )


def _text(content: Mapping[str, Any], name: str, depth: int) -> Node:
    # texts of a dictionary of tokens, long given up
    return Leaf("unknown" if _of(content, "useEncoder") else "text", "string", class_name=name)


def _label(content: Mapping[str, Any], name: str, depth: int) -> Node:
    return Leaf("label", "int64", num_classes=_size(_of(content, "numClasses")), class_name=name)


def _image(content: Mapping[str, Any], name: str, depth: int) -> Node:
    shape = _shape(content) or (None, None, 3)
    if len(shape) != 3 or shape[2] not in IMAGE_CHANNELS:
        raise TypeError(f"an image of shape {shape}")
    image_format = str(_of(content, "encodingFormat", "") or "").lower()
    return Leaf(
        "image",
        _dtype(content, "uint8"),
        shape,
        image_format={"jpg": "jpeg"}.get(image_format, image_format),
        class_name=name,
    )


def _video(content: Mapping[str, Any], name: str, depth: int) -> Node:
    length, *shape = _shape(content) or (None, None, None, 3)
    image = _image({**content, "shape": shape}, name, depth)
    return Repeated(image, length)


def _audio(content: Mapping[str, Any], name: str, depth: int) -> Node:
    if _of(content, "lazyDecode"):  # the bytes of a sound file
        return Leaf("tensor", "string", (), class_name=name)
    shape = _shape(content, (None,))
    return Leaf("tensor", _dtype(content, "int64"), shape, _encoding(content), class_name=name)


def _box(content: Mapping[str, Any], name: str, depth: int) -> Node:
    return Leaf("tensor", "float32", (4,), class_name=name)


def _translation(content: Mapping[str, Any], name: str, depth: int) -> Node:
    text = Leaf("text", "string", class_name=name)
    return Fields({str(language): text for language in _of(content, "languages", ())})


def _translations(content: Mapping[str, Any], name: str, depth: int) -> Node:
    text = Leaf("text", "string", class_name=name)
    return Repeated(Fields({"language": text, "translation": text}))


def _sequence(content: Mapping[str, Any], name: str, depth: int) -> Node:
    feature = _parse(content["feature"], depth + 1)
    return Repeated(feature, _size(content.get("length")), is_dataset=name.endswith("Dataset"))


def _fields(content: Mapping[str, Any], name: str, depth: int) -> Node:
    features = content.get("features", {}) if "features" in content and len(content) == 1 else content
    # a feature may itself be called "features", in the older form
    is_feature = isinstance(features, Mapping) and ("type" in features or "pythonClassName" in features)
    items = (content if is_feature else features).items()
    return Fields({str(key): _parse(value, depth + 1) for key, value in items})


_PARSERS = {
    "FeaturesDict": _fields,
    "Tensor": _tensor,
    "Scalar": _tensor,
    "Text": _text,
    "ClassLabel": _label,
    "Image": _image,
    "LabeledImage": _image,
    "Video": _video,
    "Audio": _audio,
    "BBoxFeature": _box,
    "Translation": _translation,
    "TranslationVariableLanguages": _translations,
    "Sequence": _sequence,
    "Dataset": _sequence,
}
