"""``stepwell head``, ``stats``, ``diff``: values of a store, as tables, and beside those of another."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.cli.inspecting import MAX_SHOWN, chosen_view, describe_value, open_at, open_given, value_to_json
from stepwell.cli.terminal import lay_out, print_cut, print_folded, width_of
from stepwell.progress import make_bar
from stepwell.schema import Feature
from stepwell.sizes import counted
from stepwell.store import Store
from stepwell.store.statistics_table import SAMPLED
from stepwell.windows import View
from stepwell.windows.comparing import compare

__all__ = ["run_diff", "run_head", "run_stats"]


def run_head(arguments: argparse.Namespace) -> int:
    """Print the first steps of an episode."""
    with open_given(arguments) as store:
        episode, schema = store[arguments.episode], _features(store, arguments.feature)
        count = min(arguments.steps, episode.length)
        # pixels say nothing in a table, and would be decoded for it
        columns = {
            name: None if feature.kind == "image" else episode.read_rows(name, 0, count)
            for name, feature in schema.items()
        }
        if arguments.json:
            for step in range(count):
                values = {
                    name: _image_record(schema[name]) if rows is None else value_to_json(rows[step])
                    for name, rows in columns.items()
                }
                print(json.dumps({"episode_index": episode.index, "step_index": step, "values": values}))
            return 0
        print_folded(f"episode {episode.index}, {counted(count, 'step')} of {episode.length:,}")
        cells = [
            [str(step), *(str(schema[name]) if rows is None else _cell(rows[step]) for name, rows in columns.items())]
            for step in range(count)
        ]
        numbers = {name for name, feature in schema.items() if feature.kind == "array" and not feature.shape}
        _print_table(["step", *columns], cells, right={"step", *numbers})
    return 0


def _features(store: Store, names: Sequence[str]) -> Mapping[str, Feature]:
    """Return the named features, in their order; all where none is named."""
    schema: Mapping[str, Feature] = store.schema or {}
    return {name: schema[name] for name in dict.fromkeys(names)} if names else schema


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str]) -> None:
    for line in lay_out(head, rows, right=set(right), width=width_of()):
        print_cut(line)


def _image_record(feature: Feature) -> dict[str, Any]:
    return {"dtype": str(feature.np_dtype), "shape": list(feature.shape)}


def _cell(value: Any) -> str:
    """Return a value in one line, a text of any length whole."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_SHOWN:
        text = np.array2string(np.asarray(value), precision=4, separator=", ", max_line_width=100_000)
        return text.replace("\n", "")
    return describe_value(value).replace("\n", " ")


def run_stats(arguments: argparse.Namespace) -> int:
    """Print the statistics of features, a line each dimension."""
    with open_given(arguments) as store:
        schema = _features(store, arguments.feature)
        view, total = chosen_view(store, arguments.episodes, arguments.where), len(store)
        found = view.statistics(list(schema))
        counts = counted(view.num_episodes, "episode"), counted(view.num_steps, "step")
        if arguments.json:
            told = {name: {"names": schema[name].names, **each.to_json()} for name, each in found.items()}
            record = {"num_episodes": view.num_episodes, "num_steps": view.num_steps, "features": told}
            print(json.dumps(record, indent=2))
            return 0
    if arguments.where is not None or arguments.episodes is not None:
        print_folded(f"{counts[0]} of {total:,}, {counts[1]}")
    else:
        print_folded(", ".join(counts))
    head, rows = found.rows()
    if rows:
        _print_table(head, rows, right=[name for name in head if name not in ("feature", "dim")])
    for title, names in (
        (SAMPLED, found.sampled),
        ("without statistics", [name for name in schema if name not in found]),
    ):
        if names:
            print_folded(f"{title}: {', '.join(names)}")
    return 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Print how two stores differ; the exit code is 1 where they do."""
    with open_at(arguments.path) as first, open_at(arguments.other) as second:
        views = View(first), View(second)
        with make_bar(len(views[0]), "episodes", "comparing") as bar:

            def tell(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            found = compare(
                *views,
                features=arguments.feature or None,
                tolerance=arguments.tolerance,
                with_values=not arguments.no_values,
                progress=tell,
            )
    if arguments.json:
        print(json.dumps(found.to_json(), indent=2))
    elif found.is_equal:
        values = "no values were read" if arguments.no_values else f"{found.num_compared:,} rows compared"
        print_folded(f"equal: {counted(len(views[0]), 'episode')}, {counted(views[0].num_steps, 'step')}, {values}")
    else:
        print_folded(found)
    return 0 if found.is_equal else 1
