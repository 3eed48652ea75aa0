"""Windows of cameras with a rate: decoded once, by decoders of fields too, and refused where bytes are damaged."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, EncodedRows, Field, Image, Loader, Samples, StepError, StepwellError, View
from stepwell.codecs import make_codec
from stepwell.codecs.jpeg import JpegCodec
from stepwell.transforms import RandomCrop, Resize

FPS, RATE, SHAPE = 10.0, 24.0, (16, 24, 3)
FIELDS = {
    "past": Field("camera", span=(-0.3, 0.0)),
    "ahead": Field("camera", span=(-0.1, 0.2), pad="zero"),
    "points": Field("camera", seconds=[-0.4, 0.0], align="nearest"),
    "mixed": Field("camera", span=(-0.2, 0.1), rate=30, align="linear"),
    "now": "camera",
}


def images_of(length: int, number: int) -> Samples:
    rng = np.random.default_rng(number)
    times = np.sort(rng.uniform(0, length / FPS, int(length * RATE / FPS)))
    across, down = np.meshgrid(np.linspace(0, 120, SHAPE[1]), np.linspace(0, 120, SHAPE[0]))
    smooth = (across + down)[None, ..., None] + rng.uniform(0, 15, (len(times), 1, 1, 3))
    return Samples(smooth.astype(np.uint8), times)


EPISODES = [images_of(length, number) for number, length in enumerate([9, 1, 30])]
LENGTHS = [9, 1, 30]


def make(path: Any, codec: str, episodes: list[Samples] = EPISODES, **options: Any) -> stepwell.Store:
    schema = {"step": Array((), "int64", final=True), "camera": Image(SHAPE, codec=codec, rate=RATE, **options)}
    store = stepwell.create(path, schema, fps=FPS)
    with store.writer() as writer:
        for samples, length in zip(episodes, LENGTHS, strict=True):
            writer.add_episode({"step": np.arange(length + 1), "camera": samples})
    return store


def assert_same(one: Any, other: Any, **options: Any) -> None:
    """Compare all batches of two loaders of other codecs."""
    count = 0
    for batch, wanted in zip(one, other, strict=True):
        assert batch.keys() == wanted.keys()
        for key in batch:
            assert np.array_equal(batch[key], wanted[key]), key
        count += 1
    assert count


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store of JPEG files, and one of the pixels that come out of them."""
    path = tmp_path_factory.mktemp("cameras")
    encoded = make(path / "jpeg.well", "jpeg")
    plain = make(path / "raw.well", "raw", [episode["camera"] for episode in encoded])
    return encoded, plain


def test_a_camera_is_stored_once_as_its_files(stores):
    encoded, _ = stores
    for episode, samples in zip(encoded, EPISODES, strict=True):
        found = episode["camera"]
        assert np.array_equal(found.times, samples.times)
        assert np.array_equal(episode["camera_time"], samples.times)
        assert np.abs(found.values.astype(int) - samples.values).mean() < 8
    codec = make_codec(encoded.schema["camera"].sample)
    num_bytes = sum(len(codec.encode(image)) + 4 for samples in EPISODES for image in samples.values)
    assert sum(path.stat().st_size for path in encoded.path.rglob("camera.bin")) == num_bytes
    assert encoded.verify(deep=True).is_ok
    assert encoded.statistics()["camera"].shape == (3,)


@pytest.mark.parametrize("options", [
    {}, {"threads": 3}, {"order": "random", "seed": 3}, {"order": "pooled", "threads": 2, "seed": 1},
    {"page_cache": False},
])  # fmt: skip
def test_windows_are_those_of_the_pixels(stores, options):
    encoded, plain = stores
    assert_same(Loader(encoded, FIELDS, batch_size=7, **options), Loader(plain, FIELDS, batch_size=7, **options))


def test_stores_of_other_codecs_go_together(stores):
    encoded, plain = stores
    ways = [Loader(View(pair), FIELDS, batch_size=16) for pair in ([encoded, plain], [plain, encoded])]
    assert_same(*ways)


def test_decoders_of_fields_make_what_they_make_of_pixels(tmp_path):
    stores = [make(tmp_path / f"{codec}.well", codec) for codec in ("png", "raw")]
    fields = {
        "small": Field("camera", span=(-0.3, 0.0), decoder=Resize((8, 8))),
        "crop": Field("camera", span=(-0.2, 0.1), decoder=RandomCrop((8, 8)), pad="zero"),
        "whole": Field("camera", span=(-0.3, 0.0)),
    }
    assert_same(*(Loader(store, fields, batch_size=9, seed=4, order="random") for store in stores))
    batch = next(iter(Loader(stores[0], fields, batch_size=9, seed=4, order="random")))
    # one crop a window, another for each
    for window, crops in zip(batch["whole"], batch["crop"], strict=True):
        assert crops.shape[1:] == (8, 8, 3) != window.shape[1:]


