"""The schema and the references of stores that stand for LeRobot datasets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

import stepwell  # noqa: E402
from stepwell.codecs import make_codec  # noqa: E402
from stepwell.errors import FormatError  # noqa: E402
from stepwell.lerobot import Metadata  # noqa: E402
from stepwell.lerobot.mapped_stores import mapped_schema, write_mapped_store  # noqa: E402
from stepwell.references.file_codec import FileCodec, parse_references  # noqa: E402
from stepwell.testing.lerobot import tiny_lerobot, tiny_lerobot_picture  # noqa: E402

TOP = "observation.images.top"
SIZE = (32, 48)
LENGTHS = [5, 6, 4]


def dataset(tmp_path: Path, **options: Any) -> Metadata:
    return Metadata.load(tiny_lerobot(tmp_path / "tiny", cameras={TOP: ("png", SIZE)}, lengths=LENGTHS, **options))


def mapped(metadata: Metadata, path: Path) -> stepwell.Store:
    write_mapped_store(path, metadata, tolerance=1e-4)
    return stepwell.open(path, mode="r", trust=True)


def rewrite(metadata: Metadata, change: Callable[[bytes], Any], kind: Any = None, file: int = 0) -> None:
    """Write a parquet file again with other pictures."""
    path = metadata.data_path(0, file)
    table = pq.read_table(path)
    number = table.schema.get_field_index(TOP)
    pictures = [entry["bytes"] for entry in table.column(TOP).to_pylist()]
    column = pa.array([change(picture) for picture in pictures], kind or table.schema.field(number).type)
    pq.write_table(table.set_column(number, TOP, column), path)


def as_jpeg(file: bytes) -> bytes:
    picture = make_codec(stepwell.Image((*SIZE, 3), codec="png")).decode(np.frombuffer(file, np.uint8))
    return make_codec(stepwell.Image((*SIZE, 3), codec="jpeg")).encode(picture)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_pictures_are_referred_to_by_file_and_row(tmp_path: Path, version: Any) -> None:
    metadata = dataset(tmp_path, version=version, files=2)
    segment = mapped(metadata, tmp_path / "a.well").segments[0]
    blobs = segment.blob_map(TOP)
    found = parse_references([blobs[i : i + 16] for i in range(0, 16 * sum(LENGTHS), 16)])
    files = [0] * 11 + [1] * 4 if version == "v3.0" else [0] * 5 + [1] * 6 + [2] * 4
    rows = [*range(11), *range(4)] if version == "v3.0" else [*range(5), *range(6), *range(4)]
    assert found["file"].tolist() == files
    assert found["at"].tolist() == rows
    assert not found["chunk"].any()


@pytest.mark.parametrize(
    ("change", "kind", "expected"),
    [
        (lambda file: {"bytes": file, "path": None}, None, "png"),
        (lambda file: {"bytes": as_jpeg(file), "path": None}, None, "jpeg"),
        (as_jpeg, pa.binary(), "jpeg"),
        (lambda file: file, pa.large_binary(), "png"),
    ],
)
def test_the_first_picture_tells_how_all_are_embedded(
    tmp_path: Path, change: Callable[[bytes], Any], kind: Any, expected: str
) -> None:
    metadata = dataset(tmp_path)
    rewrite(metadata, change, kind)
    feature = mapped_schema(metadata, 1e-4)[TOP]
    codec = make_codec(feature)
    assert isinstance(codec, FileCodec)
    assert codec.embedded() == stepwell.Image((*SIZE, 3), codec=expected)
    store = mapped(metadata, tmp_path / "a.well")
    shown = store[1][TOP].astype(int)
    pictures = np.array([tiny_lerobot_picture(0, 1, step, SIZE) for step in range(6)])
    assert np.abs(shown - pictures).mean() <= (0 if expected == "png" else 6)


def test_a_column_without_pictures_is_refused(tmp_path: Path) -> None:
    metadata = dataset(tmp_path)
    rewrite(metadata, len, pa.int64())
    with pytest.raises(FormatError, match=f"column '{TOP}' is int64. Allowed: binary, or a struct"):
        mapped(metadata, tmp_path / "a.well")


def test_a_later_file_without_the_camera_is_refused(tmp_path: Path) -> None:
    metadata = dataset(tmp_path, files=2)
    path = metadata.data_path(0, 1)
    pq.write_table(pq.read_table(path).drop_columns([TOP]), path)
    with pytest.raises(FormatError, match=rf"file-001\.parquet has no column '{TOP}'"):
        mapped(metadata, tmp_path / "a.well")
    assert not (tmp_path / "a.well").exists()


def test_the_selected_episodes_alone_are_in_the_store(tmp_path: Path) -> None:
    metadata = dataset(tmp_path, version="v2.1")
    chosen = Metadata.load(metadata.root, episodes=[2])
    for unused in (0, 1):
        metadata.data_path(0, unused).unlink()
    store = mapped(chosen, tmp_path / "a.well")
    assert [episode.metadata["lerobot_episode"] for episode in store] == [2]
    np.testing.assert_array_equal(store[0][TOP][3], tiny_lerobot_picture(0, 2, 3, SIZE))


def test_a_store_of_no_episodes_can_be_written(tmp_path: Path) -> None:
    metadata = Metadata.load(dataset(tmp_path).root, episodes=[])
    store = mapped(metadata, tmp_path / "a.well")
    assert (len(store), store.num_steps) == (0, 0)


def test_a_converted_store_has_the_pictures_files_as_they_are(tmp_path: Path) -> None:
    metadata = dataset(tmp_path)
    store = mapped(metadata, tmp_path / "a.well")
    stepwell.convert(store, tmp_path / "b.well", workers=1)
    copy = stepwell.open(tmp_path / "b.well", mode="r", trust=tmp_path)
    assert copy.schema is not None
    assert copy.schema[TOP] == stepwell.Image((*SIZE, 3), codec="png")
    files = [entry["bytes"] for entry in pq.read_table(metadata.data_path(0, 0)).column(TOP).to_pylist()]
    segment = copy.segments[0]
    assert segment.blob_map(TOP).tobytes() == b"".join(files)
    np.testing.assert_array_equal(copy[2][TOP], store[2][TOP])
