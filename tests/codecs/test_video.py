"""The video codec: what comes back, what is refused, and that ffmpeg plays what lies on disk."""

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import make_codec
from stepwell.codecs.video import VideoCodec
from stepwell.codecs.video_decoding import FrameDecoder
from stepwell.codecs.video_files import VideoFile
from stepwell.codecs.video_streams import parse_row
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Array, Feature, Image, Video
from stepwell.testing import SequentialCodecConformance, smooth_image

av = pytest.importorskip("av")

DEMUXERS = {"h264": "h264", "hevc": "hevc", "av1": "obu"}
ENCODERS = tuple(DEMUXERS)


class TestH264(SequentialCodecConformance):
    feature: ClassVar[Feature] = Video((33, 47, 3), gop=7)
    is_lossless = False
    detects_changes = True
    has_places = True


class TestH264Grey(SequentialCodecConformance):
    feature = Video((48, 64), encoder="h264")
    is_lossless = False
    detects_changes = True
    has_places = True


class TestHevc(SequentialCodecConformance):
    feature = Video((32, 48, 3), encoder="hevc", gop=5)
    is_lossless = False
    detects_changes = True
    has_places = True
    num_rows = 13


class TestAv1GreyChannel(SequentialCodecConformance):
    feature = Video((31, 48, 1), encoder="av1", gop=6)
    is_lossless = False
    detects_changes = True
    has_places = True
    num_rows = 13


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler") or os.geteuid() != 0, reason="only root's become real-time")
def test_threads_of_an_encoder_are_not_real_time_ones() -> None:
    encoder = make_codec(Video((64, 64, 3), encoder="av1")).encoder()
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
    encoder.put(np.zeros((64, 64, 3), np.uint8))
    more = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    assert set(more) == set(threads)
    encoder.close()


def encoded(codec: VideoCodec, images: list[np.ndarray]) -> list[np.ndarray]:
    encoder = codec.encoder()
    blobs = [blob for image in images for blob in encoder.put(image)] + encoder.end()
    encoder.close()
    return [np.frombuffer(blob, np.uint8) for blob in blobs]


def decoded(codec: VideoCodec, run: list[np.ndarray], wanted: list[int], size: Any = None) -> list[np.ndarray]:
    shape = codec.feature.fixed_shape
    outs = [np.empty((*(size or shape[:2]), *shape[2:]), np.uint8) for _ in wanted]
    codec.decode_run(run, wanted, outs, size)
    return outs


def codec_of(*shape: int, **options: Any) -> VideoCodec:
    codec = make_codec(Video(shape, **options))
    assert isinstance(codec, VideoCodec)
    return codec


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(np.mean((a.astype(float) - b) ** 2), 1e-9)))


def reseal(blob: np.ndarray, place: int, value: int) -> np.ndarray:
    """Return a row with a changed byte in its packet and the checksum that fits it."""
    from stepwell.codecs.video_streams import pack_row

    row = parse_row(blob.tobytes())
    packet = bytearray(row.packets[0])
    packet[place % len(packet)] = value
    return np.frombuffer(pack_row(row.kind, [bytes(packet)], row.frame, is_sync=row.is_sync), np.uint8)


@settings(max_examples=15, deadline=None)
@given(
    sides=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    channels=st.sampled_from([(), (1,), (3,)]),
    encoder=st.sampled_from(ENCODERS),
    gop=st.integers(1, 4),
)
def test_images_of_any_size_come_back_close(
    sides: tuple[int, int], channels: tuple[int, ...], encoder: str, gop: int
) -> None:
    codec = codec_of(*sides, *channels, encoder=encoder, gop=gop, crf=12)
    images = [smooth_image(codec.feature, seed) for seed in range(gop)]
    for image, out in zip(images, decoded(codec, encoded(codec, images), list(range(gop))), strict=True):
        assert psnr_db(out, image) > 30


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 150, 90), (0, 0, 0), (255, 255, 255)])
def test_flat_colour_comes_back_as_it_was(encoder: str, colour: tuple[int, int, int]) -> None:
    codec = codec_of(48, 64, 3, encoder=encoder)
    image = np.full((48, 64, 3), colour, np.uint8)
    (out,) = decoded(codec, encoded(codec, [image]), [0])
    assert np.abs(out.reshape(-1, 3).mean(axis=0) - colour).max() <= 2.5


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("grey", [0, 5, 128, 250, 255])
def test_grey_keeps_its_full_range(encoder: str, grey: int) -> None:
    codec = codec_of(32, 32, encoder=encoder)
    (out,) = decoded(codec, encoded(codec, [np.full((32, 32), grey, np.uint8)]), [0])
    assert np.abs(out.astype(int) - grey).max() <= 1


