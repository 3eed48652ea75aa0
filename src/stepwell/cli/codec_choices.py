"""What ``--codec`` and ``--option`` ask for, as features of a source's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

from stepwell.codecs import make_codec
from stepwell.errors import SchemaError, StepwellError
from stepwell.formats.importing import image_names
from stepwell.schema import Feature, Schema

__all__ = ["chosen_features"]


def chosen_features(
    schema: Schema, codecs: Sequence[tuple[str, str]], options: Sequence[tuple[str, str, str]]
) -> dict[str, Feature | str]:
    """Return the features that shall be stored another way: the codec, or with options the feature as it shall be.

    Args:
        schema: of the source.
        codecs: (feature, codec); an empty name is all images that are not named.
        options: (feature, option, value) of those; an empty name is that of the codec of all images.

    Raises:
        FeatureNotFoundError: a name that the source does not have.
        SchemaError: a codec for all images where there is none.
        StepwellError: a feature that is named twice, or an option of one that has no codec.
    """
    names = [name for name, _ in codecs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        what = ", ".join(repr(name) if name else "of all images" for name in sorted(twice))
        raise StepwellError(f"feature {what} has several codecs. Give one --codec each.")
    lost = {name for name, _, _ in options} - set(names)
    if lost:
        what, example = (
            (f"{', '.join(map(repr, sorted(lost)))}", f"{min(lost)}=CODEC") if min(lost) else ("images", "CODEC")
        )
        raise StepwellError(f"an option of {what}, which is not converted. Give its codec, too: --codec {example}.")
    found: dict[str, Feature | str] = {}
    for name, codec in sorted(codecs):
        values = {option: text for of, option, text in options if of == name}
        for each in [name] if name else image_names(schema):
            found[each] = _feature(schema[each], codec, values) if values else codec
    return found


def _feature(old: Feature, codec: str, options: Mapping[str, str]) -> Feature:
    """Return a feature with another codec; of what an option's text may mean, the codec takes what it can."""
    readings = product(*(_readings(text) for text in options.values()))
    named = replace(old, codec=codec, codec_module=None)
    candidates = [replace(named, options=tuple(sorted(zip(options, each, strict=True)))) for each in readings]
    for feature in candidates:
        with suppress(SchemaError):
            make_codec(feature)
            return feature
    # who converts refuses it, and says why
    return candidates[0]


def _readings(text: str) -> list[Any]:
    """Return what a text may mean: a number or a truth value, or itself (subsampling is "420")."""
    found: list[Any] = [text]
    for kind in (float, int):
        with suppress(ValueError):
            found.insert(0, kind(text))
    return [{"true": True, "false": False}[text]] if text in ("true", "false") else found
