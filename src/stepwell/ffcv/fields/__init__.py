"""The fields of a sample, by FFCV's names."""

from stepwell.ffcv.fields.base import Field
from stepwell.ffcv.fields.basics import FloatField, IntField
from stepwell.ffcv.fields.bytes import BytesField
from stepwell.ffcv.fields.json import JSONField
from stepwell.ffcv.fields.ndarray import NDArrayField, TorchTensorField
from stepwell.ffcv.fields.rgb_image import RGBImageField

__all__ = [
    "BytesField",
    "Field",
    "FloatField",
    "IntField",
    "JSONField",
    "NDArrayField",
    "RGBImageField",
    "TorchTensorField",
]
