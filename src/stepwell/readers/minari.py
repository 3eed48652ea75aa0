"""Minari: episodes in one HDF5 file, or in an Arrow or Parquet file each.

::

    NAME/data/metadata.json              spaces, total_episodes, data_format, jpeg_encoding, ...
    NAME/data/main_data.hdf5             episode_0/{observations, actions, rewards, terminations, truncations, infos}
    NAME/data/0/part-0.arrow             the same as one table; metadata.json beside it
                                         observations and infos have T + 1 rows, the others T (in a table: T and a row
                                         that is not one)

Dicts are groups, tuples are groups with ``_index_0``, ``_index_1`` (in tables: ``0``, ``1``). Images of 32 x 32 and
more are JPEG files unless ``jpeg_encoding`` is false; older versions do not say: their files show it.

Source: the Minari documentation, "Dataset Standards", and files that Minari 0.5 wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FormatError, MissingDependencyError
from stepwell.files.local_files import read_regular
from stepwell.formats.options import flag_of
from stepwell.formats.reader import Reader, left_out, store_schema, warn_of_left_out
from stepwell.formats.registry import register_reader
from stepwell.json_text import parse_json
from stepwell.readers.arrow import feature_of_type, leaf_column, leaf_names, naming, values_of
from stepwell.readers.hdf5_episodes import Hdf5Reader
from stepwell.readers.hdf5_layouts import PRESETS
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Array, Feature, Image, Schema, Text

__all__ = ["MinariReader"]

FLAGS = {"rewards": "float64", "terminations": "bool", "truncations": "bool"}
"""What every episode has beside its spaces, with the dtype that it has where the file does not say."""

# what has a row after the last action
FINAL = ("observations", "infos")

MAX_DEPTH = 32
FILE = "main_data.hdf5"
METADATA = "metadata.json"
TABLES = ("arrow", "parquet")
ENDS = ("terminations", "truncations")
LEFT_OUT = ("observation_space", "action_space")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A space without others in it."""

    # names from the root on, those of dicts and numbers of tuples: ``("observations", "pair", 0)``
    path: tuple[str | int, ...]
    # of one value; of images plain ones, though Minari stores some as JPEG files
    feature: Feature

    @property
    def name(self) -> str:
        """The feature's name."""
        return ".".join(map(str, self.path))


def leaves_of(space: Any, root: str) -> dict[str, Leaf]:
    """Return the leaves of a space by name."""
    found: dict[str, Leaf] = {}
    _add((root,), space, found)
    return found


def final_of(name: str, feature: Feature) -> Feature:
    """Return a feature as episodes have it: observations and infos with a final row."""
    return feature.with_final() if name.partition(".")[0] in FINAL else feature


