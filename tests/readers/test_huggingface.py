"""Arrow and Parquet files of Hugging Face's datasets are cut into episodes and read to what was written in them."""

import json
from pathlib import Path

import numpy as np
import pytest
from kinds_of_images import image_files

import stepwell
from stepwell import convert
from stepwell.codecs import make_codec
from stepwell.errors import FormatError
from stepwell.formats import find_reader, open_reader
from stepwell.formats.splits import taken_split
from stepwell.schema import Image

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("imagecodecs")

EPISODES = np.repeat([3, 0, 7, 5], [5, 6, 2, 10])
COUNT = len(EPISODES)
FEATURES = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}


def pictures(shapes) -> list[bytes]:
    codec = make_codec(Image((None, None, 3), codec="png"))
    return [codec.encode(np.full((*shape, 3), step, np.uint8)) for step, shape in enumerate(shapes)]


def make_table(shapes=((16, 20),) * COUNT):
    files = pa.array([{"bytes": blob, "path": f"{step}.png"} for step, blob in enumerate(pictures(shapes))])
    table = pa.table(
        {
            "episode_index": EPISODES,
            "state": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * COUNT, dtype=np.float32)), 3),
            "pose": pa.array([[float(step)] * 4 for step in range(COUNT)]),
            "matrix": pa.array([[[step, 1], [2, 3], [4, 5]] for step in range(COUNT)]),
            "found": pa.array([list(range(step % 4)) for step in range(COUNT)], pa.list_(pa.int32())),
            "text": [f"step {step}" for step in range(COUNT)],
            "label": pa.array([step % 2 for step in range(COUNT)]),
            "done": [step % 3 == 0 for step in range(COUNT)],
            "camera": files,
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps(FEATURES)})


def save_to_disk(folder: Path, table, shards=(9, 1, 13)) -> Path:
    """Write a table as `datasets` does: streams of batches, and which they are."""
    folder.mkdir(parents=True)
    names, start = [], 0
    for number, size in enumerate(shards):
        names.append(f"data-{number:05d}-of-{len(shards):05d}.arrow")
        with pa.ipc.new_stream(folder / names[-1], table.schema) as stream:
            stream.write_table(table.slice(start, size), max_chunksize=4)
        start += size
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def write_parquet(folder: Path, table, name="train-00000-of-00001.parquet") -> Path:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "data" / name, row_group_size=6)
    return folder


def check(store: stepwell.Store) -> None:
    assert [episode.metadata["episode"] for episode in store] == [3, 0, 7, 5]
    assert [len(episode["state"]) for episode in store] == [5, 6, 2, 10]
    step = 0
    for episode in store:
        for row in range(len(episode["state"])):
            assert episode["state"][row].tolist() == [3 * step, 3 * step + 1, 3 * step + 2]
            assert episode["pose"][row].tolist() == [step] * 4
            assert episode["matrix"][row].tolist() == [[step, 1], [2, 3], [4, 5]]
            assert episode["found"][row].tolist() == list(range(step % 4))
            assert (episode["text"][row], episode["label"][row], episode["done"][row]) == (
                f"step {step}",
                step % 2,
                step % 3 == 0,
            )
            assert (episode["camera"][row] == step).all()
            step += 1
    assert store.metadata["huggingface"] == {"labels": {"label": ["a", "b"]}}


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train-00000-of-00002-b42a775f407cee45", "train-00001-of-00002-a0", "test-00000-of-00001-c4"], (2, 1)),
        (["train", "test"], (1, 1)),
        (["train_0", "train_1", "test.v2"], (2, 1)),
    ],
)
def test_names_of_files_tell_their_splits(tmp_path: Path, files: list[str], splits: tuple[int, int]):
    for name in files:
        write_parquet(tmp_path / "set", pa.table({"x": [0]}), f"{name}.parquet")
    assert len(open_reader(tmp_path / "set")) == splits[0]
    told = taken_split(open_reader(tmp_path / "set").metadata)
    assert told is not None and (told.taken, set(told.splits)) == ("train", {"train", "test"})
    assert len(open_reader(tmp_path / "set", options={"split": "test"})) == splits[1]


def test_a_name_that_no_store_has_is_told_and_can_be_left_out(tmp_path: Path):
    source = write_parquet(tmp_path / "set", pa.table({"x": [0], "left arm": [1]}))
    with pytest.raises(FormatError, match=r"feature name 'left arm' .* with ignore=\['left arm'\]"):
        open_reader(source)
    assert list(open_reader(source, options={"ignore": "left arm"}).schema) == ["x"]


