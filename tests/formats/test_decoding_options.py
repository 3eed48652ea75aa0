"""How JPEG files are decoded is said by an option of every reader, and by a conversion: their bytes stay."""

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Image, convert
from stepwell.codecs import make_codec, same_rows
from stepwell.errors import FormatError
from stepwell.formats import open_reader
from stepwell.testing import smooth_image
from stepwell.webdataset import write_webdataset

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

EXACT, FAST = (Image((40, 48, 3), codec="jpeg", dct=dct) for dct in ("exact", "fast"))


@pytest.fixture
def files(tmp_path: Path) -> list[bytes]:
    """Write four JPEG files as folders and as a shard."""
    images = [smooth_image(EXACT, seed=number) for number in range(4)]
    found = [make_codec(Image((40, 48, 3), codec="jpeg", quality=70)).encode(image) for image in images]
    for number, data in enumerate(found):
        path = tmp_path / "set" / "cat" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return found


def pixels(files: list[bytes], feature: Image) -> np.ndarray:
    return np.stack([make_codec(feature).decode(np.frombuffer(data, np.uint8)) for data in files])


def read(store: stepwell.Store, name: str = "image") -> np.ndarray:
    return np.concatenate([episode[name] for episode in store])


def test_the_option_of_every_reader_says_how_jpeg_files_are_decoded(tmp_path: Path, files: list[bytes]):
    exact, fast = pixels(files, EXACT), pixels(files, FAST)
    assert not np.array_equal(exact, fast)
    source = f"folders://{tmp_path}/set"
    assert np.array_equal(read(stepwell.open(source)), exact)
    assert np.array_equal(read(stepwell.open(f"{source}?dct=fast")), fast)
    assert np.array_equal(read(stepwell.open(source, dct="exact")), exact)
    convert(source, tmp_path / "a.well", workers=1, dct="fast")
    with stepwell.open(tmp_path / "a.well") as store:
        assert np.array_equal(read(store), fast)
        write_webdataset(store, tmp_path / "shards", rename={"image": "jpg", "label": "cls"}, workers=1)
    assert np.array_equal(read(stepwell.open(f"webdataset://{tmp_path}/shards?dct=fast")), fast)
    convert(open_reader(source, options={"dct": "fast"}), tmp_path / "b.well", workers=1)
    assert np.array_equal(read(stepwell.open(tmp_path / "b.well")), fast)


def test_an_option_that_says_nothing_is_an_error(tmp_path: Path, files: list[bytes]):
    with pytest.raises(FormatError, match=r"dct='slow'\. Allowed: exact, fast"):
        stepwell.open(f"folders://{tmp_path}/set?dct=slow")
    (tmp_path / "png" / "cat").mkdir(parents=True)
    png = make_codec(Image((40, 48, 3), codec="png")).encode(pixels(files, EXACT)[0])
    (tmp_path / "png" / "cat" / "0.png").write_bytes(png)
    with pytest.raises(FormatError, match="no images that may be JPEG files: image, label"):
        stepwell.open(f"folders://{tmp_path}/png?dct=fast")
    with pytest.raises(FormatError, match=r"has no option 'dtc'\. Did you mean 'dct'\? It has: .*dct"):
        stepwell.open(f"folders://{tmp_path}/set?dtc=fast")


def column_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.rglob("image.bin")))


def test_another_way_to_decode_leaves_the_bytes_as_they_are(tmp_path: Path, files: list[bytes]):
    source = f"folders://{tmp_path}/set"
    convert(source, tmp_path / "a.well", workers=1)
    convert(source, tmp_path / "b.well", workers=1, features={"image": FAST})
    convert(tmp_path / "a.well", tmp_path / "c.well", {"image": FAST}, workers=1)
    with stepwell.open(source) as there:
        convert(there, tmp_path / "d.well", {"image": FAST}, workers=1)
    assert column_bytes(tmp_path / "a.well")
    for name in "bcd":
        assert column_bytes(tmp_path / f"{name}.well") == column_bytes(tmp_path / "a.well"), name
        assert np.array_equal(read(stepwell.open(tmp_path / f"{name}.well")), pixels(files, FAST)), name
    convert(source, tmp_path / "e.well", workers=1, features={"image": Image((40, 48, 3), codec="jpeg", quality=30)})
    assert len(column_bytes(tmp_path / "e.well")) < len(column_bytes(tmp_path / "a.well"))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (EXACT, FAST, True),
        (Image((None, None, 3), codec="image-file"), Image((None, None, 3), codec="image-file", dct="fast"), True),
        (Image((8, 8, 3), codec="jpeg-or-raw"), Image((8, 8, 3), codec="jpeg-or-raw", dct="fast"), True),
        (EXACT, Image((40, 48, 3), codec="jpeg", quality=70, dct="exact"), False),
        (EXACT, Image((40, 48, 3), codec="png"), False),
        (EXACT, Image((40, 49, 3), codec="jpeg"), False),
    ],
)
def test_rows_are_the_same_where_only_decoding_differs(one: Image, other: Image, is_same: bool):
    assert same_rows(one, other) is is_same
