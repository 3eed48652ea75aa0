"""Stores written as LeRobot datasets: what the files hold, as a reader of the format finds it."""

import io
import json
import threading
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")

from kinds_of_images import image_files  # noqa: E402

import stepwell  # noqa: E402
from stepwell import Array, Image, View  # noqa: E402
from stepwell.codecs import make_codec  # noqa: E402
from stepwell.errors import (  # noqa: E402
    DecodeError,
    EpisodeNotFoundError,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
)
from stepwell.lerobot import statistics_of, write_dataset  # noqa: E402
from stepwell.lerobot.dataset_files import DatasetFiles  # noqa: E402
from stepwell.lerobot.info import NUMBERS as NUMBER_TYPES  # noqa: E402
from stepwell.lerobot.metadata import Metadata  # noqa: E402
from stepwell.lerobot.writing import Preparation  # noqa: E402
from stepwell.store import EncodedRows  # noqa: E402

from .written import H264, make_store, read_frames, read_info, read_tables, read_video  # noqa: E402

NUMBERS = ["observation.state", "action", "next.reward", "next.done", "grid", "note"]
CODEC_ERROR = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store") / "a.well")


@pytest.fixture(scope="module")
def v3(store, tmp_path_factory):
    root = tmp_path_factory.mktemp("v3") / "set"
    write_dataset(store, root, video=H264)
    return root


@pytest.fixture(scope="module")
def v21(store, tmp_path_factory):
    root = tmp_path_factory.mktemp("v21") / "set"
    write_dataset(store, root, version="v2.1", video=H264)
    return root


def expected_numbers(store, name):
    columns = [store[e][name][: store[e].length] for e in range(len(store))]
    return [*chain(*columns)] if isinstance(columns[0], list) else np.concatenate(columns)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("version", ["v3", "v21"])
def test_numbers_and_text_are_written_as_they_are(store, version, name, request):
    root = request.getfixturevalue(version)
    found, expected = read_tables(root)[name].to_pylist(), expected_numbers(store, name)
    if name == "note":
        assert found == expected
    else:
        assert np.array_equal(np.array(found, expected.dtype), expected)


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_index_columns_are_made_anew(version, request):
    table = read_tables(request.getfixturevalue(version))
    lengths = [5, 3, 8]
    frame_index = np.concatenate([np.arange(n) for n in lengths])
    assert table["index"].to_pylist() == list(range(16))
    assert table["episode_index"].to_pylist() == np.repeat([0, 1, 2], lengths).tolist()
    assert table["frame_index"].to_pylist() == frame_index.tolist()
    assert table["timestamp"].to_pylist() == (frame_index / 10).astype(np.float32).tolist()
    assert table["task_index"].to_pylist() == np.repeat([0, 1, 0], lengths).tolist()
    assert table.schema.names[-5:] == ["timestamp", "frame_index", "episode_index", "index", "task_index"]


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_png_files_are_written_byte_by_byte(store, version, request):
    rows = read_tables(request.getfixturevalue(version))["camera.png"].to_pylist()
    blobs = []
    for segment in store.segments:
        offsets, blob = segment.offsets_map("camera.png"), segment.blob_map("camera.png")
        blobs += [blob[int(a) : int(b)].tobytes() for a, b in pairwise(offsets)]
    assert [row["bytes"] for row in rows] == [blob for blob in blobs if blob]


def test_stored_video_is_put_into_files_without_another_loss(store, v3):
    for row in read_tables(v3, "meta/episodes/*/*.parquet").to_pylist():
        frames = read_frames(v3, "camera.video", row)
        assert np.array_equal(frames, store[row["episode_index"]]["camera.video"])


def test_raw_images_are_encoded(store, v3):
    for row in read_tables(v3, "meta/episodes/*/*.parquet").to_pylist():
        frames = read_frames(v3, "camera.raw", row).astype(int)
        assert np.abs(frames - store[row["episode_index"]]["camera.raw"]).max() < CODEC_ERROR