def test_columns_that_dots_make_alike_are_refused(tmp_path: Path):
    source = write_parquet(tmp_path / "set", pa.table({"a": [{"b": 1}], "a.b": [2]}))
    with pytest.raises(FormatError, match=r"two features are called 'a\.b'"):
        open_reader(source)


def test_other_names_are_one_split(tmp_path: Path):
    for name in ("trainer_a", "trial_b", "valley"):
        write_parquet(tmp_path / "set", pa.table({"x": [0]}), f"{name}.parquet")
    assert len(open_reader(tmp_path / "set")) == 3


@pytest.mark.parametrize("write", [save_to_disk, write_parquet])
@pytest.mark.parametrize("name", ["info.run", "run.id"])
def test_a_part_of_a_struct_and_a_name_with_a_dot_tell_the_episode(tmp_path: Path, write, name: str):
    plain = {"run.id": ["b", "b", "a"], "x": [1, 2, 3], "info": [{"run": run, "y": 0} for run in (4, 4, 2)]}
    reader = open_reader(write(tmp_path / "set", pa.table(plain)), options={"episode": name})
    assert [len(episode.columns["x"]) for episode in reader.episodes()] == [2, 1]
    assert [episode.metadata["episode"] for episode in reader.episodes()] == {"info.run": [4, 2], "run.id": ["b", "a"]}[
        name
    ]


def test_a_shard_without_rows_is_passed_over(tmp_path: Path):
    folder = save_to_disk(tmp_path / "set", make_table(), shards=(9, 0, 14))
    with pa.ipc.new_stream(folder / "data-00001-of-00003.arrow", make_table().schema):
        pass  # not even an empty batch
    reader = open_reader(folder)
    assert (len(reader), reader.edges.tolist()) == (4, [0, 2])
    convert(folder, tmp_path / "a.well", workers=0)
    check(stepwell.open(tmp_path / "a.well", mode="r"))


@pytest.mark.parametrize("write", [save_to_disk, write_parquet])
def test_rows_become_episodes_with_all_their_values(tmp_path: Path, write):
    source = write(tmp_path / "set", make_table())
    assert find_reader(source).name == "huggingface"
    convert(source, tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert str(store.schema["camera"]) == "png 16x20x3 uint8"
    assert str(store.schema["found"]) == "raw ? int32"
    check(store)


def test_it_opens_in_place_and_by_several_processes(tmp_path: Path):
    source = save_to_disk(tmp_path / "set", make_table())
    check(stepwell.open(f"huggingface://{source}", cache=tmp_path / "cache"))
    convert(source, tmp_path / "a.well", workers=2)
    check(stepwell.open(tmp_path / "a.well"))


def test_splits_are_chosen_by_name(tmp_path: Path):
    for split, size in (("train", COUNT), ("test", 5)):
        save_to_disk(tmp_path / "dict" / split, make_table().slice(0, size), (size,))
    (tmp_path / "dict" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    write_parquet(tmp_path / "pq", make_table())
    write_parquet(tmp_path / "pq", make_table().slice(0, 5), "test-00000-of-00001.parquet")
    for source in (tmp_path / "dict", tmp_path / "pq"):
        assert len(open_reader(source)) == 4
        assert len(open_reader(source, options={"split": "test"})) == 1
        with pytest.raises(FormatError, match=r"has the splits test, train\. Say which"):
            open_reader(source, options={"split": "val"})


def test_the_column_of_episodes_can_be_named_or_done_without(tmp_path: Path):
    table = make_table().rename_columns(["which", *make_table().column_names[1:]])
    source = write_parquet(tmp_path / "set", table)
    assert len(open_reader(source)) == COUNT
    assert len(open_reader(source, options={"episode": "which", "ignore": "found,text"})) == 4
    assert "text" not in open_reader(source, options={"ignore": "found,text"}).schema
    with pytest.raises(FormatError, match="episode='nothing'"):
        open_reader(source, options={"episode": "nothing"})
    with pytest.raises(FormatError, match=r"ignore=\['nothing'\]"):
        open_reader(source, options={"ignore": ["nothing"]})


def test_episodes_whose_rows_are_apart_are_refused(tmp_path: Path):
    table = make_table()
    source = write_parquet(tmp_path / "set", pa.concat_tables([table, table.slice(0, 2)]))
    with pytest.raises(FormatError, match=r"rows of episode_index 3 do not follow each other. Sort them first"):
        open_reader(source)


def test_pictures_of_several_sizes_are_images_of_any_size(tmp_path: Path):
    shapes = [(16, 20), (8, 9)] * COUNT
    store = stepwell.open(
        f"huggingface://{write_parquet(tmp_path / 'set', make_table(shapes[:COUNT]))}", cache=tmp_path / "cache"
    )
    assert str(store.schema["camera"]) == "file-span ?x?x3 uint8" or store.schema["camera"].shape == (None, None, 3)
    assert [row.shape for row in store[2]["camera"]] == [(8, 9, 3), (16, 20, 3)]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "state.json"),
        ('{"_data_files": []}', "lists the files"),
        ('{"_data_files": [{"filename": "../a"}]}', "lists"),
    ],
)
def test_a_list_of_files_that_is_wrong_is_told(tmp_path: Path, state: str, message: str):
    source = save_to_disk(tmp_path / "set", make_table())
    (source / "state.json").write_text(state)
    with pytest.raises(FormatError, match=message):
        open_reader(source)


