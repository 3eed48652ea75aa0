"""How shards are read: what somebody asks for, in Python or as the text of an address."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.errors import FormatError
from stepwell.formats.options import names_of
from stepwell.schema import Feature

__all__ = ["IMAGES", "Decoders", "Settings", "list_of"]

Decoders = Mapping[str, tuple[Feature, Callable[[bytes], Any]]]
"""Ending to the feature that its members become, and what makes a value of one's bytes."""

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Last parts of the endings of images."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for, see `WebDatasetReader`.

    Args:
        endings: that are taken; empty: all.
        ignore: endings that are not.
        rename: ending, or name of a column, to the name of the feature.
        json: "text" or "columns".
        decoders: see `Decoders`.
        channels: that images are to have; None: as many as one has.
    """

    endings: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    json: str = "text"
    decoders: Decoders = field(default_factory=dict)
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.json not in ("text", "columns"):
            raise FormatError(f'json={self.json!r}. Allowed: "text", "columns".')

    def wants(self, ending: str) -> bool:
        """Whether members of an ending are taken."""
        return ending not in self.ignore and (not self.endings or ending in self.endings)

    def name_of(self, column: str) -> str:
        """Return the name of the feature of an ending, or of a column in such members."""
        return self.rename.get(column, self.rename.get(column.partition("|")[0], column))

    def column_of(self, ending: str) -> str:
        """Return which column members of an ending are of: their own, or that of all images of one new name.

        Example:
            >>> Settings(rename={"jpg": "image", "png": "image"}).column_of("png")
            'jpg|png'
        """
        name = self.rename.get(ending)
        if name is None or not self._is_image(ending):
            return ending
        return "|".join(other for other, new in self.rename.items() if new == name and self._is_image(other))

    def _is_image(self, ending: str) -> bool:
        kind = ending.rpartition(".")[2]
        return kind in IMAGES and self.wants(ending) and not {ending, kind} & set(self.decoders)


def list_of(names: Collection[str] | str) -> frozenset[str]:
    """Return endings that are given as a collection or joined by commas, as members have them: without dot.

    Example:
        >>> sorted(list_of(".Jpg, json"))
        ['jpg', 'json']
    """
    return frozenset(name.lstrip(".").lower() for name in names_of(names))
