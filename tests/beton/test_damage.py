"""Damaged .beton files: a clear error, or as many values as there are samples; no crash, no hang, bounded memory.

The format has no checksums: a changed pixel cannot be told. All numbers that say where and how much are.
"""

import numpy as np
import pytest
from built_files import Built, SequenceField, array_arguments, struct

from stepwell.beton import BetonReader
from stepwell.codecs import make_codec
from stepwell.store.bulk_writing import Blobs
from stepwell.testing import check_damage

pytest.importorskip("simplejpeg")

COPIES = 150


def read_all(path):
    """Return every value of a file, by the codecs that a store in place has."""
    custom = {"sequence": SequenceField} if path.name == "rl_shared.beton" else None
    reader = BetonReader(str(path), custom_fields=custom)
    schema, found = reader.in_place_schema, 0
    for block in reader.blocks():
        for name, column in block.columns.items():
            if isinstance(column, Blobs):
                codec = make_codec(schema[name])
                # one value at a time: they need not fit into memory together
                found += sum(1 for row in column.data.reshape(-1, 16) if codec.decode(row) is not None)
            else:
                found += len(column)
    assert found == len(reader) * len(schema)
    return found


@pytest.fixture
def all_kinds(tmp_path):
    """Return a file of some samples of every kind of field."""
    jpeg = make_codec(_image("jpeg")).encode(np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3))
    built = Built(
        [(2, b"image", b""), (0, b"f", b""), (1, b"i", b""), (3, b"bytes", b""), (5, b"json", b""),
         (4, b"array", array_arguments((3,), "<f4")), (6, b"tensor", array_arguments((2, 2), "<i2"))]
    )  # fmt: skip
    built.rows = [bytes(80)] * 12
    start = built.start()
    for i in range(12):
        image = (1, 4, 3, bytes(36)) if i % 3 else (0, 16, 12, jpeg)
        places = [start + built.put(i, data) for data in (image[3], b"abc" * i, b'"x"\0', bytes(12), bytes(8))]
        row = struct.pack("<BHHQ3xdqQQQQ", *image[:3], places[0], 0.5, i, places[1], 3 * i, places[2], 4)
        built.rows[i] = row + struct.pack("<QQ", *places[3:])
    return built.write(tmp_path / "kinds.beton", 12)


def _image(codec):
    from stepwell.schema import Image

    return Image((12, 16, 3), codec=codec)


def test_the_files_that_are_damaged_are_whole_before(all_kinds):
    assert read_all(all_kinds) == 12 * 7


def test_every_kind_of_field_survives_damage(all_kinds):
    report = check_damage(all_kinds, read_all, count=4 * COPIES)
    assert report.errors and report.num_read


@pytest.mark.parametrize("name", ["fixed64_jpg", "fixed64_raw", "scalars_only", "all_fields_64K"])
def test_files_of_ffcv_survive_damage(ffcv_files, tmp_path, name):
    path = tmp_path / f"{name}.beton"
    path.write_bytes((ffcv_files / path.name).read_bytes())
    report = check_damage(path, read_all, count=COPIES if name != "all_fields_64K" else 40)
    assert report.errors and report.num_read


def test_a_custom_field_survives_damage(ffcv_files, tmp_path):
    path = tmp_path / "rl_shared.beton"
    path.write_bytes((ffcv_files / path.name).read_bytes())
    assert check_damage(path, read_all, count=COPIES).errors