def test_a_missing_value_is_told(tmp_path: Path):
    table = make_table()
    texts = table.column("text").to_pylist()
    table = table.set_column(5, "text", pa.array([None, *texts[1:]]))
    with pytest.raises(FormatError, match=r"rows 0 to 5 .*text has 1 rows or values that are missing"):
        open_reader(write_parquet(tmp_path / "set", table))[0]


def test_names_with_dots_and_structs_are_dotted_features(tmp_path: Path):
    inner = pa.array([{"pose": {"x": float(step)}, "found": list(range(step % 3))} for step in range(COUNT)])
    table = make_table().append_column("observation", inner)
    table = table.rename_columns({"state": "observation.state"})
    reader = open_reader(write_parquet(tmp_path / "set", table))
    assert {"observation.state", "observation.pose.x", "observation.found"} < set(reader.schema)
    columns = reader[1].columns
    assert columns["observation.pose.x"].tolist() == [5, 6, 7, 8, 9, 10]
    assert [row.tolist() for row in columns["observation.found"]] == [list(range(step % 3)) for step in range(5, 11)]
    assert columns["observation.state"][0].tolist() == [15, 16, 17]


def test_lists_that_differ_only_late_are_refused_and_never_shifted(tmp_path: Path):
    # as many values in all as if each row had two
    rows = [[0.0, 1.0]] * 300 + [[2.0], [3.0, 4.0, 5.0]]
    table = pa.table({"episode": [0] * 300 + [1, 1], "found": pa.array(rows)})
    source = write_parquet(tmp_path / "set", table)
    (source / "data/train-00000-of-00001.parquet").unlink()
    pq.write_table(table, source / "all.parquet")
    reader = open_reader(source)
    with pytest.raises(FormatError, match=r"lists of 1 to 3 values.*varying=\['found'\]"):
        reader[1]
    columns = open_reader(source, options={"varying": "found"})[1].columns
    assert [row.tolist() for row in columns["found"]] == rows[300:]


def test_pictures_that_differ_only_late_are_refused(tmp_path: Path):
    shapes = [(8, 9)] * 300 + [(8, 9), (9, 9)]
    table = pa.table(
        {
            "episode": [0] * 300 + [1, 1],
            "camera": pa.array([{"bytes": pictures([shape])[0], "path": None} for shape in shapes]),
        }
    )
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set" / "all.parquet")
    with pytest.raises(FormatError, match=r"row 1: an image of \(9, 9\).*varying=\['camera'\]"):
        open_reader(tmp_path / "set")[1]
    store = stepwell.open(f"huggingface://{tmp_path / 'set'}", cache=tmp_path / "cache", varying="camera")
    assert [row.shape for row in store[1]["camera"]] == [(8, 9, 3), (9, 9, 3)]


@pytest.mark.parametrize(("shape", "dtype"), [((8, 9, 1), "uint8"), ((8, 9, 4), "uint8"), ((8, 9, 1), "uint16")])
def test_pictures_keep_their_channels_and_depth(tmp_path: Path, shape: tuple[int, ...], dtype: str):
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype) * (1 if dtype == "uint8" else 900)
    file = make_codec(Image(shape, dtype, codec="png")).encode(value)
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"camera": pa.array([{"bytes": file, "path": None}] * 3)}), tmp_path / "set" / "a.parquet")
    store = stepwell.open(f"huggingface://{tmp_path / 'set'}", cache=tmp_path / "cache")
    assert len(store) == 3
    assert np.array_equal(store[2]["camera"][0], value)


