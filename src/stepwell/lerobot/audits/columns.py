"""Columns of the data files against the features that ``meta/info.json`` promises: names, types, shapes.

Source: Hugging Face ``datasets`` 3.6 and 4.8 for what they make of a column and of their own metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.formats.arrow_types import numpy_dtype
from stepwell.json_text import parse_json
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.info import DatasetInfo, FeatureInfo

__all__ = ["SHAPE", "TYPE", "numbers_of", "problems_of"]

HF_KEY = b"huggingface"
NUMBER_KINDS = "biuf"

MISSING = Rule("column-missing", "error", "Write the data files again with it, or take the feature out of info.json.")
EXTRA = Rule(
    "column-extra",
    "error",
    "Add it to the features of info.json, or drop the column: LeRobot cannot open it (CastError), stepwell can.",
)
TYPE = Rule("column-type", "error", "Write the column as the feature says, or correct the dtype in info.json.")
WIDTH = Rule(
    "column-width",
    "warning",
    "Correct the dtype in info.json: v3.0 readers convert to it, those of v2.1 give the file's own.",
)
SHAPE = Rule("column-shape", "error", "Write the column as the feature says, or correct the shape in info.json.")
HF_METADATA = Rule(
    "hf-metadata",
    "warning",
    'Write the files again, with "Sequence" instead of "List" and with the type of each image.',
)


def problems_of(schema: Any, info: DatasetInfo) -> Iterator[tuple[Rule, str, str]]:
    """Yield (rule, feature, what is wrong) of a data file's ``pyarrow.Schema``."""
    expected = {name: feature for name, feature in info.features.items() if not feature.is_video}
    for name, feature in expected.items():
        if name not in schema.names:
            yield MISSING, name, "no such column in the data files"
        else:
            yield from _type_problems(schema.field(name).type, feature)
    if not info.is_v3:
        yield from _metadata_problems(schema.metadata or {}, info)
        return
    # v2.1 is read by the files' own schema
    for name in schema.names:
        if name not in info.raw["features"]:
            yield EXTRA, name, "a column of the data files that is no feature"


def _type_problems(found: Any, feature: FeatureInfo) -> Iterator[tuple[Rule, str, str]]:
    from pyarrow import types

    depth, leaf = _leaf_of(found)
    rank = 0 if feature.shape == (1,) or feature.is_text or feature.is_camera else len(feature.shape)
    if feature.is_camera:
        if not _holds_bytes(found):
            yield TYPE, feature.name, f"{found} in the data files, where images are struct<bytes, path>"
    elif feature.is_text:
        if not (types.is_string(found) or types.is_large_string(found)):
            yield TYPE, feature.name, f"{found} in the data files, string in info.json"
    elif (dtype := numpy_dtype(leaf)) is None or dtype.kind != np.dtype(feature.dtype).kind:
        yield TYPE, feature.name, f"{leaf} in the data files, {feature.dtype} in info.json"
    elif dtype.name != feature.dtype:
        yield WIDTH, feature.name, f"{leaf} in the data files, {feature.dtype} in info.json"
    if depth != rank or (types.is_fixed_size_list(found) and found.list_size != feature.shape[0]):
        yield SHAPE, feature.name, f"{found} in the data files, shape {list(feature.shape)} in info.json"


def _leaf_of(arrow_type: Any) -> tuple[int, Any]:
    """Return how many lists are around the numbers, and the type of these."""
    from pyarrow import types

    depth = 0
    while types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        depth, arrow_type = depth + 1, arrow_type.value_type
    return depth, arrow_type


def _holds_bytes(arrow_type: Any) -> bool:
    from pyarrow import types

    if types.is_struct(arrow_type):
        names = [arrow_type.field(number).name for number in range(arrow_type.num_fields)]
        return "bytes" in names and _holds_bytes(arrow_type.field("bytes").type)
    return bool(types.is_binary(arrow_type) or types.is_large_binary(arrow_type))


def _metadata_problems(metadata: dict[bytes, bytes], info: DatasetInfo) -> Iterator[tuple[Rule, str, str]]:
    try:
        features = parse_json(metadata.get(HF_KEY, b"{}")).get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        features = {}
    if '"_type": "List"' in json.dumps(features):
        yield HF_METADATA, "", 'metadata of type "List", which datasets < 4 and so lerobot 0.3 cannot parse'
    for name in info.image_keys:
        if not isinstance(features.get(name), dict) or features[name].get("_type") != "Image":
            yield HF_METADATA, name, "no metadata says that it is an image: lerobot 0.3 gives bytes, not pixels"


def numbers_of(column: Any, feature: FeatureInfo) -> npt.NDArray[Any]:
    """Return a numeric ``pyarrow.ChunkedArray`` as an array [rows, elements]; what is missing is NaN.

    Raises:
        ValueError: they are no numbers, or rows have not as many elements as the feature's shape says.
    """
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    num_rows, num_elements = len(array), int(np.prod(feature.shape))
    while _leaf_of(array.type)[0]:
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        if lengths is not None and len(set(lengths.drop_null().unique().to_pylist())) > 1:
            raise ValueError("rows of several lengths")
        array = array.flatten()
    if len(array) != num_rows * num_elements:
        raise ValueError(f"{len(array)} numbers in {num_rows} rows of shape {list(feature.shape)}")
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if values.dtype.kind not in NUMBER_KINDS:
        # bools of which some are missing come as objects
        values = np.array([np.nan if value is None else value for value in values], np.float64)
    return values.reshape(num_rows, num_elements)
