"""The files that the real FFCV wrote read to the values that it was given, in place and imported, exactly."""

import json

import numpy as np
import pytest
from built_files import SequenceField

import stepwell
from stepwell import Field, Loader, convert
from stepwell.beton import BetonFile, BetonReader
from stepwell.formats.cache import open_in_place

pytest.importorskip("simplejpeg")

ALL = ["all_fields_2M.beton", "all_fields_64K.beton"]


def split(flat, lengths):
    return np.split(flat, np.cumsum(lengths)[:-1])


@pytest.fixture(params=["in place", "imported"])
def opened(request, ffcv_files, tmp_path):
    """Return a function that opens a file of FFCV's as a store, in either way."""

    def opening(name, **options):
        if request.param == "in place":
            return open_in_place(ffcv_files / name, cache=tmp_path / "cache", **options)
        convert(ffcv_files / name, tmp_path / "imported.well", workers=1, **options)
        return stepwell.open(tmp_path / "imported.well")

    return opening


@pytest.mark.parametrize("name", ALL)
def test_all_fields_have_the_values_that_were_written(opened, ffcv_files, name):
    store = opened(name)
    wanted = np.load(ffcv_files / "all_fields_expected.npz")
    assert (len(store), store.num_steps) == (64, 64)
    found = {key: [episode[key][0] for episode in store] for key in store.schema}
    assert np.array_equal(found["int"], wanted["int"])
    assert np.array_equal(np.array(found["float"]).view("u8"), wanted["float"].view("u8"))
    assert found["json"] == list(wanted["json"])
    assert all(isinstance(json.loads(text), dict) for text in found["json"])
    assert found["bytes"] == [part.tobytes() for part in split(wanted["bytes_flat"], wanted["bytes_len"])]
    for key, name_of in (
        ("ndarray", "ndarray"),
        ("nd_i2", "nd_i2"),
        ("tensor", "tensor"),
        ("a_name_of_over_1", "bool"),
    ):
        assert np.array_equal(found[key], wanted[name_of])
        assert found[key][0].dtype == wanted[name_of].dtype


@pytest.mark.parametrize("name", ALL)
def test_images_have_the_pixels_that_ffcv_decodes(opened, ffcv_files, name):
    store = opened(name)
    wanted = np.load(ffcv_files / "all_fields_expected.npz")
    for key, stem in (("image", "image_decoded_rgb"), ("raw", "raw_rgb")):
        shapes = wanted[f"{stem}_shape"]
        pixels = split(wanted[f"{stem}_flat"], shapes.prod(1))
        for episode, shape, flat in zip(store, shapes, pixels, strict=True):
            image = episode[key][0]
            assert image.shape == tuple(shape)
            assert np.array_equal(image.ravel(), flat)


@pytest.mark.parametrize("name", ALL)
def test_jpeg_files_are_the_bytes_that_were_written(ffcv_files, name):
    wanted = np.load(ffcv_files / "all_fields_expected.npz")
    file = BetonFile(ffcv_files / name)
    offsets, sizes = file.spans("image", file.rows())
    found = [file.read(*span) for span in zip(offsets.tolist(), sizes.tolist(), strict=True)]
    assert found == [part.tobytes() for part in split(wanted["image_jpeg_flat"], wanted["image_jpeg_len"])]


@pytest.mark.parametrize("name", ["fixed64_jpg", "fixed64_raw"])
def test_images_of_one_size_are_batches_in_any_order(opened, ffcv_files, name):
    store = opened(f"{name}.beton")
    wanted = np.load(ffcv_files / f"{name}_expected.npz")
    assert store.schema["image"].fixed_shape == (64, 64, 3)
    for order in ("sequential", "random", "pooled"):
        rows = []
        for batch in Loader(store, {"image": Field("image"), "label": Field("label")}, batch_size=7, order=order):
            anchors = batch["label"].ravel()
            rows += [(int(label), image.copy()) for label, image in zip(anchors, batch["image"], strict=True)]
        assert len(rows) == 64
        assert sorted(label for label, _ in rows) == sorted(wanted["label"].ravel())
        if order == "sequential":
            assert np.array_equal([image.squeeze() for _, image in rows], wanted["image"])
        else:
            left = [image.squeeze().tobytes() for _, image in rows]
            assert sorted(left) == sorted(image.tobytes() for image in wanted["image"])


def test_a_file_of_numbers_alone_has_no_pages(opened, ffcv_files):
    store = opened("scalars_only.beton")
    wanted = np.load(ffcv_files / "all_fields_expected.npz")
    assert np.array_equal([episode["i"][0] for episode in store], wanted["int"])
    assert np.array_equal(np.array([episode["f"][0] for episode in store]).view("u8"), wanted["float"].view("u8"))


def test_a_custom_field_reads_windows_of_shared_episodes(opened, ffcv_files):
    store = opened("rl_shared.beton", custom_fields={"sequence": SequenceField})
    wanted = np.load(ffcv_files / "rl_shared_expected.npz")
    windows = np.array([episode["sequence"][0] for episode in store])
    assert windows.shape == (110, 5, 4, 4)
    assert np.array_equal(windows, np.broadcast_to(wanted["windows"][:, :, None, None], windows.shape))
    assert [episode["ix"][0] for episode in store] == list(range(110))


def test_rows_of_a_custom_field_are_as_its_writer_put_them(ffcv_files):
    rows = BetonFile(ffcv_files / "rl_shared.beton", {"sequence": SequenceField}).rows()["sequence"]
    wanted = np.load(ffcv_files / "rl_shared_expected.npz")
    for name, key in (("ptr", "episode_ptr"), ("start", "frame_start"), ("end", "frame_end")):
        assert np.array_equal(rows[name], wanted[key])


def test_images_are_told_by_their_rows(ffcv_files):
    schemas = {name: BetonReader(str(ffcv_files / name)).schema for name in [*ALL, "fixed64_jpg.beton"]}
    assert str(schemas[ALL[0]]["image"]) == "jpeg ?x?x3 uint8"
    assert str(schemas[ALL[0]]["raw"]) == "raw ?x?x3 uint8"
    assert str(schemas["fixed64_jpg.beton"]["image"]) == "jpeg 64x64x3 uint8"
