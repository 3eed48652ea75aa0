"""``stepwell info``, ``ls``, ``show``, ``verify``: what is in a store or data set, and whether it is whole."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.sheets import Row, Tile, displayable, write_sheet
from stepwell.cli.terminal import cut, in_a_line, print_cut, print_folded, width_of
from stepwell.errors import (
    EpisodeNotFoundError,
    FeatureNotFoundError,
    FormatError,
    StepwellError,
    StoreNotFoundError,
    did_you_mean,
)
from stepwell.files.addresses import nothing_at, plain_address
from stepwell.formats.opening import is_store, open, point_to_reader, recognised
from stepwell.formats.options import flag_of, names_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import check_options, find_reader, scheme_of
from stepwell.formats.splits import taken_split
from stepwell.progress import make_bar
from stepwell.recorders.resuming import read_plan
from stepwell.schema import Feature
from stepwell.sizes import counted, human_bytes
from stepwell.store import Episode, Store
from stepwell.store.info import make_table
from stepwell.store.layout import SEGMENTS, STORE_JSON
from stepwell.store.marks import num_lost_marks
from stepwell.store.verify import Report, verify_store
from stepwell.windows import View
from stepwell.windows.conditions import Names, facts_of, sort_key, value_of

__all__ = [
    "check_episodes",
    "check_spelling",
    "chosen_view",
    "describe_value",
    "episode_records",
    "given_options",
    "meant_options",
    "metadata_text",
    "name_of",
    "open_at",
    "open_given",
    "run_info",
    "run_ls",
    "run_show",
    "run_verify",
    "value_to_json",
]


def open_given(arguments: argparse.Namespace) -> Store:
    """Return the store at the path or address of a verb, open for reading; a data set of one system is recognised."""
    return open_at(arguments.path, arguments.settings)


def open_at(place: Path | str, settings: Iterable[tuple[str, str]] = ()) -> Store:
    """Return the store at a path or an address with options of ``--with``; see `open_given`."""
    check_spelling(place)
    options = given_options(settings)
    path = recognised(place)
    if not options:
        return open(path, mode="r")
    first = f"--with {next(iter(options))}=..."
    if isinstance(path, Path):
        raise FormatError(
            f"{first} is of data sets of other systems, and {path} is not recognised as one. Give "
            "FORMAT://PATH; of a store, leave it out."
        )
    kind = find_reader(path)
    check_options(kind, options)
    return open(path, mode="r", **meant_options(kind, options))


def check_spelling(place: Path | str) -> None:
    """Raise StoreNotFoundError for a path where nothing is, with what is called nearly so beside it."""
    if isinstance(place, Path) and not os.path.lexists(place) and not any(mark in place.name for mark in PATTERN_MARKS):
        raise StoreNotFoundError(f"no store at {place}: {nothing_at(place)}")


def check_episodes(count: int, where: str, episodes: slice | None) -> None:
    """Raise EpisodeNotFoundError for a range that reaches past the episodes, or holds none."""
    if episodes is None or not count:
        return
    if (episodes.stop or 0) > count or not range(count)[episodes]:
        text = ":".join("" if part is None else str(part) for part in (episodes.start, episodes.stop))
        raise EpisodeNotFoundError(
            f"--episodes {text}: {where} has {counted(count, 'episode')}, 0:{count}. Choose of them."
        )


def chosen_view(store: Store, episodes: slice | None, where: str | None) -> View:
    """Return the episodes of a store that ``--episodes`` and ``--where`` choose."""
    check_episodes(len(store), store.address or str(store.path), episodes)
    return View(store).select(episodes, where=where)


def given_options(settings: Iterable[tuple[str, str]], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of ``--with``, as text, with those of flags.

    Example:
        >>> given_options([("split", "val")], {"ignore": ["reward"]})
        {'ignore': ['reward'], 'split': 'val'}
    """
    options = dict(others or {})
    for name, text in settings:
        if name in options:
            raise FormatError(f"--with {name}={text}: {name} is given twice. Give it once.")
        options[name] = text
    return options


