"""How the rows of a feature become bytes and back."""

from stepwell.codecs.codec import (
    Codec,
    Decoder,
    RowEncoder,
    SequentialCodec,
    codec_class,
    codec_names,
    make_codec,
    register_codec,
    same_rows,
)

__all__ = [
    "Codec",
    "Decoder",
    "RowEncoder",
    "SequentialCodec",
    "codec_class",
    "codec_names",
    "make_codec",
    "register_codec",
    "same_rows",
]
