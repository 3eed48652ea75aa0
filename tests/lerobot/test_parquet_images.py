"""Pictures of parquet files, by reference."""

import io
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

from kinds_of_images import image_files  # noqa: E402

import stepwell  # noqa: E402
from stepwell.codecs import make_codec  # noqa: E402
from stepwell.errors import DecodeError, EncodeError, SchemaError  # noqa: E402
from stepwell.lerobot import parquet_images  # noqa: E402
from stepwell.lerobot.parquet_images import (  # noqa: E402
    ParquetImageCodec,
    RowGroups,
    stamp_of,
)
from stepwell.references.file_codec import file_template, make_references  # noqa: E402

SIZE = (16, 24)
NAMES = "chunk-{chunk:03d}/file-{file:03d}.parquet"
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(number: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


def png(number: int) -> bytes:
    return make_codec(stepwell.Image((*SIZE, 3), codec="png")).encode(picture(number))


def jpeg(number: int) -> bytes:
    return make_codec(stepwell.Image((*SIZE, 3), codec="jpeg")).encode(picture(number))


def write(root: Path, blobs: list[bytes | None], *, file: int = 0, rows: int = 4, kind: Any = STRUCT) -> Path:
    """Write a parquet file with a column of pictures and one of numbers, ``rows`` in each row group."""
    path = root / NAMES.format(chunk=0, file=file)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [{"bytes": blob, "path": None} for blob in blobs] if pa.types.is_struct(kind) else blobs
    table = pa.table({"top": pa.array(values, kind), "top.size": pa.array(range(len(blobs)))})
    pq.write_table(table, path, row_group_size=rows)
    return path


def codec_of(root: Path, **options: Any) -> ParquetImageCodec:
    options = {"files": file_template(str(root), NAMES), "column": "top", **options}
    codec = make_codec(stepwell.Image((*SIZE, 3), codec="parquet-image", **options))
    assert isinstance(codec, ParquetImageCodec)
    return codec


def blob(row: float, file: int = 0, chunk: int = 0) -> npt.NDArray[np.uint8]:
    return np.frombuffer(make_references(chunk, file, row)[0], np.uint8)


@pytest.mark.parametrize("kind", [STRUCT, pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.large_binary())])])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_every_row_of_every_file_is_the_picture_that_was_written(tmp_path: Path, kind: Any, rows: int) -> None:
    write(tmp_path, [png(i) for i in range(10)], rows=rows, kind=kind)
    write(tmp_path, [png(i) for i in range(10, 13)], file=1, rows=rows, kind=kind)
    codec = codec_of(tmp_path)
    for number in np.random.default_rng(0).permutation(13).tolist():
        reference = blob(number % 10, file=number // 10)
        np.testing.assert_array_equal(codec.decode(reference), picture(number))
        out = np.empty((*SIZE, 3), np.uint8)
        codec.decode_into(reference, out)
        np.testing.assert_array_equal(out, picture(number))


def test_each_picture_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    write(tmp_path, [png(0), jpeg(1), png(2)])
    codec = codec_of(tmp_path)
    np.testing.assert_array_equal(codec.decode(blob(0)), picture(0))
    own = make_codec(stepwell.Image((*SIZE, 3), codec="jpeg")).decode(np.frombuffer(jpeg(1), np.uint8))
    np.testing.assert_array_equal(codec.decode(blob(1)), own)
    np.testing.assert_array_equal(codec.decode_crop(blob(2), (2, 4, 8, 8), (8, 8)), picture(2)[2:10, 4:12])
    np.testing.assert_array_equal(codec.decode_crop(blob(1), (0, 0, 8, 8), (8, 8)), own[:8, :8])


def test_other_pictures_are_read_by_pillow(tmp_path: Path) -> None:
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.fromarray(picture(0)).save(file, "BMP")
    assert_is_read(tmp_path, file.getvalue(), picture(0))


@pytest.mark.parametrize("name", ["png palette 8", "png grey", "png rgba", "png rgb interlaced"])
def test_png_files_of_every_kind_show_their_colours(tmp_path: Path, name: str) -> None:
    kind = image_files(*SIZE)[name]
    assert_is_read(tmp_path, kind.data, kind.colors)


def assert_is_read(folder: Path, file: bytes, pixels: npt.NDArray[np.uint8]) -> None:
    write(folder, [file])
    codec = codec_of(folder)
    np.testing.assert_array_equal(codec.decode(blob(0)), pixels)
    np.testing.assert_array_equal(codec.decode_crop(blob(0), (2, 4, 8, 8), (8, 8)), pixels[2:10, 4:12])


def test_the_files_are_embedded_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, [png(i) for i in range(6)])
    codec = codec_of(tmp_path)
    assert codec.embedded() == stepwell.Image((*SIZE, 3), codec="png")
    rows = codec.embed([blob(i) for i in (1, 2, 5)])
    assert rows.num_rows == 3
    assert list(rows.rows(codec.embedded())) == [png(1), png(2), png(5)]
    assert list(rows.rows(codec.embedded())) == [png(1), png(2), png(5)]


