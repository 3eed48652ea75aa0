"""Arrays and tensors of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from stepwell.beton.encoding import ArrayEncoder, Encoder
from stepwell.beton.layout import FieldType
from stepwell.errors import SchemaError
from stepwell.ffcv.fields.base import Field

__all__ = ["NDArrayField", "TorchTensorField"]


class NDArrayField(Field):
    """Arrays of one dtype and shape.

    Args:
        dtype: of numpy. FFCV cannot decode float16.
        shape: one axis or more.

    Raises:
        SchemaError: a dtype or shape that a file cannot hold.

    Example:
        >>> NDArrayField("float32", (16, 10)).encoder.num_bytes
        640
    """

    def __init__(self, dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._encoder = ArrayEncoder(self.shape, dtype)

    @property
    def encoder(self) -> ArrayEncoder:
        """How its values are written."""
        return self._encoder


class TorchTensorField(Field):
    """Tensors of one dtype and shape.

    Args:
        dtype: of torch.
        shape: one axis or more.

    Raises:
        SchemaError: a dtype or shape that a file cannot hold.
    """

    def __init__(self, dtype: Any, shape: Sequence[int]) -> None:
        import torch

        try:
            plain = torch.zeros(0, dtype=dtype).numpy().dtype
        except TypeError as error:
            raise SchemaError(f"dtype {dtype} is none of numpy. Allowed: those that tensor.numpy() takes.") from error
        self.dtype, self.shape = dtype, tuple(shape)
        self._encoder = ArrayEncoder(self.shape, plain, FieldType.TENSOR)

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return self._encoder
