"""Rows that are spans of other files."""

import atexit
import gc
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from web_server import WebServer

from stepwell.codecs import make_codec, register_codec
from stepwell.errors import DecodeError, EncodeError, SchemaError, StepError
from stepwell.files.local_files import MAX_OPEN_FILES, open_file
from stepwell.references import file_spans, span_files
from stepwell.references.file_codec import noting_states
from stepwell.references.file_spans import SPAN_DTYPE, FileSpanCodec, FileSpans, make_spans, span_feature
from stepwell.references.span_files import noted_states
from stepwell.schema import Array, Bytes, Image, Text
from stepwell.testing import CodecConformance, random_array

SHARED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FEATURE = Array((3, 2), "int16")


def written(folder: Path, contents: list[bytes]) -> list[str]:
    paths = []
    for number, data in enumerate(contents):
        (folder / f"{number}.bin").write_bytes(data)
        paths.append(str(folder / f"{number}.bin"))
    return paths


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def rows(tmp_path: Path) -> tuple[list[str], npt.NDArray[np.int16]]:
    """Return two files of 100 rows of `FEATURE` each, and the rows."""
    values = np.arange(200 * 6, dtype=np.int16).reshape(2, 100, 3, 2)
    return written(tmp_path, [part.tobytes() for part in values]), values


@SHARED
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.data())
def test_spans_of_any_files_are_the_slices_of_their_bytes(tmp_path: Path, contents: list[bytes], data: Any) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    paths, places = written(folder, contents), []
    for _ in range(data.draw(st.integers(0, 8))):
        file = data.draw(st.integers(0, len(contents) - 1))
        offset = data.draw(st.integers(0, len(contents[file])))
        places.append((file, offset, data.draw(st.integers(0, len(contents[file]) - offset))))
    wanted = [contents[file][offset : offset + size] for file, offset, size in places]
    file, offsets, sizes = np.array(places, np.int64).reshape(-1, 3).T
    spans = FileSpans(Bytes(), paths, file, offsets, sizes)
    assert (spans.num_rows, spans.nbytes) == (len(places), sum(map(len, wanted)))
    assert list(spans.rows(Bytes())) == wanted
    feature = span_feature(Bytes(), paths)
    codec = make_codec(feature)
    blobs = [np.frombuffer(blob, np.uint8) for blob in spans.rows(feature)]
    assert [codec.decode(blob) for blob in blobs] == wanted
    assert list(codec.embed(blobs).rows(codec.embedded())) == wanted
    np.testing.assert_array_equal(np.array(blobs).reshape(-1, 16), spans.references())


@SHARED
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 594)), max_size=12))
def test_plain_rows_are_the_same_alone_and_all_at_once(rows: Any, places: list[tuple[int, int]]) -> None:
    paths, values = rows
    file, offsets = np.array(places, np.int64).reshape(-1, 2).T
    flat = values.reshape(2, -1).view(np.uint8)
    wanted = [flat[f, o : o + 12].view(np.int16).reshape(3, 2) for f, o in places]
    spans = FileSpans(FEATURE, paths, file, offsets, np.full(len(places), 12))
    codec = make_codec(span_feature(FEATURE, paths))
    assert codec.stored_row_bytes == 16
    out = np.empty((len(places), 3, 2), np.int16)
    codec.decode_rows(spans.references(), out)
    alone = np.empty_like(out)
    for place, blob in enumerate(spans.references()):
        codec.decode_into(blob, alone[place, ...])
    for found in (out, alone, spans.array()):
        np.testing.assert_array_equal(found, np.array(wanted, np.int16).reshape(-1, 3, 2))


def test_a_scalar_is_a_row_of_its_own(tmp_path: Path) -> None:
    paths = written(tmp_path, [np.arange(9, dtype="<f8").tobytes()])
    codec, out = make_codec(span_feature(Array((), "float64"), paths)), np.empty(3)
    codec.decode_rows(make_spans(0, [8, 0, 64], 8), out)
    assert out.tolist() == [1.0, 0.0, 8.0]


