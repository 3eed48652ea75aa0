"""Folders of images and videos as episodes; what lies in a directory: natural order, nothing hidden or ignored."""

from pathlib import Path

import numpy as np
import pytest
from kinds_of_images import image_files

import stepwell
from stepwell import convert
from stepwell.beton import write_beton
from stepwell.codecs import make_codec
from stepwell.errors import FormatError, SchemaError, WorkerError
from stepwell.formats import find_reader, open_reader
from stepwell.readers.folders import IMAGES, FolderListing
from stepwell.schema import Feature, Image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "cat/10.jpg",
        "cat/2.JPG",
        "cat/3.bmp",
        "cat/.4.gif",
        "cat/deep/depth/5.png",
        "dog/notes.txt",
        "6.avi",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def names(root: Path, paths) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


def test_folders_and_files_are_in_natural_order(root: Path):
    listing = FolderListing(root)
    assert names(root, listing.folders(root)) == ["cat", "dog"]
    assert names(root, listing.files(root / "cat", IMAGES)) == ["cat/2.JPG", "cat/10.jpg"]


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        ("", ["6.avi", "cat/2.JPG", "cat/3.bmp", "cat/10.jpg", "cat/deep/depth/5.png"]),
        (".bmp,avi", ["cat/2.JPG", "cat/10.jpg", "cat/deep/depth/5.png"]),
        (["cat"], ["6.avi"]),
        ("1?.jpg,*/DEPTH/*", ["6.avi", "cat/2.JPG", "cat/3.bmp"]),
    ],
)
def test_what_is_ignored_is_not_there(root: Path, ignore, left: list[str]):
    assert names(root, FolderListing(root, ignore).passed_over(())) == left


def test_what_is_read_is_not_passed_over(root: Path):
    listing = FolderListing(root)
    read = set(listing.files(root / "cat", IMAGES))
    assert names(root, listing.passed_over(read, levels=2)) == ["6.avi", "cat/3.bmp"]


pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")


def write_image(path: Path, value: int, height: int = 16, width: int = 24) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = make_codec(Image((None, None, 3), codec="png" if path.suffix == ".png" else "jpeg"))
    data = codec.encode(np.full((height, width, 3), value, np.uint8))
    path.write_bytes(data)
    return data


def read_both(source: Path, tmp_path: Path, **options) -> tuple[stepwell.Store, stepwell.Store]:
    """Return a folder as an imported store and as one in place."""
    convert(source, tmp_path / "a.well", workers=0, **options)
    return stepwell.open(tmp_path / "a.well"), stepwell.open(f"folders://{source}", cache=tmp_path / "cache", **options)


def test_an_image_of_a_class_is_an_episode_with_a_label(tmp_path: Path):
    for number, name in enumerate(["dog/2.png", "cat/10.png", "cat/9.png"]):
        write_image(tmp_path / "set" / name, number)
    for store in read_both(tmp_path / "set", tmp_path):
        assert [episode.metadata["name"] for episode in store] == ["cat/9.png", "cat/10.png", "dog/2.png"]
        assert [int(episode["label"][0]) for episode in store] == [0, 0, 1]
        assert [int(episode["image"][0, 0, 0, 0]) for episode in store] == [2, 1, 0]
    assert stepwell.open(tmp_path / "a.well").metadata["folders"]["labels"] == ["cat", "dog"]


def test_images_of_several_sizes_are_resized_when_they_are_read(tmp_path: Path):
    for number in range(6):
        write_image(tmp_path / "set" / "x" / f"{number}.jpg", 40 * number, 16 + number, 24)
    fields = {"image": stepwell.Field("image", decoder=stepwell.transforms.Resize(8)), "label": "label"}
    for store in read_both(tmp_path / "set", tmp_path):
        batch = next(iter(stepwell.Loader(store, fields, batch_size=6)))
        assert batch["image"].shape == (6, 8, 8, 3)
        assert np.abs(batch["image"][:, 0, 0, 0].astype(int) - 40 * np.arange(6)).max() <= 2


