"""Every codec of stepwell passes the conformance tests that users subclass."""

from typing import ClassVar

from stepwell.schema import Array, Bytes, Feature, Image, Text
from stepwell.testing import CodecConformance, SequentialCodecConformance
from stepwell.testing.codecs import RunningCodec


class TestRawRagged(CodecConformance):
    feature = Array((None, 3), "float32")
    detects_truncation = False


class TestRawAnySize(CodecConformance):
    feature = Image((None, None, 3), "uint16")


class TestRawAnySizeOfLongNumbers(CodecConformance):
    feature = Image((None, None), "float64")


class TestZstdAnySize(CodecConformance):
    feature = Image((None, None), "float32", codec="zstd")
    detects_changes = True


class TestLz4AnySize(CodecConformance):
    feature = Image((None, None, 4), codec="lz4")
    detects_changes = True


class TestPngAnySize(CodecConformance):
    feature = Image((None, None, 3), codec="png")
    detects_changes = True


class TestPngAnySizeGrey16(CodecConformance):
    feature = Image((None, None, 1), "uint16", codec="png")
    detects_changes = True


class TestImageFile(CodecConformance):
    feature = Image((13, 17, 3), codec="image-file")
    detects_changes = True


class TestImageFileAnySize(CodecConformance):
    feature = Image((None, None, 4), codec="image-file")
    detects_changes = True


class TestJpegAnySize(CodecConformance):
    feature = Image((None, None, 3), codec="jpeg", quality=90)
    is_lossless = False


class TestJpegAnySizeGrey(CodecConformance):
    feature = Image((None, None), codec="jpeg", tile=16)
    is_lossless = False


class TestRawText(CodecConformance):
    feature = Text()
    detects_truncation = False


class TestRawBytes(CodecConformance):
    feature = Bytes()
    detects_truncation = False


class TestRawFixed(CodecConformance):
    feature = Array((2, 3), "float64")


class TestZstdRagged(CodecConformance):
    feature = Array((None, 2, 2), ">i4", codec="zstd")
    detects_changes = True


class TestZstdText(CodecConformance):
    feature = Text(codec="zstd", level=1)
    detects_changes = True


class TestZstdBytes(CodecConformance):
    feature = Bytes(codec="zstd", level=22)
    detects_changes = True


class TestZstdScalar(CodecConformance):
    feature = Array((), "float64", codec="zstd")
    detects_changes = True


class TestZstdDepth16(CodecConformance):
    feature = Image((24, 31), "uint16", codec="zstd")
    detects_changes = True


class TestZstdDepthFloat(CodecConformance):
    feature = Image((24, 31, 1), "float32", codec="zstd")
    detects_changes = True


class TestZstdManyBlocks(CodecConformance):
    feature = Image((224, 299, 3), codec="zstd", level=1)
    detects_changes = True
    num_corruptions = 60


class TestPngGrey(CodecConformance):
    feature = Image((13, 17), codec="png")
    detects_changes = True


class TestPngRgb(CodecConformance):
    feature = Image((13, 17, 3), codec="png", level=9)
    detects_changes = True


class TestPngRgb16(CodecConformance):
    feature = Image((13, 17, 3), "uint16", codec="png")
    detects_changes = True


class TestPngRgba(CodecConformance):
    feature = Image((13, 17, 4), codec="png", level=0)
    detects_changes = True


class TestPngGrey16(CodecConformance):
    feature = Image((13, 17, 1), "uint16", codec="png")
    detects_changes = True


class TestJpegRgb(CodecConformance):
    feature: ClassVar[Feature] = Image((33, 47, 3), codec="jpeg")
    is_lossless = False


class TestJpegRgb444(CodecConformance):
    feature = Image((64, 48, 3), codec="jpeg", quality=90, subsampling="444")
    is_lossless = False


class TestJpegGrey(CodecConformance):
    feature = Image((33, 47), codec="jpeg")
    is_lossless = False


class TestJpegGreyChannel(CodecConformance):
    feature = Image((33, 47, 1), codec="jpeg", subsampling="gray")
    is_lossless = False


class TestLz4Ragged(CodecConformance):
    feature = Array((None, 2, 2), ">i4", codec="lz4")
    detects_changes = True


class TestLz4Text(CodecConformance):
    feature = Text(codec="lz4", level=9)
    detects_changes = True


class TestLz4Bytes(CodecConformance):
    feature = Bytes(codec="lz4")
    detects_changes = True


class TestLz4Depth16(CodecConformance):
    feature = Image((24, 31), "uint16", codec="lz4")
    detects_changes = True


class DeltaConformance(SequentialCodecConformance):
    detects_changes = True
    has_places = True


class TestDeltaScreen(DeltaConformance):
    feature = Image((24, 31, 3), codec="delta")


class TestDeltaLz4(DeltaConformance):
    feature = Image((24, 31), codec="delta", compression="lz4", every=7)


class TestDeltaFloats(DeltaConformance):
    feature = Array((5, 4), "float64", codec="delta", every=256, level=19)
    num_rows = 300


class TestDeltaScalar(DeltaConformance):
    feature = Array((), ">i2", codec="delta", every=3)


class TestDeltaWithoutDifferences(DeltaConformance):
    feature = Array((6,), "bool", codec="delta", every=1)


class TestRunning(SequentialCodecConformance):
    feature = Array((6,), "int16", codec=RunningCodec.name, run=6, lag=3)


class TestJpegTiled(CodecConformance):
    feature = Image((33, 96, 3), codec="jpeg", quality=90, tile=32)
    is_lossless = False