@pytest.mark.parametrize("encoder", ENCODERS)
def test_column_is_an_elementary_stream_that_ffmpeg_plays(encoder: str) -> None:
    codec = codec_of(48, 64, 3, encoder=encoder, gop=4)
    images = [smooth_image(codec.feature, seed) for seed in range(10)]
    rows = encoded(codec, images)
    with av.open(io.BytesIO(b"".join(row.tobytes() for row in rows)), format=DEMUXERS[encoder]) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == len(images)
    for place, frame in enumerate(frames):
        start = place // 4 * 4
        np.testing.assert_array_equal(decoded(codec, rows[start : place + 1], [place - start])[0], frame)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_equal_images_give_equal_bytes(encoder: str) -> None:
    codec = codec_of(48, 64, 3, encoder=encoder, gop=3)
    images = [smooth_image(codec.feature, seed) for seed in range(7)]
    assert [row.tobytes() for row in encoded(codec, images)] == [row.tobytes() for row in encoded(codec, images)]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_nothing_is_printed(encoder: str) -> None:
    script = (
        "import numpy as np\nfrom stepwell.codecs import make_codec\nfrom stepwell.schema import Video\n"
        f"codec = make_codec(Video((64, 64, 3), encoder={encoder!r}))\n"
        "blob = codec.encode(np.zeros((64, 64, 3), np.uint8))\n"
        "codec.decode(np.frombuffer(blob, np.uint8))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SVT_LOG"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_lower_crf_is_closer_and_bigger() -> None:
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    rows = {}
    for crf in (10, 40):
        codec = codec_of(48, 64, 3, crf=crf)
        (blob,) = encoded(codec, [image])
        rows[crf] = blob.size, psnr_db(codec.decode(blob), image)
    assert rows[10] > rows[40]
    assert rows[10][1] > rows[40][1]


@pytest.mark.parametrize("encoder", ["h264", "hevc"])
def test_full_chroma_keeps_thin_colours(encoder: str) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, ::2, 0] = 255
    found = {}
    for pixel_format in ("yuv420p", "yuv444p"):
        codec = codec_of(32, 32, 3, encoder=encoder, pixel_format=pixel_format, crf=5)
        found[pixel_format] = psnr_db(decoded(codec, encoded(codec, [image]), [0])[0], image)
    assert found["yuv444p"] > found["yuv420p"] + 10


@pytest.mark.parametrize("shape", [(60, 80, 3), (61, 79, 3), (61, 79), (60, 80, 1)])
def test_resized_rows_are_close_to_what_another_library_makes_of_them(shape: tuple[int, ...]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    codec = codec_of(*shape)
    rows = encoded(codec, [smooth_image(codec.feature, seed) for seed in range(2)])
    for size in ((30, 40), (24, 50), (100, 130)):
        whole, small = decoded(codec, rows, [1])[0], decoded(codec, rows, [1], size)[0]
        theirs = pillow.fromarray(whole.reshape(whole.shape[:2] if shape[2:] != (3,) else whole.shape))
        theirs = np.asarray(theirs.resize(size[::-1], pillow.BILINEAR)).reshape(small.shape)
        assert np.abs(small.astype(int) - theirs).mean() < 2
        assert psnr_db(small, theirs) > 35


@pytest.mark.parametrize("shape", [(60, 80, 3), (61, 79)])
def test_resizing_to_the_same_size_changes_nothing(shape: tuple[int, ...]) -> None:
    codec = codec_of(*shape)
    rows = encoded(codec, [smooth_image(codec.feature, 0)])
    np.testing.assert_array_equal(decoded(codec, rows, [0], shape[:2])[0], decoded(codec, rows, [0])[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "vp8"}, "'vp8'.*Allowed: 'h264', 'hevc', 'av1'; this PyAV can encode"),
        ({"gop": 0}, "'gop'.*1 to 10000"),
        ({"crf": 52}, "'crf'.*0 to 51"),
        ({"preset": "fastest"}, "'preset'.*'ultrafast'"),
        ({"encoder": "av1", "preset": 14}, "'preset'.*'13'"),
        ({"encoder": "av1", "pixel_format": "yuv444p"}, "'pixel_format'.*'yuv420p'"),
        ({"pixel_format": "gray"}, "'pixel_format'.*'yuv444p'"),
    ],
)
def test_option_that_cannot_be_is_refused_and_says_what_can(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        codec_of(32, 32, 3, **options)


@pytest.mark.parametrize(
    "feature",
    [
        Image((8, 8, 4), codec="video"),
        Image((8, 8, 3), "uint16", codec="video"),
        Array((None, 8, 3), "uint8", codec="video"),
        Array((9000, 8, 3), "uint8", codec="video"),
    ],
)
def test_feature_that_is_no_picture_is_refused(feature: Feature) -> None:
    with pytest.raises(SchemaError, match='codec "video" cannot store'):
        make_codec(feature)


def test_encoder_that_was_not_built_in_is_refused_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of(32, 32, 3, encoder="hevc")
    monkeypatch.setattr(av, "codecs_available", {"libx264"})
    with pytest.raises(SchemaError, match=r"has no libx265.*It can encode: 'h264'"):
        codec.encoder()


def test_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "a.mp4").touch()
    for use in (lambda: codec_of(32, 32, 3), lambda: VideoFile(tmp_path / "a.mp4")):
        with pytest.raises(MissingDependencyError, match=r"pip install .*\[video\]"):
            use()