def test_a_folder_is_an_episode_with_cameras_and_arrays(tmp_path: Path):
    for episode, length in (("run_2", 3), ("run_10", 2)):
        place = tmp_path / "set" / episode
        for step in range(length):
            write_image(place / "front" / f"{step}.png", step)
            write_image(place / "wrist" / f"{step}.png", 100 + step)
        np.save(place / "actions.npy", np.full((length, 2), length, np.float32))
        np.savez(place / "more.npz", state=np.zeros((length + 1, 3)))
    for store in read_both(tmp_path / "set", tmp_path, fps=20):
        assert [episode.metadata["name"] for episode in store] == ["run_2", "run_10"]
        assert store.fps == 20
        for episode, length in zip(store, (3, 2), strict=True):
            assert episode["front"][:, 0, 0, 0].tolist() == list(range(length))
            assert episode["wrist"][:, 0, 0, 0].tolist() == list(range(100, 100 + length))
            assert (episode["actions"] == length).all()
            assert episode["state"].shape == (length + 1, 3)


def test_the_files_are_stored_as_they_are(tmp_path: Path):
    data = write_image(tmp_path / "set" / "a" / "0.jpg", 7)
    reader = open_reader(tmp_path / "set")
    column = reader[0].columns["image"]
    assert list(column.rows(reader.schema["image"])) == [data]


