"""windows: the loader end to end, beside what else delivers the same windows.

Low-dimensional: 5 raw features of 68 + 24 + 4 + 4 + 1 bytes a step, windows of 16 steps within episodes of uneven
length, batches of 256, random order, a page-cached store of 2 GB, one thread. Rivals:

* bare kernel: the gather kernel on the same batches, places worked out before, memory reused: no order, no batches.
* numpy windows: a strided view of all windows of each column, indexed with the rows of the batch; the rows were
  worked out and shuffled before. The fastest that pure numpy does, and less work than the loader's.
* TorchRL: `SliceSampler` over a `TensorStorage` of the very same pages. It draws trajectories, then windows, with
  replacement, and returns tensors; ours returns numpy arrays, and tensors in a row of its own.

Images: raw 96 x 96 x 3, windows of 2, batches of 64, beside a copy of memory, and two threads beside one; raw and
JPEG. Raw windows scale as far as the machine's memory does, so copies of memory by two threads are measured with them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from bare import BareKernel
from datasets import LOW_DIM, column_of, jpeg_store, low_dim_store, photo_crops, removed
from numpy.lib.stride_tricks import as_strided
from report import Row, compare, skipped
from timing import MEMCPY, Rates, Settings, Work, memcpy_by_threads, time_rounds

import stepwell

__all__ = ["run"]

NAME = "windows"
WINDOW, BATCH = 16, 256
IMAGE_WINDOW, IMAGE_BATCH = 2, 64
LOW_CASE = "5 features x 16, batch 256"
TORCH_CASE = f"{LOW_CASE}, to torch"
MEMCPY_TWICE = "memcpy by 2 threads"
IMAGE_CASE = "96x96x3 raw x 2, batch 64"
NUM_BATCHES = 400


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of low-dimensional windows, then those of images."""
    with removed(low_dim_store(settings.data / "low-dim.well", settings.store_bytes)) as store:
        yield from _low_dim(store, settings)
    image = {"image": stepwell.Array((96, 96, 3), dtype="uint8")}
    with removed(low_dim_store(settings.data / "raw.well", settings.store_bytes, image)) as store:
        yield from _raw_images(store, settings)
    frames = photo_crops(settings.sized(10_000, 200), 96)
    with removed(jpeg_store(settings.data / "jpeg.well", frames)) as store:
        threads = {"2 threads": _stream(store, 2), "1 thread": _stream(store, 1)}
        rates = time_rounds(threads, settings)
        yield compare(
            NAME, "96x96x3 jpeg x 2, batch 64", rates, ours="2 threads", theirs="1 thread", unit="windows/s", target=1.6
        )


def _low_dim(store: stepwell.Store, settings: Settings) -> Iterator[Row]:
    fields = {name: stepwell.Field(name, range(WINDOW), pad="drop") for name in LOW_DIM}
    loader = _loader(store, fields, BATCH, threads=0)
    num_positions = loader.num_positions
    positions = np.random.default_rng(1).integers(0, num_positions, (settings.sized(NUM_BATCHES, 4), BATCH))
    kernel = BareKernel(loader.reader, positions)
    columns = {name: column_of(store, name) for name in LOW_DIM}
    numpy_windows = NumpyWindows(columns, loader.reader.index.places(np.arange(num_positions))[2])
    _check_low_dim(loader, kernel, numpy_windows, positions[0])
    contenders = {
        "loader": _taken(loader, BATCH),
        "torch loader": _taken(_loader(store, fields, BATCH, threads=0, to="torch"), BATCH),
        "bare kernel": kernel.work(BATCH),
        "numpy windows": numpy_windows.work(),
    }
    torchrl = _torchrl(columns, store.episodes.length)
    if torchrl is not None:
        contenders["torchrl SliceSampler"] = torchrl
    rates = time_rounds(contenders, settings)
    yield compare(NAME, LOW_CASE, rates, ours="loader", theirs="bare kernel", unit="windows/s", target=0.6)
    yield compare(NAME, LOW_CASE, rates, ours="loader", theirs="numpy windows", unit="windows/s", target=1.0)
    if torchrl is None:
        yield from skipped(NAME, "torchrl SliceSampler", LOW_CASE, TORCH_CASE)
    else:
        yield compare(
            NAME, LOW_CASE, rates, ours="loader", theirs="torchrl SliceSampler", unit="windows/s", target=10.0
        )
        yield compare(
            NAME, TORCH_CASE, rates, ours="torch loader", theirs="torchrl SliceSampler", unit="windows/s", target=10.0
        )