def test_a_picture_of_another_format_is_embedded_anew(tmp_path: Path) -> None:
    write(tmp_path, [jpeg(0), png(1)])
    codec = codec_of(tmp_path, format="jpeg")
    assert codec.embedded() == stepwell.Image((*SIZE, 3), codec="jpeg")
    first, second = codec.embed([blob(0), blob(1)]).rows(codec.embedded())
    assert (first, second[:2]) == (jpeg(0), b"\xff\xd8")
    with pytest.raises(SchemaError, match="Make the feature like them"):
        codec.embed([blob(0)]).rows(stepwell.Image((*SIZE, 3), codec="png"))


def test_nothing_can_be_added(tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match="cannot store new rows"):
        codec_of(tmp_path).encode(picture(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": ""}, "option 'column'"),
        ({"column": None}, "option 'column'"),
        ({"format": "webp"}, "option 'format'"),
        ({"files": None}, "option 'files'"),
        ({"level": 3}, "no option 'level'"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        codec_of(tmp_path, **options)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (blob(10), r"file-000\.parquet has 10 rows, none with number 10"),
        (blob(-1), "none with number -1"),
        (blob(1e300), "none with number 1000"),
        (blob(0.5), r"a reference to row 0\.5"),
        (blob(float("nan")), "a reference to row nan"),
        (blob(0, file=7), r"file-007\.parquet cannot be opened: No such file"),
        (blob(0)[:15], r"a row of 15 bytes\. A reference into a file has 16"),
        (blob(8), r"file-000\.parquet, row 8 of column 'top': png row"),
        (blob(9), r"file-000\.parquet, row 9 of column 'top' has no bytes"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, reference: npt.NDArray[np.uint8], message: str) -> None:
    write(tmp_path, [*map(png, range(8)), png(8)[:60], None])
    with pytest.raises(DecodeError, match=message):
        codec_of(tmp_path).decode(reference)


def test_a_picture_of_another_size_is_refused(tmp_path: Path) -> None:
    small = make_codec(stepwell.Image((8, 8, 3), codec="png")).encode(np.zeros((8, 8, 3), np.uint8))
    write(tmp_path, [small])
    with pytest.raises(DecodeError, match="row 0 of column 'top'"):
        codec_of(tmp_path).decode(blob(0))


@pytest.mark.parametrize(
    ("column", "message"), [("side", "column 'side' is not there"), ("top.size", "column 'top.size' is int64")]
)
def test_a_column_without_pictures_is_refused(tmp_path: Path, column: str, message: str) -> None:
    write(tmp_path, [png(0)])
    with pytest.raises(DecodeError, match=message):
        codec_of(tmp_path, column=column).decode(blob(0))


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: b"PAR1" + bytes(500)])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, [png(0)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DecodeError, match=r"file-000\.parquet"):
        codec_of(tmp_path).decode(blob(0))


def test_a_file_that_was_replaced_is_read_anew_by_new_codecs(tmp_path: Path) -> None:
    path = write(tmp_path, [png(0)])
    np.testing.assert_array_equal(codec_of(tmp_path).decode(blob(0)), picture(0))
    write(tmp_path, [png(1)], file=1).rename(path)
    np.testing.assert_array_equal(codec_of(tmp_path).decode(blob(0)), picture(1))


def test_a_file_that_was_replaced_since_its_state_was_noted_is_refused(tmp_path: Path) -> None:
    path, other = write(tmp_path, [png(0)]), write(tmp_path, [png(1)], file=1)
    lines = [f"0 {number} {file.stat().st_size} {file.stat().st_mtime_ns}" for number, file in enumerate((path, other))]
    options = {"states": "\n".join(lines)}
    for number in range(2):
        codec = codec_of(tmp_path, **options)
        np.testing.assert_array_equal(codec.decode(blob(0, file=number)), picture(number))
    codec = codec_of(tmp_path, **options)
    other.rename(path)
    for read in (lambda: codec.decode(blob(0)), lambda: list(codec.embed([blob(0)]).rows(codec.embedded()))):
        with pytest.raises(DecodeError, match=r"file-000\.parquet: the file is another one.*Open the data set again"):
            read()
    # of a file that nothing is noted of nobody can tell
    write(tmp_path, [png(2)], file=2)
    np.testing.assert_array_equal(codec.decode(blob(0, file=2)), picture(2))


# row groups


def test_sequential_reading_reads_each_row_group_once(tmp_path: Path) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(20)])))
    groups = RowGroups(max_bytes=1)
    for row in range(20):
        assert groups.row(stamp, "top", row).tobytes() == png(row)
    assert groups.num_read == 5


