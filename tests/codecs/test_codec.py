"""The registry, and the round trip of every lossless codec over any feature that it takes."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import warm_children
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import Codec, SequentialCodec, codec_names, make_codec, register_codec
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.schema import Array, Bytes, Feature, Image, Text
from stepwell.testing import RunningCodec, features, values


def same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and a == b


@settings(max_examples=150)
@given(st.data())
def test_lossless_codecs_give_back_any_value_of_any_feature_bit_for_bit(data: st.DataObject) -> None:
    feature = data.draw(features())
    codec, value = make_codec(feature), data.draw(values(feature))
    blob = np.frombuffer(codec.encode(value), np.uint8)
    assert same(codec.decode(blob), value)
    if not feature.is_ragged:
        out = np.zeros(feature.fixed_shape, feature.np_dtype)
        codec.decode_into(blob, out)
        assert same(out, value)


@pytest.mark.parametrize("name", ["raw", "zstd", "lz4", "jpeg", "png", "delta"])
def test_built_in_codecs_are_known_by_name(name: str) -> None:
    assert name in codec_names()


def test_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SchemaError, match=r"no codec 'mp3'\. There are: .*jpeg, .*lz4, .*png, .*raw, .*zstd"):
        make_codec(Array(2, codec="mp3"))


def test_built_in_name_cannot_be_taken_by_another_codec() -> None:
    class Mine(Codec):
        name: ClassVar[str] = "png"

    with pytest.raises(SchemaError, match="'png' is taken by stepwell"):
        register_codec(Mine)  # type: ignore[type-abstract]


def test_name_of_one_users_codec_cannot_be_taken_by_another() -> None:
    def make(qualname: str) -> type[Codec]:
        return type(
            "Mine",
            (Codec,),
            {"name": "test-twice", "__qualname__": qualname, "__module__": __name__},
        )

    first = make("First")
    assert register_codec(first) is first
    assert register_codec(make("First")) is not first, "the module was reloaded"
    with pytest.raises(SchemaError, match=r"taken by .*\.First"):
        register_codec(make("Second"))


MY_CODECS = """
from stepwell.codecs import register_codec
from stepwell.codecs.raw import RawCodec


@register_codec
class Mine(RawCodec):
    name = "test-mine"
"""


def run_python(directory: Path, code: str) -> str:
    """Run code in a fresh process whose directory has the module my_codecs; return what it printed."""
    done = warm_children.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_other_process_is_told_what_to_import_for_a_codec_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_codecs.py").write_text(MY_CODECS)
    record = """
import numpy, stepwell, my_codecs
store = stepwell.create("mine.well", stepwell.Schema({"torque": stepwell.Array(2, codec="test-mine")}))
with store.writer() as writer:
    writer.add_episode({"torque": numpy.ones((3, 2), "float32")})
"""
    read = """