def test_v21_has_a_video_of_each_episode_from_zero(store, v21):
    for episode in range(3):
        path = v21 / f"videos/chunk-000/camera.video/episode_{episode:06d}.mp4"
        times, frames = read_video(path)
        assert np.array_equal(frames, store[episode]["camera.video"])
        np.testing.assert_allclose(times, np.arange(store[episode].length) / 10, atol=1e-9)


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_the_metadata_reads_back(store, version, request):
    metadata = Metadata.load(request.getfixturevalue(version))
    assert metadata.tasks == ("task 0", "task 1")
    assert metadata.episodes.length.tolist() == [5, 3, 8]
    assert [tuple(tasks) for tasks in metadata.episodes.tasks] == [("task 0",), ("task 1",), ("task 0",)]
    assert metadata.info.cameras == ("camera.png", "camera.raw", "camera.video")
    assert metadata.info.video_keys == ("camera.raw", "camera.video")
    assert metadata.info.features["action"].names == ["left", "right"]
    assert (metadata.info.total_episodes, metadata.info.total_frames, metadata.info.fps) == (3, 16, 10.0)


def test_stored_statistics_are_those_of_the_store(store, v3):
    stored, computed = Metadata.load(v3).stats, statistics_of(store)
    for name, stats in computed.items():
        for key, value in stats.items():
            np.testing.assert_allclose(stored[name][key], value, rtol=1e-9, err_msg=f"{name} {key}")


def test_statistics_of_episodes_are_in_both_versions(store, v3, v21):
    one = View(store).select([1])
    for root, per_element in ((v3, False), (v21, True)):
        stored = Metadata.load(root).episode_stats(1)
        for name, stats in statistics_of(one, per_element=per_element).items():
            for key in ("min", "max", "mean", "std", "count"):
                found = np.ravel(stored[name][key])
                np.testing.assert_allclose(found, stats[key].ravel(), rtol=1e-9, err_msg=f"{name} {key}")


def test_least_and_greatest_values_keep_their_kind(v3, v21):
    stats = json.loads((v3 / "meta/stats.json").read_text())
    assert stats["next.done"]["min"] == [False] and stats["next.done"]["max"] == [True]
    assert all(type(value) is int for value in stats["grid"]["min"])
    types = {field.name: str(field.type) for field in read_tables(v3, "meta/episodes/*/*.parquet").schema}
    assert types["stats/next.done/max"] == "list<element: bool>"
    assert types["stats/grid/max"] == "list<element: int64>"
    assert types["stats/camera.raw/std"] == "list<element: list<element: list<element: double>>>"
    line = json.loads((v21 / "meta/episodes_stats.jsonl").read_text().splitlines()[0])
    assert "q01" not in line["stats"]["action"] and np.shape(line["stats"]["grid"]["mean"]) == (2, 3)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_the_greatest_whole_numbers_keep_their_sign(tmp_path, version):
    ends = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    store = stepwell.create(tmp_path / "a.well", {"ticks": Array((), "int64")}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"ticks": ends}, task="x")
    store.refresh()
    stats = write_dataset(store, tmp_path / "set", version=version).episode_stats(0)["ticks"]
    assert [stats["min"], stats["max"]] == ends.astype(np.float64).tolist()


def test_each_episode_is_a_row_group_of_its_own(v3):
    (path,) = v3.glob("data/*/*.parquet")
    metadata = pa.parquet.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [5, 3, 8]
    assert metadata.row_group(0).column(0).compression == "SNAPPY"


def test_the_declared_features_are_read_by_all_generations_of_datasets(v3):
    schema = read_tables(v3).schema
    declared = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(declared) == schema.names
    assert declared["action"] == {"feature": {"dtype": "float32", "_type": "Value"}, "length": 2, "_type": "Sequence"}
    assert declared["grid"] == {"shape": [2, 3], "dtype": "int64", "_type": "Array2D"}
    assert declared["camera.png"] == {"_type": "Image"}


def test_an_episode_is_in_one_file_and_files_are_split_by_size(store, tmp_path):
    metadata = write_dataset(store, tmp_path / "set", video=H264, data_files_mb=0.02, video_files_mb=0.001)
    assert metadata.episodes.data_file.tolist() == [0, 1, 2]
    assert metadata.episodes.videos["camera.video"].file.tolist() == [0, 1, 2]
    assert metadata.episodes.videos["camera.video"].start.tolist() == [0, 0, 0]
    for row in read_tables(tmp_path / "set", "meta/episodes/*/*.parquet").to_pylist():
        frames = read_frames(tmp_path / "set", "camera.video", row)
        assert np.array_equal(frames, store[row["episode_index"]]["camera.video"])


