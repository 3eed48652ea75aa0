"""Checkpoints of a server: its items, and the steps that they refer to, as .npy files in a directory each.

::

    PATH/GROUP/20261127T101112.123456/
      tables.json               each table: counts; of each item columns, episodes
      NAME.priorities.npy ...   of each table, by its number
      leaf0003.npy              the rows of a value that items refer to, each once; of strings all bytes, and .sizes.npy

A checkpoint appears whole, by a rename. What else lies there is left alone.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepwellError, StoreNotFoundError
from stepwell.json_text import parse_json
from stepwell.reverb.steps import Leaf, Steps
from stepwell.reverb.tables import Column, Table, Trajectory
from stepwell.store.layout import built_directory

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]

TABLES = "tables.json"
NAME = "%Y%m%dT%H%M%S.%f"


class CheckpointerBase(Protocol):
    """What a server needs of a checkpointer."""

    def save(self, tables: Mapping[str, Table], steps: Steps) -> str:
        """Write a checkpoint, and return its path."""

    def load(self, tables: Mapping[str, Table], steps: Steps) -> None:
        """Fill the tables from the newest checkpoint, where there is one."""


class DefaultCheckpointer:
    """Checkpoints in a directory, the newest of which a server begins with.

    Args:
        path: of the directory, made where it is not there.
        group: a directory in it.
        fallback_checkpoint_path: a checkpoint to begin with where ``path`` has none.

    Raises:
        StoreNotFoundError: the fallback is not there.
    """

    def __init__(
        self, path: str | os.PathLike[str], group: str = "", fallback_checkpoint_path: str | None = None
    ) -> None:
        self.root = Path(path) / group
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def save(self, tables: Mapping[str, Table], steps: Steps) -> str:
        """Write a checkpoint, and return its path; the ones before it stay."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / datetime.now(UTC).strftime(NAME)
        with built_directory(str(path)) as hidden:
            _write(Path(hidden), tables, steps)
        return str(path)

    def load(self, tables: Mapping[str, Table], steps: Steps) -> None:
        """Fill the tables from the newest checkpoint, where there is one.

        Raises:
            ValueError: it has a table that the server lacks.
        """
        found = sorted(each for each in self.root.glob("*") if (each / TABLES).is_file()) if self.root.is_dir() else []
        if found:
            _read(found[-1], tables, steps)
        elif self.fallback_checkpoint_path is not None:
            path = Path(self.fallback_checkpoint_path)
            if not (path / TABLES).is_file():
                raise StoreNotFoundError(f"{path} is no checkpoint: {TABLES} is missing.")
            _read(path, tables, steps)


class TempDirCheckpointer(DefaultCheckpointer):
    """Checkpoints in a new temporary directory, which is made when the first is written, and stays."""

    def __init__(self, fallback_checkpoint_path: str | None = None) -> None:
        super().__init__("", fallback_checkpoint_path=fallback_checkpoint_path)
        self._is_made = False

    def save(self, tables: Mapping[str, Table], steps: Steps) -> str:
        """Write a checkpoint, and return its path."""
        if not self._is_made:
            self.root, self._is_made = Path(tempfile.mkdtemp(prefix="stepwell-reverb-")), True
        return super().save(tables, steps)

    def load(self, tables: Mapping[str, Table], steps: Steps) -> None:
        """Fill the tables from the fallback, where one is given."""
        if self.fallback_checkpoint_path is not None:
            DefaultCheckpointer(Path(self.fallback_checkpoint_path) / "none", "", self.fallback_checkpoint_path).load(
                tables, steps
            )


def default_checkpointer() -> CheckpointerBase:
    """Return what a server has that is given none."""
    return TempDirCheckpointer()


