"""How one row of a feature becomes bytes and back."""

from stepwell.codecs.codec import Codec, codec_names, make_codec, register_codec

__all__ = ["Codec", "codec_names", "make_codec", "register_codec"]
