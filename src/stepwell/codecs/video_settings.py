"""What each encoder is told so that rows can be read at random, and the options of a feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell.codecs.options import choice_option, int_option
from stepwell.errors import MissingDependencyError, SchemaError
from stepwell.schema import Feature

__all__ = ["ENCODERS", "MAX_GOP", "EncoderKind", "EncoderSettings", "built_in_encoders", "check_is_picture"]

DEFAULT_ENCODER = "h264"
DEFAULT_GOP = 2
MAX_GOP = 10_000
MAX_SIDE = 8192
X26_PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
    "placebo",
)
SVT_PRESETS = tuple(map(str, range(14)))


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """What there is to know about an encoder.

    Args:
        library: its name in ffmpeg.
        crf: the default quality.
        most_crf: the lowest quality that is allowed.
        preset: the default one.
        presets: that are allowed.
        pixel_formats: of colour pictures, the default one first.
        grey_format: of grey pictures.
        options: which make it deterministic, silent and without delay, and let it cut runs only where it is told to.
    """

    library: str
    crf: int
    most_crf: int
    preset: str
    presets: tuple[str, ...]
    pixel_formats: tuple[str, ...]
    grey_format: str
    options: dict[str, str]


ENCODERS = {
    "h264": EncoderKind(
        library="libx264",
        crf=23,
        most_crf=51,
        preset="veryfast",
        presets=X26_PRESETS,
        pixel_formats=("yuv420p", "yuv444p"),
        grey_format="gray",
        options={
            "tune": "fastdecode,zerolatency",
            "forced-idr": "1",
            "x264-params": "scenecut=0:bframes=0:open-gop=0:threads=1",
        },
    ),
    "hevc": EncoderKind(
        library="libx265",
        crf=26,
        most_crf=51,
        preset="ultrafast",
        presets=X26_PRESETS,
        pixel_formats=("yuv420p", "yuv444p"),
        grey_format="gray",
        options={
            "tune": "zerolatency",
            "forced-idr": "1",
            "x265-params": "log-level=none:info=0:scenecut=0:bframes=0:open-gop=0:repeat-headers=1:"
            "pools=none:frame-threads=1:wpp=0",
        },
    ),
    "av1": EncoderKind(
        library="libsvtav1",
        crf=30,
        most_crf=63,
        preset="10",
        presets=SVT_PRESETS,
        pixel_formats=("yuv420p",),
        grey_format="yuv420p",
        options={"svtav1-params": "pred-struct=1:lp=1:scd=0"},
    ),
}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """The options of a feature, checked.

    Args:
        name: of the encoder, a key of `ENCODERS`; also the kind of its stream.
        gop: rows from one sync row to the next.
        crf: constant rate factor: 0 is best, the higher the smaller.
        preset: how hard the encoder tries.
        pixel_format: in which pictures are encoded.
        shape: of the feature.
    """

    name: str
    gop: int
    crf: int
    preset: str
    pixel_format: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, feature: Feature) -> EncoderSettings:
        """Return a feature's settings.

        Raises:
            SchemaError: an option that is not allowed.
        """
        name = feature.option("encoder", DEFAULT_ENCODER)
        if name not in ENCODERS:
            raise SchemaError(
                f"option 'encoder' of codec 'video' is {name!r}. Allowed: {', '.join(map(repr, ENCODERS))}; "
                f"this PyAV can encode: {', '.join(map(repr, built_in_encoders())) or 'none of them'}."
            )
        kind = ENCODERS[name]
        formats = kind.pixel_formats if feature.fixed_shape[2:] == (3,) else (kind.grey_format,)
        return cls(
            name,
            int_option(feature, "gop", DEFAULT_GOP, least=1, most=MAX_GOP),
            int_option(feature, "crf", kind.crf, least=0, most=kind.most_crf),
            choice_option(feature, "preset", kind.preset, kind.presets),
            choice_option(feature, "pixel_format", formats[0], formats),
            feature.fixed_shape,
        )


def built_in_encoders() -> tuple[str, ...]:
    """Return those of `ENCODERS` that this build of ffmpeg has."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError.of("av", "video") from error
    return tuple(name for name, kind in ENCODERS.items() if kind.library in av.codecs_available)


def check_is_picture(feature: Feature) -> None:
    """Refuse a feature whose steps are no pictures of a video.

    Raises:
        SchemaError: naming what it is and what is allowed.
    """
    shape, codec = feature.shape, feature.codec
    is_image = not feature.is_ragged and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)))
    if feature.kind not in ("image", "array") or feature.np_dtype != np.uint8 or not is_image:
        raise SchemaError(
            f'codec "{codec}" cannot store {feature.np_dtype.name} {shape}. Allowed: uint8 (height, width) or '
            '(height, width, 1 | 3). Use "png" or "zstd" for other dtypes and for 4 channels.'
        )
    if not all(0 < side <= MAX_SIDE for side in feature.fixed_shape[:2]):
        raise SchemaError(f'codec "{codec}" cannot store {shape}. Allowed: sides of 1 to {MAX_SIDE}.')
