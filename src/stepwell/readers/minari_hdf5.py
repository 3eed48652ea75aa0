"""Minari's episodes in one HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.readers.hdf5_files import Hdf5Files, datasets_of, feature_of, read_rows
from stepwell.readers.hdf5_varying import read_attributes, read_varying
from stepwell.readers.minari_spaces import FLAGS, Leaf, check_steps, episode_metadata, final_of, warn_of_more
from stepwell.schema import Array, Feature, Schema
from stepwell.store.values import EncodedRows

__all__ = ["Hdf5Episodes"]

FILE = "main_data.hdf5"


class Hdf5Episodes:
    """The episodes of ``main_data.hdf5``.

    Args:
        folder: where it lies.
        told: the data set's metadata.
        leaves: of observation and action space.
        has_infos: whether infos come along.

    Notes:
        As for `Hdf5Files`.
    """

    def __init__(self, folder: Path, told: Mapping[str, Any], leaves: Mapping[str, Leaf], has_infos: bool) -> None:
        self._files = Hdf5Files([str(folder / FILE)])
        self._leaves, self._has_infos = dict(leaves), has_infos
        with self._files.naming(0, "its episodes"):
            names = [name for name in self._files.open(0) if name.startswith("episode_")]
            self._names = sorted(names, key=lambda name: int(name[8:]))
        if len(self._names) != told["total_episodes"]:
            raise FormatError(
                f"{self._files.paths[0]} has {len(self._names)} episodes, metadata.json says {told['total_episodes']}."
            )

    def __len__(self) -> int:
        return len(self._names)

    def features(self) -> dict[str, Feature]:
        """Return the features of the store to be; those of infos as the first episode has them."""
        with self._files.naming(0, self._names[0]):
            group = self._files.open(0)[self._names[0]]
            found = {name: final_of(name, self._feature(group, name)) for name in self._leaves}
            for name, dtype in FLAGS.items():
                found[name] = Array((), group[name].dtype.str if name in group else dtype)
            if self._has_infos and "infos" in group:
                infos = datasets_of(group["infos"], "infos")
                found |= {name: final_of(name, feature_of(each)) for name, each in infos.items()}
            there = [_dotted(name) for name in datasets_of(group)]
            warn_of_more(there, found, f"{self._files.paths[0]}, {self._names[0]}")
        return found

    def read(self, index: int, schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and what is said of it."""
        name = self._names[index]
        with self._files.naming(0, name):
            group = self._files.open(0)[name]
            length = int(group["rewards"].shape[0])
            columns = {each: self._column(group, each, feature, length) for each, feature in schema.items()}
            told = episode_metadata(read_attributes(self._files.paths[0], group.name))
            check_steps(told, length, f"{self._files.paths[0]}, {name}")
            return columns, told

    def _feature(self, group: Any, name: str) -> Feature:
        """Return the feature of a leaf, as it is stored: environments do not always keep to their spaces' dtypes.

        JPEG files are a row of bytes each, as long as each other or not.
        """
        feature, dataset = self._leaves[name].feature, self._dataset(group, name)
        if feature.kind == "image" and len(dataset.shape) < 1 + len(feature.shape):
            return replace(feature, codec="jpeg")
        if feature.kind == "text" or dataset.dtype == feature.np_dtype:
            return feature
        return Array(feature.fixed_shape, feature_of(dataset).np_dtype)

    def _dataset(self, group: Any, name: str) -> Any:
        leaf = self._leaves.get(name)
        path = "/".join(_part(part) for part in leaf.path) if leaf else name.replace(".", "/")
        if path not in group:
            raise FormatError(f"{group.file.filename}, {group.name} has no {path}.")
        return group[path]

    def _column(self, group: Any, name: str, feature: Feature, length: int) -> Any:
        dataset, count = self._dataset(group, name), length + feature.final
        if len(dataset) != count:
            raise FormatError(f"{group.file.filename}, {dataset.name} has {len(dataset)} rows. Expected are {count}.")
        if feature.codec == "jpeg":
            return EncodedRows(read_varying(dataset.file.filename, dataset.name, 0, count))
        return read_rows(dataset, feature.with_final(False), 0, count)


def _dotted(name: str) -> str:
    """Return the name of the feature of a dataset.

    Example:
        >>> _dotted("observations.pair._index_0")
        'observations.pair.0'
    """
    return ".".join(part.removeprefix("_index_") for part in name.split("."))


def _part(part: str | int) -> str:
    return part if isinstance(part, str) else f"_index_{part}"
