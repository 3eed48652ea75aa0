"""Minari's episodes in Arrow and Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError, MissingDependencyError
from stepwell.files.local_files import read_regular
from stepwell.json_text import parse_json
from stepwell.readers.arrow_columns import leaf_column, leaf_names, naming
from stepwell.readers.arrow_values import feature_of_type, values_of
from stepwell.readers.minari_spaces import FLAGS, Leaf, check_steps, episode_metadata, final_of, warn_of_more
from stepwell.schema import Array, Feature, Schema

__all__ = ["ArrowEpisodes"]


class ArrowEpisodes:
    """The episodes of ``0/part-0.arrow``, ``1/part-0.arrow``, ...

    Args:
        folder: where the folders of the episodes lie.
        told: the data set's metadata.
        leaves: of observation and action space.
        has_infos: whether infos come along.

    Notes:
        Nothing is open between two calls.
    """

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

    def read(self, index: int, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and what is said of it."""
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
