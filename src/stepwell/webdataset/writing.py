"""Shards of a store: archives that webdataset, timm and stepwell read.

::

    steps     0 1 2 3 4 | 5 6 7 8 9 | 10 11        cut by number, the same for every number of processes
                   |          |          |
    TARGET/  train-000000.tar  -000001  -000002    each by the next free process
             _info.json                            samples of each shard, names of the features

    steps       000017.image.jpg  000017.label.cls                          a sample a step
    episodes    000002.episode.json                                         length, ends, metadata, features
                000002.action.npy                                           all rows of plain arrays
                000002.image.000000.jpg  000002.image.000001.jpg  ...       a member a row of all else
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, SchemaError, StepwellError
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import SourceEpisode, as_view, episodes_of, refuse_rates, schema_of
from stepwell.recorders.chunks import ITEM, NUM_BYTES, NUM_ITEMS, NUM_STEPS, Executor, run_chunks
from stepwell.schema import Schema
from stepwell.sizes import parse_bytes
from stepwell.store import Store
from stepwell.store.layout import built_directory
from stepwell.webdataset.member_forms import episode_form, make_forms
from stepwell.webdataset.shard_files import INFO, info_bytes
from stepwell.webdataset.tar_files import TarWriter, tar_bytes
from stepwell.windows import View

__all__ = ["EPISODE", "KEY", "EpisodeSamples", "Sample", "write_webdataset"]

KEY = "__key__"
EPISODE = "episode.json"
NUM_PROBED = 16
# hidden files are none of a directory's shards
PREFIX = re.compile(r"[^./\0][^/\0]*")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample."""

    key: str
    num_steps: int
    # (ending, bytes) each
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
    """The steps of a view as samples."""

    def __init__(self, view: View, names: str, features: Collection[str] | None, rename: Mapping[str, str]) -> None:
        schema = refuse_rates(_chosen(schema_of(view), features), "WebDataset")
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
    """The episodes of a view as samples."""

    def __init__(self, view: View, names: str, features: Collection[str] | None, rename: Mapping[str, str]) -> None:
        if rename:
            raise StepwellError('rename= is for samples="steps": in shards of episodes features keep their names.')
        schema = refuse_rates(_chosen(schema_of(view), features), "WebDataset")
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


KINDS: dict[str, type[StepSamples] | type[EpisodeSamples]] = {"steps": StepSamples, "episodes": EpisodeSamples}


