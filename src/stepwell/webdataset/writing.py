"""Shards of a store: archives that webdataset, timm and stepwell read.

::

    steps     0 1 2 3 4 | 5 6 7 8 9 | 10 11        cut by number, the same for every number of processes
                   |          |          |
    TARGET/  train-000000.tar  -000001  -000002    each by whoever is free
             _info.json                            samples of each shard, names of the features
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stepwell.errors import SchemaError, StepwellError
from stepwell.files.addresses import local_path
from stepwell.formats.source_episodes import as_view
from stepwell.recorders.chunks import ITEM, NUM_BYTES, NUM_ITEMS, NUM_STEPS, num_workers, run_chunks
from stepwell.sizes import parse_bytes
from stepwell.store import Store
from stepwell.store.layout import built_directory
from stepwell.webdataset.sample_sources import EpisodeSamples, StepSamples
from stepwell.webdataset.shard_info import INFO, info_bytes
from stepwell.webdataset.tar_writing import TarWriter, tar_bytes
from stepwell.windows import View

__all__ = ["write_webdataset"]

NUM_PROBED = 16
# hidden files are none of a directory's shards
PREFIX = re.compile(r"[^./\0][^/\0]*")
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
            workers=min(num_workers(workers), len(shards)),
            total=total,
            unit="samples",
            progress=progress,
        )
        Path(folder, INFO).write_bytes(info_bytes({prefix: _split(prefix, shards)}, samples, found.names))
    return [Path(target, Path(shard.path).name) for shard in shards]


@dataclass(frozen=True, slots=True)
class _Shard:
    """An archive, and the samples [start, stop) that it gets."""

    path: str
    start: int
    stop: int


class _Job:
    """What every worker needs to write any shard."""

    noun = "sample"

    def __init__(self, source: StepSamples | EpisodeSamples) -> None:
        self._source = source

    def write(self, shard: _Shard, counters: MutableSequence[int]) -> None:
        """Write a shard."""
        keys: set[str] = set()
        with TarWriter(Path(shard.path)) as archive:
            for number, sample in enumerate(self._source.samples(shard.start, shard.stop), shard.start):
                counters[ITEM] = number
                if sample.key in keys:
                    raise SchemaError(
                        f"its key, {sample.key!r}, is another sample's in the shard, and readers would take both "
                        "for one. Give each a key of its own: names= with the sample's number, {:06d}."
                    )
                keys.add(sample.key)
                for ending, data in sample.members:
                    counters[NUM_BYTES] += archive.add(f"{sample.key}.{ending}", data)
                counters[NUM_ITEMS] += 1
                counters[NUM_STEPS] += sample.num_steps


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