import stepwell
print(stepwell.open("mine.well")[0]["torque"].sum())
"""
    assert run_python(tmp_path, record) == ""
    assert '"import my_codecs" first' in run_python(tmp_path, read)
    assert run_python(tmp_path, "import my_codecs" + read) == "6.0\n"


def test_record_of_a_feature_names_the_module_of_its_codec_and_keeps_it() -> None:
    class Mine(Codec):
        name: ClassVar[str] = "test-kept"

    register_codec(Mine)  # type: ignore[type-abstract]
    record = Array(2, codec="test-kept").to_json()
    assert record["codec_module"] == __name__
    assert Feature.from_json(record) == Array(2, codec="test-kept")
    elsewhere = Feature.from_json({**record, "codec": "test-elsewhere", "codec_module": "a.b"})
    assert elsewhere.to_json()["codec_module"] == "a.b", "a process that copies a store need not know its codecs"
    with pytest.raises(SchemaError, match=r'"import a\.b" first'):
        make_codec(elsewhere)


@pytest.mark.parametrize("module", [None, 3, "os; print(1)", ""])
def test_what_is_no_name_of_a_module_is_not_told(module: object) -> None:
    feature = Feature.from_json({**Array(2, codec="test-nowhere").to_json(), "codec_module": module})
    with pytest.raises(SchemaError, match="import the module that calls register_codec first"):
        make_codec(feature)


def test_records_of_stepwells_own_codecs_name_no_module() -> None:
    make_codec(Array(2, codec="zstd"))
    assert "codec_module" not in Array(2, codec="zstd").to_json()


def test_script_is_no_module_to_import() -> None:
    Mine = type("Mine", (Codec,), {"name": "test-script", "__module__": "__main__"})
    register_codec(Mine)
    assert "codec_module" not in Array(2, codec="test-script").to_json()


def test_codec_need_not_say_how_a_row_comes_into_a_batch() -> None:
    class Doubled(Codec):
        name: ClassVar[str] = "test-doubled"

        def encode(self, value: Any) -> bytes:
            return bytes(np.repeat(value, 2))

        def decode(self, blob: np.ndarray) -> np.ndarray:
            return blob[::2].copy()

    register_codec(Doubled)
    codec, out = make_codec(Array(3, "uint8", codec="test-doubled")), np.zeros(3, np.uint8)
    codec.decode_into(np.frombuffer(codec.encode(np.array([1, 2, 3], np.uint8)), np.uint8), out)
    assert out.tolist() == [1, 2, 3]
    with pytest.raises(DecodeError, match=r"shape \(1,\), where the feature has \(3,\)"):
        codec.decode_into(np.zeros(2, np.uint8), out)


def test_crop_is_cut_from_the_whole_where_a_codec_knows_no_better() -> None:
    feature = Image((7, 9), codec="zstd")
    codec, image = make_codec(feature), np.arange(63, dtype=np.uint8).reshape(7, 9)
    part = codec.decode_crop(np.frombuffer(codec.encode(image), np.uint8), (2, 3, 4, 5), (2, 2))
    np.testing.assert_array_equal(part, image[2:6, 3:8])


def test_run_is_the_row_alone_where_rows_say_nothing_and_the_codec_neither() -> None:
    class Silent(RunningCodec):
        name = "silent"
        sync_mark = None

    codec = Silent(Array(2, "uint8", codec="silent"))
    offsets, blob = np.array([0, 3, 6, 9], np.uint64), np.zeros(9, np.uint8)
    assert [codec.run_of(offsets, blob, row, 0, 3) for row in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert codec.is_sync(blob[:3])
    assert not codec.is_sync(blob[:0])


def test_runs_are_found_by_the_marks() -> None:
    codec = RunningCodec(Array(2, "uint8", codec="running", run=3))
    encoder = codec.encoder()
    rows = [blob for value in range(7) for blob in encoder.put(np.full(2, value, "uint8"))] + encoder.end()
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    blob = np.frombuffer(b"".join(rows), np.uint8)
    runs = [codec.run_of(offsets, blob, row, 0, 7) for row in range(7)]
    assert runs == [(0, 3)] * 3 + [(3, 6)] * 3 + [(6, 7)]
    assert codec.run_of(offsets, blob, 4, 3, 5) == (3, 5)
    assert codec.run_of(offsets, blob, 4, 4, 7) == (-1, -1)
    assert [codec.is_sync(row) for row in rows] == [True, False, False, True, False, False, True]


def test_a_run_ends_at_the_next_mark_or_at_a_row_without_bytes() -> None:
    codec = make_codec(Image((4, 4), codec="delta"))
    assert isinstance(codec, SequentialCodec)
    assert codec.sync_mark is not None
    position, mask = codec.sync_mark
    rng = np.random.default_rng(0)
    for _ in range(50):
        # each episode begins with a run, and may have a final row without a value
        kinds = []
        for _ in range(int(rng.integers(1, 5))):
            kinds += ["sync", *np.where(rng.random(int(rng.integers(0, 9))) < 0.3, "sync", "next").tolist()]
            kinds += ["none"] * int(rng.integers(0, 2))
        rows = {"sync": bytes(position) + bytes([mask, 7]), "next": bytes(position + 2), "none": b""}
        blobs = [rows[kind] for kind in kinds]
        offsets = np.cumsum([0, *map(len, blobs)]).astype(np.uint64)
        data = np.frombuffer(b"".join(blobs), np.uint8)
        starts = [row for row, kind in enumerate(kinds) if kind != "next"] + [len(kinds)]
        for row, kind in enumerate(kinds):
            if kind != "none":
                first = max(start for start in starts if start <= row)
                assert codec.run_of(offsets, data, row, 0, len(kinds)) == (first, min(s for s in starts if s > row))


RGB = (8, 8, 3)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Image(RGB, codec="jpeg", quality=0), "'quality'.*is 0.*1 to 100"),
        (Image(RGB, codec="jpeg", quality=101), "'quality'.*is 101.*1 to 100"),
        (Image(RGB, codec="jpeg", quality=90.5), "'quality'.*is 90.5.*integer"),
        (Image(RGB, codec="jpeg", quality=True), "'quality'.*is True.*integer"),
        (Image(RGB, codec="jpeg", subsampling="4:2:0"), "'subsampling'.*'4:2:0'.*'444', '422', '420'"),
        (Image(RGB, codec="jpeg", subsampling=420), "'subsampling'.*is 420"),
        (Image((8, 8), codec="jpeg", subsampling="444"), "'subsampling'.*'444'.*Allowed: 'gray'"),
        (Image(RGB, codec="jpeg", level=1), "'jpeg' has no option 'level'.*quality, subsampling"),
        (Image(RGB, codec="png", level=10), "'level'.*is 10.*0 to 9"),
        (Image(RGB, codec="png", level=-1), "'level'.*is -1.*0 to 9"),
        (Image(RGB, codec="png", quality=90), "'png' has no option 'quality'.*level"),
        (Array(3, codec="zstd", level=0), "'level'.*is 0.*1 to 22"),
        (Array(3, codec="zstd", level=23), "'level'.*is 23.*1 to 22"),
        (Array(3, codec="zstd", level="3"), "'level'.*is '3'.*integer"),
        (Array((None, 3), level=3), "'raw' has no option 'level'. It has none."),
        (Text(codec="zstd", speed=3), "'zstd' has no option 'speed'"),
    ],
)
def test_wrong_option_is_refused_with_name_value_and_what_is_allowed(feature: Feature, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        make_codec(feature)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Image((8, 8, 4), codec="jpeg"), r'"jpeg" cannot store uint8 \(8, 8, 4\).*"png"'),
        (Image(RGB, "uint16", codec="jpeg"), '"jpeg" cannot store uint16.*"png" for uint16'),
        (Image((8, 8), "float32", codec="jpeg"), '"zstd" for anything else'),
        (Array((8,), "uint8", codec="jpeg"), '"jpeg" cannot store'),
        (Array((None, 8), "uint8", codec="jpeg"), '"jpeg" cannot store'),
        (Array((0, 8), "uint8", codec="jpeg"), "sides of 1"),
        (Array((70_000, 8), "uint8", codec="jpeg"), "sides of 1 to 65500"),
        (Bytes(codec="jpeg"), '"jpeg" cannot store'),
        (Image((8, 8), "float32", codec="png"), '"png" cannot store float32.*codec="zstd" for floats'),
        (Image((8, 8), "int16", codec="png"), '"png" cannot store int16'),
        (Image((8, 8), ">u2", codec="png"), '"png" cannot store'),
        (Array((8, 8, 2), "uint8", codec="png"), '"png" cannot store'),
        (Array((None, 8), "uint8", codec="png"), '"png" cannot store'),
        (Array((8, 0), "uint8", codec="png"), "sides of 1"),
        (Text(codec="png"), '"png" cannot store'),
    ],
)
def test_feature_that_a_codec_cannot_store_is_refused_with_one_that_can(feature: Feature, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        make_codec(feature)


@pytest.mark.parametrize(
    ("feature", "package", "extra"),
    [
        (Image(RGB, codec="jpeg"), "simplejpeg", "image"),
        (Image(RGB, codec="png"), "imagecodecs", "image"),
        (Text(codec="zstd"), "zstandard", "zstd"),
    ],
)
def test_missing_library_says_the_pip_line(
    feature: Feature, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_codec(feature)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package} is not installed.*\[{extra}\]"):
        make_codec(feature)
