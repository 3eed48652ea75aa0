from importlib import import_module

import numpy as np
import pytest

import stepwell.ffcv
import stepwell.ffcv.pipeline
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


def test_fields_say_what_they_were_given_for_classes_that_extend_them():
    pytest.importorskip("simplejpeg")
    assert NDArrayField(np.dtype("float16"), (2, 3)).element_size == 12
    field = RGBImageField("jpg", max_resolution=7, smart_threshold=3, jpeg_quality=80.0, compress_probability=0.25)
    found = (field.write_mode, field.max_resolution, field.smart_threshold, field.jpeg_quality, field.proportion)
    assert found == ("jpg", 7, 3, 80, 0.25)
    field.write_mode = "raw"
    assert field.encoder.write_mode == "raw"


def test_modules_are_attributes_and_have_what_ffcv_s_import():
    pytest.importorskip("torch")
    for name in ("fields", "loader", "pipeline", "transforms", "writer", "traversal_order", "memory_managers"):
        assert getattr(stepwell.ffcv, name).__name__ == f"stepwell.ffcv.{name}"
    for home in ("fields.ndarray", "fields.basics", "transforms.flip", "loader.loader"):
        assert import_module(f"stepwell.ffcv.{home}").AllocationQuery is stepwell.ffcv.pipeline.AllocationQuery


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="no attribute 'Loaders'"):
        _ = stepwell.ffcv.Loaders
    assert "DatasetWriter" in dir(stepwell.ffcv)


OTHERS = {
    "fields.decoders": ["IntDecoder", "BytesDecoder", "SimpleRGBImageDecoder", "RandomResizedCropRGBImageDecoder"],
    "libffcv": ["memcpy"],
    "memory_managers": ["OSCacheManager", "ProcessCacheManager"],
    "pipeline.allocation_query": ["AllocationQuery"],
    "pipeline.compiler": ["Compiler"],
    "pipeline.operation": ["Operation", "AllocationQuery"],
    "pipeline.pipeline_spec": ["PipelineSpec"],
    "pipeline.state": ["State"],
    "reader": ["Reader"],
    "transforms.common": ["Squeeze"],
    "transforms.ops": ["ToTensor", "ToDevice", "ToTorchImage", "Convert", "View"],
    "loader.loader": ["Loader", "OrderOption", "ORDER_TYPE"],
    "traversal_order.base": ["TraversalOrder"],
}


@pytest.mark.parametrize("module", OTHERS)
def test_modules_are_found_where_ffcv_has_them(module):
    pytest.importorskip("torch")
    found = import_module(f"stepwell.ffcv.{module}")
    assert all(getattr(found, name).__name__ for name in OTHERS[module] if name != "ORDER_TYPE")
    with pytest.raises(AttributeError):
        _ = found.nothing


BUILT_IN = {
    "float": FloatField(),
    "int": IntField(),
    "image": RGBImageField("raw"),
    "json": JSONField(),
    "array": NDArrayField(np.dtype("float16"), (2, 3)),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_field_is_what_its_binary_says_and_writes_what_its_rows_hold(name):
    field = BUILT_IN[name]
    again = type(field).from_binary(field.to_binary()[0])
    assert type(again) is type(field) and again.metadata_type == field.metadata_type
    assert issubclass(again.get_decoder_class(), stepwell.ffcv.pipeline.Operation)
    if name == "array":
        assert (again.dtype, again.shape) == (field.dtype, field.shape)
    regions = {}

    def malloc(size):
        regions[1000] = np.zeros(size, np.uint8)
        return 1000, regions[1000]

    row = np.zeros(1, field.metadata_type)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    values = {"float": 2.5, "int": -3, "image": pixels, "json": {"a": 1}, "array": np.ones((2, 3), "float16")}
    field.encode(row, values[name], malloc)
    if name in ("float", "int"):
        assert row[0] == values[name] and not regions
    elif name == "image":
        assert row[0].tolist() == (1, 4, 2, 1000) and np.array_equal(regions[1000], pixels.ravel())
    elif name == "json":
        assert row["size"][0] == 9 and JSONField.unpack(regions[1000]) == {"a": 1}
    else:
        assert row[0] == 1000 and np.array_equal(regions[1000].view("float16"), np.ones(6))


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
