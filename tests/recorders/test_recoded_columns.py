import itertools
import math

import numpy as np
import pytest
from conversion_stores import LENGTHS, SHAPE, blobs_of, content, files_of, plain, record, smooth_images

import stepwell
from stepwell import convert
from stepwell.codecs.codec import register_codec
from stepwell.errors import WorkerError
from stepwell.recorders.conversion_reports import Distortion
from stepwell.schema import Video
from stepwell.testing.codecs import RunningCodec

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
pytest.importorskip("zstandard")

LOSSLESS = ("raw", "png", "zstd", "delta")


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations((*LOSSLESS, "jpeg"), 2)))
def test_a_feature_is_converted_between_any_two_codecs(tmp_path, before, after):
    store = record(tmp_path / "a.well", before)
    report = convert(store, tmp_path / "b.well", {"camera": after}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert new.schema["camera"] == stepwell.Image(SHAPE, codec=after, final=True, names=["r", "g", "b"])
    assert content(new, without=["camera"]) == content(store, without=["camera"])
    distortion = report.features["camera"].distortion
    assert distortion.num_rows == sum(LENGTHS) + 2
    if after in LOSSLESS:
        assert content(new) == content(store)
        assert report.features["camera"].psnr_db == math.inf
    else:
        assert [plain(e["camera"])[0] for e in new] == [plain(e["camera"])[0] for e in store]
        assert report.features["camera"].psnr_db > 30
    assert new.verify(deep=True).is_ok


def test_psnr_is_that_of_the_decoded_rows_and_the_worst_one_is_named(tmp_path):
    store = record(tmp_path / "a.well", lengths=(4, 3))
    noisy = np.random.default_rng(0).integers(0, 256, (3, *SHAPE), dtype=np.uint8)
    with store.writer() as writer:
        images = smooth_images(3, 9)
        images[1] = noisy[1]
        points = [np.zeros((0, 3), np.float32)] * 3
        writer.add_episode({"camera": images, "action": np.zeros((3, 2), "f4"), "points": points, "task": [""] * 3})
    wanted = stepwell.Image(SHAPE, codec="jpeg", quality=60)
    report = convert(store, tmp_path / "b.well", {"camera": wanted}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    pairs = [(e["camera"].astype(float), n["camera"].astype(float)) for e, n in zip(store, new, strict=True)]
    errors = [np.square(before - after).mean(axis=(1, 2, 3)) for before, after in pairs]
    found = report.features["camera"]
    assert found.psnr_db == pytest.approx(10 * np.log10(255**2 / np.concatenate(errors).mean()))
    assert found.worst_psnr_db == pytest.approx(10 * np.log10(255**2 / np.concatenate(errors).max()))
    assert found.worst_at == (2, 1)


def test_bytes_before_and_after_are_those_of_the_rows(tmp_path):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"camera": "png"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    num_rows = sum(LENGTHS) + 2
    camera, action = report.features["camera"], report.features["action"]
    assert camera.bytes_before == num_rows * math.prod(SHAPE)
    assert camera.bytes_after == 8 * num_rows + len(blobs_of(new, "camera"))
    assert camera.ratio == camera.bytes_before / camera.bytes_after
    assert (action.bytes_before, action.bytes_after, action.psnr_db) == (8 * num_rows, 8 * num_rows, None)
    assert report.bytes_before == sum(feature.bytes_before for feature in report.features.values())


def test_text_and_ragged_features_are_converted_too(tmp_path):
    store = record(tmp_path / "a.well")
    report = convert(store, tmp_path / "b.well", {"task": "zstd", "points": "raw"}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert content(new) == content(store)
    assert (new.schema["task"].codec, new.schema["points"].codec) == ("zstd", "raw")
    assert report.features["task"].psnr_db == math.inf


def test_long_episodes_are_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", 4 * math.prod(SHAPE))
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", 4 * math.prod(SHAPE))
    reads = []
    read = stepwell.store.Segment.read_rows
    monkeypatch.setattr(
        stepwell.store.Segment,
        "read_rows",
        lambda self, name, start, stop: reads.append(stop - start) or read(self, name, start, stop),
    )
    store = record(tmp_path / "a.well", lengths=(30, 7))
    convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)
    assert max(reads) == 4
    assert sum(reads) == 30 + 1 + 7
    monkeypatch.undo()
    convert(store, tmp_path / "c.well", {"camera": "jpeg"}, workers=1)
    assert files_of(stepwell.open(tmp_path / "b.well")) == files_of(stepwell.open(tmp_path / "c.well"))


@pytest.mark.parametrize("gop", [1, 3, 50])
@pytest.mark.parametrize("final", ["raw", "jpeg", "delta"])
def test_images_become_video_and_video_becomes_images(tmp_path, gop, final):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", segment_bytes=256 << 20)
    video = Video(SHAPE, crf=10, gop=gop)
    report = convert(store, tmp_path / "b.well", {"camera": video}, workers=1)
    videos = stepwell.open(tmp_path / "b.well")
    assert content(videos, without=["camera"]) == content(store, without=["camera"])
    assert report.features["camera"].distortion.num_rows == sum(LENGTHS) + 2
    assert report.features["camera"].psnr_db == pytest.approx(psnr_of(store, videos), abs=0.01)
    assert report.features["camera"].psnr_db > 30
    report = convert(videos, tmp_path / "c.well", {"camera": final}, workers=1)
    images = stepwell.open(tmp_path / "c.well")
    assert images.schema["camera"].codec == final
    if final == "jpeg":
        assert report.features["camera"].psnr_db == pytest.approx(psnr_of(videos, images), abs=0.01)
    else:
        assert content(images) == content(videos)


def test_imported_video_with_b_frames_is_converted_frame_by_frame(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    from stepwell.codecs.video_files import VideoFile

    path = str(tmp_path / "b.mp4")
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=10, options={"bf": "3", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        pictures = np.repeat(np.repeat(smooth_images(30, 0), 2, axis=1), 2, axis=2)
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        file.mux(stream.encode())
    with av.open(path) as file:
        wanted = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    with stepwell.create(tmp_path / "a.well", {"front": Video((32, 48, 3))}) as store, store.writer() as writer:
        writer.add_episode({"front": VideoFile(path)})
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", 5 * wanted[0].nbytes)
    convert(tmp_path / "a.well", tmp_path / "b.well", {"front": "raw"}, workers=1)
    assert np.array_equal(stepwell.open(tmp_path / "b.well")[0]["front"], wanted)


def psnr_of(store, other):
    """PSNR over all images of two stores."""
    pairs = zip(store, other, strict=True)
    errors = [np.square(np.subtract(a["camera"], b["camera"], dtype=float)).reshape(-1) for a, b in pairs]
    return 10 * np.log10(255**2 / np.concatenate(errors).mean())


def test_damaged_video_is_named_by_its_steps(tmp_path):
    pytest.importorskip("av")
    store = record(tmp_path / "a.well", "video", gop=4, lengths=(6, 9))
    segment = store.segments[1]
    offsets = segment.offsets_map("camera").astype(int)
    file = segment.path / "camera.bin"
    data = bytearray(file.read_bytes())
    data[offsets[5] : offsets[6]] = bytes(offsets[6] - offsets[5])
    file.write_bytes(data)
    with pytest.raises(
        WorkerError, match=r"episode 1 could not be written: DecodeError: feature 'camera', steps 0 to 8"
    ):
        convert(store, tmp_path / "b.well", {"camera": "jpeg"}, workers=1)
    assert not (tmp_path / "b.well").exists()


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("run", [1, 4, 1000])
@pytest.mark.parametrize("batch_rows", [3, 1000])
def test_rows_that_need_rows_before_them_come_back_and_are_compared(tmp_path, monkeypatch, lag, run, batch_rows):
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", batch_rows * math.prod(SHAPE))
    monkeypatch.setattr("stepwell.recorders.recoded_columns.BATCH_BYTES", batch_rows * math.prod(SHAPE))
    store = record(tmp_path / "a.well", segment_bytes=256 << 20, lengths=(5, 1, 21))
    running = stepwell.Image(SHAPE, codec="running", run=run, lag=lag)
    report = convert(store, tmp_path / "b.well", {"camera": running}, workers=1)
    assert content(stepwell.open(tmp_path / "b.well")) == content(store)
    assert report.features["camera"].distortion == Distortion(5 + 1 + 1 + 21 + 1)
    convert(tmp_path / "b.well", tmp_path / "c.well", {"camera": "raw"}, workers=1)
    assert content(stepwell.open(tmp_path / "c.well")) == content(store)


class LossyCodec(RunningCodec):
    """Loses the lowest bit of every row after the first of a run."""

    name = "lossy-running"

    def decode_run(self, blobs, wanted, outs, size=None):
        super().decode_run(blobs, wanted, outs, size)
        for place, out in zip(wanted, outs, strict=True):
            if place:
                np.bitwise_xor(out, 1, out=out)


register_codec(LossyCodec)


@pytest.mark.parametrize("lag", [0, 2])
def test_what_a_run_loses_is_told_of_the_right_steps(tmp_path, lag):
    store = record(tmp_path / "a.well", lengths=(1, 4, 1), segment_bytes=256 << 20)
    lossy = stepwell.Image(SHAPE, codec="lossy-running", run=3, lag=lag)
    found = convert(store, tmp_path / "b.well", {"camera": lossy}, workers=1).features["camera"]
    # of eight rows four are not the first of a run: two final ones, and steps 1 and 2 of episode 1
    assert found.psnr_db == pytest.approx(10 * np.log10(255**2 / (4 / 8)))
    assert found.worst_at == (0, 1)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(("raw", "png", "zstd", "jpeg"), 2)))
def test_images_of_any_size_are_converted_between_any_two_codecs(tmp_path, before, after):
    store = stepwell.create(tmp_path / "a.well", {"camera": stepwell.Image((None, None, 3), codec=before, final=True)})
    with store.writer() as writer:
        for number, length in enumerate((20, 1)):
            images = smooth_images(length + 1, number)
            writer.add_episode({"camera": [image[: 1 + k % 16, k % 24 :].copy() for k, image in enumerate(images)]})
    store.refresh()
    report = convert(store, tmp_path / "b.well", {"camera": after}, workers=1)
    new = stepwell.open(tmp_path / "b.well")
    assert str(new.schema["camera"]) == f"{after} ?x?x3 uint8"
    assert new.verify(deep=True).is_ok
    pairs = list(zip(*([row for episode in each for row in episode["camera"]] for each in (store, new)), strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    if after != "jpeg":
        assert all(np.array_equal(a, b) for a, b in pairs)
    assert report.features["camera"].distortion.num_rows == len(pairs)
    assert report.features["camera"].psnr_db > 30
