"""Features and schemas: what a step of a store holds."""

from stepwell.schema.features import Array, Bytes, Feature, Image, Text, Video
from stepwell.schema.schemas import Schema, flatten, infer_columns, infer_feature, infer_schema

__all__ = [
    "Array",
    "Bytes",
    "Feature",
    "Image",
    "Schema",
    "Text",
    "Video",
    "flatten",
    "infer_columns",
    "infer_feature",
    "infer_schema",
]
