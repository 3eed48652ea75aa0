"""LeRobot datasets become stores: values, bytes as they are, metadata."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("imagecodecs")


import stepwell
from stepwell import convert
from stepwell.errors import FormatError, WorkerError
from stepwell.formats import find_reader, open_reader
from stepwell.formats.reader_episodes import ReaderEpisodes
from stepwell.lerobot.reader import LeRobotReader
from stepwell.recorders.recoding import converted_schema
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
TOP, SIDE = "observation.images.top", "observation.images.side"
VERSIONS = ("v2.0", "v2.1", "v3.0")
SIZES = {TOP: (32, 48), SIDE: (16, 16)}


def tiny(folder, kind, **options):
    """Write a dataset with two cameras of one kind."""
    return tiny_lerobot(folder, cameras={name: (kind, size) for name, size in SIZES.items()}, **options)


def expected_pictures(name, episode, length):
    camera = list(SIZES).index(name)
    return np.stack([tiny_lerobot_picture(camera, episode, step, SIZES[name]) for step in range(length)])


def check_numbers(store):
    for episode in store:
        number = episode.metadata["lerobot_episode"]
        for name, wanted in tiny_lerobot_rows(number, episode.length).items():
            if isinstance(wanted, list):
                assert episode[name] == wanted
            else:
                np.testing.assert_array_equal(episode[name], wanted)
                assert episode[name].dtype == wanted.dtype


@pytest.mark.parametrize("version", VERSIONS)
def test_images_become_rows_of_the_very_bytes(version, tmp_path):
    import pyarrow.parquet as pq

    root = tiny(tmp_path / "set", "png", version=version, files=2)
    convert(root, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    check_numbers(store)
    assert (store.num_episodes, store.fps) == (3, 10)
    for name in SIZES:
        files = sorted(root.glob("data/*/*.parquet"))
        given = [row["bytes"] for file in files for row in pq.read_table(file).column(name).to_pylist()]
        assert b"".join((segment.path / f"{name}.bin").read_bytes() for segment in store.segments) == b"".join(given)
        assert store.schema[name].codec == "png"
        for episode in store:
            np.testing.assert_array_equal(episode[name], expected_pictures(name, episode.index, episode.length))


@pytest.mark.parametrize("version", VERSIONS)
def test_videos_become_rows_of_packets_and_every_frame_is_that_of_its_time(version, tmp_path):
    av = pytest.importorskip("av")
    root = tiny(tmp_path / "set", "video", version=version, files=2)
    convert(root, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    check_numbers(store)
    for name in SIZES:
        assert store.schema[name].codec == "video"
        decoded = []
        for file in sorted(path for path in root.rglob("*.mp4") if name in str(path)):
            with av.open(str(file)) as container:
                decoded += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        np.testing.assert_array_equal(np.concatenate([episode[name] for episode in store]), np.stack(decoded))


@pytest.mark.parametrize("kind", ["png", "video"])
@pytest.mark.parametrize("codec", ["jpeg", "raw", "png"])
def test_cameras_are_recoded_as_they_are_asked_for(kind, codec, tmp_path):
    pytest.importorskip("av")
    pytest.importorskip("simplejpeg")
    root = tiny(tmp_path / "set", kind)
    convert(root, tmp_path / "as-it-is.well", workers=1)
    convert(root, tmp_path / "x.well", features=codec, workers=1)
    store, plain = stepwell.open(tmp_path / "x.well"), stepwell.open(tmp_path / "as-it-is.well")
    check_numbers(store)
    for name in SIZES:
        assert store.schema[name].codec == codec
        for episode in store:
            wanted = plain[episode.index][name].astype(int)
            error = np.abs(episode[name].astype(int) - wanted)
            assert error.mean() < 16 if codec == "jpeg" else not error.any()


def test_the_store_says_what_the_dataset_says(tmp_path):
    root = tiny(tmp_path / "set", "png")
    convert(root, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    info = json.loads((root / "meta" / "info.json").read_text())
    assert store.metadata["lerobot"] == {"info": info, "tasks": list(TINY_TASKS), "repo_id": None, "revision": None}
    assert list(store.schema) == list(info["features"])
    assert [episode.metadata for episode in store] == [
        {"lerobot_episode": 0, "tasks": [TINY_TASKS[0]]},
        {"lerobot_episode": 1, "tasks": [TINY_TASKS[1], TINY_TASKS[2]]},
        {"lerobot_episode": 2, "tasks": [TINY_TASKS[0]]},
    ]


def test_it_is_the_store_that_is_read_in_place(tmp_path):
    in_place = pytest.importorskip("stepwell.lerobot.in_place")
    pytest.importorskip("av")
    cameras = {TOP: ("png", (32, 48)), SIDE: ("video", (16, 16))}
    root = tiny_lerobot(tmp_path / "set", cameras=cameras, episodes=5, files=2)
    convert(root, tmp_path / "x.well", workers=1, episodes=slice(1, 4))
    store = stepwell.open(tmp_path / "x.well")
    other = in_place.open_in_place(root, episodes=[1, 2, 3], cache=tmp_path / "cache")
    assert list(store.schema) == list(other.schema) and store.fps == other.fps
    for ours, theirs in zip(store, other, strict=True):
        assert ours.metadata == theirs.metadata
        for name in store.schema:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert set(store.metadata["lerobot"]) <= set(other.metadata["lerobot"])


def test_chosen_episodes_keep_their_numbers(tmp_path):
    root = tiny(tmp_path / "set", "png", episodes=6, files=2)
    convert(root, tmp_path / "x.well", episodes=[4, 1], workers=1)
    store = stepwell.open(tmp_path / "x.well")
    assert [episode.metadata["lerobot_episode"] for episode in store] == [1, 4]
    check_numbers(store)


def test_a_parquet_file_is_read_once_for_many_episodes(tmp_path, monkeypatch):
    from stepwell.lerobot import reader as module

    reads = []

    def counted(*arguments, **named):
        reads.append(1)
        return read_files(*arguments, **named)

    read_files = module.read_files
    monkeypatch.setattr(module, "read_files", counted)
    reader = open_reader(tiny_lerobot(tmp_path / "set", cameras={}, episodes=9, files=3))
    assert [len(episode.columns["action"]) for episode in reader.episodes()]
    assert len(reads) == 3
    reads.clear()
    monkeypatch.setattr(module, "READ_AHEAD_BYTES", 1)
    assert [len(episode.columns["action"]) for episode in reader.episodes()]
    assert len(reads) == 9


def test_chunks_are_cut_by_what_episodes_take_by_the_codec_asked_for(tmp_path):
    pytest.importorskip("av")
    reader = open_reader(tiny(tmp_path / "set", "video", lengths=[10, 20]))
    schema = reader.schema
    raw = converted_schema(schema, "raw")
    pixels = 15 * (32 * 48 + 16 * 16) * 3
    assert reader.episode_bytes(raw) - pixels == pytest.approx(reader.episode_bytes(schema) - pixels / 50, abs=30)
    assert reader.episode_bytes(raw) > pixels > reader.episode_bytes(schema)


def test_a_reader_travels_to_workers_with_nothing_open(tmp_path):
    reader = open_reader(tiny(tmp_path / "set", "png", episodes=20))
    first = reader[3]
    again = pickle.loads(pickle.dumps(reader))
    np.testing.assert_array_equal(again[3].columns["action"], first.columns["action"])
    assert list(again[3].columns[TOP].rows(again.schema[TOP])) == list(first.columns[TOP].rows(reader.schema[TOP]))


def test_any_number_of_workers_makes_the_same_bytes(tmp_path):
    root = tiny(tmp_path / "set", "png", episodes=4, files=2)
    found = []
    for workers in (1, 2):
        convert(root, tmp_path / f"{workers}.well", workers=workers)
        segments = stepwell.open(tmp_path / f"{workers}.well").segments
        found.append({(s.name, file.name): file.read_bytes() for s in segments for file in s.path.glob("*.bin")})
    assert found[0] == found[1] and len(found[0]) == 12


def test_a_directory_and_its_address_are_found_by_looking(tmp_path):
    root = tiny_lerobot(tmp_path / "set", cameras={})
    for source in (str(root), f"lerobot://{root}"):
        assert find_reader(source) is LeRobotReader
        assert len(open_reader(source)) == 3
    with pytest.raises(FormatError, match="looks like none"):
        find_reader(tmp_path)


def test_a_dataset_whose_metadata_changed_is_another_one(tmp_path):
    root = tiny_lerobot(tmp_path / "set", cameras={})
    before = open_reader(root).identity
    file = root / "data" / "chunk-000" / "file-000.parquet"
    file.write_bytes(file.read_bytes())
    # who mends a damaged file wants to go on
    assert open_reader(root).identity == before
    assert open_reader(f"lerobot://{root}").identity == before
    others = {open_reader(f"lerobot://{root}?episodes={numbers}").identity for numbers in ("0:2", "1:3", "0:1")}
    assert len(others | {before}) == 4
    info = root / "meta" / "info.json"
    info.write_text(info.read_text() + " ")
    assert open_reader(root).identity != before


def test_an_episode_that_cannot_be_read_names_itself_and_its_file(tmp_path):
    root = tiny(tmp_path / "set", "video", files=2, version="v2.1")
    (root / "videos" / "chunk-000" / SIDE / "episode_000001.mp4").unlink()
    with pytest.raises(WorkerError, match=r"episode 1 of .*set.*: .*side.*episode_000001.mp4"):
        convert(root, tmp_path / "x.well", workers=1)
    assert len(stepwell.open(tmp_path / "x.well")) == 1
    other = tiny(tmp_path / "other", "png", files=2, version="v2.1")
    (other / "data" / "chunk-000" / "episode_000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(WorkerError, match=r"episode 1 of .*other cannot be read: .*episode_000001.parquet"):
        convert(other, tmp_path / "y.well", workers=1)


@pytest.mark.parametrize("name", ["v21_png", "v21_video", "v30_png", "v30_video"])
def test_real_datasets_have_the_expected_items(name, tmp_path):
    if not SHARED.is_dir():
        pytest.skip("the real datasets of ../shared/data are not here")
    pytest.importorskip("av")
    convert(SHARED / name, tmp_path / "x.well", workers=1)
    store = stepwell.open(tmp_path / "x.well")
    check_expected(store, name)


def check_expected(store, name):
    """Compare every row that an expected item has; of video decoders may round differently."""
    configs = json.loads((SHARED / f"{name}.expected.json").read_text())["configs"]
    expected = np.load(SHARED / f"{name}.expected.npz")
    episodes = [(int(episode["index"][0]), episode) for episode in store]
    for config, told in configs.items():
        for index in told["indexes"]:
            first, episode = [found for found in episodes if found[0] <= index][-1]
            for key in (key for key in expected if key.startswith(f"{config}/{index}/")):
                feature = key.split("/", 2)[2]
                if feature == "task":
                    tasks = store.metadata["lerobot"]["tasks"]
                    assert tasks[episode["task_index"][index - first]] == expected[key]
                elif not feature.endswith("_is_pad"):
                    offsets = (told["delta_timestamps"] or {}).get(feature)
                    steps = index - first + np.rint(np.multiply(offsets or [0.0], store.fps)).astype(int)
                    steps = steps.clip(0, episode.length - 1)
                    rows = np.stack([episode.read_rows(feature, step, step + 1)[0] for step in steps.tolist()])
                    check_rows(rows, expected[key] if offsets else expected[key][None], store.schema[feature])


def check_rows(rows, wanted, feature):
    if feature.kind != "image":
        assert rows.dtype == wanted.dtype
        np.testing.assert_array_equal(rows, wanted)
        return
    # one frame of a video comes without the axis of time
    pictures = np.moveaxis(wanted.reshape(-1, *wanted.shape[-3:]), 1, -1).astype(int)
    assert np.abs(rows.astype(int) - pictures).max() <= (2 if feature.codec == "video" else 0)


def test_options_that_say_how_files_are_fetched_are_no_part_of_what_an_import_is_known_by(tmp_path):
    root = tiny_lerobot(tmp_path / "tiny")
    with_token = open_reader(str(root), "lerobot", {"token": "hf_secret", "cache_dir": str(tmp_path)})
    found, other = (
        ReaderEpisodes(reader, reader.schema, np.arange(1)).identity
        for reader in (with_token, open_reader(str(root), "lerobot"))
    )
    assert found == other and "hf_secret" not in found