def write_pictures(path: Path, files: list[bytes]) -> str:
    path.mkdir()
    table = pa.table({"camera": pa.array([{"bytes": file, "path": None} for file in files])})
    pq.write_table(table, path / "all.parquet")
    return str(path)


@pytest.mark.parametrize(
    ("names", "shape", "codec"),
    [
        (["png grey", "png palette 4", "png rgb"], (21, 34, 3), "png"),
        (["png rgb", "png rgba", "png grey alpha"], (21, 34, 4), "png"),
        (["jpeg rgb", "jpeg grey", "jpeg cmyk"], (21, 34, 3), "jpeg"),
        (["jpeg rgb", "png palette 8", "webp"], (21, 34, 3), "image-file"),
    ],
)
def test_pictures_of_several_kinds_show_their_colours(tmp_path: Path, names: list[str], shape, codec: str):
    files = image_files()
    source = write_pictures(tmp_path / "set", [files[name].data for name in names])
    convert(source, tmp_path / "a.well", workers=0)
    for store in (stepwell.open(tmp_path / "a.well"), stepwell.open(f"huggingface://{source}")):
        assert store.schema["camera"] == Image(shape, codec=codec)
        for name, episode in zip(names, store, strict=True):
            most = 0 if files[name].is_exact else 24
            assert np.abs(episode["camera"][0][..., :3].astype(int) - files[name].colors).max() <= most


def test_pictures_of_more_channels_or_another_format_that_come_late_are_refused_unless_they_vary(tmp_path: Path):
    files = image_files()
    for number, (usual, late, words) in enumerate(
        [
            ("png rgb", "png rgba", r"row 0: a png file of 4 channels of uint8, .*varying=\['camera'\]"),
            ("png rgb", "jpeg cmyk", r"row 0: a jpeg file of 3 channels of uint8, .*varying=\['camera'\]"),
        ]
    ):
        blobs = [files[usual].data] * 600
        blobs[300] = files[late].data
        source = write_pictures(tmp_path / str(number), blobs)
        with pytest.raises(FormatError, match=words):
            open_reader(source)[300]
        convert(source, tmp_path / f"{number}.well", workers=0, varying="camera")
        store = stepwell.open(tmp_path / f"{number}.well")
        assert store.schema["camera"] == Image((None, None, 3), codec="image-file")
        assert np.abs(store[300]["camera"][0].astype(int) - files[late].colors).max() < 9


@pytest.mark.parametrize(("channels", "codec"), [(3, "png"), ("1", "png"), (4, "png")])
def test_pictures_have_the_channels_that_are_asked_for(tmp_path: Path, channels, codec: str):
    files = image_files()
    blobs = [files["png rgb"].data] * 600
    blobs[300] = files["png rgba"].data
    source = write_pictures(tmp_path / "set", blobs)
    convert(source, tmp_path / "a.well", workers=0, channels=channels)
    for store in (stepwell.open(tmp_path / "a.well"), stepwell.open(f"huggingface://{source}?channels={channels}")):
        assert store.schema["camera"] == Image((21, 34, int(channels)), codec=codec)
        if channels == 3:
            assert (store[300]["camera"][0] == files["png rgba"].colors).all()


def test_rows_that_are_episodes_come_many_at_a_time(tmp_path: Path):
    table = make_table().drop_columns(["episode_index"])
    convert(write_parquet(tmp_path / "set", table), tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert len(store) == COUNT
    assert [episode["state"][0, 0] for episode in store] == list(range(0, 3 * COUNT, 3))
    assert [len(episode["found"][0]) for episode in store] == [step % 4 for step in range(COUNT)]
    assert [int(episode["camera"][0, 0, 0, 0]) for episode in store] == list(range(COUNT))


def test_rows_chosen_by_indices_are_refused(tmp_path: Path):
    source = save_to_disk(tmp_path / "set", make_table())
    told = json.loads((source / "state.json").read_text())
    (source / "state.json").write_text(json.dumps({**told, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(FormatError, match="rows are chosen by indices"):
        open_reader(source)
