"""Parquet files that follow each other: numbers, sizes, types."""

import weakref

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from stepwell.lerobot.info import NUMBERS, FeatureInfo  # noqa: E402
from stepwell.lerobot.meta_files import open_parquet  # noqa: E402
from stepwell.lerobot.parquet_writing import (  # noqa: E402
    GROUP_EPISODES,
    EpisodeRow,
    EpisodeTableWriter,
    FileNumbers,
    ParquetFiles,
    data_schema,
    data_table,
    episode_schema,
    hf_features,
)


def info(name, dtype, shape=(1,)):
    return FeatureInfo(name, dtype, shape, None, {})


def test_numbers_go_on_in_the_next_directory():
    numbers = FileNumbers(3, first=(1, 2))
    assert [numbers.take() for _ in range(3)] == [(1, 2), (2, 0), (2, 1)]


def test_tables_are_row_groups_and_files_are_split_by_what_they_would_be(tmp_path):
    infos = [info("x", "int64")]
    schema = data_schema(infos)
    files = ParquetFiles(lambda chunk, file: tmp_path / f"{chunk}-{file}.parquet", schema, FileNumbers(1000), 0.01)
    places = []
    rng = np.random.default_rng(0)
    for _ in range(6):
        places.append(files.begin(400))
        files.write(data_table(schema, infos, {"x": rng.integers(0, 2**62, 400)}))
    files.close()
    assert places == [(0, n) for n in (0, 0, 1, 1, 2, 2)]
    assert [pa.parquet.ParquetFile(tmp_path / f"0-{n}.parquet").num_row_groups for n in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3), (2, 1, 2, 1, 2)])
def test_numbers_of_all_types_and_shapes_come_back(tmp_path, dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, (4, *(() if shape == (1,) else shape))).astype(dtype)
    infos = [info("x", dtype, shape)]
    pa.parquet.write_table(data_table(data_schema(infos), infos, {"x": values}), tmp_path / "a.parquet")
    found = pa.parquet.read_table(tmp_path / "a.parquet")["x"]
    assert np.array_equal(np.array(found.to_pylist(), dtype).reshape(values.shape), values)
    kind = str(found.type)
    assert kind.startswith({1: "fixed_size_list"}.get(len(shape), "list")) or shape == (1,)


def test_images_text_and_videos_have_the_columns_that_lerobot_has():
    infos = [info("image", "image", (2, 2, 3)), info("note", "string"), info("video", "video", (2, 2, 3))]
    schema = data_schema(infos)
    assert str(schema.field("image").type) == "struct<bytes: binary, path: string>"
    assert schema.names == ["image", "note"]
    table = data_table(schema, infos, {"image": [b"\x89PNG", b"x"], "note": ["a", "b"]})
    assert table.to_pylist()[0] == {"image": {"bytes": b"\x89PNG", "path": None}, "note": "a"}
    assert hf_features(infos) == {"image": {"_type": "Image"}, "note": {"dtype": "string", "_type": "Value"}}


def test_a_table_of_any_rows_is_written(tmp_path):
    infos = [info("x", "float32", (2,))]
    schema = data_schema(infos)
    files = ParquetFiles(lambda chunk, file: tmp_path / "a.parquet", schema, FileNumbers(1000), 1)
    files.begin(0)
    files.write(data_table(schema, infos, {"x": np.zeros((0, 2), np.float32)}))
    files.close()
    assert pa.parquet.read_table(tmp_path / "a.parquet").num_rows == 0


def test_pages_of_all_parquet_files_that_are_written_have_checksums(tmp_path):
    from stepwell.lerobot import write_dataset
    from stepwell.testing import tiny_store

    store = tiny_store(tmp_path / "a.well")
    write_dataset(store, tmp_path / "set", fps=10)
    files = sorted((tmp_path / "set").rglob("*.parquet"))
    assert len(files) >= 3
    for path in files:
        data = path.read_bytes()
        group = pa.parquet.read_metadata(path).row_group(0)
        errors = []
        for column in map(group.column, range(group.num_columns)):
            # the last byte of its pages is a value's, or of an index of values
            first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            last = first + column.total_compressed_size - 1
            path.write_bytes(data[:last] + bytes([data[last] ^ 0xFF]) + data[last + 1 :])
            try:
                with open_parquet(path) as file:
                    file.read(columns=[column.path_in_schema.split(".")[0]])
            except OSError as error:
                errors.append(str(error))
        assert any("CRC checksum verification failed" in error for error in errors), path


class Files:
    """What the writer needs of `ParquetFiles`; remembers how many rows came at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.rows: list[dict] = []

    def begin(self, num_rows: int) -> tuple[int, int]:
        self.sizes.append(num_rows)
        return 0, 0

    def write(self, table) -> None:
        self.rows += table.to_pylist()

    def close(self) -> None:
        pass


class Tasks(list):
    """A list that can be referred to weakly."""


def test_no_more_rows_are_held_than_a_group_of_the_file():
    files, held = Files(), []
    writer = EpisodeTableWriter(files, episode_schema([]))
    count = 2 * GROUP_EPISODES + 2
    for index in range(count):
        tasks = Tasks(["push"])
        held.append(weakref.ref(tasks))
        writer.add(EpisodeRow(index, tasks, 3, 3 * index, (0, 0), {}, {}))
        del tasks
        assert sum(each() is not None for each in held) <= GROUP_EPISODES
    writer.close()
    assert files.sizes == [GROUP_EPISODES, GROUP_EPISODES, 2]
    assert [row["episode_index"] for row in files.rows] == list(range(count))