def _raw_images(store: stepwell.Store, settings: Settings) -> Iterator[Row]:
    window_gb = IMAGE_WINDOW * 96 * 96 * 3 / 1e9
    with ThreadPoolExecutor(2) as pool:
        contenders = {
            "loader": _stream(store, 0),
            "1 thread": _stream(store, 1),
            "2 threads": _stream(store, 2),
            MEMCPY_TWICE: memcpy_by_threads(pool, 2),
        }
        rates = time_rounds(contenders, settings)
    copies = (MEMCPY, MEMCPY_TWICE)
    in_gb = Rates({name: found * (1 if name in copies else window_gb) for name, found in rates.by_name.items()})
    yield compare(NAME, IMAGE_CASE, in_gb, ours="loader", theirs=MEMCPY, unit="GB/s", target=0.8)
    yield compare(NAME, f"{IMAGE_CASE}, 2 threads", in_gb, ours="2 threads", theirs=MEMCPY_TWICE, unit="GB/s")
    yield compare(NAME, "64 MiB copied by 2 threads", in_gb, ours=MEMCPY_TWICE, theirs=MEMCPY, unit="GB/s")
    yield compare(NAME, IMAGE_CASE, rates, ours="2 threads", theirs="1 thread", unit="windows/s", target=1.6)


def _stream(store: stepwell.Store, threads: int) -> Work:
    """Return the work of a loader of image windows."""
    (name,) = store.schema or {}
    field = stepwell.Field(name, range(IMAGE_WINDOW), pad="drop")
    return _taken(_loader(store, {"image": field}, IMAGE_BATCH, threads=threads), IMAGE_BATCH)


def _loader(store: stepwell.Store, fields: dict[str, Any], batch_size: int, **options: Any) -> stepwell.Loader:
    return stepwell.Loader(store, fields, batch_size=batch_size, order="random", epochs=None, **options)


def _taken(loader: stepwell.Loader, units: float) -> Work:
    """Return the work of taking a batch and dropping it."""
    batches = iter(loader)

    def take() -> float:
        next(batches)
        return units

    return take


class NumpyWindows:
    """A strided view of all windows of each column, indexed with the first rows of a batch's windows.

    Args:
        columns: name to array [rows, *shape].
        rows: int64 [n], the rows at which windows may begin.
    """

    def __init__(self, columns: dict[str, np.ndarray], rows: np.ndarray) -> None:
        self._rows = np.random.default_rng(2).permutation(rows)
        self._windows = {name: _window_view(column) for name, column in columns.items()}
        self._shapes = {name: (WINDOW, *column.shape[1:]) for name, column in columns.items()}

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the windows that begin at rows."""
        return {name: windows[rows].reshape(len(rows), *self._shapes[name]) for name, windows in self._windows.items()}

    def work(self) -> Work:
        """Return the work of reading one shuffled batch after the other."""
        starts = itertools.cycle(range(0, max(1, len(self._rows) - BATCH), BATCH))

        def read_one() -> float:
            start = next(starts)
            self.read(self._rows[start : start + BATCH])
            return BATCH

        return read_one


def _window_view(column: np.ndarray) -> np.ndarray:
    """Return [windows, values of a window]: copied in one piece each, which three axes are not."""
    step_values = int(np.prod(column.shape[1:]))
    shape = (len(column) - WINDOW + 1, WINDOW * step_values)
    return as_strided(column.reshape(-1), shape, (step_values * column.itemsize, column.itemsize), writeable=False)


def _check_low_dim(
    loader: stepwell.Loader, kernel: BareKernel, numpy_windows: NumpyWindows, positions: np.ndarray
) -> None:
    """Let all three read one batch, and compare."""
    ours = loader.reader.read(positions)
    rows = loader.reader.index.places(positions)[2]
    for theirs in (kernel.run(0), numpy_windows.read(rows)):
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values)


def _torchrl(columns: dict[str, np.ndarray], lengths: np.ndarray) -> Work | None:
    """Return the work of TorchRL's sampler, None where it is not installed."""
    try:
        import torch
        from tensordict import TensorDict
        from torchrl.data import SliceSampler, TensorDictReplayBuffer, TensorStorage
    except ImportError:
        return None
    torch.set_num_threads(1)
    num_steps = int(lengths.sum())
    trajectory = np.repeat(np.arange(len(lengths)), lengths)
    with warnings.catch_warnings():
        # the map is read-only, and nobody writes to it
        warnings.simplefilter("ignore", UserWarning)
        tensors: dict[str, Any] = {name: torch.from_numpy(column[:num_steps]) for name, column in columns.items()}
    storage = TensorStorage(TensorDict({**tensors, "trajectory": torch.from_numpy(trajectory)}, batch_size=[num_steps]))
    sampler = SliceSampler(slice_len=WINDOW, traj_key="trajectory", cache_values=True, strict_length=True)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH * WINDOW)
    sample = buffer.sample()
    starts = sample["index"].reshape(BATCH, WINDOW)[:, 0].numpy()
    for name, column in columns.items():
        found = sample[name].numpy().reshape(BATCH, WINDOW, *column.shape[1:])
        np.testing.assert_array_equal(found, column[starts[:, None] + np.arange(WINDOW)])

    def draw() -> float:
        buffer.sample()
        return BATCH

    return draw
