"""Columns that come piece by piece: what is too large to be held at once is stored as it is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepError
from stepwell.schema import Feature

__all__ = ["HasPieces", "PiecewiseRows"]


@runtime_checkable
class HasPieces(Protocol):
    """What gives an episode's values in pieces, for a feature that is stored raw."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""

    def pieces(self, feature: Feature) -> Iterable[npt.NDArray[Any]]:
        """Return arrays [n, *shape] of consecutive rows, first to last; each may be overwritten by the next."""


class PiecewiseRows:
    """An accepted column of a raw feature, read while it is stored.

    Args:
        name: of the feature.
        feature: a raw one.
        given: what gives the pieces.

    Notes:
        Its pieces are checked as they come. A piece that does not fit raises then: nothing of its step is committed.
    """

    def __init__(self, name: str, feature: Feature, given: HasPieces) -> None:
        self._name, self._feature, self._given = name, feature, given

    def __len__(self) -> int:
        return self._given.num_rows

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the pieces.

        Raises:
            StepError: one of another dtype or shape, or more or fewer rows than were told.
        """
        told, count = self._given.num_rows, 0
        for piece in self._given.pieces(self._feature):
            if piece.dtype != self._feature.np_dtype or piece.shape[1:] != self._feature.fixed_shape:
                raise StepError(
                    f"feature {self._name!r}: {self._given!r} gave {piece.dtype} {piece.shape[1:]}, the store has "
                    f"{self._feature}."
                )
            count += len(piece)
            if count <= told:
                yield np.ascontiguousarray(piece)
        if count != told:
            raise StepError(f"feature {self._name!r}: {self._given!r} told of {told} rows and gave {count}.")

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        pieces = [piece.copy() for piece in self]
        return np.concatenate(pieces)[index]
