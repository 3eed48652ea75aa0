"""Shards of the steps of a store: archives that webdataset, timm and stepwell read.

::

    steps     0 1 2 3 4 | 5 6 7 8 9 | 10 11        cut by number, the same for every number of processes
                   |          |          |
    TARGET/  train-000000.tar  -000001  -000002    each by whoever is free
             _info.json                            samples of each shard, names of the features
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FeatureNotFoundError, SchemaError, StepwellError
from stepwell.formats.source_episodes import SourceEpisode, as_view, episodes_of, schema_of
from stepwell.recorders.jobs import ITEM, NUM_BYTES, NUM_COUNTERS, NUM_ITEMS, NUM_STEPS, Failure
from stepwell.recorders.pool import WorkerPool
from stepwell.recorders.progress import ProgressBar
from stepwell.sizes import parse_bytes
from stepwell.store import Store
from stepwell.store.building import built_directory
from stepwell.webdataset.member_forms import MemberForm, make_forms
from stepwell.webdataset.settings import INFO
from stepwell.webdataset.tar_writing import TarWriter, tar_bytes
from stepwell.windows import View

__all__ = ["write_webdataset"]

KEY = "__key__"
NUM_PROBED = 16


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
    workers: int | None = None,
    progress: bool | None = None,
) -> list[Path]:
    """Write every step of a store as a sample of WebDataset's shards.

    What ends of episodes tell is not written: neither the observation after the last action, nor metadata.

    Args:
        source: a store, a view of one, or a path.
        target: directory of the shards, where nothing is yet; it appears whole, or not at all.
        prefix: of the shards' names, and the split in ``_info.json``: ``train-000000.tar``.
        shard_samples: samples a shard; default: from ``shard_bytes``.
        shard_bytes: about how large a shard becomes; an int, or a size such as "500 MB".
        features: names of those that are written; default all.
        rename: feature to the ending of its members, ``{"image": "jpg", "label": "cls"}``; default: the feature's name
            and an ending of its kind, see `stepwell.webdataset.member_forms`.
        names: keys of samples: a format of the sample's number, which may also use ``episode`` and ``step``. A text
            feature ``__key__`` gives the keys instead.
        workers: number of processes; default one a processor, 0 or 1 writes in this process. The shards are the same
            for every number.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.

    Returns:
        The shards.

    Raises:
        StoreExistsError: something is at the target already.
        FeatureNotFoundError: a name that the source does not have.
        SchemaError: two features of one ending, or an ending that does not fit its feature.
        StoreBusyError: an episode is still being recorded.
        DiskFullError: no space; nothing is left.
        WorkerError: a row that could not be read; the message names the sample.

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
    view = as_view(source)
    chosen = _chosen(schema_of(view), features)
    forms = make_forms(chosen, rename or {}, (KEY,))
    job = _Job(view, tuple(forms), names, KEY in chosen)
    total = job.num_samples
    if total == 0:
        raise StepwellError("no steps to write: the source is empty.")
    each = _samples_a_shard(job, shard_samples, parse_bytes("shard_bytes", shard_bytes))
    cuts = [(start, min(start + each, total)) for start in range(0, total, each)]
    with built_directory(target) as folder:
        shards = [
            _Shard(str(Path(folder, f"{prefix}-{number:06d}.tar")), start, stop)
            for number, (start, stop) in enumerate(cuts)
        ]
        _write(job, shards, workers, progress)
        Path(folder, INFO).write_text(json.dumps(_info(prefix, shards, forms), indent=1), encoding="utf-8")
    return [Path(target, Path(shard.path).name) for shard in shards]


@dataclass(frozen=True, slots=True)
class _Shard:
    """An archive, and the samples [start, stop) that it gets."""

    path: str
    start: int
    stop: int


