"""``stepwell convert`` and ``export``: a store of a data set or of another store, and a data set of a store."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from stepwell.cli.inspecting import check_episodes, check_spelling, chosen_view, given_options, meant_options, open_at
from stepwell.cli.terminal import print_folded
from stepwell.codecs import make_codec
from stepwell.errors import (
    EpisodeNotFoundError,
    FormatError,
    SchemaError,
    StepwellError,
    StoreBusyError,
    StoreExistsError,
)
from stepwell.formats.cache import open_in_place
from stepwell.formats.conversion import convert, open_source
from stepwell.formats.opening import is_store, open
from stepwell.formats.options import flag_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import address_of, reader_of
from stepwell.json_text import parse_json
from stepwell.recorders import ConvertReport
from stepwell.recorders.recoding import image_names
from stepwell.recorders.resuming import read_plan
from stepwell.schema import Feature, Schema
from stepwell.sizes import counted, human_bytes
from stepwell.store import Store
from stepwell.windows import View

__all__ = ["chosen_features", "run_convert", "run_export"]


def chosen_features(
    schema: Schema, codecs: Sequence[tuple[str, str]], options: Sequence[tuple[str, str, str]]
) -> dict[str, Feature | str]:
    """Return the features that shall be stored another way: the codec, or with options the feature as it shall be."""
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


def run_convert(arguments: argparse.Namespace) -> int:
    """Convert a store or a data set, and print what became of its features."""
    check_spelling(arguments.source)
    with _told_how_to_go_on(arguments.target):
        source, episodes = _chosen_source(arguments)
        try:
            if source.schema is None:
                raise SchemaError(f"{arguments.source} has no features yet: there is nothing to convert.")
            report = convert(
                source,
                arguments.target,
                chosen_features(source.schema, arguments.codec, arguments.option),
                workers=arguments.workers,
                executor=_executor(arguments),
                episodes=episodes,
            )
        finally:
            if isinstance(source, Store):
                source.close()
    if arguments.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_folded(report)
    for line in _grown(report):
        print_folded(line, sys.stderr)
    return 0


def _chosen_source(arguments: argparse.Namespace) -> tuple[Store | Reader, Any]:
    """Return what is converted, and which of its episodes."""
    options = _source_options(arguments)
    source: Store | Reader
    if arguments.where is None:
        source = open_source(arguments.source, reader=arguments.reader, **options)
        check_episodes(len(source), str(arguments.source), arguments.episodes)
        return source, arguments.episodes
    if isinstance(arguments.source, Path) and is_store(arguments.source):
        source = open(arguments.source, mode="r")
    else:
        # a condition is of lengths and metadata, which a store in place knows without reading the rest
        kind = reader_of(address_of(arguments.source, arguments.reader))
        source = open_in_place(arguments.source, reader=arguments.reader, **meant_options(kind, options))
    chosen = chosen_view(source, arguments.episodes, arguments.where).episode_index
    if not len(chosen):
        source.close()
        raise EpisodeNotFoundError(f"no episode of {arguments.source} meets the condition: nothing was written.")
    return source, chosen


def _grown(report: ConvertReport) -> Iterator[str]:
    """Yield what is to be said of features that were to become smaller and became larger."""
    for name, feature in report.features.items():
        codec = feature.after.codec
        if codec not in ("raw", feature.before.codec) and feature.bytes_after > feature.bytes_before:
            times = feature.bytes_after / max(feature.bytes_before, 1)
            yield (
                f"{name} takes {times:.2g} times the bytes that it took as {feature.before.codec}: {codec} does not "
                f"pay for rows like these. Leave out --codec {name}={codec}."
            )


def _executor(arguments: argparse.Namespace) -> Any:
    """Return what ``--executor`` says: ``ray``, or ``ray:ADDRESS``; None: processes of this machine."""
    if arguments.executor is None:
        return None
    kind, _, address = arguments.executor.partition(":")
    if kind != "ray":
        raise StepwellError(f"--executor {arguments.executor!r}: allowed is ray, or ray:ADDRESS.")
    executor = import_module("stepwell.ray").RayExecutor
    return executor(arguments.workers or None, address=address or None)


def _source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.revision is not None and isinstance(arguments.source, Path) and arguments.source.exists():
        raise FormatError("--revision is of sources on the hub; this one is on this machine. Leave it out.")
    flags = {"revision": arguments.revision, "ignore": arguments.ignore}
    options = given_options(arguments.settings, {name: value for name, value in flags.items() if value})
    if "trust" in options:
        # a directory goes to --trust; of pickles it is yes or no
        options["trust"] = flag_of("trust", options["trust"])
    return options


@contextmanager
def _told_how_to_go_on(target: Path) -> Iterator[None]:
    """Say, when a conversion ends too early, what is there and how to get the rest."""
    try:
        yield
    except (StoreExistsError, StoreBusyError):
        # what is there is another conversion's
        raise
    except (StepwellError, OSError, KeyboardInterrupt):
        with suppress(StepwellError):
            plan = read_plan(target)
            if plan is not None:
                with open(target, mode="r") as store:
                    there = f"{len(store)} of {plan['num_items']} episodes"
                print_folded(f"{target}: {there} are there. The same command again makes the rest.", sys.stderr)
        raise


WRITERS = {
    "beton": "stepwell.beton.writing:write_beton",
    "webdataset": "stepwell.webdataset.writing:write_webdataset",
    "rlds": "stepwell.tfds.writing:write_rlds",
    "tfds": "stepwell.tfds.writing:write_tfds",
}
# what JSON makes of an option, by what the writer takes; other names there are those of texts
VALUES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "Mapping": (dict,),
    "Collection": (list,),
}
MEANT = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "Mapping": 'an object of JSON, such as \'{"NAME": "VALUE"}\'',
    "Collection": "a list of JSON, such as '[\"NAME\"]'",
}
# files of one episode, for people
EPISODE_KINDS = ("html", "mp4", "rrd")
# what only LeRobot's datasets have, with what says nothing
LEROBOT_ONLY = {"format_version": "v3.0", "task": None, "cameras": "auto", "fps": None, "append": False}
FLAGS = {"format_version": "--version"}
# what a file's name ends in, unlike v2 and 1.0 of a directory's
FILE_SUFFIX = re.compile(r"(?!v\d)[a-z][a-z0-9]{1,4}")


def run_export(arguments: argparse.Namespace) -> int:
    """Write a store as a data set and print what is in it."""
    kind = arguments.to or _kind_of(arguments.target)
    if kind in EPISODE_KINDS:
        return int(import_module("stepwell.cli.viewing").run_export_episode(arguments, kind))
    if arguments.episode is not None:
        raise StepwellError(f"--episode is of {', '.join(EPISODE_KINDS)}. For {kind} give --episodes FIRST:STOP.")
    with open_at(arguments.source) as store:
        view = chosen_view(store, arguments.episodes, arguments.where)
        if not len(view):
            raise EpisodeNotFoundError(f"no episode of {arguments.source} meets the condition: nothing was written.")
        record = _write_lerobot(view, arguments) if kind == "lerobot" else _write(kind, view, arguments)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        print_folded(_table(record))
    return 0


def _kind_of(target: Path) -> str:
    """Return the format that a target's ending says; a directory is one of LeRobot."""
    suffix = target.suffix.removeprefix(".").lower()
    if suffix in ("beton", *EPISODE_KINDS):
        return suffix
    # not v2.1 of a name, nor a directory that is there
    if FILE_SUFFIX.fullmatch(suffix) and not target.is_dir():
        what = "a store is made by stepwell convert" if suffix == "well" else f"no file of .{suffix} is written"
        allowed = ", ".join(f".{kind}" for kind in ("beton", *EPISODE_KINDS))
        raise StepwellError(
            f"{target}: {what}. Allowed: a name that ends in {allowed}, or the name of a directory, which becomes a "
            f"LeRobot dataset; --to {'|'.join(('lerobot', *WRITERS))} for a directory of this name."
        )
    return "lerobot"