def test_bytes_of_another_codec_are_decoded_as_it_does(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    feature = Image((24, 32, 3), codec="png", level=1)
    inner = make_codec(feature)
    pictures = [random_array(feature, seed) for seed in range(3)]
    blobs = [inner.encode(picture) for picture in pictures]
    edges = np.cumsum([4, *map(len, blobs)])
    paths = written(tmp_path, [b"head" + b"".join(blobs)])
    left = span_feature(feature, paths)
    codec, out = make_codec(left), np.empty((24, 32, 3), np.uint8)
    assert codec.embedded() == feature and codec.stored_row_bytes is None
    for blob, wanted in zip(make_spans(0, edges[:-1], np.diff(edges)), pictures, strict=True):
        codec.decode_into(blob, out)
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(codec.decode(blob), wanted)
        np.testing.assert_array_equal(codec.decode_crop(blob, (3, 4, 10, 20), (10, 20)), wanted[3:13, 4:24])
    with pytest.raises(DecodeError, match=r"0\.bin, byte 9: "):
        codec.decode(make_spans(0, 9, 100)[0])


def test_a_crop_of_plain_pixels_is_memory_of_its_own(tmp_path: Path) -> None:
    pictures = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    codec = make_codec(span_feature(Image((6, 5, 3)), written(tmp_path, [pictures.tobytes()])))
    crops = [codec.decode_crop(blob, (1, 1, 3, 3), (3, 3)) for blob in make_spans(0, [0, 90], 90)]
    np.testing.assert_array_equal(crops, pictures[:, 1:4, 1:4])


def test_threads_share_one_codec(rows: Any) -> None:
    paths, values = rows
    codec, notes = make_codec(span_feature(FEATURE, paths)), make_codec(span_feature(Bytes(), paths))

    def read(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        file, step = rng.integers(0, 2, 50), rng.integers(0, 100, 50)
        spans, out = make_spans(file, 12 * step, 12), np.empty((50, 3, 2), np.int16)
        codec.decode_rows(spans, out)
        return bool((out == values[file, step]).all()) and all(
            notes.decode(span) == row.tobytes() for span, row in zip(spans, out, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(64)))


def test_a_child_of_a_fork_goes_on_reading(rows: Any) -> None:
    paths, values = rows
    codec, spans, out = make_codec(span_feature(FEATURE, paths)), make_spans([0, 1], [12, 24], 12), np.empty(12, "i2")
    codec.decode_rows(spans, out.reshape(2, 3, 2))
    child = os.fork()
    if not child:
        found = np.zeros((2, 3, 2), np.int16)
        codec.decode_rows(spans, found)
        codec.decode_into(spans[0], found[0, ...])
        os._exit(0 if (found == values[[0, 1], [1, 2]]).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def replaced(path: str) -> None:
    other = Path(f"{path}.new")
    other.write_bytes(Path(path).read_bytes())
    other.replace(path)


def cut_off(path: str) -> None:
    os.truncate(path, 100)


def changed(path: str) -> None:
    with Path(path).open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(1, 1))


def lost(path: str) -> None:
    Path(path).unlink()


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (replaced, "was changed or replaced since it was read first"),
        (cut_off, "was changed or replaced since it was read first"),
        (changed, "was changed or replaced since it was read first"),
        (lost, "there is no such file"),
    ],
)
def test_file_that_is_no_longer_what_it_was_is_an_error_and_never_a_bus_error(
    rows: Any, happens: Any, message: str
) -> None:
    paths, values = rows
    codec, out = make_codec(span_feature(FEATURE, paths)), np.empty((1, 3, 2), np.int16)
    last = make_spans(1, 99 * 12, 12)
    codec.decode_rows(last, out)
    happens(paths[1])
    for read in (lambda: codec.decode_rows(last, out), lambda: codec.decode(last[0])):
        with pytest.raises(DecodeError, match=rf"1\.bin: .*{message}"):
            read()
    codec.decode_rows(make_spans(0, 12, 12), out)
    np.testing.assert_array_equal(out[0], values[0, 1])


@pytest.mark.parametrize("happens", [replaced, cut_off, changed, lost])
def test_files_of_a_batch_are_looked_at_once_and_again_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Any
) -> None:
    pytest.importorskip("imagecodecs")
    feature = Image((24, 32, 3), codec="png")
    inner = make_codec(feature)
    pictures = [random_array(feature, seed) for seed in range(6)]
    blobs = [inner.encode(picture) for picture in pictures]
    paths = written(tmp_path, [b"".join(blobs[:3]), b"".join(blobs[3:])])
    sizes = np.array(list(map(len, blobs)))
    offsets = np.concatenate([np.cumsum([0, *sizes[:2]]), np.cumsum([0, *sizes[3:5]])])
    spans, codec = make_spans([0, 0, 0, 1, 1, 1], offsets, sizes), make_codec(span_feature(feature, paths))
    out = np.empty((24, 32, 3), np.uint8)
    codec.decode_into(spans[0], out)
    looked_at: list[str] = []
    state_of = span_files.state_of
    monkeypatch.setattr(span_files, "state_of", lambda path: looked_at.append(path) or state_of(path))
    decode_into = codec.batch_decoder()
    for span, wanted in zip(spans, pictures, strict=True):
        decode_into(span, out)
        np.testing.assert_array_equal(out, wanted)
    assert sorted(looked_at) == paths
    happens(paths[1])
    decode_into = codec.batch_decoder()
    decode_into(spans[2], out)
    np.testing.assert_array_equal(out, pictures[2])
    with pytest.raises(DecodeError, match=r"1\.bin: "):
        decode_into(spans[3], out)


