"""Episodes as Examples: a step each, or all steps of an episode in one, as RLDS has them.

::

    actions       0 1 2 3         an episode of the store: T steps, and the observation after them
    observations  0 1 2 3 4
                  |       |
    RLDS          0 1 2 3 4       T + 1 steps: the last one has zeros for what it lacks
    is_first      1 0 0 0 0
    is_last       0 0 0 0 1
    is_terminal   0 0 0 0 t       where the episode was terminated
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Fields, Leaf, Node, Repeated
from stepwell.tfds.metadata_columns import MetadataColumn
from stepwell.tfds.step_columns import StepColumn
from stepwell.tfds.step_forms import Labels

__all__ = ["EpisodeExamples", "StepExamples", "encode_all", "nested", "runs_of"]

FLAGS = ("is_first", "is_last", "is_terminal")
# what a message of Protocol Buffers may have; TensorFlow reads no larger ones
MAX_EXAMPLE_BYTES = (1 << 31) - 1
# that are read at once of several episodes
MAX_RUN_ROWS = 64
# of each column, those of an episode
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class StepExamples:
    """Writes an Example for each step: datasets that are not of episodes.

    Args:
        columns: of a step.

    Notes:
        An immutable value; picklable.
    """

    columns: tuple[StepColumn, ...]

    @property
    def tree(self) -> Fields:
        """The features, as features.json has them."""
        return nested((column.path, column.form.node) for column in self.columns)

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes by the path of their feature."""
        return {column.path: column.form.names for column in self.columns if isinstance(column.form, Labels)}

    def encode(self, episode: SourceEpisode, rows: Rows | None = None) -> Iterator[bytes]:
        """Yield the Examples of an episode.

        Args:
            episode: it.
            rows: of each column, where they were read already.

        Raises:
            DecodeError: rows that their codec refuses.
            StepError: one that would be too large for TensorFlow.
        """
        if rows is None:
            rows = [column.form.read(episode, column.source, episode.length) for column in self.columns]
        for step in range(episode.length):
            lists: dict[str, Any] = {}
            for column, values in zip(self.columns, rows, strict=True):
                lists |= column.form.step_lists(column.path, values[step : step + 1])
            yield _checked(encode_example(lists), episode)


