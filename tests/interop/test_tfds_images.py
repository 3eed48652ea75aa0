"""Images of every kind in datasets that the real TensorFlow Datasets wrote: the pixels that it shows, bit for bit.

JPEG is, too, where it is decoded by the transform that TensorFlow uses.
"""

import pickle

import numpy as np
import pytest
from formats_process import PYTHON, REASON, FormatsProcess
from kinds_of_images import image_files

import stepwell
from stepwell import convert
from stepwell.codecs import make_codec
from stepwell.schema import Image

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)
# of the more exact transform, which is the default
JPEG_ATOL = 24
FILES = image_files(33, 50)


def refuses(name, channels, dtype):
    """Whether TensorFlow refuses what stepwell reads, or shows what nobody means."""
    if name.startswith("jpeg"):
        return channels == 4 or dtype == "uint16" or (channels == 1 and ("cmyk" in name or "ycck" in name))
    # of files of few bits it makes alpha of few bits
    return channels == 4 and name.split()[-1] in ("1", "2", "4")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    with FormatsProcess("tfds_child.py", tmp_path_factory.mktemp("log") / "errors") as process:
        yield process


@pytest.mark.parametrize(
    ("channels", "dtype"), [(3, "uint8"), (1, "uint8"), (4, "uint8"), (3, "uint16"), (1, "uint16")]
)
def test_pixels_are_tensorflows(theirs, tmp_path, channels, dtype):
    for own in ("png", "jpeg"):  # TFDS makes animations of WebP, and refuses them
        names = [name for name in FILES if name.startswith(own) and not refuses(name, channels, dtype)]
        if not names:
            continue
        root = tmp_path / own
        root.mkdir()
        (root / "files").write_bytes(pickle.dumps([FILES[name].data for name in names]))
        told = theirs.ask(
            "images",
            root=str(root),
            files=str(root / "files"),
            channels=channels,
            dtype=dtype,
            out=str(root / "values"),
        )
        wanted = [example["image"] for example in pickle.loads((root / "values").read_bytes())]
        convert(told["path"], root / "a.well", workers=1, progress=False)
        imported, there = stepwell.open(root / "a.well", mode="r"), stepwell.open(f"tfds://{told['path']}")
        for name, pixels, *episodes in zip(names, wanted, imported, there, strict=True):
            for episode in episodes:
                found = episode["image"][0]
                assert (found.shape, found.dtype) == (pixels.shape, pixels.dtype), name
                most = JPEG_ATOL if own == "jpeg" else 0
                assert np.abs(found.astype(int) - pixels).max() <= most, name
            if own == "jpeg":
                codec = make_codec(Image((None, None, channels), codec="jpeg", dct="fast"))
                np.testing.assert_array_equal(codec.decode(np.frombuffer(FILES[name].data, np.uint8)), pixels, name)