def episode_metadata(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an episode, its number as ``minari_episode``."""
    return {"minari_episode" if name == "id" else name: value for name, value in told.items()}


def check_steps(told: Mapping[str, Any], length: int, where: str) -> None:
    """Refuse an episode of other steps than its metadata say."""
    steps = told.get("total_steps", length)
    if steps != length:
        raise FormatError(f"{where} has {length} steps, its metadata say total_steps {steps!r}. Fetch it again.")


def warn_of_more(there: Iterable[str], features: Collection[str], where: str) -> None:
    """Warn of observations and actions that no space describes, and of whatever else no feature is made of."""
    # infos may be left out by an option
    more = [name for name in there if name not in features and not name.startswith("infos")]
    warn_of_left_out(where, more, "the data set's spaces do not describe them")


def _add(path: tuple[str | int, ...], space: Any, found: dict[str, Leaf]) -> None:
    kind = space.get("type") if isinstance(space, Mapping) else None
    inner = space.get("subspaces") if isinstance(space, Mapping) else None
    if len(path) > MAX_DEPTH:
        raise FormatError(f"{'.'.join(map(str, path))}: spaces lie {MAX_DEPTH} deep. Allowed: fewer.")
    if kind == "Dict" and isinstance(inner, Mapping):
        for name, each in inner.items():
            _add((*path, str(name)), each, found)
    elif kind == "Tuple" and isinstance(inner, list):
        for number, each in enumerate(inner):
            _add((*path, number), each, found)
    else:
        leaf = Leaf(path, _feature(".".join(map(str, path)), kind, space))
        found[leaf.name] = leaf


def _feature(name: str, kind: Any, space: Any) -> Feature:
    if kind == "Text":
        return Text()
    if kind == "Discrete":
        return Array((), _dtype(name, space.get("dtype", "int64")))
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        raise FormatError(
            f"{name} is of the space {kind!r}. Read are: Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple."
        )
    shape, dtype = _shape(name, kind, space), _dtype(name, space.get("dtype", "int8" if "Binary" in kind else "int64"))
    return Image(shape) if kind == "Box" and dtype == np.uint8 and _is_image(shape) else Array(shape, dtype)


def _shape(name: str, kind: str, space: Mapping[str, Any]) -> tuple[int, ...]:
    shape = space.get("shape")
    if kind == "MultiBinary" and shape is None:
        shape = space.get("n")
    if kind == "MultiDiscrete" and shape is None:
        shape = list(np.shape(space.get("nvec", ())))
    shape = [shape] if isinstance(shape, int) else shape
    if not isinstance(shape, list) or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in shape):
        raise FormatError(f"{name} has shape {shape!r}. Allowed: a list of sizes.")
    return tuple(shape)


def _dtype(name: str, text: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(text)
    except TypeError as error:
        raise FormatError(f"{name} has dtype {text!r}. Allowed: numpy's names of numbers.") from error
    if found.kind not in "biuf":
        raise FormatError(f"{name} has dtype {text!r}. Allowed: numbers and bool.")
    return found


def _is_image(shape: tuple[int, ...]) -> bool:
    return 0 not in shape and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))


class Hdf5Episodes:
    """The episodes of ``main_data.hdf5``: those of the layout "minari", with features as the spaces say."""

    def __init__(self, folder: Path, told: Mapping[str, Any], leaves: Mapping[str, Leaf], has_infos: bool) -> None:
        path = str(folder / FILE)
        self._reader = Hdf5Reader(path, layout=PRESETS["minari"], ignore=() if has_infos else ("infos*",))
        self._leaves, self._path = dict(leaves), path
        # names in the file by those of the features
        self._names = {_dotted(name): name for name in self._reader.schema}
        if len(self._reader) != told["total_episodes"]:
            raise FormatError(f"{path} has {len(self._reader)} episodes, metadata.json says {told['total_episodes']}.")

    def __len__(self) -> int:
        return len(self._reader)

    def features(self) -> dict[str, Feature]:
        """Return the features of the store to be; those of infos as the first episode has them."""
        stored = {name: self._reader.schema[inner].with_final(False) for name, inner in self._names.items()}
        lost = [name for name in (*self._leaves, *FLAGS) if name not in stored]
        if lost:
            raise FormatError(f"{self._reader.label(0)} has no {', '.join(lost)}. It has: {', '.join(stored)}.")
        found = {name: final_of(name, _as_stored(leaf.feature, stored[name])) for name, leaf in self._leaves.items()}
        found |= {name: stored[name] for name in FLAGS}
        found |= {name: final_of(name, each) for name, each in stored.items() if name.partition(".")[0] == "infos"}
        warn_of_more(stored, found, self._reader.label(0))
        return found

    def keep(self, schema: Mapping[str, Feature]) -> dict[str, Feature]:
        """Read these features alone; return them as they are when images stay in the file."""
        self._reader.keep({self._names[name]: feature for name, feature in schema.items()})
        staying = self._reader.in_place_schema
        return {name: staying[self._names[name]] for name in schema}

    def read(self, index: int, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and its metadata."""
        columns = self._reader[index].columns
        told = episode_metadata(self._reader.attributes(index))
        return {name: columns[self._names[name]] for name in schema}, told


def _as_stored(feature: Feature, stored: Feature) -> Feature:
    """Return the feature of a leaf, as it is stored: environments do not always keep to their spaces' dtypes."""
    if feature.kind == "image" and not stored.is_raw:
        return replace(feature, codec=stored.codec if stored.kind == "image" else "jpeg")
    if feature.kind == "text" or stored.np_dtype == feature.np_dtype:
        return feature
    return Array(feature.fixed_shape, stored.np_dtype)


def _dotted(name: str) -> str:
    """Return the name of the feature of a dataset."""
    return ".".join(part.removeprefix("_index_") for part in name.split("."))


class ArrowEpisodes:
    """The episodes of ``0/part-0.arrow``, ``1/part-0.arrow``, ..."""

    def __init__(self, folder: Path, told: Mapping[str, Any], leaves: Mapping[str, Leaf], has_infos: bool) -> None:
        self._leaves, self._has_infos = dict(leaves), has_infos
        self._suffix = told["data_format"]
        found = sorted(
            (place for place in folder.iterdir() if place.name.isdecimal()), key=lambda place: int(place.name)
        )
        self._folders = [str(place) for place in found]
        if len(found) != told["total_episodes"]:
            raise FormatError(f"{folder} has {len(found)} episodes, metadata.json says {told['total_episodes']}.")

    def __len__(self) -> int:
        return len(self._folders)

    def features(self) -> dict[str, Feature]:
        """Return the features of the store to be; those of infos as the first episode has them."""
        table = self._table(0)
        found = {name: final_of(name, self._feature(table, name)) for name in self._leaves}
        found |= {name: Array((), dtype) for name, dtype in FLAGS.items()}
        if self._has_infos and "infos" in table.column_names:
            for name in leaf_names("infos", table.schema.field("infos").type):
                where = f"{self._folders[0]}, {name}"
                found[name] = final_of(name, feature_of_type(leaf_column(table, name, where).type, where))
        there = [leaf for field in table.schema for leaf in leaf_names(field.name, field.type)]
        warn_of_more(there, found, self._folders[0])
        return found

    def _feature(self, table: Any, name: str) -> Feature:
        import pyarrow

        feature = self._leaves[name].feature
        is_file = feature.kind == "image" and pyarrow.types.is_binary(leaf_column(table, name, self._folders[0]).type)
        return replace(feature, codec="jpeg") if is_file else feature

    def keep(self, schema: Mapping[str, Feature]) -> Mapping[str, Feature]:
        """Return the features as they are: of tables nothing stays in its file."""
        return schema

    def read(self, index: int, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and its metadata."""
        table, folder = self._table(index), self._folders[index]
        columns = {}
        for name, feature in schema.items():
            count = table.num_rows if feature.final else table.num_rows - 1
            with naming(f"{folder}, {name}"):
                column = leaf_column(table, name, folder)
                columns[name] = values_of(column.slice(0, count), feature.with_final(False), f"{folder}, {name}")
        told = _told(Path(folder, "metadata.json"))
        check_steps(told, table.num_rows - 1, folder)
        return columns, told

    def _table(self, index: int) -> Any:
        try:
            import pyarrow
            import pyarrow.dataset
        except ImportError as error:
            raise MissingDependencyError.of("pyarrow", "arrow") from error
        folder = self._folders[index]
        paths = sorted(str(path) for path in Path(folder).glob(f"*.{self._suffix}"))
        if not paths:
            raise FormatError(f"{folder} has no .{self._suffix} file.")
        with naming(folder):
            table = pyarrow.dataset.dataset(paths, format=self._suffix).to_table(use_threads=False)
            # offsets of a damaged file may lead anywhere
            table.validate(full=True)
        if table.num_rows < 2:
            raise FormatError(f"{folder} has {table.num_rows} rows. An episode of T steps has T + 1, T at least 1.")
        return table.combine_chunks()


def _told(path: Path) -> dict[str, Any]:
    try:
        told = parse_json(read_regular(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: {error}") from error
    if not isinstance(told, dict):
        raise FormatError(f"{path} holds {type(told).__name__}. It should be an object.")
    return episode_metadata(told)


@register_reader
class MinariReader(Reader):
    """Episodes of a Minari data set, in the order of their numbers.

    Notes:
        As for `Reader`. Features are ``observations``, ``observations.NAME`` of dicts, ``observations.0`` of tuples,
        likewise ``actions`` and ``infos``; ``rewards``, ``terminations``, ``truncations``. Observations and infos have
        a final row, the one after the last action. JPEG files stay as they are.
    """

    name = "minari"

    def __init__(self, source: str, *, infos: bool | str = True, ignore: Sequence[str] | str = ()) -> None:
        super().__init__(source)
        folder = _folder(source)
        told = _metadata(folder)
        has_infos = flag_of("infos", infos)
        leaves = _leaves(told, folder)
        kind = Hdf5Episodes if told.get("data_format", "hdf5") == "hdf5" else ArrowEpisodes
        self._episodes: Hdf5Episodes | ArrowEpisodes = kind(folder, told, leaves, has_infos)
        features = self._episodes.features()
        ignored = left_out(ignore, [name for name in features if name not in ENDS], source)
        self.schema = store_schema({name: each for name, each in features.items() if name not in ignored}, source)
        self._in_place = Schema(self._episodes.keep(self.schema))
        self.metadata = {"minari": {name: value for name, value in told.items() if name not in LEFT_OUT}}

    @property
    def in_place_schema(self) -> Schema:
        """The features, with images left in an HDF5 file where they lie there plainly; see `Reader.in_place_schema`."""
        return self._in_place

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a directory with Minari's files; see `Reader.accepts`."""
        if "://" in source:
            return False
        for folder in (Path(source, "data"), Path(source)):
            try:
                raw = read_regular(folder / METADATA)
            except (OSError, ValueError):
                continue
            return b'"total_episodes"' in raw and b'"observation_space"' in raw
        return False

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> EpisodeData:
        columns, told = self._episodes.read(index, self.schema)
        return EpisodeData(
            columns, terminated=_last(columns[ENDS[0]]), truncated=_last(columns[ENDS[1]]), metadata=told
        )


def _folder(source: str) -> Path:
    for folder in (Path(source, "data"), Path(source)):
        if (folder / METADATA).is_file():
            return folder
    raise FormatError(f"{source} is no Minari data set: there is no data/{METADATA}. Give the directory of a version.")


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / METADATA
    try:
        told: Any = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: {error}. It should be a JSON object.") from error
    count = told.get("total_episodes") if isinstance(told, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise FormatError(f"{path}: total_episodes is {count!r}. A Minari data set has at least one.")
    data_format = told.get("data_format", "hdf5")
    if data_format not in ("hdf5", *TABLES):
        raise FormatError(f"{path}: data_format is {data_format!r}. Read are: hdf5, {', '.join(TABLES)}.")
    found: dict[str, Any] = told
    return found


def _leaves(told: Mapping[str, Any], folder: Path) -> dict[str, Leaf]:
    found: dict[str, Leaf] = {}
    for key, root in (("observation_space", "observations"), ("action_space", "actions")):
        text = told.get(key)
        try:
            space = parse_json(text) if isinstance(text, str) else None
            found |= leaves_of(space, root)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{folder / METADATA}: {key}: {error}") from error
    return found


def _last(flags: Any) -> bool:
    return bool(len(flags)) and bool(flags[-1])
