"""TFClient: single calls of a client as operations of TensorFlow, in graphs and eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.errors import MissingDependencyError
from stepwell.reverb.client import Client
from stepwell.reverb.replay_sample import ReplaySample, SampleInfo
from stepwell.reverb.specs import import_tree

__all__ = ["TFClient"]


class TFClient:
    """Sample, insert and update priorities by operations of TensorFlow.

    Args:
        server_address: of the server.
        shared_name: not needed here.
        name: of the operations' scope.

    Raises:
        MissingDependencyError: without TensorFlow.

    Notes:
        For many samples use `TrajectoryDataset`: here each costs a call of the server. In a graph the operations call
        Python, so they run in the process that made them. Errors are a `Client`'s; of a graph TensorFlow's:
        InvalidArgumentError for what is a ValueError or a TypeError.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        try:
            import tensorflow
        except ImportError as error:
            raise MissingDependencyError("TFClient needs TensorFlow: pip install tensorflow.") from error
        self._tf: Any = tensorflow
        self._client, self._name = Client(server_address), name

    @property
    def server_address(self) -> str:
        """Where the server is."""
        return self._client.server_address

    def sample(self, table: Any, data_dtypes: Any, name: str | None = None) -> ReplaySample:
        """Draw an item; waits until its limiter lets it.

        Args:
            table: its name, a str or a tensor.
            data_dtypes: a nest of the dtypes of a step's columns.
            name: of the operation.

        Returns:
            Tensors: the info, and the columns of the item's first step as the nest of ``data_dtypes``.
        """
        tree, tf = import_tree(), self._tf
        types = [tf.as_dtype(dtype) for dtype in (*SampleInfo.tf_dtypes(), *tree.flatten(data_dtypes))]

        def draw(table: Any) -> list[Any]:
            (steps,) = self._client.sample(_text(table), 1)
            info, data = steps[0]
            flat = [np.dtype(dtype).type(value) for dtype, value in zip(SampleInfo.tf_dtypes(), info, strict=True)]
            return [*flat, *tree.flatten(data)]

        with tf.name_scope(f"{name or f'{self._name}_sample'}"):
            found = tf.numpy_function(draw, [tf.convert_to_tensor(table, tf.string)], types)
        info = SampleInfo(*found[: len(SampleInfo._fields)])
        for tensor in info:
            tensor.set_shape(())
        return ReplaySample(info, tree.unflatten_as(data_dtypes, found[len(info) :]))

    def insert(self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None) -> Any:
        """Insert an item of one step into tables.

        Args:
            data: tensors, the columns of the step.
            tables: string [n], their names.
            priorities: float64 [n], of the item in each.
            name: of the operation.

        Raises:
            ValueError: tables or priorities of another dtype, rank or length.
        """
        tf = self._tf
        if tables.dtype != tf.string or tables.shape.rank != 1:
            raise ValueError(f"tables is {tables.dtype.name}{tables.shape}, and must be string [n].")
        if priorities.dtype != tf.float64 or priorities.shape.rank != 1:
            raise ValueError(f"priorities is {priorities.dtype.name}{priorities.shape}, and must be float64 [n].")
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError(f"{tables.shape} tables and {priorities.shape} priorities: one each is needed.")

        def put(tables: Any, priorities: Any, *data: Any) -> None:
            self._client.insert(list(data), dict(zip(map(_text, tables), priorities.tolist(), strict=True)))

        return self._run(name or f"{self._name}_insert", put, [tables, priorities, *data])

    def update_priorities(self, table: Any, keys: Any, priorities: Any, name: str | None = None) -> Any:
        """Set priorities of items; those that are gone are passed over.

        Args:
            table: its name, a str or a tensor.
            keys: uint64 [n], of the items.
            priorities: float64 [n].
            name: of the operation.
        """

        def update(table: Any, keys: Any, priorities: Any) -> None:
            if keys.shape != priorities.shape:
                raise ValueError(f"{keys.shape} keys and {priorities.shape} priorities: one each is needed.")
            found = dict(zip(keys.reshape(-1).tolist(), priorities.reshape(-1).tolist(), strict=True))
            self._client.mutate_priorities(_text(table), found)

        given = [self._tf.convert_to_tensor(table, self._tf.string), keys, priorities]
        return self._run(name or f"{self._name}_update_priorities", update, given)

    def _run(self, name: str, function: Any, given: list[Any]) -> Any:
        """Return the operation that calls a function, or None where it was called."""

        def call(*values: Any) -> np.bool_:
            function(*values)
            return np.bool_(True)

        with self._tf.name_scope(name):
            done = self._tf.numpy_function(call, given, self._tf.bool)
        return None if self._tf.executing_eagerly() else done.op


def _text(value: Any) -> str:
    text = np.asarray(value, object).item()
    return text.decode() if isinstance(text, bytes) else str(text)
