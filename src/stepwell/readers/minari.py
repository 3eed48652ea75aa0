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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.files.local_files import read_regular
from stepwell.formats.options import flag_of
from stepwell.formats.reader import Reader, left_out, store_schema
from stepwell.formats.registry import register_reader
from stepwell.json_text import parse_json
from stepwell.readers.minari_arrow import ArrowEpisodes
from stepwell.readers.minari_hdf5 import Hdf5Episodes
from stepwell.readers.minari_spaces import Leaf, leaves_of
from stepwell.recorders.sources import EpisodeData

__all__ = ["MinariReader"]

METADATA = "metadata.json"
TABLES = ("arrow", "parquet")
ENDS = ("terminations", "truncations")
LEFT_OUT = ("observation_space", "action_space")


@register_reader
class MinariReader(Reader):
    """Episodes of a Minari data set, in the order of their numbers.

    Args:
        source: the data set's directory, the one with ``data`` in it, or ``data`` itself.
        infos: whether what ``infos`` hold comes along; a text address says "true" or "false".
        ignore: names of features to leave out, ``observations.goal``; how episodes end always comes along.

    Raises:
        FormatError: no such data set, a damaged file, or a space that no feature holds.
        MissingDependencyError: h5py or pyarrow is not installed, whichever the files need.

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
        self.metadata = {"minari": {name: value for name, value in told.items() if name not in LEFT_OUT}}

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