def test_the_same_bytes_come_of_any_number_of_workers(store, tmp_path):
    written, before = [], set(threading.enumerate())
    for workers in (0, 3):
        write_dataset(store, tmp_path / str(workers), video=H264, workers=workers)
        files = sorted(path for path in (tmp_path / str(workers)).rglob("*") if path.is_file())
        written.append({path.relative_to(tmp_path / str(workers)): path.read_bytes() for path in files})
    assert written[0] == written[1]
    assert set(threading.enumerate()) <= before


def test_no_more_episodes_are_prepared_ahead_than_there_are_workers(store, tmp_path, monkeypatch):
    held, most = [], []
    prepare, add = Preparation.prepare, DatasetFiles.add

    def counted(self, episode, place):
        prepared = prepare(self, episode, place)
        held.append(place.index)
        most.append(len(held))
        return prepared

    def let_go(self, episode):
        add(self, episode)
        held.remove(episode.place.index)

    monkeypatch.setattr(Preparation, "prepare", counted)
    monkeypatch.setattr(DatasetFiles, "add", let_go)
    several = View([store, make_store(tmp_path / "b.well", (2,) * 9)])
    for workers in (0, 2):
        most.clear()
        write_dataset(several, tmp_path / str(workers), features=["action"], workers=workers)
        assert max(most) <= workers + 1


def test_av1_is_what_lerobot_encodes(tmp_path):
    from stepwell.codecs.video_encoding import built_in_encoders

    if "av1" not in built_in_encoders():
        pytest.skip("this PyAV cannot encode av1")
    store = make_store(tmp_path / "a.well", (4,), names=["action", "camera.raw"])
    write_dataset(store, tmp_path / "set")
    entry = read_info(tmp_path / "set")["features"]["camera.raw"]
    assert entry["info"]["video.codec"] == "av1"
    assert (entry["info"]["video.height"], entry["info"]["video.width"], entry["info"]["video.fps"]) == (48, 64, 10)
    _, frames = read_video(tmp_path / "set/videos/camera.raw/chunk-000/file-000.mp4")
    assert np.abs(frames.astype(int) - store[0]["camera.raw"]).max() < CODEC_ERROR


def test_cameras_are_written_as_asked(store, tmp_path):
    metadata = write_dataset(
        store,
        tmp_path / "set",
        video=H264,
        cameras={"camera.png": "video", "camera.raw": "image", "camera.video": "image"},
    )
    assert metadata.info.video_keys == ("camera.png",)
    rows = read_tables(tmp_path / "set")
    codec = make_codec(Image((48, 64, 3), codec="png"))
    for name in ("camera.raw", "camera.video"):
        first = np.frombuffer(rows[name][0].as_py()["bytes"], np.uint8)
        assert np.array_equal(codec.decode(first), store[0][name][0])


def test_grey_and_odd_cameras_are_written_in_colour_and_as_images(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"grey": Image((32, 48)), "odd": Image((31, 48, 3))}, fps=10)
    grey = np.tile(np.arange(0, 192, 4, dtype=np.uint8), (4, 32, 1))
    with store.writer() as writer:
        writer.add_episode({"grey": grey, "odd": np.zeros((4, 31, 48, 3), np.uint8)}, task="x")
    store.refresh()
    metadata = write_dataset(store, tmp_path / "set", video=H264)
    assert metadata.info.video_keys == ("grey",) and metadata.info.image_keys == ("odd",)
    assert metadata.info.features["grey"].shape == (32, 48, 3)
    _, frames = read_video(tmp_path / "set/videos/grey/chunk-000/file-000.mp4")
    assert np.abs(frames.astype(int) - grey[..., None]).max() < CODEC_ERROR
    with pytest.raises(SchemaError, match=r"'odd' is 31x48.*cameras="):
        write_dataset(store, tmp_path / "other", cameras={"odd": "video"})


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 9, 3), (9, 1, 3), (1, 1), (1, 1, 1)])
def test_images_of_one_row_or_column_are_written(tmp_path, shape):
    pictures = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    store = stepwell.create(tmp_path / "a.well", {"camera": Image(shape)}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"camera": pictures}, task="x")
    store.refresh()
    write_dataset(store, tmp_path / "set")
    codec = make_codec(Image((*shape[:2], 3), codec="png"))
    files = read_tables(tmp_path / "set")["camera"].to_pylist()
    for picture, file in zip(pictures, files, strict=True):
        found = codec.decode(np.frombuffer(file["bytes"], np.uint8))
        assert (found == picture.reshape(*shape[:2], -1)).all()