def test_a_batch_of_many_files_keeps_few_of_them_open(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    feature = Image((2, 3, 3), codec="png")
    inner = make_codec(feature)
    blobs = [inner.encode(random_array(feature, seed)) for seed in range(MAX_OPEN_FILES + 100)]
    paths = written(tmp_path, blobs)
    codec, out = make_codec(span_feature(feature, paths)), np.empty((2, 3, 3), np.uint8)
    batches, before = [codec.batch_decoder() for _ in range(3)], num_descriptors()
    for decode_into in batches:
        for number, blob in enumerate(blobs):
            decode_into(make_spans(number, 0, len(blob))[0], out)
            assert np.array_equal(out, random_array(feature, number))
    assert num_descriptors() - before <= MAX_OPEN_FILES + 5 * len(batches)


def test_a_batch_tells_where_a_bad_row_lies(rows: Any) -> None:
    paths, _ = rows
    decode_into = make_codec(span_feature(Image((24, 32, 3), codec="png"), paths)).batch_decoder()
    for size, message in ((100, r"1\.bin, byte 24: "), (1 << 20, r"1\.bin: bytes 24 to ")):
        with pytest.raises(DecodeError, match=message):
            decode_into(make_spans(1, 24, size)[0], np.empty((24, 32, 3), np.uint8))


def test_new_codec_reads_what_is_there_now(rows: Any) -> None:
    paths, values = rows
    spans, out = make_spans(0, 12, 12), np.empty((1, 3, 2), np.int16)
    make_codec(span_feature(FEATURE, paths)).decode_rows(spans, out)
    Path(paths[0]).write_bytes(values[1].tobytes() + b"longer")
    make_codec(span_feature(FEATURE, paths)).decode_rows(spans, out)
    np.testing.assert_array_equal(out[0], values[1, 1])


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((0, 1200, 12), r"0\.bin: bytes 1200 to 1212 of a file of 1200"),
        ((0, 1190, 12), r"0\.bin: bytes 1190 to 1202"),
        ((2, 0, 12), r"file 2\. There are 2"),
        ((2**32 - 1, 0, 12), "file 4294967295"),
        ((0, 2**62, 12), "of a file of 1200"),
        ((0, 2**63, 12), "of a file of 1200"),
        ((0, 2**64 - 8, 12), "of a file of 1200"),
        ((0, 0, 11), r"0\.bin, byte 0: a row of 11 bytes, where the feature's shape has 12"),
        ((0, 0, 2**32 - 1), "a row of 4294967295 bytes"),
    ],
)
def test_span_that_cannot_be_is_refused_alone_and_among_others(
    rows: Any, span: tuple[int, int, int], message: str
) -> None:
    codec = make_codec(span_feature(FEATURE, rows[0]))
    spans, out = make_spans(0, [0, 0, 0], 12), np.empty((3, 3, 2), np.int16)
    file, offset, size = span
    spans.view(SPAN_DTYPE)[1, 0] = (file, size, offset)
    with pytest.raises(DecodeError, match=message):
        codec.decode_into(spans[1], out[1, ...])
    with pytest.raises(DecodeError, match=message):
        codec.decode_rows(spans, out)


def test_a_damaged_size_takes_no_memory(rows: Any) -> None:
    codec, span = make_codec(span_feature(Bytes(), rows[0])), make_spans(0, 0, 2**32 - 1)
    with pytest.raises(DecodeError, match="of a file of 1200"):
        codec.decode(span[0])


def test_of_many_files_few_stay_open_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_files, "MAX_MAPPED_FILES", 8)
    count = MAX_OPEN_FILES + 20
    paths = written(tmp_path, [number.to_bytes(2, "little") * 6 for number in range(count)])
    codec, out = make_codec(span_feature(FEATURE, paths)), np.empty((5, 3, 2), np.int16)
    # what the process keeps open is full, whatever other tests have opened
    for number in range(MAX_OPEN_FILES):
        (tmp_path / f"other-{number}").write_bytes(b"other")
        open_file(str(tmp_path / f"other-{number}"))
    before = num_descriptors()
    for number in range(count):
        chosen = (number + np.arange(5)) % count
        codec.decode_rows(make_spans(chosen, 0, 12), out)
        assert out[:, 0, 0].tolist() == chosen.tolist()
        assert (codec.decode(make_spans(number, 0, 12)[0]) == number).all()
    assert num_descriptors() <= before + MAX_OPEN_FILES
    # beside them the files of the last batch
    assert num_descriptors() <= before + len(out)