def write_webdataset(
    source: Store | View | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str = "train",
    shard_samples: int | None = None,
    shard_bytes: int | str = "1 GB",
    features: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    names: str = "{:06d}",
    samples: Literal["steps", "episodes"] = "steps",
    workers: int | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> list[Path]:
    """Write a store as WebDataset's shards: every step a sample, or every episode.

    Of steps what ends of episodes tell is not written: neither the observation after the last action, nor metadata.
    Shards of episodes are read back to the same store; `EpisodeSamples` says what is in them.

    Args:
        source: a store, a view of one, or a path.
        target: directory of the shards, where nothing is yet; it appears whole, or not at all.
        prefix: of the shards' names, and the split in ``_info.json``: ``train-000000.tar``; no path.
        shard_samples: samples a shard; default: from ``shard_bytes``.
        shard_bytes: about how large a shard becomes; an int, or a size such as "500 MB".
        features: names of those that are written; default all.
        rename: feature to the ending of its members, ``{"image": "jpg", "label": "cls"}``; default: the feature's name
            and an ending of its kind, see `stepwell.webdataset.member_forms`.
        names: keys of samples: a format of the sample's number, which may also use ``episode`` and ``step``. A text
            feature ``__key__`` gives the keys of steps instead. In a shard none comes twice.
        samples: "steps" (default) or "episodes".
        workers: number of processes; default one a processor, 0 or 1 writes in this process. The shards are the same
            for every number.
        executor: where that is done instead of in ``workers`` processes; see `stepwell.ray.RayExecutor`.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.

    Returns:
        The shards.

    Raises:
        StoreExistsError: something is at the target already.
        FeatureNotFoundError: a name that the source does not have.
        SchemaError: two features of one ending, or an ending that does not fit its feature.
        StoreBusyError: an episode is still being recorded.
        DiskFullError: no space; nothing is left.
        WorkerError: a row that could not be read, or a key that comes twice in a shard; the message names the sample.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> shards = write_webdataset(tiny_store(f"{folder}/a.well"), f"{folder}/shards", shard_samples=5, workers=1)
        >>> shards[0].name
        'train-000000.tar'

    Notes:
        In a script, more than one worker needs an ``if __name__ == "__main__":`` guard. Equal stores give equal bytes.
    """
    local_path(target)
    if samples not in KINDS:
        raise StepwellError(f'samples={samples!r}. Allowed: "steps", "episodes".')
    if not PREFIX.fullmatch(prefix):
        raise StepwellError(f"prefix={prefix!r}. Allowed: what the names of files may begin with, such as 'train'.")
    found = KINDS[samples](as_view(source), names, features, rename or {})
    total = found.num_samples
    if total == 0:
        raise StepwellError("no steps to write: the source is empty.")
    each = _samples_a_shard(found, shard_samples, parse_bytes("shard_bytes", shard_bytes))
    cuts = [(start, min(start + each, total)) for start in range(0, total, each)]
    with built_directory(target) as folder:
        shards = [
            _Shard(str(Path(folder, f"{prefix}-{number:06d}.tar")), start, stop)
            for number, (start, stop) in enumerate(cuts)
        ]
        run_chunks(
            _Job(found),
            shards,
            workers=executor or workers,
            total=total,
            unit="samples",
            progress=progress,
            target=folder,
        )
        Path(folder, INFO).write_bytes(info_bytes({prefix: _split(prefix, shards)}, samples, found.names))
    return [Path(target, Path(shard.path).name) for shard in shards]


@dataclass(frozen=True, slots=True)
class _Shard:
    """An archive, and the samples [start, stop) that it gets."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Job:
    """Writes a shard."""

    noun: ClassVar[str] = "sample"
    source: StepSamples | EpisodeSamples

    def write(self, shard: _Shard, counters: MutableSequence[int]) -> None:
        """Write a shard."""
        keys: set[str] = set()
        with TarWriter(Path(shard.path)) as archive:
            for number, sample in enumerate(self.source.samples(shard.start, shard.stop), shard.start):
                counters[ITEM] = number
                if sample.key in keys:
                    raise SchemaError(
                        f"its key, {sample.key!r}, is another sample's in the shard, and readers would take both "
                        "for one. Give each a key of its own: names= with the sample's number, {:06d}."
                    )
                keys.add(sample.key)
                for ending, data in sample.members:
                    counters[NUM_BYTES] += archive.add(f"{sample.key}.{ending}", data)
                counters[NUM_STEPS] += sample.num_steps
                counters[NUM_ITEMS] += 1

    def remove(self, shard: _Shard) -> None:
        """Remove what a killed worker left of a shard."""
        Path(shard.path).unlink(missing_ok=True)


def _samples_a_shard(source: StepSamples | EpisodeSamples, shard_samples: int | None, shard_bytes: int) -> int:
    if shard_samples is not None:
        if shard_samples < 1:
            raise StepwellError(f"shard_samples={shard_samples}: allowed is 1 and more.")
        return shard_samples
    places = np.unique(np.linspace(0, source.num_samples - 1, NUM_PROBED).astype(np.int64)).tolist()
    probed = (member for place in places for sample in source.samples(place, place + 1) for member in sample.members)
    return max(1, shard_bytes * len(places) // sum(tar_bytes(len(data)) for _, data in probed))


def _split(prefix: str, shards: Sequence[_Shard]) -> dict[str, Any]:
    """Return what timm reads of ``_info.json``."""
    return {
        "name": prefix,
        "num_samples": shards[-1].stop,
        "filenames": [Path(shard.path).name for shard in shards],
        "shard_lengths": [shard.stop - shard.start for shard in shards],
    }
