"""Each defect of pictures in the data files is found under its code, with the episodes that it touches."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("av")
pytest.importorskip("PIL")

from stepwell.lerobot.auditing import audit  # noqa: E402
from stepwell.testing.lerobot import encode_png, tiny_lerobot_picture  # noqa: E402

from .damage import change_column, change_json, change_rows, data_files, found, tiny_set  # noqa: E402

CAMERA = "observation.images.top"
SIZE = (16, 24)


def tiny(path, version="v3.0", **options):
    return tiny_set(path, version=version, cameras={CAMERA: ("png", SIZE)}, **options)


def row(data):
    return {"bytes": data, "path": None}


def test_pictures_of_another_size_are_found_by_their_head(tmp_path):
    root = tiny(tmp_path)
    change_json(root / "meta/info.json", lambda info: info["features"][CAMERA].update(shape=[32, 24, 3]))
    report = audit(root)
    assert found(report) == {"image-size": [0]}
    assert "16 x 24, 32 x 24 in info.json" in report.findings[0].message


def test_single_pictures_of_another_size_are_found_when_all_are_decoded(tmp_path):
    root = tiny(tmp_path)
    change_rows(root, CAMERA, {14: row(encode_png(tiny_lerobot_picture(0, 2, 2, (16, 32))))})
    assert found(audit(root)) == {}
    assert found(audit(root, deep=True)) == {"image-size": [2]}


def test_pictures_whose_bytes_are_elsewhere_are_found(tmp_path):
    root = tiny(tmp_path, files=3)
    change_column(data_files(root)[1], CAMERA, lambda rows: [{"bytes": None, "path": "images/7.png"} for _ in rows])
    report = audit(root)
    assert found(report) == {"image-missing": [1]}
    assert found(audit(root, deep=True)) == {"image-missing": [1]}


@pytest.mark.parametrize("damage", [lambda data: b"GIF of old", lambda data: data[: len(data) // 2], lambda data: b""])
def test_pictures_that_cannot_be_decoded_are_found(damage, tmp_path):
    root = tiny(tmp_path)
    picture = encode_png(tiny_lerobot_picture(0, 1, 2, SIZE))
    change_rows(root, CAMERA, {7: row(damage(picture))})
    assert found(audit(root, deep=True)) == {"image-unreadable": [1]}


def test_a_camera_that_hung_and_one_that_was_off_are_named(tmp_path):
    root = tiny(tmp_path)
    black = row(encode_png(np.zeros((*SIZE, 3), np.uint8)))
    still = row(encode_png(tiny_lerobot_picture(0, 0, 3, SIZE)))
    change_rows(root, CAMERA, {**dict.fromkeys(range(5), black), **dict.fromkeys(range(5, 12), still)})
    codes = found(audit(root, deep=True))
    assert codes.pop("statistics-camera", []) == []
    assert codes == {"camera-black": [0], "camera-frozen": [1]}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_sound_pictures_are_decoded_without_a_finding(version, tmp_path):
    assert found(audit(tiny(tmp_path, version, files=2), deep=True)) == {}


def test_an_image_column_of_plain_bytes_is_fine(tmp_path):
    root = tiny(tmp_path)
    (path,) = data_files(root)
    table = pq.read_table(path)
    place = table.column_names.index(CAMERA)
    blobs = pa.array([value["bytes"] for value in table.column(CAMERA).to_pylist()], pa.binary())
    pq.write_table(table.set_column(place, CAMERA, blobs), path)
    assert found(audit(root, deep=True)) == {}


def test_a_camera_in_which_one_colour_changes_is_not_frozen(tmp_path):
    root = tiny(tmp_path)
    pictures = [np.full((*SIZE, 3), 100, np.uint8) for _ in range(5)]
    for step, picture in enumerate(pictures):
        picture[4:12, 8:16, 2] += 20 * step
    change_rows(root, CAMERA, {step: row(encode_png(picture)) for step, picture in enumerate(pictures)})
    assert "camera-frozen" not in found(audit(root, deep=True))


def test_pages_of_pictures_that_were_damaged_are_found(tmp_path):
    root = tiny(tmp_path, files=3)
    path = data_files(root)[1]
    group = pq.ParquetFile(path).metadata.row_group(0)
    (column,) = (c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == f"{CAMERA}.bytes")
    begin = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(data)
    assert found(audit(root)) == {"image-unreadable": [1]}
    assert found(audit(root, deep=True)) == {"image-unreadable": [1]}