@dataclass(frozen=True, slots=True)
class EpisodeExamples:
    """Writes an Example for each episode, as RLDS has them.

    Args:
        columns: of a step.
        metadata: of an episode.

    Raises:
        SchemaError: a flag of RLDS that is no bool.

    Notes:
        An immutable value; picklable. `encode` holds the rows of an episode and the Example.
    """

    columns: tuple[StepColumn, ...]
    metadata: tuple[MetadataColumn, ...] = ()

    def __post_init__(self) -> None:
        for column in self.columns:
            feature = column.form.feature
            if column.path in FLAGS and (feature.np_dtype != np.bool_ or feature.shape):
                raise SchemaError(
                    f"feature {column.source!r} as {column.path!r}: in RLDS it is a bool of each step. Give it another "
                    "name by rename=."
                )

    @property
    def tree(self) -> Fields:
        """The features, as features.json has them."""
        steps = [(column.path, column.form.node) for column in self.columns]
        own = {path for path, _ in steps}
        steps += [(name, Leaf("tensor", "bool")) for name in FLAGS if name not in own]
        entries = [(f"episode_metadata/{column.path}", column.node) for column in self.metadata]
        return nested([*entries, ("steps", Repeated(nested(steps), is_dataset=True))])

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes by the path of their feature."""
        forms = {f"steps/{column.path}": column.form for column in self.columns}
        steps = {path: form.names for path, form in forms.items() if isinstance(form, Labels)}
        entries = {f"episode_metadata/{column.path}": column.labels for column in self.metadata if column.labels}
        return {**steps, **entries}

    def encode(self, episode: SourceEpisode, rows: Rows | None = None) -> Iterator[bytes]:
        """Yield the Example of an episode.

        Args:
            episode: it.
            rows: of each column, where they were read already.

        Raises:
            DecodeError: rows that their codec refuses.
            StepError: one that would be too large for TensorFlow.
        """
        count = episode.length + episode.has_final
        lists: dict[str, Any] = dict(self._flags(episode, count))
        for place, column in enumerate(self.columns):
            if episode.has_final and column.path in FLAGS:
                continue  # the step that was the last one is not the last of these
            found = self._rows(episode, column, count) if rows is None else rows[place]
            lists |= column.form.lists(f"steps/{column.path}", found)
        for entry in self.metadata:
            lists |= entry.lists(f"episode_metadata/{entry.path}", episode.metadata)
        yield _checked(encode_example(lists), episode)

    def _rows(self, episode: SourceEpisode, column: StepColumn, count: int) -> Sequence[Any]:
        """Return the rows of all steps; of the final one zeros where the store has none."""
        is_short = count > episode.length and not column.form.feature.final
        rows = column.form.read(episode, column.source, episode.length if is_short else count)
        if not is_short:
            return rows
        if isinstance(rows, np.ndarray):
            return np.concatenate([rows, column.form.blank[None]])
        return list(chain(rows, [column.form.blank]))

    def _flags(self, episode: SourceEpisode, count: int) -> Iterator[tuple[str, Any]]:
        ends = {"is_first": (0, True), "is_last": (-1, True), "is_terminal": (-1, episode.terminated)}
        for name, (place, value) in ends.items():
            flags = np.zeros(count, np.bool_)
            flags[place] = value
            yield f"steps/{name}", flags


def encode_all(examples: EpisodeExamples | StepExamples, run: Sequence[SourceEpisode]) -> Iterator[list[bytes]]:
    """Yield the Examples of each episode of a run from `runs_of`, whose rows are read at once.

    Raises:
        DecodeError: rows that their codec refuses; names the episode.
        StepError: an Example that would be too large for TensorFlow.
    """
    rows: list[Rows] | None = None
    if len(run) > 1:
        stops = np.cumsum([episode.length for episode in run]).tolist()
        whole = replace(run[0], length=stops[-1])
        # what cannot be read is read again, episode by episode, so that the error names the right one
        with suppress(DecodeError):
            read = [column.form.read(whole, column.source, whole.length) for column in examples.columns]
            rows = [[values[start:stop] for values in read] for start, stop in pairwise([0, *stops])]
    for place, episode in enumerate(run):
        yield list(examples.encode(episode, None if rows is None else rows[place]))


def runs_of(episodes: Iterable[SourceEpisode]) -> Iterator[list[SourceEpisode]]:
    """Yield episodes in order, short ones that lie back to back in a segment together: reading costs by the call."""
    run: list[SourceEpisode] = []
    end = num_rows = 0
    for episode in episodes:
        is_next = bool(run) and episode.segment is run[-1].segment and episode.start == end
        num_rows = num_rows + episode.length if is_next else episode.length
        if run and not (is_next and num_rows <= MAX_RUN_ROWS and not episode.has_final and not run[-1].has_final):
            yield run
            run, num_rows = [], episode.length
        run.append(episode)
        end = episode.start + episode.length
    if run:
        yield run


def nested(leaves: Iterable[tuple[str, Node]]) -> Fields:
    """Return the tree of features by their paths.

    Args:
        leaves: path and feature; "/" nests.

    Raises:
        SchemaError: a path that is there twice, or is a feature and a dictionary of features.

    Example:
        >>> nested([("observation/task", Leaf("text", "string")), ("reward", Leaf("tensor", "float32"))])
        Fields(features={'observation': Fields(features={'task': Leaf(text string ())}), 'reward': ...})
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves:
        *parents, last = path.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SchemaError(f"{path!r} lies in {parent!r}, which is a feature itself. Rename one of them.")
        if last in place:
            raise SchemaError(f"{path!r} is there twice, or has features below it. Rename one of them.")
        place[last] = leaf
    return _fields(tree)


def _fields(tree: Mapping[str, Any]) -> Fields:
    return Fields({name: _fields(part) if isinstance(part, dict) else part for name, part in tree.items()})


def _checked(example: bytes, episode: SourceEpisode) -> bytes:
    if len(example) > MAX_EXAMPLE_BYTES:
        raise StepError(
            f"{episode.store.path}: episode {episode.index} makes an Example of {len(example)} bytes. TensorFlow reads "
            f"at most {MAX_EXAMPLE_BYTES}. Leave features out, store images as JPEG, or cut the episode."
        )
    return example
