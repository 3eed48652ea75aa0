"""Depth maps: those that lerobot 0.6.2 wrote, and those of ours."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("PIL")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import LeftOutWarning
from stepwell.lerobot import (
    LeRobotDataset,
    LeRobotRecorder,
    MultiLeRobotDataset,
    audit,
    convert_image_to_video_dataset,
    edits,
    open_in_place,
    reencode_dataset,
    video_edits,
    write_dataset,
)
from stepwell.lerobot.depth import DepthMaps, Quantization
from stepwell.schema import Array, Image

from .head_sets import DEPTH_SETS, check_items, head_items, head_set
from .make_head_sets import DEPTH, FPS, HEIGHT, LENGTHS, WIDTH, depth_image

FRAMES = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]


# what lerobot wrote


@pytest.mark.parametrize("name", DEPTH_SETS)
@pytest.mark.parametrize("unit", ["mm", "m"])
def test_items_are_those_of_lerobot_in_place_and_converted(tmp_path: Path, name: str, unit: str) -> None:
    root = head_set(name, tmp_path)
    expected = head_items(root)
    for is_window in (False, True):
        check_items(root, expected, unit, is_window=is_window)
    for number, codec in enumerate(({}, {DEPTH: "zstd"})):
        path = tmp_path / f"{number}.well"
        stepwell.convert(f"lerobot://{root}", path, codec, workers=0, progress=False)
        check_items(path, expected, unit)


@pytest.mark.parametrize("name", DEPTH_SETS)
def test_statistics_are_given_in_the_unit_that_is_asked_for(tmp_path: Path, name: str) -> None:
    root = head_set(name, tmp_path)
    expected = head_items(root)
    for unit in ("mm", "m"):
        stats = LeRobotDataset(root, depth_output_unit=unit).meta.stats
        assert stats is not None
        for key, value in stats[DEPTH].items():
            np.testing.assert_allclose(value, expected[f"{unit}/stats/{key}"], rtol=1e-12)


@pytest.mark.parametrize("name", DEPTH_SETS)
def test_what_is_written_again_has_the_same_items(tmp_path: Path, name: str) -> None:
    root = head_set(name, tmp_path)
    write_dataset(open_in_place(root), tmp_path / "again", progress=False)
    for unit in ("mm", "m"):
        check_items(tmp_path / "again", head_items(root), unit)
    before, after = (json.loads((each / "meta/info.json").read_text()) for each in (root, tmp_path / "again"))
    kept = {"is_depth_map", "depth_unit", "video.depth_min", "video.depth_max", "video.shift", "video.use_log"}
    mine, theirs = (each["features"][DEPTH]["info"] for each in (after, before))
    assert {key: theirs.get(key) for key in kept} == {key: mine.get(key) for key in kept}
    packets = sorted(root.glob("videos/*/*/*.mp4"))
    assert len(packets) == len(sorted((tmp_path / "again").glob("videos/*/*/*.mp4")))


@pytest.mark.parametrize("name", DEPTH_SETS)
def test_the_audit_finds_nothing_in_them(tmp_path: Path, name: str) -> None:
    assert [finding.code for finding in audit(head_set(name, tmp_path), deep=True).findings] == []


def test_a_camera_that_measured_nothing_is_found(tmp_path: Path) -> None:
    record(tmp_path / "set", "image", lambda episode, step: np.zeros((HEIGHT, WIDTH, 1), np.uint16))
    assert "camera-black" in {finding.code for finding in audit(tmp_path / "set", deep=True).findings}


def test_transforms_of_images_leave_depth_alone(tmp_path: Path) -> None:
    root = head_set("image", tmp_path)
    dataset = LeRobotDataset(root, image_transforms=lambda image: image * 0)
    assert dataset[0][DEPTH].max() > 0


def test_a_loader_gives_the_same_depths(tmp_path: Path) -> None:
    root = head_set("video", tmp_path)
    expected = head_items(root)[f"m/step/{DEPTH}"]
    batch = next(iter(LeRobotDataset(root, depth_output_unit="m").loader(len(FRAMES), order="sequential")))
    np.testing.assert_array_equal(batch[DEPTH].numpy(), expected)


def test_a_field_gives_them_channels_last(tmp_path: Path) -> None:
    root = head_set("video", tmp_path)
    expected = head_items(root)[f"mm/step/{DEPTH}"]
    store = open_in_place(root)
    field = stepwell.Field(DEPTH, transform=DepthMaps.of(store, DEPTH))
    batch = next(iter(stepwell.Loader(store, {"depth": field}, batch_size=len(FRAMES), order="sequential")))
    np.testing.assert_array_equal(np.moveaxis(np.asarray(batch["depth"]), -1, 1), expected)
    with pytest.raises(stepwell.SchemaError, match="no depth map"):
        DepthMaps.of(store, "action")


def test_a_unit_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'mm' and 'm'"):
        LeRobotDataset(head_set("image", tmp_path), depth_output_unit="cm")


def test_the_old_mark_of_depth_counts(tmp_path: Path) -> None:
    root = head_set("video", tmp_path)
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    entry = info["features"][DEPTH]
    del entry["info"]["is_depth_map"]
    entry["video_info"] = {"video.is_depth_map": True}
    path.write_text(json.dumps(info))
    assert LeRobotDataset(root).meta.depth_keys == [DEPTH]
    check_items(root, head_items(head_set("video", tmp_path / "other")))


# what is recorded


def record(root: Path, dtype: str, image: Any, **options: Any) -> None:
    """Record the frames of `make_head_sets.record`."""
    entry = {"dtype": dtype, "shape": (HEIGHT, WIDTH, 1), "names": None, "info": {"is_depth_map": True}}
    features = {DEPTH: entry, "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}
    with LeRobotRecorder.create(root, fps=FPS, features=features, output="v3.0", **options) as recorder:
        for episode, length in enumerate(LENGTHS):
            for step in range(length):
                action = np.array([step, episode], np.float32)
                recorder.add_frame({DEPTH: image(episode, step), "action": action, "task": f"task {episode}"})
            recorder.save_episode()


@pytest.mark.parametrize("name", DEPTH_SETS)
def test_a_recording_has_the_items_of_one_by_lerobot(tmp_path: Path, name: str) -> None:
    is_float, dtype = name.endswith("metres"), name.partition("_")[0]
    depth = {"depth_min": 0.2, "depth_max": 3.0, "use_log": False} if name == "video_linear" else None
    record(tmp_path / "mine", dtype, lambda e, s: depth_image(e, s, is_float=is_float), depth=depth)
    expected = head_items(head_set(name, tmp_path))
    for unit in ("mm", "m"):
        check_items(tmp_path / "mine", expected, unit)
    mine, theirs = (
        json.loads((root / "meta/info.json").read_text())["features"][DEPTH]["info"]
        for root in (tmp_path / "mine", tmp_path / name)
    )
    assert mine["depth_unit"] == ("m" if is_float else "mm")
    # but for what is of its library, and of another preset
    assert mine == {k: v for k, v in theirs.items() if k[6:] not in ("crf", "preset", "fast_decode", "video_backend")}


@pytest.mark.parametrize("name", ["video_linear", "image", "image_metres"])
def test_a_dataset_of_lerobot_is_gone_on_with_in_its_codes_and_unit(tmp_path: Path, name: str) -> None:
    root = head_set(name, tmp_path)
    is_float, expected = name.endswith("metres"), head_items(root)
    dataset = LeRobotDataset.resume("me/set", root)
    for step in range(2):
        depth = depth_image(0, step, is_float=is_float)
        dataset.add_frame({DEPTH: depth, "action": np.zeros(2, np.float32), "task": "again"})
    dataset.save_episode()
    dataset.finalize()
    for unit in ("mm", "m"):
        found = LeRobotDataset(root, depth_output_unit=unit)
        theirs = expected[f"{unit}/step/{DEPTH}"]
        for number, place in ((0, 0), (1, 1), (len(FRAMES), 0), (len(FRAMES) + 1, 1)):
            np.testing.assert_array_equal(found[number][DEPTH].numpy(), theirs[place])


@pytest.mark.parametrize(
    "depth",
    [np.zeros((HEIGHT, WIDTH, 3), np.uint16), np.zeros((WIDTH, HEIGHT, 1), np.uint16), np.zeros((2, 2)), "near"],
)
def test_frames_that_are_no_depth_are_refused(tmp_path: Path, depth: Any) -> None:
    with pytest.raises(stepwell.StepError, match="depth"):
        record(tmp_path / "set", "video", lambda episode, step: depth)


def test_sides_and_forms_of_a_frame_may_differ(tmp_path: Path) -> None:
    forms = [lambda d: d, lambda d: d[..., 0], lambda d: np.moveaxis(d, -1, 0), lambda d: d.astype(np.int64)]
    record(tmp_path / "set", "image", lambda e, s: forms[s % 4](depth_image(e, s, is_float=False)))
    check_items(tmp_path / "set", head_items(head_set("image", tmp_path)))


# stores of other origin


@pytest.mark.parametrize(("dtype", "unit"), [("uint16", "mm"), ("float32", "m"), ("float16", "m")])
def test_a_store_of_depth_images_becomes_a_dataset_of_them(tmp_path: Path, dtype: str, unit: str) -> None:
    images = np.stack([depth_image(0, step, is_float=dtype != "uint16") for step in range(4)]).astype(dtype)
    store = stepwell.create(
        tmp_path / "a.well", {"depth": Image((HEIGHT, WIDTH, 1), dtype), "action": Array(2)}, fps=10
    )
    with store.writer() as writer:
        writer.add_episode({"depth": images, "action": np.zeros((4, 2), np.float32)}, task="look")
    store = stepwell.open(tmp_path / "a.well")
    write_dataset(store, tmp_path / "images", progress=False)
    write_dataset(store, tmp_path / "videos", progress=False, cameras={"depth": "video"})
    for source in (store, tmp_path / "images"):
        dataset = LeRobotDataset(source, depth_output_unit=unit)
        assert dataset.meta.depth_keys == ["depth"]
        for step in range(4):
            np.testing.assert_array_equal(dataset[step]["depth"][0].numpy(), images[step, ..., 0].astype(np.float32))
    codes = Quantization().codes(images[..., 0].astype(np.float32) if unit == "m" else images[..., 0])
    found = LeRobotDataset(tmp_path / "videos", depth_output_unit="m")
    for step in range(4):
        np.testing.assert_array_equal(found[step]["depth"][0].numpy(), Quantization().table("m")[codes[step]])


def test_video_of_whole_millimetres_stays_as_it_is(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 4096, (5, HEIGHT, WIDTH)).astype(np.uint16)
    feature = stepwell.Video((HEIGHT, WIDTH), "uint16")
    store = stepwell.create(tmp_path / "a.well", {"depth": feature}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"depth": images}, task="look")
    write_dataset(tmp_path / "a.well", tmp_path / "set", progress=False)
    dataset = LeRobotDataset(tmp_path / "set")
    assert dataset.meta.video_keys == ["depth"]
    for step in range(5):
        np.testing.assert_array_equal(dataset[step]["depth"][0].numpy(), images[step])


def test_the_old_version_has_no_depth_maps(tmp_path: Path) -> None:
    store = open_in_place(head_set("image", tmp_path))
    with pytest.raises(stepwell.SchemaError, match=r"v2\.1.*depth"):
        write_dataset(store, tmp_path / "old", version="v2.1", progress=False)


# codes


@settings(max_examples=50, deadline=None)
@given(
    low=st.floats(0, 1),
    width=st.floats(0.1, 50),
    shift=st.floats(0.01, 5),
    use_log=st.booleans(),
    unit=st.sampled_from(["mm", "m"]),
)
def test_codes_are_the_nearest_ones_and_come_back(
    low: float, width: float, shift: float, use_log: bool, unit: Any
) -> None:
    by = Quantization(low, low + width, shift, use_log)
    table = by.table("m").astype(np.float64)
    assert (np.diff(table) >= 0).all()
    depth = np.linspace(low, low + width, 500)
    given = (depth * (1000 if unit == "mm" else 1)).astype(np.float32)
    codes = by.codes(given, unit)
    steps = np.diff(table).max()
    assert np.abs(table[codes] - depth).max() <= 0.51 * steps + 1e-5 * (low + width + shift)
    whole = np.arange(0, 65536, 97, dtype=np.uint16)
    np.testing.assert_array_equal(by.codes(whole), by.codes(whole.astype(np.float32), "mm"))


def test_what_is_no_number_is_the_least_code() -> None:
    codes = Quantization().codes(np.array([np.nan, -1.0, 0.0, np.inf, -np.inf, 3.0], np.float32))
    assert codes.tolist()[:5] == [0, 0, 0, 4095, 0]
    assert 0 < codes[5] < 4095


@pytest.mark.parametrize(
    "options", [{"depth_min": -4.0}, {"depth_max": 0.0}, {"shift": float("nan")}, {"depth_min": "near"}]
)
def test_a_quantisation_that_cannot_be_is_refused(options: Any) -> None:
    with pytest.raises(stepwell.SchemaError):
        Quantization(**options)


def test_several_datasets_have_each_its_own_codes(tmp_path: Path) -> None:
    roots = [head_set(name, tmp_path) for name in ("video", "video_linear", "video_metres")]
    both = MultiLeRobotDataset(roots[:2])
    for root, first in zip(roots, (0, len(FRAMES)), strict=False):
        np.testing.assert_array_equal(both[first][DEPTH].numpy(), head_items(root)[f"mm/step/{DEPTH}"][0])
    with pytest.raises(stepwell.WindowError, match="codes"):
        both.loader(4)
    alike = MultiLeRobotDataset([roots[0], roots[0]])
    batch = next(iter(alike.loader(2 * len(FRAMES), order="sequential")))
    expected = head_items(roots[0])[f"mm/step/{DEPTH}"]
    np.testing.assert_array_equal(batch[DEPTH].numpy(), np.concatenate([expected, expected]))


# edits


@pytest.mark.parametrize("name", DEPTH_SETS)
def test_what_is_encoded_anew_has_the_same_depths(tmp_path: Path, name: str) -> None:
    root, target = head_set(name, tmp_path), tmp_path / "again"
    before = LeRobotDataset("me/d", root)
    encode = video_edits.encode_images if before.meta.features[DEPTH]["dtype"] == "image" else video_edits.reencode
    encode(root, target=target, video={"encoder": "h264"}, workers=0)
    after = LeRobotDataset("me/d", target)
    unit = before.meta.features[DEPTH]["info"]["depth_unit"]
    assert after.meta.features[DEPTH]["info"]["depth_unit"] == unit
    tolerance = 0 if encode is video_edits.reencode else 3
    for row in range(len(before)):
        expected = before[row][DEPTH].numpy().clip(10, 10_000)
        np.testing.assert_allclose(after[row][DEPTH].numpy(), expected, rtol=0, atol=tolerance)
    assert audit(target, deep=True).is_ok


def test_lerobots_tools_encode_depth_by_the_encoder_of_depth_alone(tmp_path: Path) -> None:
    codes = {"depth_min": 0.2, "depth_max": 3.0, "shift": 1.0, "use_log": False}
    depth = SimpleNamespace(**codes, g=4)
    colours = SimpleNamespace(vcodec="h264", pix_fmt="yuv420p", g=3, crf=18, preset=None, extra_options={})
    images = LeRobotDataset("me/d", head_set("image", tmp_path))
    video = convert_image_to_video_dataset(images, tmp_path / "v", depth_encoder=depth, num_workers=0)
    about = video.meta.features[DEPTH]["info"]
    assert {name: about[f"video.{name}"] for name in codes} == codes and about["video.g"] == 4
    expected = images[0][DEPTH].numpy().clip(200, 3000)
    np.testing.assert_allclose(video[0][DEPTH].numpy(), expected, rtol=0, atol=1)
    before = video[0][DEPTH]
    assert reencode_dataset(video, colours).meta.features[DEPTH]["info"] == about
    about = reencode_dataset(video, depth_encoder=SimpleNamespace(**asdict(Quantization()), g=1)).meta.features[DEPTH][
        "info"
    ]
    assert about["video.g"] == 1 and {name: about[f"video.{name}"] for name in codes} == codes
    np.testing.assert_array_equal(video[0][DEPTH].numpy(), before.numpy())


def test_depths_of_other_codes_or_units_are_not_merged(tmp_path: Path) -> None:
    roots = {name: head_set(name, tmp_path) for name in DEPTH_SETS}
    for one, two in (("video", "video_linear"), ("image", "image_metres")):
        with pytest.raises(stepwell.SchemaError, match="means otherwise"):
            edits.merge([roots[one], roots[two]], tmp_path / "both")
    old = tmp_path / "old"
    shutil.copytree(roots["video"], old)
    info = json.loads((old / "meta/info.json").read_text())
    about = info["features"][DEPTH]["info"]
    about["video.is_depth_map"] = about.pop("is_depth_map")
    (old / "meta/info.json").write_text(json.dumps(info))
    with pytest.warns(LeftOutWarning, match=r"items\.json, items\.npz: left out"):
        merged = edits.merge([old, roots["video"]], tmp_path / "both")
    both = LeRobotDataset("me/both", merged)
    expected = head_items(roots["video"])[f"mm/step/{DEPTH}"]
    for row in range(len(both)):
        np.testing.assert_array_equal(both[row][DEPTH].numpy(), expected[row % len(expected)])


# what is damaged


def test_a_first_image_that_is_none_is_refused_on_opening(tmp_path: Path) -> None:
    root = head_set("image", tmp_path)
    path = next(root.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    images = [{"bytes": b"II*\0" + bytes(40), "path": None}] * table.num_rows
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    place = table.column_names.index(DEPTH)
    pq.write_table(table.set_column(place, DEPTH, pa.array(images, kind)), path)
    with pytest.raises(stepwell.FormatError, match="first image"):
        LeRobotDataset(root)


def test_a_size_that_info_json_has_wrong_is_told(tmp_path: Path) -> None:
    root = head_set("image_metres", tmp_path)
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"][DEPTH]["shape"] = [WIDTH, HEIGHT, 1]
    path.write_text(json.dumps(info))
    with pytest.warns(LeftOutWarning, match="These are read"):
        dataset = LeRobotDataset(root)
    assert dataset[0][DEPTH].shape == (1, HEIGHT, WIDTH)


@pytest.mark.parametrize("value", ["far", -9.0, True, float("inf")])
def test_a_quantisation_that_makes_no_sense_is_refused_on_opening(tmp_path: Path, value: Any) -> None:
    root = head_set("video", tmp_path)
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"][DEPTH]["info"]["video.depth_max"] = value
    path.write_text(json.dumps(info))
    with pytest.raises(stepwell.SchemaError, match="depth"):
        LeRobotDataset(root)
