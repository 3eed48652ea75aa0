"""Values a row, on their way from rank to rank: arrays, tensors and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError
from stepwell.loader.memory import import_torch

__all__ = ["Column", "Columns", "Kind", "columns_of", "join"]

Keep = npt.NDArray[np.bool_]


class Kind(NamedTuple):
    """What the values of a key are.

    Args:
        container: "array", "tensor" or "list".
        dtype: of arrays and tensors, as text.
        shape: of a row of them.
    """

    container: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.container if self.container == "list" else f"{self.container} {self.dtype}{list(self.shape)} a row"


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a key over several batches.

    Args:
        kind: what they are.
        values: the rows, one after the other.
    """

    kind: Kind
    values: Any

    def packed(self) -> Any:
        """Return the rows as they travel: a list, an array, or the bytes of a tensor as an array."""
        if self.kind.container != "tensor":
            return self.values
        return self.values.cpu().reshape(-1).view(import_torch().uint8).numpy()


Columns = Mapping[str, Column]


def columns_of(batches: Sequence[Mapping[str, Any]], keeps: Sequence[Keep]) -> Columns:
    """Return the values of several batches by key.

    Args:
        batches: key to values, one entry a row.
        keeps: bool [rows of the batch] each, which to keep.

    Raises:
        LoaderError: batches of different keys, dtypes or shapes, or values that are not one a row.
    """
    if not batches:
        return {}
    keys = list(batches[0])
    if other := next((batch for batch in batches if list(batch) != keys), None):
        raise LoaderError(f"batches with keys {keys} and {list(other)}. Give the same keys, in the same order, in all.")
    return {key: _column(key, [batch[key] for batch in batches], keeps) for key in keys}


def join(kind: Kind, parts: Sequence[Any], order: npt.NDArray[np.int64], own: Column | None) -> Any:
    """Return the rows of all ranks in a new order.

    Args:
        kind: what they are.
        parts: `Column.packed` of each rank that has the key.
        order: int64 [n], which row comes first, second ...
        own: this rank's column, whose device tensors are put on.
    """
    if kind.container == "list":
        rows = list(chain.from_iterable(parts))
        return [rows[number] for number in order.tolist()]
    whole = np.concatenate(parts)
    if kind.container == "array":
        return whole[order]
    torch = import_torch()
    tensor = torch.from_numpy(whole).view(getattr(torch, kind.dtype)).reshape(len(order), *kind.shape)
    return tensor[torch.from_numpy(order)].to("cpu" if own is None else own.values.device)


def _column(key: str, values: Sequence[Any], keeps: Sequence[Keep]) -> Column:
    pieces = [_kept(key, each, keep) for each, keep in zip(values, keeps, strict=True)]
    kinds = {_kind_of(piece) for piece in pieces}
    if len(kinds) > 1:
        shown = " and ".join(sorted(map(str, kinds)))
        raise LoaderError(f"key {key!r}: {shown} in batches of one rank. Give the same in all, or lists.")
    (kind,) = kinds
    if kind.container == "list":
        return Column(kind, list(chain.from_iterable(pieces)))
    if kind.container == "array":
        return Column(kind, np.concatenate(pieces))
    return Column(kind, import_torch().cat(pieces))


def _kept(key: str, values: Any, keep: Keep) -> Any:
    """Return the rows to keep, of a batch."""
    is_tensor = hasattr(values, "detach")
    if not is_tensor and not isinstance(values, np.ndarray | list | tuple):
        raise LoaderError(f"key {key!r}: a {type(values).__name__}. Give an array, a tensor or a list, an entry a row.")
    num_rows = (values.shape[0] if values.ndim else -1) if hasattr(values, "ndim") else len(values)
    if num_rows != len(keep):
        raise LoaderError(f"key {key!r}: {_rows(num_rows)} in a batch of {len(keep)} rows. Give one entry a row.")
    values = values.detach() if is_tensor else values
    if keep.all():
        return values
    if is_tensor:
        return values[import_torch().from_numpy(keep).to(values.device)]
    return values[keep] if isinstance(values, np.ndarray) else list(compress(values, keep.tolist()))


def _rows(number: int) -> str:
    return "a single value" if number < 0 else f"{number} entries"


def _kind_of(values: Any) -> Kind:
    if isinstance(values, list | tuple):
        return Kind("list")
    container = "array" if isinstance(values, np.ndarray) else "tensor"
    return Kind(container, str(values.dtype).removeprefix("torch."), tuple(values.shape[1:]))
