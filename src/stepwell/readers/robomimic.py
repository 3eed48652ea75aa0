"""robomimic and LIBERO: demonstrations in HDF5 files.

::

    data                    attributes: env_args (JSON), total, problem_info (LIBERO)
      demo_0                num_samples, model_file (XML)
        obs/NAME            [T, ...]   observation before each action
        next_obs/NAME       [T, ...]   observation after it: obs of the next step, stored again
        actions, rewards, dones, states
    mask/train, mask/valid  names of demonstrations

Source: the robomimic documentation, "Dataset Structure"; LIBERO's files are the same with other observations.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FormatError, LeftOutWarning
from stepwell.formats.reader import Reader, left_out, store_schema, warn_of_left_out, with_told_finals
from stepwell.formats.registry import register_reader
from stepwell.json_text import parse_json
from stepwell.readers.hdf5 import (
    SUFFIXES,
    Hdf5Files,
    can_stay,
    datasets_of,
    feature_of,
    is_hdf5,
    read_attributes,
    read_rows,
    read_varying,
    rows_in_file,
    top_names,
)
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import span_feature
from stepwell.schema import Feature, Schema

__all__ = ["RobomimicReader"]

DEMO = re.compile(r"demo_(\d+)")
OBS, NEXT_OBS = "obs.", "next_obs."
MODES = ("auto", "keep", "ignore")
# the simulator's XML of each demonstration is larger than most of them
MAX_TOLD_BYTES = 4096
# of a demonstration's observations of one name, up to which all are compared with the next ones
COMPARED_BYTES = 1 << 20
MINARI = "main_data.hdf5"
# folders below a directory that are looked into to find out what it is
MOST_FOLDERS = 16
MOST_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class Demo:
    """A demonstration: the number of its file, its name, its steps and the masks that name it."""

    file: int
    name: str
    length: int
    masks: tuple[str, ...]


@register_reader
class RobomimicReader(Reader):
    """Demonstrations of robomimic, robosuite and LIBERO files, in the order of their numbers, an episode each.

    Notes:
        As for `Reader`. Features are named as in the file, ``obs.agentview_image``. An episode is terminated where its
        last ``dones`` is set, else truncated; neither in a file without ``dones``. Its metadata hold ``demo``,
        ``masks``, ``tasks`` (LIBERO's instruction) and the file's short attributes. Image rows of files without
        compression stay in the file when it is opened in place.
    """

    name = "robomimic"

    def __init__(self, source: str, *, next_obs: str = "auto", ignore: Sequence[str] | str = ()) -> None:
        super().__init__(source)
        if next_obs not in MODES:
            raise FormatError(f"next_obs={next_obs!r}. Allowed: {', '.join(MODES)}.")
        self._next_obs = next_obs
        self._files = Hdf5Files(_paths(source))
        self._demos = [demo for number in range(len(self._files.paths)) for demo in self._found(number)]
        if not self._demos:
            raise FormatError(f"{source} has no demonstrations: no group data/demo_0. Choose another reader by --from.")
        self.metadata = {"robomimic": self._told()}
        self.fps = _rate(self.metadata["robomimic"])
        self._set_schema(ignore)

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an HDF5 file of demonstrations, or a directory of them; see `Reader.accepts`."""
        first = _first_file(source)
        if first is None or not is_hdf5(first) or Path(first).name == MINARI:
            return False
        # a file whose names cannot be read is taken, so that the error says why
        names = top_names(first)
        return names is None or "data" in names

    def __len__(self) -> int:
        return len(self._demos)

    def __getitem__(self, index: int) -> EpisodeData:
        demo = self._demos[index]
        with self._files.naming(demo.file, demo.name):
            group = self._group(demo)
            found = datasets_of(group)
            columns = {name: self._column(demo, found, name, feature) for name, feature in self.schema.items()}
            self._warn_of_more(demo, found)
            is_told = "dones" in found
            is_done = is_told and bool(np.any(found["dones"][demo.length - 1]))
            told = {
                "demo": demo.name,
                "masks": list(demo.masks),
                **_short(read_attributes(self._files.paths[demo.file], group.name)),
            }
        if told.get("num_samples", demo.length) != demo.length:
            raise FormatError(
                f"{self.label(index)} has {demo.length} actions, its attribute num_samples says {told['num_samples']}."
            )
        if len(self._files.paths) > 1:
            told["file"] = Path(self._files.paths[demo.file]).name
        tasks = self.metadata["robomimic"]["tasks"][demo.file]
        if tasks:
            told["tasks"] = [tasks]
        return EpisodeData(columns, terminated=is_done, truncated=is_told and not is_done, metadata=told)

    @property
    def in_place_schema(self) -> Schema:
        """The features, with images left in the files where they lie there plainly; see `Reader.in_place_schema`."""
        paths = self._files.paths
        return Schema({**self.schema, **{name: span_feature(self.schema[name], paths) for name in self._stays}})

    def label(self, index: int) -> str:
        """Return file and name of a demonstration; see `Reader.label`."""
        demo = self._demos[index]
        return f"{demo.name} of {self._files.paths[demo.file]}"

    def _found(self, number: int) -> list[Demo]:
        with self._files.naming(number, "data"):
            file = self._files.open(number)
            data = file["data"]
            masks = {name: _names(file["mask"][name]) for name in sorted(file.get("mask", ()))}
            names = sorted((name for name in data if DEMO.fullmatch(name)), key=lambda name: int(name[5:]))
            lost = {member for members in masks.values() for member in members} - set(names)
            warn_of_left_out(f"{file.filename}, mask", sorted(lost), "there are no demonstrations of these names")
            others = [name for name in data if name not in names]
            warn_of_left_out(f"{file.filename}, data", others, "they are not called as demonstrations are, demo_0")
            return [
                Demo(
                    number,
                    name,
                    _length(data[name]),
                    tuple(mask for mask, members in masks.items() if name in members),
                )
                for name in names
            ]

    def _told(self) -> dict[str, Any]:
        """Return the metadata of the first file, and each file's task."""
        told: dict[str, Any] = {}
        tasks: list[str | None] = []
        for number in range(len(self._files.paths)):
            with self._files.naming(number, "attributes of data"):
                attributes = _short(read_attributes(self._files.paths[number], "/data"), parse=True)
            self._compare_total(number, attributes.get("total"))
            told = told or attributes
            problem = attributes.get("problem_info")
            said = problem.get("language_instruction") if isinstance(problem, Mapping) else None
            tasks.append("".join(said) if isinstance(said, list) else said)
        return {**told, "tasks": tasks}

    def _compare_total(self, number: int, total: Any) -> None:
        """Warn where a file says that it has other steps than those of its demonstrations."""
        count = sum(demo.length for demo in self._demos if demo.file == number)
        if isinstance(total, int | float) and total != count:
            warnings.warn(
                f"{self._files.paths[number]}: its demonstrations have {count} steps, the attribute total of data says "
                f"{total}. Some may be missing; or whoever left some out did not count again.",
                LeftOutWarning,
                stacklevel=4,
            )

    def _set_schema(self, ignore: Sequence[str] | str) -> None:
        demo = self._demos[0]
        with self._files.naming(demo.file, demo.name):
            found = datasets_of(self._group(demo))
            self._seen = set(found)
            mode = self._next_obs
            if mode == "auto":
                mode = "final" if _repeats(found) else "keep"
            self._next_obs = mode
            ignored = left_out(ignore, found, self.label(0))
            features: dict[str, Feature] = {}
            for name, dataset in found.items():
                if name in ignored or (name.startswith(NEXT_OBS) and mode != "keep"):
                    continue
                feature = feature_of(dataset)
                has_next = mode == "final" and name.startswith(OBS)
                features[name] = feature.with_final() if has_next else feature
        self.schema = store_schema(with_told_finals(features), self.source)
        self._stays = self._staying(self.schema)

    def _staying(self, features: Mapping[str, Feature]) -> set[str]:
        """Return the images that can be left in the files, in all demonstrations; each file is opened once."""
        found = {name for name, feature in features.items() if feature.is_raw and feature.kind == "image"}
        for demo in self._demos:
            if not found:
                break
            with self._files.naming(demo.file, demo.name):
                group = self._group(demo)
                found = {name for name in found if self._lies_there(demo, group, name, features[name])}
        return found

    def _lies_there(self, demo: Demo, group: Any, name: str, feature: Feature) -> bool:
        wanted = [name, _next_name(name)] if feature.final else [name]
        parts = [group.get(part.replace(".", "/")) for part in wanted]
        path = self._files.paths[demo.file]
        return all(part is not None and can_stay(part, feature.with_final(False), path) for part in parts)

    def _column(self, demo: Demo, found: Mapping[str, Any], name: str, feature: Feature) -> Any:
        dataset = self._dataset(demo, found, name)
        if dataset.shape[:1] != (demo.length,):
            raise FormatError(
                f"{self.label(self._demos.index(demo))}: {name} has {dataset.shape} where there are {demo.length} "
                f'actions. Leave it out: ignore="{name}".'
            )
        parts = [(dataset, 0, demo.length)]
        if feature.final:
            after = self._dataset(demo, found, _next_name(name))
            self._check_repeats(demo, parts[0][0], after, name)
            parts.append((after, demo.length - 1, demo.length))
        plain = feature.with_final(False)
        if name in self._stays:
            return rows_in_file(parts, plain, self._files.paths, demo.file)
        rows = [read_rows(dataset, plain, start, stop) for dataset, start, stop in parts]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _check_repeats(self, demo: Demo, before: Any, after: Any, name: str) -> None:
        """Refuse a demonstration whose next observations are not the observations of the next steps."""
        # of images the ends tell it, where comparing all would read them twice
        ends = [(1, 2), (demo.length - 1, demo.length)] if demo.length > 1 else []
        parts = [(1, demo.length)] if before.nbytes < COMPARED_BYTES else ends
        if any(not _same(before[start:stop], after[start - 1 : stop - 1]) for start, stop in parts):
            raise FormatError(
                f"{self.label(self._demos.index(demo))}: next_obs does not repeat {name} one step later, as it does "
                'in the first demonstration. Keep both: next_obs="keep".'
            )

    def _warn_of_more(self, demo: Demo, found: Mapping[str, Any]) -> None:
        """Warn once of data that the first demonstration lacks."""
        more = [name for name in found if name not in self._seen]
        self._seen.update(more)
        where = f"{self._files.paths[demo.file]}, {demo.name}"
        warn_of_left_out(where, more, "the first demonstration does not have them")

    def _dataset(self, demo: Demo, found: Mapping[str, Any], name: str) -> Any:
        if name not in found:
            raise FormatError(f"{self._files.paths[demo.file]}, {demo.name} has no {name}, which the first one has.")
        return found[name]

    def _group(self, demo: Demo) -> Any:
        return self._files.open(demo.file)["data"][demo.name]


def _paths(source: str) -> Sequence[str]:
    """Return the HDF5 files of a source."""
    if "://" in source:
        raise FormatError(f"{source}: robomimic files are read from this machine. Copy them here first.")
    paths = []
    for part in source.split("\n"):
        place = Path(part)
        below = sorted(str(path) for path in place.rglob("*") if path.suffix in SUFFIXES) if place.is_dir() else [part]
        paths += below
    if not paths:
        raise FormatError(f"{source} holds no HDF5 files ({', '.join(SUFFIXES)}).")
    return paths


def _first_file(source: str) -> str | None:
    """Return an HDF5 file of a source: itself, or one in it or in the first folders of it, without a walk of all."""
    place = Path(source.partition("\n")[0])
    if "://" in source or not place.is_dir():
        return None if "://" in source else str(place)
    try:
        inside = list(islice(place.iterdir(), MOST_ENTRIES))
        folders = sorted(path for path in inside if path.is_dir())[:MOST_FOLDERS]
        entries = (path for folder in folders for path in islice(folder.iterdir(), MOST_ENTRIES))
        return next((str(path) for path in (*sorted(inside), *entries) if path.suffix in SUFFIXES), None)
    except OSError:
        return None


def _names(dataset: Any) -> set[str]:
    values = read_varying(dataset.file.filename, dataset.name, 0, len(dataset)) if dataset.shape else []
    return {value.rstrip(b"\0").decode("utf-8") for value in values}


def _length(group: Any) -> int:
    """Return the steps of a demonstration: those of its actions."""
    if "actions" not in group or not group["actions"].shape:
        raise FormatError(f"{group.file.filename}, {group.name} has no actions, by which its steps are counted.")
    length = int(group["actions"].shape[0])
    if length < 1:
        raise FormatError(f"{group.file.filename}, {group.name} has no steps.")
    return length


def _short(attributes: Mapping[str, Any], *, parse: bool = False) -> dict[str, Any]:
    """Return attributes that JSON holds and that are not larger than an episode's numbers."""
    told: dict[str, Any] = {}
    for name, given in attributes.items():
        value = given
        if parse and isinstance(value, str) and value[:1] in "{[":
            with suppress(ValueError, RecursionError):
                value = parse_json(value)
        if len(str(value)) <= MAX_TOLD_BYTES and isinstance(value, str | int | float | bool | list | dict):
            told[name] = value
    return told


def _rate(told: Mapping[str, Any]) -> float | None:
    """Return the steps a second that the environment's arguments say."""
    arguments = told.get("env_args")
    inner = arguments.get("env_kwargs") if isinstance(arguments, Mapping) else None
    rate = inner.get("control_freq") if isinstance(inner, Mapping) else None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None


def _repeats(found: Mapping[str, Any]) -> bool:
    """Return whether next observations are those of the next steps, all of them."""
    names = [name for name in found if name.startswith(OBS)]
    if not names or {name[len(OBS) :] for name in names} != {
        name[len(NEXT_OBS) :] for name in found if name.startswith(NEXT_OBS)
    }:
        return False
    return all(_same(found[name][1:], found[_next_name(name)][:-1]) for name in names)


def _same(left: Any, right: Any) -> bool:
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def _next_name(name: str) -> str:
    return NEXT_OBS + name[len(OBS) :]
