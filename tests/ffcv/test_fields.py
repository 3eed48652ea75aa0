from importlib import import_module

import numpy as np
import pytest

import stepwell.ffcv
from stepwell.beton.layout import FieldType
from stepwell.errors import SchemaError
from stepwell.ffcv.fields import FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField

HOMES = {
    "base": ["Field"],
    "basics": ["IntField", "FloatField"],
    "rgb_image": ["RGBImageField"],
    "bytes": ["BytesField"],
    "json": ["JSONField"],
    "ndarray": ["NDArrayField", "TorchTensorField"],
}


@pytest.mark.parametrize("module", HOMES)
def test_fields_are_found_where_ffcv_has_them(module):
    for name in HOMES[module]:
        field = getattr(import_module(f"stepwell.ffcv.fields.{module}"), name)
        assert field is getattr(stepwell.ffcv.fields, name) is getattr(stepwell.ffcv, name)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        _ = stepwell.ffcv.Loader
    assert "DatasetWriter" in dir(stepwell.ffcv)


def test_descriptors_are_of_ffcv_s_types():
    found = [
        field.encoder.descriptor("x").type_id for field in (FloatField(), IntField(), RGBImageField(), JSONField())
    ]
    assert found == [FieldType.FLOAT, FieldType.INT, FieldType.IMAGE, FieldType.JSON]


def test_arrays_take_dtype_and_shape_as_ffcv_s_do():
    field = NDArrayField(np.dtype("float32"), (16, 10))
    assert (field.dtype, field.shape) == (np.dtype("float32"), (16, 10))
    assert NDArrayField(dtype=np.dtype("int16"), shape=[3]).encoder.descriptor("x").array_type() == ((3,), np.int16)
    with pytest.raises(SchemaError):
        NDArrayField(np.dtype("float32"), ())


def test_tensors_take_dtypes_of_torch():
    torch = pytest.importorskip("torch")
    descriptor = TorchTensorField(torch.float16, (2, 3)).encoder.descriptor("x")
    assert descriptor.type_id == FieldType.TENSOR
    assert descriptor.array_type() == ((2, 3), np.dtype("float16"))
    with pytest.raises(SchemaError, match="bfloat16"):
        TorchTensorField(torch.bfloat16, (2,))


def test_options_of_images_are_ffcv_s():
    pytest.importorskip("simplejpeg")
    field = RGBImageField(
        "proportion", max_resolution=256, smart_threshold=None, jpeg_quality=85.0, compress_probability=None
    )
    assert (field.encoder.jpeg_quality, field.encoder.max_resolution) == (85, 256)
    with pytest.raises(SchemaError, match="write_mode='jpeg'"):
        RGBImageField(write_mode="jpeg")
