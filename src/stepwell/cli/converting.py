"""``stepwell convert``: a new store with some features stored another way."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

from stepwell.codecs import make_codec
from stepwell.errors import EpisodeNotFoundError, SchemaError, StepwellError
from stepwell.recorders.recoding import convert
from stepwell.schema import Feature
from stepwell.store import Store, open
from stepwell.store.counting import counted

__all__ = ["run_convert"]


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert a store and print what became of its features."""
    with open(arguments.source) as store:
        _check_episodes(store, arguments.episodes)
        report = convert(
            store,
            arguments.target,
            _features(store, arguments.codec, arguments.option),
            workers=arguments.workers,
            episodes=arguments.episodes,
        )
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report)
    return 0


def _check_episodes(store: Store, episodes: slice | None) -> None:
    """Raise EpisodeNotFoundError for a range that reaches past the episodes, or holds none."""
    if episodes is None or not len(store):
        return
    if (episodes.stop or 0) > len(store) or not range(len(store))[episodes]:
        text = ":".join("" if part is None else str(part) for part in (episodes.start, episodes.stop))
        raise EpisodeNotFoundError(
            f"--episodes {text}: {store.path} has {counted(len(store), 'episode')}, 0:{len(store)}. Choose of them."
        )


def _features(
    store: Store, codecs: Sequence[tuple[str, str]], options: Sequence[tuple[str, str, str]]
) -> dict[str, Feature]:
    """Return the features as they shall be.

    Raises:
        FeatureNotFoundError: a name that the store does not have.
        StepwellError: a feature that is named twice, or an option of one that is not converted.
    """
    if store.schema is None:
        raise SchemaError(f"{store.path} has no features yet: there is nothing to convert. Record a step first.")
    names = [name for name, _ in codecs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise StepwellError(f"feature {', '.join(map(repr, sorted(twice)))} has several codecs. Give one --codec each.")
    lost = {name for name, _, _ in options} - set(names)
    if lost:
        raise StepwellError(
            f"an option of {', '.join(map(repr, sorted(lost)))}, which is not converted. Give its codec, too: "
            f"--codec {min(lost)}=CODEC."
        )
    schema = store.schema
    return {
        name: _feature(schema[name], codec, {option: text for of, option, text in options if of == name})
        for name, codec in codecs
    }


def _feature(old: Feature, codec: str, options: Mapping[str, str]) -> Feature:
    """Return a feature with another codec; of what an option's text may mean, the codec takes what it can."""
    readings = product(*(_readings(text) for text in options.values()))
    named = replace(old, codec=codec, codec_module=None)
    candidates = [replace(named, options=tuple(sorted(zip(options, each, strict=True)))) for each in readings]
    for feature in candidates:
        with suppress(SchemaError):
            make_codec(feature)
            return feature
    # convert refuses it, and says why
    return candidates[0]


def _readings(text: str) -> list[Any]:
    """Return what a text may mean: a number or a truth value, or itself (subsampling is "420")."""
    found: list[Any] = [text]
    for kind in (float, int):
        with suppress(ValueError):
            found.insert(0, kind(text))
    return [{"true": True, "false": False}[text]] if text in ("true", "false") else found