def test_rows_of_files_that_memory_does_not_hold_are_announced(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = []
    monkeypatch.setattr(span_files, "available_memory", lambda: 1)
    monkeypatch.setattr(file_spans, "_announce_kernel", lambda: lambda places, sizes: announced.append((places, sizes)))
    codec, out = make_codec(span_feature(FEATURE, rows[0])), np.empty((3, 3, 2), np.int16)
    codec.decode_rows(make_spans([1, 0, 1], [12, 24, 36], 12), out)
    np.testing.assert_array_equal(out, rows[1][[1, 0, 1], [1, 2, 3]])
    places, sizes = announced[0]
    assert (places[2] - places[0], sizes.tolist()) == (24, [12, 12, 12])
    monkeypatch.undo()
    monkeypatch.setattr(span_files, "available_memory", lambda: 1)
    codec.decode_rows(make_spans([0, 0, 0], [0, 12, 24], 12), out)
    np.testing.assert_array_equal(out, rows[1][0, :3])


def test_maps_are_shared_and_go_with_the_last_codec(rows: Any) -> None:
    codecs, out = [make_codec(span_feature(FEATURE, rows[0])) for _ in range(2)], np.empty((1, 3, 2), np.int16)

    def num_maps() -> int:
        return Path("/proc/self/maps").read_text().count(rows[0][0])

    for codec in codecs:
        codec.decode_rows(make_spans(0, 12, 12), out)
        assert num_maps() == 1
    del codec, codecs
    gc.collect()
    assert num_maps() == 0


def test_addresses_are_fetched_and_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").pipe("/test_file_spans/a.bin", np.arange(12, dtype=np.int16).tobytes())
    feature = span_feature(FEATURE, ["memory://test_file_spans/a.bin"])
    assert feature.option("root", None) == "memory://test_file_spans"
    codec, out = make_codec(feature), np.empty((1, 3, 2), np.int16)
    for _ in range(2):
        codec.decode_rows(make_spans(0, 12, 12), out)
        assert out.ravel().tolist() == [6, 7, 8, 9, 10, 11] == codec.decode(make_spans(0, 12, 12)[0]).ravel().tolist()
        # as another process does that uses it
        for path in (tmp_path / "cache" / "remote").glob("*.bin"):
            os.utime(path)
        assert codec.decode(make_spans(0, 12, 12)[0]).ravel().tolist() == [6, 7, 8, 9, 10, 11]
        shutil.rmtree(tmp_path / "cache")


def test_errors_tell_an_address_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.bin").write_bytes(bytes(24))
    with WebServer(tmp_path / "web") as web:
        address = f"{web.url}/a.bin?token=SECRET"
        codec = make_codec(span_feature(FEATURE, [address]))
        spans = FileSpans(FEATURE, [address], 0, [0], [7])
        for read in (
            lambda: codec.decode(make_spans(0, 20, 12)[0]),
            lambda: codec.decode_into(make_spans(0, 0, 7)[0], np.empty((3, 2), np.int16)),
            lambda: codec.decode_rows(make_spans(0, 20, 12), np.empty((1, 3, 2), np.int16)),
            spans.array,
        ):
            with pytest.raises(DecodeError, match=rf"{web.url}/a\.bin[:,] ") as error:
                read()
            assert "SECRET" not in str(error.value)
        noted = noting_states(span_feature(FEATURE, [address]), noted_states([(24, "another")]))
        with pytest.raises(DecodeError, match=rf"{web.url}/a\.bin: the file is another one") as error:
            make_codec(noted).decode(make_spans(0, 0, 12)[0])
    assert "SECRET" not in str(error.value)
    with pytest.raises(SchemaError, match=r"rows in http://host/b\.bin, which") as refused:
        FileSpans(FEATURE, ["http://host/b.bin?token=SECRET"], 0, [0], [12]).rows(noted)
    assert "SECRET" not in str(refused.value)


def test_spans_are_numbered_by_the_files_of_the_feature(rows: Any, tmp_path: Path) -> None:
    paths, values = rows
    feature = span_feature(FEATURE, [paths[1], str(tmp_path / "none.bin"), paths[0]])
    spans = FileSpans(FEATURE, paths, 0, [12, 24], [12, 12])
    codec, out = make_codec(feature), np.empty((3, 2), np.int16)
    for step, blob in enumerate(spans.rows(feature), 1):
        codec.decode_into(np.frombuffer(blob, np.uint8), out)
        np.testing.assert_array_equal(out, values[0, step])
    with pytest.raises(SchemaError, match=r"rows in .*0\.bin, which is none of the files"):
        list(spans.rows(span_feature(FEATURE, [paths[1]])))


def test_paths_may_be_relative_and_have_nothing_in_common(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, values = rows
    monkeypatch.chdir(Path(paths[0]).parent)
    feature = span_feature(FEATURE, ["0.bin", "/elsewhere/1.bin"])
    assert feature.option("root", None) == "" and feature.option("files", None) == f"{paths[0]}\n/elsewhere/1.bin"
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(make_codec(feature).decode(make_spans(0, 0, 12)[0]), values[0, 0])


def test_spans_are_sent_to_other_processes_as_they_are(rows: Any) -> None:
    spans = pickle.loads(pickle.dumps(FileSpans(FEATURE, rows[0], 1, [12], [12])))
    np.testing.assert_array_equal(spans.array()[0], rows[1][1, 1])


def test_what_is_no_span_feature_is_refused() -> None:
    with pytest.raises(SchemaError, match="a path with a line break"):
        span_feature(FEATURE, ["/data/a\nb"])
    with pytest.raises(SchemaError, match="no files"):
        span_feature(FEATURE, [])
    with pytest.raises(SchemaError, match="cannot lie in other files"):
        span_feature(span_feature(FEATURE, ["/data/a"]), ["/data/b"])
    with pytest.raises(SchemaError, match="cannot lie in other files"):
        span_feature(Array((3, 2), codec="delta"), ["/data/b"])
    with pytest.raises(SchemaError, match=r"format=None of codec 'file-span'.*span_feature"):
        make_codec(Array(2, codec="file-span", files="a", root="/data"))
    with pytest.raises(EncodeError, match=r"file_spans\.make_spans; or make the feature Array\(\(3, 2\), \"int16\"\)"):
        make_codec(span_feature(FEATURE, ["/data/a"])).encode(np.zeros((3, 2), np.int16))


def test_what_are_no_spans_is_refused() -> None:
    with pytest.raises(StepError, match="2 offsets, 1 sizes"):
        FileSpans(FEATURE, ["a"], 0, [0, 1], [1])
    with pytest.raises(StepError, match="spans in files 0 to 1, of 1 paths"):
        FileSpans(FEATURE, ["a"], [0, 1], [0, 1], [1, 1])
    with pytest.raises(StepError, match="spans with size 1 to 4294967296"):
        make_spans(0, [0, 0], [1, 2**32])
    with pytest.raises(StepError, match="spans with offset -1 to -1"):
        make_spans(0, [-1], 1)
    with pytest.raises(SchemaError, match=r"the rows are Array\(\(3, 2\), \"int16\"\), not Text"):
        list(FileSpans(FEATURE, ["a"], 0, [0], [12]).rows(Text()))
    with pytest.raises(SchemaError, match="no plain array"):
        FileSpans(Text(), ["a"], 0, [0], [12]).array()
    with pytest.raises(DecodeError, match="a row of 11 bytes"):
        FileSpans(FEATURE, ["a"], 0, [0], [11]).array()


# what the conformance tests encode lies in a file already, as a codec that refers to files cannot encode
FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


@register_codec
class WrittenSpanCodec(FileSpanCodec):
    """Finds the span of a row in a file that has it."""

    name = "written-span-for-tests"

    def encode(self, value: Any) -> bytes:
        data = Path(self._files.path(0)).read_bytes()
        blob = self._inner.encode(value)
        return make_spans(0, data.index(blob), len(blob)).tobytes()


def written_feature(feature: Any, values: list[Any]) -> Any:
    inner = make_codec(feature)
    path = FOLDER / f"{feature}.bin"
    path.write_bytes(b"head" + b"".join(map(inner.encode, values)))
    left = span_feature(feature, [str(path)])
    return type(left)(left.kind, left.dtype, left.shape, WrittenSpanCodec.name, left.options)


class TestPlainSpans(CodecConformance):
    feature = written_feature(Array((5, 3)), [random_array(Array((5, 3)), seed, size=seed) for seed in range(4)])


class TestRaggedSpans(CodecConformance):
    feature = written_feature(
        Array((None, 3), "uint8"), [random_array(Array((None, 3), "uint8"), seed, size=seed) for seed in range(4)]
    )


class TestTextSpans(CodecConformance):
    feature = written_feature(Text(), ["", "a", "Stufenbrunnen", "बावड़ी " * 50, "\0"])