@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_files_that_are_not_rgb_are_written_as_rgb_and_those_that_are_as_they_are(tmp_path, codec):
    pillow = pytest.importorskip("PIL.Image")
    files = {name: kind for name, kind in image_files(16, 24).items() if name.startswith(codec)}
    store = stepwell.create(tmp_path / "a.well", {"camera": Image((16, 24, 3), codec=codec)}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"camera": EncodedRows([kind.data for kind in files.values()])}, task="a")
    write_dataset(store, tmp_path / "set")
    rows = read_tables(tmp_path / "set")["camera"].to_pylist()
    for row, (name, kind) in zip(rows, files.items(), strict=True):
        shown = np.asarray(pillow.open(io.BytesIO(row["bytes"])))
        assert shown.shape == (16, 24, 3), name
        assert np.abs(shown.astype(int) - kind.colors).max() <= (0 if kind.is_exact else 9), name
        is_rgb = name.startswith(f"{codec} rgb") and not name.startswith("png rgba") and " 16" not in name
        assert (row["bytes"] == kind.data) == is_rgb, name


def test_a_file_that_cannot_be_made_rgb_is_named(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"camera": Image((16, 24, 3), codec="png")}, fps=10)
    with store.writer() as writer:
        grey = image_files(16, 24)["png grey"].data
        writer.add_episode({"camera": EncodedRows([grey, grey[:-20]])}, task="a")
    with pytest.raises(DecodeError, match=r"a\.well: episode 0, 'camera': png row of \d+ bytes"):
        write_dataset(store, tmp_path / "set", workers=0)


def test_own_timestamps_are_kept_on_the_grid_and_made_anew_off_it(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"timestamp": Array((), "float64"), "action": Array(2)}, fps=10)
    near = np.arange(4) / 10 + 1e-5
    with store.writer() as writer:
        for times in (near, np.arange(4) / 10 + 0.03):
            writer.add_episode({"timestamp": times, "action": np.zeros((4, 2), np.float32)}, task="x")
    store.refresh()
    write_dataset(store, tmp_path / "set")
    found = read_tables(tmp_path / "set")["timestamp"].to_pylist()
    assert found == [*near.astype(np.float32).tolist(), *(np.arange(4) / 10).astype(np.float32).tolist()]


def test_a_rate_that_is_no_whole_number_gives_exact_times(tmp_path):
    store = make_store(tmp_path / "a.well", (30, 30), names=["action", "camera.video"], fps=29.97)
    metadata = write_dataset(store, tmp_path / "set")
    times, frames = read_video(tmp_path / "set/videos/camera.video/chunk-000/file-000.mp4")
    np.testing.assert_allclose(times, np.arange(60) / 29.97, atol=1e-6)
    assert metadata.episodes.videos["camera.video"].start.tolist() == [0.0, 30 / 29.97]
    assert len(frames) == 60 and metadata.info.fps == 29.97


def test_features_are_left_out_and_renamed(store, tmp_path):
    metadata = write_dataset(
        store, tmp_path / "set", features=["action", "note"], rename={"action": "control", "note": "task"}
    )
    assert [name for name, info in metadata.info.features.items() if not info.is_index] == ["control"]
    # the text feature that was renamed says the task of each step
    assert metadata.tasks[:2] == ("0:0 – é", "0:1 – é") and len(metadata.tasks) == 16


def test_a_part_of_a_store_and_several_stores_are_written(store, tmp_path):
    other = make_store(tmp_path / "b.well", (4,), first=5)
    metadata = write_dataset(View([store, other]).select([2, 3]), tmp_path / "set", features=["action"])
    assert metadata.episodes.length.tolist() == [8, 4]
    expected = np.concatenate([store[2]["action"], other[0]["action"]])
    assert np.array_equal(np.array(read_tables(tmp_path / "set")["action"].to_pylist(), np.float32), expected)


