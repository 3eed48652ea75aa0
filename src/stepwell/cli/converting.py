"""``stepwell convert``: a new store with some features stored another way."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from stepwell.errors import SchemaError, StepwellError
from stepwell.recorders.recoding import convert
from stepwell.schema import Feature
from stepwell.store import Store, open

__all__ = ["run_convert"]


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert a store and print what became of its features."""
    with open(arguments.source) as store:
        report = convert(
            store,
            arguments.target,
            _features(store, arguments.codec, arguments.option),
            workers=arguments.workers,
            episodes=arguments.episodes,
        )
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report)
    return 0


def _features(
    store: Store, codecs: Sequence[tuple[str, str]], options: Sequence[tuple[str, str, Any]]
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
    changed = {}
    for name, codec in codecs:
        chosen = tuple(sorted((option, value) for of, option, value in options if of == name))
        old = store.schema[name]
        changed[name] = Feature(old.kind, old.dtype, old.shape, codec, chosen)
    return changed
