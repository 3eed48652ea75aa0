"""The schema and the references of stores that stand for LeRobot datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.codecs import make_codec
from stepwell.errors import FormatError
from stepwell.lerobot import Metadata
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.mapped_stores import (
    array_of,
    mapped_schema,
    read_columns,
    read_files,
    text_of,
    write_mapped_store,
)
from stepwell.references.file_codec import FileCodec, noted_dataset, parse_references
from stepwell.testing.lerobot import (
    tiny_lerobot,
    tiny_lerobot_picture,
    tiny_lerobot_rows,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")


TOP = "observation.images.top"
SIZE = (32, 48)
LENGTHS = [5, 6, 4]


def dataset(tmp_path: Path, **options: Any) -> Metadata:
    return Metadata.load(tiny_lerobot(tmp_path / "tiny", cameras={TOP: ("png", SIZE)}, lengths=LENGTHS, **options))


def mapped(metadata: Metadata, path: Path) -> stepwell.Store:
    write_mapped_store(path, metadata, dataset=noted_dataset(str(metadata.root), INFO_PATH), tolerance=1e-4)
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


FIVE_LENGTHS = [5, 7, 6, 8, 4]
NAMES = ("action", "observation.grid", "next.done", "observation.note", "timestamp", "index")
F32, I64 = np.dtype(np.float32), np.dtype(np.int64)


def number_dataset(tmp_path: Path, **options: Any) -> Metadata:
    return Metadata.load(tiny_lerobot(tmp_path / "tiny", cameras={}, lengths=FIVE_LENGTHS, **options))


def rewrite_table(metadata: Metadata, change: Callable[[Any], Any], file: int = 0, **options: Any) -> Path:
    """Write a parquet file of a dataset again, changed."""
    path = metadata.data_path(0, file)
    pq.write_table(change(pq.read_table(path)), path, **options)
    return path


def replaced(name: str, values: Any) -> Callable[[Any], Any]:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(("version", "files"), [("v3.0", 1), ("v3.0", 2), ("v2.1", 1), ("v2.0", 1)])
def test_columns_are_those_of_the_episodes(tmp_path: Path, version: Any, files: int) -> None:
    metadata = number_dataset(tmp_path, version=version, files=files)
    found = dict(read_columns(metadata, range(5), NAMES))
    assert list(found) == [0, 1, 2, 3, 4]
    for episode, length in enumerate(FIVE_LENGTHS):
        first = sum(FIVE_LENGTHS[:episode])
        expected = tiny_lerobot_rows(episode, length) | {"index": np.arange(first, first + length)}
        for name in NAMES:
            values = found[episode][name]
            if name == "observation.note":
                assert values == expected[name]
                continue
            assert isinstance(values, np.ndarray)
            assert values.dtype == expected[name].dtype
            np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("chosen", [[0], [4], [1, 3], [0, 1, 4], []])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_some_episodes_are_read_alone(tmp_path: Path, version: Any, chosen: list[int]) -> None:
    metadata = number_dataset(tmp_path, version=version)
    found = dict(read_columns(metadata, chosen, ["action", "observation.note"]))
    assert list(found) == chosen
    for episode in chosen:
        expected = tiny_lerobot_rows(episode, FIVE_LENGTHS[episode])
        np.testing.assert_array_equal(found[episode]["action"], expected["action"])
        assert found[episode]["observation.note"] == expected["observation.note"]


def test_rows_in_the_file_are_told(tmp_path: Path) -> None:
    metadata = number_dataset(tmp_path, files=2)
    found = list(read_files(metadata, [1, 2, 4], ["action"]))
    assert [(rows.file, rows.places.tolist(), rows.first_rows.tolist()) for rows in found] == [
        (0, [1, 2], [5, 12]),
        (1, [4], [8]),
    ]


def test_rows_of_no_episode_are_left_out(tmp_path: Path) -> None:
    metadata = number_dataset(tmp_path)
    stray = {"episode_index": pa.array([77, 77]), "frame_index": pa.array([5, 9])}

    def with_strays(table: Any) -> Any:
        extra = table.slice(0, 2)
        for name, values in stray.items():
            extra = replaced(name, values)(extra)
        return pa.concat_tables([extra, table.slice(0, 12), extra, table.slice(12)])

    rewrite_table(metadata, with_strays)
    found = dict(read_columns(metadata, range(5), ["action"]))
    for episode, length in enumerate(FIVE_LENGTHS):
        np.testing.assert_array_equal(found[episode]["action"], tiny_lerobot_rows(episode, length)["action"])


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
def test_row_groups_may_cut_episodes(tmp_path: Path, row_group_size: int) -> None:
    metadata = number_dataset(tmp_path)
    rewrite_table(metadata, lambda table: table, row_group_size=row_group_size)
    found = dict(read_columns(metadata, [1, 3, 4], ["observation.grid", "observation.note"]))
    for episode in (1, 3, 4):
        expected = tiny_lerobot_rows(episode, FIVE_LENGTHS[episode])
        np.testing.assert_array_equal(found[episode]["observation.grid"], expected["observation.grid"])
        assert found[episode]["observation.note"] == expected["observation.note"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.slice(1), "episode 0 has 4 rows .* the table of episodes says 5"),
        (lambda table: table.slice(5), "episode 0 has 0 rows"),
        (lambda table: pa.concat_tables([table.slice(1), table.slice(0, 1)]), "episode 0 has 5 rows in 2 places"),
        (lambda table: pa.concat_tables([table.slice(0, 1), table]), "episode 0 has 6 rows"),
        (
            lambda table: pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)]),
            "column 'frame_index' is 1 in row 0 of an episode .2 rows are wrong.",
        ),
        (lambda table: table.drop_columns(["action"]), "has no column 'action'"),
        (lambda table: table.drop_columns(["frame_index"]), "has no column 'frame_index'"),
        (
            replaced("action", pa.array([[0.0, 1.0]] * 29 + [None], pa.list_(pa.float32(), 2))),
            "column 'action': 1 of 30 values are missing",
        ),
        (
            replaced("action", pa.array([[0.0, 1.0]] * 29 + [[0.0]], pa.list_(pa.float32()))),
            "column 'action' has a list of 1 values where others have 2",
        ),
        (
            replaced("action", pa.array([[0.0, 1.0, 2.0]] * 30, pa.list_(pa.float32(), 3))),
            r"column 'action' has rows of shape \(3,\)\. meta/info.json says float32 of shape \(2,\)",
        ),
        (replaced("action", pa.array(["a"] * 30)), r"column 'action' has rows of shape \(\)"),
        (replaced("observation.note", pa.array([1.5] * 30)), "column 'observation.note' is of type double"),
        (replaced("next.done", pa.array([0.5] * 30)), "column 'next.done' is of type double"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    metadata = number_dataset(tmp_path)
    path = rewrite_table(metadata, change)
    with pytest.raises(FormatError, match=message) as caught:
        list(read_columns(metadata, range(5), NAMES))
    assert str(path) in str(caught.value)


def test_a_missing_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    metadata = number_dataset(tmp_path, files=2)
    path = metadata.data_path(0, 1)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FormatError, match=r"file-001\.parquet"):
        list(read_columns(metadata, range(5), NAMES))
    path.unlink()
    with pytest.raises(FormatError, match=r"file-001\.parquet is missing"):
        list(read_columns(metadata, range(5), NAMES))


def chunked(values: Any, kind: Any, cut: int = 2) -> Any:
    return pa.chunked_array([pa.array(values[:cut], kind), pa.array(values[cut:], kind)])


@pytest.mark.parametrize(
    ("column", "dtype", "shape", "expected"),
    [
        (pa.chunked_array([pa.array([1.5, 2.5], pa.float32())]), F32, (), [1.5, 2.5]),
        (pa.chunked_array([pa.array([9, 1.5, 2.5], pa.float64()).slice(1)]), F32, (), [1.5, 2.5]),
        (pa.chunked_array([pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1))]), F32, (), [1.0, 2.0]),
        (pa.chunked_array([pa.array([True, False, True]).slice(1)]), np.dtype(bool), (), [False, True]),
        (pa.chunked_array([pa.array([7, 7, 8]).dictionary_encode()]), I64, (), [7, 7, 8]),
        (pa.chunked_array([pa.array([7, 8], pa.int8())]), I64, (), [7, 8]),
        (chunked([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)), I64, (2,), [[1, 2], [3, 4], [5, 6]]),
        (chunked([[1, 2], [3, 4], [5, 6]], pa.large_list(pa.int64())), I64, (2,), [[1, 2], [3, 4], [5, 6]]),
        (chunked([[[1]], [[3]], [[5]]], pa.list_(pa.list_(pa.int64()))), I64, (1, 1), [[[1]], [[3]], [[5]]]),
        (chunked([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int64()))), I64, (1, 2), [[[1, 2]], [[3, 4]]]),
        (pa.chunked_array([pa.array([[0], [1], [2]], pa.list_(pa.int64())).slice(1)]), I64, (1,), [[1], [2]]),
        (pa.chunked_array([], pa.list_(pa.int64(), 2)), I64, (2,), []),
        (pa.chunked_array([pa.array(np.array([1.0], np.float16))]), np.dtype(np.float16), (), [1.0]),
    ],
)  # fmt: skip
def test_arrow_columns_become_arrays(column: Any, dtype: Any, shape: tuple[int, ...], expected: list[Any]) -> None:
    found = array_of(column, dtype, shape, "it")
    assert (found.dtype, found.shape) == (dtype, (len(expected), *shape))
    assert found.tolist() == expected


def test_lists_of_even_lengths_are_not_copied() -> None:
    column = pa.chunked_array([pa.array(np.arange(12.0).reshape(4, 3).tolist(), pa.list_(pa.float64(), 3))])
    found = array_of(column, np.dtype(np.float64), (3,), "it")
    address = column.chunk(0).values.buffers()[1].address
    assert found.__array_interface__["data"][0] == address


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_of_any_kind_become_bytes_and_sizes(kind: Any) -> None:
    texts = ["zero", "", "zwei", "três", "四"]
    found = text_of(pa.chunked_array([pa.array(texts, pa.string()).cast(kind).slice(1)]), "it")
    assert found.data.tobytes().decode() == "zweitrês四"
    assert found.sizes.tolist() == [0, 4, 5, 3]


def test_missing_texts_are_refused() -> None:
    with pytest.raises(FormatError, match="it: 1 of 2 values are missing"):
        text_of(pa.chunked_array([pa.array(["a", None])]), "it")
