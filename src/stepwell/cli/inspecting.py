"""``stepwell info`` and ``stepwell ls``: what is in a store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.cli.opening import open_given
from stepwell.files.addresses import plain_address
from stepwell.formats.splits import taken_split
from stepwell.recorders.resuming import read_plan
from stepwell.schema import Feature
from stepwell.store import Store
from stepwell.store.info import make_table

__all__ = ["episode_records", "metadata_text", "name_of", "run_info", "run_ls"]

# a value of an episode's metadata, in a table; --json has it whole
MAX_VALUE = 60
ENDINGS = ("terminated", "truncated", "interrupted")


def run_info(arguments: argparse.Namespace) -> int:
    """Print a store's table."""
    with open_given(arguments) as store:
        table = make_table(store)
        schema: Mapping[str, Feature] = store.schema or {}
        split = taken_split(store.metadata)
        called = store.address or plain_address(arguments.path)
    if isinstance(arguments.path, str):
        table = replace(table, name=called, path=called)
    plan = read_plan(arguments.path)
    if not arguments.json:
        print(table)
        if split is not None:
            print(f"  splits           {split}")
        if plan is not None:
            print(f"  unfinished       {table.num_episodes} of {plan['num_items']}; the same call again makes the rest")
        return 0
    record = table.to_json()
    record["split"] = split and split.to_json()
    record["unfinished"] = plan and {"source": plan["source"], "num_episodes": plan["num_items"]}
    for row in record["features"]:
        # as numbers, null for what varies: the table's text is for people
        row["shape"] = list(schema[row["name"]].shape)
    print(json.dumps(record, indent=2))
    return 0


def name_of(place: Path | str) -> str:
    """Return the last part of a path or an address; the store of an address lies in a cache, under another name."""
    return place.rstrip("/").rsplit("/", 1)[-1] if isinstance(place, str) else place.absolute().name


def run_ls(arguments: argparse.Namespace) -> int:
    """Print one line an episode."""
    with open_given(arguments) as store:
        first = 0 if arguments.last is None else max(0, store.num_episodes - max(0, arguments.last))
        if not arguments.json:
            print("episode  length  ended        metadata")
        for record in episode_records(store, first):
            print(json.dumps(record) if arguments.json else _line(record))
    return 0


def episode_records(store: Store, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield what is known of each episode from ``first`` on, as JSON types."""
    episodes = store.episodes
    for index in range(first, len(episodes)):
        ended = [name for name in ENDINGS if getattr(episodes, name)[index]]
        yield {
            "episode_index": index,
            "length": int(episodes.length[index]),
            **{name: name in ended for name in ENDINGS},
            "is_open": bool(episodes.is_open[index]),
            "metadata": episodes.metadata(index),
        }


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return an episode's metadata in one line: ``seed=3  is_success=true  coverage=0.9516``."""
    return "  ".join(f"{name}={_short(value)}" for name, value in metadata.items())


def _line(record: dict[str, Any]) -> str:
    ended = "recording" if record["is_open"] else "+".join(name for name in ENDINGS if record[name]) or "-"
    cells = (
        f"{record['episode_index']:>7}",
        f"{record['length']:>6}",
        f"{ended:<11}",
        metadata_text(record["metadata"]),
    )
    return "  ".join(cells).rstrip()


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