def test_an_image_that_several_windows_show_is_decoded_once(stores, monkeypatch):
    encoded, _ = stores
    decoded = []
    own = JpegCodec.batch_decoder

    def counting(self):
        decode = own(self)
        return lambda blob, out: (decoded.append(blob.__array_interface__["data"][0]), decode(blob, out))[1]

    monkeypatch.setattr(JpegCodec, "batch_decoder", counting)
    fields = {"a": Field("camera", span=(-0.5, 0.0)), "b": Field("camera", seconds=[-0.1, 0.0])}
    for _ in Loader(encoded, fields, batch_size=64):
        pass
    assert len(decoded) == len(set(decoded)) > 60


def test_files_of_a_camera_are_stored_as_they_came(tmp_path):
    schema = {"step": Array((), "int64"), "camera": Image(SHAPE, codec="jpeg", rate=RATE)}
    store = stepwell.create(tmp_path / "a.well", schema, fps=FPS)
    codec = make_codec(schema["camera"].sample)
    samples = EPISODES[2]
    files = [codec.encode(image) for image in samples.values]
    with store.writer() as writer:
        given = 0
        for step in range(30):
            upto = int(np.searchsorted(samples.times, step / FPS, side="right"))
            writer.append_at("camera", EncodedRows(files[given:upto]), samples.times[given:upto])
            if step == 4:
                with pytest.raises(StepError, match="no row of"):
                    writer.append_at("camera", EncodedRows([b"no image"]), 0.45)
            writer.append(step=step)
            given = upto
        writer.append_at("camera", samples.values[given:], samples.times[given:])
        writer.end_episode()
        writer.add_episode({"step": np.arange(30), "camera": Samples(EncodedRows(files), samples.times)})
    wanted = np.stack([codec.decode(np.frombuffer(file, np.uint8)) for file in files])
    for episode in store:
        assert np.array_equal(episode["camera"].values, wanted)
        assert np.array_equal(episode["camera"].times, samples.times)


def row_of(file: bytes) -> bytes:
    """A row of one sample."""
    return len(file).to_bytes(4, "little") + file


def test_rows_that_are_encoded_already_are_checked(stores, tmp_path):
    encoded, _ = stores
    store = stepwell.create(tmp_path / "a.well", encoded.schema, fps=FPS)
    one = row_of(make_codec(encoded.schema["camera"].sample).encode(EPISODES[0].values[0]))
    step, time = np.arange(2), [np.array([0.0]), np.array([0.1])]
    for rows, times, message in [
        ([one, one], [time[0], time[0]], "is not after the one before"),
        ([one + one, one], time, "not as many"),
        ([one[:-1], one], time, "does not fit"),
        ([one, one], EncodedRows([b"\0" * 8, b"\0" * 7]), "7 bytes, of samples of 8 each"),
        ([row_of(b"no image"), one], time, "no row of"),
    ]:
        with store.writer() as writer, pytest.raises(StepError, match=message):
            writer.add_episode({"step": step, "camera": EncodedRows(rows), "camera_time": times})
    assert store.num_episodes == 0


@pytest.mark.parametrize("way", ["size", "offset", "times", "bytes", "short"])
def test_damaged_samples_are_refused_by_whoever_reads_them(stores, tmp_path, way):
    encoded, _ = stores
    shutil.copytree(encoded.path, tmp_path / "a.well")
    segment = next((tmp_path / "a.well" / "segments").iterdir())
    blobs = segment / "camera.bin"
    if way == "size":
        edit(blobs, 0, (1 << 31).to_bytes(4, "little"))
    elif way == "offset":
        edit(segment / "camera.npy", -8 * 12, (1 << 40).to_bytes(8, "little"))
    elif way == "times":
        # a row has fewer samples than times
        edit(blobs, 0, (blobs.stat().st_size // 3).to_bytes(4, "little"))
    elif way == "bytes":
        edit(blobs, 4, b"\0" * 40)
    else:
        blobs.write_bytes(blobs.read_bytes()[:-100])
    store = stepwell.open(tmp_path / "a.well", mode="r")
    with pytest.raises(StepwellError, match="camera"):
        for _ in Loader(store, FIELDS, batch_size=64):
            pass
    assert not store.verify(deep=True).is_ok
    # an episode is read from its first row to its last, whatever lies between two of them
    if way != "offset":
        with pytest.raises(StepwellError):
            [episode["camera"] for episode in store]


def edit(path: Any, place: int, data: bytes) -> None:
    held = bytearray(path.read_bytes())
    place %= len(held)
    held[place : place + len(data)] = data
    path.write_bytes(held)


def test_any_damage_is_an_error_or_other_pixels(stores, tmp_path):
    encoded, _ = stores
    shutil.copytree(encoded.path, tmp_path / "a.well")
    segment = next((tmp_path / "a.well" / "segments").iterdir())
    rng = np.random.default_rng(0)
    files = [segment / name for name in ("camera.bin", "camera.npy", "camera_time.npy", "camera_time.bin")]
    kept = {file: file.read_bytes() for file in files}
    for _ in range(30):
        file = files[rng.integers(len(files))]
        first = 0 if file.suffix == ".bin" else 128
        place = int(rng.integers(first, len(kept[file]) - 8))
        edit(file, place, rng.bytes(int(rng.integers(1, 8))))
        try:
            for _ in Loader(stepwell.open(tmp_path / "a.well", mode="r"), FIELDS, batch_size=64):
                pass
        except StepwellError:
            pass
        file.write_bytes(kept[file])
