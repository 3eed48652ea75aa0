"""The samples that a store becomes: its steps, or its episodes.

::

    steps       000017.image.jpg  000017.label.cls                          a step each
    episodes    000002.episode.json                                         length, ends, metadata, features
                000002.action.npy                                           all rows of plain arrays
                000002.image.000000.jpg  000002.image.000001.jpg  ...       a member a row of all else
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, SchemaError, StepwellError
from stepwell.formats.source_episodes import SourceEpisode, episodes_of, schema_of
from stepwell.schema import Schema
from stepwell.webdataset.member_forms import episode_form, make_forms
from stepwell.windows import View

__all__ = ["EPISODE", "KEY", "EpisodeSamples", "Sample", "StepSamples"]

KEY = "__key__"
EPISODE = "episode.json"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Args:
        key: of its members.
        num_steps: that it holds.
        members: (ending, bytes) each.
    """

    key: str
    num_steps: int
    members: Iterable[tuple[str, bytes]]


class _Episodes:
    """The episodes of a view; every process finds them for itself, as they hold maps of files."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._found: list[SourceEpisode] | None = None
        self._ends: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def found(self) -> list[SourceEpisode]:
        """All that have steps, in order."""
        if self._found is None:
            self._found = list(episodes_of(self._view))
            self._ends = np.cumsum([0, *(episode.length for episode in self._found)])[1:]
        return self._found

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Steps up to the end of each, int64 [n]."""
        _ = self.found
        return self._ends

    def __getstate__(self) -> dict[str, Any]:
        return {"_view": self._view, "_found": None, "_ends": None}


class StepSamples:
    """The steps of a view as samples.

    Args:
        view: of a store.
        names: format of keys, of the number of a sample, ``episode`` and ``step``.
        features: that are written; None: all. A text feature ``__key__`` gives the keys.
        rename: feature to ending.

    Raises:
        StepwellError: a format that gives no key.
    """

    def __init__(self, view: View, names: str, features: Collection[str] | None, rename: Mapping[str, str]) -> None:
        schema = _chosen(schema_of(view), features)
        self._episodes, self._names, self._has_keys = _Episodes(view), names, KEY in schema
        self._forms = make_forms(schema, rename, (KEY,))
        _key_of(names, 0, 0, 0)

    @property
    def num_samples(self) -> int:
        """All steps."""
        return int(self._episodes.ends[-1]) if self._episodes.found else 0

    @property
    def names(self) -> dict[str, str]:
        """The features by their endings."""
        return {form.ending: form.name for form in self._forms}

    def samples(self, start: int, stop: int) -> Iterator[Sample]:
        """Yield samples [start, stop)."""
        ends = self._episodes.ends
        place = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            episode = self._episodes.found[place]
            begin = int(ends[place]) - episode.length
            first, last = start - begin, min(stop, int(ends[place])) - begin
            rows = zip(*(form.rows(episode, first, last) for form in self._forms), strict=True)
            keys = episode.read(KEY, first, last) if self._has_keys else None
            for step, row in enumerate(rows, first):
                key = (
                    _key_of(self._names, begin + step, place, step)
                    if keys is None
                    else _checked_key(keys[step - first])
                )
                yield Sample(key, 1, [(form.ending, data) for form, data in zip(self._forms, row, strict=True)])
            start, place = begin + last, place + 1


class EpisodeSamples:
    """The episodes of a view as samples.

    Args:
        view: of a store.
        names: format of keys, of the number of an episode.
        features: that are written; None: all.
        rename: not allowed: features keep their names.

    Raises:
        StepwellError: a format that gives no key, or ``rename``.
    """

    def __init__(self, view: View, names: str, features: Collection[str] | None, rename: Mapping[str, str]) -> None:
        if rename:
            raise StepwellError('rename= is for samples="steps": in shards of episodes features keep their names.')
        schema = _chosen(schema_of(view), features)
        self._episodes, self._names = _Episodes(view), names
        self._forms = [episode_form(name, feature) for name, feature in schema.items()]
        self._told = {form.name: form.written.to_json() for form in self._forms}
        _key_of(names, 0, 0, 0)

    @property
    def num_samples(self) -> int:
        """All episodes."""
        return len(self._episodes.found)

    @property
    def names(self) -> dict[str, str]:
        """No names: each episode tells its features."""
        return {}

    def samples(self, start: int, stop: int) -> Iterator[Sample]:
        """Yield samples [start, stop)."""
        for number in range(start, stop):
            episode = self._episodes.found[number]
            yield Sample(_key_of(self._names, number, number, 0), episode.length, self._members(episode))

    def _members(self, episode: SourceEpisode) -> Iterator[tuple[str, bytes]]:
        yield EPISODE, json.dumps(self._facts(episode), ensure_ascii=False).encode("utf-8")
        for form in self._forms:
            count = episode.length + (episode.has_final and form.feature.final)
            if form.is_plain:
                stream = io.BytesIO()
                np.lib.format.write_array(stream, np.asarray(episode.read(form.name, 0, count)), allow_pickle=False)
                yield f"{form.name}.npy", stream.getvalue()
                continue
            for row, data in enumerate(form.rows(episode, 0, count)):
                yield f"{form.name}.{row:06d}.{form.ending}", data

    def _facts(self, episode: SourceEpisode) -> dict[str, Any]:
        return {
            "length": episode.length,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "final": episode.has_final,
            "metadata": dict(episode.metadata),
            "features": self._told,
        }


def _chosen(schema: Schema, features: Collection[str] | None) -> Schema:
    if features is None:
        return schema
    unknown = [name for name in features if name not in schema]
    if unknown:
        raise FeatureNotFoundError(f"no feature {unknown[0]!r}. There are: {', '.join(schema)}.")
    return Schema({name: feature for name, feature in schema.items() if name in features})


def _key_of(names: str, number: int, episode: int, step: int) -> str:
    try:
        return _checked_key(names.format(number, episode=episode, step=step))
    except (ValueError, LookupError) as error:
        allowed = '"{:06d}", and names of episode and step: "{episode}/{step:04d}"'
        raise StepwellError(f"names={names!r}: {error}. Allowed: {allowed}.") from error


def _checked_key(key: str) -> str:
    if not key or key.endswith("/") or "." in key.rpartition("/")[2] or key.startswith(("__", "/")) or "\0" in key:
        raise SchemaError(f"{key!r} cannot be the key of a sample: no dots in its last part, and not empty.")
    return key