def test_a_video_is_an_episode(tmp_path: Path):
    av = pytest.importorskip("av")
    (tmp_path / "set").mkdir()
    for number in (1, 2):
        with av.open(str(tmp_path / "set" / f"clip_{number}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for step in range(5 + number):
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * number + step, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        np.save(tmp_path / "set" / f"clip_{number}.actions.npy", np.full((5 + number, 2), number, np.float32))
    for store in read_both(tmp_path / "set", tmp_path):
        assert [len(episode["actions"]) for episode in store] == [6, 7]
        assert store.fps == 10
        assert np.abs(store[1]["video"].astype(int) - 83).max() < 16


def test_videos_of_a_phone_are_shown_as_players_do_and_together(tmp_path: Path):
    written = pytest.importorskip("written_videos")
    (tmp_path / "set").mkdir()
    frames, turns = [], ("as they lie", "180 degrees", "mirrored")
    for number, name in enumerate(turns):
        path = written.write_video(tmp_path / f"set/clip_{number}.mp4")
        matrix, turned = written.TURNS[name]
        frames.append(turned(written.plain_frames(path)[1]))
        written.set_matrix(path, matrix)
    for store in read_both(tmp_path / "set", tmp_path):
        for episode, expected in zip(store, frames, strict=True):
            np.testing.assert_array_equal(episode["video"], expected)
    written.set_matrix(written.write_video(tmp_path / "set/clip_3.mp4"), written.TURNS["90 degrees"][0])
    with pytest.raises(WorkerError, match=r"clip_3\.mp4 is 64x48 video, the feature Video\(\(48, 64, 3\)\)"):
        convert(tmp_path / "set", tmp_path / "uneven.well", workers=1)


def test_other_systems_keep_what_is_theirs(tmp_path: Path):
    write_image(tmp_path / "set" / "a" / "0.png", 7)
    assert find_reader(tmp_path / "set").name == "folders"
    (tmp_path / "set" / "meta").mkdir()
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    assert find_reader(tmp_path / "set").name == "lerobot"


def test_what_is_wrong_is_told(tmp_path: Path):
    write_image(tmp_path / "set" / "a" / "0.png", 7)
    with pytest.raises(FormatError, match=r"layout='rows'. Allowed: classes, episodes, videos"):
        open_reader(tmp_path / "set", options={"layout": "rows"})
    with pytest.raises(FormatError, match="has no videos"):
        open_reader(tmp_path / "set", options={"layout": "videos"})
    (tmp_path / "set" / "b").mkdir()
    (tmp_path / "set" / "b" / "0.png").write_bytes(image_files()["png grey 16"].data)
    with pytest.raises(FormatError, match=r"'image' of .*set: images of 8 .*\(\S*a/0\.png has 8, \S*b/0\.png has 16\)"):
        open_reader(tmp_path / "set")
    (tmp_path / "set" / "a" / "0.png").write_bytes(b"GIF89a")
    with pytest.raises(FormatError, match=r"0\.png: no JPEG, PNG or WebP file, or cut off: it begins with b'GIF89a"):
        open_reader(tmp_path / "set")


def test_episodes_of_other_features_are_told(tmp_path: Path):
    for name in ("a", "b"):
        write_image(tmp_path / "set" / name / "0.png", 7)
    np.save(tmp_path / "set" / "a" / "actions.npy", np.zeros((1, 2)))
    reader = open_reader(tmp_path / "set", options={"layout": "episodes"})
    with pytest.raises(FormatError, match=r"b of .* has image; the first episode image, actions"):
        reader[1]
    (tmp_path / "set" / "b" / "actions.npy").write_bytes(b"\x93NUMPY rest")
    with pytest.raises(FormatError, match=r"actions.npy: .*arrays of numbers"):
        reader.__class__(str(tmp_path / "set"), layout="episodes")[1]


@pytest.mark.parametrize(("shape", "dtype"), [((8, 9, 1), "uint8"), ((8, 9, 4), "uint8"), ((8, 9, 1), "uint16")])
def test_images_keep_their_channels_and_depth(tmp_path: Path, shape: tuple[int, ...], dtype: str):
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype) * (1 if dtype == "uint8" else 900)
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.png").write_bytes(make_codec(Image(shape, dtype, codec="png")).encode(value))
    for store in read_both(tmp_path / "set", tmp_path):
        assert store.schema["image"].shape == shape
        assert np.array_equal(store[0]["image"][0], value)


@pytest.mark.parametrize(
    ("names", "feature"),
    [
        (["png grey", "png palette 4", "png rgb interlaced"], Image((21, 34, 3), codec="png")),
        (["png grey alpha", "png palette 4"], Image((21, 34, 4), codec="png")),
        (["jpeg grey", "jpeg cmyk", "jpeg rgb"], Image((21, 34, 3), codec="jpeg")),
        (["jpeg grey", "png grey", "webp"], Image((21, 34, 3), codec="image-file")),
        (["webp lossless", "webp rgba"], Image((21, 34, 4), codec="image-file")),
    ],
)
def test_images_of_several_kinds_show_their_colours(tmp_path: Path, names: list[str], feature: Feature):
    files = image_files()
    for number, name in enumerate(names):
        path = tmp_path / "set" / "a" / f"{number}.{name.partition(' ')[0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name].data)
    there, here = read_both(tmp_path / "set", tmp_path)
    assert there.schema["image"] == feature
    for store in (there, here):
        (batch,) = stepwell.Loader(store, {"image": "image"}, batch_size=len(names), order="sequential")
        for name, pixels in zip(names, batch["image"], strict=True):
            most = 0 if files[name].is_exact else 24
            assert np.abs(pixels[..., :3].astype(int) - files[name].colors).max() <= most


def test_an_image_whose_header_comes_late_is_read(tmp_path: Path):
    data = write_image(tmp_path / "set" / "a" / "0.jpg", 7)
    preview = b"\xff\xe1" + (9000).to_bytes(2, "big") + bytes(8998)
    (tmp_path / "set" / "a" / "0.jpg").write_bytes(data[:2] + preview + data[2:])
    assert open_reader(tmp_path / "set").schema["image"].shape == (16, 24, 3)


def test_two_cameras_of_one_name_are_refused(tmp_path: Path):
    write_image(tmp_path / "set" / "run" / "0.png", 1)
    write_image(tmp_path / "set" / "run" / "image" / "0.png", 2)
    with pytest.raises(FormatError, match="run has two cameras of one name"):
        open_reader(tmp_path / "set", "folders")


def test_names_may_be_of_any_letters(tmp_path: Path):
    for name in ("é.png", "²1.png", "٣.png", "2.png"):
        write_image(tmp_path / "set" / "кот" / name, 1)
    reader = open_reader(tmp_path / "set")
    assert [episode.metadata["name"] for episode in reader.episodes()] == [
        f"кот/{name}.png" for name in ("2", "٣", "²1", "é")
    ]


def test_folders_and_hidden_files_that_are_called_as_images_are_none(tmp_path: Path):
    write_image(tmp_path / "set" / "cat" / "a.png", 1)
    (tmp_path / "set" / "cat" / "b.png").mkdir()
    (tmp_path / "set" / "cat" / "._a.png").write_bytes(b"what macOS keeps")
    reader = open_reader(tmp_path / "set", options={"layout": "classes"})
    assert [episode.metadata["name"] for episode in reader.episodes()] == ["cat/a.png"]


def test_an_array_does_not_take_the_place_of_a_camera(tmp_path: Path):
    write_image(tmp_path / "set" / "run" / "0.png", 1)
    np.save(tmp_path / "set" / "run" / "image.npy", np.zeros((1, 3)))
    with pytest.raises(FormatError, match=r"image\.npy: 'image' is the name of .* a camera\. Rename"):
        open_reader(tmp_path / "set")


def test_a_camera_that_no_store_can_name_is_told(tmp_path: Path):
    write_image(tmp_path / "set" / "run" / "front cam" / "0.png", 1)
    with pytest.raises(FormatError, match=r"'front cam' cannot be .* Rename the folder or file"):
        open_reader(tmp_path / "set")


def test_a_rate_must_be_a_number(tmp_path: Path):
    write_image(tmp_path / "set" / "a" / "0.png", 7)
    assert open_reader(f"folders://{tmp_path / 'set'}?fps=12.5").fps == 12.5
    with pytest.raises(FormatError, match="fps='fast'"):
        open_reader(f"folders://{tmp_path / 'set'}?fps=fast")


@pytest.mark.parametrize("save", [np.save, lambda path, rows: np.savez_compressed(path, state=rows)])
def test_damaged_arrays_are_told_or_read_right(tmp_path: Path, save):
    from stepwell.testing import check_damage

    rows = np.arange(40, dtype=np.float32).reshape(1, 40)
    write_image(tmp_path / "set" / "run" / "0.png", 1)
    path = tmp_path / "set" / "run" / ("state.npy" if save is np.save else "state.npz")
    save(path, rows)

    def read(_: Path) -> None:
        reader = open_reader(tmp_path / "set", "folders", {"layout": "episodes"})
        assert all(len(episode.columns) >= 1 for episode in reader.episodes())

    assert check_damage(path, read, count=150, seed=1).errors["FormatError"] > 30


@pytest.mark.parametrize("names", [("1.bmp", "2.gif"), ("1.avi", "2.TIFF")])
def test_images_that_are_not_read_are_an_error_unless_they_are_ignored(tmp_path: Path, names: tuple[str, ...]):
    write_image(tmp_path / "set" / "a" / "0.jpg", 7)
    for name in names:
        (tmp_path / "set" / "a" / name).write_bytes(b"GIF89a")
    with pytest.raises(FormatError, match=rf"{names[0]} and 1 more would be passed over: \.jpg, .* ignore=\"\w+,\w+\""):
        open_reader(f"folders://{tmp_path / 'set'}")
    ignore = ",".join(name.partition(".")[2] for name in names)
    for store in read_both(tmp_path / "set", tmp_path, ignore=ignore):
        assert len(store) == 1
    assert len(open_reader(f"folders://{tmp_path / 'set'}?ignore=1.*,2.*")) == 1


def test_images_where_a_layout_does_not_look_are_an_error(tmp_path: Path):
    write_image(tmp_path / "set" / "a" / "0.jpg", 7)
    write_image(tmp_path / "set" / "cover.jpg", 7)
    with pytest.raises(FormatError, match=r"cover\.jpg would be passed over: put images in a folder a class"):
        open_reader(tmp_path / "set")
    assert len(open_reader(tmp_path / "set", options={"ignore": ["cover.jpg"]})) == 1


def test_images_at_the_top_are_told_to_go_into_folders(tmp_path: Path):
    for number in range(3):
        write_image(tmp_path / "flat" / f"{number}.jpg", 7)
    there = r"put images in a folder a class \(or an episode\)"
    with pytest.raises(FormatError, match=rf"flat has no classes: {there}, not as .*0\.jpg and 2 more"):
        open_reader(f"folders://{tmp_path / 'flat'}")
    with pytest.raises(FormatError, match=rf"looks like none of them\. Of .*0\.jpg and others: {there}"):
        open_reader(tmp_path / "flat")


def test_a_folder_of_nothing_but_what_is_not_read_is_told_so(tmp_path: Path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.heic").write_bytes(b"")
    with pytest.raises(FormatError, match=r"looks like none of them\. Images and videos are read of .*0\.heic"):
        open_reader(tmp_path / "set")


def test_images_have_the_channels_that_are_asked_for(tmp_path: Path):
    files = image_files()
    names = ["png rgba", "jpeg grey", "png palette 4"]
    for number, name in enumerate(names):
        write_image(tmp_path / "set" / "a" / f"{number}.{name.partition(' ')[0]}", 0)
        (tmp_path / "set" / "a" / f"{number}.{name.partition(' ')[0]}").write_bytes(files[name].data)
    assert open_reader(tmp_path / "set").schema["image"].shape == (21, 34, 4)
    for store in read_both(tmp_path / "set", tmp_path, channels="3"):
        assert store.schema["image"].shape == (21, 34, 3)
        for name, episode in zip(names, store, strict=True):
            most = 0 if files[name].is_exact else 24
            assert np.abs(episode["image"][0].astype(int) - files[name].colors).max() <= most
    convert(tmp_path / "set", tmp_path / "jpeg.well", workers=0, channels=3, features="jpeg")
    assert stepwell.open(tmp_path / "jpeg.well").schema["image"] == Image((21, 34, 3), codec="jpeg")


def test_images_of_4_channels_become_a_beton_file_with_channels_3(tmp_path: Path):
    for number, name in enumerate(("png rgba", "png rgb")):
        write_image(tmp_path / "set" / "a" / f"{number}.png", 0)
        (tmp_path / "set" / "a" / f"{number}.png").write_bytes(image_files(20 + number, 30)[name].data)
    source = f"folders://{tmp_path / 'set'}"
    with pytest.raises(SchemaError, match=r"FFCV's images have 3 channels of uint8.* channels=3"):
        write_beton(stepwell.open(source), tmp_path / "a.beton")
    write_beton(stepwell.open(source, channels=3), tmp_path / "a.beton")
    assert len(open_reader(tmp_path / "a.beton")) == 2


def test_an_array_is_not_called_damaged_where_threads_got_in_the_way_of_its_header(tmp_path, monkeypatch):
    write_image(tmp_path / "set" / "a" / "0.png", 7)
    np.save(tmp_path / "set" / "a" / "actions.npy", np.zeros((1, 2)))
    load, stumbles = np.load, iter([True, True])

    def stumbling_load(*given, **options):
        if next(stumbles, False):
            raise SystemError("AST constructor recursion depth mismatch (before=10, after=4)")
        return load(*given, **options)

    monkeypatch.setattr(np, "load", stumbling_load)
    assert open_reader(tmp_path / "set", options={"layout": "episodes"}).schema["actions"].shape == (2,)


def write_run(folder: Path, numbers, arrays: int | None, name: str = "{}.png") -> None:
    for camera in ("front", "wrist"):
        for number in numbers:
            write_image(folder / camera / name.format(number), 7)
    if arrays is not None:
        np.save(folder / "actions.npy", np.zeros((arrays, 2)))


@pytest.mark.parametrize(
    ("numbers", "name", "words"),
    [
        ((0, 1, 3, 4), "{}.png", r"front/1\.png is followed by 3\.png: images are missing"),
        (
            (0, 1, 3, 4, 6, 7, 8),
            "frame_{:06d}.png",
            r"frame_000001\.png is followed by frame_000003\.png, and 1 more gaps",
        ),
        ((0, 5, 10, 20, 25), "t{}_rgb.png", r"t10_rgb\.png is followed by t20_rgb\.png"),
    ],
)
def test_images_that_are_missing_between_others_are_an_error_unless_they_are_allowed(
    tmp_path: Path, numbers: tuple[int, ...], name: str, words: str
):
    for arrays in (None, len(numbers), len(numbers) + 1):
        write_run(tmp_path / "set" / "run", numbers, arrays, name)
        with pytest.raises(FormatError, match=words):
            open_reader(tmp_path / "set", "folders", {"layout": "episodes"})
        assert len(open_reader(f"folders://{tmp_path}/set?layout=episodes&allow_gaps=true")[0].columns) >= 2


@pytest.mark.parametrize(
    "numbers", [(0, 10, 20), (7, 8, 9), (17133, 17166, 17200, 17233), (3, 10, 12), (5,), (2**70, 2**71)]
)
def test_numbers_that_are_steps_times_or_ids_are_no_gaps(tmp_path: Path, numbers: tuple[int, ...]):
    write_run(tmp_path / "set" / "run", numbers, len(numbers))
    assert len(open_reader(tmp_path / "set", "folders")[0].columns["actions"]) == len(numbers)


def test_two_images_of_one_number_and_cameras_that_begin_apart_are_an_error(tmp_path: Path):
    write_run(tmp_path / "set" / "run", range(3), 3)
    write_image(tmp_path / "set" / "run" / "front" / "1.jpg", 7)
    with pytest.raises(FormatError, match=r"front/1\.\w+ and 1\.\w+ have one number"):
        open_reader(tmp_path / "set", "folders")
    (tmp_path / "set" / "run" / "front" / "1.jpg").unlink()
    (tmp_path / "set" / "run" / "front" / "0.png").unlink()
    with pytest.raises(FormatError, match=r"run: the images of front with 1, wrist with 0 begin"):
        open_reader(tmp_path / "set", "folders")


def test_arrays_that_have_not_a_row_an_image_are_an_error(tmp_path: Path):
    for name, length in (("a", 4), ("b", 5)):
        write_run(tmp_path / "set" / name, range(4), length)
    reader = open_reader(tmp_path / "set", "folders")
    with pytest.raises(FormatError, match=r"b of .* has rows of front 4, wrist 4, actions 5\. There should be as many"):
        list(reader.episodes())
    np.save(tmp_path / "set" / "a" / "actions.npy", np.zeros((5, 2)))
    reader = open_reader(tmp_path / "set", "folders")
    assert [len(episode.columns["actions"]) for episode in reader.episodes()] == [5, 5]
    (tmp_path / "set" / "b" / "wrist" / "3.png").unlink()
    with pytest.raises(FormatError, match=r"b of .* front 4, wrist 3, .* one more of actions, as the first episode"):
        list(open_reader(tmp_path / "set", "folders").episodes())


@pytest.mark.parametrize("is_project", [True, False])
def test_a_source_tree_with_pictures_is_no_data_set(tmp_path: Path, is_project: bool) -> None:
    image = make_codec(Image((8, 8, 3), codec="png")).encode(np.zeros((8, 8, 3), np.uint8))
    for name in ("docs/view.png", "docs/images/more.png", "src/a.py", "tests/b.py", ".git/config", "README.md"):
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image if name.endswith(".png") else b"")
    if is_project:
        (tmp_path / "p" / "pyproject.toml").write_bytes(b"")
    with pytest.raises(FormatError, match=r"Looked for: videos at the top, .*ROOT/CLASS/0\.jpg"):
        convert(tmp_path / "p", tmp_path / "x.well", workers=0)
    assert not (tmp_path / "x.well").exists()