def test_what_is_held_stays_within_its_bound(tmp_path: Path) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(20)])))
    room = 2 * sum(len(png(i)) + 8 for i in range(4)) + 200
    groups = RowGroups(max_bytes=room)
    for row in [0, 4, 8, 12, 0, 16, 3]:
        assert groups.row(stamp, "top", row).tobytes() == png(row)
        assert groups.kept.size <= room
    # 0 was forgotten at 8, and the second time it was kept until 3
    assert groups.num_read == 6


def test_a_row_group_larger_than_the_bound_is_held_alone(tmp_path: Path) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(8)])))
    groups = RowGroups(max_bytes=10)
    for row in (0, 1, 2, 4, 5, 6):
        groups.row(stamp, "top", row)
    assert (groups.num_read, len(groups.kept)) == (2, 1)


def test_only_the_pictures_column_is_held(tmp_path: Path) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(4)])))
    groups = RowGroups()
    groups.row(stamp, "top", 0)
    assert groups.kept.size == sum(len(png(i)) for i in range(4)) + 5 * 8


def test_threads_that_want_the_same_row_group_read_it_once(tmp_path: Path) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(12)])))
    groups, start = RowGroups(), threading.Barrier(6)

    def read(turn: int) -> list[bytes]:
        start.wait()
        return [groups.row(stamp, "top", row).tobytes() for row in np.random.default_rng(turn).permutation(12).tolist()]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(read, range(6)))
    for turn, rows in enumerate(found):
        assert rows == [png(row) for row in np.random.default_rng(turn).permutation(12).tolist()]
    assert groups.num_read == 3


def test_a_row_group_that_no_array_holds_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = stamp_of(str(write(tmp_path, [png(i) for i in range(9)], rows=9)))
    file = parquet_images.TableFile(stamp[0])

    def refuse(*args: Any, **options: Any) -> None:
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    monkeypatch.setattr(file._file, "read_row_group", refuse)
    monkeypatch.setattr(parquet_images, "BATCH_ROWS", 4)
    group = file.read("top", 0)
    assert len(group.parts) == 3
    assert [group.row(row).tobytes() for row in range(9)] == [png(row) for row in range(9)]


def _read_in_child(codec: ParquetImageCodec, results: Any) -> None:
    results.put([codec.decode(blob(row)).tobytes() for row in range(8)])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_on(tmp_path: Path) -> None:
    write(tmp_path, [png(i) for i in range(8)])
    codec = codec_of(tmp_path)
    codec.decode(blob(0))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_in_child, args=(codec, results))
    child.start()
    assert results.get(timeout=20) == [picture(row).tobytes() for row in range(8)]
    child.join(20)
    assert child.exitcode == 0