class _Job:
    """What every worker needs to write any shard; opens the stores for itself."""

    def __init__(self, view: View, forms: Sequence[MemberForm], names: str, has_keys: bool) -> None:
        self._view, self._forms, self._names, self._has_keys = view, forms, names, has_keys
        self._episodes: list[SourceEpisode] | None = None
        _ = self._key(0, 0, 0)

    @property
    def num_samples(self) -> int:
        """Of all episodes."""
        return int(self._stops()[-1]) if self._found() else 0

    def write(self, shard: _Shard, counters: MutableSequence[int]) -> Failure | OSError | None:
        """Write a shard; returns what went wrong: a full disk as such, or the sample that cannot be read."""
        try:
            with TarWriter(Path(shard.path)) as archive:
                for number, (key, members) in enumerate(self.samples(shard.start, shard.stop), shard.start):
                    counters[ITEM] = number
                    counters[NUM_BYTES] += sum(archive.add(f"{key}.{ending}", data) for ending, data in members)
                    counters[NUM_ITEMS] += 1
                    counters[NUM_STEPS] += 1
        except Exception as error:
            is_full = isinstance(error, OSError) and not isinstance(error, StepwellError)
            return OSError(*error.args) if is_full else Failure.of(counters[ITEM], error, "sample")
        return None

    def samples(self, start: int, stop: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
        """Yield key and members, (ending, bytes) each, of samples."""
        stops = self._stops()
        place = int(np.searchsorted(stops, start, side="right"))
        while start < stop:
            episode, begin = self._found()[place], int(stops[place]) - self._found()[place].length
            first, last = start - begin, min(stop, int(stops[place])) - begin
            rows = zip(*(form.rows(episode, first, last) for form in self._forms), strict=True)
            keys = episode.read(KEY, first, last) if self._has_keys else None
            for step, row in enumerate(rows, first):
                key = self._key(begin + step, place, step) if keys is None else _checked_key(keys[step - first])
                yield key, [(form.ending, data) for form, data in zip(self._forms, row, strict=True)]
            start, place = begin + last, place + 1

    def _key(self, number: int, episode: int, step: int) -> str:
        try:
            return _checked_key(self._names.format(number, episode=episode, step=step))
        except (ValueError, LookupError) as error:
            raise StepwellError(
                f'names={self._names!r}: {error}. Allowed: "{{:06d}}", with episode and step.'
            ) from error

    def _found(self) -> list[SourceEpisode]:
        if self._episodes is None:
            self._episodes = list(episodes_of(self._view))
            self._ends = np.cumsum([episode.length for episode in self._episodes])
        return self._episodes

    def _stops(self) -> Any:
        self._found()
        return self._ends

    def __getstate__(self) -> dict[str, Any]:
        # episodes hold maps of files, which every process has its own of
        return {name: value for name, value in self.__dict__.items() if name != "_ends"} | {"_episodes": None}


def _write(job: _Job, shards: Sequence[_Shard], workers: int | None, progress: bool | None) -> None:
    if workers is not None and workers < 0:
        raise StepwellError(f"workers={workers}: allowed is 0 and more, or None for one a processor.")
    num_workers = min(len(os.sched_getaffinity(0)) if workers is None else workers, len(shards))
    bar = ProgressBar(shards[-1].stop, "samples", progress)
    try:
        if num_workers > 1:
            with WorkerPool(job, num_workers, "spawn") as pool:
                pool.run(iter(shards), lambda: bar.update(pool.counters), _raise)
            return
        counters = [0] * NUM_COUNTERS
        for shard in shards:
            _raise(job.write(shard, counters))
            bar.update([counters])
    finally:
        bar.close()


def _raise(answer: Failure | OSError | None) -> None:
    if isinstance(answer, OSError):
        raise answer
    if answer is not None:
        raise answer.to_error()


def _samples_a_shard(job: _Job, shard_samples: int | None, shard_bytes: int) -> int:
    if shard_samples is not None:
        if shard_samples < 1:
            raise StepwellError(f"shard_samples={shard_samples}: allowed is 1 and more.")
        return shard_samples
    places = np.unique(np.linspace(0, job.num_samples - 1, NUM_PROBED).astype(np.int64)).tolist()
    sizes = [
        tar_bytes(len(data)) for place in places for _, members in job.samples(place, place + 1) for _, data in members
    ]
    return max(1, shard_bytes * len(places) // sum(sizes))


def _info(prefix: str, shards: Sequence[_Shard], forms: Sequence[MemberForm]) -> dict[str, Any]:
    """Return ``_info.json``: what timm reads of it, and the features that members were."""
    split = {
        "name": prefix,
        "num_samples": shards[-1].stop,
        "filenames": [Path(shard.path).name for shard in shards],
        "shard_lengths": [shard.stop - shard.start for shard in shards],
    }
    return {"splits": {prefix: split}, "features": {form.ending: form.name for form in forms}}


def _chosen(schema: Any, features: Collection[str] | None) -> Any:
    if features is None:
        return schema
    unknown = [name for name in features if name not in schema]
    if unknown:
        raise FeatureNotFoundError(f"no feature {unknown[0]!r}. There are: {', '.join(schema)}.")
    return type(schema)({name: feature for name, feature in schema.items() if name in features})


def _checked_key(key: str) -> str:
    if not key or key.endswith("/") or "." in key.rpartition("/")[2] or key.startswith(("__", "/")) or "\0" in key:
        raise SchemaError(f"{key!r} cannot be the key of a sample: no dots in its last part, and not empty.")
    return key
