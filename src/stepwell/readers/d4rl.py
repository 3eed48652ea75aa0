"""D4RL: all steps of a data set in flat arrays of one HDF5 file.

::

    observations  [N, ...]  | e0 . . . . | e1 . . | e2 . . .        a row a step
    actions, rewards [N]
    terminals     [N] bool          1          0        0           the environment reached a terminal state
    timeouts      [N] bool          0          1        0           the episode was cut by a time limit
    episode_terminals [N] bool      1          1        0           instead of it, in files of d3rlpy 1
    next_observations [N, ...]      not in all files
    infos/NAME    [N, ...]          e.g. qpos, goal
    metadata/NAME                   how the data were made

Source: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", 2020, and the files it describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.formats.reader import Reader, left_out, store_schema, warn_of_left_out, with_told_finals
from stepwell.formats.registry import register_reader
from stepwell.readers.hdf5 import Hdf5Files, feature_of, is_hdf5, read_rows, top_names, value_of
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Feature

__all__ = ["D4rlReader"]

NEEDED = ("observations", "actions", "rewards")
OBSERVATIONS, NEXT = "observations", "next_observations"
MODES = ("auto", "keep", "ignore")
# the second is of d3rlpy, version 1
CUTS = ("timeouts", "episode_terminals")
# of observations that are compared before it is decided how next ones are kept
LOOKED_AT_BYTES = 32 << 20


@register_reader
class D4rlReader(Reader):
    """Episodes of a D4RL file, cut after each terminal state and each timeout.

    Notes:
        As for `Reader`. Features are named as in the file, ``infos.qpos``. The steps after the last end are an episode,
        neither terminated nor truncated. Without ``next_observations`` the observation after a last action is not in
        the file: episodes have none.
    """

    name = "d4rl"

    def __init__(self, source: str, *, next_obs: str = "auto", ignore: Sequence[str] | str = ()) -> None:
        super().__init__(source)
        if next_obs not in MODES:
            raise FormatError(f"next_obs={next_obs!r}. Allowed: {', '.join(MODES)}.")
        self._files = Hdf5Files([source])
        with self._files.naming(0, "its arrays"):
            found = self._files.datasets(0)
            missing = [name for name in NEEDED if name not in found or not found[name].shape]
            if missing:
                raise FormatError(f"{source} has no {', '.join(missing)}. A D4RL file has {', '.join(NEEDED)}.")
            self._num_steps = int(found["actions"].shape[0])
            short = [name for name in NEEDED if found[name].shape[0] != self._num_steps]
            if short:
                raise FormatError(
                    f"{source}, {short[0]} has {found[short[0]].shape[0]} rows, actions have {self._num_steps}."
                )
            self._terminals = _flags(found, "terminals", self._num_steps)
            ends = self._terminals.copy()
            for name in CUTS:
                ends |= _flags(found, name, self._num_steps)
            self._starts = _starts(ends)
            self._is_last_ended = bool(len(ends) and ends[-1])
            if not len(self):
                raise FormatError(f"{source} has no steps.")
            self._has_final = next_obs == "auto" and self._is_repeated(found)
            columns = {name: dataset for name, dataset in found.items() if self._is_column(dataset, name)}
            others = [name for name in found if name not in columns and name[:9] != "metadata."]
            warn_of_left_out(source, others, f"their first axis is not that of {self._num_steps} steps")
            ignored = left_out(ignore, columns, source)
            if self._has_final or next_obs == "ignore":
                ignored |= {NEXT}
            features = {name: self._feature(name, each) for name, each in columns.items() if name not in ignored}
            self.schema = store_schema(with_told_finals(features), source)
            self.metadata = {"d4rl": {name: value_of(each) for name, each in found.items() if name[:9] == "metadata."}}

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an HDF5 file with observations, actions and rewards at its top; see `Reader.accepts`."""
        names = top_names(source) if is_hdf5(source) else None
        return names is not None and set(NEEDED) <= names

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> EpisodeData:
        start, stop = (int(place) for place in self._starts[index : index + 2])
        with self._files.naming(0, self.label(index)):
            found = self._files.datasets(0)
            columns = {name: self._rows(found, name, feature, start, stop) for name, feature in self.schema.items()}
        is_terminal = bool(self._terminals[stop - 1])
        is_cut = stop < self._num_steps or self._is_last_ended
        return EpisodeData(columns, terminated=is_terminal, truncated=is_cut and not is_terminal)

    def label(self, index: int) -> str:
        """Return the rows of an episode; see `Reader.label`."""
        return f"rows {self._starts[index]} to {self._starts[index + 1]} of {self.source}"

    def _rows(self, found: Any, name: str, feature: Feature, start: int, stop: int) -> Any:
        plain = feature.with_final(False)
        if name not in found:
            raise FormatError(f"{self.source} has no {name} any more.")
        rows = read_rows(found[name], plain, start, stop)
        if not feature.final:
            return rows
        after = read_rows(found[NEXT], plain, start, stop)
        if not _same(rows[1:], after[:-1]):
            raise FormatError(
                f"{NEXT} do not repeat {OBSERVATIONS} one step later, as they do at its beginning. Keep both: "
                'next_obs="keep".'
            )
        return np.concatenate([rows, after[-1:]])

    def _feature(self, name: str, dataset: Any) -> Feature:
        feature = feature_of(dataset)
        return feature.with_final() if name == OBSERVATIONS and self._has_final else feature

    def _is_column(self, dataset: Any, name: str) -> bool:
        return not name.startswith("metadata.") and bool(dataset.shape) and dataset.shape[0] == self._num_steps

    def _is_repeated(self, found: Any) -> bool:
        if NEXT not in found or found[NEXT].shape != found[OBSERVATIONS].shape:
            return False
        feature = feature_of(found[OBSERVATIONS])
        if feature_of(found[NEXT]) != feature:
            return False
        stop = min(self._num_steps, 2 + LOOKED_AT_BYTES // max(1, feature.row_bytes))
        goes_on = np.ones(stop - 1, np.bool_)
        goes_on[self._starts[(self._starts > 0) & (self._starts < stop)] - 1] = False
        rows, after = (np.asarray(read_rows(found[name], feature, 0, stop)) for name in (OBSERVATIONS, NEXT))
        return _same(rows[1:][goes_on], after[:-1][goes_on])


def _flags(found: Any, name: str, count: int) -> npt.NDArray[np.bool_]:
    """Return which steps have a flag; none where the file does not have it."""
    if name not in found:
        return np.zeros(count, np.bool_)
    dataset = found[name]
    if dataset.shape[:1] != (count,) or dataset.size != count:
        raise FormatError(f"{dataset.file.filename}, {name} has {dataset.shape}, actions have {count} rows.")
    flags: npt.NDArray[np.bool_] = read_rows(dataset, feature_of(dataset), 0, count).reshape(count) != 0  # type: ignore[union-attr]
    return flags


def _starts(ends: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the first step of each episode, and the number of steps."""
    cuts = np.flatnonzero(ends) + 1
    return np.unique(np.concatenate([[0], cuts, [len(ends)]])).astype(np.int64)


def _same(left: Any, right: Any) -> bool:
    return np.array_equal(left, right, equal_nan=np.asarray(left).dtype.kind == "f")
