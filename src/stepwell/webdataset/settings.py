"""How shards are read: what somebody asks for, in Python or as the text of an address."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.codecs.remote_files import is_remote
from stepwell.errors import FormatError
from stepwell.formats.option_texts import names_of
from stepwell.schema import Feature

__all__ = ["IMAGES", "INFO", "Decoders", "Settings", "info_path", "list_of", "told_names", "told_samples"]

Decoders = Mapping[str, tuple[Feature, Callable[[bytes], Any]]]
"""Ending to the feature that its members become, and what makes a value of one's bytes."""

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Last parts of the endings of images."""

INFO = "_info.json"
"""A file beside shards: timm's lengths of shards; of those that stepwell wrote the features by their endings, too."""


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


def info_path(shard: str) -> Path | None:
    """Return where ``_info.json`` of a shard is; None of one on another machine.

    Args:
        shard: its path, or address.
    """
    path = shard.removeprefix("gzip://")
    return None if is_remote(path) else Path(path).with_name(INFO)


def told_names(shard: str) -> dict[str, str]:
    """Return the names of features by ending that ``_info.json`` beside a shard tells; what is no such file tells none.

    Args:
        shard: its path; beside one on another machine nothing is looked for.
    """
    path = info_path(shard)
    try:
        told = {} if path is None else json.loads(path.read_bytes())["features"]
        return {str(ending).lower(): str(name) for ending, name in told.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def told_samples(source: str) -> str | None:
    """Return what samples are, "steps" or "episodes", as ``_info.json`` in a directory or beside a shard tells.

    Args:
        source: a directory, or what names files in one.
    """
    if is_remote(source) or "\0" in source:
        return None
    place = Path(source.split("\n", maxsplit=1)[0].split("::", maxsplit=1)[0])
    try:
        told = json.loads((place if place.is_dir() else place.parent).joinpath(INFO).read_bytes())
    except (OSError, ValueError):
        return None
    found = told.get("samples") if isinstance(told, dict) else None
    return found if isinstance(found, str) else None