def meant_options(kind: type[Reader], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of what opens a data set in place, with values where it takes no texts."""
    known = _LEROBOT if kind.name == "lerobot" else {}
    return {
        name: known[name](each) if name in known and isinstance(each, str) else each for name, each in options.items()
    }


def _tolerance(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FormatError(f"--with tolerance={text}: no number. Give seconds, e.g. tolerance=0.001.") from None


# what opens LeRobot's datasets in place takes values, as other readers take texts
_LEROBOT: dict[str, Callable[[str], Any]] = {
    "ignore": names_of,
    "local_files_only": lambda text: flag_of("local_files_only", text),
    "tolerance": _tolerance,
}


# a value of an episode's metadata below a picture
MAX_VALUE = 60
# of the names of several files
PATTERN_MARKS = "*?[{"
ENDINGS = ("terminated", "truncated", "interrupted")


def run_info(arguments: argparse.Namespace) -> int:
    """Print a store's table."""
    with open_given(arguments) as store:
        table = make_table(store)
        schema: Mapping[str, Feature] = store.schema or {}
        split = taken_split(store.metadata)
        called = store.address or plain_address(arguments.path)
        lost = num_lost_marks(store)
    if isinstance(arguments.path, str):
        table = replace(table, name=called, path=called)
    plan = read_plan(arguments.path)
    if not arguments.json:
        print_folded(table)
        if split is not None:
            print_folded(f"  splits           {split}")
        if lost:
            print_folded(f"  lost marks       {lost:,}, of episodes that are not here: deleted, or left out by options")
        if plan is not None:
            there = f"{table.num_episodes} of {plan['num_items']}"
            print_folded(f"  unfinished       {there}; the same call again makes the rest")
        return 0
    record = table.to_json()
    record["split"] = split and split.to_json()
    record["lost_marks"] = lost
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
        chosen = _listed(store, arguments)
        if not arguments.json:
            print_cut("episode  length  ended        metadata")
        for record in episode_records(store, chosen):
            if arguments.json:
                print(json.dumps(record))
            else:
                print_cut(_line(record))
    return 0


def _listed(store: Store, arguments: argparse.Namespace) -> Sequence[int]:
    """Return the numbers of the episodes that are listed, in their order."""
    view = View(store) if arguments.where is None else View(store).select(where=arguments.where)
    table = view.parts[0].table
    chosen: Sequence[int] = view.episode_index.tolist()
    if arguments.sort is not None:
        name, names, keys = arguments.sort, Names([arguments.sort]), {}
        for index in chosen:
            facts = facts_of(table, index, [name])
            names.see(facts)
            keys[index] = sort_key(value_of(facts, name))
        names.check()
        # those without a value come last either way
        absent = [index for index in chosen if keys[index] == sort_key(None)]
        present = [index for index in chosen if keys[index] != sort_key(None)]
        chosen = [*sorted(present, key=keys.__getitem__, reverse=arguments.reverse), *absent]
    elif arguments.reverse:
        chosen = chosen[::-1]
    return chosen[: arguments.first] if arguments.last is None else chosen[-arguments.last :]


def episode_records(store: Store, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield what is known of each episode of some, as JSON types."""
    episodes = store.episodes
    for index in indices:
        ended = [name for name in ENDINGS if getattr(episodes, name)[index]]
        yield {
            "episode_index": index,
            "length": int(episodes.length[index]),
            **{name: name in ended for name in ENDINGS},
            "is_open": bool(episodes.is_open[index]),
            "metadata": episodes.metadata(index),
        }


def metadata_text(metadata: Mapping[str, Any], max_value: int | None = None) -> str:
    """Return an episode's metadata in one line: ``seed=3  is_success=true  coverage=0.9516``."""
    texts = {
        name: f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        for name, value in metadata.items()
    }
    return "  ".join(f"{in_a_line(name)}={cut(text, max_value)}" for name, text in texts.items())


def _line(record: dict[str, Any]) -> str:
    ended = "recording" if record["is_open"] else "+".join(name for name in ENDINGS if record[name]) or "-"
    cells = (
        f"{record['episode_index']:>7}",
        f"{record['length']:>6}",
        f"{ended:<11}",
        metadata_text(record["metadata"]),
    )
    return "  ".join(cells).rstrip()


SHEET_COLUMNS = 6
MAX_SHOWN = 16
MAX_JSON_ELEMENTS = 1024
MAX_TEXT = 200
MAX_READ_BYTES = 1 << 30


def run_show(arguments: argparse.Namespace) -> int:
    """Print an episode or a step, or write the sheet of its images."""
    index, step = arguments.where
    with open_given(arguments) as store:
        episode = store[index]
        if arguments.out is not None:
            if step is not None:
                raise StepwellError(f"--out draws a whole episode: give {index}, not {index}:{step}.")
            title = name_of(arguments.path)
            write_episode_sheet(store, episode, arguments.out, arguments.feature, arguments.tiles, title=title)
            print_folded(arguments.out)
        elif step is None:
            _print_episode(store, episode, arguments.json)
        else:
            _print_step(store, episode, step, arguments.json)
    return 0


def write_episode_sheet(
    store: Store, episode: Episode, out: Path, feature: str | None, num_tiles: int, *, title: str
) -> None:
    """Write a contact sheet of evenly spaced images of an episode."""
    schema: Mapping[str, Feature] = store.schema or {}
    images = [name for name, known in schema.items() if known.kind == "image" and known.rate is None]
    name = feature or next(iter(images), "")
    if name not in images:
        which = f"no image feature {name!r}" if name else "no image feature to draw"
        told = did_you_mean(name, images)
        raise FeatureNotFoundError(f"{which}.{told} There are: {', '.join(images) or 'none'}.")
    num_rows = _num_rows(episode, schema[name])
    steps = np.unique(np.linspace(0, num_rows - 1, max(1, num_tiles)).round().astype(int))
    labels = [f"step {step}" if step < episode.length else "after the last step" for step in steps]
    tiles = [Tile(displayable(_row(episode, name, s)), label) for s, label in zip(steps, labels, strict=True)]
    rows = [Row(tiles[start : start + SHEET_COLUMNS]) for start in range(0, len(tiles), SHEET_COLUMNS)]
    heading = f"{title}   episode {episode.index}   {counted(episode.length, 'step')}"
    write_sheet(out, rows, title=heading, subtitle=f"{name}   {metadata_text(episode.metadata, MAX_VALUE)}")


def describe_value(value: Any) -> str:
    """Return one step's value for people: small ones in full, large ones by type, shape and range."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…", ensure_ascii=False)
    if isinstance(value, bytes):
        return counted(len(value), "byte")
    array = np.asarray(value)
    if array.size <= MAX_SHOWN or array.dtype.names:
        return np.array2string(array, precision=4, separator=", ", max_line_width=100)
    shape = "x".join(map(str, array.shape))
    if array.dtype.kind not in "biuf":
        return f"{array.dtype} {shape}"
    # a float16 overflows, and a mean of rounded sums may lie above the largest value
    mean_dtype = np.float64
    return f"{array.dtype} {shape}  min {array.min():g}  mean {array.mean(dtype=mean_dtype):g}  max {array.max():g}"


def value_to_json(value: Any) -> Any:
    """Return one step's value as JSON types; large arrays and bytes as what they are, not as their elements."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    array = np.asarray(value)
    if array.size <= MAX_JSON_ELEMENTS and array.dtype.kind in "biufSU":
        return _finite(array.tolist())
    return {"dtype": str(array.dtype), "shape": list(array.shape)}


def _finite(value: Any) -> Any:
    """Return nested lists with None for what JSON has no number for, and bytes as text."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _num_rows(episode: Episode, feature: Feature) -> int:
    return episode.length + (1 if feature.final and episode.has_final else 0)


def _row(episode: Episode, name: str, step: int) -> Any:
    """Return one row of an episode, without decoding those that it does not need."""
    return episode.read_rows(name, step, step + 1)[0]


def _print_episode(store: Store, episode: Episode, as_json: bool) -> None:
    schema: Mapping[str, Feature] = store.schema or {}
    record = {
        "episode_index": episode.index,
        "length": episode.length,
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "interrupted": bool(episode.interrupted),
        "metadata": episode.metadata,
    }
    if as_json:
        shapes = {name: _column_shape(_num_rows(episode, feature), feature) for name, feature in schema.items()}
        print(json.dumps({**record, "features": shapes}, indent=2))
        return
    ended = [name for name in ("terminated", "truncated", "interrupted") if record[name]]
    end = " and ".join(ended) or "no ending recorded"
    print_folded(f"episode {episode.index}  {counted(episode.length, 'step')}  {end}")
    for key, value in episode.metadata.items():
        print_folded(f"  {in_a_line(key)} = {json.dumps(value, ensure_ascii=False)}")
    width = max(map(len, schema))
    for name, feature in schema.items():
        told = _describe_feature(episode, name, feature)
        print_folded(f"  {name:<{width}}  " + told.replace("\n", "\n" + " " * (width + 4)))


def _print_step(store: Store, episode: Episode, step: int, as_json: bool) -> None:
    position = step + episode.length if step < 0 else step
    if not 0 <= position < episode.length:
        raise EpisodeNotFoundError(
            f"no step {step} in episode {episode.index}, which has {episode.length}. "
            f"Allowed: {-episode.length} to {episode.length - 1}."
        )
    values = {name: _row(episode, name, position) for name in store.schema or ()}
    if as_json:
        record = {name: value_to_json(value) for name, value in values.items()}
        print(json.dumps({"episode_index": episode.index, "step_index": position, "values": record}, indent=2))
        return
    print_folded(f"episode {episode.index}  step {position} of {episode.length}")
    width = max(map(len, values))
    for name, value in values.items():
        print_folded(f"  {name:<{width}}  " + describe_value(value).replace("\n", "\n" + " " * (width + 4)))


def _column_shape(num_rows: int, feature: Feature) -> Any:
    if feature.is_ragged:
        return {"rows": num_rows}
    return {"dtype": str(feature.np_dtype), "shape": [num_rows, *feature.fixed_shape]}


def _describe_feature(episode: Episode, name: str, feature: Feature) -> str:
    num_rows = _num_rows(episode, feature)
    if feature.rate is not None:
        return repr(episode[name]).strip("<>")
    if feature.is_ragged:
        first = describe_value(_row(episode, name, 0)) if num_rows else ""
        return f"{counted(num_rows, 'row')}, the first: {first}" if num_rows else "no rows"
    if num_rows * feature.row_bytes <= MAX_READ_BYTES:
        return _describe_column(episode[name])
    shape = "x".join(map(str, (num_rows, *feature.fixed_shape)))
    return f"{feature.np_dtype} {shape}, too large to sum up; a step of it is shown by EPISODE:STEP"


def _describe_column(column: np.ndarray[Any, Any]) -> str:
    return describe_value(column) if column.size > MAX_SHOWN else f"{column.dtype} {describe_value(column)}"


def run_verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong; the exit code is 1 when something is, and 0 when there are warnings only."""
    # the other verbs do without it, and start in half the time
    from stepwell.lerobot.auditing import is_lerobot

    if is_lerobot(arguments.path):
        if arguments.settings:
            raise StepwellError("--with is of other data sets than LeRobot's. There are --episodes and --deep.")
        return _run_audit(arguments)
    if arguments.episodes is not None:
        raise StepwellError(f"{arguments.path} is no LeRobot dataset: leave out --episodes, a store is verified whole.")
    arguments.path = recognised(arguments.path)
    if scheme_of(str(arguments.path)) is not None:
        with open_given(arguments) as store:
            return _verify(store, store.address or plain_address(arguments.path), arguments)
    check_spelling(arguments.path)
    # a store that is too damaged to open is verified all the same, so it is not opened here
    if not is_store(arguments.path):
        fault = StoreNotFoundError(f"no store at {arguments.path}: there is neither {STORE_JSON} nor {SEGMENTS}.")
        point_to_reader(str(arguments.path), fault)
        raise fault
    if arguments.settings:
        raise StepwellError(f"--with is of addresses, and {arguments.path} is a store. Leave it out.")
    return _verify(arguments.path, str(arguments.path), arguments)


def _verify(store: Store | Path, called: str, arguments: argparse.Namespace) -> int:
    with make_bar(None, "B", "verifying") as bar:

        def tell(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = replace(verify_store(store, deep=arguments.deep, progress=tell), path=called)
    if arguments.json:
        print(json.dumps({**asdict(report), "is_ok": report.is_ok}, indent=2))
    else:
        _print_report(report)
    return 0 if report.is_ok else 1


def _run_audit(arguments: argparse.Namespace) -> int:
    from stepwell.lerobot.auditing import audit

    episodes = None if arguments.episodes is None else [arguments.episodes]
    report = audit(arguments.path, episodes=episodes, deep=arguments.deep)
    if arguments.episodes is not None and not report.num_episodes and report.is_ok:
        raise EpisodeNotFoundError(
            f"--episodes: none of {arguments.path} is in this range: there was nothing to verify."
        )
    if arguments.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        width = width_of()
        print_folded(report if width is None else report.text(width))
    return 0 if report.is_ok else 1


def _print_report(report: Report) -> None:
    segments = counted(report.num_segments, "segment")
    verdict = "all as written" if report.is_ok else f"{len(report.findings)} damaged"
    files = f", {counted(report.num_files, 'file')} in place with sizes and times" if report.num_files else ""
    compared = f"{human_bytes(report.num_bytes)} compared with checksums{files}"
    print_folded(f"{report.path}: {segments}, {compared}, {verdict}")
    for finding in report.findings:
        print_folded(f"  {finding}")