def test_row_of_another_size_is_refused() -> None:
    blob = encoded(codec_of(32, 48, 3), [np.zeros((32, 48, 3), np.uint8)])[0]
    with pytest.raises(DecodeError, match="32x48, where the feature is 48x32"):
        codec_of(48, 32, 3).decode(blob)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_damage_that_the_checksum_misses_raises_or_stays_within_the_run(encoder: str) -> None:
    codec = codec_of(48, 64, 3, encoder=encoder, gop=4)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (6, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1) for _ in range(8)]
    rows = encoded(codec, images)
    good, num_refused = decoded(codec, rows[4:], [0, 1, 2, 3]), 0
    for _ in range(60):
        place = int(rng.integers(4))
        damaged = reseal(rows[place], int(rng.integers(10**6)), int(rng.integers(256)))
        try:
            decoded(codec, [*rows[:place], damaged, *rows[place + 1 : 4]], [0, 1, 2, 3])
        except DecodeError:
            num_refused += 1
        for out, image in zip(decoded(codec, rows[4:], [0, 1, 2, 3]), good, strict=True):
            np.testing.assert_array_equal(out, image)
    assert num_refused > 0


def test_rows_of_several_encoders_decode_from_one_column() -> None:
    images = [smooth_image(Video((32, 48, 3)), seed) for seed in range(2)]
    columns = {name: encoded(codec_of(32, 48, 3, encoder=name), images) for name in ENCODERS}
    reader = codec_of(32, 48, 3, encoder="hevc")
    for name in ENCODERS * 2:
        for out, image in zip(decoded(reader, columns[name], [0, 1]), images, strict=True):
            assert psnr_db(out, image) > 30


def test_eight_threads_decode_at_once_what_one_does() -> None:
    codec = codec_of(48, 64, 3, gop=5)
    rows = encoded(codec, [smooth_image(codec.feature, seed) for seed in range(20)])
    alone = [decoded(codec, rows[start : start + 5], [1, 4]) for start in range(0, 20, 5)]

    def work(k: int) -> bool:
        outs = decoded(codec, rows[k % 4 * 5 :][:5], [1, 4], (20, 30) if k % 3 == 0 else None)
        return k % 3 == 0 or all(np.array_equal(a, b) for a, b in zip(outs, alone[k % 4], strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


def test_two_thousand_runs_leave_no_memory_behind() -> None:
    psutil = pytest.importorskip("psutil")
    codec = codec_of(96, 96, 3)
    rows = encoded(codec, [smooth_image(codec.feature, seed) for seed in range(2)])
    outs = [np.empty((96, 96, 3), np.uint8) for _ in range(2)]

    def decode(count: int) -> int:
        for _ in range(count):
            codec.decode_run(rows, [0, 1], outs)
        return int(psutil.Process().memory_info().rss)

    before = decode(200)
    assert decode(2000) - before < 8 << 20, "2,000 runs are 110 MB of pixels"


def test_child_of_a_fork_decodes_with_decoders_of_its_own() -> None:
    codec = codec_of(48, 64, 3)
    rows = encoded(codec, [smooth_image(codec.feature, seed) for seed in range(2)])
    (expected,) = decoded(codec, rows, [1])
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(decoded(codec, rows, [1])[0], expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(decoded(codec, rows, [1])[0], expected)


def test_packets_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of(48, 64, 3, gop=4)
    blobs = encoded(codec, [np.full((48, 64, 3), 20 * number, np.uint8) for number in range(4)])
    shared = []
    decode = FrameDecoder.decode

    def watched(decoder: FrameDecoder, packets: Any, *rest: Any) -> set[int]:
        shared.extend(
            any(np.shares_memory(np.frombuffer(packet, np.uint8), blob) for blob in blobs) for packet in packets
        )
        return decode(decoder, packets, *rest)

    monkeypatch.setattr(FrameDecoder, "decode", watched)
    codec.decode_run(blobs, [3], [np.empty((48, 64, 3), np.uint8)])
    assert len(shared) == 4
    assert all(shared)
