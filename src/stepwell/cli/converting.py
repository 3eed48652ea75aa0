"""``stepwell convert``: a store of a data set of another system, or of a store with features stored another way."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepwell.cli.codec_choices import chosen_features
from stepwell.cli.opening import given_options
from stepwell.errors import EpisodeNotFoundError, FormatError, SchemaError, StepwellError, StoreNotFoundError
from stepwell.formats.importing import import_dataset
from stepwell.formats.registry import open_reader, readers_of
from stepwell.recorders.recoding import convert
from stepwell.recorders.resuming import read_plan
from stepwell.schema import Feature, Schema
from stepwell.sizes import counted
from stepwell.store import open
from stepwell.store.layout import SEGMENTS, STORE_JSON

__all__ = ["check_episodes", "run_convert"]


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert a store, or import a data set, and print what became of its features."""
    report = _convert(arguments) if _is_store(arguments) else _import(arguments)
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report)
    return 0


def _is_store(arguments: argparse.Namespace) -> bool:
    source = arguments.source
    if arguments.reader is not None or isinstance(source, str):
        return False
    if not os.path.exists(source):  # noqa: PTH110  Path raises where braces make a text that is too long for a path
        # unless it is a pattern of somebody's, what is not there is told of as a store that is not
        return not readers_of(str(source))
    return any((source / part).exists() for part in (STORE_JSON, SEGMENTS))


def _convert(arguments: argparse.Namespace) -> Any:
    if arguments.revision is not None:
        raise FormatError("--revision is of sources on the hub; this one is a store. Leave it out.")
    if arguments.settings:
        raise FormatError("--with is of other data sets; this one is a store, whose features have --option.")
    if arguments.ignore:
        raise FormatError("--ignore is of other data sets; this one is a store, of which all features come along.")
    if not arguments.source.exists():
        raise StoreNotFoundError(f"no store and no data set at {arguments.source}: there is nothing of this name.")
    with open(arguments.source) as store:
        if store.schema is None:
            raise SchemaError(f"{store.path} has no features yet: there is nothing to convert. Record a step first.")
        check_episodes(len(store), str(store.path), arguments.episodes)
        return convert(
            store,
            arguments.target,
            chosen_features(store.schema, arguments.codec, arguments.option),
            workers=arguments.workers,
            episodes=arguments.episodes,
        )


def _import(arguments: argparse.Namespace) -> Any:
    if arguments.revision is not None and isinstance(arguments.source, Path) and arguments.source.exists():
        raise FormatError("--revision is of sources on the hub; this one is a directory. Leave it out.")
    options: dict[str, Any] = {} if arguments.revision is None else {"revision": arguments.revision}
    if arguments.ignore:
        options["ignore"] = arguments.ignore
    options = given_options(arguments.settings, options)

    def codecs(schema: Schema) -> dict[str, Feature | str]:
        return chosen_features(schema, arguments.codec, arguments.option)

    with _told_how_to_go_on(arguments.target):
        reader = open_reader(arguments.source, arguments.reader, options)
        check_episodes(len(reader), str(arguments.source), arguments.episodes)
        return import_dataset(
            reader, arguments.target, codecs=codecs, episodes=arguments.episodes, workers=arguments.workers
        )


@contextmanager
def _told_how_to_go_on(target: Path) -> Iterator[None]:
    """Say, when an import ends too early, what is there and how to get the rest."""
    try:
        yield
    except (StepwellError, KeyboardInterrupt):
        plan = read_plan(target)
        if plan is not None:
            with open(target, mode="r") as store:
                there = f"{len(store)} of {plan['num_items']} episodes"
            print(f"{target}: {there} are there. The same command again makes the rest.", file=sys.stderr)
        raise


def check_episodes(count: int, where: str, episodes: slice | None) -> None:
    """Raise EpisodeNotFoundError for a range that reaches past the episodes, or holds none."""
    if episodes is None or not count:
        return
    if (episodes.stop or 0) > count or not range(count)[episodes]:
        text = ":".join("" if part is None else str(part) for part in (episodes.start, episodes.stop))
        raise EpisodeNotFoundError(
            f"--episodes {text}: {where} has {counted(count, 'episode')}, 0:{count}. Choose of them."
        )
