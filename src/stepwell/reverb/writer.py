"""The writer of Reverb before 2021: items are the last steps of all columns."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stepwell.reverb.specs import import_tree
from stepwell.reverb.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from stepwell.reverb.client import Client

__all__ = ["Writer"]


class Writer:
    """Write steps of one structure, and items of the last of them; made by `Client.writer`."""

    def __init__(self, client: Client, max_sequence_length: int, max_in_flight_items: int | None) -> None:
        # the signature of a table says what a step is here
        self._writer = TrajectoryWriter(client, max_sequence_length, validate_items=False)
        self._most, self._in_flight = max_sequence_length, max_in_flight_items
        self._num_steps = 0
        self._structure: Any = None

    def append(self, data: Any) -> None:
        """Add a step.

        Raises:
            ValueError: another structure, dtype or shape than before.
        """
        if self._num_steps:
            try:
                import_tree().assert_same_structure(self._structure, data)
            except (TypeError, ValueError) as error:
                raise ValueError(f"a step of another structure than the first: {error}") from error
        self._writer.append(data)
        self._structure = import_tree().map_structure(lambda _: None, data)
        self._num_steps = min(self._num_steps + 1, self._most)

    def append_sequence(self, sequence: Any) -> None:
        """Add several steps at once: a nest of arrays [n, ...].

        Raises:
            ValueError: arrays of different lengths.
        """
        tree = import_tree()
        lengths = {len(leaf) for leaf in tree.flatten(sequence)}
        if len(lengths) != 1:
            raise ValueError(f"columns of {sorted(lengths)} steps. Give the same number of each.")
        for step in range(lengths.pop()):
            self.append(tree.map_structure(lambda leaf, step=step: leaf[step], sequence))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Insert an item of the last steps of all columns.

        Raises:
            ValueError: more steps than there are, or than are kept; an unknown table, or a bad priority.
        """
        if not 1 <= num_timesteps <= self._num_steps:
            raise ValueError(
                f"num_timesteps={num_timesteps}: allowed is 1 to the {self._num_steps} steps that are kept of "
                f"max_sequence_length={self._most}."
            )
        last = import_tree().map_structure(lambda column: column[-num_timesteps:], self._writer.history)
        self._writer.create_item(table, priority, last)
        if self._in_flight is not None:
            self._writer.flush(self._in_flight)

    def flush(self) -> None:
        """Wait until all items are in their tables."""
        self._writer.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Wait until all items are in, and end."""
        try:
            self._writer.flush()
        finally:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)