def test_the_store_is_found_by_its_path(store, tmp_path):
    assert len(write_dataset(str(store.path), tmp_path / "set", features=["action"]).episodes) == 3


shapes = st.one_of(st.just(()), st.tuples(st.integers(1, 4)), st.tuples(st.integers(1, 3), st.integers(1, 3)))
numbers = st.builds(Array, shapes, st.sampled_from(NUMBER_TYPES))


@settings(max_examples=20)
@given(features=st.lists(numbers, min_size=1, max_size=4), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_any_numbers_come_back(tmp_path_factory, features, lengths):
    folder = tmp_path_factory.mktemp("any")
    schema = {f"f{number}": feature for number, feature in enumerate(features)}
    rng = np.random.default_rng(len(features))
    rows = {name: rng.integers(0, 100, (sum(lengths), *f.shape)).astype(f.np_dtype) for name, f in schema.items()}
    store = stepwell.create(folder / "a.well", schema, fps=10)
    with store.writer() as writer:
        for start, stop in pairwise([0, *np.cumsum(lengths)]):
            writer.add_episode({name: values[start:stop] for name, values in rows.items()}, task="x")
    store.refresh()
    assert write_dataset(store, folder / "set", workers=0).episodes.length.tolist() == lengths
    table = read_tables(folder / "set")
    for name, values in rows.items():
        assert np.array_equal(np.array(table[name].to_pylist(), values.dtype).reshape(values.shape), values)


def test_what_is_there_is_not_touched(store, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/mine.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match="is there already"):
        write_dataset(store, tmp_path / "set", features=["action"])
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_nothing_is_left_of_a_write_that_fails(tmp_path):
    store = make_store(tmp_path / "a.well", (3, 3), names=["action"], tasks=["one", "two"])
    with pytest.raises(StepwellError, match=r"2 tasks in its metadata.*task="):
        write_dataset(store, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.well"]


def test_a_row_that_cannot_be_decoded_is_named_and_nothing_is_left(tmp_path):
    store = make_store(tmp_path / "a.well", (3, 4), names=["camera.png"])
    (blobs,) = store.path.glob("segments/*/camera.png.bin")
    damaged = bytearray(blobs.read_bytes())
    damaged[int(store.segments[0].offsets_map("camera.png")[5]) + 20] ^= 0xFF
    blobs.write_bytes(damaged)
    before = set(threading.enumerate())
    for workers in (0, 2):
        with pytest.raises(DecodeError, match=r"a\.well: episode 1, step 2, feature 'camera\.png'"):
            write_dataset(store, tmp_path / "set", cameras="video", video=H264, workers=workers)
        assert [path.name for path in tmp_path.iterdir()] == ["a.well"]
    assert set(threading.enumerate()) <= before


def test_an_episode_that_is_recorded_and_none_at_all_are_refused(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"action": Array(2)}, fps=10)
    with pytest.raises(EpisodeNotFoundError, match="no episode to write"):
        write_dataset(store, tmp_path / "set", task="x")
    with store.writer() as writer:
        writer.append(action=np.zeros(2, np.float32))
        store.refresh()
        with pytest.raises(StoreBusyError, match="episode 0 is still being recorded"):
            write_dataset(store, tmp_path / "set", task="x")


def test_a_store_without_a_rate_needs_one(tmp_path):
    store = make_store(tmp_path / "a.well", (3,), names=["action"], fps=None)
    with pytest.raises(SchemaError, match=r"fps=None.*Give fps="):
        write_dataset(store, tmp_path / "set")
    assert write_dataset(store, tmp_path / "set", fps=5).info.fps == 5


def test_arguments_that_cannot_be_are_refused(store, tmp_path):
    for options, what in (
        ({"version": "v2.0"}, "version='v2.0'"),
        ({"version": "v2.1", "append": True}, r"Only v3\.0"),
        ({"workers": -1}, "workers=-1"),
        ({"cameras": "mp4"}, "cameras='mp4'"),
        ({"task": 3}, "task=3"),
        ({"fps": float("inf")}, "fps=inf"),
        ({"fps": 1e-9}, "fps=1e-09"),
        ({"data_files_mb": float("nan")}, "data_files_mb=nan"),
        ({"video_files_mb": 0}, "video_files_mb=0"),
    ):
        with pytest.raises(StepwellError, match=what):
            write_dataset(store, tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()
