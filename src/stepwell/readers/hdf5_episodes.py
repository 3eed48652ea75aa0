"""Episodes of HDF5 files by a declared layout.

::

    files, in natural order ──> parts: an episode each      the file, a group, or datasets of one number
                                   |
    the first one ──> features: T rows, T + 1 rows (final), rows that are JPEG files; one value is metadata
                                   |
    [index] ──> rows: arrays, EncodedRows, FileSpans of what lies plain; JSON and videos beside
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_files import VideoFile
from stepwell.errors import DecodeError, FormatError, MissingDependencyError
from stepwell.formats.images import check_image, image_feature, image_head
from stepwell.formats.options import names_of, renames_of
from stepwell.formats.reader import Reader, left_out, store_schema, warn_of_left_out, with_told_finals
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import natural
from stepwell.readers.hdf5 import (
    Hdf5Files,
    can_stay,
    datasets_of,
    feature_of,
    file_rows,
    holds_files,
    is_hdf5,
    lies_plain,
    plain_rows,
    read_attributes,
    read_rows,
    read_varying,
    row_offsets,
    rows_in_file,
    spans_of,
    value_of,
)
from stepwell.readers.hdf5_layouts import PRESETS, Hdf5Layout, fitting_layouts, looked_for
from stepwell.readers.hdf5_places import (
    aliased,
    entries_of,
    entry_of,
    files_beside,
    first_file,
    hdf5_paths,
    parsed_object,
    short_values,
    shown_name,
)
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import span_feature
from stepwell.schema import Feature, Schema
from stepwell.store.values import EncodedRows

__all__ = ["MINARI", "Hdf5Episode", "Hdf5Reader"]

MODES = ("auto", "keep", "ignore")
VIDEOS = "videos."
ACTIONS = ("action", "actions")
# names in metadata that say how many steps an episode has
COUNTS = ("num_samples", "total_steps", "elapsed_steps", "trajectory_length")
# of an episode's observations of one name, up to which all are compared with the next ones
COMPARED_BYTES = 1 << 20
MINARI = "main_data.hdf5"
MOST_TOLD = 12

Found = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hdf5Episode:
    """An episode: the number of its file, its name, the group it lies in, its steps, and the masks that name it."""

    file: int
    name: str
    group: str
    length: int
    masks: tuple[str, ...] = ()


@register_reader
class Hdf5Reader(Reader):
    """Episodes of HDF5 files by a declared layout, in natural order of their files and numbers.

    Args:
        source: a file, or a directory with files in it or further down.
        layout: a `Hdf5Layout`, or the name of a preset: aloha, act, maniskill, droid, d3rlpy, robomimic, minari. None:
            the preset that the first file fits, or what ``episodes`` and ``steps`` say.
        episodes: instead of the layout's: "file", ``"traj_#"``, ``"*_#"``.
        steps: instead of the layout's.
        next_obs: what becomes of the second group of ``next``: "auto" (default): where it repeats the first one step
            later, its last row is the final row of the first, else both are kept; "keep"; "ignore".
        ignore: names or patterns of features to leave out.
        rename: other names for features.

    Raises:
        FormatError: a file that does not have what the layout looks for, which says what it has.

    Notes:
        As for `Reader`. Features are named by paths with dots, ``observations.images.top``, and videos
        ``videos.NAME``. Rows that lie plain in the file stay there when it is opened in place, image files as well.
    """

    name: ClassVar[str] = "hdf5"
    what: ClassVar[str] = "episode"
    key: ClassVar[str] = "episode"

    def __init__(
        self,
        source: str,
        *,
        layout: Hdf5Layout | str | None = None,
        episodes: str | None = None,
        steps: str | None = None,
        next_obs: str = "auto",
        ignore: Sequence[str] | str = (),
        rename: Mapping[str, str] | str | None = None,
    ) -> None:
        super().__init__(source)
        if next_obs not in MODES:
            raise FormatError(f"next_obs={next_obs!r}. Allowed: {', '.join(MODES)}.")
        self._next_mode = next_obs
        self._files = Hdf5Files(self._paths(source))
        given: dict[str, Any] = {
            name: value for name, value in (("episodes", episodes), ("steps", steps)) if value is not None
        }
        self.layout = self._chosen(layout, given)
        self._beside: dict[int, dict[str, Any]] = {}
        self._grouped: tuple[Found, dict[str, dict[str, Any]]] | None = None
        self._parts = [part for number in range(len(self._files.paths)) for part in self._found(number)]
        if not self._parts:
            raise FormatError(f"{source} has no {self.what}s: no {self.layout.episodes}.")
        self.fps = self.layout.fps
        self.metadata = {self.name: self._told()}
        self._set_schema(ignore, renames_of(rename))

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an HDF5 file of a known layout, or a directory of them; see `Reader.accepts`."""
        first = first_file(source)
        if first is None or not is_hdf5(first) or (Path(first).name == MINARI and Path(source).is_dir()):
            return False
        try:
            return any(layout.name != "robomimic" for layout in _fitting(first))
        except (FormatError, MissingDependencyError):
            return False

    @classmethod
    def advice(cls, source: str) -> str:
        """Say what was looked for in an HDF5 file; see `Reader.advice`."""
        first = first_file(source)
        if first is None or not is_hdf5(first):
            return ""
        files = Hdf5Files([first])
        try:
            return f"{first} is an HDF5 file with {_content(files.open(0))}. {_advice()}"
        except MissingDependencyError:
            return ""
        finally:
            files.close()

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the HDF5 files, and what may lie beside; see `Reader.files`."""
        found = list(super().files(source, **options))
        for path in map(Path, () if Path(source).is_dir() else source.split("\n")):
            for layout in PRESETS.values():
                for pattern in filter(None, (layout.json, layout.videos)):
                    found += [str(each) for each in files_beside(path, pattern)]
        return list(dict.fromkeys(found))

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> EpisodeData:
        part = self._parts[index]
        with self._files.naming(part.file, part.name):
            found = self._datasets(part)
            columns = {
                shown: self._column(part, found, name, self.schema[shown]) for name, shown in self._names.items()
            }
            self._warn_of_more(part, found)
            terminated, truncated = self._ends(part, found)
            told = self._told_of(part, found)
        for name in COUNTS:
            if name in told and told[name] != part.length:
                raise FormatError(
                    f"{self.label(index)} has {part.length} steps, in its metadata {name} says {told[name]}. It is "
                    "cut off, or one of them is of another file."
                )
        return EpisodeData(columns, terminated=terminated, truncated=truncated, metadata=told)

    def keep(self, features: Mapping[str, Feature]) -> None:
        """Read some features alone, as these features, of the shapes and dtypes that the file has."""
        self._names = {name: name for name in features}
        self.schema = store_schema(features, self.source)
        self._stays &= features.keys()

    def attributes(self, index: int) -> dict[str, Any]:
        """Return all attributes of an episode's group."""
        part = self._parts[index]
        return read_attributes(self._files.paths[part.file], part.group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_grouped": None}

    @property
    def in_place_schema(self) -> Schema:
        """The features, with what lies plainly in the files left there; see `Reader.in_place_schema`."""
        paths = self._files.paths
        staying = {self._names[name] for name in self._stays}
        return Schema({**self.schema, **{name: span_feature(self.schema[name], paths) for name in staying}})

    def label(self, index: int) -> str:
        """Return file and name of an episode; see `Reader.label`."""
        return self._label(self._parts[index])

    @classmethod
    def _paths(cls, source: str) -> Sequence[str]:
        return hdf5_paths(source, natural)

    def _chosen(self, layout: Hdf5Layout | str | None, given: Mapping[str, Any]) -> Hdf5Layout:
        """Return the layout that was given, or the preset that the first file fits."""
        if isinstance(layout, str):
            if layout not in PRESETS:
                raise FormatError(f"layout={layout!r}. Allowed: {', '.join(PRESETS)}, or a value of Hdf5Layout.")
            layout = PRESETS[layout]
        if given.get("episodes") == "file":
            given = {**given, "episodes": ""}
        if layout is None and "episodes" in given:
            layout = Hdf5Layout()
        if layout is not None:
            return replace(layout, **given)
        path = self._files.paths[0]
        with self._files.naming(0, "its groups"):
            file = self._files.open(0)
            fitting = fitting_layouts(path, file)
            if not fitting:
                raise FormatError(f"{path} is of no layout that is known: it has {_content(file)}. {_advice()}")
        return replace(fitting[0], **given)

    def _found(self, number: int) -> list[Hdf5Episode]:
        """Return the episodes of a file."""
        path, layout = self._files.paths[number], self.layout
        with self._files.naming(number, layout.parent or "its groups"):
            file = self._files.open(number)
            lacks = layout.lacks(path, file)
            if lacks:
                raise self._other_layout(path, file, lacks)
            if not layout.episodes:
                return [Hdf5Episode(number, shown_name(path, self.source), "/", self._length(datasets_of(file), path))]
            group = file[layout.parent or "/"]
            numbers = self._numbers(group)
            masks = self._masks(file)
            lost = {member for members in masks.values() for member in members} - set(numbers)
            warn_of_left_out(f"{path}, {layout.masks}", sorted(lost), f"there are no {self.what}s of these names")
            self._warn_of_listed(number, numbers)
            return [
                self._part(number, group, name, tuple(mask for mask, members in masks.items() if name in members))
                for name in numbers
            ]

    def _warn_of_listed(self, number: int, names: Sequence[str]) -> None:
        """Warn of episodes that the JSON beside a file lists, and the file does not have."""
        listed = {str(entry.get("episode_id")) for entry in entries_of(self._json(number))}
        lost = sorted(listed - {name.rpartition("_")[2] for name in names}, key=natural)
        reason = "the JSON beside lists these episodes, and the file does not have them"
        warn_of_left_out(self._files.paths[number], lost, reason)

    def _masks(self, file: Any) -> dict[str, set[str]]:
        """Return the names of episodes in each mask of a file."""
        group = file.get(self.layout.masks) if self.layout.masks else None
        return {} if group is None else {name: _texts(group[name]) for name in sorted(group)}

    def _numbers(self, group: Any) -> list[str]:
        """Return the names of episodes in the order of their numbers."""
        fits = self.layout.pattern().fullmatch
        found = {name: match for name in group if (match := fits(name)) is not None}
        if self.layout.are_datasets:
            return sorted({match["number"] for match in found.values()}, key=int)
        others = [name for name in group if name not in found] if self.layout.parent else []
        shown = self.layout.episodes.rpartition("/")[2].replace("#", "0")
        warn_of_left_out(
            f"{group.file.filename}, {self.layout.parent}", others, f"they are not called as {self.what}s are, {shown}"
        )
        return sorted(found, key=lambda name: int(found[name]["number"]))

    def _part(self, number: int, group: Any, name: str, masks: tuple[str, ...]) -> Hdf5Episode:
        place = group.name if self.layout.are_datasets else group[name].name
        made, steps = Hdf5Episode(number, name, place, 0, masks), self.layout.steps
        # where it is known which dataset counts, not all of them are looked at
        known = None if self.layout.are_datasets or not steps else group[name].get(steps)
        found = self._datasets(made) if known is None else {steps.replace("/", "."): known}
        return replace(made, length=self._length(found, f"{group.file.filename}, {name}"))

    def _datasets(self, part: Hdf5Episode) -> dict[str, Any]:
        """Return an episode's datasets by dotted names, with names of roles instead of serial numbers."""
        if self.layout.are_datasets:
            return self._numbered(part)
        found = datasets_of(self._files.open(part.file)[part.group])
        roles = self._roles(part)
        return {aliased(name, roles): each for name, each in found.items()} if roles else found

    def _numbered(self, part: Hdf5Episode) -> dict[str, Any]:
        """Return the datasets of an episode's number; those of a file are grouped once, as long as it is open."""
        held = self._files.datasets(part.file)
        if self._grouped is None or self._grouped[0] is not held:
            fits, found = self.layout.pattern().fullmatch, {}  # type: ignore[var-annotated]
            for name, dataset in held.items():
                match = fits(name)
                if match is not None:
                    shown = match["name"] if match["part"] is None else f"{match['name']}.{match['part']}"
                    found.setdefault(match["number"], {})[shown] = dataset
            self._grouped = held, found
        return self._grouped[1].get(part.name, {})

    def _length(self, found: Found, where: str) -> int:
        """Return the steps of an episode."""
        name = self.layout.steps.replace("/", ".") or _actions(found)
        if name:
            if name not in found or not found[name].shape:
                raise FormatError(f"{where} has no {name}, by which its steps are counted. It has: {_shapes(found)}.")
            length = int(found[name].shape[0])
        else:
            length = _usual_length(found, where)
        if length < 1:
            raise FormatError(f"{where} has no steps.")
        return length

    def _other_layout(self, path: str, file: Any, lacks: Sequence[str]) -> FormatError:
        """Return the error for a file that is not of this layout, which says what it has and looks like."""
        others = [layout.name for layout in fitting_layouts(path, file)]
        guess = f"It looks like {' or '.join(others)}: hdf5://{path}?layout={others[0]}." if others else _advice()
        missing = ", no ".join(lacks)
        return FormatError(
            f"{path} is no file of {self.layout.name}: there is no {missing}. It has {_content(file)}. {guess}"
        )

    def _set_schema(self, ignore: Sequence[str] | str, renames: Mapping[str, str]) -> None:
        """Find the features, by the first episode."""
        part = self._parts[0]
        with self._files.naming(part.file, part.name):
            found = {**self._datasets(part), **self._videos(part)}
            self._seen = set(found)
            mode = self._next_mode
            if mode == "auto":
                mode = "final" if self.layout.next and _repeats(found, self.layout.next) else "keep"
            self._next_mode = mode
            ignored = self._ignored(found, ignore)
            told = {
                name: self._feature(part, name, each)
                for name, each in found.items()
                if name not in ignored and not (mode != "keep" and self._is_next(name))
            }
        features = with_told_finals({name: feature for name, feature in told.items() if feature is not None})
        lost = [name for name in renames if name not in features]
        if lost:
            raise FormatError(f"rename: {self.source} has no {', '.join(lost)}. It has: {', '.join(features)}.")
        self._names = {name: renames.get(name, name) for name in features}
        if len(set(self._names.values())) < len(features):
            raise FormatError(f"rename={dict(renames)}: two features would have one name.")
        self.schema = store_schema({self._names[name]: each for name, each in features.items()}, self.source)
        self._stays = self._staying(features)

    def _ignored(self, found: Found, ignore: Sequence[str] | str) -> set[str]:
        """Return the names that options and layout leave out, by name or pattern."""
        given = names_of(ignore)
        patterns = [each for each in given if any(sign in each for sign in "*?[")]
        ignored = set(left_out([each for each in given if each not in patterns], found, self.label(0)))
        ignored |= {name for name in found for each in (*patterns, *self.layout.ignore) if fnmatchcase(name, each)}
        lengths = self.layout.lengths.replace("/", ".")
        self._has_lengths = bool(lengths) and lengths not in ignored
        return ignored | {lengths}

    def _feature(self, part: Hdf5Episode, name: str, dataset: Any) -> Feature | None:
        """Return the feature of a dataset; None for one value."""
        if isinstance(dataset, Path):
            return _video(dataset).feature
        if not dataset.shape:
            return None
        if holds_files(dataset):
            feature = image_feature([_head(file_rows(dataset, 0, 1)[0], f"{self.label(0)}: {name}")], name)
        else:
            feature = feature_of(dataset)
        has_next = self._next_mode == "final" and self._is_before(name)
        return feature.with_final() if has_next or dataset.shape[0] == part.length + 1 else feature

    def _is_before(self, name: str) -> bool:
        return bool(self.layout.next) and name.startswith(f"{self.layout.next[0]}.")

    def _is_next(self, name: str) -> bool:
        return bool(self.layout.next) and name.startswith(f"{self.layout.next[1]}.")

    def _staying(self, features: Mapping[str, Feature]) -> set[str]:
        """Return the features that can be left in the files, in all episodes; each file is opened once."""
        left = {name for name, each in features.items() if each.codec != "video" and each.kind in ("image", "array")}
        for part in self._parts:
            if not left:
                break
            with self._files.naming(part.file, part.name):
                found = self._datasets(part)
                left = {name for name in left if self._lies_there(part, found, name, features[name])}
        return left

    def _lies_there(self, part: Hdf5Episode, found: Found, name: str, feature: Feature) -> bool:
        path = self._files.paths[part.file]
        parts = [found.get(each) for each in self._sources(part, found, name, feature)]
        if not feature.is_raw:
            return all(each is not None and len(each.shape) == 2 and lies_plain(each, path) for each in parts)
        plain = feature.with_final(False)
        return all(each is not None and can_stay(each, plain, path) for each in parts)

    def _sources(self, part: Hdf5Episode, found: Found, name: str, feature: Feature) -> dict[str, tuple[int, int]]:
        """Return the datasets of a column, with the rows of each: its own, and the next one's last row."""
        if not (feature.final and self._next_mode == "final" and self._is_before(name)):
            return {name: (0, part.length + feature.final)}
        return {name: (0, part.length), _next_name(name, self.layout.next): (part.length - 1, part.length)}

    def _column(self, part: Hdf5Episode, found: Found, name: str, feature: Feature) -> Any:
        if feature.codec == "video":
            return self._video_rows(part, name)
        plain, sources = feature.with_final(False), self._sources(part, found, name, feature)
        parts = [(self._dataset(part, found, each), start, stop) for each, (start, stop) in sources.items()]
        first, _, stop = parts[0]
        if first.shape[:1] != (stop,):
            raise FormatError(
                f"{self._label(part)}: {name} has {first.shape} where there are {part.length} "
                f'{"actions" if self.layout.steps == "actions" else "steps"}. Leave it out: ignore="{name}".'
            )
        if len(parts) > 1:
            self._check_repeats(part, first, parts[1][0], name)
        if not plain.is_raw and plain.kind == "image":
            return self._image_files(part, found, name, parts, plain)
        if name in self._stays:
            return rows_in_file(parts, plain, self._files.paths, part.file)
        rows = [read_rows(dataset, plain, start, stop) for dataset, start, stop in parts]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _image_files(
        self, part: Hdf5Episode, found: Found, name: str, parts: Sequence[tuple[Any, int, int]], feature: Feature
    ) -> Any:
        """Return rows that are image files, checked one by one."""
        blobs = [blob for dataset, start, stop in parts for blob in file_rows(dataset, start, stop)]
        for row, blob in enumerate(blobs):
            try:
                check_image(np.frombuffer(blob, np.uint8), feature)
            except DecodeError as error:
                raise FormatError(f"{self._label(part)}, row {row} of {name}: {error}") from error
        sizes = np.array([len(blob) for blob in blobs], np.int64)
        self._check_lengths(part, found, name, sizes)
        if name not in self._stays:
            return EncodedRows(blobs)
        offsets = np.concatenate([row_offsets(dataset)[start:stop] for dataset, start, stop in parts])
        return spans_of(offsets, sizes, feature, self._files.paths, part.file, where=self._label(part))

    def _check_lengths(self, part: Hdf5Episode, found: Found, name: str, sizes: npt.NDArray[np.int64]) -> None:
        """Refuse image files that end where no row of the lengths says; which row is of which camera is not told."""
        lengths = self.layout.lengths.replace("/", ".")
        table = found.get(lengths) if self._has_lengths else None
        if table is None or len(table.shape) != 2:
            return
        told = np.asarray(read_rows(table, feature_of(table), 0, table.shape[0]))
        if told.shape[1] < len(sizes) or not (told[:, : len(sizes)] == sizes).all(1).any():
            raise FormatError(
                f"{self._label(part)}: the image files of {name} end elsewhere than {lengths} says: it is damaged, "
                f'or {lengths} is of another one. To take them as they are, ignore="{lengths}".'
            )

    def _check_repeats(self, part: Hdf5Episode, before: Any, after: Any, name: str) -> None:
        """Refuse an episode whose next observations are not the observations of the next steps."""
        # of images the ends tell it, where comparing all would read them twice
        ends = [(1, 2), (part.length - 1, part.length)] if part.length > 1 else []
        parts = [(1, part.length)] if before.nbytes < COMPARED_BYTES else ends
        if any(not _is_shifted(before, after, start, stop) for start, stop in parts):
            raise FormatError(
                f"{self._label(part)}: {self.layout.next[1]} does not repeat {name} one step later, as it does "
                f'in the first {self.what}. Keep both: next_obs="keep".'
            )

    def _warn_of_more(self, part: Hdf5Episode, found: Found) -> None:
        """Warn once of data that the first episode lacks."""
        more = [name for name in found if name not in self._seen]
        self._seen.update(more)
        where = f"{self._files.paths[part.file]}, {part.name}"
        warn_of_left_out(where, more, f"the first {self.what} does not have them")

    def _dataset(self, part: Hdf5Episode, found: Found, name: str) -> Any:
        if name not in found:
            raise FormatError(f"{self._files.paths[part.file]}, {part.name} has no {name}, which the first one has.")
        return found[name]

    def _label(self, part: Hdf5Episode) -> str:
        path = self._files.paths[part.file]
        name = f"episode {part.name}" if self.layout.are_datasets else part.name
        return f"{name} of {path}" if self.layout.episodes else path

    def _ends(self, part: Hdf5Episode, found: Found) -> tuple[bool, bool]:
        """Return whether an episode terminated, and whether it was truncated."""
        layout = self.layout
        is_done = _flag(found.get(layout.terminated), part.length)
        is_cut = _flag(found.get(layout.truncated), part.length)
        return bool(is_done), bool(is_cut) or (layout.is_cut and is_done is False)

    def _told(self) -> dict[str, Any]:
        """Return the metadata of the store: the layout, what the first file says of all its episodes."""
        told: dict[str, Any] = {"layout": self.layout.name}
        if self.layout.episodes:
            for group in dict.fromkeys(("/", f"/{self.layout.parent}")):
                with self._files.naming(0, "attributes"):
                    told |= short_values(read_attributes(self._files.paths[0], group), parse=True)
            beside = self._json(0)
            told |= short_values({name: value for name, value in beside.items() if name != "episodes"})
        return told

    def _told_of(self, part: Hdf5Episode, found: Found) -> dict[str, Any]:
        """Return the metadata of an episode."""
        layout, path = self.layout, self._files.paths[part.file]
        told: dict[str, Any] = {self.key: part.name}
        if layout.masks:
            told["masks"] = list(part.masks)
        told |= {name: value_of(each) for name, each in found.items() if not each.shape and name != layout.terminated}
        if not layout.are_datasets:
            told |= short_values(read_attributes(path, part.group))
        if layout.episodes and len(self._files.paths) > 1:
            told["file"] = Path(path).name
        beside = self._json(part.file)
        told |= short_values(beside if not layout.episodes else entry_of(beside, part.name))
        return {name: value for name, value in told.items() if name not in ("terminated", "truncated", "final")}

    def _json(self, number: int) -> dict[str, Any]:
        """Return what the JSON file beside a file holds."""
        if not self.layout.json:
            return {}
        if number not in self._beside:
            paths = files_beside(Path(self._files.paths[number]), self.layout.json)
            self._beside[number] = parsed_object(paths[0]) if paths else {}
        return self._beside[number]

    def _roles(self, part: Hdf5Episode) -> dict[str, str]:
        """Return the names of roles by the serial numbers that the JSON beside gives them."""
        before, _, after = self.layout.aliases.partition("*")
        return {
            str(value): name.removeprefix(before).removesuffix(after)
            for name, value in self._json(part.file).items()
            if self.layout.aliases and fnmatchcase(name, self.layout.aliases) and isinstance(value, str | int) and value
        }

    def _videos(self, part: Hdf5Episode) -> dict[str, Path]:
        """Return the videos beside an episode's file by the names of their features."""
        if not self.layout.videos:
            return {}
        roles = self._roles(part)
        paths = files_beside(Path(self._files.paths[part.file]), self.layout.videos)
        return {f"{VIDEOS}{aliased(path.stem, roles)}": path for path in paths}

    def _video_rows(self, part: Hdf5Episode, name: str) -> VideoFile:
        videos = self._videos(part)
        if name not in videos:
            raise FormatError(f"{self._label(part)} has no video {name}, which the first one has.")
        found = _video(videos[name])
        if found.num_rows < part.length:
            raise FormatError(
                f"{videos[name]} has {found.num_rows} frames where there are {part.length} steps: it is cut off. Leave "
                f'it out: ignore="{name}".'
            )
        # a camera goes on for a moment after the last step
        is_longer = found.num_rows > part.length
        return _video(videos[name], found.frames["seconds"][: part.length]) if is_longer else found


def _fitting(path: str) -> list[Hdf5Layout]:
    files = Hdf5Files([path])
    try:
        with files.naming(0, "its groups"):
            return fitting_layouts(path, files.open(0))
    finally:
        files.close()


def _advice() -> str:
    """Return what messages say where a file is of no layout that is known."""
    return (
        f"Looked for were {looked_for(PRESETS.values())}. Say yours: hdf5://PATH?episodes=file&steps=NAME (or "
        "episodes=traj_# for groups), or layout=Hdf5Layout(...) in Python."
    )


def _content(file: Any) -> str:
    """Return what messages say of what lies at the top of a file, a level deep."""
    names = []
    for name in islice(file, MOST_TOLD):
        inner = list(islice(file[name], MOST_TOLD)) if hasattr(file[name], "keys") else []
        names.append(f"{name}/{{{', '.join(inner)}}}" if inner else name)
    return f"{', '.join(names) or 'nothing'}{', ...' if len(file) > MOST_TOLD else ''}"


def _shapes(found: Found) -> str:
    return ", ".join(f"{name} {each.shape}" for name, each in islice(found.items(), MOST_TOLD)) or "nothing"


def _actions(found: Found) -> str:
    """Return the dataset of actions that counts the steps; "" where there is none."""
    ends = ((name, {name.split(".")[0], name.split(".")[-1]}) for name, each in found.items() if each.shape)
    return next((name for name, parts in ends if not parts.isdisjoint(ACTIONS)), "")


def _usual_length(found: Found, where: str) -> int:
    """Return the length that most datasets have, or the one less where some have that."""
    counts = Counter(int(each.shape[0]) for each in found.values() if each.shape)
    if not counts:
        raise FormatError(f"{where} has no rows. It has: {_shapes(found)}.")
    length, most = max(counts.items(), key=lambda item: (item[1], -item[0]))
    if most == 1 and len(counts) > 1 and length - 1 not in counts and length + 1 not in counts:
        raise FormatError(f"{where}: which dataset has a row a step? It has: {_shapes(found)}. Say steps=NAME.")
    return length - 1 if length - 1 in counts and length > 1 else length


def _video(path: Path, timestamps: Any = None) -> VideoFile:
    try:
        return VideoFile(path, timestamps=timestamps)
    except (DecodeError, OSError) as error:
        raise FormatError(f"{path}: {error}") from error


def _head(blob: bytes, where: str) -> Any:
    try:
        return image_head(np.frombuffer(blob, np.uint8))
    except DecodeError as error:
        raise FormatError(f"{where}: {error}") from error


def _flag(dataset: Any, length: int) -> bool | None:
    """Return whether a flag is set in the last step; None where there is none."""
    if dataset is None:
        return None
    return bool(np.any(plain_rows(dataset, length - 1, length) if dataset.shape else dataset[()]))


def _texts(dataset: Any) -> set[str]:
    values = read_varying(dataset.file.filename, dataset.name, 0, len(dataset)) if dataset.shape else []
    return {value.rstrip(b"\0").decode("utf-8") for value in values}


def _repeats(found: Found, names: Sequence[str]) -> bool:
    """Return whether next observations are those of the next steps, all of them."""
    before, after = (f"{name}." for name in names)
    inner = [name[len(before) :] for name in found if name.startswith(before)]
    if not inner or set(inner) != {name[len(after) :] for name in found if name.startswith(after)}:
        return False
    pairs = [(found[before + name], found[after + name]) for name in inner]
    return all(one.shape == two.shape != () and _is_shifted(one, two, 1, one.shape[0]) for one, two in pairs)


def _is_shifted(before: Any, after: Any, start: int, stop: int) -> bool:
    """Return whether rows of the first are those of the second one step earlier."""
    if before.dtype != after.dtype:
        return False
    parts = (before, start, stop), (after, start - 1, stop - 1)
    if before.dtype.kind == "O":
        left, right = (read_varying(each.file.filename, each.name, begin, end) for each, begin, end in parts)
        return left == right
    rows, others = (plain_rows(*part) for part in parts)
    return np.array_equal(rows, others, equal_nan=rows.dtype.kind == "f")


def _next_name(name: str, names: Sequence[str]) -> str:
    return names[1] + name[len(names[0]) :]