def _write(path: Path, tables: Mapping[str, Table], steps: Steps) -> None:
    # of each leaf the ids that items refer to, each once
    states = {name: table.state() for name, table in tables.items()}
    columns = [column for _, items in states.values() for item in items for column in item.columns]
    all_leaves = np.concatenate([each.leaves for each in columns]) if columns else np.empty(0, np.int32)
    all_ids = np.concatenate([each.ids for each in columns]) if columns else np.empty(0, np.int64)
    kept = {number: np.unique(all_ids[all_leaves == number]) for number in np.unique(all_leaves).tolist()}
    leaves = []
    for number, ids in kept.items():
        leaf = steps.leaf(number)
        values = steps.read(np.full(len(ids), number, np.int32), ids)
        if leaf.dtype == object:
            np.save(path / f"leaf{number:04d}.sizes.npy", np.array([len(each) for each in values], np.int64))
            values = np.frombuffer(b"".join(values), np.uint8)
        np.save(path / f"leaf{number:04d}.npy", values)
        leaves.append([number, leaf.path, leaf.dtype.str, leaf.shape])
    records = []
    for index, (name, (state, items)) in enumerate(states.items()):
        np.save(path / f"{index}.priorities.npy", state.pop("priorities"))
        np.save(path / f"{index}.times_sampled.npy", state.pop("times_sampled"))
        texts = [[[_numbered(each, kept) for each in item.columns], list(item.episodes)] for item in items]
        records.append({"name": name, "items": texts, **state})
    (path / TABLES).write_text(json.dumps({"format": 1, "leaves": leaves, "tables": records}))


def _numbered(column: Column, kept: Mapping[int, npt.NDArray[np.int64]]) -> list[Any]:
    """Return a column with the rows of its leaves' files instead of ids."""
    pairs = zip(column.leaves.tolist(), column.ids.tolist(), strict=True)
    return [column.leaves.tolist(), [int(np.searchsorted(kept[leaf], id_)) for leaf, id_ in pairs], column.is_squeezed]


def _read(path: Path, tables: Mapping[str, Table], steps: Steps) -> None:
    record = parse_json((path / TABLES).read_bytes())
    if not isinstance(record, dict) or record.get("format") != 1:
        raise StepwellError(f"{path} is a checkpoint of another format than 1.")
    missing = [each["name"] for each in record["tables"] if each["name"] not in tables]
    if missing:
        raise ValueError(f"checkpoint {path} has table {', '.join(missing)}, which this server lacks. Add it.")
    numbers: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}
    for number, leaf_path, code, shape in record["leaves"]:
        leaf = Leaf(leaf_path, np.dtype(code), tuple(shape))
        values: Sequence[Any] = np.load(path / f"leaf{number:04d}.npy", allow_pickle=False)
        if leaf.dtype == object:
            ends = np.cumsum(np.load(path / f"leaf{number:04d}.sizes.npy", allow_pickle=False)).tolist()
            data = np.asarray(values).tobytes()
            values = [data[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
        structure = steps.structure((leaf,))
        writer = structure.writer()
        first = writer.append_batch({structure.names[0]: values})
        structure.give_back(writer)
        numbers[number] = structure.first_leaf, np.arange(first, first + len(values))
    for index, each in enumerate(record["tables"]):
        items = []
        for columns, episodes in each["items"]:
            found = []
            for leaves, rows, is_squeezed in columns:
                ids = [numbers[number][1][row] for number, row in zip(leaves, rows, strict=True)]
                own = [numbers[number][0] for number in leaves]
                found.append(Column(np.array(own, np.int32), np.array(ids, np.int64), is_squeezed))
            every_leaf, every_id = (
                np.concatenate(each) for each in zip(*(column[:2] for column in found), strict=True)
            )
            segments = steps.segments_of(every_leaf, every_id)
            items.append(Trajectory(found, [tuple(episode) for episode in episodes], segments))
        arrays = {
            key: np.load(path / f"{index}.{key}.npy", allow_pickle=False) for key in ("priorities", "times_sampled")
        }
        tables[each["name"]].restore({**each, **arrays}, items)