def _write(kind: str, view: View, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a data set by a format's own writer, and return what became of it."""
    given = [name for name, default in LEROBOT_ONLY.items() if getattr(arguments, name) != default]
    if given:
        flag = FLAGS.get(given[0], f"--{given[0]}")
        raise StepwellError(f"{flag} is of LeRobot datasets, not of {kind}. Leave it out; the format has --with.")
    module, _, name = WRITERS[kind].partition(":")
    write = getattr(import_module(module), name)
    settings = _settings(write, kind, arguments)
    target = arguments.target
    if "name" in inspect.signature(write).parameters:
        # a version lies in a directory of its name
        settings["name"] = settings.get("name") or _dataset_name(target)
        target = target.parent if settings["name"] == target.name else target
    found = write(view, target, **settings)
    place = found if isinstance(found, Path) else arguments.target
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {
        "path": str(place),
        "format": kind,
        "num_episodes": view.num_episodes,
        "num_files": len(files),
        "num_bytes": sum(path.stat().st_size for path in files),
    }


def _dataset_name(target: Path) -> str:
    """Return the name of the dataset that a directory is to hold: its own."""
    from stepwell.tfds.dataset_files import check_name

    try:
        check_name("name", target.name)
    except StepwellError as error:
        raise StepwellError(f"{error} Another than the directory's is given by --with name=NAME.") from error
    return target.name


def _settings(write: Any, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the writer's keywords: those of the flags, and what ``--with`` says, JSON where it is."""
    known = dict(list(inspect.signature(write).parameters.items())[2:])
    settings: dict[str, Any] = {"workers": arguments.workers, "executor": _executor(arguments)}
    if arguments.feature:
        settings["features"] = arguments.feature
    if arguments.rename:
        settings["rename"] = dict(arguments.rename)
    for name, text in arguments.settings:
        if name not in known:
            raise StepwellError(f"--with {name}: the writer of {kind} has no such option. It has: {', '.join(known)}.")
        settings[name] = _value(name, text, str(known[name].annotation))
    return settings


def _value(name: str, text: str, annotation: str) -> Any:
    """Return what a text says: JSON where it is, else the text.

    Example:
        >>> _value("n", "4", "int | None"), _value("n", "500 MB", "int | str"), _value("n", "4", "str")
        (4, '500 MB', '4')
        >>> _value("windows", '{"action": [0, 1]}', "Mapping[str, Any] | None")
        {'action': [0, 1]}
    """
    kinds = {part.strip() for part in re.sub(r"\[.*?\]+", "", annotation).split("|")} - {"None"}
    if kinds == {"str"}:
        return text
    try:
        found = parse_json(text)
    except ValueError:
        found = text
    taken = {kind for kind_name in kinds for kind in VALUES.get(kind_name, (object,))}
    if not taken.isdisjoint({type(found), object}) or (found is None and "None" in annotation):
        return found
    told = " or ".join(sorted(MEANT.get(kind, kind) for kind in kinds))
    raise StepwellError(f"--with {name}={text}: allowed is {told}.")


def _write_lerobot(view: View, arguments: argparse.Namespace) -> dict[str, Any]:
    from stepwell.lerobot.writing import write_dataset

    if arguments.executor is not None:
        raise StepwellError("--executor is not of LeRobot datasets: threads of one process encode them.")
    if arguments.settings:
        raise StepwellError("--with is not of LeRobot datasets, whose options are flags of their own: see --help.")
    dataset = write_dataset(
        view,
        arguments.target,
        version=arguments.format_version,
        features=arguments.feature or None,
        rename=dict(arguments.rename),
        task=arguments.task,
        cameras=arguments.cameras,
        fps=arguments.fps,
        append=arguments.append,
        workers=arguments.workers,
    )
    info = dataset.info
    return {
        "path": str(dataset.root),
        "version": info.version,
        "fps": info.fps,
        "num_episodes": info.total_episodes,
        "num_steps": info.total_frames,
        "tasks": list(dataset.tasks),
        "features": {
            name: {"dtype": feature.dtype, "shape": list(feature.shape)}
            for name, feature in info.features.items()
            if not feature.is_index
        },
    }


def _table(record: dict[str, Any]) -> str:
    name = record["path"].rsplit("/", 1)[-1]
    if "format" in record:
        return (
            f"{record['path']}: {record['format']}  {counted(record['num_episodes'], 'episode')}  "
            f"{counted(record['num_files'], 'file')}  {human_bytes(record['num_bytes'])}"
        )
    lines = [
        f"{name}: LeRobot {record['version']}  {counted(record['num_episodes'], 'episode')}  "
        f"{counted(record['num_steps'], 'step')}  {record['fps']:g} fps  {counted(len(record['tasks']), 'task')}"
    ]
    width = max(map(len, record["features"]), default=0)
    for feature, told in record["features"].items():
        lines.append(f"  {feature:{width}}  {told['dtype']:7}  {'x'.join(map(str, told['shape']))}")
    return "\n".join(lines)
