"""timm's readers of TFDS datasets by their names, without TensorFlow: `docs/rlds.md` has a section on them.

::

    stepwell.timm.install()                                  once, before timm makes a dataset
    timm.data.create_dataset("tfds/imagenette", root=...)    -> IterableImageDataset(reader=ReaderTfds)

What a worker gets follows from the numbers of ranks and workers alone (R ranks, batches of B)::

    evaluation    0 .. N - 1 in the order of the files, a run for each rank; its workers take the batches in turn
    training      permutations by (seed, epoch), one after the other; the k-th R * B of them are the ranks' k-th batches

So each sample is evaluated once, and each epoch serves each at least once (`repeats` times).

Source:
    huggingface/pytorch-image-models, timm/data/readers/reader_tfds.py: arguments, lengths and what is yielded.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, FormatError, LoaderError, MissingDependencyError
from stepwell.formats.opening import open as open_store
from stepwell.order import random
from stepwell.windows import View
from stepwell.windows.reader import WindowReader

try:
    import torch
    from PIL import Image
except ImportError as error:
    raise MissingDependencyError.of("torch", "torch") from error

__all__ = ["ParserTfds", "ReaderTfds", "install"]

# features that say what an example is called, the first that there is
NAMES = ("file_name", "filename", "id")
# rows that are read at a time
FEW = 32


class ReaderTfds:
    """Read the examples of a TFDS dataset for timm; the arguments of timm's class of this name.

    Args:
        name: of the dataset: ``"imagenette"``, ``"imagenette/full-size"``, ``"imagenette:1.0.0"``.
        root: where datasets lie; default ``$TFDS_DATA_DIR``, else ``~/tensorflow_datasets``.
        split: TFDS's, such as ``"train[:10%]"``.
        class_map: a class's name or number to the number that it becomes: a mapping, or a ``.txt`` file, a name a line;
            None or "": labels as they are.
        is_training: whether epochs are shuffled, and end with full batches.
        batch_size: of the ``DataLoader`` in each rank.
        download: nothing is downloaded: what is not there is an error.
        repeats: how often an epoch serves each sample; 0 is once.
        seed: of the shuffling; the same in all ranks.
        input_key: of the feature that is yielded first.
        input_img_mode: PIL's mode of the input: ``"RGB"``, ``"L"``; "" for the array as it is.
        target_key: of the feature that is yielded second.
        target_img_mode: PIL's mode of a target that is an image; "" (default) for a label.
        prefetch_size: not needed here; taken for timm's sake, and so the next two.
        shuffle_size: an epoch is a permutation of all samples.
        max_threadpool_size: each worker decodes in its own process.
        dct: how JPEG files are decoded: "fast" (default), as TensorFlow does unless told otherwise, to the bit;
            "exact", as Pillow does, and timm's class by TensorFlow's ``dct_method="INTEGER_ACCURATE"``.

    Attributes:
        class_to_idx: name of a class to its number, or the class map.
        num_samples: of the split.

    Raises:
        DatasetNotFoundError: no such dataset in ``root``.
        FormatError: a split or class map that is none.
        FeatureNotFoundError: no such key.

    Notes:
        Ranks are those of ``torch.distributed`` when it is made, workers those of the ``DataLoader``. In evaluation all
        ranks have equally many batches where that can be had without doubling a sample; if not, it warns.
        Call `set_epoch` before each epoch, as timm's own script does: the order follows from it.
    """

    def __init__(  # noqa: PLR0917  timm's order
        self,
        name: str,
        root: str | os.PathLike[str] | None = None,
        split: str = "train",
        class_map: Mapping[Any, int] | str | None = None,
        is_training: bool = False,
        batch_size: int = 1,
        download: bool = False,
        repeats: int = 0,
        seed: int = 42,
        input_key: str = "image",
        input_img_mode: str = "RGB",
        target_key: str = "label",
        target_img_mode: str = "",
        prefetch_size: int | None = None,
        shuffle_size: int | None = None,
        max_threadpool_size: int | None = None,
        *,
        dct: str = "fast",
    ) -> None:
        if batch_size < 1 or repeats < 0:
            raise LoaderError(f"batch_size={batch_size}, repeats={repeats}. Allowed: 1 and more, and 0 and more.")
        self.root, self.split, self.dct = root, split, dct
        self.is_training, self.batch_size, self.repeats, self.common_seed = is_training, batch_size, repeats, seed
        self.input_key, self.input_img_mode = input_key, input_img_mode
        self.target_key, self.target_img_mode = target_key, target_img_mode
        self._source = _directory_of(name, root)
        store = self._open([input_key, target_key])
        self._reader = WindowReader(View(store), {"input": input_key, "target": target_key})
        labels = store.metadata["tfds"].get("labels", {}).get(target_key, [])
        names = {label: number for number, label in enumerate(labels)}
        # timm's scripts give "" for none
        self.remap_class = bool(class_map)
        self.class_to_idx = _class_map_of(class_map) if class_map else names
        self._remapped = _remapped(self.class_to_idx, labels) if self.remap_class else {}
        self.num_samples = self._reader.index.num_anchors
        self.dist_rank, self.dist_num_replicas = _rank()
        self.num_workers, self.global_num_workers = 1, self.dist_num_replicas
        self._epoch = get_context("spawn").Value("q", 0)

    def _open(self, features: list[str]) -> Any:
        try:
            return open_store(f"tfds://{self._source}", split=self.split, features=features, dct=self.dct)
        except FormatError as error:
            if "no images that may be JPEG" not in str(error):
                raise
            return open_store(f"tfds://{self._source}", split=self.split, features=features)

    def set_epoch(self, count: int) -> None:
        """Take the number of the next epoch; workers that run already see it."""
        self._epoch.value = count

    def set_loader_cfg(self, num_workers: int | None = None) -> None:
        """Take the number of workers that a ``DataLoader`` will have; warn of ranks that have more batches."""
        if num_workers is None:
            return
        self.num_workers = max(1, num_workers)
        self.global_num_workers = self.dist_num_replicas * self.num_workers
        start, stop = self._run()
        count = len(self._sizes(stop - start, self.num_workers))
        if not self.is_training and count < self._most_batches():
            warnings.warn(
                f"rank {self.dist_rank} evaluates {count} batches, and others one more: {self.num_samples} samples "
                f"over {self.dist_num_replicas} ranks in batches of {self.batch_size}. A loop that waits for all ranks "
                "in each batch does not end: use another batch size, or two workers and more.",
                RuntimeWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        """Return how many samples this rank is served in an epoch, by all of its workers."""
        if self.is_training:
            return self._batches_a_worker(self.num_workers) * self.num_workers * self.batch_size
        start, stop = self._run()
        return stop - start

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (input, target) of the samples of this worker."""
        info = torch.utils.data.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return self._samples(self._training(number, count) if self.is_training else self._evaluation(number, count))

    def _samples(self, batches: Iterator[npt.NDArray[np.int64]]) -> Iterator[tuple[Any, Any]]:
        for batch in batches:
            for rows in np.split(batch, range(FEW, len(batch), FEW)):
                found = self._reader.read(rows)
                for value, target in zip(found["input"], found["target"], strict=True):
                    yield _as_image(value, self.input_img_mode), self._target(target)

    def _target(self, target: Any) -> Any:
        if self.target_img_mode:
            return _as_image(target, self.target_img_mode)
        if not self.remap_class:
            return target
        key = target.item() if isinstance(target, np.generic) else target
        if key not in self._remapped:
            raise FormatError(
                f"class_map has no class {key!r}. There are: {', '.join(map(str, self._remapped))[:200]}."
            )
        return self._remapped[key]

    def _batches_a_worker(self, num_workers: int) -> int:
        """How many full batches a worker has in an epoch of training."""
        total = max(1, self.repeats) * self.num_samples
        return -(-total // (self.dist_num_replicas * num_workers * self.batch_size))

    def _training(self, number: int, num_workers: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the batches of a worker; after the last sample an epoch begins again, with the samples it had first."""
        passes, size = max(1, self.repeats), self.batch_size
        order = random(seed=self.common_seed).bind(self._reader.index)
        epoch = int(self._epoch.value)
        for place in range(self._batches_a_worker(num_workers)):
            start = ((place * num_workers + number) * self.dist_num_replicas + self.dist_rank) * size
            turns = range(start // self.num_samples, (start + size - 1) // self.num_samples + 1)
            edges = [max(start, turn * self.num_samples) for turn in turns] + [start + size]
            yield np.concatenate(
                [
                    order.positions(epoch * passes + turn % passes, edge % self.num_samples, stop - edge)
                    for turn, edge, stop in zip(turns, edges, edges[1:], strict=False)
                ]
            )

    def _run(self) -> tuple[int, int]:
        """Return the first sample of this rank in evaluation, and one past its last."""
        edges = [self.num_samples * rank // self.dist_num_replicas for rank in range(self.dist_num_replicas + 1)]
        return edges[self.dist_rank] * max(1, self.repeats), edges[self.dist_rank + 1] * max(1, self.repeats)

    def _evaluation(self, number: int, num_workers: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the batches of a worker, of which the rank's follow each other over its workers."""
        start, stop = self._run()
        sizes = self._sizes(stop - start, num_workers)
        ends = list(accumulate(sizes, initial=start))
        for place in range(number, len(sizes), num_workers):
            yield np.arange(ends[place], ends[place + 1]) // max(1, self.repeats)

    def _sizes(self, num_samples: int, num_workers: int) -> list[int]:
        """Return the sizes of a rank's batches: full ones, but for the end, and as many as the other ranks have."""
        size = self.batch_size
        sizes = [min(size, num_samples - start) for start in range(0, num_samples, size)]
        if len(sizes) < self._most_batches() and num_workers > 1 and sizes and sizes[-1] > 1:
            # two workers end with less than a full batch each
            return [*sizes[:-1], sizes[-1] - 1, 1]
        return sizes

    def _most_batches(self) -> int:
        """How many batches the rank with the most samples has in evaluation."""
        most = -(-self.num_samples // self.dist_num_replicas) * max(1, self.repeats)
        return -(-most // self.batch_size)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return what the examples are called, in the order of the files: by ``file_name``, ``filename`` or ``id``.

        Args:
            basename: without directories.
            absolute: there is nothing that they are relative to: refused.

        Raises:
            FeatureNotFoundError: the dataset has none of these features.
        """
        if absolute:
            raise LoaderError("filenames(absolute=True): examples lie in record files, and have no path of their own.")
        for name in NAMES:
            try:
                store = self._open([name])
            except FeatureNotFoundError:
                continue
            reader = WindowReader(View(store), {"name": name})
            found = [str(value) for value in reader.read(np.arange(reader.index.num_anchors))["name"]]
            return [Path(each).name for each in found] if basename else found
        raise FeatureNotFoundError(f"{self._source}: no feature {', '.join(NAMES)} says what an example is called.")

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Return what one example is called; see `filenames`."""
        return self.filenames(basename, absolute)[index]


class ParserTfds(ReaderTfds):
    """`ReaderTfds` by the arguments of timm's older class (``timm.data.parsers``).

    Args:
        root: see `ReaderTfds`, and so the others that have its names.
        name: of the dataset.
        split: of it.
        is_training: see `ReaderTfds`.
        batch_size: see `ReaderTfds`; None is 1.
        download: see `ReaderTfds`.
        repeats: see `ReaderTfds`.
        seed: see `ReaderTfds`.
        input_name: its ``input_key``.
        input_image: its ``input_img_mode``.
        target_name: its ``target_key``.
        target_image: its ``target_img_mode``.
        prefetch_size: not needed here, and so the next two.
        shuffle_size: see `ReaderTfds`.
        max_threadpool_size: see `ReaderTfds`.
        dct: see `ReaderTfds`.
    """

    def __init__(  # noqa: PLR0917  timm's order
        self,
        root: str | os.PathLike[str] | None,
        name: str,
        split: str = "train",
        is_training: bool = False,
        batch_size: int | None = None,
        download: bool = False,
        repeats: int = 0,
        seed: int = 42,
        input_name: str = "image",
        input_image: str = "RGB",
        target_name: str = "label",
        target_image: str = "",
        prefetch_size: int | None = None,
        shuffle_size: int | None = None,
        max_threadpool_size: int | None = None,
        *,
        dct: str = "fast",
    ) -> None:
        super().__init__(
            name,
            root,
            split,
            is_training=is_training,
            batch_size=batch_size or 1,
            download=download,
            repeats=repeats,
            seed=seed,
            input_key=input_name,
            input_img_mode=input_image,
            target_key=target_name,
            target_img_mode=target_image,
            dct=dct,
        )


def install() -> None:
    """Put `ReaderTfds` and `ParserTfds` where timm looks for its own when it is asked for ``"tfds/..."``.

    Example:
        >>> install()
        >>> from timm.data.readers.reader_tfds import ReaderTfds  # doctest: +SKIP
    """
    for place, found in (("readers.reader_tfds", ReaderTfds), ("parsers.parser_tfds", ParserTfds)):
        module = ModuleType(f"timm.data.{place}", "stepwell's, in place of timm's own.")
        setattr(module, found.__name__, found)
        sys.modules[module.__name__] = module


def _directory_of(name: str, root: str | os.PathLike[str] | None) -> str:
    """Return the directory of a dataset by the name that TFDS gives it: ``name/config:version``."""
    data = root or os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets"
    path, _, version = name.partition(":")
    parts = [*path.split("/"), *([version] if version else [])]
    if any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"the dataset's name {name!r}. Allowed: name, name/config, name/config:version.")
    return os.path.join(os.fspath(data), *parts)  # noqa: PTH118  an address may stand there


def _rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _class_map_of(given: Mapping[Any, int] | str) -> dict[Any, int]:
    """Return a class map, or that of a file."""
    if isinstance(given, Mapping):
        return dict(given)
    if Path(given).suffix.lower() != ".txt":
        raise FormatError(
            f"class_map={given!r}. Allowed: a mapping, or a .txt file with the name of a class in each line."
        )
    lines = Path(given).read_text(encoding="utf-8").splitlines()
    return {line.strip(): number for number, line in enumerate(lines)}


def _remapped(class_map: Mapping[Any, int], labels: list[str]) -> dict[Any, int]:
    """Return a class map by what the dataset has: numbers of classes, where the map has their names."""
    by_name = {number: class_map[label] for number, label in enumerate(labels) if label in class_map}
    return {**class_map, **by_name}


def _as_image(value: npt.NDArray[Any], mode: str) -> Any:
    """Return an image as PIL has it in a mode; "": as it is."""
    if not mode:
        return value
    image = Image.fromarray(value[..., 0] if value.ndim == 3 and value.shape[-1] == 1 else value)
    return image if image.mode == mode else image.convert(mode)
